//! Drives sources in tests: one poll at a time, or to the end.

use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll, Waker};
use crate::operator::{Collector, Control, Lifecycle, OperatorFailure, Step};
use crate::record::{Record, Timestamp};
use std::thread;
use std::time::{Duration, Instant};
use tidegate_shard::output::ResultPartition;

/// A collector that keeps what it is given.
pub(crate) struct Capture<T> {
    pub(crate) taken: Vec<T>,
}

impl<T> Default for Capture<T> {
    fn default() -> Capture<T> {
        Capture { taken: Vec::new() }
    }
}

impl<T: Record> Capture<T> {
    /// One poll with a budget, at a time.
    pub(crate) fn poll<S: Source<Item = T>>(
        &mut self,
        source: &mut S,
        budget: u32,
        now_ns: u64,
    ) -> Result<SourcePoll, SourceError> {
        let before = self.taken.len();
        let polled = source.poll(&mut SourceOutput::new(self, budget, now_ns));
        assert!(self.taken.len() - before <= budget as usize, "more than the output was ready for");
        polled
    }
}

impl<T: Record> Collector<T> for Capture<T> {
    fn begin_turn(&mut self, _: u64) {}

    fn collect(&mut self, record: T::Ref<'_>, _: Timestamp) {
        self.taken.push(T::from_view(record));
    }

    fn control(&mut self, _: Control) {}

    fn ready(&self) -> bool {
        true
    }

    fn finish(&mut self) -> Step {
        Step::Done
    }

    fn lifecycle(&mut self, _: &mut Lifecycle<'_, '_>) {}

    fn outputs(&mut self, _: &mut dyn FnMut(&mut ResultPartition)) {}

    fn end_of_turn(&mut self) {}

    fn failure(&mut self) -> Option<OperatorFailure> {
        None
    }
}

/// A context whose waker unparks the thread that makes it.
pub(crate) fn context(subtask: u32, parallelism: u32) -> SourceContext {
    let thread = thread::current();
    SourceContext { subtask, parallelism, waker: Waker::new(move || thread.unpark()) }
}

/// Polls a source to its end, parking where it waits, and returns what it emitted.
pub(crate) fn run<S: Source>(source: &mut S, budget: u32) -> Result<Vec<S::Item>, SourceError> {
    let mut out = Capture::default();
    loop {
        match out.poll(source, budget, 0)? {
            SourcePoll::More => {}
            SourcePoll::Done => return Ok(out.taken),
            SourcePoll::WaitUntil(at) => panic!("waits for the time {at}, which does not pass here"),
            SourcePoll::Wait => {
                let since = Instant::now();
                thread::park_timeout(Duration::from_secs(120));
                assert!(since.elapsed() < Duration::from_secs(119), "the waker was not used");
            }
        }
    }
}
