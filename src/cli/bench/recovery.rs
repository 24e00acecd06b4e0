//! `bench recovery`: from the start of a process until every subtask of a job has taken a record, where the process
//! before was killed with a large state.
//!
//! A child process fills the state, takes a checkpoint and is killed; another one is started on the same directory,
//! and says when its subtasks have records. The time runs from before its start.

use super::report::{Machine, Spread};
use super::window::Windows;
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::{JobOptions, set_parallelism};
use crate::config::Origin;
use crate::coordinator::RunningJob;
use crate::sink::blackhole::Blackhole;
use crate::source::SourceContext;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a child process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Fill the state, take a checkpoint, wait to be killed.
    Fill,
    /// Go on from it, and say so.
    Resume,
}

/// Options of `bench recovery`.
#[derive(Args)]
#[command(after_help = "Example:\n  tidegate bench recovery --keys 10000000")]
pub(crate) struct Recovery {
    /// Keys in the state
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,

    /// Parallel instances of source and count [default: one a shard]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    parallelism: Option<String>,

    /// Times that the job is killed and started again
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Where the checkpoints are kept [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,

    #[arg(long, hide = true)]
    role: Option<Role>,

    #[command(flatten)]
    job: JobOptions,
}

#[derive(Serialize)]
struct Figures {
    keys: u64,
    /// From the start of the process to the first record in every subtask.
    restore_ms: f64,
    restore_ms_spread: Spread,
    /// The same with the directory's files dropped from the page cache first; `null` where that is not allowed.
    cold_ms: Option<f64>,
    state_bytes: u64,
    machine: Machine,
}

/// How long a child may take for what it is to do.
const PATIENCE: Duration = Duration::from_secs(600);

impl Recovery {
    pub fn run(self) -> Result<(), CliError> {
        match (self.role, &self.checkpoint_dir) {
            (Some(role), Some(directory)) => self.child(role, directory),
            (Some(_), None) => Err("--role: expected --checkpoint-dir with it".into()),
            (None, _) => self.parent(),
        }
    }

    fn parent(&self) -> Result<(), CliError> {
        let temporary = std::env::temp_dir().join(format!("tidegate-recovery-{}", std::process::id()));
        let directory = self.checkpoint_dir.clone().unwrap_or_else(|| temporary.clone());
        let measured = self.measure(&directory);
        if self.checkpoint_dir.is_none() {
            let _ = std::fs::remove_dir_all(&temporary);
        }
        let figures = measured?;
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        println!("{} keys, {} bytes of state", figures.keys, figures.state_bytes);
        println!(
            "  first record in every subtask {} ms after the process was started, its files in the page cache",
            figures.restore_ms_spread.text(0)
        );
        match figures.cold_ms {
            Some(ms) => println!("  {ms:.0} ms with its files dropped from the page cache"),
            None => println!("  not measured with cold files: the page cache cannot be dropped here"),
        }
        Ok(())
    }

    fn measure(&self, directory: &Path) -> Result<Figures, CliError> {
        let (mut child, text, _) = self.start(Role::Fill, directory)?;
        child.kill()?;
        child.wait()?;
        let state_bytes = text.trim().parse().map_err(|_| format!("the child said {text:?}"))?;
        let mut times = Vec::new();
        for run in 0..self.runs {
            let (mut child, _, took) = self.start(Role::Resume, directory)?;
            child.kill()?;
            child.wait()?;
            times.push(took.as_secs_f64() * 1e3);
            if !self.job.json {
                eprintln!("run {}: {:.0} ms", run + 1, times[run as usize]);
            }
        }
        let cold_ms = if std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok() {
            let (mut child, _, took) = self.start(Role::Resume, directory)?;
            child.kill()?;
            child.wait()?;
            Some(took.as_secs_f64() * 1e3)
        } else {
            None
        };
        let spread = Spread::of(times);
        Ok(Figures {
            keys: self.keys,
            restore_ms: spread.median,
            restore_ms_spread: spread,
            cold_ms,
            state_bytes,
            machine: Machine::here(),
        })
    }

    /// Starts a child and waits for the line that it writes when it is done.
    fn start(&self, role: Role, directory: &Path) -> Result<(Child, String, Duration), CliError> {
        let begun = Instant::now();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "recovery", "--keys", &self.keys.to_string()]);
        command.args(["--role", if role == Role::Fill { "fill" } else { "resume" }]);
        command.arg("--checkpoint-dir").arg(directory);
        for (option, value) in [("--parallelism", &self.parallelism), ("--shards", &self.job.shards)] {
            if let Some(value) = value {
                command.arg(format!("{option}={value}"));
            }
        }
        command.args(self.job.define.iter().map(|define| format!("-D{define}")));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
        if line.is_empty() {
            let status = child.wait()?;
            return Err(format!("the child process ended with {status}").into());
        }
        Ok((child, line, begun.elapsed()))
    }

    /// What a child process does: never ends by itself.
    fn child(&self, role: Role, directory: &Path) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        let directory = directory.to_str().ok_or("--checkpoint-dir: expected a path in UTF-8")?;
        config.set("execution.checkpointing.dir", directory, Origin::CommandLine)?;
        config.set("execution.checkpointing.interval", "1 h", Origin::CommandLine)?;
        config.validate()?;
        let env = Environment::with_config(config);
        let windows = Windows::new(self.keys, 1.0, 1_000_000_000);
        env.source("keys", move |cx: &SourceContext| Ok(windows.source(cx)))
            .key_by::<u64, _>(|(key, _)| key)
            .count()
            .sink("blackhole", |_| Ok(Blackhole::new(Arc::default())));
        let job = env.start("recovery bench")?;
        let wait = |until: &dyn Fn(&RunningJob) -> bool| {
            let begun = Instant::now();
            while !until(&job) && !job.is_over() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            until(&job)
        };
        let said = match role {
            Role::Fill if wait(&|job| job.state_entries() >= self.keys) => job
                .blocking_checkpoint()
                .filter(|stats| stats.failure.is_none())
                .map(|stats| stats.state_bytes),
            Role::Resume => wait(&|job| {
                let plan = job.plan();
                let counts = plan.subtasks.iter().zip(job.snapshot());
                let mut counts = counts.filter(|(subtask, _)| subtask.vertex.0 == 1);
                counts.all(|(_, snapshot)| snapshot.records_in > 0)
            })
            .then_some(0),
            Role::Fill => None,
        };
        let Some(said) = said else {
            job.wait()?;
            return Err("the job did not come so far".into());
        };
        println!("{said}");
        std::io::stdout().flush()?;
        std::thread::sleep(PATIENCE);
        Ok(())
    }
}
