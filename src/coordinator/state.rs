//! The job's state machine: reports of shards in, orders to shards out. Reads no clock and sends nothing.
//!
//! ```text
//! CREATED ─► RUNNING ─► FINISHED
//!    │          ├─► FAILING ────► FAILED
//!    └──────────┴─► CANCELLING ─► CANCELED
//! ```

use std::fmt;
use tidegate_shard::mailbox::Mail;
use tidegate_shard::shard::{Report, ShardId};
use tidegate_shard::task::{TaskFailure, TaskIndex};

/// What a job is doing, as Flink names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Its tasks are being set up.
    Created,
    /// All its tasks run.
    Running,
    /// A task has failed; the others are being dropped.
    Failing,
    /// It has failed and is gone.
    Failed,
    /// It was cancelled; its tasks are being dropped.
    Cancelling,
    /// It was cancelled and is gone.
    Canceled,
    /// All its tasks have finished.
    Finished,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobState::Created => "CREATED",
            JobState::Running => "RUNNING",
            JobState::Failing => "FAILING",
            JobState::Failed => "FAILED",
            JobState::Cancelling => "CANCELLING",
            JobState::Canceled => "CANCELED",
            JobState::Finished => "FINISHED",
        })
    }
}

impl JobState {
    /// Whether the job is gone.
    pub fn is_terminal(self) -> bool {
        matches!(self, JobState::Failed | JobState::Canceled | JobState::Finished)
    }
}

/// What is to be sent to shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Drop all tasks and stop; to every shard.
    ShutDown,
    /// Mail to one task.
    Mail(ShardId, TaskIndex, Mail),
}

/// The job's state machine.
#[derive(Debug)]
pub struct Machine {
    state: JobState,
    shards: usize,
    deployed: usize,
    stopped: usize,
    unfinished: usize,
    sources: Vec<(ShardId, TaskIndex)>,
    failure: Option<(ShardId, TaskIndex, TaskFailure)>,
}

impl Machine {
    /// A job of `tasks` tasks on `shards` shards, with these sources, whose deployments were sent.
    pub fn new(shards: usize, tasks: usize, sources: Vec<(ShardId, TaskIndex)>) -> Self {
        Machine {
            state: JobState::Created,
            shards,
            deployed: 0,
            stopped: 0,
            unfinished: tasks,
            sources,
            failure: None,
        }
    }

    /// What the job is doing.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// The first failure.
    pub fn failure(&self) -> Option<&(ShardId, TaskIndex, TaskFailure)> {
        self.failure.as_ref()
    }

    /// Takes a report and says what follows from it.
    pub fn report(&mut self, shard: ShardId, report: Report) -> Vec<Order> {
        match report {
            Report::Deployed => {
                self.deployed += 1;
                if self.deployed == self.shards && self.state == JobState::Created {
                    self.state = JobState::Running;
                }
            }
            Report::Finished(_) => {
                self.unfinished -= 1;
                if self.unfinished == 0 && self.is_active() {
                    self.state = JobState::Finished;
                    return vec![Order::ShutDown];
                }
            }
            Report::Failed(task, failure) => {
                // The first failure is the cause; what fails later may follow from it.
                if self.is_active() {
                    self.failure = Some((shard, task, failure));
                    self.state = JobState::Failing;
                    return vec![Order::ShutDown];
                }
            }
            Report::Refused(task, mail) => {
                if self.is_active() {
                    return vec![Order::Mail(shard, task, mail)];
                }
            }
            Report::Stopped => {
                self.stopped += 1;
                if self.stopped == self.shards {
                    self.state = match self.state {
                        JobState::Failing => JobState::Failed,
                        JobState::Cancelling => JobState::Canceled,
                        state => state,
                    };
                }
            }
            Report::Probed(..) => {}
        }
        Vec::new()
    }

    /// Drops the job where it stands.
    pub fn cancel(&mut self) -> Vec<Order> {
        if !self.is_active() {
            return Vec::new();
        }
        self.state = JobState::Cancelling;
        vec![Order::ShutDown]
    }

    /// Ends the sources, so that the job finishes with what they have emitted.
    pub fn stop(&mut self) -> Vec<Order> {
        if !self.is_active() {
            return Vec::new();
        }
        self.sources.iter().map(|(shard, task)| Order::Mail(*shard, *task, Mail::Stop)).collect()
    }

    /// Whether every shard has stopped.
    pub fn is_over(&self) -> bool {
        self.stopped == self.shards
    }

    fn is_active(&self) -> bool {
        matches!(self.state, JobState::Created | JobState::Running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: [ShardId; 2] = [ShardId(0), ShardId(1)];

    fn machine() -> Machine {
        let mut machine = Machine::new(2, 3, vec![(SHARDS[0], TaskIndex(0))]);
        for shard in SHARDS {
            assert_eq!(machine.report(shard, Report::Deployed), []);
        }
        assert_eq!(machine.state(), JobState::Running);
        machine
    }

    fn failure(cause: &str) -> TaskFailure {
        TaskFailure { operator: None, cause: cause.to_string() }
    }

    #[test]
    fn a_job_finishes_when_its_last_task_does() {
        let mut machine = machine();
        assert_eq!(machine.stop(), [Order::Mail(SHARDS[0], TaskIndex(0), Mail::Stop)]);
        assert_eq!(machine.report(SHARDS[0], Report::Finished(TaskIndex(0))), []);
        assert_eq!(machine.report(SHARDS[1], Report::Finished(TaskIndex(0))), []);
        assert_eq!(machine.report(SHARDS[0], Report::Finished(TaskIndex(1))), [Order::ShutDown]);
        for shard in SHARDS {
            assert!(!machine.is_over());
            machine.report(shard, Report::Stopped);
        }
        assert_eq!((machine.is_over(), machine.state()), (true, JobState::Finished));
    }

    /// Goal: the first failure is the one that is told, and shards are told to stop once.
    #[test]
    fn the_first_failure_is_the_cause() {
        let mut machine = machine();
        let first = Report::Failed(TaskIndex(0), failure("first"));
        assert_eq!(machine.report(SHARDS[1], first), [Order::ShutDown]);
        assert_eq!(machine.report(SHARDS[0], Report::Failed(TaskIndex(1), failure("second"))), []);
        assert_eq!(machine.cancel(), []);
        for shard in SHARDS {
            machine.report(shard, Report::Stopped);
        }
        assert_eq!(machine.state(), JobState::Failed);
        assert_eq!(machine.failure().map(|f| f.2.cause.as_str()), Some("first"));
    }

    #[test]
    fn a_cancelled_job_ends_canceled_whatever_its_tasks_say() {
        let mut machine = machine();
        assert_eq!(machine.cancel(), [Order::ShutDown]);
        machine.report(SHARDS[0], Report::Finished(TaskIndex(0)));
        for shard in SHARDS {
            machine.report(shard, Report::Stopped);
        }
        assert_eq!(machine.state(), JobState::Canceled);
    }
}
