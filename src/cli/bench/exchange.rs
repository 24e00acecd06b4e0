//! `bench exchange`: what a record costs to go from P sources to Q consumers, from 2 channels to 4,096.
//!
//! Every source deals its records out to all consumers in turn, so every channel of every pair is in use all
//! the time. A cost that grows with the channels, a scan of them in each turn say, shows as a ratio.
//!
//! The figure is time of the shards that was not idle, over records: with two consumers and one source one
//! shard waits most of the time, and with thousands of channels neither does, so time on the wall
//! would compare different shares of the machine.

use super::report::{Machine, Spread};
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::JobOptions;
use crate::config::Config;
use crate::coordinator::RunningJob;
use crate::limit::keyed;
use crate::record::{Record, Timestamp};
use crate::sink::Sink;
use crate::source::memory::{InMemory, Repeat};
use crate::source::{SourceContext, SourceError};
use crate::subtask::SubtaskInfo;
use clap::Args;
use serde::Serialize;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Records that each source loops over: few enough to stay in the cache, so that they cost alike however
/// many sources there are.
const DRAWN: usize = 1 << 10;

/// Options of `bench exchange`.
#[derive(Args)]
pub(crate) struct Exchange {
    /// Channels between sources and consumers: powers of two, split as evenly as they can be
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,16,64,256,1024,4096",
          value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    channels: Vec<u32>,

    /// Bytes of a record: 8, 16, 32 or 64
    #[arg(long, default_value_t = 16)]
    record_size: u32,

    /// About how long one run takes, in seconds
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    seconds: f64,

    /// Counted runs of each number of channels, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    #[command(flatten)]
    job: JobOptions,
}

#[derive(Serialize)]
struct Row {
    channels: u32,
    sources: u32,
    consumers: u32,
    records_per_run: u64,
    records_per_s: f64,
    ns_per_record: f64,
    ns_per_record_spread: Spread,
    /// Over the first row's, run by run.
    ratio: f64,
    ratio_spread: Spread,
}

#[derive(Serialize)]
struct Figures {
    record_size_bytes: u32,
    runs: u32,
    rows: Vec<Row>,
    machine: Machine,
}

/// Sums a digest of the records that it takes.
struct Sum<T, F> {
    digest_of: F,
    digest: u64,
    all: Arc<AtomicU64>,
    item: PhantomData<fn(T)>,
}

impl<T: Record, F: for<'a> Fn(T::Ref<'a>) -> u64 + 'static> Sink for Sum<T, F> {
    type Item = T;

    #[inline(always)]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        self.digest = self.digest.wrapping_add((self.digest_of)(record));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.all.fetch_add(self.digest, Ordering::Relaxed);
        Ok(())
    }
}

/// What one run took, on the wall and a record.
struct Took {
    elapsed: Duration,
    /// Between a quarter and three quarters of the records: a job of 4,096 channels takes its time to be set
    /// up and dropped, which is no cost of a record.
    records_per_s: f64,
    /// Shards' time without their idle time, in nanoseconds.
    ns_per_record: f64,
}

/// Counters of a running job at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    records: u64,
    idle_ns: u64,
}

impl Mark {
    fn take(job: &RunningJob, sources: u32) -> Mark {
        let records = job.snapshot()[sources as usize..].iter().map(|consumer| consumer.records_in).sum();
        let idle_ns = job.shards().iter().map(|shard| shard.idle_ns.get()).sum();
        Mark { at: Instant::now(), records, idle_ns }
    }
}

/// How often a running job is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Sends `loops` times `records` from each of `sources` to `consumers`, and checks their digest.
fn run<T>(
    config: &Config,
    (sources, consumers): (u32, u32),
    records: &Arc<[T]>,
    loops: u64,
    digest_of: fn(T) -> u64,
) -> Result<Took, CliError>
where
    T: Record + Copy + Send + Sync + for<'a> Record<Ref<'a> = T>,
{
    let env = Environment::with_config(config.clone());
    let digest = Arc::new(AtomicU64::new(0));
    let (shared, all) = (records.clone(), digest.clone());
    env.source("records", move |_: &SourceContext| Ok(InMemory::new(shared.clone(), Repeat::Times(loops))))
        .parallelism(sources)
        .rebalance()
        .parallelism(consumers)
        .sink("sum", move |_: &SubtaskInfo| {
            Ok(Sum { digest_of, digest: 0, all: all.clone(), item: PhantomData })
        });
    let job = env.start("exchange")?;
    let shards = job.shards().len() as f64;
    let count = records.len() as u64 * loops * u64::from(sources);
    let mut marks: [Option<Mark>; 2] = [None, None];
    while !job.is_over() {
        let mark = Mark::take(&job, sources);
        let first = marks[0].get_or_insert(mark);
        if mark.records < count / 4 {
            *first = mark;
        } else if mark.records <= count / 4 * 3 || marks[1].is_none() {
            marks[1] = Some(mark);
        }
        std::thread::sleep(LOOK);
    }
    let elapsed = job.wait()?.elapsed;
    let once = records.iter().fold(0u64, |sum, record| sum.wrapping_add(digest_of(*record)));
    let expected = once.wrapping_mul(loops).wrapping_mul(u64::from(sources));
    let digest = digest.load(Ordering::Relaxed);
    if digest != expected {
        return Err(
            format!("the records' digest is {digest:x} and not {expected:x}: records are wrong").into()
        );
    }
    let (records_per_s, ns_per_record) = match marks {
        [Some(first), Some(last)] if last.records > first.records => {
            let wall_ns = (last.at - first.at).as_nanos() as f64;
            let records = (last.records - first.records) as f64;
            let idle_ns = last.idle_ns.saturating_sub(first.idle_ns) as f64;
            (records / wall_ns * 1e9, (wall_ns * shards - idle_ns).max(0.0) / records)
        }
        // Over before it was looked at twice: a warm-up, whose figures nobody reads.
        _ => (count as f64 / elapsed.as_secs_f64(), 0.0),
    };
    Ok(Took { elapsed, records_per_s, ns_per_record })
}

/// Sources and consumers of so many channels: a power of two, with twice the consumers where it must be.
fn split(channels: u32) -> Result<(u32, u32), CliError> {
    if !channels.is_power_of_two() {
        return Err(format!("--channels {channels} is not a power of two; expected 2, 4, 8 … 65536").into());
    }
    let sources = 1 << (channels.trailing_zeros() / 2);
    Ok((sources, channels / sources))
}

impl Exchange {
    pub fn run(self) -> Result<(), CliError> {
        match self.record_size {
            8 => self.measure::<u64>(|i| i, |r| r),
            16 => self.measure::<(u64, u64)>(|i| (i, i), |r| keyed::row_digest(r.0, r.1)),
            32 => self.measure::<(u64, u64, u64, u64)>(|i| (i, i, i, i), |r| keyed::row_digest(r.0, r.3)),
            64 => self.measure::<(u64, u64, u64, u64, u64, u64, u64, u64)>(
                |i| (i, i, i, i, i, i, i, i),
                |r| keyed::row_digest(r.0, r.7),
            ),
            other => Err(format!("--record-size {other} is none of 8, 16, 32, 64").into()),
        }
    }

    fn measure<T>(self, make: fn(u64) -> T, digest_of: fn(T) -> u64) -> Result<(), CliError>
    where
        T: Record + Copy + Send + Sync + for<'a> Record<Ref<'a> = T>,
    {
        let config = self.job.load()?;
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} must be more than 0 and at most 3600", self.seconds).into());
        }
        let shapes: Vec<(u32, u32)> = self.channels.iter().map(|c| split(*c)).collect::<Result<_, _>>()?;
        let records: Arc<[T]> = (0..DRAWN as u64).map(make).collect();
        // The first runs warm up, and tell how many loops fill the time.
        let mut loops = Vec::new();
        for shape in &shapes {
            let first = (4096 / u64::from(shape.0)).max(16);
            let took = run(&config, *shape, &records, first, digest_of)?;
            loops.push(((first as f64 * self.seconds / took.elapsed.as_secs_f64()) as u64).max(1));
        }
        let mut costs = vec![Vec::new(); shapes.len()];
        let mut rates = vec![Vec::new(); shapes.len()];
        let count = |index: usize| DRAWN as u64 * loops[index] * u64::from(shapes[index].0);
        for number in 0..self.runs {
            for (index, shape) in shapes.iter().enumerate() {
                let took = run(&config, *shape, &records, loops[index], digest_of)?;
                costs[index].push(took.ns_per_record);
                rates[index].push(took.records_per_s);
            }
            if !self.job.json {
                let texts: Vec<String> = costs.iter().map(|c| format!("{:.2}", c[number as usize])).collect();
                eprintln!("run {}: ns a record {}", number + 1, texts.join(" "));
            }
        }
        let rows = shapes.iter().enumerate().map(|(index, (sources, consumers))| {
            let cost = Spread::of(costs[index].iter().copied());
            let ratio = Spread::of_ratios(&costs[index], &costs[0]);
            Row {
                channels: self.channels[index],
                sources: *sources,
                consumers: *consumers,
                records_per_run: count(index),
                records_per_s: Spread::of(rates[index].iter().copied()).median,
                ns_per_record: cost.median,
                ns_per_record_spread: cost,
                ratio: ratio.median,
                ratio_spread: ratio,
            }
        });
        let figures = Figures {
            record_size_bytes: self.record_size,
            runs: self.runs,
            rows: rows.collect(),
            machine: Machine::here(),
        };
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        println!(
            "exchange of {}-byte records, all to all, medians (min … max) of {} runs; ns: shards' time that is not idle",
            figures.record_size_bytes, figures.runs
        );
        println!("  channels   from x to     M records/s   ns a record            over the first");
        for row in &figures.rows {
            let shape = format!("{} x {}", row.sources, row.consumers);
            println!(
                "  {:>8}   {shape:<12}{:>12.1}   {:<22} {}",
                row.channels,
                row.records_per_s / 1e6,
                row.ns_per_record_spread.text(2),
                row.ratio_spread.text(2)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_split_evenly() {
        for (channels, shape) in [(2, (1, 2)), (16, (4, 4)), (512, (16, 32)), (4096, (64, 64))] {
            assert_eq!(split(channels).unwrap(), shape);
        }
        assert!(split(48).is_err());
    }

    /// Goal: every record arrives once, over 256 channels as over 2; `run` compares the digests.
    #[test]
    fn every_record_arrives_once() {
        let records: Arc<[(u64, u64)]> = (0..1_000).map(|i| (i, i * i)).collect();
        for shape in [(1, 2), (16, 16)] {
            let took = run(&Config::default(), shape, &records, 3, |r| keyed::row_digest(r.0, r.1)).unwrap();
            assert!(took.records_per_s > 0.0 && took.records_per_s.is_finite());
        }
    }
}
