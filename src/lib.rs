//! Tidegate: a stream-processing engine for one Linux machine, one pinned shard a core.

pub mod api;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod coordinator;
pub mod graph;
#[doc(hidden)]
pub mod limit;
pub mod operator;
pub mod partitioner;
pub mod record;
mod sealed;
pub mod sink;
pub mod source;
pub mod state;
pub mod subtask;

/// The README's example, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
