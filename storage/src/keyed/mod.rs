//! Keyed state of one operator of one subtask in the log: incremental snapshots in bounded steps, and restore.
//!
//! ```text
//! barrier ─► begin ─► step, step, … ─► finish ─► span durable ─► ack with the list of deltas
//!            O(1)     among records     list
//! ```
//!
//! **What a snapshot is.** A *list* of deltas, oldest first, at most [`DELTAS_MAX`]: its base's, without those that
//! it folds, and its own. A restore applies them in order. Its own delta holds what changed since its *base*, the
//! checkpoint that had completed last when the barrier was sent. The barrier says which one that is, so it does not
//! matter what became of the checkpoints in between, nor whether anybody was told: what they wrote and nobody
//! confirmed is newer than the base, and is taken again.
//!
//! **Invariant.** For each snapshot that may become a base: an entry that has not changed since is in the delta of
//! its list whose epochs include that of the entry's label. This is what makes folding right in any order: a folded
//! entry gets the label of the snapshot's own epoch ([`table::epoch`](crate::table::epoch)).
//!
//! **When nothing changed** since the base, the list is the base's: nothing is written, and no epoch is used.
//!
//! **Removals** are in the delta of their epochs, before its entries. A delta with removals may be left out of the
//! list only together with all that are older.
//!
//! What is refused, by name: [`SnapshotError`]. A refused snapshot costs nothing but itself; records go on, and the
//! next snapshot takes all that it would have.

#![forbid(unsafe_code)]

mod begin;
mod restore;
#[cfg(test)]
mod tests;

pub use restore::{OldSubtask, Restored};

use crate::error::StorageError;
use crate::log::frame::{FrameKind, FrameTag};
use crate::log::index::{FrameIndex, IndexEntry};
use crate::log::writer::{AppendError, LogWriter, Span};
use crate::metadata::StateRef;
use crate::table::StateTable;
use crate::table::delta::{DeltaWriter, TooLarge};
use std::collections::VecDeque;
use std::sync::Arc;

pub use crate::log::reclaim::DELTAS_MAX;

/// A delta of at most this many bytes lies in the metadata itself, so that small state needs no write of its own.
pub const INLINE_BYTES_MAX: usize = 2048;

/// What the inline deltas of one list may take: the metadata names them all in every checkpoint.
pub const INLINE_LIST_BYTES_MAX: usize = 16 << 10;

/// Bytes that a table may always put aside, however small it is.
pub const ASIDE_BYTES_MIN: usize = 1 << 20;

/// Payload of a frame: with its header it is one staging block of the default size.
const FRAME_BYTES: usize = (256 << 10) - crate::format::FRAME_HEADER_BYTES;

/// Snapshots that may become a base and are remembered. With more, a base that is forgotten makes the next
/// snapshot full.
const TAKEN_MAX: usize = 64;

/// Snapshots of one operator that may be under way at once.
pub const RUNNING_MAX: usize = 4;

/// Why there is no snapshot. The checkpoint is to be declined with it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Records changed more than may be put aside while the disk was behind, or removed more keys than are kept.
    #[error(
        "checkpoint {checkpoint}: more than {bytes_max} bytes of a table had to be put aside before they were written"
    )]
    AsideFull {
        /// The checkpoint.
        checkpoint: u64,
        /// The bound.
        bytes_max: usize,
    },
    /// A single entry is larger than a frame.
    #[error("checkpoint {checkpoint}: {source}")]
    TooLarge {
        /// The checkpoint.
        checkpoint: u64,
        /// Its size.
        source: TooLarge,
    },
    /// The state has more frames than an index lists.
    #[error("checkpoint {checkpoint}: {frames} frames of state, an index lists {frames_max}")]
    TooManyFrames {
        /// The checkpoint.
        checkpoint: u64,
        /// So many there would be.
        frames: usize,
        /// So many there may be.
        frames_max: usize,
    },
    /// Too many snapshots of this operator are under way.
    #[error("checkpoint {checkpoint}: {RUNNING_MAX} snapshots of the operator are under way already")]
    TooManyRunning {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Every label is in use, and they cannot be replaced while a snapshot is under way.
    #[error(
        "checkpoint {checkpoint}: hundreds of checkpoints in a row were not completed, and one is under way"
    )]
    NoLabel {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The log could not take it.
    #[error("checkpoint {checkpoint}: {source}")]
    Storage {
        /// The checkpoint.
        checkpoint: u64,
        /// Why.
        source: StorageError,
    },
}

/// How far a step has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more to write.
    More,
    /// There is more, and the log takes nothing now: poll it, then step again.
    Blocked,
    /// All is appended: [`KeyedBackend::finish`].
    Done,
}

/// A snapshot of which all is appended to the log.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Of which checkpoint.
    pub checkpoint: u64,
    /// All deltas, oldest first.
    pub deltas: Vec<StateRef>,
    /// Bytes of state in the delta that is new, the last one; 0 if nothing changed.
    pub delta_bytes: u64,
    /// Bytes that it takes in the log.
    pub written_bytes: u64,
    /// Entries and removals in it.
    pub entries: u64,
    /// What must be durable before the ack; `None` if nothing was appended.
    pub span: Option<Span>,
    /// Whether it stands alone, the list being this one delta.
    pub full: bool,
}

/// One delta of a list.
#[derive(Debug)]
struct Delta {
    state: StateRef,
    /// It has what changed in epochs above `after` up to `through`.
    after: u64,
    through: u64,
    entries: u64,
    bytes: u64,
    removes: bool,
}

/// A snapshot that was finished and may become a base.
#[derive(Debug)]
struct Taken {
    checkpoint: u64,
    /// The last epoch that it has.
    through: u64,
    deltas: Vec<Arc<Delta>>,
}

/// A snapshot under way.
#[derive(Debug)]
struct Running {
    checkpoint: u64,
    number: u32,
    after: u64,
    through: u64,
    /// Labels that it takes or gives.
    takes: Box<[bool; 256]>,
    /// What it keeps of its base's list.
    kept: Vec<Arc<Delta>>,
    /// The table that is being written.
    table: usize,
    index: FrameIndex,
    entries: u64,
    removals: u64,
    written_bytes: u64,
    span: Option<Span>,
    state: Option<StateRef>,
    done: bool,
}

/// The keyed state of one operator of one subtask, as checkpoints see it. Its tables are passed to each call, always
/// the same ones in the same order: the order is their number in the frames.
#[derive(Debug)]
pub struct KeyedBackend {
    epoch: u64,
    label: u8,
    /// The last epoch that ran under each label; 0 if none did. It counts while an entry has the label.
    epochs: Box<[u64; 256]>,
    /// Oldest first.
    taken: VecDeque<Taken>,
    /// Oldest first; the first one is written.
    running: VecDeque<Running>,
    /// Number of the last snapshot.
    number: u32,
    aside_bytes_max: Option<usize>,
    writer: Option<DeltaWriter>,
    relabelled: u64,
}

impl Default for KeyedBackend {
    fn default() -> Self {
        Self::new(None)
    }
}

impl KeyedBackend {
    /// Of empty tables. A snapshot may put aside `aside_bytes_max` bytes of each, by default a quarter of its
    /// memory, and at least [`ASIDE_BYTES_MIN`].
    pub fn new(aside_bytes_max: Option<usize>) -> KeyedBackend {
        let mut epochs = Box::new([0; 256]);
        epochs[1] = 1;
        KeyedBackend {
            epoch: 1,
            label: 1,
            epochs,
            taken: VecDeque::new(),
            running: VecDeque::new(),
            number: 0,
            aside_bytes_max,
            writer: None,
            relabelled: 0,
        }
    }

    /// Whether a snapshot is under way.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The checkpoint whose snapshot [`step`](Self::step) goes on with.
    pub fn checkpoint(&self) -> Option<u64> {
        self.running.front().map(|run| run.checkpoint)
    }

    /// How often all labels were in use and had to be replaced.
    pub fn relabelled(&self) -> u64 {
        self.relabelled
    }

    /// Goes on with the oldest snapshot under way: writes about `entries_max` entries, less where it has to look
    /// for them, and appends what fills a frame. With 256 entries a step takes a few microseconds. `owner` is
    /// written into the frames' heads.
    ///
    /// # Errors
    ///
    /// The snapshot is given up, as by [`abort`](Self::abort).
    ///
    /// # Panics
    ///
    /// If none is under way.
    pub fn step(
        &mut self,
        tables: &mut [&mut dyn StateTable],
        log: &mut LogWriter,
        owner: u64,
        entries_max: usize,
    ) -> Result<Progress, SnapshotError> {
        let result = self.advance(tables, log, owner, entries_max);
        if result.is_err() {
            let checkpoint = self.checkpoint().expect("it has failed, so there is one");
            self.abort(tables, checkpoint);
        }
        result
    }

    fn advance(
        &mut self,
        tables: &mut [&mut dyn StateTable],
        log: &mut LogWriter,
        owner: u64,
        mut budget: usize,
    ) -> Result<Progress, SnapshotError> {
        let run = self.running.front_mut().expect("a snapshot is under way");
        let checkpoint = run.checkpoint;
        if run.done {
            return Ok(Progress::Done);
        }
        if let Some(bytes_max) = tables.iter().find_map(|table| table.epochs().overrun()) {
            return Err(SnapshotError::AsideFull { checkpoint, bytes_max });
        }
        let writer = self.writer.get_or_insert_with(|| {
            let bytes_max = log.frame_payload_bytes_max();
            DeltaWriter::new(FRAME_BYTES.min(bytes_max), bytes_max)
        });
        loop {
            while let Some(frame) = writer.ready() {
                if run.is_inline(tables.len(), writer) {
                    run.state = Some(StateRef::Inline(frame.bytes.clone()));
                } else {
                    let Some(handle) = run.append(log, FrameKind::Data, owner, &frame.bytes)? else {
                        return Ok(Progress::Blocked);
                    };
                    run.index.frames.push(IndexEntry {
                        handle,
                        first_group: frame.first_group,
                        last_group: frame.last_group,
                        entries: frame.entries + frame.removals,
                    });
                }
                run.entries += u64::from(frame.entries);
                run.removals += u64::from(frame.removals);
                writer.pop();
            }
            if run.table < tables.len() {
                if budget == 0 {
                    return Ok(Progress::More);
                }
                let table = &mut tables[run.table];
                let written = table.write(run.table as u16, writer, &mut budget);
                if written.map_err(|source| SnapshotError::TooLarge { checkpoint, source })? {
                    run.table += 1;
                }
                if run.table == tables.len() {
                    writer.seal();
                }
                continue;
            }
            if run.state.is_none() {
                run.state = match &run.index.frames[..] {
                    [] => None,
                    [only] => Some(StateRef::frame(only.handle)),
                    frames => {
                        let frames_max = FrameIndex::frames_max(log.frame_payload_bytes_max());
                        if frames.len() > frames_max {
                            let frames = frames.len();
                            return Err(SnapshotError::TooManyFrames { checkpoint, frames, frames_max });
                        }
                        let payload = run.index.encode();
                        let Some(handle) = run.append(log, FrameKind::Index, owner, &payload)? else {
                            return Ok(Progress::Blocked);
                        };
                        Some(StateRef::indexed(handle, &run.index))
                    }
                };
            }
            run.done = true;
            return Ok(Progress::Done);
        }
    }

    /// Ends the snapshot of which all is appended and returns what to acknowledge, once its span is durable. It may
    /// become a base from now on.
    ///
    /// # Panics
    ///
    /// If [`step`](Self::step) has not said [`Progress::Done`].
    pub fn finish(&mut self, tables: &mut [&mut dyn StateTable]) -> Finished {
        let run =
            self.running.pop_front().filter(|run| run.done).expect("a snapshot of which all is appended");
        for table in tables.iter_mut() {
            table.epochs_mut().end(run.number);
        }
        let full = run.kept.is_empty();
        let mut deltas = run.kept;
        let delta_bytes = run.state.as_ref().map_or(0, StateRef::state_bytes);
        if let Some(state) = run.state {
            deltas.push(Arc::new(Delta {
                after: run.after,
                through: run.through,
                entries: run.entries,
                bytes: delta_bytes,
                removes: run.removals > 0,
                state,
            }));
        }
        let finished = Finished {
            checkpoint: run.checkpoint,
            deltas: deltas.iter().map(|delta| delta.state.clone()).collect(),
            delta_bytes,
            written_bytes: run.written_bytes,
            entries: run.entries + run.removals,
            span: run.span,
            full,
        };
        self.taken.push_back(Taken { checkpoint: run.checkpoint, through: run.through, deltas });
        if self.taken.len() > TAKEN_MAX {
            // The first is the base of the last snapshot, and likely that of the next.
            self.taken.remove(1);
        }
        finished
    }

    /// Gives up the snapshot of a checkpoint, under way or finished: it will not become a base. Nothing is lost by
    /// it, and nothing depends on being told.
    pub fn abort(&mut self, tables: &mut [&mut dyn StateTable], checkpoint: u64) {
        self.taken.retain(|taken| taken.checkpoint != checkpoint);
        let Some(at) = self.running.iter().position(|run| run.checkpoint == checkpoint) else { return };
        let run = self.running.remove(at).expect("just found");
        for table in tables.iter_mut() {
            table.epochs_mut().end(run.number);
        }
        if at == 0
            && let Some(writer) = &mut self.writer
        {
            writer.clear();
        }
    }
}

impl Running {
    /// Whether the one frame that there is goes into the metadata.
    fn is_inline(&self, tables: usize, writer: &DeltaWriter) -> bool {
        let bytes = writer.ready().map_or(usize::MAX, |frame| frame.bytes.len());
        self.table == tables
            && self.index.frames.is_empty()
            && writer.ready_count() == 1
            && bytes <= INLINE_BYTES_MAX
            && self.kept_inline_bytes() + bytes <= INLINE_LIST_BYTES_MAX
    }

    fn kept_inline_bytes(&self) -> usize {
        let inline = |state: &StateRef| match state {
            StateRef::Inline(bytes) => bytes.len(),
            StateRef::Frame { .. } => 0,
        };
        self.kept.iter().map(|delta| inline(&delta.state)).sum()
    }

    /// Appends a frame; `None` if the log takes nothing now.
    fn append(
        &mut self,
        log: &mut LogWriter,
        kind: FrameKind,
        owner: u64,
        payload: &[u8],
    ) -> Result<Option<crate::handle::Handle>, SnapshotError> {
        let tag = FrameTag { kind, checkpoint: self.checkpoint, owner };
        let from = log.position();
        match log.append(tag, payload) {
            Ok(handle) => {
                let from = self.span.map_or(from, |span| span.from);
                self.span = Some(Span { from, to: log.position() });
                self.written_bytes += handle.stored_bytes();
                Ok(Some(handle))
            }
            Err(AppendError::BufferFull | AppendError::NoFile) => Ok(None),
            Err(AppendError::Storage(source)) => {
                Err(SnapshotError::Storage { checkpoint: self.checkpoint, source })
            }
        }
    }
}
