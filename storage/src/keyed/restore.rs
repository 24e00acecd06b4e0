//! Restore: the deltas of one or more old subtasks, applied in order to empty tables.

use super::{DELTAS_MAX, Delta, KeyedBackend, Taken};
use crate::error::StorageError;
use crate::format::DecodeError;
use crate::handle::Handle;
use crate::log::frame::FrameKind;
use crate::log::index::FrameIndex;
use crate::log::reader::LogReader;
use crate::metadata::StateRef;
use crate::table::StateTable;
use crate::table::delta::{SectionKind, read_sections};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The keyed state that one subtask had.
#[derive(Debug, Clone, Copy)]
pub struct OldSubtask<'a> {
    /// First key group that it owned.
    pub first_group: u32,
    /// Last one.
    pub last_group: u32,
    /// Its deltas, oldest first.
    pub deltas: &'a [StateRef],
}

/// What a restore has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Frames read, and deltas that lay in the metadata.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries read for the tables' groups, those included that a later delta replaces.
    pub entries: u64,
    /// Whether the next snapshot can be based on the restored checkpoint.
    pub incremental: bool,
}

impl KeyedBackend {
    /// Fills empty tables with what old subtasks had of their key groups, and tells of each frame by `progress`.
    ///
    /// If there is one old subtask, and it owned the same groups, the next snapshot whose base is `checkpoint` is
    /// incremental; otherwise the next one is full.
    ///
    /// # Errors
    ///
    /// What is damaged or missing, by file and offset, or deltas of tables of other types. Tables and backend are
    /// to be dropped.
    ///
    /// # Panics
    ///
    /// If a table has entries or a snapshot was begun.
    pub fn restore(
        &mut self,
        tables: &mut [&mut dyn StateTable],
        reader: &mut LogReader,
        checkpoint: u64,
        old: &[OldSubtask<'_>],
        mut progress: impl FnMut(&Restored),
    ) -> Result<Restored, StorageError> {
        assert!(tables.iter().all(|table| table.is_empty()), "a restore fills empty tables");
        assert!(self.number == 0 && self.taken.is_empty(), "a restore comes before the first snapshot");
        let Some(groups) = tables.first().map(|table| table.groups()) else { return Ok(Restored::default()) };
        let same = |old: &OldSubtask<'_>| old.first_group == groups.start && old.last_group + 1 == groups.end;
        let mut restored = Restored {
            incremental: matches!(old, [one] if same(one) && one.deltas.len() <= DELTAS_MAX),
            ..Restored::default()
        };
        let mut known = Vec::new();
        let wanted = old.iter().filter(|old| old.first_group < groups.end && old.last_group >= groups.start);
        for state in wanted.flat_map(|old| old.deltas) {
            let mut of_delta = Applied::default();
            let mut apply = |bytes: &[u8], path: &Path, offset: u64| {
                let applied = apply_frame(tables, bytes, &groups).map_err(|error| {
                    StorageError::corrupt(path, offset + error.at as u64, error.to_string())
                })?;
                of_delta.entries += applied.entries;
                of_delta.removes |= applied.removes;
                restored.frames += 1;
                restored.bytes += bytes.len() as u64;
                restored.entries += applied.entries;
                progress(&restored);
                Ok(())
            };
            match state {
                StateRef::Inline(bytes) => apply(bytes, Path::new("_metadata"), 0)?,
                StateRef::Frame { handle, .. } => {
                    if let Some(index) = read_frame(reader, *handle, &mut apply)? {
                        for entry in index.of_groups(groups.start, groups.end - 1) {
                            if read_frame(reader, entry.handle, &mut apply)?.is_some() {
                                let path = reader.path(handle.incarnation);
                                let what = "an index that lists an index".to_string();
                                return Err(StorageError::corrupt(&path, handle.offset, what));
                            }
                        }
                    }
                }
            }
            if restored.incremental {
                known.push(Arc::new(Delta {
                    state: state.clone(),
                    after: self.epoch - 1,
                    through: self.epoch,
                    entries: of_delta.entries,
                    bytes: state.state_bytes(),
                    removes: of_delta.removes,
                }));
                self.next_epoch(tables);
            }
        }
        if restored.incremental {
            tables.iter_mut().for_each(|table| table.epochs_mut().keep_removed());
            self.taken.push_back(Taken { checkpoint, through: self.epoch - 1, deltas: known });
        }
        Ok(restored)
    }

    /// While labels have never been used.
    fn next_epoch(&mut self, tables: &mut [&mut dyn StateTable]) {
        self.epoch += 1;
        self.label += 1;
        self.epochs[usize::from(self.label)] = self.epoch;
        tables.iter_mut().for_each(|table| table.epochs_mut().begin_epoch(self.epoch, self.label));
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Applied {
    entries: u64,
    removes: bool,
}

/// Applies a data frame, or returns the index that it is.
fn read_frame(
    reader: &mut LogReader,
    handle: Handle,
    apply: &mut impl FnMut(&[u8], &Path, u64) -> Result<(), StorageError>,
) -> Result<Option<FrameIndex>, StorageError> {
    let path: PathBuf = reader.path(handle.incarnation);
    let (header, payload) = reader.read(handle)?;
    let payload_at = handle.offset + crate::format::FRAME_HEADER_BYTES as u64;
    match header.tag.kind {
        FrameKind::Data => apply(payload, &path, payload_at).map(|()| None),
        FrameKind::Index => FrameIndex::decode(payload)
            .map(Some)
            .map_err(|error| StorageError::corrupt(&path, handle.offset, error.to_string())),
        FrameKind::Commit => {
            Err(StorageError::corrupt(&path, handle.offset, "a commit, state was expected".to_string()))
        }
    }
}

fn apply_frame(
    tables: &mut [&mut dyn StateTable],
    bytes: &[u8],
    groups: &Range<u32>,
) -> Result<Applied, DecodeError> {
    let mut all = Applied::default();
    read_sections(bytes, |section| {
        let count = tables.len();
        let Some(table) = tables.get_mut(usize::from(section.table)) else {
            let problem = format!("state of table {}, the operator has {count}", section.table);
            return Err(section.input.error(problem));
        };
        let removes = section.kind == SectionKind::Removals;
        let applied = table.apply(section, groups)?;
        all.removes |= removes;
        all.entries += if removes { 0 } else { applied };
        Ok(())
    })?;
    Ok(all)
}
