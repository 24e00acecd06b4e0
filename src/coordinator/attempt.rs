//! One attempt of a job: its shards' threads and memory, from start to end.
//!
//! A restart begins with fresh ones. Nothing of the attempt before is used again but counters, so nothing of it can
//! be left over: no segment in a ring, no wake-up on its way, no operation on memory that others use. It costs some
//! milliseconds for mapping memory and starting threads, once a restart.

use super::durable::Durable;
use super::job::{JobError, Message, Shared, system};
use super::or_abort;
use crate::checkpoint::{CheckpointReport, CheckpointReports, Checkpointing};
use crate::config::Config;
use crate::graph::logical::LogicalGraph;
use crate::subtask::wire::{ShardLinks, WireCheckpoints, doors, wire};
use crate::subtask::{Restored, SharedLog};
use std::any::Any;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tidegate_shard::account::ShardMetrics;
use tidegate_shard::channel::doorbell::Sleeper;
use tidegate_shard::channel::ring::Full;
use tidegate_shard::config::{FlushInterval, TurnConfig};
use tidegate_shard::driver::{Driver, EventFd, IdleStrategy, MonotonicClock};
use tidegate_shard::memory::{Pool, Region};
use tidegate_shard::shard::{
    Report, ReportSink, Room, Shard, ShardId, ShardMail, ShardMailer, ShardParts, shard_mail,
};
use tidegate_shard::task::{Clock, Service};
use tidegate_shard::topology;
use tidegate_storage::device::Wake;
use tidegate_storage::log::writer::LogSeed;

/// Reports of one attempt's shards and tasks.
#[derive(Clone)]
struct Reports {
    attempt: u32,
    messages: Sender<Message>,
}

impl ReportSink for Reports {
    fn report(&self, shard: ShardId, report: Report) {
        // The coordinator outlives its shards; if it is gone the process is ending.
        let _ = self.messages.send(Message::Report(self.attempt, shard, report));
    }
}

impl CheckpointReports for Mutex<Reports> {
    fn report(&self, report: CheckpointReport) {
        let reports = self.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = reports.messages.send(Message::Checkpoint(reports.attempt, report));
    }
}

/// What all attempts of a job have in common.
pub(super) struct Site {
    pub shared: Arc<Shared>,
    pub graph: LogicalGraph,
    pub config: Config,
    pub cores: Vec<u32>,
    pub messages: Sender<Message>,
}

/// An attempt that was started. Dropped, it ends its shards and waits for them, unless it was abandoned.
pub(super) struct Attempt {
    shards: Vec<ShardHandle>,
    /// Mail that a shard had no room for, in order.
    waiting: Vec<(usize, ShardMail)>,
    clock: MonotonicClock,
}

impl Attempt {
    /// Maps memory, starts threads, sends the tasks to their shards; what they report carries `number`.
    ///
    /// # Errors
    ///
    /// [`JobError`] if something is refused; nothing of the attempt is left then.
    pub fn start(site: &Site, number: u32, durable: Option<&Durable>) -> Result<Attempt, JobError> {
        let Site { shared, graph, config, cores, messages } = site;
        let plan = &shared.plan;
        let clock = shared.clock;
        let reports = Reports { attempt: number, messages: messages.clone() };
        let checkpoints = match durable {
            Some(durable) => Some(wire_checkpoints(site, number, durable, &reports)?),
            None => None,
        };
        let mut attempt = Attempt { shards: Vec::new(), waiting: Vec::new(), clock };
        let mut links = Vec::new();
        for (index, metrics) in shared.shards.iter().enumerate() {
            let driver = new_driver(config.driver())?;
            let log = match durable {
                Some(durable) => Some(durable.shard_log(log_wake(&driver)?)?),
                None => None,
            };
            let setup = ShardSetup {
                id: ShardId(index as u32),
                core: cores[index % cores.len()],
                turn: config.turn_config(),
                flush: plan.exchange.flush,
                segments: plan.memory[index].segments(),
                segment_size: plan.exchange.segment_size_bytes,
                overdraft: plan.memory[index].overdraft,
                shards: shared.shards.len() as u32,
                idle: config.idle_strategy(),
                clock,
                driver,
                log,
                metrics: metrics.clone(),
                reports: reports.clone(),
            };
            let (shard, link) = start_shard(setup)?;
            attempt.shards.push(shard);
            links.push(link);
        }
        let deployments = wire(plan, graph, &links, &shared.metrics, checkpoints.as_ref());
        for (shard, deployments) in deployments.into_iter().enumerate() {
            attempt.send(shard, ShardMail::Deploy(deployments));
        }
        Ok(attempt)
    }

    /// Sends a shard mail, now or as soon as it has room.
    pub fn send(&mut self, shard: usize, mail: ShardMail) {
        if self.waiting.iter().any(|(waiting, _)| *waiting == shard) {
            return self.waiting.push((shard, mail));
        }
        if let Err(Full(mail)) = self.shards[shard].mailer.send(self.clock.now_ns(), mail) {
            self.waiting.push((shard, mail));
        }
    }

    /// Sends what waits for room.
    pub fn send_waiting(&mut self) {
        for (shard, mail) in std::mem::take(&mut self.waiting) {
            self.send(shard, mail);
        }
    }

    /// Tells all shards to drop their tasks and stop.
    pub fn shut_down(&mut self) {
        for shard in 0..self.shards.len() {
            self.send(shard, ShardMail::Shutdown);
        }
    }

    /// Waits for the threads, which have been told to stop.
    pub fn join(&mut self) {
        for shard in &mut self.shards {
            if let Some(thread) = shard.thread.take() {
                // A panic there has ended the process.
                let _ = thread.join();
            }
        }
    }

    /// Waits for no thread: one that user code holds may never end. Those that are told to stop do so by themselves.
    pub fn abandon(&mut self) {
        for shard in &mut self.shards {
            shard.thread = None;
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.shards.iter().any(|shard| shard.thread.is_some()) {
            self.waiting.clear();
            self.shut_down();
            self.join();
        }
    }
}

fn wire_checkpoints(
    site: &Site,
    number: u32,
    durable: &Durable,
    reports: &Reports,
) -> Result<WireCheckpoints, JobError> {
    let Site { shared, graph, config, .. } = site;
    let restored = match durable.base() {
        Some(base) => Some(Arc::new(Restored::new(base, durable.directory(), graph, &shared.plan)?)),
        None => None,
    };
    let (lineage, run) = durable.identity();
    let restored_id = restored.as_ref().map(|restored| restored.id());
    Ok(WireCheckpoints {
        reports: Arc::new(Mutex::new(reports.clone())),
        info: Checkpointing { lineage, run, attempt: number, restored: restored_id },
        inline_max: config.checkpoint_inline_threshold() as usize,
        waits_at_end: config.checkpoint_settings().after_tasks_finish,
        incremental: config.checkpoint_incremental(),
        restored,
    })
}

/// What rings a shard when the disk has something for it.
fn log_wake(driver: &Driver) -> Result<Wake, JobError> {
    match driver {
        Driver::Thread(event) => Wake::eventfd(event.fd()).map_err(system("cannot duplicate an eventfd")),
        // The executor sleeps by itself: the shard's timer has it look.
        #[cfg(feature = "glommio")]
        Driver::Glommio(_) => Ok(Wake::nobody()),
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
    log: Option<LogSeed>,
    metrics: Arc<ShardMetrics>,
    reports: Reports,
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
    thread: Option<JoinHandle<()>>,
}

/// Starts a shard's thread; returns when its memory is mapped.
fn start_shard(setup: ShardSetup) -> Result<(ShardHandle, ShardLinks), JobError> {
    let sleeper = Arc::new(Sleeper::new(setup.driver.wake()));
    let doors = doors(setup.shards);
    let (mailer, mailbox) = shard_mail(sleeper.clone());
    let (mapped, region) = channel();
    let id = setup.id;
    let parts = (doors.clone(), sleeper.clone());
    let run = move || {
        if let Err(cause) = topology::pin(&[setup.core]) {
            let what = format!("cannot pin shard {} to core {}", setup.id.0, setup.core);
            let _ = mapped.send(Err(JobError::System { what, cause }));
            return;
        }
        let wakes = matches!(setup.driver, Driver::Thread(_));
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
        let (doors, sleeper) = parts;
        let metrics = setup.metrics;
        // Before anybody can look: a job that has started shows the whole pool, and free.
        let usage = pool.usage();
        metrics.pool_total.set(u64::from(usage.total));
        metrics.pool_free.set(u64::from(usage.free));
        let log = match setup.log.map(LogSeed::open).transpose() {
            Ok(log) => log.map(|writer| SharedLog::new(writer, wakes)),
            Err(cause) => {
                let _ = mapped.send(Err(cause.into()));
                return;
            }
        };
        if mapped.send(Ok(region)).is_err() {
            return;
        }
        let reports = Box::new(setup.reports);
        let room = Room { pool, local: log.clone().map(|log| Rc::new(log) as Rc<dyn Any>) };
        let service = log.map(|log| Box::new(log) as Box<dyn Service>);
        let ShardSetup { id, turn, flush, idle, clock, .. } = setup;
        let mut shard = Shard::new(
            ShardParts { id, turn, flush, room, service, doors, sleeper, reports, metrics },
            mailbox,
        );
        // A panic of user code is caught where tasks are run.
        or_abort(|| driver.run(&mut shard, &clock, idle));
    };
    let thread = std::thread::Builder::new()
        .name(format!("tidegate-shard-{}", id.0))
        .spawn(run)
        .map_err(system(format!("cannot start the thread of shard {}", id.0)))?;
    let region = region.recv().expect("the shard's thread answers before it ends")?;
    let handle = ShardHandle { mailer, thread: Some(thread) };
    Ok((handle, ShardLinks { region, doors, sleeper }))
}
