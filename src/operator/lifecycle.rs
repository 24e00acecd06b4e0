//! What the checkpoints of a subtask ask of the operators in its chain.
//!
//! One method, so that an operator without state hands everything on in one line.

use crate::source::SourceError;
use tidegate_storage::metadata::SubtaskState;

/// A moment in the life of a checkpoint, always between two records.
pub enum Lifecycle<'a> {
    /// The barrier of this checkpoint is about to be sent: emit what is held back, a bounded amount.
    PreBarrier(u64),
    /// The synchronous part: hand over small state, and have changes from now on told from those before. Takes
    /// as long however large the state is.
    Snapshot(&'a mut Snapshot),
    /// The checkpoint is complete: what was pending for it, and for earlier ones, may be made visible.
    Complete(u64),
    /// The checkpoint was given up.
    Abort(u64),
}

/// What the operators of a subtask hand over for one checkpoint.
pub struct Snapshot {
    /// The checkpoint.
    pub checkpoint: u64,
    /// The newest complete checkpoint at the trigger, or 0.
    pub base: u64,
    /// Whether all input has ended and everything was emitted.
    pub finished: bool,
    operators: Vec<(usize, SubtaskState)>,
    failure: Option<(String, SourceError)>,
}

impl Snapshot {
    /// Of nothing yet.
    pub(crate) fn new(checkpoint: u64, base: u64, finished: bool) -> Self {
        Snapshot { checkpoint, base, finished, operators: Vec::new(), failure: None }
    }

    /// Where an operator's state is gathered; `operator` is its index in the vertex.
    pub fn state_of(&mut self, operator: usize) -> &mut SubtaskState {
        let at = match self.operators.iter().position(|(index, _)| *index == operator) {
            Some(at) => at,
            None => {
                self.operators.push((operator, SubtaskState::default()));
                self.operators.len() - 1
            }
        };
        &mut self.operators[at].1
    }

    /// Says that the operator `name` cannot be part of the checkpoint. The first failure counts.
    pub fn fail(&mut self, name: &str, cause: SourceError) {
        self.failure.get_or_insert_with(|| (name.to_string(), cause));
    }

    /// What was handed over, or who failed.
    pub(crate) fn take(self) -> Result<Vec<(usize, SubtaskState)>, (String, SourceError)> {
        match self.failure {
            None => Ok(self.operators),
            Some(failure) => Err(failure),
        }
    }
}
