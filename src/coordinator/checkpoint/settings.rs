//! How checkpoints are taken.

/// How checkpoints are taken, as configured under `execution.checkpointing.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSettings {
    /// From the start of a checkpoint to the start of the next; `None`: only on request.
    pub interval_ns: Option<u64>,
    /// Age at which a checkpoint expires.
    pub timeout_ns: u64,
    /// From the end of a checkpoint to the start of the next, at least.
    pub min_pause_ns: u64,
    /// Checkpoints that may be under way at a time, at least 1.
    pub concurrent_max: u32,
    /// Counted failures in a row that the job bears.
    pub tolerable_failures: u32,
    /// Whether a barrier holds back what is behind it until all have come. Without, records between them are in
    /// the checkpoint and come again after a restart.
    pub exactly_once: bool,
    /// Whether checkpoints go on when some tasks have finished.
    pub after_tasks_finish: bool,
    /// Ended checkpoints that are remembered.
    pub history_max: usize,
}

impl Default for CheckpointSettings {
    /// As Flink: none but on request.
    fn default() -> Self {
        CheckpointSettings {
            interval_ns: None,
            timeout_ns: 600_000_000_000,
            min_pause_ns: 0,
            concurrent_max: 1,
            tolerable_failures: 0,
            exactly_once: true,
            after_tasks_finish: true,
            history_max: 10,
        }
    }
}
