//! The coordinator: starts a job on its shards, watches it, takes its checkpoints, restarts it, and ends it.

mod attempt;
pub mod checkpoint;
mod durable;
pub mod failure;
mod job;
mod predict;
pub mod probe;
pub mod restart;
mod run;
mod state;

pub use job::{JobError, JobSummary, RunningJob, SubtaskSnapshot};
pub use state::{JobState, Machine, Order};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a thread of ours. A panic there is a bug of ours, and whoever waits for the thread would wait for ever: it
/// ends the process.
fn or_abort<R>(run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| std::process::abort())
}
