//! What all tasks have in common: the chain with its outputs, and how a task ends.

use super::operator_failure;
use crate::operator::{Collector, OperatorFailure, Step};
use crate::record::Record;
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::barrier::Event;
use tidegate_shard::task::{Port, Progress, TaskFailure};

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Input has ended; operators emit what they held back.
    Finishing,
    /// Everything was emitted; segments are still with the consumers.
    Draining,
}

/// A task's chain behind its source or reader.
pub(super) struct Tail<T: Record, C: Collector<T>> {
    pub next: C,
    pub metrics: Arc<SubtaskMetrics>,
    vertex: Arc<str>,
    phase: Phase,
    /// Whether a turn has put records out that may lie in an open segment.
    unflushed: bool,
    record: PhantomData<fn(T)>,
}

impl<T: Record, C: Collector<T>> Tail<T, C> {
    pub fn new(next: C, metrics: Arc<SubtaskMetrics>, vertex: Arc<str>) -> Self {
        Tail { next, metrics, vertex, phase: Phase::Running, unflushed: false, record: PhantomData }
    }

    /// Name of the task's vertex.
    pub fn vertex(&self) -> &str {
        &self.vertex
    }

    /// Whether input may still be taken.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Why no record may be taken now, if so.
    #[cold]
    pub fn obstacle(&mut self) -> Progress {
        if let Some(failure) = self.failure() {
            return Progress::Failed(failure);
        }
        let mut hard = false;
        self.next.outputs(&mut |partition| hard |= partition.is_overflowing());
        Progress::BackPressured { hard }
    }

    /// The failure that stopped the chain.
    #[cold]
    pub fn failure(&mut self) -> Option<TaskFailure> {
        let OperatorFailure { operator, cause } = self.next.failure()?;
        Some(if operator.is_empty() {
            operator_failure(&*self.vertex, &cause)
        } else {
            operator_failure(operator, &cause)
        })
    }

    /// Books a turn that took `records_in` records, and hands over to idle consumers; `more` if it ended with
    /// its quantum only.
    #[inline]
    pub fn end_turn(&mut self, records_in: u64, more: bool) {
        self.next.end_of_turn();
        let metrics = &self.metrics;
        if records_in > 0 {
            metrics.records_in.add(records_in);
        }
        let (mut records_out, mut bytes, mut buffers, mut flushes) = (0, 0, 0, 0);
        let (mut used, mut size, mut queued, mut held, mut overflow) = (0, 0, 0, 0, 0);
        self.next.outputs(&mut |partition| {
            let records = partition.take_records();
            records_out += records;
            // Also what earlier turns have left, whose consumer was busy then.
            if records > 0 || self.unflushed {
                partition.flush_to_idle(more);
            }
            let totals = partition.totals();
            (bytes, buffers, flushes) = (bytes + totals.0, buffers + totals.1, flushes + totals.2);
            let load = partition.load();
            used += load.used;
            size += load.size;
            queued += load.queued;
            held = held.max(load.held_max);
            overflow += load.overflow_bytes;
        });
        if records_out > 0 {
            metrics.records_out.add(records_out);
            self.unflushed = true;
        }
        metrics.bytes_out.set(bytes);
        metrics.buffers_out.set(buffers);
        metrics.flushes.set(flushes);
        metrics.out_pool_used.set(u64::from(used));
        metrics.out_pool_size.set(u64::from(size));
        metrics.output_queue_length.set(u64::from(queued));
        metrics.subpartition_held_max.set(u64::from(held));
        metrics.overflow_bytes.set(overflow);
    }

    /// A turn of a task whose input has ended: one bounded step after the other until `until`.
    pub fn finish(&mut self, mut over: impl FnMut() -> bool) -> Progress {
        if self.phase == Phase::Running {
            self.phase = Phase::Finishing;
        }
        while self.phase == Phase::Finishing {
            if !self.next.ready() {
                self.end_turn(0, false);
                return self.obstacle();
            }
            if self.next.finish() == Step::Done {
                if let Some(failure) = self.failure() {
                    return Progress::Failed(failure);
                }
                self.next.outputs(&mut |partition| {
                    partition.broadcast_event(&Event::EndOfData);
                    partition.broadcast_event(&Event::EndOfInput);
                });
                self.phase = Phase::Draining;
            } else if over() {
                self.end_turn(0, true);
                return Progress::Ready;
            }
        }
        self.end_turn(0, false);
        let mut drained = true;
        self.next.outputs(&mut |partition| drained &= partition.is_drained());
        if drained { Progress::Finished } else { Progress::Idle }
    }

    /// The doorbell of one of the outputs rang.
    pub fn rung(&mut self, port: Port) {
        let Port::Output { partition: rung, channel } = port else { return };
        self.next.outputs(&mut |partition| {
            if partition.index() == rung {
                partition.rung(channel);
            }
        });
    }

    pub fn flush(&mut self) {
        self.unflushed = false;
        self.next.outputs(&mut |partition| partition.flush());
    }

    pub fn wants_flush(&self) -> bool {
        self.unflushed
    }
}

/// How many records to take before the next look at the clock: doubled while a look finds little of the
/// quantum gone, one after a look that finds much.
///
/// A look costs as much as ten quick records; a batch of slow ones keeps mail waiting.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    batch: u32,
}

impl Pace {
    const START: u32 = 8;
    const MAX: u32 = 4096;
    /// Little: 5 of 100 µs.
    const LITTLE: u64 = 20;
    /// Much: 25 of 100 µs.
    const MUCH: u64 = 4;

    pub fn new() -> Self {
        Pace { batch: Self::START }
    }

    #[inline(always)]
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// Takes note that a whole batch took this long, of a quantum of `quantum_ns`.
    #[inline]
    pub fn took(&mut self, ns: u64, quantum_ns: u64) {
        if ns > quantum_ns / Self::MUCH {
            self.batch = 1;
        } else if ns < quantum_ns / Self::LITTLE {
            self.batch = (self.batch * 2).min(Self::MAX);
        }
    }
}
