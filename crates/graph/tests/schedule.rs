//! Assignment, splits, and the split protocol on a device that punishes early reads.

use minfer_graph::*;
use minfer_testkit::rng::Rng;
use minfer_testkit::schedule::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// R28, R29, R35, R119: one device, one split, no cross edges.
#[test]
fn assign_all_cpu_and_single_split() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let s = b.silu("silu", x).unwrap();
    let y = b.add("sum", s, x).unwrap();
    b.output(y);
    let p = plan(b.finish(0), &one(), &PlanOptions::new(dims(4, 4, 1))).unwrap();
    assert!(p.graph.nodes.iter().all(|n| n.backend == Some(CPU)));
    assert_eq!(p.splits, vec![Split { backend: CPU, start: 0, end: 3, inputs: vec![], outputs: vec![] }]);
    assert!(p.memory.staging.is_empty());
}

/// R17, R28–R30, R32, R33, R120: the chapter's example, to the last id.
#[test]
fn split_on_backend_change() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let p = plan(seed_graph().unwrap(), &backends, &PlanOptions::new(dims(4, 4, 1))).unwrap();
    let split = |backend, start, end, inputs: &[NodeId], outputs: &[NodeId]| Split {
        backend,
        start,
        end,
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
    };
    assert_eq!(
        BackendScheduler::split_graph(&p.graph),
        vec![split(CPU, 0, 1, &[], &[0]), split(GPU, 1, 2, &[0], &[1]), split(CPU, 2, 3, &[1, 0], &[])]
    );
}

/// R41, R43, R44, R121: `silu(x) + x` on one device that computes at once, and on one that queues.
#[test]
fn execute_single_backend_graph() {
    for deferred in [false, true] {
        let mut b = GraphBuilder::new();
        let x = value_input(&mut b, "x");
        let s = b.silu("silu", x).unwrap();
        let y = b.add("sum", s, x).unwrap();
        b.output(y);
        let device: Box<dyn Backend> = if deferred { Box::new(chaos(CPU)) } else { Box::new(reference(CPU)) };
        let mut rig =
            Rig::new(&b.finish(0), devices(vec![device]), &PlanOptions::new(dims(2, 2, 1))).unwrap();
        let values: Vec<f32> = (0..16).map(|i| i as f32 - 8.0).collect();
        rig.alloc.fill_input_f32(&rig.plan, &mut rig.backends, x, &values).unwrap();
        rig.execute(Step::new(dims(2, 0, 1))).unwrap();
        let got = rig.read(y, dims(2, 0, 1)).unwrap();
        for (v, got) in values.iter().zip(got) {
            let expected = f64::from(*v) / (1.0 + (-f64::from(*v)).exp()) + f64::from(*v);
            assert!((f64::from(got) - expected).abs() < 1e-6, "{v}: {got} {expected}");
        }
        let c = rig.scheduler.counters;
        assert_eq!((c.executes, c.splits, c.syncs, c.copies, c.nodes), (1, 1, 1, 0, 2));
    }
}

/// R7, R24, R25, R27, R34, R39, R44, R46, R60, R79:
/// the chapter's example with fresh inputs each time, with minimal counters.
#[test]
fn seed_example_three_times() {
    for pending in [PendingRead::Error, PendingRead::Poison] {
        let (backends, handle) = host_and_gpu(chaos(GPU).with_pending_read(pending));
        let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(4, 4, 1))).unwrap();
        let before = handle.stats();
        for seed in 0..3 {
            let step = dims(1 + seed as usize, 0, 1);
            let got = rig.run(seed, 0, step).unwrap();
            assert_eq!(bits(&got), bits(&[silu_plus_x(seed, step)]));
        }
        let c = rig.scheduler.counters;
        assert_eq!((c.executes, c.splits, c.copies, c.nodes), (3, 9, 6, 6));
        // The host's first split has nothing to wait for.
        assert_eq!(c.syncs, 6);
        assert_eq!(c.copied_bytes, 2 * (1 + 2 + 3) * (COLS as u64) * 4);
        let s = handle.stats();
        assert_eq!((s.syncs, s.submits, s.reads, s.violations), (3, 3, 3, 0));
        assert_eq!(s.writes - before.writes, 3);
    }
}

fn silu_plus_x(seed: u64, step: StepDims) -> Vec<f32> {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let s = b.silu("silu", x).unwrap();
    let y = b.add("sum", s, x).unwrap();
    b.output(y);
    let mut rig = Rig::new(&b.finish(0), one(), &PlanOptions::new(step)).unwrap();
    rig.run(seed, 0, step).unwrap().remove(0)
}

/// R39, R55, R72, R73, R79: one producer, consumers on two other devices and on its own; each reads its own copy.
#[test]
fn one_value_read_on_three_devices() {
    let build = |pins: [Option<BackendTag>; 6]| {
        let mut b = GraphBuilder::new();
        let x = value_input(&mut b, "x");
        let p = b.silu("p", x).unwrap();
        let on_gpu = b.silu("on_gpu", p).unwrap();
        let on_gpu1 = b.rms_norm("on_gpu1", None, 1e-5, p).unwrap();
        let on_cpu = b.add("on_cpu", p, x).unwrap();
        let a = b.add("a", on_gpu, p).unwrap();
        let c = b.add("c", on_gpu1, a).unwrap();
        let d = b.add("d", c, on_cpu).unwrap();
        b.output(d);
        for (node, pin) in [p, on_gpu, on_gpu1, on_cpu, a, c].into_iter().zip(pins) {
            if let Some(tag) = pin {
                b.pin(node, tag);
            }
        }
        b.finish(0)
    };
    let opts = PlanOptions::new(dims(3, 3, 1));
    let mut single = Rig::new(&build([None; 6]), one(), &opts).unwrap();
    let three = || devices(vec![Box::new(reference(CPU)), Box::new(chaos(GPU)), Box::new(chaos(GPU1))]);
    let pins = [CPU, GPU, GPU1, CPU, GPU, GPU1].map(Some);
    let mut rig = Rig::new(&build(pins), three(), &opts).unwrap();
    for seed in 0..3 {
        let step = dims(1 + seed as usize, 0, 1);
        assert_eq!(bits(&rig.run(seed, 0, step).unwrap()), bits(&single.run(seed, 0, step).unwrap()));
        let p = rig.plan.graph.find("p").unwrap();
        let copies = [GPU, GPU1].map(|t| rig.alloc.cross_buffer(p, t).unwrap().buffer);
        let own = rig.alloc.node_buffer(p).unwrap();
        assert!(own.0 == CPU && rig.alloc.cross_buffer(p, CPU).is_none());
        assert!(copies.iter().all(|_| rig.alloc.cross_buffer(p, GPU).is_some()));
    }
    // p to gpu once although two of its splits read it, p to gpu1 never (only on_gpu1 reads it there).
    let per_run = rig.scheduler.counters.copies / 3;
    assert_eq!(per_run, rig.plan.memory.staging.len() as u64);
}

/// R72, R79: a staged copy of an earlier run is invisible, even if the copy is not made again.
#[test]
fn stale_staging_is_an_error() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    rig.run(0, 0, dims(2, 0, 1)).unwrap();
    rig.plan.schedule.retain(|&a| a != Action::Copy { value: 1, to: CPU });
    let error = rig.run(1, 0, dims(2, 0, 1)).unwrap_err();
    assert!(matches!(&error, GraphError::NoBuffer { node } if node.name == "silu"), "{error}");
}

/// R28, R30, R31: as many boundaries as alternations, for random placements; ranges cover all nodes.
#[test]
fn boundaries_are_alternations() {
    for seed in 0..50 {
        let graph = random_graph(seed).unwrap();
        let place = random_place(seed);
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(4, 2, 1)) };
        let p = plan(graph, &two_chaos(), &opts).unwrap();
        let live = p.graph.live();
        let run = p.graph.nodes.iter().filter(|n| live[n.id] && !n.is_input()).map(|n| n.backend.unwrap());
        let tags: Vec<BackendTag> = run.collect();
        let changes = tags.windows(2).filter(|w| w[0] != w[1]).count();
        assert_eq!(p.splits.len(), changes + 1, "seed {seed}");
        assert_eq!((p.splits[0].start, p.splits[changes].end), (0, p.graph.nodes.len()));
        assert!(p.splits.windows(2).all(|w| w[0].end == w[1].start && w[0].backend != w[1].backend));
    }
}

fn two_chaos() -> Backends {
    devices(vec![Box::new(chaos(GPU)), Box::new(chaos(GPU1))])
}

fn random_place(seed: u64) -> impl Fn(&Node) -> Option<BackendTag> {
    move |node| match Rng::labelled(seed, &node.name).below(5) {
        0 | 1 => Some(GPU),
        2 | 3 => Some(GPU1),
        _ => None,
    }
}

/// R7, R25, R36, R37, R44, R98, A2:
/// random placements and op masks over two deferred devices equal one synchronous device, bit for
/// bit, three runs each with fresh inputs, also with reads of pending bytes poisoned instead of refused.
#[test]
fn random_placements_match_one_device() {
    for seed in 0..60 {
        let graph = random_graph(seed).unwrap();
        let place = random_place(seed);
        let plain = PlanOptions::new(dims(5, 3, 1));
        let opts = PlanOptions { placement: Some(&place), ..plain };
        let pending = if seed % 2 == 0 { PendingRead::Error } else { PendingRead::Poison };
        let masked = ["Silu", "Add", "MatMul", "RmsNorm", "Embed", "Attention"][seed as usize % 6];
        let refuse = move |op: &Op| op.name() != masked;
        let gpu = chaos(GPU).with_pending_read(pending).with_mask(refuse);
        let gpu1 = chaos(GPU1).with_pending_read(pending);
        let handles = [gpu.handle(), gpu1.handle()];
        let mut rig = Rig::new(&graph, devices(vec![Box::new(gpu), Box::new(gpu1)]), &opts).unwrap();
        let mut single = Rig::new(&graph, one(), &plain).unwrap();
        let mut past = 0;
        for (run, step) in [dims(5, 3, 1), dims(1, 1, 1), dims(3, 0, 1)].into_iter().enumerate() {
            let inputs = seed * 100 + run as u64;
            let got = rig.run(inputs, past, step).unwrap();
            let expected = single.run(inputs, past, step).unwrap();
            assert!(finite(&expected), "seed {seed}");
            assert_eq!(bits(&got), bits(&expected), "seed {seed} run {run}");
            past += step.tokens;
        }
        assert!(handles.iter().all(|h| h.stats().violations == 0));
        let waits: u64 = handles.iter().map(|h| h.stats().syncs).sum();
        let c = rig.scheduler.counters;
        assert!(waits == c.syncs && c.syncs <= c.splits, "seed {seed}: {waits} {c:?}");
        assert!(c.copies <= 3 * rig.plan.memory.staging.len() as u64);
    }
}

/// R19: a deferred host gives the same bits as a synchronous one.
#[test]
fn deferred_host_matches() {
    for seed in 0..20 {
        let graph = random_graph(seed).unwrap();
        let opts = PlanOptions::new(dims(4, 2, 1));
        let mut direct = Rig::new(&graph, one(), &opts).unwrap();
        let mut deferred = Rig::new(&graph, devices(vec![Box::new(chaos(CPU))]), &opts).unwrap();
        for run in 0..2 {
            let a = direct.run(run, run as usize * 4, dims(4, 2, 1)).unwrap();
            let b = deferred.run(run, run as usize * 4, dims(4, 2, 1)).unwrap();
            assert_eq!(bits(&a), bits(&b), "seed {seed}");
        }
    }
}

/// R33: an unpinned input follows its first consumer, opens no split, and is staged for others, also where
/// it is read by the very first split of another device.
#[test]
fn inputs_open_no_split() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let first = b.silu("first", x).unwrap();
    let late = value_input(&mut b, "late");
    let second = b.add("second", first, late).unwrap();
    let third = b.add("third", second, x).unwrap();
    b.pin(first, GPU);
    b.pin(second, GPU);
    b.pin(third, CPU);
    b.output(third);
    let (backends, _) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&b.finish(0), backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    assert_eq!(rig.plan.graph.node(late).backend, Some(GPU));
    let ranges: Vec<_> = rig.plan.splits.iter().map(|s| (s.backend, s.start, s.end)).collect();
    assert_eq!(ranges, vec![(GPU, 0, 4), (CPU, 4, 5)]);
    assert_eq!(rig.plan.splits[1].inputs, vec![second, x]);
    for seed in 0..3 {
        assert!(finite(&rig.run(seed, 0, dims(2, 0, 1)).unwrap()));
    }
}

/// R33, R41, R70: dead nodes open no split, wherever they were to run; a value read twice is one input.
#[test]
fn dead_nodes_open_no_split() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let a = b.silu("a", x).unwrap();
    let dead = b.silu("dead", a).unwrap();
    let c = b.add("c", a, x).unwrap();
    let twice = b.add("twice", c, c).unwrap();
    let d = b.add("d", twice, c).unwrap();
    b.pin(dead, GPU);
    b.pin(twice, GPU);
    b.pin(d, GPU);
    b.output(d);
    let (backends, handle) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&b.finish(0), backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let ranges: Vec<_> = rig.plan.splits.iter().map(|s| (s.backend, s.start, s.end)).collect();
    assert_eq!(ranges, vec![(CPU, 0, 4), (GPU, 4, 6)]);
    assert_eq!((&rig.plan.splits[0].outputs, &rig.plan.splits[1].inputs), (&vec![c], &vec![c]));
    assert!(rig.alloc.node_buffer(dead).is_none());
    rig.run(0, 0, dims(2, 0, 1)).unwrap();
    assert_eq!((handle.stats().queued, rig.scheduler.counters.copies), (2, 1));
}

/// R5, R37: the KV nodes of a layer stay together even if priority alone would part them.
#[test]
fn kv_layer_stays_on_one_device() {
    let mut b = GraphBuilder::new();
    let inputs = attention_inputs(&mut b);
    let x = value_input(&mut b, "x");
    let y = attention_block(&mut b, inputs, 0, false, x).unwrap();
    b.output(y);
    let graph = b.finish(0);
    let gpu = || chaos(GPU).with_mask(|op| !matches!(op, Op::Attention(_) | Op::QkvRopeStore(_)));
    let backends = || devices(vec![Box::new(gpu()), Box::new(reference(CPU))]);
    let opts = PlanOptions::new(dims(4, 4, 1));
    let mut rig = Rig::new(&graph, backends(), &opts).unwrap();
    for node in rig.plan.graph.nodes.iter().filter(|n| n.op.kv_layer().is_some()) {
        assert_eq!(node.backend, Some(CPU), "{}", node.name);
    }
    assert_eq!(rig.plan.graph.node(rig.plan.graph.find("blk.0.q").unwrap()).backend, Some(GPU));
    let mut single = Rig::new(&graph, one(), &opts).unwrap();
    for past in [0, 3] {
        let step = dims(3, 0, 1);
        assert_eq!(bits(&rig.run(1, past, step).unwrap()), bits(&single.run(1, past, step).unwrap()));
    }
}

/// R62–R67, R136: the third run records, later ones replay; the key rounds pages up; captures and
/// prompts keep it off; positions come from buffers, so that replays differ as they should.
#[test]
fn replay_equals_direct() {
    let mut b = GraphBuilder::new();
    let inputs = attention_inputs(&mut b);
    let x = value_input(&mut b, "x");
    let y = attention_block(&mut b, inputs, 0, false, x).unwrap();
    let z = b.add("sum", y, x).unwrap();
    b.pin(z, CPU);
    b.output(z);
    let graph = b.finish(0);
    let gpu = chaos(GPU).with_replay();
    let handle = gpu.handle();
    let opts = PlanOptions::new(dims(4, 4, 1));
    let mut rig = Rig::new(&graph, devices(vec![Box::new(gpu), Box::new(reference(CPU))]), &opts).unwrap();
    let mut single = Rig::new(&graph, one(), &opts).unwrap();
    let step = |n| Step { replay: true, kv_pages: 3, ..Step::new(dims(n, 0, 1)) };
    let mut past = 0;
    for (i, n) in [4, 1, 1, 1, 1, 1, 1].into_iter().enumerate() {
        rig.fill(i as u64, past, dims(n, 0, 1)).unwrap();
        rig.execute(step(n)).unwrap();
        let got = rig.read(z, dims(n, 0, 1)).unwrap();
        assert_eq!(bits(&[got]), bits(&single.run(i as u64, past, dims(n, 0, 1)).unwrap()), "run {i}");
        past += n;
    }
    let s = handle.stats();
    assert_eq!((s.replays, s.replay_keys.len()), (3, 6));
    assert!(s.replay_keys.iter().all(|k| k.kv_pages == 4 && k.dims.tokens == 1));
    assert_eq!(rig.scheduler.counters.replays, 3);
    let mut seen = 0;
    rig.fill(9, past, dims(1, 0, 1)).unwrap();
    let mut sink = |_: &Node, _: StepDims, _: &[u8]| seen += 1;
    rig.execute(Step { capture: Some(&mut sink), ..step(1) }).unwrap();
    assert_eq!(handle.stats().replay_keys.len(), 6);
    assert!(seen > 0);
}

/// Watched, every node runs by itself, never from a recording, in node order and with the same bits.
#[test]
fn observed_steps_run_node_by_node() {
    let (backends, handle) = host_and_gpu(chaos(GPU).with_replay());
    let opts = PlanOptions::new(dims(4, 4, 1));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &opts).unwrap();
    let step = dims(1, 0, 1);
    let result = rig.plan.graph.outputs[0];
    let run = |rig: &mut Rig, observe: Option<&NodeObserver<'_>>| {
        rig.fill(1, 0, step).unwrap();
        rig.execute(Step { replay: true, observe, ..Step::new(step) }).unwrap();
        rig.read(result, step).unwrap()
    };
    let plain = run(&mut rig, None);
    let (syncs, nodes) = (rig.scheduler.counters.syncs, rig.scheduler.counters.nodes);
    let keys = handle.stats().replay_keys.len();
    let seen = std::cell::RefCell::new(Vec::new());
    let observe = |run: &NodeRun<'_>| {
        assert_eq!(run.graph.node(run.node.id).backend, Some(run.backend));
        assert_eq!(run.dims, step);
        seen.borrow_mut().push((run.node.id, run.started, run.started + run.took));
    };
    let watched = run(&mut rig, Some(&observe));
    assert_eq!(bits(&[watched]), bits(&[plain]));
    let seen = seen.into_inner();
    assert_eq!(seen.len() as u64, rig.scheduler.counters.nodes - nodes);
    assert!(seen.len() > 1 && seen.is_sorted_by(|a, b| a.0 < b.0 && a.2 <= b.1), "{seen:?}");
    assert!(rig.scheduler.counters.syncs - syncs >= seen.len() as u64, "each is waited for");
    assert_eq!(handle.stats().replay_keys.len(), keys, "no recording was asked for");
}

/// R53, R63: recordings belong to the buffers they were made with: two allocators of one plan, used in turn.
#[test]
fn replay_keeps_allocators_apart() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let y = b.silu("y", x).unwrap();
    let z = b.rms_norm("z", None, 1e-5, y).unwrap();
    b.output(z);
    let gpu = chaos(GPU).with_replay();
    let handle = gpu.handle();
    let mut rig =
        Rig::new(&b.finish(0), devices(vec![Box::new(gpu)]), &PlanOptions::new(dims(1, 0, 1))).unwrap();
    let mut second = GraphAllocator::new(&rig.plan, &mut rig.backends, None).unwrap();
    let mut single = Rig::new(
        &rig.plan.graph.clone(),
        devices(vec![Box::new(reference(GPU))]),
        &PlanOptions::new(dims(1, 0, 1)),
    )
    .unwrap();
    for seed in 0..10 {
        std::mem::swap(&mut rig.alloc, &mut second);
        rig.fill(seed, 0, dims(1, 0, 1)).unwrap();
        rig.execute(Step { replay: true, ..Step::new(dims(1, 0, 1)) }).unwrap();
        let got = rig.read(z, dims(1, 0, 1)).unwrap();
        assert_eq!(bits(&[got]), bits(&single.run(seed, 0, dims(1, 0, 1)).unwrap()), "run {seed}");
    }
    assert_eq!(handle.stats().replays, 4);
}

/// R7, R25, R34, R40, R42, R43, R97, R99, R107:
/// The protocol of the chapter's example, and what the simulation says when a part of it is missing.
#[test]
fn simulation_finds_protocol_faults() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let p = plan(seed_graph().unwrap(), &backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let copy = |value, to| Action::Copy { value, to };
    let run = |split| Action::Run { split };
    assert_eq!(
        p.schedule,
        [
            vec![run(0), Action::Drain(CPU)],
            vec![copy(0, GPU), run(1), Action::Sync(GPU), Action::Drain(GPU)],
            vec![copy(1, CPU), run(2), Action::Sync(CPU), Action::Drain(CPU)],
        ]
        .concat()
    );
    let check = |change: &dyn Fn(&mut Plan)| {
        let mut q = p.clone();
        change(&mut q);
        verify_schedule(&q).map_err(|h| (h.reader, h.value, h.kind))
    };
    let proof = check(&|_| ()).unwrap();
    assert_eq!((proof.nodes, proof.reads, proof.staged_reads, proof.inputs), (2, 3, 2, 1));
    assert_eq!((proof.copies, proof.syncs, proof.boundaries), (2, 2, 2));
    let drop_at = |i: usize| {
        check(&|q| {
            q.schedule.remove(i);
        })
    };
    assert_eq!(drop_at(2), Err((1, 0, HazardKind::NotStaged)));
    assert_eq!(drop_at(3), Err((1, 1, HazardKind::NotWritten)));
    assert_eq!(drop_at(4), Err((3, 3, HazardKind::InsideWindow)));
    assert_eq!(drop_at(6), Err((2, 1, HazardKind::NotStaged)));
    assert_eq!(check(&|q| q.schedule.truncate(8)), Err((3, 2, HazardKind::Pending)));
    assert_eq!(check(&|q| q.schedule[2..=3].swap(0, 1)), Err((1, 0, HazardKind::NotStaged)));
    assert_eq!(check(&|q| q.schedule.swap(4, 6)), Err((1, 1, HazardKind::Pending)));
    assert_eq!(check(&|q| q.splits[1].backend = CPU), Err((1, 1, HazardKind::Misplaced)));
    assert_eq!(check(&|q| drop(q.splits.pop())), Err((3, 3, HazardKind::Misplaced)));
    assert_eq!(check(&|q| q.memory.staging.clear()), Err((0, 0, HazardKind::NoStaging)));
    let clobber = check(&|q| q.memory.nodes[2] = q.memory.nodes[0]);
    assert_eq!(clobber, Err((2, 0, HazardKind::SharedInput)), "an input must outlive the step");
}

/// R7, R10, R14, R16, R17, R22, R31, R37, R40, R41, R45, R49:
/// Random graphs on random devices, with faults and broken plans: the long form is `minfer-fuzz schedule`.
#[test]
fn random_cases_hold() {
    let mut fates = std::collections::BTreeMap::new();
    let (mut faults, mut replays) = (0, 0);
    for seed in 0..300 {
        let report = check_case(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        faults += usize::from(report.fault.is_some());
        replays += report.replays;
        for (kind, fate) in report.mutants {
            *fates.entry((kind, fate)).or_insert(0) += 1;
        }
    }
    let survivors: Vec<_> = fates.iter().filter(|((_, fate), _)| *fate == MutantFate::Survived).collect();
    assert!(survivors.is_empty(), "{survivors:?}");
    for kind in Mutation::ALL {
        let killed = [MutantFate::KilledAndSeen, MutantFate::Killed].map(|fate| fates.get(&(kind, fate)));
        assert!(killed.iter().any(Option::is_some), "{kind:?} was never tried: {fates:?}");
    }
    assert!(faults > 20 && replays > 100, "{faults} {replays}");
}

/// R51, R67: a step that fails while its split is recorded leaves no half recording, whether the device fails or
/// refuses a call: the split is recorded anew.
#[test]
fn failed_recordings_are_forgotten() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let y = b.silu("y", x).unwrap();
    let z = b.rms_norm("z", None, 1e-5, y).unwrap();
    b.output(z);
    let graph = b.finish(0);
    let step = dims(1, 0, 1);
    for fails in [true, false] {
        let refuse = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&refuse);
        let mask = move |op: &Op| !(refuses.load(Ordering::Relaxed) && matches!(op, Op::RmsNorm { .. }));
        let gpu = chaos(GPU).with_replay().with_mask(mask);
        let handle = gpu.handle();
        let opts = PlanOptions::new(step);
        let mut rig = Rig::new(&graph, devices(vec![Box::new(gpu)]), &opts).unwrap();
        let mut single = Rig::new(&graph, one(), &opts).unwrap();
        for seed in 0..9 {
            // The third run records.
            let broken = seed == 2;
            refuse.store(broken && !fails, Ordering::Relaxed);
            handle.inject((broken && fails).then_some(Fault { kind: FaultKind::Node, at: 2 }));
            rig.fill(seed, 0, step).unwrap();
            let result = rig.execute(Step { replay: true, ..Step::new(step) });
            assert_eq!(result.is_err(), broken, "run {seed}: {result:?}");
            if !broken {
                let got = rig.read(z, step).unwrap();
                assert_eq!(bits(&[got]), bits(&single.run(seed, 0, step).unwrap()), "run {seed}");
            }
        }
        assert_eq!(handle.stats().replays, 3, "two runs, one that records, then replays");
    }
}

/// R45, R95: an error says how far the step came.
#[test]
fn progress_tells_what_had_run() {
    let (backends, handle) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    handle.inject(Some(Fault { kind: FaultKind::Node, at: 1 }));
    let error = rig.run(0, 0, dims(1, 0, 1)).unwrap_err();
    assert_eq!(error.to_string(), "node 1 `silu` (Silu) on chaos:0: injected fault");
    let progress = rig.scheduler.progress();
    assert_eq!(progress.recent().collect::<Vec<_>>(), vec![1]);
    assert_eq!(
        progress.describe(&rig.plan),
        "1 of 2 nodes had been handed over, with 2 of 3 splits complete and 0 finished; the last: silu"
    );
    rig.run(0, 0, dims(1, 0, 1)).unwrap();
    assert_eq!((rig.scheduler.progress().splits, rig.scheduler.progress().nodes), (3, 2));
}
