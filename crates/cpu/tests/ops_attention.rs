//! Attention against the contract (bit for bit) and against a softmax in f64.

mod ops_support;

use minfer_cpu::{CpuOptions, Isa};
use minfer_graph::{Backend, BackendError, KvType};
use ops_support::attention::{ATTENTION, Case, EXTENTS, Q, Setup, TABLE};
use ops_support::cache::TYPES;
use ops_support::{all_options, assert_close, assert_same};

fn case(heads: (usize, usize), head_dim: usize, sequences: &[(usize, usize)]) -> Case {
    Case {
        n_head: heads.0,
        n_kv_head: heads.1,
        head_dim,
        v_dim: head_dim,
        window: None,
        softcap: None,
        sinks: false,
        ty: KvType::F16.into(),
        sequences: sequences.to_vec(),
    }
}

/// Compares the best instruction set on two threads with both references.
#[track_caller]
fn check(case: &Case, seed: u64) {
    let what = format!("{case:?}");
    let options = CpuOptions { threads: Some(2), isa: None };
    let mut setup = Setup::new(case, seed, options);
    let got = setup.run();
    assert_same(&got, &setup.reference(), &what);
    assert_close(&got, &setup.reference_f64(), 1e-5, &what);
}

/// R135: sizes of heads, and heads that share keys and values.
#[test]
fn head_sizes_and_groups() {
    for (i, head_dim) in [16, 32, 64, 80, 96, 128, 256, 20, 8].into_iter().enumerate() {
        for (j, group) in [1, 2, 3, 7].into_iter().enumerate() {
            let ty = TYPES[(i + j) % TYPES.len()];
            let sequences = [(61, 7), (0, 3)];
            check(&Case { ty, ..case((2 * group, 2), head_dim, &sequences) }, (10 * i + j) as u64);
        }
    }
    for ty in TYPES {
        check(&Case { v_dim: 24, ty, ..case((6, 3), 40, &[(100, 5)]) }, 5);
        check(&Case { v_dim: 128, ty, ..case((4, 2), 192, &[(3, 66)]) }, 6);
        check(&Case { v_dim: 33, ty, ..case((4, 2), 31, &[(3, 66)]) }, 7);
    }
}

/// R135: contexts around the ends of pages.
#[test]
fn contexts() {
    for context in [1, 63, 64, 65, 127, 128, 129, 130, 400] {
        check(&case((4, 2), 32, &[(context - 1, 1)]), context as u64);
        check(&case((7, 1), 16, &[(0, context)]), 1000 + context as u64);
    }
}

#[test]
fn windows() {
    for window in [1, 2, 5, 63, 64, 65, 128, 200, usize::MAX] {
        for sequences in [vec![(0, 150)], vec![(130, 1), (63, 4), (64, 1)], vec![(190, 30)]] {
            for ty in [KvType::F16, KvType::Q8_0] {
                let case = Case { ty: ty.into(), window: Some(window), ..case((6, 2), 16, &sequences) };
                check(&case, window as u64);
            }
        }
    }
}

#[test]
fn long_contexts() {
    for (i, window) in [None, Some(1), Some(100), Some(4096), Some(12_800)].into_iter().enumerate() {
        for ty in [KvType::F16, KvType::Q8_0] {
            let sequences = [(12_797, 6), (9, 1)];
            check(&Case { ty: ty.into(), window, ..case((2, 1), 16, &sequences) }, i as u64);
        }
    }
}

#[test]
fn softcaps() {
    for (i, softcap) in [0.5, 2.0, 50.0, 1e6].into_iter().enumerate() {
        for sequences in [vec![(0, 70)], vec![(130, 1), (63, 4), (64, 1)], vec![(900, 2)]] {
            check(&Case { softcap: Some(softcap), ..case((6, 2), 16, &sequences) }, i as u64);
        }
    }
}

#[test]
fn sinks() {
    for window in [None, Some(1), Some(70)] {
        for (i, sequences) in
            [vec![(0, 70)], vec![(130, 1), (0, 4), (64, 1)], vec![(900, 2)]].into_iter().enumerate()
        {
            let case = Case { sinks: true, window, ..case((8, 2), 16, &sequences) };
            check(&case, i as u64);
            check(&Case { softcap: Some(1.5), ..case }, i as u64);
        }
    }
}

#[test]
fn many_sequences_share_a_batch() {
    check(&case((4, 2), 32, &[(0, 1), (200, 1), (63, 2), (5, 70), (64, 64), (127, 1)]), 77);
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    // Long decode (cut by pages), prefill, a mix, and a window.
    let cases = [
        case((6, 2), 24, &[(1500, 1)]),
        case((3, 1), 32, &[(700, 2), (900, 1)]),
        case((14, 2), 64, &[(0, 100)]),
        Case { window: Some(300), ..case((3, 3), 16, &[(900, 40)]) },
        Case { ty: KvType::Q8_0.into(), ..case((6, 2), 40, &[(1500, 1), (3, 1)]) },
        Case { ty: KvType::Q8_0.into(), window: Some(70), ..case((2, 1), 64, &[(0, 130)]) },
        Case { sinks: true, softcap: Some(3.0), ..case((8, 2), 24, &[(1500, 1), (3, 1)]) },
    ];
    for (i, case) in cases.iter().enumerate() {
        let mut want = None;
        for options in all_options() {
            let mut setup = Setup::new(case, i as u64, options);
            let want = want.get_or_insert_with(|| setup.reference());
            assert_same(&setup.run(), want, &format!("{case:?} with {options:?}"));
        }
    }
}

#[test]
fn large_scores_and_nan() {
    let case = case((2, 2), 16, &[(100, 3)]);
    for (threads, value) in [(1, f32::NAN), (2, f32::INFINITY)] {
        let options = CpuOptions { threads: Some(threads), isa: None };
        let mut setup = Setup::new(&case, 3, options);
        let want = setup.reference();
        let mut q = setup.bench.get(Q);
        q[16] = value;
        setup.bench.set_f32(Q, &q);
        let got = setup.run();
        // Only the second head of the first query is affected.
        assert!(got[16..32].iter().all(|x| x.is_nan()));
        assert_same(&got[32..], &want[32..], "others");
        assert_same(&got[..16], &want[..16], "others");
    }
    // Scores of some thousand: exponentials underflow to 0 and nothing overflows.
    let mut setup = Setup::new(&case, 3, CpuOptions::default());
    let q: Vec<f32> = setup.bench.get(Q).iter().map(|x| x * 1e4).collect();
    setup.bench.set_f32(Q, &q);
    assert!(setup.run().iter().all(|x| x.abs() <= 1.0));
}

/// R48, R89: extents and pages outside the region.
#[test]
fn bad_extents_and_tables_are_errors() {
    let case = case((2, 1), 16, &[(100, 3), (0, 2)]);
    let mut setup = Setup::new(&case, 9, CpuOptions { threads: Some(1), isa: Some(Isa::Scalar) });
    let bench = &mut setup.bench;
    let good = [2, 3, 100, 0, 2, 0];
    let mut table = vec![0i32; bench.slices[TABLE].len / 4];
    bench.backend.read_host(bench.slices[TABLE], bytemuck::cast_slice_mut(&mut table)).unwrap();
    bench.set_i32(EXTENTS, &good);
    bench.run(ATTENTION).unwrap();
    let out_of_range = [
        [2, 4, 100, 0, 2, 0],
        [6, 3, 100, 0, 2, 0],
        [-1, 3, 100, 0, 2, 0],
        [2, -3, 100, 0, 2, 0],
        [2, 3, -1, 0, 2, 0],
        [2, 3, 190, 0, 2, 0],
        [2, 3, i32::MAX, 0, 2, 0],
    ];
    for extents in out_of_range {
        bench.set_i32(EXTENTS, &extents);
        let result = bench.run(ATTENTION);
        assert!(matches!(result, Err(BackendError::OutOfRange { .. })), "{extents:?}: {result:?}");
    }
    for extents in [[1, 3, 100, 0, 2, 0], [2, 3, 100, 0, 1, 0], [2, 0, 0, 0, 2, 0]] {
        bench.set_i32(EXTENTS, &extents);
        assert!(matches!(bench.run(ATTENTION), Err(BackendError::Device(_))), "{extents:?}");
    }
    bench.set_i32(EXTENTS, &good);
    for page in [-1, 99] {
        let mut bad = table.clone();
        bad[1] = page;
        bench.set_i32(TABLE, &bad);
        assert!(matches!(bench.run(ATTENTION), Err(BackendError::OutOfRange { .. })));
    }
    bench.set_i32(TABLE, &table);
    bench.run(ATTENTION).unwrap();
    let kv = bench.kv.take();
    assert!(matches!(bench.run(ATTENTION), Err(BackendError::BadBuffer(_))));
    bench.kv = kv.map(|kv| minfer_graph::KvPair { n_pages: kv.n_pages + 1, ..kv });
    assert!(matches!(bench.run(ATTENTION), Err(BackendError::BadBuffer(_))));
}

#[test]
fn an_empty_batch_is_legal() {
    let case = case((2, 1), 16, &[(100, 3)]);
    let mut setup = Setup::new(&case, 2, CpuOptions { threads: Some(2), isa: None });
    setup.bench.resize(ops_support::dims(0, 0));
    setup.bench.run(ATTENTION).unwrap();
    // A sequence without tokens reads nothing, whatever its table says.
    setup.bench.resize(ops_support::dims(0, 1));
    setup.bench.set_i32(EXTENTS, &[0, 0, 0]);
    let width = setup.bench.slices[TABLE].len / 4;
    setup.bench.set_i32(TABLE, &vec![-1; width]);
    setup.bench.run(ATTENTION).unwrap();
}
