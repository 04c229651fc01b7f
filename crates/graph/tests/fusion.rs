//! Fusions: same bits as the plain ops, typed refusals, dead orphans that stay in the list.

use minfer_graph::*;
use minfer_testkit::schedule::*;

fn layer(bias: bool) -> Graph {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let inputs = attention_inputs(&mut b);
    let normed = b.rms_norm("normed", None, 1e-5, x).unwrap();
    let attn = attention_block(&mut b, inputs, 0, bias, normed).unwrap();
    let sum = b.add("sum", attn, x).unwrap();
    let ffn = b.rms_norm("ffn_norm", None, 1e-5, sum).unwrap();
    let wg = matrix(&mut b, "gate.w", 12, COLS);
    let wu = matrix(&mut b, "up.w", 12, COLS);
    let gate = b.matmul("gate", wg, ActPrecision::Int8, ffn).unwrap();
    let up = b.matmul("up", wu, ActPrecision::Int8, ffn).unwrap();
    let silu = b.silu("silu", gate).unwrap();
    let act = b.mul("act", silu, up).unwrap();
    let gelu = b.push("gelu", Op::Gelu, &[act]).unwrap();
    let act = b.mul("act2", act, gelu).unwrap();
    let wd = matrix(&mut b, "down.w", COLS, 12);
    let down = b.matmul("down", wd, ActPrecision::Int8, act).unwrap();
    let out = b.add("out", sum, down).unwrap();
    let norm = matrix(&mut b, "post.w", 1, COLS);
    let post = b.rms_norm("post", Some(norm), 1e-5, out).unwrap();
    let out = b.add("with_post", out, post).unwrap();
    b.output(out);
    b.finish(0)
}

fn opts(fuse: FusionSwitches) -> PlanOptions<'static> {
    PlanOptions { fuse, ..PlanOptions::new(dims(4, 4, 1)) }
}

/// R131: every combination of switches gives the bits of no fusion at all, on plain and deferred devices,
/// over a prompt and two tokens behind it.
#[test]
fn fused_equals_plain() {
    for bias in [false, true] {
        let graph = layer(bias);
        let mut plain = Rig::new(&graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        let steps = [(0, dims(4, 0, 1)), (4, dims(1, 0, 1)), (5, dims(2, 0, 1))];
        let expected: Vec<_> =
            steps.iter().map(|&(past, step)| bits(&plain.run(past as u64, past, step).unwrap())).collect();
        for mask in 0..256 {
            let fuse = FusionSwitches {
                matmul_bias: mask & 1 != 0,
                swiglu: mask & 2 != 0,
                qkv_rope_store: mask & 4 != 0,
                geglu: mask & 8 != 0,
                gated_matmul: mask & 16 != 0,
                matmul_add: mask & 32 != 0,
                norm_add: mask & 64 != 0,
                norm_matmul: mask & 128 != 0,
            };
            let mut rig = Rig::new(&graph, devices(vec![Box::new(chaos(CPU))]), &opts(fuse)).unwrap();
            let report = &rig.plan.fusions;
            assert_eq!(report.count(Fusion::MatMulBias), if bias && fuse.matmul_bias { 3 } else { 0 });
            assert_eq!(report.count(Fusion::SwiGlu), usize::from(fuse.swiglu));
            assert_eq!(report.count(Fusion::GeGlu), usize::from(fuse.geglu));
            let qkv = fuse.qkv_rope_store && (!bias || fuse.matmul_bias);
            assert_eq!(report.count(Fusion::QkvRopeStore), usize::from(qkv), "{report}");
            let gated = fuse.gated_matmul && fuse.swiglu;
            assert_eq!(report.count(Fusion::GatedMatMul), usize::from(gated), "{report}");
            assert_eq!(report.count(Fusion::MatMulAdd), usize::from(fuse.matmul_add), "{report}");
            assert_eq!(report.count(Fusion::NormAdd), usize::from(fuse.norm_add), "{report}");
            let normed = if fuse.norm_matmul { usize::from(qkv) + usize::from(gated) } else { 0 };
            assert_eq!(report.count(Fusion::NormMatMul), normed, "{report}");
            for (&(past, step), expected) in steps.iter().zip(&expected) {
                assert_eq!(bits(&rig.run(past as u64, past, step).unwrap()), *expected, "{fuse:?}");
            }
        }
    }
}

/// R86, R131: the fused op equals the graph of its own decomposition, also in the KV region.
#[test]
fn fused_equals_its_decomposition() {
    for bias in [false, true] {
        let mut fused = Rig::new(&layer(bias), one(), &opts(FusionSwitches::default())).unwrap();
        let plain_graph = expand(&fused.plan.graph).unwrap();
        verify(&plain_graph).unwrap();
        assert!(plain_graph.nodes.iter().all(|n| decompose(&n.op).is_none()));
        let mut plain = Rig::new(&plain_graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        for (past, step) in [(0, dims(3, 0, 1)), (3, dims(1, 0, 1))] {
            assert_eq!(bits(&fused.run(7, past, step).unwrap()), bits(&plain.run(7, past, step).unwrap()));
        }
        let regions = [&mut fused, &mut plain].map(|rig| {
            let pair = rig.kv.pair(0).unwrap();
            let cpu = rig.backends.get_mut(CPU).unwrap();
            [pair.k, pair.v].map(|slice| {
                let mut bytes = vec![0; slice.len];
                cpu.read_host(slice, &mut bytes).unwrap();
                bytes
            })
        });
        assert!(regions[0] == regions[1]);
    }
}

/// R70: what a fusion replaced stays in the list, without backend use, buffer or execution; the fused
/// node stands where the store stood and carries the name of the value it holds.
#[test]
fn orphans_stay_dead() {
    let graph = layer(true);
    let mut rig = Rig::new(&graph, one(), &opts(FusionSwitches::default())).unwrap();
    let p = &rig.plan;
    assert_eq!(p.graph.nodes.len(), graph.nodes.len());
    let live = p.graph.live();
    let dead: Vec<&str> = p.graph.nodes.iter().filter(|n| !live[n.id]).map(|n| n.op.name()).collect();
    // Three projections with and without bias, gate and up, and what was added to the residual.
    assert_eq!(dead.iter().filter(|&&op| op == "MatMul").count(), 9);
    assert_eq!(dead.iter().filter(|&&op| op == "Rope").count(), 2);
    assert_eq!(dead.iter().filter(|&&op| op == "Silu").count(), 1);
    let store = graph.find("blk.0.kv_store").unwrap();
    assert_eq!(p.graph.node(store).op.name(), "QkvRopeStore");
    assert_eq!(p.graph.node(store).name, "blk.0.q_rope");
    assert!((0..live.len()).all(|id| live[id] == rig.alloc.node_buffer(id).is_some()));
    rig.run(0, 0, dims(2, 0, 1)).unwrap();
    let executed = rig.plan.graph.nodes.iter().filter(|n| live[n.id] && !n.is_input()).count();
    assert_eq!(rig.scheduler.counters.nodes, executed as u64);
}

/// R131: `Mul(Silu(gate), up)` in both operand orders, and with two Silus.
#[test]
fn swiglu_operand_orders() {
    for order in 0..3 {
        let mut b = GraphBuilder::new();
        let (x, y) = (value_input(&mut b, "x"), value_input(&mut b, "y"));
        let s = b.silu("s", x).unwrap();
        let t = if order == 2 { b.silu("t", y).unwrap() } else { y };
        let out = if order == 1 { b.mul("out", t, s) } else { b.mul("out", s, t) }.unwrap();
        b.output(out);
        let graph = b.finish(0);
        let mut fused = Rig::new(&graph, one(), &opts(FusionSwitches::default())).unwrap();
        assert_eq!(fused.plan.graph.node(out).op, Op::SwiGlu);
        assert_eq!(fused.plan.graph.node(out).src, vec![x, t]);
        let mut plain = Rig::new(&graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        let step = dims(3, 0, 1);
        assert_eq!(bits(&fused.run(1, 0, step).unwrap()), bits(&plain.run(1, 0, step).unwrap()));
    }
}

/// R131: `Add(MatMul(x), r)` in both operand orders, with two products, and with one that is read again.
#[test]
fn residual_operand_orders() {
    for order in 0..4 {
        let mut b = GraphBuilder::new();
        let (x, y) = (value_input(&mut b, "x"), value_input(&mut b, "y"));
        let mut product = |name: &str| {
            let w = matrix(&mut b, &format!("{name}.w"), COLS, COLS);
            b.matmul(name, w, ActPrecision::Int8, x).unwrap()
        };
        let m = product("m");
        let r = if order < 2 { y } else { product("r") };
        let out = if order == 1 { b.add("out", r, m) } else { b.add("out", m, r) }.unwrap();
        b.output(out);
        if order == 3 {
            b.output(m);
        }
        let graph = b.finish(0);
        let mut fused = Rig::new(&graph, one(), &opts(FusionSwitches::default())).unwrap();
        let node = fused.plan.graph.node(out);
        let expected = if order == 3 { [x, m] } else { [x, r] };
        assert_eq!((node.op.name(), node.src.as_slice()), ("MatMulAdd", &expected[..]));
        let mut plain = Rig::new(&graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        let step = dims(3, 0, 1);
        assert_eq!(bits(&fused.run(1, 0, step).unwrap()), bits(&plain.run(1, 0, step).unwrap()));
    }
}

/// R131: what keeps two products and their activation apart.
#[test]
fn gated_refusals() {
    for case in 0..5 {
        let mut b = GraphBuilder::new();
        let (x, y) = (value_input(&mut b, "x"), value_input(&mut b, "y"));
        let mut product = |name: &str, act, x| {
            let w = matrix(&mut b, &format!("{name}.w"), COLS, COLS);
            b.matmul(name, w, act, x).unwrap()
        };
        let gate = product("gate", ActPrecision::Int8, x);
        let act = if case == 1 { ActPrecision::Int16 } else { ActPrecision::Int8 };
        let up = if case == 2 { y } else { product("up", act, if case == 0 { y } else { x }) };
        let op = if case == 3 { Op::GeGlu } else { Op::SwiGlu };
        let out = b.push("out", op, &[gate, up]).unwrap();
        b.output(out);
        if case == 3 {
            b.output(up);
        }
        let found = refusals(b.finish(0), &one());
        let mismatch = |what: &str| FusionRefusal::Mismatch(format!("the gate and up {what}"));
        let expected = match case {
            0 => mismatch("project different values"),
            1 => mismatch("take activations of different precision"),
            2 => FusionRefusal::Pattern("`y` is Input, not MatMul".into()),
            3 => FusionRefusal::IsOutput(up),
            _ => {
                assert_eq!(found, vec![]);
                continue;
            }
        };
        assert_eq!(found, vec![(Fusion::GatedMatMul, expected)]);
    }
}

/// R131: what keeps a norm and the products of its result apart; and a norm that is added, in both operand orders.
#[test]
fn norm_refusals() {
    for case in 0..4 {
        let mut b = GraphBuilder::new();
        let x = value_input(&mut b, "x");
        let normed = b.rms_norm("normed", None, 1e-5, x).unwrap();
        let mut product = |name: &str| {
            let w = matrix(&mut b, &format!("{name}.w"), COLS, COLS);
            b.matmul(name, w, ActPrecision::Int8, normed).unwrap()
        };
        let (gate, up) = (product("gate"), product("up"));
        let gated = b.push("gated", Op::SwiGlu, &[gate, up]).unwrap();
        b.output(gated);
        let expected = match case {
            0 => {
                b.output(normed);
                vec![(Fusion::NormMatMul, FusionRefusal::IsOutput(normed))]
            }
            1 | 2 => {
                let (first, second) = if case == 1 { (normed, x) } else { (x, normed) };
                let sum = b.add("sum", first, second).unwrap();
                b.output(sum);
                [Fusion::NormAdd, Fusion::NormMatMul]
                    .map(|f| (f, FusionRefusal::UsedElsewhere(normed)))
                    .to_vec()
            }
            _ => vec![],
        };
        assert_eq!(refusals(b.finish(0), &one()), expected, "case {case}");
    }
    for swapped in [false, true] {
        let mut b = GraphBuilder::new();
        let (x, r) = (value_input(&mut b, "x"), value_input(&mut b, "r"));
        let normed = b.rms_norm("normed", None, 1e-5, x).unwrap();
        let (first, second) = if swapped { (r, normed) } else { (normed, r) };
        let out = b.add("out", first, second).unwrap();
        b.output(out);
        let plan = plan(b.finish(0), &one(), &opts(FusionSwitches::default())).unwrap();
        let node = plan.graph.node(out);
        assert_eq!((node.op.name(), node.src.as_slice()), ("NormAdd", &[x, r][..]));
    }
}

fn refusals(graph: Graph, backends: &Backends) -> Vec<(Fusion, FusionRefusal)> {
    let p = plan(graph, backends, &opts(FusionSwitches::default())).unwrap();
    p.fusions.refused.into_iter().map(|r| (r.fusion, r.why)).collect()
}

/// R131: one case for every reason.
#[test]
fn refusals_are_typed() {
    // The product is read elsewhere, is an output, sits on another device.
    for case in 0..3 {
        let mut b = GraphBuilder::new();
        let x = value_input(&mut b, "x");
        let w = matrix(&mut b, "w", COLS, COLS);
        let m = b.matmul("m", w, ActPrecision::Int8, x).unwrap();
        let bias = matrix(&mut b, "b", 1, COLS);
        let mut y = b.add_bias("y", bias, m).unwrap();
        let expected = match case {
            0 => {
                y = b.mul("z", y, m).unwrap();
                FusionRefusal::UsedElsewhere(m)
            }
            1 => {
                b.output(m);
                FusionRefusal::IsOutput(m)
            }
            _ => {
                b.pin(m, GPU);
                FusionRefusal::BackendsDiffer(m, y)
            }
        };
        b.output(y);
        let (backends, _) = host_and_gpu(chaos(GPU));
        assert_eq!(refusals(b.finish(0), &backends), vec![(Fusion::MatMulBias, expected)]);
    }
    // No kernel for the fused op; the plain ones run.
    let backends = devices(vec![Box::new(reference(CPU).refuse("QkvRopeStore", "not yet"))]);
    let expected = (Fusion::QkvRopeStore, FusionRefusal::BackendRefuses("not yet".into()));
    assert_eq!(refusals(layer(false), &backends), vec![expected]);
    // Switched off.
    let p = plan(layer(false), &backends, &opts(FusionSwitches::NONE)).unwrap();
    assert!(p.fusions.refused.iter().all(|r| r.why == FusionRefusal::SwitchedOff));
    assert_eq!(p.fusions.refused.len(), 5);
    assert!(p.fusions.to_string().contains("SwiGlu not at node"), "{}", p.fusions);
}

/// A hand-made attention layer with one detail wrong.
fn odd_layer(case: usize) -> Graph {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let x2 = value_input(&mut b, "x2");
    let i = attention_inputs(&mut b);
    let mut project = |name: &str, rows, act, x| {
        let w = matrix(&mut b, &format!("{name}.w"), rows, COLS);
        b.matmul(name, w, act, x).unwrap()
    };
    let q = project("q", COLS, ActPrecision::Int8, if case == 0 { x2 } else { x });
    let k = project("k", 4, if case == 1 { ActPrecision::Int16 } else { ActPrecision::Int8 }, x);
    let v = project("v", 4, ActPrecision::Int8, x);
    let other = Rope { base: 7.0, ..rope() };
    let rotate = |b: &mut GraphBuilder, name: &str, rope, x| match case {
        7 => x,
        _ => b.rope(name, rope, x, i.positions).unwrap(),
    };
    let q = rotate(&mut b, "q_rope", if case == 2 { other } else { rope() }, q);
    let k = if matches!(case, 3 | 9) { b.rms_norm("k_norm", None, 1e-5, k).unwrap() } else { k };
    let k = if case == 9 { b.rms_norm("k_norm_again", None, 1e-5, k).unwrap() } else { k };
    let k = rotate(&mut b, "k_rope", rope(), k);
    let scale = Op::PositionScale { gain: 0.5, interval: 2 };
    let q = if case == 6 { b.push("q_scaled", scale, &[q, i.positions]).unwrap() } else { q };
    let v = if case == 8 { b.rms_norm("v_norm", None, 1e-5, v).unwrap() } else { v };
    let peek = (case == 4).then(|| b.silu("peek", q).unwrap());
    let load = b.kv_store_load("", kv_shape(0), k, v, i.rows).unwrap();
    let a = Attention {
        layer: 0,
        n_head: 2,
        n_kv_head: 1,
        head_dim: 4,
        v_dim: 4,
        scale: 0.5,
        window: None,
        softcap: None,
        sinks: None,
    };
    let mut y = b.attention("attn", a, q, load, i.extents, i.table).unwrap();
    if let Some(peek) = peek {
        y = b.add("with_peek", y, peek).unwrap();
    }
    if case == 5 {
        y = b.add("with_q", y, q).unwrap();
    }
    b.output(y);
    b.finish(0)
}

/// R131: layers with one detail wrong stay as they are, and are right.
#[test]
fn qkv_refusals() {
    let reason = |case| {
        let p = plan(odd_layer(case), &one(), &opts(FusionSwitches::default())).unwrap();
        p.fusions.refused.first().map(|r| r.why.clone())
    };
    for case in 0..3 {
        assert!(matches!(reason(case), Some(FusionRefusal::Mismatch(_))), "case {case}");
    }
    let near_misses = [
        (9, "k is normed between its projection and RoPE (`k_norm`)"),
        (6, "q passes through PositionScale between RoPE and the attention (`q_scaled`)"),
        (7, "q is not rotated: the layer has no RoPE"),
        (8, "v is normed between its projection and the store (`v_norm`)"),
    ];
    for (case, words) in near_misses {
        assert_eq!(reason(case).unwrap().to_string(), words);
    }
    assert!(matches!(reason(4), Some(FusionRefusal::Order(_))), "q is read before the store");
    assert_eq!(reason(5), None, "q read behind the store is served by the fused node");
    assert_eq!(reason(3), None, "a norm of k alone is taken in");
    for case in 0..10 {
        let graph = odd_layer(case);
        let mut fused = Rig::new(&graph, one(), &opts(FusionSwitches::default())).unwrap();
        let mut plain = Rig::new(&graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        for (past, step) in [(0, dims(3, 0, 1)), (3, dims(1, 0, 1))] {
            assert_eq!(bits(&fused.run(7, past, step).unwrap()), bits(&plain.run(7, past, step).unwrap()));
        }
    }
}

/// R131: random graphs with all fusions against none.
#[test]
fn random_graphs_fused_equal_plain() {
    let mut applied = 0;
    for seed in 0..60 {
        let graph = random_graph(seed).unwrap();
        let mut fused = Rig::new(&graph, one(), &opts(FusionSwitches::default())).unwrap();
        let mut plain = Rig::new(&graph, one(), &opts(FusionSwitches::NONE)).unwrap();
        applied += fused.plan.fusions.applied.len();
        for (past, step) in [(0, dims(4, 4, 1)), (4, dims(1, 1, 1))] {
            let inputs = seed + past as u64;
            assert_eq!(
                bits(&fused.run(inputs, past, step).unwrap()),
                bits(&plain.run(inputs, past, step).unwrap()),
                "seed {seed}"
            );
        }
    }
    assert!(applied > 60, "{applied}");
}

/// Blocks that fare alike share a line, one that does not has its own; a fused node that a later fusion
/// takes in says so.
#[test]
fn explanation_groups_blocks() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let inputs = attention_inputs(&mut b);
    let mut h = x;
    for layer in 0..3 {
        h = attention_block(&mut b, inputs, layer, true, h).unwrap();
    }
    b.output(h);
    let mut graph = b.finish(0);
    graph.outputs.extend(graph.find("blk.1.q"));
    let p = plan(graph, &one(), &opts(FusionSwitches::default())).unwrap();
    let text = fusions_text(&p);
    for line in [
        "MatMulBias: a product adds its bias itself",
        "  fused 2× in blk.0, 2: `blk.*.q_bias` for MatMul `blk.*.q`, AddBias `blk.*.q_bias`; then part of QkvRopeStore",
        "  fused 1× in blk.1: `blk.*.k_bias` for MatMul `blk.*.k`, AddBias `blk.*.k_bias`",
        "  not fused 1× in blk.1: `blk.*.q_bias`: `blk.*.q` is an output",
        "  not fused 1× in blk.1: `blk.*.kv_store`: q gets its bias in a node of its own between its projection and RoPE (`blk.*.q_bias`)",
        "SwiGlu: SiLU of the gate times the up projection, in one pass\n  nothing in this graph looks like it",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
    let json = fusions_json(&p);
    assert_eq!((&json[0]["fused"], &json[0]["not_fused"]), (&8.into(), &1.into()));
    assert_eq!((&json[3]["fused"], &json[3]["groups"][0]["blocks"]), (&2.into(), &serde_json::json!([0, 2])));
    let counted: usize = fusion_groups(&p).iter().map(|g| g.nodes.len()).sum();
    assert_eq!(counted, p.fusions.applied.len() + p.fusions.refused.len());
}

#[test]
fn switches_and_names() {
    for fusion in Fusion::ALL {
        assert_eq!(fusion.name().to_lowercase().parse(), Ok(fusion));
        let alone = FusionSwitches::NONE.with(fusion, true);
        assert!(Fusion::ALL.into_iter().all(|f| alone.get(f) == (f == fusion)));
        assert_eq!(alone.with(fusion, false), FusionSwitches::NONE);
    }
    assert!("qkv".parse::<Fusion>().unwrap_err().contains("QkvRopeStore"));
}
