//! Whole shards: the turns, the real driver with its threads and eventfds, and mail.
#![cfg(not(loom))]

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use support::Nobody;
use tidegate_shard::account::{ShardMetrics, SubtaskMetrics};
use tidegate_shard::barrier::Event;
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper};
use tidegate_shard::channel::{IdleWord, channel};
use tidegate_shard::config::{ExchangeConfig, FlushInterval, TurnConfig};
use tidegate_shard::driver::{EventFd, IdleStrategy, MonotonicClock, run};
use tidegate_shard::input::{InputGate, Next};
use tidegate_shard::mailbox::Mail;
use tidegate_shard::memory::{Pool, Region};
use tidegate_shard::output::ResultPartition;
use tidegate_shard::shard::{
    Deployment, Report, ReportSink, Room, Shard, ShardId, ShardMail, ShardMailer, ShardParts, shard_mail,
};
use tidegate_shard::task::{Clock, Port, Progress, Task, TaskFailure, TaskIndex, TurnContext};

/// Sends the numbers below `count`, then the end.
struct Source {
    partition: ResultPartition,
    next: u64,
    count: u64,
    ended: bool,
}

impl Task for Source {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        while self.next < self.count {
            for _ in 0..64 {
                if !self.partition.is_available() {
                    return Progress::BackPressured { hard: self.partition.is_overflowing() };
                }
                if self.next < self.count {
                    let value = self.next.to_le_bytes();
                    self.partition.put_fixed(0, 8, |out| out.copy_from_slice(&value));
                    self.next += 1;
                }
            }
            if cx.clock.now_ns() >= cx.until_ns {
                self.partition.flush_to_idle(true);
                return Progress::Ready;
            }
        }
        if !self.ended {
            self.ended = true;
            self.partition.broadcast_event(&Event::EndOfInput);
        }
        if self.partition.is_drained() { Progress::Finished } else { Progress::BackPressured { hard: false } }
    }

    fn rung(&mut self, port: Port) {
        if let Port::Output { channel, .. } = port {
            self.partition.rung(channel);
        }
    }

    fn mail(&mut self, _: Mail, _: u64) {}

    fn flush(&mut self) {
        self.partition.flush();
    }

    fn wants_flush(&self) -> bool {
        !self.ended
    }
}

/// Checks that the numbers come in order, up to the end.
struct Sink {
    gate: InputGate,
    next: u64,
    count: u64,
}

impl Task for Sink {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        self.gate.set_active();
        loop {
            match self.gate.poll() {
                Next::Empty => {
                    self.gate.publish();
                    self.gate.set_idle();
                    return Progress::Idle;
                }
                Next::Event(_, event) => {
                    assert_eq!((event, self.next), (Event::EndOfInput, self.count));
                    self.gate.publish();
                    return Progress::Finished;
                }
                Next::Data(channel) => {
                    let bytes = self.gate.unread(channel).bytes;
                    for record in bytes.chunks_exact(8) {
                        assert_eq!(record, self.next.to_le_bytes());
                        self.next += 1;
                    }
                    let all = bytes.len();
                    self.gate.consume(channel, all);
                    if cx.clock.now_ns() >= cx.until_ns {
                        self.gate.publish();
                        return Progress::Ready;
                    }
                }
            }
        }
    }

    fn rung(&mut self, port: Port) {
        if let Port::Input { channel, .. } = port {
            self.gate.rung(channel);
        }
    }

    fn mail(&mut self, _: Mail, _: u64) {}

    fn flush(&mut self) {}

    fn wants_flush(&self) -> bool {
        false
    }
}

struct Reports(mpsc::Sender<(ShardId, Report)>);

impl ReportSink for Reports {
    fn report(&self, shard: ShardId, report: Report) {
        // The test may have failed and gone.
        let _ = self.0.send((shard, report));
    }
}

/// Task 0 is a source towards the other shard, task 1 the sink of the other's source.
fn deployments(
    shard: usize,
    config: &ExchangeConfig,
    sender: tidegate_shard::channel::Sender,
    receiver: tidegate_shard::channel::Receiver,
    idle: Arc<IdleWord>,
    count: u64,
) -> Vec<Deployment> {
    let other = 1 - shard;
    let (c, exclusive, floating) = (config.clone(), config.exclusive_per_channel, config.floating_per_gate);
    let source = Deployment {
        task: TaskIndex(0),
        make: Box::new(move |room: &Room| {
            let share = room
                .pool
                .share(c.pool_guaranteed(1), c.pool_wanted(1), c.overdraft_per_partition_max)
                .map_err(|e| TaskFailure { operator: None, cause: e.to_string() })?;
            let partition = ResultPartition::new(&c, share, vec![sender], 8, false);
            Ok(Box::new(Source { partition, next: 0, count, ended: false }))
        }),
        ports: vec![(other, 0, Port::Output { partition: 0, channel: 0 })],
        metrics: Arc::new(SubtaskMetrics::default()),
    };
    let sink = Deployment {
        task: TaskIndex(1),
        make: Box::new(move |_: &Room| {
            let gate = InputGate::new(vec![receiver], exclusive, floating, idle);
            Ok(Box::new(Sink { gate, next: 0, count }))
        }),
        ports: vec![(other, 1, Port::Input { gate: 0, channel: tidegate_shard::input::ChannelIndex(0) })],
        metrics: Arc::new(SubtaskMetrics::default()),
    };
    vec![source, sink]
}

/// Runs two shards that send each other `count` numbers, on threads, until all is delivered.
fn exchange_both_ways(idle: IdleStrategy, count: u64, config: &ExchangeConfig) {
    let clock = MonotonicClock::of_process();
    let events = [EventFd::new().expect("an eventfd"), EventFd::new().expect("an eventfd")];
    let sleepers = [0, 1].map(|s: usize| Arc::new(Sleeper::new(events[s].clone())));
    // doors[to][from]
    let doors: Vec<Vec<Arc<Doorbell>>> =
        (0..2).map(|_| (0..3).map(|_| Arc::new(Doorbell::default())).collect()).collect();
    let regions = [0, 1].map(|_| {
        let segments = config.pool_wanted(1) + config.overdraft_per_partition_max;
        Arc::new(Region::map(segments, config.segment_size_bytes).expect("a small mapping"))
    });
    let idles = [0, 1].map(|_| Arc::new(IdleWord::default()));
    // Slot 0 of a pair is the source's end, slot 1 the sink's.
    let bell = |from: usize, to: usize, slot| Bell::new(doors[to][from].clone(), sleepers[to].clone(), slot);
    let ends = [0, 1].map(|s: usize| {
        channel(config, regions[s].clone(), idles[1 - s].clone(), bell(s, 1 - s, 1), bell(1 - s, s, 0))
    });
    let [(sender0, receiver1), (sender1, receiver0)] = ends;
    let mut parts = [
        deployments(0, config, sender0, receiver0, idles[0].clone(), count),
        deployments(1, config, sender1, receiver1, idles[1].clone(), count),
    ];
    let (tx, reports) = mpsc::channel();
    let mut mailers = Vec::new();
    let threads: Vec<_> = (0..2)
        .map(|s: usize| {
            let (mailer, mailbox) = shard_mail(sleepers[s].clone());
            mailers.push(mailer);
            let (region, sleeper, event) = (regions[s].clone(), sleepers[s].clone(), events[s].clone());
            let (doors, reports, flush) = (doors[s].clone(), Reports(tx.clone()), config.flush);
            let reserve = config.overdraft_reserve_max;
            std::thread::spawn(move || {
                let parts = ShardParts {
                    id: ShardId(s as u32),
                    turn: TurnConfig::default(),
                    flush,
                    room: Room { pool: Pool::new(region, reserve), local: None },
                    service: None,
                    doors,
                    sleeper,
                    reports: Box::new(reports),
                    metrics: Arc::new(ShardMetrics::default()),
                };
                let mut shard = Shard::new(parts, mailbox);
                run(&mut shard, &clock, &event, idle);
                let usage = shard.pool().usage();
                assert_eq!(usage.free, usage.total, "every segment is back");
            })
        })
        .collect();
    // The second is deployed later, so the first one's doorbells ring before there is a task to hear them.
    for s in [0, 1] {
        let mail = ShardMail::Deploy(std::mem::take(&mut parts[s]));
        assert!(mailers[s].send(clock.now_ns(), mail).is_ok());
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut finished = 0;
    while finished < 4 {
        match reports
            .recv_timeout(Duration::from_secs(120))
            .expect("a shard that waits for ever has lost news")
        {
            (_, Report::Finished(_)) => finished += 1,
            (_, Report::Deployed) => {}
            (shard, other) => panic!("{shard:?} reports {other:?} under {idle:?}"),
        }
    }
    for mailer in &mut mailers {
        assert!(mailer.send(clock.now_ns(), ShardMail::Shutdown).is_ok());
    }
    for thread in threads {
        thread.join().expect("the shard's thread does not panic");
    }
}

/// Goal: two shards deliver everything to each other, in order, whatever they do when idle, and end.
#[test]
fn shards_exchange_a_million_records_both_ways_under_every_idle_strategy() {
    for idle in [IdleStrategy::Spin, IdleStrategy::Backoff { spin_ns: 50_000 }, IdleStrategy::Park] {
        exchange_both_ways(idle, 1_000_000, &ExchangeConfig::default());
    }
}

/// Goal: the same where every record is a publication of its own, and where segments hold seven records,
/// so that credit, returns and wake-ups are what there is to do.
#[test]
fn shards_exchange_small_segments_and_single_records() {
    let small = ExchangeConfig { segment_size_bytes: 64, ..Default::default() };
    let single = ExchangeConfig { flush: FlushInterval::EveryRecord, ..small.clone() };
    for config in [small, single] {
        exchange_both_ways(IdleStrategy::Park, 50_000, &config);
        exchange_both_ways(IdleStrategy::Backoff { spin_ns: 5_000 }, 50_000, &config);
    }
}

/// Time that passes when it is looked at: a microsecond a look.
struct StepClock(Cell<u64>);

impl Clock for StepClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1_000);
        self.0.get()
    }
}

type Script = Rc<RefCell<Vec<(u64, u32)>>>;

/// Uses up every quantum, and sends the mails of a script when their time has come.
struct Hog {
    mailer: Rc<RefCell<ShardMailer>>,
    script: Script,
}

impl Task for Hog {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        loop {
            let now_ns = cx.clock.now_ns();
            let due = self.script.borrow_mut().pop_if(|(at_ns, _)| *at_ns <= now_ns);
            if let Some((_, to)) = due {
                let mail = ShardMail::Task(TaskIndex(to), Mail::Probe { sent_at_ns: now_ns });
                assert!(self.mailer.borrow_mut().send(now_ns, mail).is_ok());
            }
            if now_ns >= cx.until_ns {
                return Progress::Ready;
            }
        }
    }

    fn rung(&mut self, _: Port) {}

    fn mail(&mut self, _: Mail, _: u64) {}

    fn flush(&mut self) {}

    fn wants_flush(&self) -> bool {
        false
    }
}

struct Kept(Arc<Mutex<Vec<Report>>>);

impl ReportSink for Kept {
    fn report(&self, _: ShardId, report: Report) {
        self.0.lock().expect("nobody panics").push(report);
    }
}

/// Goal: mail waits for one quantum at most, also with many tasks that use up all of theirs.
/// Method: a virtual clock, eight hogs, and 200 mails at odd times, to each of them in turn.
#[test]
fn mail_waits_for_one_quantum_however_many_tasks_are_busy() {
    const HOGS: u32 = 8;
    const MAILS: u64 = 200;
    let sleeper = Arc::new(Sleeper::new(Arc::new(Nobody)));
    let (mailer, mailbox) = shard_mail(sleeper.clone());
    let mailer = Rc::new(RefCell::new(mailer));
    let turn = TurnConfig::default();
    let mut times: Vec<_> = (0..MAILS).map(|i| (50_000 + i * 137_000, (i * 5) as u32 % HOGS)).collect();
    times.reverse();
    let script: Script = Rc::new(RefCell::new(times));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let region = Arc::new(Region::map(1, 64).expect("a small mapping"));
    let parts = ShardParts {
        id: ShardId(0),
        turn: turn.clone(),
        flush: FlushInterval::Never,
        room: Room { pool: Pool::new(region, 0), local: None },
        service: None,
        doors: Vec::new(),
        sleeper,
        reports: Box::new(Kept(reports.clone())),
        metrics: Arc::new(ShardMetrics::default()),
    };
    let mut shard = Shard::new(parts, mailbox);
    // What a factory may carry must be Send, which these are not: they wait on this thread.
    thread_local! {
        static HOG: RefCell<Option<(Rc<RefCell<ShardMailer>>, Script)>> = const { RefCell::new(None) };
    }
    HOG.set(Some((mailer.clone(), script.clone())));
    let deploy = (0..HOGS).map(|task| Deployment {
        task: TaskIndex(task),
        make: Box::new(|_: &Room| {
            let (mailer, script) = HOG.with_borrow(|hog| hog.clone()).expect("set above");
            Ok(Box::new(Hog { mailer, script }))
        }),
        ports: Vec::new(),
        metrics: Arc::new(SubtaskMetrics::default()),
    });
    assert!(mailer.borrow_mut().send(0, ShardMail::Deploy(deploy.collect())).is_ok());
    let clock = StepClock(Cell::new(0));
    let probed = || {
        let reports = reports.lock().expect("nobody panics");
        reports.iter().filter_map(|r| if let Report::Probed(_, ns) = r { Some(*ns) } else { None }).collect()
    };
    let mut waits: Vec<u64> = Vec::new();
    for _ in 0..1_000 {
        assert!(shard.turn(&clock).worked);
        waits = probed();
    }
    assert_eq!(waits.len() as u64, MAILS);
    let longest = waits.iter().max().expect("there are some");
    // The looks at the clock between two tasks cost a microsecond each.
    assert!(*longest <= turn.quantum_ns + 3_000, "a mail waited for {longest} ns");
}

/// Has a record at the times of a script, and notes how long each waits for the flusher.
struct Waiting {
    at_ns: Vec<u64>,
    since_ns: Option<u64>,
    now_ns: Rc<Cell<u64>>,
    waits: Rc<RefCell<Vec<u64>>>,
}

impl Task for Waiting {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        if self.at_ns.last().is_some_and(|at| *at <= cx.now_ns) {
            self.since_ns = self.at_ns.pop();
        }
        self.at_ns.last().map_or(Progress::Idle, |at| Progress::IdleUntil(*at))
    }

    fn rung(&mut self, _: Port) {}

    fn mail(&mut self, _: Mail, _: u64) {}

    fn flush(&mut self) {
        let since_ns = self.since_ns.take().expect("flushed only when there is something");
        self.waits.borrow_mut().push(self.now_ns.get() - since_ns);
    }

    fn wants_flush(&self) -> bool {
        self.since_ns.is_some()
    }
}

/// Goal: a record that nothing else hands over waits half the buffer timeout on average, never longer than it.
/// Method: a virtual clock, an interval of 100 ms, and 500 records at odd times some 200 ms apart.
#[test]
fn a_record_waits_half_the_buffer_timeout_on_average() {
    const INTERVAL_NS: u64 = 100_000_000;
    const RECORDS: u64 = 500;
    struct Now(Rc<Cell<u64>>);
    impl Clock for Now {
        fn now_ns(&self) -> u64 {
            self.0.get()
        }
    }
    thread_local! {
        static TASK: RefCell<Option<Waiting>> = const { RefCell::new(None) };
    }
    let now_ns = Rc::new(Cell::new(1));
    let waits = Rc::new(RefCell::new(Vec::new()));
    let mut at_ns: Vec<u64> = (1..=RECORDS).map(|i| i * 200_000_000 + i * 7_654_321 % INTERVAL_NS).collect();
    at_ns.reverse();
    TASK.set(Some(Waiting { at_ns, since_ns: None, now_ns: now_ns.clone(), waits: waits.clone() }));
    let sleeper = Arc::new(Sleeper::new(Arc::new(Nobody)));
    let (mut mailer, mailbox) = shard_mail(sleeper.clone());
    let parts = ShardParts {
        id: ShardId(0),
        turn: TurnConfig::default(),
        flush: FlushInterval::After(INTERVAL_NS),
        room: Room {
            pool: Pool::new(Arc::new(Region::map(1, 64).expect("a small mapping")), 0),
            local: None,
        },
        service: None,
        doors: Vec::new(),
        sleeper,
        reports: Box::new(Kept(Arc::default())),
        metrics: Arc::new(ShardMetrics::default()),
    };
    let mut shard = Shard::new(parts, mailbox);
    let deployment = Deployment {
        task: TaskIndex(0),
        make: Box::new(|_: &Room| Ok(Box::new(TASK.take().expect("set above")))),
        ports: Vec::new(),
        metrics: Arc::new(SubtaskMetrics::default()),
    };
    assert!(mailer.send(0, ShardMail::Deploy(vec![deployment])).is_ok());
    let clock = Now(now_ns.clone());
    while waits.borrow().len() < RECORDS as usize {
        let outcome = shard.turn(&clock);
        if !outcome.worked {
            now_ns.set(outcome.next_timer_ns.expect("there is a next record"));
        }
    }
    let waits = waits.borrow();
    assert!(waits.iter().all(|ns| *ns <= INTERVAL_NS));
    let mean = waits.iter().sum::<u64>() / RECORDS;
    assert!((45_000_000..55_000_000).contains(&mean), "{mean} ns");
}
