//! The demos of the command show the patterns that they are there to show; memory and an idle job stay small.
//!
//! Bounds are wide: other tests and other programs share the cores.

use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate::api::Environment;
use tidegate::coordinator::JobError;
use tidegate::operator::{Collector, Output};
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};

/// How long a shard's thread may wait for a core.
const PATIENCE: Duration = Duration::from_secs(30);

/// One demo at a time: each wants the cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a demo and returns its object.
fn demo(arguments: &[&str]) -> Value {
    finish(start(&[&["demo"], arguments, &["--json"]].concat()))
}

fn finish(mut child: Child) -> Value {
    let (mut out, mut errors) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn number(subtask: &Value, field: &str) -> f64 {
    subtask[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {subtask}"))
}

const IDLE: &str = "idleTimeMsPerSecond";
const BUSY: &str = "busyTimeMsPerSecond";
const BACK_PRESSURED: &str = "backPressuredTimeMsPerSecond";

/// The subtasks of a vertex in the last window, having checked what holds in all of them.
fn last_window(seen: &Value, windows: usize, vertex: &str) -> Vec<Value> {
    let all = seen["windows"].as_array().unwrap();
    assert_eq!(all.len(), windows);
    for window in all {
        for subtask in window["subtasks"].as_array().unwrap() {
            let sum = number(subtask, IDLE) + number(subtask, BUSY) + number(subtask, BACK_PRESSURED);
            assert!(
                (980.0..=1020.0).contains(&sum),
                "t = {}: shares sum up to {sum}: {subtask}",
                window["t_s"]
            );
        }
    }
    let subtasks = all[windows - 1]["subtasks"].as_array().unwrap();
    let of_vertex: Vec<Value> =
        subtasks.iter().filter(|s| s["vertex"].as_str().unwrap().starts_with(vertex)).cloned().collect();
    assert!(!of_vertex.is_empty(), "no {vertex} in {seen}");
    of_vertex
}

#[test]
fn a_slow_subtask_takes_its_pace_to_a_fast_one() {
    let _alone = alone();
    let seen = demo(&["skew", "--seconds", "4", "--window", "2s"]);
    let source = &last_window(&seen, 2, "source")[0];
    assert!(number(source, BACK_PRESSURED) > 800.0, "{source}");
    let mut work = last_window(&seen, 2, "work");
    work.sort_by(|a, b| number(a, BUSY).total_cmp(&number(b, BUSY)));
    let [fast, slow] = &work[..] else { panic!("two subtasks of work, not {work:?}") };
    assert!(number(fast, IDLE) > 800.0, "{fast}");
    assert!(number(slow, BUSY) > 800.0, "{slow}");
    assert!(number(slow, BACK_PRESSURED) < 50.0, "{slow}");
    // The keys alternate, so both get the same, but for a segment or two of 682 records on the way.
    let lead = number(fast, "numRecordsIn") - number(slow, "numRecordsIn");
    assert!(lead.abs() < 1_500.0, "fast {fast}, slow {slow}");
    assert!(number(slow, "numRecordsIn") < 2_100.0, "at most one record a millisecond: {slow}");
    assert!(seen["bottleneck"].as_str().unwrap().starts_with("work"), "{}", seen["bottleneck"]);
}

#[test]
fn without_a_slow_key_both_subtasks_are_fast() {
    let _alone = alone();
    let seen = demo(&["skew", "--mode", "even", "--seconds", "2", "--window", "1s"]);
    let work = last_window(&seen, 2, "work");
    let records: Vec<f64> = work.iter().map(|s| number(s, "numRecordsIn")).collect();
    // Twice what the slow key would allow; millions, if nobody else wants the cores.
    assert!(records.iter().all(|n| *n > 2_000.0), "{work:?}");
    assert!(!seen["bottleneck"].as_str().unwrap_or("").starts_with("work"), "{}", seen["bottleneck"]);
    assert!((0.8..=1.25).contains(&(records[0] / records[1])), "{work:?}");
}

#[test]
fn a_fast_subtask_gets_its_bursts_at_the_pace_of_the_slow_one() {
    let _alone = alone();
    let seen = demo(&["skew", "--mode", "burst", "--seconds", "6", "--window", "3s"]);
    let work = last_window(&seen, 2, "work");
    let mut records: Vec<f64> = work.iter().map(|s| number(s, "numRecordsIn")).collect();
    records.sort_by(f64::total_cmp);
    assert!(records[0] < 3_100.0, "at most one slow record a millisecond: {work:?}");
    // In the beginning more, while the input of the slow one fills.
    assert!(records[1] / records[0] > 300.0, "{work:?}");
}

#[test]
fn back_pressure_reaches_the_source_and_the_slow_operator_is_named() {
    let _alone = alone();
    let seen = demo(&["backpressure", "--seconds", "4", "--window", "2s"]);
    for source in last_window(&seen, 2, "source") {
        assert!(number(&source, BACK_PRESSURED) > 800.0, "{source}");
        assert!(number(&source, "outPoolUsage") > 0.8, "{source}");
    }
    for slow in last_window(&seen, 2, "slow-map") {
        assert!(number(&slow, BUSY) > 800.0, "{slow}");
        assert!(number(&slow, BACK_PRESSURED) < 50.0, "{slow}");
        assert!(number(&slow, "inPoolUsage") > 0.7, "{slow}");
        assert!((200.0..2_100.0).contains(&number(&slow, "numRecordsIn")), "{slow}");
    }
    assert!(seen["bottleneck"].as_str().unwrap().starts_with("slow-map"), "{}", seen["bottleneck"]);
}

/// Goal: user code that blocks is seen in how long mail waits, and code that says it is busy is not.
#[test]
fn mail_waits_for_code_that_blocks_and_not_for_code_that_is_busy() {
    let _alone = alone();
    let waits = |arguments: &[&str]| {
        let common = ["backpressure", "--seconds", "2", "--window", "100ms", "--sleep", "60ms"];
        let seen = demo(&[&common, arguments].concat());
        let windows = seen["windows"].as_array().unwrap().clone();
        let waits = windows.iter().flat_map(|w| w["mailWaitMs"].as_array().unwrap());
        let mut waits: Vec<f64> = waits.map(|ms| ms.as_f64().unwrap()).collect();
        waits.sort_by(f64::total_cmp);
        waits
    };
    // How long a mail waits before blocking code depends on when in its sleep it comes.
    let (blocking, busy) = (waits(&["--blocking"]), waits(&[]));
    let (blocking, busy) = (blocking[blocking.len() - 1], busy[busy.len() / 2]);
    eprintln!("a mail waited up to {blocking} ms for code that blocks, {busy} ms for code that is busy");
    assert!(blocking > 8.0, "mail waited {blocking} ms, before code that sleeps for 60");
    // On a machine that others use a mail may wait for a core, but not for the operator.
    assert!(busy < blocking / 2.0, "mail waited {busy} ms, and {blocking} ms where code blocks");
}

/// A value of `/proc/PID/status` in KiB.
fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Goal: however much too slow the sink is, memory does not grow.
#[test]
fn memory_is_flat_before_a_sink_that_is_a_hundred_times_too_slow() {
    let _alone = alone();
    let child =
        start(&["demo", "backpressure", "--sleep", "10ms", "--seconds", "5", "--window", "1s", "--json"]);
    std::thread::sleep(Duration::from_millis(1500));
    let early = memory_kib(child.id(), "VmRSS:");
    std::thread::sleep(Duration::from_millis(3000));
    let (late, most) = (memory_kib(child.id(), "VmRSS:"), memory_kib(child.id(), "VmHWM:"));
    eprintln!("resident: {early} KiB early, {late} KiB late, {most} KiB at most");
    assert!(late <= early + 1024, "grew from {early} to {late} KiB");
    assert!(most <= early + 2048, "{most} KiB at most, after {early}");
    let seen = finish(child);
    assert!(number(&last_window(&seen, 5, "source")[0], BACK_PRESSURED) > 900.0);
}

/// Goal: what is in use never exceeds what the plan prints at the start.
#[test]
fn pools_stay_within_the_arithmetic_of_the_plan() {
    let env = Environment::new();
    let generator = GeneratorPlan::new(GeneratorOptions {
        payload_bytes: 1000,
        keys: KeyDistribution::Uniform { keys: 1 << 20 },
        ..GeneratorOptions::default()
    })
    .unwrap();
    env.source("source", move |cx: &SourceContext| Ok(generator.payloads(cx)))
        .key_by::<u64, _>(|(key, _)| key)
        .process::<u64, u64, _, _>("slow", |_, _, out: &mut Output<'_, u64>| {
            out.busy_for(Duration::from_millis(10))
        })
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    let job = env.start("slow sink").unwrap();
    let printed = job.plan().describe();
    let mut used_most = 0;
    while job.elapsed() < Duration::from_secs(1) || (used_most == 0 && job.elapsed() < PATIENCE) {
        for (shard, memory) in job.shards().iter().zip(&job.plan().memory) {
            if shard.turns.get() < 2 {
                // Its thread has not got a core yet, so nothing is known of its pool.
                continue;
            }
            let total = shard.pool_total.get();
            assert_eq!(total, u64::from(memory.segments()), "{printed}");
            let used = total - shard.pool_free.get();
            // A record that fits in a segment is only begun while there is one to go on in: no overdraft.
            assert!(used <= u64::from(memory.wanted), "{used} segments in use, and the plan says {printed}");
            used_most = used_most.max(used);
        }
        for subtask in job.snapshot() {
            assert!(subtask.out_pool_usage <= 1.0, "records of a kilobyte need no overdraft: {subtask:?}");
            assert!(subtask.in_pool_usage <= 1.0, "{subtask:?}");
            assert_eq!(subtask.overflow_bytes, 0, "{subtask:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(used_most > 0, "the pool was in use");
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}

/// Waits to be woken, for ever.
struct Silent;

impl Source for Silent {
    type Item = u64;
    fn poll<C: Collector<u64>>(
        &mut self,
        _: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        Ok(SourcePoll::Wait)
    }
}

/// Set in the process that runs the idle job.
const IDLE_CHILD: &str = "TIDEGATE_TEST_IDLE_CHILD";

/// Goal: a job without input leaves the cores alone, with the default idle strategy.
/// Method: this test starts itself once more, as a process that does nothing else, and reads what time the
/// kernel has booked for that.
#[test]
fn an_idle_job_takes_next_to_nothing_of_a_core() {
    if std::env::var_os(IDLE_CHILD).is_some() {
        let env = Environment::new();
        env.source("silent", |_: &SourceContext| Ok(Silent))
            .key_by::<u64, _>(|n| n)
            .count()
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("idle").unwrap();
        std::thread::sleep(Duration::from_secs(20));
        job.cancel();
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenario::demos::an_idle_job_takes_next_to_nothing_of_a_core"])
        .env(IDLE_CHILD, "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // SAFETY: asks for a constant of the system and touches no memory.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let ticks = |pid: u32| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // Behind the name in brackets; user and system time are fields 14 and 15 of all.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(700));
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_secs(2));
    let after = ticks(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    let share = (after - before) / ticks_per_s / 2.0;
    eprintln!("an idle job takes {:.2} % of a core", share * 100.0);
    assert!(share < 0.10, "{:.1} % of a core", share * 100.0);
}
