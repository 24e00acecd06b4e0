//! Running a job so that one that hangs fails its test.

use std::time::{Duration, Instant};
use tidegate::api::Environment;
use tidegate::config::{Config, Origin};
use tidegate::coordinator::{JobError, JobSummary, RunningJob};
use tidegate::operator::Collector;
use tidegate::source::{Source, SourceError, SourceOutput, SourcePoll};

/// Far more than any job of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How a watched job ended.
pub struct Finished {
    pub result: Result<JobSummary, JobError>,
    /// Whether output of one record ever waited on the heap.
    pub hard_back_pressured: bool,
}

/// A configuration of `key=value` settings.
pub fn config(settings: &[&str]) -> Config {
    let mut config = Config::default();
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap();
        config.set(key, value, Origin::CommandLine).unwrap();
    }
    config.validate().unwrap();
    config
}

/// Waits until `what` holds, for so long at most; whether it did.
pub fn until(patience: Duration, mut what: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    while !what() {
        if since.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Runs a job to its end, which must come.
pub fn run(env: &Environment) -> Result<JobSummary, JobError> {
    run_watched(env, |_| {}).result
}

/// Runs a job to its end, which must come, and lets `look` look at it every few milliseconds.
pub fn run_watched(env: &Environment, mut look: impl FnMut(&RunningJob)) -> Finished {
    let job = env.start("test").unwrap();
    let started = Instant::now();
    let mut hard_back_pressured = false;
    while !job.is_over() {
        look(&job);
        hard_back_pressured |= job.snapshot().iter().any(|subtask| subtask.time.hard_ns > 0);
        assert!(started.elapsed() < PATIENCE, "the job hangs: {:#?}", job.snapshot());
        std::thread::sleep(Duration::from_millis(2));
    }
    hard_back_pressured |= job.snapshot().iter().any(|subtask| subtask.time.hard_ns > 0);
    Finished { result: job.wait(), hard_back_pressured }
}

/// Emits so many numbers, and then stays without ending.
pub struct Trickle {
    next: u64,
    count: u64,
}

impl Trickle {
    pub fn new(count: u64) -> Trickle {
        Trickle { next: 0, count }
    }
}

impl Source for Trickle {
    type Item = u64;
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
}
