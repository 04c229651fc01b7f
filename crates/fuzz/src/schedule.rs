//! Random graphs on random devices, with faults and broken plans.

use crate::{Limits, until_done};
use minfer_testkit::schedule::{CaseReport, MutantFate, Mutation, check_case};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the cases covered.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Cases.
    pub cases: u64,
    /// Plans by their number of devices.
    pub devices: [u64; 4],
    /// Nodes, splits, copies per step and compared steps, summed.
    pub sums: [u64; 4],
    /// Replayed splits.
    pub replays: u64,
    /// Faults that struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// Mutants by kind and fate.
    pub mutants: BTreeMap<(Mutation, MutantFate), u64>,
}

impl Coverage {
    fn add(&mut self, report: CaseReport) {
        self.cases += 1;
        self.devices[report.devices.min(3)] += 1;
        let counts = [report.nodes, report.splits, report.copies, report.steps];
        self.sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n as u64);
        self.replays += report.replays;
        if let Some(kind) = report.fault {
            *self.faults.entry(kind.name()).or_default() += 1;
        }
        for mutant in report.mutants {
            *self.mutants.entry(mutant).or_default() += 1;
        }
    }

    fn merge(&mut self, other: Coverage) {
        self.cases += other.cases;
        self.devices.iter_mut().zip(other.devices).for_each(|(a, b)| *a += b);
        self.sums.iter_mut().zip(other.sums).for_each(|(a, b)| *a += b);
        self.replays += other.replays;
        other.faults.into_iter().for_each(|(k, n)| *self.faults.entry(k).or_default() += n);
        other.mutants.into_iter().for_each(|(k, n)| *self.mutants.entry(k).or_default() += n);
    }

    /// Mutants of a kind with a fate.
    pub fn mutants_of(&self, kind: Mutation, fate: MutantFate) -> u64 {
        self.mutants.get(&(kind, fate)).copied().unwrap_or_default()
    }

    /// Mutants that the verifier missed.
    pub fn survivors(&self) -> u64 {
        Mutation::ALL.iter().map(|&kind| self.mutants_of(kind, MutantFate::Survived)).sum()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [nodes, splits, copies, steps] = self.sums;
        let [_, one, two, three] = self.devices;
        writeln!(f, "{} graphs: {one} on one device, {two} on two, {three} on three", self.cases)?;
        writeln!(
            f,
            "{nodes} nodes in {splits} splits with {copies} copies; {steps} steps equal bit for bit"
        )?;
        writeln!(f, "{} splits replayed; faults {:?}", self.replays, self.faults)?;
        writeln!(
            f,
            "{:<18}{:>9}{:>9}{:>12}{:>9}  killed",
            "mutation", "seen", "unseen", "equivalent", "missed"
        )?;
        for kind in Mutation::ALL {
            let of = |fate| self.mutants_of(kind, fate);
            let (seen, unseen) = (of(MutantFate::KilledAndSeen), of(MutantFate::Killed));
            let (same, missed) = (of(MutantFate::Equivalent), of(MutantFate::Survived));
            let rate = 100.0 * (seen + unseen) as f64 / (seen + unseen + missed).max(1) as f64;
            writeln!(f, "{:<18}{seen:>9}{unseen:>9}{same:>12}{missed:>9}  {rate:.2} %", format!("{kind:?}"))?;
        }
        write!(
            f,
            "seen: runs of the broken plan fail too; unseen: they happen to be right; equivalent: no change"
        )
    }
}

/// Runs cases; a mutant that the verifier misses is a failure too.
///
/// # Errors
/// Seed and words of the case that failed.
pub fn run(limits: Limits) -> Result<Coverage, (u64, String)> {
    let (parts, _) = until_done(limits, |coverage: &mut Coverage, seed| {
        let report =
            catch_unwind(AssertUnwindSafe(|| check_case(seed))).unwrap_or_else(|_| Err("panic".into()))?;
        let missed = report.mutants.iter().find(|(_, fate)| *fate == MutantFate::Survived);
        if let Some((kind, _)) = missed {
            return Err(format!("the verifier misses {kind:?}"));
        }
        coverage.add(report);
        Ok(())
    })?;
    let mut all = Coverage::default();
    parts.into_iter().for_each(|part| all.merge(part));
    Ok(all)
}
