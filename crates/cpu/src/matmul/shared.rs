//! A slice that several threads write at places that don't overlap.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared among the workers of a pool.
#[derive(Clone, Copy)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: values may move to other threads (`T: Send`), and callers of `range` keep live ranges disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice over.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// A part of the slice; panics if it is out of bounds.
    ///
    /// # Safety
    ///
    /// Ranges that are alive at the same time must not overlap.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "callers keep the ranges disjoint")]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds of a slice that stays borrowed for `'a`, disjoint from other live ranges.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
