//! `bench keyed-count`: pre-drawn (key, value) records in memory, a keyed exchange, a count, and one row
//! (key, count) for each record into a sink that reads it.
//!
//! `--limit` alternates with the hand-written program that does the same work, and prints the ratio pair by
//! pair. The digest over all rows of every run is compared with a plain loop's.

use super::report::{Machine, Spread, millions};
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::{JobOptions, set_parallelism};
use crate::config::Config;
use crate::graph::key_group::GroupHash;
use crate::limit::keyed;
use crate::record::Timestamp;
use crate::sink::Sink;
use crate::source::memory::{InMemory, Repeat};
use crate::source::{SourceContext, SourceError};
use crate::subtask::SubtaskInfo;
use clap::Args;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records drawn for each subtask, and then looped over.
const DRAWN: usize = 1_000_000;

/// Records drawn where instructions are counted: few, since every one is slow then.
const DRAWN_TO_COUNT: usize = 100_000;

/// Options of `bench keyed-count`.
#[derive(Args)]
pub(crate) struct KeyedCount {
    /// Distinct keys, drawn uniformly
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,

    /// Parallel instances of source and count [default: one a shard]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    parallelism: Option<String>,

    /// About how long one run takes, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,

    /// Counted runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Alternate with the hand-written program that does the same work, and print the ratio
    #[arg(long)]
    limit: bool,

    /// One run of so many records, or with --limit of the hand-written program, without warm-up or check: for
    /// counting instructions
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(DRAWN_TO_COUNT as u64..=1 << 40))]
    records: Option<u64>,

    #[command(flatten)]
    job: JobOptions,
}

#[derive(Serialize)]
struct Figures {
    keys: u64,
    parallelism: usize,
    runs: u32,
    records_per_run: u64,
    records_per_s: f64,
    records_per_s_spread: Spread,
    ns_per_record: f64,
    limit_records_per_s: Option<f64>,
    limit_records_per_s_spread: Option<Spread>,
    limit_program: Option<String>,
    ratio: Option<f64>,
    ratio_spread: Option<Spread>,
    digest_checked: bool,
    key_group_hash: &'static str,
    machine: Machine,
}

/// Folds the rows of one subtask into a digest.
struct DigestSink {
    digest: u64,
    all: Arc<AtomicU64>,
}

impl Sink for DigestSink {
    type Item = (u64, u64);

    #[inline(always)]
    fn write(&mut self, (key, count): (u64, u64), _: Timestamp) -> Result<(), SourceError> {
        self.digest = self.digest.wrapping_add(keyed::row_digest(key, count));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.all.fetch_add(self.digest, Ordering::Relaxed);
        Ok(())
    }
}

/// One run of the engine: seconds and digest.
fn run_engine(config: &Config, records: &[Arc<[(u64, u64)]>], loops: u64) -> Result<(f64, u64), CliError> {
    let env = Environment::with_config(config.clone());
    let digest = Arc::new(AtomicU64::new(0));
    let (records, all) = (records.to_vec(), digest.clone());
    env.source("records", move |cx: &SourceContext| {
        Ok(InMemory::new(records[cx.subtask as usize].clone(), Repeat::Times(loops)))
    })
    .key_by::<u64, _>(|(key, _)| key)
    .count()
    .sink("digest", move |_: &SubtaskInfo| Ok(DigestSink { digest: 0, all: all.clone() }));
    let summary = env.execute("keyed-count")?;
    Ok((summary.elapsed.as_secs_f64(), digest.load(Ordering::Relaxed)))
}

impl KeyedCount {
    /// What `tools/callgrind-count` counts: all that costs instructions by the record is the engine's.
    fn run_once(&self, config: &Config, parallelism: usize, records: u64) -> Result<(), CliError> {
        let drawn = (0..parallelism).map(|i| keyed::records(DRAWN_TO_COUNT, self.keys, 1 + i as u64));
        let loops = records / DRAWN_TO_COUNT as u64;
        let digest = if self.limit {
            let drawn: Vec<_> = drawn.map(Arc::new).collect();
            let variant = keyed::Variant { exchange: keyed::Exchange::Scatter, table: keyed::Table::Batched };
            keyed::run(&drawn, self.keys as usize, loops * DRAWN_TO_COUNT as u64, variant).digest
        } else {
            let drawn: Vec<Arc<[(u64, u64)]>> = drawn.map(Arc::from).collect();
            run_engine(config, &drawn, loops)?.1
        };
        println!("{} records of each instance, digest {digest:x}", loops * DRAWN_TO_COUNT as u64);
        Ok(())
    }

    pub fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        let shards = config.shards().unwrap_or_else(|| Machine::here().cores as u32);
        let parallelism =
            if config.is_set("parallelism.default") { config.parallelism() } else { shards } as usize;
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} must be more than 0 and at most 3600", self.seconds).into());
        }
        if let Some(records) = self.records {
            return self.run_once(&config, parallelism, records);
        }
        let drawn: Vec<Vec<(u64, u64)>> =
            (0..parallelism).map(|i| keyed::records(DRAWN, self.keys, 1 + i as u64)).collect();
        let records: Vec<Arc<[(u64, u64)]>> = drawn.iter().map(|r| Arc::from(r.as_slice())).collect();
        let vectors: Vec<Arc<Vec<(u64, u64)>>> = drawn.into_iter().map(Arc::new).collect();
        // The first run warms up, and tells how many loops fill the time.
        let (seconds, digest) = run_engine(&config, &records, 4)?;
        let check = |digest, loops: u64| {
            let expected = keyed::plain_digest(&vectors, loops * DRAWN as u64);
            if digest == expected {
                Ok(())
            } else {
                Err(format!("the rows' digest is {digest:x} and not {expected:x}: rows are wrong"))
            }
        };
        check(digest, 4)?;
        let loops = ((4.0 * self.seconds / seconds) as u64).max(1);
        let per_thread = loops * DRAWN as u64;
        let variant = self.limit.then(|| keyed::fastest(&vectors, self.keys as usize, per_thread / 8 + 1));
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        let all = (per_thread * parallelism as u64) as f64;
        for run in 0..self.runs {
            let (seconds, digest) = run_engine(&config, &records, loops)?;
            if run == 0 {
                check(digest, loops)?;
            }
            ours.push(all / seconds);
            if let Some(variant) = variant {
                let outcome = keyed::run(&vectors, self.keys as usize, per_thread, variant);
                if outcome.digest != digest {
                    return Err("the digests of the engine and of the hand-written program differ".into());
                }
                limits.push(outcome.records_per_second());
            }
            if !self.job.json {
                match limits.last() {
                    Some(limit) => eprintln!(
                        "run {}: {}, limit {}, ratio {:.3}",
                        run + 1,
                        millions(ours[run as usize]),
                        millions(*limit),
                        ours[run as usize] / limit
                    ),
                    None => eprintln!("run {}: {}", run + 1, millions(ours[run as usize])),
                }
            }
        }
        let rate = Spread::of(ours.iter().copied());
        let limit = variant.map(|_| Spread::of(limits.iter().copied()));
        let ratio = variant.map(|_| Spread::of_ratios(&ours, &limits));
        let key_group_hash = match config.key_group_hash() {
            GroupHash::Flink => "flink",
            GroupHash::Fast => "fast",
        };
        let figures = Figures {
            keys: self.keys,
            parallelism,
            runs: self.runs,
            records_per_run: all as u64,
            records_per_s: rate.median,
            records_per_s_spread: rate,
            ns_per_record: 1e9 / rate.median,
            limit_records_per_s: limit.map(|l| l.median),
            limit_records_per_s_spread: limit,
            limit_program: variant.map(|v| format!("{v:?}")),
            ratio: ratio.map(|r| r.median),
            ratio_spread: ratio,
            digest_checked: true,
            key_group_hash,
            machine: Machine::here(),
        };
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        println!(
            "keyed count, {} keys, parallelism {parallelism}, median (min … max) of {} runs",
            self.keys, self.runs
        );
        println!("  engine   {} M records/s, {:.2} ns a record", scale(&rate), figures.ns_per_record);
        if let (Some(limit), Some(ratio)) = (limit, ratio) {
            println!("  limit    {} M records/s, hand-written, the same work", scale(&limit));
            println!("  ratio    {}", ratio.text(3));
        }
        println!("  digests of all rows agree with a plain loop; key groups by {key_group_hash} hash");
        Ok(())
    }
}

fn scale(spread: &Spread) -> String {
    let Spread { median, min, max } = spread;
    Spread { median: median / 1e6, min: min / 1e6, max: max / 1e6 }.text(1)
}
