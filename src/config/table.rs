//! The table: one row a key, sections in the order of Flink's manual.
//!
//! A row reads: name, what a value may be, default ([`UNSET`] = none), what it
//! does here, what it means; then, after `aka`, the names it had in Flink 1.x.
//! Names, units and defaults are Flink 2.x's where Flink has the key. When a
//! part of the engine is built, its rows change from `Later` to `Use` or `Map`.

use std::time::Duration;

use super::keys::Effect::{Later, Map, Use, Warn};
use super::keys::{DURATION_MAX, Key, Kind, Section};
use super::{
    BUFFERS_PER_CHANNEL_MAX, BUFFERS_PER_CHANNEL_MIN, EXCLUSIVE_BUFFERS_MAX, FLOATING_BUFFERS_MAX,
    KEY_GROUPS_MAX, OVERDRAFT_BUFFERS_MAX, OVERDRAFT_RESERVE_MAX, RECORD_SIZE_MAX, SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN, SEGMENT_SIZE_STEP, SHARDS_MAX,
};

/// Every key, by subject.
pub(super) const SECTIONS: &[Section] = &[
    Section { title: "Engine", keys: ENGINE },
    Section { title: "Execution and pipeline", keys: PIPELINE },
    Section { title: "Network memory", keys: NETWORK },
    Section { title: "Checkpointing", keys: CHECKPOINTING },
    Section { title: "Restore", keys: RESTORE },
    Section { title: "State", keys: STATE },
    Section { title: "Failure handling", keys: FAILURE },
    Section { title: "REST, web, metrics", keys: REST },
    Section { title: "Of Flink's machinery only", keys: MACHINERY },
];

const UNSET: &str = "";

const BOOL: Kind = Kind::Bool;
const TEXT: Kind = Kind::Text;
const DURATION: Kind = duration(Duration::ZERO, DURATION_MAX);
const SIZE: Kind = size(0, u64::MAX);
const COUNT: Kind = int(0, i32::MAX as i64);
const COUNT_FROM_1: Kind = int(1, i32::MAX as i64);
const SHARE: Kind = Kind::Float { min: 0.0, max: 1.0 };
const PORT: Kind = int(0, u16::MAX as i64);

const fn int(min: i64, max: i64) -> Kind {
    Kind::Int { min, max, or: None }
}

const fn int_or(or: i64, min: i64, max: i64) -> Kind {
    Kind::Int { min, max, or: Some(or) }
}

const fn size(min: u64, max: u64) -> Kind {
    Kind::Size { min, max, step: 1 }
}

const fn duration(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, never: false }
}

const fn duration_from(min: Duration) -> Kind {
    duration(min, DURATION_MAX)
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

// Reasons that many rows share.
const NO_UNALIGNED: &str = "no effect yet: barriers overtake nothing in this version";
const NO_REMOTE: &str = "no effect yet: checkpoints are on a disk of this machine, there is no other copy";
const NO_SMALL_FILES: &str =
    "no effect: all state of a shard is in one log, there are no small files to merge";
const NO_REST: &str = "no effect yet: this version has no REST server";
const NO_REPORTERS: &str = "no effect yet: metrics are read in the process, this version has no reporters";
const NO_DEBLOATING: &str =
    "no effect yet: buffers have the size of a segment, this version does not debloat";
const NO_PROCESSES: &str = "no effect yet: a job runs in one process, nothing is sent over a network";
const NO_NETTY: &str = "no effect: shards pass segments through rings in memory, there is no Netty";
const NO_BLOCKING: &str = "no effect: exchanges are pipelined, none is written to disk between stages";
const NO_JVM: &str = "no effect: there is no JVM and none of its memory regions";
const NO_CLUSTER: &str = "no effect: the engine is one process, it has no cluster to talk to";
const NO_ROCKSDB: &str = "no effect: state is in the engine's own tables, there is no RocksDB";
const NO_PAGES: &str = "no effect yet: state is kept in memory and sizes itself in this version";

/// Keys that only this engine has.
#[rustfmt::skip]
const ENGINE: &[Key] = &[
    Key::new("tidegate.shards", int(1, SHARDS_MAX as i64), UNSET, Use,
        "shards, that is pinned threads; without it one on every core we may run on"),
    Key::new("tidegate.shard.quantum", duration(us(1), ms(100)), "100 us", Use,
        "time that a task may run before it lets mail and the other tasks of its shard run"),
    Key::new("tidegate.idle", Kind::Word(&["spin", "backoff", "park"]), "backoff", Use,
        "what a shard without work does: spin for ever, spin a while and then park, park at once"),
    Key::new("tidegate.idle.spin", duration(Duration::ZERO, ms(10)), "50 us", Use,
        "how long a shard without work spins before it parks (with tidegate.idle = backoff)"),
    Key::new("tidegate.driver", Kind::Word(&["thread", "glommio"]), "thread", Use,
        "what runs a shard's turns: a plain thread, or glommio's executor where it is built in"),
    Key::new("tidegate.exchange.flush-to-idle", BOOL, "true", Use,
        "whether a turn ends by handing partly filled buffers to consumers that have said they are idle"),
    Key::new("tidegate.record.max-size", size(1 << 10, RECORD_SIZE_MAX as u64), "64 mb", Use,
        "largest record; also the most emergency memory of a task that must finish a record without buffers"),
    Key::new("tidegate.pool.overdraft-reserve", int(0, OVERDRAFT_RESERVE_MAX as i64), "64", Use,
        "segments a shard keeps for the overdraft of all its result partitions together"),
    Key::new("tidegate.stall.threshold", duration(ms(1), Duration::from_secs(3600)), "100 ms", Use,
        "time in one turn after which the stall detector reports the task"),
    Key::new("tidegate.key-group-hash", Kind::Word(&["flink", "fast"]), "flink", Use,
        "hash from key to key group: Flink's, so that every key keeps its subtask, or a quicker one"),
    Key::new("tidegate.log.file-size", Kind::Size { min: 64 << 10, max: 1 << 32, step: 4096 }, "64 mb", Use,
        "bytes of one file of a shard's log; smaller ones are free again sooner, larger ones are switched less often"),
    Key::new("tidegate.log.backend", Kind::Word(&["auto", "uring", "blocking"]), "auto", Use,
        "what writes the log: io_uring, or a thread that blocks; auto takes what works in the directory"),
    Key::new("tidegate.source.strict-utf8", BOOL, "false", Use,
        "whether text that is not UTF-8 fails the job, rather than being replaced and counted"),
];

#[rustfmt::skip]
const PIPELINE: &[Key] = &[
    Key::new("parallelism.default", int(1, KEY_GROUPS_MAX as i64), "1", Use,
        "subtasks of an operator that does not say how many"),
    Key::new("execution.runtime-mode", Kind::Word(&["STREAMING", "BATCH", "AUTOMATIC"]), "STREAMING",
        Later("no effect yet: every job runs as STREAMING"), "whether the job runs as a stream or in stages"),
    Key::new("execution.buffer-timeout.enabled", BOOL, "true", Use,
        "whether partly filled buffers are flushed by time; false = only full buffers go out"),
    Key::new("execution.buffer-timeout.interval",
        Kind::Duration { min: Duration::ZERO, max: DURATION_MAX, never: true }, "100 ms", Use,
        "period of flushing partly filled buffers; 0 = after every record, -1 = never")
        .aka(&["execution.buffer-timeout"]),
    Key::new("pipeline.name", TEXT, UNSET, Use, "name of the job"),
    Key::new("pipeline.max-parallelism", int_or(-1, 1, KEY_GROUPS_MAX as i64), "-1", Use,
        "key groups, the bound of later rescaling; -1 = 1.5 x parallelism to a power of two, from 128 to 32768"),
    Key::new("pipeline.auto-generate-uids", BOOL, "true", Later("no effect yet: an operator without a uid is always named by its place in the graph"),
        "whether operators without a uid get one from their place in the graph"),
    Key::new("pipeline.auto-watermark-interval", DURATION, "200 ms",
        Later("no effect yet: sources emit watermarks when their code says so, this version adds none by itself"),
        "period in which sources emit watermarks; 0 = no periodic watermarks"),
    Key::new("pipeline.operator-chaining.enabled", BOOL, "true", Use,
        "whether operators joined by a forward exchange are fused into one subtask")
        .aka(&["pipeline.operator-chaining"]),
    Key::new("pipeline.object-reuse", BOOL, "false",
        Warn("no effect: records are read in place in the buffer, no object is made that could be reused"),
        "whether operators may share record objects"),
    Key::new("pipeline.watermark-alignment.allow-unaligned-source-splits", BOOL, "false",
        Later("no effect yet: this version does not align watermarks between sources"),
        "whether alignment may skip splits that cannot be paused"),
    Key::new("pipeline.jobvertex-parallelism-overrides", TEXT, UNSET,
        Later("no effect yet: parallelism is set in the job or by parallelism.default"),
        "parallelism by vertex id"),
    Key::new("pipeline.vertex-name-include-index-prefix", BOOL, "false",
        Later("no effect yet: vertex names are shown without a number"),
        "whether the name of a vertex begins with its number"),
];

#[rustfmt::skip]
const NETWORK: &[Key] = &[
    Key::new("taskmanager.memory.segment-size",
        Kind::Size { min: SEGMENT_SIZE_MIN as u64, max: SEGMENT_SIZE_MAX as u64, step: SEGMENT_SIZE_STEP as u64 },
        "32 kb", Use, "size of a segment, the unit of all network memory"),
    Key::new("taskmanager.memory.min-segment-size", size(SEGMENT_SIZE_MIN as u64, SEGMENT_SIZE_MAX as u64),
        "256 bytes", Later(NO_DEBLOATING), "least buffer size to which debloating may go"),
    Key::new("taskmanager.memory.network.fraction", SHARE, "0.1", Later(BY_CHANNELS),
        "share of memory for network buffers"),
    Key::new("taskmanager.memory.network.min", SIZE, "64 mb", Later(BY_CHANNELS), "least network memory"),
    Key::new("taskmanager.memory.network.max", SIZE, UNSET, Use, "most memory for segments, over all shards"),
    Key::new("taskmanager.network.memory.buffer-debloat.enabled", BOOL, "false", Later(NO_DEBLOATING),
        "whether buffers shrink so that what is in flight is consumed in the target time"),
    Key::new("taskmanager.network.memory.buffer-debloat.period", duration_from(ms(1)), "200 ms",
        Later(NO_DEBLOATING), "period of computing the buffer size anew"),
    Key::new("taskmanager.network.memory.buffer-debloat.target", duration_from(ms(1)), "1 s",
        Later(NO_DEBLOATING), "time in which the data in flight should be consumed"),
    Key::new("taskmanager.network.memory.buffer-debloat.threshold-percentages", int(0, 100), "25",
        Later(NO_DEBLOATING), "least change, in percent, for which the buffer size is changed"),
    Key::new("taskmanager.network.memory.buffer-debloat.samples", COUNT_FROM_1, "20", Later(NO_DEBLOATING),
        "past throughputs over which the estimate is smoothed"),
    Key::new("taskmanager.network.memory.buffers-per-channel", int(1, EXCLUSIVE_BUFFERS_MAX as i64), "2", Use,
        "exclusive buffers of an input channel (Flink 1.x; a constant in 2.x)"),
    Key::new("taskmanager.network.memory.floating-buffers-per-gate", int(0, FLOATING_BUFFERS_MAX as i64), "8", Use,
        "buffers that the channels of a gate share by backlog (Flink 1.x; a constant in 2.x)"),
    Key::new("taskmanager.network.memory.max-buffers-per-channel", int(BUFFERS_PER_CHANNEL_MIN as i64, BUFFERS_PER_CHANNEL_MAX as i64), "10", Use,
        "most buffers queued in a subpartition; at one that is full the partition is unavailable (1.x)"),
    Key::new("taskmanager.network.memory.max-overdraft-buffers-per-gate", int(0, OVERDRAFT_BUFFERS_MAX as i64),
        "20", Use, "most buffers a result partition may borrow to finish a record (1.x, default 5; 2.x 20)"),
    Key::new("taskmanager.network.memory.read-buffer.required-per-gate.max", COUNT, UNSET,
        Warn("no effect: every channel has its exclusive buffers, none is optional"),
        "most buffers that a gate requires before it starts"),
    Key::new("taskmanager.network.detailed-metrics", BOOL, "false",
        Later("no effect yet: queue lengths are always measured, for a subtask as a whole"),
        "whether queue lengths are reported with least, greatest and average over channels"),
    Key::new("taskmanager.network.max-num-tcp-connections", COUNT_FROM_1, "1", Later(NO_PROCESSES),
        "connections between two processes"),
    Key::new("taskmanager.network.partition-request-timeout", DURATION, "10 s", Later(NO_PROCESSES),
        "time until a consumer must have found its producer"),
    Key::new("taskmanager.network.compression.codec", TEXT, UNSET, Warn(NO_BLOCKING),
        "compression of exchanges between stages"),
    Key::new("taskmanager.network.netty.*", TEXT, UNSET, Warn(NO_NETTY), "Netty's threads and sockets"),
    Key::new("taskmanager.network.blocking-shuffle.*", TEXT, UNSET, Warn(NO_BLOCKING), "exchanges between stages"),
    Key::new("taskmanager.network.sort-shuffle.*", TEXT, UNSET, Warn(NO_BLOCKING), "sorted exchanges between stages"),
    Key::new("taskmanager.network.hybrid-shuffle.*", TEXT, UNSET, Warn(NO_BLOCKING), "exchanges partly on disk"),
    Key::new("tidegate.state-recovery.fresh", BOOL, "false", Use,
        "begin anew, whatever execution.checkpointing.dir holds"),
    Key::new("tidegate.state-recovery.output-beyond", Kind::Word(&["refuse", "retract", "accept"]), "refuse", Use,
        "what becomes of output that checkpoints after the one restored have published already"),
    Key::new("taskmanager.numberOfTaskSlots", int(1, SHARDS_MAX as i64), "1",
        Map("number of shards, if set and tidegate.shards is not"), "slots of a process"),
];

const BY_CHANNELS: &str = "no effect yet: a shard's pool is sized by the channels and gates of its subtasks";

#[rustfmt::skip]
const CHECKPOINTING: &[Key] = &[
    Key::new("execution.checkpointing.interval", duration_from(ms(10)), UNSET, Use,
        "period of checkpoints; without it there are none"),
    Key::new("execution.checkpointing.interval-during-backlog", DURATION, UNSET, Later("no effect yet: no source tells of a backlog"),
        "period while a source reports backlog; 0 = no checkpoints then"),
    Key::new("execution.checkpointing.mode", Kind::Word(&["EXACTLY_ONCE", "AT_LEAST_ONCE"]), "EXACTLY_ONCE",
        Use, "whether a record counts once, or at least once, after a failure"),
    Key::new("execution.checkpointing.timeout", duration_from(ms(10)), "10 min", Use,
        "age at which a checkpoint expires"),
    Key::new("execution.checkpointing.min-pause", DURATION, "0 ms", Use,
        "least time from the end of a checkpoint to the start of the next"),
    Key::new("execution.checkpointing.max-concurrent-checkpoints", COUNT_FROM_1, "1", Use,
        "checkpoints that may run at a time; 1 if they are unaligned"),
    Key::new("execution.checkpointing.tolerable-failed-checkpoints", COUNT, "0", Use,
        "failed checkpoints in a row that do not fail the job"),
    Key::new("execution.checkpointing.num-retained", COUNT_FROM_1, "1", Use,
        "completed checkpoints that are kept").aka(&["state.checkpoints.num-retained"]),
    Key::new("execution.checkpointing.externalized-checkpoint-retention",
        Kind::Word(&["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"]),
        "NO_EXTERNALIZED_CHECKPOINTS", Later("no effect yet: completed checkpoints are kept, however the job ends"), "what becomes of checkpoints when the job ends"),
    Key::new("execution.checkpointing.unaligned.enabled", BOOL, "false", Later(NO_UNALIGNED),
        "whether barriers overtake data; needs EXACTLY_ONCE and one checkpoint at a time")
        .aka(&["execution.checkpointing.unaligned"]),
    Key::new("execution.checkpointing.aligned-checkpoint-timeout", DURATION, "0 ms", Later(NO_UNALIGNED),
        "start delay after which an aligned checkpoint goes on unaligned; 0 = unaligned from the start")
        .aka(&["execution.checkpointing.alignment-timeout"]),
    Key::new("execution.checkpointing.unaligned.forced", BOOL, "false", Later(NO_UNALIGNED),
        "unaligned also on exchanges that do not allow it"),
    Key::new("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", COUNT_FROM_1, "5",
        Warn("no effect: all subtasks of a shard write to one log"), "subtasks that share a file of channel state"),
    Key::new("execution.checkpointing.unaligned.interruptible-timers.enabled", BOOL, "false", Later(NO_UNALIGNED),
        "whether a barrier may come between timers that are due together"),
    Key::new("execution.checkpointing.unaligned.recover-output-on-downstream.enabled", BOOL, "false",
        Later(NO_UNALIGNED), "whether output in flight is restored at the consumer"),
    Key::new("execution.checkpointing.unaligned.during-recovery.enabled", BOOL, "false", Later(NO_UNALIGNED),
        "whether checkpoints are taken while channel state is restored"),
    Key::new("execution.checkpointing.recover-without-channel-state.checkpoint-id", int(-1, i64::MAX), "-1",
        Later(NO_UNALIGNED), "checkpoint whose channel state is dropped at restore; -1 = none"),
    Key::new("execution.checkpointing.checkpoints-after-tasks-finish", BOOL, "true", Use,
        "whether checkpoints go on when some subtasks have finished")
        .aka(&["execution.checkpointing.checkpoints-after-tasks-finish.enabled"]),
    Key::new("execution.checkpointing.storage", Kind::Word(&["jobmanager", "filesystem"]), UNSET,
        Later("no effect yet: checkpoints are kept in files, without a directory in a temporary one"), "where checkpoints are kept; a directory selects filesystem")
        .aka(&["state.checkpoint-storage"]),
    Key::new("execution.checkpointing.dir", TEXT, UNSET, Use, "directory of the job's checkpoints; without it they are kept in a temporary one")
        .aka(&["state.checkpoints.dir"]),
    Key::new("execution.checkpointing.savepoint-dir", TEXT, UNSET, Later("no effect yet: this version takes no savepoints"),
        "directory of savepoints that name none").aka(&["state.savepoints.dir"]),
    Key::new("execution.checkpointing.create-subdir", BOOL, "true", Later("no effect yet: execution.checkpointing.dir is the directory of one job"),
        "whether a job's checkpoints are in a directory of its id"),
    Key::new("execution.checkpointing.incremental", BOOL, "true", Use,
        "whether a checkpoint writes changes only; on by default here, off in Flink").aka(&["state.backend.incremental"]),
    Key::new("execution.checkpointing.local-backup.enabled", BOOL, "false", Later(NO_REMOTE),
        "whether a copy is kept on the local disk"),
    Key::new("execution.checkpointing.local-backup.dirs", TEXT, UNSET, Later(NO_REMOTE),
        "directories of the local copy").aka(&["taskmanager.state.local.root-dirs"]),
    Key::new("execution.checkpointing.data-inline-threshold", size(0, 1 << 20), "20 kb", Use,
        "state up to this size goes into _metadata").aka(&["state.storage.fs.memory-threshold"]),
    Key::new("execution.checkpointing.write-buffer-size", size(1, 1 << 30), "4 kb", Later("no effect yet: the log is written in blocks of its own size"),
        "buffer in front of a checkpoint file").aka(&["state.storage.fs.write-buffer-size"]),
    Key::new("execution.checkpointing.snapshot-compression", BOOL, "false", Later("no effect yet: state is written as it is"),
        "whether full snapshots are compressed"),
    Key::new("execution.checkpointing.cleaner.parallel-mode", BOOL, "true",
        Warn("no effect: retained state is freed a log file at a time"), "whether files are deleted in parallel")
        .aka(&["state.checkpoint.cleaner.parallel-mode"]),
    Key::new("execution.checkpointing.file-merging.enabled", BOOL, "false", Warn(NO_SMALL_FILES),
        "whether small files are merged"),
    Key::new("execution.checkpointing.file-merging.max-file-size", size(1, u64::MAX), "32 mb", Warn(NO_SMALL_FILES),
        "size at which a merged file is closed"),
    Key::new("execution.checkpointing.file-merging.max-space-amplification",
        Kind::Float { min: 1.0, max: f64::MAX }, "2.0", Warn(NO_SMALL_FILES),
        "bytes in merged files to bytes still in use at which they are rewritten"),
    Key::new("execution.checkpointing.file-merging.across-checkpoint-boundary", BOOL, "false",
        Warn(NO_SMALL_FILES), "whether a merged file holds several checkpoints"),
    Key::new("execution.checkpointing.file-merging.pool-blocking", BOOL, "false", Warn(NO_SMALL_FILES),
        "whether a writer waits for a merged file to be free"),
];

#[rustfmt::skip]
const RESTORE: &[Key] = &[
    Key::new("execution.state-recovery.path", TEXT, UNSET, Use,
        "checkpoint or savepoint to start from").aka(&["execution.savepoint.path"]),
    Key::new("execution.state-recovery.claim-mode", Kind::Word(&["NO_CLAIM", "CLAIM"]), "NO_CLAIM", Later("no effect yet: a job goes on in the directory whose checkpoint it is restored from"),
        "whether the engine becomes the owner of what it starts from").aka(&["execution.savepoint-restore-mode"]),
    Key::new("execution.state-recovery.ignore-unclaimed-state", BOOL, "false", Later("no effect yet: state that no operator takes is an error"),
        "whether state of operators that are gone may be left behind")
        .aka(&["execution.savepoint.ignore-unclaimed-state"]),
    Key::new("execution.state-recovery.from-local", BOOL, "false", Later(NO_REMOTE),
        "whether the local copy is read first").aka(&["state.backend.local-recovery"]),
];

#[rustfmt::skip]
const STATE: &[Key] = &[
    Key::new("state.backend.type", Kind::Word(&["hashmap", "rocksdb", "forst"]), "hashmap",
        Later("no effect yet: state is in the engine's own tables in memory, whichever is named"),
        "where state is kept").aka(&["state.backend"]),
    Key::new("state.backend.rocksdb.localdir", TEXT, UNSET, Later(NO_PAGES), "directory of state on disk"),
    Key::new("state.backend.rocksdb.predefined-options",
        Kind::Word(&["DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED"]),
        "DEFAULT", Later(NO_PAGES), "preset for a kind of disk"),
    Key::new("state.backend.rocksdb.memory.managed", BOOL, "true", Later(NO_PAGES),
        "whether state shares one bounded memory"),
    Key::new("state.backend.rocksdb.memory.write-buffer-ratio", SHARE, "0.5", Later(NO_PAGES),
        "share of that memory for writes"),
    Key::new("state.backend.rocksdb.memory.high-prio-pool-ratio", SHARE, "0.1", Later(NO_PAGES),
        "share of that memory for indexes"),
    Key::new("state.backend.rocksdb.block.cache-size", SIZE, "8 mb", Later(NO_PAGES), "cache of blocks"),
    Key::new("state.backend.rocksdb.block.blocksize", size(1, u64::MAX), "4 kb", Later(NO_PAGES), "size of a block"),
    Key::new("state.backend.rocksdb.writebuffer.size", size(1, u64::MAX), "64 mb", Later(NO_PAGES),
        "size of a write buffer"),
    Key::new("state.backend.rocksdb.writebuffer.count", COUNT_FROM_1, "2", Later(NO_PAGES), "write buffers"),
    Key::new("state.backend.rocksdb.thread.num", COUNT_FROM_1, "2", Warn(NO_ROCKSDB), "background threads"),
    Key::new("state.backend.rocksdb.checkpoint.transfer.thread.num", COUNT_FROM_1, "4", Later(NO_PAGES),
        "files copied at a time"),
    Key::new("state.backend.rocksdb.checkpoint.upload-jitter", DURATION, "0 ms", Later(NO_PAGES),
        "longest random delay before an upload"),
    Key::new("state.backend.rocksdb.compaction.*", TEXT, UNSET, Warn(NO_ROCKSDB), "compaction"),
    Key::new("state.backend.rocksdb.log.*", TEXT, UNSET, Warn(NO_ROCKSDB), "RocksDB's own log"),
    Key::new("state.backend.rocksdb.metrics.*", TEXT, UNSET, Warn(NO_ROCKSDB), "RocksDB's own metrics"),
];

/// Flink calls it endless: the largest 32-bit integer.
const ENDLESS: &str = "2147483647";

#[rustfmt::skip]
const FAILURE: &[Key] = &[
    Key::new("restart-strategy.type",
        Kind::Word(&["none", "off", "disable", "fixed-delay", "failure-rate", "exponential-delay"]), UNSET,
        Use, "when a failed job is restarted; without it: disable, or with checkpoints exponential-delay")
        .aka(&["restart-strategy"]),
    Key::new("restart-strategy.fixed-delay.attempts", COUNT, "1", Use, "restarts before the job fails"),
    Key::new("restart-strategy.fixed-delay.delay", DURATION, "1 s", Use, "time before a restart"),
    Key::new("restart-strategy.failure-rate.max-failures-per-interval", COUNT_FROM_1, "1", Use,
        "failures in an interval before the job fails"),
    Key::new("restart-strategy.failure-rate.failure-rate-interval", duration_from(ms(1)), "1 min", Use,
        "interval in which failures are counted"),
    Key::new("restart-strategy.failure-rate.delay", DURATION, "1 s", Use, "time before a restart"),
    Key::new("restart-strategy.exponential-delay.initial-backoff", duration_from(ms(1)), "1 s", Use,
        "time before the first restart"),
    Key::new("restart-strategy.exponential-delay.max-backoff", duration_from(ms(1)), "1 min", Use,
        "longest time before a restart"),
    Key::new("restart-strategy.exponential-delay.backoff-multiplier", Kind::Float { min: 1.0, max: 1e6 }, "1.5",
        Use, "factor from one delay to the next"),
    Key::new("restart-strategy.exponential-delay.reset-backoff-threshold", duration_from(ms(1)), "1 h",
        Use, "time without failure after which the delay starts anew"),
    Key::new("restart-strategy.exponential-delay.jitter-factor", SHARE, "0.1", Use,
        "share of the delay by which it varies at random"),
    Key::new("restart-strategy.exponential-delay.attempts-before-reset-backoff", COUNT_FROM_1, ENDLESS,
        Use, "restarts before the job fails; the default is endless"),
    Key::new("jobmanager.execution.failover-strategy", Kind::Word(&["region", "full"]), "region",
        Later("no effect yet: all tasks of a job are restarted together"), "what is restarted: the failed part of the graph, or all of it"),
    Key::new("heartbeat.interval", duration_from(ms(1)), "10 s", Later(NO_PROCESSES), "period of heartbeats"),
    Key::new("heartbeat.timeout", duration_from(ms(1)), "50 s", Later(NO_PROCESSES),
        "silence after which a process is taken for dead"),
    Key::new("task.cancellation.interval", duration_from(ms(1)), "30 s",
        Later("no effect yet: a task is told once that it is cancelled"), "period of telling a task that it is cancelled"),
    Key::new("task.cancellation.timeout", DURATION, "3 min",
        Use, "time until a job that does not let itself be stopped is given up"),
];

#[rustfmt::skip]
const REST: &[Key] = &[
    Key::new("rest.address", TEXT, UNSET, Later(NO_REST), "address that clients use"),
    Key::new("rest.bind-address", TEXT, UNSET, Later(NO_REST), "address on which the server listens"),
    Key::new("rest.port", PORT, "8081", Later(NO_REST), "port that clients use"),
    Key::new("rest.bind-port", Kind::Ports, "8081", Later(NO_REST), "port or range of ports on which the server listens"),
    Key::new("rest.flamegraph.enabled", BOOL, "false", Later(NO_REST), "whether stacks may be sampled"),
    Key::new("web.refresh-interval", DURATION, "3 s", Later(NO_REST), "period in which the page reads anew"),
    Key::new("web.checkpoints.history", COUNT, "10", Use, "past checkpoints shown"),
    Key::new("web.exception-history-size", COUNT, "16", Later(NO_REST), "past failures shown"),
    Key::new("web.history", COUNT, "5", Later(NO_REST), "past jobs shown"),
    Key::new("web.cancel.enable", BOOL, "true", Later(NO_REST), "whether the page may cancel jobs"),
    Key::new("web.submit.enable", BOOL, "true", Later(NO_REST), "whether the page may submit jobs"),
    Key::new("web.adaptive-scheduler.rescale-history.size", COUNT, "0", Later(NO_REST), "past rescalings shown"),
    Key::new("metrics.reporters", TEXT, UNSET, Later(NO_REPORTERS), "names of the reporters"),
    Key::new("metrics.reporter.prom.port", Kind::Ports, "9249", Later(NO_REPORTERS),
        "port or range of ports from which Prometheus reads"),
    Key::new("metrics.reporter.*.interval", DURATION, "10 s", Later(NO_REPORTERS), "period of a reporter"),
    Key::new("metrics.reporter.*.filter.includes", TEXT, "*:*:*", Later(NO_REPORTERS), "metrics that are reported"),
    Key::new("metrics.reporter.*.scope.delimiter", TEXT, ".", Later(NO_REPORTERS), "what stands between parts of a name"),
    Key::new("metrics.reporter.*", TEXT, UNSET, Later(NO_REPORTERS), "settings of a reporter"),
    Key::new("metrics.latency.interval", DURATION, "0 ms", Use,
        "period in which sources emit latency markers; 0 = none"),
    Key::new("metrics.latency.granularity", Kind::Word(&["single", "operator", "subtask"]), "operator",
        Later("no effect yet: latency is kept by source and operator"), "what latencies are told apart by"),
    Key::new("metrics.latency.history-size", COUNT_FROM_1, "128",
        Later("no effect yet: latencies are kept in histograms of fixed size"), "latencies kept"),
    Key::new("metrics.system-resource", BOOL, "false", Later(NO_REPORTERS), "whether the machine is measured too"),
    Key::new("metrics.system-resource-probing-interval", duration_from(ms(1)), "5 s", Later(NO_REPORTERS),
        "period of measuring the machine"),
    Key::new("metrics.job.status.enable", TEXT, "CURRENT_TIME", Later(NO_REPORTERS),
        "which of STATE, CURRENT_TIME and TOTAL_TIME are reported of a job"),
    Key::new("metrics.scope.jm", TEXT, "<host>.jobmanager", Later(NO_REPORTERS), "names of the coordinator's metrics"),
    Key::new("metrics.scope.jm-job", TEXT, "<host>.jobmanager.<job_name>", Later(NO_REPORTERS),
        "names of a job's metrics"),
    Key::new("metrics.scope.tm", TEXT, "<host>.taskmanager.<tm_id>", Later(NO_REPORTERS),
        "names of a process's metrics"),
    Key::new("metrics.scope.tm-job", TEXT, "<host>.taskmanager.<tm_id>.<job_name>", Later(NO_REPORTERS),
        "names of a job's metrics in a process"),
    Key::new("metrics.scope.task", TEXT, "<host>.taskmanager.<tm_id>.<job_name>.<task_name>.<subtask_index>",
        Later(NO_REPORTERS), "names of a task's metrics"),
    Key::new("metrics.scope.operator", TEXT,
        "<host>.taskmanager.<tm_id>.<job_name>.<operator_name>.<subtask_index>", Later(NO_REPORTERS),
        "names of an operator's metrics"),
];

/// What an ordinary `config.yaml` of Flink sets besides: taken, so that the
/// file can be used as it is, and named. Spaces of keys in which some have an
/// effect are listed key by key, since a family would hide a slip of the pen.
#[rustfmt::skip]
const MACHINERY: &[Key] = &[
    Key::new("jobmanager.bind-host", TEXT, UNSET, Warn(NO_CLUSTER), "address of the coordinator"),
    Key::new("jobmanager.rpc.*", TEXT, UNSET, Warn(NO_CLUSTER), "address of the coordinator"),
    Key::new("jobmanager.memory.*", TEXT, UNSET, Warn(NO_JVM), "memory of the coordinator"),
    Key::new("taskmanager.host", TEXT, UNSET, Warn(NO_CLUSTER), "address of a process"),
    Key::new("taskmanager.bind-host", TEXT, UNSET, Warn(NO_CLUSTER), "address of a process"),
    Key::new("taskmanager.rpc.*", TEXT, UNSET, Warn(NO_CLUSTER), "ports of a process"),
    Key::new("taskmanager.data.*", TEXT, UNSET, Warn(NO_CLUSTER), "data ports of a process"),
    Key::new("taskmanager.memory.process.size", TEXT, UNSET, Warn(NO_JVM), "memory of a process"),
    Key::new("taskmanager.memory.flink.size", TEXT, UNSET, Warn(NO_JVM), "memory of a process, without the JVM's own"),
    Key::new("taskmanager.memory.framework.*", TEXT, UNSET, Warn(NO_JVM), "memory of the framework"),
    Key::new("taskmanager.memory.task.*", TEXT, UNSET, Warn(NO_JVM), "memory of user code"),
    Key::new("taskmanager.memory.managed.*", TEXT, UNSET, Warn(NO_JVM), "memory of state"),
    Key::new("taskmanager.memory.jvm-metaspace.size", TEXT, UNSET, Warn(NO_JVM), "memory of classes"),
    Key::new("taskmanager.memory.jvm-overhead.*", TEXT, UNSET, Warn(NO_JVM), "memory of the JVM"),
    Key::new("env.*", TEXT, UNSET, Warn(NO_JVM), "environment of the JVM"),
    Key::new("classloader.*", TEXT, UNSET, Warn(NO_JVM), "loading of classes"),
    Key::new("io.tmp.dirs", TEXT, UNSET, Warn("no effect: nothing is spilled to temporary files"), "temporary directories"),
    Key::new("blob.*", TEXT, UNSET, Warn(NO_CLUSTER), "transport of jars"),
    Key::new("akka.*", TEXT, UNSET, Warn(NO_CLUSTER), "messages between processes (1.x)"),
    Key::new("pekko.*", TEXT, UNSET, Warn(NO_CLUSTER), "messages between processes"),
    Key::new("kubernetes.*", TEXT, UNSET, Warn(NO_CLUSTER), "Flink on Kubernetes"),
    Key::new("yarn.*", TEXT, UNSET, Warn(NO_CLUSTER), "Flink on YARN"),
    Key::new("high-availability.*", TEXT, UNSET, Later(NO_PROCESSES), "survival of the coordinator"),
    Key::new("high-availability", TEXT, UNSET, Later(NO_PROCESSES), "survival of the coordinator (1.x)"),
    Key::new("security.ssl.*", TEXT, UNSET, Later(NO_PROCESSES), "encryption"),
];
