//! The stream API: what a user writes a job with.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate::api::Environment;
//! use tidegate::sink::collect::{Collect, Collected};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let env = Environment::new();
//! let counts: Collected<(u64, u64)> = Arc::default();
//! let all = counts.clone();
//! env.from_vec("numbers", (0..1000u64).collect())
//!     .map(|n| n % 10)
//!     .key_by::<u64, _>(|n| n)
//!     .count()
//!     .sink("counts", move |_| Ok(Collect::new(all.clone())));
//! env.execute("last digits")?;
//! assert_eq!(counts.lock().unwrap().len(), 1000);
//! # Ok(())
//! # }
//! ```
//!
//! A stream carries its chain of operators as a type, so a chain compiles into one loop. The chain ends,
//! and the records go over an exchange, at `key_by`, `rebalance` and the other partitioners, `union`,
//! `connect`, `tee`, a second output and `disable_chaining`; all operators of a chain have one parallelism,
//! which [`parallelism`](Stream::parallelism) sets. [`combine`](Stream::combine) before `key_by` adds up what
//! need not cross the exchange record by record.
//!
//! What is declared in type brackets: `key_by::<K, _>` names the key's type, `flat_map::<U, _>` and
//! `process::<S, U, _, _>` what is emitted and the state, since closures over borrowed records cannot say.

mod connected;
mod environment;
mod keyed;
mod stream;

pub use crate::subtask::Inputs;
pub use connected::{BroadcastConnected, Connected, KeyedConnected};
pub use environment::{Environment, JobGraph};
pub use keyed::KeyedStream;
pub use stream::{InputChain, Link, SourceChain, Stream};
