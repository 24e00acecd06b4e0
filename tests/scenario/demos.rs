//! The demos of the command show the patterns that they are there to show; memory and an idle job stay small.
//!
//! Bounds are wide: other tests and other programs share the cores.

use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate::api::Environment;
use tidegate::coordinator::{JobError, JobState, RunningJob};
use tidegate::operator::{Collector, Output, Wait};
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};

/// Far more than a job takes to start, or a mail to be answered, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

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
    assert!(number(source, BACK_PRESSURED) > 600.0, "{source}");
    let mut work = last_window(&seen, 2, "work");
    work.sort_by(|a, b| number(a, BUSY).total_cmp(&number(b, BUSY)));
    let [fast, slow] = &work[..] else { panic!("two subtasks of work, not {work:?}") };
    assert!(number(fast, IDLE) > 600.0, "{fast}");
    assert!(number(slow, BUSY) > 600.0, "{slow}");
    assert!(number(slow, BACK_PRESSURED) < 100.0, "{slow}");
    // The keys alternate, so both get the same, but for a segment or two of 682 records on the way.
    let lead = number(fast, "numRecordsIn") - number(slow, "numRecordsIn");
    assert!(lead.abs() < 1_500.0, "fast {fast}, slow {slow}");
    // At most one record a millisecond, of a window that a machine in use makes longer; without the slow key
    // it is millions.
    assert!(number(slow, "numRecordsIn") < 6_000.0, "{slow}");
    assert!(seen["bottleneck"].as_str().unwrap().starts_with("work"), "{}", seen["bottleneck"]);
}

#[test]
fn without_a_slow_key_both_subtasks_are_fast() {
    let _alone = alone();
    let seen = demo(&["skew", "--mode", "even", "--seconds", "2", "--window", "1s"]);
    let work = last_window(&seen, 2, "work");
    let records: Vec<f64> = work.iter().map(|s| number(s, "numRecordsIn")).collect();
    // Many times what the slow key would allow; millions, if nobody else wants the cores. Which operator
    // limits the job is not judged: it is whichever shares its core with another program.
    assert!(records.iter().all(|n| *n > 10_000.0), "{work:?}");
    assert!((0.8..=1.25).contains(&(records[0] / records[1])), "{work:?}");
}

#[test]
fn a_fast_subtask_gets_its_bursts_at_the_pace_of_the_slow_one() {
    let _alone = alone();
    let seen = demo(&["skew", "--mode", "burst", "--seconds", "6", "--window", "3s"]);
    let work = last_window(&seen, 2, "work");
    let mut records: Vec<f64> = work.iter().map(|s| number(s, "numRecordsIn")).collect();
    records.sort_by(f64::total_cmp);
    assert!(records[0] < 9_000.0, "about one slow record a millisecond: {work:?}");
    // In the beginning more, while the input of the slow one fills.
    assert!(records[1] / records[0] > 300.0, "{work:?}");
}

#[test]
fn back_pressure_reaches_the_source_and_the_slow_operator_is_named() {
    let _alone = alone();
    let seen = demo(&["backpressure", "--seconds", "4", "--window", "2s"]);
    for source in last_window(&seen, 2, "source") {
        assert!(number(&source, BACK_PRESSURED) > 600.0, "{source}");
        assert!(number(&source, "outPoolUsage") > 0.5, "{source}");
    }
    for slow in last_window(&seen, 2, "slow-map") {
        assert!(number(&slow, BUSY) > 600.0, "{slow}");
        assert!(number(&slow, BACK_PRESSURED) < 100.0, "{slow}");
        assert!(number(&slow, "inPoolUsage") > 0.5, "{slow}");
        // At most one a millisecond of the two seconds, which a machine in use makes longer.
        assert!((100.0..6_000.0).contains(&number(&slow, "numRecordsIn")), "{slow}");
    }
    assert!(seen["bottleneck"].as_str().unwrap().starts_with("slow-map"), "{}", seen["bottleneck"]);
}

/// Takes `pause` for each number: busy without holding the shard, or asleep on it.
fn slow_job(env: &Environment, pause: Duration, blocking: bool) -> RunningJob {
    env.from_vec("numbers", (0..10_000u64).collect())
        .parallelism(1)
        .rebalance()
        .process::<u64, _>(move |n, out| {
            out.emit(n);
            if blocking {
                std::thread::sleep(pause);
                return Wait::Done;
            }
            out.busy_for(pause)
        })
        .parallelism(1)
        .name("slow")
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    env.start("slow").unwrap()
}

/// The subtask of the operator `slow`, and how many records it has taken.
fn slow_subtask(job: &RunningJob) -> (usize, u64) {
    let subtasks = job.snapshot();
    let slow = subtasks.iter().position(|s| s.vertex.starts_with("slow")).unwrap();
    (slow, subtasks[slow].records_in)
}

/// Goal: mail does not wait for an operator that says it is busy.
/// Method: mails one after the other to an operator that takes a second for a record; some dozens are answered
/// between two of its records, however slow the machine is.
#[test]
fn mail_is_answered_while_an_operator_is_busy() {
    let env = Environment::new();
    let job = slow_job(&env, Duration::from_secs(1), false);
    let (slow, mut records) = slow_subtask(&job);
    let (mut answered, since) = (0, Instant::now());
    while answered < 20 {
        assert!(since.elapsed() < PATIENCE, "{answered} mails were answered while {records} were taken");
        job.blocking_probe(slow).expect("the job runs");
        let now = slow_subtask(&job).1;
        answered = if now == records && now > 0 { answered + 1 } else { 0 };
        records = now;
    }
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}

/// Goal: mail waits for user code that blocks, which is why it must not, and for one record of it only.
/// Method: mails one after the other; each is answered between two records, so there is one more record at
/// least for each of them.
#[test]
fn mail_waits_for_one_record_of_code_that_blocks() {
    const MAILS: u64 = 10;
    let env = Environment::new();
    let job = slow_job(&env, Duration::from_millis(20), true);
    let since = Instant::now();
    while slow_subtask(&job).1 == 0 {
        assert!(since.elapsed() < PATIENCE, "no record is taken");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (slow, before) = slow_subtask(&job);
    for _ in 0..MAILS {
        job.blocking_probe(slow).expect("the job runs");
    }
    let taken = slow_subtask(&job).1 - before;
    // The first may come between two records, and what a turn took is booked at its end.
    assert!(taken + 2 >= MAILS, "{MAILS} mails were answered within {taken} records");
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}

/// A number of `/proc/PID/status`, memory in KiB, while the process is there.
fn status_of(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Goal: however much too slow the sink is, memory does not grow.
/// Method: once all threads run and the process no longer grows from one look to the next, its pools are in
/// use; from then on to its end it stays within two megabytes of that.
#[test]
fn memory_is_flat_before_a_sink_that_is_a_hundred_times_too_slow() {
    let _alone = alone();
    let mut child = start(&[
        "demo",
        "backpressure",
        "--sleep",
        "10ms",
        "--seconds",
        "6",
        "--window",
        "1s",
        "--shards",
        "2",
        "--json",
    ]);
    let (mut early, mut still, mut later_looks) = (0, 0, 0);
    let mut late = 0;
    while child.try_wait().unwrap().is_none() {
        // Between two looks it may have ended.
        let of_child = |field| status_of(child.id(), field);
        let (Some(now), Some(threads)) = (of_child("VmRSS:"), of_child("Threads:")) else { break };
        if still < 8 {
            // The first, two shards, and the coordinator, which comes last.
            still = if threads >= 4 && now.abs_diff(early) < 256 { still + 1 } else { 0 };
            early = now;
        } else {
            later_looks += 1;
            late = now.max(late);
            assert!(late <= early + 2048, "grew from {early} to {late} KiB");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("resident: {early} KiB early, {late} KiB at most in {later_looks} looks after");
    assert!(later_looks > 0, "it never stood still");
    let seen = finish(child);
    assert!(number(&last_window(&seen, 6, "source")[0], BACK_PRESSURED) > 600.0);
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

/// Set in the process that runs the idle job, to the file that it makes when the job runs.
const IDLE_CHILD: &str = "TIDEGATE_TEST_IDLE_CHILD";

/// Goal: a job without input leaves the cores alone, with the default idle strategy.
/// Method: this test starts itself once more, as a process that does nothing else, and reads what time the
/// kernel has booked for that once the job runs.
#[test]
fn an_idle_job_takes_next_to_nothing_of_a_core() {
    if let Some(running) = std::env::var_os(IDLE_CHILD) {
        let env = Environment::new();
        env.source("silent", |_: &SourceContext| Ok(Silent))
            .key_by::<u64, _>(|n| n)
            .count()
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("idle").unwrap();
        while job.state() != JobState::Running {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(running, "").unwrap();
        // Until it is killed.
        let _ = job.wait();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let running = dir.path().join("running");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenario::demos::an_idle_job_takes_next_to_nothing_of_a_core"])
        .env(IDLE_CHILD, &running)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // SAFETY: asks for a constant of the system and touches no memory.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let cpu_s = |pid: u32| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // Behind the name in brackets; user and system time are fields 14 and 15 of all.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / ticks_per_s
    };
    let since = Instant::now();
    while !running.exists() {
        assert!(since.elapsed() < PATIENCE, "the job does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (before, since) = (cpu_s(child.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let share = (cpu_s(child.id()) - before) / since.elapsed().as_secs_f64();
    child.kill().unwrap();
    child.wait().unwrap();
    eprintln!("an idle job takes {:.2} % of a core", share * 100.0);
    assert!(share < 0.10, "{:.1} % of a core", share * 100.0);
}
