//! `_metadata`: what a completed checkpoint consists of, as handles.
//!
//! A sealed document (magic `TGMD`), whose body is the checkpoint's head and then, for each operator, its
//! subtasks' state. It lists frames, never pages: one handle for each delta of a subtask's list, which is at most
//! [`DELTAS_MAX`](crate::log::reclaim::DELTAS_MAX) long. Small state is inline. What each handle reaches through
//! its index is said by file, so that files can be freed without reading any.

#![forbid(unsafe_code)]

use crate::error::StorageError;
use crate::format::{DecodeError, Decoder, Encoder, open_document, seal_document};
use crate::handle::{Handle, Incarnation};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Magic of a `_metadata` document.
pub const METADATA_MAGIC: [u8; 4] = *b"TGMD";

/// The one version so far.
pub const METADATA_VERSION: u32 = 1;

/// A piece of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateRef {
    /// So small that it lies here.
    Inline(Vec<u8>),
    /// In the log.
    Frame {
        /// A data frame, or the index of several.
        handle: Handle,
        /// Bytes of state in all the frames that it reaches.
        state_bytes: u64,
        /// Bytes that those frames take in each file, the handle's own included.
        files: Vec<(Incarnation, u64)>,
    },
}

impl StateRef {
    /// Of one frame that is no index.
    pub fn frame(handle: Handle) -> StateRef {
        StateRef::Frame {
            handle,
            state_bytes: handle.length.into(),
            files: vec![(handle.incarnation, handle.stored_bytes())],
        }
    }

    /// Of an index frame at `handle` that lists `index`.
    pub fn indexed(handle: Handle, index: &crate::log::index::FrameIndex) -> StateRef {
        let mut files = index.files();
        *files.entry(handle.incarnation).or_default() += handle.stored_bytes();
        let state_bytes = index.frames.iter().map(|entry| u64::from(entry.handle.length)).sum();
        StateRef::Frame { handle, state_bytes, files: files.into_iter().collect() }
    }

    /// Bytes of state.
    pub fn state_bytes(&self) -> u64 {
        match self {
            StateRef::Inline(bytes) => bytes.len() as u64,
            StateRef::Frame { state_bytes, .. } => *state_bytes,
        }
    }

    fn encode(&self, out: &mut Encoder) {
        match self {
            StateRef::Inline(bytes) => {
                out.u8(0);
                out.bytes(bytes);
            }
            StateRef::Frame { handle, state_bytes, files } => {
                out.u8(1);
                out.handle(handle);
                out.u64(*state_bytes);
                out.list(files.iter(), |out, (incarnation, bytes)| {
                    out.u64(incarnation.0);
                    out.u64(*bytes);
                });
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<StateRef, DecodeError> {
        match d.u8()? {
            0 => Ok(StateRef::Inline(d.bytes()?.to_vec())),
            1 => Ok(StateRef::Frame {
                handle: d.handle()?,
                state_bytes: d.u64()?,
                files: d.list(16, |d| Ok((Incarnation(d.u64()?), d.u64()?)))?,
            }),
            other => Err(d.error(format!("state of kind {other}, 0 or 1 was expected"))),
        }
    }
}

/// How far an operator's subtasks had got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Finished {
    /// All of them run.
    Running = 0,
    /// Some are finished.
    Partly = 1,
    /// All are finished; restored as end of data only.
    Fully = 2,
}

/// One subtask's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubtaskState {
    /// Which subtask.
    pub subtask: u32,
    /// Whether it had finished.
    pub finished: bool,
    /// Keyed state: deltas, oldest first; of two entries of one key the later one counts.
    pub keyed: Vec<StateRef>,
    /// State that is not keyed: positions, what a sink has pending, list state.
    pub operator: Vec<StateRef>,
    /// In-flight data of inputs, in channel and sequence order.
    pub input_channels: Vec<StateRef>,
    /// In-flight data of outputs.
    pub output_channels: Vec<StateRef>,
}

impl SubtaskState {
    /// All its pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &StateRef> {
        [&self.keyed, &self.operator, &self.input_channels, &self.output_channels].into_iter().flatten()
    }
}

/// One operator's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorState {
    /// Names it over restarts.
    pub uid: String,
    /// For people.
    pub name: String,
    /// Subtasks at the checkpoint.
    pub parallelism: u32,
    /// Key groups.
    pub max_parallelism: u32,
    /// How far they had got.
    pub finished: Finished,
    /// Its coordinator's own state, empty without one.
    pub coordinator: Vec<u8>,
    /// Those that have state.
    pub subtasks: Vec<SubtaskState>,
}

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointMetadata {
    /// The job.
    pub lineage: u128,
    /// The run of the process that took it.
    pub run: u32,
    /// The checkpoint's id.
    pub id: u64,
    /// When it was triggered, in milliseconds since 1970: for people only.
    pub triggered_ms: u64,
    /// The job's name.
    pub job: String,
    /// Operators that have state, in the order of the graph.
    pub operators: Vec<OperatorState>,
}

impl CheckpointMetadata {
    /// The whole document.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u128(self.lineage);
        out.u32(self.run);
        out.u64(self.id);
        out.u64(self.triggered_ms);
        out.text(&self.job);
        out.list(self.operators.iter(), |out, operator| {
            out.text(&operator.uid);
            out.text(&operator.name);
            out.u32(operator.parallelism);
            out.u32(operator.max_parallelism);
            out.u8(operator.finished as u8);
            out.bytes(&operator.coordinator);
            out.list(operator.subtasks.iter(), |out, subtask| {
                out.u32(subtask.subtask);
                out.u8(subtask.finished.into());
                for list in
                    [&subtask.keyed, &subtask.operator, &subtask.input_channels, &subtask.output_channels]
                {
                    out.list(list.iter(), |out, piece| piece.encode(out));
                }
            });
        });
        seal_document(METADATA_MAGIC, METADATA_VERSION, &out.0)
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// [`StorageError::Corrupt`] with the offset and what is wrong, or [`StorageError::Version`].
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<CheckpointMetadata, StorageError> {
        let (_, body) = open_document(path, METADATA_MAGIC, METADATA_VERSION, bytes)?;
        let header = crate::format::DOCUMENT_HEADER_BYTES;
        Self::decode_body(body)
            .map_err(|error| StorageError::corrupt(path, (header + error.at) as u64, error.to_string()))
    }

    fn decode_body(body: &[u8]) -> Result<CheckpointMetadata, DecodeError> {
        let mut d = Decoder::new("checkpoint metadata", body);
        let metadata = CheckpointMetadata {
            lineage: d.u128()?,
            run: d.u32()?,
            id: d.u64()?,
            triggered_ms: d.u64()?,
            job: d.text()?,
            operators: d.list(29, |d| {
                Ok(OperatorState {
                    uid: d.text()?,
                    name: d.text()?,
                    parallelism: d.u32()?,
                    max_parallelism: d.u32()?,
                    finished: match d.u8()? {
                        0 => Finished::Running,
                        1 => Finished::Partly,
                        2 => Finished::Fully,
                        other => return Err(d.error(format!("finished {other}, 0 to 2 was expected"))),
                    },
                    coordinator: d.bytes()?.to_vec(),
                    subtasks: d.list(21, |d| {
                        Ok(SubtaskState {
                            subtask: d.u32()?,
                            finished: match d.u8()? {
                                0 => false,
                                1 => true,
                                other => {
                                    return Err(d.error(format!("finished {other}, 0 or 1 was expected")));
                                }
                            },
                            keyed: d.list(5, StateRef::decode)?,
                            operator: d.list(5, StateRef::decode)?,
                            input_channels: d.list(5, StateRef::decode)?,
                            output_channels: d.list(5, StateRef::decode)?,
                        })
                    })?,
                })
            })?,
        };
        d.end()?;
        Ok(metadata)
    }

    /// All pieces of state.
    pub fn pieces(&self) -> impl Iterator<Item = &StateRef> {
        self.operators.iter().flat_map(|operator| &operator.subtasks).flat_map(SubtaskState::pieces)
    }

    /// The frames that it names; what indexes among them reach is not listed.
    pub fn handles(&self) -> impl Iterator<Item = Handle> {
        self.pieces().filter_map(|piece| match piece {
            StateRef::Inline(_) => None,
            StateRef::Frame { handle, .. } => Some(*handle),
        })
    }

    /// The files that it needs, and how many of their bytes.
    pub fn files(&self) -> BTreeMap<Incarnation, u64> {
        let mut needed = BTreeMap::new();
        for piece in self.pieces() {
            if let StateRef::Frame { files, .. } = piece {
                for (incarnation, bytes) in files {
                    *needed.entry(*incarnation).or_default() += bytes;
                }
            }
        }
        needed
    }

    /// Bytes of state: what is inline, and the payload of all frames.
    pub fn state_bytes(&self) -> u64 {
        self.pieces().map(StateRef::state_bytes).sum()
    }
}

/// The files that any of `checkpoints` needs.
pub fn files_in_use<'a>(
    checkpoints: impl IntoIterator<Item = &'a CheckpointMetadata>,
) -> BTreeSet<Incarnation> {
    checkpoints.into_iter().flat_map(|checkpoint| checkpoint.files().into_keys()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(id: u64, handles: &[Handle]) -> CheckpointMetadata {
        CheckpointMetadata {
            lineage: 0x11,
            run: 1,
            id,
            triggered_ms: 1_700_000_000_000,
            job: "count".to_string(),
            operators: vec![
                OperatorState {
                    uid: "source".to_string(),
                    name: "Source: words".to_string(),
                    parallelism: 1,
                    max_parallelism: 128,
                    finished: Finished::Partly,
                    coordinator: vec![1, 2, 3],
                    subtasks: vec![SubtaskState {
                        finished: true,
                        operator: vec![StateRef::Inline(b"position 7".to_vec())],
                        ..SubtaskState::default()
                    }],
                },
                OperatorState {
                    uid: "count".to_string(),
                    name: "count".to_string(),
                    parallelism: 2,
                    max_parallelism: 128,
                    finished: Finished::Running,
                    coordinator: Vec::new(),
                    subtasks: vec![SubtaskState {
                        subtask: 1,
                        keyed: handles.iter().copied().map(StateRef::frame).collect(),
                        ..SubtaskState::default()
                    }],
                },
            ],
        }
    }

    /// Goal: metadata is read back whole; every flipped bit and every cut is an error that names the file, and none
    /// panics, with the checksums made good again, too.
    #[test]
    fn metadata_is_read_back_or_refused_by_name() {
        let handle = Handle { incarnation: Incarnation(9), offset: 4096, length: 5000, crc: 3 };
        let metadata = sample(7, &[handle, handle]);
        let path = Path::new("chk-7/_metadata");
        let bytes = metadata.encode();
        assert_eq!(CheckpointMetadata::decode(path, &bytes).unwrap(), metadata);
        assert_eq!(metadata.files(), BTreeMap::from([(Incarnation(9), 2 * 8192)]));
        assert_eq!(metadata.state_bytes(), 10 + 2 * 5000);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = CheckpointMetadata::decode(path, &flipped).unwrap_err().to_string();
            assert!(error.contains("chk-7/_metadata"), "{error}");
            // A bit flipped before the checksum was taken: a bug elsewhere, and still no panic.
            let body = &flipped[crate::format::DOCUMENT_HEADER_BYTES..];
            let _ = CheckpointMetadata::decode(path, &seal_document(METADATA_MAGIC, METADATA_VERSION, body));
        }
        for cut in 0..bytes.len() {
            assert!(CheckpointMetadata::decode(path, &bytes[..cut]).is_err());
        }
    }
}
