//! What a log writer keeps of its files and operations, and what it says of them.

use super::file::FileName;
use crate::device::memory::Block;
use crate::device::{FileSlot, OperationId};
use crate::error::StorageError;
use crate::handle::Incarnation;
use std::path::PathBuf;
use std::time::Duration;

/// Why nothing was appended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// All staging is on its way to the disk. Poll, then repeat.
    #[error("all staging blocks are being written")]
    BufferFull,
    /// The next file is not ready yet. Poll, then repeat; the wake handle is rung when it is.
    #[error("the next log file is being made")]
    NoFile,
    /// There is no next file, for this reason. The snapshot has failed; the next append asks again.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A stretch of positions: what one snapshot appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The writer's position before the first append.
    pub from: u64,
    /// Its position after the last one.
    pub to: u64,
}

/// What has become of a span.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// On its way, or nobody has flushed it yet.
    Pending,
    /// On the disk: handles into it may be acknowledged.
    Durable,
    /// Some of it is not on the disk and never will be.
    Failed(StorageError),
}

/// A file whose data sync failed.
#[derive(Debug, Clone)]
pub struct Condemned {
    /// Frames in it count only after they were read again, directly.
    pub incarnation: Incarnation,
    /// Why.
    pub cause: StorageError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    Writing,
    Sealed,
    Failed,
}

/// `synced <= submitted <= staged <= size`, and `end` is `staged` but while a frame is copied in. All are offsets.
#[derive(Debug)]
pub(super) struct WriterFile {
    pub(super) name: FileName,
    pub(super) path: PathBuf,
    pub(super) slot: FileSlot,
    pub(super) size: u64,
    /// The position of the file's first byte.
    pub(super) base: u64,
    pub(super) staged: u64,
    pub(super) submitted: u64,
    pub(super) synced: u64,
    pub(super) sync_wanted: u64,
    pub(super) syncing: bool,
    pub(super) frames: u32,
    pub(super) last_checkpoint: u64,
    pub(super) state: FileState,
}

#[derive(Debug)]
pub(super) enum Work {
    Write {
        block_start: usize,
        length: usize,
        offset: u64,
        retries: u32,
        /// Its linked sync has succeeded up to here; counts when the write turns out complete.
        synced_to: Option<u64>,
    },
    Sync {
        to: u64,
        /// The write that it is linked to.
        behind: Option<OperationId>,
    },
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) incarnation: Incarnation,
    pub(super) since: Duration,
    pub(super) work: Work,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) operation: Option<InFlight>,
}

#[derive(Debug)]
pub(super) struct Filling {
    pub(super) block: Block,
    pub(super) filled: usize,
    pub(super) offset: u64,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) span: Span,
    pub(super) cause: StorageError,
}

/// What a writer has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogCounts {
    /// Frames appended.
    pub frames: u64,
    /// Bytes handed to the device, heads and padding included.
    pub written_bytes: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Writes that came back short and were continued.
    pub short_writes: u64,
    /// Data syncs submitted.
    pub syncs: u64,
    /// Files begun.
    pub files: u64,
    /// Files given up.
    pub failed_files: u64,
    /// Completions that belonged to no operation.
    pub strays: u64,
}
