//! Running a case on a backend: every value in a buffer of its own between guard bytes, outputs full
//! of NaN before they are written, inputs compared with themselves afterwards.

use super::{KvContent, OpCase, Tolerance};
use crate::ReferenceBackend;
use crate::compare::Diff;
use crate::reference::kv::{HeadRow, Side};
use minfer_graph::{
    Backend, BackendError, BackendTag, BufferId, BufferSlice, KvPair, NodeCall, NodeId, NodeRef, PAGE,
};

/// Bytes behind each value that nobody may change.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;
/// Fill of outputs: NaN as f32 and f16.
const POISON: u8 = 0xff;

/// Why a case failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The backend does not take a node. The caller decides whether that is a failure.
    #[error("{case}: {node} is not supported: {reason}")]
    Unsupported {
        /// Name of the case.
        case: String,
        /// The node.
        node: NodeRef,
        /// The backend's reason.
        reason: String,
    },
    /// The backend failed.
    #[error("{case}: {at}: {source}")]
    Backend {
        /// Name of the case.
        case: String,
        /// What was being done.
        at: String,
        /// What the backend said.
        source: BackendError,
    },
    /// Bytes changed that the step must not write.
    #[error("{case}: {what} changed at byte {at}")]
    Overwritten {
        /// Name of the case.
        case: String,
        /// Which range.
        what: String,
        /// First changed byte of the range.
        at: usize,
    },
    /// The result is not the reference's.
    #[error("{case}: {what}: {diff}, allowed is {tolerance:?}")]
    Mismatch {
        /// Name of the case.
        case: String,
        /// Which values.
        what: String,
        /// How they differ.
        diff: Box<Diff>,
        /// What was allowed.
        tolerance: Tolerance,
    },
}

/// What a backend made of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseRun {
    /// The outputs, one after another in the graph's order.
    pub values: Vec<f32>,
    /// The KV regions of each layer of the case, `[K, V]`.
    pub kv: Vec<[Vec<u8>; 2]>,
}

/// How close a passed case came.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the case.
    pub name: String,
    /// Difference of the outputs.
    pub outputs: Diff,
}

/// Runs a case on a backend and on a fresh reference, and compares outputs and KV regions.
pub fn check(case: &OpCase, backend: &mut dyn Backend) -> Result<Report, CaseError> {
    let expected = run_case(case, &mut ReferenceBackend::new(BackendTag::CPU))?;
    let actual = run_case(case, backend)?;
    let outputs = compare(case, "outputs", &expected.values, &actual.values, case.tolerance)?;
    for (i, content) in case.kv.iter().enumerate() {
        let sides = Side::both(&content.shape, content.ty);
        for (s, before) in [&content.k, &content.v].into_iter().enumerate() {
            let what = format!("{} of layer {}", ["K", "V"][s], content.shape.layer);
            let runs = [before, &expected.kv[i][s], &actual.kv[i][s]];
            compare_kv(case, &what, content, &sides[s], runs.map(Vec::as_slice))?;
        }
    }
    Ok(Report { name: case.name.clone(), outputs })
}

fn compare(
    case: &OpCase,
    what: &str,
    expected: &[f32],
    actual: &[f32],
    tolerance: Tolerance,
) -> Result<Diff, CaseError> {
    let diff = Diff::new(expected, actual);
    let ok = match tolerance {
        Tolerance::Bits => diff.same_bits(),
        Tolerance::Nmse(limit) => diff.nmse <= limit,
    };
    if ok {
        return Ok(diff);
    }
    Err(CaseError::Mismatch { case: case.name.clone(), what: what.into(), diff: Box::new(diff), tolerance })
}

/// Rows that the reference left alone must keep their bits; the others are compared as values.
fn compare_kv(
    case: &OpCase,
    what: &str,
    content: &KvContent,
    side: &Side,
    [before, expected, actual]: [&[u8]; 3],
) -> Result<(), CaseError> {
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    for i in 0..content.n_pages * content.shape.n_kv_head * PAGE {
        let (page, i) = (i / (content.shape.n_kv_head * PAGE), i % (content.shape.n_kv_head * PAGE));
        let row = HeadRow { page, head: i / PAGE, slot: i % PAGE };
        let (values, scales) = side.ranges(row);
        let changed = |bytes: &[u8]| {
            values
                .iter()
                .chain(&scales)
                .find(|r| bytes[(*r).clone()] != before[(*r).clone()])
                .map(|r| r.start)
        };
        if changed(expected).is_some() {
            wanted.extend(side.get(expected, row));
            found.extend(side.get(actual, row));
        } else if let Some(at) = changed(actual) {
            return Err(CaseError::Overwritten { case: case.name.clone(), what: what.into(), at });
        }
    }
    compare(case, what, &wanted, &found, case.kv_tolerance).map(drop)
}

/// Runs a case on a backend.
pub fn run_case(case: &OpCase, backend: &mut dyn Backend) -> Result<CaseRun, CaseError> {
    let mut run = Run { case, backend, slices: Vec::new(), kv: Vec::new(), owned: Vec::new() };
    let result = run.run();
    for buffer in std::mem::take(&mut run.owned) {
        run.backend.free_buffer(buffer);
    }
    result
}

struct Run<'a> {
    case: &'a OpCase,
    backend: &'a mut dyn Backend,
    /// By node.
    slices: Vec<BufferSlice>,
    /// By layer of the case.
    kv: Vec<KvPair>,
    owned: Vec<BufferId>,
}

impl Run<'_> {
    fn failed(&self, at: &str) -> impl FnOnce(BackendError) -> CaseError + use<> {
        let (case, at) = (self.case.name.clone(), at.to_string());
        move |source| CaseError::Backend { case, at, source }
    }

    fn run(&mut self) -> Result<CaseRun, CaseError> {
        self.check_support()?;
        for (spec, bytes) in &self.case.weights {
            self.backend.load_weight(spec, bytes).map_err(self.failed("load_weight"))?;
        }
        for content in &self.case.kv {
            let k = self.place(&content.k)?;
            let v = self.place(&content.v)?;
            self.kv.push(KvPair { k, v, ty: content.ty, n_pages: content.n_pages });
        }
        self.place_nodes()?;
        self.execute()?;
        self.backend.synchronize().map_err(self.failed("synchronize"))?;
        self.collect()
    }

    fn check_support(&self) -> Result<(), CaseError> {
        for node in self.case.graph.nodes.iter().filter(|n| !n.is_input()) {
            self.backend.supports(&self.case.graph, node).map_err(|e| CaseError::Unsupported {
                case: self.case.name.clone(),
                node: node.reference(),
                reason: e.0,
            })?;
        }
        Ok(())
    }

    /// A range with guards around it and this content.
    fn place(&mut self, content: &[u8]) -> Result<BufferSlice, CaseError> {
        let lead = self.backend.buffer_rules().alignment.max(4);
        let mut bytes = vec![GUARD_BYTE; lead + content.len() + GUARD];
        bytes[lead..lead + content.len()].copy_from_slice(content);
        let buffer = self.backend.alloc_buffer(bytes.len()).map_err(self.failed("alloc_buffer"))?;
        self.owned.push(buffer);
        let whole = BufferSlice { buffer, offset: 0, len: bytes.len() };
        self.backend.write_host(whole, &bytes).map_err(self.failed("write_host"))?;
        Ok(BufferSlice { buffer, offset: lead, len: content.len() })
    }

    fn place_nodes(&mut self) -> Result<(), CaseError> {
        let in_place = self.backend.buffer_rules().in_place;
        for node in &self.case.graph.nodes {
            let alias = self.case.aliases.iter().find(|a| a.0 == node.id).filter(|_| in_place);
            let input = self.case.inputs.iter().find(|i| i.0 == node.id);
            let slice = match (alias, input) {
                (Some(&(_, source)), _) => self.slices[node.src[source]],
                (None, Some((_, bytes))) => self.place(bytes)?,
                (None, None) => {
                    self.place(&vec![POISON; node.shape.len(self.case.dims) * node.dtype.bytes()])?
                }
            };
            self.slices.push(slice);
        }
        Ok(())
    }

    fn execute(&mut self) -> Result<(), CaseError> {
        let graph = &self.case.graph;
        for node in graph.nodes.iter().filter(|n| !n.is_input()) {
            let inputs: Vec<BufferSlice> = node.src.iter().map(|&s| self.slices[s]).collect();
            let layer = node.op.kv_layer();
            let kv = self.case.kv.iter().position(|c| Some(c.shape.layer) == layer).map(|i| self.kv[i]);
            let (output, dims) = (self.slices[node.id], self.case.dims);
            let call = NodeCall { graph, node, inputs: &inputs, output, kv, dims };
            let at = node.reference().to_string();
            self.backend.execute_node(&call).map_err(self.failed(&at))?;
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<CaseRun, CaseError> {
        let graph = &self.case.graph;
        let mut values = Vec::new();
        for node in &graph.nodes {
            let bytes = self.read_guarded(self.slices[node.id], &node.name)?;
            if graph.outputs.contains(&node.id) {
                values.push((node.id, bytes));
            } else if let Some((_, before)) = self.case.inputs.iter().find(|i| i.0 == node.id)
                && !self.is_aliased(node.id)
                && let Some(at) = (0..before.len()).find(|&i| before[i] != bytes[i])
            {
                return Err(self.overwritten(&format!("input {}", node.name), at));
            }
        }
        let values: Vec<f32> = graph
            .outputs
            .iter()
            .filter_map(|id| values.iter().find(|v| v.0 == *id))
            .flat_map(|(_, bytes)| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)))
            .collect();
        let mut kv = Vec::new();
        for pair in self.kv.clone() {
            kv.push([self.read_guarded(pair.k, "K region")?, self.read_guarded(pair.v, "V region")?]);
        }
        Ok(CaseRun { values, kv })
    }

    /// Whether some node may have written over a node's values.
    fn is_aliased(&self, id: NodeId) -> bool {
        self.case.aliases.iter().any(|&(node, source)| self.case.graph.node(node).src[source] == id)
    }

    fn overwritten(&self, what: &str, at: usize) -> CaseError {
        CaseError::Overwritten { case: self.case.name.clone(), what: what.into(), at }
    }

    /// A range's bytes, its guards checked.
    fn read_guarded(&mut self, slice: BufferSlice, what: &str) -> Result<Vec<u8>, CaseError> {
        let end = slice.offset + slice.len;
        let whole = BufferSlice { buffer: slice.buffer, offset: 0, len: end + GUARD };
        let mut bytes = vec![0; whole.len];
        self.backend.read_host(whole, &mut bytes).map_err(self.failed("read_host"))?;
        let broken = |i: &usize| bytes[*i] != GUARD_BYTE;
        if let Some(at) = (0..slice.offset).chain(end..whole.len).find(broken) {
            return Err(self.overwritten(&format!("guard around {what}"), at));
        }
        Ok(bytes[slice.offset..end].to_vec())
    }
}
