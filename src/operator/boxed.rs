//! A chain whose type is hidden, for jobs that are put together at run time.
//!
//! Costs a virtual call a record where the hidden chain hands on to what comes behind it.

use super::chain::Chain;
use super::{Collector, Control, Lifecycle, OperatorFailure, Step, Wait};
use crate::record::{Record, Timestamp};
use crate::subtask::SubtaskContext;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// What comes next in a chain, whatever it is.
struct Next<T>(Box<dyn Collector<T>>);

impl<T: Record> Collector<T> for Next<T> {
    #[inline]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.0.collect(record, at);
    }

    fn collect_all(&mut self, records: &[T::Ref<'_>], at: Timestamp) {
        self.0.collect_all(records, at);
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        self.0.offer(record, at)
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.0.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        self.0.control(control);
    }

    #[inline]
    fn ready(&self) -> bool {
        self.0.ready()
    }

    fn finish(&mut self) -> Step {
        self.0.finish()
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        self.0.lifecycle(event);
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.0.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.0.end_of_turn();
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        self.0.failure()
    }
}

type Build<T> = dyn Fn(&mut SubtaskContext, Next<T>) -> Result<Box<dyn Task>, TaskFailure> + Send + Sync;

/// A recipe of which only what it emits is known.
pub struct BoxedChain<T>(Arc<Build<T>>);

impl<T: Record> BoxedChain<T> {
    pub(crate) fn new(chain: impl Chain<T>) -> Self {
        BoxedChain(Arc::new(move |cx, next| chain.build(cx, next)))
    }
}

impl<T> Clone for BoxedChain<T> {
    fn clone(&self) -> Self {
        BoxedChain(self.0.clone())
    }
}

impl<T: Record> Chain<T> for BoxedChain<T> {
    fn build<C: Collector<T> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        (self.0)(cx, Next(Box::new(next)))
    }
}
