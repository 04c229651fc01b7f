//! The command: `cargo run --release -p minfer-fuzz -- schedule --cases 200000`, or `--seconds 3600`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command talks to its user")]

use anyhow::{Result, anyhow};
use clap::{Parser, ValueEnum};
use minfer_fuzz::{Limits, gguf, kernels, schedule};
use peak_alloc::PeakAlloc;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

/// Random tests of minfer, for as long as you like.
#[derive(Parser)]
struct Args {
    /// What to test.
    target: Target,
    /// Cases to run; without it and without --seconds, 10000.
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Time to run for.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Seed of the first case. A failed case is repeated with `--seed N --cases 1`.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Threads of `schedule` and `kernels`, each with cases of its own; as many as the machine has by default.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// Graphs, plans, schedules and devices.
    Schedule,
    /// Products and attention on the CPU.
    Kernels,
    /// Damaged model files.
    Gguf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let cases = args.cases.unwrap_or(if args.seconds.is_some() { u64::MAX } else { 10_000 });
    let time = args.seconds.map(Duration::from_secs);
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let started = Instant::now();
    let limits = Limits { first: args.seed, cases, time, threads };
    let failed = |(seed, why)| anyhow!("seed {seed}: {why}");
    match args.target {
        Target::Schedule => println!("{}", schedule::run(limits).map_err(failed)?),
        Target::Kernels => println!("{}", kernels::run(limits).map_err(failed)?),
        Target::Gguf => {
            println!("{}", gguf::run(&ALLOC, args.seed, cases, time).map_err(|e| anyhow!(e))?);
        }
    }
    println!("seed {}, {:.1?}", args.seed, started.elapsed());
    Ok(())
}
