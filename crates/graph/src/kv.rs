//! KV regions: two per layer, on the backend that runs the layer's attention, kept between steps.

use crate::backend::{BackendTag, Backends, BufferSlice, KvPair};
use crate::error::GraphError;
use crate::kv_type::KvTypes;
use crate::op::KvShape;
use std::collections::BTreeMap;

/// One layer's regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvRegion {
    /// Shape they were made for.
    pub shape: KvShape,
    /// Backend that owns them.
    pub backend: BackendTag,
    /// The regions.
    pub pair: KvPair,
}

/// The KV cache's memory. It outlives plans and allocators; a change of its size is a new storage.
#[derive(Debug)]
pub struct KvStorage {
    layers: BTreeMap<usize, KvRegion>,
    n_pages: usize,
    ty: KvTypes,
}

impl KvStorage {
    /// Allocates `n_pages` pages for each layer. Their content is arbitrary: rows that were never
    /// written are never read.
    ///
    /// # Errors
    /// A region that the backend cannot bind, a missing backend, or no memory; what was allocated
    /// until then is given back.
    pub fn new(
        backends: &mut Backends,
        layers: &[(KvShape, BackendTag)],
        n_pages: usize,
        ty: impl Into<KvTypes>,
    ) -> Result<Self, GraphError> {
        let mut storage = KvStorage { layers: BTreeMap::new(), n_pages, ty: ty.into() };
        for &(shape, tag) in layers {
            if let Err(e) = storage.add(backends, shape, tag) {
                storage.free(backends);
                return Err(e);
            }
        }
        Ok(storage)
    }

    fn add(
        &mut self,
        backends: &mut Backends,
        shape: KvShape,
        backend: BackendTag,
    ) -> Result<(), GraphError> {
        if self.layers.contains_key(&shape.layer) {
            let reason = format!("layer {} is listed twice", shape.layer);
            return Err(GraphError::Internal { pass: "kv", reason });
        }
        let (k_page, v_page) = self.ty.page_bytes(&shape);
        let region = |backends: &mut Backends, bytes| region(backends, backend, shape.layer, bytes);
        let k = region(backends, self.n_pages * k_page)?;
        let v = match region(backends, self.n_pages * v_page) {
            Ok(v) => v,
            Err(e) => {
                backends.get_mut(backend)?.free_buffer(k.buffer);
                return Err(e);
            }
        };
        let pair = KvPair { k, v, ty: self.ty, n_pages: self.n_pages };
        self.layers.insert(shape.layer, KvRegion { shape, backend, pair });
        Ok(())
    }

    /// The layer's regions.
    pub fn pair(&self, layer: usize) -> Option<KvPair> {
        self.layers.get(&layer).map(|r| r.pair)
    }

    /// The layer's regions with their shape and backend.
    pub fn region(&self, layer: usize) -> Option<&KvRegion> {
        self.layers.get(&layer)
    }

    /// All regions, by layer.
    pub fn regions(&self) -> impl Iterator<Item = &KvRegion> {
        self.layers.values()
    }

    /// Pages per layer.
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Types of K and V.
    pub fn ty(&self) -> KvTypes {
        self.ty
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> usize {
        self.layers.values().map(|r| r.pair.k.len + r.pair.v.len).sum()
    }

    /// Gives all regions back. A backend that is gone took its memory along.
    pub fn free(&mut self, backends: &mut Backends) {
        for (_, region) in std::mem::take(&mut self.layers) {
            if let Ok(backend) = backends.get_mut(region.backend) {
                backend.free_buffer(region.pair.k.buffer);
                backend.free_buffer(region.pair.v.buffer);
            }
        }
    }
}

fn region(
    backends: &mut Backends,
    tag: BackendTag,
    layer: usize,
    len: usize,
) -> Result<BufferSlice, GraphError> {
    let backend = backends.get_mut(tag)?;
    let most = backend.buffer_rules().max_binding;
    if len > most {
        let reason = format!("a KV region of {len} bytes, {tag} binds at most {most}");
        return Err(GraphError::Capacity(reason));
    }
    let buffer = backend.alloc_buffer(len.max(4));
    let buffer = buffer.map_err(|e| e.allocating(tag, format_args!("the KV cache of layer {layer}")))?;
    Ok(BufferSlice { buffer, offset: 0, len })
}
