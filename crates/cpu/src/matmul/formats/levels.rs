//! Codes of four bits that stand for fixed levels.

use crate::simd::Simd;

/// The bytes that stand for the levels plus `zero`, twice.
pub const fn table(levels: &[i8; 16], zero: i8) -> [u8; 32] {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = (levels[i % 16] + zero).cast_unsigned();
        i += 1;
    }
    table
}

/// Looks up a block's codes.
#[inline(always)]
pub fn look_up<S: Simd>(s: S, table: &[u8; 32], mut codes: [S::I; 8]) -> [S::I; 8] {
    let table = s.load_bytes(table);
    for code in &mut codes {
        *code = s.lookup(table, *code);
    }
    codes
}
