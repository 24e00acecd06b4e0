//! Mail: bounded requests to a task, run between quanta, never in the middle of a record.
//!
//! Mail of one class keeps its order. Only what ends a task overtakes: a trigger must not pass the
//! assignments that were sent before it. A full mailbox refuses its sender, which is the coordinator and
//! can try again; shards never send each other mail.

use crate::barrier::{Barrier, CheckpointId};
use std::collections::VecDeque;

/// A request to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mail {
    /// End now: drop what is in work. Overtakes.
    Cancel,
    /// A source: emit no more and end as if the input had; other tasks ignore it.
    Stop,
    /// A source: take a checkpoint and send its barrier.
    Trigger(Barrier),
    /// A checkpoint is complete: what was pending for it may be made visible.
    Complete(CheckpointId),
    /// A checkpoint was given up: do not wait for its barriers, forget what was written for it.
    Abort(CheckpointId),
    /// Report how long this mail has waited: sent at this time, in nanoseconds.
    Probe {
        /// When it was sent.
        sent_at_ns: u64,
    },
}

impl Mail {
    fn overtakes(&self) -> bool {
        matches!(self, Mail::Cancel)
    }
}

/// Mail that waits for one task.
#[derive(Debug)]
pub struct Mailbox {
    urgent: VecDeque<Mail>,
    ordered: VecDeque<Mail>,
    max: usize,
}

/// A mailbox was full; the mail comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct MailboxFull(pub Mail);

impl Mailbox {
    /// A mailbox for at most `max` mails of each class.
    pub fn new(max: usize) -> Self {
        Mailbox { urgent: VecDeque::new(), ordered: VecDeque::new(), max }
    }

    /// Adds a mail.
    ///
    /// # Errors
    ///
    /// [`MailboxFull`] with the mail: try again after the task has run.
    pub fn put(&mut self, mail: Mail) -> Result<(), MailboxFull> {
        let queue = if mail.overtakes() { &mut self.urgent } else { &mut self.ordered };
        if queue.len() == self.max {
            return Err(MailboxFull(mail));
        }
        queue.push_back(mail);
        Ok(())
    }

    /// Takes the next mail to run.
    pub fn take(&mut self) -> Option<Mail> {
        self.urgent.pop_front().or_else(|| self.ordered.pop_front())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ordered.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancel_overtakes_and_the_rest_keeps_its_order() {
        let mut mailbox = Mailbox::new(2);
        let probe = |sent_at_ns| Mail::Probe { sent_at_ns };
        assert_eq!(mailbox.put(probe(1)), Ok(()));
        assert_eq!(mailbox.put(Mail::Stop), Ok(()));
        assert_eq!(mailbox.put(probe(2)), Err(MailboxFull(probe(2))));
        assert_eq!(mailbox.put(Mail::Cancel), Ok(()));
        let order: Vec<_> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(order, [Mail::Cancel, probe(1), Mail::Stop]);
        assert!(mailbox.is_empty());
    }
}
