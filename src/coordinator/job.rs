//! A running job: its threads, and what others may ask of it.
//!
//! | thread | runs |
//! | --- | --- |
//! | `tidegate-shard-N` | shard N, pinned to one core |
//! | `tidegate-coord` | the job's state machine, the stall detector; not pinned |
//!
//! Readers of sources that must block have threads of their own, named by them.

use super::attempt::Site;
use super::checkpoint::{CheckpointStats, CheckpointsReport};
use super::durable::Durable;
use super::failure::CheckpointFailure;
use super::or_abort;
use super::probe::{Probe, memory_available};
use super::run::Coordinator;
use super::state::JobState;
use crate::api::JobGraph;
use crate::checkpoint::CheckpointReport;
use crate::config::{Config, ConfigError};
use crate::graph::plan::{Plan, PlanConfig, PlanError};
use crate::subtask::RestoreError;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_shard::account::{ShardMetrics, SubtaskMetrics, TimeShares};
use tidegate_shard::driver::MonotonicClock;
use tidegate_shard::memory::RegionError;
use tidegate_shard::shard::{Report, ShardId};
use tidegate_shard::task::{Clock, TaskIndex};
use tidegate_shard::topology;
use tidegate_storage::error::StorageError;

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
    /// It failed, and its restart strategy says that it is not started again.
    #[error("{cause} (recovery is suppressed by {strategy})")]
    NoRestart {
        /// The last failure.
        cause: Box<JobError>,
        /// The strategy and why.
        strategy: String,
    },
    /// Too many checkpoints failed.
    #[error("{0}")]
    Checkpoint(CheckpointFailure),
    /// The directory of the checkpoints, or what lies in it.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The state of a checkpoint does not fit the job.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// A path that is no checkpoint of the job.
    #[error("{}: is not a checkpoint to go on from; expected {expected}", path.display())]
    From {
        /// The path.
        path: PathBuf,
        /// What could stand there.
        expected: String,
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
    /// How often the job was started again.
    pub restarts: u32,
    /// All that is known of its checkpoints; `None` if it took none.
    pub checkpoints: Option<Arc<CheckpointsReport>>,
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
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) plan: Plan,
    /// Counters of each subtask and shard, over all attempts.
    pub(super) metrics: Vec<Arc<SubtaskMetrics>>,
    pub(super) shards: Vec<Arc<ShardMetrics>>,
    pub(super) clock: MonotonicClock,
    started: Instant,
    view: Mutex<View>,
}

/// What the coordinator tells of the job.
#[derive(Clone)]
struct View {
    state: JobState,
    restarts: u32,
    checkpoints: Option<Arc<CheckpointsReport>>,
}

pub(super) enum Message {
    /// A shard of this attempt.
    Report(u32, ShardId, Report),
    /// A subtask of this attempt.
    Checkpoint(u32, CheckpointReport),
    Cancel,
    Stop,
    /// Take a checkpoint now; the answer is its end.
    Trigger(Sender<Arc<CheckpointStats>>),
    Probe(ShardId, TaskIndex, Sender<u64>),
}

/// A job that was started.
pub struct RunningJob {
    shared: Arc<Shared>,
    messages: Sender<Message>,
    thread: JoinHandle<Result<JobSummary, JobError>>,
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

pub(super) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> JobError {
    let what = what.into();
    move |cause| JobError::System { what, cause }
}

impl RunningJob {
    /// Starts a job: maps memory, starts threads, sets up tasks, from a checkpoint if the configuration names a
    /// directory with one. Returns when that is under way.
    ///
    /// # Errors
    ///
    /// [`JobError`] if it cannot be started; nothing runs then.
    pub fn start(job: JobGraph) -> Result<RunningJob, JobError> {
        let JobGraph { name, config, graph } = job;
        config.validate()?;
        let name = config.pipeline_name().unwrap_or(name);
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
        let shared = Arc::new(Shared {
            name,
            metrics: plan.subtasks.iter().map(|_| Arc::default()).collect(),
            shards: (0..count).map(|_| Arc::default()).collect(),
            plan,
            clock,
            started: Instant::now(),
            view: Mutex::new(View { state: JobState::Created, restarts: 0, checkpoints: None }),
        });
        let site = Site { shared: shared.clone(), graph, config, cores, messages: messages.clone() };
        let (started, result) = channel();
        // All of it on that thread: its own log belongs to the thread that opens it.
        let run = move || {
            let begun = open_durable(&site.config, &site.shared.name)
                .and_then(|durable| Coordinator::new(site, durable));
            match begun {
                Ok(coordinator) => {
                    let _ = started.send(Ok(()));
                    or_abort(|| coordinator.run(&inbox))
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                    Err(JobError::Canceled)
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("tidegate-coord".to_string())
            .spawn(run)
            .map_err(system("cannot start the coordinator's thread"))?;
        match result.recv() {
            Ok(started) => started?,
            Err(_) => std::panic::resume_unwind(thread.join().expect_err("it ended without an answer")),
        }
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
        self.shared.view().state
    }

    /// How often the job was restarted.
    pub fn restarts(&self) -> u32 {
        self.shared.view().restarts
    }

    /// All that is known of the job's checkpoints; `None` if it takes none.
    pub fn checkpoints(&self) -> Option<Arc<CheckpointsReport>> {
        self.shared.view().checkpoints
    }

    /// Takes a checkpoint now and waits for its end; `None` if the job takes none, or ends first.
    pub fn blocking_checkpoint(&self) -> Option<Arc<CheckpointStats>> {
        let (answer, answered) = channel();
        self.messages.send(Message::Trigger(answer)).ok()?;
        answered.recv().ok()
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

    /// Entries of keyed state in all subtasks, as they have booked them at the end of a turn.
    pub fn state_entries(&self) -> u64 {
        self.shared.metrics.iter().map(|m| m.state_entries.get()).sum()
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
        self.thread.join().expect("a panic there has ended the process")
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
    fn view(&self) -> View {
        self.view.lock().expect("nobody panics with the view locked").clone()
    }

    pub(super) fn show(
        &self,
        change: impl FnOnce(&mut JobState, &mut u32, &mut Option<Arc<CheckpointsReport>>),
    ) {
        let mut view = self.view.lock().expect("nobody panics with the view locked");
        let View { state, restarts, checkpoints } = &mut *view;
        change(state, restarts, checkpoints);
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn snapshot(&self) -> Vec<SubtaskSnapshot> {
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

    /// Index in the plan of a task.
    pub(super) fn subtask_of(&self, shard: ShardId, task: TaskIndex) -> Option<usize> {
        self.plan.subtasks.iter().position(|s| s.shard == shard && s.task == task)
    }

    /// Vertex and number, from 1, of a task.
    pub(super) fn task_name(&self, shard: ShardId, task: TaskIndex) -> (String, u32, u32) {
        let planned = self.plan.subtasks.iter().find(|s| s.shard == shard && s.task == task);
        let planned = planned.expect("reports name tasks of the plan");
        let vertex = &self.plan.vertices[planned.vertex.0 as usize];
        (vertex.name.clone(), planned.subtask + 1, vertex.parallelism)
    }
}

/// Opens the directory of the job's checkpoints, if it takes any.
fn open_durable(config: &Config, name: &str) -> Result<Option<Durable>, JobError> {
    let recovery = config.recovery();
    if recovery.is_none() && config.checkpoint_interval().is_none() {
        return Ok(None);
    }
    if recovery.is_none() {
        tracing::info!(
            "Checkpoints are kept in a temporary directory, and go with the process; execution.checkpointing.dir \
             names one that stays."
        );
    }
    Durable::open(recovery.as_ref(), name, config.log_config(), config.checkpoints_retained()).map(Some)
}
