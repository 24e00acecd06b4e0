//! Sinks: where records go to.

pub mod blackhole;
pub mod collect;
mod disk;
pub mod file;
pub mod latency;
mod row;
pub mod sorted;
pub mod stdout;
pub mod transactional;
pub mod two_phase;

pub use disk::{DiskError, PublishError};
pub use row::Format;

use crate::record::{Record, Timestamp};
use crate::source::{SourceError, Waker};

/// One parallel instance of a sink. Runs at the end of a chain, on its shard's thread.
pub trait Sink: 'static {
    /// What it takes.
    type Item: Record;

    /// Whether what it makes visible is exactly what came before complete checkpoints, each record once. A job
    /// with a sink that is not shows some records twice after it has failed.
    const TRANSACTIONAL: bool = false;

    /// Takes one record.
    ///
    /// # Errors
    ///
    /// Any error fails the job, with the sink's name in front.
    fn write(&mut self, record: <Self::Item as Record>::Ref<'_>, at: Timestamp) -> Result<(), SourceError>;

    /// Makes visible what was written; called at the flush interval and at the end of a turn that had input.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn flush(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The input has ended. Called once. Publish what is left, unless the job has checkpoints and the sink is
    /// [transactional](Self::TRANSACTIONAL): then one more checkpoint follows, and publishes it.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn finish(&mut self) -> Result<(), SourceError>;

    /// The barrier of a checkpoint has come: what was written since the last one becomes pending, durable but not
    /// visible. Appends to `state` all that [`restore`](Self::restore) needs to commit it, and all that is
    /// pending of earlier checkpoints. It may still be on its way to the disk: [`is_durable`](Self::is_durable).
    ///
    /// # Errors
    ///
    /// Any error fails the checkpoint, not the job. What was written goes to the next one.
    fn pre_commit(&mut self, checkpoint: u64, state: &mut Vec<u8>) -> Result<(), SourceError> {
        let _ = (checkpoint, state);
        self.flush()
    }

    /// Whether all that [`pre_commit`](Self::pre_commit) of this checkpoint and of earlier ones handed over is
    /// durable. The checkpoint is not acknowledged before. Never waits; who answers no uses the
    /// [waker](Self::wake_with) when that changes.
    ///
    /// # Errors
    ///
    /// Any error fails the checkpoint.
    fn is_durable(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        let _ = checkpoint;
        Ok(true)
    }

    /// The checkpoint is complete: make visible what is pending for it and for earlier ones. Must do no harm a
    /// second time. May go on behind the call: [`is_committed`](Self::is_committed).
    ///
    /// # Errors
    ///
    /// Any error fails the job, which commits again when it has restarted.
    fn commit(&mut self, checkpoint: u64) -> Result<(), SourceError> {
        let _ = checkpoint;
        Ok(())
    }

    /// Whether all that [`commit`](Self::commit) of this checkpoint and of earlier ones was to make visible is so,
    /// durably. A subtask whose input has ended does not end before. Never waits; who answers no uses the
    /// [waker](Self::wake_with) when that changes.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    fn is_committed(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        let _ = checkpoint;
        Ok(true)
    }

    /// Is told once, before all else, how to have its subtask run again.
    fn wake_with(&mut self, waker: &Waker) {
        let _ = waker;
    }

    /// Called once before the first record when the job goes on from `checkpoint`, with what
    /// [`pre_commit`](Self::pre_commit) of the same subtask appended for it: commits it, and removes what was left
    /// unpublished by later ones.
    ///
    /// # Errors
    ///
    /// Something that would make records appear twice or not at all, by name.
    fn restore(&mut self, checkpoint: u64, state: &[u8]) -> Result<(), SourceError> {
        let _ = (checkpoint, state);
        Ok(())
    }
}
