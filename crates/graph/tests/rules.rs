//! Rules of the schedule seen from the devices: what they are told, in which order, and what nobody does to them.

use minfer_graph::*;
use minfer_testkit::ReferenceBackend;
use minfer_testkit::rng::Rng;
use minfer_testkit::schedule::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What a device was told.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Alloc,
    Fresh,
    Write,
    Read,
    Node { id: NodeId, inputs: Vec<BufferSlice>, output: BufferSlice, kv: Option<KvPair> },
    Capture(NodeId),
    Sync,
    Drain,
}

/// What all devices were told, one after the other.
type Log = Arc<Mutex<Vec<(BackendTag, Told)>>>;

/// A device that writes down what it is told.
struct Spy {
    inner: Box<dyn Backend>,
    log: Log,
}

impl Spy {
    fn new(inner: impl Backend + 'static, log: &Log) -> Self {
        Spy { inner: Box::new(inner), log: Arc::clone(log) }
    }

    fn note(&self, told: Told) {
        self.log.lock().unwrap().push((self.inner.tag(), told));
    }
}

impl Backend for Spy {
    fn tag(&self) -> BackendTag {
        self.inner.tag()
    }
    fn name(&self) -> String {
        self.inner.name()
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
        self.note(Told::Alloc);
        self.inner.alloc_buffer(bytes)
    }
    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.note(Told::Fresh);
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
        self.note(Told::Write);
        self.inner.write_host(dst, data)
    }
    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        self.note(Told::Read);
        self.inner.read_host(src, out)
    }
    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let (inputs, output, kv) = (call.inputs.to_vec(), call.output, call.kv);
        self.note(Told::Node { id: call.node.id, inputs, output, kv });
        self.inner.execute_node(call)
    }
    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError> {
        self.note(Told::Capture(node));
        self.inner.capture(node, src)
    }
    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        self.note(Told::Drain);
        self.inner.drain_captures()
    }
    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.note(Told::Sync);
        self.inner.synchronize()
    }
}

/// A host and two devices that compute at once, all of them watched.
fn watched() -> (Backends, Log) {
    let log = Log::default();
    let spies = [GPU, GPU1, CPU].map(|tag| Box::new(Spy::new(reference(tag), &log)) as Box<dyn Backend>);
    (devices(spies.into()), log)
}

fn take(log: &Log) -> Vec<(BackendTag, Told)> {
    std::mem::take(&mut log.lock().unwrap())
}

fn nodes_of(log: &[(BackendTag, Told)]) -> Vec<(BackendTag, NodeId)> {
    let node = |(tag, told): &(BackendTag, Told)| match told {
        Told::Node { id, .. } => Some((*tag, *id)),
        _ => None,
    };
    log.iter().filter_map(node).collect()
}

fn random_place(seed: u64) -> impl Fn(&Node) -> Option<BackendTag> {
    move |node| [None, Some(GPU), Some(GPU1), Some(CPU)][Rng::labelled(seed, &node.name).below(4)]
}

/// Live nodes that are no inputs, with their devices.
fn running(plan: &Plan) -> Vec<(BackendTag, NodeId)> {
    let live = plan.graph.live();
    let nodes = plan.graph.nodes.iter().filter(|n| live[n.id] && !n.is_input());
    nodes.map(|n| (n.backend.unwrap(), n.id)).collect()
}

/// R10, R69, R70: devices are handed every live node once, in node order over all of them, no input
/// and no dead node. The graphs have nodes whose sources come early, which a Kahn sort would move.
#[test]
fn nodes_are_handed_over_in_node_order() {
    let mut moved = 0;
    for seed in 0..40 {
        let (backends, log) = watched();
        let place = random_place(seed);
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(3, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), backends, &opts).unwrap();
        take(&log);
        rig.run(seed, 0, dims(3, 2, 1)).unwrap();
        assert_eq!(nodes_of(&take(&log)), running(&rig.plan), "seed {seed}");
        moved += usize::from(!topo_order(&rig.plan.graph).unwrap().is_sorted());
    }
    assert!(moved > 30, "{moved} graphs have two orders");
}

/// R20, R22: a device that queues hands its nodes on in the order in which it got them, and not before
/// it is waited for. On `Chaos`.
#[test]
fn a_device_runs_in_the_order_of_its_queue() {
    for seed in 0..20 {
        let log = Log::default();
        let gpus = [GPU, GPU1].map(|tag| Chaos::new(Spy::new(reference(tag), &log), tag));
        let handles = gpus.each_ref().map(Chaos::handle);
        let list = gpus.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Backend>);
        let place = move |node: &Node| [Some(GPU), Some(GPU1)][Rng::labelled(seed, &node.name).below(2)];
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(3, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), devices(list.collect()), &opts).unwrap();
        take(&log);
        // A step that is stopped before anything is waited for runs nothing.
        rig.fill(seed, 0, dims(3, 2, 1)).unwrap();
        handles.iter().for_each(|h| h.inject(Some(Fault { kind: FaultKind::Node, at: 1 })));
        rig.execute(Step::new(dims(3, 2, 1))).unwrap_err();
        assert_eq!(nodes_of(&take(&log)), []);
        assert!(handles.iter().any(|h| h.stats().queued > 0));
        handles.iter().for_each(|h| h.inject(None));
        rig.run(seed, 0, dims(3, 2, 1)).unwrap();
        assert_eq!(nodes_of(&take(&log)), running(&rig.plan), "seed {seed}");
    }
}

/// R11, R12: a source comes before its consumer, in the builder, in a plan, and in what is executed.
#[test]
fn sources_come_first() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    assert!(b.silu("early", x + 1).is_err(), "its source would be itself");
    let s = b.silu("s", x).unwrap();
    let y = b.add("y", s, x).unwrap();
    b.output(y);
    let graph = b.finish(0);
    let opts = PlanOptions::new(dims(1, 1, 1));
    let mut forward = graph.clone();
    forward.nodes[s].src = vec![y];
    assert!(matches!(plan(forward.clone(), &one(), &opts), Err(GraphError::Internal { .. })));
    let error = topo_order(&forward).unwrap_err();
    assert!(error.to_string().contains("cycle through node 1 `s`"), "{error}");
    let mut rig = Rig::new(&graph, one(), &opts).unwrap();
    assert_eq!(topo_order(&rig.plan.graph).unwrap(), [x, s, y]);
    if cfg!(debug_assertions) {
        rig.fill(0, 0, dims(1, 0, 1)).unwrap();
        rig.plan.graph.nodes[s].src = vec![y];
        let execute = std::panic::AssertUnwindSafe(|| rig.execute(Step::new(dims(1, 0, 1))));
        assert!(std::panic::catch_unwind(execute).is_err(), "a debug build notices the cycle");
    }
}

/// R13: attention reads the cache through a load, which reads the store of its layer; fusions keep that.
#[test]
fn attention_reads_a_load_behind_the_store() {
    let mut seen = 0;
    for seed in 0..40 {
        for fuse in [FusionSwitches::NONE, FusionSwitches::default()] {
            let opts = PlanOptions { fuse, ..PlanOptions::new(dims(2, 2, 1)) };
            let p = plan(random_graph(seed).unwrap(), &one(), &opts).unwrap();
            for attention in p.graph.nodes.iter().filter(|n| matches!(n.op, Op::Attention(_))) {
                let sources = attention.src.iter().map(|&s| p.graph.node(s));
                let loads: Vec<&Node> = sources.filter(|n| n.op.name() == "KvLoad").collect();
                let [load] = loads[..] else { panic!("{} loads", loads.len()) };
                let store = p.graph.node(load.src[0]);
                assert!(store.op.writes_kv() && store.op.kv_layer() == attention.op.kv_layer());
                assert!(store.id < load.id && load.id < attention.id);
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
    let mut b = GraphBuilder::new();
    let i = attention_inputs(&mut b);
    let x = value_input(&mut b, "x");
    attention_block(&mut b, i, 0, false, x).unwrap();
    let mut graph = b.finish(0);
    let attention = graph.nodes.len() - 1;
    let store = graph.find("blk.0.kv_store").unwrap();
    graph.nodes[attention].src[1] = store;
    assert!(verify(&graph).is_err(), "attention past the load");
}

/// R17: a fusion moves a source of another device into the fused node; splits, their inputs and the
/// copies follow what the nodes read in the end.
#[test]
fn splits_follow_the_final_sources() {
    let mut b = GraphBuilder::new();
    let (x, y) = (value_input(&mut b, "x"), value_input(&mut b, "y"));
    let gate = b.silu("gate", x).unwrap();
    let aside = b.add("aside", x, y).unwrap();
    let product = b.mul("product", gate, y).unwrap();
    let end = b.add("end", product, aside).unwrap();
    b.output(end);
    for (node, tag) in [(gate, GPU), (aside, CPU), (product, GPU), (end, CPU)] {
        b.pin(node, tag);
    }
    let graph = b.finish(0);
    let splits = |fuse| {
        let (backends, _) = host_and_gpu(chaos(GPU));
        let p =
            plan(graph.clone(), &backends, &PlanOptions { fuse, ..PlanOptions::new(dims(2, 2, 1)) }).unwrap();
        let splits = p.splits.iter().map(|s| (s.backend, s.inputs.clone(), s.outputs.clone()));
        (splits.collect::<Vec<_>>(), copies(&p.schedule).collect::<Vec<_>>())
    };
    let (plain, _) = splits(FusionSwitches::NONE);
    assert_eq!(plain.iter().map(|s| s.0).collect::<Vec<_>>(), [GPU, CPU, GPU, CPU]);
    let (fused, copied) = splits(FusionSwitches::default());
    let expected =
        [(CPU, vec![x], vec![]), (GPU, vec![y], vec![product]), (CPU, vec![product, aside], vec![])];
    assert_eq!(fused, expected);
    assert_eq!(copied, [(x, CPU), (y, GPU), (product, CPU)]);
}

/// R21, R24, R27: every device is handed each of its splits once, in one submission, and waited for
/// once. On `Chaos`.
#[test]
fn a_split_is_one_submission() {
    for seed in 0..30 {
        let gpus = [chaos(GPU), chaos(GPU1), chaos(CPU)];
        let handles = gpus.each_ref().map(Chaos::handle);
        let list = gpus.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Backend>);
        let place = random_place(seed);
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(3, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), devices(list.collect()), &opts).unwrap();
        for run in 1..=2 {
            rig.run(seed, 0, dims(3, 2, 1)).unwrap();
            for (handle, tag) in handles.iter().zip([GPU, GPU1, CPU]) {
                let splits = run * rig.plan.splits.iter().filter(|s| s.backend == tag).count() as u64;
                let s = handle.stats();
                assert_eq!((s.submits, s.syncs, s.violations), (splits, splits, 0), "seed {seed} {tag}");
            }
        }
    }
}

/// R35: on one device there is one split, nothing is copied, and it is waited for once, at the end.
#[test]
fn one_device_has_one_split() {
    for seed in 0..20 {
        for deferred in [false, true] {
            let gpu = chaos(GPU);
            let handle = gpu.handle();
            let device: Box<dyn Backend> = if deferred { Box::new(gpu) } else { Box::new(reference(CPU)) };
            let opts = PlanOptions::new(dims(3, 2, 1));
            let mut rig = Rig::new(&random_graph(seed).unwrap(), devices(vec![device]), &opts).unwrap();
            let [split] = &rig.plan.splits[..] else { panic!("{:?}", rig.plan.splits) };
            assert!(
                split.inputs.is_empty() && split.outputs.is_empty() && rig.plan.memory.staging.is_empty()
            );
            rig.run(seed, 0, dims(3, 2, 1)).unwrap();
            let c = rig.scheduler.counters;
            assert_eq!((c.splits, c.copies, c.syncs), (1, 0, 1));
            assert_eq!(handle.stats().submits, u64::from(deferred));
        }
    }
}

/// R34, R40–R43, R46, R105: the whole protocol of the chapter's example with captures, device by device. Host
/// data goes over before a split, the wait, the captures and the way back come behind it.
#[test]
fn the_protocol_in_order() {
    let (backends, log) = watched();
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(2, 2, 1))).unwrap();
    for seed in 0..3 {
        rig.fill(seed, 0, dims(2, 0, 1)).unwrap();
        take(&log);
        let mut seen = Vec::new();
        let mut sink = |n: &Node, _: StepDims, _: &[u8]| seen.push((n.id, log.lock().unwrap().len()));
        rig.execute(Step { capture: Some(&mut sink), ..Step::new(dims(2, 0, 1)) }).unwrap();
        let told: Vec<(BackendTag, Told)> = take(&log)
            .into_iter()
            .map(|(tag, told)| match told {
                // Their buffers are another test's matter.
                Told::Node { id, output, .. } => (
                    tag,
                    Told::Node { id, inputs: vec![], output: BufferSlice { len: 0, ..output }, kv: None },
                ),
                other => (tag, other),
            })
            .collect();
        let node = |id: NodeId| {
            let (_, buffer) = rig.alloc.node_buffer(id).unwrap();
            Told::Node { id, inputs: vec![], output: BufferSlice { len: 0, ..buffer }, kv: None }
        };
        let expected = [
            // Split 0 holds only the input.
            vec![(CPU, Told::Drain)],
            vec![(CPU, Told::Read), (GPU, Told::Write)],
            vec![(GPU, node(1)), (GPU, Told::Capture(1)), (GPU, Told::Sync), (GPU, Told::Drain)],
            vec![(GPU, Told::Read), (CPU, Told::Write)],
            vec![(CPU, node(2)), (CPU, Told::Capture(2)), (CPU, Told::Sync), (CPU, Told::Drain)],
        ];
        assert_eq!(told, expected.concat());
        // The input at the first drain, each node at the drain of its split.
        assert_eq!(seen, [(0, 1), (1, 7), (2, 13)]);
    }
}

/// R72–R76: a node is handed its sources' buffers one by one: the copy staged for its device where
/// the source is elsewhere, else the source's own; its own buffer; and the KV regions of its layer if
/// its op touches them.
#[test]
fn nodes_are_handed_their_buffers() {
    let (mut staged, mut with_kv) = (0, 0);
    for seed in 0..40 {
        let (backends, log) = watched();
        let place = random_place(seed);
        let step = dims(3, 2, 1);
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(4, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), backends, &opts).unwrap();
        take(&log);
        rig.run(seed, 0, step).unwrap();
        let graph = &rig.plan.graph;
        let cut = |id: NodeId, slice: BufferSlice| {
            let node = graph.node(id);
            let len = if node.dtype == DType::Kv { 0 } else { node.shape.len(step) * 4 };
            BufferSlice { len, ..slice }
        };
        for (tag, told) in take(&log) {
            let Told::Node { id, inputs, output, kv } = told else { continue };
            let node = graph.node(id);
            assert_eq!((rig.alloc.node_buffer(id).unwrap().0, cut(id, output)), (tag, output));
            assert_eq!(output, cut(id, rig.alloc.node_buffer(id).unwrap().1));
            assert_eq!(inputs.len(), node.src.len());
            for (&source, given) in node.src.iter().zip(inputs) {
                let away = graph.node(source).backend != Some(tag);
                let slice = match away {
                    true => rig.alloc.cross_buffer(source, tag),
                    false => rig.alloc.node_buffer(source).map(|(_, slice)| slice),
                };
                assert_eq!(given, cut(source, slice.unwrap()), "seed {seed} node {id}");
                staged += usize::from(away);
            }
            let layer = match &node.op {
                Op::KvStore(kv) | Op::KvLoad(kv) => Some(kv.layer),
                Op::Attention(a) => Some(a.layer),
                Op::QkvRopeStore(f) => Some(f.kv.layer),
                _ => None,
            };
            assert_eq!(kv, layer.map(|l| rig.kv.pair(l).unwrap()), "seed {seed} node {id}");
            with_kv += usize::from(kv.is_some());
        }
    }
    assert!(staged > 100 && with_kv > 50, "{staged} {with_kv}");
}

/// R79, R80: the buffers of staged copies are made past the free list, once, and used in every step.
#[test]
fn staging_buffers_are_fresh_and_kept() {
    let mut copies = 0;
    for seed in 0..20 {
        let (backends, log) = watched();
        let place = random_place(seed);
        let opts = PlanOptions { placement: Some(&place), ..PlanOptions::new(dims(3, 2, 1)) };
        let mut rig = Rig::new(&random_graph(seed).unwrap(), backends, &opts).unwrap();
        take(&log);
        let second = GraphAllocator::new(&rig.plan, &mut rig.backends, Some(&rig.kv)).unwrap();
        std::mem::replace(&mut rig.alloc, second).release(&mut rig.backends);
        let told = take(&log);
        let count = |what: Told| told.iter().filter(|(_, told)| *told == what).count();
        let slots: usize = rig.plan.memory.arenas.iter().map(|a| a.slots.len()).sum();
        let staging = rig.plan.memory.staging.clone();
        assert_eq!((count(Told::Alloc), count(Told::Fresh)), (slots, staging.len()));
        let mut buffers = Vec::new();
        for run in 0..3 {
            rig.run(run, 0, dims(3, 2, 1)).unwrap();
            let of = |s: &Staging| rig.alloc.cross_buffer(s.node, s.backend).unwrap();
            let now: Vec<BufferSlice> = staging.iter().map(of).collect();
            assert!(run == 0 || now == buffers);
            buffers = now;
        }
        assert!(!take(&log).iter().any(|(_, told)| matches!(told, Told::Alloc | Told::Fresh)));
        copies += staging.len();
    }
    assert!(copies > 20, "{copies}");
}

/// R20, R23, R25, R78, R97–R99, R104: queued work is no one's to read before its device was waited for; the wait
/// copies nothing and a copy waits for nothing; afterwards everything that was queued has run and can be
/// copied, and the value's own buffer stays where it was. On `Chaos`.
#[test]
fn copies_and_waits_are_apart() {
    let step = dims(2, 0, 1);
    for pending in [PendingRead::Error, PendingRead::Poison] {
        let mut b = GraphBuilder::new();
        let x = value_input(&mut b, "x");
        let first = b.silu("first", x).unwrap();
        let second = b.silu("second", first).unwrap();
        let dead = b.silu("dead", x).unwrap();
        let end = b.add("end", second, first).unwrap();
        b.output(end);
        b.pin(first, GPU);
        b.pin(second, GPU);
        b.pin(end, CPU);
        let (backends, handle) = host_and_gpu(chaos(GPU).with_pending_read(pending));
        let mut rig = Rig::new(&b.finish(0), backends, &PlanOptions::new(step)).unwrap();
        rig.fill(0, 0, step).unwrap();
        let Rig { backends, plan, alloc, .. } = &mut rig;
        let graph = &plan.graph;
        let error = alloc.copy_across(graph, backends, dead, step, CPU).unwrap_err();
        assert!(matches!(&error, GraphError::NoBuffer { node } if node.id == dead));
        let [x, a, z] = [x, first, second].map(|id| alloc.node_buffer(id).unwrap().1);
        for (id, source, output) in [(first, x, a), (second, a, z)] {
            let (node, inputs) = (graph.node(id), &[source]);
            let call = NodeCall { graph, node, inputs, output, kv: None, dims: step };
            backends.get_mut(GPU).unwrap().execute_node(&call).unwrap();
        }
        let own = [first, second].map(|id| alloc.node_buffer(id));
        let before = handle.stats();
        assert_eq!((before.queued, before.executed, before.syncs, before.violations), (2, 0, 0, 0));
        assert_eq!(alloc.copy_across(graph, backends, second, step, GPU).unwrap(), 0, "it is there");
        assert_eq!(handle.stats(), before);
        let early = alloc.copy_across(graph, backends, second, step, CPU);
        match pending {
            PendingRead::Error => {
                assert!(matches!(
                    early,
                    Err(GraphError::Backend { backend: GPU, source: BackendError::Pending(_) })
                ));
            }
            _ => assert_eq!(early.unwrap(), 2 * COLS * 4, "it has copied NaN"),
        }
        let now = handle.stats();
        assert_eq!((now.executed, now.syncs, now.violations), (0, 0, 1));
        backends.get_mut(GPU).unwrap().synchronize().unwrap();
        let done = handle.stats();
        assert_eq!((done.executed, done.syncs), (2, 1));
        assert_eq!((done.reads, done.writes), (now.reads, now.writes));
        for id in [first, second] {
            assert_eq!(alloc.copy_across(graph, backends, id, step, CPU).unwrap(), 2 * COLS * 4);
        }
        assert_eq!(handle.stats().syncs, 1);
        assert_eq!([first, second].map(|id| alloc.node_buffer(id)), own);
        let mut values = vec![0.0f32; 2 * COLS];
        backends.get_mut(GPU).unwrap().read_host(z, bytemuck::cast_slice_mut(&mut values)).unwrap();
        assert!(values.iter().all(|v| v.is_finite()));
    }
}

/// R49, R51, R108: a device that refuses a node while it runs is an error with the node's name, though
/// another device would take it: where a node runs is decided before. On `Chaos`.
#[test]
fn refusals_while_running_are_errors() {
    let refuse = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&refuse);
    let gpu = chaos(GPU).with_mask(move |op| !(refuses.load(Ordering::Relaxed) && *op == Op::Silu));
    let log = Log::default();
    let backends = devices(vec![Box::new(gpu), Box::new(Spy::new(reference(CPU), &log))]);
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    let right = rig.run(0, 0, dims(1, 0, 1)).unwrap();
    assert_eq!(nodes_of(&take(&log)), [(CPU, 2)]);
    refuse.store(true, Ordering::Relaxed);
    let error = rig.run(0, 0, dims(1, 0, 1)).unwrap_err();
    assert_eq!(error.to_string(), "node 1 `silu` (Silu) on chaos:0: unsupported: Silu is masked");
    assert_eq!(nodes_of(&take(&log)), [], "the host is not asked");
    refuse.store(false, Ordering::Relaxed);
    assert_eq!(bits(&rig.run(0, 0, dims(1, 0, 1)).unwrap()), bits(&right));
}

/// R94, R106: a wait that runs out of time is an error, and the device is not used again. On `Chaos`.
#[test]
fn waits_end() {
    let (backends, handle) = host_and_gpu(chaos(GPU));
    let mut rig = Rig::new(&seed_graph().unwrap(), backends, &PlanOptions::new(dims(1, 1, 1))).unwrap();
    handle.inject(Some(Fault { kind: FaultKind::Timeout, at: 1 }));
    let error = rig.run(0, 0, dims(1, 0, 1)).unwrap_err();
    assert!(
        matches!(error, GraphError::Backend { backend: GPU, source: BackendError::Timeout(_) }),
        "{error}"
    );
    let queued = handle.stats().queued;
    for _ in 0..2 {
        let error = rig.run(0, 0, dims(1, 0, 1)).unwrap_err();
        assert!(error.to_string().contains("device lost: it failed before"), "{error}");
    }
    assert_eq!((handle.stats().queued, handle.stats().executed), (queued, 0));
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// R57: after a step the regions of a layer hold its keys and values at the rows that the input named,
/// and what was there before everywhere else.
#[test]
fn the_cache_holds_the_steps_rows() {
    let mut b = GraphBuilder::new();
    let i = attention_inputs(&mut b);
    let x = value_input(&mut b, "x");
    let y = attention_block(&mut b, i, 0, false, x).unwrap();
    b.output(y);
    let opts = PlanOptions { fuse: FusionSwitches::NONE, ..PlanOptions::new(dims(4, 4, 1)) };
    let mut rig = Rig::new(&b.finish(0), one(), &opts).unwrap();
    let pair = rig.kv.pair(0).unwrap();
    let region = |rig: &mut Rig, slice: BufferSlice| {
        let mut values = vec![0.0f32; slice.len / 4];
        rig.backends.get_mut(CPU).unwrap().read_host(slice, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    };
    let (mut k_want, mut v_want) = (region(&mut rig, pair.k), region(&mut rig, pair.v));
    // The last step crosses a page.
    for (past, n) in [(0, 4), (4, 1), (PAGE - 2, 4)] {
        rig.fill(past as u64, past, dims(n, 0, 1)).unwrap();
        let (mut k, mut v) = (Vec::<f32>::new(), Vec::<f32>::new());
        let mut sink = |node: &Node, _: StepDims, bytes: &[u8]| match node.name.as_str() {
            "blk.0.k_rope" => k = floats(bytes),
            "blk.0.v" => v = floats(bytes),
            _ => {}
        };
        rig.execute(Step { capture: Some(&mut sink), ..Step::new(dims(n, 0, 1)) }).unwrap();
        assert_eq!((k.len(), v.len()), (4 * n, 4 * n));
        for t in 0..n {
            let (page, slot) = (MAX_PAGES - 1 - (past + t) / PAGE, (past + t) % PAGE);
            for d in 0..4 {
                k_want[(page * 4 + d) * PAGE + slot] = k[4 * t + d];
                v_want[(page * PAGE + slot) * 4 + d] = v[4 * t + d];
            }
        }
        let got = [region(&mut rig, pair.k), region(&mut rig, pair.v)];
        assert_eq!(bits(&got), bits(&[k_want.clone(), v_want.clone()]), "{n} tokens behind {past}");
    }
}

/// R62–R67, R107: two steps walk the nodes, the third also records, and runs what it recorded; later ones hand over the
/// whole split at once, and the next split waits for it as for any other. Prompts and captures walk, and the
/// host touches nothing while a split is recorded. On `Chaos`.
#[test]
fn replay_replaces_the_walk() {
    let mut b = GraphBuilder::new();
    let x = value_input(&mut b, "x");
    let first = b.silu("first", x).unwrap();
    let second = b.rms_norm("second", None, 1e-5, first).unwrap();
    let end = b.add("end", second, x).unwrap();
    b.output(end);
    b.pin(first, GPU);
    b.pin(second, GPU);
    b.pin(end, CPU);
    let graph = b.finish(0);
    let (backends, handle) = host_and_gpu(chaos(GPU).with_replay());
    let opts = PlanOptions::new(dims(2, 2, 1));
    let mut rig = Rig::new(&graph, backends, &opts).unwrap();
    let direct = devices(vec![Box::new(reference(CPU)), Box::new(reference(GPU))]);
    let mut single = Rig::new(&graph, direct, &opts).unwrap();
    // Tokens, pages, with captures; then nodes that the device was handed one by one, and replays.
    let steps = [
        (2, 1, false, 2, 0),
        (1, 1, false, 2, 0),
        (1, 1, false, 2, 0),
        (2, 1, false, 2, 0),
        (1, 1, false, 2, 0),
        (1, 1, false, 0, 1),
        (1, 1, true, 2, 0),
        (1, 1, false, 0, 1),
        // Another extent is another recording.
        (1, 2, false, 2, 0),
        (1, 1, false, 0, 1),
    ];
    for (i, (tokens, kv_pages, captures, handed, replays)) in steps.into_iter().enumerate() {
        let step = dims(tokens, 0, 1);
        let before = (handle.stats(), rig.scheduler.counters);
        rig.fill(i as u64, 0, step).unwrap();
        let mut seen = 0;
        let mut sink = |_: &Node, _: StepDims, _: &[u8]| seen += 1;
        let capture: Option<&mut CaptureSink<'_>> = if captures { Some(&mut sink) } else { None };
        rig.execute(Step { replay: true, kv_pages, capture, ..Step::new(step) }).unwrap();
        let got = rig.read_outputs(step).unwrap();
        assert_eq!(bits(&got), bits(&single.run(i as u64, 0, step).unwrap()), "step {i}");
        let (s, c) = (handle.stats(), rig.scheduler.counters);
        assert_eq!((s.queued - before.0.queued, s.replays - before.0.replays), (handed, replays), "step {i}");
        assert_eq!((c.nodes - before.1.nodes, c.replays - before.1.replays), (handed + 1, replays));
        assert_eq!((s.executed - before.0.executed, s.syncs - before.0.syncs), (2, 1), "step {i}");
        let offered = (s.replay_keys.len() - before.0.replay_keys.len()) as u64;
        assert_eq!(offered, u64::from(tokens == 1 && !captures), "step {i}");
        assert_eq!((seen > 0, s.violations), (captures, 0));
    }
}

/// R53, R77, R102: a step shares the plan and has the allocator and the devices to itself; a device is run, read and waited
/// for through `&mut`. This is checked by the compiler.
#[test]
fn signatures() {
    type Execute = fn(
        &mut BackendScheduler,
        &Plan,
        &mut GraphAllocator,
        &mut Backends,
        Step<'_>,
    ) -> Result<(), GraphError>;
    let _: Execute = BackendScheduler::execute;
    fn surface<B: Backend>() {
        let _: fn(&B) -> String = B::name;
        let _: fn(&B, &Graph, &Node) -> Result<(), Unsupported> = B::supports;
        let _: fn(&mut B, usize) -> Result<BufferId, BackendError> = B::alloc_buffer;
        let _: fn(&mut B, usize) -> Result<BufferId, BackendError> = B::alloc_fresh;
        let _: fn(&mut B, BufferId) = B::free_buffer;
        let _: fn(&mut B, &NodeCall<'_>) -> Result<(), BackendError> = B::execute_node;
        let _: fn(&mut B, BufferSlice, &mut [u8]) -> Result<(), BackendError> = B::read_host;
        let _: fn(&mut B, BufferSlice, &[u8]) -> Result<(), BackendError> = B::write_host;
        let _: fn(&mut B) -> Result<(), BackendError> = B::synchronize;
    }
    surface::<ReferenceBackend>();
    surface::<Chaos<ReferenceBackend>>();
}
