//! `bench checkpoint`: what checkpoints cost a keyed count, and what one consists of.
//!
//! Runs with and without checkpoints alternate over the same draw of keys, so that the two differ in nothing else.
//! Each run first puts every key into the state.

use super::report::{Machine, Spread, millions};
use super::window::Windows;
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::{JobOptions, set_parallelism};
use crate::cli::demo::{duration, run_seconds};
use crate::config::{Config, Origin};
use crate::coordinator::checkpoint::{CheckpointStats, CheckpointStatus};
use crate::coordinator::{JobError, RunningJob};
use crate::sink::blackhole::Blackhole;
use crate::source::SourceContext;
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After every key is in the state, until the first figure is taken.
const SETTLE: Duration = Duration::from_millis(500);

/// Options of `bench checkpoint`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Checkpoint {
    /// Keys in the state
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,

    /// Time between two checkpoints
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = duration)]
    interval: Duration,

    /// Part of the keys that change between two checkpoints, a window that moves on by itself
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    dirty: f64,

    /// Parallel instances of source and count [default: one a shard]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    parallelism: Option<String>,

    /// How long each run is measured
    #[arg(long, default_value = "3", value_name = "S", value_parser = run_seconds)]
    seconds: f64,

    /// Pairs of runs, one with checkpoints and one without
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    #[command(flatten)]
    job: JobOptions,
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench checkpoint --keys 16                       throughput with a checkpoint every 100 ms
  tidegate bench checkpoint --keys 1000000 --dirty 0.01     1 % of the keys change between two
  tidegate bench checkpoint --keys 10000000 --interval 1s   a large state";

#[derive(Serialize)]
struct Figures {
    keys: u64,
    dirty: f64,
    interval_ms: f64,
    parallelism: u32,
    records_per_s: f64,
    records_per_s_during: f64,
    ratio: f64,
    ratio_spread: Spread,
    checkpoints: u64,
    failed: u64,
    /// Of the largest subtask of each checkpoint.
    sync_us: f64,
    sync_us_p99: f64,
    sync_us_max: f64,
    async_ms: f64,
    duration_ms: f64,
    duration_ms_max: f64,
    commit_ms: f64,
    /// Bytes of state written by a checkpoint, on average, after the first one.
    bytes: f64,
    live_bytes: u64,
    /// The first checkpoint of a run, which has everything.
    full_ms: f64,
    full_bytes: u64,
    machine: Machine,
}

/// One run.
struct Run {
    rate: f64,
    live_bytes: u64,
    checkpoints: Vec<CheckpointStats>,
    failed: u64,
}

impl Checkpoint {
    pub fn run(self) -> Result<(), CliError> {
        if !(self.dirty > 0.0 && self.dirty <= 1.0) {
            return Err(format!("--dirty {}: expected more than 0 and at most 1", self.dirty).into());
        }
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        let mut with = config.clone();
        let interval = format!("{} us", self.interval.as_micros());
        with.set("execution.checkpointing.interval", &interval, Origin::CommandLine)?;
        with.set("web.checkpoints.history", "100000", Origin::CommandLine)?;
        with.validate()?;
        let windows = Windows::new(self.keys, self.dirty, self.interval.as_nanos() as u64);
        let (mut plain, mut during, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..self.runs {
            plain.push(self.measure(&config, &windows)?.rate);
            let with = self.measure(&with, &windows)?;
            during.push(with.rate);
            if !self.job.json {
                eprintln!(
                    "run {}: {} without, {} with {} checkpoints, ratio {:.3}",
                    run + 1,
                    millions(plain[run as usize]),
                    millions(with.rate),
                    with.checkpoints.len(),
                    with.rate / plain[run as usize],
                );
            }
            runs.push(with);
        }
        let figures = self.figures(&plain, &during, &runs)?;
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
        } else {
            print(&figures);
        }
        Ok(())
    }

    /// One run of the job.
    fn measure(&self, config: &Config, windows: &Windows) -> Result<Run, CliError> {
        let env = Environment::with_config(config.clone());
        let windows = windows.clone();
        env.source("keys", move |cx: &SourceContext| Ok(windows.source(cx)))
            .key_by::<u64, _>(|(key, _)| key)
            .count()
            .sink("blackhole", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("checkpoint bench")?;
        while loaded(&job) < self.keys {
            if job.is_over() {
                job.wait()?;
                return Err("the job has ended before every key was in its state".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), counted(&job));
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let rate = (counted(&job) - before) as f64 / begun.elapsed().as_secs_f64();
        let live_bytes = loaded(&job) * 16;
        let report = job.checkpoints();
        job.cancel();
        match job.wait() {
            Ok(_) | Err(JobError::Canceled) => {}
            Err(error) => return Err(error.into()),
        }
        let mut checkpoints: Vec<CheckpointStats> = report.iter().flat_map(|r| r.history.clone()).collect();
        checkpoints.retain(|stats| stats.status == CheckpointStatus::Completed);
        checkpoints.sort_by_key(|stats| stats.id);
        let failed = report.map_or(0, |report| report.counts.failed);
        Ok(Run { rate, live_bytes, checkpoints, failed })
    }

    fn figures(&self, plain: &[f64], during: &[f64], runs: &[Run]) -> Result<Figures, CliError> {
        let mut sync = Histogram::<u64>::new(3)?;
        let mut asynchronous = Histogram::<u64>::new(3)?;
        let mut duration = Histogram::<u64>::new(3)?;
        let mut commit = Histogram::<u64>::new(3)?;
        let (mut bytes, mut count) = (0, 0u64);
        for stats in runs.iter().flat_map(|run| run.checkpoints.iter().skip(1)) {
            let largest = |of: fn(&crate::checkpoint::Timings) -> u64| {
                stats.subtasks.iter().map(|subtask| of(&subtask.timings)).max().unwrap_or(0)
            };
            sync.record(largest(|timings| timings.sync_ns))?;
            asynchronous.record(largest(|timings| timings.async_ns))?;
            duration.record(stats.duration_ns())?;
            commit.record(stats.commit_ns)?;
            bytes += stats.written_bytes;
            count += 1;
        }
        if count == 0 {
            return Err(format!(
                "no two checkpoints were completed in {} s; expected a longer --seconds, or a shorter --interval",
                self.seconds
            )
            .into());
        }
        let first = runs.iter().filter_map(|run| run.checkpoints.first()).max_by_key(|s| s.written_bytes);
        let ratio = Spread::of_ratios(during, plain);
        let us = |ns: u64| ns as f64 / 1e3;
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(Figures {
            keys: self.keys,
            dirty: self.dirty,
            interval_ms: self.interval.as_secs_f64() * 1e3,
            parallelism: runs.iter().flat_map(|run| &run.checkpoints).next().map_or(0, |stats| {
                stats.subtasks.iter().filter(|subtask| subtask.vertex == 1).count() as u32
            }),
            records_per_s: Spread::of(plain.iter().copied()).median,
            records_per_s_during: Spread::of(during.iter().copied()).median,
            ratio: ratio.median,
            ratio_spread: ratio,
            checkpoints: count,
            failed: runs.iter().map(|run| run.failed).sum(),
            sync_us: us(sync.value_at_quantile(0.5)),
            sync_us_p99: us(sync.value_at_quantile(0.99)),
            sync_us_max: us(sync.max()),
            async_ms: ms(asynchronous.value_at_quantile(0.5)),
            duration_ms: ms(duration.value_at_quantile(0.5)),
            duration_ms_max: ms(duration.max()),
            commit_ms: ms(commit.value_at_quantile(0.5)),
            bytes: bytes as f64 / count as f64,
            live_bytes: runs.iter().map(|run| run.live_bytes).max().unwrap_or(0),
            full_ms: first.map_or(0.0, |stats| ms(stats.duration_ns())),
            full_bytes: first.map_or(0, |stats| stats.written_bytes),
            machine: Machine::here(),
        })
    }
}

/// Keys in the state, as the count's subtasks have booked them.
fn loaded(job: &RunningJob) -> u64 {
    job.state_entries()
}

/// Records counted so far.
fn counted(job: &RunningJob) -> u64 {
    let plan = job.plan();
    let count = plan.subtasks.iter().zip(job.snapshot()).filter(|(subtask, _)| subtask.vertex.0 == 1);
    count.map(|(_, snapshot)| snapshot.records_in).sum()
}

fn print(figures: &Figures) {
    println!(
        "{} keys, {:.2} % changed between two checkpoints, one every {} ms, parallelism {}",
        figures.keys,
        figures.dirty * 100.0,
        figures.interval_ms,
        figures.parallelism
    );
    println!(
        "  throughput   {} with, {} without, ratio {}",
        millions(figures.records_per_s_during),
        millions(figures.records_per_s),
        figures.ratio_spread.text(3)
    );
    println!(
        "  sync         {:.1} us median, {:.1} us p99, {:.1} us longest, of the largest subtask",
        figures.sync_us, figures.sync_us_p99, figures.sync_us_max
    );
    println!(
        "  async        {:.2} ms; commit {:.2} ms; duration {:.2} ms median, {:.2} ms longest",
        figures.async_ms, figures.commit_ms, figures.duration_ms, figures.duration_ms_max
    );
    println!(
        "  written      {:.0} bytes a checkpoint, {:.2} % of {} live",
        figures.bytes,
        100.0 * figures.bytes / figures.live_bytes.max(1) as f64,
        figures.live_bytes
    );
    println!("  first one    {:.2} ms, {} bytes", figures.full_ms, figures.full_bytes);
    println!("  {} checkpoints, {} failed", figures.checkpoints, figures.failed);
}
