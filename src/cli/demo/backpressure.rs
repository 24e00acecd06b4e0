//! `demo backpressure`: two sources offer ten times what a slow operator can take. Its input fills, the
//! sources' outputs fill, and the sources stop; nothing is lost and no memory grows.

use super::windows::watch;
use super::{DemoOptions, duration, run_seconds};
use crate::api::Environment;
use crate::cli::CliError;
use crate::operator::{Output, Wait};
use crate::sink::blackhole::Blackhole;
use crate::source::SourceContext;
use crate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};
use clap::Args;
use std::sync::Arc;
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate demo backpressure                            the source is back-pressured, slow-map is busy
  tidegate demo backpressure --seconds 10 --window 1s   shorter, with more rows
  tidegate demo backpressure --sleep 20ms --blocking    the fault to avoid: user code that holds its shard";

/// Records that the sources offer in a second, together.
const RATE: f64 = 20_000.0;

/// With 4 bytes of frame header and 8 of key a record takes 313 bytes, so that an operator which does a
/// thousand of them in a second is served 313 kB/s, and a segment holds 104.
const PAYLOAD_BYTES: usize = 301;

/// So many that both subtasks are offered alike.
const KEYS: u64 = 1 << 20;

/// Options of `demo backpressure`.
#[derive(Args)]
pub(crate) struct Backpressure {
    /// How long to run
    #[arg(long, default_value = "42", value_name = "S", value_parser = run_seconds)]
    seconds: f64,

    /// How long slow-map takes for each record
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = duration)]
    sleep: Duration,

    /// Sleep in the operator's code, as one must not: mail and all other tasks of the shard wait meanwhile
    #[arg(long)]
    blocking: bool,

    #[command(flatten)]
    demo: DemoOptions,
}

impl Backpressure {
    pub fn run(self) -> Result<(), CliError> {
        let env = Environment::with_config(self.demo.job.load()?);
        let generator = GeneratorPlan::new(GeneratorOptions {
            rate: Some(RATE),
            payload_bytes: PAYLOAD_BYTES,
            keys: KeyDistribution::Uniform { keys: KEYS },
            ..GeneratorOptions::default()
        })?;
        let (sleep, blocking) = (self.sleep, self.blocking);
        env.source("source", move |cx: &SourceContext| Ok(generator.payloads(cx)))
            .parallelism(2)
            .key_by::<u64, _>(|(key, _)| key)
            .process::<u64, u64, _, _>("seen", move |_, seen, out: &mut Output<'_, u64>| {
                *seen += 1;
                out.emit(*seen);
                if blocking {
                    std::thread::sleep(sleep);
                    return Wait::Done;
                }
                out.busy_for(sleep)
            })
            .name("slow-map")
            .parallelism(2)
            .sink("blackhole", |_| Ok(Blackhole::new(Arc::default())));
        watch(env.start("backpressure")?, self.demo.watch(self.seconds))
    }
}
