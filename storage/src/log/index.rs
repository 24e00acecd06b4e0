//! The index frame: which frames make up one subtask's snapshot, and which key groups lie in each.
//!
//! A snapshot of many data frames ends with one of these, and the ack carries the handle of this frame only: an
//! ack is small however large the state. A restore that wants some key groups reads the index and then the
//! frames that hold them.
//!
//! | bytes | what |
//! | ----- | ---- |
//! | 4     | entries; then for each |
//! | 24    | handle of a data frame |
//! | 4     | first key group in it |
//! | 4     | last key group in it |
//! | 4     | entries of state in it |

#![forbid(unsafe_code)]

use crate::format::{DecodeError, Decoder, Encoder};
use crate::handle::{Handle, Incarnation};
use std::collections::BTreeMap;

/// One data frame of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Where it lies.
    pub handle: Handle,
    /// The first key group that it holds entries of.
    pub first_group: u32,
    /// The last one.
    pub last_group: u32,
    /// Entries of state in it.
    pub entries: u32,
}

/// Bytes of an encoded entry.
const ENTRY_BYTES: usize = 36;

/// The data frames of one snapshot, in the order in which a restore applies them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrameIndex {
    /// In order: of two entries of one key the later one counts.
    pub frames: Vec<IndexEntry>,
}

impl FrameIndex {
    /// How many frames fit an index whose payload may take so many bytes.
    pub fn frames_max(payload_bytes_max: usize) -> usize {
        (payload_bytes_max - 4) / ENTRY_BYTES
    }

    /// The payload of the index frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(Vec::with_capacity(4 + self.frames.len() * ENTRY_BYTES));
        out.list(self.frames.iter(), |out, entry| {
            out.handle(&entry.handle);
            out.u32(entry.first_group);
            out.u32(entry.last_group);
            out.u32(entry.entries);
        });
        out.0
    }

    /// Reads the payload of an index frame.
    ///
    /// # Errors
    ///
    /// The bytes are no index.
    pub fn decode(payload: &[u8]) -> Result<FrameIndex, DecodeError> {
        let mut decoder = Decoder::new("frame index", payload);
        let frames = decoder.list(ENTRY_BYTES, |d| {
            Ok(IndexEntry {
                handle: d.handle()?,
                first_group: d.u32()?,
                last_group: d.u32()?,
                entries: d.u32()?,
            })
        })?;
        decoder.end()?;
        Ok(FrameIndex { frames })
    }

    /// The frames that hold entries of some key group in `first ..= last`.
    pub fn of_groups(&self, first: u32, last: u32) -> impl Iterator<Item = &IndexEntry> {
        self.frames.iter().filter(move |entry| entry.first_group <= last && entry.last_group >= first)
    }

    /// Bytes that the frames take in each file: what an ack says of the files it needs.
    pub fn files(&self) -> BTreeMap<Incarnation, u64> {
        let mut files = BTreeMap::new();
        for entry in &self.frames {
            *files.entry(entry.handle.incarnation).or_default() += entry.handle.stored_bytes();
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_back_and_asked_by_group() {
        let entry = |file, offset, first_group, last_group| IndexEntry {
            handle: Handle { incarnation: Incarnation(file), offset, length: 5000, crc: 7 },
            first_group,
            last_group,
            entries: 3,
        };
        let index = FrameIndex {
            frames: vec![entry(1, 4096, 0, 63), entry(2, 4096, 64, 127), entry(2, 12288, 5, 5)],
        };
        let bytes = index.encode();
        assert_eq!(FrameIndex::decode(&bytes).unwrap(), index);
        assert!(FrameIndex::decode(&bytes[..bytes.len() - 1]).is_err());
        let offsets: Vec<u64> = index.of_groups(0, 10).map(|e| e.handle.offset).collect();
        assert_eq!(offsets, [4096, 12288]);
        assert_eq!(index.files(), BTreeMap::from([(Incarnation(1), 8192), (Incarnation(2), 16384)]));
        assert_eq!(FrameIndex::frames_max(4 + 36 * 2 + 35), 2);
    }
}
