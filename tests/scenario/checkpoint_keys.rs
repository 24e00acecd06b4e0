//! Every key of checkpoints and restarts that is said to be used has its effect: a count, a file or an error.
//!
//! Two have none that a job shows without a clock or a dice, and are shown by the machines' own tests: the mode
//! `AT_LEAST_ONCE`, whose barriers hold nothing back, and `jitter-factor`.

use super::support::{PATIENCE, config, until};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidegate::api::Environment;
use tidegate::coordinator::checkpoint::{CheckpointStats, CheckpointsReport};
use tidegate::coordinator::failure::FailureReason;
use tidegate::coordinator::{JobError, RunningJob};
use tidegate::operator::{Collector, Wait};
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use tidegate_storage::metadata::{CheckpointMetadata, StateRef};

/// Long enough to see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(200);

/// Emits so many numbers, and then stays without ending.
struct Numbers {
    next: u64,
    count: u64,
}

impl Source for Numbers {
    type Item = u64;

    const REPLAYS: bool = true;

    fn poll<C: Collector<u64>>(
        &mut self,
        out: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        while self.next < self.count {
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            out.emit(self.next);
            self.next += 1;
        }
        Ok(SourcePoll::WaitUntil(out.now_ns() + 1_000_000))
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        state.extend_from_slice(&self.next.to_le_bytes());
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        self.next = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

const OFTEN: &str = "execution.checkpointing.interval=10 ms";
const TWO: &str = "tidegate.shards=2";
const BEAR_ALL: &str = "execution.checkpointing.tolerable-failed-checkpoints=1000000";
const NO_RESTART: &str = "restart-strategy.type=none";

fn environment(settings: &[&str]) -> Environment {
    Environment::with_config(config(&[&[TWO], settings].concat()))
}

/// Counts three thousand keys, and then runs on with nothing to do.
fn counting(settings: &[&str]) -> RunningJob {
    let env = environment(settings);
    env.source("numbers", |_: &SourceContext| Ok(Numbers { next: 0, count: 3_000 }))
        .parallelism(1)
        .key_by::<u64, _>(|n| n)
        .count()
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    env.start("counting").unwrap()
}

/// Takes one record, and is never done with it: a barrier behind it waits for ever.
fn stuck(settings: &[&str]) -> RunningJob {
    let env = environment(&[settings, &[NO_RESTART]].concat());
    env.source("numbers", |_: &SourceContext| Ok(Numbers { next: 0, count: 10 }))
        .parallelism(1)
        .rebalance()
        .process::<u64, _>(|_, out| Wait::NotYet(out.now_ns() + 1_000_000))
        .parallelism(1)
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    env.start("stuck").unwrap()
}

fn cancel(job: RunningJob) {
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}

fn report(job: &RunningJob) -> Arc<CheckpointsReport> {
    job.checkpoints().unwrap_or_else(|| Arc::new(CheckpointsReport::default()))
}

fn completed(job: &RunningJob) -> u64 {
    report(job).counts.completed
}

fn wait_for(job: &RunningJob, count: u64) {
    assert!(until(PATIENCE, || completed(job) >= count), "{:?}", report(job));
}

fn dir(path: &Path) -> String {
    format!("execution.checkpointing.dir={}", path.display())
}

/// The checkpoints in a directory, oldest first.
fn kept(path: &Path) -> Vec<PathBuf> {
    let mut kept: Vec<(u64, PathBuf)> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| {
            let id = path.file_name()?.to_str()?.strip_prefix("chk-")?.parse().ok()?;
            path.join("_metadata").exists().then_some((id, path))
        })
        .collect();
    kept.sort();
    kept.into_iter().map(|(_, path)| path).collect()
}

#[test]
fn interval_decides_on_when() {
    let job = counting(&[OFTEN]);
    wait_for(&job, 3);
    cancel(job);
    let job = counting(&["execution.checkpointing.interval=1 h"]);
    assert!(!until(A_WHILE, || report(&job).counts.total > 0));
    cancel(job);
    let job = counting(&[]);
    assert!(!until(A_WHILE, || job.checkpoints().is_some()), "{:?}", job.checkpoints());
    cancel(job);
}

#[test]
fn min_pause_keeps_the_next_one_away() {
    let job = counting(&[OFTEN, "execution.checkpointing.min-pause=1 h"]);
    wait_for(&job, 1);
    assert!(!until(A_WHILE, || report(&job).counts.total > 1));
    cancel(job);
}

/// Goal: a barrier that does not arrive makes its checkpoint expire at the timeout, and one more than is borne fails
/// the job.
#[test]
fn timeout_and_tolerance_decide_on_failures() {
    const SHORT: &str = "execution.checkpointing.timeout=20 ms";
    let job = stuck(&[OFTEN, SHORT, BEAR_ALL]);
    assert!(until(PATIENCE, || report(&job).counts.failed >= 3));
    let failure = report(&job).latest_failed.clone().unwrap().failure.unwrap();
    assert_eq!(failure.reason, FailureReason::CheckpointExpired, "{}", failure.message);
    cancel(job);
    let job = stuck(&[OFTEN, "execution.checkpointing.timeout=1 h", BEAR_ALL]);
    assert!(!until(A_WHILE, || report(&job).counts.failed > 0));
    cancel(job);
    for tolerable in [0, 2] {
        let tolerance = format!("execution.checkpointing.tolerable-failed-checkpoints={tolerable}");
        let job = stuck(&[OFTEN, SHORT, &tolerance]);
        let error = job.wait().unwrap_err();
        let JobError::Checkpoint(failure) = &error else { panic!("{error}") };
        assert_eq!((failure.consecutive, failure.tolerable), (tolerable + 1, tolerable));
        assert!(error.to_string().contains("Exceeded checkpoint tolerable failure threshold."), "{error}");
    }
}

/// The most checkpoints that were under way at a time, among those remembered that have ended.
fn at_a_time(report: &CheckpointsReport) -> usize {
    let ended: Vec<(u64, u64)> =
        report.history.iter().filter_map(|stats| Some((stats.triggered_at_ms, stats.ended_at_ms?))).collect();
    let beside = |at: u64| ended.iter().filter(|(begun, end)| *begun <= at && *end > at).count();
    ended.iter().map(|(begun, _)| beside(*begun)).max().unwrap_or(0)
}

#[test]
fn as_many_checkpoints_are_under_way_as_configured() {
    for max in [1, 3] {
        let setting = format!("execution.checkpointing.max-concurrent-checkpoints={max}");
        let job = stuck(&[OFTEN, &setting, "execution.checkpointing.timeout=150 ms", BEAR_ALL]);
        assert!(until(PATIENCE, || at_a_time(&report(&job)) == max), "{:?}", report(&job));
        assert!(!until(A_WHILE, || at_a_time(&report(&job)) > max), "{:?}", report(&job));
        cancel(job);
    }
}

#[test]
fn as_many_checkpoints_are_kept_as_configured() {
    for retained in [1, 4] {
        let directory = tempfile::tempdir().unwrap();
        let setting = format!("execution.checkpointing.num-retained={retained}");
        let job = counting(&[OFTEN, &dir(directory.path()), &setting]);
        wait_for(&job, 8);
        cancel(job);
        // One more if the process is ended between publishing the newest and deleting the oldest.
        let count = kept(directory.path()).len();
        assert!((retained..=retained + 1).contains(&count), "{count} of {retained}");
    }
}

#[test]
fn checkpoints_end_with_the_first_task_if_so_configured() {
    let run = |after: &str| {
        let setting = format!("execution.checkpointing.checkpoints-after-tasks-finish={after}");
        let env = environment(&[OFTEN, &setting]);
        let short = env.from_vec("short", vec![1u64]).parallelism(1).rebalance();
        let long = env.source("long", |_: &SourceContext| Ok(Numbers { next: 0, count: 1 })).parallelism(1);
        long.rebalance().union(short).sink("out", |_| Ok(Blackhole::new(Arc::default())));
        env.start("short and long").unwrap()
    };
    let job = run("true");
    wait_for(&job, 20);
    cancel(job);
    let job = run("false");
    let grows = |patience| {
        let before = report(&job).counts.total;
        until(patience, || report(&job).counts.total > before)
    };
    assert!(until(PATIENCE, || !grows(A_WHILE)), "{:?}", report(&job).counts);
    cancel(job);
}

#[test]
fn incremental_checkpoints_write_changes_only() {
    let small = |stats: &CheckpointStats| stats.written_bytes * 4 < stats.state_bytes;
    let latest = |job: &RunningJob| report(job).latest_completed.clone();
    let job = counting(&[OFTEN]);
    assert!(until(PATIENCE, || latest(&job).is_some_and(|stats| stats.state_bytes > 10_000 && small(&stats))));
    cancel(job);
    let job = counting(&[OFTEN, "execution.checkpointing.incremental=false"]);
    assert!(until(PATIENCE, || latest(&job).is_some_and(|stats| stats.state_bytes > 10_000)));
    let since = completed(&job);
    wait_for(&job, since + 5);
    assert!(latest(&job).is_some_and(|stats| !small(&stats)), "{:?}", latest(&job));
    cancel(job);
}

#[test]
fn small_state_is_in_the_metadata() {
    let inline = |threshold: &str| {
        let directory = tempfile::tempdir().unwrap();
        let setting = format!("execution.checkpointing.data-inline-threshold={threshold}");
        let job = counting(&[OFTEN, &dir(directory.path()), &setting]);
        wait_for(&job, 2);
        cancel(job);
        let path = kept(directory.path()).pop().unwrap().join("_metadata");
        let metadata = CheckpointMetadata::decode(&path, &std::fs::read(&path).unwrap()).unwrap();
        let source = metadata.operators.iter().find(|operator| operator.name.contains("numbers")).unwrap();
        let pieces: Vec<&StateRef> = source.subtasks.iter().flat_map(|state| &state.operator).collect();
        assert!(!pieces.is_empty());
        pieces.iter().all(|piece| matches!(piece, StateRef::Inline(_)))
    };
    assert!(inline("20 kb"));
    assert!(!inline("0"));
}

/// Goal: a job goes on from the checkpoint that is named, which need not be the newest.
#[test]
fn the_named_checkpoint_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [OFTEN, &dir(directory.path()), "execution.checkpointing.num-retained=5"];
    let job = counting(&settings);
    wait_for(&job, 5);
    cancel(job);
    let older = kept(directory.path())[1].clone();
    let path = format!("execution.state-recovery.path={}", older.display());
    let job = counting(&[&settings[..], &[&path]].concat());
    wait_for(&job, 1);
    let restored = report(&job).latest_restored.unwrap();
    assert_eq!(format!("chk-{}", restored.id), older.file_name().unwrap().to_str().unwrap());
    cancel(job);
}

/// Goal: a job begins anew where it would go on, if it is told so.
#[test]
fn a_job_begins_anew_if_so_configured() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [OFTEN, &dir(directory.path())];
    for (fresh, restored) in [("true", false), ("false", true), ("true", false)] {
        let fresh = format!("tidegate.state-recovery.fresh={fresh}");
        let job = counting(&[&settings[..], &[&fresh]].concat());
        wait_for(&job, 2);
        assert_eq!(report(&job).latest_restored.is_some(), restored, "{fresh}");
        cancel(job);
    }
}

/// Goal: files of the log have the size that is configured.
#[test]
fn files_of_the_log_are_as_large_as_configured() {
    let largest = |size: &str| {
        let directory = tempfile::tempdir().unwrap();
        let job = counting(&[OFTEN, &dir(directory.path()), &format!("tidegate.log.file-size={size}")]);
        wait_for(&job, 2);
        cancel(job);
        let files = std::fs::read_dir(directory.path().join("log")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).max().unwrap()
    };
    // Some are of the commits' log, whose files are small.
    assert_eq!((largest("4 mb"), largest("16 mb")), (4 << 20, 16 << 20));
}

/// Goal: what writes the log is what is configured; the program says what it is.
#[test]
fn the_backend_of_the_log_is_as_configured() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["demo", "checkpoint", "--seconds", "1", "--json", "-Dtidegate.log.backend=blocking"])
        .env("TIDEGATE_LOG", "info")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("pwrite and fdatasync"), "{said}");
}

#[test]
fn history_is_as_long_as_configured() {
    for (length, kept) in [("0", 0), ("2", 2), ("10", 10)] {
        let job = counting(&[OFTEN, &format!("web.checkpoints.history={length}")]);
        wait_for(&job, 15);
        let report = report(&job);
        let ended =
            report.history.iter().filter(|stats| stats.failure.is_some() || stats.ended_at_ms.is_some());
        assert_eq!(ended.count(), kept);
        cancel(job);
    }
}

/// A job whose source fails 5 ms after each start until it has been started so often. Returns how often it was, how
/// long that took, and the end.
fn failing(settings: &[&str], good: u32) -> (u32, Duration, Result<(), JobError>) {
    struct Failing(bool, Instant);
    impl Source for Failing {
        type Item = u64;
        const REPLAYS: bool = true;
        fn poll<C: Collector<u64>>(
            &mut self,
            out: &mut SourceOutput<'_, u64, C>,
        ) -> Result<SourcePoll, SourceError> {
            match (self.1.elapsed() > Duration::from_millis(5), self.0) {
                (true, true) => Ok(SourcePoll::Done),
                (true, false) => Err("as planned".into()),
                (false, _) => Ok(SourcePoll::WaitUntil(out.now_ns() + 1_000_000)),
            }
        }
    }
    let env = environment(settings);
    let starts = Arc::new(AtomicU32::new(0));
    let counted = starts.clone();
    env.source("failing", move |_: &SourceContext| {
        let start = counted.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Failing(start >= good, Instant::now()))
    })
    .parallelism(1)
    .sink("out", |_| Ok(Blackhole::<u64>::new(Arc::default())));
    let job = env.start("failing").unwrap();
    let since = Instant::now();
    assert!(until(PATIENCE, || job.is_over()), "{} starts", starts.load(Ordering::Relaxed));
    (starts.load(Ordering::Relaxed), since.elapsed(), job.wait().map(drop))
}

const NEVER_GOOD: u32 = u32::MAX;

#[test]
fn without_a_strategy_only_jobs_with_checkpoints_are_restarted() {
    let at_once = "restart-strategy.exponential-delay.initial-backoff=1 ms";
    assert!(matches!(failing(&[], 2), (1, _, Err(JobError::Task { .. }))));
    assert!(matches!(failing(&[OFTEN, at_once], 2), (2, _, Ok(()))));
    assert!(matches!(failing(&[OFTEN, at_once, NO_RESTART], 2), (1, _, Err(JobError::Task { .. }))));
}

#[test]
fn fixed_delay_is_as_configured() {
    let settings = [
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=2",
        "restart-strategy.fixed-delay.delay=30 ms",
    ];
    let (starts, took, end) = failing(&settings, NEVER_GOOD);
    assert!(matches!(end, Err(JobError::NoRestart { .. })), "{end:?}");
    assert!(starts == 3 && took >= Duration::from_millis(60), "{starts} starts in {took:?}");
    assert!(matches!(failing(&settings, 3), (3, _, Ok(()))));
}

#[test]
fn failure_rate_is_as_configured() {
    let run = |interval: &str| {
        let interval = format!("restart-strategy.failure-rate.failure-rate-interval={interval}");
        let settings = [
            "restart-strategy.type=failure-rate",
            "restart-strategy.failure-rate.max-failures-per-interval=2",
            "restart-strategy.failure-rate.delay=20 ms",
            &interval,
        ];
        failing(&settings, 6)
    };
    let (starts, took, end) = run("1 h");
    assert!(matches!(end, Err(JobError::NoRestart { .. })), "{end:?}");
    assert!(starts == 3 && took >= Duration::from_millis(40), "{starts} starts in {took:?}");
    let (starts, took, end) = run("1 ms");
    assert!(
        end.is_ok() && starts == 6 && took >= Duration::from_millis(100),
        "{starts} starts in {took:?}: {end:?}"
    );
}

#[test]
fn exponential_delay_is_as_configured() {
    const STRATEGY: &str = "restart-strategy.type=exponential-delay";
    let key = |name: &str, value: &str| format!("restart-strategy.exponential-delay.{name}={value}");
    let run = |keys: &[(&str, &str)], good| {
        let settings: Vec<String> = keys.iter().map(|(name, value)| key(name, value)).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).chain([STRATEGY]).collect();
        failing(&settings, good)
    };
    let grows = [("initial-backoff", "20 ms"), ("backoff-multiplier", "3"), ("jitter-factor", "0")];
    let twice = ("attempts-before-reset-backoff", "2");
    let (starts, took, end) = run(&[&grows[..], &[twice]].concat(), NEVER_GOOD);
    assert!(matches!(end, Err(JobError::NoRestart { .. })), "{end:?}");
    assert!(starts == 3 && took >= Duration::from_millis(80), "{starts} starts in {took:?}");
    // Without the bound the second delay would be a quarter of an hour.
    let bounded = [("initial-backoff", "1 ms"), ("backoff-multiplier", "1e6"), ("max-backoff", "2 ms")];
    assert!(matches!(run(&bounded, 6), (6, _, Ok(()))));
    // Each attempt lasts for longer than the time after which they are counted anew.
    let anew = [("initial-backoff", "1 ms"), ("reset-backoff-threshold", "1 ms"), twice];
    assert!(matches!(run(&anew, 6), (6, _, Ok(()))));
}
