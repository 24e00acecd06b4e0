//! Outputs: records into segments, segments towards their consumers.

mod partition;
mod subpartition;

pub use partition::{PartitionFailure, PartitionLoad, ResultPartition};
