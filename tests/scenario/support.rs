//! Running a job so that one that hangs fails its test.

use std::time::{Duration, Instant};
use tidegate::api::Environment;
use tidegate::coordinator::{JobError, JobSummary, RunningJob};

/// Far more than any job of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a watched job ended.
pub struct Finished {
    pub result: Result<JobSummary, JobError>,
    /// Whether output of one record ever waited on the heap.
    pub hard_back_pressured: bool,
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
