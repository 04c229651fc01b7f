//! The texts and the hashes of the tests against other engines (`tests/oracle/`).
#![allow(dead_code, reason = "no test uses all of it")]

/// Texts that tokenizers trip over.
pub fn hostile_texts() -> Vec<String> {
    serde_json::from_str(include_str!("../data/hostile.json")).unwrap()
}

/// FNV-1a over the numbers' bytes.
pub fn fnv(numbers: impl Iterator<Item = u32>) -> u64 {
    let bytes = numbers.flat_map(u32::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Compares `rows` of numbers with a hash for each hundred rows; a row's length is hashed with it.
pub fn assert_blocks(name: &str, rows: &[Vec<u32>], hashes: &str) {
    let length = |row: &Vec<u32>| u32::try_from(row.len()).unwrap();
    let hash = |block: &[Vec<u32>]| {
        let numbers = block.iter().flat_map(|row| std::iter::once(length(row)).chain(row.iter().copied()));
        format!("{:016x}", fnv(numbers))
    };
    let found: Vec<String> = rows.chunks(100).map(hash).collect();
    let expected: Vec<&str> = hashes.split(' ').collect();
    let wrong: Vec<usize> = (0..found.len().max(expected.len()))
        .filter(|at| found.get(*at).map(String::as_str) != expected.get(*at).copied())
        .collect();
    assert!(wrong.is_empty(), "{name}: blocks {wrong:?} of a hundred texts differ");
}
