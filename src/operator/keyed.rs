//! Operators with keyed state, at the head of their chain: state is declared with the operator, so that a
//! batch's entries can be fetched together before the first record is worked on.
//!
//! The receiver extracts the key again rather than having it sent: it is in the record.

use super::chain::Chain;
use super::output::failure;
use super::{Batch, Collector, Control, Lifecycle, OperatorFailure, Output, Step, Wait};
use crate::record::{KeySelector, NO_TIMESTAMP, Record, Timestamp};
use crate::source::SourceError;
use crate::state::{KeyedState, StateKey, StateValue};
use crate::subtask::{ReaderTask, SubtaskContext};
use std::marker::PhantomData;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::{Task, TaskFailure};
use tidegate_storage::table::Cursor;

/// Records whose entries are fetched together.
pub(crate) const BATCH: usize = 64;

/// Entries that are emitted at the end of input in one step.
const FINISH_STEP: usize = 256;

/// What a function may return: nothing, or that it waits.
pub trait Answer {
    /// Whether the function may ask to wait at all.
    const WAITS: bool;

    /// What it said.
    fn wait(self) -> Wait;
}

impl Answer for () {
    const WAITS: bool = false;

    #[inline(always)]
    fn wait(self) -> Wait {
        Wait::Done
    }
}

impl Answer for Wait {
    const WAITS: bool = true;

    #[inline(always)]
    fn wait(self) -> Wait {
        self
    }
}

/// What an operator emits when its input has ended.
pub trait AtEnd<K: StateKey, S, U: Record>: Clone + Send + Sync + 'static {
    /// Whether it emits anything.
    const EMITS: bool;

    /// Emits for one key.
    fn emit(&mut self, key: K::Ref<'_>, state: &S, out: &mut Output<'_, U>);
}

/// Nothing.
#[derive(Debug, Clone, Copy)]
pub struct Nothing;

impl<K: StateKey, S, U: Record> AtEnd<K, S, U> for Nothing {
    const EMITS: bool = false;

    fn emit(&mut self, _: K::Ref<'_>, _: &S, _: &mut Output<'_, U>) {}
}

/// What a function of key and state emits, for each key.
#[derive(Debug, Clone, Copy)]
pub struct EachKey<G>(pub(crate) G);

impl<K, S, U, G> AtEnd<K, S, U> for EachKey<G>
where
    K: StateKey,
    U: Record,
    G: for<'a> FnMut(K::Ref<'a>, &S, &mut Output<'_, U>) + Clone + Send + Sync + 'static,
{
    const EMITS: bool = true;

    fn emit(&mut self, key: K::Ref<'_>, state: &S, out: &mut Output<'_, U>) {
        (self.0)(key, state, out);
    }
}

/// `process` on a keyed stream: a function of record and state.
pub struct KeyedProcess<T, K: StateKey, S: StateValue, U, KF, F, E, R, C> {
    key: KF,
    f: F,
    at_end: E,
    state: KeyedState<K, S>,
    end_cursor: Cursor,
    next: C,
    name: Arc<str>,
    failed: Option<SourceError>,
    now_ns: u64,
    metrics: Arc<SubtaskMetrics>,
    types: PhantomData<fn(T) -> (U, R)>,
}

impl<T, K, S, U, KF, F, E, R, C> KeyedProcess<T, K, S, U, KF, F, E, R, C>
where
    T: Record,
    K: StateKey,
    S: StateValue,
    U: Record,
    KF: for<'a> KeySelector<'a, T, K>,
    F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R,
    R: Answer,
    C: Collector<U>,
{
    #[inline(always)]
    fn run(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        let state = self.state.entry((self.key)(record));
        let mut out = Output::new(&mut self.next, at, self.now_ns, &mut self.failed);
        (self.f)(record, state, &mut out).wait()
    }

    /// Takes up to [`BATCH`] records.
    #[inline(always)]
    fn collect_part<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize {
        let mut groups = [0; BATCH];
        let groups = &mut groups[..batch.len()];
        self.state.assigner().groups(batch.records(), |record| K::java_hash((self.key)(record)), groups);
        let groups = &*groups;
        if self.state.is_small() {
            for (taken, (record, group)) in batch.records().zip(groups).enumerate() {
                if !self.ready_for_more() {
                    return taken;
                }
                let state = self.state.entry_of(u32::from(*group), (self.key)(record));
                let at = times.get(taken).copied().unwrap_or(NO_TIMESTAMP);
                let mut out = Output::new(&mut self.next, at, self.now_ns, &mut self.failed);
                (self.f)(record, state, &mut out);
            }
            return batch.len();
        }
        let mut hashes = [0; BATCH];
        for ((record, group), hash) in batch.records().zip(groups).zip(&mut hashes) {
            *hash = self.state.approach(u32::from(*group), (self.key)(record));
        }
        for (taken, ((record, group), hash)) in batch.records().zip(groups).zip(&hashes).enumerate() {
            if !self.ready_for_more() {
                return taken;
            }
            let state = self.state.entry_hashed(u32::from(*group), *hash, (self.key)(record));
            let at = times.get(taken).copied().unwrap_or(NO_TIMESTAMP);
            let mut out = Output::new(&mut self.next, at, self.now_ns, &mut self.failed);
            (self.f)(record, state, &mut out);
        }
        batch.len()
    }

    #[inline(always)]
    fn ready_for_more(&self) -> bool {
        self.failed.is_none() && self.next.ready()
    }
}

impl<T, K, S, U, KF, F, E, R, C> Collector<T> for KeyedProcess<T, K, S, U, KF, F, E, R, C>
where
    T: Record,
    K: StateKey,
    S: StateValue,
    U: Record,
    KF: for<'a> KeySelector<'a, T, K>,
    F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R,
    E: AtEnd<K, S, U>,
    R: Answer,
    C: Collector<U>,
{
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.run(record, at);
    }

    #[inline(always)]
    fn collect_batch<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize {
        let mut taken = 0;
        while taken < batch.len() {
            let part = batch.behind(taken).first((batch.len() - taken).min(BATCH));
            let took = self.collect_part(part, times.get(taken..).unwrap_or_default());
            taken += took;
            if took < part.len() {
                break;
            }
        }
        taken
    }

    #[inline(always)]
    fn wants_batches(&self) -> bool {
        !R::WAITS
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        R::WAITS
    }

    #[inline]
    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        self.run(record, at)
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.ready_for_more()
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.next.begin_turn(now_ns);
    }

    fn control(&mut self, control: Control) {
        self.next.control(control);
    }

    fn finish(&mut self) -> Step {
        if E::EMITS {
            let KeyedProcess { at_end, state, next, failed, end_cursor, now_ns, .. } = self;
            for _ in 0..FINISH_STEP {
                if failed.is_some() || !next.ready() {
                    return Step::Pending;
                }
                let Some((key, value)) = state.next(end_cursor) else { return next.finish() };
                let mut scratch = K::Scratch::default();
                let mut cause = None;
                match K::from_table(key, &mut scratch) {
                    Ok(key) => {
                        let mut out = Output::new(next, NO_TIMESTAMP, *now_ns, &mut cause);
                        at_end.emit(key, value, &mut out);
                    }
                    Err(error) => cause = Some(error.into()),
                }
                if cause.is_some() {
                    *failed = cause;
                }
            }
            return Step::Pending;
        }
        self.next.finish()
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        self.state.lifecycle(event);
        self.next.lifecycle(event);
    }

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        self.next.outputs(f);
    }

    fn end_of_turn(&mut self) {
        self.state.book(&self.metrics);
        self.next.end_of_turn();
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        failure(&mut self.failed, &self.name).or_else(|| self.next.failure())
    }
}

/// Recipe of a task that reads a keyed exchange into [`KeyedProcess`].
pub struct KeyedProcessChain<T, K, S, U, KF, F, E, R> {
    pub(crate) key: KF,
    pub(crate) f: F,
    pub(crate) at_end: E,
    /// Index of the operator in its vertex.
    pub(crate) operator: usize,
    pub(crate) types: PhantomData<fn(T, K, S) -> (U, R)>,
}

impl<T, K, S, U, KF: Clone, F: Clone, E: Clone, R> Clone for KeyedProcessChain<T, K, S, U, KF, F, E, R> {
    fn clone(&self) -> Self {
        KeyedProcessChain {
            key: self.key.clone(),
            f: self.f.clone(),
            at_end: self.at_end.clone(),
            operator: self.operator,
            types: PhantomData,
        }
    }
}

impl<T, K, S, U, KF, F, E, R> Chain<U> for KeyedProcessChain<T, K, S, U, KF, F, E, R>
where
    T: Record,
    K: StateKey,
    S: StateValue,
    U: Record,
    KF: for<'a> KeySelector<'a, T, K> + Clone + Send + Sync + 'static,
    F: for<'a> FnMut(T::Ref<'a>, &mut S, &mut Output<'_, U>) -> R + Clone + Send + Sync + 'static,
    E: AtEnd<K, S, U>,
    R: Answer + 'static,
{
    fn build<C: Collector<U> + 'static>(
        &self,
        cx: &mut SubtaskContext,
        next: C,
    ) -> Result<Box<dyn Task>, TaskFailure> {
        let operator = KeyedProcess {
            key: self.key.clone(),
            f: self.f.clone(),
            at_end: self.at_end.clone(),
            state: KeyedState::<K, S>::new(cx, self.operator)?,
            end_cursor: Cursor::default(),
            next,
            name: cx.operator_name(self.operator),
            failed: None,
            now_ns: 0,
            metrics: cx.metrics.clone(),
            types: PhantomData,
        };
        Ok(Box::new(ReaderTask::<T, _>::new(cx, operator)))
    }
}
