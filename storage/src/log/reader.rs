//! Reading what a handle names, and checking that it is what was written there.
//!
//! Reads are `pread` into one aligned buffer that grows to the largest frame. Not `mmap`: a bad sector under a
//! mapping is a signal that ends the process, under a read it is an error that names the file and lets an older
//! checkpoint be tried; and the copy, 16 ms for 10^7 entries of 16 bytes, is no part of a restore that matters.

#![forbid(unsafe_code)]

use super::file::{FileKind, FileName};
use super::frame::{FrameHeader, FrameKind};
use super::index::FrameIndex;
use crate::device::directory::{Directory, ReadBuffer, ReadFile, ReadMode};
use crate::error::StorageError;
use crate::format::{FRAME_HEADER_BYTES, frame_stored_bytes};
use crate::handle::{Handle, Incarnation};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Files that a reader keeps open; at the bound all are closed and opened again as they are needed.
const READ_FILES_MAX: usize = 64;

/// Reads frames of one job's log. One for each thread that restores.
pub struct LogReader {
    directory: Arc<dyn Directory>,
    lineage: u128,
    mode: ReadMode,
    files: HashMap<Incarnation, Box<dyn ReadFile>>,
    buffer: ReadBuffer,
}

impl LogReader {
    /// Of a job's directory, the one below which the log files' directory lies.
    pub fn new(directory: Arc<dyn Directory>, lineage: u128, mode: ReadMode) -> LogReader {
        LogReader { directory, lineage, mode, files: HashMap::new(), buffer: ReadBuffer::new() }
    }

    /// Where a handle's file lies.
    pub fn path(&self, incarnation: Incarnation) -> PathBuf {
        self.directory.path(&self.name(incarnation, FileKind::Data))
    }

    fn name(&self, incarnation: Incarnation, kind: FileKind) -> String {
        FileName { kind, lineage: self.lineage, incarnation }.to_name()
    }

    fn open(&mut self, incarnation: Incarnation) -> Result<(), StorageError> {
        if self.files.contains_key(&incarnation) {
            return Ok(());
        }
        if self.files.len() >= READ_FILES_MAX {
            self.files.clear();
        }
        // A commit's frame is named by handle, too, when a checkpoint is verified.
        let kinds = [FileKind::Data, FileKind::Commits];
        for kind in kinds {
            match self.directory.open_read(&self.name(incarnation, kind), self.mode) {
                Ok(file) => {
                    self.files.insert(incarnation, file);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StorageError::io("open", &self.path(incarnation), error)),
            }
        }
        Err(StorageError::Missing {
            path: self.path(incarnation),
            needed_by: "a checkpoint's frames".to_string(),
        })
    }

    /// Reads the frame that `handle` names; its payload lies in this reader until the next read.
    ///
    /// One `pread` of the frame's blocks, one checksum; no allocation once the buffer has grown.
    ///
    /// # Errors
    ///
    /// [`StorageError::Missing`] and [`StorageError::Corrupt`] name the file and the offset; the checkpoint that
    /// the handle is of cannot be restored. [`StorageError::Io`] if the disk refused.
    pub fn read(&mut self, handle: Handle) -> Result<(FrameHeader, &[u8]), StorageError> {
        self.open(handle.incarnation)?;
        let path = self.directory.path(&self.name(handle.incarnation, FileKind::Data));
        let corrupt = |what: String| StorageError::corrupt(&path, handle.offset, what);
        let file = &self.files[&handle.incarnation];
        let stored = frame_stored_bytes(handle.length as usize);
        // A handle is bytes from a disk: nothing is allocated for a length that the file does not have.
        if handle.offset.checked_add(stored as u64).is_none_or(|end| end > file.size()) {
            return Err(corrupt(format!("a frame of {stored} bytes, the file ends at {}", file.size())));
        }
        if !handle.offset.is_multiple_of(crate::config::ALIGNMENT_BYTES as u64) {
            return Err(corrupt("no frame begins here: not a multiple of 4096".to_string()));
        }
        let bytes = self.buffer.bytes(stored);
        let read = file.read_at(handle.offset, bytes).map_err(|e| StorageError::io("read", &path, e))?;
        if read < stored {
            return Err(corrupt(format!("{read} bytes of {stored} could be read")));
        }
        let header = FrameHeader::decode(bytes).map_err(corrupt)?;
        header.check(self.lineage, &handle).map_err(corrupt)?;
        let payload = &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + handle.length as usize];
        header.check_payload(payload).map_err(corrupt)?;
        Ok((header, payload))
    }

    /// Reads an index frame.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and if the frame is no index.
    pub fn read_index(&mut self, handle: Handle) -> Result<FrameIndex, StorageError> {
        let path = self.path(handle.incarnation);
        let (header, payload) = self.read(handle)?;
        if header.tag.kind != FrameKind::Index {
            return Err(StorageError::corrupt(
                &path,
                handle.offset,
                format!("{:?} frame, an index was expected", header.tag.kind),
            ));
        }
        FrameIndex::decode(payload)
            .map_err(|error| StorageError::corrupt(&path, handle.offset, error.to_string()))
    }

    /// Reads a frame and, if it is an index, all that it lists; returns the bytes of payload that verified.
    ///
    /// # Errors
    ///
    /// The first frame that does not verify.
    pub fn verify(&mut self, handle: Handle) -> Result<u64, StorageError> {
        let (header, _) = self.read(handle)?;
        let mut bytes = u64::from(handle.length);
        if header.tag.kind == FrameKind::Index {
            for entry in self.read_index(handle)?.frames {
                self.read(entry.handle)?;
                bytes += u64::from(entry.handle.length);
            }
        }
        Ok(bytes)
    }
}
