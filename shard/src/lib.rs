//! The data plane of one core: bytes, buffers, barriers.
//!
//! A shard is one pinned thread with its segments, rings and tasks. Its logic is a set of state machines
//! that never read a clock, open a file or sleep: time comes in as an argument, and the drivers that run
//! the turns are the only ones that touch the world. So a seeded simulation can run whole jobs.
//!
//! The modules, in the order in which a record passes them:
//!
//! | module | what it is | may use |
//! | --- | --- | --- |
//! | [`config`], [`sync`], [`frame`], [`account`] | bounds; atomics; bytes in a segment; counters | nothing |
//! | [`memory`] | the region, its segments, the pool | leaves |
//! | [`channel`] | rings, credit, doorbells | `memory`, `barrier`'s types |
//! | [`output`] | records into segments, segments to consumers | `channel` |
//! | [`input`] | channels of one subtask, read in place | `channel` |
//! | [`barrier`] | what travels between buffers | leaves |
//! | [`mailbox`], [`task`], [`shard`] | mail, subtasks, turns | all above |
//! | [`topology`], [`driver`] | cores; the pinned thread that runs turns | all above |
//!
//! What crosses from shard to shard: buffer descriptors and events in rings, segments on their way back,
//! words in [`sync`]'s table, mail. What may never block: everything but `driver`.

pub mod account;
pub mod barrier;
pub mod channel;
pub mod config;
pub mod coverage;
pub mod driver;
pub mod frame;
pub mod input;
pub mod mailbox;
pub mod memory;
pub mod output;
pub mod shard;
pub mod sync;
pub mod task;
pub mod topology;
