//! A subtask's part in a checkpoint: six steps in one mail, then writing in the background, then the ack.
//!
//! ```text
//! last barrier or trigger
//!   0  honour an earlier abort
//!   1  operators emit what they hold back
//!   2  the barrier goes to all outputs
//!   3  (the alignment timer, and
//!   4   the capture of what is in flight: for unaligned checkpoints)
//!   5  operators hand over small state and raise their epoch
//! background: keyed state to the log, in steps ─► flush ─► durable ─► ack
//! ```
//!
//! No record is worked on from step 0 to step 5; that time is `sync`. It does not grow with the state.

use super::log::SharedLog;
use crate::checkpoint::{Ack, CheckpointReport, CheckpointReports, DeclineReason, Timings};
use crate::operator::{Lifecycle, Settled, Settling, Snapshot, Writing, Written};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidegate_shard::barrier::{Aligned, Barrier};
use tidegate_shard::task::{Background, Clock, TurnContext};
use tidegate_storage::failpoint;
use tidegate_storage::log::frame::{FrameKind, FrameTag};
use tidegate_storage::log::writer::{AppendError, LogWriter, Outcome, Span};
use tidegate_storage::metadata::StateRef;

/// What a subtask needs to take part in checkpoints.
#[derive(Clone)]
pub struct CheckpointSeat {
    /// Its number in the plan.
    pub subtask: usize,
    /// Who is told.
    pub reports: Arc<dyn CheckpointReports>,
    /// State of at most this many bytes goes into the metadata, other state into the log.
    pub inline_max: usize,
    /// Whether a subtask whose input has ended waits for one more checkpoint.
    pub waits_at_end: bool,
    /// Whether a checkpoint writes what changed since the last complete one, rather than everything.
    pub incremental: bool,
}

/// Where a checkpoint is that this subtask has passed.
enum Stage {
    /// Operators write.
    Write,
    /// Until this is durable.
    Durable(Span),
}

struct Running {
    ack: Ack,
    /// When the synchronous part ended, in nanoseconds.
    sync_end_ns: u64,
    /// The log's position before the first frame.
    from: u64,
    stage: Stage,
}

/// Most ids of aborted checkpoints that are remembered; far more than may be under way.
const ABORTED_MAX: usize = 256;

/// A subtask's part in all checkpoints that are under way.
pub(super) struct Checkpoints {
    seat: CheckpointSeat,
    log: SharedLog,
    running: VecDeque<Running>,
    /// Given up before their barrier came.
    aborted: BTreeSet<u64>,
    /// Triggers that wait for the end of a step that may not be interrupted.
    triggers: VecDeque<Barrier>,
    /// The first checkpoint that was taken when all input had ended.
    last: Option<u64>,
}

impl Checkpoints {
    pub fn new(seat: CheckpointSeat, log: SharedLog) -> Self {
        Checkpoints {
            seat,
            log,
            running: VecDeque::new(),
            aborted: BTreeSet::new(),
            triggers: VecDeque::new(),
            last: None,
        }
    }

    pub fn waits_at_end(&self) -> bool {
        self.seat.waits_at_end
    }

    pub fn writes_all(&self) -> bool {
        !self.seat.incremental
    }

    pub fn trigger(&mut self, barrier: Barrier) {
        self.triggers.push_back(barrier);
    }

    pub fn next_trigger(&mut self) -> Option<Barrier> {
        self.triggers.pop_front()
    }

    pub fn report(&self, report: CheckpointReport) {
        self.seat.reports.report(report);
    }

    pub fn subtask(&self) -> usize {
        self.seat.subtask
    }

    /// Whether the checkpoint was given up before its barrier came.
    pub fn is_aborted(&mut self, checkpoint: u64) -> bool {
        self.aborted.remove(&checkpoint)
    }

    /// The synchronous part is over: the rest goes on in the background, or the checkpoint is declined: then false.
    pub fn began(&mut self, aligned: &Aligned, began_ns: u64, ended_ns: u64, snapshot: Snapshot) -> bool {
        let Barrier { checkpoint, triggered_at_ns, .. } = aligned.barrier;
        let (finished, subtask) = (snapshot.finished, self.seat.subtask);
        let operators = match snapshot.take() {
            Ok(operators) => operators,
            Err((operator, cause)) => {
                let reason = DeclineReason::Operator { operator, cause: cause.to_string() };
                self.decline(checkpoint.0, reason);
                return false;
            }
        };
        if finished {
            self.last.get_or_insert(checkpoint.0);
        }
        let timings = Timings {
            start_delay_ns: aligned.first_ns.saturating_sub(triggered_at_ns),
            alignment_ns: aligned.last_ns - aligned.first_ns,
            sync_ns: ended_ns - began_ns,
            last_channel: Some(aligned.last_channel),
            ..Timings::default()
        };
        let from = self.log.writer().position();
        let ack = Ack { checkpoint: checkpoint.0, subtask, finished, operators, timings };
        self.running.push_back(Running { ack, sync_end_ns: ended_ns, from, stage: Stage::Write });
        true
    }

    pub fn decline(&mut self, checkpoint: u64, reason: DeclineReason) {
        self.report(CheckpointReport::Decline { checkpoint, subtask: self.seat.subtask, reason });
    }

    /// The coordinator has given a checkpoint up.
    pub fn abort(&mut self, checkpoint: u64) {
        let before = self.running.len();
        self.running.retain(|running| running.ack.checkpoint != checkpoint);
        if self.running.len() == before {
            self.aborted.insert(checkpoint);
            if self.aborted.len() > ABORTED_MAX {
                self.aborted.pop_first();
            }
        }
        self.triggers.retain(|barrier| barrier.checkpoint.0 != checkpoint);
    }

    /// Whether a complete checkpoint holds everything that the subtask will ever have had.
    pub fn is_last(&self, complete: u64) -> bool {
        self.last.is_some_and(|last| complete >= last)
    }

    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// One bounded step for the oldest checkpoint that is under way. `lifecycle` reaches the operators.
    pub fn step(
        &mut self,
        cx: &TurnContext<'_>,
        mut lifecycle: impl FnMut(&mut Lifecycle<'_, '_>),
    ) -> Background {
        let Some(running) = self.running.front() else { return Background::Nothing };
        let checkpoint = running.ack.checkpoint;
        let now_ns = cx.clock.now_ns();
        match running.stage {
            Stage::Write => match self.write(cx, &mut lifecycle) {
                Ok(background) => background,
                Err(reason) => self.give_up(checkpoint, reason, lifecycle),
            },
            Stage::Durable(span) => {
                let outcome = self.log.writer().outcome(span);
                match outcome {
                    Outcome::Failed(cause) => return self.give_up(checkpoint, cause.into(), lifecycle),
                    Outcome::Pending => return Background::Waits,
                    Outcome::Durable => {}
                }
                let mut settling = Settling::new(checkpoint, Settled::Durable);
                lifecycle(&mut Lifecycle::Settle(&mut settling));
                match settling.outcome() {
                    Ok(true) => self.acknowledge(now_ns),
                    Ok(false) => Background::Waits,
                    Err((operator, cause)) => {
                        let reason = DeclineReason::Operator { operator, cause: cause.to_string() };
                        self.give_up(checkpoint, reason, lifecycle)
                    }
                }
            }
        }
    }

    /// A step of writing what the oldest checkpoint is of.
    fn write(
        &mut self,
        cx: &TurnContext<'_>,
        lifecycle: &mut impl FnMut(&mut Lifecycle<'_, '_>),
    ) -> Result<Background, DeclineReason> {
        let Running { ack, from, stage, .. } = self.running.front_mut().expect("one is under way");
        let mut writer = self.log.writer();
        let owner = self.seat.subtask as u64;
        let written = &mut ack.timings.written_bytes;
        let mut writing = Writing::new(ack.checkpoint, &mut writer, owner, cx, &mut ack.operators, written);
        lifecycle(&mut Lifecycle::Write(&mut writing));
        let all = match writing.outcome() {
            Written::Failed(reason) => return Err(reason),
            Written::More => return Ok(Background::More),
            Written::Blocked => false,
            Written::All => spill(ack, &mut writer, self.seat.inline_max, owner)?,
        };
        writer.flush();
        if all {
            *stage = Stage::Durable(Span { from: *from, to: writer.position() });
            return Ok(Background::More);
        }
        // Completions give staging blocks back; a file that is being made rings the shard.
        writer.poll(Duration::from_nanos(cx.clock.now_ns()))?;
        Ok(Background::Waits)
    }

    fn acknowledge(&mut self, now_ns: u64) -> Background {
        let Some(Running { mut ack, sync_end_ns, .. }) = self.running.pop_front() else {
            return Background::Nothing;
        };
        ack.timings.async_ns = now_ns - sync_end_ns;
        ack.timings.state_bytes =
            ack.operators.iter().flat_map(|(_, state)| state.pieces()).map(StateRef::state_bytes).sum();
        failpoint::pass(failpoint::SUBTASK_ACK);
        self.report(CheckpointReport::Ack(ack));
        if self.is_busy() { Background::More } else { Background::Nothing }
    }

    fn give_up(
        &mut self,
        checkpoint: u64,
        reason: DeclineReason,
        mut lifecycle: impl FnMut(&mut Lifecycle<'_, '_>),
    ) -> Background {
        self.running.pop_front();
        if self.last == Some(checkpoint) {
            self.last = None;
        }
        self.decline(checkpoint, reason);
        lifecycle(&mut Lifecycle::Abort(checkpoint));
        if self.is_busy() { Background::More } else { Background::Nothing }
    }
}

/// Moves state that is too long for the metadata into the log; false if the log takes no more for now, after
/// which it goes on where it stopped.
fn spill(
    ack: &mut Ack,
    writer: &mut LogWriter,
    inline_max: usize,
    owner: u64,
) -> Result<bool, DeclineReason> {
    let checkpoint = ack.checkpoint;
    let max = writer.frame_payload_bytes_max();
    for (operator, state) in &mut ack.operators {
        for piece in &mut state.operator {
            let StateRef::Inline(bytes) = piece else { continue };
            if bytes.len() > max {
                return Err(DeclineReason::TooLong { operator: *operator, bytes: bytes.len(), max });
            }
            if bytes.len() > inline_max {
                match writer.append(FrameTag { kind: FrameKind::Data, checkpoint, owner }, bytes) {
                    Ok(handle) => {
                        ack.timings.written_bytes += bytes.len() as u64;
                        *piece = StateRef::frame(handle);
                    }
                    Err(AppendError::BufferFull | AppendError::NoFile) => return Ok(false),
                    Err(AppendError::Storage(cause)) => return Err(cause.into()),
                }
            }
        }
    }
    Ok(true)
}

/// The barrier of a trigger, which has come alone and at once.
pub(super) fn triggered(barrier: Barrier, clock: &dyn Clock) -> Aligned {
    let now_ns = clock.now_ns();
    Aligned { barrier, first_ns: now_ns, last_ns: now_ns, last_channel: 0 }
}
