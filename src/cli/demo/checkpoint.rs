//! `demo checkpoint`: two sources, a keyed count, and a checkpoint every few seconds; how long each takes, and of
//! what that time consists.
//!
//! With `--slow` the count takes 5 ms for each record. Its input fills, and a barrier waits behind what lies there:
//! the checkpoint takes seconds, and its snapshot still microseconds.

use super::{duration, run_seconds};
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::JobOptions;
use crate::config::Origin;
use crate::coordinator::checkpoint::{CheckpointStats, CheckpointStatus, SubtaskStats};
use crate::coordinator::{JobError, RunningJob};
use crate::graph::plan::Plan;
use crate::operator::{Output, Wait};
use crate::sink::blackhole::Blackhole;
use crate::source::SourceContext;
use crate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate demo checkpoint                    what a checkpoint takes when nothing is in its way
  tidegate demo checkpoint --slow             the same snapshot behind seconds of queued records
  tidegate demo checkpoint --slow --timeout 1s
                                              checkpoints that expire, and what the job does then
  tidegate demo checkpoint --json             for programs";

/// Records that the sources emit in a second, together.
const RATE: f64 = 2_000.0;

/// With header and key a record takes 1 kB.
const PAYLOAD_BYTES: usize = 1_000 - 12;

const KEYS: u64 = 16;

/// What the count takes for each record with `--slow`.
const SLOW: Duration = Duration::from_millis(5);

/// How often to look for news.
const LOOK: Duration = Duration::from_millis(20);

/// Options of `demo checkpoint`.
#[derive(Args)]
pub(crate) struct Checkpoint {
    /// Take 5 ms for each record in the count
    #[arg(long)]
    slow: bool,

    /// With --slow: sleep in the operator's code, as one must not
    #[arg(long, requires = "slow")]
    blocking: bool,

    /// Time between two checkpoints
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    interval: Duration,

    /// Age at which a checkpoint expires [default: 10 min]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// How long to run
    #[arg(long, default_value = "30", value_name = "S", value_parser = run_seconds)]
    seconds: f64,

    #[command(flatten)]
    job: JobOptions,
}

/// What was seen.
#[derive(Serialize)]
struct Seen {
    checkpoints: Vec<Seen1>,
    restarts: u32,
}

/// One checkpoint.
#[derive(Serialize)]
struct Seen1 {
    id: u64,
    status: CheckpointStatus,
    duration_ms: f64,
    /// Bytes of state.
    bytes: u64,
    /// Bytes written for it.
    persisted_bytes: u64,
    /// Longest expected wait of a barrier, told at the trigger.
    predicted_wait_ms: Option<f64>,
    /// The same if every channel were full.
    static_wait_ms: Option<f64>,
    /// Longest start delay and alignment together.
    wait_ms: f64,
    failure: Option<String>,
    subtasks: Vec<SeenSubtask>,
}

#[derive(Serialize)]
struct SeenSubtask {
    vertex: String,
    subtask: u32,
    start_delay_ms: f64,
    alignment_ms: f64,
    sync_ms: f64,
    async_ms: f64,
    end_to_end_ms: Option<f64>,
    bytes: u64,
    persisted_bytes: u64,
}

fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

impl Checkpoint {
    pub fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        let mut set = |key: &str, value: Duration| {
            config.set(key, &format!("{} us", value.as_micros()), Origin::CommandLine)
        };
        set("execution.checkpointing.interval", self.interval)?;
        if let Some(timeout) = self.timeout {
            set("execution.checkpointing.timeout", timeout)?;
        }
        config.validate()?;
        let env = Environment::with_config(config);
        let generator = GeneratorPlan::new(GeneratorOptions {
            rate: Some(RATE),
            payload_bytes: PAYLOAD_BYTES,
            keys: KeyDistribution::RoundRobin { keys: KEYS },
            ..GeneratorOptions::default()
        })?;
        let (slow, blocking) = (self.slow, self.blocking);
        env.source("source", move |cx: &SourceContext| Ok(generator.payloads(cx)))
            .parallelism(2)
            .key_by::<u64, _>(|(key, _)| key)
            .process::<u64, u64, _, _>("count", move |_, count, out: &mut Output<'_, u64>| {
                *count += 1;
                out.emit(*count);
                match (slow, blocking) {
                    (false, _) => Wait::Done,
                    (true, false) => out.busy_for(SLOW),
                    (true, true) => {
                        std::thread::sleep(SLOW);
                        Wait::Done
                    }
                }
            })
            .name("count")
            .parallelism(2)
            .sink("blackhole", |_| Ok(Blackhole::new(Arc::default())));
        self.watch(env.start("checkpoint demo")?)
    }

    fn watch(&self, job: RunningJob) -> Result<(), CliError> {
        if !self.job.json {
            print!("{}", job.plan().describe());
            println!(
                "   checkpoint   after    status  duration  predicted wait  longest wait  bytes written"
            );
        }
        let started = Instant::now();
        let mut seen: Vec<CheckpointStats> = Vec::new();
        while started.elapsed().as_secs_f64() < self.seconds && !job.is_over() {
            std::thread::sleep(LOOK);
            let Some(report) = job.checkpoints() else { continue };
            let newest = seen.last().map_or(0, |stats| stats.id);
            let mut ended: Vec<_> =
                report.history.iter().filter(|stats| stats.id > newest).cloned().collect();
            ended.retain(|stats| stats.status != CheckpointStatus::InProgress);
            ended.sort_by_key(|stats| stats.id);
            for stats in ended {
                if !self.job.json {
                    println!("{}", line(&stats, started.elapsed()));
                }
                seen.push(stats);
            }
        }
        let plan = job.plan().clone();
        let restarts = job.restarts();
        if job.is_over() {
            job.wait()?;
        } else {
            job.cancel();
            match job.wait() {
                Ok(_) | Err(JobError::Canceled) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.job.json {
            let checkpoints = seen.iter().map(|stats| summary(stats, &plan)).collect();
            println!("{}", serde_json::to_string(&Seen { checkpoints, restarts })?);
            return Ok(());
        }
        let newest = seen.iter().rev().find(|stats| stats.status == CheckpointStatus::Completed);
        match newest {
            Some(stats) => print!("{}", breakdown(stats, &plan)),
            None => println!("\nNo checkpoint was completed."),
        }
        if restarts > 0 {
            println!("The job was restarted {restarts} times.");
        }
        Ok(())
    }
}

fn vertex_name(plan: &Plan, subtask: &SubtaskStats) -> String {
    plan.vertices[subtask.vertex].name.clone()
}

fn wait_ns(subtask: &SubtaskStats) -> u64 {
    subtask.timings.start_delay_ns + subtask.timings.alignment_ns
}

fn summary(stats: &CheckpointStats, plan: &Plan) -> Seen1 {
    let longest = |of: fn(&SubtaskStats) -> Option<u64>| stats.subtasks.iter().filter_map(of).max().map(ms);
    Seen1 {
        id: stats.id,
        status: stats.status,
        duration_ms: ms(stats.duration_ns()),
        bytes: stats.state_bytes,
        persisted_bytes: stats.written_bytes,
        predicted_wait_ms: longest(|subtask| subtask.predicted_wait_ns),
        static_wait_ms: longest(|subtask| subtask.static_wait_ns),
        wait_ms: stats.subtasks.iter().map(wait_ns).max().map_or(0.0, ms),
        failure: stats.failure.as_ref().map(|failure| failure.message.clone()),
        subtasks: stats
            .subtasks
            .iter()
            .map(|subtask| SeenSubtask {
                vertex: vertex_name(plan, subtask),
                subtask: subtask.subtask,
                start_delay_ms: ms(subtask.timings.start_delay_ns),
                alignment_ms: ms(subtask.timings.alignment_ns),
                sync_ms: ms(subtask.timings.sync_ns),
                async_ms: ms(subtask.timings.async_ns),
                end_to_end_ms: subtask.end_to_end_ns.map(ms),
                bytes: subtask.timings.state_bytes,
                persisted_bytes: subtask.timings.written_bytes,
            })
            .collect(),
    }
}

/// One line for a checkpoint that has ended.
fn line(stats: &CheckpointStats, elapsed: Duration) -> String {
    let status = match stats.status {
        CheckpointStatus::Completed => "completed",
        CheckpointStatus::Failed => "failed",
        CheckpointStatus::InProgress => "under way",
    };
    let predicted = stats.subtasks.iter().filter_map(|subtask| subtask.predicted_wait_ns).max();
    let waited = stats.subtasks.iter().map(wait_ns).max().unwrap_or(0);
    let mut line = format!(
        "   {:>10} {:>6.1}s {status:>9} {:>7.2}ms {:>13}ms {:>11.2}ms {:>14}",
        stats.id,
        elapsed.as_secs_f64(),
        ms(stats.duration_ns()),
        predicted.map_or("-".to_string(), |ns| format!("{:.2}", ms(ns))),
        ms(waited),
        stats.written_bytes,
    );
    if let Some(failure) = &stats.failure {
        let _ = write!(line, "  {}", failure.message);
    }
    line
}

/// The parts of a checkpoint's time, and what they say.
fn breakdown(stats: &CheckpointStats, plan: &Plan) -> String {
    let mut text = format!("\nCheckpoint {}, in milliseconds:\n", stats.id);
    let width = stats.subtasks.iter().map(|s| vertex_name(plan, s).len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "  {:width$} subtask start_delay alignment    sync   async end_to_end      bytes",
        "vertex"
    );
    for subtask in &stats.subtasks {
        let timings = &subtask.timings;
        let _ = writeln!(
            text,
            "  {:width$} {:>7} {:>11.3} {:>9.3} {:>7.3} {:>7.3} {:>10.3} {:>10}",
            vertex_name(plan, subtask),
            subtask.subtask,
            ms(timings.start_delay_ns),
            ms(timings.alignment_ns),
            ms(timings.sync_ns),
            ms(timings.async_ns),
            ms(subtask.end_to_end_ns.unwrap_or(0)),
            timings.state_bytes,
        );
    }
    let _ = writeln!(text, "\n{}", sentence(stats, plan));
    text
}

/// Where the time went, in words.
fn sentence(stats: &CheckpointStats, plan: &Plan) -> String {
    let all = stats.duration_ns();
    let Some(last) = stats.subtasks.iter().max_by_key(|subtask| subtask.end_to_end_ns) else {
        return format!("Checkpoint {} took {:.2} ms.", stats.id, ms(all));
    };
    let name = format!("{} ({}/{})", vertex_name(plan, last), last.subtask + 1, {
        plan.vertices[last.vertex].parallelism
    });
    let (waited, snapshot) = (wait_ns(last), last.timings.sync_ns + last.timings.async_ns);
    let mut text = format!("Of {:.2} ms, {name} came last: ", ms(all));
    if waited > snapshot + stats.commit_ns {
        let _ = write!(
            text,
            "its barrier waited {:.2} ms behind records that were on their way, its snapshot took {:.2} ms.",
            ms(waited),
            ms(snapshot)
        );
        if last.timings.alignment_ns > last.timings.start_delay_ns
            && let Some(channel) = last.timings.last_channel
        {
            let _ = write!(text, " It waited for channel {channel} longest.");
        }
    } else {
        let _ = write!(
            text,
            "{:.2} ms until its barrier came, {:.2} ms for its snapshot, and {:.2} ms for the commit.",
            ms(waited),
            ms(snapshot),
            ms(stats.commit_ns)
        );
    }
    if let Some(predicted) = last.predicted_wait_ns.filter(|ns| *ns > 1_000_000) {
        let _ = write!(
            text,
            " Predicted at the trigger: {:.2} ms, {:.2} of what it was.",
            ms(predicted),
            predicted as f64 / waited.max(1) as f64
        );
    }
    text
}
