//! What a seed decides once for its whole run: sizes at their least, and when a job is interfered with.

use super::clock::Rng;
use tidegate::graph::plan::PlanConfig;
use tidegate_shard::config::{ExchangeConfig, FlushInterval, TurnConfig};

/// How a run may end before its sources do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interference {
    /// It runs to its end.
    None,
    /// Its sources are told to end at this step.
    Stop(u64),
    /// It is cancelled at this step.
    Cancel(u64),
}

/// The sizes of one run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Shards of the job.
    pub shards: u32,
    /// Segments, permits, caps, flushes.
    pub exchange: ExchangeConfig,
    /// Whether pools have no segment more than they must.
    pub least_pools: bool,
    /// Quantum of a task.
    pub turn: TurnConfig,
    /// Most that a look at the clock costs, in nanoseconds.
    pub look_max_ns: u64,
    /// Whether operators are chained.
    pub chaining: bool,
    /// Whether sources emit latency markers.
    pub markers: bool,
    /// Whether records carry timestamps.
    pub timestamps: bool,
    /// Longest text of a record, in bytes.
    pub text_max: u64,
    /// How the run is cut short.
    pub interference: Interference,
    /// Mail is sent to a random task once in so many steps.
    pub probe_every: u64,
}

impl Settings {
    /// The settings of a seed.
    pub fn of(rng: &mut Rng) -> Settings {
        let segment_size_bytes = rng.within(8..=64) as u32 * 8;
        let exchange = ExchangeConfig {
            segment_size_bytes,
            exclusive_per_channel: rng.within(1..=2) as u32,
            floating_per_gate: rng.pick(&[0, 1, 2, 8]),
            buffers_per_subpartition_max: rng.within(2..=10) as u32,
            overdraft_per_partition_max: rng.pick(&[0, 0, 1, 5, 20]),
            overdraft_reserve_max: rng.pick(&[0, 4, 64]),
            record_size_bytes_max: 1 << 20,
            flush: match rng.below(4) {
                0 => FlushInterval::EveryRecord,
                1 => FlushInterval::Never,
                _ => FlushInterval::After(rng.within(1_000..=1_000_000)),
            },
            flush_to_idle: rng.once_in(2),
        };
        // From one record between two looks to a few.
        let look_max_ns = rng.pick(&[40, 4_000, 60_000]);
        let quantum_ns = rng.within(1..=4) * look_max_ns;
        Settings {
            shards: rng.within(1..=4) as u32,
            least_pools: rng.once_in(2),
            turn: TurnConfig { quantum_ns },
            look_max_ns,
            chaining: !rng.once_in(4),
            markers: rng.once_in(3),
            timestamps: rng.once_in(3),
            text_max: u64::from(segment_size_bytes) * rng.within(0..=5),
            interference: match rng.below(12) {
                0 => Interference::Stop(rng.below(3_000)),
                1 => Interference::Cancel(rng.below(3_000)),
                _ => Interference::None,
            },
            probe_every: rng.pick(&[20, 300]),
            exchange,
        }
    }

    /// The layout that they ask for.
    pub fn plan_config(&self, memory_bytes_max: Option<u64>) -> PlanConfig {
        PlanConfig {
            shards: self.shards,
            parallelism: 2,
            max_parallelism: None,
            exchange: self.exchange.clone(),
            group_hash: Default::default(),
            memory_bytes_max,
        }
    }
}
