//! `minfer bench`: prefill and decode rates, measured as `llama-bench` does (no tokenising, no sampling), beside what the
//! machine could do at that moment.

mod client;
mod report;
mod serve;
mod texts;
mod work;

use crate::args::{BenchArgs, BenchVerb};
use crate::exit::Usage;
use crate::inputs;
use anyhow::Result;
use minfer::{Batch, Ceilings, Control, MachineProbe, OpProfile, SeqId, Session, Wanted};
use report::{Measured, Ops, Report};
use std::time::{Duration, Instant};
use work::{Kind, Test};

/// Tokens that a decode test is warmed up with.
const WARM_UP: usize = 8;

/// Depth beyond which a bench is told to take long.
const LONG: usize = 1024;

pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(BenchVerb::Serve(serve)) = &args.verb {
        return serve::run(serve);
    }
    if args.ceilings {
        let probe = MachineProbe::new(args.model.threads)?;
        return report::ceilings(&probe, probe.measure()?, args.json);
    }
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Usage("nothing to measure: -p 0 -n 0".into()).into());
    }
    let mut options = args.model.clone();
    options.ctx_size.get_or_insert(tests.iter().map(Test::positions).max().unwrap_or(1));
    let sequences = tests.iter().map(|t| t.batch).max().unwrap_or(1);
    if args.ops || tests.iter().any(|test| test.depth > LONG) {
        let again = if args.ops { " once more for --ops" } else { "" };
        crate::console::note!(
            "{} tests, each {} times{again}, at depths up to {}: this can take minutes",
            tests.len(),
            args.reps + 1,
            tests.iter().map(|test| test.depth).max().unwrap_or(0),
        );
    }
    let (_, session) = inputs::load_for(name, &options, sequences)?;
    let mut report = Report::new(&session, args.json)?;
    let mut bench = Bench::new(session, sequences, args.model.threads)?;
    for test in &tests {
        report.test(&bench.measure(test, args.reps, args.ops)?)?;
    }
    report.end()
}

/// By depth, so that the cache only grows.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut depths = args.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let mut tests = Vec::new();
    for depth in depths {
        let prefills = args.prompt.iter().map(|&tokens| (Kind::Prefill, tokens, 1));
        let decodes =
            args.generate.iter().flat_map(|&n| args.batch.iter().map(move |&b| (Kind::Decode, n, b)));
        let all = prefills.chain(decodes).filter(|&(_, tokens, _)| tokens > 0);
        tests.extend(all.map(|(kind, tokens, batch)| Test { kind, tokens, depth, batch }));
    }
    tests
}

/// What is measured with what.
struct Bench {
    session: Session,
    sequences: Vec<SeqId>,
    /// Absent if other devices than the CPU take part: their ceilings are not measured.
    probe: Option<MachineProbe>,
    /// The ceilings after the last test.
    last: Option<Ceilings>,
}

impl Bench {
    fn new(mut session: Session, sequences: usize, threads: Option<usize>) -> Result<Bench> {
        let alone = session.model().layout().n_offloaded() == 0;
        let probe = if alone { Some(MachineProbe::new(threads)?) } else { None };
        let sequences = (0..sequences).map(|_| session.new_sequence()).collect::<Result<_, _>>()?;
        let mut bench = Bench { session, sequences, probe, last: None };
        bench.last = bench.ceilings()?;
        Ok(bench)
    }

    fn ceilings(&self) -> Result<Option<Ceilings>> {
        Ok(self.probe.as_ref().map(MachineProbe::measure).transpose()?)
    }

    fn measure(&mut self, test: &Test, reps: usize, ops: bool) -> Result<Measured> {
        self.fill(test)?;
        let warm_up = if test.kind == Kind::Decode { WARM_UP.min(test.tokens) } else { test.tokens };
        self.time(&Test { tokens: warm_up, ..*test }, &Control::default())?;
        let mut rates = Vec::with_capacity(reps);
        for _ in 0..reps {
            let seconds = self.time(test, &Control::default())?.as_secs_f64();
            rates.push((test.tokens * test.batch) as f64 / seconds);
        }
        let after = self.ceilings()?;
        let ceilings = self.last.zip(after).map(|(before, after)| [before, after]);
        self.last = after;
        let threads = self.probe.as_ref().map(|p| (p.threads(), p.isa()));
        let ops = if ops { Some(self.ops(test)?) } else { None };
        let options = self.session.options();
        let work = test.work(self.session.model().spec(), options.kv_types, options.n_batch);
        Ok(Measured { test: *test, rates, work, ceilings, threads, ops })
    }

    /// Brings the test's sequences to its depth.
    fn fill(&mut self, test: &Test) -> Result<()> {
        for &seq in &self.sequences[..test.batch] {
            let len = self.session.sequence_len(seq)?;
            if len < test.depth {
                let mut batch = Batch::new();
                batch.add(seq, &self.tokens(len, test.depth - len), Wanted::Nothing);
                self.session.step(&batch, &Control::default())?;
            }
        }
        Ok(())
    }

    /// Runs a test once; the sequences are at its depth before and after.
    fn time(&mut self, test: &Test, control: &Control<'_>) -> Result<Duration> {
        let tokens = self.tokens(test.depth, test.tokens);
        let step = if test.kind == Kind::Decode { 1 } else { test.tokens };
        let started = Instant::now();
        for chunk in tokens.chunks(step) {
            let mut batch = Batch::new();
            for &seq in &self.sequences[..test.batch] {
                batch.add(seq, chunk, Wanted::Last);
            }
            self.session.step(&batch, control)?;
        }
        let took = started.elapsed();
        for &seq in &self.sequences[..test.batch] {
            self.session.truncate(seq, test.depth)?;
        }
        Ok(took)
    }

    /// Where the time of a test goes.
    fn ops(&mut self, test: &Test) -> Result<Ops> {
        let profile = OpProfile::new(self.session.options().kv_types);
        let observe = |run: &minfer::graph::NodeRun<'_>, extents: &[i32]| profile.observe(run, extents);
        let took = self.time(test, &Control { observe: Some(&observe), ..Control::default() })?;
        Ok(Ops { costs: profile.costs(), took })
    }

    /// Tokens for these positions; which they are makes no difference but to experts.
    fn tokens(&self, start: usize, count: usize) -> Vec<u32> {
        let n_vocab = self.session.model().spec().n_vocab;
        (start..start + count).map(|i| (i.wrapping_mul(7919).wrapping_add(13) % n_vocab) as u32).collect()
    }
}
