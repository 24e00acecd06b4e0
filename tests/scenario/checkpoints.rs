//! Whole jobs on real threads that fail, are restarted, and go on from their checkpoints.

use super::support::{PATIENCE, config, run, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidegate::api::Environment;
use tidegate::coordinator::{JobError, JobState};
use tidegate::operator::{Collector, Output};
use tidegate::sink::collect::{Collect, Collected};
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};

/// Emits every `parallelism`-th number, some and then a pause, so that checkpoints fall in between.
struct Paced {
    next: u64,
    step: u64,
    end: u64,
    /// Counts the notices of complete checkpoints, of all subtasks.
    notices: Arc<AtomicU64>,
}

impl Paced {
    fn new(cx: &SourceContext, end: u64, notices: &Arc<AtomicU64>) -> Paced {
        let (next, step) = (u64::from(cx.subtask), u64::from(cx.parallelism));
        Paced { next, step, end, notices: notices.clone() }
    }
}

impl Source for Paced {
    type Item = u64;

    const REPLAYS: bool = true;

    fn poll<C: Collector<u64>>(
        &mut self,
        out: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        let pause = self.next + 200 * self.step;
        while self.next < self.end.min(pause) {
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            out.emit(self.next);
            self.next += self.step;
        }
        Ok(if self.next >= self.end {
            SourcePoll::Done
        } else {
            SourcePoll::WaitUntil(out.now_ns() + 500_000)
        })
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        state.extend_from_slice(&self.next.to_le_bytes());
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        self.next = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }

    fn complete(&mut self, _: u64) {
        self.notices.fetch_add(1, Ordering::Relaxed);
    }
}

const KEYS: u64 = 1_000;

/// Counts `0 .. end` by key and collects the counts at the end; `check` sees each number that is counted, and how
/// many notices of complete checkpoints the sources have had.
fn counting(
    settings: &[&str],
    end: u64,
    rows: &Collected<(u64, u64)>,
    check: impl Fn(u64, u64) + Clone + Send + Sync + 'static,
) -> Environment {
    let env = Environment::with_config(config(settings));
    let rows = rows.clone();
    let notices = Arc::<AtomicU64>::default();
    let noticed = notices.clone();
    env.source("numbers", move |cx: &SourceContext| Ok(Paced::new(cx, end, &noticed)))
        .parallelism(2)
        .map(move |n| {
            check(n, notices.load(Ordering::Relaxed));
            n
        })
        .key_by::<u64, _>(|n| n % KEYS)
        .process_with_end::<u64, (u64, u64), _, _, _>(
            "count",
            |_, count, _: &mut Output<'_, (u64, u64)>| *count += 1,
            |key, count, out: &mut Output<'_, (u64, u64)>| out.emit((key, *count)),
        )
        .parallelism(2)
        .sink("rows", move |_| Ok(Collect::new(rows.clone())));
    env
}

fn check_counts(rows: &Collected<(u64, u64)>, end: u64) {
    let rows = rows.lock().unwrap();
    let counts: BTreeMap<u64, u64> = rows.iter().copied().collect();
    assert_eq!(counts.len(), rows.len(), "a key was emitted twice");
    let expected: BTreeMap<u64, u64> =
        (0..KEYS.min(end)).map(|key| (key, (end - key).div_ceil(KEYS))).collect();
    let wrong: Vec<_> =
        counts.iter().filter(|(key, count)| expected.get(key) != Some(count)).take(5).collect();
    assert_eq!(wrong, [] as [(&u64, &u64); 0], "of {} keys", counts.len());
    assert_eq!(counts.len(), expected.len());
}

fn dir(path: &Path) -> String {
    format!("execution.checkpointing.dir={}", path.display())
}

const OFTEN: &str = "execution.checkpointing.interval=10 ms";
const RESTARTS: &str = "restart-strategy.type=fixed-delay";
const ATTEMPTS: &str = "restart-strategy.fixed-delay.attempts=10";
const AT_ONCE: &str = "restart-strategy.fixed-delay.delay=1 ms";
const TWO: &str = "tidegate.shards=2";
/// Quick to make, so that the first checkpoint does not wait for its file longer than the job lasts.
const FILES: &str = "tidegate.log.file-size=256 kb";

/// Goal: a job that fails three times, each time after a checkpoint, counts every record once.
#[test]
fn a_job_that_fails_goes_on_from_its_newest_checkpoint() {
    const END: u64 = 600_000;
    let directory = tempfile::tempdir().unwrap();
    let rows = Collected::default();
    let failures = Arc::new(Mutex::new((0, 0)));
    let env =
        counting(&[&dir(directory.path()), OFTEN, FILES, RESTARTS, ATTEMPTS, AT_ONCE, TWO], END, &rows, {
            move |n, notices| {
                // One subtask's numbers, or two failures could fall into one attempt.
                if n % 2 == 1 && n % 1_000 == 1 {
                    let mut failures = failures.lock().unwrap();
                    let (count, seen) = *failures;
                    if count < 3 && notices >= seen + 2 {
                        *failures = (count + 1, notices);
                        drop(failures);
                        panic!("as planned, at {n}");
                    }
                }
            }
        });
    let summary = run(&env).unwrap();
    assert_eq!(summary.restarts, 3);
    let checkpoints = summary.checkpoints.unwrap();
    assert!(checkpoints.counts.completed >= 4, "{:?}", checkpoints.counts);
    assert_eq!(checkpoints.counts.restored, 3, "{:?}", checkpoints.counts);
    check_counts(&rows, END);
}

/// Goal: a job that was cancelled goes on where its last checkpoint was when it is started on the same directory.
/// Method: cancel it again and again until it comes to its end.
#[test]
fn a_job_that_is_started_again_goes_on_from_its_directory() {
    const END: u64 = 1_000_000;
    /// It is interrupted so often, and long before its end: the sink of this test shows rows when they come.
    const STARTS: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let rows = Collected::default();
    let seen = Arc::new(AtomicU64::new(0));
    for start in 1.. {
        let counted = seen.clone();
        let env = counting(&[&dir(directory.path()), OFTEN, FILES, TWO], END, &rows, move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let job = env.start("resumed").unwrap();
        let begun = seen.load(Ordering::Relaxed);
        let goes_on = until(PATIENCE, || {
            let completed = job.checkpoints().map_or(0, |report| report.counts.completed);
            job.is_over()
                || (start < STARTS && completed >= 2 && seen.load(Ordering::Relaxed) > begun + 8_000)
        });
        let report = || job.checkpoints().map(|report| (report.counts, report.history.last().cloned()));
        assert!(goes_on, "start {start}, {}: {:#?} {:#?}", job.state(), report(), job.snapshot());
        if start < STARTS {
            job.cancel();
        }
        match job.wait() {
            Ok(summary) => {
                assert_eq!(start, STARTS, "it was not interrupted");
                assert!(summary.checkpoints.unwrap().counts.restored == 1);
                break;
            }
            Err(JobError::Canceled) => rows.lock().unwrap().clear(),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(seen.load(Ordering::Relaxed) > END, "something was counted again");
    check_counts(&rows, END);
}

/// Goal: without a restart the first failure ends the job, and with one that is used up the last does, which says so.
#[test]
fn restarts_are_used_up() {
    let fails = |settings: &[&str]| {
        let rows = Collected::default();
        let env = counting(settings, 10_000, &rows, |n, _| assert_ne!(n, 5_000, "as planned"));
        run(&env).unwrap_err()
    };
    let error = fails(&[OFTEN, TWO, "restart-strategy.type=disable"]);
    assert!(matches!(error, JobError::Task { .. }), "{error}");
    let error = fails(&[OFTEN, TWO, RESTARTS, "restart-strategy.fixed-delay.attempts=2", AT_ONCE]);
    assert!(matches!(error, JobError::NoRestart { .. }), "{error}");
    assert!(error.to_string().contains("as planned"), "{error}");
}

/// Goal: a checkpoint can be asked for, and a job without an interval takes those only, and the last one.
#[test]
fn a_checkpoint_can_be_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let rows = Collected::default();
    let env = counting(&[&dir(directory.path()), TWO], 20_000, &rows, |_, _| {});
    let job = env.start("asked").unwrap();
    assert!(until(PATIENCE, || job.state() == JobState::Running));
    let stats = job.blocking_checkpoint().expect("the job runs");
    assert!(stats.failure.is_none(), "{stats:?}");
    assert_eq!(stats.subtasks.len(), 4);
    let summary = job.wait().unwrap();
    assert_eq!(summary.checkpoints.unwrap().counts.completed, 2);
    check_counts(&rows, 20_000);
}

/// Goal: another job does not take a directory over, nor a second process's run of the same one.
#[test]
fn a_directory_is_one_jobs_and_one_process_s() {
    let directory = tempfile::tempdir().unwrap();
    let rows = Collected::default();
    let env = counting(&[&dir(directory.path()), OFTEN, TWO], 20_000, &rows, |_, _| {});
    let job = env.start("mine").unwrap();
    let other = counting(&[&dir(directory.path()), OFTEN, TWO], 1, &rows, |_, _| {});
    let error = other.start("mine").map(drop).unwrap_err().to_string();
    assert!(error.contains(&directory.path().display().to_string()) && error.contains("process"), "{error}");
    job.cancel();
    let _ = job.wait();
    let other = counting(&[&dir(directory.path()), OFTEN, TWO], 1, &rows, |_, _| {});
    let error = other.start("other").map(drop).unwrap_err().to_string();
    assert!(error.contains("mine") && error.contains("other"), "{error}");
}

/// Goal: state of an operator that the job no longer has, or with other key groups, is refused by name.
#[test]
fn state_that_does_not_fit_the_job_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let rows: Collected<(u64, u64)> = Collected::default();
    let settings = [&*dir(directory.path()), OFTEN, TWO];
    run(&counting(&settings, 5_000, &rows, |_, _| {})).unwrap();
    let more = [settings[0], settings[1], settings[2], "pipeline.max-parallelism=64"];
    let error = counting(&more, 5_000, &rows, |_, _| {}).start("test").map(drop).unwrap_err().to_string();
    assert!(error.contains("64") && error.contains("128"), "{error}");
    let env = Environment::with_config(config(&settings));
    let all: Arc<Mutex<Vec<u64>>> = Arc::default();
    env.source("others", |cx: &SourceContext| Ok(Paced::new(cx, 10, &Arc::default())))
        .sink("rows", move |_| Ok(Collect::new(all.clone())));
    let error = env.start("test").map(drop).unwrap_err().to_string();
    assert!(error.contains("numbers") || error.contains("count"), "{error}");
}
