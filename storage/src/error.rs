//! What storage can fail with: mistakes of the world, each naming file, place and what was expected.

use crate::handle::Incarnation;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A failure of disk, file system or of bytes read from them.
///
/// Cloned into every span and checkpoint that fails with it, hence the shared causes.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A call of the operating system failed. Nothing is known of its effect.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// What was tried: "open", "rename to …".
        action: String,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The disk has no room. What was being written has failed; it succeeds again once there is room.
    #[error("{path}: out of space: {wanted_bytes} bytes wanted", path = path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Bytes that found no room.
        wanted_bytes: u64,
    },
    /// A data sync failed, which is final for its file: what of it was not synced before is not on the disk,
    /// and the kernel forgets the failure, so a second sync that succeeds means nothing.
    #[error("{path}: data sync failed: {source}; the file is condemned", path = path.display())]
    SyncFailed {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// An operation had no answer within its deadline. Its effect is unknown, so it counts as failed.
    #[error("{path}: no answer to a {action} within {deadline_ms} ms", path = path.display())]
    Overdue {
        /// "write" or "data sync".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The deadline.
        deadline_ms: u64,
    },
    /// Bytes are not what was written there.
    #[error("{path}: damaged at offset {offset}: {what}", path = path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file the damaged thing begins.
        offset: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// A file that a checkpoint needs is not there.
    #[error("{path}: missing, and needed by {needed_by}", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Who needs it.
        needed_by: String,
    },
    /// A file of another format version.
    #[error("{path}: format version {found}; this program reads up to {supported}", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// Another process works in the directory.
    #[error("{path}: in use by process {pid}; stop it, or choose another directory", path = path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The other process, or "unknown" where it has not said.
        pid: String,
    },
    /// The directory belongs to another job.
    #[error("{path}: belongs to job {found:?}, not {expected:?}", path = path.display())]
    OtherJob {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asks.
        expected: String,
    },
    /// There are checkpoints, and none of them can be read. Starting empty would lose what they hold, so that
    /// is done only when it is asked for.
    #[error("{path}: none of {count} checkpoints can be read; the newest: {newest}", path = path.display())]
    NoReadableCheckpoint {
        /// The checkpoint directory.
        path: PathBuf,
        /// How many there are.
        count: usize,
        /// What is wrong with the newest.
        #[source]
        newest: Box<StorageError>,
    },
    /// Frames lie in a file that was condemned and has not been read again since.
    #[error("log file {incarnation} is condemned: {source}")]
    Condemned {
        /// The file.
        incarnation: Incarnation,
        /// Why.
        #[source]
        source: Box<StorageError>,
    },
    /// A failure so old that its cause is forgotten.
    #[error("failed earlier, and {count} failures have come since")]
    Forgotten {
        /// Failures since.
        count: usize,
    },
    /// What was asked for is not possible here.
    #[error("{path}: {wanted} is not possible: {reason}", path = path.display())]
    Unsupported {
        /// The directory.
        path: PathBuf,
        /// "io_uring", "direct I/O".
        wanted: &'static str,
        /// Why not.
        reason: String,
    },
    /// A bound that makes no sense.
    #[error("{name} {value}: expected {expected}")]
    Config {
        /// The bound.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
}

impl StorageError {
    /// Of a failed call; a full disk is told apart.
    pub fn io(action: impl Into<String>, path: &Path, source: io::Error) -> StorageError {
        if is_full(&source) {
            return StorageError::Full { path: path.to_path_buf(), wanted_bytes: 0 };
        }
        StorageError::Io { action: action.into(), path: path.to_path_buf(), source: Arc::new(source) }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> StorageError {
        StorageError::Corrupt { path: path.to_path_buf(), offset, what: what.into() }
    }

    /// Whether the disk has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, StorageError::Full { .. })
    }

    /// Whether bytes are wrong or missing, rather than a call having failed.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            StorageError::Corrupt { .. }
                | StorageError::Missing { .. }
                | StorageError::NoReadableCheckpoint { .. }
        )
    }
}

/// Whether an error says that the disk, the quota or the file is at its limit.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}
