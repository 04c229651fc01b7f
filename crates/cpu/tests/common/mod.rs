//! The numeric contract of matmuls in plain scalar code, read from the file's bytes: nothing here is
//! shared with the crate under test.

use minfer_gguf::TensorType;
use minfer_graph::WeightSpec;

/// The types the crate packs.
pub const TYPES: [TensorType; 16] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Bf16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
    TensorType::Q2K,
    TensorType::Q3K,
    TensorType::Iq4Nl,
    TensorType::Iq4Xs,
    TensorType::Mxfp4,
];

/// xorshift64*.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Roughly normal.
    pub fn float(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum()
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

pub fn spec(ty: TensorType, rows: usize, cols: usize) -> WeightSpec {
    WeightSpec::new("w", ty, rows, cols)
}

/// Levels of the IQ4 types.
const NON_LINEAR: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 weights with their scales, in the contract's terms.
pub struct Block {
    pub w: [i32; 32],
    pub ws: f32,
    pub m: f32,
    pub halves: [i32; 2],
    /// The integer minima of Q2_K, whose float part is `m`.
    pub minima: [i32; 2],
}

fn half(b: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn k_scale(b: &[u8], j: usize) -> (f32, f32) {
    let s = &b[4..16];
    let (sc, m) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    };
    (f32::from(sc), f32::from(m))
}

/// Whether a type has a minimum.
pub fn has_minimum(ty: TensorType) -> bool {
    matches!(ty, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K)
}

/// The blocks of one row.
pub fn blocks(ty: TensorType, row: &[u8]) -> Vec<Block> {
    let nib =
        |b: &[u8], at: usize, i: usize| i32::from(if i < 16 { b[at + i] & 15 } else { b[at + i - 16] >> 4 });
    let fifth = |b: &[u8], at: usize, i: usize| i32::from(b[at + i / 8] >> (i % 8) & 1) << 4;
    let mut out = Vec::new();
    for b in row.chunks_exact(ty.block_bytes()) {
        for j in 0..ty.block_len() / 32 {
            let mut block = Block { w: [0; 32], ws: half(b, 0), m: 0.0, halves: [1, 1], minima: [0, 0] };
            if let TensorType::Q4K | TensorType::Q5K = ty {
                let (sc, m) = k_scale(b, j);
                block.ws = half(b, 0) * sc;
                block.m = -(half(b, 2) * m);
            } else if ty == TensorType::Q6K {
                block.ws = half(b, 208);
                block.halves = [2 * j, 2 * j + 1].map(|i| i32::from(b[192 + i] as i8));
            } else if ty == TensorType::Q2K {
                (block.ws, block.m) = (half(b, 80), -half(b, 82));
                block.halves = [2 * j, 2 * j + 1].map(|i| i32::from(b[i] & 15));
                block.minima = [2 * j, 2 * j + 1].map(|i| i32::from(b[i] >> 4));
            } else if ty == TensorType::Q3K {
                block.ws = half(b, 108);
                block.halves = [2 * j, 2 * j + 1].map(|i| {
                    let low = b[96 + i % 8] >> (i / 8 * 4) & 15;
                    let high = b[104 + i % 4] >> (i / 4 * 2) & 3;
                    i32::from(low | high << 4) - 32
                });
            } else if ty == TensorType::Iq4Xs {
                let low = b[4 + j / 2] >> (j % 2 * 4) & 15;
                let high = (u16::from_le_bytes([b[2], b[3]]) >> (2 * j) & 3) as u8;
                block.ws = half(b, 0) * (f32::from(low | high << 4) - 32.0);
            } else if ty == TensorType::Mxfp4 {
                block.ws = 2f64.powi(i32::from(b[0]) - 128) as f32;
            } else if has_minimum(ty) {
                block.m = half(b, 2);
            }
            block.w = std::array::from_fn(|i| {
                let kq = |at: usize| i32::from(b[at + j / 2 * 32 + i] >> (4 * (j % 2)) & 15);
                match ty {
                    TensorType::Q4_0 => nib(b, 2, i) - 8,
                    TensorType::Q4_1 => nib(b, 4, i),
                    TensorType::Q5_0 => (nib(b, 6, i) | fifth(b, 2, i)) - 16,
                    TensorType::Q5_1 => nib(b, 8, i) | fifth(b, 4, i),
                    TensorType::Q8_0 => i32::from(b[2 + i] as i8),
                    TensorType::Q4K => kq(16),
                    TensorType::Q5K => kq(48) | i32::from(b[16 + i] >> j & 1) << 4,
                    TensorType::Q6K => {
                        let low = b[j / 4 * 64 + j % 2 * 32 + i] >> (j % 4 / 2 * 4) & 15;
                        let high = b[128 + j / 4 * 32 + i] >> (j % 4 * 2) & 3;
                        i32::from(low | high << 4) - 32
                    }
                    TensorType::Q2K => i32::from(b[16 + j / 4 * 32 + i] >> (j % 4 * 2) & 3),
                    TensorType::Q3K => {
                        let low = b[32 + j / 4 * 32 + i] >> (j % 4 * 2) & 3;
                        i32::from(low | (b[i] >> j & 1) << 2) - 4
                    }
                    TensorType::Iq4Nl => NON_LINEAR[nib(b, 2, i) as usize],
                    TensorType::Iq4Xs => NON_LINEAR[nib(b, 8 + 16 * j, i) as usize],
                    TensorType::Mxfp4 => {
                        [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12][nib(b, 1, i) as usize]
                    }
                    _ => panic!("{ty} has no blocks"),
                }
            });
            out.push(block);
        }
    }
    out
}

/// 32 quantised activations.
pub struct Act {
    pub q: [i32; 32],
    pub d: f32,
    pub q2: [i32; 32],
    pub d2: f32,
    pub s: f32,
}

pub fn quantize(x: &[f32], planes: usize) -> Vec<Act> {
    let level = |x: f32, d: f32| (x / d).round_ties_even().clamp(-127.0, 127.0) as i32;
    let quant = |x: &[f32]| {
        let amax = f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap());
        let mut d = amax / 127.0;
        if d < f32::MIN_POSITIVE {
            d = 0.0;
        }
        let ok = d.is_finite() && d != 0.0;
        let q: [i32; 32] = std::array::from_fn(|i| if ok { level(x[i], d) } else { 0 });
        let mut act = Act { q, d, q2: [0; 32], d2: 0.0, s: d * q.iter().sum::<i32>() as f32 };
        if planes == 2 {
            act.d2 = d * (1.0 / 254.0f32);
            if ok && act.d2 >= f32::MIN_POSITIVE {
                act.q2 = std::array::from_fn(|i| level((-d).mul_add(q[i] as f32, x[i]), act.d2));
            }
            act.s += act.d2 * act.q2.iter().sum::<i32>() as f32;
        }
        act
    };
    x.chunks_exact(32).map(quant).collect()
}

/// One output for quantised weights.
pub fn dot(ty: TensorType, w: &[Block], x: &[Act], planes: usize) -> f32 {
    let mut acc = 0.0f32;
    for (w, x) in w.iter().zip(x) {
        let sum = |q: &[i32; 32], r: std::ops::Range<usize>| r.map(|i| w.w[i] * q[i]).sum::<i32>();
        let n = |q| w.halves[0] * sum(q, 0..16) + w.halves[1] * sum(q, 16..32);
        let total = |q: &[i32; 32], r: std::ops::Range<usize>| q[r].iter().sum::<i32>();
        let k = |q| w.minima[0] * total(q, 0..16) + w.minima[1] * total(q, 16..32);
        acc = (n(&x.q) as f32).mul_add(w.ws * x.d, acc);
        if planes == 2 {
            acc = (n(&x.q2) as f32).mul_add(w.ws * x.d2, acc);
        }
        if has_minimum(ty) {
            acc = w.m.mul_add(x.s, acc);
        } else if ty == TensorType::Q2K {
            acc = (k(&x.q) as f32).mul_add(w.m * x.d, acc);
            if planes == 2 {
                acc = (k(&x.q2) as f32).mul_add(w.m * x.d2, acc);
            }
        }
    }
    acc
}

/// `[tokens, rows]` by the contract; `x` is `[tokens, cols]`.
pub fn matmul(
    ty: TensorType,
    data: &[u8],
    x: &[f32],
    cols: usize,
    planes: usize,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let row_bytes = ty.row_bytes(cols).unwrap();
    let rows: Vec<&[u8]> = data.chunks_exact(row_bytes).collect();
    let bias = |r: usize, y: f32| bias.map_or(y, |b| y + b[r]);
    let tokens = x.chunks_exact(cols);
    if !ty.is_quantized() {
        let decoded: Vec<Vec<f32>> = rows.iter().map(|row| decode(ty, row, cols)).collect();
        let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).fold(0.0f32, |acc, (w, x)| w.mul_add(*x, acc));
        return tokens
            .flat_map(|x| decoded.iter().enumerate().map(|(r, w)| bias(r, dot(w, x))).collect::<Vec<_>>())
            .collect();
    }
    let rows: Vec<Vec<Block>> = rows.iter().map(|row| blocks(ty, row)).collect();
    let row = |x: &[f32]| -> Vec<f32> {
        let x = quantize(x, planes);
        rows.iter().enumerate().map(|(r, w)| bias(r, dot(ty, w, &x, planes))).collect()
    };
    tokens.flat_map(row).collect()
}

pub fn decode(ty: TensorType, row: &[u8], cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; cols];
    minfer_gguf::decode_row(ty, row, &mut out).unwrap();
    out
}

/// Bits with every NaN alike.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

/// Random blocks: any bits in the codes and integer scales, moderate floats.
pub fn random_weights(rng: &mut Rng, ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let n = rows * ty.row_bytes(cols).unwrap();
    if !ty.is_quantized() {
        let mut out = Vec::new();
        minfer_gguf::encode_row(ty, &rng.floats(rows * cols), &mut out).unwrap();
        return out;
    }
    let mut out: Vec<u8> = (0..n).map(|_| (rng.next() >> 56) as u8).collect();
    for block in out.chunks_exact_mut(ty.block_bytes()) {
        if ty == TensorType::Mxfp4 {
            block[0] = 112 + block[0] % 16;
        }
        for at in float_fields(ty) {
            let x = half::f16::from_f32(rng.float() * 0.01);
            block[*at..at + 2].copy_from_slice(&x.to_le_bytes());
        }
    }
    out
}

/// Where a block has its half-precision numbers. MXFP4 has none but a power of two in its first byte.
pub fn float_fields(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q6K => &[208],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Mxfp4 => &[],
        ty if has_minimum(ty) => &[0, 2],
        _ => &[0],
    }
}
