//! Typed access to what the engine uses, one method a value.
//!
//! A key whose extreme value means "off" or "derive it" comes out as `Option`
//! or as an enum, so that no caller compares with −1 or 0.

use std::path::PathBuf;
use std::time::Duration;

use crate::checkpoint::Recovery;
use crate::coordinator::checkpoint::CheckpointSettings;
use crate::coordinator::restart::RestartSettings;
use crate::graph::key_group::GroupHash;
use tidegate_shard::config::{ExchangeConfig, FlushInterval, TurnConfig};
use tidegate_shard::driver::IdleStrategy;
use tidegate_storage::config::{BackendChoice, LogConfig};

use super::keys::Value;
use super::{Config, FromValue};

pub(super) const SHARDS: &str = "tidegate.shards";
pub(super) const SLOTS: &str = "taskmanager.numberOfTaskSlots";
pub(super) const QUANTUM: &str = "tidegate.shard.quantum";
pub(super) const IDLE: &str = "tidegate.idle";
pub(super) const IDLE_SPIN: &str = "tidegate.idle.spin";
pub(super) const STALL_THRESHOLD: &str = "tidegate.stall.threshold";
pub(super) const OVERDRAFT_RESERVE: &str = "tidegate.pool.overdraft-reserve";
pub(super) const PARALLELISM: &str = "parallelism.default";
pub(super) const PARALLELISM_MAX: &str = "pipeline.max-parallelism";
pub(super) const BUFFER_TIMEOUT: &str = "execution.buffer-timeout.interval";
pub(super) const BUFFER_TIMEOUT_ENABLED: &str = "execution.buffer-timeout.enabled";
pub(super) const SEGMENT_SIZE: &str = "taskmanager.memory.segment-size";
pub(super) const EXCLUSIVE_BUFFERS: &str = "taskmanager.network.memory.buffers-per-channel";
pub(super) const FLOATING_BUFFERS: &str = "taskmanager.network.memory.floating-buffers-per-gate";
pub(super) const CHANNEL_BUFFERS: &str = "taskmanager.network.memory.max-buffers-per-channel";
pub(super) const OVERDRAFT_BUFFERS: &str = "taskmanager.network.memory.max-overdraft-buffers-per-gate";
pub(super) const INTERVAL: &str = "execution.checkpointing.interval";
pub(super) const MODE: &str = "execution.checkpointing.mode";
pub(super) const CONCURRENT: &str = "execution.checkpointing.max-concurrent-checkpoints";
pub(super) const MIN_PAUSE: &str = "execution.checkpointing.min-pause";
pub(super) const RESTART: &str = "restart-strategy.type";
pub(super) const BACKOFF_INITIAL: &str = "restart-strategy.exponential-delay.initial-backoff";
pub(super) const BACKOFF_MAX: &str = "restart-strategy.exponential-delay.max-backoff";

/// What a key has that Flink calls endless: its largest 32-bit integer.
pub(super) const ENDLESS: u32 = i32::MAX as u32;
pub(super) const CHECKPOINTS: &str = "execution.checkpointing.dir";
pub(super) const RECOVERY_PATH: &str = "execution.state-recovery.path";
pub(super) const RECOVERY_FRESH: &str = "tidegate.state-recovery.fresh";
pub(super) const OUTPUT_BEYOND: &str = "tidegate.state-recovery.output-beyond";

/// When a partly filled buffer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTimeout {
    /// After every record.
    EveryRecord,
    /// Once in this time, which is not zero.
    After(Duration),
    /// Only when it is full, or when an event follows it.
    Never,
}

/// What runs the turns of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A pinned thread of our own.
    Thread,
    /// glommio's executor.
    Glommio,
}

impl FromValue for BufferTimeout {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Never => Some(BufferTimeout::Never),
            Value::Duration(Duration::ZERO) => Some(BufferTimeout::EveryRecord),
            Value::Duration(interval) => Some(BufferTimeout::After(*interval)),
            _ => None,
        }
    }
}

impl From<BufferTimeout> for FlushInterval {
    fn from(timeout: BufferTimeout) -> Self {
        match timeout {
            BufferTimeout::EveryRecord => FlushInterval::EveryRecord,
            BufferTimeout::After(interval) => FlushInterval::After(nanos(interval)),
            BufferTimeout::Never => FlushInterval::Never,
        }
    }
}

impl FromValue for Driver {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Word("thread") => Some(Driver::Thread),
            Value::Word("glommio") => Some(Driver::Glommio),
            _ => None,
        }
    }
}

impl FromValue for GroupHash {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Word("flink") => Some(GroupHash::Flink),
            Value::Word("fast") => Some(GroupHash::Fast),
            _ => None,
        }
    }
}

/// Shards and what drives them.
impl Config {
    /// Shards to run: `tidegate.shards`, else `taskmanager.numberOfTaskSlots` if that is set;
    /// `None` stands for every core we may run on.
    pub fn shards(&self) -> Option<u32> {
        self.get_if_set(SHARDS).or_else(|| self.is_set(SLOTS).then(|| self.get(SLOTS)))
    }

    /// Time that a task may run in one turn.
    pub fn shard_quantum(&self) -> Duration {
        self.get(QUANTUM)
    }

    /// What a shard without work does; how long it spins first is part of it.
    pub fn idle_strategy(&self) -> IdleStrategy {
        match self.get(IDLE) {
            "spin" => IdleStrategy::Spin,
            "park" => IdleStrategy::Park,
            _ => IdleStrategy::Backoff { spin_ns: nanos(self.get(IDLE_SPIN)) },
        }
    }

    /// What runs the turns.
    pub fn driver(&self) -> Driver {
        self.get("tidegate.driver")
    }

    /// How a shard runs its tasks: [`shard_quantum`](Self::shard_quantum), and the looks of the data plane.
    pub fn turn_config(&self) -> TurnConfig {
        TurnConfig { quantum_ns: nanos(self.shard_quantum()) }
    }

    /// Time in one turn after which the stall detector reports; longer than the quantum.
    pub fn stall_threshold(&self) -> Duration {
        self.get(STALL_THRESHOLD)
    }
}

/// Network memory and exchange.
impl Config {
    /// Bytes of a segment: [`SEGMENT_SIZE_MIN`](super::SEGMENT_SIZE_MIN) to
    /// [`SEGMENT_SIZE_MAX`](super::SEGMENT_SIZE_MAX), a multiple of 8.
    pub fn segment_size(&self) -> u32 {
        u32::try_from(self.get::<u64>(SEGMENT_SIZE)).expect("its bound is below 2^32")
    }

    /// Segments that each input channel has for itself, at least 1.
    pub fn exclusive_buffers_per_channel(&self) -> u32 {
        self.get(EXCLUSIVE_BUFFERS)
    }

    /// Segments that the channels of an input gate share by announced backlog.
    pub fn floating_buffers_per_gate(&self) -> u32 {
        self.get(FLOATING_BUFFERS)
    }

    /// Buffers that a subpartition may queue; when one is full, its partition is unavailable.
    pub fn max_buffers_per_channel(&self) -> u32 {
        self.get(CHANNEL_BUFFERS)
    }

    /// Segments that a result partition may borrow to finish the record in work.
    pub fn max_overdraft_buffers_per_gate(&self) -> u32 {
        self.get(OVERDRAFT_BUFFERS)
    }

    /// Segments that a shard keeps for the overdraft of all its result partitions.
    pub fn overdraft_reserve(&self) -> u32 {
        self.get(OVERDRAFT_RESERVE)
    }

    /// When a partly filled buffer goes out.
    pub fn buffer_timeout(&self) -> BufferTimeout {
        match self.get(BUFFER_TIMEOUT_ENABLED) {
            true => self.get(BUFFER_TIMEOUT),
            false => BufferTimeout::Never,
        }
    }

    /// Whether a turn ends by handing partly filled buffers to consumers that are idle.
    pub fn flush_to_idle(&self) -> bool {
        self.get("tidegate.exchange.flush-to-idle")
    }

    /// Bytes of the largest record, which is also a task's cap of emergency memory.
    pub fn max_record_size(&self) -> u32 {
        u32::try_from(self.get::<u64>("tidegate.record.max-size")).expect("its bound is below 2^32")
    }

    /// All of the above, as the data plane takes it.
    pub fn exchange_config(&self) -> ExchangeConfig {
        ExchangeConfig {
            segment_size_bytes: self.segment_size(),
            exclusive_per_channel: self.exclusive_buffers_per_channel(),
            floating_per_gate: self.floating_buffers_per_gate(),
            buffers_per_subpartition_max: self.max_buffers_per_channel(),
            overdraft_per_partition_max: self.max_overdraft_buffers_per_gate(),
            overdraft_reserve_max: self.overdraft_reserve(),
            record_size_bytes_max: self.max_record_size(),
            flush: self.buffer_timeout().into(),
            flush_to_idle: self.flush_to_idle(),
        }
    }
}

/// Job and stream.
impl Config {
    /// Name of the job.
    pub fn pipeline_name(&self) -> Option<String> {
        self.get_if_set("pipeline.name")
    }

    /// Subtasks of an operator that does not say how many, at least 1.
    pub fn parallelism(&self) -> u32 {
        self.get(PARALLELISM)
    }

    /// Key groups of every operator that does not say how many; `None` = derived from its parallelism.
    pub fn max_parallelism(&self) -> Option<u32> {
        u32::try_from(self.get::<i64>(PARALLELISM_MAX)).ok()
    }

    /// Whether operators joined by a forward exchange are fused into one subtask.
    pub fn operator_chaining(&self) -> bool {
        self.get("pipeline.operator-chaining.enabled")
    }

    /// What `pipeline.object-reuse` says; it changes nothing here, and setting it is warned of.
    pub fn object_reuse(&self) -> bool {
        self.get("pipeline.object-reuse")
    }

    /// Hash from a key to its key group.
    pub fn key_group_hash(&self) -> GroupHash {
        self.get("tidegate.key-group-hash")
    }

    /// Period in which sources emit watermarks; `None` = no periodic ones.
    pub fn auto_watermark_interval(&self) -> Option<Duration> {
        Some(self.get("pipeline.auto-watermark-interval")).filter(|interval: &Duration| !interval.is_zero())
    }

    /// Period in which sources emit latency markers; `None` = none.
    pub fn latency_interval(&self) -> Option<Duration> {
        Some(self.get("metrics.latency.interval")).filter(|interval: &Duration| !interval.is_zero())
    }

    /// Bytes that the segments of all shards may take together, where limited.
    pub fn network_memory_max(&self) -> Option<u64> {
        self.get_if_set("taskmanager.memory.network.max")
    }

    /// How long a task may take to let its job end.
    pub fn cancellation_timeout(&self) -> Duration {
        self.get("task.cancellation.timeout")
    }

    /// Whether text that is not UTF-8 fails the job, rather than being replaced and counted.
    pub fn strict_utf8(&self) -> bool {
        self.get("tidegate.source.strict-utf8")
    }
}

/// Checkpoints.
impl Config {
    /// Where the job's checkpoints are and from which it goes on; `None` without a directory.
    pub fn recovery(&self) -> Option<Recovery> {
        let path = |name| self.get_if_set::<String>(name).map(PathBuf::from);
        Some(Recovery {
            directory: path(CHECKPOINTS)?,
            from: path(RECOVERY_PATH),
            fresh: self.get(RECOVERY_FRESH),
            beyond: self.get(OUTPUT_BEYOND),
        })
    }

    /// When and how checkpoints are taken.
    pub fn checkpoint_settings(&self) -> CheckpointSettings {
        let min_pause: Duration = self.get(MIN_PAUSE);
        CheckpointSettings {
            interval_ns: self.checkpoint_interval().map(nanos),
            timeout_ns: nanos(self.get("execution.checkpointing.timeout")),
            min_pause_ns: nanos(min_pause),
            // A pause after each one leaves no room for a second one beside it.
            concurrent_max: if min_pause.is_zero() { self.get(CONCURRENT) } else { 1 },
            tolerable_failures: self.get("execution.checkpointing.tolerable-failed-checkpoints"),
            exactly_once: self.get::<&str>(MODE) == "EXACTLY_ONCE",
            after_tasks_finish: self.get("execution.checkpointing.checkpoints-after-tasks-finish"),
            history_max: self.get::<u32>("web.checkpoints.history") as usize,
        }
    }

    /// Period of checkpoints; `None` = there are none.
    pub fn checkpoint_interval(&self) -> Option<Duration> {
        self.get_if_set(INTERVAL)
    }

    /// Bounds of each shard's log.
    pub fn log_config(&self) -> LogConfig {
        LogConfig {
            file_size_bytes: self.get("tidegate.log.file-size"),
            backend: match self.get::<&str>("tidegate.log.backend") {
                "uring" => BackendChoice::Uring,
                "blocking" => BackendChoice::Blocking,
                _ => BackendChoice::Auto,
            },
            ..LogConfig::default()
        }
    }

    /// Completed checkpoints that are kept, at least 1.
    pub fn checkpoints_retained(&self) -> usize {
        self.get::<u32>("execution.checkpointing.num-retained") as usize
    }

    /// Whether a checkpoint writes what changed since the last one, rather than everything.
    pub fn checkpoint_incremental(&self) -> bool {
        self.get("execution.checkpointing.incremental")
    }

    /// State of up to so many bytes goes into the metadata of a checkpoint.
    pub fn checkpoint_inline_threshold(&self) -> u64 {
        self.get("execution.checkpointing.data-inline-threshold")
    }
}

/// Failures of a job.
impl Config {
    /// When a failed job is restarted: as set, else with checkpoints after times that grow, and without never,
    /// since it would begin from nothing.
    pub fn restart_strategy(&self) -> RestartSettings {
        let default = if self.checkpoint_interval().is_some() { "exponential-delay" } else { "disable" };
        match self.get_if_set::<&str>(RESTART).unwrap_or(default) {
            "fixed-delay" => RestartSettings::FixedDelay {
                attempts_max: self.get("restart-strategy.fixed-delay.attempts"),
                delay: self.get("restart-strategy.fixed-delay.delay"),
            },
            "failure-rate" => RestartSettings::FailureRate {
                failures_max: self.get("restart-strategy.failure-rate.max-failures-per-interval"),
                interval: self.get("restart-strategy.failure-rate.failure-rate-interval"),
                delay: self.get("restart-strategy.failure-rate.delay"),
            },
            "exponential-delay" => RestartSettings::ExponentialDelay {
                initial: self.get(BACKOFF_INITIAL),
                max: self.get(BACKOFF_MAX),
                multiplier: self.get("restart-strategy.exponential-delay.backoff-multiplier"),
                reset: self.get("restart-strategy.exponential-delay.reset-backoff-threshold"),
                jitter: self.get("restart-strategy.exponential-delay.jitter-factor"),
                attempts_max: Some(
                    self.get("restart-strategy.exponential-delay.attempts-before-reset-backoff"),
                )
                .filter(|attempts| *attempts != ENDLESS),
            },
            _ => RestartSettings::Disabled,
        }
    }
}

/// Whole nanoseconds; every bound of a duration is below 2^64 of them.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("bounded by DURATION_MAX")
}
