//! Where a backend gets a weight's bytes from.

use crate::error::BackendError;
use crate::room::with_room;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a weight, in memory or in a file. Several threads may read at once.
pub trait WeightBytes: Sync {
    /// How many.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on.
    ///
    /// # Errors
    /// [`BackendError::Read`], for a range outside the weight too.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// All of them, if they are in memory.
    fn slice(&self) -> Option<&[u8]> {
        None
    }

    /// All of them, if they are in memory and may stay there for as long as anybody wants.
    fn shared(&self) -> Option<SharedBytes> {
        None
    }

    /// All of them in a list.
    ///
    /// # Errors
    /// As [`WeightBytes::read`], or [`BackendError::OutOfMemory`].
    fn to_vec(&self) -> Result<Vec<u8>, BackendError> {
        let len = self.len();
        let mut list = with_room(len)?;
        list.resize(len, 0);
        self.read(0, &mut list)?;
        Ok(list)
    }
}

/// Bytes in memory that live for as long as somebody has this: a part of a file that is mapped.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// A range of the owner's bytes, if it has them.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(SharedBytes { owner, range })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBytes").field("range", &self.range).finish_non_exhaustive()
    }
}

impl WeightBytes for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        let range = offset..offset.saturating_add(out.len());
        let found = self.get(range.clone()).ok_or_else(|| {
            BackendError::Read(format!("bytes {} to {} of {}", range.start, range.end, <[u8]>::len(self)))
        })?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn slice(&self) -> Option<&[u8]> {
        Some(self)
    }
}
