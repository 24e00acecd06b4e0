//! What the log asks of a disk: operations in, completions out.
//!
//! ```text
//! LogWriter ──submit(Operation { id, block })──► Device ──► kernel, helper thread or simulation
//!           ◄──drive(): Completion { id, block }──
//! ```
//!
//! | module | what it is |
//! | ------ | ---------- |
//! | [`memory`] | staging blocks, which belong to the operation until its completion |
//! | [`directory`] | names: create, rename, remove, list, sync; reading |
//! | [`probe`] | what a directory allows: io_uring, direct I/O |
//! | `uring` | io_uring on the shard's own thread: several writes in flight, nothing blocks |
//! | `blocking` | `pwrite` and `fdatasync` on a helper thread, where io_uring is forbidden |
//! | `faulty` | fails where a test says so (feature `failpoints`) |
//! | `sim` | a disk that loses, tears, reorders and lies from a seed (feature `sim`) |
//!
//! **Contract.** An operation is started at the next [`Device::drive`] or later, in any order against others,
//! and has one completion, at any time. A completion carries the id that its operation had; an id is slot and
//! generation, so an answer that comes twice or too late belongs to nobody and is dropped. Nothing is
//! promised by a completed write but that so many bytes were taken; only a sync that was *submitted after* the
//! writes completed, and succeeded, makes them durable. A device does not retry.

pub(crate) mod blocking;
pub mod directory;
#[cfg(feature = "failpoints")]
pub(crate) mod faulty;
pub mod memory;
pub mod probe;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub(crate) mod uring;

use directory::OpenFile;
use memory::Block;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Names an operation: the slot is used again, the generation is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    /// Which of the submitter's slots.
    pub slot: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// A file that was attached to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSlot(pub u32);

/// What is to be done.
#[derive(Debug)]
pub enum Request {
    /// Writes `block[start .. start + length]` at `offset`; all four are multiples of 4096 in bytes.
    Write {
        /// Where to.
        file: FileSlot,
        /// The memory, until completion the operation's.
        block: Block,
        /// First byte in the block.
        start: usize,
        /// Bytes.
        length: usize,
        /// First byte in the file.
        offset: u64,
        /// A data sync to be submitted when the write has completed in full; cancelled if it does not.
        then_sync: Option<OperationId>,
    },
    /// Makes what was written, and has completed by now, durable.
    Sync {
        /// Which file.
        file: FileSlot,
    },
}

/// A request with its name.
#[derive(Debug)]
pub struct Operation {
    /// Comes back with the completion.
    pub id: OperationId,
    /// What is to be done.
    pub request: Request,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Which.
    pub id: OperationId,
    /// Bytes written, 0 for a sync; or an error number of the system.
    pub result: Result<usize, i32>,
    /// The memory of a write.
    pub block: Option<Block>,
}

/// Whatever carries out operations.
pub trait Device {
    /// What it is, for people: "io_uring, direct, registered staging".
    fn describe(&self) -> String;

    /// Takes a file on. At most [`OPEN_FILES_MAX`](crate::config::OPEN_FILES_MAX) at once.
    ///
    /// # Errors
    ///
    /// What the system said; the file is not attached.
    fn attach(&mut self, file: &OpenFile) -> io::Result<FileSlot>;

    /// Lets a file go.
    ///
    /// # Panics
    ///
    /// If an operation on it is in flight.
    fn detach(&mut self, file: FileSlot);

    /// Queues an operation. It starts with the next [`drive`](Self::drive).
    fn submit(&mut self, operation: Operation);

    /// Starts what is queued and appends what has ended to `done`. Never blocks; with nothing queued and nothing
    /// ended it costs a load or two.
    ///
    /// # Errors
    ///
    /// The device itself fails. What is in flight stays so; call again.
    fn drive(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// As [`drive`](Self::drive), but sleeps until something ends or `timeout` is over. Not for a shard.
    ///
    /// # Errors
    ///
    /// As `drive`.
    fn blocking_drive(&mut self, timeout: Duration, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Operations submitted whose completion was not yet given out.
    fn in_flight(&self) -> usize;
}

/// Ends the sleep of whoever waits for completions: an eventfd, or nobody.
#[derive(Debug, Clone, Default)]
pub struct Wake(Option<Arc<File>>);

impl Wake {
    /// Nobody sleeps: completions are polled for.
    pub fn nobody() -> Wake {
        Wake(None)
    }

    /// Wakes through an eventfd, of which this keeps a duplicate.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be duplicated.
    pub fn eventfd(fd: BorrowedFd<'_>) -> io::Result<Wake> {
        Ok(Wake(Some(Arc::new(File::from(fd.try_clone_to_owned()?)))))
    }

    /// Ends the sleep. Cheap where nobody sleeps, one system call otherwise.
    pub fn wake(&self) {
        if let Some(file) = &self.0 {
            // An eventfd at its limit is awake already.
            let _ = (&**file).write(&1u64.to_ne_bytes());
        }
    }

    pub(crate) fn raw(&self) -> Option<RawFd> {
        self.0.as_ref().map(|file| file.as_raw_fd())
    }
}
