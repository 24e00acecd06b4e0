//! Tidegate: a stream-processing engine for one Linux machine, one pinned shard a core.

pub mod config;
pub mod graph;
#[doc(hidden)]
pub mod limit;
pub mod operator;
pub mod record;
pub mod sink;
pub mod source;
