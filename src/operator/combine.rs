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
use super::combiner::{Combiner, Held};
use super::keyed::BATCH;
use super::{Collector, Control, Lifecycle, OperatorFailure, Step};
use crate::record::{KeySelector, NO_TIMESTAMP, Record, Timestamp};
use crate::source::SourceError;
use crate::state::StateKey;
use crate::subtask::SubtaskContext;
use arrayvec::ArrayVec;
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};

/// Keys that a subtask holds at most. Words with their counts then take 2 MiB, of which the frequent ones stay in
/// the core's cache. In 250 MB of English prose and source code the 65,000 most frequent words of 500,000 are 97 %
/// of the text, and the 16,000 most frequent ones 93 %.
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
            let mut places: ArrayVec<_, BATCH> = ArrayVec::new();
            for record in records {
                let place = K::with_table((key)(*record), scratch, |key| held.place(key));
                held.prefetch(&place);
                places.push(place);
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

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        if let Lifecycle::PreBarrier(_) = event {
            self.flush();
        }
        self.out.next.lifecycle(event);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What comes out, in order; ready for so many more records.
    #[derive(Clone, Default)]
    struct Seen(Rc<RefCell<(Vec<Out>, usize)>>);

    #[derive(Debug, PartialEq)]
    enum Out {
        Partial(String, u64),
        Control(Control),
        Finished,
    }

    impl Collector<(String, u64)> for Seen {
        fn collect(&mut self, (key, value): (&str, u64), at: Timestamp) {
            assert_eq!(at, NO_TIMESTAMP);
            let (seen, room) = &mut *self.0.borrow_mut();
            seen.push(Out::Partial(key.to_string(), value));
            *room = room.saturating_sub(1);
        }

        fn begin_turn(&mut self, _: u64) {}

        fn control(&mut self, control: Control) {
            self.0.borrow_mut().0.push(Out::Control(control));
        }

        fn ready(&self) -> bool {
            self.0.borrow().1 > 0
        }

        fn finish(&mut self) -> Step {
            self.0.borrow_mut().0.push(Out::Finished);
            Step::Done
        }

        fn lifecycle(&mut self, _: &mut Lifecycle<'_, '_>) {}

        fn outputs(&mut self, _: &mut dyn FnMut(&mut ResultPartition)) {}

        fn end_of_turn(&mut self) {}

        fn failure(&mut self) -> Option<OperatorFailure> {
            None
        }
    }

    /// Counts words in a table of so many keys.
    fn counting(keys: usize, room: usize) -> (impl Collector<String>, Seen) {
        let seen = Seen::default();
        seen.0.borrow_mut().1 = room;
        fn word(word: &str) -> &str {
            word
        }
        let operator = Combine::<String, String, u64, _, _, _> {
            key: word,
            add: |_: &str, count: &mut u64| *count += 1,
            held: Combiner::new(keys),
            out: Partials { next: seen.clone(), name: "combine".into(), failed: None, types: PhantomData },
            scratch: Vec::new(),
            types: PhantomData,
        };
        (operator, seen)
    }

    fn taken(seen: &Seen) -> Vec<Out> {
        std::mem::take(&mut seen.0.borrow_mut().0)
    }

    fn partial(key: &str, count: u64) -> Out {
        Out::Partial(key.to_string(), count)
    }

    /// Goal: nothing that came before a watermark or idleness comes after it; a marker, which measures how long
    /// the way is, takes nothing along.
    #[test]
    fn what_is_held_comes_before_a_watermark() {
        let (mut operator, seen) = counting(16, usize::MAX);
        operator.collect_all(&["b", "b"], NO_TIMESTAMP);
        operator.collect("b", NO_TIMESTAMP);
        operator.control(Control::Marker { vertex: 0, subtask: 0, at_ns: 1 });
        assert_eq!(taken(&seen), [Out::Control(Control::Marker { vertex: 0, subtask: 0, at_ns: 1 })]);
        operator.control(Control::Watermark(7));
        assert_eq!(taken(&seen), [partial("b", 3), Out::Control(Control::Watermark(7))]);
        operator.collect("b", NO_TIMESTAMP);
        operator.control(Control::Idle);
        assert_eq!(taken(&seen), [partial("b", 1), Out::Control(Control::Idle)]);
        operator.control(Control::Watermark(8));
        assert_eq!(taken(&seen), [Out::Control(Control::Watermark(8))]);
    }

    /// Goal: at the end everything comes out, a bounded number a step, and the end last.
    #[test]
    fn the_end_brings_out_all_in_bounded_steps() {
        let (mut operator, seen) = counting(2_048, usize::MAX);
        let words: Vec<String> = (0..1_000).map(|i| format!("a word of many bytes, the {i}th")).collect();
        let all: Vec<&str> = words.iter().chain(&words).map(String::as_str).collect();
        operator.collect_all(&all, NO_TIMESTAMP);
        let mut counts = vec![0; words.len()];
        let mut count = |out: Vec<Out>| {
            for out in out {
                let Out::Partial(word, count) = out else { panic!("{out:?}") };
                counts[words.iter().position(|known| *known == word).unwrap()] += count;
            }
        };
        // Those that had to give way.
        count(taken(&seen));
        loop {
            let step = operator.finish();
            let mut out = taken(&seen);
            assert!(out.len() <= STEP + 1, "{} in one step", out.len());
            let finished = out.pop_if(|last| *last == Out::Finished).is_some();
            assert_eq!(finished, step == Step::Done);
            count(out);
            if finished {
                break;
            }
        }
        assert!(counts.iter().all(|count| *count == 2), "{counts:?}");
    }

    /// Goal: with room for two keys, records alone and in batches come out as what they add up to.
    #[test]
    fn partial_values_add_up_to_the_records() {
        let (mut operator, seen) = counting(2, usize::MAX);
        let text = "a rose is a rose is a rose and a rose by any other name is one";
        let words: Vec<&str> = text.split(' ').collect();
        words.iter().for_each(|word| operator.collect(word, NO_TIMESTAMP));
        operator.collect_all(&words, NO_TIMESTAMP);
        assert!(operator.ready());
        while operator.finish() == Step::Pending {}
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        for out in taken(&seen) {
            if let Out::Partial(word, count) = out {
                *counts.entry(word).or_default() += count;
            }
        }
        let mut expected = std::collections::BTreeMap::<String, u64>::new();
        words.iter().for_each(|word| *expected.entry(word.to_string()).or_default() += 2);
        assert_eq!(counts, expected);
    }

    /// Goal: it takes no record while what comes next does not.
    #[test]
    fn it_is_ready_when_the_next_operator_is() {
        let (mut operator, _) = counting(2, 1);
        assert!(operator.ready());
        operator.collect_all(&["a", "b", "c", "d", "e", "f", "g"], NO_TIMESTAMP);
        assert!(!operator.ready());
    }
}
