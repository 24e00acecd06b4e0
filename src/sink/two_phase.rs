//! Two-phase commit: what makes a sink's output exactly what came before complete checkpoints.
//!
//! A connector implements [`TwoPhase`], which knows its target and nothing of checkpoints. [`TwoPhaseSink`] makes a
//! [`Sink`] of it, and holds the protocol:
//!
//! ```text
//!   records ─► open transaction ──barrier──► pending ──complete──► committed: seen by readers
//!                     │                         │
//!                     └── abort, when the job ──┘
//!                         goes on from an earlier checkpoint
//! ```
//!
//! | moment | what becomes of transactions |
//! | --- | --- |
//! | first record after a barrier | one begins |
//! | barrier | the open one is handed over as bytes, its handle, which go into the checkpoint |
//! | checkpoint complete | all that is pending for it, and for earlier ones, is committed |
//! | checkpoint given up | nothing: what is pending for it is committed with the next one that completes |
//! | the job goes on from a checkpoint | what it lists is committed (once more); all else that the subtask left behind is aborted |
//!
//! Invariants:
//!
//! - A checkpoint lists every transaction that is pending, until it is *known* to be committed; so each list is
//!   complete by itself, whatever became of earlier notices and checkpoints.
//! - Nothing is committed that no complete checkpoint lists. A record that a reader has seen is never emitted again.
//! - A commit may be repeated, by another process too. Only "it was done before" makes that a success: a transaction
//!   of which nobody knows anything is an error, since its records may be lost.
//!
//! After Gray, "Notes on data base operating systems", 1978; here the coordinator's log is the checkpoint.

use super::Sink;
use crate::checkpoint::Checkpointing;
use crate::record::{Record, Timestamp};
use crate::sealed;
use crate::source::{SourceError, Waker};
use std::collections::VecDeque;

/// Version of the list in a checkpoint.
const VERSION: u8 = 1;

/// A target that can hold output back, and make it visible later by what a few bytes say. One instance a subtask;
/// all methods are called on its shard's thread, and only those called `blocking_` may wait.
pub trait TwoPhase: 'static {
    /// What it takes.
    type Item: Record;
    /// What records are written into. Dropping one leaves it to [`blocking_abort`](Self::blocking_abort), perhaps in another process.
    type Transaction;

    /// Begins a transaction. Cheap, since many sinks are idle: at best nothing is sent before the first record.
    ///
    /// # Errors
    ///
    /// Any error fails the job.
    fn begin(&mut self) -> Result<Self::Transaction, SourceError>;

    /// Writes one record into a transaction.
    ///
    /// # Errors
    ///
    /// Any error fails the job, also one of a record before.
    fn write(
        &mut self,
        transaction: &mut Self::Transaction,
        record: <Self::Item as Record>::Ref<'_>,
        at: Timestamp,
    ) -> Result<(), SourceError>;

    /// Called at the flush interval and at the end of a turn with records: sends what is held back, and learns of
    /// errors.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn flush(&mut self, transaction: &mut Self::Transaction) -> Result<(), SourceError> {
        let _ = transaction;
        Ok(())
    }

    /// The first phase: ends a transaction, from now on pending for `checkpoint`, and appends its handle: all
    /// that [`commit`](Self::commit) needs, also in another process. In this order: send what is held back, learn of
    /// errors of what was sent before, describe. What takes long goes on behind the call.
    ///
    /// # Errors
    ///
    /// Any error fails the checkpoint, and soon the job, which goes back to the checkpoint before: what was written is
    /// gone.
    fn pre_commit(
        &mut self,
        transaction: Self::Transaction,
        checkpoint: u64,
        handle: &mut Vec<u8>,
    ) -> Result<(), SourceError>;

    /// Whether all that is pending for this checkpoint and earlier ones survives a crash of any machine.
    ///
    /// # Errors
    ///
    /// As [`pre_commit`](Self::pre_commit).
    fn is_durable(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        let _ = checkpoint;
        Ok(true)
    }

    /// The second phase: makes a transaction visible that was pending for `checkpoint`. May go on behind the call. That
    /// it was done before is success.
    ///
    /// # Errors
    ///
    /// It cannot be made visible, or nobody knows of it. The job fails, and tries again when it has restarted.
    fn commit(&mut self, checkpoint: u64, handle: &[u8]) -> Result<(), SourceError>;

    /// Whether all commits for this checkpoint and earlier ones are done, durably.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    fn is_committed(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        let _ = checkpoint;
        Ok(true)
    }

    /// Waits until everything that goes on behind calls is done.
    ///
    /// # Errors
    ///
    /// What failed of it.
    fn blocking_settle(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// Handles of everything that earlier attempts and runs of this job have left behind here and that is not
    /// committed, open and pending. Each subtask names its own; the first one also those of subtasks that do not
    /// exist any more. May wait, as no record is worked on yet.
    ///
    /// # Errors
    ///
    /// What cannot be looked at.
    fn blocking_leftovers(&mut self) -> Result<Vec<Vec<u8>>, SourceError>;

    /// Removes what a handle names, for ever. That it is gone already is success. May wait.
    ///
    /// # Errors
    ///
    /// What cannot be removed.
    fn blocking_abort(&mut self, handle: &[u8]) -> Result<(), SourceError>;

    /// Looks for output that is visible already although the job goes on from before it: of this job beyond the
    /// checkpoint `restored`, of any job if that is `None`. Nothing has been changed yet when it is called. May wait.
    ///
    /// # Errors
    ///
    /// There is some, by name, unless the user wants it so.
    fn blocking_check(&mut self, restored: Option<u64>) -> Result<(), SourceError>;

    /// Deals with what [`blocking_check`](Self::blocking_check) found, as the user wants it.
    ///
    /// # Errors
    ///
    /// What could not be done.
    fn blocking_retract(&mut self, restored: Option<u64>) -> Result<(), SourceError> {
        let _ = restored;
        Ok(())
    }

    /// Is told once, before all else, how to have its subtask run again.
    fn wake_with(&mut self, waker: &Waker) {
        let _ = waker;
    }
}

/// A transaction that the next checkpoint has to list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pending {
    checkpoint: u64,
    handle: Vec<u8>,
    /// Whether its commit has been asked for.
    committing: bool,
}

/// A sink that commits in two phases; see the module's description.
///
/// In a job without checkpoints everything is one transaction, which is committed when the input has ended.
pub struct TwoPhaseSink<P: TwoPhase> {
    target: P,
    checkpoints: Option<Checkpointing>,
    open: Option<P::Transaction>,
    /// By checkpoint, ascending; those that are being committed are first.
    pending: VecDeque<Pending>,
    /// What failed first.
    broken: Option<String>,
}

impl<P: TwoPhase> TwoPhaseSink<P> {
    /// A sink of one subtask. A job that begins anew finds nothing in its target, or is refused. Waits for it.
    ///
    /// # Errors
    ///
    /// What is in the target, or why it cannot be looked at.
    pub fn new(target: P, checkpoints: Option<Checkpointing>) -> Result<Self, SourceError> {
        let pending = VecDeque::new();
        let mut sink = TwoPhaseSink { target, checkpoints, open: None, pending, broken: None };
        // Else `restore` follows.
        if checkpoints.is_none_or(|checkpoints| checkpoints.restored.is_none()) {
            sink.begin_from(None, Vec::new())?;
        }
        Ok(sink)
    }

    /// Brings the target to where `restored` left it, which lists `pending`.
    fn begin_from(&mut self, restored: Option<u64>, pending: Vec<Pending>) -> Result<(), SourceError> {
        // First of all, as it may refuse: until then the user can go on from another checkpoint instead.
        self.target.blocking_check(restored)?;
        for Pending { checkpoint, handle, .. } in &pending {
            self.target.commit(*checkpoint, handle)?;
        }
        self.target.blocking_settle()?;
        for handle in self.target.blocking_leftovers()? {
            self.target.blocking_abort(&handle)?;
        }
        self.target.blocking_retract(restored)
    }

    /// Ends the open transaction, if there is one.
    fn end_transaction(&mut self, checkpoint: u64) -> Result<(), SourceError> {
        if let Some(transaction) = self.open.take() {
            let mut handle = Vec::new();
            self.target.pre_commit(transaction, checkpoint, &mut handle)?;
            self.pending.push_back(Pending { checkpoint, handle, committing: false });
        }
        Ok(())
    }

    /// Commits what is pending for this checkpoint and earlier ones.
    fn commit_to(&mut self, checkpoint: u64) -> Result<(), SourceError> {
        for pending in self.pending.iter_mut().take_while(|pending| pending.checkpoint <= checkpoint) {
            if !pending.committing {
                self.target.commit(pending.checkpoint, &pending.handle)?;
                pending.committing = true;
            }
        }
        self.forget_committed()
    }

    /// Forgets what is committed by now.
    fn forget_committed(&mut self) -> Result<(), SourceError> {
        while let Some(Pending { checkpoint, committing: true, .. }) = self.pending.front() {
            if !self.target.is_committed(*checkpoint)? {
                break;
            }
            self.pending.pop_front();
        }
        Ok(())
    }

    /// Does one step, unless one has failed: then records are gone, and only an earlier checkpoint has them. So no
    /// later one may succeed.
    fn whole<R>(&mut self, step: impl FnOnce(&mut Self) -> Result<R, SourceError>) -> Result<R, SourceError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone().into());
        }
        step(self).inspect_err(|error| self.broken = Some(error.to_string()))
    }
}

impl<P: TwoPhase> Sink for TwoPhaseSink<P> {
    type Item = P::Item;

    const TRANSACTIONAL: bool = true;

    #[inline]
    fn write(&mut self, record: <P::Item as Record>::Ref<'_>, at: Timestamp) -> Result<(), SourceError> {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let transaction = self.whole(|sink| sink.target.begin())?;
                self.open.insert(transaction)
            }
        };
        let written = self.target.write(open, record, at);
        written.inspect_err(|error| self.broken = Some(error.to_string()))
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        self.whole(|sink| match &mut sink.open {
            Some(open) => sink.target.flush(open),
            None => Ok(()),
        })
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.whole(|sink| {
            if sink.checkpoints.is_some() {
                return Ok(());
            }
            sink.end_transaction(0)?;
            sink.commit_to(0)?;
            sink.target.blocking_settle()
        })
    }

    fn pre_commit(&mut self, checkpoint: u64, state: &mut Vec<u8>) -> Result<(), SourceError> {
        self.whole(|sink| {
            sink.end_transaction(checkpoint)?;
            sink.forget_committed()
        })?;
        if !self.pending.is_empty() {
            sealed::seal(VERSION, state, |fields| {
                fields.list(self.pending.iter(), |fields, pending| {
                    fields.u64(pending.checkpoint);
                    fields.bytes(&pending.handle);
                });
            });
        }
        Ok(())
    }

    fn is_durable(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.whole(|sink| sink.target.is_durable(checkpoint))
    }

    fn commit(&mut self, checkpoint: u64) -> Result<(), SourceError> {
        self.whole(|sink| sink.commit_to(checkpoint))
    }

    fn is_committed(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.whole(|sink| sink.target.is_committed(checkpoint))
    }

    fn restore(&mut self, checkpoint: u64, state: &[u8]) -> Result<(), SourceError> {
        let pending = if state.is_empty() {
            Vec::new()
        } else {
            sealed::open("a two-phase sink", VERSION, state, |_, fields| {
                fields.list(12, |fields| {
                    let (checkpoint, handle) = (fields.u64()?, fields.bytes()?.to_vec());
                    Ok(Pending { checkpoint, handle, committing: false })
                })
            })?
        };
        self.begin_from(Some(checkpoint), pending)
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.target.wake_with(waker);
    }
}

#[cfg(test)]
impl<P: TwoPhase> TwoPhaseSink<P> {
    pub(super) fn target(&mut self) -> &mut P {
        &mut self.target
    }
}
