//! Long runs keep to the memory that was planned: on every device, over steps of different lengths, also
//! behind faults, and however often a plan is allocated anew.

use minfer_graph::*;
use minfer_testkit::rng::Rng;
use minfer_testkit::schedule::*;
use std::collections::BTreeMap;

const STEPS: u64 = 1_000;

fn buffer_bytes(backends: &Backends) -> BTreeMap<BackendTag, usize> {
    backends.iter().map(|b| (b.tag(), b.buffer_bytes())).collect()
}

/// The host and two queueing devices, with the handle of one of them.
fn three() -> (Backends, ChaosHandle) {
    let failing = chaos(GPU).with_replay();
    let handle = failing.handle();
    (devices(vec![Box::new(reference(CPU)), Box::new(failing), Box::new(chaos(GPU1))]), handle)
}

fn random_step(rng: &mut Rng) -> (usize, StepDims) {
    let tokens = 1 + rng.below(4);
    let past = rng.below(MAX_PAGES * PAGE - tokens);
    (past, dims(tokens, rng.below(tokens.min(2) + 1), 1))
}

/// The pools of all devices hold at step 1,000 what they held at step 10: arenas, staged copies and KV
/// regions, as planned. Every 50th step fails on a device in the middle.
#[test]
fn steps_allocate_nothing() {
    for seed in 0..4 {
        let (backends, handle) = three();
        let place = |n: &Node| [Some(CPU), Some(GPU), Some(GPU1)][Rng::labelled(seed, &n.name).below(3)];
        let options = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(4, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), backends, &options).unwrap();
        assert!(!rig.plan.memory.staging.is_empty(), "seed {seed}: nothing crosses devices");
        let mut rng = Rng::labelled(seed, "steps");
        let (mut at_step_10, mut failed) = (BTreeMap::new(), 0);
        for i in 1..=STEPS {
            let (past, step) = random_step(&mut rng);
            let fault = (i % 50 == 0).then_some(Fault { kind: FaultKind::Node, at: 1 + i % 3 });
            handle.inject(fault);
            rig.fill(i, past, step).unwrap();
            let replay = Step { replay: true, kv_pages: MAX_PAGES, ..Step::new(step) };
            failed += u32::from(rig.execute(replay).is_err());
            if i == 10 {
                at_step_10 = buffer_bytes(&rig.backends);
            }
        }
        assert!(failed > 0, "seed {seed}: no fault struck");
        assert_eq!(buffer_bytes(&rig.backends), at_step_10, "seed {seed}");
        let planned: usize = rig.plan.memory.total() + rig.kv.bytes();
        assert_eq!(
            at_step_10.values().sum::<usize>(),
            planned,
            "seed {seed}: what is held and what was planned"
        );
    }
}

/// A plan that is allocated and released over and over takes the memory of one, and of the few freed
/// buffers that a pool keeps: which ones varies from round to round.
#[test]
fn plans_come_and_go() {
    let (mut backends, _) = three();
    let graph = random_graph(3).unwrap();
    let mut plans = Vec::new();
    for tokens in 1..=4 {
        let place = |n: &Node| [Some(CPU), Some(GPU)][Rng::labelled(tokens as u64, &n.name).below(2)];
        let options = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(tokens, 1, 1)) };
        plans.push(plan(graph.clone(), &backends, &options).unwrap());
    }
    let mut most = [0, 0];
    for round in 0..STEPS {
        for p in &plans {
            let live = p.graph.nodes.iter().filter(|n| p.memory.nodes[n.id].is_some() && n.op.writes_kv());
            let layers: Vec<_> = live.map(|n| (n.op.kv_shape().unwrap(), n.backend.unwrap())).collect();
            let mut kv = KvStorage::new(&mut backends, &layers, MAX_PAGES, KvType::F16).unwrap();
            GraphAllocator::new(p, &mut backends, Some(&kv)).unwrap().release(&mut backends);
            kv.free(&mut backends);
        }
        let held = buffer_bytes(&backends).values().sum::<usize>();
        let most = &mut most[usize::from(round >= STEPS / 2)];
        *most = held.max(*most);
    }
    assert!(most[1] <= most[0], "{most:?}");
}
