//! Buffers of the reference backend: plain byte vectors behind ids that are never reused, so that an
//! access to a freed buffer is an error. Every buffer starts full of `0xFF` bytes, which read as NaN in
//! f16 and f32 and as -1 in i32: a missing write shows.

use minfer_graph::{BackendError, BufferId, BufferSlice};

const POISON: u8 = 0xff;

/// Pieces of freed memory that are kept; beyond that the one that was freed first goes.
const MAX_FREE: usize = 16;

/// The pool.
#[derive(Debug, Default)]
pub struct Memory {
    /// By id; `None` once freed.
    buffers: Vec<Option<Vec<u8>>>,
    /// Memory of freed buffers, to be handed out again.
    free: Vec<Vec<u8>>,
}

fn bad(slice: BufferSlice, reason: &str) -> BackendError {
    BackendError::BadBuffer(format!("buffer {} {}+{}: {reason}", slice.buffer.0, slice.offset, slice.len))
}

impl Memory {
    /// Bytes of all buffers and of the memory that is kept.
    pub fn total(&self) -> usize {
        self.buffers.iter().flatten().chain(&self.free).map(Vec::len).sum()
    }

    /// A buffer from the smallest piece of freed memory that holds it, else a new one.
    pub fn alloc(&mut self, bytes: usize) -> BufferId {
        let fits = (0..self.free.len()).filter(|&i| self.free[i].len() >= bytes);
        match fits.min_by_key(|&i| self.free[i].len()) {
            Some(i) => {
                let mut memory = self.free.swap_remove(i);
                memory.fill(POISON);
                self.insert(memory)
            }
            None => self.alloc_fresh(bytes),
        }
    }

    /// A buffer of new memory.
    pub fn alloc_fresh(&mut self, bytes: usize) -> BufferId {
        self.insert(vec![POISON; bytes])
    }

    fn insert(&mut self, memory: Vec<u8>) -> BufferId {
        self.buffers.push(Some(memory));
        BufferId(self.buffers.len() - 1)
    }

    /// Frees a buffer; unknown ids are ignored.
    pub fn free(&mut self, id: BufferId) {
        if let Some(memory) = self.buffers.get_mut(id.0).and_then(Option::take) {
            self.free.push(memory);
            if self.free.len() > MAX_FREE {
                self.free.remove(0);
            }
        }
    }

    /// Bytes of a range.
    pub fn bytes(&self, slice: BufferSlice) -> Result<&[u8], BackendError> {
        let buffer = self.buffers.get(slice.buffer.0).and_then(Option::as_ref);
        let end = slice.offset.checked_add(slice.len).ok_or_else(|| bad(slice, "too long"))?;
        let buffer = buffer.ok_or_else(|| bad(slice, "no such buffer"))?;
        buffer.get(slice.offset..end).ok_or_else(|| bad(slice, "outside the buffer"))
    }

    /// Bytes of a range, to be changed.
    pub fn bytes_mut(&mut self, slice: BufferSlice) -> Result<&mut [u8], BackendError> {
        self.bytes(slice)?;
        let buffer = self.buffers.get_mut(slice.buffer.0).and_then(Option::as_mut);
        let buffer = buffer.ok_or_else(|| bad(slice, "no such buffer"))?;
        Ok(&mut buffer[slice.offset..slice.offset + slice.len])
    }

    /// A range as f32 values.
    pub fn f32(&self, slice: BufferSlice) -> Result<Vec<f32>, BackendError> {
        let (chunks, rest) = self.bytes(slice)?.as_chunks();
        if !rest.is_empty() {
            return Err(bad(slice, "no whole number of values"));
        }
        Ok(chunks.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// A range as i32 values.
    pub fn i32(&self, slice: BufferSlice) -> Result<Vec<i32>, BackendError> {
        let (chunks, rest) = self.bytes(slice)?.as_chunks();
        if !rest.is_empty() {
            return Err(bad(slice, "no whole number of values"));
        }
        Ok(chunks.iter().map(|b| i32::from_le_bytes(*b)).collect())
    }

    /// Writes f32 values that fill a range.
    pub fn write_f32(&mut self, slice: BufferSlice, values: &[f32]) -> Result<(), BackendError> {
        let bytes = self.bytes_mut(slice)?;
        if bytes.len() != 4 * values.len() {
            return Err(bad(slice, &format!("{} values don't fill it", values.len())));
        }
        for (b, v) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *b = v.to_le_bytes();
        }
        Ok(())
    }
}

/// Whether two ranges share a byte.
pub fn overlap(a: BufferSlice, b: BufferSlice) -> bool {
    let shared = a.offset.max(b.offset) < (a.offset + a.len).min(b.offset + b.len);
    a.buffer == b.buffer && a.len > 0 && b.len > 0 && shared
}
