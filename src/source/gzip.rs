//! `.gz` files: decompressed on a reader thread, members one after another.
//!
//! A gzip stream can only be read from its beginning, so such a file is one split.

use super::SourceError;
use super::error::TextError;
use super::helper::ReadChunk;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Compressed bytes read at a time: 64 KiB decompress to about one chunk.
const COMPRESSED_BYTES: usize = 64 << 10;

/// Whether a path names a gzip file.
pub(super) fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"))
}

/// The decompressed bytes of one file.
pub(super) struct GzipChunks {
    path: PathBuf,
    decoder: MultiGzDecoder<Counted>,
}

impl GzipChunks {
    /// Opens the file and reads over its first `skip` decompressed bytes. Blocks.
    pub(super) fn open(path: PathBuf, skip: u64) -> Result<GzipChunks, SourceError> {
        let file = File::open(&path).map_err(|cause| TextError::Unreadable { path: path.clone(), cause })?;
        let input = Counted { inner: BufReader::with_capacity(COMPRESSED_BYTES, file), taken: 0 };
        let mut chunks = GzipChunks { path, decoder: MultiGzDecoder::new(input) };
        let (mut skipped, mut scratch) = (0, vec![0; if skip > 0 { COMPRESSED_BYTES } else { 0 }]);
        while skipped < skip {
            let want = scratch.len().min((skip - skipped).try_into().unwrap_or(usize::MAX));
            match chunks.read_chunk(&mut scratch[..want])? {
                0 => {
                    let path = chunks.path;
                    return Err(TextError::Shrunk { path, planned: skip, found: skipped }.into());
                }
                count => skipped += count as u64,
            }
        }
        Ok(chunks)
    }
}

impl ReadChunk for GzipChunks {
    /// Fills `buf` as far as the file goes, since a decoder returns small pieces.
    fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut len = 0;
        while len < buf.len() {
            match self.decoder.read(&mut buf[len..]) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => {
                    let (path, offset) = (self.path.clone(), self.consumed());
                    return Err(match cause.raw_os_error() {
                        Some(_) => TextError::Read { path, offset, cause }.into(),
                        None => TextError::Gzip { path, offset, cause }.into(),
                    });
                }
            }
        }
        Ok(len)
    }

    fn consumed(&self) -> u64 {
        self.decoder.get_ref().taken
    }
}

/// Counts what the decoder has really taken, which is less than was read into the buffer.
struct Counted {
    inner: BufReader<File>,
    taken: u64,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.taken += count as u64;
        Ok(count)
    }
}

impl BufRead for Counted {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount as u64;
        self.inner.consume(amount);
    }
}
