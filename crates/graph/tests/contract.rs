//! Errors, skip rules, captures, cancellation, capacity: the edges of `execute`.

use minfer_graph::*;
use minfer_testkit::schedule::*;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

fn chain() -> Graph {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let a = b.silu("a", x).unwrap();
    let w = matrix(&mut b, "w", COLS, COLS);
    let m = b.matmul("m", w, ActPrecision::Int8, a).unwrap();
    let y = b.add("y", m, x).unwrap();
    b.output(y);
    b.finish(3)
}

/// R3, R38, R51: reasons of every device, in order of priority.
#[test]
fn unassignable_lists_every_reason() {
    let gpu = reference(GPU).refuse("MatMul", "no such kernel");
    let cpu = reference(CPU).refuse("MatMul", "weights are elsewhere");
    let backends = devices(vec![Box::new(gpu), Box::new(cpu)]);
    let error = plan(chain(), &backends, &PlanOptions::new(dims(1, 1, 1))).unwrap_err();
    let GraphError::Unassignable { node, reasons } = &error else { panic!("{error}") };
    assert_eq!((node.id, node.name.as_str(), node.op), (2, "m", "MatMul"));
    assert_eq!(reasons, "chaos:0: no such kernel; cpu: weights are elsewhere");
    let error = plan(chain(), &Backends::new(), &PlanOptions::new(dims(1, 1, 1))).unwrap_err();
    assert!(error.to_string().contains("there is no device"), "{error}");
}

/// R3: a pin or hint to a device that is not there; a hint that is refused.
#[test]
fn pins_and_hints_name_devices_that_exist() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let opts = PlanOptions::new(dims(1, 1, 1));
    let hint = |_: &Node| Some(GPU1);
    let error = plan(chain(), &backends, &PlanOptions { placement: Some(&hint), ..opts }).unwrap_err();
    assert!(matches!(error, GraphError::NoBackend(GPU1)), "{error}");
    let mut graph = chain();
    (graph.nodes[1].backend, graph.nodes[1].pinned) = (Some(GPU1), true);
    assert!(matches!(plan(graph, &backends, &opts), Err(GraphError::NoBackend(GPU1))));
    // A hint that the device refuses gives way to the priority order.
    let (backends, _) = host_and_gpu(chaos(GPU).with_mask(|op| op.name() != "MatMul"));
    let hint = |_: &Node| Some(GPU);
    let p = plan(chain(), &backends, &PlanOptions { placement: Some(&hint), ..opts }).unwrap();
    let tags: Vec<_> = p.graph.nodes.iter().map(|n| n.backend.unwrap()).collect();
    assert_eq!(tags, vec![GPU, GPU, CPU, GPU]);
    // It is not lost: the plan says which node, and why.
    let [refusal] = p.refusals.as_slice() else { panic!("{:?}", p.refusals) };
    assert_eq!((refusal.node, refusal.op, refusal.backend), (2, "MatMul", GPU));
    assert!(refusal.reason.contains("masked"), "{refusal:?}");
    assert!(trace_plan(&p).contains("[graph] not on chaos:0: 1 MatMul nodes, `m` first: MatMul is masked\n"));
    assert_eq!(json_plan(&p)["refused"][0]["nodes"], serde_json::json!(["m"]));
}

/// R68: a plan on devices of which one is missing.
#[test]
fn missing_backend_is_named() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    rig.fill(0, 0, dims(1, 0, 1)).unwrap();
    let mut host_only = one();
    let error = rig
        .scheduler
        .execute(&rig.plan, &mut rig.alloc, &mut host_only, Step::new(dims(1, 0, 1)))
        .unwrap_err();
    assert_eq!(error.to_string(), "device chaos:0 is not enabled");
    assert!(matches!(GraphAllocator::new(&rig.plan, &mut host_only, None), Err(GraphError::NoBackend(GPU))));
}

/// R71: a split on another device than its node's buffer.
#[test]
fn wrong_backend_is_named() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    rig.plan.splits[1].backend = CPU;
    let error = rig.run(0, 0, dims(1, 0, 1)).unwrap_err();
    assert_eq!(error.to_string(), "node 1 `silu` (Silu): buffer on chaos:0 but its split runs on cpu");
}

/// R20, R45, R48, R49, R87: the first error comes back, nothing runs behind it, and the next step works.
#[test]
fn error_stops_and_leaves_nothing() {
    for deferred in [false, true] {
        let device: Box<dyn Backend> = if deferred { Box::new(chaos(CPU)) } else { Box::new(reference(CPU)) };
        let mut backends = devices(vec![device]);
        let graph = chain();
        let options = PlanOptions { fuse: FusionSwitches::NONE, ..PlanOptions::new(dims(2, 2, 1)) };
        let p = plan(graph.clone(), &backends, &options).unwrap();
        let mut alloc = GraphAllocator::new(&p, &mut backends, None).unwrap();
        let mut scheduler = BackendScheduler::default();
        let x = vec![1.0; 2 * COLS];
        alloc.fill_input_f32(&p, &mut backends, 0, &x).unwrap();
        let mut seen = Vec::new();
        let mut sink = |n: &Node, _: StepDims, _: &[u8]| seen.push(n.id);
        let step = Step { capture: Some(&mut sink), ..Step::new(dims(2, 0, 1)) };
        let error = scheduler.execute(&p, &mut alloc, &mut backends, step).unwrap_err();
        let source = match &error {
            // A device that queues finds it out later, and still knows the node.
            GraphError::Execute { node, source, .. } if node.id == 2 => source,
            other => panic!("{other}"),
        };
        assert_eq!(*source, BackendError::WeightMissing("w".into()));
        assert_eq!(scheduler.counters.nodes, if deferred { 3 } else { 1 });
        assert!(seen.is_empty());
        let mut out = vec![0.0; 2 * COLS];
        assert!(alloc.read_f32(&p, &mut backends, 3, 0..2, &mut out).is_err());

        load_weights(&graph, &mut backends).unwrap();
        let mut seen = Vec::new();
        let mut sink = |n: &Node, _: StepDims, _: &[u8]| seen.push(n.id);
        let step = Step { capture: Some(&mut sink), ..Step::new(dims(2, 0, 1)) };
        scheduler.execute(&p, &mut alloc, &mut backends, step).unwrap();
        assert_eq!(seen, vec![0, 1, 2, 3], "captures of the failed step must be gone");
        alloc.read_f32(&p, &mut backends, 3, 0..2, &mut out).unwrap();
        assert!(out.iter().all(|v| v.is_finite()));
    }
}

/// R6, R48, R56: steps beyond the plan, inputs of another length or type.
#[test]
fn capacity_and_input_lengths() {
    let mut rig = Rig::new(&chain(), one(), &PlanOptions::new(dims(4, 4, 2))).unwrap();
    for step in [dims(5, 0, 1), dims(1, 5, 1), dims(1, 0, 3)] {
        assert!(matches!(rig.execute(Step::new(step)), Err(GraphError::Capacity(_))));
    }
    // Never filled, filled for another step, no whole rows, too much, not an input.
    assert!(matches!(rig.execute(Step::new(dims(1, 0, 1))), Err(GraphError::Capacity(_))));
    rig.fill(0, 0, dims(2, 0, 1)).unwrap();
    assert!(matches!(rig.execute(Step::new(dims(1, 0, 1))), Err(GraphError::Capacity(_))));
    let mut fill =
        |node, n: usize| rig.alloc.fill_input_f32(&rig.plan, &mut rig.backends, node, &vec![0.0; n]);
    assert!(matches!(fill(0, COLS + 1), Err(GraphError::Capacity(_))));
    assert!(matches!(fill(0, 5 * COLS), Err(GraphError::Capacity(_))));
    assert!(matches!(fill(1, COLS), Err(GraphError::Invalid { .. })));
    assert!(matches!(fill(99, COLS), Err(GraphError::Internal { .. })));
    let wrong_type = rig.alloc.fill_input_i32(&rig.plan, &mut rig.backends, 0, &[0; COLS]);
    assert!(matches!(wrong_type, Err(GraphError::Invalid { .. })));
    rig.run(0, 0, dims(2, 0, 1)).unwrap();
    assert!(rig.read(3, dims(3, 0, 1)).is_err(), "row 2 was not computed");
    assert!(rig.read(1, dims(2, 0, 1)).is_err(), "not an output");
}

/// R137: outputs = 0 runs nothing of the head, and says nothing against it.
#[test]
fn zero_outputs() {
    for seed in 0..10 {
        let gpu = chaos(GPU);
        let mut rig = Rig::new(
            &random_graph(seed).unwrap(),
            devices(vec![Box::new(gpu)]),
            &PlanOptions::new(dims(4, 0, 1)),
        )
        .unwrap();
        let outputs = rig.run(seed, 0, dims(4, 0, 1)).unwrap();
        assert!(outputs.last().unwrap().is_empty());
        let (graph, live) = (&rig.plan.graph, rig.plan.graph.live());
        let run = graph.nodes.iter().filter(|n| live[n.id] && !n.is_input() && n.shape.rows != Dim::Outputs);
        assert_eq!(rig.scheduler.counters.nodes, run.count() as u64);
        assert_eq!(bits(&outputs), bits(&rig.run(seed, 0, dims(4, 0, 1)).unwrap()));
    }
}

/// R42, R69, R105: captures come in node order, hold what the node wrote even if its memory is used again, leave out
/// KV nodes, and cost no extra waits.
#[test]
fn captures_are_what_nodes_wrote() {
    type Seen = Vec<(String, Vec<u8>)>;
    let capture = |rig: &mut Rig, run: u64| -> Seen {
        let mut seen = Vec::new();
        let mut last = None;
        rig.fill(run, 0, dims(4, 2, 1)).unwrap();
        let mut sink = |n: &Node, _: StepDims, bytes: &[u8]| {
            assert!(last < Some(n.id) && n.dtype != DType::Kv, "{}", n.name);
            last = Some(n.id);
            seen.push((n.name.clone(), bytes.to_vec()));
        };
        rig.execute(Step { capture: Some(&mut sink), ..Step::new(dims(4, 2, 1)) }).unwrap();
        let live = rig.plan.graph.live();
        let values = rig.plan.graph.nodes.iter().filter(|n| live[n.id] && n.dtype != DType::Kv).count();
        assert_eq!(seen.len(), values, "every value once");
        seen
    };
    for seed in 0..20 {
        let graph = random_graph(seed).unwrap();
        let place = move |n: &Node| [None, Some(GPU), Some(GPU1)][(n.id * 7 + seed as usize) % 3];
        let plain = PlanOptions::new(dims(4, 2, 1));
        let shared = PlanOptions { placement: Some(&place), ..plain };
        let apart = PlanOptions { share_buffers: false, ..plain };
        let mut a =
            Rig::new(&graph, devices(vec![Box::new(chaos(GPU)), Box::new(chaos(GPU1))]), &shared).unwrap();
        let mut b = Rig::new(&graph, one(), &apart).unwrap();
        for run in 0..2 {
            // The device with the fewer fusions (parts on two devices) sees more nodes.
            let (x, y) = (capture(&mut a, run), capture(&mut b, run));
            let find = |name: &str| x.iter().find(|(n, _)| n == name);
            let common = y.iter().filter_map(|(n, bytes)| Some((n, bytes, &find(n)?.1)));
            let compared = common.map(|(n, p, q)| assert_eq!(p, q, "seed {seed} `{n}`")).count();
            assert!(compared >= graph.outputs.len() + 2, "{compared} of {}", y.len());
        }
        let syncs = a.scheduler.counters.syncs;
        a.fill(0, 0, dims(4, 2, 1)).unwrap();
        a.execute(Step::new(dims(4, 2, 1))).unwrap();
        assert_eq!(syncs, 2 * (a.scheduler.counters.syncs - syncs));
    }
}

#[test]
fn cancel_between_nodes() {
    let gpu = chaos(GPU);
    let mut rig = Rig::new(&chain(), devices(vec![Box::new(gpu)]), &PlanOptions::new(dims(2, 2, 1))).unwrap();
    rig.fill(0, 0, dims(2, 0, 1)).unwrap();
    let cancel = AtomicBool::new(true);
    let step = Step { cancel: Some(&cancel), ..Step::new(dims(2, 0, 1)) };
    let error = rig.execute(step).unwrap_err();
    assert!(
        matches!(&error, GraphError::Execute { node, source: BackendError::Cancelled, .. } if node.id == 1)
    );
    assert_eq!(rig.scheduler.counters.nodes, 0);
    cancel.store(false, std::sync::atomic::Ordering::Relaxed);
    rig.execute(Step { cancel: Some(&cancel), ..Step::new(dims(2, 0, 1)) }).unwrap();
}

/// R5, R55: regions that are missing, of another shape, or elsewhere.
#[test]
fn kv_regions_must_fit() {
    let mut b = GraphBuilder::new();
    let inputs = attention_inputs(&mut b);
    let x = value_input(&mut b, "x");
    let y = attention_block(&mut b, inputs, 3, false, x).unwrap();
    b.output(y);
    let (mut backends, _) = host_and_gpu(chaos(GPU));
    let p = plan(b.finish(0), &backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    let mut with = |layers: &[(KvShape, BackendTag)]| {
        let mut kv = KvStorage::new(&mut backends, layers, 1, KvType::F16).unwrap();
        let result = GraphAllocator::new(&p, &mut backends, Some(&kv)).map(|a| a.release(&mut backends));
        let bytes = kv.bytes();
        kv.free(&mut backends);
        (bytes, result)
    };
    assert!(matches!(with(&[]), (0, Err(GraphError::Invalid { .. }))));
    assert!(matches!(with(&[(kv_shape(2), CPU)]).1, Err(GraphError::Invalid { .. })));
    let wide = KvShape { n_kv_head: 2, ..kv_shape(3) };
    assert!(matches!(with(&[(wide, CPU)]).1, Err(GraphError::Invalid { .. })));
    assert!(matches!(with(&[(kv_shape(3), GPU)]).1, Err(GraphError::WrongBackend { .. })));
    let (bytes, result) = with(&[(kv_shape(3), CPU)]);
    assert_eq!(bytes, 2 * PAGE * 4 * 2);
    result.unwrap();
}

#[test]
fn allocator_belongs_to_its_plan() {
    let mut rig = Rig::new(&chain(), one(), &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let other = plan(chain(), &rig.backends, &PlanOptions::new(dims(3, 2, 1))).unwrap();
    assert_ne!(other.graph.uid, rig.plan.graph.uid);
    let error = rig
        .scheduler
        .execute(&other, &mut rig.alloc, &mut rig.backends, Step::new(dims(1, 0, 1)))
        .unwrap_err();
    assert!(matches!(error, GraphError::Internal { .. }));
}

/// R58, R136, C24: every option that changes the plan changes its uid; equal options do not.
#[test]
fn uid_covers_the_options() {
    let backends = one();
    let opts = PlanOptions::new(dims(2, 2, 1));
    let uid = |o: PlanOptions<'_>| plan(chain(), &backends, &o).unwrap().graph.uid;
    let swiglu = FusionSwitches { swiglu: false, ..FusionSwitches::default() };
    let all = [
        uid(opts),
        uid(PlanOptions { capacity: dims(2, 2, 2), ..opts }),
        uid(PlanOptions { fuse: FusionSwitches::NONE, ..opts }),
        uid(PlanOptions { fuse: swiglu, ..opts }),
        uid(PlanOptions { share_buffers: false, ..opts }),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|b| a != b));
    }
    assert_eq!(all[0], uid(opts));
}

/// R110: splits and counts of ops, once per plan.
#[test]
fn trace_prints_each_plan_once() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let (backends, _) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let graph_trace: Option<Box<TraceSink>> =
        Some(Box::new(move |text: &str| sink.lock().unwrap().push(text.to_string())));
    rig.scheduler = BackendScheduler::new(SchedulerOptions { graph_trace });
    for seed in 0..3 {
        rig.run(seed, 0, dims(1, 0, 1)).unwrap();
    }
    let text = lines.lock().unwrap().concat();
    assert_eq!(
        text,
        "[graph] split 0: cpu nodes 0..1 inputs [] outputs [0]\n\
         [graph] split 1: chaos:0 nodes 1..2 inputs [0] outputs [1]\n\
         [graph]   copies in x from cpu: 32 B, 64 B in a full step\n\
         [graph] split 2: cpu nodes 2..3 inputs [1, 0] outputs []\n\
         [graph]   copies in silu from chaos:0: 32 B, 64 B in a full step\n\
         [graph] 3 splits, 2 copies: 64 B for one token, 128 B for 2 tokens\n\
         [graph] Add            cpu      1\n\
         [graph] Input          cpu      1\n\
         [graph] Silu           chaos:0  1\n"
    );
}

/// R1, R29: the stages of a plan in the dumps.
#[test]
fn dumps_show_the_plan() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let p = plan(seed_graph().unwrap(), &backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let text = dump_plan(&p);
    assert!(
        text.contains("   1 silu                     Silu           [Tokens, 8]      f32 chaos:0 [0]"),
        "{text}"
    );
    assert!(text.contains("staged: node 0 on chaos:0, 64 bytes"), "{text}");
    let json = json_plan(&p);
    assert_eq!(json["nodes"][1]["backend"], "chaos:0");
    assert_eq!(json["splits"][2]["inputs"], serde_json::json!([1, 0]));
    assert_eq!(json["nodes"][1]["memory"]["bytes"], 64);
    let dot = dot_plan(&p);
    assert!(dot.contains("n1 -> n2;") && dot.contains("label=\"split 1: chaos:0\""), "{dot}");
}
