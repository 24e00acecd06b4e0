//! Sources: where records come from.
//!
//! A source is polled on its shard's thread and must never block there: it emits what it has while
//! [`SourceOutput::ready`] holds and says what it waits for.

mod error;
pub mod generator;
mod gzip;
mod helper;
mod lines;
pub mod memory;
mod page_cache;
mod position;
mod split;
mod stdin;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;

pub use error::TextError;
pub use helper::remember_allowed_cores;
pub(crate) use helper::use_allowed_cores;
pub use split::{InputFile, InputKind, Skipped, Split, describe_skipped};

use crate::operator::{Batch, Collector, Control};
use crate::record::{NO_TIMESTAMP, Record, Timestamp};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// One parallel instance of a source.
pub trait Source: 'static {
    /// What it emits.
    type Item: Record;

    /// Whether, told by [`restore`](Self::restore) where it was, it emits the same records again. A job with a
    /// source that does not loses what was under way when it fails.
    const REPLAYS: bool = false;

    /// Emits records while `out.ready()`, then says why it stopped.
    ///
    /// # Errors
    ///
    /// Any error fails the job, with the source's name in front.
    fn poll<C: Collector<Self::Item>>(
        &mut self,
        out: &mut SourceOutput<'_, Self::Item, C>,
    ) -> Result<SourcePoll, SourceError>;

    /// Appends where it is: all that [`restore`](Self::restore) needs to go on behind the last record emitted.
    /// At most some kilobytes, and quick: no record is worked on meanwhile.
    ///
    /// # Errors
    ///
    /// Any error fails the checkpoint, not the job.
    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        let _ = state;
        Ok(())
    }

    /// Goes to where it was. Called once, before the first poll, with what [`snapshot`](Self::snapshot) of the
    /// same subtask appended.
    ///
    /// # Errors
    ///
    /// What it reads from is not what it was, by name: the job cannot go on from there.
    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let _ = state;
        Ok(())
    }

    /// A checkpoint is complete: what was emitted before it will not be asked for again.
    fn complete(&mut self, checkpoint: u64) {
        let _ = checkpoint;
    }
}

/// What a source is told when it is made.
#[derive(Debug, Clone)]
pub struct SourceContext {
    /// Which of the parallel instances it is, from 0.
    pub subtask: u32,
    /// How many there are.
    pub parallelism: u32,
    /// To be used when there is something to emit after [`SourcePoll::Wait`].
    pub waker: Waker,
}

/// Makes a waiting task runnable, from any thread.
///
/// A wake during a poll is not lost: the task is polled once more.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`, which must be quick and must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Has the task polled again.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Why a source stopped emitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePoll {
    /// There is more: the output was no longer ready, or enough was done for one poll.
    More,
    /// Nothing to emit before this time, in nanoseconds of [`SourceOutput::now_ns`]'s clock.
    WaitUntil(u64),
    /// Nothing to emit until the task's waker is used (see `SourceContext::waker`).
    Wait,
    /// The source has ended.
    Done,
}

/// What a source, sink or operator may fail with: the cause, in the user's words.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where a source puts its records.
pub struct SourceOutput<'a, T: Record, C: Collector<T>> {
    next: &'a mut C,
    budget: u32,
    emitted: u32,
    now_ns: u64,
    item: PhantomData<fn(T)>,
}

impl<'a, T: Record, C: Collector<T>> SourceOutput<'a, T, C> {
    /// An output that takes at most `budget` records before it is no longer ready.
    pub(crate) fn new(next: &'a mut C, budget: u32, now_ns: u64) -> Self {
        SourceOutput { next, budget, emitted: 0, now_ns, item: PhantomData }
    }

    /// Whether one more record may be emitted now. Ask before each record.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        self.emitted < self.budget && self.next.ready()
    }

    /// Emits a record without a timestamp.
    #[inline(always)]
    pub fn emit(&mut self, record: T::Ref<'_>) {
        self.emit_at(record, NO_TIMESTAMP);
    }

    /// Emits a record with its event time.
    #[inline(always)]
    pub fn emit_at(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.emitted += 1;
        self.next.collect(record, at);
    }

    /// Emits records without timestamps while it is ready; how many. Costs less than one after the other
    /// where they are sent by key.
    #[inline(always)]
    pub fn emit_batch<'b>(&mut self, batch: impl Batch<'b, T>) -> usize {
        let taken = self.next.collect_batch(batch.first(batch.len().min(self.budget() as usize)), &[]);
        self.emitted += taken as u32;
        taken
    }

    /// Emits a watermark, idleness or a latency marker.
    pub fn control(&mut self, control: Control) {
        self.next.control(control);
    }

    /// Monotonic time at which this poll began, in nanoseconds.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How many more records this poll may emit at most.
    #[inline(always)]
    pub fn budget(&self) -> u32 {
        self.budget - self.emitted
    }

    /// Records emitted in this poll so far.
    #[inline(always)]
    pub fn emitted(&self) -> u32 {
        self.emitted
    }
}
