//! A running job: its threads, and what others may ask of it.
//!
//! | thread | runs |
//! | --- | --- |
//! | `tidegate-shard-N` | shard N, pinned to one core |
//! | `tidegate-coord` | the job's state machine, the stall detector; not pinned |
//!
//! Readers of sources that must block have threads of their own, named by them.

use super::probe::{Probe, memory_available};
use super::restart::{RestartSettings, RestartStrategy};
use super::state::{JobState, Machine, Order};
use crate::api::JobGraph;
use crate::config::{Config, ConfigError};
use crate::graph::plan::{Plan, PlanConfig, PlanError};
use crate::subtask::wire::{ShardLinks, doors, wire};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_shard::account::{ShardMetrics, SubtaskMetrics, TimeShares};
use tidegate_shard::channel::doorbell::Sleeper;
use tidegate_shard::channel::ring::Full;
use tidegate_shard::config::{FlushInterval, TurnConfig};
use tidegate_shard::driver::{Driver, EventFd, IdleStrategy, MonotonicClock};
use tidegate_shard::memory::{Pool, Region, RegionError};
use tidegate_shard::shard::{
    Report, ReportSink, Room, Shard, ShardId, ShardMail, ShardMailer, ShardParts, shard_mail,
};
use tidegate_shard::task::{Clock, TaskIndex};
use tidegate_shard::topology;

/// What a job can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The configuration contradicts itself: mend it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The graph cannot run as configured: mend either.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is not enough memory: use fewer or smaller segments, or a smaller parallelism.
    #[error("shard {shard}: {cause}")]
    Memory {
        /// The shard.
        shard: u32,
        /// What was asked for, and the kernel's answer.
        cause: RegionError,
    },
    /// The machine has not the memory that the job would take at once: use a smaller parallelism, fewer or
    /// smaller segments, or a limit.
    #[error(
        "the job's exchange takes {needed} bytes at once and {available} are available; expected a smaller \
         parallelism.default or taskmanager.memory.segment-size, or a limit by taskmanager.memory.network.max"
    )]
    TooLarge {
        /// Bytes of segments and channels.
        needed: u64,
        /// Bytes that the machine has left for us.
        available: u64,
    },
    /// The operating system refused something.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        cause: std::io::Error,
    },
    /// The driver that was asked for is not in this build.
    #[error(
        "tidegate.driver: glommio is not in this build; expected thread, or a build with \
         `cargo build --release --features glommio`"
    )]
    NoGlommio,
    /// A task has failed.
    #[error("{vertex} ({subtask}/{parallelism}){}: {cause}", operator.as_ref().map(|o| format!(", operator {o:?}")).unwrap_or_default())]
    Task {
        /// Name of its vertex.
        vertex: String,
        /// Which of the parallel instances, from 1.
        subtask: u32,
        /// How many there are.
        parallelism: u32,
        /// The operator that failed, where it is known.
        operator: Option<String>,
        /// The causes, one after the other.
        cause: String,
    },
    /// The job was cancelled.
    #[error("the job was cancelled")]
    Canceled,
    /// A shard is held by user code and cannot be stopped.
    #[error(
        "{vertex} ({subtask}) has held shard {shard} for {held:?} and does not let it stop (task.cancellation.timeout)"
    )]
    Stuck {
        /// The shard.
        shard: u32,
        /// The vertex whose task runs.
        vertex: String,
        /// Which of the parallel instances, from 1.
        subtask: u32,
        /// For how long.
        held: Duration,
    },
}

/// A job that has finished.
#[derive(Debug, Clone)]
pub struct JobSummary {
    /// From the first task's start to the last one's end.
    pub elapsed: Duration,
    /// The last counters of each subtask, in the plan's order.
    pub subtasks: Vec<SubtaskSnapshot>,
}

/// Counters of a subtask at one moment.
#[derive(Debug, Clone)]
pub struct SubtaskSnapshot {
    /// Name of its vertex.
    pub vertex: String,
    /// Which of the parallel instances, from 0.
    pub subtask: u32,
    /// When they were read, in nanoseconds of the job's clock.
    pub at_ns: u64,
    /// Records taken from the input.
    pub records_in: u64,
    /// Records put out.
    pub records_out: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes of finished buffers put out.
    pub bytes_out: u64,
    /// Buffers read to their end.
    pub buffers_in: u64,
    /// Buffers finished.
    pub buffers_out: u64,
    /// Times that a partly filled buffer was handed over.
    pub flushes: u64,
    /// Time in each state since the start.
    pub time: TimeShares,
    /// Share of the output segments in use, 0 … 1, more with overdraft.
    pub out_pool_usage: f64,
    /// Share of the input's permits in use, 0 … 1.
    pub in_pool_usage: f64,
    /// Share of the exclusive permits in use.
    pub exclusive_usage: f64,
    /// Share of the floating permits lent.
    pub floating_usage: f64,
    /// Buffers that wait at the output for credit.
    pub output_queue_length: u64,
    /// Buffers in the input's rings and at its reader.
    pub input_queue_length: u64,
    /// Segments of the fullest subpartition.
    pub subpartition_held_max: u64,
    /// Bytes of output held back on the heap.
    pub overflow_bytes: u64,
    /// Input watermark, in milliseconds; `None` before the first.
    pub watermark: Option<i64>,
    /// How long the last latency marker took from its source to the subtask's sink, in nanoseconds; `None`
    /// before the first (`metrics.latency.interval`).
    pub marker_latency_ns: Option<u64>,
}

/// What others may look at while the job runs.
struct Shared {
    name: String,
    plan: Plan,
    metrics: Vec<Arc<SubtaskMetrics>>,
    shards: Vec<Arc<ShardMetrics>>,
    clock: MonotonicClock,
    started: Instant,
    state: Mutex<JobState>,
}

enum Message {
    Report(ShardId, Report),
    Cancel,
    Stop,
    Probe(ShardId, TaskIndex, Sender<u64>),
}

/// A job that was started.
pub struct RunningJob {
    shared: Arc<Shared>,
    messages: Sender<Message>,
    thread: JoinHandle<Result<JobSummary, JobError>>,
}

struct Reports(Sender<Message>);

impl ReportSink for Reports {
    fn report(&self, shard: ShardId, report: Report) {
        // The coordinator outlives its shards; if it is gone the process is ending.
        let _ = self.0.send(Message::Report(shard, report));
    }
}

/// The layout as configured, on `shards` shards.
pub fn plan_config(config: &Config, shards: u32) -> PlanConfig {
    PlanConfig {
        shards,
        // Where nobody says, a job uses the cores that it was given.
        parallelism: if config.is_set("parallelism.default") { config.parallelism() } else { shards },
        max_parallelism: config.max_parallelism(),
        exchange: config.exchange_config(),
        group_hash: config.key_group_hash(),
        memory_bytes_max: config.network_memory_max(),
    }
}

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> JobError {
    let what = what.into();
    move |cause| JobError::System { what, cause }
}

impl RunningJob {
    /// Starts a job: maps memory, starts threads, sets up tasks. Returns when that is under way.
    ///
    /// # Errors
    ///
    /// [`JobError`] if it cannot be started; nothing runs then.
    pub fn start(job: JobGraph) -> Result<RunningJob, JobError> {
        let JobGraph { name, config, graph } = job;
        config.validate()?;
        let name = config.pipeline_name().unwrap_or(name);
        let driver_kind = config.driver();
        Probe::log_once();
        let cores = topology::allowed_cores().map_err(system("cannot tell which cores may be used"))?;
        let count = config.shards().unwrap_or(cores.len() as u32);
        let plan = Plan::new(&graph, &plan_config(&config, count))?;
        // The pools are touched at the start, so without this the kernel would kill whom it likes.
        let (needed, available) = (plan.exchange_bytes(), memory_available());
        if needed > available {
            return Err(JobError::TooLarge { needed, available });
        }
        let (messages, inbox) = channel();
        let clock = MonotonicClock::of_process();
        let (idle, turn) = (config.idle_strategy(), config.turn_config());
        let mut shards = Vec::new();
        let mut links = Vec::new();
        for index in 0..count {
            let core = cores[index as usize % cores.len()];
            let setup = ShardSetup {
                id: ShardId(index),
                core,
                turn: turn.clone(),
                flush: plan.exchange.flush,
                segments: plan.memory[index as usize].segments(),
                segment_size: plan.exchange.segment_size_bytes,
                overdraft: plan.memory[index as usize].overdraft,
                shards: count,
                idle,
                clock,
                driver: new_driver(driver_kind)?,
            };
            let (shard, link) = start_shard(setup, messages.clone())?;
            shards.push(shard);
            links.push(link);
        }
        let wired = wire(&plan, &graph, &links, None);
        let sources = plan
            .subtasks
            .iter()
            .filter(|s| plan.vertices[s.vertex.0 as usize].is_source)
            .map(|s| (s.shard, s.task))
            .collect();
        let strategy = RestartStrategy::new(RestartSettings::Disabled, 0);
        let machine = Machine::new(count as usize, plan.subtasks.len(), sources, strategy);
        for (shard, deployments) in shards.iter_mut().zip(wired.deployments) {
            let sent = shard.mailer.send(clock.now_ns(), ShardMail::Deploy(deployments));
            assert!(sent.is_ok(), "the first mail of a shard finds room");
        }
        let shared = Arc::new(Shared {
            name,
            plan,
            metrics: wired.metrics,
            shards: shards.iter().map(|s| s.metrics.clone()).collect(),
            clock,
            started: Instant::now(),
            state: Mutex::new(JobState::Created),
        });
        let coordinator = Coordinator {
            machine,
            shards,
            shared: shared.clone(),
            waiting: Vec::new(),
            probes: Vec::new(),
            stall_threshold: config.stall_threshold(),
            stalls: vec![0; count as usize],
            cancellation_timeout: config.cancellation_timeout(),
        };
        let thread = std::thread::Builder::new()
            .name("tidegate-coord".to_string())
            .spawn(move || coordinator.run(&inbox))
            .map_err(system("cannot start the coordinator's thread"))?;
        Ok(RunningJob { shared, messages, thread })
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How the job is laid out.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// What the job is doing.
    pub fn state(&self) -> JobState {
        *self.shared.state.lock().expect("nobody panics with the state locked")
    }

    /// Whether the job is over, so that [`wait`](Self::wait) returns at once.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Counters of each subtask now, in the plan's order.
    pub fn snapshot(&self) -> Vec<SubtaskSnapshot> {
        self.shared.snapshot()
    }

    /// Counters of each shard.
    pub fn shards(&self) -> &[Arc<ShardMetrics>] {
        &self.shared.shards
    }

    /// Waits until the job is over.
    ///
    /// # Errors
    ///
    /// [`JobError`] if it has failed or was cancelled.
    pub fn wait(self) -> Result<JobSummary, JobError> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends the sources, so that the job finishes with what they have emitted.
    pub fn stop(&self) {
        let _ = self.messages.send(Message::Stop);
    }

    /// Drops the job where it stands.
    pub fn cancel(&self) {
        let _ = self.messages.send(Message::Cancel);
    }

    /// Sends a mail to a subtask and returns how long it waited until it ran; `None` if the job ended first.
    pub fn blocking_probe(&self, subtask: usize) -> Option<Duration> {
        let planned = &self.shared.plan.subtasks[subtask];
        let (answer, answered) = channel();
        self.messages.send(Message::Probe(planned.shard, planned.task, answer)).ok()?;
        answered.recv().ok().map(Duration::from_nanos)
    }
}

impl Shared {
    fn snapshot(&self) -> Vec<SubtaskSnapshot> {
        let share = |used: u64, size: u64| if size == 0 { 0.0 } else { used as f64 / size as f64 };
        self.plan
            .subtasks
            .iter()
            .zip(&self.metrics)
            .map(|(planned, m)| (planned, m, m.time.read(|| self.clock.now_ns())))
            .map(|(planned, m, (time, at_ns))| SubtaskSnapshot {
                vertex: self.plan.vertices[planned.vertex.0 as usize].name.clone(),
                subtask: planned.subtask,
                at_ns,
                records_in: m.records_in.get(),
                records_out: m.records_out.get(),
                bytes_in: m.bytes_in.get(),
                bytes_out: m.bytes_out.get(),
                buffers_in: m.buffers_in.get(),
                buffers_out: m.buffers_out.get(),
                flushes: m.flushes.get(),
                time,
                out_pool_usage: share(m.out_pool_used.get(), m.out_pool_size.get()),
                in_pool_usage: share(
                    m.exclusive_used.get() + m.floating_used.get(),
                    m.exclusive_size.get() + m.floating_size.get(),
                ),
                exclusive_usage: share(m.exclusive_used.get(), m.exclusive_size.get()),
                floating_usage: share(m.floating_used.get(), m.floating_size.get()),
                output_queue_length: m.output_queue_length.get(),
                input_queue_length: m.input_queue_length.get(),
                subpartition_held_max: m.subpartition_held_max.get(),
                overflow_bytes: m.overflow_bytes.get(),
                watermark: Some(m.watermark()).filter(|at| *at > i64::MIN),
                marker_latency_ns: Some(m.marker_latency_ns.get()).filter(|ns| *ns > 0),
            })
            .collect()
    }

    /// Vertex and number, from 1, of a task.
    fn task_name(&self, shard: ShardId, task: TaskIndex) -> (String, u32, u32) {
        let planned = self.plan.subtasks.iter().find(|s| s.shard == shard && s.task == task);
        let planned = planned.expect("reports name tasks of the plan");
        let vertex = &self.plan.vertices[planned.vertex.0 as usize];
        (vertex.name.clone(), planned.subtask + 1, vertex.parallelism)
    }
}

struct ShardSetup {
    id: ShardId,
    core: u32,
    turn: TurnConfig,
    flush: FlushInterval,
    segments: u32,
    segment_size: u32,
    overdraft: u32,
    shards: u32,
    idle: IdleStrategy,
    clock: MonotonicClock,
    driver: Driver,
}

fn new_driver(kind: crate::config::Driver) -> Result<Driver, JobError> {
    match kind {
        crate::config::Driver::Thread => {
            Ok(Driver::Thread(EventFd::new().map_err(system("cannot make an eventfd"))?))
        }
        #[cfg(feature = "glommio")]
        crate::config::Driver::Glommio => Ok(Driver::Glommio(Arc::default())),
        #[cfg(not(feature = "glommio"))]
        crate::config::Driver::Glommio => Err(JobError::NoGlommio),
    }
}

struct ShardHandle {
    mailer: ShardMailer,
    metrics: Arc<ShardMetrics>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a shard's thread; returns when its memory is mapped.
fn start_shard(setup: ShardSetup, messages: Sender<Message>) -> Result<(ShardHandle, ShardLinks), JobError> {
    let sleeper = Arc::new(Sleeper::new(setup.driver.wake()));
    let doors = doors(setup.shards);
    let (mailer, mailbox) = shard_mail(sleeper.clone());
    let metrics = Arc::<ShardMetrics>::default();
    let (mapped, region) = channel();
    let id = setup.id;
    let parts = (doors.clone(), sleeper.clone(), metrics.clone());
    let run = move || {
        if let Err(cause) = topology::pin(&[setup.core]) {
            let what = format!("cannot pin shard {} to core {}", setup.id.0, setup.core);
            let _ = mapped.send(Err(JobError::System { what, cause }));
            return;
        }
        let driver = match setup.driver.seat() {
            Ok(driver) => driver,
            Err(cause) => {
                let what = format!("cannot start the executor of shard {}", setup.id.0);
                let _ = mapped.send(Err(JobError::System { what, cause }));
                return;
            }
        };
        // On the pinned thread, so that the memory is near its core.
        let region = match Region::map(setup.segments, setup.segment_size) {
            Ok(region) => Arc::new(region),
            Err(cause) => {
                let _ = mapped.send(Err(JobError::Memory { shard: setup.id.0, cause }));
                return;
            }
        };
        let pool = Pool::new(region.clone(), setup.overdraft);
        let (doors, sleeper, metrics) = parts;
        // Before anybody can look: a job that has started shows the whole pool, and free.
        let usage = pool.usage();
        metrics.pool_total.set(u64::from(usage.total));
        metrics.pool_free.set(u64::from(usage.free));
        if mapped.send(Ok(region)).is_err() {
            return;
        }
        let reports = Box::new(Reports(messages));
        let (room, service) = (Room { pool, local: None }, None);
        let ShardSetup { id, turn, flush, idle, clock, .. } = setup;
        let mut shard = Shard::new(
            ShardParts { id, turn, flush, room, service, doors, sleeper, reports, metrics },
            mailbox,
        );
        // A panic of user code is caught where tasks are run; any other is a bug of ours, and whoever waits
        // for this shard would wait for ever.
        if catch_unwind(AssertUnwindSafe(|| driver.run(&mut shard, &clock, idle))).is_err() {
            std::process::abort();
        }
    };
    let thread = std::thread::Builder::new()
        .name(format!("tidegate-shard-{}", id.0))
        .spawn(run)
        .map_err(system(format!("cannot start the thread of shard {}", id.0)))?;
    let region = region.recv().expect("the shard's thread answers before it ends")?;
    let handle = ShardHandle { mailer, metrics, thread: Some(thread) };
    Ok((handle, ShardLinks { region, doors, sleeper }))
}

struct Coordinator {
    machine: Machine,
    shards: Vec<ShardHandle>,
    shared: Arc<Shared>,
    /// Mail that a shard had no room for.
    waiting: Vec<(usize, ShardMail)>,
    probes: Vec<(ShardId, TaskIndex, Sender<u64>)>,
    stall_threshold: Duration,
    /// Start of the stall that was last reported, for each shard.
    stalls: Vec<u64>,
    cancellation_timeout: Duration,
}

impl Coordinator {
    fn run(mut self, inbox: &Receiver<Message>) -> Result<JobSummary, JobError> {
        let look = (self.stall_threshold / 2).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut stopping_since = None;
        while !self.machine.is_over() {
            let orders = match inbox.recv_timeout(look) {
                Ok(Message::Report(shard, report)) => {
                    if let Report::Probed(task, waited_ns) = report {
                        self.answer_probe(shard, task, waited_ns);
                    }
                    self.machine.report(self.shared.clock.now_ns(), shard, report)
                }
                Ok(Message::Cancel) => self.machine.cancel(),
                Ok(Message::Stop) => self.machine.stop(),
                Ok(Message::Probe(shard, task, answer)) => {
                    let sent_at_ns = self.shared.clock.now_ns();
                    self.probes.push((shard, task, answer));
                    vec![Order::Mail(shard, task, tidegate_shard::mailbox::Mail::Probe { sent_at_ns })]
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
            };
            for order in orders {
                match order {
                    Order::ShutDown => {
                        stopping_since = Some(Instant::now());
                        for shard in 0..self.shards.len() {
                            self.send(shard, ShardMail::Shutdown);
                        }
                    }
                    Order::Deploy => unreachable!("the strategy says that there is no restart"),
                    Order::Mail(shard, task, mail) => {
                        self.send(shard.0 as usize, ShardMail::Task(task, mail))
                    }
                }
            }
            for (shard, mail) in std::mem::take(&mut self.waiting) {
                self.send(shard, mail);
            }
            *self.shared.state.lock().expect("nobody panics with the state locked") = self.machine.state();
            self.look_for_stalls();
            if stopping_since.is_some_and(|since: Instant| since.elapsed() > self.cancellation_timeout) {
                return Err(self.stuck());
            }
        }
        for shard in &mut self.shards {
            if let Some(thread) = shard.thread.take() {
                // A panic there has ended the process.
                let _ = thread.join();
            }
        }
        let summary = JobSummary { elapsed: self.shared.started.elapsed(), subtasks: self.shared.snapshot() };
        match (self.machine.state(), self.machine.failure()) {
            (_, Some((shard, task, failure))) => {
                let (vertex, subtask, parallelism) = self.shared.task_name(*shard, *task);
                let (operator, cause) = (failure.operator.clone(), failure.cause.clone());
                let operator = operator.filter(|operator| *operator != vertex);
                Err(JobError::Task { vertex, subtask, parallelism, operator, cause })
            }
            (JobState::Finished, None) => Ok(summary),
            _ => Err(JobError::Canceled),
        }
    }

    fn send(&mut self, shard: usize, mail: ShardMail) {
        if let Err(Full(mail)) = self.shards[shard].mailer.send(self.shared.clock.now_ns(), mail) {
            self.waiting.push((shard, mail));
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
