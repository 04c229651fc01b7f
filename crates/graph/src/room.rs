//! Memory for lists whose length a model, a context or a batch decides: too little of it is an error and no abort.

use crate::error::BackendError;

/// An empty list with room for `len` values.
///
/// # Errors
/// [`BackendError::OutOfMemory`] with the bytes of all of them.
pub fn with_room<T>(len: usize) -> Result<Vec<T>, BackendError> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| no_room::<T>(len))?;
    Ok(list)
}

/// Makes room in a list for `len` values in all.
///
/// # Errors
/// As [`with_room`].
pub fn reserve<T>(list: &mut Vec<T>, len: usize) -> Result<(), BackendError> {
    let more = len.saturating_sub(list.len());
    // Room for growth is worth having, but not worth failing for.
    list.try_reserve(more).or_else(|_| list.try_reserve_exact(more)).map_err(|_| no_room::<T>(len))
}

/// Makes a list `len` long. New places get `value`; those that were there keep theirs.
///
/// # Errors
/// As [`with_room`]; the list is as it was then.
pub fn resize<T: Clone>(list: &mut Vec<T>, len: usize, value: T) -> Result<(), BackendError> {
    reserve(list, len)?;
    list.resize(len, value);
    Ok(())
}

/// Makes a list at least `len` long.
///
/// # Errors
/// As [`resize`].
pub fn grow<T: Clone>(list: &mut Vec<T>, len: usize, value: T) -> Result<(), BackendError> {
    if list.len() < len { resize(list, len, value) } else { Ok(()) }
}

fn no_room<T>(len: usize) -> BackendError {
    BackendError::OutOfMemory(len.saturating_mul(size_of::<T>()))
}

#[cfg(test)]
mod tests {
    use super::{grow, resize, with_room};
    use crate::error::BackendError;

    #[test]
    fn lists_get_their_length_or_stay_as_they_are() {
        let mut list = vec![1u32, 2];
        resize(&mut list, 4, 7).unwrap();
        assert_eq!(list, [1, 2, 7, 7]);
        grow(&mut list, 3, 0).unwrap();
        assert_eq!(list.len(), 4);
        resize(&mut list, 1, 0).unwrap();
        let most = isize::MAX as usize / 4;
        assert_eq!(resize(&mut list, most, 0), Err(BackendError::OutOfMemory(most * 4)));
        assert_eq!(grow(&mut list, usize::MAX, 0), Err(BackendError::OutOfMemory(usize::MAX)));
        assert_eq!(list, [1]);
        assert!(with_room::<u64>(9).unwrap().capacity() >= 9);
        assert!(with_room::<u64>(usize::MAX).is_err());
    }
}
