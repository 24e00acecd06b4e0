//! A stream divided by key, and the operators with keyed state.

use super::connected::{BroadcastConnected, KeyedConnected};
use super::stream::{InputChain, Stream};
use crate::graph::logical::Exchange;
use crate::operator::Output;
use crate::operator::chain::Chain;
use crate::operator::keyed::{Answer, AtEnd, EachKey, KeyedProcessChain, Nothing};
use crate::partitioner::{Forward, MakeByKey};
use crate::record::{KeySelector, Record};
use crate::state::{StateKey, StateValue};
use std::marker::PhantomData;

/// A stream of `T` divided by a key of type `K`.
#[must_use = "a stream that does not end in a sink cannot run"]
pub struct KeyedStream<T: Record, K: StateKey, KF> {
    stream: Stream<T, InputChain<T>>,
    key: KF,
    types: PhantomData<fn(T) -> K>,
}

impl<T, K, KF> KeyedStream<T, K, KF>
where
    T: Record,
    K: StateKey,
    KF: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
{
    pub(super) fn new(stream: Stream<T, InputChain<T>>, key: KF) -> Self {
        KeyedStream { stream, key, types: PhantomData }
    }

    /// Runs `f` on each record with the state of its key, `S::default()` for a new one.
    ///
    /// Several values are declared as a tuple; `state` is the name under which they are kept. The state
    /// lies in the table, `f` changes it in place. `f` returns nothing, or a [`Wait`](crate::operator::Wait)
    /// if it may be busy or want the record again.
    pub fn process<S, U, F, R>(
        self,
        state: &str,
        f: F,
    ) -> Stream<U, KeyedProcessChain<T, K, S, U, KF, F, Nothing, R>>
    where
        S: StateValue,
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R + Clone + Send + Sync + 'static,
        R: Answer + 'static,
    {
        self.with_state(state, f, Nothing)
    }

    /// As [`process`](Self::process); when the input has ended, `at_end` runs once for each key.
    pub fn process_with_end<S, U, F, R, G>(
        self,
        state: &str,
        f: F,
        at_end: G,
    ) -> Stream<U, KeyedProcessChain<T, K, S, U, KF, F, EachKey<G>, R>>
    where
        S: StateValue,
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R + Clone + Send + Sync + 'static,
        R: Answer + 'static,
        G: for<'a> FnMut(K::Ref<'a>, &S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    {
        self.with_state(state, f, EachKey(at_end))
    }

    /// Counts the records of each key, and emits the key with its count for each record.
    pub fn count(self) -> Stream<(K, u64), impl Chain<(K, u64)>> {
        let key = self.key.clone();
        let count = move |record: T::Ref<'_>, count: &mut u64, out: &mut Output<'_, (K, u64)>| {
            *count += 1;
            out.emit((key(record), *count));
        };
        self.with_state("count", count, Nothing)
    }

    /// Counts the records of each key, and emits each key once, when the input has ended.
    pub fn count_at_end(self) -> Stream<(K, u64), impl Chain<(K, u64)>> {
        let count = |_: T::Ref<'_>, count: &mut u64, _: &mut Output<'_, (K, u64)>| *count += 1;
        let at_end = |key: K::Ref<'_>, count: &u64, out: &mut Output<'_, (K, u64)>| out.emit((key, *count));
        self.with_state("count", count, EachKey(at_end))
    }

    /// Adds up the records of each key, from `A::default()` on, and emits each key once with the result, when
    /// the input has ended.
    ///
    /// `add` may take records or, behind [`Stream::combine`], partial values.
    pub fn aggregate_at_end<A, F>(self, mut add: F) -> Stream<(K, A), impl Chain<(K, A)>>
    where
        A: Copy + Default + for<'a> Record<Ref<'a> = A>,
        F: for<'a> FnMut(T::Ref<'a>, &mut A) + Clone + Send + Sync + 'static,
    {
        let each = move |record: T::Ref<'_>, value: &mut A, _: &mut Output<'_, (K, A)>| add(record, value);
        let at_end = |key: K::Ref<'_>, value: &A, out: &mut Output<'_, (K, A)>| out.emit((key, *value));
        self.with_state("aggregate", each, EachKey(at_end))
    }

    /// Combines the records of each key by `f`, from the first one on, and emits the result for each record.
    pub fn reduce<F>(self, mut f: F) -> Stream<T, impl Chain<T>>
    where
        T: Copy + for<'a> Record<Ref<'a> = T>,
        F: FnMut(T, T) -> T + Clone + Send + Sync + 'static,
    {
        let reduce = move |record: T, state: &mut Option<T>, out: &mut Output<'_, T>| {
            let next = state.map_or(record, |before| f(before, record));
            *state = Some(next);
            out.emit(next);
        };
        self.with_state("reduce", reduce, Nothing)
    }

    /// The stream behind the exchange, its records where the key has sent them.
    pub fn into_stream(self) -> Stream<T, InputChain<T>> {
        self.stream
    }

    /// Sets the parallelism of all operators since the last exchange.
    pub fn parallelism(mut self, parallelism: u32) -> Self {
        self.stream = self.stream.parallelism(parallelism);
        self
    }

    /// Sets the number of key groups of all operators since the last exchange.
    pub fn max_parallelism(mut self, max_parallelism: u32) -> Self {
        self.stream = self.stream.max_parallelism(max_parallelism);
        self
    }

    /// Puts subtask i on shard i + `offset`, modulo the number of shards; 0 is the default.
    pub fn shard_offset(mut self, offset: u32) -> Self {
        self.stream = self.stream.shard_offset(offset);
        self
    }

    /// Joins two streams that are keyed alike at one operator: records of one key meet in one state.
    pub fn connect<B, Q, KB>(self, other: Stream<B, Q>, key: KB) -> KeyedConnected<T, B, K, KF, KB>
    where
        B: Record,
        Q: Chain<B>,
        KB: for<'a> KeySelector<'a, B, K> + Clone + Send + Sync + 'static,
    {
        let (env, vertex, timestamps) = self.stream.into_parts();
        let partitioner = MakeByKey { key: key.clone(), types: PhantomData };
        other.close_into(Exchange::Keyed, partitioner, vertex, 1);
        KeyedConnected::new(env, vertex, timestamps, (self.key, key))
    }

    /// Joins a keyed stream with one of which every subtask sees all.
    pub fn connect_broadcast<B, Q>(self, other: Stream<B, Q>) -> BroadcastConnected<T, B, K, KF>
    where
        B: Record,
        Q: Chain<B>,
    {
        let (env, vertex, timestamps) = self.stream.into_parts();
        other.close_into(Exchange::Broadcast, Forward, vertex, 1);
        BroadcastConnected::new(env, vertex, timestamps, self.key)
    }

    fn with_state<S, U, F, R, E>(
        self,
        name: &str,
        f: F,
        at_end: E,
    ) -> Stream<U, KeyedProcessChain<T, K, S, U, KF, F, E, R>>
    where
        S: StateValue,
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R + Clone + Send + Sync + 'static,
        R: Answer + 'static,
        E: AtEnd<K, S, U>,
    {
        let (env, vertex, timestamps) = self.stream.into_parts();
        env.add_operator(vertex, name, "keyed process");
        let operator = env.last_operator(vertex);
        let chain = KeyedProcessChain { key: self.key, f, at_end, operator, types: PhantomData };
        Stream::new(env, vertex, chain, timestamps)
    }
}
