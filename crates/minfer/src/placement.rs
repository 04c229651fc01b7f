//! Which device runs which block: what is asked for ([`Placement`]) and what comes of it for a model ([`Layout`]).

use crate::devices::{self, DEVICE_KINDS, DeviceChoice};
use crate::error::Error;
use crate::file::ModelFile;
use crate::memory::device_memory;
use crate::session::SessionOptions;
use minfer_graph::{
    BackendTag, Backends, Graph, GraphError, KvShape, Node, Op, PAGE, Plan, PlanOptions, StepDims,
    WeightSpec, plan,
};
use minfer_models::{GraphParams, ModelSpec, Stage, build_graph};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How many blocks the offload devices take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit their free memory; all, where a device does not tell.
    #[default]
    Auto,
    /// The last so many; more than there are means all.
    Count(usize),
    /// All of them.
    All,
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(GpuLayers::Auto),
            "all" | "-1" => Ok(GpuLayers::All),
            _ => {
                s.parse().map(GpuLayers::Count).map_err(|_| "a whole number from 0, all (-1) or auto".into())
            }
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.write_str("auto"),
            GpuLayers::Count(n) => write!(f, "{n}"),
            GpuLayers::All => f.write_str("all"),
        }
    }
}

/// What is asked for: offload devices and how much of a model they take. The default is the CPU alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Offload devices, in the order of the blocks that they take; or the CPU, or [`DeviceChoice::Auto`], alone.
    pub devices: Vec<DeviceChoice>,
    /// Blocks for them; [`GpuLayers::Auto`] if absent. Without an offload device there can be none.
    pub gpu_layers: Option<GpuLayers>,
}

impl Placement {
    /// Some blocks on some devices.
    pub fn new(devices: impl Into<Vec<DeviceChoice>>, gpu_layers: GpuLayers) -> Self {
        Placement { devices: devices.into(), gpu_layers: Some(gpu_layers) }
    }

    /// The devices besides the CPU.
    fn offload(&self) -> Result<&[DeviceChoice], Error> {
        let mut tags: Vec<BackendTag> = self.devices.iter().map(|d| d.tag()).collect();
        if let [] | [BackendTag::CPU] = tags.as_slice() {
            return match self.gpu_layers {
                None | Some(GpuLayers::Auto | GpuLayers::Count(0)) => Ok(&[]),
                Some(layers) => Err(Error::input(no_device(layers))),
            };
        }
        if tags.contains(&BackendTag::CPU) {
            let message = "--device: the cpu takes what the others leave; auto or cpu can only stand alone";
            return Err(Error::input(message));
        }
        tags.sort_unstable();
        match tags.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::input(format!("--device names {} twice", pair[0]))),
            None => Ok(&self.devices),
        }
    }

    /// The layout for a model and the sessions that are meant, which decide how much fits.
    ///
    /// # Errors
    /// Devices that contradict each other, one that is not there, or not a model that can be run.
    pub fn resolve(&self, file: &ModelFile, options: &SessionOptions) -> Result<Layout, Error> {
        let devices = self.offload()?;
        if devices.is_empty() {
            return Ok(Layout::default());
        }
        let spec = file.spec()?;
        let backends = devices::open(devices, Some(1))?;
        let mut free = Vec::new();
        for device in devices {
            free.push(backends.get(device.tag())?.memory().free);
        }
        let n_blocks = spec.layers.len();
        let layout = |n: usize| Layout::new(n_blocks, devices, &divide(n, &free));
        match self.gpu_layers.unwrap_or_default() {
            GpuLayers::Count(n) => Ok(layout(n.min(n_blocks))),
            GpuLayers::All => Ok(layout(n_blocks)),
            GpuLayers::Auto if free.iter().all(Option::is_none) => Ok(layout(n_blocks)),
            GpuLayers::Auto => {
                options.check(&spec)?;
                most_that_fits(n_blocks, &mut |n| {
                    let layout = layout(n);
                    let (_, memory) = device_memory(&spec, options, &layout, &backends)?;
                    Ok(memory.iter().all(|m| m.device == BackendTag::CPU || m.fits()))
                })
                .map(layout)
            }
        }
    }
}

/// Why blocks cannot go to devices of which none is named.
fn no_device(layers: GpuLayers) -> String {
    let none = if DEVICE_KINDS == ["cpu"] {
        "; there is none in this build (`minfer devices` lists what there is)"
    } else {
        ""
    };
    format!("--gpu-layers {layers} needs a device that takes blocks: name one with --device{none}")
}

/// The largest number up to `n` for which `fits` holds, if it holds for all smaller ones; 0 always counts as fitting.
fn most_that_fits(n: usize, fits: &mut dyn FnMut(usize) -> Result<bool, Error>) -> Result<usize, Error> {
    let (mut yes, mut no) = (0, n + 1);
    while no - yes > 1 {
        // All of them are asked for first: they often fit.
        let middle = if no > n { n } else { (yes + no) / 2 };
        if fits(middle)? { yes = middle } else { no = middle }
    }
    Ok(yes)
}

/// Shares of `n` blocks in proportion to free memory, or even ones where a device does not tell.
fn divide(n: usize, free: &[Option<u64>]) -> Vec<usize> {
    let known: Option<Vec<u128>> = free.iter().map(|f| f.map(u128::from)).collect();
    let weights = known.filter(|w| w.iter().sum::<u128>() > 0).unwrap_or(vec![1; free.len()]);
    let total: u128 = weights.iter().sum();
    let (mut sum, mut before) = (0, 0);
    let mut share = |weight: &u128| {
        sum += weight;
        // Rounded to the nearest, so that the last cut is at n; `n` is far below 2^64, and so is each weight.
        let cut = ((2 * sum * n as u128 + total) / (2 * total)) as usize;
        let share = cut - before;
        before = cut;
        share
    };
    weights.iter().map(&mut share).collect()
}

/// A device's contiguous blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The device.
    pub device: DeviceChoice,
    /// Its blocks; perhaps none.
    pub blocks: Range<usize>,
}

/// Which device runs which block of a model. The default, the CPU alone, is one for every model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    n_blocks: usize,
    shares: Vec<Share>,
}

impl Layout {
    /// The last blocks, `counts` for each device one after the other.
    fn new(n_blocks: usize, devices: &[DeviceChoice], counts: &[usize]) -> Self {
        let mut start = n_blocks - counts.iter().sum::<usize>();
        let mut share = |(&device, &n): (&DeviceChoice, &usize)| {
            let blocks = start..start + n;
            start += n;
            Share { device, blocks }
        };
        Layout { n_blocks, shares: devices.iter().zip(counts).map(&mut share).collect() }
    }

    /// The offload devices with their blocks, in the order of the blocks.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The CPU and the offload devices.
    pub fn tags(&self) -> impl Iterator<Item = BackendTag> {
        [BackendTag::CPU].into_iter().chain(self.shares.iter().map(|s| s.device.tag()))
    }

    /// Blocks that are not on the CPU.
    pub fn n_offloaded(&self) -> usize {
        self.shares.iter().map(|s| s.blocks.len()).sum()
    }

    /// The device of a node's block, as [`minfer_graph::Node::block`] numbers them. What follows the last block is on
    /// its device if no block is on the CPU; what comes before the first one is on the CPU.
    pub fn device_of(&self, block: Option<usize>) -> BackendTag {
        let Some(block) = block.filter(|_| !self.shares.is_empty()) else { return BackendTag::CPU };
        let block = if block == self.n_blocks && self.n_offloaded() == block {
            block.saturating_sub(1)
        } else {
            block
        };
        let share = self.shares.iter().find(|s| s.blocks.contains(&block));
        share.map_or(BackendTag::CPU, |s| s.device.tag())
    }

    /// What a device runs, for people: `blocks 15..30, head`.
    pub fn describe(&self, tag: BackendTag) -> String {
        let mut parts = Vec::new();
        let mut blocks = (0..self.n_blocks).filter(|&b| self.device_of(Some(b)) == tag);
        if let Some(first) = blocks.next() {
            parts.push(format!("blocks {first}..{}", blocks.next_back().unwrap_or(first) + 1));
        }
        if tag == BackendTag::CPU {
            parts.insert(0, "embedding".into());
        }
        if self.device_of(Some(self.n_blocks)) == tag {
            parts.push("head".into());
        }
        if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
    }

    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), Error> {
        let (mine, its) = (self.n_blocks, spec.layers.len());
        if self.shares.is_empty() || mine == its {
            return Ok(());
        }
        Err(Error::input(format!("the layout is for a model of {mine} blocks, this one has {its}")))
    }

    /// The CPU and the offload devices.
    pub(crate) fn open(&self, threads: Option<usize>) -> Result<Backends, Error> {
        let devices: Vec<DeviceChoice> = self.shares.iter().map(|s| s.device).collect();
        devices::open(&devices, threads)
    }

    /// Plans a graph with every block on its device.
    pub(crate) fn plan(
        &self,
        graph: Graph,
        backends: &Backends,
        options: PlanOptions<'_>,
    ) -> Result<Plan, GraphError> {
        let hint = |node: &Node| Some(self.device_of(node.block));
        plan(graph, backends, &PlanOptions { placement: Some(&hint), ..options })
    }

    /// Where everything of a model goes that outlives a plan.
    pub(crate) fn homes(&self, spec: &ModelSpec, backends: &Backends) -> Result<Homes, Error> {
        let short = smallest_graph(spec, 1)?;
        let long = smallest_graph(spec, spec.n_ctx_train)?;
        // Some models read other tensors in long contexts than in short ones.
        let long = (long.weights != short.weights).then_some(long);
        let plan = |graph| self.plan(graph, backends, PlanOptions::new(SMALLEST));
        let short = plan(short)?;
        let mut weights = Vec::new();
        for planned in [Some(&short), long.map(plan).transpose()?.as_ref()].into_iter().flatten() {
            add_weights(&planned.graph, &mut weights);
        }
        let loads = short.graph.nodes.iter().filter_map(|n| match n.op {
            Op::KvLoad(shape) => n.backend.map(|tag| (shape, tag)),
            _ => None,
        });
        Ok(Homes {
            weights,
            kv_layers: loads.collect(),
            n_refused: short.refusals.iter().filter(|r| r.backend != BackendTag::CPU).count(),
        })
    }
}

/// Where the parts of a model go, in sessions of any context.
pub(crate) struct Homes {
    /// Each weight with the devices of the nodes that read it, in the order of their execution.
    pub weights: Vec<(WeightSpec, Vec<BackendTag>)>,
    /// Each KV layer's shape with the device that its attention runs on.
    pub kv_layers: Vec<(KvShape, BackendTag)>,
    /// Nodes that are elsewhere than their block, because its device has no kernel for them.
    pub n_refused: usize,
}

/// The step by which it is found out where things go.
const SMALLEST: StepDims = StepDims { tokens: 1, outputs: 1, seqs: 1 };

fn smallest_graph(spec: &ModelSpec, n_ctx: usize) -> Result<Graph, GraphError> {
    let params = GraphParams { stage: Stage::Full, capacity: SMALLEST, max_pages: n_ctx.div_ceil(PAGE) };
    build_graph(spec, &params, 0)
}

/// Adds the weights that live nodes read, with the devices of these.
fn add_weights(graph: &Graph, weights: &mut Vec<(WeightSpec, Vec<BackendTag>)>) {
    let live = graph.live();
    let mut known: HashMap<String, usize> =
        weights.iter().enumerate().map(|(i, (weight, _))| (weight.name.clone(), i)).collect();
    for node in graph.nodes.iter().filter(|n| live[n.id]) {
        for weight in node.op.weights().map(|w| graph.weight(w)) {
            let at = *known.entry(weight.name.clone()).or_insert_with(|| {
                weights.push((weight.clone(), Vec::new()));
                weights.len() - 1
            });
            let (_, list) = &mut weights[at];
            list.extend(node.backend.filter(|t| !list.contains(t)));
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.tags().map(|tag| format!("{tag}: {}", self.describe(tag))).collect();
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceChoice = DeviceChoice::Chaos { index: 0, kib: None };
    const B: DeviceChoice = DeviceChoice::Chaos { index: 1, kib: None };

    #[test]
    fn blocks_are_divided_by_free_memory() {
        assert_eq!(divide(10, &[None, Some(5)]), [5, 5]);
        assert_eq!(divide(5, &[None, None]), [3, 2]);
        assert_eq!(divide(10, &[Some(1), Some(4)]), [2, 8]);
        assert_eq!(divide(7, &[Some(u64::MAX), Some(u64::MAX), Some(0)]), [4, 3, 0]);
        assert_eq!(divide(3, &[Some(0), Some(0)]), [2, 1]);
        for n in 0..40 {
            for free in [[3, 5, 9], [1, 1, 1], [0, 7, 1000]] {
                assert_eq!(divide(n, &free.map(Some)).iter().sum::<usize>(), n);
            }
        }
    }

    #[test]
    fn the_most_that_fits_is_found() {
        for n in 0..20 {
            for limit in 0..=n {
                let mut asked = 0;
                let found = most_that_fits(n, &mut |x| {
                    asked += 1;
                    Ok(x <= limit)
                });
                assert_eq!(found.unwrap(), limit);
                assert!(asked <= 6);
            }
        }
    }

    #[test]
    fn the_head_follows_the_last_block_only_if_all_are_offloaded() {
        let (a, b, cpu) = (A.tag(), B.tag(), BackendTag::CPU);
        let some = Layout::new(4, &[A, B], &[1, 2]);
        let of = |layout: &Layout| {
            [None, Some(0), Some(1), Some(2), Some(3), Some(4)].map(|i| layout.device_of(i))
        };
        assert_eq!(of(&some), [cpu, cpu, a, b, b, cpu]);
        assert_eq!(of(&Layout::new(4, &[A, B], &[2, 2])), [cpu, a, a, b, b, b]);
        assert_eq!(of(&Layout::new(4, &[A, B], &[4, 0])), [cpu, a, a, a, a, a]);
        assert_eq!(of(&Layout::new(4, &[A], &[0])), [cpu; 6]);
        assert_eq!(of(&Layout::default()), [cpu; 6]);
        assert_eq!(
            some.to_string(),
            "cpu: embedding, blocks 0..1, head; chaos:0: blocks 1..2; chaos:1: blocks 2..4"
        );
        assert_eq!(Layout::new(4, &[A], &[0]).describe(a), "nothing");
    }

    #[test]
    fn requests_that_contradict_themselves_are_refused() {
        let refused = |devices: &[DeviceChoice], layers| {
            let placement = Placement { devices: devices.to_vec(), gpu_layers: layers };
            placement.offload().unwrap_err().to_string()
        };
        let three = Some(GpuLayers::Count(3));
        for devices in [&[][..], &[DeviceChoice::Auto], &[DeviceChoice::Cpu]] {
            let message = refused(devices, three);
            assert!(message.contains("--gpu-layers 3") && message.contains("--device"), "{message}");
        }
        assert!(refused(&[A, DeviceChoice::Cpu], None).contains("cpu"));
        assert!(refused(&[A, B, A], None).contains("chaos:0 twice"));
        for layers in [None, Some(GpuLayers::Auto), Some(GpuLayers::Count(0))] {
            let placement = Placement { devices: vec![], gpu_layers: layers };
            assert_eq!(placement.offload().unwrap(), []);
        }
        assert!(refused(&[], Some(GpuLayers::All)).contains("--gpu-layers all needs a device"));
        assert_eq!("99".parse(), Ok(GpuLayers::Count(99)));
        assert_eq!(("-1".parse(), "all".parse()), (Ok(GpuLayers::All), Ok(GpuLayers::All)));
        assert!("-2".parse::<GpuLayers>().is_err() && "some".parse::<GpuLayers>().is_err());
    }
}
