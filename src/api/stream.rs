//! A stream of records, and the operators without keyed state.

use super::connected::Connected;
use super::environment::Environment;
use super::keyed::KeyedStream;
use crate::graph::logical::{Edge, Exchange, Factory, VertexId};
use crate::operator::boxed::BoxedChain;
use crate::operator::chain::{Chain, FilterChain, FlatMapChain, MapChain, SideChain, Tee};
use crate::operator::combine::CombineChain;
use crate::operator::wait::WaitChain;
use crate::operator::{Collector, Output, Wait};
use crate::partitioner::{Custom, Forward, MakeByKey, MakePartitioner, MakeRebalance, MakeShuffle};
use crate::record::{KeySelector, Record};
use crate::sink::Sink;
use crate::source::{Source, SourceContext, SourceError};
use crate::state::StateKey;
use crate::subtask::{
    self, ReaderTask, SOURCE_OPERATOR, SinkEnd, SourceTask, SubtaskContext, SubtaskInfo, operator_failure,
};
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::task::{Task, TaskFailure};

/// A stream of `T`, behind the chain of operators `C`.
#[must_use = "a stream that does not end in a sink cannot run"]
pub struct Stream<T: Record, C: Chain<T>> {
    env: Environment,
    vertex: VertexId,
    chain: C,
    timestamps: bool,
    record: PhantomData<fn() -> T>,
}

/// A chain that begins with a source.
pub struct SourceChain<S, F> {
    pub(super) open: F,
    pub(super) name: Arc<str>,
    pub(super) vertex: VertexId,
    pub(super) marker_interval_ns: Option<u64>,
    pub(super) source: PhantomData<fn() -> S>,
}

impl<S, F: Clone> Clone for SourceChain<S, F> {
    fn clone(&self) -> Self {
        let SourceChain { open, name, vertex, marker_interval_ns, .. } = self;
        SourceChain {
            open: open.clone(),
            name: name.clone(),
            vertex: *vertex,
            marker_interval_ns: *marker_interval_ns,
            source: PhantomData,
        }
    }
}

impl<S, F> Chain<S::Item> for SourceChain<S, F>
where
    S: Source,
    F: Fn(&SourceContext) -> Result<S, SourceError> + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<S::Item> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let failure = |cause| operator_failure(&*self.name, &cause);
        let mut source = (self.open)(&cx.source_context()).map_err(failure)?;
        if let Some((_, pieces)) = cx.restored_state(SOURCE_OPERATOR)? {
            for piece in pieces {
                source.restore(&piece).map_err(failure)?;
            }
        }
        let (name, interval) = (self.name.clone(), self.marker_interval_ns);
        Ok(Box::new(SourceTask::new(cx, source, name, next, self.vertex.0, interval)))
    }
}

/// A chain that begins with an input.
pub struct InputChain<T>(PhantomData<fn() -> T>);

impl<T> InputChain<T> {
    pub(super) fn new() -> Self {
        InputChain(PhantomData)
    }
}

impl<T> Clone for InputChain<T> {
    fn clone(&self) -> Self {
        InputChain(PhantomData)
    }
}

impl<T: Record> Chain<T> for InputChain<T> {
    fn build<C: Collector<T> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        Ok(Box::new(ReaderTask::<T, C>::new(cx, next)))
    }
}

/// A chain that goes on, or begins anew behind an exchange where chaining is switched off: whether it does
/// is known when the job is put together, so both forms are compiled.
pub enum Link<C, T> {
    /// The chain goes on.
    Chained(C),
    /// It begins anew.
    Cut(InputChain<T>),
}

impl<C: Clone, T> Clone for Link<C, T> {
    fn clone(&self) -> Self {
        match self {
            Link::Chained(chain) => Link::Chained(chain.clone()),
            Link::Cut(chain) => Link::Cut(chain.clone()),
        }
    }
}

impl<T: Record, P: Chain<T>> Chain<T> for Link<P, T> {
    fn build<C: Collector<T> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        match self {
            Link::Chained(chain) => chain.build(cx, next),
            Link::Cut(chain) => chain.build(cx, next),
        }
    }
}

impl<T: Record, P: Chain<T>> Stream<T, P> {
    pub(super) fn new(env: Environment, vertex: VertexId, chain: P, timestamps: bool) -> Self {
        Stream { env, vertex, chain, timestamps, record: PhantomData }
    }

    /// One record out for each in.
    pub fn map<U, F>(self, f: F) -> Stream<U, MapChain<Link<P, T>, T, U, F>>
    where
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>) -> U + Clone + Send + Sync + 'static,
    {
        let this = self.operator("map", "map");
        Stream::new(
            this.env,
            this.vertex,
            MapChain { previous: this.chain, f, types: PhantomData },
            this.timestamps,
        )
    }

    /// The records for which `f` holds.
    pub fn filter<F>(self, f: F) -> Stream<T, FilterChain<Link<P, T>, T, F>>
    where
        F: for<'a> FnMut(T::Ref<'a>) -> bool + Clone + Send + Sync + 'static,
    {
        let this = self.operator("filter", "filter");
        let chain = FilterChain { previous: this.chain, f, types: PhantomData };
        Stream::new(this.env, this.vertex, chain, this.timestamps)
    }

    /// The same stream, of a type that does not tell its operators: for jobs that are put together at run
    /// time. Costs a virtual call a record.
    pub fn boxed(self) -> Stream<T, BoxedChain<T>> {
        Stream::new(self.env, self.vertex, BoxedChain::new(self.chain), self.timestamps)
    }

    /// Whatever `f` emits for each record; it may emit what borrows from the record, and may fail.
    pub fn flat_map<U, F>(self, f: F) -> Stream<U, FlatMapChain<Link<P, T>, T, U, F>>
    where
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    {
        let this = self.operator("flat map", "flat_map");
        let chain =
            FlatMapChain { operator: this.last_operator(), previous: this.chain, f, types: PhantomData };
        Stream::new(this.env, this.vertex, chain, this.timestamps)
    }

    /// As [`flat_map`](Self::flat_map), with a second output of another type.
    pub fn side_output<U, V, F>(
        self,
        f: F,
    ) -> (Stream<U, SideChain<Link<P, T>, T, U, V, F>>, Stream<V, InputChain<V>>)
    where
        U: Record,
        V: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>, &mut Output<'_, V>) + Clone + Send + Sync + 'static,
    {
        let this = self.operator("process", "process");
        let (output, to) = this.add_exchange::<V>(Exchange::Forward, 0, None);
        let chain =
            SideChain { operator: this.last_operator(), previous: this.chain, f, output, types: PhantomData };
        let side = Stream::new(this.env.clone(), to, InputChain::new(), this.timestamps);
        (Stream::new(this.env, this.vertex, chain, this.timestamps), side)
    }

    /// As [`flat_map`](Self::flat_map), by a function that may be busy after a record or ask for it again
    /// later, without holding up its shard. Always the head of a chain.
    pub fn process<U, F>(self, f: F) -> Stream<U, WaitChain<T, U, F>>
    where
        U: Record,
        F: for<'a> FnMut(T::Ref<'a>, &mut Output<'_, U>) -> Wait + Clone + Send + Sync + 'static,
    {
        // Behind an exchange it is the head of its chain already.
        let headless = self.env.graph().vertex(self.vertex).operators.is_empty();
        let (env, vertex, timestamps) =
            if headless { self.into_parts() } else { self.exchange(Exchange::Forward, Forward).into_parts() };
        env.add_operator(vertex, "process", "process");
        let chain = WaitChain { f, operator: env.last_operator(vertex), types: PhantomData };
        Stream::new(env, vertex, chain, timestamps)
    }

    /// Adds up records of one key before they are sent, from `A::default()` on, and emits the key with a partial
    /// value for many of them: see [`operator::combine`](crate::operator::combine) for what it is good for.
    ///
    /// To be followed by a [`key_by`](Self::key_by) with the same key and an aggregation to which partial values
    /// are as good as records. Each record is in exactly one partial value. These have no timestamp, and come
    /// before any watermark that came after their records.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::api::Environment;
    /// use tidegate::sink::collect::{Collect, Collected};
    ///
    /// let counts: Collected<(String, u64)> = Arc::default();
    /// let all = counts.clone();
    /// let env = Environment::new();
    /// env.from_vec("words", ["to", "be", "or", "not", "to", "be"].map(str::to_string).to_vec())
    ///     .combine::<String, u64, _, _>(|word| word, |_, count| *count += 1)
    ///     .key_by::<String, _>(|(word, _)| word)
    ///     .aggregate_at_end::<u64, _>(|(_, part), count| *count += part)
    ///     .sink("counts", move |_| Ok(Collect::new(all.clone())));
    /// env.execute("words")?;
    /// assert!(counts.lock().unwrap().contains(&("be".to_string(), 2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn combine<K, A, KF, F>(
        self,
        key: KF,
        add: F,
    ) -> Stream<(K, A), CombineChain<Link<P, T>, T, K, A, KF, F>>
    where
        K: StateKey,
        A: Copy + Default + for<'a> Record<Ref<'a> = A>,
        KF: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
        F: for<'a> FnMut(T::Ref<'a>, &mut A) + Clone + Send + Sync + 'static,
    {
        let this = self.operator("combine", "combine");
        let operator = this.last_operator();
        let chain = CombineChain { operator, previous: this.chain, key, add, types: PhantomData };
        Stream::new(this.env, this.vertex, chain, false)
    }

    /// Divides the stream by key: records of one key go to one subtask, the same that Flink would choose.
    pub fn key_by<K, F>(self, key: F) -> KeyedStream<T, K, F>
    where
        K: StateKey,
        F: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
    {
        let partitioner = MakeByKey { key: key.clone(), types: PhantomData };
        KeyedStream::new(self.exchange(Exchange::Keyed, partitioner), key)
    }

    /// Sends records to each subtask of the next operator in turn.
    pub fn rebalance(self) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Rebalance, MakeRebalance)
    }

    /// Sends records in turn to those subtasks of the next operator that are near.
    pub fn rescale(self) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Rescale, MakeRebalance)
    }

    /// Sends records to subtasks drawn at random, from a seed.
    pub fn shuffle(self, seed: u64) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Shuffle, MakeShuffle { seed })
    }

    /// Sends every record to every subtask of the next operator.
    pub fn broadcast(self) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Broadcast, Forward)
    }

    /// Sends every record to the first subtask of the next operator.
    pub fn global(self) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Global, Forward)
    }

    /// Sends records from each subtask to the one with the same number, over an exchange.
    pub fn forward(self) -> Stream<T, InputChain<T>> {
        self.exchange(Exchange::Forward, Forward)
    }

    /// Sends a record where `f` says, given the record and the number of subtasks; the answer must be
    /// below that and depend on nothing else.
    pub fn partition_custom<F>(self, f: F) -> Stream<T, InputChain<T>>
    where
        F: for<'a> Fn(T::Ref<'a>, usize) -> usize + Clone + Send + Sync + 'static,
    {
        self.exchange(Exchange::Custom, Custom(f))
    }

    /// Ends the chain here: the next operator begins a new one, with the same parallelism.
    pub fn disable_chaining(self) -> Stream<T, InputChain<T>> {
        self.forward()
    }

    /// Both streams as one, in no particular order.
    pub fn union<Q: Chain<T>>(self, other: Stream<T, Q>) -> Stream<T, InputChain<T>> {
        let timestamps = self.timestamps || other.timestamps;
        let vertex = self.env.graph_mut().add_vertex(false);
        let env = self.env.clone();
        // Of equal parallelism each subtask feeds the one with its number.
        self.close_into(Exchange::Rescale, MakeRebalance, vertex, 0);
        other.close_into(Exchange::Rescale, MakeRebalance, vertex, 0);
        Stream::new(env, vertex, InputChain::new(), timestamps)
    }

    /// Joins two streams at one operator that sees both, records of each in order.
    ///
    /// Without a key: records go to near subtasks in turn. See [`KeyedStream::connect`] and
    /// [`KeyedStream::connect_broadcast`].
    pub fn connect<B: Record, Q: Chain<B>>(self, other: Stream<B, Q>) -> Connected<T, B> {
        let timestamps = self.timestamps || other.timestamps;
        let vertex = self.env.graph_mut().add_vertex(false);
        let env = self.env.clone();
        self.close_into(Exchange::Rescale, MakeRebalance, vertex, 0);
        other.close_into(Exchange::Rescale, MakeRebalance, vertex, 1);
        Connected::new(env, vertex, timestamps)
    }

    /// The stream twice, each time over an exchange.
    pub fn tee(self) -> (Stream<T, InputChain<T>>, Stream<T, InputChain<T>>) {
        let (first_output, first) = self.add_exchange::<T>(Exchange::Forward, 0, None);
        let (second_output, second) = self.add_exchange::<T>(Exchange::Forward, 0, None);
        let Stream { env, vertex, chain, timestamps, .. } = self;
        set_factory(&env, vertex, move |cx| {
            let a = cx.writer::<T, _>(first_output, Forward)?;
            let b = cx.writer::<T, _>(second_output, Forward)?;
            chain.build(cx, Tee(a, b))
        });
        (
            Stream::new(env.clone(), first, InputChain::new(), timestamps),
            Stream::new(env, second, InputChain::new(), timestamps),
        )
    }

    /// Ends the stream in a sink; `open` makes one parallel instance, on its shard.
    pub fn sink<S, F>(self, name: &str, open: F)
    where
        S: Sink<Item = T>,
        F: Fn(&SubtaskInfo) -> Result<S, SourceError> + Clone + Send + Sync + 'static,
    {
        let this = self.operator(name, "sink");
        let (chain, name): (_, Arc<str>) = (this.chain, Arc::from(name));
        this.env.keeps_exactly_once(this.vertex, S::TRANSACTIONAL);
        let operator = this.env.last_operator(this.vertex);
        set_factory(&this.env, this.vertex, move |cx| {
            let failure = |cause| operator_failure(&*name, &cause);
            let mut sink = open(cx.info()).map_err(failure)?;
            sink.wake_with(&cx.waker);
            if let Some((checkpoint, pieces)) = cx.restored_state(operator)? {
                let state = pieces.first().map(Vec::as_slice).unwrap_or_default();
                sink.restore(checkpoint, state).map_err(failure)?;
            }
            let end = SinkEnd::new(sink, name.clone(), operator, cx.metrics.clone());
            chain.build(cx, end)
        });
    }

    /// Sets the parallelism of all operators since the last exchange.
    pub fn parallelism(self, parallelism: u32) -> Self {
        self.env.graph_mut().vertex_mut(self.vertex).parallelism = Some(parallelism);
        self
    }

    /// Sets the number of key groups of all operators since the last exchange.
    pub fn max_parallelism(self, max_parallelism: u32) -> Self {
        self.env.graph_mut().vertex_mut(self.vertex).max_parallelism = Some(max_parallelism);
        self
    }

    /// Puts subtask i on shard i + `offset`, modulo the number of shards; 0 is the default.
    pub fn shard_offset(self, offset: u32) -> Self {
        self.env.graph_mut().vertex_mut(self.vertex).shard_offset = offset;
        self
    }

    /// Names the last operator.
    pub fn name(self, name: &str) -> Self {
        if let Some(operator) = self.env.graph_mut().vertex_mut(self.vertex).operators.last_mut() {
            operator.name = name.to_string();
        }
        self
    }

    /// Gives the last operator an identity that outlives changes of the job.
    pub fn uid(self, uid: &str) -> Self {
        if let Some(operator) = self.env.graph_mut().vertex_mut(self.vertex).operators.last_mut() {
            operator.uid = Some(uid.to_string());
        }
        self
    }

    /// Declares that records carry timestamps, which then travel with them.
    pub fn with_timestamps(mut self) -> Self {
        self.timestamps = true;
        self
    }

    /// Index of the operator that was added last.
    fn last_operator(&self) -> usize {
        self.env.last_operator(self.vertex)
    }

    /// Adds an operator to the chain, or to a new one where chaining is switched off.
    fn operator(self, name: &str, kind: &'static str) -> Stream<T, Link<P, T>> {
        let headless = self.env.graph().vertex(self.vertex).operators.is_empty();
        let linked = if self.env.chaining() || headless {
            Stream::new(self.env, self.vertex, Link::Chained(self.chain), self.timestamps)
        } else {
            let cut = self.exchange(Exchange::Forward, Forward);
            Stream::new(cut.env, cut.vertex, Link::Cut(cut.chain), cut.timestamps)
        };
        linked.env.add_operator(linked.vertex, name, kind);
        linked
    }

    /// Closes the chain with an exchange to a new vertex.
    pub(super) fn exchange<M: MakePartitioner<T>>(
        self,
        exchange: Exchange,
        partitioner: M,
    ) -> Stream<T, InputChain<T>> {
        let vertex = self.env.graph_mut().add_vertex(false);
        let (env, timestamps) = (self.env.clone(), self.timestamps);
        self.close_into(exchange, partitioner, vertex, 0);
        Stream::new(env, vertex, InputChain::new(), timestamps)
    }

    /// Closes the chain with an exchange to input `input` of a vertex.
    pub(super) fn close_into<M: MakePartitioner<T>>(
        self,
        exchange: Exchange,
        partitioner: M,
        to: VertexId,
        input: u8,
    ) {
        let (output, _) = self.add_exchange::<T>(exchange, input, Some(to));
        let Stream { env, vertex, chain, .. } = self;
        set_factory(&env, vertex, move |cx| {
            let writer = cx.writer::<T, M>(output, partitioner.clone())?;
            chain.build(cx, writer)
        });
    }

    /// Adds an exchange from this vertex; the output's number and the consuming vertex, new if not given.
    fn add_exchange<R: Record>(
        &self,
        exchange: Exchange,
        input: u8,
        to: Option<VertexId>,
    ) -> (u32, VertexId) {
        let mut graph = self.env.graph_mut();
        let to = to.unwrap_or_else(|| graph.add_vertex(false));
        let output = graph.outputs(self.vertex);
        graph.edges.push(Edge {
            from: self.vertex,
            output,
            to,
            input,
            exchange,
            stride: subtask::stride::<R>(self.timestamps),
            timestamps: self.timestamps,
            record_type: std::any::type_name::<R>(),
        });
        (output, to)
    }

    pub(super) fn into_parts(self) -> (Environment, VertexId, bool) {
        (self.env, self.vertex, self.timestamps)
    }

    /// Number of the vertex that the stream's chain belongs to.
    pub fn vertex(&self) -> VertexId {
        self.vertex
    }
}

fn set_factory(
    env: &Environment,
    vertex: VertexId,
    factory: impl Fn(&mut SubtaskContext) -> Result<Box<dyn Task>, TaskFailure> + Send + Sync + 'static,
) {
    let factory: Factory = Arc::new(factory);
    env.graph_mut().vertex_mut(vertex).factory = Some(factory);
}
