//! The simulation: whole jobs on one thread, in an order that a seed decides.
//!
//! A seed chooses a random job with tiny segments and pools, the order in which its shards turn, when mail
//! and wake-ups arrive, what a look at the clock costs, and which views of shared words are old ones. The job
//! is the real one down to the data plane; [`world`] says what is not. What the operators were given is then
//! compared with [`model`].
//!
//! The same seed gives the same run, so a failing one is replayed with `TIDEGATE_SEED=n`. Not simulated:
//! memory order within a ring (loom's models do that), the kernel, real clocks, sources that read the world.

pub mod clock;
pub mod disk;
pub mod model;
pub mod settings;
pub mod topology;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tidegate_shard::coverage::{self, Counts, Named};
pub use world::Summary;
use world::World;

/// Runs one seed.
///
/// # Errors
///
/// What was wrong, and the state of the job then.
pub fn run(seed: u64, prints: bool) -> Result<Summary, String> {
    let ran = catch_unwind(AssertUnwindSafe(|| World::new(seed, prints)?.run()));
    tidegate_shard::sync::stale::seed(0);
    ran.unwrap_or_else(|_| Err("the engine panicked outside of any task: see above".to_string()))
        .map_err(|wrong| format!("seed {seed}: {wrong}\nreplay it with TIDEGATE_SEED={seed}"))
}

/// What a set of runs came to.
#[derive(Debug, Clone, Default)]
pub struct Exploration {
    /// Runs.
    pub seeds: u64,
    /// Decisions of all runs.
    pub steps: u64,
    /// Records seen by operators and sinks in all runs.
    pub records: u64,
    /// Time that they took.
    pub elapsed: Duration,
    /// How often each named event was reached.
    pub reached: Counts,
    /// State table pages that were split.
    pub page_splits: u64,
}

impl Exploration {
    /// Events that no run has reached.
    pub fn unreached(&self) -> Vec<String> {
        let named = Named::ALL.iter().zip(self.reached).filter(|(_, count)| *count == 0);
        let mut names: Vec<String> = named.map(|(named, _)| format!("{named:?}")).collect();
        if self.page_splits == 0 {
            names.push("PageSplit".to_string());
        }
        names
    }

    /// Runs in a minute.
    pub fn seeds_per_minute(&self) -> f64 {
        self.seeds as f64 * 60.0 / self.elapsed.as_secs_f64()
    }

    /// All figures, for people.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{} seeds in {:.1} s ({:.0} a minute), {} steps, {} records\n",
            self.seeds,
            self.elapsed.as_secs_f64(),
            self.seeds_per_minute(),
            self.steps,
            self.records
        );
        for (named, count) in Named::ALL.iter().zip(self.reached) {
            text.push_str(&format!("  {count:>9} {named:?}\n"));
        }
        text.push_str(&format!("  {:>9} PageSplit", self.page_splits));
        text
    }
}

/// Runs seeds from `first` on: at least `least` of them, and more while `time` is not over.
///
/// # Errors
///
/// The first seed that fails, with what was wrong.
pub fn explore(first: u64, least: u64, time: Duration) -> Result<Exploration, String> {
    let start = Instant::now();
    let mut all = Exploration::default();
    // What earlier runs on this thread have reached does not count.
    coverage::take();
    tidegate_storage::sim::take_page_splits();
    while all.seeds < least || start.elapsed() < time {
        let summary = run(first + all.seeds, false)?;
        all.seeds += 1;
        all.steps += summary.steps;
        all.records += summary.records;
    }
    all.elapsed = start.elapsed();
    all.reached = coverage::take();
    all.page_splits = tidegate_storage::sim::take_page_splits();
    Ok(all)
}
