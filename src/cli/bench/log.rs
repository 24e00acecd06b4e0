//! `bench log`: how fast the checkpoint log writes, and how soon one small append is durable.
//!
//! | figure | how |
//! | --- | --- |
//! | bandwidth | frames of one staging block, one copy and one checksum each, over recycled files, last sync included |
//! | one append | a small frame, flushed, until it is durable |
//!
//! With `--limit`, each run is followed by the same bytes from a hand-written program without frames, checksums
//! or file switches, on the same disk: the disk's own speed moves with whoever else is on it, the ratio does not.

use super::report::{Machine, Spread};
use crate::cli::CliError;
use crate::limit::log::LimitLog;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_storage::config::{BackendChoice, LogConfig};
use tidegate_storage::device::Wake;
use tidegate_storage::device::directory::{ReadMode, RealDirectory};
use tidegate_storage::device::probe::{self, Chosen};
use tidegate_storage::format::{FRAME_HEADER_BYTES, frame_stored_bytes};
use tidegate_storage::handle::Handle;
use tidegate_storage::log::file::{FileKind, Keeper, LogFiles, SharedFiles};
use tidegate_storage::log::frame::{FrameKind, FrameTag};
use tidegate_storage::log::reader::LogReader;
use tidegate_storage::log::reclaim::Needs;
use tidegate_storage::log::writer::{AppendError, LogSeed, LogWriter, Outcome, Span};

/// Job of the bench's files.
const LINEAGE: u128 = 0x62_656e_6368;

/// What one round writes at least, and at most: one log file, and enough to take a tenth of a second at 5 GB/s.
const BYTES_MIN: u64 = 64 << 20;
const BYTES_MAX: u64 = 512 << 20;

/// How long a sleep may take before the state is looked at again.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `bench log`.
#[derive(Args)]
pub(crate) struct Log {
    /// Where to write [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// About how long all runs together take, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// Counted runs, each followed by the limit's
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,

    /// Bytes of the small append's payload
    #[arg(long, default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(0..=250_000))]
    append_bytes: u32,

    /// What writes: auto, uring or blocking
    #[arg(long, value_name = "auto|uring|blocking", default_value = "auto")]
    backend: String,

    /// Alternate with the hand-written program
    #[arg(long)]
    limit: bool,

    /// Print one JSON object for programs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Figures {
    backend: String,
    bytes_per_run: u64,
    runs: u32,
    log_mb_per_s: f64,
    log_mb_per_s_spread: Spread,
    limit_mb_per_s: Option<f64>,
    limit_mb_per_s_spread: Option<Spread>,
    ratio: Option<f64>,
    ratio_spread: Option<Spread>,
    append_bytes: u32,
    appends_per_run: usize,
    append_p50_us: f64,
    append_p50_us_spread: Spread,
    append_p99_us: f64,
    limit_append_p50_us: Option<f64>,
    limit_append_p99_us: Option<f64>,
    append_ratio: Option<f64>,
    append_ratio_spread: Option<Spread>,
    machine: Machine,
}

/// The engine's log over recycled files.
struct Bench {
    config: LogConfig,
    chosen: Chosen,
    files: SharedFiles,
    keeper: Keeper,
    directory: Arc<RealDirectory>,
    payload: Vec<u8>,
    checkpoint: u64,
}

impl Bench {
    fn open(&self) -> Result<LogWriter, CliError> {
        let source = self.keeper.source(FileKind::Data, self.config.file_size_bytes, Wake::nobody());
        let seed = LogSeed::new(
            self.config.clone(),
            LINEAGE,
            self.chosen.clone(),
            Box::new(source),
            Wake::nobody(),
        )?;
        let mut writer = seed.open()?;
        // The first file is named and open before the clock runs, as it is in a job.
        let begun = Instant::now();
        while let Err(AppendError::NoFile) = writer.append(self.tag(), b"first") {
            writer.blocking_poll(begun.elapsed(), LOOK)?;
        }
        settle(&mut writer, begun, 0)?;
        Ok(writer)
    }

    fn tag(&self) -> FrameTag {
        FrameTag { kind: FrameKind::Data, checkpoint: self.checkpoint, owner: 0 }
    }

    /// Appends frames of about `bytes`; returns what was written and how long it took, and some handles.
    fn bandwidth(&mut self, bytes: u64) -> Result<(u64, Duration, Vec<Handle>), CliError> {
        self.checkpoint += 1;
        let mut writer = self.open()?;
        let tag = self.tag();
        let mut handles = Vec::new();
        let begun = Instant::now();
        let from = writer.position();
        let mut frames = 0u64;
        while writer.position() - from < bytes {
            match writer.append(tag, &self.payload) {
                Ok(handle) => {
                    frames += 1;
                    if frames.is_multiple_of(64) {
                        handles.push(handle);
                    }
                    writer.poll(begun.elapsed())?;
                }
                Err(AppendError::BufferFull | AppendError::NoFile) => {
                    writer.blocking_poll(begun.elapsed(), LOOK)?;
                }
                Err(AppendError::Storage(error)) => return Err(error.into()),
            }
        }
        settle(&mut writer, begun, from)?;
        let took = begun.elapsed();
        Ok((writer.position() - from, took, handles))
    }

    fn appends(&mut self, count: usize, bytes: usize) -> Result<Vec<Duration>, CliError> {
        self.checkpoint += 1;
        let mut writer = self.open()?;
        let tag = self.tag();
        let mut times = Vec::with_capacity(count);
        let clock = Instant::now();
        for _ in 0..count {
            let begun = Instant::now();
            let from = writer.position();
            while let Err(error) = writer.append(tag, &self.payload[..bytes]) {
                if let AppendError::Storage(error) = error {
                    return Err(error.into());
                }
                writer.blocking_poll(clock.elapsed(), LOOK)?;
            }
            settle(&mut writer, clock, from)?;
            times.push(begun.elapsed());
        }
        Ok(times)
    }

    /// All files are free again: what a job's are after its checkpoints are subsumed.
    fn recycle(&self) -> Result<(), CliError> {
        let needs = Needs { in_use: BTreeSet::new(), oldest_pending: u64::MAX, published: u64::MAX };
        // The keeper hears of the writer's last files by its own queue, a moment later.
        for _ in 0..100 {
            let mut files = self.files.lock().map_err(|_| "the log files' keeper has panicked")?;
            files.reclaim(&needs)?;
            if files.counts().active == 0 {
                return Ok(());
            }
            drop(files);
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("files are still in use although nobody writes".into())
    }
}

/// Flushes, and sleeps until all from `from` on is durable.
fn settle(writer: &mut LogWriter, clock: Instant, from: u64) -> Result<(), CliError> {
    writer.flush();
    let span = Span { from, to: writer.position() };
    loop {
        match writer.outcome(span) {
            Outcome::Durable => return Ok(()),
            Outcome::Failed(error) => return Err(error.into()),
            Outcome::Pending => writer.blocking_poll(clock.elapsed(), LOOK)?,
        }
    }
}

fn micros(times: &mut [Duration], quantile: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * quantile) as usize].as_nanos() as f64 / 1e3
}

/// A directory of this process, removed with everything in it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Log {
    pub fn run(self) -> Result<(), CliError> {
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} must be more than 0 and at most 3600", self.seconds).into());
        }
        let backend = match self.backend.as_str() {
            "auto" => BackendChoice::Auto,
            "uring" => BackendChoice::Uring,
            "blocking" => BackendChoice::Blocking,
            other => return Err(format!("--backend {other:?} is none of auto, uring, blocking").into()),
        };
        let scratch = Scratch(self.dir.join(format!("tidegate-bench-log-{}", std::process::id())));
        std::fs::create_dir_all(&scratch.0).map_err(|e| format!("--dir {}: {e}", self.dir.display()))?;
        let config = LogConfig { backend, spare_files_max: 1000, ..LogConfig::default() };
        let directory = Arc::new(RealDirectory::new(&scratch.0));
        let chosen = probe::choose(&*directory, "", &config)?;
        let files = LogFiles::open(directory.clone(), LINEAGE, 1, chosen.direct, &config)?;
        let files = Arc::new(Mutex::new(files));
        let keeper = Keeper::start(files.clone())?;
        let block = config.block_size_bytes;
        let payload: Vec<u8> = (0..block - FRAME_HEADER_BYTES).map(|i| (i * 31) as u8).collect();
        let mut bench = Bench { config, chosen, files, keeper, directory, payload, checkpoint: 0 };

        let sides = if self.limit { 2.0 } else { 1.0 };
        // Half of the time is for bandwidth, half for appends of some 0.2 ms.
        let run_s = self.seconds / f64::from(self.runs) / sides / 2.0;
        // Warms up, and makes the files that all later runs recycle: 512 MiB on a quick disk, less on a slow one.
        let begun = Instant::now();
        let (_, _, handles) = bench.bandwidth(BYTES_MIN)?;
        let mut reader = LogReader::new(bench.directory.clone(), LINEAGE, ReadMode::Direct);
        for handle in &handles {
            let (_, read) = reader.read(*handle)?;
            if read != bench.payload {
                return Err(format!("frame {handle} is not what was written").into());
            }
        }
        drop(reader);
        bench.recycle()?;
        let (written, took, _) = bench.bandwidth(BYTES_MIN)?;
        bench.recycle()?;
        let rate = written as f64 / took.as_secs_f64();
        let bytes = ((rate * run_s) as u64).next_multiple_of(BYTES_MIN).min(BYTES_MAX);
        bench.bandwidth(bytes)?;
        bench.recycle()?;
        let mut limit = if self.limit {
            let limit = LimitLog::new(&self.dir, bytes as usize);
            Some(limit.map_err(|e| format!("--limit needs io_uring and direct I/O here: {e}"))?)
        } else {
            None
        };
        if !self.json {
            eprintln!("files made and checked in {:.1} s: {}", begun.elapsed().as_secs_f64(), bench.chosen);
        }
        let rounds = (run_s * rate / bytes as f64).round().max(1.0) as u32;
        let appends = ((run_s / 0.0002) as usize).clamp(50, 100_000);
        let append_bytes = self.append_bytes as usize;
        let stored = frame_stored_bytes(append_bytes);

        let (mut log, mut limits, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut limit_p50, mut limit_p99) = (Vec::new(), Vec::new());
        for run in 0..self.runs {
            let (mut written, mut took) = (0, Duration::ZERO);
            let (mut limit_written, mut limit_took) = (0, Duration::ZERO);
            for _ in 0..rounds {
                let round = bench.bandwidth(bytes)?;
                (written, took) = (written + round.0, took + round.1);
                bench.recycle()?;
                if let Some(limit) = &mut limit {
                    let round = limit.write_all()?;
                    (limit_written, limit_took) = (limit_written + round.0, limit_took + round.1);
                }
            }
            log.push(written as f64 / took.as_secs_f64() / 1e6);
            let mut times = bench.appends(appends, append_bytes)?;
            bench.recycle()?;
            p50.push(micros(&mut times, 0.5));
            p99.push(micros(&mut times, 0.99));
            if let Some(limit) = &mut limit {
                limits.push(limit_written as f64 / limit_took.as_secs_f64() / 1e6);
                let mut times = limit.appends(appends, stored)?;
                limit_p50.push(micros(&mut times, 0.5));
                limit_p99.push(micros(&mut times, 0.99));
            }
            if !self.json {
                let beside = match (limits.last(), limit_p50.last()) {
                    (Some(limit), Some(append)) => format!("; limit {limit:.0} MB/s, append {append:.0} us"),
                    _ => String::new(),
                };
                eprintln!(
                    "run {}: {:.0} MB/s, append {:.0} us{beside}",
                    run + 1,
                    log[run as usize],
                    p50[run as usize]
                );
            }
        }
        let spread = |figures: &[f64]| (!figures.is_empty()).then(|| Spread::of(figures.iter().copied()));
        let ratio =
            |ours: &[f64], theirs: &[f64]| (!theirs.is_empty()).then(|| Spread::of_ratios(ours, theirs));
        let median = |spread: &Option<Spread>| spread.as_ref().map(|spread| spread.median);
        let (limit_spread, ratio_spread) = (spread(&limits), ratio(&log, &limits));
        let append_ratio_spread = ratio(&p50, &limit_p50);
        let log_spread = Spread::of(log);
        let p50_spread = Spread::of(p50);
        let figures = Figures {
            backend: bench.open()?.describe(),
            bytes_per_run: bytes * u64::from(rounds),
            runs: self.runs,
            log_mb_per_s: log_spread.median,
            log_mb_per_s_spread: log_spread,
            limit_mb_per_s: median(&limit_spread),
            limit_mb_per_s_spread: limit_spread,
            ratio: median(&ratio_spread),
            ratio_spread,
            append_bytes: self.append_bytes,
            appends_per_run: appends,
            append_p50_us: p50_spread.median,
            append_p50_us_spread: p50_spread,
            append_p99_us: Spread::of(p99).median,
            limit_append_p50_us: median(&spread(&limit_p50)),
            limit_append_p99_us: median(&spread(&limit_p99)),
            append_ratio: median(&append_ratio_spread),
            append_ratio_spread,
            machine: Machine::here(),
        };
        drop(limit);
        drop(bench);
        drop(scratch);
        if self.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        figures.print();
        Ok(())
    }
}

impl Figures {
    fn print(&self) {
        println!(
            "the log by {}, medians (min … max) of {} runs of {} MiB and {} appends",
            self.backend,
            self.runs,
            self.bytes_per_run >> 20,
            self.appends_per_run
        );
        println!("  bandwidth            {} MB/s", self.log_mb_per_s_spread.text(0));
        println!(
            "  append of {} B    p50 {} us, p99 {:.0} us",
            self.append_bytes,
            self.append_p50_us_spread.text(0),
            self.append_p99_us
        );
        if let (Some(limit), Some(ratio), Some(append), Some(p99), Some(append_ratio)) = (
            &self.limit_mb_per_s_spread,
            &self.ratio_spread,
            self.limit_append_p50_us,
            self.limit_append_p99_us,
            &self.append_ratio_spread,
        ) {
            println!(
                "  limit                {} MB/s; append p50 {append:.0} us, p99 {p99:.0} us",
                limit.text(0)
            );
            println!(
                "  over the limit       bandwidth {}, append p50 {}",
                ratio.text(2),
                append_ratio.text(2)
            );
        }
    }
}
