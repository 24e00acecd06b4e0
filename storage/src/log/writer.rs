//! One shard's end of the log: frames in, durable positions out.
//!
//! ```text
//! append ─► staging block ─► write ─► completed ─► data sync ─► durable
//!           (filled)         (several in flight)   (one a file)
//! ```
//!
//! A position counts the bytes of everything appended, over all files; `durable <= written <= appended`. Frames
//! go to staging blocks, full blocks are written at once and side by side, and [`LogWriter::flush`] asks for what
//! has been appended so far to be made durable: the *group commit*. The sync of a file is submitted when all
//! writes before the wanted place have completed in full, never with them, and a position is durable when a sync
//! submitted after its bytes were written has succeeded. The one exception is a flush that has a single block to
//! write: its sync is linked behind it, and the kernel starts it after the complete write or not at all.
//!
//! **Failures.** A write that fails, or makes no progress, ends its file where it was last synced; a failed sync
//! condemns the whole file, what was durable in it before included, since the kernel may have dropped that, too
//! (seen on ext4: after a failed sync the next one succeeded, the cache read back fine, and most of the mebibyte
//! that had been acknowledged *before* was zeros on the disk). Spans in it have failed, their checkpoint fails,
//! and the next append begins a fresh file. Nothing is synced a second time. Completed checkpoints with frames in
//! a condemned file learn of it by [`LogWriter::take_condemned`] and are read again, directly, before they count.
//!
//! Blocks 4096 bytes long are never written twice: each frame begins a new one, so no torn write of a later frame
//! can touch an acknowledged one.

#![forbid(unsafe_code)]

use super::file::{FileSource, FreshFile};
use super::frame::{FrameHeader, FrameTag};
pub use super::state::{AppendError, Condemned, LogCounts, Outcome, Span};
use super::state::{Failure, FileState, Filling, InFlight, Slot, Work, WriterFile};
use crate::config::{ALIGNMENT_BYTES, FAILED_SPANS_MAX, LogConfig, OPEN_FILES_MAX, WRITE_RETRIES_MAX};
use crate::device::blocking::BlockingDevice;
use crate::device::memory::Block;
use crate::device::probe::Chosen;
use crate::device::uring::UringDevice;
use crate::device::{Completion, Device, Operation, OperationId, Request, Wake};
use crate::error::StorageError;
use crate::format::{FILE_HEAD_BYTES, FRAME_HEADER_BYTES, frame_stored_bytes};
use crate::handle::{Handle, Incarnation};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
/// Everything a writer needs, made off the shard; [`open`](Self::open) is called on the shard's own thread,
/// since an io_uring belongs to one.
pub struct LogSeed {
    config: LogConfig,
    lineage: u128,
    chosen: Chosen,
    source: Box<dyn FileSource + Send>,
    wake: Wake,
    blocking: Option<BlockingDevice>,
}

impl LogSeed {
    /// Asks for the first file, and starts the helper thread if the backend needs one: call this where threads
    /// may run on any core.
    ///
    /// # Errors
    ///
    /// The bounds make no sense, or the helper thread cannot be started.
    pub fn new(
        config: LogConfig,
        lineage: u128,
        chosen: Chosen,
        mut source: Box<dyn FileSource + Send>,
        wake: Wake,
    ) -> Result<LogSeed, StorageError> {
        config.validate()?;
        let blocking = if chosen.uring {
            None
        } else {
            let device = BlockingDevice::start(chosen.direct, wake.clone());
            Some(device.map_err(|e| StorageError::io("start", "the log's disk thread".as_ref(), e))?)
        };
        source.request();
        Ok(LogSeed { config, lineage, chosen, source, wake, blocking })
    }

    /// Makes the writer, on the thread that will use it.
    ///
    /// # Errors
    ///
    /// No ring can be made for this thread, though the probe could: the limit of lockable memory, mostly.
    pub fn open(self) -> Result<LogWriter, StorageError> {
        let blocks = Block::region(self.config.block_size_bytes, self.config.blocks);
        let device: Box<dyn Device> = match self.blocking {
            Some(device) => Box::new(device),
            None => Box::new(
                UringDevice::new(&blocks, self.chosen.direct, &self.wake)
                    .map_err(|e| StorageError::io("set up", "io_uring of the log".as_ref(), e))?,
            ),
        };
        #[cfg(feature = "failpoints")]
        let device = Box::new(crate::device::faulty::FaultyDevice::new(device));
        Ok(LogWriter::new(self.config, self.lineage, device, self.source, blocks))
    }
}

/// The log of one shard, or of the coordinator.
pub struct LogWriter {
    config: LogConfig,
    lineage: u128,
    device: Box<dyn Device>,
    source: Box<dyn FileSource>,
    free: Vec<Block>,
    filling: Option<Filling>,
    /// Oldest first; only the last can be `Writing`.
    files: VecDeque<WriterFile>,
    next: Option<FreshFile>,
    /// The next file was asked for ahead of time and could not be made. It is asked for again when it is needed,
    /// and not before: a full disk is not tried again at every append.
    next_failed: bool,
    /// An append waits for the next file.
    next_needed: bool,
    /// Why there is none for it, until it has told.
    next_error: Option<StorageError>,
    slots: Vec<Slot>,
    position: u64,
    durable: u64,
    failures: VecDeque<Failure>,
    forgotten: usize,
    forgotten_to: u64,
    condemned: Vec<Condemned>,
    done: Vec<Completion>,
    now: Duration,
    counts: LogCounts,
}

impl LogWriter {
    /// Of parts: what [`LogSeed::open`] does for the real ones, and simulations for theirs.
    pub fn new(
        config: LogConfig,
        lineage: u128,
        device: Box<dyn Device>,
        mut source: Box<dyn FileSource>,
        blocks: Vec<Block>,
    ) -> LogWriter {
        assert!(blocks.iter().all(|block| block.len() == config.block_size_bytes));
        assert_eq!(blocks.len(), config.blocks);
        source.request();
        LogWriter {
            config,
            lineage,
            device,
            source,
            free: blocks,
            filling: None,
            files: VecDeque::with_capacity(OPEN_FILES_MAX),
            next: None,
            next_failed: false,
            next_needed: false,
            next_error: None,
            slots: Vec::new(),
            position: 0,
            durable: 0,
            failures: VecDeque::new(),
            forgotten: 0,
            forgotten_to: 0,
            condemned: Vec::new(),
            done: Vec::new(),
            now: Duration::ZERO,
            counts: LogCounts::default(),
        }
    }

    /// What writes, for people.
    pub fn describe(&self) -> String {
        self.device.describe()
    }

    /// Bytes appended so far: take it before and after a snapshot, and ask for the [`outcome`](Self::outcome)
    /// of the span between.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Up to here everything is durable, or has failed.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// What has been done so far.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// The largest payload of one frame.
    pub fn frame_payload_bytes_max(&self) -> usize {
        self.config.frame_payload_bytes_max()
    }

    /// Adds `payload` as one frame and returns where it will lie.
    ///
    /// On return the frame is in staging, parts of it perhaps on their way. It may be acknowledged when the
    /// outcome of a span around it is [`Outcome::Durable`], for which somebody must [`flush`](Self::flush).
    ///
    /// One copy and one checksum of the payload, no allocation, no system call.
    ///
    /// # Errors
    ///
    /// Nothing was appended; each variant of [`AppendError`] says what to do next.
    ///
    /// # Panics
    ///
    /// If `payload` is longer than [`frame_payload_bytes_max`](Self::frame_payload_bytes_max).
    pub fn append(&mut self, tag: FrameTag, payload: &[u8]) -> Result<Handle, AppendError> {
        let max = self.frame_payload_bytes_max();
        assert!(payload.len() <= max, "a payload of {} bytes, at most {max}", payload.len());
        let stored = frame_stored_bytes(payload.len());
        self.make_room(stored)?;
        if self.staging_bytes() < stored {
            return Err(AppendError::BufferFull);
        }
        let lineage = self.lineage;
        let file = self.files.back_mut().expect("room was made in it");
        let header = FrameHeader::of(tag, lineage, file.name.incarnation, file.frames, payload);
        let handle = Self::enter(file, &header);
        self.put(&header.encode());
        self.put(payload);
        self.pad(stored - FRAME_HEADER_BYTES - payload.len());
        self.appended(stored);
        Ok(handle)
    }

    /// A frame whose payload is written where it is staged, in one piece: saves the copy of
    /// [`append`](Self::append). Appended by [`FrameBuilder::finish`]; dropped before, nothing was.
    ///
    /// # Errors
    ///
    /// As of `append`.
    ///
    /// # Panics
    ///
    /// If a payload of `length_max` bytes and its header do not fit one staging block.
    pub fn build(&mut self, tag: FrameTag, length_max: usize) -> Result<FrameBuilder<'_>, AppendError> {
        let stored = frame_stored_bytes(length_max);
        let block = self.config.block_size_bytes;
        assert!(stored <= block, "a frame of {length_max} bytes in a staging block of {block}");
        self.make_room(stored)?;
        if self.filling.as_ref().is_some_and(|filling| block - filling.filled < stored) {
            self.submit_filling(false);
        }
        if self.filling.is_none() && !self.begin_block() {
            return Err(AppendError::BufferFull);
        }
        Ok(FrameBuilder { writer: self, tag, length_max })
    }

    /// Asks that all that was appended so far be made durable. Returns at once; [`poll`](Self::poll) starts it.
    pub fn flush(&mut self) {
        self.submit_filling(true);
        for file in &mut self.files {
            file.sync_wanted = file.staged;
        }
        self.advance();
    }

    /// Starts what is queued, takes what has ended, and draws the conclusions. Never blocks; with nothing to do
    /// it costs a few loads. `now` is any monotonic clock.
    ///
    /// # Errors
    ///
    /// The device itself failed, and every file being written is given up with it.
    pub fn poll(&mut self, now: Duration) -> Result<(), StorageError> {
        self.now = self.now.max(now);
        loop {
            let mut done = std::mem::take(&mut self.done);
            let driven = self.device.drive(&mut done);
            let idle = done.is_empty();
            for completion in done.drain(..) {
                self.complete(completion);
            }
            self.done = done;
            if let Err(error) = driven {
                let cause = StorageError::io("drive", "the log's device".as_ref(), error);
                for index in 0..self.files.len() {
                    self.fail(index, cause.clone(), false);
                }
                return Err(cause);
            }
            self.check_deadlines();
            self.advance();
            if idle {
                return Ok(());
            }
        }
    }

    /// As [`poll`](Self::poll), but sleeps up to `timeout` until something ends. Not for a shard.
    ///
    /// # Errors
    ///
    /// As of `poll`.
    pub fn blocking_poll(&mut self, now: Duration, timeout: Duration) -> Result<(), StorageError> {
        self.poll(now)?;
        if self.device.in_flight() > 0 {
            let mut done = std::mem::take(&mut self.done);
            let driven = self.device.blocking_drive(timeout, &mut done);
            for completion in done.drain(..) {
                self.complete(completion);
            }
            self.done = done;
            driven.map_err(|e| StorageError::io("drive", "the log's device".as_ref(), e))?;
            self.advance();
        } else if self.next.is_none() {
            self.source.blocking_wait(timeout);
        }
        self.poll(now)
    }

    /// When [`poll`](Self::poll) must be called at the latest, completions or not: the earliest deadline.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.slots
            .iter()
            .filter_map(|slot| slot.operation.as_ref())
            .map(|operation| operation.since + self.config.operation_deadline)
            .min()
    }

    /// Whether operations are under way.
    pub fn is_busy(&self) -> bool {
        self.device.in_flight() > 0
    }

    /// What has become of a span. An empty one is durable.
    pub fn outcome(&self, span: Span) -> Outcome {
        assert!(span.from <= span.to && span.to <= self.position, "{span:?} of {}", self.position);
        if span.from < self.forgotten_to && span.from < span.to {
            return Outcome::Failed(StorageError::Forgotten { count: self.forgotten });
        }
        let failure =
            self.failures.iter().find(|failure| span.from < failure.span.to && failure.span.from < span.to);
        match failure {
            Some(failure) => Outcome::Failed(failure.cause.clone()),
            None if span.to <= self.durable || span.from == span.to => Outcome::Durable,
            None => Outcome::Pending,
        }
    }

    /// Files condemned since the last call: what completed checkpoints have in them must be read again.
    pub fn take_condemned(&mut self) -> Vec<Condemned> {
        std::mem::take(&mut self.condemned)
    }

    /// Makes sure that the last file takes `stored` more bytes.
    fn make_room(&mut self, stored: usize) -> Result<(), AppendError> {
        if let Some(file) = self.files.back_mut()
            && file.state == FileState::Writing
        {
            if file.staged + stored as u64 <= file.size {
                return Ok(());
            }
            self.submit_filling(false);
            let file = self.files.back_mut().expect("it was there");
            file.state = FileState::Sealed;
            file.sync_wanted = file.staged;
            self.advance();
        }
        if self.files.len() == OPEN_FILES_MAX || self.free.is_empty() {
            return Err(AppendError::BufferFull);
        }
        let fresh = match self.next.take() {
            Some(fresh) => fresh,
            None => {
                if let Some(error) = self.next_error.take() {
                    // Told once; whoever appends next wants it tried again.
                    self.next_needed = false;
                    return Err(error.into());
                }
                self.source.request();
                self.next_needed = true;
                self.source.take().ok_or(AppendError::NoFile)??
            }
        };
        self.next_needed = false;
        self.next_failed = false;
        let slot = match self.device.attach(&fresh.file) {
            Ok(slot) => slot,
            Err(error) => {
                self.source.sealed(fresh.name.incarnation, 0);
                return Err(StorageError::io("attach", &fresh.path, error).into());
            }
        };
        let mut head = [0; FILE_HEAD_BYTES];
        fresh.name.encode_head(fresh.size, &mut head);
        self.files.push_back(WriterFile {
            name: fresh.name,
            path: fresh.path,
            slot,
            size: fresh.size,
            base: self.position,
            staged: 0,
            submitted: 0,
            synced: 0,
            sync_wanted: 0,
            syncing: false,
            frames: 0,
            last_checkpoint: 0,
            state: FileState::Writing,
        });
        self.counts.files += 1;
        self.put(&head);
        self.position += FILE_HEAD_BYTES as u64;
        assert!(FILE_HEAD_BYTES + stored <= fresh.size as usize, "a frame fits an empty file");
        Ok(())
    }

    fn staging_bytes(&self) -> usize {
        let block = self.config.block_size_bytes;
        self.free.len() * block + self.filling.as_ref().map_or(0, |filling| block - filling.filled)
    }

    /// Takes the next frame's number and place.
    fn enter(file: &mut WriterFile, header: &FrameHeader) -> Handle {
        let handle = Handle {
            incarnation: file.name.incarnation,
            offset: file.staged,
            length: header.length,
            crc: header.crc,
        };
        file.frames += 1;
        file.last_checkpoint = file.last_checkpoint.max(header.tag.checkpoint);
        handle
    }

    /// After a frame of so many bytes was put.
    fn appended(&mut self, stored: usize) {
        self.position += stored as u64;
        self.counts.frames += 1;
        let file = self.files.back().expect("the frame was put into it");
        assert_eq!(file.base + file.staged, self.position, "positions count what the files hold");
        if file.staged > file.size / 2 && self.next.is_none() && !self.next_failed {
            // The next file is asked for while there is still room for as much again.
            self.source.request();
        }
        if self.filling.as_ref().is_some_and(|filling| filling.filled == self.config.block_size_bytes) {
            self.submit_filling(false);
        }
    }

    /// Takes a free block for the last file; `false` without one.
    fn begin_block(&mut self) -> bool {
        let Some(block) = self.free.pop() else { return false };
        let offset = self.files.back().expect("a file is being written").staged;
        self.filling = Some(Filling { block, filled: 0, offset });
        true
    }

    /// Copies bytes to staging, for which the caller has made room.
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filling.is_none() {
                assert!(self.begin_block(), "staging was looked for before");
            }
            let filling = self.filling.as_mut().expect("just begun");
            let count = bytes.len().min(filling.block.len() - filling.filled);
            filling.block[filling.filled..filling.filled + count].copy_from_slice(&bytes[..count]);
            self.filled(count);
            bytes = &bytes[count..];
        }
    }

    /// Zeros: a block's earlier content would do no harm, but tells of other frames.
    fn pad(&mut self, mut count: usize) {
        const ZEROS: [u8; ALIGNMENT_BYTES] = [0; ALIGNMENT_BYTES];
        while count > 0 {
            let some = count.min(ZEROS.len());
            self.put(&ZEROS[..some]);
            count -= some;
        }
    }

    fn filled(&mut self, count: usize) {
        let filling = self.filling.as_mut().expect("bytes were put into it");
        filling.filled += count;
        let full = filling.filled == filling.block.len();
        self.files.back_mut().expect("being written").staged += count as u64;
        if full {
            self.submit_filling(false);
        }
    }

    /// Sends what is staged on its way; with `sync`, and if it is all there is, a linked sync behind it.
    fn submit_filling(&mut self, sync: bool) {
        let Some(Filling { block, filled, offset }) = self.filling.take() else { return };
        let index = self.files.len() - 1;
        let file = &mut self.files[index];
        assert_eq!(file.submitted, offset, "blocks are submitted in order");
        let lone = !file.syncing && self.written(index) == offset;
        self.files[index].submitted += filled as u64;
        self.submit_write(index, block, 0, filled, offset, 0, sync && lone);
    }

    #[allow(clippy::too_many_arguments)]
    fn submit_write(
        &mut self,
        index: usize,
        block: Block,
        start: usize,
        length: usize,
        offset: u64,
        retries: u32,
        sync: bool,
    ) {
        let write = self
            .remember(index, Work::Write { block_start: start, length, offset, retries, synced_to: None });
        let then_sync = sync.then(|| {
            self.files[index].syncing = true;
            self.counts.syncs += 1;
            self.remember(index, Work::Sync { to: offset + length as u64, behind: Some(write) })
        });
        let file = self.files[index].slot;
        self.counts.writes += 1;
        self.counts.written_bytes += length as u64;
        let request = Request::Write { file, block, start, length, offset, then_sync };
        self.device.submit(Operation { id: write, request });
    }

    fn remember(&mut self, index: usize, work: Work) -> OperationId {
        let slot = self.slots.iter().position(|slot| slot.operation.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let incarnation = self.files[index].name.incarnation;
        self.slots[slot].generation = self.slots[slot].generation.wrapping_add(1);
        self.slots[slot].operation = Some(InFlight { incarnation, since: self.now, work });
        OperationId { slot: slot as u32, generation: self.slots[slot].generation }
    }

    fn operations(&self, index: usize) -> impl Iterator<Item = &InFlight> {
        let incarnation = self.files[index].name.incarnation;
        self.slots
            .iter()
            .filter_map(|slot| slot.operation.as_ref())
            .filter(move |o| o.incarnation == incarnation)
    }

    /// Up to here every byte of the file was written in full.
    fn written(&self, index: usize) -> u64 {
        self.operations(index)
            .filter_map(|operation| match operation.work {
                Work::Write { offset, .. } => Some(offset),
                Work::Sync { .. } => None,
            })
            .min()
            .unwrap_or(self.files[index].submitted)
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { id, result, block } = completion;
        let operation = self
            .slots
            .get_mut(id.slot as usize)
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.operation.take());
        let Some(InFlight { incarnation, work, .. }) = operation else {
            // Twice, or of nobody. Memory comes with the first answer only.
            self.counts.strays += 1;
            return;
        };
        let index = self
            .files
            .iter()
            .position(|file| file.name.incarnation == incarnation)
            .expect("a file stays while it has operations in flight");
        let alive = self.files[index].state != FileState::Failed;
        match work {
            Work::Write { block_start, length, offset, retries, synced_to } => {
                let block = block.expect("a write's completion brings its memory back");
                if !alive {
                    self.free.push(block);
                    return;
                }
                let (progress, retries) = match result {
                    Ok(count) if count == length => {
                        self.free.push(block);
                        if let Some(to) = synced_to {
                            self.synced(index, to);
                        }
                        return;
                    }
                    Ok(0) => {
                        self.free.push(block);
                        let path = self.files[index].path.clone();
                        self.fail(index, StorageError::Full { path, wanted_bytes: length as u64 }, false);
                        return;
                    }
                    Ok(count) if count < length => {
                        self.counts.short_writes += 1;
                        let whole = count - count % ALIGNMENT_BYTES;
                        (whole, if whole == 0 { retries + 1 } else { 0 })
                    }
                    Err(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => (0, retries + 1),
                    Ok(count) => panic!("{count} bytes of {length} were written"),
                    Err(number) => {
                        self.free.push(block);
                        let cause = self.cause(index, "write to", number, length);
                        self.fail(index, cause, false);
                        return;
                    }
                };
                // The rest is written behind it, so the sync that was linked covers nothing, whatever it says.
                self.void_sync_behind(id);
                if retries > WRITE_RETRIES_MAX {
                    self.free.push(block);
                    let cause = match result {
                        Ok(_) => StorageError::Full {
                            path: self.files[index].path.clone(),
                            wanted_bytes: length as u64,
                        },
                        Err(number) => self.cause(index, "write to", number, length),
                    };
                    self.fail(index, cause, false);
                    return;
                }
                let (start, offset) = (block_start + progress, offset + progress as u64);
                self.submit_write(index, block, start, length - progress, offset, retries, false);
            }
            Work::Sync { to, behind } => {
                self.files[index].syncing = false;
                if !alive {
                    return;
                }
                match result {
                    Ok(_) => match behind.and_then(|write| self.write_mut(write)) {
                        // The answers came the other way round; what the write says counts.
                        Some(synced_to) => *synced_to = Some(to),
                        None => self.synced(index, to),
                    },
                    // The link was broken by its write and the sync never ran; `advance` submits another.
                    Err(libc::ECANCELED) if behind.is_some() => {}
                    Err(number) => {
                        let source = Arc::new(io::Error::from_raw_os_error(number));
                        let path = self.files[index].path.clone();
                        self.fail(index, StorageError::SyncFailed { path, source }, true);
                    }
                }
            }
        }
    }

    fn write_mut(&mut self, id: OperationId) -> Option<&mut Option<u64>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        match &mut slot.operation.as_mut()?.work {
            Work::Write { synced_to, .. } => Some(synced_to),
            Work::Sync { .. } => None,
        }
    }

    fn void_sync_behind(&mut self, write: OperationId) {
        for operation in self.slots.iter_mut().filter_map(|slot| slot.operation.as_mut()) {
            if let Work::Sync { to, behind } = &mut operation.work
                && *behind == Some(write)
            {
                *to = 0;
            }
        }
    }

    fn synced(&mut self, index: usize, to: u64) {
        let file = &mut self.files[index];
        assert!(to <= file.submitted, "synced {to} of {}", file.submitted);
        file.synced = file.synced.max(to);
    }

    fn cause(&self, index: usize, action: &str, number: i32, wanted: usize) -> StorageError {
        let path = &self.files[index].path;
        let error = io::Error::from_raw_os_error(number);
        if crate::error::is_full(&error) {
            return StorageError::Full { path: path.clone(), wanted_bytes: wanted as u64 };
        }
        StorageError::io(action, path, error)
    }

    /// Gives a file up: from its last sync on, or `whole`.
    fn fail(&mut self, index: usize, cause: StorageError, whole: bool) {
        let last = index == self.files.len() - 1;
        let file = &mut self.files[index];
        if file.state == FileState::Failed {
            return;
        }
        file.state = FileState::Failed;
        self.counts.failed_files += 1;
        let from = if whole { file.base } else { file.base + file.synced };
        let span = Span { from, to: file.base + file.staged };
        if whole {
            self.condemned.push(Condemned { incarnation: file.name.incarnation, cause: cause.clone() });
        }
        if last && let Some(filling) = self.filling.take() {
            self.free.push(filling.block);
        }
        self.failures.push_back(Failure { span, cause });
        if self.failures.len() > FAILED_SPANS_MAX {
            let oldest = self.failures.pop_front().expect("there are many");
            self.forgotten += 1;
            self.forgotten_to = oldest.span.to;
        }
    }

    fn check_deadlines(&mut self) {
        let deadline = self.config.operation_deadline;
        let now = self.now;
        let overdue: Vec<(Incarnation, bool)> = self
            .slots
            .iter()
            .filter_map(|slot| slot.operation.as_ref())
            .filter(|operation| operation.since + deadline <= now)
            .map(|operation| (operation.incarnation, matches!(operation.work, Work::Sync { .. })))
            .collect();
        for (incarnation, sync) in overdue {
            let Some(index) = self.files.iter().position(|file| file.name.incarnation == incarnation) else {
                continue;
            };
            let cause = StorageError::Overdue {
                action: if sync { "data sync" } else { "write" },
                path: self.files[index].path.clone(),
                deadline_ms: deadline.as_millis() as u64,
            };
            self.fail(index, cause, sync);
        }
    }

    /// Submits syncs that have become possible, moves the durable position, lets finished files go.
    fn advance(&mut self) {
        for index in 0..self.files.len() {
            let file = &self.files[index];
            if file.state == FileState::Failed || file.syncing || file.sync_wanted <= file.synced {
                continue;
            }
            let written = self.written(index);
            if written >= self.files[index].sync_wanted {
                let id = self.remember(index, Work::Sync { to: written, behind: None });
                let file = &mut self.files[index];
                file.syncing = true;
                self.counts.syncs += 1;
                let request = Request::Sync { file: file.slot };
                self.device.submit(Operation { id, request });
            }
        }
        // Files are let go in any order, so what is not in the list is settled.
        let open = |file: &&WriterFile| file.state != FileState::Failed && file.synced < file.staged;
        let durable = self.files.iter().find(open).map_or(self.position, |file| file.base + file.synced);
        assert!(durable >= self.durable, "durable {durable} after {}", self.durable);
        self.durable = durable;
        let mut index = 0;
        while index < self.files.len() {
            let file = &self.files[index];
            let over = match file.state {
                FileState::Writing => false,
                FileState::Sealed => file.synced == file.staged,
                FileState::Failed => true,
            };
            if over && self.operations(index).next().is_none() {
                let file = self.files.remove(index).expect("within bounds");
                self.device.detach(file.slot);
                self.source.sealed(file.name.incarnation, file.last_checkpoint);
            } else {
                index += 1;
            }
        }
        // A file that is ready is kept at hand, so that the next switch does not even look.
        if self.next.is_none() {
            match self.source.take() {
                Some(Ok(fresh)) => self.next = Some(fresh),
                Some(Err(error)) => {
                    // Asked for ahead of time it may fail unheard: it is asked for again when it is needed.
                    self.next_failed = true;
                    self.next_error = self.next_needed.then_some(error);
                }
                None => {}
            }
        }
    }
}

/// How long the end of a writer waits for what is in flight.
const CLOSE_MAX: Duration = Duration::from_secs(10);

impl Drop for LogWriter {
    /// Waits for what is in flight, and gives the files back. What was not flushed is not written.
    fn drop(&mut self) {
        let begun = std::time::Instant::now();
        let mut done = Vec::new();
        while self.device.in_flight() > 0 && begun.elapsed() < CLOSE_MAX {
            if self.device.blocking_drive(Duration::from_millis(100), &mut done).is_err() {
                break;
            }
            done.clear();
        }
        for file in self.files.drain(..) {
            self.source.sealed(file.name.incarnation, file.last_checkpoint);
        }
        if let Some(fresh) = self.next.take() {
            self.source.sealed(fresh.name.incarnation, 0);
        }
    }
}

/// A frame whose payload is being written in place; see [`LogWriter::build`].
pub struct FrameBuilder<'a> {
    writer: &'a mut LogWriter,
    tag: FrameTag,
    length_max: usize,
}

impl FrameBuilder<'_> {
    /// The payload's place: `length_max` bytes of any content.
    pub fn payload(&mut self) -> &mut [u8] {
        let filling = self.writer.filling.as_mut().expect("begun with the builder");
        let at = filling.filled + FRAME_HEADER_BYTES;
        &mut filling.block[at..at + self.length_max]
    }

    /// Appends the first `length` bytes as one frame and returns where it will lie.
    ///
    /// # Panics
    ///
    /// If `length` is more than was asked for.
    pub fn finish(self, length: usize) -> Handle {
        assert!(length <= self.length_max, "{length} bytes of {}", self.length_max);
        let stored = frame_stored_bytes(length);
        let tag = self.tag;
        let writer = &mut *self.writer;
        let filling = writer.filling.as_mut().expect("begun with the builder");
        let file = writer.files.back_mut().expect("room was made in it");
        let at = filling.filled;
        let payload_at = at + FRAME_HEADER_BYTES;
        let header = FrameHeader::of(
            tag,
            writer.lineage,
            file.name.incarnation,
            file.frames,
            &filling.block[payload_at..payload_at + length],
        );
        filling.block[at..payload_at].copy_from_slice(&header.encode());
        filling.block[payload_at + length..at + stored].fill(0);
        let handle = LogWriter::enter(file, &header);
        writer.filled(stored);
        writer.appended(stored);
        handle
    }
}
