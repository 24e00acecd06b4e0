//! `bench latency`: an open loop of due times, a keyed count on the other core, and how late each row comes.
//!
//! ```text
//!   shard 0                          shard 1
//!   due times, at the rate ─ keyed ─▶ count ─▶ sink: now - due
//! ```
//!
//! Record i is due at start + i / rate whatever became of the ones before, so a record that had to wait in
//! the source is as late as one that waited in the exchange. Source and sink read one clock.
//!
//! `--limit` alternates with the hand-written program at the same rate, and takes the machine's own line
//! between: what a thread that only spins would have made of it. Where shards sleep between records,
//! the round trip of an eventfd between two sleeping threads stands beside.

use super::report::{Machine, Spread};
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::JobOptions;
use crate::config::{Config, Origin};
use crate::limit::{self, ping};
use crate::operator::Output;
use crate::sink::latency::{LatencySink, latencies};
use crate::source::SourceContext;
use crate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use crate::subtask::SubtaskInfo;
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;
use tidegate_shard::driver::{IdleStrategy, MonotonicClock};
use tidegate_shard::task::Clock;

/// Below this rate shards that may sleep do so between records: they spin for 50 µs first.
const SLEEPS_BELOW: u64 = 20_000;

/// Wake-ups that are measured beside one run, at most.
const PINGS_MAX: u64 = 2_000;

/// Options of `bench latency`.
#[derive(Args)]
pub(crate) struct Latency {
    /// Records a second
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: u64,

    /// How long one run takes, in seconds; its first tenth is not recorded
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,

    /// Distinct keys, drawn uniformly
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,

    /// When partly filled buffers leave: 0 after every record, a duration, or -1 for only when full
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    buffer_timeout: Option<String>,

    /// Counted runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Alternate with the hand-written program at the same rate, and print the ratios
    #[arg(long)]
    limit: bool,

    #[command(flatten)]
    job: JobOptions,
}

/// Percentiles of one run, or medians of several, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Percentiles {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    p9999_us: f64,
    max_us: f64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Percentiles {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            p9999_us: us(0.9999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }

    /// The median of each; of the maxima the greatest.
    fn median(runs: &[Percentiles]) -> Percentiles {
        let median = |f: fn(&Percentiles) -> f64| Spread::of(runs.iter().map(f)).median;
        Percentiles {
            p50_us: median(|p| p.p50_us),
            p99_us: median(|p| p.p99_us),
            p999_us: median(|p| p.p999_us),
            p9999_us: median(|p| p.p9999_us),
            max_us: Spread::of(runs.iter().map(|p| p.max_us)).max,
        }
    }

    fn row(&self, name: &str) -> String {
        let Percentiles { p50_us, p99_us, p999_us, p9999_us, max_us } = self;
        format!("  {name:<22}{p50_us:>9.2}{p99_us:>9.2}{p999_us:>10.1}{p9999_us:>10.1}{max_us:>10.1}")
    }
}

#[derive(Serialize)]
struct Figures {
    rate: u64,
    keys: u64,
    runs: u32,
    buffer_timeout: String,
    idle: String,
    records_per_run: u64,
    records_per_s: f64,
    #[serde(flatten)]
    latency: Percentiles,
    p50_us_spread: Spread,
    p99_us_spread: Spread,
    limit: Option<Percentiles>,
    limit_p99_us_spread: Option<Spread>,
    /// p50 and p99 of the engine over those of the hand-written program, pair by pair.
    p50_ratio: Option<Spread>,
    ratio: Option<Spread>,
    machine_line: Option<Percentiles>,
    ping_round_trip_p50_us: Option<Spread>,
    ping_timer_p50_us: Option<Spread>,
    p50_over_ping: Option<Spread>,
    machine: Machine,
}

/// What ran beside the engine, a figure for each run.
#[derive(Default)]
struct Beside {
    limits: Vec<Percentiles>,
    floors: Vec<Percentiles>,
    round_trips: Vec<f64>,
    timers: Vec<f64>,
}

/// One run of the engine: the histogram after the warm-up, and records a second over all of it.
fn run_engine(
    config: &Config,
    plan: &GeneratorPlan,
    count: u64,
    warm_up: Duration,
) -> Result<(Histogram<u64>, f64), CliError> {
    let env = Environment::with_config(config.clone());
    let (all, plan) = (latencies(), plan.clone());
    let shared = all.clone();
    env.source("due", move |cx: &SourceContext| Ok(plan.dues(cx)))
        .parallelism(1)
        .key_by::<u64, _>(|(key, _)| key)
        .parallelism(1)
        .shard_offset(1)
        .process("count", |(key, due), count: &mut u64, out: &mut Output<'_, (u64, u64, u64)>| {
            *count += 1;
            out.emit((key, *count, due));
        })
        .name("count")
        .sink("latency", move |_: &SubtaskInfo| {
            let clock = MonotonicClock::of_process();
            let due: fn((u64, u64, u64)) -> u64 = |(_, _, due)| due;
            Ok(LatencySink::<(u64, u64, u64), _, _>::new(
                due,
                move || clock.now_ns(),
                warm_up,
                shared.clone(),
            ))
        });
    let summary = env.execute("latency")?;
    let counted = summary.subtasks.last().map_or(0, |count| count.records_in);
    if counted != count {
        return Err(format!("{counted} records were counted and not {count}: records are lost").into());
    }
    let histogram = all.lock().expect("the sinks are gone").clone();
    Ok((histogram, count as f64 / summary.elapsed.as_secs_f64()))
}

impl Latency {
    pub fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        if let Some(timeout) = &self.buffer_timeout {
            config.set("execution.buffer-timeout.interval", timeout, Origin::CommandLine)?;
        }
        if !config.is_set("tidegate.shards") {
            // One for the source and one for the count, also where there is but one core.
            config.set("tidegate.shards", "2", Origin::CommandLine)?;
        }
        config.validate()?;
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} must be more than 0 and at most 3600", self.seconds).into());
        }
        let count = (self.rate as f64 * self.seconds) as u64;
        if count < 10 {
            return Err(format!(
                "--rate {} and --seconds {} give {count} records: at least 10 are needed",
                self.rate, self.seconds
            )
            .into());
        }
        let plan = GeneratorPlan::new(GeneratorOptions {
            rate: Some(self.rate as f64),
            count: Some(count),
            keys: KeyDistribution::Uniform { keys: self.keys },
            ..GeneratorOptions::default()
        })?;
        let sleeps = config.idle_strategy() != IdleStrategy::Spin && self.rate < SLEEPS_BELOW;
        let warm_up = Duration::from_secs_f64(self.seconds / 10.0);
        let (mut ours, mut rates, mut beside) = (Vec::new(), Vec::new(), Beside::default());
        for run in 0..self.runs {
            let (histogram, rate) = run_engine(&config, &plan, count, warm_up)?;
            ours.push(Percentiles::of(&histogram));
            rates.push(rate);
            if self.limit {
                let limit = limit::latency::run(self.rate, self.seconds, self.keys);
                beside.limits.push(Percentiles::of(&limit.histogram));
                let floor = limit::latency::machine_floor(self.seconds / 4.0);
                beside.floors.push(Percentiles::of(&floor));
                if sleeps {
                    let interval = Duration::from_secs_f64(1.0 / self.rate as f64);
                    let ping = ping::eventfd(count.min(PINGS_MAX), interval)?;
                    beside.round_trips.push(ping.round_trip.value_at_quantile(0.5) as f64 / 1e3);
                    beside.timers.push(ping.timer.value_at_quantile(0.5) as f64 / 1e3);
                }
            }
            if !self.job.json {
                eprintln!("{}", self.progress(run as usize, &ours, &beside));
            }
        }
        let figures = self.figures(&config, count, &ours, &rates, &beside);
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
        } else {
            print(&figures);
        }
        Ok(())
    }

    fn progress(&self, run: usize, ours: &[Percentiles], beside: &Beside) -> String {
        let mut text =
            format!("run {}: p50 {:.2} us, p99 {:.2} us", run + 1, ours[run].p50_us, ours[run].p99_us);
        if let Some(limit) = beside.limits.last() {
            text += &format!("; limit p50 {:.2} us, p99 {:.2} us", limit.p50_us, limit.p99_us);
        }
        if let Some(round_trip) = beside.round_trips.last() {
            text += &format!("; ping {round_trip:.1} us");
        }
        text
    }

    fn figures(
        &self,
        config: &Config,
        count: u64,
        ours: &[Percentiles],
        rates: &[f64],
        beside: &Beside,
    ) -> Figures {
        let spread = |runs: &[Percentiles], f: fn(&Percentiles) -> f64| Spread::of(runs.iter().map(f));
        let ratios = |f: fn(&Percentiles) -> f64| {
            let pairs = ours.iter().zip(&beside.limits);
            self.limit.then(|| Spread::of(pairs.map(|(ours, limit)| f(ours) / f(limit).max(0.001))))
        };
        let some = |figures: &[f64]| (!figures.is_empty()).then(|| Spread::of(figures.iter().copied()));
        let over_ping: Vec<f64> =
            ours.iter().zip(&beside.round_trips).map(|(ours, ping)| ours.p50_us / ping).collect();
        Figures {
            rate: self.rate,
            keys: self.keys,
            runs: self.runs,
            buffer_timeout: match config.exchange_config().flush {
                tidegate_shard::config::FlushInterval::EveryRecord => "0".to_string(),
                tidegate_shard::config::FlushInterval::After(ns) => format!("{:?}", Duration::from_nanos(ns)),
                tidegate_shard::config::FlushInterval::Never => "-1".to_string(),
            },
            idle: match config.idle_strategy() {
                IdleStrategy::Spin => "spin".to_string(),
                IdleStrategy::Backoff { spin_ns } => {
                    format!("backoff after {:?}", Duration::from_nanos(spin_ns))
                }
                IdleStrategy::Park => "park".to_string(),
            },
            records_per_run: count,
            records_per_s: Spread::of(rates.iter().copied()).median,
            latency: Percentiles::median(ours),
            p50_us_spread: spread(ours, |p| p.p50_us),
            p99_us_spread: spread(ours, |p| p.p99_us),
            limit: self.limit.then(|| Percentiles::median(&beside.limits)),
            limit_p99_us_spread: self.limit.then(|| spread(&beside.limits, |p| p.p99_us)),
            p50_ratio: ratios(|p| p.p50_us),
            ratio: ratios(|p| p.p99_us),
            machine_line: self.limit.then(|| Percentiles::median(&beside.floors)),
            ping_round_trip_p50_us: some(&beside.round_trips),
            ping_timer_p50_us: some(&beside.timers),
            p50_over_ping: some(&over_ping),
            machine: Machine::here(),
        }
    }
}

fn print(figures: &Figures) {
    println!(
        "latency from the due time, {} records/s, buffer timeout {}, idle {}, medians of {} runs, in us",
        figures.rate, figures.buffer_timeout, figures.idle, figures.runs
    );
    println!("  {:<22}{:>9}{:>9}{:>10}{:>10}{:>10}", "", "p50", "p99", "p99.9", "p99.99", "max");
    println!("{}", figures.latency.row("engine"));
    if let Some(limit) = &figures.limit {
        println!("{}", limit.row("hand-written, spinning"));
    }
    if let Some(floor) = &figures.machine_line {
        println!("{}", floor.row("the machine's own line"));
    }
    println!("  engine's p50 {}, p99 {}", figures.p50_us_spread.text(2), figures.p99_us_spread.text(2));
    if let (Some(p50), Some(p99)) = (&figures.p50_ratio, &figures.ratio) {
        println!("  engine over hand-written, pair by pair: p50 {}, p99 {}", p50.text(2), p99.text(2));
    }
    if let (Some(ping), Some(timer), Some(ratio)) =
        (&figures.ping_round_trip_p50_us, &figures.ping_timer_p50_us, &figures.p50_over_ping)
    {
        println!(
            "  eventfd round trip of two sleeping threads, p50 {}; timer late by {}",
            ping.text(1),
            timer.text(1)
        );
        println!("  engine's p50 over that round trip {}", ratio.text(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every record that is due after the warm-up is in the histogram, none is early or on another
    /// clock.
    /// Method: 2,000 records in 0.1 s; a latency of a minute would be a clock of another origin. The rate is
    /// not judged: a thread that starts late catches up.
    #[test]
    fn every_record_after_the_warm_up_has_a_latency_of_one_clock() {
        let mut config = Config::default();
        config.set("tidegate.shards", "2", Origin::CommandLine).unwrap();
        let options = GeneratorOptions { rate: Some(20_000.0), count: Some(2_000), ..Default::default() };
        let plan = GeneratorPlan::new(options).unwrap();
        let (histogram, rate) = run_engine(&config, &plan, 2_000, Duration::from_millis(10)).unwrap();
        assert!((1_795..=1_805).contains(&histogram.len()), "{} latencies", histogram.len());
        assert!(histogram.min() > 0 && histogram.value_at_quantile(0.5) < 60_000_000_000);
        assert!(rate > 0.0, "{rate} records/s");
    }
}
