//! Random products and attention on the CPU backend, compared bit for bit with the numeric contract in plain loops.

mod attention;
mod data;
mod product;

use crate::{Limits, until_done};
use minfer_cpu::Pool;
use minfer_gguf::TensorType;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The contract of products and of attention: those of the crate's own tests, which share nothing with the crate.
#[path = "../../cpu/tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests of the crate use the rest")]
mod contract;
#[path = "../../cpu/tests/ops_support/mod.rs"]
mod ops;

/// Threads of the pools that products run on.
const POOLS: [usize; 4] = [1, 2, 3, 5];

/// What the cases covered.
#[derive(Default)]
pub struct Coverage {
    /// Products by type of the weight.
    pub products: BTreeMap<&'static str, u64>,
    /// Of these, products that read the file's own rows.
    pub native: u64,
    /// Products and attentions by instruction set.
    pub isas: BTreeMap<&'static str, u64>,
    /// Attentions.
    pub attentions: u64,
    /// Outputs that were compared.
    pub outputs: u64,
    pools: Vec<Pool>,
}

impl Coverage {
    /// A pool, one of a few that live as long as this.
    fn pool(&mut self, i: usize) -> &Pool {
        if self.pools.is_empty() {
            self.pools = POOLS.map(Pool::new).into();
        }
        &self.pools[i % POOLS.len()]
    }

    fn count(&mut self, ty: TensorType, native: bool) {
        *self.products.entry(ty.name()).or_default() += 1;
        self.native += u64::from(native);
    }

    fn merge(&mut self, other: Coverage) {
        other.products.into_iter().for_each(|(k, n)| *self.products.entry(k).or_default() += n);
        other.isas.into_iter().for_each(|(k, n)| *self.isas.entry(k).or_default() += n);
        self.native += other.native;
        self.attentions += other.attentions;
        self.outputs += other.outputs;
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n: u64 = self.products.values().sum();
        writeln!(f, "{n} products, {} of native rows; {} attentions", self.native, self.attentions)?;
        writeln!(f, "by type {:?}", self.products)?;
        writeln!(f, "by instruction set {:?}", self.isas)?;
        write!(f, "{} outputs equal bit for bit", self.outputs)
    }
}

/// Runs cases: four products for each attention.
///
/// # Errors
/// Seed and words of the case that failed.
pub fn run(limits: Limits) -> Result<Coverage, (u64, String)> {
    let (parts, _) = until_done(limits, |coverage: &mut Coverage, seed| {
        let case = AssertUnwindSafe(|| match seed % 5 {
            4 => attention::check(coverage, seed),
            _ => product::check(coverage, seed),
        });
        catch_unwind(case).unwrap_or_else(|panic| Err(format!("panic: {}", words(&*panic))))
    })?;
    let mut all = Coverage::default();
    parts.into_iter().for_each(|part| all.merge(part));
    Ok(all)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The first output that differs, every NaN being alike.
///
/// # Errors
/// In words, with what it is about.
fn same(got: &[f32], want: &[f32], what: impl fmt::Debug) -> Result<(), String> {
    let (g, w) = (contract::bits(got), contract::bits(want));
    if g.len() != w.len() {
        return Err(format!("{} outputs, not {}: {what:?}", g.len(), w.len()));
    }
    match (0..g.len()).find(|&i| g[i] != w[i]) {
        Some(i) => Err(format!("output {i} of {} is {:e}, not {:e}: {what:?}", g.len(), got[i], want[i])),
        None => Ok(()),
    }
}
