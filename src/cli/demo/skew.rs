//! `demo skew`: a partition is unavailable as soon as one of its subpartitions is at its cap, since it cannot
//! know where the next record goes. So the slowest consumer sets the pace of all.

use super::windows::watch;
use super::{DemoOptions, run_seconds};
use crate::api::Environment;
use crate::cli::CliError;
use crate::operator::{Output, Wait};
use crate::sink::blackhole::Blackhole;
use crate::source::SourceContext;
use crate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use clap::{Args, ValueEnum};
use std::sync::Arc;
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate demo skew                 the fast subtask falls to the pace of the slow one and idles
  tidegate demo skew --mode even     for comparison: neither key is slow
  tidegate demo skew --mode burst    1000 records to the fast subtask for each to the slow one";

/// The key whose records are slow; with 128 key groups and two subtasks it lives in another one than
/// [`FAST_KEY`].
const SLOW_KEY: u64 = 0;
const FAST_KEY: u64 = 4;

/// How long the operator is busy with a record of [`SLOW_KEY`].
const WORK: Duration = Duration::from_millis(1);

/// Records of the fast key in a row, in the mode `burst`.
const BURST: u64 = 1000;

/// With frame header and key a record takes 48 bytes, so that a segment holds 682. The fast subtask is served a
/// segment whenever the slow one has finished one, so smaller records would make its rate over a window
/// jump; larger ones fill the source's pool within one quantum, which looks like back pressure.
const PAYLOAD_BYTES: usize = 36;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The keys alternate, and no record is slow.
    Even,
    /// The keys alternate, and each record of key 0 takes 1 ms.
    Skew,
    /// 1000 records of key 4, then one of key 0, which takes 1 ms.
    Burst,
}

/// Options of `demo skew`.
#[derive(Args)]
pub(crate) struct Skew {
    /// Which keys come, and whether one is slow
    #[arg(long, value_enum, default_value = "skew")]
    mode: Mode,

    /// How long to run
    #[arg(long, default_value = "20", value_name = "S", value_parser = run_seconds)]
    seconds: f64,

    #[command(flatten)]
    demo: DemoOptions,
}

impl Skew {
    pub fn run(self) -> Result<(), CliError> {
        let env = Environment::with_config(self.demo.job.load()?);
        let runs = match self.mode {
            Mode::Even | Mode::Skew => vec![(SLOW_KEY, 1), (FAST_KEY, 1)],
            Mode::Burst => vec![(FAST_KEY, BURST), (SLOW_KEY, 1)],
        };
        let keys = KeyDistribution::Runs(runs);
        let payload_bytes = PAYLOAD_BYTES;
        let options = GeneratorOptions { keys, payload_bytes, ..GeneratorOptions::default() };
        let generator = GeneratorPlan::new(options)?;
        let slow = self.mode != Mode::Even;
        env.source("source", move |cx: &SourceContext| Ok(generator.payloads(cx)))
            .parallelism(1)
            .key_by::<u64, _>(|(key, _)| key)
            .process::<u64, u64, _, _>("seen", move |(key, _), seen, out: &mut Output<'_, u64>| {
                *seen += 1;
                out.emit(*seen);
                if slow && key == SLOW_KEY { out.busy_for(WORK) } else { Wait::Done }
            })
            .name("work")
            .parallelism(2)
            .max_parallelism(128)
            .sink("blackhole", |_| Ok(Blackhole::new(Arc::default())));
        watch(env.start("skew")?, self.demo.watch(self.seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::key_group::Assigner;
    use crate::record::Key;

    /// Goal: the demo shows what it says only if its two keys live in two subtasks.
    #[test]
    fn the_two_keys_live_in_two_subtasks() {
        let assigner = Assigner::new(128, 2).unwrap();
        let subtask = |key: u64| {
            let group = assigner.group(<u64 as Key>::java_hash(key)) as u16;
            (0..2).find(|subtask| assigner.range(*subtask).contains(&group)).unwrap()
        };
        assert_ne!(subtask(SLOW_KEY), subtask(FAST_KEY));
    }
}
