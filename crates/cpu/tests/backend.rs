//! The device itself: buffers, host copies, captures, support, and whole graphs through the scheduler's types.

use minfer_cpu::{CpuBackend, CpuOptions, Isa};
use minfer_gguf::TensorType;
use minfer_graph::{
    ActPrecision, Attention, Backend, BackendError, BackendTag, BufferId, BufferSlice, Dim, GraphBuilder,
    InputKind, KvShape, Shape, WeightSpec,
};

#[test]
fn names_itself() {
    let backend = CpuBackend::new(CpuOptions { threads: Some(3), isa: Some(Isa::Scalar) });
    assert_eq!(backend.tag(), BackendTag::CPU);
    assert_eq!(backend.name(), "CPU (scalar, 3 threads)");
    assert_eq!(CpuBackend::new(CpuOptions { threads: Some(1), ..Default::default() }).threads(), 1);
    let rules = backend.buffer_rules();
    assert!(rules.in_place && rules.read_write_one_buffer && rules.alignment == 64);
    if cfg!(target_os = "linux") {
        assert!(backend.memory().total > Some(1 << 20));
    }
}

#[test]
fn host_copies_and_captures() {
    let mut backend = CpuBackend::new(CpuOptions::default());
    let buffer = backend.alloc_buffer(100).unwrap();
    let at = |offset, len| BufferSlice { buffer, offset, len };
    backend.write_host(at(10, 3), &[1, 2, 3]).unwrap();
    backend.capture(5, at(10, 3)).unwrap();
    backend.write_host(at(11, 1), &[9]).unwrap();
    let mut out = [0; 3];
    backend.read_host(at(10, 3), &mut out).unwrap();
    assert_eq!(out, [1, 9, 3]);
    backend.synchronize().unwrap();
    let captures = backend.drain_captures().unwrap();
    assert_eq!((captures.len(), captures[0].node, &captures[0].bytes[..]), (1, 5, &[1, 2, 3][..]));
    assert!(backend.drain_captures().unwrap().is_empty());
    let bad = [
        backend.write_host(at(10, 3), &[0; 4]),
        backend.write_host(at(98, 3), &[0; 3]),
        backend.read_host(at(0, 2), &mut out),
        backend.read_host(BufferSlice { buffer: BufferId(7), offset: 0, len: 3 }, &mut out),
        backend.capture(1, at(99, 2)),
    ];
    assert!(bad.iter().all(|r| matches!(r, Err(BackendError::BadBuffer(_)))), "{bad:?}");
    backend.free_buffer(buffer);
    assert!(backend.read_host(at(0, 3), &mut out).is_err());
    backend.free_buffer(buffer);
}

/// R80: the free list, and the way past it.
#[test]
fn a_freed_buffer_comes_back_only_through_the_free_list() {
    let mut backend = CpuBackend::new(CpuOptions::default());
    let first = backend.alloc_buffer(64).unwrap();
    backend.free_buffer(first);
    let fresh = backend.alloc_fresh(64).unwrap();
    let recycled = backend.alloc_buffer(64).unwrap();
    assert!(first != fresh && fresh != recycled && first != recycled);
    for buffer in [fresh, recycled] {
        backend.write_host(BufferSlice { buffer, offset: 0, len: 64 }, &[1; 64]).unwrap();
    }
    assert!(matches!(backend.alloc_fresh(usize::MAX), Err(BackendError::OutOfMemory(_))));
}

/// R51: what is not supported is said before it runs.
#[test]
fn supports_what_it_can_run() {
    let backend = CpuBackend::new(CpuOptions::default());
    let product_of = |ty| {
        let mut b = GraphBuilder::new();
        let w = b.weight(WeightSpec::new("w", ty, 4, 256));
        let x = b.input_value("x", Shape::new(Dim::Tokens, 256));
        let y = b.matmul("y", w, ActPrecision::Int8, x).unwrap();
        let graph = b.finish(0);
        backend.supports(&graph, graph.node(y)).and(backend.supports(&graph, graph.node(x)))
    };
    for &ty in TensorType::ALL {
        let supported = product_of(ty);
        assert_eq!(supported.is_ok(), ty.can_decode(), "{ty}");
        if let Err(reason) = supported {
            assert!(reason.to_string().contains(ty.name()) && reason.to_string().contains("`w`"));
        }
    }
    let kv = KvShape { layer: 0, n_kv_head: 1, head_dim: 8, v_dim: 0 };
    let mut b = GraphBuilder::new();
    let q = b.input_value("q", Shape::new(Dim::Tokens, 8));
    let v = b.input_value("v", Shape::new(Dim::Tokens, 0));
    let rows = b.input("rows", InputKind::KvRows { group: 0 }, 1);
    let load = b.kv_store_load("", kv, q, v, rows).unwrap();
    let extents = b.input("extents", InputKind::Extents, 3);
    let table = b.input("table", InputKind::PageTable { group: 0 }, 1);
    let op = Attention {
        layer: 0,
        n_head: 1,
        n_kv_head: 1,
        head_dim: 8,
        v_dim: 0,
        scale: 1.0,
        window: None,
        softcap: None,
        sinks: None,
    };
    let out = b.attention("out", op, q, load, extents, table).unwrap();
    let graph = b.finish(0);
    for node in [load - 1, load, out] {
        assert!(backend.supports(&graph, graph.node(node)).is_err());
    }
}

#[test]
fn backends_move_between_threads() {
    let mut backend = CpuBackend::new(CpuOptions { threads: Some(2), isa: None });
    let buffer = backend.alloc_buffer(4).unwrap();
    let slice = BufferSlice { buffer, offset: 0, len: 4 };
    let mut backend = std::thread::spawn(move || {
        backend.write_host(slice, &[1, 2, 3, 4]).unwrap();
        backend
    })
    .join()
    .unwrap();
    let mut out = [0; 4];
    backend.read_host(slice, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 4]);
}
