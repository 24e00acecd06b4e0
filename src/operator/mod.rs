//! Operators: fused into a chain at compile time, each handing its records to the next.

mod batch;
pub mod boxed;
pub mod chain;
pub mod combine;
mod combiner;
pub mod connect;
pub mod keyed;
mod lifecycle;
mod output;
pub mod wait;
pub mod words;

pub use batch::{Batch, Encoded, Owned, Views};
pub(crate) use lifecycle::Written;
pub use lifecycle::{Lifecycle, Settled, Settling, Snapshot, Writing};
pub use output::{Output, Wait};

use crate::record::{NO_TIMESTAMP, Record, Timestamp};
use crate::source::SourceError;
use tidegate_shard::output::ResultPartition;

/// What travels among the records and is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// No record with a smaller event time follows, in milliseconds.
    Watermark(i64),
    /// This input has nothing to say for now: leave it out of the watermark.
    Idle,
    /// The end of `Idle`.
    Active,
    /// Emitted by a source at `at_ns` to measure how long the way to each operator is.
    Marker {
        /// Index of the source's vertex.
        vertex: u32,
        /// Its subtask.
        subtask: u32,
        /// Monotonic time of emission, in nanoseconds.
        at_ns: u64,
    },
}

/// Whether a step was the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Call again.
    Pending,
    /// There is nothing left to do.
    Done,
}

/// The rest of a chain, as the operator before it sees it.
pub trait Collector<T: Record> {
    /// Takes one record.
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp);

    /// Takes all of these records, which belong to one record that came in: a function has emitted them together.
    ///
    /// An operator that looks keys up can have their entries brought into the cache first.
    #[inline]
    fn collect_all(&mut self, records: &[T::Ref<'_>], at: Timestamp) {
        for record in records {
            self.collect(*record, at);
        }
    }

    /// Takes records until the batch ends or the chain is no longer ready; returns how many it took.
    ///
    /// `times` has the timestamp of each record, or is empty where none has one.
    #[inline]
    fn collect_batch<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize
    where
        Self: Sized,
    {
        one_by_one(self, batch, times)
    }

    /// Whether batches help: the head of the chain has keyed state, or sends by key. Constant for a type.
    #[inline(always)]
    fn wants_batches(&self) -> bool {
        false
    }

    /// Whether the head of the chain may ask to wait; constant for a type.
    #[inline(always)]
    fn may_wait(&self) -> bool {
        false
    }

    /// Takes one record, or has it offered again; only asked where [`may_wait`](Self::may_wait).
    #[inline]
    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        self.collect(record, at);
        Wait::Done
    }

    /// Tells the time at which a turn begins, in nanoseconds.
    fn begin_turn(&mut self, now_ns: u64);

    /// Takes what is not a record.
    fn control(&mut self, control: Control);

    /// Whether one more record is welcome: every output of the chain is available and nothing failed.
    fn ready(&self) -> bool;

    /// The input has ended: emit what is held back, a bounded step a call.
    fn finish(&mut self) -> Step;

    /// Does what a checkpoint asks for, here and in the operators behind, in this order.
    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>);

    /// Calls `f` with every result partition of the chain, in order of its output index.
    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition));

    /// Makes visible what a sink holds; called at the end of a turn that had input.
    fn end_of_turn(&mut self);

    /// The failure that stopped the chain, with the name of the operator that failed.
    fn failure(&mut self) -> Option<OperatorFailure>;
}

/// Hands a batch on one record after the other, while the chain is ready; how many it took.
#[inline(always)]
pub(crate) fn one_by_one<'a, T: Record>(
    next: &mut impl Collector<T>,
    batch: impl Batch<'a, T>,
    times: &[Timestamp],
) -> usize {
    for (taken, record) in batch.records().enumerate() {
        if !next.ready() {
            return taken;
        }
        next.collect(record, times.get(taken).copied().unwrap_or(NO_TIMESTAMP));
    }
    batch.len()
}

/// An operator that returned an error.
#[derive(Debug)]
pub struct OperatorFailure {
    /// Its name.
    pub operator: String,
    /// What it said.
    pub cause: SourceError,
}
