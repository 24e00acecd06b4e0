//! Partitioners: which subpartition a record goes to.

use crate::graph::key_group::Assigner;
use crate::record::{Key, KeySelector, Record};
use std::marker::PhantomData;

/// Chooses the lane of a result partition for each record.
pub trait Partitioner<T: Record>: 'static {
    /// Whether lanes are found by a hash, many of them at once by [`lanes_of`](Self::lanes_of).
    const BY_HASH: bool = false;

    /// The lane, below `lanes`.
    fn lane(&mut self, record: T::Ref<'_>, lanes: usize) -> usize;

    /// The lane of each record, as many as there are places; only where [`BY_HASH`](Self::BY_HASH).
    fn lanes_of<'a>(&self, _: impl Iterator<Item = T::Ref<'a>>, _: &mut [u16]) {}
}

/// Recipe of a partitioner, one for each subtask.
pub trait MakePartitioner<T: Record>: Clone + Send + Sync + 'static {
    /// The partitioner.
    type Partitioner: Partitioner<T>;

    /// Makes the partitioner of the subtask `subtask`, towards a vertex whose key groups `to` assigns.
    fn make(&self, subtask: u32, to: Assigner) -> Self::Partitioner;
}

/// Everything to the one consumer that a subtask has: forward, global, and broadcast, which has one lane.
#[derive(Debug, Clone, Copy)]
pub struct Forward;

impl<T: Record> Partitioner<T> for Forward {
    #[inline(always)]
    fn lane(&mut self, _: T::Ref<'_>, _: usize) -> usize {
        0
    }
}

impl<T: Record> MakePartitioner<T> for Forward {
    type Partitioner = Forward;

    fn make(&self, _: u32, _: Assigner) -> Forward {
        Forward
    }
}

/// By key group of the record's key.
pub struct ByKey<T, K, F> {
    key: F,
    assigner: Assigner,
    types: PhantomData<fn(T) -> K>,
}

impl<T, K, F> Partitioner<T> for ByKey<T, K, F>
where
    T: Record,
    K: Key,
    F: for<'a> KeySelector<'a, T, K> + 'static,
{
    const BY_HASH: bool = true;

    #[inline(always)]
    fn lane(&mut self, record: T::Ref<'_>, _: usize) -> usize {
        let group = self.assigner.group(K::java_hash((self.key)(record)));
        self.assigner.subtask_of(group) as usize
    }

    #[inline(always)]
    fn lanes_of<'a>(&self, records: impl Iterator<Item = T::Ref<'a>>, lanes: &mut [u16]) {
        self.assigner.subtasks(records, |record| K::java_hash((self.key)(record)), lanes);
    }
}

/// Recipe of [`ByKey`].
pub struct MakeByKey<T, K, F> {
    pub(crate) key: F,
    pub(crate) types: PhantomData<fn(T) -> K>,
}

impl<T, K, F: Clone> Clone for MakeByKey<T, K, F> {
    fn clone(&self) -> Self {
        MakeByKey { key: self.key.clone(), types: PhantomData }
    }
}

impl<T, K, F> MakePartitioner<T> for MakeByKey<T, K, F>
where
    T: Record,
    K: Key,
    F: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
{
    type Partitioner = ByKey<T, K, F>;

    fn make(&self, _: u32, assigner: Assigner) -> ByKey<T, K, F> {
        ByKey { key: self.key.clone(), assigner, types: PhantomData }
    }
}

/// To each consumer in turn, beginning at the subtask's own number.
#[derive(Debug, Clone, Copy)]
pub struct Rebalance {
    next: usize,
}

impl<T: Record> Partitioner<T> for Rebalance {
    #[inline(always)]
    fn lane(&mut self, _: T::Ref<'_>, lanes: usize) -> usize {
        self.next += 1;
        if self.next >= lanes {
            self.next = 0;
        }
        self.next
    }
}

/// Recipe of [`Rebalance`].
#[derive(Debug, Clone, Copy)]
pub struct MakeRebalance;

impl<T: Record> MakePartitioner<T> for MakeRebalance {
    type Partitioner = Rebalance;

    fn make(&self, subtask: u32, _: Assigner) -> Rebalance {
        Rebalance { next: subtask as usize }
    }
}

/// To a consumer drawn at random for each record, from a seed.
#[derive(Debug, Clone, Copy)]
pub struct Shuffle {
    state: u64,
}

impl<T: Record> Partitioner<T> for Shuffle {
    #[inline(always)]
    fn lane(&mut self, _: T::Ref<'_>, lanes: usize) -> usize {
        // splitmix64, after Steele, Lea and Flood, 2014.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * lanes as u128) >> 64) as usize
    }
}

/// Recipe of [`Shuffle`].
#[derive(Debug, Clone, Copy)]
pub struct MakeShuffle {
    pub(crate) seed: u64,
}

impl<T: Record> MakePartitioner<T> for MakeShuffle {
    type Partitioner = Shuffle;

    fn make(&self, subtask: u32, _: Assigner) -> Shuffle {
        Shuffle { state: self.seed ^ u64::from(subtask) << 32 }
    }
}

/// By a function of the user's, from a record and the number of consumers; it must depend on these only.
#[derive(Debug, Clone, Copy)]
pub struct Custom<F>(pub(crate) F);

impl<T, F> Partitioner<T> for Custom<F>
where
    T: Record,
    F: for<'a> Fn(T::Ref<'a>, usize) -> usize + 'static,
{
    #[inline(always)]
    fn lane(&mut self, record: T::Ref<'_>, lanes: usize) -> usize {
        let lane = (self.0)(record, lanes);
        assert!(lane < lanes, "the custom partitioner chose consumer {lane} of {lanes}");
        debug_assert_eq!(lane, (self.0)(record, lanes), "a custom partitioner must be deterministic");
        lane
    }
}

impl<T, F> MakePartitioner<T> for Custom<F>
where
    T: Record,
    F: for<'a> Fn(T::Ref<'a>, usize) -> usize + Clone + Send + Sync + 'static,
{
    type Partitioner = Custom<F>;

    fn make(&self, _: u32, _: Assigner) -> Custom<F> {
        Custom(self.0.clone())
    }
}
