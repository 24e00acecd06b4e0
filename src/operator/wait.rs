//! An operator that may wait: its function may be busy after a record, or ask for it again later.
//!
//! It is always the head of its chain: the record that it does not take yet lies in the input's buffer,
//! where a snapshot finds it, and is in no operator.

use super::chain::Chain;
use super::output::failure;
use super::{Collector, Control, Lifecycle, OperatorFailure, Output, Step, Wait};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use crate::subtask::{ReaderTask, SubtaskContext};
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// `process` on a stream without keys.
pub struct Waiting<T, U, F, C> {
    f: F,
    next: C,
    name: Arc<str>,
    failed: Option<SourceError>,
    now_ns: u64,
    types: PhantomData<fn(T) -> U>,
}

impl<T, U, F, C> Collector<T> for Waiting<T, U, F, C>
where
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>) -> Wait,
    C: Collector<U>,
{
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.offer(record, at);
    }

    #[inline]
    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        (self.f)(record, &mut Output::new(&mut self.next, at, self.now_ns, &mut self.failed))
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        true
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.failed.is_none() && self.next.ready()
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.next.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        self.next.control(control);
    }

    fn finish(&mut self) -> Step {
        self.next.finish()
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        self.next.lifecycle(event);
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.next.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.next.end_of_turn();
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        failure(&mut self.failed, &self.name).or_else(|| self.next.failure())
    }
}

/// Recipe of a task that reads an input into [`Waiting`].
pub struct WaitChain<T, U, F> {
    pub(crate) f: F,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    pub(crate) types: PhantomData<fn(T) -> U>,
}

impl<T, U, F: Clone> Clone for WaitChain<T, U, F> {
    fn clone(&self) -> Self {
        WaitChain { f: self.f.clone(), operator: self.operator, types: PhantomData }
    }
}

impl<T, U, F> Chain<U> for WaitChain<T, U, F>
where
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>) -> Wait + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let (f, name) = (self.f.clone(), cx.operator_name(self.operator));
        let head = Waiting { f, next, name, failed: None, now_ns: 0, types: PhantomData };
        Ok(Box::new(ReaderTask::<T, _>::new(cx, head)))
    }
}
