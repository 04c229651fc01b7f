//! Loaded weights: matrices packed for the matmul, vectors (norms, biases, rope factors) as f32.

use crate::matmul::PackedWeight;
use crate::pool::Pool;
use minfer_gguf::decode_row;
use minfer_graph::{BackendError, Graph, Unsupported, WeightId, WeightSpec};
use std::collections::HashMap;

/// One weight. A weight of one row may be used as a vector, as a matrix, or both.
struct Weight {
    spec: WeightSpec,
    vector: Option<Vec<f32>>,
    matrix: Option<PackedWeight>,
}

/// The weights of a model by name.
#[derive(Default)]
pub struct Weights {
    map: HashMap<String, Weight>,
}

impl Weights {
    /// Decodes and packs a weight; a second load under the same name replaces the first.
    pub fn load(&mut self, spec: &WeightSpec, data: &[u8], pool: &Pool) -> Result<(), BackendError> {
        let bad = |reason: String| BackendError::BadWeight { name: spec.name.clone(), reason };
        let row_bytes = spec.ty.row_bytes(spec.cols);
        if row_bytes.and_then(|b| b.checked_mul(spec.rows)) != Some(data.len()) {
            let WeightSpec { ty, rows, cols, .. } = spec;
            return Err(bad(format!("{} bytes for [{rows}, {cols}] {ty}", data.len())));
        }
        if !spec.ty.can_decode() {
            return Err(bad(format!("{} is not supported", spec.ty)));
        }
        let mut vector = None;
        if spec.rows == 1 {
            let mut values = vec![0.0; spec.cols];
            decode_row(spec.ty, data, &mut values).map_err(|e| bad(e.to_string()))?;
            vector = Some(values);
        }
        let matrix = match check_matrix(spec) {
            Ok(()) => Some(PackedWeight::pack(spec, data, pool)?),
            Err(_) if vector.is_some() => None,
            Err(reason) => return Err(bad(reason.to_string())),
        };
        self.map.insert(spec.name.clone(), Weight { spec: spec.clone(), vector, matrix });
        Ok(())
    }

    fn get(&self, graph: &Graph, id: WeightId) -> Result<&Weight, BackendError> {
        let spec = graph.weight(id);
        let weight =
            self.map.get(&spec.name).ok_or_else(|| BackendError::WeightMissing(spec.name.clone()))?;
        if weight.spec == *spec {
            return Ok(weight);
        }
        let reason = format!("loaded as {:?}, used as {spec:?}", weight.spec);
        Err(BackendError::BadWeight { name: spec.name.clone(), reason })
    }

    /// A vector's values.
    pub fn vector(&self, graph: &Graph, id: WeightId) -> Result<&[f32], BackendError> {
        self.get(graph, id)?.vector.as_deref().ok_or_else(|| not_a(graph, id, "vector"))
    }

    /// A matrix.
    pub fn matrix(&self, graph: &Graph, id: WeightId) -> Result<&PackedWeight, BackendError> {
        self.get(graph, id)?.matrix.as_ref().ok_or_else(|| not_a(graph, id, "matrix"))
    }
}

fn not_a(graph: &Graph, id: WeightId, what: &str) -> BackendError {
    BackendError::BadWeight { name: graph.weight(id).name.clone(), reason: format!("is no {what}") }
}

/// Whether the matmul can pack a weight.
pub fn check_matrix(spec: &WeightSpec) -> Result<(), Unsupported> {
    if PackedWeight::supports(spec.ty) {
        return Ok(());
    }
    Err(Unsupported(format!("no kernel for the {} weight `{}`", spec.ty, spec.name)))
}

/// Whether a weight can be decoded as a vector.
pub fn check_vector(spec: &WeightSpec) -> Result<(), Unsupported> {
    if spec.ty.can_decode() {
        return Ok(());
    }
    Err(Unsupported(format!("can't read the {} weight `{}`", spec.ty, spec.name)))
}
