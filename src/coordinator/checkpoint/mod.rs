//! The coordinator of checkpoints: when one is taken, who is asked, and what becomes of it.
//!
//! A machine without clock, thread or I/O: time and events come in, [`Action`]s come out, to be carried out in
//! their order. Everything in nanoseconds is of one monotonic clock; wall time is for people.
//!
//! ```text
//!  request ─► coordinators' state ─► triggers ─► acks ─► commit ─► notices, Completed
//!                     │                 │          │        │
//!                     └──── expired, declined, subsumed ────┴─► notices of abort, Failed, FailJob
//! ```
//!
//! | rule | why |
//! | --- | --- |
//! | nothing is begun before every task runs | a barrier would wait for a task that is not there |
//! | triggered: tasks without a running predecessor; awaited: all that run | elsewhere the barrier is the notice |
//! | an interval counts from the start of a checkpoint, a pause from the end | as in Flink |
//! | of periodic requests that could not be met at once one remains | they would only follow each other at once |
//! | when no source has data any more one is taken at once | what it commits has waited for it |
//! | one commit at a time, in the order of ids | a log has one end, and completion must not go back |
//! | when one is complete older ones are given up | they could only take a restart further back |
//! | a commit that has begun is awaited, whatever happens | it may be on the disk |
//! | an id is used once | what is left of one that failed must not be taken for another's |
//! | late, doubled and unknown answers are ignored | every step is safe to repeat |
//!
//! The timeout ends with the last ack: what waits for a commit waits for the disk, whose operations have deadlines
//! of their own.

mod pending;
mod settings;
mod stats;
mod topology;

pub use settings::CheckpointSettings;
pub use stats::{
    CheckpointCounts, CheckpointStats, CheckpointStatus, CheckpointSummary, CheckpointsReport, Distribution,
    FailureStats, PartStatus, RestoredStats, SubtaskStats,
};
pub use topology::{OperatorPlace, SubtaskPlace, Topology, VertexPlace};

use super::failure::{CheckpointFailure, CheckpointFailureManager, FailureReason};
use crate::checkpoint::{Ack, CheckpointReport, DeclineReason, Timings};
use pending::{OperatorStates, Pending, Phase, Taken};
use serde::Serialize;
use stats::Tracker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use tidegate_shard::barrier::{Barrier, CheckpointId};
use tidegate_storage::metadata::{CheckpointMetadata, OperatorState};
use topology::Tasks;

/// Requests that may wait, beyond which they are refused; Flink's bound.
pub const REQUESTS_MAX: usize = 1000;

/// From the failure of a checkpoint that all tasks wait for to the next one: an interval may be long, and tasks that
/// fail at once must not keep the coordinator busy.
pub const FINAL_RETRY_NS: u64 = 100_000_000;

/// The age of the newest complete checkpoint, in intervals, that is worth a warning: a restart would go far back.
const STALE_INTERVALS: u64 = 5;

/// What a checkpoint is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// The interval is over.
    Periodic,
    /// Somebody has asked for it.
    Requested,
    /// No source has data any more, and tasks wait for it to end.
    Final,
}

impl Kind {
    /// The type of checkpoint, as Flink names it. Savepoints will have names of their own.
    pub fn type_name(self) -> &'static str {
        "CHECKPOINT"
    }
}

/// The job, as its checkpoints name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the job over its runs.
    pub lineage: u128,
    /// This run of the process.
    pub run: u32,
    /// The job's name.
    pub job: String,
}

impl Identity {
    /// The lineage in 32 hexadecimal digits: the job's id in logs.
    pub fn job_id(&self) -> String {
        format!("{:032x}", self.lineage)
    }
}

/// A moment on both clocks, by which others are told to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    /// The moment, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The same, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl WallClock {
    /// Milliseconds since 1970 at a moment of the monotonic clock.
    pub fn unix_ms(&self, now_ns: u64) -> u64 {
        let ms = |ns: u64| ns / 1_000_000;
        match now_ns.checked_sub(self.at_ns) {
            Some(since) => self.unix_ms + ms(since),
            None => self.unix_ms.saturating_sub(ms(self.at_ns - now_ns)),
        }
    }
}

/// What a deployment was restored from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// The checkpoint, or 0 for a job that began anew.
    pub id: u64,
    /// Those of its operators that had fully finished. Where their subtasks report no state of their own, they
    /// are listed again as they are here, so that the next restore knows as much.
    pub finished: Vec<OperatorState>,
}

impl Restored {
    /// Of a completed checkpoint.
    pub fn from(metadata: &CheckpointMetadata) -> Restored {
        let finished = metadata.operators.iter();
        let finished = finished.filter(|o| o.finished == tidegate_storage::metadata::Finished::Fully);
        Restored { id: metadata.id, finished: finished.cloned().collect() }
    }
}

/// What the caller has to do; in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Take the state of a source coordinator and hand it in ([`CheckpointCoordinator::coordinator_state`]). From
    /// then on what it tells its readers is held back.
    SnapshotCoordinator {
        /// The checkpoint.
        id: u64,
        /// Index of its vertex.
        vertex: usize,
        /// Index of its operator.
        operator: usize,
    },
    /// What source coordinators tell their readers may go on: the triggers are sent, or there will be none.
    ReleaseCoordinators {
        /// The checkpoint.
        id: u64,
    },
    /// Tell a task to take its part.
    Trigger {
        /// Index of the subtask in the plan.
        subtask: usize,
        /// What it sends on.
        barrier: Barrier,
    },
    /// Make it durable; then [`CheckpointCoordinator::committed`] or [`CheckpointCoordinator::commit_failed`].
    Commit(CheckpointMetadata),
    /// Tell a task that a checkpoint is complete, and with it everything before.
    Complete {
        /// Index of the subtask in the plan.
        subtask: usize,
        /// The checkpoint.
        id: CheckpointId,
    },
    /// Tell a task not to wait for a checkpoint any more. What its output has pending goes into a later one.
    Abort {
        /// Index of the subtask in the plan.
        subtask: usize,
        /// The checkpoint.
        id: CheckpointId,
    },
    /// A checkpoint is complete: for printing, and for whoever has asked for it.
    Completed(Arc<CheckpointStats>),
    /// A checkpoint failed: likewise.
    Failed(Arc<CheckpointStats>),
    /// A request was refused; no checkpoint was begun.
    Refused {
        /// The request.
        request: u64,
        /// Why.
        reason: FailureReason,
    },
    /// Too many have failed: the job has to fail with this, and be restarted if its strategy allows.
    FailJob(CheckpointFailure),
}

/// How the tasks of the newest deployment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There are none, or they are being dropped.
    Stopped,
    /// Some run, perhaps.
    Deploying,
    /// All run, or have finished.
    Running,
    /// A checkpoint is complete that all of them have waited for; there is none after it.
    Ending,
    /// The job has to fail: none is begun any more.
    Failing,
}

/// Decides on checkpoints; see the module's text.
#[derive(Debug)]
pub struct CheckpointCoordinator {
    settings: CheckpointSettings,
    topology: Topology,
    identity: Identity,
    wall: WallClock,
    /// As in logs.
    job_id: String,
    next_id: u64,
    newest_complete: u64,
    carried: Vec<OperatorState>,
    failures: CheckpointFailureManager,
    tracker: Tracker,
    /// Oldest first.
    pending: BTreeMap<u64, Pending>,
    stage: Stage,
    tasks: Tasks,
    /// Of tasks that had no input left at a checkpoint that is complete: they end without another ack.
    final_states: BTreeMap<usize, OperatorStates>,
    /// When the next periodic one is due.
    periodic_ns: Option<u64>,
    /// When one may be taken that all tasks wait for.
    final_ns: Option<u64>,
    requests: VecDeque<u64>,
    /// When a checkpoint ended last.
    ended_ns: Option<u64>,
    /// When it is to be warned that none was complete for long.
    stale_ns: u64,
}

impl CheckpointCoordinator {
    /// For a job that is not running yet. The first checkpoint gets `next_id`, which is greater than every id that
    /// was ever used.
    pub fn new(
        settings: CheckpointSettings,
        topology: Topology,
        identity: Identity,
        wall: WallClock,
        next_id: u64,
    ) -> CheckpointCoordinator {
        assert!(next_id > 0, "0 stands for no checkpoint");
        assert!(settings.concurrent_max > 0, "the configuration asks for at least 1");
        CheckpointCoordinator {
            failures: CheckpointFailureManager::new(settings.tolerable_failures),
            tracker: Tracker::new(settings.history_max),
            job_id: identity.job_id(),
            tasks: Tasks::new(&topology),
            settings,
            topology,
            identity,
            wall,
            next_id,
            newest_complete: 0,
            carried: Vec::new(),
            pending: BTreeMap::new(),
            stage: Stage::Stopped,
            final_states: BTreeMap::new(),
            periodic_ns: None,
            final_ns: None,
            requests: VecDeque::new(),
            ended_ns: None,
            stale_ns: u64::MAX,
        }
    }

    /// Tasks are about to be deployed, restored from this. What they report counts from now on.
    ///
    /// # Panics
    ///
    /// If others run, or a commit is under way ([`committing`](Self::committing)): it may be complete in a moment,
    /// and then the tasks would have to be restored from it.
    pub fn deploy(&mut self, now_ns: u64, restored: Restored) {
        assert!(!self.is_running(), "deployed while others run");
        assert!(self.pending.is_empty(), "deployed while checkpoints are under way");
        if restored.id > 0 {
            self.tracker.restored(restored.id, self.wall.unix_ms(now_ns));
        }
        self.next_id = self.next_id.max(restored.id + 1);
        self.newest_complete = restored.id;
        self.carried = restored.finished;
        self.stage = Stage::Deploying;
        self.tasks = Tasks::new(&self.topology);
        self.final_states.clear();
    }

    /// Every task that was deployed runs: checkpoints begin, the first one after an interval.
    pub fn all_running(&mut self, now_ns: u64) -> Vec<Action> {
        assert!(self.stage == Stage::Deploying, "tasks that were not deployed run");
        self.stage = Stage::Running;
        self.final_ns = None;
        self.ended_ns = None;
        self.periodic_ns = self.settings.interval_ns.map(|interval| now_ns.saturating_add(interval));
        self.expect_complete(now_ns);
        if let Some(interval) = self.settings.interval_ns {
            let (tasks, ms) = (self.topology.subtasks.len(), interval / 1_000_000);
            tracing::info!("Checkpoints of job {} begin, every {ms} ms: all {tasks} tasks run.", self.job_id);
        }
        let mut out = Vec::new();
        self.look_for_the_end(now_ns);
        self.settle(now_ns, &mut out);
        out
    }

    /// The tasks end, since the job fails or is restarted: all pending checkpoints are given up, except the one that
    /// is being committed.
    pub fn not_running(&mut self, now_ns: u64) -> Vec<Action> {
        self.give_up(now_ns, FailureReason::CheckpointCoordinatorSuspend)
    }

    /// The job ends for good: as [`not_running`](Self::not_running).
    pub fn shut_down(&mut self, now_ns: u64) -> Vec<Action> {
        self.give_up(now_ns, FailureReason::CheckpointCoordinatorShutdown)
    }

    fn give_up(&mut self, now_ns: u64, reason: FailureReason) -> Vec<Action> {
        // First, so that no task is told and no other one is begun.
        self.stage = Stage::Stopped;
        (self.periodic_ns, self.final_ns) = (None, None);
        let mut out = Vec::new();
        self.refuse_requests(reason, &mut out);
        let given_up: Vec<u64> = self
            .pending
            .values()
            .filter(|pending| !pending.is_committing())
            .map(|pending| pending.id)
            .collect();
        for id in given_up {
            self.abort(now_ns, id, reason, None, reason.words(), &mut out);
        }
        out
    }

    /// The time has come; to be called when [`next_deadline`](Self::next_deadline) is reached, at any other time
    /// it does no harm.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Action> {
        let mut out = Vec::new();
        let expires = |pending: &&Pending| !pending.is_committing() && pending.deadline_ns <= now_ns;
        let expired: Vec<u64> = self.pending.values().filter(expires).map(|pending| pending.id).collect();
        for id in expired {
            tracing::warn!("Checkpoint {id} of job {} expired before completing.", self.job_id);
            let cause = self.pending[&id].tell_what_is_missing(&self.topology, self.settings.timeout_ns);
            self.abort(now_ns, id, FailureReason::CheckpointExpired, None, &cause, &mut out);
        }
        if self.is_running() && now_ns >= self.stale_ns {
            tracing::warn!(
                "Job {}: no checkpoint is complete since {STALE_INTERVALS} intervals; a failure now takes it back to \
                 checkpoint {} (0 = the beginning).",
                self.job_id,
                self.newest_complete
            );
            self.expect_complete(now_ns);
        }
        self.settle(now_ns, &mut out);
        out
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        let expiry = self.pending.values().filter(|p| !p.is_committing()).map(|p| p.deadline_ns).min();
        let begin =
            self.may_begin().then(|| [self.final_due(), self.periodic_due()].into_iter().flatten().min());
        let stale = (self.is_running() && self.stale_ns < u64::MAX).then_some(self.stale_ns);
        [expiry, begin.flatten(), stale].into_iter().flatten().min()
    }

    /// Somebody asks for a checkpoint, and knows the answer by the number of the request. It does not wait for
    /// interval or pause, only for a place among those under way.
    pub fn trigger_now(&mut self, now_ns: u64, request: u64) -> Vec<Action> {
        let reason = if !self.tasks_allow() {
            FailureReason::NotAllRequiredTasksRunning
        } else if self.requests.len() == REQUESTS_MAX {
            FailureReason::TooManyCheckpointRequests
        } else {
            self.requests.push_back(request);
            let mut out = Vec::new();
            self.settle(now_ns, &mut out);
            return out;
        };
        vec![Action::Refused { request, reason }]
    }

    /// A source coordinator's state, or why there is none. Without effect if it comes too late.
    pub fn coordinator_state(
        &mut self,
        now_ns: u64,
        id: u64,
        vertex: usize,
        state: Result<Vec<u8>, String>,
    ) -> Vec<Action> {
        let mut out = Vec::new();
        let Some(pending) = self.pending.get_mut(&id).filter(|pending| !pending.is_known_to_tasks()) else {
            tracing::debug!(
                "Late state of a source's coordinator for checkpoint {id} of job {}.",
                self.job_id
            );
            return out;
        };
        match state {
            Ok(state) => {
                pending.take_coordinator(vertex, state);
                if pending.phase == Phase::Coordinators(BTreeSet::new()) {
                    self.send_triggers(id, &mut out);
                }
            }
            Err(cause) => {
                let cause = format!("coordinator of {}: {cause}", self.topology.vertices[vertex].name);
                self.abort(now_ns, id, FailureReason::TriggerCheckpointFailure, None, &cause, &mut out);
            }
        }
        self.settle(now_ns, &mut out);
        out
    }

    /// Takes what a subtask reports.
    pub fn report(&mut self, now_ns: u64, report: CheckpointReport) -> Vec<Action> {
        match report {
            CheckpointReport::Ack(ack) => self.ack(now_ns, ack),
            CheckpointReport::EndOfData { subtask } => self.end_of_data(now_ns, subtask),
            CheckpointReport::Decline { checkpoint, subtask, reason } => {
                self.decline(now_ns, checkpoint, subtask, &reason)
            }
        }
    }

    /// A subtask's part is durable.
    pub fn ack(&mut self, now_ns: u64, ack: Ack) -> Vec<Action> {
        let (id, subtask) = (ack.checkpoint, ack.subtask);
        assert!(subtask < self.topology.subtasks.len(), "ack of subtask {subtask}, which the job has not");
        let mut out = Vec::new();
        let Some(pending) = self.pending.get_mut(&id).filter(|pending| pending.is_known_to_tasks()) else {
            self.log_late("ack", id, subtask);
            return out;
        };
        match pending.take_ack(ack, now_ns) {
            Taken::Yes => {
                if pending.is_acknowledged() {
                    pending.phase = Phase::Acknowledged;
                }
            }
            Taken::Twice => {
                tracing::debug!("Second ack of checkpoint {id} by {}.", self.topology.task_name(subtask));
            }
            Taken::NotAsked => tracing::warn!(
                "Checkpoint {id} of job {} was acknowledged by task {}, which has no part in it.",
                self.job_id,
                self.topology.task_name(subtask)
            ),
        }
        self.settle(now_ns, &mut out);
        out
    }

    /// A subtask's part will not be durable.
    pub fn decline(&mut self, now_ns: u64, id: u64, subtask: usize, reason: &DeclineReason) -> Vec<Action> {
        let mut out = Vec::new();
        let known = self.pending.get(&id).filter(|pending| pending.is_known_to_tasks());
        if !known.is_some_and(|pending| pending.waits_for(subtask)) {
            self.log_late("decline", id, subtask);
            return out;
        }
        let task = self.topology.task_name(subtask);
        tracing::warn!("Decline checkpoint {id} by task {task} of job {}: {reason}", self.job_id);
        let cause = format!("{task}: {reason}");
        self.abort(now_ns, id, reason_of(reason), Some(subtask), &cause, &mut out);
        self.settle(now_ns, &mut out);
        out
    }

    /// A task has no more data; it goes on taking part until a checkpoint that was triggered after this is complete.
    /// When this is so of every source, the next checkpoint is taken at once.
    pub fn end_of_data(&mut self, now_ns: u64, subtask: usize) -> Vec<Action> {
        let mut out = Vec::new();
        if self.stage != Stage::Stopped && self.tasks.end_data(&self.topology, subtask) && self.is_running() {
            self.look_for_the_end(now_ns);
            self.settle(now_ns, &mut out);
        }
        out
    }

    /// A task has ended in good order.
    pub fn task_finished(&mut self, now_ns: u64, subtask: usize) -> Vec<Action> {
        let mut out = Vec::new();
        if self.stage == Stage::Stopped || !self.tasks.finish(&self.topology, subtask) || !self.is_running() {
            return out;
        }
        // Checkpoints that wait for it get what it had last: it has done nothing since.
        let last = self.final_states.remove(&subtask);
        let waiting: Vec<u64> =
            self.pending.values().filter(|p| p.waits_for(subtask)).map(|pending| pending.id).collect();
        for id in waiting {
            match &last {
                Some(operators) => {
                    let state_bytes =
                        operators.iter().flat_map(|(_, state)| state.pieces()).map(|p| p.state_bytes()).sum();
                    let timings = Timings { state_bytes, ..Timings::default() };
                    let operators = operators.clone();
                    let ack = Ack { checkpoint: id, subtask, finished: true, operators, timings };
                    let pending = self.pending.get_mut(&id).expect("it waits for the task");
                    pending.take_ack(ack, now_ns);
                    if pending.is_acknowledged() {
                        pending.phase = Phase::Acknowledged;
                    }
                }
                None => {
                    let cause = format!("{} has finished without an ack", self.topology.task_name(subtask));
                    let reason = FailureReason::NotAllRequiredTasksRunning;
                    self.abort(now_ns, id, reason, Some(subtask), &cause, &mut out);
                }
            }
        }
        let allowed = self.settings.after_tasks_finish;
        if !allowed && self.periodic_ns.take().is_some() {
            self.stale_ns = u64::MAX;
            tracing::info!(
                "Some tasks of the job {} have already finished and checkpointing with finished tasks is not enabled: \
                 no more checkpoints (execution.checkpointing.checkpoints-after-tasks-finish).",
                self.job_id
            );
        }
        if !self.tasks_allow() {
            self.refuse_requests(FailureReason::NotAllRequiredTasksRunning, &mut out);
        }
        self.look_for_the_end(now_ns);
        self.settle(now_ns, &mut out);
        out
    }

    /// The commit that was asked for is durable.
    pub fn committed(&mut self, now_ns: u64, id: u64) -> Vec<Action> {
        let pending = self.take_committing(id);
        let mut out = Vec::new();
        self.ended_ns = Some(now_ns);
        self.newest_complete = id;
        self.expect_complete(now_ns);
        self.failures.completed(id);
        let stats = Arc::new(pending.stats(&self.topology, &self.wall, Some(now_ns), None));
        self.tracker.ended(&stats);
        let ms = |ns: u64| ns as f64 / 1e6;
        tracing::info!(
            "Completed checkpoint {id} for job {} ({} bytes, checkpointDuration={:.1} ms, finalizationTime={:.1} ms).",
            self.job_id,
            stats.written_bytes,
            ms(stats.duration_ns()),
            ms(stats.commit_ns)
        );
        if self.is_running() {
            out.extend(
                self.tasks.that_run().map(|subtask| Action::Complete { subtask, id: CheckpointId(id) }),
            );
            if pending.is_last() {
                self.stage = Stage::Ending;
                (self.periodic_ns, self.final_ns) = (None, None);
                self.stale_ns = u64::MAX;
                self.refuse_requests(FailureReason::NotAllRequiredTasksRunning, &mut out);
            } else if pending.kind == Kind::Final {
                self.retry_final(now_ns);
            }
            let of_running = pending.into_final_states().filter(|(task, _)| !self.tasks.is_finished(*task));
            self.final_states.extend(of_running);
        }
        out.push(Action::Completed(stats));
        let older: Vec<u64> = self.pending.range(..id).map(|(id, _)| *id).collect();
        for older in older {
            let cause = format!("checkpoint subsumed: checkpoint {id} is complete");
            self.abort(now_ns, older, FailureReason::CheckpointSubsumed, None, &cause, &mut out);
        }
        self.settle(now_ns, &mut out);
        out
    }

    /// The commit that was asked for failed. If its effect is `unknown` it may be on the disk: tasks are not told,
    /// so that they keep what the checkpoint holds until a later one is complete.
    pub fn commit_failed(&mut self, now_ns: u64, id: u64, error: &dyn Display, unknown: bool) -> Vec<Action> {
        let pending = self.take_committing(id);
        let mut out = Vec::new();
        let cause = format!("cannot commit: {error}");
        self.end_failed(
            now_ns,
            pending,
            FailureReason::FinalizeCheckpointFailure,
            None,
            &cause,
            !unknown,
            &mut out,
        );
        self.settle(now_ns, &mut out);
        out
    }

    /// What the barrier of a task is expected to wait for, to be told between the trigger decision and the ack; by
    /// what is queued now, and by the configured counts of buffers alone.
    pub fn predict(&mut self, id: u64, subtask: usize, predicted_ns: Option<u64>, static_ns: Option<u64>) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.predict(subtask, predicted_ns, static_ns);
        }
    }

    /// The checkpoint whose commit is under way. The tasks of a new deployment are restored only when there is none:
    /// then it is settled which checkpoint is the newest.
    pub fn committing(&self) -> Option<u64> {
        self.pending.values().find(|pending| pending.is_committing()).map(|pending| pending.id)
    }

    /// The oldest checkpoint that is under way, or the next one: what has a smaller id and is not complete can be
    /// forgotten.
    pub fn oldest_pending(&self) -> u64 {
        self.pending.keys().next().copied().unwrap_or(self.next_id)
    }

    /// The newest complete checkpoint of this job, or what it was restored from; 0 if there is none.
    pub fn newest_complete(&self) -> u64 {
        self.newest_complete
    }

    /// The id that the next checkpoint gets.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Counted failures in a row so far.
    pub fn consecutive_failures(&self) -> u32 {
        self.failures.consecutive()
    }

    /// How many checkpoints there were.
    pub fn counts(&self) -> CheckpointCounts {
        self.tracker.counts()
    }

    /// All that is known of the job's checkpoints.
    pub fn statistics(&self) -> CheckpointsReport {
        let under_way = self.pending.values();
        self.tracker.report(under_way.map(|pending| pending.stats(&self.topology, &self.wall, None, None)))
    }

    /// The job, as the coordinator sees it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// As configured.
    pub fn settings(&self) -> &CheckpointSettings {
        &self.settings
    }

    fn take_committing(&mut self, id: u64) -> Pending {
        assert_eq!(self.committing(), Some(id), "no commit of checkpoint {id} was asked for");
        self.pending.remove(&id).expect("it is being committed")
    }

    fn expect_complete(&mut self, now_ns: u64) {
        let period = self.settings.interval_ns.map(|interval| interval.max(self.settings.min_pause_ns));
        let patience = period.and_then(|period| period.checked_mul(STALE_INTERVALS));
        self.stale_ns = patience.map_or(u64::MAX, |patience| now_ns.saturating_add(patience));
    }

    /// Whether there are tasks that can be told something.
    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Ending | Stage::Failing)
    }

    /// Whether checkpoints are possible with the tasks that run.
    fn tasks_allow(&self) -> bool {
        self.stage == Stage::Running
            && self.tasks.running() > 0
            && (self.settings.after_tasks_finish || self.tasks.finished() == 0)
    }

    /// When no source has data any more, the tasks wait for nothing but a checkpoint; also where none are periodic.
    fn look_for_the_end(&mut self, now_ns: u64) {
        let wait = self.settings.after_tasks_finish && self.tasks.all_sources_ended();
        if wait && self.stage == Stage::Running && self.final_ns.is_none() {
            self.final_ns = Some(now_ns);
        }
    }

    fn retry_final(&mut self, now_ns: u64) {
        self.final_ns = self.final_ns.map(|_| now_ns.saturating_add(FINAL_RETRY_NS));
    }

    fn refuse_requests(&mut self, reason: FailureReason, out: &mut Vec<Action>) {
        out.extend(self.requests.drain(..).map(|request| Action::Refused { request, reason }));
    }

    /// Whether there is a place for another one.
    fn may_begin(&self) -> bool {
        self.tasks_allow()
            && self.pending.len() < self.settings.concurrent_max as usize
            && self.pending.values().all(Pending::is_known_to_tasks)
    }

    fn final_due(&self) -> Option<u64> {
        self.final_ns.filter(|_| self.pending.values().all(|pending| pending.kind != Kind::Final))
    }

    fn periodic_due(&self) -> Option<u64> {
        let pause_over = self.ended_ns.map_or(0, |ended| ended.saturating_add(self.settings.min_pause_ns));
        self.periodic_ns.map(|due| due.max(pause_over))
    }

    /// Does what has become possible: the next commit, the next checkpoint.
    fn settle(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        self.commit_next(out);
        while self.may_begin() {
            let due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
            if due(self.final_due()) {
                self.begin(now_ns, Kind::Final, None, out);
            } else if let Some(request) = self.requests.pop_front() {
                self.begin(now_ns, Kind::Requested, Some(request), out);
            } else if due(self.periodic_due()) {
                self.begin(now_ns, Kind::Periodic, None, out);
            } else {
                break;
            }
        }
    }

    fn commit_next(&mut self, out: &mut Vec<Action>) {
        if self.committing().is_some() {
            return;
        }
        let Some(next) = self.pending.values_mut().find(|pending| pending.phase == Phase::Acknowledged)
        else {
            return;
        };
        next.phase = Phase::Committing;
        let metadata = next.metadata(&self.topology, &self.identity, &self.wall, &self.carried);
        out.push(Action::Commit(metadata));
    }

    fn begin(&mut self, now_ns: u64, kind: Kind, request: Option<u64>, out: &mut Vec<Action>) {
        let id = self.next_id;
        self.next_id += 1;
        if kind != Kind::Requested {
            self.periodic_ns = self.settings.interval_ns.map(|interval| now_ns.saturating_add(interval));
        }
        let timeout_ns = self.settings.timeout_ns;
        let mut pending =
            Pending::new(id, kind, self.newest_complete, &self.tasks, &self.topology, now_ns, timeout_ns);
        pending.request = request;
        tracing::info!(
            "Triggering checkpoint {id} (type={}) @ {} for job {}.",
            kind.type_name(),
            self.wall.unix_ms(now_ns),
            self.job_id
        );
        self.tracker.begun();
        let vertices = self.topology.vertices.iter().enumerate();
        let coordinated: Vec<_> =
            vertices.filter_map(|(at, vertex)| Some((at, vertex.coordinated?))).collect();
        pending.phase = Phase::Coordinators(coordinated.iter().map(|(vertex, _)| *vertex).collect());
        self.pending.insert(id, pending);
        for (vertex, operator) in &coordinated {
            out.push(Action::SnapshotCoordinator { id, vertex: *vertex, operator: *operator });
        }
        if coordinated.is_empty() {
            self.send_triggers(id, out);
        }
    }

    fn send_triggers(&mut self, id: u64, out: &mut Vec<Action>) {
        let pending = self.pending.get_mut(&id).expect("it was just begun");
        // Tasks may have finished while coordinators were asked.
        pending.phase = if pending.is_acknowledged() { Phase::Acknowledged } else { Phase::Triggered };
        let barrier = Barrier {
            checkpoint: CheckpointId(id),
            base: pending.base,
            triggered_at_ns: pending.triggered_at_ns,
            blocks: self.settings.exactly_once,
        };
        out.extend(
            self.tasks.to_trigger().map(|subtask| Action::Trigger { subtask, barrier: barrier.clone() }),
        );
        if self.topology.vertices.iter().any(|vertex| vertex.coordinated.is_some()) {
            out.push(Action::ReleaseCoordinators { id });
        }
    }

    /// Gives a checkpoint up that is not being committed.
    fn abort(
        &mut self,
        now_ns: u64,
        id: u64,
        reason: FailureReason,
        subtask: Option<usize>,
        cause: &str,
        out: &mut Vec<Action>,
    ) {
        let pending = self.pending.remove(&id).expect("only pending checkpoints are given up");
        assert!(!pending.is_committing(), "checkpoint {id} may be complete");
        let tell = pending.is_known_to_tasks();
        if !tell {
            out.push(Action::ReleaseCoordinators { id });
        }
        self.end_failed(now_ns, pending, reason, subtask, cause, tell, out);
    }

    #[expect(clippy::too_many_arguments, reason = "what a failure consists of")]
    fn end_failed(
        &mut self,
        now_ns: u64,
        pending: Pending,
        reason: FailureReason,
        subtask: Option<usize>,
        cause: &str,
        tell: bool,
        out: &mut Vec<Action>,
    ) {
        let id = pending.id;
        self.ended_ns = Some(now_ns);
        if tell && self.is_running() {
            out.extend(self.tasks.that_run().map(|subtask| Action::Abort { subtask, id: CheckpointId(id) }));
        }
        if pending.kind == Kind::Final {
            self.retry_final(now_ns);
        }
        let failure = Some(FailureStats { reason, message: cause.to_string(), subtask });
        let stats = Arc::new(pending.stats(&self.topology, &self.wall, Some(now_ns), failure));
        self.tracker.ended(&stats);
        out.push(Action::Failed(stats));
        if let Some(failure) = self.failures.failed(&self.job_id, id, reason, cause)
            && self.is_running()
        {
            self.stage = Stage::Failing;
            out.push(Action::FailJob(failure));
        }
    }

    fn log_late(&self, what: &str, id: u64, subtask: usize) {
        let (task, job) = (self.topology.task_name(subtask), &self.job_id);
        if id < self.next_id {
            tracing::info!("Late {what} of checkpoint {id} by task {task} of job {job} is ignored.");
        } else {
            tracing::warn!(
                "{what} of checkpoint {id} by task {task} of job {job}: there is no such checkpoint."
            );
        }
    }
}

/// The reason that a task's own one stands for.
fn reason_of(reason: &DeclineReason) -> FailureReason {
    match reason {
        DeclineReason::Operator { .. } | DeclineReason::TooLong { .. } => FailureReason::CheckpointDeclined,
        DeclineReason::Storage(_) | DeclineReason::Keyed(_) => FailureReason::CheckpointAsyncException,
        DeclineReason::Subsumed { .. } => FailureReason::CheckpointDeclinedSubsumed,
        DeclineReason::InputEnded => FailureReason::CheckpointDeclinedInputEndOfStream,
    }
}

#[cfg(test)]
mod tests;
