//! io_uring on the thread that owns the log: several writes in flight, and nothing blocks.
//!
//! The ring has one issuer and defers its completion work to the calls of that thread, so an idle look costs two
//! loads: the completion queue's tail and the flag that says work is deferred. Files and staging are registered
//! where the kernel allows it; where it does not (the limit of lockable memory, mostly) writes pin their pages
//! one by one, which costs about a fifth of the bandwidth, and [`Device::describe`] says so.
//!
//! A sync that is to follow one write is linked to it, and the write's own completion is left out unless it
//! failed: one wake-up instead of two. The kernel breaks the link of a write that came back short.

use super::directory::OpenFile;
use super::memory::{Block, Region};
use super::{Completion, Device, FileSlot, Operation, OperationId, Request, Wake};
use crate::config::OPEN_FILES_MAX;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of a device waits for what is in flight. After that the memory is left to the kernel.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// What is known of an operation in flight, at its slot.
struct InFlight {
    generation: u32,
    /// Of a write.
    block: Option<Block>,
    file: FileSlot,
    length: usize,
    /// The write whose completion is left out because this sync follows it.
    stands_for: Option<OperationId>,
}

/// An io_uring of one thread.
pub(crate) struct UringDevice {
    ring: IoUring,
    files: Vec<Option<Arc<File>>>,
    files_registered: bool,
    staging: Option<Arc<Region>>,
    direct: bool,
    queued: VecDeque<(Entry, Option<Entry>)>,
    table: Vec<Option<InFlight>>,
    in_flight: usize,
    /// Answers that belonged to nobody.
    strays: u64,
    /// The ring has one issuer: the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl UringDevice {
    /// On the thread that will use it. `blocks` share one region, which is registered if that is allowed.
    pub(crate) fn new(blocks: &[Block], direct: bool, wake: &Wake) -> io::Result<UringDevice> {
        let entries = (blocks.len() * 2 + OPEN_FILES_MAX * 2).next_power_of_two() as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries)?;
        // fdatasync runs in the kernel's worker threads; two of each kind are enough for one log.
        let _ = ring.submitter().register_iowq_max_workers(&mut [2, 2]);
        let files_registered = ring.submitter().register_files_sparse(OPEN_FILES_MAX as u32).is_ok();
        let staging = blocks.first().map(|block| block.of().clone()).filter(|region| {
            let whole = libc::iovec { iov_base: region.start().cast(), iov_len: region.size() };
            // SAFETY: the device keeps the region, so that it is unmapped after the ring is gone.
            unsafe { ring.submitter().register_buffers(&[whole]) }.is_ok()
        });
        if let Some(fd) = wake.raw() {
            ring.submitter().register_eventfd(fd)?;
        }
        Ok(UringDevice {
            ring,
            files: vec![None; OPEN_FILES_MAX],
            files_registered,
            staging,
            direct,
            queued: VecDeque::new(),
            table: Vec::new(),
            in_flight: 0,
            strays: 0,
            not_send: PhantomData,
        })
    }

    fn remember(&mut self, id: OperationId, in_flight: InFlight) {
        let slot = id.slot as usize;
        if self.table.len() <= slot {
            self.table.resize_with(slot + 1, || None);
        }
        let before = self.table[slot].replace(in_flight);
        assert!(before.is_none(), "slot {slot} has an operation in flight");
        self.in_flight += 1;
    }

    fn write_entry(&self, file: FileSlot, block: &Block, start: usize, length: usize, offset: u64) -> Entry {
        let bytes = &block[start..start + length];
        let (address, length) = (bytes.as_ptr(), length as u32);
        let registered = self.staging.as_ref().is_some_and(|region| Arc::ptr_eq(region, block.of()));
        let fd = Fd(self.fd(file));
        match (registered, self.files_registered) {
            (true, true) => opcode::WriteFixed::new(Fixed(file.0), address, length, 0).offset(offset).build(),
            (true, false) => opcode::WriteFixed::new(fd, address, length, 0).offset(offset).build(),
            (false, true) => opcode::Write::new(Fixed(file.0), address, length).offset(offset).build(),
            (false, false) => opcode::Write::new(fd, address, length).offset(offset).build(),
        }
    }

    fn sync_entry(&self, file: FileSlot) -> Entry {
        if self.files_registered {
            opcode::Fsync::new(Fixed(file.0)).flags(FsyncFlags::DATASYNC).build()
        } else {
            opcode::Fsync::new(Fd(self.fd(file))).flags(FsyncFlags::DATASYNC).build()
        }
    }

    fn fd(&self, file: FileSlot) -> i32 {
        self.files[file.0 as usize].as_ref().expect("operations are on attached files").as_raw_fd()
    }

    /// Moves queued entries to the submission queue, pairs never apart.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some((first, second)) = self.queued.front() {
            let wanted = 1 + usize::from(second.is_some());
            if queue.capacity() - queue.len() < wanted {
                break;
            }
            // SAFETY: the memory that the entry names is in `table` until its completion, whatever is dropped:
            // see `drop`; and so is the file in `files`, which `detach` gives up only with nothing in flight.
            unsafe { queue.push(first) }.expect("room was just looked for");
            if let Some(second) = second {
                // SAFETY: as above.
                unsafe { queue.push(second) }.expect("room was just looked for");
            }
            self.queued.pop_front();
        }
    }

    fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let result = match wait {
            Some(timeout) => {
                let timeout = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)).map(|_| ())
            }
            None => {
                let queued = self.ring.submission().len() as u32;
                // IORING_ENTER_GETEVENTS: runs the completion work that was deferred to this thread.
                const GETEVENTS: u32 = 1;
                // SAFETY: no signal mask is passed, and the entries are valid: see `fill`.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, GETEVENTS, None) }
                    .map(|_| ())
            }
        };
        match result {
            // Interrupted, no answer in time, or completions must be taken first: whoever calls comes again.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn take(&mut self, done: &mut Vec<Completion>) {
        let UringDevice { ring, table, in_flight, strays, .. } = self;
        for entry in ring.completion() {
            let id =
                OperationId { slot: entry.user_data() as u32, generation: (entry.user_data() >> 32) as u32 };
            let Some(operation) = take_slot(table, id) else {
                *strays += 1;
                continue;
            };
            *in_flight -= 1;
            let result = usize::try_from(entry.result()).map_err(|_| -entry.result());
            if let Some(write) = operation.stands_for
                && result != Err(libc::ECANCELED)
                && let Some(written) = take_slot(table, write)
            {
                // The sync ran, so the write that it was linked to was complete.
                *in_flight -= 1;
                done.push(Completion { id: write, result: Ok(written.length), block: written.block });
            }
            done.push(Completion { id, result, block: operation.block });
        }
    }
}

fn take_slot(table: &mut [Option<InFlight>], id: OperationId) -> Option<InFlight> {
    table.get_mut(id.slot as usize)?.take_if(|operation| operation.generation == id.generation)
}

fn user_data(id: OperationId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.slot)
}

impl Device for UringDevice {
    fn describe(&self) -> String {
        let staging = if self.staging.is_some() { "registered" } else { "unregistered" };
        format!("io_uring, {}, {staging} staging", if self.direct { "direct" } else { "cached" })
    }

    fn attach(&mut self, file: &OpenFile) -> io::Result<FileSlot> {
        let file = file.real()?;
        let slot = self.files.iter().position(Option::is_none).expect("the log bounds its open files");
        if self.files_registered {
            self.ring.submitter().register_files_update(slot as u32, &[file.as_raw_fd()])?;
        }
        self.files[slot] = Some(file.clone());
        Ok(FileSlot(slot as u32))
    }

    fn detach(&mut self, file: FileSlot) {
        let busy = self.table.iter().flatten().any(|operation| operation.file == file);
        assert!(!busy, "file slot {} has operations in flight", file.0);
        if self.files_registered {
            // Refused, the kernel keeps the file open until the slot is used again: nothing is lost.
            let _ = self.ring.submitter().register_files_update(file.0, &[-1]);
        }
        self.files[file.0 as usize] = None;
    }

    fn submit(&mut self, operation: Operation) {
        let Operation { id, request } = operation;
        match request {
            Request::Sync { file } => {
                let entry = self.sync_entry(file).user_data(user_data(id));
                self.queued.push_back((entry, None));
                self.remember(
                    id,
                    InFlight { generation: id.generation, block: None, file, length: 0, stands_for: None },
                );
            }
            Request::Write { file, block, start, length, offset, then_sync } => {
                let write = self.write_entry(file, &block, start, length, offset).user_data(user_data(id));
                match then_sync {
                    None => self.queued.push_back((write, None)),
                    Some(sync) => {
                        let write = write.flags(Flags::IO_LINK | Flags::SKIP_SUCCESS);
                        let entry = self.sync_entry(file).user_data(user_data(sync));
                        self.queued.push_back((write, Some(entry)));
                        self.remember(
                            sync,
                            InFlight {
                                generation: sync.generation,
                                block: None,
                                file,
                                length: 0,
                                stands_for: Some(id),
                            },
                        );
                    }
                }
                self.remember(
                    id,
                    InFlight {
                        generation: id.generation,
                        block: Some(block),
                        file,
                        length,
                        stands_for: None,
                    },
                );
            }
        }
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.fill();
        let queue = self.ring.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            drop(queue);
            self.enter(None)?;
        } else {
            drop(queue);
        }
        self.take(done);
        Ok(())
    }

    fn blocking_drive(&mut self, timeout: Duration, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        self.drive(done)?;
        if done.len() == before && self.in_flight > 0 {
            self.fill();
            self.enter(Some(timeout))?;
            self.take(done);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for UringDevice {
    /// Waits for what is in flight. What has not ended by then is leaked, since the disk may still read it.
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut done = Vec::new();
        while self.in_flight > 0 && begun.elapsed() < DRAIN_MAX {
            if self.blocking_drive(Duration::from_millis(100), &mut done).is_err() {
                break;
            }
            done.clear();
        }
        for operation in self.table.drain(..).flatten() {
            std::mem::forget(operation.block);
        }
        if self.in_flight > 0 {
            std::mem::forget(self.staging.take());
        }
    }
}
