//! Which instruction sets there are, which of them this processor has, and their tokens.

#[cfg(target_arch = "aarch64")]
use super::Neon;
use super::Scalar;
#[cfg(all(target_arch = "x86_64", debug_assertions))]
use super::VnniModel;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512Vnni, AvxVnni};
use std::fmt;

/// An instruction set that kernels can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, on every machine.
    Scalar,
    /// The arithmetic of the next but one made of AVX2's instructions: for tests, and only in builds for tests.
    #[cfg(debug_assertions)]
    VnniModel,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2 and AVX-VNNI.
    AvxVnni,
    /// AVX2 and AVX-512 with VNNI: vectors of 256 bits, and of 512 for panels.
    Avx512Vnni,
    /// NEON with the dot product of bytes.
    Neon,
}

impl Isa {
    /// All of them; of those that one processor has, the slowest first.
    pub const ALL: &[Isa] = &[
        Isa::Scalar,
        #[cfg(debug_assertions)]
        Isa::VnniModel,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512Vnni,
        Isa::Neon,
    ];

    /// Best instruction set of this processor.
    pub fn detect() -> Isa {
        *Isa::available().last().unwrap_or(&Isa::Scalar)
    }

    /// Every instruction set of this processor, slowest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this build has kernels for it.
    pub const fn is_compiled(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            _ => cfg!(target_arch = "x86_64"),
        }
    }

    /// Whether this build and this processor have it.
    pub fn is_available(self) -> bool {
        match product_token(self) {
            ProductToken::Scalar(_) => self == Isa::Scalar,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            _ => true,
        }
    }

    /// On what its kernels have been tested.
    pub const fn tested_on(self) -> TestedOn {
        match self {
            Isa::AvxVnni | Isa::Neon => TestedOn::Emulator,
            _ => TestedOn::Processor,
        }
    }

    /// Name as shown to people and read by [`Isa::from_name`].
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            #[cfg(debug_assertions)]
            Isa::VnniModel => "vnni-model",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::Neon => "neon",
        }
    }

    /// The instruction set of a name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == name)
    }
}

/// On what an instruction set's kernels have been tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TestedOn {
    /// A processor that has it.
    Processor,
    /// An emulator of such a processor alone.
    Emulator,
}

impl TestedOn {
    /// Name as shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            TestedOn::Processor => "processor",
            TestedOn::Emulator => "emulator",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `dispatch!(isa, s => expr)` evaluates `expr` with `s` bound to the token of `isa`; an instruction
/// set that this processor lacks gives the scalar one (same bits, slower).
///
/// Instruction sets that differ in products of integers alone count as one here, so that `expr` is compiled once for
/// them; see [`dispatch_products!`](crate::dispatch_products).
#[macro_export]
macro_rules! dispatch {
    ($isa:expr, $s:ident => $body:expr) => {
        match $crate::simd::token($isa) {
            $crate::simd::Token::Scalar($s) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Token::Avx2($s) => $body,
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Token::Neon($s) => $body,
        }
    };
}

/// [`dispatch!`](crate::dispatch) for what multiplies integers.
#[macro_export]
macro_rules! dispatch_products {
    ($isa:expr, $s:ident => $body:expr) => {
        match $crate::simd::product_token($isa) {
            $crate::simd::ProductToken::Scalar($s) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::ProductToken::Avx2($s) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::ProductToken::AvxVnni($s) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::ProductToken::Avx512Vnni($s) => $body,
            #[cfg(all(target_arch = "x86_64", debug_assertions))]
            $crate::simd::ProductToken::VnniModel($s) => $body,
            #[cfg(target_arch = "aarch64")]
            $crate::simd::ProductToken::Neon($s) => $body,
        }
    };
}

/// A token of any instruction set; see [`dispatch!`](crate::dispatch).
#[derive(Clone, Copy, Debug)]
pub enum Token {
    /// Always there.
    Scalar(Scalar),
    /// AVX2, FMA and F16C were detected.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// NEON and `sdot` were detected.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// The token of `isa`, or the scalar one if the processor lacks it.
pub fn token(isa: Isa) -> Token {
    match isa {
        Isa::Scalar => Token::Scalar(Scalar),
        #[cfg(target_arch = "x86_64")]
        Isa::Neon => Token::Scalar(Scalar),
        #[cfg(target_arch = "x86_64")]
        _ => Avx2::detect().map_or(Token::Scalar(Scalar), Token::Avx2),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Neon::detect().map_or(Token::Scalar(Scalar), Token::Neon),
        #[cfg(not(target_arch = "x86_64"))]
        _ => Token::Scalar(Scalar),
    }
}

/// A token of any instruction set; see [`dispatch_products!`](crate::dispatch_products).
#[derive(Clone, Copy, Debug)]
pub enum ProductToken {
    /// Always there.
    Scalar(Scalar),
    /// AVX2, FMA and F16C were detected.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// The same and AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// The same and AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    /// AVX2, FMA and F16C were detected.
    #[cfg(all(target_arch = "x86_64", debug_assertions))]
    VnniModel(VnniModel),
    /// NEON and `sdot` were detected.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// The token of `isa` for products of integers, or the scalar one if the processor lacks it.
pub fn product_token(isa: Isa) -> ProductToken {
    let token = match isa {
        Isa::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Avx2::detect().map(ProductToken::Avx2),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => AvxVnni::detect().map(ProductToken::AvxVnni),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => Avx512Vnni::detect().map(ProductToken::Avx512Vnni),
        #[cfg(all(target_arch = "x86_64", debug_assertions))]
        Isa::VnniModel => VnniModel::detect().map(ProductToken::VnniModel),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Neon::detect().map(ProductToken::Neon),
        #[allow(unreachable_patterns, reason = "an architecture may have all")]
        _ => None,
    };
    token.unwrap_or(ProductToken::Scalar(Scalar))
}
