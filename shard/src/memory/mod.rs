//! Memory: one mapped region a shard, cut into segments, and the pool that lends them.

mod pool;
mod segment;

pub use pool::{Pool, PoolError, PoolUse, Share};
pub use segment::{Committed, Region, RegionError, SegmentId, SegmentState};
