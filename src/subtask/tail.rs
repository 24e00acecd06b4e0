//! What all tasks have in common: the chain with its outputs, and how a task ends.

use super::snapshot::Checkpoints;
use super::{RestoredSubtask, SubtaskContext, operator_failure};
use crate::checkpoint::{CheckpointReport, DeclineReason};
use crate::operator::{Collector, Lifecycle, OperatorFailure, Settled, Settling, Snapshot, Step};
use crate::record::Record;
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::barrier::{Aligned, Barrier, Event};
use tidegate_shard::mailbox::Mail;
use tidegate_shard::task::{Background, Clock, Port, Progress, TaskFailure, TurnContext};

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Input has ended; operators emit what they held back.
    Finishing,
    /// Everything was emitted; the checkpoint that has it all is not complete.
    Final,
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
    checkpoints: Option<Checkpoints>,
    /// Whether operators have emitted what they held back, before the checkpoint that the task goes on from.
    emitted_all: bool,
    /// The complete checkpoint that holds everything.
    last_complete: Option<u64>,
    record: PhantomData<fn(T)>,
}

impl<T: Record, C: Collector<T>> Tail<T, C> {
    pub fn new(cx: &SubtaskContext, next: C) -> Self {
        let checkpoints = cx.checkpoints.clone().map(|(seat, log)| Checkpoints::new(seat, log));
        let emitted_all = cx.restored.as_ref().is_some_and(RestoredSubtask::finished);
        Tail {
            next,
            metrics: cx.metrics.clone(),
            vertex: cx.info.vertex.clone(),
            phase: Phase::Running,
            unflushed: false,
            checkpoints,
            emitted_all,
            last_complete: None,
            record: PhantomData,
        }
    }

    /// Name of the task's vertex.
    pub fn vertex(&self) -> &str {
        &self.vertex
    }

    /// Whether input may still be taken.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether nothing but barriers may still come.
    pub fn is_final(&self) -> bool {
        self.phase == Phase::Final
    }

    /// Whether the task goes on from a checkpoint before which it had emitted everything.
    pub fn had_emitted_all(&self) -> bool {
        self.emitted_all
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

    /// A turn of a task that has got all its data: one bounded step after the other until `over`.
    ///
    /// With `input_ended` nothing else comes either. Until then a sender may have put a barrier before its end,
    /// and sends the end only when somebody has taken the barrier.
    pub fn finish(&mut self, input_ended: bool, mut over: impl FnMut() -> bool) -> Progress {
        let was_final = self.is_final();
        if self.phase == Phase::Running {
            self.phase = Phase::Finishing;
        }
        while self.phase == Phase::Finishing {
            if !self.next.ready() {
                self.end_turn(0, false);
                return self.obstacle();
            }
            if self.emitted_all || self.next.finish() == Step::Done {
                if let Some(failure) = self.failure() {
                    return Progress::Failed(failure);
                }
                self.next.outputs(&mut |partition| partition.broadcast_event(&Event::EndOfData));
                match &self.checkpoints {
                    Some(checkpoints) if checkpoints.waits_at_end() => {
                        self.phase = Phase::Final;
                        let subtask = checkpoints.subtask();
                        checkpoints.report(CheckpointReport::EndOfData { subtask });
                    }
                    _ => self.end_input(),
                }
            } else if over() {
                self.end_turn(0, true);
                return Progress::Ready;
            }
        }
        if let (Phase::Final, Some(checkpoint), true) = (self.phase, self.last_complete, input_ended) {
            let mut settling = Settling::new(checkpoint, Settled::Committed);
            self.next.lifecycle(&mut Lifecycle::Settle(&mut settling));
            match settling.outcome() {
                Ok(true) => self.end_input(),
                Ok(false) => {}
                Err((operator, cause)) => return Progress::Failed(operator_failure(operator, &cause)),
            }
        }
        self.end_turn(0, false);
        if let Some(failure) = self.failure() {
            return Progress::Failed(failure);
        }
        let mut drained = self.phase == Phase::Draining;
        self.next.outputs(&mut |partition| drained &= partition.is_drained());
        match drained {
            true => Progress::Finished,
            // A barrier that came while operators emitted their last has rung, and is still where it was.
            false if self.is_final() && !was_final => Progress::Ready,
            false => Progress::Idle,
        }
    }

    fn end_input(&mut self) {
        self.next.outputs(&mut |partition| partition.broadcast_event(&Event::EndOfInput));
        self.phase = Phase::Draining;
    }

    /// Takes a mail about checkpoints.
    pub fn mail(&mut self, mail: &Mail) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        match mail {
            Mail::Trigger(barrier) => checkpoints.trigger(barrier.clone()),
            Mail::Abort(id) => {
                checkpoints.abort(id.0);
                self.next.lifecycle(&mut Lifecycle::Abort(id.0));
            }
            Mail::Complete(id) => {
                if self.phase == Phase::Final && checkpoints.is_last(id.0) {
                    self.last_complete.get_or_insert(id.0);
                }
                self.next.lifecycle(&mut Lifecycle::Complete(id.0));
            }
            Mail::Cancel | Mail::Stop | Mail::Probe { .. } => {}
        }
    }

    /// The next trigger, if it may be followed now: while operators emit what they held back it waits.
    pub fn next_trigger(&mut self) -> Option<Barrier> {
        match self.phase {
            Phase::Running | Phase::Final => self.checkpoints.as_mut()?.next_trigger(),
            Phase::Finishing | Phase::Draining => None,
        }
    }

    /// All barriers of a checkpoint have come: passes them on and takes the snapshot. `more` adds state of what
    /// is before the chain.
    #[inline(never)]
    pub fn checkpoint(&mut self, aligned: &Aligned, clock: &dyn Clock, more: impl FnOnce(&mut Snapshot)) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let Barrier { checkpoint, base, .. } = aligned.barrier;
        if checkpoints.is_aborted(checkpoint.0) {
            return;
        }
        let began_ns = clock.now_ns();
        self.next.lifecycle(&mut Lifecycle::PreBarrier(checkpoint.0));
        let event = Event::Barrier(aligned.barrier.clone());
        self.next.outputs(&mut |partition| partition.broadcast_event(&event));
        let mut snapshot =
            Snapshot::new(checkpoint.0, base, self.phase == Phase::Final, checkpoints.writes_all());
        more(&mut snapshot);
        self.next.lifecycle(&mut Lifecycle::Snapshot(&mut snapshot));
        if !checkpoints.began(aligned, began_ns, clock.now_ns(), snapshot) {
            self.next.lifecycle(&mut Lifecycle::Abort(checkpoint.0));
        }
    }

    /// A newer barrier has come before all of `old`.
    pub fn subsumed(&mut self, old: u64, newer: u64) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.decline(old, DeclineReason::Subsumed { newer });
        }
    }

    pub fn has_background(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(Checkpoints::is_busy)
    }

    pub fn background(&mut self, cx: &TurnContext<'_>) -> Background {
        let Tail { next, checkpoints, .. } = self;
        match checkpoints {
            Some(checkpoints) => checkpoints.step(cx, |event| next.lifecycle(event)),
            None => Background::Nothing,
        }
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
