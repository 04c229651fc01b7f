//! What the tests share: golden files and a small random generator.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;

use minfer_gguf::Gguf;

/// A file of `tests/data`, read whole, and its header.
pub fn golden(name: &str) -> (Vec<u8>, Gguf) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let bytes = std::fs::read(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    (bytes, gguf)
}

/// The data of a tensor.
pub fn data<'a>(bytes: &'a [u8], gguf: &Gguf, name: &str) -> &'a [u8] {
    let tensor = gguf.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    &bytes[usize::try_from(tensor.offset).unwrap()..][..usize::try_from(tensor.bytes).unwrap()]
}

/// The data of a tensor of f32.
pub fn floats(bytes: &[u8], gguf: &Gguf, name: &str) -> Vec<f32> {
    data(bytes, gguf, name).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n).unwrap()).unwrap()
    }

    /// Roughly normal, variance 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }
}
