//! Failed checkpoints: which of them count, and when they are too many for the job.
//!
//! A checkpoint that fails costs nothing but the time to the next one, so a job bears some in a row
//! (`execution.checkpointing.tolerable-failed-checkpoints`, by default none). Failures that are nobody's fault
//! do not count: a newer checkpoint that was quicker, a job that is being stopped, tasks that are not there yet.
//!
//! | event | effect on the count |
//! | --- | --- |
//! | counted failure of an id that is not older than the newest complete one | one more, once an id |
//! | any other failure | none |
//! | a checkpoint newer than all before is complete | 0 |
//!
//! Why ids are remembered and not compared: with several checkpoints under way 4 may fail before 3 completes, and
//! two tasks may report that 4 has failed.

use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Why a checkpoint failed; the names are stable, for REST and scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureReason {
    /// The coordinator takes no periodic checkpoints now.
    PeriodicSchedulerShutdown,
    /// More requests wait than may.
    TooManyCheckpointRequests,
    /// The pause after the previous checkpoint is not over.
    MinimumTimeBetweenCheckpoints,
    /// A task that has to take part is not running.
    NotAllRequiredTasksRunning,
    /// An exchange between stages cannot be cut.
    BlockingOutputExist,
    /// It was not complete in time.
    CheckpointExpired,
    /// A newer one is complete.
    CheckpointSubsumed,
    /// A task said no.
    CheckpointDeclined,
    /// A task that said no was not ready.
    CheckpointDeclinedTaskNotReady,
    /// A task that said no was about to end.
    CheckpointDeclinedTaskClosing,
    /// A task that said no had seen a newer one.
    CheckpointDeclinedSubsumed,
    /// A task that said no had been told to give it up.
    CheckpointDeclinedOnCancellationBarrier,
    /// A task that said no saw the end of an input in place of its barrier.
    CheckpointDeclinedInputEndOfStream,
    /// A task could not write its state.
    CheckpointAsyncException,
    /// In-flight data of several tasks shares a file that failed.
    ChannelStateSharedStreamException,
    /// The coordinator is gone.
    CheckpointCoordinatorShutdown,
    /// The job does not run now.
    CheckpointCoordinatorSuspend,
    /// A part of the job is restarted.
    JobFailoverRegion,
    /// A task has failed.
    TaskFailure,
    /// A task failed while it took its snapshot.
    TaskCheckpointFailure,
    /// A task sent a notice that nobody understands.
    UnknownTaskCheckpointNotificationFailure,
    /// It could not be committed.
    FinalizeCheckpointFailure,
    /// It could not be begun.
    TriggerCheckpointFailure,
    /// The coordinator could not read or write.
    IoException,
}

impl FailureReason {
    /// All of them.
    pub const ALL: [FailureReason; 24] = {
        use FailureReason::*;
        [
            PeriodicSchedulerShutdown,
            TooManyCheckpointRequests,
            MinimumTimeBetweenCheckpoints,
            NotAllRequiredTasksRunning,
            BlockingOutputExist,
            CheckpointExpired,
            CheckpointSubsumed,
            CheckpointDeclined,
            CheckpointDeclinedTaskNotReady,
            CheckpointDeclinedTaskClosing,
            CheckpointDeclinedSubsumed,
            CheckpointDeclinedOnCancellationBarrier,
            CheckpointDeclinedInputEndOfStream,
            CheckpointAsyncException,
            ChannelStateSharedStreamException,
            CheckpointCoordinatorShutdown,
            CheckpointCoordinatorSuspend,
            JobFailoverRegion,
            TaskFailure,
            TaskCheckpointFailure,
            UnknownTaskCheckpointNotificationFailure,
            FinalizeCheckpointFailure,
            TriggerCheckpointFailure,
            IoException,
        ]
    };

    /// Whether it counts toward the tolerance.
    pub fn counts(self) -> bool {
        use FailureReason::*;
        matches!(
            self,
            CheckpointExpired
                | CheckpointDeclined
                | CheckpointAsyncException
                | IoException
                | FinalizeCheckpointFailure
        )
    }

    /// The name, as REST has it: `CHECKPOINT_EXPIRED`.
    pub fn name(self) -> &'static str {
        use FailureReason::*;
        match self {
            PeriodicSchedulerShutdown => "PERIODIC_SCHEDULER_SHUTDOWN",
            TooManyCheckpointRequests => "TOO_MANY_CHECKPOINT_REQUESTS",
            MinimumTimeBetweenCheckpoints => "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
            NotAllRequiredTasksRunning => "NOT_ALL_REQUIRED_TASKS_RUNNING",
            BlockingOutputExist => "BLOCKING_OUTPUT_EXIST",
            CheckpointExpired => "CHECKPOINT_EXPIRED",
            CheckpointSubsumed => "CHECKPOINT_SUBSUMED",
            CheckpointDeclined => "CHECKPOINT_DECLINED",
            CheckpointDeclinedTaskNotReady => "CHECKPOINT_DECLINED_TASK_NOT_READY",
            CheckpointDeclinedTaskClosing => "CHECKPOINT_DECLINED_TASK_CLOSING",
            CheckpointDeclinedSubsumed => "CHECKPOINT_DECLINED_SUBSUMED",
            CheckpointDeclinedOnCancellationBarrier => "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
            CheckpointDeclinedInputEndOfStream => "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
            CheckpointAsyncException => "CHECKPOINT_ASYNC_EXCEPTION",
            ChannelStateSharedStreamException => "CHANNEL_STATE_SHARED_STREAM_EXCEPTION",
            CheckpointCoordinatorShutdown => "CHECKPOINT_COORDINATOR_SHUTDOWN",
            CheckpointCoordinatorSuspend => "CHECKPOINT_COORDINATOR_SUSPEND",
            JobFailoverRegion => "JOB_FAILOVER_REGION",
            TaskFailure => "TASK_FAILURE",
            TaskCheckpointFailure => "TASK_CHECKPOINT_FAILURE",
            UnknownTaskCheckpointNotificationFailure => "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE",
            FinalizeCheckpointFailure => "FINALIZE_CHECKPOINT_FAILURE",
            TriggerCheckpointFailure => "TRIGGER_CHECKPOINT_FAILURE",
            IoException => "IO_EXCEPTION",
        }
    }

    /// The reason in words, for people.
    pub fn words(self) -> &'static str {
        use FailureReason::*;
        match self {
            PeriodicSchedulerShutdown => "no periodic checkpoints are taken now",
            TooManyCheckpointRequests => "too many checkpoint requests are waiting",
            MinimumTimeBetweenCheckpoints => "the pause between checkpoints is not over",
            NotAllRequiredTasksRunning => "not all required tasks are running",
            BlockingOutputExist => "an exchange between stages cannot be part of a checkpoint",
            CheckpointExpired => "checkpoint expired before completing",
            CheckpointSubsumed => "checkpoint subsumed: a newer one is complete",
            CheckpointDeclined => "checkpoint declined",
            CheckpointDeclinedTaskNotReady => "checkpoint declined: task not ready",
            CheckpointDeclinedTaskClosing => "checkpoint declined: task is closing",
            CheckpointDeclinedSubsumed => "checkpoint declined: the task has seen a newer one",
            CheckpointDeclinedOnCancellationBarrier => "checkpoint declined: it was cancelled",
            CheckpointDeclinedInputEndOfStream => {
                "checkpoint declined: an input ended before its barrier came"
            }
            CheckpointAsyncException => "a task could not write its state",
            ChannelStateSharedStreamException => "the file that tasks share for in-flight data failed",
            CheckpointCoordinatorShutdown => "the coordinator is shut down",
            CheckpointCoordinatorSuspend => "the job is being restarted or stopped",
            JobFailoverRegion => "a part of the job is being restarted",
            TaskFailure => "a task has failed",
            TaskCheckpointFailure => "a task failed during its snapshot",
            UnknownTaskCheckpointNotificationFailure => "a task sent an unknown notice",
            FinalizeCheckpointFailure => "the checkpoint could not be committed",
            TriggerCheckpointFailure => "the checkpoint could not be triggered",
            IoException => "the coordinator could not read or write",
        }
    }
}

/// In words.
impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// More checkpoints failed in a row than the job bears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Exceeded checkpoint tolerable failure threshold. {consecutive} in a row have failed, {tolerable} are \
     allowed (execution.checkpointing.tolerable-failed-checkpoints); the last, checkpoint {checkpoint}: {cause}"
)]
pub struct CheckpointFailure {
    /// The checkpoint that was one too many.
    pub checkpoint: u64,
    /// Why it failed.
    pub reason: FailureReason,
    /// The same with its particulars.
    pub cause: String,
    /// Counted failures in a row.
    pub consecutive: u32,
    /// As many are allowed.
    pub tolerable: u32,
}

/// Counts failures in a row.
#[derive(Debug)]
pub struct CheckpointFailureManager {
    tolerable: u32,
    consecutive: u32,
    /// Ids that are counted in `consecutive`.
    counted: BTreeSet<u64>,
    newest_complete: u64,
}

impl CheckpointFailureManager {
    /// Bears `tolerable` counted failures in a row.
    pub fn new(tolerable: u32) -> Self {
        CheckpointFailureManager { tolerable, consecutive: 0, counted: BTreeSet::new(), newest_complete: 0 }
    }

    /// Counted failures in a row so far.
    pub fn consecutive(&self) -> u32 {
        self.consecutive
    }

    /// A checkpoint is complete.
    pub fn completed(&mut self, id: u64) {
        if id > self.newest_complete {
            self.newest_complete = id;
            self.clear();
        }
    }

    /// A checkpoint of the job with this id failed; says so in the log, as Flink does. Returns the failure that
    /// the job has to fail with, if this one was too many; the count begins anew then.
    pub fn failed(
        &mut self,
        job: &str,
        id: u64,
        reason: FailureReason,
        cause: &str,
    ) -> Option<CheckpointFailure> {
        if reason.counts() && id >= self.newest_complete && self.counted.insert(id) {
            self.consecutive += 1;
        }
        let consecutive = self.consecutive;
        let text = format!("Failed to trigger or complete checkpoint {id} for job {job}.");
        match reason {
            // Ordinary in the life of a job.
            FailureReason::NotAllRequiredTasksRunning
            | FailureReason::CheckpointSubsumed
            | FailureReason::CheckpointCoordinatorSuspend
            | FailureReason::CheckpointCoordinatorShutdown => {
                tracing::info!("{text} ({consecutive} consecutive failed attempts so far): {cause}");
            }
            _ => tracing::warn!("{text} ({consecutive} consecutive failed attempts so far): {cause}"),
        }
        if consecutive <= self.tolerable {
            return None;
        }
        let cause = cause.to_string();
        let failure =
            CheckpointFailure { checkpoint: id, reason, cause, consecutive, tolerable: self.tolerable };
        tracing::error!("job {job}: {failure}");
        self.clear();
        Some(failure)
    }

    fn clear(&mut self) {
        self.consecutive = 0;
        self.counted.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(
        manager: &mut CheckpointFailureManager,
        id: u64,
        reason: FailureReason,
    ) -> Option<CheckpointFailure> {
        manager.failed("j", id, reason, reason.words())
    }

    /// Goal: every reason counts, or not, as Flink's does; each has a name of its own, the one that serde writes.
    #[test]
    fn m_123_m_124_each_reason_counts_as_in_flink() {
        use FailureReason::*;
        let table = [
            ("CHECKPOINT_EXPIRED", CheckpointExpired, true),
            ("CHECKPOINT_DECLINED", CheckpointDeclined, true),
            ("CHECKPOINT_ASYNC_EXCEPTION", CheckpointAsyncException, true),
            ("IO_EXCEPTION", IoException, true),
            ("FINALIZE_CHECKPOINT_FAILURE", FinalizeCheckpointFailure, true),
            ("PERIODIC_SCHEDULER_SHUTDOWN", PeriodicSchedulerShutdown, false),
            ("TOO_MANY_CHECKPOINT_REQUESTS", TooManyCheckpointRequests, false),
            ("MINIMUM_TIME_BETWEEN_CHECKPOINTS", MinimumTimeBetweenCheckpoints, false),
            ("NOT_ALL_REQUIRED_TASKS_RUNNING", NotAllRequiredTasksRunning, false),
            ("BLOCKING_OUTPUT_EXIST", BlockingOutputExist, false),
            ("CHECKPOINT_SUBSUMED", CheckpointSubsumed, false),
            ("CHECKPOINT_COORDINATOR_SHUTDOWN", CheckpointCoordinatorShutdown, false),
            ("CHECKPOINT_COORDINATOR_SUSPEND", CheckpointCoordinatorSuspend, false),
            ("JOB_FAILOVER_REGION", JobFailoverRegion, false),
            ("CHANNEL_STATE_SHARED_STREAM_EXCEPTION", ChannelStateSharedStreamException, false),
            ("CHECKPOINT_DECLINED_TASK_NOT_READY", CheckpointDeclinedTaskNotReady, false),
            ("CHECKPOINT_DECLINED_TASK_CLOSING", CheckpointDeclinedTaskClosing, false),
            ("CHECKPOINT_DECLINED_SUBSUMED", CheckpointDeclinedSubsumed, false),
            ("CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER", CheckpointDeclinedOnCancellationBarrier, false),
            ("CHECKPOINT_DECLINED_INPUT_END_OF_STREAM", CheckpointDeclinedInputEndOfStream, false),
            ("TASK_FAILURE", TaskFailure, false),
            ("TASK_CHECKPOINT_FAILURE", TaskCheckpointFailure, false),
            ("UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE", UnknownTaskCheckpointNotificationFailure, false),
            ("TRIGGER_CHECKPOINT_FAILURE", TriggerCheckpointFailure, false),
        ];
        let mut all: Vec<_> = table.iter().map(|(_, reason, _)| *reason).collect();
        all.sort_unstable();
        let mut expected = FailureReason::ALL.to_vec();
        expected.sort_unstable();
        assert_eq!(all, expected, "the table has every reason once");
        for (name, reason, counts) in table {
            assert_eq!((reason.name(), reason.counts()), (name, counts));
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{name}\""));
            let mut manager = CheckpointFailureManager::new(0);
            let failure = fail(&mut manager, 1, reason);
            assert_eq!(failure.is_some(), counts, "{name}");
        }
    }

    /// Goal: the count of failures in a row is that of ids, not of reports or of differences between ids, and a
    /// success clears it. Method: the field's script, with the count after each step.
    #[test]
    fn f_21_failures_in_a_row_are_counted_by_id() {
        let mut manager = CheckpointFailureManager::new(5);
        let declined = FailureReason::CheckpointDeclined;
        let mut counts = Vec::new();
        assert_eq!(fail(&mut manager, 4, declined), None);
        assert_eq!(fail(&mut manager, 4, declined), None);
        counts.push(manager.consecutive());
        manager.completed(3);
        counts.push(manager.consecutive());
        for id in [5, 6] {
            fail(&mut manager, id, FailureReason::CheckpointExpired);
            counts.push(manager.consecutive());
        }
        manager.completed(7);
        counts.push(manager.consecutive());
        fail(&mut manager, 8, declined);
        counts.push(manager.consecutive());
        assert_eq!(counts, [1, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_failure_older_than_the_newest_complete_checkpoint_is_not_counted() {
        let mut manager = CheckpointFailureManager::new(0);
        manager.completed(8);
        assert_eq!(fail(&mut manager, 7, FailureReason::CheckpointExpired), None);
        // An older success does not clear what newer failures say.
        let mut manager = CheckpointFailureManager::new(3);
        manager.completed(8);
        fail(&mut manager, 9, FailureReason::CheckpointExpired);
        manager.completed(7);
        assert_eq!(manager.consecutive(), 1);
    }

    /// Goal: with a tolerance of n the (n + 1)-th counted failure in a row is one too many, a success in between
    /// begins anew, and so does the failure of the job.
    #[test]
    fn m_125_to_m_128_one_more_than_tolerated_fails_the_job() {
        for tolerable in [0, 1, 2, 10] {
            let mut manager = CheckpointFailureManager::new(tolerable);
            for round in 0..2 {
                let first = 100 * round + 1;
                for id in first..first + u64::from(tolerable) {
                    assert_eq!(fail(&mut manager, id, FailureReason::CheckpointExpired), None);
                }
                manager.completed(first + 20);
                for id in first + 21..first + 21 + u64::from(tolerable) {
                    assert_eq!(fail(&mut manager, id, FailureReason::CheckpointExpired), None);
                    assert_eq!(fail(&mut manager, id, FailureReason::CheckpointSubsumed), None);
                }
                let failure = fail(&mut manager, first + 50, FailureReason::CheckpointExpired).unwrap();
                assert_eq!((failure.consecutive, failure.tolerable), (tolerable + 1, tolerable));
                assert!(failure.to_string().starts_with("Exceeded checkpoint tolerable failure threshold."));
                assert_eq!(manager.consecutive(), 0);
            }
        }
    }
}
