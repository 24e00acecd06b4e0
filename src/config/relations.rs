//! What keys demand of each other: errors where both cannot hold, warnings
//! where one makes the other idle.
//!
//! An error names the key that has to give way, and the other with its value.
//! Defaults obey every relation (a test), so one that fails involves a key that was set.

use std::time::Duration;

use super::getters::*;
use super::{Config, ConfigError, Warning, row};

const UNALIGNED: &str = "execution.checkpointing.unaligned.enabled";
const ALIGNED_TIMEOUT: &str = "execution.checkpointing.aligned-checkpoint-timeout";
const STORAGE: &str = "execution.checkpointing.storage";
const HEARTBEAT: &str = "heartbeat.interval";
const HEARTBEAT_TIMEOUT: &str = "heartbeat.timeout";
const NETWORK_MIN: &str = "taskmanager.memory.network.min";
const NETWORK_MAX: &str = "taskmanager.memory.network.max";
const SEGMENT_SIZE_FLOOR: &str = "taskmanager.memory.min-segment-size";

/// How checkpoints are taken, where there are any.
const OF_CHECKPOINTS: [&str; 9] = [
    MODE,
    MIN_PAUSE,
    CONCURRENT,
    "execution.checkpointing.timeout",
    "execution.checkpointing.tolerable-failed-checkpoints",
    "execution.checkpointing.num-retained",
    "execution.checkpointing.checkpoints-after-tasks-finish",
    "execution.checkpointing.incremental",
    "execution.checkpointing.data-inline-threshold",
];

/// Every relation that does not hold.
pub(super) fn errors(config: &Config) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    // `key` has to give way to what `other` demands.
    let mut demand = |holds: bool, key: &str, expected: &str, other: &str| {
        if !holds {
            let key = row(key).name;
            let expected = format!("{expected} {other} = {}", config.text(other));
            let value = config.text(key);
            errors.push(ConfigError::Relation { key, value, origin: config.origin(key), expected });
        }
    };

    let key_groups = config.max_parallelism();
    demand(
        key_groups.is_none_or(|groups| config.parallelism() <= groups),
        PARALLELISM,
        "at most the number of key groups,",
        PARALLELISM_MAX,
    );
    // Else every full turn would be reported as a stall.
    demand(config.stall_threshold() > config.shard_quantum(), STALL_THRESHOLD, "more than", QUANTUM);

    let unaligned: bool = config.get(UNALIGNED);
    // A barrier that overtakes makes sense only where each record counts once.
    demand(!unaligned || config.word(MODE) == "EXACTLY_ONCE", MODE, "EXACTLY_ONCE with", UNALIGNED);
    // The data overtaken by two barriers at once has no one owner.
    demand(!unaligned || config.get::<u32>(CONCURRENT) == 1, CONCURRENT, "1 with", UNALIGNED);
    let to_files = config.get_if_set(STORAGE) == Some("filesystem");
    demand(!to_files || config.is_set(CHECKPOINTS), STORAGE, "a directory for it, but there is", CHECKPOINTS);
    let dir = config.is_set(CHECKPOINTS);
    let from = config.is_set(RECOVERY_PATH);
    demand(!from || dir, RECOVERY_PATH, "a directory for the checkpoints to come, but there is", CHECKPOINTS);
    let fresh: bool = config.get(RECOVERY_FRESH);
    demand(!fresh || dir, RECOVERY_FRESH, "a directory of checkpoints, but there is", CHECKPOINTS);
    demand(!(fresh && from), RECOVERY_FRESH, "false with", RECOVERY_PATH);

    demand(at_most(config, BACKOFF_INITIAL, BACKOFF_MAX), BACKOFF_INITIAL, "at most", BACKOFF_MAX);
    demand(
        config.get::<Duration>(HEARTBEAT) < config.get(HEARTBEAT_TIMEOUT),
        HEARTBEAT,
        "less than",
        HEARTBEAT_TIMEOUT,
    );
    let network_max = config.get_if_set::<u64>(NETWORK_MAX).unwrap_or(u64::MAX);
    // The default of the least is Flink's; only who sets it can mean it.
    demand(
        !config.is_set(NETWORK_MIN) || config.get::<u64>(NETWORK_MIN) <= network_max,
        NETWORK_MIN,
        "at most",
        NETWORK_MAX,
    );
    demand(
        !config.is_set(SEGMENT_SIZE_FLOOR)
            || config.get::<u64>(SEGMENT_SIZE_FLOOR) <= u64::from(config.segment_size()),
        SEGMENT_SIZE_FLOOR,
        "at most",
        SEGMENT_SIZE,
    );
    errors
}

/// Every key that was set and that another one makes idle.
pub(super) fn warnings(config: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut idle = |is_idle: bool, key: &str, reason: String| {
        if is_idle && config.is_set(key) {
            warnings.push(config.warning(row(key).name, reason));
        }
    };
    let because = |other: &str| format!("no effect with {other} = {}", config.text(other));

    idle(config.is_set(SHARDS), SLOTS, because(SHARDS));
    idle(config.word(IDLE) != "backoff", IDLE_SPIN, because(IDLE));
    idle(!config.get::<bool>(BUFFER_TIMEOUT_ENABLED), BUFFER_TIMEOUT, because(BUFFER_TIMEOUT_ENABLED));
    idle(!config.get::<bool>(UNALIGNED), ALIGNED_TIMEOUT, because(UNALIGNED));
    // A pause after each checkpoint leaves no room for a second one beside it.
    let pause = !config.get::<Duration>(MIN_PAUSE).is_zero();
    idle(pause && config.get::<u32>(CONCURRENT) > 1, CONCURRENT, because(MIN_PAUSE));

    // A job that keeps checkpoints takes one at its end at least.
    if !config.is_set(INTERVAL) && !config.is_set(CHECKPOINTS) {
        OF_CHECKPOINTS.iter().for_each(|key| idle(true, key, because(INTERVAL)));
    }

    let cap = config.max_buffers_per_channel();
    let beyond_cap = format!("only {cap} of them can be in use, {CHANNEL_BUFFERS} = {cap}");
    idle(config.exclusive_buffers_per_channel() > cap, EXCLUSIVE_BUFFERS, beyond_cap);
    let reserve = config.overdraft_reserve();
    let beyond_reserve = format!("only {reserve} of them can be borrowed, {OVERDRAFT_RESERVE} = {reserve}");
    idle(config.max_overdraft_buffers_per_gate() > reserve, OVERDRAFT_BUFFERS, beyond_reserve);

    if let Some(strategy) = config.get_if_set::<&str>(RESTART) {
        let others = super::keys::all().map(|key| key.name).filter(|name| {
            let of = name.strip_prefix("restart-strategy.").and_then(|rest| rest.split_once('.'));
            of.is_some_and(|(of, _)| of != strategy)
        });
        others.for_each(|name| idle(true, name, because(RESTART)));
    }
    warnings
}

fn at_most(config: &Config, less: &str, more: &str) -> bool {
    config.get::<Duration>(less) <= config.get(more)
}

impl Config {
    fn word(&self, name: &str) -> &'static str {
        self.get(name)
    }

    /// The effective value as text, for a message about `name`.
    fn text(&self, name: &str) -> String {
        self.entry(row(name).name).value.unwrap_or_else(|| "(none)".to_owned())
    }
}
