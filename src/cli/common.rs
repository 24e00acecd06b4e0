//! What all verbs have in common: shards, configuration, JSON.

use super::CliError;
use crate::config::{Config, Origin};
use crate::sink::stdout::StdoutClosed;
use clap::Args;
use std::io::{self, Write};
use std::path::PathBuf;

/// Options of every verb that runs a job.
#[derive(Args, Clone, Debug)]
pub(crate) struct JobOptions {
    /// Shards to run on: pinned threads, one a core [default: the cores we may run on]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub shards: Option<String>,

    /// What a shard does when there is nothing to do [default: backoff]
    #[arg(long, value_name = "spin|backoff|park")]
    pub idle: Option<String>,

    /// What runs the shards' turns [default: thread]
    #[arg(long, value_name = "thread|glommio")]
    pub driver: Option<String>,

    /// Set a configuration key, as in Flink: -Dexecution.buffer-timeout.interval=10ms
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    pub define: Vec<String>,

    /// Read configuration keys from a YAML file, as Flink's config.yaml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print one JSON object for programs
    #[arg(long)]
    pub json: bool,
}

impl JobOptions {
    /// The configuration that file, keys and options give; warnings go to standard error.
    pub fn load(&self) -> Result<Config, CliError> {
        let mut config = Config::load(self.config.as_deref(), &self.define)?;
        let options = [
            ("tidegate.shards", &self.shards),
            ("tidegate.idle", &self.idle),
            ("tidegate.driver", &self.driver),
        ];
        for (key, value) in options {
            if let Some(value) = value {
                config.set(key, value, Origin::CommandLine)?;
            }
        }
        config.validate()?;
        for warning in config.warnings() {
            eprintln!("tidegate: warning: {warning}");
        }
        Ok(config)
    }
}

/// Sets the job's parallelism from an option.
pub(crate) fn set_parallelism(config: &mut Config, parallelism: Option<&str>) -> Result<(), CliError> {
    if let Some(parallelism) = parallelism {
        config.set("parallelism.default", parallelism, Origin::CommandLine)?;
        config.validate()?;
    }
    Ok(())
}

/// Writes to standard output; a reader that has gone is told apart.
pub(crate) fn print(write: impl FnOnce(&mut io::StdoutLock) -> io::Result<()>) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    write(&mut out).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => StdoutClosed.into(),
        _ => format!("standard output: {error}; expected a place to write to").into(),
    })
}
