//! Events: what travels between buffers, and the checkpoint barrier among them; and what a reader makes of
//! barriers.

mod aligned;

pub use aligned::{Action, Aligned, BarrierHandler};

/// Number of a checkpoint; only grows, also over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

/// The mark that cuts a stream into before and after a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barrier {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The newest complete checkpoint when this one was triggered, or 0: what changed after that one is to be
    /// written.
    pub base: u64,
    /// When it was triggered, in nanoseconds of the job's monotonic clock.
    pub triggered_at_ns: u64,
    /// Whether the channel sends nothing behind the barrier until the receiver resumes it.
    pub blocks: bool,
}

/// What is neither a record nor among the records' bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A checkpoint barrier.
    Barrier(Barrier),
    /// The checkpoint was given up: do not wait for its barrier.
    Cancel(CheckpointId),
    /// No more records follow; barriers may.
    EndOfData,
    /// Nothing follows.
    EndOfInput,
}

impl Event {
    /// The checkpoint whose barrier closes the channel behind it.
    pub fn blocks(&self) -> Option<CheckpointId> {
        match self {
            Event::Barrier(Barrier { checkpoint, blocks: true, .. }) => Some(*checkpoint),
            _ => None,
        }
    }
}
