//! The coordinator: starts a job on its shards, watches it, and ends it.

pub mod checkpoint;
pub mod failure;
mod job;
pub mod probe;
pub mod restart;
mod state;

pub use job::{JobError, JobSummary, RunningJob, SubtaskSnapshot};
pub use state::{JobState, Machine, Order};
