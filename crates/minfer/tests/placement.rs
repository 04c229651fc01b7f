//! Blocks on other devices: the same bits, the splits and copies that arithmetic predicts, and memory where it belongs.
//! The offload devices queue everything and refuse early reads.

mod common;

use common::{OnDisk, ids, tiny};
use minfer::graph::{BackendTag, KvType, StepDims, cross_copies};
use minfer::models::{ModelSpec, Stage};
use minfer::{
    Batch, Control, DeviceChoice, ErrorKind, GpuLayers, Layout, LoadMode, LoadOptions, Model, ModelFile,
    Placement, Session, SessionOptions, Wanted,
};
use minfer_testkit::tiny::FAMILIES;
use std::collections::BTreeSet;

fn chaos(index: u8) -> DeviceChoice {
    DeviceChoice::Chaos { index, kib: None }
}

fn options() -> SessionOptions {
    SessionOptions {
        n_ctx: 256,
        n_batch: 40,
        max_seqs: 2,
        kv_types: KvType::F32.into(),
        ..Default::default()
    }
}

fn layout(file: &OnDisk, placement: &Placement) -> Layout {
    placement.resolve(&ModelFile::open(&file.path).unwrap(), &options()).unwrap()
}

fn load(file: &OnDisk, layout: Layout) -> Model {
    Model::load(&file.path, LoadOptions { threads: Some(2), layout, ..Default::default() }).unwrap()
}

/// No block, one, half of them and all on one device; half and all over two.
fn layouts(file: &OnDisk, n_layer: usize) -> Vec<Layout> {
    let one = [0, 1, n_layer / 2, n_layer].map(|n| Placement::new([chaos(0)], GpuLayers::Count(n)));
    let two =
        [n_layer.div_ceil(2), n_layer].map(|n| Placement::new([chaos(0), chaos(1)], GpuLayers::Count(n)));
    one.iter().chain(&two).map(|p| layout(file, p)).collect()
}

/// Logits of a text in chunks, of two sequences that go on together, and of what is left after a truncation.
fn transcript(session: &mut Session) -> Vec<u32> {
    let n_vocab = session.model().spec().n_vocab;
    let mut bits: Vec<u32> = Vec::new();
    let a = session.new_sequence().unwrap();
    let take = &mut |_: usize, row: &[f32]| {
        bits.extend(row.iter().map(|x| x.to_bits()));
        Ok(())
    };
    session.evaluate(a, &ids(70, n_vocab, 1), &Control::default(), take).unwrap();
    session.truncate(a, 65).unwrap();
    let b = session.new_sequence().unwrap();
    for (n_a, n_b) in [(3, 50), (1, 1), (1, 1), (20, 1)] {
        let mut batch = Batch::new();
        batch.add(a, &ids(n_a, n_vocab, 2), Wanted::Last).add(b, &ids(n_b, n_vocab, 3), Wanted::All);
        let logits = session.step(&batch, &Control::default()).unwrap();
        for i in 0..logits.len() {
            bits.extend(logits.row(i).iter().map(|x| x.to_bits()));
        }
    }
    session.remove_sequence(a).unwrap();
    session.remove_sequence(b).unwrap();
    bits
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traffic {
    splits: usize,
    copies: usize,
    bytes: usize,
}

/// What a full step takes, from the model and the devices of its blocks alone: the stream of hidden states crosses
/// wherever the device changes, and an input that several devices read lives on the first and is copied to the others.
fn predicted(spec: &ModelSpec, layout: &Layout, dims: StepDims, max_pages: usize) -> Traffic {
    let n = spec.layers.len();
    let device = |block: usize| layout.device_of(Some(block));
    let mut traffic = Traffic { splits: 1, copies: 0, bytes: 0 };
    let mut copy = |bytes: usize| {
        traffic.copies += 1;
        traffic.bytes += bytes;
    };
    let mut before = BackendTag::CPU;
    let mut changes = 0;
    for block in 0..=n {
        if device(block) != before {
            changes += 1;
            // Only the rows that somebody wants leave the last block.
            copy(4 * spec.n_embd * if block == n { dims.outputs } else { dims.tokens });
        }
        before = device(block);
    }
    let mut input = |bytes: usize, reads: &dyn Fn(usize) -> bool| {
        let readers: BTreeSet<BackendTag> = (0..n).filter(|&b| reads(b)).map(device).collect();
        (1..readers.len()).for_each(|_| copy(bytes));
    };
    let attention = |block: usize| &spec.layers[block].attention;
    input(4 * dims.tokens, &|b| attention(b).rope.is_some() || attention(b).temperature.is_some());
    input(12 * dims.seqs, &|_| true);
    for group in 0..spec.n_kv_groups() {
        input(4 * dims.tokens, &|b| attention(b).kv_group == group);
        input(4 * max_pages * dims.seqs, &|b| attention(b).kv_group == group);
    }
    traffic.splits += changes;
    traffic
}

/// What the scheduler counts in one step of both sequences.
fn counted(session: &mut Session, tokens: usize) -> Traffic {
    let n_vocab = session.model().spec().n_vocab;
    let (a, b) = (session.new_sequence().unwrap(), session.new_sequence().unwrap());
    let mut batch = Batch::new();
    batch.add(a, &ids(tokens - 1, n_vocab, 4), Wanted::Last).add(b, &[1], Wanted::Last);
    let before = *session.counters();
    session.step(&batch, &Control::default()).unwrap();
    let now = *session.counters();
    assert_eq!(now.executes - before.executes, 1);
    assert_eq!(now.syncs - before.syncs, now.splits - before.splits, "a wait at the end of each split");
    session.remove_sequence(a).unwrap();
    session.remove_sequence(b).unwrap();
    Traffic {
        splits: (now.splits - before.splits) as usize,
        copies: (now.copies - before.copies) as usize,
        bytes: (now.copied_bytes - before.copied_bytes) as usize,
    }
}

/// R36, R37, R60: nothing, one block, half and all of them on other devices.
#[test]
fn blocks_on_other_devices_give_the_same_bits_with_the_predicted_copies() {
    for family in FAMILIES.map(|f| f.name) {
        let file = tiny(family);
        let cpu = load(&file, Layout::default());
        let expected = transcript(&mut Session::new(&cpu, options()).unwrap());
        let spec = cpu.spec();
        let max_pages = options().n_ctx / 64;
        for layout in layouts(&file, spec.layers.len()) {
            let model = load(&file, layout.clone());
            let mut session = Session::new(&model, options()).unwrap();
            assert!(transcript(&mut session) == expected, "{family}, {layout}");
            for tokens in [2, 33] {
                let dims = StepDims { tokens, outputs: 2, seqs: 2 };
                let want = predicted(spec, &layout, dims, max_pages);
                assert_eq!(counted(&mut session, tokens), want, "{family}, {layout}, {tokens} tokens");
                let plan = session.plan(Stage::Full).unwrap();
                let listed = cross_copies(plan);
                let bytes = listed.iter().map(|c| c.bytes(plan, dims)).sum();
                let listed = Traffic { splits: plan.splits.len(), copies: listed.len(), bytes };
                assert_eq!(listed, want, "{family}, {layout}");
            }
        }
    }
}

/// Every stage puts a block's nodes where the layout says, and no block is torn.
#[test]
fn all_plans_of_a_session_place_equally() {
    let file = tiny("gemma3");
    let n_layer = load(&file, Layout::default()).spec().layers.len();
    for layout in layouts(&file, n_layer) {
        let mut session = Session::new(&load(&file, layout.clone()), options()).unwrap();
        for stage in [Stage::Full, Stage::Body, Stage::Head] {
            let plan = session.plan(stage).unwrap();
            let live = plan.graph.live();
            for node in plan.graph.nodes.iter().filter(|n| live[n.id] && !n.is_input()) {
                assert_eq!(node.backend, Some(layout.device_of(node.block)), "{}, {layout}", node.name);
            }
        }
    }
}

#[test]
fn weights_and_cache_are_where_their_blocks_are() {
    for family in ["llama", "qwen2", "gemma3", "gpt-oss"] {
        let file = tiny(family);
        let opened = ModelFile::open(&file.path).unwrap();
        let spec = opened.spec().unwrap();
        let n = spec.layers.len();
        let weights = |plan: &minfer::graph::Plan, tag: BackendTag| -> u64 {
            let live = plan.graph.live();
            let here = plan.graph.nodes.iter().filter(|x| live[x.id] && x.backend == Some(tag));
            let names: BTreeSet<_> = here.flat_map(|x| x.op.weights()).collect();
            names.into_iter().filter_map(|w| plan.graph.weight(w).bytes()).sum()
        };
        for layout in layouts(&file, n) {
            let (plan, memory) = minfer::forecast(&opened, &options(), &layout, LoadMode::Read).unwrap();
            for device in &memory.devices {
                assert_eq!(device.weights, weights(&plan, device.device), "{family}, {layout}");
                let here = spec.kv_shapes().filter(|s| layout.device_of(Some(s.layer)) == device.device);
                let values: usize = here.map(|s| s.n_kv_head * (s.head_dim + s.v_dim)).sum();
                assert_eq!(device.kv as usize, 4 * values * 256 * 2, "{family}, {layout}");
            }
            let total = memory.devices[0].weights;
            let table = spec.token_embd.bytes().unwrap();
            if layout.n_offloaded() == n {
                assert_eq!(total, table, "{family}: the cpu embeds and no more");
                let tied = spec.output.weight.name == spec.token_embd.name;
                let all: u64 = spec.weights().iter().filter_map(|w| w.bytes()).sum();
                let twice = if tied { table } else { 0 };
                assert_eq!(memory.sum(|d| d.weights), all + twice, "{family}: a tied table is on both");
            }
        }
    }
}

#[test]
fn auto_takes_what_fits() {
    let file = tiny("llama");
    let opened = ModelFile::open(&file.path).unwrap();
    let n = opened.spec().unwrap().layers.len();
    let all = layout(&file, &Placement { devices: vec![chaos(0)], gpu_layers: None });
    assert_eq!(all.n_offloaded(), n, "a device that does not tell takes everything");
    let needs = |blocks: usize| {
        let layout = layout(&file, &Placement::new([chaos(0)], GpuLayers::Count(blocks)));
        minfer::forecast(&opened, &options(), &layout, LoadMode::Read).unwrap().1.devices[1].total()
    };
    let budget = |bytes: u64, gpu_layers| {
        let device = DeviceChoice::Chaos { index: 0, kib: Some(bytes.div_ceil(1024)) };
        layout(&file, &Placement { devices: vec![device], gpu_layers })
    };
    for blocks in 1..n {
        assert!(needs(blocks) + 1024 < needs(blocks + 1));
        assert_eq!(budget(needs(blocks), None).n_offloaded(), blocks);
        assert_eq!(budget(needs(blocks) - 1024, Some(GpuLayers::Auto)).n_offloaded(), blocks - 1);
    }
    assert_eq!(budget(needs(n), None).n_offloaded(), n);
    // A number is taken as it is; that it cannot fit is an error that names the device.
    let too_many = budget(needs(1), Some(GpuLayers::Count(99)));
    assert_eq!(too_many.n_offloaded(), n);
    let e = minfer::check_memory(&opened, &options(), &too_many, LoadMode::Read).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory);
    assert!(e.to_string().contains("chaos:0") && e.to_string().contains("--gpu-layers"), "{e}");
    minfer::check_memory(&opened, &options(), &budget(needs(1), None), LoadMode::Read).unwrap();
}

#[test]
fn a_layout_of_another_model_is_refused() {
    let (small, large) = (tiny("llama"), tiny("gemma3"));
    let layout = layout(&large, &Placement::new([chaos(0)], GpuLayers::Count(2)));
    let e = Model::load(&small.path, LoadOptions { layout, ..Default::default() }).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Input);
}
