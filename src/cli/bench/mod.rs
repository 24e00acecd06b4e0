//! `tidegate bench`: the engine's figures, beside what the machine allows.

use super::CliError;
use clap::Subcommand;

mod keyed_count;
mod report;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Count records by key: source, keyed exchange, count, a row out for each record.
    KeyedCount(keyed_count::KeyedCount),
}

impl Bench {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Bench::KeyedCount(bench) => bench.run(),
        }
    }
}
