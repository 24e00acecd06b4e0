//! The coordinator's thread: reports and time in, orders and mail out, for one attempt of the job after the other.
//!
//! What is decided here is decided by machines that know no thread: the job's ([`Machine`]) and the checkpoints'
//! ([`CheckpointCoordinator`]). This loop carries out what they say, and is the only one that may wait for a disk.

use super::attempt::{Attempt, Site};
use super::checkpoint::{
    Action, CheckpointCoordinator, CheckpointStats, Identity, Restored, Topology, WallClock,
};
use super::durable::{CommitResult, Durable};
use super::failure::CheckpointFailure;
use super::job::{JobError, JobSummary, Message, Shared};
use super::predict::{Predictor, Wait};
use super::restart::RestartStrategy;
use super::state::{JobState, Machine, Order};
use crate::checkpoint::CheckpointReport;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_shard::mailbox::Mail;
use tidegate_shard::shard::{Report, ShardId, ShardMail};
use tidegate_shard::task::{Clock, TaskIndex};
use tidegate_storage::failpoint;

/// Checkpoints of a running job.
struct Checkpoints {
    coordinator: CheckpointCoordinator,
    durable: Durable,
    /// Who asked for a checkpoint, by the number of the request.
    requests: Vec<(u64, Sender<Arc<CheckpointStats>>)>,
    next_request: u64,
    predictor: Predictor,
    /// Whether a checkpoint was completed since files were last looked through.
    unclean: bool,
}

pub(super) struct Coordinator {
    site: Site,
    shared: Arc<Shared>,
    machine: Machine,
    /// The number of the present attempt.
    number: u32,
    attempt: Attempt,
    checkpoints: Option<Checkpoints>,
    /// Too many checkpoints failed: why the job does.
    checkpoint_failure: Option<CheckpointFailure>,
    probes: Vec<(ShardId, TaskIndex, Sender<u64>)>,
    stall_threshold: Duration,
    /// Start of the stall that was last reported, for each shard.
    stalls: Vec<u64>,
    cancellation_timeout: Duration,
    stopping_since: Option<Instant>,
}

impl Coordinator {
    /// Starts the first attempt.
    pub fn new(site: Site, durable: Option<Durable>) -> Result<Coordinator, JobError> {
        let (shared, config) = (site.shared.clone(), &site.config);
        let checkpoints = durable.map(|durable| {
            let (lineage, run) = durable.identity();
            let identity = Identity { lineage, run, job: shared.name.clone() };
            let topology = Topology::new(&shared.plan, &site.graph);
            let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
            let wall = WallClock { at_ns: shared.clock.now_ns(), unix_ms };
            let settings = config.checkpoint_settings();
            let coordinator =
                CheckpointCoordinator::new(settings, topology, identity, wall, durable.next_id());
            Checkpoints {
                coordinator,
                durable,
                requests: Vec::new(),
                next_request: 1,
                predictor: Predictor::default(),
                unclean: false,
            }
        });
        if checkpoints.is_some() {
            for leg in site.graph.missing_legs() {
                tracing::warn!("not exactly-once from end to end: {leg}");
            }
        }
        let sources = shared.plan.subtasks.iter();
        let sources = sources.filter(|s| shared.plan.vertices[s.vertex.0 as usize].is_source);
        let sources = sources.map(|s| (s.shard, s.task)).collect();
        // Those that restart together should not do so in step, so the process draws the seed.
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let strategy = RestartStrategy::new(config.restart_strategy(), seed ^ u64::from(std::process::id()));
        let machine = Machine::new(shared.shards.len(), shared.plan.subtasks.len(), sources, strategy);
        let attempt = Attempt::start(&site, 1, checkpoints.as_ref().map(|c| &c.durable))?;
        let (stall_threshold, cancellation_timeout) =
            (config.stall_threshold(), config.cancellation_timeout());
        let mut coordinator = Coordinator {
            machine,
            number: 1,
            attempt,
            checkpoints,
            checkpoint_failure: None,
            probes: Vec::new(),
            stall_threshold,
            stalls: vec![0; shared.shards.len()],
            cancellation_timeout,
            stopping_since: None,
            shared,
            site,
        };
        coordinator.deployed();
        Ok(coordinator)
    }

    /// Runs the job to its end.
    pub fn run(mut self, inbox: &Receiver<Message>) -> Result<JobSummary, JobError> {
        loop {
            if let Ok(message) = inbox.recv_timeout(self.patience()) {
                self.take(message)?;
            }
            self.tick()?;
            if self.machine.is_over() {
                break;
            }
            self.attempt.send_waiting();
            self.look_for_stalls();
            if self.stopping_since.is_some_and(|since| since.elapsed() > self.cancellation_timeout) {
                let error = self.stuck();
                self.attempt.abandon();
                return Err(error);
            }
        }
        self.end()
    }

    /// How long to wait for a message.
    fn patience(&self) -> Duration {
        let look = (self.stall_threshold / 2).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let checkpoint = self.checkpoints.as_ref().and_then(|c| c.coordinator.next_deadline());
        let look_at = self.checkpoints.as_ref().map(|c| c.predictor.due_ns());
        let next = [checkpoint, look_at, self.machine.next_deadline()].into_iter().flatten().min();
        let now_ns = self.shared.clock.now_ns();
        next.map_or(look, |at| look.min(Duration::from_nanos(at.saturating_sub(now_ns))))
    }

    fn take(&mut self, message: Message) -> Result<(), JobError> {
        let now_ns = self.shared.clock.now_ns();
        match message {
            Message::Report(attempt, shard, report) if attempt == self.number => {
                self.take_report(now_ns, shard, report)
            }
            Message::Checkpoint(attempt, report) if attempt == self.number => {
                let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
                if matches!(report, CheckpointReport::Ack(_)) {
                    failpoint::pass(failpoint::COORDINATOR_ACK);
                }
                let actions = checkpoints.coordinator.report(now_ns, report);
                self.act(actions)
            }
            // Of an attempt that is gone.
            Message::Report(..) | Message::Checkpoint(..) => Ok(()),
            Message::Cancel => {
                let orders = self.machine.cancel();
                self.carry_out(orders)
            }
            Message::Stop => {
                let orders = self.machine.stop();
                self.carry_out(orders)
            }
            Message::Trigger(answer) => {
                let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
                let request = checkpoints.next_request;
                checkpoints.next_request += 1;
                checkpoints.requests.push((request, answer));
                let actions = checkpoints.coordinator.trigger_now(now_ns, request);
                self.act(actions)
            }
            Message::Probe(shard, task, answer) => {
                self.probes.push((shard, task, answer));
                self.carry_out(vec![Order::Mail(shard, task, Mail::Probe { sent_at_ns: now_ns })])
            }
        }
    }

    fn take_report(&mut self, now_ns: u64, shard: ShardId, report: Report) -> Result<(), JobError> {
        let mut actions = Vec::new();
        match &report {
            Report::Probed(task, waited_ns) => self.answer_probe(shard, *task, *waited_ns),
            Report::Finished(task) => {
                if let (Some(checkpoints), Some(subtask)) =
                    (&mut self.checkpoints, self.shared.subtask_of(shard, *task))
                {
                    actions = checkpoints.coordinator.task_finished(now_ns, subtask);
                }
            }
            _ => {}
        }
        let before = self.machine.state();
        let orders = self.machine.report(now_ns, shard, report);
        self.carry_out(orders)?;
        self.act(actions)?;
        self.changed(before, now_ns)
    }

    /// What follows for checkpoints when the job's state changes.
    fn changed(&mut self, before: JobState, now_ns: u64) -> Result<(), JobError> {
        let state = self.machine.state();
        if state == before {
            return Ok(());
        }
        tracing::info!("Job {} switched from state {before} to {state}.", self.shared.name);
        let restarts = self.number - 1;
        self.shared.show(|shown, shown_restarts, _| (*shown, *shown_restarts) = (state, restarts));
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let actions = match state {
            JobState::Running => checkpoints.coordinator.all_running(now_ns),
            JobState::Failing => checkpoints.coordinator.not_running(now_ns),
            JobState::Cancelling | JobState::Finished => checkpoints.coordinator.shut_down(now_ns),
            _ => Vec::new(),
        };
        self.act(actions)
    }

    fn tick(&mut self) -> Result<(), JobError> {
        let now_ns = self.shared.clock.now_ns();
        let before = self.machine.state();
        let orders = self.machine.tick(now_ns);
        self.carry_out(orders)?;
        self.changed(before, now_ns)?;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        checkpoints.predictor.look(now_ns, &self.shared.metrics);
        let actions = checkpoints.coordinator.tick(now_ns);
        self.act(actions)?;
        if let Some(checkpoints) = &mut self.checkpoints
            && std::mem::take(&mut checkpoints.unclean)
        {
            failpoint::pass(failpoint::COORDINATOR_CLEAN);
            checkpoints.durable.clean(checkpoints.coordinator.oldest_pending());
        }
        Ok(())
    }

    fn carry_out(&mut self, orders: Vec<Order>) -> Result<(), JobError> {
        for order in orders {
            match order {
                Order::ShutDown => {
                    self.stopping_since = Some(Instant::now());
                    self.attempt.shut_down();
                }
                Order::Mail(shard, task, mail) => {
                    self.attempt.send(shard.0 as usize, ShardMail::Task(task, mail));
                }
                Order::Deploy => {
                    self.attempt.join();
                    self.number += 1;
                    self.checkpoint_failure = None;
                    let durable = self.checkpoints.as_ref().map(|c| &c.durable);
                    self.attempt = Attempt::start(&self.site, self.number, durable)?;
                    self.deployed();
                }
            }
        }
        // A shard that has stopped is not waited for any longer.
        if self.machine.has_stopped() {
            self.stopping_since = None;
        }
        Ok(())
    }

    /// Tasks were sent to their shards.
    fn deployed(&mut self) {
        let Some(Checkpoints { coordinator, durable, predictor, .. }) = &mut self.checkpoints else { return };
        let base = durable.base();
        if let Some(base) = &base {
            tracing::info!(
                "Restoring job {} from checkpoint {} in {}.",
                self.shared.name,
                base.id,
                durable.directory().path("").display()
            );
        }
        let restored = base.map(|base| Restored::from(&base)).unwrap_or_default();
        predictor.reset();
        coordinator.deploy(self.shared.clock.now_ns(), restored);
    }

    /// Does what the checkpoints' machine says, and what follows from that.
    fn act(&mut self, actions: Vec<Action>) -> Result<(), JobError> {
        self.predict(&actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let Some(checkpoints) = &mut self.checkpoints else { break };
            let mail = match action {
                // No source has a coordinator that hands out splits: they are divided when the job starts.
                Action::SnapshotCoordinator { .. } | Action::ReleaseCoordinators { .. } => continue,
                Action::Trigger { subtask, barrier } => (subtask, Mail::Trigger(barrier)),
                Action::Complete { subtask, id } => {
                    failpoint::pass(failpoint::COORDINATOR_NOTICE);
                    (subtask, Mail::Complete(id))
                }
                Action::Abort { subtask, id } => (subtask, Mail::Abort(id)),
                Action::Commit(metadata) => {
                    let id = metadata.id;
                    failpoint::pass(failpoint::COORDINATOR_COMMIT);
                    let committed = checkpoints.durable.commit(metadata, &self.shared.clock);
                    let now_ns = self.shared.clock.now_ns();
                    let coordinator = &mut checkpoints.coordinator;
                    actions.extend(match committed {
                        CommitResult::Complete => {
                            failpoint::pass(failpoint::COORDINATOR_COMPLETE);
                            checkpoints.unclean = true;
                            coordinator.committed(now_ns, id)
                        }
                        CommitResult::Unknown(cause) => coordinator.commit_failed(now_ns, id, &cause, true),
                        CommitResult::Failed(cause) => coordinator.commit_failed(now_ns, id, &cause, false),
                    });
                    continue;
                }
                Action::Completed(stats) | Action::Failed(stats) => {
                    let report = Arc::new(checkpoints.coordinator.statistics());
                    self.shared.show(|_, _, shown| *shown = Some(report));
                    if let Some(request) = stats.request
                        && let Some(at) = checkpoints.requests.iter().position(|(r, _)| *r == request)
                    {
                        let _ = checkpoints.requests.swap_remove(at).1.send(stats);
                    }
                    continue;
                }
                Action::Refused { request, reason } => {
                    tracing::warn!("A request for a checkpoint was refused: {}", reason.words());
                    checkpoints.requests.retain(|(r, _)| *r != request);
                    continue;
                }
                Action::FailJob(failure) => {
                    let now_ns = self.shared.clock.now_ns();
                    let before = self.machine.state();
                    let orders = self.machine.fail();
                    if !orders.is_empty() {
                        self.checkpoint_failure = Some(failure);
                    }
                    self.carry_out(orders)?;
                    self.changed(before, now_ns)?;
                    continue;
                }
            };
            let (subtask, mail) = mail;
            let planned = &self.shared.plan.subtasks[subtask];
            self.attempt.send(planned.shard.0 as usize, ShardMail::Task(planned.task, mail));
        }
        Ok(())
    }

    /// Before any barrier is sent: how long each is expected to wait.
    fn predict(&mut self, actions: &[Action]) {
        let triggered = actions.iter().find_map(|action| match action {
            Action::Trigger { barrier, .. } => Some(barrier.checkpoint.0),
            _ => None,
        });
        let (Some(id), Some(checkpoints)) = (triggered, &mut self.checkpoints) else { return };
        let Shared { clock, plan, metrics, .. } = &*self.shared;
        for (subtask, wait) in
            checkpoints.predictor.predict(clock.now_ns(), plan, metrics).into_iter().enumerate()
        {
            if let Some(wait) = wait {
                let Wait { predicted_ns, static_ns } = wait;
                checkpoints.coordinator.predict(id, subtask, Some(predicted_ns), Some(static_ns));
            }
        }
    }

    /// The job is over.
    fn end(mut self) -> Result<JobSummary, JobError> {
        self.attempt.join();
        let checkpoints = self.checkpoints.as_ref().map(|c| Arc::new(c.coordinator.statistics()));
        let summary = JobSummary {
            elapsed: self.shared.elapsed(),
            subtasks: self.shared.snapshot(),
            restarts: self.number - 1,
            checkpoints,
        };
        match self.machine.state() {
            JobState::Finished => Ok(summary),
            JobState::Failed => Err(self.failure()),
            _ => Err(JobError::Canceled),
        }
    }

    /// Why the job has failed.
    fn failure(&mut self) -> JobError {
        let cause = match (self.checkpoint_failure.take(), self.machine.failure()) {
            (Some(failure), _) => JobError::Checkpoint(failure),
            (None, Some((shard, task, failure))) => {
                let (vertex, subtask, parallelism) = self.shared.task_name(*shard, *task);
                let (operator, cause) = (failure.operator.clone(), failure.cause.clone());
                let operator = operator.filter(|operator| *operator != vertex);
                JobError::Task { vertex, subtask, parallelism, operator, cause }
            }
            (None, None) => JobError::Canceled,
        };
        match self.machine.suppressed_by() {
            Some(strategy) if self.number > 1 => {
                JobError::NoRestart { cause: Box::new(cause), strategy: strategy.to_string() }
            }
            _ => cause,
        }
    }

    fn answer_probe(&mut self, shard: ShardId, task: TaskIndex, waited_ns: u64) {
        if let Some(index) = self.probes.iter().position(|(s, t, _)| (*s, *t) == (shard, task)) {
            let _ = self.probes.swap_remove(index).2.send(waited_ns);
        }
    }

    /// Names the task of each shard that has been held for longer than the threshold, once a stall.
    fn look_for_stalls(&mut self) {
        let now_ns = self.shared.clock.now_ns();
        for (index, (shard, reported)) in self.shared.shards.iter().zip(&mut self.stalls).enumerate() {
            let since_ns = shard.running_since_ns.get();
            let task = shard.running_task.get();
            let held = Duration::from_nanos(now_ns.saturating_sub(since_ns));
            if task == 0 || held < self.stall_threshold || *reported == since_ns {
                continue;
            }
            *reported = since_ns;
            let task = TaskIndex(task as u32 - 1);
            let (vertex, subtask, parallelism) = self.shared.task_name(ShardId(index as u32), task);
            tracing::warn!(
                shard = index,
                "{vertex} ({subtask}/{parallelism}) has held shard {index} for {} ms: no mail, timer or other \
                 task of the shard runs meanwhile; user code must not block",
                held.as_millis()
            );
        }
    }

    fn stuck(&self) -> JobError {
        let now_ns = self.shared.clock.now_ns();
        let held = self.shared.shards.iter().enumerate().find(|(_, shard)| shard.running_task.get() != 0);
        let (index, held_ns, task) = match held {
            Some((index, shard)) => {
                (index, now_ns.saturating_sub(shard.running_since_ns.get()), shard.running_task.get() - 1)
            }
            None => (0, self.cancellation_timeout.as_nanos() as u64, 0),
        };
        let (vertex, subtask, _) = self.shared.task_name(ShardId(index as u32), TaskIndex(task as u32));
        JobError::Stuck { shard: index as u32, vertex, subtask, held: Duration::from_nanos(held_ns) }
    }
}
