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
