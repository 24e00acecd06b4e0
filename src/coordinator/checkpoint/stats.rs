//! What is remembered of checkpoints: each of the last few with its subtasks, counts, and distributions.
//!
//! Counts obey `total = completed + failed + in_progress`, whatever happens: a checkpoint enters `in_progress` once,
//! when it is begun, and leaves it once, when it ends.

use super::Kind;
use crate::checkpoint::Timings;
use crate::coordinator::failure::FailureReason;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;

/// How a checkpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CheckpointStatus {
    /// Under way.
    InProgress,
    /// Complete: it can be restored.
    Completed,
    /// It will never be complete.
    Failed,
}

/// How a subtask's part of a checkpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PartStatus {
    /// Its ack is waited for.
    Waiting,
    /// Its state is durable.
    Acknowledged,
    /// It had finished before, and has no part.
    Finished,
}

/// A subtask's part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubtaskStats {
    /// Index of its vertex.
    pub vertex: usize,
    /// Which of the parallel instances, from 0.
    pub subtask: u32,
    /// How it stands.
    pub status: PartStatus,
    /// When its ack was taken, in milliseconds since 1970.
    pub acked_at_ms: Option<u64>,
    /// From the trigger decision until its ack was taken.
    pub end_to_end_ns: Option<u64>,
    /// What the subtask measured; zeros before the ack.
    #[serde(flatten)]
    pub timings: Timings,
    /// What its barrier was expected to wait for, told before any was sent.
    pub predicted_wait_ns: Option<u64>,
    /// The same from the configured counts of buffers alone.
    pub static_wait_ns: Option<u64>,
}

/// Why a checkpoint failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureStats {
    /// The reason's stable name.
    pub reason: FailureReason,
    /// The reason with its particulars.
    pub message: String,
    /// The subtask that said so, as an index into [`CheckpointStats::subtasks`].
    pub subtask: Option<usize>,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointStats {
    /// Its id.
    pub id: u64,
    /// What it was taken for.
    pub kind: Kind,
    /// The request that it answers, if it was asked for.
    pub request: Option<u64>,
    /// How it stands.
    pub status: CheckpointStatus,
    /// The newest complete one at its trigger, or 0: it has written what changed since.
    pub base: u64,
    /// When it was triggered, in milliseconds since 1970.
    pub triggered_at_ms: u64,
    /// When its newest ack was taken, in milliseconds since 1970.
    pub latest_ack_at_ms: Option<u64>,
    /// When it ended, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// From the trigger decision until the newest ack was taken, or until it failed.
    pub end_to_end_ns: u64,
    /// From the newest ack until the commit was durable; 0 before.
    pub commit_ns: u64,
    /// Bytes of state that it has written.
    pub written_bytes: u64,
    /// Bytes of state that it refers to.
    pub state_bytes: u64,
    /// Tasks that have a part in it.
    pub subtasks_total: usize,
    /// Those that have acknowledged.
    pub subtasks_acknowledged: usize,
    /// Each subtask of the job, in the plan's order.
    pub subtasks: Vec<SubtaskStats>,
    /// Why it failed, if it has.
    pub failure: Option<FailureStats>,
}

impl CheckpointStats {
    /// From the trigger decision to the end; for one under way, to the newest ack.
    pub fn duration_ns(&self) -> u64 {
        self.end_to_end_ns + self.commit_ns
    }
}

/// How many checkpoints there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CheckpointCounts {
    /// Times that the job was restored from one.
    pub restored: u64,
    /// All that were begun.
    pub total: u64,
    /// Those under way.
    pub in_progress: u64,
    /// Those that are complete.
    pub completed: u64,
    /// Those that failed.
    pub failed: u64,
}

/// How a figure of completed checkpoints is distributed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The mean.
    pub avg: u64,
    /// Half are at most this; like the ones that follow, within a thousandth.
    pub p50: u64,
    /// Of 10, 9 are at most this.
    pub p90: u64,
    /// Of 100, 95.
    pub p95: u64,
    /// Of 100, 99.
    pub p99: u64,
    /// Of 1000, 999.
    pub p999: u64,
}

/// Distributions over all completed checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CheckpointSummary {
    /// From the trigger decision to the newest ack.
    pub end_to_end_ns: Distribution,
    /// From the trigger decision until the commit was durable.
    pub duration_ns: Distribution,
    /// Bytes of state written.
    pub written_bytes: Distribution,
    /// Bytes of state referred to.
    pub state_bytes: Distribution,
}

/// The checkpoint that the job was restored from last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RestoredStats {
    /// Its id.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub restored_at_ms: u64,
}

/// All that is known of a job's checkpoints.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckpointsReport {
    /// How many.
    pub counts: CheckpointCounts,
    /// How they are distributed.
    pub summary: CheckpointSummary,
    /// The last that is complete.
    pub latest_completed: Option<CheckpointStats>,
    /// The last that failed.
    pub latest_failed: Option<CheckpointStats>,
    /// The last that was restored.
    pub latest_restored: Option<RestoredStats>,
    /// Those under way and the last ones that ended, newest first.
    pub history: Vec<CheckpointStats>,
}

/// A figure over all completed checkpoints.
#[derive(Debug)]
struct Series {
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
}

impl Series {
    fn new() -> Series {
        let histogram = Histogram::new(3).expect("three digits are possible");
        Series { histogram, min: u64::MAX, max: 0, sum: 0 }
    }

    fn add(&mut self, value: u64) {
        // It grows as it must; if it cannot, quantiles lack a value and nothing else.
        let _ = self.histogram.record(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += u128::from(value);
    }

    fn distribution(&self) -> Distribution {
        let count = self.histogram.len();
        if count == 0 {
            return Distribution::default();
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile).clamp(self.min, self.max);
        Distribution {
            min: self.min,
            max: self.max,
            avg: (self.sum / u128::from(count)) as u64,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// Remembers checkpoints.
#[derive(Debug)]
pub(super) struct Tracker {
    counts: CheckpointCounts,
    end_to_end: Series,
    duration: Series,
    written: Series,
    state: Series,
    latest_completed: Option<Arc<CheckpointStats>>,
    latest_failed: Option<Arc<CheckpointStats>>,
    latest_restored: Option<RestoredStats>,
    /// Newest last.
    ended: VecDeque<Arc<CheckpointStats>>,
    ended_max: usize,
}

impl Tracker {
    pub(super) fn new(ended_max: usize) -> Tracker {
        Tracker {
            counts: CheckpointCounts::default(),
            end_to_end: Series::new(),
            duration: Series::new(),
            written: Series::new(),
            state: Series::new(),
            latest_completed: None,
            latest_failed: None,
            latest_restored: None,
            ended: VecDeque::new(),
            ended_max,
        }
    }

    pub(super) fn begun(&mut self) {
        self.counts.total += 1;
        self.counts.in_progress += 1;
    }

    pub(super) fn restored(&mut self, id: u64, restored_at_ms: u64) {
        self.counts.restored += 1;
        self.latest_restored = Some(RestoredStats { id, restored_at_ms });
    }

    /// A checkpoint that was [`begun`](Self::begun) has ended.
    pub(super) fn ended(&mut self, stats: &Arc<CheckpointStats>) {
        self.counts.in_progress -= 1;
        match stats.status {
            CheckpointStatus::InProgress => unreachable!("checkpoint {} has ended", stats.id),
            CheckpointStatus::Failed => {
                self.counts.failed += 1;
                self.latest_failed = Some(stats.clone());
            }
            CheckpointStatus::Completed => {
                self.counts.completed += 1;
                self.latest_completed = Some(stats.clone());
                self.end_to_end.add(stats.end_to_end_ns);
                self.duration.add(stats.duration_ns());
                self.written.add(stats.written_bytes);
                self.state.add(stats.state_bytes);
            }
        }
        self.ended.push_back(stats.clone());
        while self.ended.len() > self.ended_max {
            self.ended.pop_front();
        }
    }

    pub(super) fn counts(&self) -> CheckpointCounts {
        self.counts
    }

    /// With those under way.
    pub(super) fn report(&self, under_way: impl Iterator<Item = CheckpointStats>) -> CheckpointsReport {
        let ended = self.ended.iter().map(|stats| CheckpointStats::clone(stats));
        let mut history: Vec<_> = under_way.chain(ended).collect();
        history.sort_by_key(|stats| std::cmp::Reverse(stats.id));
        CheckpointsReport {
            counts: self.counts,
            summary: CheckpointSummary {
                end_to_end_ns: self.end_to_end.distribution(),
                duration_ns: self.duration.distribution(),
                written_bytes: self.written.distribution(),
                state_bytes: self.state.distribution(),
            },
            latest_completed: self.latest_completed.as_deref().cloned(),
            latest_failed: self.latest_failed.as_deref().cloned(),
            latest_restored: self.latest_restored,
            history,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_exact_at_the_ends_and_near_in_between() {
        let mut series = Series::new();
        assert_eq!(series.distribution(), Distribution::default());
        (1..=1000).for_each(|i| series.add(i * 1_000_003));
        let d = series.distribution();
        assert_eq!((d.min, d.max, d.avg), (1_000_003, 1_000_003_000, 1_000_003 * 1001 / 2));
        for (value, expected) in [(d.p50, 500), (d.p90, 900), (d.p95, 950), (d.p99, 990), (d.p999, 999)] {
            let error = value as f64 / (expected as f64 * 1_000_003.0) - 1.0;
            assert!(error.abs() < 0.002, "{value} for {expected}: {error}");
        }
    }
}
