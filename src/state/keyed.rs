//! The keyed state of one operator of one subtask: a table, and what checkpoints need to know of it.

use super::{StateKey, Visitor};
use crate::checkpoint::DeclineReason;
use crate::graph::key_group::Assigner;
use crate::operator::{Lifecycle, Snapshot, Writing};
use crate::record::Record;
use crate::subtask::{SubtaskContext, operator_failure};
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::task::TaskFailure;
use tidegate_storage::format::DecodeError;
use tidegate_storage::keyed::{KeyedBackend, OldSubtask, Progress};
use tidegate_storage::table::value::TableValue;
use tidegate_storage::table::{Arena, Cursor, Table, TableKey};

/// A value that keyed state can have: kept as it is in the table, changed in place, and written to checkpoints by its
/// encoding as a record.
pub trait StateValue: Record + Copy + Default {}

impl<S: Record + Copy + Default> StateValue for S {}

/// A record as a value of a table.
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct Plain<S>(pub S);

impl<S: StateValue> TableValue for Plain<S> {
    const ENCODED_BYTES: Option<usize> = match S::STRIDE {
        Some(bytes) => Some(bytes as usize),
        None => None,
    };

    #[inline]
    fn encode(&self, _: &Arena, out: &mut Vec<u8>) {
        encode(&self.0, out);
    }

    fn decode(bytes: &[u8], _: &mut Arena) -> Result<Self, DecodeError> {
        let mut scratch = S::Scratch::default();
        match S::decode(bytes, &mut scratch) {
            Ok(view) => Ok(Plain(S::from_view(view))),
            Err(error) => Err(DecodeError { at: 0, what: "state", problem: error.to_string() }),
        }
    }
}

/// Finds or makes the value of a key in one group.
struct EntryOf<'t, K: TableKey, S: StateValue> {
    table: &'t mut Table<K, Plain<S>>,
    group: u32,
}

impl<'t, K: TableKey, S: StateValue> Visitor<K, &'t mut Plain<S>> for EntryOf<'t, K, S> {
    #[inline(always)]
    fn visit(self, key: K::Ref<'_>) -> &'t mut Plain<S> {
        self.table.entry(self.group, key, Plain::default)
    }
}

/// Appends a record's encoding.
#[inline]
pub(crate) fn encode<S: Record>(value: &S, out: &mut Vec<u8>) {
    match S::encoded_len(value.view()) {
        Some(len) => {
            let at = out.len();
            out.resize(at + len, 0);
            S::encode(value.view(), &mut out[at..]);
        }
        None => S::encode_to_vec(value.view(), out),
    }
}

/// Entries that are written between two looks at the clock: a few microseconds.
const ENTRIES_A_STEP: usize = 256;

/// State of one subtask, divided by key group.
pub struct KeyedState<K: StateKey, S: StateValue> {
    table: Table<K::Table, Plain<S>>,
    assigner: Assigner,
    scratch: Vec<u8>,
    backend: KeyedBackend,
    /// Index of the operator in its vertex, and its name.
    operator: usize,
    name: Arc<str>,
}

impl<K: StateKey, S: StateValue> KeyedState<K, S> {
    /// Of the operator at this index, from the checkpoint that the job goes on from, if it does.
    ///
    /// # Errors
    ///
    /// State that is damaged, or of other types, by file and offset.
    pub(crate) fn new(cx: &SubtaskContext, operator: usize) -> Result<Self, TaskFailure> {
        let assigner = cx.assigner();
        let range = assigner.range(cx.info().subtask);
        let mut state = KeyedState {
            table: Table::new(u32::from(*range.start())..u32::from(*range.end()) + 1),
            assigner,
            scratch: Vec::new(),
            backend: KeyedBackend::default(),
            operator,
            name: cx.operator_name(operator),
        };
        let Some(restored) = &cx.restored else { return Ok(state) };
        let Some((parallelism, subtasks)) = restored.keyed(operator) else { return Ok(state) };
        let then = Assigner::new(cx.info().max_parallelism, parallelism)
            .expect("a checkpoint's parallelism is within its key groups");
        let old: Vec<OldSubtask<'_>> = subtasks
            .map(|(subtask, deltas)| {
                let range = then.range(subtask);
                let (first_group, last_group) = (u32::from(*range.start()), u32::from(*range.end()));
                OldSubtask { first_group, last_group, deltas }
            })
            .collect();
        let mut reader = restored.all.reader();
        let KeyedState { table, backend, .. } = &mut state;
        let done = backend
            .restore(&mut [table], &mut reader, restored.id(), &old, |_| {})
            .map_err(|cause| operator_failure(&*cx.operator_name(operator), &cause.into()))?;
        tracing::debug!(
            "{} ({}): {} entries restored from {} bytes",
            cx.info().vertex,
            cx.info().subtask + 1,
            done.entries,
            done.bytes
        );
        Ok(state)
    }

    /// The value of a key, its default if it had none.
    #[inline(always)]
    pub fn entry(&mut self, key: K::Ref<'_>) -> &mut S {
        let group = self.assigner.group(K::java_hash(key));
        self.entry_of(group, key)
    }

    /// The value of a key whose group is known.
    #[inline(always)]
    pub(crate) fn entry_of(&mut self, group: u32, key: K::Ref<'_>) -> &mut S {
        &mut K::visit(key, &mut self.scratch, EntryOf { table: &mut self.table, group }).0
    }

    /// Hash of a key, having asked for its slot.
    #[inline(always)]
    pub(crate) fn approach(&mut self, group: u32, key: K::Ref<'_>) -> u64 {
        let hash = K::with_table(key, &mut self.scratch, |key| <K::Table as TableKey>::hash(key));
        self.table.prefetch(group, hash);
        hash
    }

    /// The value of a key whose group and hash are known.
    #[inline(always)]
    pub(crate) fn entry_hashed(&mut self, group: u32, hash: u64, key: K::Ref<'_>) -> &mut S {
        let table = &mut self.table;
        let found =
            K::with_table(key, &mut self.scratch, |key| table.entry_hashed(group, hash, key, Plain::default));
        &mut found.0
    }

    /// Who owns which key.
    #[inline(always)]
    pub(crate) fn assigner(&self) -> &Assigner {
        &self.assigner
    }

    /// Whether all of it fits the core's cache.
    #[inline(always)]
    pub(crate) fn is_small(&self) -> bool {
        self.table.is_small()
    }

    /// The entry at the cursor, which moves past it.
    pub(crate) fn next(&self, cursor: &mut Cursor) -> Option<(<K::Table as TableKey>::Ref<'_>, &S)> {
        self.table.next(cursor).map(|(_, key, value)| (key, &value.0))
    }

    pub(crate) fn book(&self, metrics: &SubtaskMetrics) {
        metrics.state_entries.set(self.table.len() as u64);
        metrics.state_bytes.set(self.table.memory_bytes() as u64);
    }

    /// Its part of what a checkpoint asks for.
    pub(crate) fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        match event {
            Lifecycle::Snapshot(snapshot) => self.begin(snapshot),
            Lifecycle::Write(writing) => self.write(writing),
            Lifecycle::Abort(checkpoint) => self.abort(*checkpoint),
            Lifecycle::PreBarrier(_) | Lifecycle::Settle(_) | Lifecycle::Complete(_) => {}
        }
    }

    /// The synchronous part of a checkpoint.
    fn begin(&mut self, snapshot: &mut Snapshot) {
        let KeyedState { table, backend, name, .. } = self;
        let (checkpoint, base, full) = (snapshot.checkpoint, snapshot.base, snapshot.full);
        if let Err(cause) = backend.begin(&mut [table], checkpoint, base, full) {
            snapshot.fail(name, cause.into());
        }
    }

    /// A bounded step of writing what a checkpoint is of.
    fn write(&mut self, writing: &mut Writing<'_>) {
        let KeyedState { table, backend, operator, .. } = self;
        while backend.checkpoint() == Some(writing.checkpoint) {
            if writing.is_over() {
                return writing.more();
            }
            match backend.step(&mut [table], writing.log, writing.owner, ENTRIES_A_STEP) {
                Ok(Progress::More) => {}
                Ok(Progress::Blocked) => return writing.blocked(),
                Ok(Progress::Done) => {
                    let finished = backend.finish(&mut [table]);
                    writing.wrote(finished.delta_bytes);
                    writing.state_of(*operator).keyed = finished.deltas;
                }
                Err(cause) => return writing.fail(DeclineReason::Keyed(cause)),
            }
        }
    }

    /// A checkpoint was given up.
    fn abort(&mut self, checkpoint: u64) {
        let KeyedState { table, backend, .. } = self;
        backend.abort(&mut [table], checkpoint);
    }
}
