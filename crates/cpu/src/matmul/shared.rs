//! A slice that several threads write at places that don't overlap.

use minfer_graph::BackendError;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// A mutable slice shared among the threads of a pool.
#[derive(Debug)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: values may move to other threads (`T: Send`), and callers of `range` keep live ranges disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// The `len` values from `start` on.
    ///
    /// # Safety
    ///
    /// They exist, are initialised, and for `'a` are touched through the result and its copies only.
    pub unsafe fn from_raw(start: NonNull<T>, len: usize) -> Self {
        SharedMut { start: start.as_ptr(), len, slice: PhantomData }
    }

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

    /// `G` times `N` values from `start` on; panics if they are out of bounds.
    ///
    /// # Safety
    ///
    /// As [`SharedMut::range`].
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "callers keep the ranges disjoint")]
    pub unsafe fn array<const G: usize, const N: usize>(&self, start: usize) -> &mut [[T; N]; G] {
        assert!(start <= self.len && self.len - start >= G * N);
        // SAFETY: as in `range`; an array has the layout of its values.
        unsafe { &mut *self.start.add(start).cast() }
    }

    /// A part of it, to hand on; panics if it is out of bounds.
    pub fn part(&self, range: Range<usize>) -> SharedMut<'a, T> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds of the slice.
        SharedMut { start: unsafe { self.start.add(range.start) }, len: range.len(), slice: PhantomData }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether two of them have a value in common.
    pub fn overlaps(&self, other: &SharedMut<'_, T>) -> bool {
        let end = |slice: &SharedMut<'_, T>| slice.start.wrapping_add(slice.len).addr();
        self.start.addr() < end(other) && other.start.addr() < end(self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values, to read.
    ///
    /// # Safety
    ///
    /// Nobody writes them while the result is alive.
    #[inline(always)]
    pub unsafe fn read(&self) -> &'a [T] {
        // SAFETY: as in `range`; nobody writes.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<'a> SharedMut<'a, u8> {
    /// Bytes as values; an error if they are misaligned or no whole number of values.
    pub fn cast<T: bytemuck::Pod>(self) -> Result<SharedMut<'a, T>, BackendError> {
        let start = self.start.cast::<T>();
        if self.len > 0 && (!start.is_aligned() || !self.len.is_multiple_of(size_of::<T>())) {
            let ty = std::any::type_name::<T>();
            return Err(BackendError::BadBuffer(format!("{} bytes at {start:p} as {ty}", self.len)));
        }
        let start = if self.len == 0 { NonNull::dangling().as_ptr() } else { start };
        Ok(SharedMut { start, len: self.len / size_of::<T>(), slice: PhantomData })
    }
}
