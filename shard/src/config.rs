//! Bounds of the data plane, with units and what happens at each.

/// Smallest segment in bytes: room for one frame header and a piece of a record.
pub const SEGMENT_SIZE_BYTES_MIN: u32 = 64;

/// Largest segment in bytes: the committed length has 31 bits, and a region is cut into whole segments.
pub const SEGMENT_SIZE_BYTES_MAX: u32 = 1 << 20;

/// Events that may wait in one channel's ring beside its data: barrier, cancel, end of data, end of input.
pub const EVENTS_PER_CHANNEL_MAX: u32 = 4;

/// Least cap of a subpartition: at one, the open segment would close its own partition, and since nothing is
/// added to it any more it would never be sealed and never come back.
pub const BUFFERS_PER_SUBPARTITION_MAX_MIN: u32 = 2;

/// Length of a record in bytes that a frame header can state: 28 bits.
pub const RECORD_SIZE_BYTES_MAX: u32 = (1 << 28) - 1;

/// Mail that waits for one shard: beyond it the coordinator is refused and tries again.
pub const SHARD_MAIL_MAX: usize = 256;

/// How a shard's exchange is sized; the same on all shards of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeConfig {
    /// Size of a segment in bytes, `SEGMENT_SIZE_BYTES_MIN..=SEGMENT_SIZE_BYTES_MAX`, a multiple of 8.
    pub segment_size_bytes: u32,
    /// Segments that each input channel may always hold: at least one, unless a gate has as many floating ones
    /// as channels, since a segment that is handed over half filled keeps its permit until it is finished.
    pub exclusive_per_channel: u32,
    /// Further segments that the channels of one gate may hold together.
    pub floating_per_gate: u32,
    /// Segments of one subpartition at which its whole partition becomes unavailable, at least
    /// [`BUFFERS_PER_SUBPARTITION_MAX_MIN`]; more only as overdraft.
    pub buffers_per_subpartition_max: u32,
    /// Segments beyond its pool that a partition may take to finish the record in work.
    pub overdraft_per_partition_max: u32,
    /// Overdraft segments that all partitions of a shard share.
    pub overdraft_reserve_max: u32,
    /// Largest record, and most bytes a partition may hold back on the heap, in bytes.
    pub record_size_bytes_max: u32,
    /// How often a partly filled segment is handed over.
    pub flush: FlushInterval,
    /// Whether the end of a turn hands over to consumers that have said they are idle.
    pub flush_to_idle: bool,
}

/// When a partly filled segment is handed to its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushInterval {
    /// After every record.
    EveryRecord,
    /// After so many nanoseconds at most.
    After(u64),
    /// Only when full.
    Never,
}

impl Default for ExchangeConfig {
    fn default() -> Self {
        ExchangeConfig {
            segment_size_bytes: 32 << 10,
            exclusive_per_channel: 2,
            floating_per_gate: 8,
            buffers_per_subpartition_max: 10,
            overdraft_per_partition_max: 20,
            overdraft_reserve_max: 64,
            record_size_bytes_max: 64 << 20,
            flush: FlushInterval::After(100_000_000),
            flush_to_idle: true,
        }
    }
}

impl ExchangeConfig {
    /// Slots of a channel's data ring and of its return ring: whatever a subpartition may own fits in.
    pub fn ring_slots(&self) -> usize {
        let most =
            self.buffers_per_subpartition_max + self.overdraft_per_partition_max + EVENTS_PER_CHANNEL_MAX;
        most.next_power_of_two() as usize
    }

    /// Segments that a partition with `channels` subpartitions wants: two for each and eight in common.
    pub fn pool_wanted(&self, channels: u32) -> u32 {
        2 * channels + 8
    }

    /// Segments that it must have: an open one for each subpartition and one more to go on with.
    pub fn pool_guaranteed(&self, channels: u32) -> u32 {
        channels + 1
    }
}

/// How a shard runs its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnConfig {
    /// How long a task works before it looks at its mail, in nanoseconds.
    pub quantum_ns: u64,
}

impl Default for TurnConfig {
    fn default() -> Self {
        TurnConfig { quantum_ns: 100_000 }
    }
}
