//! The operators without state, and how they nest into a chain.
//!
//! An operator is a [`Collector`] that owns the next one, so a whole chain is one type and compiles into
//! one loop. What the API holds before the end of a chain is known is a [`Chain`]: a recipe that, given the
//! collector that comes next, builds the task.

use super::output::failure;
use super::{Collector, Control, Lifecycle, OperatorFailure, Output, Step};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use crate::subtask::SubtaskContext;
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// A recipe for a task whose last operator emits `T`.
pub trait Chain<T: Record>: Clone + Send + Sync + 'static {
    /// Builds the task on its shard, with `next` behind its last operator.
    ///
    /// # Errors
    ///
    /// [`TaskFailure`] if a source or sink cannot be opened.
    fn build<C: Collector<T> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure>;
}

/// The methods of a collector that an operator hands to the next one as they are.
macro_rules! pass_on {
    () => {
        #[inline(always)]
        fn begin_turn(&mut self, now_ns: u64) {
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
    };
}

/// `map`: one record out for each in, by a function that returns an owned value.
pub struct Map<T, U, F, C> {
    f: F,
    next: C,
    types: PhantomData<fn(T) -> U>,
}

impl<T, U, F, C> Collector<T> for Map<T, U, F, C>
where
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>) -> U,
    C: Collector<U>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        let mapped = (self.f)(record);
        self.next.collect(mapped.view(), at);
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.next.ready()
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        self.next.failure()
    }

    pass_on!();
}

/// `filter`: the records for which a function holds.
pub struct Filter<T, F, C> {
    f: F,
    next: C,
    types: PhantomData<fn(T)>,
}

impl<T, F, C> Collector<T> for Filter<T, F, C>
where
    T: Record,
    F: for<'a> FnMut(T::Ref<'a>) -> bool,
    C: Collector<T>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        if (self.f)(record) {
            self.next.collect(record, at);
        }
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.next.ready()
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        self.next.failure()
    }

    pass_on!();
}

/// `flat_map`: whatever a function emits, which may borrow from its record, or the error that it returns.
pub struct FlatMap<T, U, F, C> {
    f: F,
    next: C,
    name: Arc<str>,
    failed: Option<SourceError>,
    now_ns: u64,
    types: PhantomData<fn(T) -> U>,
}

impl<T, U, F, C> Collector<T> for FlatMap<T, U, F, C>
where
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>),
    C: Collector<U>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        (self.f)(record, &mut Output::new(&mut self.next, at, self.now_ns, &mut self.failed));
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.failed.is_none() && self.next.ready()
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        failure(&mut self.failed, &self.name).or_else(|| self.next.failure())
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
}

/// A function with a second output.
pub struct SideOutput<T, U, V, F, C, S> {
    f: F,
    next: C,
    side: S,
    name: Arc<str>,
    failed: Option<SourceError>,
    now_ns: u64,
    types: PhantomData<fn(T) -> (U, V)>,
}

impl<T, U, V, F, C, S> Collector<T> for SideOutput<T, U, V, F, C, S>
where
    T: Record,
    U: Record,
    V: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>, &mut Output<'_, V>),
    C: Collector<U>,
    S: Collector<V>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        let mut side_failed = None;
        (self.f)(
            record,
            &mut Output::new(&mut self.next, at, self.now_ns, &mut self.failed),
            &mut Output::new(&mut self.side, at, self.now_ns, &mut side_failed),
        );
        if let Some(cause) = side_failed {
            self.failed.get_or_insert(cause);
        }
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.failed.is_none() && self.next.ready() && self.side.ready()
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        failure(&mut self.failed, &self.name).or_else(|| self.next.failure()).or_else(|| self.side.failure())
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.next.begin_turn(now_ns);
        self.side.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        self.next.control(control);
        self.side.control(control);
    }

    fn finish(&mut self) -> Step {
        match self.next.finish() {
            Step::Done => self.side.finish(),
            Step::Pending => Step::Pending,
        }
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        self.next.lifecycle(event);
        self.side.lifecycle(event);
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.next.outputs(f);
        self.side.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.next.end_of_turn();
        self.side.end_of_turn();
    }
}

/// Both collectors take every record: the end of a chain whose stream is used twice.
pub struct Tee<A, B>(pub(crate) A, pub(crate) B);

impl<T: Record, A: Collector<T>, B: Collector<T>> Collector<T> for Tee<A, B> {
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.0.collect(record, at);
        self.1.collect(record, at);
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.0.ready() && self.1.ready()
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        self.0.failure().or_else(|| self.1.failure())
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.0.begin_turn(now_ns);
        self.1.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        self.0.control(control);
        self.1.control(control);
    }

    fn finish(&mut self) -> Step {
        match self.0.finish() {
            Step::Done => self.1.finish(),
            Step::Pending => Step::Pending,
        }
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        self.0.lifecycle(event);
        self.1.lifecycle(event);
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.0.outputs(f);
        self.1.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.0.end_of_turn();
        self.1.end_of_turn();
    }
}

/// Recipe of [`Map`].
pub struct MapChain<P, T, U, F> {
    pub(crate) previous: P,
    pub(crate) f: F,
    pub(crate) types: PhantomData<fn(T) -> U>,
}

/// Recipe of [`Filter`].
pub struct FilterChain<P, T, F> {
    pub(crate) previous: P,
    pub(crate) f: F,
    pub(crate) types: PhantomData<fn(T)>,
}

/// Recipe of [`FlatMap`].
pub struct FlatMapChain<P, T, U, F> {
    pub(crate) previous: P,
    pub(crate) f: F,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    pub(crate) types: PhantomData<fn(T) -> U>,
}

/// Recipe of [`SideOutput`].
pub struct SideChain<P, T, U, V, F> {
    pub(crate) previous: P,
    pub(crate) f: F,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    /// Output of the vertex to which the second output goes.
    pub(crate) output: u32,
    pub(crate) types: PhantomData<fn(T) -> (U, V)>,
}

impl<P: Clone, T, U, F: Clone> Clone for MapChain<P, T, U, F> {
    fn clone(&self) -> Self {
        MapChain { previous: self.previous.clone(), f: self.f.clone(), types: PhantomData }
    }
}

impl<P: Clone, T, F: Clone> Clone for FilterChain<P, T, F> {
    fn clone(&self) -> Self {
        FilterChain { previous: self.previous.clone(), f: self.f.clone(), types: PhantomData }
    }
}

impl<P: Clone, T, U, F: Clone> Clone for FlatMapChain<P, T, U, F> {
    fn clone(&self) -> Self {
        let operator = self.operator;
        FlatMapChain { previous: self.previous.clone(), f: self.f.clone(), operator, types: PhantomData }
    }
}

impl<P: Clone, T, U, V, F: Clone> Clone for SideChain<P, T, U, V, F> {
    fn clone(&self) -> Self {
        let (operator, output) = (self.operator, self.output);
        SideChain { previous: self.previous.clone(), f: self.f.clone(), operator, output, types: PhantomData }
    }
}

impl<P, T, U, F> Chain<U> for MapChain<P, T, U, F>
where
    P: Chain<T>,
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>) -> U + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        self.previous.build(cx, Map { f: self.f.clone(), next, types: PhantomData })
    }
}

impl<P, T, F> Chain<T> for FilterChain<P, T, F>
where
    P: Chain<T>,
    T: Record,
    F: for<'a> FnMut(T::Ref<'a>) -> bool + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<T> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        self.previous.build(cx, Filter { f: self.f.clone(), next, types: PhantomData })
    }
}

impl<P, T, U, F> Chain<U> for FlatMapChain<P, T, U, F>
where
    P: Chain<T>,
    T: Record,
    U: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let (f, name) = (self.f.clone(), cx.operator_name(self.operator));
        self.previous.build(cx, FlatMap { f, next, name, failed: None, now_ns: 0, types: PhantomData })
    }
}

impl<P, T, U, V, F> Chain<U> for SideChain<P, T, U, V, F>
where
    P: Chain<T>,
    T: Record,
    U: Record,
    V: Record,
    F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>, &mut Output<'_, V>) + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let side = cx.writer::<V, _>(self.output, crate::partitioner::Forward)?;
        let (f, name) = (self.f.clone(), cx.operator_name(self.operator));
        let operator = SideOutput { f, next, side, name, failed: None, now_ns: 0, types: PhantomData };
        self.previous.build(cx, operator)
    }
}
