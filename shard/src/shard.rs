//! A shard: the tasks of one core, and the turns in which they run.
//!
//! A turn takes the doorbells, delivers mail, fires timers, and then gives each task that can run one
//! quantum. It never waits; it says what the driver may do next: turn again, or sleep, until when.
//!
//! A panic in a task poisons that task only: it is never run again and the job fails with its name. A panic
//! anywhere else is a bug of ours and ends the process.

use crate::account::{ShardMetrics, SubtaskMetrics, TimeState};
use crate::channel::doorbell::{Doorbell, Sleeper};
use crate::channel::ring::{Consumer, Full, Producer, ring};
use crate::config::{FlushInterval, SHARD_MAIL_MAX, TurnConfig};
use crate::coverage::reached;
use crate::mailbox::{Mail, Mailbox, MailboxFull};
use crate::memory::Pool;
use crate::task::{Background, Clock, Port, Progress, Service, Task, TaskFailure, TaskIndex, TurnContext};
use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// Number of a shard, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

/// What the coordinator sends a shard.
pub enum ShardMail {
    /// Set up tasks; done once.
    Deploy(Vec<Deployment>),
    /// Mail for one task.
    Task(TaskIndex, Mail),
    /// Drop all tasks and stop.
    Shutdown,
}

/// What a shard's tasks share, on its thread.
pub struct Room {
    /// Segments.
    pub pool: Pool,
    /// Whatever else the one who set the shard up has put here: the log, for tasks that know it.
    pub local: Option<Rc<dyn Any>>,
}

/// Makes a task on the shard on which it will run.
pub type MakeTask = Box<dyn FnOnce(&Room) -> Result<Box<dyn Task>, TaskFailure> + Send>;

/// A task to set up.
pub struct Deployment {
    /// The task's number on this shard: they are deployed in order.
    pub task: TaskIndex,
    /// Makes it.
    pub make: MakeTask,
    /// Its doorbell slots: number of the doorbell among the shard's, slot, and what rings there.
    pub ports: Vec<(usize, u32, Port)>,
    /// Its counters.
    pub metrics: Arc<SubtaskMetrics>,
}

/// What a shard tells the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All tasks are set up.
    Deployed,
    /// A task has finished.
    Finished(TaskIndex),
    /// A task cannot go on.
    Failed(TaskIndex, TaskFailure),
    /// Answer to [`Mail::Probe`]: how long it has waited, in nanoseconds.
    Probed(TaskIndex, u64),
    /// A task has too much mail: this one was not taken, and may be sent again later.
    Refused(TaskIndex, Mail),
    /// All tasks are dropped.
    Stopped,
}

/// Takes a shard's reports; must not block.
pub trait ReportSink {
    /// Takes a report of `shard`.
    fn report(&self, shard: ShardId, report: Report);
}

/// What the driver may do after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether anything was done; if not, the shard may sleep.
    pub worked: bool,
    /// When the turn began, in nanoseconds.
    pub began_ns: u64,
    /// When the next timer is due, in nanoseconds.
    pub next_timer_ns: Option<u64>,
    /// Whether the shard has stopped for good.
    pub stopped: bool,
}

/// A doorbell that others ring, with the port behind each slot.
struct Inbound {
    door: Arc<Doorbell>,
    slots: Vec<Ports>,
}

/// Who is behind a slot: nearly always one port, which lies here and not behind a pointer; more where there
/// are more ends than slots.
#[derive(Default)]
struct Ports {
    first: Option<(TaskIndex, Port)>,
    more: Vec<(TaskIndex, Port)>,
}

impl Ports {
    fn push(&mut self, port: (TaskIndex, Port)) {
        match self.first {
            None => self.first = Some(port),
            Some(_) => self.more.push(port),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Flush,
    Run,
}

struct Slot {
    task: Option<Box<dyn Task>>,
    metrics: Arc<SubtaskMetrics>,
    mailbox: Mailbox,
    /// Whether it is in the run list.
    runnable: bool,
    /// Whether it is in the list of those with background work.
    in_background: bool,
    flush_armed: bool,
    /// The time of the `Run` timer that counts; earlier ones in the heap are stale.
    run_at_ns: u64,
}

/// The tasks of one core.
pub struct Shard {
    id: ShardId,
    turn: TurnConfig,
    flush: FlushInterval,
    room: Room,
    service: Option<Box<dyn Service>>,
    inbound: Vec<Inbound>,
    mail: Consumer<(u64, ShardMail)>,
    mail_door: usize,
    mail_waits: bool,
    tasks: Vec<Slot>,
    run: VecDeque<u32>,
    /// Tasks with background work, each in turn.
    background: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32, Timer)>>,
    sleeper: Arc<Sleeper>,
    reports: Box<dyn ReportSink>,
    metrics: Arc<ShardMetrics>,
    rung: Vec<(TaskIndex, Port)>,
    stopped: bool,
}

/// The coordinator's end of a shard's mail.
pub struct ShardMailer {
    ring: Producer<(u64, ShardMail)>,
    door: Arc<Doorbell>,
    sleeper: Arc<Sleeper>,
}

impl ShardMailer {
    /// Sends mail at `now_ns`.
    ///
    /// # Errors
    ///
    /// [`Full`] with the mail if the shard has not kept up: try again later.
    pub fn send(&mut self, now_ns: u64, mail: ShardMail) -> Result<(), Full<ShardMail>> {
        self.ring.push((now_ns, mail)).map_err(|Full((_, mail))| Full(mail))?;
        self.door.ring(0, &self.sleeper);
        Ok(())
    }
}

/// How a shard is set up.
pub struct ShardParts {
    /// Its number.
    pub id: ShardId,
    /// How it runs its tasks.
    pub turn: TurnConfig,
    /// When partly filled buffers leave.
    pub flush: FlushInterval,
    /// What its tasks share.
    pub room: Room,
    /// What it does besides its tasks.
    pub service: Option<Box<dyn Service>>,
    /// The doorbells that others ring for it, one for each shard (itself included), then one for other threads.
    pub doors: Vec<Arc<Doorbell>>,
    /// Where it says that it sleeps.
    pub sleeper: Arc<Sleeper>,
    /// Who takes its reports.
    pub reports: Box<dyn ReportSink>,
    /// Its counters.
    pub metrics: Arc<ShardMetrics>,
}

/// Makes the ring through which the coordinator mails a shard: its end, and what [`Shard::new`] takes.
pub fn shard_mail(sleeper: Arc<Sleeper>) -> (ShardMailer, ShardMailbox) {
    let (tx, rx) = ring(SHARD_MAIL_MAX);
    let door = Arc::new(Doorbell::default());
    (ShardMailer { ring: tx, door: door.clone(), sleeper }, ShardMailbox { ring: rx, door })
}

/// The shard's end of its mail.
pub struct ShardMailbox {
    ring: Consumer<(u64, ShardMail)>,
    door: Arc<Doorbell>,
}

/// A step of background work is this part of a quantum.
const BACKGROUND_PART: u64 = 4;

/// Mails of each class that may wait for one task.
const TASK_MAIL_MAX: usize = 64;

impl Shard {
    /// A shard without tasks.
    pub fn new(parts: ShardParts, mail: ShardMailbox) -> Self {
        let ShardParts { id, turn, flush, room, service, doors, sleeper, reports, metrics } = parts;
        let mail_door = doors.len();
        let inbound =
            doors.into_iter().chain([mail.door]).map(|door| Inbound { door, slots: Vec::new() }).collect();
        metrics.pool_total.set(u64::from(room.pool.usage().total));
        Shard {
            id,
            turn,
            flush,
            room,
            service,
            inbound,
            mail: mail.ring,
            mail_door,
            mail_waits: false,
            tasks: Vec::new(),
            run: VecDeque::new(),
            background: VecDeque::new(),
            timers: BinaryHeap::new(),
            sleeper,
            reports,
            metrics,
            rung: Vec::new(),
            stopped: false,
        }
    }

    /// Its number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Its segments.
    pub fn pool(&self) -> &Pool {
        &self.room.pool
    }

    /// Says that nothing was done since `since_ns`, until `now_ns`.
    pub fn was_idle(&self, since_ns: u64, now_ns: u64) {
        self.metrics.idle_ns.add(now_ns - since_ns);
    }

    /// Says that the shard is about to sleep; whether it may. If not, turn again.
    pub fn may_sleep(&self) -> bool {
        self.sleeper.fall_asleep();
        let silent = !self.mail_waits && self.inbound.iter().all(|inbound| inbound.door.is_silent());
        if !silent {
            reached!(RungWhileFallingAsleep);
            self.sleeper.wake_up();
        }
        silent
    }

    /// Says that the shard is awake again, by whatever cause.
    pub fn woke(&self) {
        self.sleeper.wake_up();
        reached!(ParkAndWake);
        self.metrics.parks.add(1);
    }

    /// Runs everything that can run once.
    pub fn turn(&mut self, clock: &dyn Clock) -> Outcome {
        let began_ns = clock.now_ns();
        let mut now_ns = began_ns;
        let mut worked = self.take_bells();
        worked |= self.service.as_mut().is_some_and(|service| service.poll(now_ns));
        worked |= self.take_mail(now_ns);
        worked |= self.fire_timers(now_ns);
        for _ in 0..self.run.len() {
            let Some(index) = self.run.pop_front() else { break };
            self.tasks[index as usize].runnable = false;
            now_ns = self.run_task(index, now_ns, clock);
            worked = true;
            // Mail waits for the quantum of one task, not for those of all.
            if !self.inbound[self.mail_door].door.is_silent() {
                self.take_mail_bell();
                self.take_mail(now_ns);
            }
        }
        worked |= self.run_background(clock);
        self.metrics.turns.add(1);
        if worked {
            self.metrics.pool_free.set(u64::from(self.room.pool.usage().free));
        }
        Outcome { worked, began_ns, next_timer_ns: self.next_timer_ns(), stopped: self.stopped }
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.service.as_ref().and_then(|service| service.deadline_ns());
        [timer, deadline].into_iter().flatten().min()
    }

    /// Gives one task a step of its background work; whether anything was done but to wait.
    fn run_background(&mut self, clock: &dyn Clock) -> bool {
        for _ in 0..self.background.len() {
            let Some(index) = self.background.pop_front() else { break };
            match self.step_background(index, clock) {
                Background::Nothing => return true,
                Background::More => {
                    self.background.push_back(index);
                    return true;
                }
                Background::Waits => self.background.push_back(index),
            }
        }
        // What waits may have given the service something to start.
        let now_ns = clock.now_ns();
        !self.background.is_empty() && self.service.as_mut().is_some_and(|service| service.poll(now_ns))
    }

    fn step_background(&mut self, index: u32, clock: &dyn Clock) -> Background {
        let slot = &mut self.tasks[index as usize];
        slot.in_background = false;
        let Some(task) = &mut slot.task else { return Background::Nothing };
        let began_ns = clock.now_ns();
        self.metrics.running_since_ns.set(began_ns);
        self.metrics.running_task.set(u64::from(index) + 1);
        let until_ns = began_ns + self.turn.quantum_ns / BACKGROUND_PART;
        let mut cx = TurnContext { clock, now_ns: began_ns, until_ns };
        let state = catch_unwind(AssertUnwindSafe(|| task.background(&mut cx)));
        self.metrics.running_task.set(0);
        let now_ns = clock.now_ns();
        self.metrics.background_ns.add(now_ns - began_ns);
        let state = state.unwrap_or_else(|panic| {
            slot.metrics.time.switch(TimeState::Idle, now_ns);
            slot.task = None;
            let failure = failure_of_panic(panic.as_ref());
            self.reports.report(self.id, Report::Failed(TaskIndex(index), failure));
            Background::Nothing
        });
        slot.in_background = state != Background::Nothing;
        state
    }

    fn take_bells(&mut self) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        for (index, inbound) in self.inbound.iter().enumerate() {
            if index != self.mail_door {
                inbound.door.take(|slot| {
                    if let Some(ports) = inbound.slots.get(slot as usize) {
                        rung.extend(ports.first);
                        rung.extend_from_slice(&ports.more);
                    }
                });
            }
        }
        self.take_mail_bell();
        let any = !rung.is_empty();
        for (task, port) in rung.drain(..) {
            let slot = &mut self.tasks[task.0 as usize];
            if let Some(task) = &mut slot.task {
                task.rung(port);
            }
            self.make_runnable(task.0);
        }
        self.rung = rung;
        any
    }

    fn take_mail_bell(&mut self) {
        self.inbound[self.mail_door].door.take(|_| self.mail_waits = true);
    }

    fn take_mail(&mut self, now_ns: u64) -> bool {
        if !self.mail_waits {
            return false;
        }
        self.mail_waits = false;
        self.mail.refresh();
        let mut any = false;
        while let Some((sent_at_ns, mail)) = self.mail.pop() {
            any = true;
            self.metrics.mails.add(1);
            let waited = now_ns.saturating_sub(sent_at_ns);
            self.metrics.mail_wait_max_ns.set(self.metrics.mail_wait_max_ns.get().max(waited));
            match mail {
                ShardMail::Deploy(deployments) => self.deploy(deployments, now_ns),
                ShardMail::Task(index, mail) => {
                    let slot = &mut self.tasks[index.0 as usize];
                    if slot.task.is_none() {
                        continue;
                    }
                    if let Err(MailboxFull(mail)) = slot.mailbox.put(mail) {
                        self.reports.report(self.id, Report::Refused(index, mail));
                    }
                    // It is the next one to run.
                    if slot.runnable {
                        self.run.retain(|waiting| *waiting != index.0);
                    }
                    slot.runnable = true;
                    self.run.push_front(index.0);
                }
                ShardMail::Shutdown => {
                    self.run.clear();
                    for slot in &mut self.tasks {
                        slot.task = None;
                    }
                    self.stopped = true;
                    self.reports.report(self.id, Report::Stopped);
                }
            }
        }
        any
    }

    fn deploy(&mut self, deployments: Vec<Deployment>, now_ns: u64) {
        for Deployment { task: index, make, ports, metrics } in deployments {
            assert_eq!(index.0 as usize, self.tasks.len(), "tasks are deployed in order");
            let own_ports: Vec<Port> = ports.iter().map(|(.., port)| *port).collect();
            for (door, slot, port) in ports {
                let slots = &mut self.inbound[door].slots;
                let slot = (slot % Doorbell::SLOTS) as usize;
                if slots.len() <= slot {
                    slots.resize_with(slot + 1, Ports::default);
                }
                slots[slot].push((index, port));
            }
            let room = &self.room;
            let task = catch_unwind(AssertUnwindSafe(|| make(room)))
                .unwrap_or_else(|panic| Err(failure_of_panic(panic.as_ref())));
            metrics.time.switch(TimeState::Idle, now_ns);
            let task = match task {
                Ok(mut task) => {
                    // Other shards may have run before: what they rang was nobody's port then.
                    for port in own_ports {
                        task.rung(port);
                    }
                    Some(task)
                }
                Err(failure) => {
                    self.reports.report(self.id, Report::Failed(index, failure));
                    None
                }
            };
            self.tasks.push(Slot {
                task,
                metrics,
                mailbox: Mailbox::new(TASK_MAIL_MAX),
                runnable: false,
                in_background: false,
                flush_armed: false,
                run_at_ns: u64::MAX,
            });
            self.make_runnable(index.0);
        }
        self.reports.report(self.id, Report::Deployed);
    }

    fn fire_timers(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(Reverse((at_ns, index, timer))) = self.timers.peek().copied() {
            if at_ns > now_ns {
                break;
            }
            self.timers.pop();
            let slot = &mut self.tasks[index as usize];
            match timer {
                Timer::Flush => {
                    any = true;
                    slot.flush_armed = false;
                    if let Some(task) = &mut slot.task {
                        task.flush();
                    }
                }
                Timer::Run if slot.run_at_ns == at_ns => {
                    any = true;
                    slot.run_at_ns = u64::MAX;
                    self.make_runnable(index);
                }
                // Superseded by an earlier one.
                Timer::Run => {}
            }
        }
        any
    }

    fn make_runnable(&mut self, index: u32) {
        let slot = &mut self.tasks[index as usize];
        if slot.task.is_some() && !slot.runnable {
            slot.runnable = true;
            self.run.push_back(index);
        }
    }

    /// Gives a task its mail and one quantum; returns the time after it.
    fn run_task(&mut self, index: u32, now_ns: u64, clock: &dyn Clock) -> u64 {
        let slot = &mut self.tasks[index as usize];
        let Some(task) = &mut slot.task else { return now_ns };
        self.metrics.running_since_ns.set(now_ns);
        self.metrics.running_task.set(u64::from(index) + 1);
        slot.metrics.turns.add(1);
        let mut cancelled = false;
        let mut cx = TurnContext { clock, now_ns, until_ns: now_ns + self.turn.quantum_ns };
        // The one place where user code may unwind to: the task is dropped and never run again.
        let progress = catch_unwind(AssertUnwindSafe(|| {
            while let Some(mail) = slot.mailbox.take() {
                #[cfg(feature = "sim")]
                if slot.metrics.time.is_back_pressured() {
                    reached!(MailWhileBackPressured);
                }
                match mail {
                    Mail::Cancel => cancelled = true,
                    Mail::Probe { sent_at_ns } => self
                        .reports
                        .report(self.id, Report::Probed(TaskIndex(index), now_ns.saturating_sub(sent_at_ns))),
                    Mail::Stop | Mail::Trigger(_) | Mail::Complete(_) | Mail::Abort(_) => {}
                }
                task.mail(mail, now_ns);
            }
            slot.metrics.time.switch(TimeState::Busy, now_ns);
            task.turn(&mut cx)
        }))
        .unwrap_or_else(|panic| Progress::Failed(failure_of_panic(panic.as_ref())));
        let now_ns = clock.now_ns();
        self.metrics.running_task.set(0);
        let time = &slot.metrics.time;
        if cancelled {
            time.switch(TimeState::Idle, now_ns);
            slot.task = None;
            return now_ns;
        }
        match progress {
            Progress::Ready => {
                slot.runnable = true;
                self.run.push_back(index);
            }
            Progress::Idle => time.switch(TimeState::Idle, now_ns),
            Progress::IdleUntil(at_ns) => {
                time.switch(TimeState::Idle, now_ns);
                Self::arm_run(&mut self.timers, slot, index, at_ns);
            }
            Progress::BackPressured { hard } => {
                let state = if hard { TimeState::HardBackPressured } else { TimeState::SoftBackPressured };
                time.switch(state, now_ns);
            }
            Progress::BusyUntil(at_ns) => Self::arm_run(&mut self.timers, slot, index, at_ns),
            Progress::Finished => {
                time.switch(TimeState::Idle, now_ns);
                slot.task = None;
                self.reports.report(self.id, Report::Finished(TaskIndex(index)));
                return now_ns;
            }
            Progress::Failed(failure) => {
                time.switch(TimeState::Idle, now_ns);
                slot.task = None;
                self.reports.report(self.id, Report::Failed(TaskIndex(index), failure));
                return now_ns;
            }
        }
        if !slot.in_background && slot.task.as_ref().is_some_and(|task| task.has_background()) {
            slot.in_background = true;
            self.background.push_back(index);
        }
        if let FlushInterval::After(interval_ns) = self.flush
            && !slot.flush_armed
            && slot.task.as_ref().is_some_and(|task| task.wants_flush())
        {
            slot.flush_armed = true;
            // On a grid, so that a record waits half the interval on average, as under a periodic flusher;
            // only while there is something to flush, so that an idle job sleeps.
            let interval_ns = interval_ns.max(1);
            let at_ns = (now_ns / interval_ns + 1) * interval_ns;
            self.timers.push(Reverse((at_ns, index, Timer::Flush)));
        }
        now_ns
    }

    fn arm_run(timers: &mut BinaryHeap<Reverse<(u64, u32, Timer)>>, slot: &mut Slot, index: u32, at_ns: u64) {
        // A task that is woken for other reasons asks again each time: one timer is enough.
        if slot.run_at_ns != at_ns {
            slot.run_at_ns = at_ns;
            timers.push(Reverse((at_ns, index, Timer::Run)));
        }
    }
}

fn failure_of_panic(panic: &(dyn std::any::Any + Send)) -> TaskFailure {
    let message = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_string());
    TaskFailure { operator: None, cause: format!("panicked: {message}") }
}
