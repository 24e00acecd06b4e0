//! What a user's function is handed to emit by.

use super::{Collector, Control, OperatorFailure};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use std::time::Duration;

/// What a waiting operator answers to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It took the record.
    Done,
    /// It took the record, and takes the next one not before this time, in nanoseconds: it is busy with
    /// something that needs no core.
    BusyUntil(u64),
    /// It did nothing yet: no state was written, nothing emitted. The record is to be offered again at this
    /// time, in nanoseconds.
    NotYet(u64),
}

/// Where a function emits, and what it may ask about the record in work.
///
/// Records are handed on at once; the next operator of the chain has run when `emit` returns.
pub struct Output<'a, U: Record> {
    next: &'a mut dyn Collector<U>,
    at: Timestamp,
    now_ns: u64,
    failed: &'a mut Option<SourceError>,
}

impl<'a, U: Record> Output<'a, U> {
    #[inline(always)]
    pub(crate) fn new(
        next: &'a mut dyn Collector<U>,
        at: Timestamp,
        now_ns: u64,
        failed: &'a mut Option<SourceError>,
    ) -> Self {
        Output { next, at, now_ns, failed }
    }

    /// Emits a record with the timestamp of the record in work.
    #[inline(always)]
    pub fn emit(&mut self, record: U::Ref<'_>) {
        self.next.collect(record, self.at);
    }

    /// Emits records with the timestamp of the record in work, one after the other. Some dozens at once cost less
    /// than each on its own where the next operator looks their keys up.
    #[inline(always)]
    pub fn emit_all(&mut self, records: &[U::Ref<'_>]) {
        self.next.collect_all(records, self.at);
    }

    /// Emits a record with a timestamp of its own, in milliseconds since the epoch.
    #[inline(always)]
    pub fn emit_at(&mut self, record: U::Ref<'_>, at: Timestamp) {
        self.next.collect(record, at);
    }

    /// Emits a watermark.
    pub fn watermark(&mut self, at: Timestamp) {
        self.next.control(Control::Watermark(at));
    }

    /// The timestamp of the record in work, or [`NO_TIMESTAMP`](crate::record::NO_TIMESTAMP).
    #[inline(always)]
    pub fn timestamp(&self) -> Timestamp {
        self.at
    }

    /// Monotonic time at which the turn began, in nanoseconds; at most a quantum old.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The answer of a waiting operator that is busy with the record for `time` from now on.
    #[inline(always)]
    pub fn busy_for(&self, time: Duration) -> Wait {
        Wait::BusyUntil(self.now_ns + time.as_nanos() as u64)
    }

    /// Fails the job with this error, after the record in work.
    #[cold]
    pub fn fail(&mut self, cause: impl Into<SourceError>) {
        self.failed.get_or_insert(cause.into());
    }
}

/// The error of an operator's function, until the task asks for it.
pub(super) fn failure(failed: &mut Option<SourceError>, name: &str) -> Option<OperatorFailure> {
    failed.take().map(|cause| OperatorFailure { operator: name.to_string(), cause })
}
