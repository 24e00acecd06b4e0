//! `tidegate run`: jobs on real input.

mod progress;
mod recovery;
mod wordcount;

use super::CliError;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Run {
    /// Count words: maximal runs of Unicode letters or digits, lower-cased.
    Wordcount(wordcount::Wordcount),
}

impl Run {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Run::Wordcount(wordcount) => wordcount.run(),
        }
    }
}
