//! A device that fails where a test says so; else it hands everything to another one.
//!
//! A write or sync that is not done has an answer all the same, which is made up here. A sync that was to follow a
//! write is submitted with it only if both are let alone.

use super::directory::OpenFile;
use super::{Completion, Device, FileSlot, Operation, OperationId, Request};
use crate::config::{ALIGNMENT_BYTES, OPEN_FILES_MAX};
use crate::failpoint::{self, Fault, Point, come_to, die};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Around another device.
pub(crate) struct FaultyDevice {
    inner: Box<dyn Device>,
    /// For each attached file whether it is the coordinator's.
    commits: [bool; OPEN_FILES_MAX],
    /// What the inner device has to do: the point at which its end is seen.
    under_way: HashMap<OperationId, Point>,
    /// Answers to what was not done.
    made_up: Vec<Completion>,
}

impl FaultyDevice {
    pub(crate) fn new(inner: Box<dyn Device>) -> FaultyDevice {
        let commits = [false; OPEN_FILES_MAX];
        FaultyDevice { inner, commits, under_way: HashMap::new(), made_up: Vec::new() }
    }

    fn answer(&mut self, id: OperationId, result: Result<usize, i32>) {
        self.made_up.push(Completion { id, result, block: None });
    }

    fn points(&self, file: FileSlot) -> [Point; 4] {
        if self.commits[file.0 as usize] {
            [
                failpoint::COMMIT_WRITE,
                failpoint::COMMIT_WRITTEN,
                failpoint::COMMIT_SYNC,
                failpoint::COMMIT_SYNCED,
            ]
        } else {
            [failpoint::DATA_WRITE, failpoint::DATA_WRITTEN, failpoint::DATA_SYNC, failpoint::DATA_SYNCED]
        }
    }

    fn hand_on(&mut self, id: OperationId, request: Request, seen: Point) {
        self.under_way.insert(id, seen);
        self.inner.submit(Operation { id, request });
    }

    /// What the end of an operation is told as.
    fn seen(&mut self, done: &mut [Completion]) {
        for completion in done {
            let Some(point) = self.under_way.remove(&completion.id) else { continue };
            match come_to(point, true) {
                Some(Fault::Killed) => die(),
                Some(Fault::Error(number)) => completion.result = Err(number),
                Some(Fault::Lost) => completion.result = Err(libc::EIO),
                Some(Fault::Kill | Fault::Short | Fault::None) | None => {}
            }
        }
    }
}

/// The error number of a fault by which an operation is not done.
fn number(fault: Fault) -> i32 {
    match fault {
        Fault::Error(number) => number,
        _ => libc::EIO,
    }
}

impl Device for FaultyDevice {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn attach(&mut self, file: &OpenFile) -> io::Result<FileSlot> {
        let slot = self.inner.attach(file)?;
        let link = format!("/proc/self/fd/{}", file.real()?.as_raw_fd());
        let name = std::fs::read_link(link)?;
        let name = name.file_name().unwrap_or_default();
        self.commits[slot.0 as usize] = name.as_encoded_bytes().starts_with(b"commits-");
        Ok(slot)
    }

    fn detach(&mut self, file: FileSlot) {
        self.inner.detach(file);
    }

    fn submit(&mut self, operation: Operation) {
        let Operation { id, request } = operation;
        match request {
            Request::Sync { file } => {
                let [_, _, begins, seen] = self.points(file);
                match come_to(begins, true) {
                    Some(fault @ (Fault::Error(_) | Fault::Lost)) => self.answer(id, Err(number(fault))),
                    _ => self.hand_on(id, request, seen),
                }
            }
            Request::Write { file, block, start, length, offset, then_sync } => {
                let [begins, seen, sync_begins, sync_seen] = self.points(file);
                let cut = match come_to(begins, true) {
                    Some(fault @ (Fault::Error(_) | Fault::Lost)) => Some(Err(number(fault))),
                    Some(Fault::None) => Some(Ok(0)),
                    Some(Fault::Short) if length < 2 * ALIGNMENT_BYTES => Some(Ok(length / 2)),
                    Some(Fault::Short) => {
                        let half = length / 2 - length / 2 % ALIGNMENT_BYTES;
                        let write =
                            Request::Write { file, block, start, length: half, offset, then_sync: None };
                        self.hand_on(id, write, seen);
                        if let Some(sync) = then_sync {
                            self.answer(sync, Err(libc::ECANCELED));
                        }
                        return;
                    }
                    _ => None,
                };
                if let Some(result) = cut {
                    self.made_up.push(Completion { id, result, block: Some(block) });
                    if let Some(sync) = then_sync {
                        self.answer(sync, Err(libc::ECANCELED));
                    }
                    return;
                }
                let mut linked = then_sync;
                if let Some(sync) = then_sync {
                    if let Some(fault @ (Fault::Error(_) | Fault::Lost)) = come_to(sync_begins, true) {
                        self.answer(sync, Err(number(fault)));
                        linked = None;
                    } else {
                        self.under_way.insert(sync, sync_seen);
                    }
                }
                self.hand_on(
                    id,
                    Request::Write { file, block, start, length, offset, then_sync: linked },
                    seen,
                );
            }
        }
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        let driven = self.inner.drive(done);
        self.seen(&mut done[before..]);
        done.append(&mut self.made_up);
        driven
    }

    fn blocking_drive(&mut self, timeout: Duration, done: &mut Vec<Completion>) -> io::Result<()> {
        if !self.made_up.is_empty() {
            return self.drive(done);
        }
        let before = done.len();
        let driven = self.inner.blocking_drive(timeout, done);
        self.seen(&mut done[before..]);
        driven
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.made_up.len()
    }
}
