//! Options of jobs that take checkpoints: where, and from which to go on.

use crate::checkpoint::Recovery;
use crate::cli::CliError;
use crate::config::{Config, Origin};
use clap::Args;
use std::path::{Path, PathBuf};

/// How often checkpoints are taken where nobody says.
const INTERVAL: &str = "1 s";

/// Options of a job that takes checkpoints.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct RecoveryOptions {
    /// Take checkpoints into this directory; the same command again goes on from the newest
    ///
    /// Every second, or as -Dexecution.checkpointing.interval says. One directory is for one job.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,

    /// Go on from this checkpoint rather than from the newest: a chk-N directory, or its _metadata
    #[arg(long, value_name = "PATH", conflicts_with = "fresh")]
    from: Option<PathBuf>,

    /// Begin anew, whatever the directory of checkpoints holds; wants an empty output
    #[arg(long)]
    fresh: bool,

    /// Move output of later checkpoints aside that the job would write again, rather than refuse to start
    #[arg(long, conflicts_with = "accept_duplicates")]
    retract_output: bool,

    /// Leave output of later checkpoints that the job will write again, so that records appear twice
    #[arg(long)]
    accept_duplicates: bool,
}

impl RecoveryOptions {
    /// Adds what the options say to `config`, and checks that it makes sense together.
    pub fn apply(&self, config: &mut Config) -> Result<Option<Recovery>, CliError> {
        let beyond = match (self.retract_output, self.accept_duplicates) {
            (true, _) => Some("retract"),
            (_, true) => Some("accept"),
            _ => None,
        };
        let text = |path: &PathBuf, option: &str| match path.to_str() {
            Some(text) => Ok(text.to_string()),
            None => Err(format!("{option} {}: expected a path that is UTF-8", path.display())),
        };
        if let Some(directory) = &self.checkpoint_dir {
            let directory = text(directory, "--checkpoint-dir")?;
            config.set("execution.checkpointing.dir", &directory, Origin::CommandLine)?;
        }
        if !config.is_set("execution.checkpointing.dir") {
            let alone = [
                (self.from.is_some(), "--from"),
                (self.fresh, "--fresh"),
                (self.retract_output, "--retract-output"),
                (self.accept_duplicates, "--accept-duplicates"),
            ];
            if let Some((_, option)) = alone.iter().find(|(given, _)| *given) {
                return Err(format!(
                    "{option}: expected --checkpoint-dir DIR as well, where checkpoints are"
                )
                .into());
            }
        }
        let mut set = |key: &str, value: Option<String>| match value {
            Some(value) => config.set(key, &value, Origin::CommandLine),
            None => Ok(()),
        };
        let from = self.from.as_ref().map(|path| text(path, "--from")).transpose()?;
        set("execution.state-recovery.path", from)?;
        set("tidegate.state-recovery.fresh", self.fresh.then(|| "true".to_string()))?;
        set("tidegate.state-recovery.output-beyond", beyond.map(str::to_string))?;
        config.validate()?;
        let recovery = config.recovery();
        if let Some(recovery) = &recovery {
            if let Some(from) = recovery.from.as_ref().filter(|from| !holds_metadata(from)) {
                let from = from.display();
                return Err(format!(
                    "{from}: no checkpoint; expected a chk-N directory with _metadata in it"
                )
                .into());
            }
            config.set("execution.checkpointing.interval", INTERVAL, Origin::Default)?;
            // Who interrupts the command means to go on some time.
            let retention = "execution.checkpointing.externalized-checkpoint-retention";
            config.set(retention, "RETAIN_ON_CANCELLATION", Origin::Default)?;
        }
        Ok(recovery)
    }
}

fn holds_metadata(path: &Path) -> bool {
    path.is_file() || path.join("_metadata").is_file()
}
