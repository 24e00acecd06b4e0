//! Every byte layout, as tables. All numbers are little endian; all checksums are CRC-32 (IEEE).
//!
//! **Frame header**, 64 bytes at a multiple of 4096; the payload follows, then zeros up to the next multiple.
//!
//! | at | bytes | what |
//! | -- | ----- | ---- |
//! | 0  | 4     | magic `TGFR` |
//! | 4  | 2     | format version |
//! | 6  | 2     | kind: data, index, commit |
//! | 8  | 16    | job lineage |
//! | 24 | 8     | incarnation of the file |
//! | 32 | 4     | number of the frame in the file, from 0 |
//! | 36 | 4     | length of the payload in bytes |
//! | 40 | 8     | checkpoint id |
//! | 48 | 8     | owner: whose it is, for whoever wrote it |
//! | 56 | 4     | checksum of the payload |
//! | 60 | 4     | checksum of bytes 0 to 59, and so of everything above |
//!
//! **File head**, the first 4096 bytes of a log file; zeros behind the table.
//!
//! | at | bytes | what |
//! | -- | ----- | ---- |
//! | 0  | 4     | magic `TGLF` |
//! | 4  | 2     | format version |
//! | 6  | 2     | kind: data, commits |
//! | 8  | 16    | job lineage |
//! | 24 | 8     | incarnation |
//! | 32 | 8     | size of the file in bytes |
//! | 40 | 20    | zeros |
//! | 60 | 4     | checksum of bytes 0 to 59 |
//!
//! **Sealed document** (`_metadata`, the job's identity): 24 bytes, then the body.
//!
//! | at | bytes | what |
//! | -- | ----- | ---- |
//! | 0  | 4     | magic, of the kind of document |
//! | 4  | 4     | format version |
//! | 8  | 8     | length of the body |
//! | 16 | 4     | checksum of the body |
//! | 20 | 4     | checksum of bytes 0 to 19 |

use crate::config::ALIGNMENT_BYTES;
use crate::error::StorageError;
use crate::handle::{Handle, Incarnation};
use std::path::Path;

/// The one version of frames and files so far.
pub const LOG_VERSION: u16 = 1;

/// Bytes of a frame before its payload.
pub const FRAME_HEADER_BYTES: usize = 64;

/// Bytes of a log file before its first frame.
pub const FILE_HEAD_BYTES: usize = ALIGNMENT_BYTES;

/// Bytes of a sealed document before its body.
pub const DOCUMENT_HEADER_BYTES: usize = 24;

/// Magic of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"TGFR";
/// Magic of a log file.
pub const FILE_MAGIC: [u8; 4] = *b"TGLF";

// A frame's header never crosses a block, so that a torn write leaves it whole or not at all.
const _: () = assert!(FRAME_HEADER_BYTES <= 512 && ALIGNMENT_BYTES.is_multiple_of(512));

/// Bytes that a frame of such a payload takes: header, payload, padding.
pub fn frame_stored_bytes(payload: usize) -> usize {
    (FRAME_HEADER_BYTES + payload).next_multiple_of(ALIGNMENT_BYTES)
}

/// The bytes ended before what was to be read from them, or say something that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of {what}: {problem}")]
pub struct DecodeError {
    /// Where in the bytes.
    pub at: usize,
    /// What was being read.
    pub what: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// Writes numbers and byte strings one after the other.
#[derive(Debug, Default)]
pub struct Encoder(pub Vec<u8>);

#[allow(missing_docs)]
impl Encoder {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// A 32-bit count, then so many items.
    ///
    /// # Panics
    ///
    /// If there are 2^32 items or more: every list here has a far lower bound.
    pub fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut each: impl FnMut(&mut Encoder, T),
    ) {
        self.u32(u32::try_from(items.len()).expect("lists are far shorter than 2^32"));
        for item in items {
            each(self, item);
        }
    }
    /// A 32-bit length, then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("byte strings are far shorter than 4 GiB"));
        self.0.extend_from_slice(bytes);
    }
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
    pub fn handle(&mut self, handle: &Handle) {
        self.u64(handle.incarnation.0);
        self.u64(handle.offset);
        self.u32(handle.length);
        self.u32(handle.crc);
    }
}

/// Reads what an [`Encoder`] wrote, and takes nothing on trust.
#[derive(Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

#[allow(missing_docs)]
impl<'a> Decoder<'a> {
    /// Of `bytes`, which are called `what` in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Decoder { bytes, at: 0, what }
    }

    pub fn error(&self, problem: impl Into<String>) -> DecodeError {
        DecodeError { at: self.at, what: self.what, problem: problem.into() }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < count {
            return Err(self.error(format!("{count} bytes expected, {} left", rest.len())));
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("just so many bytes were taken"))
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array()?))
    }
    /// Items that take at least `least_bytes` each: a count that the bytes cannot hold is refused before
    /// anything is allocated for it.
    pub fn list<T>(
        &mut self,
        least_bytes: usize,
        mut each: impl FnMut(&mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()? as usize;
        let left = self.bytes.len() - self.at;
        if count.saturating_mul(least_bytes.max(1)) > left {
            return Err(self.error(format!("a list of {count} in {left} bytes")));
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        self.take(length)
    }
    pub fn text(&mut self) -> Result<String, DecodeError> {
        let at = self.at;
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map(str::to_string).map_err(|error| DecodeError {
            at,
            what: self.what,
            problem: format!("text is not UTF-8: {error}"),
        })
    }
    pub fn handle(&mut self) -> Result<Handle, DecodeError> {
        Ok(Handle {
            incarnation: Incarnation(self.u64()?),
            offset: self.u64()?,
            length: self.u32()?,
            crc: self.u32()?,
        })
    }
    /// Checks that nothing is left.
    pub fn end(self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => Err(self.error(format!("{left} bytes too many"))),
        }
    }
}

/// Puts the header of a sealed document before `body`.
pub fn seal_document(magic: [u8; 4], version: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Encoder(Vec::with_capacity(DOCUMENT_HEADER_BYTES + body.len()));
    out.0.extend_from_slice(&magic);
    out.u32(version);
    out.u64(body.len() as u64);
    out.u32(crc32fast::hash(body));
    out.u32(crc32fast::hash(&out.0));
    out.0.extend_from_slice(body);
    out.0
}

/// Checks the header of a sealed document; returns its version and body.
///
/// # Errors
///
/// [`StorageError::Corrupt`] with the offset, or [`StorageError::Version`] for one newer than `supported`.
pub fn open_document<'a>(
    path: &Path,
    magic: [u8; 4],
    supported: u32,
    bytes: &'a [u8],
) -> Result<(u32, &'a [u8]), StorageError> {
    let corrupt = |offset: usize, what: String| StorageError::corrupt(path, offset as u64, what);
    let Some((header, body)) = bytes.split_at_checked(DOCUMENT_HEADER_BYTES) else {
        return Err(corrupt(0, format!("{} bytes, a header takes {DOCUMENT_HEADER_BYTES}", bytes.len())));
    };
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    if header[..4] != magic {
        return Err(corrupt(0, format!("magic {:02x?}, expected {magic:02x?}", &header[..4])));
    }
    if number(20) != crc32fast::hash(&header[..20]) {
        return Err(corrupt(0, "the header's checksum does not match".to_string()));
    }
    let version = number(4);
    if version == 0 || version > supported {
        return Err(StorageError::Version { path: path.to_path_buf(), found: version, supported });
    }
    let length = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
    if length != body.len() as u64 {
        return Err(corrupt(
            DOCUMENT_HEADER_BYTES,
            format!("{} bytes of body, {length} were written", body.len()),
        ));
    }
    if number(16) != crc32fast::hash(body) {
        return Err(corrupt(DOCUMENT_HEADER_BYTES, "the body's checksum does not match".to_string()));
    }
    Ok((version, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_take_whole_blocks() {
        for (payload, stored) in [(0, 4096), (1, 4096), (4032, 4096), (4033, 8192), (262_080, 262_144)] {
            assert_eq!(frame_stored_bytes(payload), stored, "{payload}");
        }
    }

    proptest! {
        /// Goal: no single flipped bit, cut or addition of a sealed document passes, and none panics.
        #[test]
        fn a_changed_document_is_refused(body in prop::collection::vec(any::<u8>(), 0..200), bit in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>()) {
            let path = Path::new("doc");
            let whole = seal_document(*b"TEST", 1, &body);
            prop_assert_eq!(open_document(path, *b"TEST", 1, &whole).unwrap(), (1, &body[..]));
            let mut flipped = whole.clone();
            let bit = bit.index(flipped.len() * 8);
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open_document(path, *b"TEST", 1, &flipped).is_err());
            prop_assert!(open_document(path, *b"TEST", 1, &whole[..cut.index(whole.len())]).is_err());
            let mut longer = whole.clone();
            longer.push(0);
            prop_assert!(open_document(path, *b"TEST", 1, &longer).is_err());
        }

        /// Goal: a decoder of arbitrary bytes returns, and never allocates for a count that cannot be.
        #[test]
        fn arbitrary_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut decoder = Decoder::new("noise", &bytes);
            let _ = decoder.list(4, |d| d.u32());
            let _ = decoder.text();
            let _ = decoder.handle();
            let _ = decoder.end();
        }
    }

    #[test]
    fn a_newer_version_is_told_apart_from_damage() {
        let bytes = seal_document(*b"TEST", 2, b"body");
        assert!(matches!(
            open_document(Path::new("doc"), *b"TEST", 1, &bytes),
            Err(StorageError::Version { found: 2, supported: 1, .. })
        ));
    }
}
