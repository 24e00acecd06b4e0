//! Watching a job: counters at the ends of windows, their differences as a table for eyes and as JSON.
//!
//! The first window begins when every subtask has begun, and the time account of a subtask is complete at every
//! moment; so the three shares of a window sum up to 1000 ms/s from the first window on.

use super::bottleneck::{Load, bottlenecks};
use crate::cli::CliError;
use crate::coordinator::{JobError, RunningJob, SubtaskSnapshot};
use crate::graph::plan::Plan;
use serde::Serialize;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How often to look whether the job is still there.
const LOOK: Duration = Duration::from_millis(50);

/// How long and how to watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    /// For how long, at least a window.
    pub time: Duration,
    /// Length of a window.
    pub window: Duration,
    /// One object at the end rather than a table for each window.
    pub json: bool,
}

/// What was seen.
#[derive(Debug, Serialize)]
struct Seen {
    windows: Vec<Window>,
    /// Name of the operator that limits the job, if any does.
    bottleneck: Option<String>,
}

/// The subtasks over one window.
#[derive(Debug, Serialize)]
struct Window {
    /// End of the window, in seconds since the first one's begin.
    t_s: serde_json::Number,
    subtasks: Vec<Figures>,
    /// How long a mail to each shard waited at the end of the window, in milliseconds.
    #[serde(rename = "mailWaitMs")]
    mail_wait_ms: Vec<f64>,
}

/// One subtask over one window: counts of the window, shares of its time, fill levels at its end.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    vertex: String,
    subtask: u32,
    num_records_in: u64,
    num_records_out: u64,
    num_buffers_in: u64,
    num_buffers_out: u64,
    idle_time_ms_per_second: f64,
    busy_time_ms_per_second: f64,
    back_pressured_time_ms_per_second: f64,
    soft_back_pressured_time_ms_per_second: f64,
    hard_back_pressured_time_ms_per_second: f64,
    out_pool_usage: f64,
    in_pool_usage: f64,
    exclusive_usage: f64,
    floating_usage: f64,
    output_queue_length: u64,
    input_queue_length: u64,
    #[serde(skip)]
    seconds: f64,
}

impl Figures {
    fn between(before: &SubtaskSnapshot, after: &SubtaskSnapshot) -> Figures {
        let seconds = (after.at_ns - before.at_ns) as f64 / 1e9;
        let time = after.time.since(&before.time);
        // To a tenth of a millisecond.
        let share = |ns: u64| (ns as f64 / 1e5 / seconds).round() / 10.0;
        Figures {
            vertex: after.vertex.clone(),
            subtask: after.subtask,
            num_records_in: after.records_in - before.records_in,
            num_records_out: after.records_out - before.records_out,
            num_buffers_in: after.buffers_in - before.buffers_in,
            num_buffers_out: after.buffers_out - before.buffers_out,
            idle_time_ms_per_second: share(time.idle_ns),
            busy_time_ms_per_second: share(time.busy_ns),
            back_pressured_time_ms_per_second: share(time.soft_ns + time.hard_ns),
            soft_back_pressured_time_ms_per_second: share(time.soft_ns),
            hard_back_pressured_time_ms_per_second: share(time.hard_ns),
            out_pool_usage: after.out_pool_usage,
            in_pool_usage: after.in_pool_usage,
            exclusive_usage: after.exclusive_usage,
            floating_usage: after.floating_usage,
            output_queue_length: after.output_queue_length,
            input_queue_length: after.input_queue_length,
            seconds,
        }
    }
}

/// Watches `job`, cancels it, and prints what was seen.
///
/// # Errors
///
/// [`JobError`] if the job fails meanwhile.
pub(super) fn watch(job: RunningJob, watch: Watch) -> Result<(), CliError> {
    let Some(first) = first_snapshot(&job) else { return end(job) };
    if !watch.json {
        print!("{}", job.plan().describe());
    }
    let started = Instant::now();
    let (mut before, mut windows, mut settled) = (first.clone(), Vec::new(), first);
    let mut until = Duration::ZERO;
    while until < watch.time {
        until = (until + watch.window).min(watch.time);
        while let Some(left) = until.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
            if job.is_over() {
                return end(job);
            }
            std::thread::sleep(left.min(LOOK));
        }
        let after = job.snapshot();
        let subtasks: Vec<Figures> =
            before.iter().zip(&after).map(|(before, after)| Figures::between(before, after)).collect();
        let window = Window { t_s: seconds(until), subtasks, mail_wait_ms: mail_waits(&job) };
        if !watch.json {
            print!("{}", window.table());
        }
        // The first window warms up; what limits the job is read off the others, if there are any.
        if windows.is_empty() && until < watch.time {
            settled = after.clone();
        }
        before = after;
        windows.push(window);
    }
    let names = find_bottlenecks(job.plan(), &settled, &before);
    job.cancel();
    end(job)?;
    if watch.json {
        let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        let bottleneck = (!names.is_empty()).then(|| names.join(", "));
        println!("{}", serde_json::to_string(&Seen { windows, bottleneck })?);
    } else {
        println!("{}", sentence(&names));
    }
    Ok(())
}

/// Counters as soon as every subtask has begun; `None` if the job ends before.
fn first_snapshot(job: &RunningJob) -> Option<Vec<SubtaskSnapshot>> {
    while !job.is_over() {
        let snapshot = job.snapshot();
        if snapshot.iter().all(|subtask| subtask.time.total_ns() > 0) {
            return Some(snapshot);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Waits for a job that has failed or was cancelled by us.
fn end(job: RunningJob) -> Result<(), CliError> {
    match job.wait() {
        Ok(_) | Err(JobError::Canceled) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How long a mail to the first subtask of each shard waits now, in milliseconds.
fn mail_waits(job: &RunningJob) -> Vec<f64> {
    let subtasks = &job.plan().subtasks;
    let shards = subtasks.iter().map(|s| s.shard.0 + 1).max().unwrap_or(0);
    (0..shards)
        .filter_map(|shard| subtasks.iter().position(|s| s.shard.0 == shard))
        .filter_map(|subtask| job.blocking_probe(subtask))
        .map(|waited| (waited.as_secs_f64() * 1e6).round() / 1e3)
        .collect()
}

/// Names and loads of what limits the job between two snapshots.
fn find_bottlenecks(
    plan: &Plan,
    before: &[SubtaskSnapshot],
    after: &[SubtaskSnapshot],
) -> Vec<(String, Load)> {
    let loads: Vec<Load> = plan
        .subtasks
        .iter()
        .zip(before.iter().zip(after))
        .map(|(planned, (before, after))| {
            let figures = Figures::between(before, after);
            Load {
                vertex: planned.vertex.0 as usize,
                back_pressured: figures.back_pressured_time_ms_per_second,
                busy: figures.busy_time_ms_per_second,
            }
        })
        .collect();
    let edges: Vec<(usize, usize)> =
        plan.edges.iter().map(|edge| (edge.from.0 as usize, edge.to.0 as usize)).collect();
    bottlenecks(plan.vertices.len(), &loads, &edges)
        .into_iter()
        .map(|vertex| {
            let busiest = loads.iter().filter(|load| load.vertex == vertex);
            let busiest = busiest.max_by(|a, b| a.busy.total_cmp(&b.busy)).expect("it has a busy subtask");
            (plan.vertices[vertex].name.clone(), *busiest)
        })
        .collect()
}

fn sentence(bottlenecks: &[(String, Load)]) -> String {
    if bottlenecks.is_empty() {
        return "There is no bottleneck: no operator is busy all the time.".to_string();
    }
    let each = bottlenecks.iter().map(|(name, load)| {
        format!(
            "The bottleneck is {name}: going downstream, the first operator that is not back-pressured \
             ({:.0} ms/s) but busy ({:.0} ms/s).",
            load.back_pressured, load.busy
        )
    });
    each.collect::<Vec<_>>().join("\n")
}

impl Window {
    fn table(&self) -> String {
        let mut text = String::new();
        let width = self.subtasks.iter().map(|s| s.vertex.chars().count() + 4).max().unwrap_or(0);
        let width = width.max(12);
        let _ = writeln!(
            text,
            "\n{:width$}         records/s      |        ms/s         |       pool usage      |  queues  | buffers/s",
            format!("t = {} s", self.t_s),
        );
        let _ = writeln!(
            text,
            "{:width$}        in         out | busy idle  soft  hard |  out    in  excl float |  out  in |    in   out",
            "subtask"
        );
        for s in &self.subtasks {
            let rate = |count: u64| format!("{:.0}", count as f64 / s.seconds);
            let _ = writeln!(
                text,
                "{:width$} {:>9} {:>11} | {:4.0} {:4.0}  {:4.0}  {:4.0} | {:4.2}  {:4.2}  {:4.2}  {:4.2} | {:4} {:3} | {:>5} {:>5}",
                format!("{} #{}", s.vertex, s.subtask),
                rate(s.num_records_in),
                rate(s.num_records_out),
                s.busy_time_ms_per_second,
                s.idle_time_ms_per_second,
                s.soft_back_pressured_time_ms_per_second,
                s.hard_back_pressured_time_ms_per_second,
                s.out_pool_usage,
                s.in_pool_usage,
                s.exclusive_usage,
                s.floating_usage,
                s.output_queue_length,
                s.input_queue_length,
                rate(s.num_buffers_in),
                rate(s.num_buffers_out),
            );
        }
        let waits: Vec<String> = self
            .mail_wait_ms
            .iter()
            .enumerate()
            .map(|(shard, ms)| format!("{ms:.3} ms on shard {shard}"))
            .collect();
        let _ = writeln!(text, "a mail waited {}", waits.join(", "));
        text
    }
}

/// Whole seconds as a whole number.
fn seconds(time: Duration) -> serde_json::Number {
    if time.subsec_nanos() == 0 {
        time.as_secs().into()
    } else {
        serde_json::Number::from_f64(time.as_secs_f64()).expect("a duration is finite")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_whole_numbers() {
        assert_eq!(seconds(Duration::from_secs(5)).to_string(), "5");
        assert_eq!(seconds(Duration::from_millis(2500)).to_string(), "2.5");
    }

    #[test]
    fn the_sentence_names_every_bottleneck_or_none() {
        assert!(sentence(&[]).starts_with("There is no bottleneck"));
        let load = Load { vertex: 1, back_pressured: 0.0, busy: 998.2 };
        let text = sentence(&[("a".to_string(), load), ("b -> c".to_string(), load)]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("bottleneck is b -> c:") && text.contains("busy (998 ms/s)"), "{text}");
    }
}
