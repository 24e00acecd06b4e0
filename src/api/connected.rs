//! Two streams of different types that meet at one operator.

use super::environment::Environment;
use super::stream::Stream;
use crate::graph::logical::VertexId;
use crate::operator::Output;
use crate::operator::connect::{BothKeyed, ConnectChain, KeyedAndBroadcast, PerSubtask, Selecting, Sides};
use crate::record::{KeySelector, Record};
use crate::state::{StateKey, StateValue};
use crate::subtask::Inputs;
use std::marker::PhantomData;

fn stream<A: Record, B: Record, U: Record, X: Sides<A, B, U>>(
    env: Environment,
    vertex: VertexId,
    timestamps: bool,
    sides: X,
) -> Stream<U, ConnectChain<A, B, U, X>> {
    env.add_operator(vertex, "connect", "connect");
    let chain = ConnectChain { sides, operator: env.last_operator(vertex), types: PhantomData };
    Stream::new(env, vertex, chain, timestamps)
}

macro_rules! settings {
    () => {
        /// Sets the parallelism of the operator.
        pub fn parallelism(self, parallelism: u32) -> Self {
            self.env.graph_mut().vertex_mut(self.vertex).parallelism = Some(parallelism);
            self
        }
    };
}

/// Two streams without keys.
#[must_use = "a stream that does not end in a sink cannot run"]
pub struct Connected<A, B> {
    env: Environment,
    vertex: VertexId,
    timestamps: bool,
    types: PhantomData<fn(A, B)>,
}

impl<A: Record, B: Record> Connected<A, B> {
    pub(super) fn new(env: Environment, vertex: VertexId, timestamps: bool) -> Self {
        Connected { env, vertex, timestamps, types: PhantomData }
    }

    settings!();

    /// Runs one function on records of the first stream and one on those of the second; both see the state
    /// of their subtask.
    pub fn process<S, U, FA, FB>(
        self,
        first: FA,
        second: FB,
    ) -> Stream<U, ConnectChain<A, B, U, PerSubtask<S, FA, FB>>>
    where
        S: Record + Default,
        U: Record,
        FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
        FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    {
        let sides = PerSubtask { f: (first, second), types: PhantomData };
        stream(self.env, self.vertex, self.timestamps, sides)
    }

    /// As [`process`](Self::process); `wants` says after each record, from the state of its subtask, from which
    /// input the next one shall come, as for a join that reads one side to its end before the other.
    ///
    /// Records of the other input wait meanwhile, and back pressure reaches their source. An input that has ended
    /// is not waited for.
    pub fn process_selecting<S, U, FA, FB, G>(
        self,
        first: FA,
        second: FB,
        wants: G,
    ) -> Stream<U, ConnectChain<A, B, U, Selecting<PerSubtask<S, FA, FB>, G>>>
    where
        S: Record + Default,
        U: Record,
        FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
        FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
        G: Fn(&S) -> Inputs + Clone + Send + Sync + 'static,
    {
        let sides = Selecting { sides: PerSubtask { f: (first, second), types: PhantomData }, wants };
        stream(self.env, self.vertex, self.timestamps, sides)
    }
}

/// Two streams that are keyed alike.
#[must_use = "a stream that does not end in a sink cannot run"]
pub struct KeyedConnected<A, B, K, KA, KB> {
    env: Environment,
    vertex: VertexId,
    timestamps: bool,
    keys: (KA, KB),
    types: PhantomData<fn(A, B) -> K>,
}

impl<A, B, K, KA, KB> KeyedConnected<A, B, K, KA, KB>
where
    A: Record,
    B: Record,
    K: StateKey,
    KA: for<'a> KeySelector<'a, A, K> + Clone + Send + Sync + 'static,
    KB: for<'a> KeySelector<'a, B, K> + Clone + Send + Sync + 'static,
{
    pub(super) fn new(env: Environment, vertex: VertexId, timestamps: bool, keys: (KA, KB)) -> Self {
        KeyedConnected { env, vertex, timestamps, keys, types: PhantomData }
    }

    settings!();

    /// Runs one function on records of the first stream and one on those of the second; both see the state
    /// of their record's key.
    pub fn process<S, U, FA, FB>(
        self,
        first: FA,
        second: FB,
    ) -> Stream<U, ConnectChain<A, B, U, BothKeyed<K, S, KA, KB, FA, FB>>>
    where
        S: StateValue,
        U: Record,
        FA: for<'a> FnMut(A::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
        FB: for<'a> FnMut(B::Ref<'a>, &mut S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    {
        let sides = BothKeyed { keys: self.keys, f: (first, second), types: PhantomData };
        stream(self.env, self.vertex, self.timestamps, sides)
    }
}

/// A keyed stream and one of which every subtask sees all.
#[must_use = "a stream that does not end in a sink cannot run"]
pub struct BroadcastConnected<A, B, K, KA> {
    env: Environment,
    vertex: VertexId,
    timestamps: bool,
    key: KA,
    types: PhantomData<fn(A, B) -> K>,
}

impl<A, B, K, KA> BroadcastConnected<A, B, K, KA>
where
    A: Record,
    B: Record,
    K: StateKey,
    KA: for<'a> KeySelector<'a, A, K> + Clone + Send + Sync + 'static,
{
    pub(super) fn new(env: Environment, vertex: VertexId, timestamps: bool, key: KA) -> Self {
        BroadcastConnected { env, vertex, timestamps, key, types: PhantomData }
    }

    settings!();

    /// Runs one function on records of the keyed stream, which sees the state of its key and may read the
    /// broadcast one, and one on records of the broadcast stream, which may change that.
    pub fn process<S, W, U, FA, FB>(
        self,
        keyed: FA,
        broadcast: FB,
    ) -> Stream<U, ConnectChain<A, B, U, KeyedAndBroadcast<K, S, W, KA, FA, FB>>>
    where
        S: StateValue,
        W: Record + Default,
        U: Record,
        FA: for<'a> FnMut(A::Ref<'a>, &mut S, &W, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
        FB: for<'a> FnMut(B::Ref<'a>, &mut W, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
    {
        let sides = KeyedAndBroadcast { key: self.key, f: (keyed, broadcast), types: PhantomData };
        stream(self.env, self.vertex, self.timestamps, sides)
    }
}
