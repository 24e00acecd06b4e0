//! Every key that is said to be used has its effect.
//!
//! Two jobs that differ in one key, and what differs then: a count, a layout or an error, never a time. Keys
//! that other scenarios show: `tidegate.driver` (drivers), `tidegate.record.max-size` (failures),
//! `tidegate.source.strict-utf8` (wordcount), `taskmanager.memory.network.max` (flow), those of checkpoints and
//! restarts (checkpoint_keys), `tidegate.state-recovery.output-beyond` (the file sink's tests); how long a shard
//! spins, `tidegate.idle.spin`, is tested with the drivers of shards.

use super::support::{PATIENCE, Trickle, config, run, until};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidegate::api::Environment;
use tidegate::coordinator::{JobError, RunningJob, SubtaskSnapshot};
use tidegate::operator::Wait;
use tidegate::sink::blackhole::Blackhole;
use tidegate::sink::collect::{Collect, Collected};
use tidegate::source::SourceContext;

/// The keys that this file or another scenario shows to have an effect.
const SHOWN: &[&str] = &[
    "tidegate.shards",
    "tidegate.shard.quantum",
    "tidegate.idle",
    "tidegate.idle.spin",
    "tidegate.driver",
    "tidegate.exchange.flush-to-idle",
    "tidegate.record.max-size",
    "tidegate.pool.overdraft-reserve",
    "tidegate.stall.threshold",
    "tidegate.key-group-hash",
    "tidegate.source.strict-utf8",
    "parallelism.default",
    "execution.buffer-timeout.enabled",
    "execution.buffer-timeout.interval",
    "pipeline.name",
    "pipeline.max-parallelism",
    "pipeline.operator-chaining.enabled",
    "taskmanager.memory.segment-size",
    "taskmanager.memory.network.max",
    "taskmanager.network.memory.buffers-per-channel",
    "taskmanager.network.memory.floating-buffers-per-gate",
    "taskmanager.network.memory.max-buffers-per-channel",
    "taskmanager.network.memory.max-overdraft-buffers-per-gate",
    "taskmanager.numberOfTaskSlots",
    "task.cancellation.timeout",
    "metrics.latency.interval",
    "execution.checkpointing.interval",
    "execution.checkpointing.mode",
    "execution.checkpointing.timeout",
    "execution.checkpointing.min-pause",
    "execution.checkpointing.max-concurrent-checkpoints",
    "execution.checkpointing.tolerable-failed-checkpoints",
    "execution.checkpointing.num-retained",
    "execution.checkpointing.checkpoints-after-tasks-finish",
    "execution.checkpointing.dir",
    "execution.checkpointing.incremental",
    "execution.checkpointing.data-inline-threshold",
    "execution.state-recovery.path",
    "restart-strategy.type",
    "restart-strategy.fixed-delay.attempts",
    "restart-strategy.fixed-delay.delay",
    "restart-strategy.failure-rate.max-failures-per-interval",
    "restart-strategy.failure-rate.failure-rate-interval",
    "restart-strategy.failure-rate.delay",
    "restart-strategy.exponential-delay.initial-backoff",
    "restart-strategy.exponential-delay.max-backoff",
    "restart-strategy.exponential-delay.backoff-multiplier",
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "restart-strategy.exponential-delay.jitter-factor",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    "web.checkpoints.history",
    "tidegate.log.file-size",
    "tidegate.log.backend",
    "tidegate.state-recovery.fresh",
    "tidegate.state-recovery.output-beyond",
];

/// Goal: a key that is marked as used is shown to be; the list above is complete and names no other.
#[test]
fn every_used_key_is_shown_to_have_an_effect() {
    let entries = config(&[]).entries();
    let mut used: Vec<&str> =
        entries.iter().filter(|e| matches!(e.status, "use" | "map")).map(|e| e.key.as_str()).collect();
    let mut shown = SHOWN.to_vec();
    used.sort_unstable();
    shown.sort_unstable();
    assert_eq!(used, shown);
}

/// A keyed count of some thousand numbers.
fn counted(settings: &[&str]) -> Environment {
    let env = Environment::with_config(config(settings));
    env.from_vec("numbers", (0..20_000u64).collect())
        .map(|n| n % 100)
        .key_by::<u64, _>(|n| n)
        .count()
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    env
}

/// The job of [`counted`] while it runs or just after, and its end.
fn laid_out(settings: &[&str]) -> (RunningJob, usize) {
    let job = counted(settings).start("given").unwrap();
    let shards = job.shards().len();
    (job, shards)
}

#[test]
fn shards_parallelism_names_groups_and_chains_are_as_configured() {
    for (settings, shards) in [
        (&["tidegate.shards=3"][..], 3),
        (&["taskmanager.numberOfTaskSlots=2"], 2),
        (&["tidegate.shards=1", "taskmanager.numberOfTaskSlots=2"], 1),
    ] {
        let (job, count) = laid_out(settings);
        assert_eq!(count, shards, "{settings:?}");
        // Where nobody says, a subtask a shard.
        assert!(job.plan().vertices.iter().all(|v| v.parallelism == shards as u32), "{settings:?}");
        job.wait().unwrap();
    }
    let (job, _) =
        laid_out(&["parallelism.default=5", "pipeline.max-parallelism=77", "pipeline.name=counts"]);
    assert!(job.plan().vertices.iter().all(|v| (v.parallelism, v.max_parallelism) == (5, 77)));
    assert_eq!(job.name(), "counts");
    job.wait().unwrap();
    let (job, _) = laid_out(&[]);
    assert_eq!((job.name(), job.plan().vertices.len()), ("given", 2));
    assert!(job.plan().vertices.iter().all(|v| v.max_parallelism == 128));
    job.wait().unwrap();
    let (job, _) = laid_out(&["pipeline.operator-chaining.enabled=false"]);
    assert_eq!(job.plan().vertices.len(), 4, "{}", job.plan().describe());
    job.wait().unwrap();
}

/// Goal: with the quick hash keys are counted alike, and lie in other subtasks than with Flink's.
#[test]
fn key_group_hash_moves_keys() {
    let owners = |settings: &[&str]| {
        let env = Environment::with_config(config(settings));
        let rows = Collected::<(u64, u64)>::default();
        let all = rows.clone();
        env.from_vec("numbers", (0..2_000u64).map(|n| n % 200).collect())
            .key_by::<u64, _>(|n| n)
            .count_at_end()
            .parallelism(4)
            .map(|(key, count)| {
                assert_eq!(count, 10, "key {key}");
                key
            })
            .sink("out", move |info| {
                Ok(Owner { subtask: u64::from(info.subtask), to: Collect::new(all.clone()) })
            });
        run(&env).unwrap();
        let mut rows = std::mem::take(&mut *rows.lock().unwrap());
        rows.sort_unstable();
        assert!(rows.iter().map(|(key, _)| *key).eq(0..200), "each key once");
        rows
    };
    let (flink, fast) = (owners(&[]), owners(&["tidegate.key-group-hash=fast"]));
    assert_eq!(flink, owners(&["tidegate.key-group-hash=flink"]));
    let moved = flink.iter().zip(&fast).filter(|(a, b)| a != b).count();
    assert!(moved > 50, "{moved} of 200 keys are elsewhere");
    assert!((0..4).all(|subtask| fast.iter().any(|(_, of)| *of == subtask)), "all subtasks have keys");
}

/// Writes each key with the subtask that it came to.
struct Owner {
    subtask: u64,
    to: Collect<(u64, u64)>,
}

impl tidegate::sink::Sink for Owner {
    type Item = u64;
    fn write(
        &mut self,
        key: u64,
        at: tidegate::record::Timestamp,
    ) -> Result<(), tidegate::source::SourceError> {
        self.to.write((key, self.subtask), at)
    }
    fn finish(&mut self) -> Result<(), tidegate::source::SourceError> {
        self.to.finish()
    }
}

/// Buffers, hand-overs and records put out by the source of a job.
fn put_out(settings: &[&str]) -> SubtaskSnapshot {
    let env = Environment::with_config(config(
        &[&["tidegate.shards=2", "parallelism.default=1"], settings].concat(),
    ));
    env.from_vec("numbers", (0..20_000u64).collect())
        .rebalance()
        .shard_offset(1)
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    run(&env).unwrap().subtasks[0].clone()
}

/// Goal: 0 hands over after every record, -1 and `enabled=false` never before a buffer is full.
#[test]
fn buffer_timeout_decides_on_hand_overs() {
    let each = put_out(&["execution.buffer-timeout.interval=0"]);
    assert!(each.flushes >= each.records_out, "{each:?}");
    for never in ["execution.buffer-timeout.interval=-1", "execution.buffer-timeout.enabled=false"] {
        let seen = put_out(&[never]);
        assert_eq!((seen.flushes, seen.records_out), (0, 20_000), "{never}: {seen:?}");
    }
}

/// Goal: a record goes out at the end of its turn to a consumer that is idle, or else by the timeout.
#[test]
fn flush_to_idle_does_not_wait_for_the_timeout() {
    let arrives = |settings: &[&str], patience: Duration| {
        let common = ["execution.buffer-timeout.interval=1 h", "tidegate.shards=2", "parallelism.default=1"];
        let env = Environment::with_config(config(&[&common, settings].concat()));
        let seen = Arc::new(AtomicU64::new(0));
        let counted = seen.clone();
        env.source("one", |_: &SourceContext| Ok(Trickle::new(1)))
            .rebalance()
            .map(move |n| {
                counted.fetch_add(1, Ordering::Relaxed);
                n
            })
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("one record").unwrap();
        let arrived = until(patience, || seen.load(Ordering::Relaxed) > 0);
        job.cancel();
        assert!(matches!(job.wait(), Err(JobError::Canceled)));
        arrived
    };
    assert!(arrives(&[], PATIENCE));
    // A test cannot wait for an hour; a fifth of a second is some thousand turns.
    assert!(!arrives(&["tidegate.exchange.flush-to-idle=false"], Duration::from_millis(200)));
}

/// Goal: a shard that spins never parks, one that parks does.
#[test]
fn idle_strategy_decides_on_parking() {
    let parks = |strategy: &str| {
        let env = Environment::with_config(config(&[strategy, "tidegate.shards=1"]));
        env.source("nothing", |_: &SourceContext| Ok(Trickle::new(0)))
            .rebalance()
            .sink("out", |_| Ok(Blackhole::<u64>::new(Arc::default())));
        let job = env.start("idle").unwrap();
        let shard = job.shards()[0].clone();
        // The source asks for another turn each millisecond.
        assert!(until(PATIENCE, || shard.turns.get() > 100));
        let parks = shard.parks.get();
        job.cancel();
        assert!(matches!(job.wait(), Err(JobError::Canceled)));
        parks
    };
    assert_eq!(parks("tidegate.idle=spin"), 0);
    assert!(parks("tidegate.idle=park") > 10);
}

/// Goal: a quantum that is longer gives fewer turns for the same work.
#[test]
fn quantum_decides_on_turns() {
    let turns = |quantum: &str| {
        let settings = [quantum, "tidegate.shards=1", "tidegate.stall.threshold=1 h"];
        let env = Environment::with_config(config(&settings));
        env.from_vec("numbers", (0..300_000u64).collect())
            .map(|n| n + 1)
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("turns").unwrap();
        let shard = job.shards()[0].clone();
        job.wait().unwrap();
        shard.turns.get()
    };
    let (short, long) = (turns("tidegate.shard.quantum=1 us"), turns("tidegate.shard.quantum=100 ms"));
    assert!(short > 3 * long, "{short} turns of a microsecond, {long} of 100 ms");
}

/// A source of kilobytes before a consumer that never takes any, until so many segments are held and so many
/// buffers have arrived, and then a while longer: they must not become more.
fn stuffed(settings: &[&str], held: u64, arrived: u64) {
    let common = [
        "tidegate.shards=2",
        "parallelism.default=1",
        "taskmanager.memory.segment-size=1 kb",
        "execution.buffer-timeout.interval=5 ms",
    ];
    let env = Environment::with_config(config(&[&common, settings].concat()));
    env.from_vec("texts", vec!["x".repeat(1000); 200])
        .rebalance()
        .shard_offset(1)
        .process::<u64, _>(|_, out| Wait::NotYet(out.now_ns() + 1_000_000))
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    let job = env.start("stuffed").unwrap();
    let seen = || {
        let all = job.snapshot();
        (all[0].subpartition_held_max, all[1].input_queue_length)
    };
    assert!(
        until(PATIENCE, || seen() == (held, arrived)),
        "{settings:?}: {:?}, not {:?}",
        seen(),
        (held, arrived)
    );
    assert!(!until(Duration::from_millis(50), || seen() != (held, arrived)), "{settings:?}: {:?}", seen());
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}

/// Goal: a consumer that takes nothing is sent exclusive and floating buffers and no more; the producer
/// fills its subpartition up to the cap.
#[test]
fn buffers_on_their_way_are_as_configured() {
    const EXCLUSIVE: &str = "taskmanager.network.memory.buffers-per-channel";
    const FLOATING: &str = "taskmanager.network.memory.floating-buffers-per-gate";
    const CAP: &str = "taskmanager.network.memory.max-buffers-per-channel";
    for (exclusive, floating, cap) in [(2, 8, 10), (1, 0, 10), (3, 1, 10), (2, 0, 4), (2, 8, 3)] {
        let keys = [(EXCLUSIVE, exclusive), (FLOATING, floating), (CAP, cap)];
        let settings = keys.map(|(key, value)| format!("{key}={value}"));
        // The last segment is open, and leaves by the timeout.
        let arrived = cap.min(exclusive + floating);
        stuffed(&settings.each_ref().map(String::as_str), cap, arrived);
    }
}

/// Goal: the size of segments decides on how many buffers the same bytes take.
#[test]
fn segment_size_decides_on_buffers() {
    let buffers = |size: &str| put_out(&[size, "execution.buffer-timeout.interval=-1"]).buffers_out;
    // 160,000 bytes of numbers.
    assert_eq!(buffers("taskmanager.memory.segment-size=32 kb"), 5);
    assert_eq!(buffers("taskmanager.memory.segment-size=1 kb"), 157);
}

/// Goal: a record whose output is far more than the pool holds takes as much overdraft as is configured, and the
/// shard's reserve bounds it.
#[test]
fn overdraft_is_as_configured() {
    const OVERDRAFT: &str = "taskmanager.network.memory.max-overdraft-buffers-per-gate";
    const RESERVE: &str = "tidegate.pool.overdraft-reserve";
    for (overdraft, reserve, expected) in [(20, 64, 20), (5, 64, 5), (0, 64, 0), (20, 3, 3)] {
        let settings = [
            format!("{OVERDRAFT}={overdraft}"),
            format!("{RESERVE}={reserve}"),
            "taskmanager.memory.segment-size=1 kb".to_string(),
            "tidegate.shards=2".to_string(),
            "parallelism.default=1".to_string(),
        ];
        let env = Environment::with_config(config(&settings.each_ref().map(String::as_str)));
        env.from_vec("seed", vec![0u64])
            .flat_map::<String, _>(|_, out| (0..200).for_each(|_| out.emit(&"y".repeat(1000))))
            .rebalance()
            .shard_offset(1)
            .process::<u64, _>(|_, out| Wait::NotYet(out.now_ns() + 1_000_000))
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("overdraft").unwrap();
        assert!(until(PATIENCE, || job.snapshot()[0].overflow_bytes > 0));
        let source = &job.snapshot()[0];
        assert_eq!(job.plan().memory[0].overdraft, expected, "{settings:?}");
        // Ten segments are the cap of one subpartition, and its pool's size.
        assert_eq!(source.subpartition_held_max, u64::from(10 + expected), "{settings:?}: {source:?}");
        job.cancel();
        assert!(matches!(job.wait(), Err(JobError::Canceled)));
    }
}

/// Goal: latency markers arrive where they are asked for, and only there.
#[test]
fn latency_markers_arrive_if_they_are_asked_for() {
    let latency =
        |settings: &[&str]| run(&counted(settings)).unwrap().subtasks.pop().unwrap().marker_latency_ns;
    assert_eq!(latency(&[]), None);
    // One for each consumer in turn, and at the start the first: with one subtask it is for the only one.
    assert!(latency(&["metrics.latency.interval=1 ms", "parallelism.default=1"]).is_some());
}

/// Goal: a task that holds its shard for longer than the threshold is named in the log.
#[test]
fn stalls_beyond_the_threshold_are_named() {
    let stderr = |threshold: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args([
                "demo",
                "backpressure",
                "--blocking",
                "--sleep",
                "300ms",
                "--seconds",
                "2",
                "--json",
                threshold,
            ])
            .env_remove("TIDEGATE_LOG")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let named = stderr("-Dtidegate.stall.threshold=20ms");
    assert!(named.contains("slow-map") && named.contains("has held shard"), "{named}");
    assert!(!stderr("-Dtidegate.stall.threshold=1h").contains("has held shard"));
}

/// Goal: a job whose user code does not return is given up after the timeout, with an error that names who
/// holds which shard; cancelling needs no answer of any task.
#[test]
fn f29_a_task_that_never_returns_is_named_when_the_job_is_cancelled() {
    let env = Environment::with_config(config(&["task.cancellation.timeout=50 ms", "tidegate.shards=2"]));
    let held = Arc::new(AtomicBool::new(true));
    let (holds, entered) = (held.clone(), Arc::new(AtomicBool::new(false)));
    let enters = entered.clone();
    env.from_vec("numbers", (0..100u64).collect())
        .parallelism(1)
        .rebalance()
        .map(move |n| {
            enters.store(true, Ordering::Release);
            while holds.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            n
        })
        .name("holder")
        .parallelism(1)
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    let job = env.start("held").unwrap();
    assert!(until(PATIENCE, || entered.load(Ordering::Acquire)));
    job.cancel();
    let error = job.wait().unwrap_err();
    held.store(false, Ordering::Release);
    assert!(matches!(error, JobError::Stuck { .. }), "{error}");
    let text = error.to_string();
    for piece in ["holder", "shard 0", "task.cancellation.timeout"] {
        assert!(text.contains(piece), "no {piece:?} in {text}");
    }
}
