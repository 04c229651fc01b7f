//! One file per quantised type.

pub mod byte_scales;
pub mod half_scales;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod k_scales;
pub mod levels;
pub mod mxfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
