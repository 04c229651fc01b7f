//! Which pages are free, and how many hold each of the others.

/// The pages of a cache with their reference counts.
pub(super) struct Pages {
    free: Vec<usize>,
    holders: Vec<u32>,
}

impl Pages {
    pub(super) fn new(n: usize) -> Self {
        Pages { free: (0..n).rev().collect(), holders: vec![0; n] }
    }

    /// Pages in all.
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Pages that nobody holds.
    pub(super) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// How many hold a page.
    pub(super) fn holders(&self, page: usize) -> u32 {
        self.holders[page]
    }

    /// A free page, held once from now on.
    pub(super) fn take(&mut self) -> Option<usize> {
        let page = self.free.pop()?;
        self.holders[page] = 1;
        Some(page)
    }

    /// One more holds a page that is held already.
    pub(super) fn hold(&mut self, page: usize) {
        debug_assert!(self.holders[page] > 0, "page {page} is free");
        self.holders[page] += 1;
    }

    /// One less holds a page; nobody: it is free.
    pub(super) fn release(&mut self, page: usize) {
        debug_assert!(self.holders[page] > 0, "page {page} is free already");
        self.holders[page] -= 1;
        if self.holders[page] == 0 {
            self.free.push(page);
        }
    }
}
