//! The `tidegate` command: one file a verb.

mod bench;
mod checkpoints;
mod common;
mod config;
mod demo;
mod run;
mod words;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A stream-processing engine for one Linux machine.
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  tidegate run wordcount --input .                 count the words of the files below this folder
  tidegate demo backpressure                       watch back pressure travel to the source
  tidegate bench keyed-count --keys 16 --limit     measure, beside a hand-written program";

#[derive(Subcommand)]
enum Verb {
    /// Run a job.
    #[command(subcommand)]
    Run(run::Run),
    /// Run an experiment that shows how the engine behaves.
    #[command(subcommand)]
    Demo(demo::Demo),
    /// Measure the engine, beside what the machine allows.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Look at the checkpoints of a job, running or not.
    #[command(subcommand)]
    Checkpoints(checkpoints::Checkpoints),
    /// Print every configuration key: its value and where that comes from, its default, what it does.
    Config(config::Config),
}

/// What a verb may fail with: printed in one line, exit code 1.
pub(crate) type CliError = Box<dyn std::error::Error + Send + Sync>;

/// Ctrl-C, after the job has let go: exit code 130, as of a command that the signal ends.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: the job was cancelled, {output}")]
pub(crate) struct Interrupted {
    /// What became of its output.
    pub output: &'static str,
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    crate::source::remember_allowed_cores();
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TIDEGATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    let result = match cli.verb {
        Verb::Run(run) => run.run(),
        Verb::Demo(demo) => demo.run(),
        Verb::Bench(bench) => bench.run(),
        Verb::Checkpoints(checkpoints) => checkpoints.run(),
        Verb::Config(config) => config.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // `tidegate … | head` has what it wanted.
        Err(error) if crate::sink::stdout::is_stdout_closed(&*error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("tidegate: {error}");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("tidegate: {error}");
            ExitCode::FAILURE
        }
    }
}
