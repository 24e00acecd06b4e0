//! Tidegate: a stream-processing engine for one Linux machine, one pinned shard a core.

pub mod config;
pub mod graph;
pub mod operator;
pub mod record;
pub mod sink;
pub mod source;
