//! Sinks: where records go to.

pub mod blackhole;
pub mod collect;
pub mod file;
pub mod latency;
mod row;
pub mod sorted;
pub mod stdout;

pub use row::Format;

use crate::record::{Record, Timestamp};
use crate::source::SourceError;

/// One parallel instance of a sink. Runs at the end of a chain, on its shard's thread.
pub trait Sink: 'static {
    /// What it takes.
    type Item: Record;

    /// Takes one record.
    ///
    /// # Errors
    ///
    /// Any error fails the job, with the sink's name in front.
    fn write(&mut self, record: <Self::Item as Record>::Ref<'_>, at: Timestamp) -> Result<(), SourceError>;

    /// Makes visible what was written; called at the flush interval and at the end of a turn that had input.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn flush(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The input has ended: publish what is left. Called once.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn finish(&mut self) -> Result<(), SourceError>;
}
