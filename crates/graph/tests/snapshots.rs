//! Memory plans of small graphs as text, compared with the files in `tests/plans`: a change of the
//! planner shows as a change of those files.
//!
//! A test that fails writes what it got and names the command that takes it over, if it is meant.

use minfer_graph::*;
use minfer_testkit::schedule::*;
use std::path::Path;

/// Two blocks of attention and a gated feed-forward part, as models have them.
fn model() -> Graph {
    let mut b = GraphBuilder::new();
    let mut x = value_input(&mut b, "x");
    let inputs = attention_inputs(&mut b);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let normed = b.rms_norm(&name("attn_norm"), None, 1e-5, x).unwrap();
        let attn = attention_block(&mut b, inputs, layer, layer == 1, normed).unwrap();
        x = b.add(&name("attn_residual"), attn, x).unwrap();
        let normed = b.rms_norm(&name("ffn_norm"), None, 1e-5, x).unwrap();
        let mut product = |part: &str, rows, cols, x| {
            let w = matrix(&mut b, &name(&format!("{part}.weight")), rows, cols);
            b.matmul(&name(part), w, ActPrecision::Int8, x).unwrap()
        };
        let (gate, up) = (product("gate", 12, COLS, normed), product("up", 12, COLS, normed));
        let gate = b.silu(&name("silu"), gate).unwrap();
        let gated = b.mul(&name("gated"), gate, up).unwrap();
        let w = matrix(&mut b, &name("down.weight"), COLS, 12);
        let down = b.matmul(&name("down"), w, ActPrecision::Int8, gated).unwrap();
        x = b.add(&name("ffn_residual"), x, down).unwrap();
    }
    let rows = b.input("output_rows", InputKind::OutputRows, 1);
    let tail = b.gather_rows("tail", x, rows).unwrap();
    let w = matrix(&mut b, "output.weight", VOCAB, COLS);
    let logits = b.matmul("output", w, ActPrecision::Int16, tail).unwrap();
    b.output(logits);
    b.finish(0)
}

fn compare(name: &str, backends: &Backends, options: &PlanOptions<'_>) {
    let plan = plan(model(), backends, options).unwrap();
    let text = dump_memory(&plan);
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(name);
    if std::fs::read_to_string(&recorded).is_ok_and(|known| known == text) {
        return;
    }
    let got = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&got, &text).unwrap();
    let (got, recorded) = (got.display(), recorded.display());
    panic!(
        "the memory plan is not that of {recorded}. If the change is meant:\n  cp {got} {recorded}\n{text}"
    );
}

#[test]
fn one_device() {
    compare("one_device.txt", &one(), &PlanOptions::new(dims(4, 2, 1)));
}

/// The second block on another device, so that copies are staged in both directions.
#[test]
fn two_devices() {
    let (backends, _) = host_and_gpu(chaos(GPU));
    let place = |n: &Node| n.name.starts_with("blk.1.").then_some(GPU);
    let options = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(4, 2, 1)) };
    compare("two_devices.txt", &backends, &options);
}

/// A device with wide alignment whose kernels write neither in place nor into a buffer that they read.
#[test]
fn strict_device() {
    let rules =
        BufferRules { alignment: 256, max_binding: 4096, read_write_one_buffer: false, in_place: false };
    let backends = devices(vec![Box::new(reference(CPU).with_rules(rules))]);
    compare("strict_device.txt", &backends, &PlanOptions::new(dims(4, 2, 1)));
}

/// The usage score says what it claims: nothing is lost where values fill their buffer, and everything
/// that is alive is counted.
#[test]
fn usage_is_what_is_alive() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let y = b.rms_norm("y", None, 1e-5, x).unwrap();
    let z = b.silu("z", y).unwrap();
    b.output(z);
    let p = plan(b.finish(0), &one(), &PlanOptions::new(dims(2, 2, 1))).unwrap();
    let bytes = 2 * COLS * 4;
    let arena = &p.memory.arenas[0];
    // x lives in its own bytes throughout, y and z in one buffer from node 1 until after the step.
    assert_eq!(
        (arena.bytes(), arena.live_peak, arena.byte_nodes),
        (2 * bytes, 2 * bytes, 4 * bytes + 3 * bytes)
    );
    assert_eq!((arena.usage(), p.memory.usage()), (1.0, 1.0));
    assert_eq!(arena.mean_usage(3), 7.0 / 8.0);
    assert!(dump_memory(&p).contains("usage 100 %, 87 % on average"), "{}", dump_memory(&p));
    // A buffer per value: the same values, half as well used.
    let (backends, _) = host_and_gpu(chaos(GPU));
    let place = |n: &Node| (n.name == "y").then_some(GPU);
    let options = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(2, 2, 1)) };
    let p = plan(model(), &backends, &options).unwrap();
    for arena in &p.memory.arenas {
        assert!(arena.live_peak <= arena.bytes() && arena.usage() <= 1.0);
        let mean = arena.mean_usage(p.graph.nodes.len());
        assert!(mean > 0.0 && mean <= arena.usage(), "{mean}");
    }
    assert!(p.memory.peak() <= p.memory.total() && p.memory.usage() <= 1.0);
}
