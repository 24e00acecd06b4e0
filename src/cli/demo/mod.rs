//! `tidegate demo`: experiments that show how the engine behaves.

mod backpressure;
mod bottleneck;
mod checkpoint;
mod skew;
mod windows;

use super::CliError;
use super::common::JobOptions;
use crate::config::units::parse_duration;
use clap::{Args, Subcommand};
use std::time::Duration;
use windows::Watch;

#[derive(Subcommand)]
pub(crate) enum Demo {
    /// One slow key of two: how a slow subtask takes its pace to a fast one.
    ///
    /// A source sends key 0 to one subtask and key 4 to another. The operator is busy for a while with each
    /// record of key 0; watch the subtask of key 4, which has nothing to wait for.
    #[command(after_help = skew::EXAMPLES)]
    Skew(skew::Skew),
    /// A slow operator behind a quick source: how back pressure travels to the source.
    #[command(after_help = backpressure::EXAMPLES)]
    Backpressure(backpressure::Backpressure),
    /// What a checkpoint takes, part by part, with and without records in its way.
    ///
    /// Two sources emit 2,000 records of 1 kB in a second to a count of 16 keys; every five seconds there is a
    /// checkpoint.
    #[command(after_help = checkpoint::EXAMPLES)]
    Checkpoint(checkpoint::Checkpoint),
}

impl Demo {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Demo::Skew(skew) => skew.run(),
            Demo::Backpressure(backpressure) => backpressure.run(),
            Demo::Checkpoint(checkpoint) => checkpoint.run(),
        }
    }
}

/// Options of every demo.
#[derive(Args)]
pub(crate) struct DemoOptions {
    /// Time between two rows of figures
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    window: Duration,

    #[command(flatten)]
    job: JobOptions,
}

impl DemoOptions {
    fn watch(&self, seconds: f64) -> Watch {
        Watch { time: Duration::from_secs_f64(seconds), window: self.window, json: self.job.json }
    }
}

/// A positive time in the notation of configuration values.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err("expected a time above 0 with a unit, such as 5s or 500ms".to_string()),
    }
}

/// How long a demo runs.
pub(super) fn run_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("expected a number of seconds, more than 0 and at most 86400".to_string()),
    }
}
