//! Streams of unknown length: standard input, named pipes, devices.

use super::SourceError;
use super::error::TextError;
use super::helper::ReadChunk;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// The bytes of a stream, passed on as they come, since somebody may be typing them.
pub(super) struct StreamChunks {
    path: PathBuf,
    input: Box<dyn Read>,
    consumed: u64,
}

impl StreamChunks {
    /// Standard input, called `-`.
    pub(super) fn stdin() -> StreamChunks {
        StreamChunks { path: "-".into(), input: Box::new(io::stdin()), consumed: 0 }
    }

    /// A pipe or device. Opening one blocks until somebody writes to it.
    pub(super) fn open(path: PathBuf) -> Result<StreamChunks, SourceError> {
        let file = File::open(&path).map_err(|cause| TextError::Unreadable { path: path.clone(), cause })?;
        Ok(StreamChunks { path, input: Box::new(file), consumed: 0 })
    }
}

impl ReadChunk for StreamChunks {
    fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            match self.input.read(buf) {
                Ok(count) => {
                    self.consumed += count as u64;
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => {
                    let (path, offset) = (self.path.clone(), self.consumed);
                    return Err(TextError::Read { path, offset, cause }.into());
                }
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.consumed
    }
}
