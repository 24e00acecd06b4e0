//! Where a text source is, as the state of a checkpoint, and whether its input is still what it was.
//!
//! A subtask's splits follow from the inputs and the parallelism, so the state is a few numbers: how many splits
//! are done, and where in the next one the first line begins that is not emitted. Both mean the same only while
//! the inputs are the same, so a digest of all their names, sizes and times of change goes along, and the first few
//! kilobytes of them in full, so that an error can name what is different.

use super::SourceError;
use super::error::TextError;
use super::split::{InputFile, Inputs};
use crate::sealed;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tidegate_storage::format::{DecodeError, Decoder, Encoder};

const VERSION: u8 = 1;

/// Bytes of names that a state has room for.
const NAMED_BYTES_MAX: usize = 4 << 10;

/// Differences that an error names.
const CHANGES_NAMED_MAX: usize = 5;

/// Where one subtask is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) parallelism: u32,
    pub(super) split_bytes_min: u64,
    /// Splits that are done; the next one may have been begun.
    pub(super) done: u32,
    /// Where the next split goes on, if it has been begun.
    pub(super) begun: Option<Begun>,
    /// Lines so far in which bytes were replaced.
    pub(super) invalid_lines: u64,
}

/// Where a split goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    /// Where the first line begins that is not emitted, in bytes after decompression.
    pub(super) offset: u64,
    /// Lines of the split before it, where they are counted.
    pub(super) lines: u64,
}

impl Position {
    pub(super) fn seal(&self, inputs: &Identity, state: &mut Vec<u8>) {
        sealed::seal(VERSION, state, |fields| {
            fields.u32(self.parallelism);
            fields.u64(self.split_bytes_min);
            fields.u32(self.done);
            fields.u8(u8::from(self.begun.is_some()));
            let begun = self.begun.unwrap_or(Begun { offset: 0, lines: 0 });
            fields.u64(begun.offset);
            fields.u64(begun.lines);
            fields.u64(self.invalid_lines);
            inputs.encode(fields);
        });
    }

    /// Reads a state, and compares the inputs of then with those of now.
    pub(super) fn open(state: &[u8], inputs: &Inputs, now: &Identity) -> Result<Position, SourceError> {
        let (position, then) = sealed::open("a text source", VERSION, state, |_, fields| {
            let parallelism = fields.u32()?;
            let split_bytes_min = fields.u64()?;
            let done = fields.u32()?;
            let is_begun = fields.u8()? != 0;
            let begun = Begun { offset: fields.u64()?, lines: fields.u64()? };
            let (begun, invalid_lines) = (is_begun.then_some(begun), fields.u64()?);
            let position = Position { parallelism, split_bytes_min, done, begun, invalid_lines };
            Ok((position, Identity::decode(fields)?))
        })?;
        match then.changes(inputs, now) {
            None => Ok(position),
            Some(changes) => Err(TextError::Changed { changes }.into()),
        }
    }
}

/// What the inputs were when they were planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    files: u64,
    bytes: u64,
    /// Latest time of change, in nanoseconds since 1970.
    newest_ns: i64,
    /// FNV-1a over names, kinds, sizes and times of change.
    digest: u64,
    /// The first of the files.
    named: Vec<Named>,
}

/// One file as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    path: PathBuf,
    bytes: u64,
    modified_ns: i64,
}

impl Identity {
    pub(super) fn of(inputs: &Inputs) -> Identity {
        let mut digest = Fnv::default();
        for file in &inputs.files {
            let path = file.path.as_os_str().as_bytes();
            digest.add(&(path.len() as u64).to_le_bytes());
            digest.add(path);
            digest.add(&[file.kind as u8]);
            digest.add(&file.bytes.to_le_bytes());
            digest.add(&file.modified_ns.to_le_bytes());
        }
        let mut room = NAMED_BYTES_MAX;
        let named = inputs.files.iter().map_while(|file| {
            room = room.checked_sub(file.path.as_os_str().len() + Named::BYTES_MIN)?;
            Some(Named { path: file.path.clone(), bytes: file.bytes, modified_ns: file.modified_ns })
        });
        Identity {
            named: named.collect(),
            files: inputs.files.len() as u64,
            bytes: inputs.files.iter().map(|file| file.bytes).sum(),
            newest_ns: inputs.files.iter().map(|file| file.modified_ns).max().unwrap_or(0),
            digest: digest.0,
        }
    }

    fn encode(&self, fields: &mut Encoder) {
        fields.u64(self.files);
        fields.u64(self.bytes);
        fields.u64(self.newest_ns as u64);
        fields.u64(self.digest);
        fields.list(self.named.iter(), |fields, named| {
            fields.bytes(named.path.as_os_str().as_bytes());
            fields.u64(named.bytes);
            fields.u64(named.modified_ns as u64);
        });
    }

    fn decode(fields: &mut Decoder<'_>) -> Result<Identity, DecodeError> {
        Ok(Identity {
            files: fields.u64()?,
            bytes: fields.u64()?,
            newest_ns: fields.u64()? as i64,
            digest: fields.u64()?,
            named: fields.list(Named::BYTES_MIN, |fields| {
                Ok(Named {
                    path: Path::new(OsStr::from_bytes(fields.bytes()?)).to_path_buf(),
                    bytes: fields.u64()?,
                    modified_ns: fields.u64()? as i64,
                })
            })?,
        })
    }

    /// What is different now, in words; `None` if nothing is.
    fn changes(&self, inputs: &Inputs, now: &Identity) -> Option<String> {
        if (self.digest, self.files) == (now.digest, now.files) {
            return None;
        }
        let mut changes = Vec::new();
        for named in &self.named {
            let path = named.path.display();
            let found: Vec<&InputFile> = inputs.files.iter().filter(|file| file.path == named.path).collect();
            match found.first() {
                None => changes.push(format!("{path} is gone")),
                Some(file) if file.bytes != named.bytes => {
                    changes.push(format!("{path} had {} bytes and has {}", named.bytes, file.bytes));
                }
                Some(file) if file.modified_ns != named.modified_ns => {
                    changes.push(format!("{path} was written to since"));
                }
                Some(_) => {}
            }
        }
        let all_named = self.named.len() as u64 == self.files;
        for file in &inputs.files {
            let known = self.named.iter().any(|named| named.path == file.path);
            if all_named && !known {
                changes.push(format!("{} is new", file.path.display()));
            } else if !known && file.modified_ns > self.newest_ns {
                changes.push(format!("{} is new or was written to since", file.path.display()));
            }
        }
        let more = changes.len().saturating_sub(CHANGES_NAMED_MAX);
        changes.truncate(CHANGES_NAMED_MAX);
        let mut text = changes.join(", ");
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
        if text.is_empty() {
            let (then, is) = ((self.files, self.bytes), (now.files, now.bytes));
            text = format!(
                "there were {} files of {} bytes and are {} of {}, or their order is another",
                then.0, then.1, is.0, is.1
            );
        }
        Some(text)
    }
}

impl Named {
    /// Of a file without a name.
    const BYTES_MIN: usize = 20;
}

/// The hash of Fowler, Noll and Vo (FNV-1a, 64 bits): short, and the same for ever.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
