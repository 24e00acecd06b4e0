//! How long a barrier will wait in front of each subtask, told before it is sent.
//!
//! What lies between a source and a reader is read in order, so a barrier that is sent now is read when that has
//! been read: bytes on their way, divided by the bytes that the subtask has been reading in a second. A barrier
//! that has to pass several vertices waits in front of each.

use crate::graph::plan::Plan;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;

/// Time between two looks at the counters, at least, and between the ones that a rate is taken of, in nanoseconds.
const SAMPLE_NS: u64 = 250_000_000;
const SPAN_NS: u64 = 5_000_000_000;

/// What a barrier is expected to wait, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wait {
    /// From what lies in front of the subtask.
    pub predicted_ns: u64,
    /// From the bounds alone: every channel full.
    pub static_ns: u64,
}

struct Sample {
    at_ns: u64,
    bytes_in: Vec<u64>,
}

/// Counters over time, and what follows from them.
#[derive(Default)]
pub(super) struct Predictor {
    samples: VecDeque<Sample>,
}

impl Predictor {
    /// Forgets what was seen: the tasks are others.
    pub fn reset(&mut self) {
        self.samples.clear();
    }

    /// Looks at the counters, if the last look is long enough ago.
    pub fn look(&mut self, now_ns: u64, metrics: &[Arc<SubtaskMetrics>]) {
        if self.samples.back().is_some_and(|last| now_ns < last.at_ns + SAMPLE_NS) {
            return;
        }
        let bytes_in = metrics.iter().map(|m| m.bytes_in.get()).collect();
        self.samples.push_back(Sample { at_ns: now_ns, bytes_in });
        while self.samples.get(1).is_some_and(|second| second.at_ns + SPAN_NS <= now_ns) {
            self.samples.pop_front();
        }
    }

    /// When the next look is due, in nanoseconds.
    pub fn due_ns(&self) -> u64 {
        self.samples.back().map_or(0, |last| last.at_ns + SAMPLE_NS)
    }

    /// For each subtask what a barrier that is sent now will wait; `None` where nothing is known of its pace.
    pub fn predict(&self, now_ns: u64, plan: &Plan, metrics: &[Arc<SubtaskMetrics>]) -> Vec<Option<Wait>> {
        let mut waits: Vec<Option<Wait>> = vec![None; metrics.len()];
        let Some(first) = self.samples.front() else { return waits };
        let elapsed = now_ns.saturating_sub(first.at_ns) as f64;
        // Vertices are numbered in the order in which records pass them, and subtasks vertex by vertex.
        for (index, m) in metrics.iter().enumerate() {
            let producers = || plan.channels.iter().filter(move |channel| channel.to == index);
            let channels = producers().count() as f64;
            // A counter of the attempt before may have been seen.
            let read = m.bytes_in.get().saturating_sub(first.bytes_in[index]) as f64;
            let buffers = m.buffers_in.get() as f64;
            if channels == 0.0 || read == 0.0 || elapsed == 0.0 {
                continue;
            }
            let segment = f64::from(plan.exchange.segment_size_bytes);
            // What is half read makes up for what the senders have begun.
            let buffer =
                if buffers > 0.0 { (m.bytes_in.get() as f64 / buffers).min(segment) } else { segment };
            let unread = m.input_on_the_way.get() as f64 * buffer;
            let own = |bytes: f64| (bytes * elapsed / read) as u64;
            let before = producers().filter_map(|channel| waits[channel.from]);
            let before = before.max_by_key(|wait| wait.predicted_ns).unwrap_or_default();
            let cap = f64::from(plan.exchange.buffers_per_subpartition_max);
            waits[index] = Some(Wait {
                predicted_ns: before.predicted_ns + own(unread),
                static_ns: before.static_ns + own(channels * cap * segment),
            });
        }
        waits
    }
}
