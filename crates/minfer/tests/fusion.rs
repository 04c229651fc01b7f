//! Fusions of whole models: every architecture gives the same bits with and without each of them, and
//! fuses neither less nor more than the table says.

mod common;

use common::{ids, load, on_disk};
use minfer::graph::{
    BackendScheduler, BackendTag, Backends, Fate, Fusion, FusionSwitches, GraphAllocator, InputKind,
    KvStorage, KvType, Op, PAGE, Plan, PlanOptions, Step, StepDims, WeightSpec, decompose, fusion_groups,
    plan,
};
use minfer::models::{GraphParams, ModelSpec, Stage, build_graph};
use minfer::{Batch, Control, Model, Session, SessionOptions, Wanted};
use minfer_gguf::TensorType;
use minfer_testkit::ReferenceBackend;
use minfer_testkit::tiny::{FAMILIES, TinyModel, TinySpec, Types};

/// Each fusion alone, each missing, and all of them.
fn switches() -> Vec<(String, FusionSwitches)> {
    let mut list = vec![("all".into(), FusionSwitches::default())];
    for fusion in Fusion::ALL {
        let name = fusion.name();
        list.push((format!("{name} alone"), FusionSwitches::NONE.with(fusion, true)));
        list.push((format!("all but {name}"), FusionSwitches::default().with(fusion, false)));
    }
    list
}

fn session(model: &Model, fusions: FusionSwitches, n_batch: usize) -> Session {
    let options = SessionOptions { n_ctx: 128, n_batch, fusions, ..SessionOptions::default() };
    Session::new(model, options).unwrap()
}

/// Logits of a prompt in chunks and of a token behind it.
fn logits(model: &Model, fusions: FusionSwitches) -> Vec<u32> {
    let mut session = session(model, fusions, 16);
    let tokens = ids(41, model.spec().n_vocab, 3);
    let seq = session.new_sequence().unwrap();
    let mut bits = Vec::new();
    for (part, wanted) in [(&tokens[..40], Wanted::All), (&tokens[40..], Wanted::Last)] {
        let mut batch = Batch::new();
        batch.add(seq, part, wanted);
        let logits = session.step(&batch, &Control::default()).unwrap();
        bits.extend((0..logits.len()).flat_map(|i| logits.row(i)).map(|x| x.to_bits()));
    }
    assert!(bits.iter().all(|&b| f32::from_bits(b).is_finite()));
    bits
}

fn check_on_cpu(spec: TinySpec) {
    let model = load(&on_disk(&spec.to_bytes().unwrap()), 2);
    let plain = logits(&model, FusionSwitches::NONE);
    for (what, fusions) in switches() {
        assert!(logits(&model, fusions) == plain, "{}, {}: {what}", spec.family.name, spec.types.attn);
    }
}

/// R131: on the CPU a fused op gives the bits of its plain ops, in every architecture.
#[test]
fn fused_models_equal_plain_ones() {
    for family in FAMILIES {
        check_on_cpu(TinySpec::new(family));
    }
}

/// The same with weights that take quantised activations, which fused ops share.
#[test]
fn fused_quantised_models_equal_plain_ones() {
    for family in FAMILIES {
        check_on_cpu(TinySpec::new(family).wide().with_types(Types::all(TensorType::Q4K)));
    }
}

/// A plan of a tiny model on the reference interpreter.
struct OnReference {
    backends: Backends,
    plan: Plan,
    alloc: GraphAllocator,
    _kv: KvStorage,
}

const STEP: usize = 24;
const PAGES: usize = 1;

impl OnReference {
    fn new(file: &TinyModel, spec: &ModelSpec, fuse: FusionSwitches) -> Self {
        let mut backends = Backends::new();
        backends.push(Box::new(ReferenceBackend::new(BackendTag::CPU)));
        let capacity = StepDims { tokens: STEP, outputs: STEP, seqs: 1 };
        let params = GraphParams { stage: Stage::Full, capacity, max_pages: PAGES };
        let graph = build_graph(spec, &params, 0).unwrap();
        let plan = plan(graph, &backends, &PlanOptions { fuse, ..PlanOptions::new(capacity) }).unwrap();
        let cpu = backends.get_mut(BackendTag::CPU).unwrap();
        for weight in &plan.graph.weights {
            cpu.load_weight(weight, bytes_of(file, weight)).unwrap();
        }
        let live = plan.graph.live();
        let writers = plan.graph.nodes.iter().filter(|n| live[n.id] && n.op.writes_kv());
        let layers: Vec<_> = writers.map(|n| (n.op.kv_shape().unwrap(), BackendTag::CPU)).collect();
        let kv = KvStorage::new(&mut backends, &layers, PAGES, KvType::F16).unwrap();
        let alloc = GraphAllocator::new(&plan, &mut backends, Some(&kv)).unwrap();
        OnReference { backends, plan, alloc, _kv: kv }
    }

    /// Logits of all tokens, which stand behind `past` others.
    fn run(&mut self, tokens: &[u32], past: usize) -> Vec<u32> {
        let n = tokens.len();
        let range = |from: usize| (from..from + n).map(|i| i as i32).collect::<Vec<_>>();
        for node in &self.plan.graph.nodes {
            let Op::Input(kind) = node.op else { continue };
            let values = match kind {
                InputKind::TokenIds => tokens.iter().map(|&id| id as i32).collect(),
                InputKind::Positions | InputKind::KvRows { .. } => range(past),
                InputKind::Extents => vec![0, n as i32, past as i32],
                InputKind::OutputRows => range(0),
                InputKind::PageTable { .. } => (0..PAGES as i32).collect(),
                InputKind::Value => panic!("a full graph has no input of values"),
            };
            self.alloc.fill_input_i32(&self.plan, &mut self.backends, node.id, &values).unwrap();
        }
        let dims = StepDims { tokens: n, outputs: n, seqs: 1 };
        let step = Step { kv_pages: PAGES, ..Step::new(dims) };
        BackendScheduler::default().execute(&self.plan, &mut self.alloc, &mut self.backends, step).unwrap();
        let result = self.plan.graph.outputs[0];
        let mut out = vec![0.0; n * self.plan.graph.node(result).shape.cols];
        self.alloc.read_f32(&self.plan, &mut self.backends, result, 0..n, &mut out).unwrap();
        assert!(out.iter().all(|x| x.is_finite()));
        out.into_iter().map(f32::to_bits).collect()
    }
}

/// The bytes of a weight, which may be some rows of a tensor.
fn bytes_of<'a>(file: &'a TinyModel, weight: &WeightSpec) -> &'a [u8] {
    let tensor = file.tensors.iter().find(|t| t.name == weight.tensor()).unwrap();
    let len = weight.bytes().unwrap() as usize;
    let start = weight.part.as_ref().map_or(0, |p| p.first_row * (len / weight.rows));
    &tensor.bytes[start..start + len]
}

/// R131: the reference interpreter agrees: the rewrites are right whatever a device makes of them.
#[test]
fn fused_models_equal_plain_ones_on_the_reference() {
    const { assert!(STEP < PAGES * PAGE) };
    for family in FAMILIES {
        let spec = TinySpec::new(family);
        let (file, model) = (spec.build().unwrap(), load(&on_disk(&spec.to_bytes().unwrap()), 1));
        let tokens = ids(STEP + 1, model.spec().n_vocab, 4);
        let both_steps = |fuse| {
            let mut on = OnReference::new(&file, model.spec(), fuse);
            [on.run(&tokens[..STEP], 0), on.run(&tokens[STEP..], STEP)]
        };
        let plain = both_steps(FusionSwitches::NONE);
        for (what, fuse) in switches() {
            assert!(both_steps(fuse) == plain, "{}: {what}", family.name);
        }
    }
}

/// What keeps the queries of some architectures out of `QkvRopeStore`.
const SCALED: &str = "q passes through PositionScale between RoPE and the attention (`blk.*.q_scaled`)";
const UNROTATED: &str = "q is not rotated: the layer has no RoPE";

/// Family, blocks, then the number of products with a bias, `SwiGlu`, `GeGlu`, `QkvRopeStore`, `GatedMatMul`,
/// `MatMulAdd` and `NormAdd` in the plan of a CPU, that of products which take in the norm of their input, and the one reason for which something is left alone. Biases of q, k and v are
/// within `QkvRopeStore`, those of experts in the experts' products, activations of dense blocks in `GatedMatMul`.
const FUSED: [(&str, usize, [usize; 8], Option<&str>); 21] = [
    ("llama", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("llama3-rope", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("qwen2", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("qwen3", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("qwen3moe", 3, [0, 3, 0, 3, 0, 3, 0, 3], None),
    ("mixtral", 3, [0, 3, 0, 3, 0, 3, 0, 3], None),
    ("gemma3", 7, [0, 0, 0, 7, 7, 0, 14, 14], None),
    ("gemma3-linear", 7, [0, 0, 0, 7, 7, 0, 14, 14], None),
    ("gemma2", 4, [0, 0, 0, 4, 4, 0, 8, 8], None),
    ("phi3", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("phi3-short", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("phi3-window", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("smollm3", 5, [0, 0, 0, 4, 5, 10, 0, 9], Some(UNROTATED)),
    ("granite", 4, [0, 0, 0, 4, 4, 0, 0, 8], None),
    ("olmo2", 4, [0, 0, 0, 4, 4, 0, 8, 0], None),
    ("olmo3", 4, [0, 0, 0, 4, 4, 0, 8, 0], None),
    ("mistral3", 4, [0, 0, 0, 0, 4, 8, 0, 4], Some(SCALED)),
    ("gpt-oss", 4, [4, 0, 0, 4, 0, 4, 0, 4], None),
    ("gpt-oss-ramp", 4, [4, 0, 0, 4, 0, 4, 0, 4], None),
    ("llama-linear", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
    ("llama-yarn", 4, [0, 0, 0, 4, 4, 8, 0, 8], None),
];

/// Fused ops that run, counted in the graph and not in the report.
fn fused_ops(plan: &Plan) -> [usize; 8] {
    let live = plan.graph.live();
    let mut counts = [0; 8];
    for node in plan.graph.nodes.iter().filter(|n| live[n.id] && decompose(&n.op).is_some()) {
        let at = match node.op {
            Op::MatMul { .. } => Fusion::MatMulBias,
            Op::SwiGlu => Fusion::SwiGlu,
            Op::GeGlu => Fusion::GeGlu,
            Op::QkvRopeStore(_) => Fusion::QkvRopeStore,
            Op::GatedMatMul(_) => Fusion::GatedMatMul,
            Op::MatMulAdd { .. } => Fusion::MatMulAdd,
            Op::NormAdd(_) => Fusion::NormAdd,
            _ => panic!("{} is in no column of the table", node.op.name()),
        };
        let norm = match node.op {
            Op::QkvRopeStore(f) => f.norm,
            Op::GatedMatMul(f) => f.norm,
            _ => None,
        };
        counts[7] += usize::from(norm.is_some());
        counts[Fusion::ALL.iter().position(|f| *f == at).unwrap()] += 1;
    }
    counts
}

/// R131: one fused op less or more than recorded, in any architecture, is a change that somebody has to see.
#[test]
fn fused_ops_are_as_recorded() {
    let mut found = Vec::new();
    for family in FAMILIES {
        let spec = TinySpec::new(family);
        let model = load(&on_disk(&spec.to_bytes().unwrap()), 1);
        let mut session = session(&model, FusionSwitches::default(), 16);
        let plan = session.plan(Stage::Full).unwrap();
        let counts = fused_ops(plan);
        let [_, swiglu, geglu, rest @ ..] = Fusion::ALL.map(|f| plan.fusions.count(f));
        let [_, swiglu_left, geglu_left, rest_left @ ..] = counts;
        assert_eq!(rest, rest_left, "{}", family.name);
        // Each gated product took one of these in.
        assert_eq!(swiglu + geglu, swiglu_left + geglu_left + rest[1], "{}", family.name);
        let reasons = fusion_groups(plan).into_iter().filter_map(|g| match g.fate {
            Fate::Refused(why) => Some(why),
            Fate::Fused { .. } => None,
        });
        found.push((family.name, spec.shape.n_layer, counts, reasons.collect::<Vec<_>>()));
    }
    assert_eq!(found.len(), FUSED.len());
    for (found, (name, blocks, counts, reason)) in found.iter().zip(FUSED) {
        let expected = (name, blocks, counts, reason.map(String::from).into_iter().collect());
        assert_eq!(*found, expected, "found {found:#?}");
    }
}
