//! Attention over random page tables.

use super::contract::Rng;
use super::data::{below, one_in};
use super::ops::attention::{Case, Setup};
use super::ops::cache::TYPES;
use super::{Coverage, POOLS, same};
use minfer_cpu::{CpuOptions, Isa};

fn any(rng: &mut Rng) -> Case {
    let n_kv_head = 1 + below(rng, 3);
    let head_dim = [16, 32, 64, 80, 128, 1 + below(rng, 70)][below(rng, 6)];
    let v_dim = if one_in(rng, 3) { 1 + below(rng, 70) } else { head_dim };
    let sequence = |rng: &mut Rng| {
        let start = if one_in(rng, 4) { 0 } else { below(rng, 300) };
        let most = if one_in(rng, 2) { 2 } else { 40 };
        (start, 1 + below(rng, most))
    };
    Case {
        n_head: n_kv_head * (1 + below(rng, 5)),
        n_kv_head,
        head_dim,
        v_dim,
        window: one_in(rng, 3).then(|| 1 + below(rng, 200)),
        softcap: one_in(rng, 4).then(|| [0.5, 30.0, 1e6][below(rng, 3)]),
        sinks: one_in(rng, 4),
        ty: TYPES[below(rng, TYPES.len())],
        sequences: (0..=below(rng, 3)).map(|_| sequence(rng)).collect(),
    }
}

/// Runs a case.
///
/// # Errors
/// What is wrong, in words.
pub fn check(coverage: &mut Coverage, seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let case = any(&mut rng);
    let isas = Isa::available();
    let isa = isas[below(&mut rng, isas.len())];
    let options = CpuOptions { threads: Some(POOLS[below(&mut rng, POOLS.len())]), isa: Some(isa) };
    let mut setup = Setup::new(&case, seed, options);
    let got = setup.run();
    same(&got, &setup.reference(), (&case, options))?;
    *coverage.isas.entry(isa.name()).or_default() += 1;
    coverage.attentions += 1;
    coverage.outputs += got.len() as u64;
    Ok(())
}
