//! `tidegate run`: jobs on real input.

use super::CliError;
use super::common::{JobOptions, set_parallelism};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Run {
    /// Count words: maximal runs of Unicode letters or digits, lower-cased.
    Wordcount(Wordcount),
}

/// Options of `run wordcount`.
#[derive(Args)]
pub(crate) struct Wordcount {
    /// Files, folders (with all below them), .gz files, or - for standard input
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    input: Vec<PathBuf>,

    /// Parallel instances of each operator [default: one a shard]
    #[arg(long, value_name = "P")]
    parallelism: Option<String>,

    #[command(flatten)]
    job: JobOptions,
}

impl Run {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Run::Wordcount(wordcount) => wordcount.run(),
        }
    }
}

impl Wordcount {
    fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        Ok(())
    }
}
