//! The job's state machine: reports of shards in, orders to shards out. Reads no clock and sends nothing.
//!
//! ```text
//!            ┌────────────────────────── RESTARTING ──► CANCELED
//!            ▼                               ▲
//!         CREATED ─► RUNNING ─► FINISHED     │ all shards have stopped, and the
//!            │          │                    │ restart strategy says after how long
//!            ├──────────┼─► FAILING ─────────┴─► FAILED
//!            └──────────┴─► CANCELLING ──► CANCELED
//! ```
//!
//! An attempt has shards of its own, with new threads, memory and channels: nothing of a failed one can be left over
//! in the next. So a restart begins when every shard of the failed attempt has stopped, which each reports as its
//! last word.

use super::restart::{Restart, RestartSettings, RestartStrategy};
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
    /// It has failed; its tasks are being dropped.
    Failing,
    /// It has failed and waits to be started again.
    Restarting,
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
            JobState::Restarting => "RESTARTING",
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
    /// Start the next attempt, from the newest complete checkpoint, on new shards.
    Deploy,
}

/// The job's state machine.
#[derive(Debug)]
pub struct Machine {
    state: JobState,
    shards: usize,
    tasks: usize,
    attempt: u32,
    deployed: usize,
    stopped: usize,
    unfinished: usize,
    sources: Vec<(ShardId, TaskIndex)>,
    failure: Option<(ShardId, TaskIndex, TaskFailure)>,
    strategy: RestartStrategy,
    /// When the next attempt is due.
    due_ns: u64,
    /// Why there is none.
    suppressed_by: Option<String>,
    /// Whether the job was cancelled while it was failing.
    cancelled: bool,
    /// Whether sources are to be ended, in whichever attempt.
    stopping: bool,
}

impl Machine {
    /// A job of `tasks` tasks on `shards` shards, with these sources, whose deployments were sent.
    pub fn new(
        shards: usize,
        tasks: usize,
        sources: Vec<(ShardId, TaskIndex)>,
        strategy: RestartStrategy,
    ) -> Self {
        Machine {
            state: JobState::Created,
            shards,
            tasks,
            attempt: 1,
            deployed: 0,
            stopped: 0,
            unfinished: tasks,
            sources,
            failure: None,
            strategy,
            due_ns: 0,
            suppressed_by: None,
            cancelled: false,
            stopping: false,
        }
    }

    /// What the job is doing.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// The number of the present attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The first failure of a task in the present attempt.
    pub fn failure(&self) -> Option<&(ShardId, TaskIndex, TaskFailure)> {
        self.failure.as_ref()
    }

    /// The strategy that could have restarted a job that has failed, and why it has not.
    pub fn suppressed_by(&self) -> Option<&str> {
        self.suppressed_by.as_deref()
    }

    /// Takes a report and says what follows from it.
    pub fn report(&mut self, now_ns: u64, shard: ShardId, report: Report) -> Vec<Order> {
        match report {
            Report::Deployed => {
                self.deployed += 1;
                if self.deployed == self.shards && self.state == JobState::Created {
                    self.state = JobState::Running;
                    // In the first attempt they were told when they were asked for.
                    if self.stopping && self.attempt > 1 {
                        return self.stop_orders();
                    }
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
                    return self.fail();
                }
            }
            Report::Refused(task, mail) => {
                if self.is_active() {
                    return vec![Order::Mail(shard, task, mail)];
                }
            }
            Report::Stopped => {
                self.stopped += 1;
                if self.has_stopped() {
                    match self.state {
                        JobState::Failing => self.decide(now_ns),
                        JobState::Cancelling => self.state = JobState::Canceled,
                        _ => {}
                    }
                }
            }
            Report::Probed(..) => {}
        }
        Vec::new()
    }

    /// The attempt has failed for a reason that is no task's. Without effect if it has failed, or ends, already.
    pub fn fail(&mut self) -> Vec<Order> {
        if !self.is_active() {
            return Vec::new();
        }
        self.state = JobState::Failing;
        vec![Order::ShutDown]
    }

    /// Every shard of a failed attempt has stopped.
    fn decide(&mut self, now_ns: u64) {
        match self.strategy.on_failure(now_ns) {
            Restart::No { why } => {
                let strategy = self.strategy.settings();
                if *strategy != RestartSettings::Disabled {
                    self.suppressed_by = Some(format!("{}: {why}", strategy.name()));
                }
                self.state = JobState::Failed;
            }
            Restart::After(_) if self.cancelled => self.state = JobState::Canceled,
            Restart::After(delay) => {
                let name = self.strategy.settings().name();
                tracing::info!(
                    "{} tasks will be restarted to recover from a global failure: restart {} ({name}), in {delay:?}.",
                    self.tasks,
                    self.attempt
                );
                self.due_ns = now_ns.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
                self.state = JobState::Restarting;
            }
        }
    }

    /// Orders the next attempt if it is due.
    ///
    /// Call it only when no commit of a checkpoint is under way: the next attempt is restored from the newest.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Order> {
        if self.state != JobState::Restarting || now_ns < self.due_ns {
            return Vec::new();
        }
        self.attempt += 1;
        (self.deployed, self.stopped, self.unfinished) = (0, 0, self.tasks);
        self.failure = None;
        self.state = JobState::Created;
        vec![Order::Deploy]
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        (self.state == JobState::Restarting).then_some(self.due_ns)
    }

    /// Drops the job where it stands. One that is failing is not restarted.
    pub fn cancel(&mut self) -> Vec<Order> {
        match self.state {
            JobState::Created | JobState::Running => {
                self.state = JobState::Cancelling;
                return vec![Order::ShutDown];
            }
            JobState::Failing => self.cancelled = true,
            // Nothing of it is there.
            JobState::Restarting => self.state = JobState::Canceled,
            _ => {}
        }
        Vec::new()
    }

    /// Ends the sources, so that the job finishes with what they have emitted. If it has failed and is started again,
    /// they are ended when it runs.
    pub fn stop(&mut self) -> Vec<Order> {
        self.stopping = true;
        // In the first attempt mailboxes are there from the start.
        let there = self.state == JobState::Running || self.state == JobState::Created && self.attempt == 1;
        if there { self.stop_orders() } else { Vec::new() }
    }

    fn stop_orders(&self) -> Vec<Order> {
        self.sources.iter().map(|(shard, task)| Order::Mail(*shard, *task, Mail::Stop)).collect()
    }

    /// Whether every shard of the present attempt has stopped.
    pub fn has_stopped(&self) -> bool {
        self.stopped == self.shards
    }

    /// Whether the job is gone, and with it every shard.
    pub fn is_over(&self) -> bool {
        self.has_stopped() && self.state.is_terminal()
    }

    fn is_active(&self) -> bool {
        matches!(self.state, JobState::Created | JobState::Running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SHARDS: [ShardId; 2] = [ShardId(0), ShardId(1)];
    const S: u64 = 1_000_000_000;

    fn created(settings: RestartSettings) -> Machine {
        Machine::new(2, 3, vec![(SHARDS[0], TaskIndex(0))], RestartStrategy::new(settings, 1))
    }

    fn run(machine: &mut Machine) {
        for shard in SHARDS {
            assert_eq!(machine.report(0, shard, Report::Deployed), []);
        }
        assert_eq!(machine.state(), JobState::Running);
    }

    fn machine() -> Machine {
        let mut machine = created(RestartSettings::Disabled);
        run(&mut machine);
        machine
    }

    /// Restarted `attempts_max` times, a second after each failure.
    fn restarted(attempts_max: u32) -> Machine {
        let mut machine =
            created(RestartSettings::FixedDelay { attempts_max, delay: Duration::from_secs(1) });
        run(&mut machine);
        machine
    }

    fn fail(machine: &mut Machine) {
        let failed = Report::Failed(TaskIndex(0), failure("why"));
        assert_eq!(machine.report(0, SHARDS[1], failed), [Order::ShutDown]);
    }

    fn stop_all(machine: &mut Machine, now_ns: u64) {
        for shard in SHARDS {
            assert!(!machine.has_stopped());
            assert_eq!(machine.report(now_ns, shard, Report::Stopped), []);
        }
        assert!(machine.has_stopped());
    }

    fn failure(cause: &str) -> TaskFailure {
        TaskFailure { operator: None, cause: cause.to_string() }
    }

    #[test]
    fn a_job_finishes_when_its_last_task_does() {
        let mut machine = machine();
        assert_eq!(machine.stop(), [Order::Mail(SHARDS[0], TaskIndex(0), Mail::Stop)]);
        assert_eq!(machine.report(0, SHARDS[0], Report::Finished(TaskIndex(0))), []);
        assert_eq!(machine.report(0, SHARDS[1], Report::Finished(TaskIndex(0))), []);
        assert_eq!(machine.report(0, SHARDS[0], Report::Finished(TaskIndex(1))), [Order::ShutDown]);
        assert!(!machine.is_over());
        stop_all(&mut machine, 0);
        assert_eq!((machine.is_over(), machine.state()), (true, JobState::Finished));
    }

    /// Goal: the first failure is the one that is told, and shards are told to stop once.
    #[test]
    fn the_first_failure_is_the_cause() {
        let mut machine = machine();
        let first = Report::Failed(TaskIndex(0), failure("first"));
        assert_eq!(machine.report(0, SHARDS[1], first), [Order::ShutDown]);
        assert_eq!(machine.report(0, SHARDS[0], Report::Failed(TaskIndex(1), failure("second"))), []);
        assert_eq!((machine.cancel(), machine.fail()), (vec![], vec![]));
        stop_all(&mut machine, 0);
        assert_eq!((machine.state(), machine.is_over()), (JobState::Failed, true));
        assert_eq!(machine.failure().map(|f| f.2.cause.as_str()), Some("first"));
        assert_eq!(machine.suppressed_by(), None);
    }

    #[test]
    fn a_cancelled_job_ends_canceled_whatever_its_tasks_say() {
        let mut machine = machine();
        assert_eq!(machine.cancel(), [Order::ShutDown]);
        machine.report(0, SHARDS[0], Report::Finished(TaskIndex(0)));
        assert_eq!(machine.report(0, SHARDS[1], Report::Failed(TaskIndex(0), failure("late"))), []);
        stop_all(&mut machine, 0);
        assert_eq!((machine.state(), machine.failure()), (JobState::Canceled, None));
    }

    /// Goal: nothing is started again before every shard has stopped and the time is over; then everything is
    /// counted anew. When the strategy says no the job has failed, and it is said why.
    #[test]
    fn m_129_m_190_a_failed_job_is_restarted_as_a_whole() {
        let mut machine = restarted(2);
        for attempt in 1..=2u32 {
            let now = u64::from(attempt) * 100 * S;
            assert_eq!(machine.attempt(), attempt);
            machine.report(0, SHARDS[0], Report::Finished(TaskIndex(0)));
            fail(&mut machine);
            assert_eq!(machine.state(), JobState::Failing);
            assert_eq!((machine.tick(now), machine.next_deadline()), (vec![], None));
            stop_all(&mut machine, now);
            assert_eq!((machine.state(), machine.is_over()), (JobState::Restarting, false));
            assert_eq!(machine.next_deadline(), Some(now + S));
            assert_eq!(machine.tick(now + S - 1), []);
            assert_eq!(machine.tick(now + S), [Order::Deploy]);
            assert_eq!((machine.state(), machine.failure()), (JobState::Created, None));
            assert_eq!(machine.tick(now + 2 * S), []);
            run(&mut machine);
        }
        // Not by a task this time.
        assert_eq!(machine.fail(), [Order::ShutDown]);
        stop_all(&mut machine, 0);
        assert_eq!((machine.state(), machine.is_over()), (JobState::Failed, true));
        assert!(machine.suppressed_by().unwrap().starts_with("fixed-delay: it was restarted 2 times"));
    }

    #[test]
    fn a_restarted_job_finishes_when_all_its_tasks_have_finished_again() {
        let mut machine = restarted(1);
        machine.report(0, SHARDS[0], Report::Finished(TaskIndex(0)));
        machine.report(0, SHARDS[0], Report::Finished(TaskIndex(1)));
        fail(&mut machine);
        stop_all(&mut machine, 0);
        assert_eq!(machine.tick(S), [Order::Deploy]);
        run(&mut machine);
        assert_eq!(machine.report(0, SHARDS[0], Report::Finished(TaskIndex(0))), []);
        assert_eq!(machine.report(0, SHARDS[0], Report::Finished(TaskIndex(1))), []);
        assert_eq!(machine.report(0, SHARDS[1], Report::Finished(TaskIndex(0))), [Order::ShutDown]);
        stop_all(&mut machine, 0);
        assert_eq!((machine.state(), machine.attempt()), (JobState::Finished, 2));
    }

    /// Goal: a job that is cancelled while it fails, or waits to be restarted, or is set up again, is not restarted.
    #[test]
    fn a_cancelled_job_is_not_restarted() {
        let mut machine = restarted(9);
        fail(&mut machine);
        assert_eq!(machine.cancel(), []);
        stop_all(&mut machine, 0);
        assert_eq!((machine.state(), machine.is_over()), (JobState::Canceled, true));
        assert_eq!((machine.tick(u64::MAX), machine.next_deadline()), (vec![], None));

        let mut machine = restarted(9);
        fail(&mut machine);
        stop_all(&mut machine, 0);
        assert_eq!(machine.cancel(), []);
        assert_eq!((machine.state(), machine.is_over()), (JobState::Canceled, true));
        assert_eq!(machine.tick(u64::MAX), []);

        let mut machine = restarted(9);
        fail(&mut machine);
        stop_all(&mut machine, 0);
        assert_eq!(machine.tick(S), [Order::Deploy]);
        assert_eq!(machine.cancel(), [Order::ShutDown]);
        for shard in SHARDS {
            machine.report(S, shard, Report::Deployed);
        }
        stop_all(&mut machine, S);
        assert_eq!(machine.state(), JobState::Canceled);
        // One that would not have been restarted has failed, and says so.
        let mut machine = restarted(0);
        fail(&mut machine);
        machine.cancel();
        stop_all(&mut machine, 0);
        assert_eq!(machine.state(), JobState::Failed);
    }

    /// Goal: a job that is told to end its sources while it is failing, or waiting, does so when it runs again.
    #[test]
    fn a_stop_outlives_a_restart() {
        let told = [Order::Mail(SHARDS[0], TaskIndex(0), Mail::Stop)];
        let mut machine = created(RestartSettings::FixedDelay { attempts_max: 3, delay: Duration::ZERO });
        assert_eq!(machine.stop(), told, "the mailboxes are there");
        run(&mut machine);
        fail(&mut machine);
        stop_all(&mut machine, 0);
        assert_eq!(machine.tick(0), [Order::Deploy]);
        assert_eq!(machine.stop(), [], "they are not");
        assert_eq!(machine.report(0, SHARDS[0], Report::Deployed), []);
        assert_eq!(machine.report(0, SHARDS[1], Report::Deployed), told);
    }

    /// Goal: an attempt that fails before all of it runs fails as any other.
    #[test]
    fn an_attempt_may_fail_while_it_is_set_up() {
        let mut machine = created(RestartSettings::FixedDelay { attempts_max: 1, delay: Duration::ZERO });
        machine.report(0, SHARDS[0], Report::Deployed);
        fail(&mut machine);
        machine.report(0, SHARDS[1], Report::Deployed);
        assert_eq!(machine.state(), JobState::Failing);
        stop_all(&mut machine, 0);
        assert_eq!(machine.tick(0), [Order::Deploy]);
        run(&mut machine);
    }
}
