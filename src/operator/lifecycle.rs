//! What the checkpoints of a subtask ask of the operators in its chain.
//!
//! One method, so that an operator without state hands everything on in one line.

use crate::checkpoint::DeclineReason;
use crate::source::SourceError;
use tidegate_shard::task::{Clock, TurnContext};
use tidegate_storage::log::writer::LogWriter;
use tidegate_storage::metadata::SubtaskState;

/// A moment in the life of a checkpoint, always between two records.
pub enum Lifecycle<'a, 'w> {
    /// The barrier of this checkpoint is about to be sent: emit what is held back, a bounded amount.
    PreBarrier(u64),
    /// The synchronous part: hand over small state, and have changes from now on told from those before. Takes
    /// as long however large the state is.
    Snapshot(&'a mut Snapshot),
    /// One bounded step of writing what the snapshot is of.
    Write(&'a mut Writing<'w>),
    /// Say whether what goes on outside of the log has come to its end.
    Settle(&'a mut Settling),
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
    /// Whether everything is to be written, rather than what changed since `base`.
    pub full: bool,
    operators: Vec<(usize, SubtaskState)>,
    failure: Option<(String, SourceError)>,
}

impl Snapshot {
    /// Of nothing yet.
    pub(crate) fn new(checkpoint: u64, base: u64, finished: bool, full: bool) -> Self {
        Snapshot { checkpoint, base, finished, full, operators: Vec::new(), failure: None }
    }

    /// Where an operator's state is gathered; `operator` is its index in the vertex.
    pub fn state_of(&mut self, operator: usize) -> &mut SubtaskState {
        state_of(&mut self.operators, operator)
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

fn state_of(operators: &mut Vec<(usize, SubtaskState)>, operator: usize) -> &mut SubtaskState {
    let at = match operators.iter().position(|(index, _)| *index == operator) {
        Some(at) => at,
        None => {
            operators.push((operator, SubtaskState::default()));
            operators.len() - 1
        }
    };
    &mut operators[at].1
}

/// One step of writing a snapshot.
pub struct Writing<'a> {
    /// The checkpoint.
    pub checkpoint: u64,
    /// Where to.
    pub log: &'a mut LogWriter,
    /// Under which number frames are the subtask's.
    pub owner: u64,
    clock: &'a dyn Clock,
    until_ns: u64,
    operators: &'a mut Vec<(usize, SubtaskState)>,
    written_bytes: &'a mut u64,
    blocked: bool,
    more: bool,
    failure: Option<DeclineReason>,
}

impl<'a> Writing<'a> {
    pub(crate) fn new(
        checkpoint: u64,
        log: &'a mut LogWriter,
        owner: u64,
        cx: &TurnContext<'a>,
        operators: &'a mut Vec<(usize, SubtaskState)>,
        written_bytes: &'a mut u64,
    ) -> Self {
        let (clock, until_ns) = (cx.clock, cx.until_ns);
        Writing {
            checkpoint,
            log,
            owner,
            clock,
            until_ns,
            operators,
            written_bytes,
            blocked: false,
            more: false,
            failure: None,
        }
    }

    /// Whether the step is long enough.
    pub fn is_over(&self) -> bool {
        self.blocked || self.failure.is_some() || self.clock.now_ns() >= self.until_ns
    }

    /// Says that there is more to write.
    pub fn more(&mut self) {
        self.more = true;
    }

    /// Says that the log takes no more for now.
    pub fn blocked(&mut self) {
        self.blocked = true;
    }

    /// Says that the checkpoint cannot be written.
    pub fn fail(&mut self, reason: DeclineReason) {
        self.failure.get_or_insert(reason);
    }

    /// Where an operator's state is gathered, once all of it is written.
    pub fn state_of(&mut self, operator: usize) -> &mut SubtaskState {
        state_of(self.operators, operator)
    }

    /// Counts bytes of state that this checkpoint writes.
    pub fn wrote(&mut self, bytes: u64) {
        *self.written_bytes += bytes;
    }

    /// How the step went.
    pub(crate) fn outcome(self) -> Written {
        match self.failure {
            Some(reason) => Written::Failed(reason),
            None if self.blocked => Written::Blocked,
            None if self.more => Written::More,
            None => Written::All,
        }
    }
}

/// How a step of writing went.
pub(crate) enum Written {
    All,
    More,
    Blocked,
    Failed(DeclineReason),
}

/// What is asked of operators, mostly of sinks, whose work goes on behind a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Before the ack: what was handed over for the checkpoint is durable.
    Durable,
    /// Before the subtask ends: what the checkpoint has completed is visible.
    Committed,
}

/// A question to all operators; without an objection the answer is yes.
pub struct Settling {
    /// The checkpoint.
    pub checkpoint: u64,
    /// What is asked.
    pub what: Settled,
    waits: bool,
    failure: Option<(String, SourceError)>,
}

impl Settling {
    pub(crate) fn new(checkpoint: u64, what: Settled) -> Self {
        Settling { checkpoint, what, waits: false, failure: None }
    }

    /// Says that it is not so yet; asked again when the task's waker was used, or soon.
    pub fn waits(&mut self) {
        self.waits = true;
    }

    /// Says that the operator `name` has failed.
    pub fn fail(&mut self, name: &str, cause: SourceError) {
        self.failure.get_or_insert_with(|| (name.to_string(), cause));
    }

    /// Whether it is so, or who failed.
    pub(crate) fn outcome(self) -> Result<bool, (String, SourceError)> {
        match self.failure {
            None => Ok(!self.waits),
            Some(failure) => Err(failure),
        }
    }
}
