//! `pwrite` and `fdatasync` on one helper thread a log: where io_uring is forbidden.
//!
//! The thread does one operation after the other and reports what the system said; what a short write means is
//! the log's to judge, as with every device. It is started off the shard, since a thread inherits the core of
//! the one that starts it.

#![forbid(unsafe_code)]

use super::directory::OpenFile;
use super::{Completion, Device, FileSlot, Operation, Request, Wake};
use crate::config::OPEN_FILES_MAX;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// An operation and the file behind its slot. The submitter bounds how many there are: a staging block or a sync of
/// a file each.
type Job = (Operation, Arc<File>);

/// The device; its thread ends with it, after what was submitted.
pub(crate) struct BlockingDevice {
    jobs: Option<Sender<Job>>,
    done: Receiver<Completion>,
    files: Vec<Option<Arc<File>>>,
    in_flight: usize,
    thread: Option<JoinHandle<()>>,
    direct: bool,
}

impl BlockingDevice {
    /// Starts the thread; call this where threads may run on any core.
    pub(crate) fn start(direct: bool, wake: Wake) -> io::Result<BlockingDevice> {
        let (jobs, received) = channel();
        let (sender, done) = channel();
        let thread = std::thread::Builder::new()
            .name("tidegate-disk".to_string())
            .spawn(move || run(received, sender, wake))?;
        Ok(BlockingDevice {
            jobs: Some(jobs),
            done,
            files: vec![None; OPEN_FILES_MAX],
            in_flight: 0,
            thread: Some(thread),
            direct,
        })
    }

    fn file(&self, slot: FileSlot) -> Arc<File> {
        self.files[slot.0 as usize].clone().expect("operations are on attached files")
    }
}

fn error_number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn sync(file: &File) -> Result<usize, i32> {
    file.sync_data().map(|()| 0).map_err(|error| error_number(&error))
}

fn run(jobs: Receiver<Job>, done: Sender<Completion>, wake: Wake) {
    while let Ok((Operation { id, request }, file)) = jobs.recv() {
        let sent = match request {
            Request::Sync { .. } => done.send(Completion { id, result: sync(&file), block: None }),
            Request::Write { block, start, length, offset, then_sync, .. } => {
                let bytes = &block[start..start + length];
                let result = file.write_at(bytes, offset).map_err(|error| error_number(&error));
                let synced = then_sync.map(|id| {
                    let result = if result == Ok(length) { sync(&file) } else { Err(libc::ECANCELED) };
                    Completion { id, result, block: None }
                });
                done.send(Completion { id, result, block: Some(block) })
                    .and_then(|()| synced.map_or(Ok(()), |completion| done.send(completion)))
            }
        };
        if sent.is_err() {
            return;
        }
        wake.wake();
    }
}

impl Device for BlockingDevice {
    fn describe(&self) -> String {
        format!("pwrite and fdatasync, {}", if self.direct { "direct" } else { "cached" })
    }

    fn attach(&mut self, file: &OpenFile) -> io::Result<FileSlot> {
        let file = file.real()?;
        let slot = self.files.iter().position(Option::is_none).expect("the log bounds its open files");
        self.files[slot] = Some(file.clone());
        Ok(FileSlot(slot as u32))
    }

    fn detach(&mut self, file: FileSlot) {
        self.files[file.0 as usize] = None;
    }

    fn submit(&mut self, operation: Operation) {
        let (slot, count) = match &operation.request {
            Request::Sync { file } => (*file, 1),
            Request::Write { file, then_sync, .. } => (*file, 1 + usize::from(then_sync.is_some())),
        };
        let jobs = self.jobs.as_ref().expect("open until drop");
        // The thread ends only when this sender is gone, or with the process.
        jobs.send((operation, self.file(slot))).expect("the disk thread runs while the device does");
        self.in_flight += count;
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        while let Ok(completion) = self.done.try_recv() {
            self.in_flight -= 1;
            done.push(completion);
        }
        Ok(())
    }

    fn blocking_drive(&mut self, timeout: Duration, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.in_flight > 0 {
            match self.done.recv_timeout(timeout) {
                Ok(completion) => {
                    self.in_flight -= 1;
                    done.push(completion);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the disk thread has ended"));
                }
            }
        }
        self.drive(done)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for BlockingDevice {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
