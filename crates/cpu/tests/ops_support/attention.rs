//! Attention cases: a cache with scattered pages and NaN wherever nothing may be read.

use super::cache::{hadamard, region, rounded};
use super::contract::{Scores, attention, attention_f64, visible};
use super::{Bench, Random, dims, f32_weight};
use minfer_cpu::CpuOptions;
use minfer_graph::{Attention, Dim, Graph, GraphBuilder, InputKind, KvShape, KvTypes, PAGE, Shape, WeightId};

/// What to compute. Sequences are (position of the first query, queries).
#[derive(Clone, Debug)]
pub struct Case {
    pub n_head: usize,
    pub n_kv_head: usize,
    pub head_dim: usize,
    pub v_dim: usize,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    /// Whether there is a sink per head.
    pub sinks: bool,
    pub ty: KvTypes,
    pub sequences: Vec<(usize, usize)>,
}

impl Case {
    fn op(&self, sinks: Option<WeightId>) -> Attention {
        let Case { n_head, n_kv_head, head_dim, v_dim, window, softcap, .. } = *self;
        let scale = 1.0 / (head_dim as f32).sqrt();
        Attention { layer: 0, n_head, n_kv_head, head_dim, v_dim, scale, window, softcap, sinks }
    }

    pub fn kv(&self) -> KvShape {
        let Case { n_kv_head, head_dim, v_dim, .. } = *self;
        KvShape { layer: 0, n_kv_head, head_dim, v_dim }
    }

    pub fn tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.1).sum()
    }

    fn pages(&self) -> usize {
        self.sequences.iter().map(|(start, len)| (start + len).div_ceil(PAGE)).sum()
    }

    fn table_width(&self) -> usize {
        1 + self.sequences.iter().map(|(start, len)| (start + len).div_ceil(PAGE)).max().unwrap_or(0)
    }

    /// Nodes: q, k, v, kv rows, store, load, extents, table, attention.
    pub fn graph(&self) -> Graph {
        let kv = self.kv();
        let mut b = GraphBuilder::new();
        let q = b.input_value("q", Shape::new(Dim::Tokens, self.n_head * self.head_dim));
        let k = b.input_value("k", Shape::new(Dim::Tokens, kv.n_kv_head * kv.head_dim));
        let v = b.input_value("v", Shape::new(Dim::Tokens, kv.n_kv_head * kv.v_dim));
        let rows = b.input("kv_rows", InputKind::KvRows { group: 0 }, 1);
        let load = b.kv_store_load("", kv, k, v, rows).unwrap();
        let extents = b.input("extents", InputKind::Extents, 3);
        let table = b.input("table", InputKind::PageTable { group: 0 }, self.table_width());
        let sinks = self.sinks.then(|| f32_weight(&mut b, "sinks", 1, self.n_head));
        let out = b.attention("attention", self.op(sinks), q, load, extents, table).unwrap();
        b.output(out);
        b.finish(0)
    }
}

/// A case with its values, ready to run.
pub struct Setup {
    pub case: Case,
    pub bench: Bench,
    q: Vec<f32>,
    sinks: Vec<f32>,
    /// Per sequence: `[pos][kv_head * dim]`; once they are placed, as the cache type keeps them.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// First batch row of each sequence.
    first: Vec<usize>,
}

pub const Q: usize = 0;
pub const EXTENTS: usize = 6;
pub const TABLE: usize = 7;
pub const ATTENTION: usize = 8;

impl Setup {
    pub fn new(case: &Case, seed: u64, options: CpuOptions) -> Setup {
        let mut random = Random::new(seed);
        let mut bench = Bench::new(case.graph(), dims(case.tokens(), case.sequences.len()), options);
        let q: Vec<f32> = random.values(case.tokens() * case.n_head * case.head_dim);
        let q: Vec<f32> = q.iter().map(|x| x * 3.0).collect();
        let mut values = |dim: usize| -> Vec<Vec<f32>> {
            let of = |&(start, len): &(usize, usize)| random.values((start + len) * case.n_kv_head * dim);
            case.sequences.iter().map(of).collect()
        };
        let (k, v) = (values(case.head_dim), values(case.v_dim));
        // The last sequence comes first in the batch.
        let mut first = vec![0; case.sequences.len()];
        let mut row = 0;
        for (i, s) in case.sequences.iter().enumerate().rev() {
            first[i] = row;
            row += s.1;
        }
        bench.set_f32(Q, &q);
        // Some above, some below the scores.
        let sinks: Vec<f32> = random.values(case.n_head).iter().map(|x| x * 6.0).collect();
        if case.sinks {
            bench.load("sinks", &sinks);
        }
        let mut setup = Setup { case: case.clone(), bench, q, sinks, k, v, first };
        setup.place(&mut random);
        // Only now: where scales are subnormal, rounding what is rounded already changes it once more.
        setup.k.iter_mut().for_each(|k| *k = rounded(case.ty.k, case.head_dim, k));
        setup.v.iter_mut().for_each(|v| *v = rounded(case.ty.v, case.v_dim, v));
        setup
    }

    /// Scatters the sequences over the pages of a poisoned cache.
    fn place(&mut self, random: &mut Random) {
        let case = self.case.clone();
        let n_pages = case.pages() + 2;
        let physical = random.shuffled(n_pages);
        let mut next = physical.into_iter();
        let (k_page, v_page) = (case.n_kv_head * case.head_dim * PAGE, case.n_kv_head * case.v_dim * PAGE);
        let mut k = vec![f32::NAN; n_pages * k_page];
        let mut v = vec![f32::NAN; n_pages * v_page];
        let (mut extents, mut tables) = (Vec::new(), Vec::new());
        for (i, &(start, len)) in case.sequences.iter().enumerate() {
            extents.extend([self.first[i] as i32, len as i32, start as i32]);
            let first = visible(start, case.window).start;
            let mut table = vec![-1; case.table_width()];
            for position in first..start + len {
                let logical = position / PAGE;
                if table[logical] < 0 {
                    table[logical] = next.next().unwrap() as i32;
                }
                let (page, slot) = (table[logical] as usize, position % PAGE);
                for h in 0..case.n_kv_head {
                    for d in 0..case.head_dim {
                        let x = self.k[i][(position * case.n_kv_head + h) * case.head_dim + d];
                        k[page * k_page + (h * case.head_dim + d) * PAGE + slot] = x;
                    }
                    for d in 0..case.v_dim {
                        let x = self.v[i][(position * case.n_kv_head + h) * case.v_dim + d];
                        v[page * v_page + (h * PAGE + slot) * case.v_dim + d] = x;
                    }
                }
            }
            tables.extend(table);
        }
        self.bench.set_i32(EXTENTS, &extents);
        self.bench.set_i32(TABLE, &tables);
        self.bench.kv = Some(region(&mut self.bench, &case.kv(), case.ty, n_pages, &k, &v));
    }

    pub fn run(&mut self) -> Vec<f32> {
        self.bench.run(ATTENTION).unwrap();
        self.bench.get(ATTENTION)
    }

    /// The contract's value.
    pub fn reference(&self) -> Vec<f32> {
        self.each_head(|q, rule, range, k, v| attention(q, self.case.v_dim, rule, range, k, v))
    }

    /// The value in f64.
    pub fn reference_f64(&self) -> Vec<f64> {
        self.each_head(|q, rule, range, k, v| attention_f64(q, self.case.v_dim, rule, range, k, v))
    }

    fn each_head<T: Clone + Default>(
        &self,
        f: impl Fn(
            &[f32],
            Scores,
            std::ops::Range<usize>,
            &dyn Fn(usize, usize) -> f32,
            &dyn Fn(usize, usize) -> f32,
        ) -> Vec<T>,
    ) -> Vec<T> {
        let c = &self.case;
        let mut out = vec![T::default(); c.tokens() * c.n_head * c.v_dim];
        for (i, &(start, len)) in c.sequences.iter().enumerate() {
            for t in 0..len {
                for h in 0..c.n_head {
                    let kv_head = h * c.n_kv_head / c.n_head;
                    let k = |p: usize, d: usize| self.k[i][(p * c.n_kv_head + kv_head) * c.head_dim + d];
                    let v = |p: usize, d: usize| self.v[i][(p * c.n_kv_head + kv_head) * c.v_dim + d];
                    let head = (self.first[i] + t) * c.n_head + h;
                    let q = &self.q[head * c.head_dim..][..c.head_dim];
                    let q = &hadamard(c.ty.k, q, c.head_dim, true);
                    let sink = c.sinks.then(|| self.sinks[h]);
                    let rule = Scores { scale: c.op(None).scale, softcap: c.softcap, sink };
                    let result = f(q, rule, visible(start + t, c.window), &k, &v);
                    out[head * c.v_dim..][..c.v_dim].clone_from_slice(&result);
                }
            }
        }
        out
    }
}
