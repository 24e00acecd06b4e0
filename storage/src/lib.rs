//! What outlives a process: bytes with a checksum. No operators, no channels.
//!
//! ```text
//! snapshot ─► log::writer ─► device ─► disk        restore ◄─ log::reader ◄─ checkpoint_store
//!             appended >= written >= durable
//! ```
//!
//! | module | what it is | may use |
//! | ------ | ---------- | ------- |
//! | [`config`], [`error`], [`format`](mod@format), [`handle`] | bounds; what can fail; every byte layout; where a frame lies | nothing |
//! | [`failpoint`] | where tests end the process or have the disk fail; nothing in other builds | nothing |
//! | [`device`] | operations in, completions out: io_uring, a thread with `pwrite`, a simulated disk | leaves |
//! | [`log`] | recycled files of checksummed frames, one writer a shard | `device` |
//! | [`job_directory`] | lock, lineage, run number | `device`, names of `log` |
//! | [`metadata`], [`checkpoint_store`] | what a checkpoint consists of; its commit, retention, recovery | `log` |
//! | [`table`] | keyed state: entries by key, and which of them changed since when | leaves |
//! | [`keyed`] | the keyed state of one operator in the log: snapshots, their lists of deltas, restore | `table`, `log` |
//!
//! **Durable** means: all bytes were written in full, then a data sync was submitted, then it succeeded, and the
//! file's name was made durable before. A failed sync is final for its file. The rules are told, and kept, in
//! [`log::writer`].

pub mod checkpoint_store;
pub mod config;
pub mod device;
pub mod error;
pub mod failpoint;
pub mod format;
pub mod handle;
pub mod job_directory;
pub mod keyed;
pub mod log;
pub mod metadata;
#[cfg(feature = "sim")]
pub mod sim;
pub mod table;
