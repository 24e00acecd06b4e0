//! `tidegate checkpoints`: what a job's directory holds. Reads only; the job may run meanwhile.

use super::CliError;
use crate::cli::common::print;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_storage::checkpoint_store::Loaded;
use tidegate_storage::device::directory::{Directory, ReadMode, RealDirectory};
use tidegate_storage::error::StorageError;
use tidegate_storage::job_directory::Identity;
use tidegate_storage::log::reader::LogReader;
use tidegate_storage::metadata::{CheckpointMetadata, Finished, StateRef};

#[derive(Subcommand)]
pub(crate) enum Checkpoints {
    /// The completed checkpoints of a job, newest first.
    #[command(after_help = "Example:\n  tidegate checkpoints list /tmp/words.checkpoints")]
    List(Directories),
    /// What one checkpoint consists of: operators, subtasks, bytes.
    #[command(after_help = "Example:\n  tidegate checkpoints show /tmp/words.checkpoints --id 12")]
    Show(One),
    /// Reads every frame of every checkpoint and names what is wrong.
    #[command(after_help = "Example:\n  tidegate checkpoints verify /tmp/words.checkpoints")]
    Verify(Directories),
}

/// Options of `list` and `verify`.
#[derive(Args)]
pub(crate) struct Directories {
    /// The directory that was given with --checkpoint-dir
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Print one JSON object for programs
    #[arg(long)]
    json: bool,
}

/// Options of `show`.
#[derive(Args)]
pub(crate) struct One {
    /// The directory that was given with --checkpoint-dir
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Which checkpoint [default: the newest]
    #[arg(long, value_name = "N")]
    id: Option<u64>,

    /// Print one JSON object for programs
    #[arg(long)]
    json: bool,
}

/// A job's directory, read.
struct Job {
    directory: Arc<dyn Directory>,
    identity: Identity,
    loaded: Loaded,
}

impl Job {
    fn read(path: &Path) -> Result<Job, CliError> {
        if !path.is_dir() {
            return Err(format!("{}: not a directory; expected a job's checkpoints", path.display()).into());
        }
        let directory: Arc<dyn Directory> = Arc::new(RealDirectory::new(path));
        let identity = match Identity::read(&*directory) {
            Err(StorageError::Missing { .. }) => {
                let path = path.display();
                return Err(
                    format!("{path}: holds no job; expected the directory of --checkpoint-dir").into()
                );
            }
            read => read?,
        };
        let loaded = Loaded::read(&directory, identity.lineage)?;
        Ok(Job { directory, identity, loaded })
    }

    fn reader(&self, mode: ReadMode) -> LogReader {
        LogReader::new(self.directory.clone(), self.identity.lineage, mode)
    }

    /// Bytes of a log file as it lies there.
    fn file_bytes(&self) -> std::collections::BTreeMap<String, u64> {
        self.directory.list("log").unwrap_or_default().into_iter().collect()
    }
}

#[derive(Serialize)]
struct Listed {
    job: String,
    lineage: String,
    run: u32,
    checkpoints: Vec<ListedCheckpoint>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct ListedCheckpoint {
    id: u64,
    run: u32,
    triggered_ms: u64,
    state_bytes: u64,
    /// Bytes of the log files that it keeps from being used again.
    pinned_bytes: u64,
    operators: usize,
    subtasks: usize,
    published: bool,
}

impl Checkpoints {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Checkpoints::List(options) => list(&options),
            Checkpoints::Show(options) => show(&options),
            Checkpoints::Verify(options) => verify(&options),
        }
    }
}

fn list(options: &Directories) -> Result<(), CliError> {
    let job = Job::read(&options.directory)?;
    let files = job.file_bytes();
    let pinned = |checkpoint: &CheckpointMetadata| {
        let of = |incarnation: &tidegate_storage::handle::Incarnation| {
            let ends = format!("{incarnation}.log");
            files.iter().find(|(name, _)| name.ends_with(&ends)).map_or(0, |(_, bytes)| *bytes)
        };
        checkpoint.files().keys().map(of).sum()
    };
    let listed = Listed {
        job: job.identity.job.clone(),
        lineage: format!("{:032x}", job.identity.lineage),
        run: job.identity.run,
        checkpoints: job
            .loaded
            .checkpoints
            .iter()
            .map(|checkpoint| ListedCheckpoint {
                id: checkpoint.id,
                run: checkpoint.run,
                triggered_ms: checkpoint.triggered_ms,
                state_bytes: checkpoint.state_bytes(),
                pinned_bytes: pinned(checkpoint),
                operators: checkpoint.operators.len(),
                subtasks: checkpoint.operators.iter().map(|operator| operator.subtasks.len()).sum(),
                published: !job.loaded.unpublished.contains(&checkpoint.id),
            })
            .collect(),
        damaged: job.loaded.damaged.iter().map(|damage| damage.error.to_string()).collect(),
    };
    if options.json {
        return print(|out| writeln!(out, "{}", serde_json::to_string(&listed)?));
    }
    print(|out| {
        writeln!(out, "Job {:?} ({}), {} starts so far", listed.job, listed.lineage, listed.run)?;
        if listed.checkpoints.is_empty() {
            writeln!(out, "No completed checkpoint.")?;
        } else {
            writeln!(
                out,
                "        id  start  triggered (s since 1970)  state bytes  log bytes kept  subtasks"
            )?;
        }
        for checkpoint in &listed.checkpoints {
            writeln!(
                out,
                "{:>10} {:>6} {:>25.3} {:>12} {:>15} {:>9}{}",
                checkpoint.id,
                checkpoint.run,
                checkpoint.triggered_ms as f64 / 1e3,
                checkpoint.state_bytes,
                checkpoint.pinned_bytes,
                checkpoint.subtasks,
                if checkpoint.published { "" } else { "  (in the log only)" },
            )?;
        }
        for damage in &listed.damaged {
            writeln!(out, "damaged: {damage}")?;
        }
        Ok(())
    })
}

#[derive(Serialize)]
struct Shown {
    id: u64,
    job: String,
    run: u32,
    triggered_ms: u64,
    operators: Vec<ShownOperator>,
}

#[derive(Serialize)]
struct ShownOperator {
    uid: String,
    name: String,
    parallelism: u32,
    max_parallelism: u32,
    finished: &'static str,
    subtasks: Vec<ShownSubtask>,
}

#[derive(Serialize)]
struct ShownSubtask {
    subtask: u32,
    finished: bool,
    keyed_deltas: usize,
    keyed_bytes: u64,
    operator_bytes: u64,
    channel_bytes: u64,
}

fn show(options: &One) -> Result<(), CliError> {
    let job = Job::read(&options.directory)?;
    let found = match options.id {
        None => job.loaded.checkpoints.first(),
        Some(id) => job.loaded.checkpoints.iter().find(|checkpoint| checkpoint.id == id),
    };
    let Some(checkpoint) = found else {
        let ids: Vec<String> = job.loaded.checkpoints.iter().map(|c| c.id.to_string()).collect();
        let which = options.id.map_or("any".to_string(), |id| id.to_string());
        let has = if ids.is_empty() { "none".to_string() } else { ids.join(", ") };
        let path = options.directory.display();
        return Err(format!("--id {which}: no such checkpoint in {path}; expected one of: {has}").into());
    };
    let bytes = |pieces: &[StateRef]| pieces.iter().map(StateRef::state_bytes).sum::<u64>();
    let operators = checkpoint.operators.iter().map(|operator| ShownOperator {
        uid: operator.uid.clone(),
        name: operator.name.clone(),
        parallelism: operator.parallelism,
        max_parallelism: operator.max_parallelism,
        finished: match operator.finished {
            Finished::Running => "running",
            Finished::Partly => "partly finished",
            Finished::Fully => "finished",
        },
        subtasks: operator
            .subtasks
            .iter()
            .map(|state| ShownSubtask {
                subtask: state.subtask,
                finished: state.finished,
                keyed_deltas: state.keyed.len(),
                keyed_bytes: bytes(&state.keyed),
                operator_bytes: bytes(&state.operator),
                channel_bytes: bytes(&state.input_channels) + bytes(&state.output_channels),
            })
            .collect(),
    });
    let shown = Shown {
        id: checkpoint.id,
        job: checkpoint.job.clone(),
        run: checkpoint.run,
        triggered_ms: checkpoint.triggered_ms,
        operators: operators.collect(),
    };
    if options.json {
        return print(|out| writeln!(out, "{}", serde_json::to_string(&shown)?));
    }
    print(|out| {
        writeln!(out, "Checkpoint {} of job {:?}", shown.id, shown.job)?;
        for operator in &shown.operators {
            writeln!(
                out,
                "  {} ({}), parallelism {}, {} key groups, {}",
                operator.name,
                operator.uid,
                operator.parallelism,
                operator.max_parallelism,
                operator.finished
            )?;
            for subtask in &operator.subtasks {
                writeln!(
                    out,
                    "    {:>4}: keyed {} B in {} deltas, own {} B, in flight {} B{}",
                    subtask.subtask,
                    subtask.keyed_bytes,
                    subtask.keyed_deltas,
                    subtask.operator_bytes,
                    subtask.channel_bytes,
                    if subtask.finished { ", finished" } else { "" }
                )?;
            }
        }
        Ok(())
    })
}

#[derive(Serialize)]
struct Verified {
    checkpoints: Vec<VerifiedCheckpoint>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct VerifiedCheckpoint {
    id: u64,
    bytes: u64,
    error: Option<String>,
}

fn verify(options: &Directories) -> Result<(), CliError> {
    let job = Job::read(&options.directory)?;
    let mut reader = job.reader(ReadMode::Direct);
    let mut checkpoints = Vec::new();
    for checkpoint in &job.loaded.checkpoints {
        let verified = tidegate_storage::checkpoint_store::verify(&mut reader, checkpoint);
        let (bytes, error) = match verified {
            Ok(bytes) => (bytes, None),
            Err(error) => (0, Some(error.to_string())),
        };
        checkpoints.push(VerifiedCheckpoint { id: checkpoint.id, bytes, error });
    }
    let damaged: Vec<String> = job.loaded.damaged.iter().map(|damage| damage.error.to_string()).collect();
    let wrong = checkpoints.iter().filter(|c| c.error.is_some()).count() + damaged.len();
    let verified = Verified { checkpoints, damaged };
    if options.json {
        print(|out| writeln!(out, "{}", serde_json::to_string(&verified)?))?;
    } else {
        print(|out| {
            for checkpoint in &verified.checkpoints {
                match &checkpoint.error {
                    None => writeln!(
                        out,
                        "checkpoint {}: {} bytes read, every checksum right",
                        checkpoint.id, checkpoint.bytes
                    )?,
                    Some(error) => writeln!(out, "checkpoint {}: {error}", checkpoint.id)?,
                }
            }
            for damage in &verified.damaged {
                writeln!(out, "damaged: {damage}")?;
            }
            Ok(())
        })?;
    }
    if wrong > 0 {
        return Err(format!("{}: {wrong} things are damaged", options.directory.display()).into());
    }
    Ok(())
}
