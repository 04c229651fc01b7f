//! The op cases on the reference itself, and on devices with mistakes that they must notice.

use minfer_graph::{
    ActPrecision, Backend, BackendError, BackendKind, BackendTag, BufferId, BufferRules, BufferSlice,
    Capture, DType, Graph, KvPair, MemoryInfo, Node, NodeCall, NodeId, Op, Unsupported, WeightSpec,
};
use minfer_testkit::cases::{CaseError, CaseRun};
use minfer_testkit::{ReferenceBackend, all_cases, check, error_cases, run_case};
use std::collections::HashSet;

fn reference() -> ReferenceBackend {
    ReferenceBackend::new(BackendTag::CPU)
}

/// R83: in place and apart, for every op that may.
#[test]
fn reference_passes_with_and_without_aliases() {
    let mut in_place = reference();
    let rules = BufferRules { in_place: false, alignment: 64, ..reference().buffer_rules() };
    let mut apart = reference().with_rules(rules);
    for case in all_cases() {
        let [a, b] = [&mut in_place, &mut apart]
            .map(|backend| run_case(&case, backend).unwrap_or_else(|e| panic!("{e}")));
        let bits = |run: &CaseRun| run.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&a), bits(&b), "{}", case.name);
        assert_eq!(a.kv, b.kv, "{}", case.name);
    }
    let case = all_cases().into_iter().find(|c| !c.kv.is_empty()).unwrap();
    assert!(check(&case, &mut apart).unwrap().outputs.same_bits());
}

#[test]
fn cases_cover_every_op_and_the_edges() {
    let cases = all_cases();
    let names: HashSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
    let ops: HashSet<&str> = cases.iter().flat_map(|c| &c.graph.nodes).map(|n| n.op.name()).collect();
    assert_eq!(ops.len(), 28, "{ops:?}");
    assert!(cases.iter().any(|c| c.dims.tokens == 1) && cases.iter().any(|c| c.dims.seqs > 1));
    let no_outputs = |c: &&minfer_testkit::OpCase| {
        c.dims.outputs == 0 && c.graph.nodes.iter().any(|n| n.op == Op::GatherRows)
    };
    assert!(cases.iter().any(|c| no_outputs(&c)));
    let aliased: HashSet<&str> =
        cases.iter().flat_map(|c| c.aliases.iter().map(|a| c.graph.node(a.0).op.name())).collect();
    assert_eq!(aliased.len(), 14, "{aliased:?}");
    // Unwritten KV slots are NaN, and no result shows it.
    for case in cases.iter().filter(|c| !c.kv.is_empty()) {
        let run = run_case(case, &mut reference()).unwrap();
        assert!(run.values.iter().all(|v| v.is_finite()), "{}", case.name);
    }
}

#[test]
fn bad_indices_are_errors() {
    for case in error_cases() {
        match run_case(&case, &mut reference()) {
            Err(CaseError::Backend { source: BackendError::OutOfRange { .. }, .. }) => {}
            other => panic!("{}: {other:?}", case.name),
        }
    }
}

/// How a device gets things wrong.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    /// Every output is off by a sixteenth.
    Values,
    /// The four bytes behind each output are written.
    Overrun,
    /// Attention's output is off, and nothing else.
    Attention,
    /// Rows of K go to the slot before.
    Slot,
    /// The first element of an unused page changes.
    StrayWrite,
    /// Outputs are not written.
    Lazy,
    /// The first source is written.
    Source,
    /// None: activations of quantised weights are rounded as the numeric contract says.
    Rounding,
}

/// Activations in blocks of 32 with 8 bits, or 16 in two planes.
fn rounded(x: &[f32], act: ActPrecision) -> Vec<f32> {
    let mut out = Vec::new();
    for block in x.chunks(32) {
        let amax = f32::from_bits(block.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
        let d = amax / 127.0;
        let plane = |v: f32, d: f32| (v / d).round_ties_even().clamp(-127.0, 127.0);
        out.extend(block.iter().map(|&v| match act {
            _ if d < f32::MIN_POSITIVE => 0.0,
            _ if !d.is_finite() => f32::NAN,
            ActPrecision::Int8 => d * plane(v, d),
            ActPrecision::Int16 => {
                let (q, d2) = (plane(v, d), d / 254.0);
                d.mul_add(q, d2 * plane((-d).mul_add(q, v), d2))
            }
        }));
    }
    out
}

/// The reference with a mistake.
struct Wrong {
    inner: ReferenceBackend,
    mistake: Mistake,
}

impl Wrong {
    fn change(&mut self, slice: BufferSlice, f: impl Fn(f32) -> f32) -> Result<(), BackendError> {
        let mut bytes = vec![0; slice.len];
        self.inner.read_host(slice, &mut bytes)?;
        for b in bytes.as_chunks_mut().0 {
            *b = f(f32::from_le_bytes(*b)).to_le_bytes();
        }
        self.inner.write_host(slice, &bytes)
    }
}

impl Backend for Wrong {
    fn tag(&self) -> BackendTag {
        BackendTag::new(BackendKind::Chaos, 0)
    }
    fn name(&self) -> String {
        "wrong".into()
    }
    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), Unsupported> {
        self.inner.supports(graph, node)
    }
    fn buffer_rules(&self) -> BufferRules {
        self.inner.buffer_rules()
    }
    fn memory(&self) -> MemoryInfo {
        self.inner.memory()
    }
    fn buffer_bytes(&self) -> usize {
        self.inner.buffer_bytes()
    }
    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.inner.alloc_buffer(bytes)
    }
    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.inner.alloc_fresh(bytes)
    }
    fn free_buffer(&mut self, buffer: BufferId) {
        self.inner.free_buffer(buffer);
    }
    fn load_weight(&mut self, spec: &WeightSpec, data: &[u8]) -> Result<(), BackendError> {
        self.inner.load_weight(spec, data)
    }
    fn copy_pages(&mut self, kv: KvPair, pages: &[(usize, usize)]) -> Result<(), BackendError> {
        self.inner.copy_pages(kv, pages)
    }
    fn write_host(&mut self, dst: BufferSlice, data: &[u8]) -> Result<(), BackendError> {
        self.inner.write_host(dst, data)
    }
    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read_host(src, out)
    }
    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let output = call.output;
        let stores = call.node.op.writes_kv();
        if self.mistake == Mistake::Lazy && !stores {
            return Ok(());
        }
        if let (Mistake::Slot, true) = (self.mistake, stores) {
            let rows = call.inputs[2];
            let mut bytes = vec![0; rows.len];
            self.inner.read_host(rows, &mut bytes)?;
            let before = bytes.clone();
            for b in bytes.as_chunks_mut().0 {
                *b = (i32::from_le_bytes(*b) ^ 1).to_le_bytes();
            }
            self.inner.write_host(rows, &bytes)?;
            self.inner.execute_node(call)?;
            return self.inner.write_host(rows, &before);
        }
        if let (Mistake::Rounding, Some(act)) = (self.mistake, rounded_activations(call)) {
            let mut before = vec![0; call.inputs[0].len];
            self.inner.read_host(call.inputs[0], &mut before)?;
            let x: Vec<f32> = before.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let x: Vec<u8> = rounded(&x, act).iter().flat_map(|v| v.to_le_bytes()).collect();
            self.inner.write_host(call.inputs[0], &x)?;
            self.inner.execute_node(call)?;
            return self.inner.write_host(call.inputs[0], &before);
        }
        self.inner.execute_node(call)?;
        match (self.mistake, call.kv) {
            (Mistake::Values, _) => self.change(output, |v| v * 1.0625),
            (Mistake::Attention, Some(_)) if !stores => self.change(output, |v| v * 1.05),
            (Mistake::Overrun, _) if output.len > 0 => self
                .inner
                .write_host(BufferSlice { offset: output.offset + output.len, len: 4, ..output }, &[0; 4]),
            (Mistake::Source, _) if call.inputs[0].len > 0 => self.change(call.inputs[0], |v| v + 1.0),
            (Mistake::StrayWrite, Some(kv)) if stores => {
                // One element of every page of V: at least one page is unused.
                let page = kv.v.len / kv.n_pages;
                for i in 0..kv.n_pages {
                    let offset = kv.v.offset + (i + 1) * page - 4;
                    self.inner.write_host(BufferSlice { offset, len: 4, ..kv.v }, &[0; 4])?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError> {
        self.inner.capture(node, src)
    }
    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        self.inner.drain_captures()
    }
    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.inner.synchronize()
    }
}

/// How a node rounds its first source, if it does.
fn rounded_activations(call: &NodeCall<'_>) -> Option<ActPrecision> {
    let (weight, act) = match call.node.op {
        Op::MatMul { weight, act, .. } | Op::MatMulAdd { weight, act, .. } => (weight, act),
        Op::GatedMatMul(f) => (f.gate, f.act),
        Op::QkvRopeStore(f) => (f.wq, f.act),
        _ => return None,
    };
    call.graph.weight(weight).ty.is_quantized().then_some(act)
}

#[test]
fn the_numeric_contract_stays_within_the_tolerances() {
    let mut failures = Vec::new();
    for case in all_cases() {
        let rounds = |op: &Op| {
            matches!(op, Op::MatMul { .. } | Op::MatMulAdd { .. } | Op::GatedMatMul(_) | Op::QkvRopeStore(_))
        };
        if case.graph.nodes.iter().any(|n| rounds(&n.op)) {
            let mut backend = Wrong { inner: reference(), mistake: Mistake::Rounding };
            failures.extend(check(&case, &mut backend).err().map(|e| e.to_string()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn mistakes_are_noticed() {
    // Every fourth case: the machinery is the same for all, and each runs sixteen times.
    for case in all_cases().into_iter().step_by(4) {
        let fails = |mistake| check(&case, &mut Wrong { inner: reference(), mistake }).is_err();
        let empty = case.graph.outputs.iter().all(|&o| case.graph.node(o).shape.len(case.dims) == 0);
        if empty {
            continue;
        }
        // A sixteenth of the bits of a small integer is nothing.
        let integers = case.graph.outputs.iter().all(|&o| case.graph.node(o).dtype == DType::I32);
        assert!(fails(Mistake::Values) || integers, "{}", case.name);
        assert!(fails(Mistake::Overrun), "{}", case.name);
        // Over its source, and even onto itself, a value that is already there looks right.
        assert!(fails(Mistake::Lazy) || !case.aliases.is_empty(), "{}", case.name);
        assert!(fails(Mistake::Source) || !case.aliases.is_empty(), "{}", case.name);
        if !case.kv.is_empty() {
            assert!(fails(Mistake::Attention), "{}", case.name);
            assert!(fails(Mistake::StrayWrite), "{}", case.name);
            assert!(fails(Mistake::Slot), "{}", case.name);
        }
    }
}

#[test]
fn refusals_are_reported() {
    let mut backend = reference().refuse("Silu", "no such kernel");
    let case = all_cases().into_iter().find(|c| c.name.starts_with("Silu")).unwrap();
    let error = check(&case, &mut backend).unwrap_err();
    assert!(matches!(&error, CaseError::Unsupported { reason, .. } if reason == "no such kernel"), "{error}");
}
