//! What can be wrong with textual input: the thing, its value, and what was expected.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A fault of a text input, found while planning (before the job starts) or while reading.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// No input was given at all.
    #[error("no input: expected at least one file, directory, or - for standard input")]
    NoInput,
    /// The path does not exist.
    #[error("{}: no such file or directory; expected a text file, a directory of them, or - for standard input", path.display())]
    Missing {
        /// The path as given or found.
        path: PathBuf,
    },
    /// The path exists but cannot be opened or listed.
    #[error("{}: cannot be read: {cause}; expected a readable text file or directory", path.display())]
    Unreadable {
        /// The path as given or found.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A directory in which, at any depth, lies no file.
    #[error("{}: a directory without files; expected at least one file in it or below it", path.display())]
    NoFiles {
        /// The directory as given.
        path: PathBuf,
    },
    /// A directory in which all files are of those that are left out unless asked for.
    #[error("{}: none of what is in it is read: {skipped}; expected at least one text file (--all reads everything)", path.display())]
    NothingToRead {
        /// The directory as given.
        path: PathBuf,
        /// What was left out, and why.
        skipped: String,
    },
    /// Standard input can be read only once.
    #[error("-: standard input is given {times} times; expected at most once")]
    StdinTwice {
        /// How often it was given.
        times: usize,
    },
    /// A read failed in the middle.
    #[error("{}: read failed at byte {offset}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Byte offset at which the failed read began.
        offset: u64,
        /// What the system said.
        cause: io::Error,
    },
    /// The file became shorter after it was planned.
    #[error("{}: ends at byte {found}; expected {planned} bytes, as when the job was planned", path.display())]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its size at planning, in bytes.
        planned: u64,
        /// Where it ended when read.
        found: u64,
    },
    /// Not gzip data, damaged, or cut short.
    #[error("{}: broken gzip data at compressed byte {offset}: {cause}; expected complete gzip members up to the end of the file", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// How many compressed bytes had been taken when the fault showed.
        offset: u64,
        /// What the decoder said.
        cause: io::Error,
    },
    /// A line that is not UTF-8, where only UTF-8 is accepted.
    #[error("{}: line {line} is not UTF-8 at byte {offset}; expected UTF-8 (without --strict such bytes become U+FFFD and are counted)", path.display())]
    InvalidUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8 (after decompression).
        offset: u64,
        /// Number of the line in its file, from 1.
        line: u64,
    },
    /// A line longer than a record may be.
    #[error("{}: the line at byte {offset} is longer than {bytes_max} bytes, the greatest size of a record", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// Offset at which the line begins (after decompression).
        offset: u64,
        /// The bound.
        bytes_max: usize,
    },
    /// The inputs are not those that a checkpoint speaks of.
    #[error("the input is not what it was at the checkpoint: {changes}; expected the same files, unchanged")]
    Changed {
        /// Which files, and how.
        changes: String,
    },
    /// The inputs were cut up differently when the checkpoint was taken.
    #[error(
        "the text was read by {expected} subtasks at the checkpoint, in splits of at least {split_bytes_min} bytes; expected the same of this job, which has {found}"
    )]
    CutDifferently {
        /// Subtasks now.
        found: u32,
        /// Subtasks at the checkpoint.
        expected: u32,
        /// Least size of a split at the checkpoint.
        split_bytes_min: u64,
    },
    /// A stream cannot be read again from where it was.
    #[error("{}: a stream can be read only once, and it was being read when the job failed; expected a file", path.display())]
    ReadOnce {
        /// The input as given.
        path: PathBuf,
    },
    /// The thread that reads for a source could not be started.
    #[error("{}: no thread could be started to read it: {cause}", path.display())]
    Thread {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}
