//! Lifetimes, in-place chains, sharing: values stay intact as long as somebody reads them.

use minfer_graph::*;
use minfer_testkit::rng::Rng;
use minfer_testkit::schedule::*;

fn loose() -> BufferRules {
    BufferRules { alignment: 4, max_binding: usize::MAX, read_write_one_buffer: true, in_place: true }
}

fn all_rules() -> [BufferRules; 5] {
    [
        loose(),
        BufferRules { in_place: false, ..loose() },
        BufferRules { alignment: 256, read_write_one_buffer: false, ..loose() },
        BufferRules { alignment: 256, read_write_one_buffer: false, in_place: false, ..loose() },
        BufferRules { alignment: 32, ..loose() },
    ]
}

/// R4, R14, R132, A3, B1: shared memory gives the bits of one buffer per node, under every kind of buffer rules, and
/// the plan passes a checker of its own.
#[test]
fn shared_equals_unshared() {
    let mut shared_values = 0;
    for seed in 0..60 {
        let graph = random_graph(seed).unwrap();
        let opts = PlanOptions::new(dims(4, 2, 1));
        let apart = PlanOptions { share_buffers: false, ..opts };
        let mut expected = Rig::new(&graph, one(), &apart).unwrap();
        let results: Vec<_> = (0..3)
            .map(|run| bits(&expected.run(seed * 10 + run, run as usize * 4, dims(4, 2, 1)).unwrap()))
            .collect();
        for rules in all_rules() {
            let device = reference(CPU).with_rules(rules);
            let mut rig = Rig::new(&graph, devices(vec![Box::new(device)]), &opts).unwrap();
            check_memory(&rig.plan, &|_| rules).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let arena = &rig.plan.memory.arenas[0];
            assert!(arena.live_peak <= arena.bytes() && arena.bytes() <= arena.unshared);
            assert!(rules.read_write_one_buffer == (arena.slots.len() == 1));
            shared_values += shared_ranges(&rig.plan);
            for (run, expected) in results.iter().enumerate() {
                let got = rig.run(seed * 10 + run as u64, run * 4, dims(4, 2, 1)).unwrap();
                assert_eq!(bits(&got), *expected, "seed {seed} run {run} {rules:?}");
            }
        }
        check_memory(&expected.plan, &|_| loose()).unwrap();
    }
    assert!(shared_values > 1000, "{shared_values} values share memory");
}

/// R4: two devices with different rules: every arena keeps its own.
#[test]
fn plans_of_two_devices_check() {
    for seed in 0..60 {
        let rules = [all_rules()[seed as usize % 5], all_rules()[seed as usize / 5 % 5]];
        let backends = devices(vec![
            Box::new(chaos(GPU).with_rules(rules[0])),
            Box::new(chaos(GPU1).with_rules(rules[1])),
        ]);
        let place = |n: &Node| [Some(GPU), Some(GPU1)][Rng::labelled(seed, &n.name).below(2)];
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(4, 2, 1)) };
        let p = plan(random_graph(seed).unwrap(), &backends, &opts).unwrap();
        check_memory(&p, &|tag| rules[usize::from(tag == GPU1)])
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Moving one value onto another: whenever the step's simulation finds a hazard, the checker by
/// lifetimes objects as well; and a run whose simulation finds none still gives the right bits.
#[test]
fn broken_plans_are_found() {
    let backends = one();
    let (mut found, mut harmless) = (0, 0);
    for seed in 0..200 {
        let p = plan(random_graph(seed).unwrap(), &backends, &PlanOptions::new(dims(4, 2, 1))).unwrap();
        let mut rng = Rng::labelled(seed, "break");
        let values: Vec<NodeId> = (0..p.graph.nodes.len())
            .filter(|&i| {
                matches!(p.memory.nodes[i].map(|m| m.location), Some(Location::Arena { bytes: 128, .. }))
            })
            .collect();
        let (a, b) = (values[rng.below(values.len())], values[rng.below(values.len())]);
        let mut broken = p.clone();
        broken.memory.nodes[b].as_mut().unwrap().location = p.memory.nodes[a].unwrap().location;
        let hazard = verify_schedule(&broken);
        let overlap = check_memory(&broken, &|_| loose());
        match hazard {
            Ok(_) => harmless += 1,
            Err(h) => {
                found += 1;
                assert!(overlap.is_err(), "seed {seed}: {h}");
            }
        }
        if overlap.is_ok() {
            assert!(hazard.is_ok());
        }
    }
    assert!(found > 80 && harmless > 10, "{found} {harmless}");
}

/// R16, B2: inputs are filled before anything runs, so they never share, not even behind their last
/// reader.
#[test]
fn inputs_never_share() {
    let mut b = GraphBuilder::new();
    let inputs: Vec<NodeId> = (0..4).map(|i| value_input(&mut b, &format!("in.{i}"))).collect();
    let mut x = b.silu("s", inputs[0]).unwrap();
    for (i, &input) in inputs.iter().enumerate() {
        x = b.add(&format!("add.{i}"), x, input).unwrap();
        x = b.rms_norm(&format!("norm.{i}"), None, 1e-5, x).unwrap();
    }
    b.output(x);
    let mut rig = Rig::new(&b.finish(0), one(), &PlanOptions::new(dims(3, 3, 1))).unwrap();
    let step = dims(3, 0, 1);
    rig.fill(5, 0, step).unwrap();
    rig.execute(Step::new(step)).unwrap();
    for &input in &inputs {
        let name = rig.plan.graph.node(input).name.clone();
        let filled = Rng::labelled(5, &name).normals(3 * COLS, 1.0);
        assert_eq!(bits(&[rig.read(input, step).unwrap()]), bits(&[filled]), "{name}");
    }
    // Without filling again, the next step finds the same inputs.
    let first = rig.read(x, step).unwrap();
    rig.execute(Step::new(step)).unwrap();
    assert_eq!(bits(&[rig.read(x, step).unwrap()]), bits(&[first]));
}

/// C2: a chain of in-place nodes keeps its buffer until the last value of the chain is read; values
/// made meanwhile must not land on it.
#[test]
fn in_place_chain_keeps_its_buffer() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let other = value_input(&mut b, "other");
    let head = b.add("head", x, other).unwrap();
    let a1 = b.silu("a1", head).unwrap();
    let a2 = b.rms_norm("a2", None, 1e-5, a1).unwrap();
    // Many short-lived values of the same size while a2 waits.
    let mut t = b.add("t", other, x).unwrap();
    for i in 0..5 {
        let u = b.add(&format!("u.{i}"), t, other).unwrap();
        t = b.add(&format!("t.{i}"), u, t).unwrap();
    }
    let y = b.mul("y", t, a2).unwrap();
    b.output(y);
    let graph = b.finish(0);
    let mut rig = Rig::new(&graph, one(), &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let place = |id: NodeId| rig.plan.memory.nodes[id].unwrap();
    assert_eq!((place(a1).alias_of, place(a2).alias_of), (Some(head), Some(head)));
    assert_eq!((place(a1).location, place(a2).location), (place(head).location, place(head).location));
    let times = lifetimes(&rig.plan.graph, &|_| loose(), true);
    assert_eq!(times.buffers[head], Some(Lifetime { start: head, end: y }));
    check_memory(&rig.plan, &|_| loose()).unwrap();
    let mut apart =
        Rig::new(&graph, one(), &PlanOptions { share_buffers: false, ..PlanOptions::new(dims(2, 2, 1)) })
            .unwrap();
    let step = dims(2, 0, 1);
    assert_eq!(bits(&rig.run(1, 0, step).unwrap()), bits(&apart.run(1, 0, step).unwrap()));
}

/// R83: no alias onto an input, an output, a value read later or twice, or a value of another size.
#[test]
fn in_place_only_where_safe() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let from_input = b.silu("from_input", x).unwrap();
    let out = b.rms_norm("out", None, 1e-5, from_input).unwrap();
    let from_output = b.silu("from_output", out).unwrap();
    let twice = b.add("twice", from_output, from_output).unwrap();
    let early = b.silu("early", twice).unwrap();
    let late = b.add("late", twice, early).unwrap();
    b.output(out);
    b.output(late);
    let p = plan(b.finish(0), &one(), &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let alias = |id: NodeId| p.memory.nodes[id].unwrap().alias_of;
    assert_eq!([from_input, from_output, twice, early].map(alias), [None; 4]);
    assert_eq!((alias(out), alias(late)), (Some(from_input), Some(twice)));
    check_memory(&p, &|_| loose()).unwrap();
}

/// R14, R15: the executor walks node order; liveness by a Kahn order, which moves nodes with early sources
/// forward, would end the residual too soon. Here the two orders differ, and the residual lives on.
#[test]
fn residual_outlives_attention() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let residual = b.silu("residual", x).unwrap();
    let normed = b.rms_norm("normed", None, 1e-5, residual).unwrap();
    let inputs = attention_inputs(&mut b);
    let attn = attention_block(&mut b, inputs, 0, true, normed).unwrap();
    let rows = b.input("output_rows", InputKind::OutputRows, 1);
    let tail = b.gather_rows("tail", attn, rows).unwrap();
    let tail_residual = b.gather_rows("tail_residual", residual, rows).unwrap();
    let y = b.add("y", tail, tail_residual).unwrap();
    b.output(y);
    let graph = b.finish(0);
    let kahn = topo_order(&graph).unwrap();
    let at = |id: NodeId| kahn.iter().position(|&n| n == id).unwrap();
    assert!(at(tail_residual) < at(attn), "the trap needs an order that differs");
    for fuse in [FusionSwitches::NONE, FusionSwitches::default()] {
        let opts = PlanOptions { fuse, ..PlanOptions::new(dims(4, 4, 1)) };
        let mut rig = Rig::new(&graph, one(), &opts).unwrap();
        let life = rig.plan.memory.nodes[residual].unwrap().lifetime;
        assert_eq!(life, Lifetime { start: residual, end: tail_residual });
        check_memory(&rig.plan, &|_| loose()).unwrap();
        let mut apart = Rig::new(&graph, one(), &PlanOptions { share_buffers: false, ..opts }).unwrap();
        for (past, step) in [(0, dims(4, 2, 1)), (4, dims(1, 1, 1))] {
            assert_eq!(bits(&rig.run(2, past, step).unwrap()), bits(&apart.run(2, past, step).unwrap()));
        }
    }
}

#[test]
fn value_larger_than_a_binding() {
    let device = reference(CPU).with_rules(BufferRules { max_binding: 64, ..loose() });
    let backends = devices(vec![Box::new(device)]);
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let y = b.silu("y", x).unwrap();
    b.output(y);
    let graph = b.finish(0);
    assert!(plan(graph.clone(), &backends, &PlanOptions::new(dims(2, 0, 1))).is_ok());
    let error = plan(graph, &backends, &PlanOptions::new(dims(3, 0, 1))).unwrap_err();
    assert!(matches!(&error, GraphError::Capacity(s) if s.contains("96 bytes")), "{error}");
}

/// R59: sizes of a 0.5B model's values.
#[test]
fn known_sizes() {
    let mut b = GraphBuilder::new();
    let h = b.input_value("h", Shape::new(Dim::Tokens, 896));
    let rows = b.input("rows", InputKind::OutputRows, 1);
    let tail = b.gather_rows("tail", h, rows).unwrap();
    let w = matrix(&mut b, "w", 151_936, 896);
    let logits = b.matmul("logits", w, ActPrecision::Int16, tail).unwrap();
    b.output(logits);
    let p = plan(b.finish(0), &one(), &PlanOptions::new(dims(512, 1, 1))).unwrap();
    let bytes = |id: NodeId| match p.memory.nodes[id].unwrap().location {
        Location::Arena { bytes, .. } => bytes,
        Location::Kv { .. } => 0,
    };
    assert_eq!((bytes(h), bytes(tail), bytes(logits)), (1_835_008, 3_584, 607_744));
}

/// R55, R132: buffers go back where they came from.
#[test]
fn release_gives_everything_back() {
    let (mut backends, _) = host_and_gpu(chaos(GPU));
    let graph = seed_graph().unwrap();
    let p = plan(graph, &backends, &PlanOptions::new(dims(4, 4, 1))).unwrap();
    let first = GraphAllocator::new(&p, &mut backends, None).unwrap();
    let bytes = first.bytes();
    assert_eq!(bytes.values().sum::<usize>(), p.memory.total());
    assert_eq!(bytes[&GPU], p.memory.bytes_on(GPU));
    let on_cpu = first.node_buffer(2).unwrap().1;
    first.release(&mut backends);
    let error = backends.get_mut(CPU).unwrap().read_host(on_cpu, &mut vec![0; on_cpu.len]);
    assert!(error.is_err(), "a freed buffer can still be read");
}
