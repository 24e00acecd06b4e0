//! `tidegate bench`: the engine's figures, beside what the machine allows.

use super::CliError;
use clap::Subcommand;

mod checkpoint;
mod drivers;
mod exchange;
mod keyed_count;
mod latency;
mod log;
mod recovery;
mod report;
mod window;
mod words;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Count records by key: source, keyed exchange, count, a row out for each record.
    KeyedCount(keyed_count::KeyedCount),
    /// How late rows come: due times on one core, a keyed count on the other.
    Latency(latency::Latency),
    /// Count the words of text files, as run wordcount does.
    Words(words::Words),
    /// What a record costs to go from all sources to all consumers, from 2 channels to 4,096.
    Exchange(exchange::Exchange),
    /// What runs the shards: wake-up latency, turns a second, and what waiting costs.
    Drivers(drivers::Drivers),
    /// What checkpoints cost a keyed count, and what one consists of.
    Checkpoint(checkpoint::Checkpoint),
    /// How soon a job works again after its process was killed.
    Recovery(recovery::Recovery),
    /// How fast the checkpoint log writes, and how soon one small append is durable.
    Log(log::Log),
}

impl Bench {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Bench::KeyedCount(bench) => bench.run(),
            Bench::Latency(bench) => bench.run(),
            Bench::Words(bench) => bench.run(),
            Bench::Exchange(bench) => bench.run(),
            Bench::Drivers(bench) => bench.run(),
            Bench::Checkpoint(bench) => bench.run(),
            Bench::Recovery(bench) => bench.run(),
            Bench::Log(bench) => bench.run(),
        }
    }
}
