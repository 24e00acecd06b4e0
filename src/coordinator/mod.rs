//! The coordinator: starts a job on its shards, watches it, and ends it.

mod job;
pub mod probe;
mod state;

pub use job::{JobError, JobSummary, RunningJob, SubtaskSnapshot};
pub use state::{JobState, Machine, Order};
