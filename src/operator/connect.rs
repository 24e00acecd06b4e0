//! `connect`: one operator with two inputs of different types, which share state.

use super::chain::Chain;
use super::output::failure;
use super::{Collector, Control, Lifecycle, OperatorFailure, Output, Step};
use crate::record::{KeySelector, Record, Timestamp};
use crate::source::SourceError;
use crate::state::{KeyedState, OwnState, StateKey, StateValue};
use crate::subtask::{Inputs, SubtaskContext, TwoInput, TwoInputTask};
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// What differs between the kinds of connected streams: where state lies and what each side may see of it.
pub trait Sides<A: Record, B: Record, U: Record>: Clone + Send + Sync + 'static {
    /// State of one subtask.
    type State;

    /// Whether the operator ever wants less than both inputs.
    const SELECTS: bool = false;

    /// Where the operator wants its next record from.
    fn wants(&self, _: &Self::State) -> Inputs {
        Inputs::Both
    }

    /// State before the first record, of the operator at this index of its vertex.
    ///
    /// # Errors
    ///
    /// State of a checkpoint that cannot be read.
    fn state(&self, cx: &SubtaskContext, operator: usize) -> Result<Self::State, TaskFailure>;

    /// The state's part of what a checkpoint asks for.
    fn lifecycle(state: &mut Self::State, event: &mut Lifecycle<'_, '_>);

    /// Takes a record of the first input.
    fn first(&mut self, state: &mut Self::State, record: A::Ref<'_>, out: &mut Output<'_, U>);

    /// Takes a record of the second input.
    fn second(&mut self, state: &mut Self::State, record: B::Ref<'_>, out: &mut Output<'_, U>);
}

/// Both inputs keyed alike: each record sees the state of its key.
pub struct BothKeyed<K, S, KA, KB, FA, FB> {
    pub(crate) keys: (KA, KB),
    pub(crate) f: (FA, FB),
    pub(crate) types: PhantomData<fn() -> (K, S)>,
}

impl<A, B, U, K, S, KA, KB, FA, FB> Sides<A, B, U> for BothKeyed<K, S, KA, KB, FA, FB>
where
    A: Record,
    B: Record,
    U: Record,
    K: StateKey,
    S: StateValue,
    KA: for<'a> KeySelector<'a, A, K> + Clone + Send + Sync + 'static,
    KB: for<'a> KeySelector<'a, B, K> + Clone + Send + Sync + 'static,
    FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
{
    type State = KeyedState<K, S>;

    fn state(&self, cx: &SubtaskContext, operator: usize) -> Result<Self::State, TaskFailure> {
        KeyedState::new(cx, operator)
    }

    fn lifecycle(state: &mut Self::State, event: &mut Lifecycle<'_, '_>) {
        state.lifecycle(event);
    }

    #[inline(always)]
    fn first(&mut self, state: &mut Self::State, record: A::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.0)(record, state.entry((self.keys.0)(record)), out);
    }

    #[inline(always)]
    fn second(&mut self, state: &mut Self::State, record: B::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.1)(record, state.entry((self.keys.1)(record)), out);
    }
}

/// The first input keyed, the second broadcast: each subtask has all of the second input in a state that
/// records of the first may read.
pub struct KeyedAndBroadcast<K, S, W, KA, FA, FB> {
    pub(crate) key: KA,
    pub(crate) f: (FA, FB),
    pub(crate) types: PhantomData<fn() -> (K, S, W)>,
}

impl<A, B, U, K, S, W, KA, FA, FB> Sides<A, B, U> for KeyedAndBroadcast<K, S, W, KA, FA, FB>
where
    A: Record,
    B: Record,
    U: Record,
    K: StateKey,
    S: StateValue,
    W: Record + Default,
    KA: for<'a> KeySelector<'a, A, K> + Clone + Send + Sync + 'static,
    FA: for<'a> FnMut(A::Ref<'a>, &mut S, &W, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    FB: for<'a> FnMut(B::Ref<'a>, &mut W, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
{
    type State = (KeyedState<K, S>, OwnState<W>);

    fn state(&self, cx: &SubtaskContext, operator: usize) -> Result<Self::State, TaskFailure> {
        Ok((KeyedState::new(cx, operator)?, OwnState::new(cx, operator)?))
    }

    fn lifecycle((keyed, wide): &mut Self::State, event: &mut Lifecycle<'_, '_>) {
        keyed.lifecycle(event);
        wide.lifecycle(event);
    }

    #[inline(always)]
    fn first(&mut self, (keyed, wide): &mut Self::State, record: A::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.0)(record, keyed.entry((self.key)(record)), &wide.value, out);
    }

    #[inline(always)]
    fn second(&mut self, (_, wide): &mut Self::State, record: B::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.1)(record, &mut wide.value, out);
    }
}

/// Neither input keyed: one state a subtask.
pub struct PerSubtask<S, FA, FB> {
    pub(crate) f: (FA, FB),
    pub(crate) types: PhantomData<fn() -> S>,
}

impl<A, B, U, S, FA, FB> Sides<A, B, U> for PerSubtask<S, FA, FB>
where
    A: Record,
    B: Record,
    U: Record,
    S: Record + Default,
    FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
{
    type State = OwnState<S>;

    fn state(&self, cx: &SubtaskContext, operator: usize) -> Result<Self::State, TaskFailure> {
        OwnState::new(cx, operator)
    }

    fn lifecycle(state: &mut Self::State, event: &mut Lifecycle<'_, '_>) {
        state.lifecycle(event);
    }

    #[inline(always)]
    fn first(&mut self, state: &mut Self::State, record: A::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.0)(record, &mut state.value, out);
    }

    #[inline(always)]
    fn second(&mut self, state: &mut Self::State, record: B::Ref<'_>, out: &mut Output<'_, U>) {
        (self.f.1)(record, &mut state.value, out);
    }
}

/// Sides of which a function of their state says which input comes next.
#[derive(Clone)]
pub struct Selecting<X, G> {
    pub(crate) sides: X,
    pub(crate) wants: G,
}

impl<A, B, U, S, FA, FB, G> Sides<A, B, U> for Selecting<PerSubtask<S, FA, FB>, G>
where
    A: Record,
    B: Record,
    U: Record,
    S: Record + Default,
    FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    G: Fn(&S) -> Inputs + Clone + Send + Sync + 'static,
{
    type State = OwnState<S>;

    const SELECTS: bool = true;

    fn wants(&self, state: &Self::State) -> Inputs {
        (self.wants)(&state.value)
    }

    fn state(&self, cx: &SubtaskContext, operator: usize) -> Result<Self::State, TaskFailure> {
        OwnState::new(cx, operator)
    }

    fn lifecycle(state: &mut Self::State, event: &mut Lifecycle<'_, '_>) {
        state.lifecycle(event);
    }

    #[inline(always)]
    fn first(&mut self, state: &mut Self::State, record: A::Ref<'_>, out: &mut Output<'_, U>) {
        Sides::<A, B, U>::first(&mut self.sides, state, record, out);
    }

    #[inline(always)]
    fn second(&mut self, state: &mut Self::State, record: B::Ref<'_>, out: &mut Output<'_, U>) {
        Sides::<A, B, U>::second(&mut self.sides, state, record, out);
    }
}

// By hand, since the derived ones would ask the same of the types that are only named.
impl<K, S, KA: Clone, KB: Clone, FA: Clone, FB: Clone> Clone for BothKeyed<K, S, KA, KB, FA, FB> {
    fn clone(&self) -> Self {
        BothKeyed { keys: self.keys.clone(), f: self.f.clone(), types: PhantomData }
    }
}

impl<K, S, W, KA: Clone, FA: Clone, FB: Clone> Clone for KeyedAndBroadcast<K, S, W, KA, FA, FB> {
    fn clone(&self) -> Self {
        KeyedAndBroadcast { key: self.key.clone(), f: self.f.clone(), types: PhantomData }
    }
}

impl<S, FA: Clone, FB: Clone> Clone for PerSubtask<S, FA, FB> {
    fn clone(&self) -> Self {
        PerSubtask { f: self.f.clone(), types: PhantomData }
    }
}

/// An operator with two inputs.
pub struct Connect<A: Record, B: Record, U: Record, X: Sides<A, B, U>, C> {
    sides: X,
    state: X::State,
    next: C,
    name: Arc<str>,
    failed: Option<SourceError>,
    now_ns: u64,
    types: PhantomData<fn(A, B) -> U>,
}

impl<A: Record, B: Record, U: Record, X: Sides<A, B, U>, C: Collector<U>> TwoInput<A, B>
    for Connect<A, B, U, X, C>
{
    const SELECTS: bool = X::SELECTS;

    #[inline(always)]
    fn wants(&self) -> Inputs {
        self.sides.wants(&self.state)
    }

    #[inline(always)]
    fn first(&mut self, record: A::Ref<'_>, at: Timestamp) {
        let mut out = Output::new(&mut self.next, at, self.now_ns, &mut self.failed);
        self.sides.first(&mut self.state, record, &mut out);
    }

    #[inline(always)]
    fn second(&mut self, record: B::Ref<'_>, at: Timestamp) {
        let mut out = Output::new(&mut self.next, at, self.now_ns, &mut self.failed);
        self.sides.second(&mut self.state, record, &mut out);
    }
}

/// Of its own output's type, so that the task can treat it as the head of a chain.
impl<A: Record, B: Record, U: Record, X: Sides<A, B, U>, C: Collector<U>> Collector<U>
    for Connect<A, B, U, X, C>
{
    fn collect(&mut self, record: U::Ref<'_>, at: Timestamp) {
        self.next.collect(record, at);
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
        X::lifecycle(&mut self.state, event);
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

/// Recipe of a task that reads two inputs into [`Connect`].
pub struct ConnectChain<A, B, U, X> {
    pub(crate) sides: X,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    pub(crate) types: PhantomData<fn(A, B) -> U>,
}

impl<A, B, U, X: Clone> Clone for ConnectChain<A, B, U, X> {
    fn clone(&self) -> Self {
        ConnectChain { sides: self.sides.clone(), operator: self.operator, types: PhantomData }
    }
}

impl<A: Record, B: Record, U: Record, X: Sides<A, B, U>> Chain<U> for ConnectChain<A, B, U, X> {
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let head = Connect {
            state: self.sides.state(cx, self.operator)?,
            sides: self.sides.clone(),
            next,
            name: cx.operator_name(self.operator),
            failed: None,
            now_ns: 0,
            types: PhantomData,
        };
        Ok(Box::new(TwoInputTask::new(cx, head)))
    }
}
