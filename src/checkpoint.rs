//! What a subtask tells the coordinator about a checkpoint: the words that both sides know.
//!
//! Subtasks are numbered as in [`Plan::subtasks`](crate::graph::plan::Plan), operators within their vertex.

use crate::config::{FromValue, keys::Value};
use std::path::PathBuf;
use tidegate_storage::error::StorageError;
use tidegate_storage::keyed::SnapshotError;
use tidegate_storage::metadata::SubtaskState;

/// What sinks and operators may know of a job's checkpoints, for names of things that outlive the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpointing {
    /// The job, over all its runs.
    pub lineage: u128,
    /// Which start of the process, from 1; only grows.
    pub run: u32,
    /// Which attempt of the run, from 1.
    pub attempt: u32,
    /// The checkpoint that the attempt goes on from.
    pub restored: Option<u64>,
}

/// Where a job keeps its checkpoints, and from which it goes on; see
/// [`Config::recovery`](crate::config::Config::recovery).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The job's directory. One that holds a completed checkpoint is resumed from the newest, unless the
    /// other fields say otherwise.
    pub directory: PathBuf,
    /// The checkpoint to go on from: a `chk-N` directory, or the `_metadata` in it.
    pub from: Option<PathBuf>,
    /// Begin anew, whatever the directory holds. Never together with `from`.
    pub fresh: bool,
    /// What to do about output beyond the checkpoint that the job goes on from.
    pub beyond: Beyond,
}

/// What becomes of output that checkpoints after the one restored have published already. Records would appear
/// in it a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Beyond {
    /// The job does not start, and says which output of which checkpoints it is.
    #[default]
    Refuse,
    /// It is moved aside, out of the sight of those who read the output.
    Retract,
    /// It stays, and records appear twice.
    Accept,
}

impl FromValue for Beyond {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Word("refuse") => Some(Beyond::Refuse),
            Value::Word("retract") => Some(Beyond::Retract),
            Value::Word("accept") => Some(Beyond::Accept),
            _ => None,
        }
    }
}

/// A subtask's part of a checkpoint is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// The checkpoint.
    pub checkpoint: u64,
    /// Index of the subtask in the plan.
    pub subtask: usize,
    /// Whether all its input had ended, so that it waits for nothing but this checkpoint.
    pub finished: bool,
    /// State of each of the vertex's operators that has any, by the operator's index.
    pub operators: Vec<(usize, SubtaskState)>,
    /// How long each part took.
    pub timings: Timings,
}

/// How long a subtask's part of a checkpoint took. All differences of one monotonic clock, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Timings {
    /// From the trigger decision to the first barrier, or at a source to the trigger.
    pub start_delay_ns: u64,
    /// From the first barrier to the last one.
    pub alignment_ns: u64,
    /// The mail that forwards the barrier and raises the epoch: no record is worked on meanwhile.
    pub sync_ns: u64,
    /// From then until the state is durable.
    pub async_ns: u64,
    /// Channel whose barrier came last, where there are several.
    pub last_channel: Option<u32>,
    /// Bytes of state that this checkpoint has written.
    pub written_bytes: u64,
    /// Bytes of state of all deltas that the checkpoint refers to.
    pub state_bytes: u64,
}

/// What happens to a subtask's part of a checkpoint.
#[derive(Debug, Clone)]
pub enum CheckpointReport {
    /// It is durable.
    Ack(Ack),
    /// All input of the subtask has ended and everything was emitted: it waits for its last checkpoint.
    EndOfData {
        /// Index of the subtask in the plan.
        subtask: usize,
    },
    /// It will not be.
    Decline {
        /// The checkpoint.
        checkpoint: u64,
        /// Index of the subtask in the plan.
        subtask: usize,
        /// Why.
        reason: DeclineReason,
    },
}

/// Why a subtask has no part in a checkpoint.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeclineReason {
    /// An operator's snapshot failed.
    #[error("operator {operator:?}: {cause}")]
    Operator {
        /// Its name.
        operator: String,
        /// What it said.
        cause: String,
    },
    /// The state could not be written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An operator's own state is longer than a frame of the log.
    #[error("the state of operator {operator} of the chain has {bytes} bytes, expected at most {max}")]
    TooLong {
        /// Its index in the chain.
        operator: usize,
        /// Its bytes.
        bytes: usize,
        /// What a frame takes.
        max: usize,
    },
    /// A newer barrier came first.
    #[error("checkpoint {newer} began before all barriers of this one had come")]
    Subsumed {
        /// The newer one.
        newer: u64,
    },
    /// An input ended while its barrier was waited for.
    #[error("an input ended before its barrier came")]
    InputEnded,
    /// Keyed state could not be written.
    #[error(transparent)]
    Keyed(#[from] SnapshotError),
}

/// Takes what subtasks report; must not block.
pub trait CheckpointReports: Send + Sync {
    /// Takes a report.
    fn report(&self, report: CheckpointReport);
}
