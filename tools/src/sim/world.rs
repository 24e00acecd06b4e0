//! The world of one run: all shards and the coordinator on one thread, in an order that the seed chooses.
//!
//! What is real: the graph, plan and wiring, every shard with its tasks, the coordinator's state machine.
//! What is not: threads, time, the eventfd. Each step is one of these, where there is a choice:
//!
//! | step | stands for |
//! | --- | --- |
//! | a shard's turn | its thread runs |
//! | falling asleep | its thread looks at its doorbells and blocks, apart from the turn before, so that others may ring in between |
//! | mail is delivered | the coordinator's thread runs |
//! | a report is taken | the same |
//! | a source is woken | a thread that is no shard has news |
//! | time jumps | every thread that could run was slow |
//!
//! A shard that sleeps runs only when it was woken or its timer is due: a lost wake-up is a hang.

use super::clock::{Rng, VirtualClock};
use super::model::{Ledger, Model};
use super::settings::{Interference, Settings};
use super::topology::{self, Topology};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::coordinator::restart::{RestartSettings, RestartStrategy};
use tidegate::coordinator::{JobState, Machine, Order};
use tidegate::graph::plan::{Plan, PlannedSubtask};
use tidegate::subtask::wire::{ShardLinks, doors, wire};
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::channel::doorbell::{Sleeper, Wake};
use tidegate_shard::channel::ring::Full;
use tidegate_shard::mailbox::Mail;
use tidegate_shard::memory::{Pool, Region};
use tidegate_shard::shard::{
    Report, ReportSink, Room, Shard, ShardId, ShardMail, ShardMailer, ShardParts, shard_mail,
};

/// Steps in which every run must be over: about a hundred times what the longest ones take.
const STEPS_MAX: u64 = 4_000_000;

/// Ends a shard's sleep.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<VecDeque<(ShardId, Report)>>>);

impl Inbox {
    fn take(&self) -> Option<(ShardId, Report)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl ReportSink for Inbox {
    fn report(&self, shard: ShardId, report: Report) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((shard, report));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// It turns.
    Awake,
    /// Its last turn found nothing to do: it may turn again or fall asleep.
    Tired,
    /// It sleeps, at most until this time.
    Asleep(Option<u64>),
    /// It is gone.
    Stopped,
}

struct SimShard {
    shard: Shard,
    mailer: ShardMailer,
    mail: VecDeque<ShardMail>,
    flag: Arc<Flag>,
    thread: Thread,
    next_timer_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Shard(usize),
    Mail(usize),
    Report,
    Waker,
}

/// One run.
pub struct World {
    settings: Settings,
    rng: Rng,
    clock: VirtualClock,
    plan: Plan,
    model: Model,
    ledger: Ledger,
    shards: Vec<SimShard>,
    machine: Machine,
    inbox: Inbox,
    metrics: Vec<Arc<SubtaskMetrics>>,
    watermarks: Vec<i64>,
    finished: bool,
    steps: u64,
    /// The shard that is given most turns for now.
    favourite: usize,
    prints: bool,
}

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Hash of every decision, report and record, in order.
    pub trace_hash: u64,
    /// Decisions.
    pub steps: u64,
    /// Records seen by operators and sinks.
    pub records: u64,
}

impl World {
    /// Sets the job of a seed up; with `prints`, every step is printed.
    pub fn new(seed: u64, prints: bool) -> Result<World, String> {
        let mut rng = Rng::new(seed);
        let settings = Settings::of(&mut rng);
        let ledger = Ledger::new();
        let Topology { job, model } = topology::build(&settings, &ledger, rng.fork());
        let plan = plan(&settings, &job.graph)?;
        let clock = VirtualClock::new(rng.fork(), settings.look_max_ns);
        let inbox = Inbox::default();
        let (mut shards, mut links) = (Vec::new(), Vec::new());
        for index in 0..settings.shards {
            let memory = &plan.memory[index as usize];
            let region = Region::map(memory.segments(), plan.exchange.segment_size_bytes);
            let region = Arc::new(region.map_err(|error| error.to_string())?);
            let flag = Arc::<Flag>::default();
            let sleeper = Arc::new(Sleeper::new(flag.clone()));
            let doors = doors(settings.shards);
            let (mailer, mailbox) = shard_mail(sleeper.clone());
            let parts = ShardParts {
                id: ShardId(index),
                turn: settings.turn.clone(),
                flush: plan.exchange.flush,
                room: Room { pool: Pool::new(region.clone(), memory.overdraft), local: None },
                service: None,
                doors: doors.clone(),
                sleeper: sleeper.clone(),
                reports: Box::new(inbox.clone()),
                metrics: Arc::default(),
            };
            let shard = Shard::new(parts, mailbox);
            let (mail, thread) = (VecDeque::new(), Thread::Awake);
            shards.push(SimShard { shard, mailer, mail, flag, thread, next_timer_ns: None });
            links.push(ShardLinks { region, doors, sleeper });
        }
        let metrics: Vec<Arc<SubtaskMetrics>> = plan.subtasks.iter().map(|_| Arc::default()).collect();
        let deployments = wire(&plan, &job.graph, &links, &metrics, None);
        for (shard, deployments) in shards.iter_mut().zip(deployments) {
            shard.mail.push_back(ShardMail::Deploy(deployments));
        }
        let sources = plan
            .subtasks
            .iter()
            .filter(|s| plan.vertices[s.vertex.0 as usize].is_source)
            .map(|s| (s.shard, s.task))
            .collect();
        let none = RestartStrategy::new(RestartSettings::Disabled, 0);
        let machine = Machine::new(shards.len(), plan.subtasks.len(), sources, none);
        tidegate_shard::sync::stale::seed(rng.next() | 1);
        Ok(World {
            watermarks: vec![i64::MIN; plan.subtasks.len()],
            metrics,
            settings,
            rng,
            clock,
            plan,
            model,
            ledger,
            shards,
            machine,
            inbox,
            finished: false,
            steps: 0,
            favourite: 0,
            prints,
        })
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    ///
    /// What was wrong, with the state of all tasks.
    pub fn run(&mut self) -> Result<Summary, String> {
        let ran = self.run_to_end();
        tidegate_shard::sync::stale::seed(0);
        ran.map_err(|wrong| format!("step {}: {wrong}\n{}", self.steps, self.describe()))
    }

    fn run_to_end(&mut self) -> Result<Summary, String> {
        while !self.machine.is_over() {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(format!("the job is not over after {STEPS_MAX} steps"));
            }
            self.interfere();
            if let Some(step) = self.choose() {
                self.take(step)?;
            } else if let Some(at_ns) = self.next_timer_ns() {
                self.clock.jump_to(at_ns);
            } else {
                return Err("every shard sleeps, and nothing will wake one".to_string());
            }
            if let Some(fault) = self.ledger.take_fault() {
                return Err(fault);
            }
        }
        let records = self.ledger.records();
        if let Some((shard, task, failure)) = self.machine.failure() {
            return Err(format!("task {task:?} of {shard:?} failed: {failure:?}"));
        }
        let cancelled = matches!(self.settings.interference, Interference::Cancel(_));
        match self.machine.state() {
            JobState::Finished => self.model.check(&self.ledger.seen(self.model.points()))?,
            JobState::Canceled if cancelled => {}
            state => return Err(format!("the job ended as {state}")),
        }
        Ok(Summary { trace_hash: self.ledger.hash(), steps: self.steps, records })
    }

    /// Sends what comes from outside.
    fn interfere(&mut self) {
        if self.rng.once_in(self.settings.probe_every) {
            let subtask = self.rng.below(self.plan.subtasks.len() as u64) as usize;
            let PlannedSubtask { shard, task, .. } = self.plan.subtasks[subtask];
            if !self.finished {
                let sent_at_ns = self.clock.peek_ns();
                let mail = Mail::Probe { sent_at_ns };
                self.shards[shard.0 as usize].mail.push_back(ShardMail::Task(task, mail));
            }
        }
        let orders = match self.settings.interference {
            Interference::Stop(at) if at == self.steps => self.machine.stop(),
            Interference::Cancel(at) if at == self.steps => self.machine.cancel(),
            _ => return,
        };
        self.carry_out(orders);
    }

    /// Every step that could be next, of which the seed takes one.
    fn choose(&mut self) -> Option<Step> {
        let now_ns = self.clock.peek_ns();
        let mut steps = Vec::with_capacity(16);
        if self.rng.once_in(64) {
            self.favourite = self.rng.below(2 * self.shards.len() as u64) as usize;
        }
        for (index, shard) in self.shards.iter().enumerate() {
            let runs = match shard.thread {
                Thread::Awake | Thread::Tired => true,
                Thread::Asleep(until_ns) => {
                    shard.flag.0.load(Ordering::Relaxed) || until_ns.is_some_and(|at_ns| at_ns <= now_ns)
                }
                Thread::Stopped => false,
            };
            if runs {
                let weight = if index == self.favourite { 12 } else { 2 };
                steps.extend(std::iter::repeat_n(Step::Shard(index), weight));
            }
            if !shard.mail.is_empty() && shard.thread != Thread::Stopped {
                steps.push(Step::Mail(index));
            }
        }
        if !self.inbox.is_empty() {
            steps.push(Step::Report);
        }
        if self.ledger.waiting() > 0 {
            steps.push(Step::Waker);
        }
        // Now and then all are slow, and a timer is due before anybody runs.
        if steps.is_empty() || (self.rng.once_in(50) && self.next_timer_ns().is_some()) {
            return None;
        }
        Some(self.rng.pick(&steps))
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let timers =
            self.shards.iter().filter(|s| s.thread != Thread::Stopped).filter_map(|s| s.next_timer_ns);
        timers.filter(|at_ns| *at_ns > self.clock.peek_ns()).min()
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        self.note(|| format!("{step:?}"));
        match step {
            Step::Shard(index) => self.run_shard(index)?,
            Step::Mail(index) => {
                let shard = &mut self.shards[index];
                self.ledger.trace(0x100 + index as u64);
                if let Some(mail) = shard.mail.pop_front()
                    && let Err(Full(mail)) = shard.mailer.send(self.clock.peek_ns(), mail)
                {
                    shard.mail.push_front(mail);
                }
            }
            Step::Report => {
                if let Some((shard, report)) = self.inbox.take() {
                    self.note(|| format!("  {shard:?} {report:?}"));
                    self.ledger.trace(hash_of(&format!("{shard:?} {report:?}")));
                    let orders = self.machine.report(self.clock.peek_ns(), shard, report);
                    self.carry_out(orders);
                    if self.machine.state() == JobState::Finished && !self.finished {
                        self.finished = true;
                        self.check_memory()?;
                    }
                }
            }
            Step::Waker => {
                let index = self.rng.below(self.ledger.waiting() as u64) as usize;
                self.ledger.trace(0x200 + index as u64);
                self.ledger.take_waker(index).wake();
            }
        }
        Ok(())
    }

    fn run_shard(&mut self, index: usize) -> Result<(), String> {
        let shard = &mut self.shards[index];
        self.ledger.trace(0x300 + index as u64);
        if shard.thread == Thread::Tired && self.rng.once_in(2) {
            let sleeps = shard.shard.may_sleep();
            shard.thread = if sleeps { Thread::Asleep(shard.next_timer_ns) } else { Thread::Awake };
            self.note(|| {
                if sleeps { "  falls asleep" } else { "  was rung while falling asleep" }.to_string()
            });
            return Ok(());
        }
        if matches!(shard.thread, Thread::Asleep(_)) {
            shard.flag.0.store(false, Ordering::Relaxed);
            shard.shard.woke();
        }
        let outcome = shard.shard.turn(&self.clock);
        shard.next_timer_ns = outcome.next_timer_ns;
        shard.thread = match outcome {
            _ if outcome.stopped => Thread::Stopped,
            _ if outcome.worked => Thread::Awake,
            _ => Thread::Tired,
        };
        self.ledger.trace(self.clock.peek_ns());
        self.ledger.trace(outcome.next_timer_ns.unwrap_or(0) << 1 | u64::from(outcome.worked));
        self.note(|| format!("  {outcome:?}"));
        self.check_shard(index)
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Deploy => unreachable!("the strategy says that there is no restart"),
                Order::ShutDown => {
                    self.shards.iter_mut().for_each(|s| s.mail.push_back(ShardMail::Shutdown));
                }
                Order::Mail(shard, task, mail) => {
                    self.shards[shard.0 as usize].mail.push_back(ShardMail::Task(task, mail));
                }
            }
        }
    }

    /// What must hold for the tasks of a shard after each of its turns.
    fn check_shard(&mut self, index: usize) -> Result<(), String> {
        let exchange = &self.plan.exchange;
        let held_max = exchange.buffers_per_subpartition_max + exchange.overdraft_per_partition_max;
        for (number, subtask) in self.plan.subtasks.iter().enumerate() {
            if subtask.shard.0 as usize != index {
                continue;
            }
            let metrics = &self.metrics[number];
            let bounds = [
                ("subpartition_held_max", metrics.subpartition_held_max.get(), u64::from(held_max)),
                ("floating_used", metrics.floating_used.get(), metrics.floating_size.get()),
                ("exclusive_used", metrics.exclusive_used.get(), metrics.exclusive_size.get()),
                ("out_pool_used", metrics.out_pool_used.get(), self.pool_max(subtask)),
            ];
            for (name, value, max) in bounds {
                if value > max {
                    return Err(format!("{name} of {} is {value}, more than {max}", self.name(subtask)));
                }
            }
            if metrics.turns.get() > 0 && metrics.buffers_in.get() > 0 {
                let watermark = metrics.watermark();
                if watermark < self.watermarks[number] {
                    return Err(format!(
                        "the watermark of {} fell from {} to {watermark}",
                        self.name(subtask),
                        self.watermarks[number]
                    ));
                }
                self.watermarks[number] = watermark;
            }
        }
        Ok(())
    }

    /// Most segments that the outputs of a subtask may use together.
    fn pool_max(&self, subtask: &PlannedSubtask) -> u64 {
        let edges = self.plan.edges.iter().filter(|edge| edge.from == subtask.vertex);
        let overdraft = self.plan.exchange.overdraft_per_partition_max;
        edges.map(|edge| u64::from(self.plan.pool_size(subtask, edge) + overdraft)).sum()
    }

    /// When all tasks have finished, every segment is back.
    fn check_memory(&self) -> Result<(), String> {
        for (index, shard) in self.shards.iter().enumerate() {
            let usage = shard.shard.pool().usage();
            if usage.free != usage.total {
                return Err(format!("all tasks have finished, and shard {index} has {usage:?}"));
            }
        }
        Ok(())
    }

    fn name(&self, subtask: &PlannedSubtask) -> String {
        let vertex = &self.plan.vertices[subtask.vertex.0 as usize];
        format!("{} ({}/{})", vertex.name, subtask.subtask + 1, vertex.parallelism)
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.prints {
            println!("{:>7} {:>12} ns  {}", self.steps, self.clock.peek_ns(), text());
        }
    }

    /// The state of everything, for people.
    pub fn describe(&self) -> String {
        let mut text = format!("{:#?}\n{}", self.settings, self.plan.describe());
        for (index, shard) in self.shards.iter().enumerate() {
            let _ = writeln!(
                text,
                "  shard {index}: {:?}, timer {:?}, {:?}, {} mails",
                shard.thread,
                shard.next_timer_ns,
                shard.shard.pool().usage(),
                shard.mail.len()
            );
        }
        for (subtask, metrics) in self.plan.subtasks.iter().zip(&self.metrics) {
            let _ = writeln!(
                text,
                "  {:40} shard {} task {}: in {} records {} buffers {} queued; out {} records {} buffers, \
                 pool {} of {}, {} queued, {} held, {} bytes on the heap; permits {}+{}; {} turns, {:?}",
                self.name(subtask),
                subtask.shard.0,
                subtask.task.0,
                metrics.records_in.get(),
                metrics.buffers_in.get(),
                metrics.input_queue_length.get(),
                metrics.records_out.get(),
                metrics.buffers_out.get(),
                metrics.out_pool_used.get(),
                metrics.out_pool_size.get(),
                metrics.output_queue_length.get(),
                metrics.subpartition_held_max.get(),
                metrics.overflow_bytes.get(),
                metrics.exclusive_used.get(),
                metrics.floating_used.get(),
                metrics.turns.get(),
                metrics.time.read(|| self.clock.peek_ns()).0,
            );
        }
        let _ = write!(text, "  {} sources wait to be woken, {:?}", self.ledger.waiting(), self.machine);
        text
    }
}

fn hash_of(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| super::clock::mix(hash ^ u64::from(byte)))
}

/// The layout of a graph, its pools at their least if the settings say so.
fn plan(settings: &Settings, graph: &tidegate::graph::logical::LogicalGraph) -> Result<Plan, String> {
    let plan = Plan::new(graph, &settings.plan_config(None)).map_err(|error| error.to_string())?;
    if !settings.least_pools {
        return Ok(plan);
    }
    let least = plan.memory.iter().map(|memory| memory.guaranteed).max().unwrap_or(0);
    let bytes = u64::from(least.max(1))
        * u64::from(settings.shards)
        * u64::from(settings.exchange.segment_size_bytes);
    Plan::new(graph, &settings.plan_config(Some(bytes))).map_err(|error| error.to_string())
}
