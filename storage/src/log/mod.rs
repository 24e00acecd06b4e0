//! The append-only log: recycled files of checksummed frames, one writer a shard.
//!
//! | module | what it is |
//! | ------ | ---------- |
//! | [`frame`] | one frame: header, payload, padding |
//! | [`index`] | the frame that lists a snapshot's frames |
//! | [`file`](mod@file) | log files: names, preallocation, recycling |
//! | [`writer`] | appending: staging, writes in flight, group commit, failures |
//! | [`reader`] | reading a handle, and checking it |
//! | [`recover`] | finding the end of a log that nobody else describes |
//! | [`reclaim`] | which files nothing needs, what to write again |
//!
//! **What ends a log is said from outside.** With several writes in flight a hole followed by good frames is an
//! ordinary crash, and behind the end of a recycled file lie good frames of its earlier life. So a shard's log is
//! never scanned into use: what a completed checkpoint names must verify, the rest is garbage, and a new run
//! begins new files. Only the coordinator's commits, one frame at a time, are found by a scan: [`recover`].

pub mod file;
pub mod frame;
pub mod index;
pub mod reader;
pub mod reclaim;
pub mod recover;
mod state;
#[cfg(test)]
mod tests;
pub mod writer;
