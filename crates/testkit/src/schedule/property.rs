//! What must hold for any graph on any devices, checked for one seed at a time.

use super::memory::check_memory;
use super::mutate::Mutation;
use super::random::random_graph;
use super::rig::{CPU, GPU, GPU1, Rig, bits, chaos, devices, dims, finite, one, reference};
use crate::rng::{Rng, fingerprint};
use minfer_graph::{
    Backend, BackendError, BackendTag, Backends, BufferRules, ChaosHandle, DType, Fault, FaultKind,
    FusionSwitches, Graph, GraphError, Node, Op, PendingRead, Plan, PlanOptions, Shape, Step, StepDims, plan,
    verify_schedule,
};
use std::collections::BTreeSet;

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MutantFate {
    /// The verifier named a hazard, and a run gave an error or wrong bits.
    KilledAndSeen,
    /// The verifier named a hazard; a run on these devices happened to be right.
    Killed,
    /// The verifier found nothing, and runs are right: the change is none.
    Equivalent,
    /// The verifier found nothing, but a run fails: it is blind to this.
    Survived,
}

/// What a case covered.
#[derive(Clone, Debug, Default)]
pub struct CaseReport {
    /// Devices.
    pub devices: usize,
    /// Nodes of the plan that run.
    pub nodes: usize,
    /// Splits.
    pub splits: usize,
    /// Copies per step.
    pub copies: usize,
    /// Steps run and compared.
    pub steps: usize,
    /// Splits replayed from recordings.
    pub replays: u64,
    /// The fault that struck, if one did.
    pub fault: Option<FaultKind>,
    /// Mutants and what became of them.
    pub mutants: Vec<(Mutation, MutantFate)>,
}

/// One seed: a random graph on one to three devices with random refusals, buffer rules and placement.
///
/// The plan passes the verifier and the checker of memory; it has as many boundaries as its devices
/// alternate, and as many waits and copies as counted by hand; every step has the bits of one device
/// without shared memory and fusions. Then a device fails: the error comes once, names its node, and
/// nothing runs behind it. Then plans are broken: the verifier must notice what a run would.
///
/// # Errors
/// What does not hold, in words.
pub fn check_case(seed: u64) -> Result<CaseReport, String> {
    let case = Case::new(seed);
    let graph = random_graph(seed).map_err(|e| e.to_string())?;
    let (backends, handles) = case.backends();
    let place = case.placement();
    let options = PlanOptions { fuse: case.fuse, placement: Some(&place), ..PlanOptions::new(case.capacity) };
    let plan = plan(graph.clone(), &backends, &options).map_err(|e| e.to_string())?;
    check_plan(&case, &plan)?;
    let mut report = CaseReport {
        devices: case.tags.len(),
        nodes: running(&plan).count(),
        splits: plan.splits.len(),
        ..CaseReport::default()
    };
    let mut rig = Rig::of_plan(plan.clone(), backends).map_err(|e| e.to_string())?;
    let mut truth = Truth::new(&graph, case.capacity)?;
    run_steps(&case, &mut rig, &mut truth, &handles, &mut report)?;
    if case.fault {
        report.fault = check_fault(&case, &mut rig, &mut truth, &handles)?;
    }
    for kind in case.mutations() {
        if let Some(fate) = fate_of(&case, &graph, &plan, kind)? {
            report.mutants.push((kind, fate));
        }
    }
    Ok(report)
}

/// What a seed stands for, besides its graph.
struct Case {
    seed: u64,
    tags: Vec<BackendTag>,
    rules: Vec<BufferRules>,
    /// Whether the host computes at once.
    direct_host: bool,
    replay: bool,
    fault: bool,
    fuse: FusionSwitches,
    capacity: StepDims,
    steps: Vec<StepDims>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::labelled(seed, "case");
        let n = 1 + rng.below(3);
        let tags = [GPU, GPU1, CPU][..n].to_vec();
        let rules = (0..n).map(|_| random_rules(&mut rng)).collect();
        let fault = rng.below(4) == 0;
        let replay = rng.below(3) == 0;
        let capacity = dims(1 + rng.below(6), rng.below(4), 1);
        let mut steps: Vec<StepDims> = (0..3)
            .map(|_| dims(1 + rng.below(capacity.tokens), rng.below(capacity.outputs + 1), 1))
            .collect();
        if replay {
            steps.extend([dims(1, capacity.outputs.min(1), 1); 5]);
        }
        let fuse = if rng.below(4) == 0 { FusionSwitches::NONE } else { FusionSwitches::default() };
        let direct_host = !fault && rng.below(2) == 0;
        Case { seed, tags, rules, direct_host, replay, fault, fuse, capacity, steps }
    }

    /// The devices. All but the last refuse some ops.
    fn backends(&self) -> (Backends, Vec<ChaosHandle>) {
        let pending = if self.seed.is_multiple_of(2) { PendingRead::Error } else { PendingRead::Poison };
        self.backends_with(pending)
    }

    fn backends_with(&self, pending: PendingRead) -> (Backends, Vec<ChaosHandle>) {
        let mut list: Vec<Box<dyn Backend>> = Vec::new();
        let mut handles = Vec::new();
        for (i, (&tag, &rules)) in self.tags.iter().zip(&self.rules).enumerate() {
            if tag == CPU && self.direct_host {
                list.push(Box::new(reference(tag).with_rules(rules)));
                continue;
            }
            let (seed, last) = (self.seed.wrapping_add(i as u64), i + 1 == self.tags.len());
            let mask = move |op: &Op| last || Rng::labelled(seed, op.name()).below(5) > 0;
            let device = chaos(tag).with_rules(rules).with_mask(mask).with_pending_read(pending);
            let device = if self.replay { device.with_replay() } else { device };
            handles.push(device.handle());
            list.push(Box::new(device));
        }
        (devices(list), handles)
    }

    /// A preference for most nodes. Runs of a few nodes share one, as layers do.
    fn placement(&self) -> impl Fn(&Node) -> Option<BackendTag> + '_ {
        let mut rng = Rng::labelled(self.seed, "placement");
        let run = 1 + rng.below(6);
        move |node| {
            let label = format!("{}", node.id / run);
            self.tags.get(Rng::labelled(self.seed, &label).below(self.tags.len() + 1)).copied()
        }
    }

    /// Two kinds of mutation, so that a few cases meet them all.
    fn mutations(&self) -> impl Iterator<Item = Mutation> {
        let first = (self.seed as usize).wrapping_mul(2);
        (0..2).map(move |i| Mutation::ALL[(first + i) % Mutation::ALL.len()])
    }

    fn data(&self, run: usize) -> u64 {
        self.seed.wrapping_mul(100).wrapping_add(run as u64)
    }
}

fn random_rules(rng: &mut Rng) -> BufferRules {
    BufferRules {
        alignment: [4, 32, 256][rng.below(3)],
        max_binding: usize::MAX,
        read_write_one_buffer: rng.below(2) == 0,
        in_place: rng.below(3) > 0,
    }
}

/// One synchronous device with a buffer for every value and no fusions.
struct Truth {
    rig: Rig,
}

impl Truth {
    fn new(graph: &Graph, capacity: StepDims) -> Result<Truth, String> {
        let options =
            PlanOptions { fuse: FusionSwitches::NONE, share_buffers: false, ..PlanOptions::new(capacity) };
        Ok(Truth { rig: Rig::new(graph, one(), &options).map_err(|e| e.to_string())? })
    }

    fn run(&mut self, data: u64, past: usize, step: StepDims) -> Result<Vec<Vec<u32>>, String> {
        let values = self.rig.run(data, past, step).map_err(|e| format!("reference: {e}"))?;
        if !finite(&values) {
            return Err("the reference is not finite".into());
        }
        Ok(bits(&values))
    }
}

fn running(plan: &Plan) -> impl Iterator<Item = &Node> {
    let live = plan.graph.live();
    plan.graph.nodes.iter().filter(move |n| live[n.id] && !n.is_input())
}

/// Copies of a plan, from the graph alone: a value that runs on, or is kept on, another device than one
/// of its readers; once per device.
fn expected_copies(plan: &Plan) -> BTreeSet<(usize, BackendTag)> {
    let mut pairs = BTreeSet::new();
    for node in running(plan) {
        for &s in &node.src {
            let source = plan.graph.node(s);
            let Some(tag) = node.backend.filter(|&t| source.backend != Some(t)) else { continue };
            // A KV region never leaves its device.
            if source.dtype != DType::Kv {
                pairs.insert((s, tag));
            }
        }
    }
    pairs
}

fn check_plan(case: &Case, plan: &Plan) -> Result<(), String> {
    let proof = verify_schedule(plan).map_err(|h| h.explain(&plan.graph))?;
    let rules_of =
        |tag: BackendTag| case.tags.iter().position(|&t| t == tag).map_or(case.rules[0], |i| case.rules[i]);
    check_memory(plan, &rules_of)?;
    let order: Vec<BackendTag> = running(plan).filter_map(|n| n.backend).collect();
    let changes = order.windows(2).filter(|w| w[0] != w[1]).count();
    let splits = plan.splits.len();
    if splits != changes + usize::from(!order.is_empty()) {
        return Err(format!("{splits} splits for {changes} changes of device"));
    }
    let copies = expected_copies(plan);
    if proof.copies != copies.len() || proof.syncs != splits || proof.nodes != order.len() {
        return Err(format!("{proof:?} for {} copies and {splits} splits", copies.len()));
    }
    Ok(())
}

/// Steps one after the other, each with fresh inputs, against the reference; waits, copies and nodes as
/// predicted.
fn run_steps(
    case: &Case,
    rig: &mut Rig,
    truth: &mut Truth,
    handles: &[ChaosHandle],
    report: &mut CaseReport,
) -> Result<(), String> {
    let copies = expected_copies(&rig.plan);
    report.copies = copies.len();
    let mut past = 0;
    for (i, &step) in case.steps.iter().enumerate() {
        let before = rig.scheduler.counters;
        let data = case.data(i);
        let got = run(case, rig, data, past, step).map_err(|e| format!("step {i}: {e}"))?;
        if got != truth.run(data, past, step)? {
            return Err(format!("step {i} {step:?}: other bits than one device"));
        }
        let now = rig.scheduler.counters;
        let full = |shape: Shape| shape.n_rows(step) > 0;
        let moved = copies.iter().filter(|(id, _)| full(rig.plan.graph.node(*id).shape)).count() as u64;
        if now.copies - before.copies != moved || now.splits - before.splits != rig.plan.splits.len() as u64 {
            return Err(format!("step {i}: {moved} copies expected, counted {before:?} to {now:?}"));
        }
        past += step.tokens;
        report.steps += 1;
    }
    let waits: u64 = handles.iter().map(|h| h.stats().syncs).sum();
    let violations: u64 = handles.iter().map(|h| h.stats().violations).sum();
    let all = rig.scheduler.counters;
    if violations > 0 || waits > all.syncs || all.syncs > all.splits {
        return Err(format!("{violations} violations, {waits} waits, {all:?}"));
    }
    report.replays = all.replays;
    Ok(())
}

fn run(
    case: &Case,
    rig: &mut Rig,
    data: u64,
    past: usize,
    step: StepDims,
) -> Result<Vec<Vec<u32>>, GraphError> {
    rig.fill(data, past, step)?;
    rig.execute(Step { replay: case.replay, kv_pages: 1, ..Step::new(step) })?;
    Ok(bits(&rig.read_outputs(step)?))
}

/// Has a device fail within a step, then looks at the error, at what ran, and at the next step.
fn check_fault(
    case: &Case,
    rig: &mut Rig,
    truth: &mut Truth,
    handles: &[ChaosHandle],
) -> Result<Option<FaultKind>, String> {
    let mut rng = Rng::labelled(case.seed, "fault");
    let handle = &handles[rng.below(handles.len())];
    let kind = [FaultKind::Node, FaultKind::Lost, FaultKind::Timeout][rng.below(3)];
    let events = if kind == FaultKind::Timeout { rig.plan.splits.len() } else { running(&rig.plan).count() };
    handle.inject(Some(Fault { kind, at: 1 + rng.below(events) as u64 }));
    let executed = || handles.iter().map(|h| h.stats().executed).sum::<u64>();
    let before = executed();
    let (step, past) = (case.capacity, case.steps.iter().map(|s| s.tokens).sum());
    let data = case.data(50);
    let result = run(case, rig, data, past, step);
    let ran = executed() - before;
    if handle.fault().is_some() {
        handle.inject(None);
        let right = result.map_err(|e| e.to_string())? == truth.run(data, past, step)?;
        return if right { Ok(None) } else { Err("wrong bits beside a fault to come".into()) };
    }
    let error = result.err().ok_or_else(|| format!("{kind:?} was not reported"))?;
    check_error(rig, kind, &error, ran, step)?;
    let again = run(case, rig, data, past, step);
    match (kind, again) {
        (FaultKind::Node, Ok(values)) if values == truth.run(data, past, step)? => Ok(Some(kind)),
        (FaultKind::Lost | FaultKind::Timeout, Err(e)) if is_lost(&e) => Ok(Some(kind)),
        (_, Ok(_)) => Err(format!("after {kind:?} a step gave wrong bits, or ran on a lost device")),
        (_, Err(e)) => Err(format!("after {kind:?} a step failed: {e}")),
    }
}

fn is_lost(error: &GraphError) -> bool {
    let source = match error {
        GraphError::Execute { source, .. } | GraphError::Backend { source, .. } => source,
        _ => return false,
    };
    matches!(source, BackendError::Lost(_))
}

/// The error names the node that failed, and exactly the nodes before it have run.
fn check_error(
    rig: &Rig,
    kind: FaultKind,
    error: &GraphError,
    ran: u64,
    step: StepDims,
) -> Result<(), String> {
    let ran_before = |end: usize| {
        // A load has no rows of its own and always runs; tokens are never zero here, outputs may be.
        let busy = |n: &&Node| n.dtype == DType::Kv || n.shape.n_rows(step) > 0;
        running(&rig.plan).filter(|n| n.id < end).filter(busy).count() as u64
    };
    let expected = match (kind, error) {
        (FaultKind::Node | FaultKind::Lost, GraphError::Execute { node, .. }) => ran_before(node.id),
        (FaultKind::Timeout, GraphError::Backend { source: BackendError::Timeout(_), .. }) => {
            // The split that was waited for did not run.
            let at = rig.plan.splits.get(rig.scheduler.progress().splits.wrapping_sub(1));
            ran_before(at.map_or(0, |s| s.start))
        }
        _ => return Err(format!("{kind:?} was reported as {error}")),
    };
    if ran != expected {
        return Err(format!("{kind:?}: {ran} nodes ran, {expected} come before the fault: {error}"));
    }
    Ok(())
}

/// Breaks the plan, and compares what the verifier says with what a run gives.
fn fate_of(case: &Case, graph: &Graph, plan: &Plan, kind: Mutation) -> Result<Option<MutantFate>, String> {
    let mut rng = Rng::labelled(case.seed ^ fingerprint(format!("{kind:?}").as_bytes()), "mutant");
    let Some(broken) = kind.apply(plan, &mut rng) else { return Ok(None) };
    let hazard = verify_schedule(&broken);
    let mut truth = Truth::new(graph, case.capacity)?;
    let mut right = true;
    for pending in [PendingRead::Stale, PendingRead::Error] {
        right &= runs_right(case, &broken, &mut truth, pending)?;
    }
    Ok(Some(match (hazard, right) {
        (Err(_), false) => MutantFate::KilledAndSeen,
        (Err(_), true) => MutantFate::Killed,
        (Ok(_), true) => MutantFate::Equivalent,
        (Ok(_), false) => MutantFate::Survived,
    }))
}

fn runs_right(case: &Case, plan: &Plan, truth: &mut Truth, pending: PendingRead) -> Result<bool, String> {
    let (backends, _) = case.backends_with(pending);
    let Ok(mut rig) = Rig::of_plan(plan.clone(), backends) else { return Ok(false) };
    let step = case.capacity;
    for run in 0..2 {
        let past = run * step.tokens;
        let got = rig.run(case.data(60 + run), past, step);
        let expected = truth.run(case.data(60 + run), past, step)?;
        if got.map_or(true, |values| bits(&values) != expected) {
            return Ok(false);
        }
    }
    Ok(true)
}
