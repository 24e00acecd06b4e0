//! `bench drivers`: every driver with every idle strategy, on a job that waits.
//!
//! | figure | how |
//! | --- | --- |
//! | wake-up | mail to the task of a waiting shard, from sending it until it is run |
//! | turns a second | turns of that shard meanwhile; of a spinning one the price of looking |
//! | idle CPU | time of all the process's threads over time on the wall, nothing being sent |

use super::report::{Machine, Spread};
use crate::api::Environment;
use crate::cli::CliError;
use crate::config::{Config, Origin};
use crate::coordinator::RunningJob;
use crate::coordinator::probe::Probe;
use crate::operator::Collector;
use crate::sink::blackhole::Blackhole;
use crate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use crate::subtask::SubtaskInfo;
use clap::Args;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Time between two wake-ups: longer than any strategy looks before it sleeps.
const BETWEEN: Duration = Duration::from_millis(2);

/// Options of `bench drivers`.
#[derive(Args)]
pub(crate) struct Drivers {
    /// How long a waiting job is watched, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,

    /// Wake-ups of each driver and strategy
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    wakes: u32,

    /// Set a configuration key, as in Flink
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    define: Vec<String>,

    /// Print one JSON object for programs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    driver: &'static str,
    idle: &'static str,
    wake_p50_us: f64,
    wake_p99_us: f64,
    turns_per_s: f64,
    parks_per_s: f64,
    idle_cpu_percent: f64,
}

#[derive(Serialize)]
struct Figures {
    shards: usize,
    wakes: u32,
    rows: Vec<Row>,
    found: Vec<String>,
    machine: Machine,
}

/// A source that has nothing to emit until it is stopped.
struct Waiting;

impl Source for Waiting {
    type Item = u64;

    fn poll<C: Collector<u64>>(
        &mut self,
        _: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        Ok(SourcePoll::Wait)
    }
}

fn start(config: &Config) -> Result<RunningJob, CliError> {
    let env = Environment::with_config(config.clone());
    env.source("waiting", |_: &SourceContext| Ok(Waiting))
        .rebalance()
        .sink("blackhole", |_: &SubtaskInfo| Ok(Blackhole::<u64>::new(std::sync::Arc::default())));
    Ok(env.start("drivers")?)
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    // SAFETY: a `rusage` is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`, which lives until it returns.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

impl Drivers {
    pub fn run(self) -> Result<(), CliError> {
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} must be more than 0 and at most 3600", self.seconds).into());
        }
        let probe = Probe::look();
        let mut rows = Vec::new();
        let mut shards = 0;
        for driver in ["thread", "glommio"] {
            if driver == "glommio" && (!cfg!(feature = "glommio") || probe.io_uring.is_err()) {
                continue;
            }
            for idle in ["spin", "backoff", "park"] {
                let mut config = Config::load(None, &self.define)?;
                config.set("tidegate.driver", driver, Origin::CommandLine)?;
                config.set("tidegate.idle", idle, Origin::CommandLine)?;
                config.validate()?;
                rows.push(self.measure(&config, driver, idle, &mut shards)?);
            }
        }
        let mut found: Vec<String> = probe.to_string().lines().map(str::to_string).collect();
        if !cfg!(feature = "glommio") {
            found.push("glommio: not in this build (cargo build --release --features glommio)".to_string());
        }
        let figures = Figures { shards, wakes: self.wakes, rows, found, machine: Machine::here() };
        if self.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        println!("a waiting job on {} shards, {} wake-ups by mail", figures.shards, figures.wakes);
        println!("  driver   idle      wake p50 us   p99 us       turns/s    parks/s   idle CPU of one core");
        for row in &figures.rows {
            println!(
                "  {:<9}{:<9}{:>12.2}{:>9.1}{:>14.0}{:>11.0}{:>15.2} %",
                row.driver,
                row.idle,
                row.wake_p50_us,
                row.wake_p99_us,
                row.turns_per_s,
                row.parks_per_s,
                row.idle_cpu_percent
            );
        }
        for line in &figures.found {
            println!("  {line}");
        }
        Ok(())
    }

    fn measure(
        &self,
        config: &Config,
        driver: &'static str,
        idle: &'static str,
        shards: &mut usize,
    ) -> Result<Row, CliError> {
        let job = start(config)?;
        *shards = job.shards().len();
        // The first wakes find the job still being set up.
        for _ in 0..3 {
            job.blocking_probe(0);
            std::thread::sleep(BETWEEN);
        }
        let total = |f: fn(&tidegate_shard::account::ShardMetrics) -> u64| -> u64 {
            job.shards().iter().map(|shard| f(shard)).sum()
        };
        let (turns, parks) = (total(|s| s.turns.get()), total(|s| s.parks.get()));
        let (began, cpu) = (Instant::now(), cpu_time());
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let (elapsed, cpu) = (began.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
        let per_shard = |n: u64| n as f64 / elapsed / *shards as f64;
        let (turns, parks) =
            (per_shard(total(|s| s.turns.get()) - turns), per_shard(total(|s| s.parks.get()) - parks));
        let mut wakes = Vec::new();
        for _ in 0..self.wakes {
            std::thread::sleep(BETWEEN);
            let Some(waited) = job.blocking_probe(0) else { break };
            wakes.push(waited.as_nanos() as f64 / 1e3);
        }
        job.stop();
        job.wait()?;
        wakes.sort_by(f64::total_cmp);
        let Some(last) = wakes.len().checked_sub(1) else {
            return Err("the waiting job ended before it was woken".into());
        };
        Ok(Row {
            driver,
            idle,
            wake_p50_us: Spread::of(wakes.iter().copied()).median,
            wake_p99_us: wakes[last * 99 / 100],
            turns_per_s: turns,
            parks_per_s: parks,
            idle_cpu_percent: cpu / elapsed * 100.0,
        })
    }
}
