//! Tasks: how a shard runs a subtask.

use crate::input::ChannelIndex;
use crate::mailbox::Mail;

/// Time, as a capability: real, or virtual under the simulation.
pub trait Clock {
    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// Number of a task on its shard, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIndex(pub u32);

/// An end of a channel at a task, or its waker: what a doorbell slot stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// An input channel of a gate: there is something to read.
    Input {
        /// The task's gate, from 0.
        gate: u32,
        /// The gate's channel.
        channel: ChannelIndex,
    },
    /// A channel of a result partition: segments or credit came back.
    Output {
        /// The task's partition, from 0.
        partition: u32,
        /// The partition's channel.
        channel: u32,
    },
    /// A thread that is no shard has news for the task.
    Waker,
}

/// Why a task gave up its turn.
#[derive(Debug)]
pub enum Progress {
    /// The quantum is over and there is more to do.
    Ready,
    /// There is no input.
    Idle,
    /// There is no input before this time, in nanoseconds; a source that waits for it is idle.
    IdleUntil(u64),
    /// An output is unavailable, `hard` if output of the last record waits on the heap.
    BackPressured {
        /// Whether it happened in the middle of a record's output.
        hard: bool,
    },
    /// Busy with something that needs no core until this time, in nanoseconds.
    BusyUntil(u64),
    /// Everything was put out and every segment is back.
    Finished,
    /// The task cannot go on.
    Failed(TaskFailure),
}

/// Why a task cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    /// The operator that failed, where it is known.
    pub operator: Option<String>,
    /// The cause and its causes, one after the other.
    pub cause: String,
}

/// What a turn is given.
pub struct TurnContext<'a> {
    /// Time.
    pub clock: &'a dyn Clock,
    /// When the turn began, in nanoseconds.
    pub now_ns: u64,
    /// When it should end, in nanoseconds.
    pub until_ns: u64,
}

impl TurnContext<'_> {
    /// How long the turn may be, in nanoseconds.
    pub fn quantum_ns(&self) -> u64 {
        self.until_ns - self.now_ns
    }
}

/// How a task's background work stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// There is none.
    Nothing,
    /// There is more to do.
    More,
    /// It waits for the shard's service, whose completions wake the shard.
    Waits,
}

/// Work of a shard that belongs to no task: its log. Runs on the shard's thread.
pub trait Service {
    /// Takes what has ended and starts what is queued, without waiting; whether anything has ended. With nothing
    /// to do it costs a few loads.
    fn poll(&mut self, now_ns: u64) -> bool;

    /// When it must be polled at the latest, in nanoseconds.
    fn deadline_ns(&self) -> Option<u64>;
}

/// A subtask, as its shard sees it. Stays on the shard where it was made.
pub trait Task {
    /// Works until the quantum is over, input ends or an output is unavailable; never waits.
    ///
    /// The one virtual call on the data path, once a turn.
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress;

    /// The doorbell of one of its ports rang.
    fn rung(&mut self, port: Port);

    /// Runs a mail. No record is in work.
    fn mail(&mut self, mail: Mail, now_ns: u64);

    /// Hands over partly filled buffers: the flush interval is over.
    fn flush(&mut self);

    /// Whether there may be something to flush.
    fn wants_flush(&self) -> bool;

    /// Whether there is background work.
    fn has_background(&self) -> bool {
        false
    }

    /// One bounded step of background work: a fraction of a quantum, since the shard's other tasks wait.
    fn background(&mut self, cx: &mut TurnContext<'_>) -> Background {
        let _ = cx;
        Background::Nothing
    }
}
