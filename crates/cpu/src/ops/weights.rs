//! Loaded weights: matrices packed for the matmul, vectors (norms, biases, rope factors) as f32.

use crate::matmul::{Arena, PackedWeight};
use crate::pool::Pool;
use minfer_gguf::decode_row;
use minfer_graph::room::with_room;
use minfer_graph::{BackendError, Graph, Unsupported, WeightBytes, WeightId, WeightSpec};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One weight.
enum Weight {
    /// Rows for products and row look-ups.
    Matrix(PackedWeight),
    /// One row: a vector. Should a product use it, it is packed then.
    Row { values: Vec<f32>, bytes: Vec<u8>, matrix: OnceLock<PackedWeight> },
}

/// The weights of a model by name.
#[derive(Default)]
pub struct Weights {
    list: Vec<(WeightSpec, Weight)>,
    /// Places in the list.
    by_name: HashMap<String, usize>,
    /// Where a weight of this number in its graph was found last: most likely it is there again, which is quicker to see
    /// than to look its name up for every node of every step.
    hints: Vec<AtomicUsize>,
    /// Where the matrices lie, in the order of their loading.
    arena: Arena,
}

impl Weights {
    /// Decodes a vector; packs a matrix, unless its bytes may be kept as they are. A second load under the same name replaces the first, whose memory stays taken.
    pub fn load(
        &mut self,
        spec: &WeightSpec,
        data: &dyn WeightBytes,
        pool: &Pool,
    ) -> Result<(), BackendError> {
        let bad = |reason: String| BackendError::BadWeight { name: spec.name.clone(), reason };
        let row_bytes = spec.ty.row_bytes(spec.cols);
        if row_bytes.and_then(|b| b.checked_mul(spec.rows)) != Some(data.len()) {
            let WeightSpec { ty, rows, cols, .. } = spec;
            return Err(bad(format!("{} bytes for [{rows}, {cols}] {ty}", data.len())));
        }
        check_vector(spec).map_err(|reason| bad(reason.to_string()))?;
        let weight = if spec.rows == 1 {
            let mut values = with_room(spec.cols)?;
            values.resize(spec.cols, 0.0);
            let bytes = data.to_vec()?;
            decode_row(spec.ty, &bytes, &mut values).map_err(|e| bad(e.to_string()))?;
            Weight::Row { values, bytes, matrix: OnceLock::new() }
        } else {
            Weight::Matrix(match data.shared() {
                Some(shared) => PackedWeight::native(spec, shared)?,
                None => PackedWeight::pack_in(spec, data, pool, &mut self.arena)?,
            })
        };
        let loaded = (spec.clone(), weight);
        match self.by_name.get(&spec.name) {
            Some(&place) => self.list[place] = loaded,
            None => {
                self.by_name.insert(spec.name.clone(), self.list.len());
                self.list.push(loaded);
                self.hints.push(AtomicUsize::new(usize::MAX));
            }
        }
        Ok(())
    }

    fn get(&self, graph: &Graph, id: WeightId) -> Result<&Weight, BackendError> {
        let spec = graph.weight(id);
        let hint = self.hints.get(id.0);
        let near = hint.and_then(|hint| self.list.get(hint.load(Ordering::Relaxed)));
        if let Some((_, weight)) = near.filter(|(loaded, _)| loaded == spec) {
            return Ok(weight);
        }
        let place = self.by_name.get(&spec.name);
        let &place = place.ok_or_else(|| BackendError::WeightMissing(spec.name.clone()))?;
        let (loaded, weight) = &self.list[place];
        if loaded == spec {
            if let Some(hint) = hint {
                hint.store(place, Ordering::Relaxed);
            }
            return Ok(weight);
        }
        let reason = format!("loaded as {loaded:?}, used as {spec:?}");
        Err(BackendError::BadWeight { name: spec.name.clone(), reason })
    }

    /// A vector's values.
    pub fn vector(&self, graph: &Graph, id: WeightId) -> Result<&[f32], BackendError> {
        match self.get(graph, id)? {
            Weight::Row { values, .. } => Ok(values),
            Weight::Matrix(_) => {
                let name = graph.weight(id).name.clone();
                Err(BackendError::BadWeight { name, reason: "is no vector".into() })
            }
        }
    }

    /// A matrix.
    pub fn matrix(&self, graph: &Graph, id: WeightId, pool: &Pool) -> Result<&PackedWeight, BackendError> {
        match self.get(graph, id)? {
            Weight::Matrix(matrix) => Ok(matrix),
            Weight::Row { bytes, matrix, .. } => match matrix.get() {
                Some(matrix) => Ok(matrix),
                None => {
                    let packed = PackedWeight::pack(graph.weight(id), bytes, pool)?;
                    Ok(matrix.get_or_init(|| packed))
                }
            },
        }
    }
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
