//! The local combine: records of one key are added up before they are sent.
//!
//! One partial value goes out for many records, so an exchange by key carries, of a stream whose keys repeat, a
//! fraction of what would cross it otherwise. It is for aggregations to which partial values are as good as
//! records (counts, sums, extremes, sketches) and that show their result at the end of the input or of a window:
//! one that emits for each record would emit for each partial value instead. Flink's name for it is local-global
//! aggregation; MapReduce's is combiner.
//!
//! ```text
//!   records ─► combine ═ (key, partial value) ═ by key ═► aggregate
//!              bounded table a subtask, see `combiner`
//! ```
//!
//! What is held goes out when there is no room for it, all of it before a watermark or idleness is handed on,
//! and at the end of the input. So nothing that came before a watermark comes after it; a checkpoint's
//! barrier is to pass behind [`Combine::flush`] in the same way, and then there is nothing to snapshot.

use super::chain::Chain;
use super::combiner::{Combiner, Held, Place};
use super::keyed::BATCH;
use super::{Collector, Control, OperatorFailure, Step};
use crate::record::{KeySelector, NO_TIMESTAMP, Record, Timestamp};
use crate::source::SourceError;
use crate::state::StateKey;
use crate::subtask::SubtaskContext;
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// Keys that a subtask holds at most. Words with their counts then take 2 MiB, of which the frequent ones stay in
/// the core's cache; of English text this takes 97 % of the words, and a fourth of it 94 %.
const KEYS_MAX: usize = 1 << 16;

/// Partial values that are emitted in one step.
const STEP: usize = 256;

/// `combine`: see the module's description.
pub struct Combine<T, K: StateKey, A: Copy + Default, KF, F, C> {
    key: KF,
    add: F,
    held: Combiner<K::Table, A>,
    out: Partials<K, A, C>,
    scratch: Vec<u8>,
    types: PhantomData<fn(T)>,
}

/// The way out of partial values.
struct Partials<K, A, C> {
    next: C,
    name: Arc<str>,
    failed: Option<SourceError>,
    types: PhantomData<fn(K, A)>,
}

impl<K, A, C> Partials<K, A, C>
where
    K: StateKey,
    A: Copy + for<'a> Record<Ref<'a> = A>,
    C: Collector<(K, A)>,
{
    fn emit(&mut self, held: Held<'_, K::Table>, value: A) {
        let mut scratch = K::Scratch::default();
        match K::from_table(held.key(), &mut scratch) {
            Ok(key) => self.next.collect((key, value), NO_TIMESTAMP),
            Err(error) => self.failed = Some(error.into()),
        }
    }
}

impl<T, K, A, KF, F, C> Combine<T, K, A, KF, F, C>
where
    K: StateKey,
    A: Copy + Default + for<'a> Record<Ref<'a> = A>,
    C: Collector<(K, A)>,
{
    /// Emits all that is held.
    ///
    /// In one step, whatever the output has room for: what does not fit waits in the output, and makes it
    /// unavailable until it is gone.
    pub fn flush(&mut self) {
        let Combine { held, out, .. } = self;
        held.drain(usize::MAX, |key, value| out.emit(key, *value));
    }
}

impl<T, K, A, KF, F, C> Collector<T> for Combine<T, K, A, KF, F, C>
where
    T: Record,
    K: StateKey,
    A: Copy + Default + for<'a> Record<Ref<'a> = A>,
    KF: for<'a> KeySelector<'a, T, K>,
    F: for<'a> FnMut(T::Ref<'a>, &mut A),
    C: Collector<(K, A)>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, _: Timestamp) {
        let Combine { key, add, held, out, scratch, .. } = self;
        K::with_table((key)(record), scratch, |key| {
            held.update(key, |value| add(record, value), |key, value| out.emit(key, *value));
        });
    }

    #[inline]
    fn collect_all(&mut self, records: &[T::Ref<'_>], _: Timestamp) {
        let Combine { key, add, held, out, scratch, .. } = self;
        for records in records.chunks(BATCH) {
            let mut places = [Place::default(); BATCH];
            for (record, place) in records.iter().zip(&mut places) {
                *place = K::with_table((key)(*record), scratch, |key| held.approach(key));
            }
            for (record, place) in records.iter().zip(places) {
                K::with_table((key)(*record), scratch, |key| {
                    let out = |held: Held<'_, K::Table>, value: &A| out.emit(held, *value);
                    held.update_at(place, key, |value| add(*record, value), out);
                });
            }
        }
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.out.failed.is_none() && self.out.next.ready()
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.out.next.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        if matches!(control, Control::Watermark(_) | Control::Idle) {
            self.flush();
        }
        self.out.next.control(control);
    }

    fn finish(&mut self) -> Step {
        let Combine { held, out, .. } = self;
        if held.drain(STEP, |key, value| out.emit(key, *value)) { out.next.finish() } else { Step::Pending }
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.out.next.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.out.next.end_of_turn();
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        let Partials { next, name, failed, .. } = &mut self.out;
        super::output::failure(failed, name).or_else(|| next.failure())
    }
}

/// Recipe of [`Combine`].
pub struct CombineChain<P, T, K, A, KF, F> {
    pub(crate) previous: P,
    pub(crate) key: KF,
    pub(crate) add: F,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    pub(crate) types: PhantomData<fn(T) -> (K, A)>,
}

impl<P: Clone, T, K, A, KF: Clone, F: Clone> Clone for CombineChain<P, T, K, A, KF, F> {
    fn clone(&self) -> Self {
        CombineChain {
            previous: self.previous.clone(),
            key: self.key.clone(),
            add: self.add.clone(),
            operator: self.operator,
            types: PhantomData,
        }
    }
}

impl<P, T, K, A, KF, F> Chain<(K, A)> for CombineChain<P, T, K, A, KF, F>
where
    P: Chain<T>,
    T: Record,
    K: StateKey,
    A: Copy + Default + for<'a> Record<Ref<'a> = A>,
    KF: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
    F: for<'a> FnMut(T::Ref<'a>, &mut A) + Clone + Send + Sync + 'static,
{
    fn build<C: Collector<(K, A)> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let name = cx.operator_name(self.operator);
        let operator = Combine {
            key: self.key.clone(),
            add: self.add.clone(),
            held: Combiner::<K::Table, A>::new(KEYS_MAX),
            out: Partials { next, name, failed: None, types: PhantomData },
            scratch: Vec::new(),
            types: PhantomData,
        };
        self.previous.build(cx, operator)
    }
}
