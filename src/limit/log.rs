//! An append-only log with nothing in the way: what this disk takes through io_uring.
//!
//! One recycled file (every block was written before), `O_DIRECT`, registered memory, several writes in flight,
//! a data sync at the end. No frames, no checksums, no files that are switched, nothing copied: the same bytes
//! over and over. And one small append: a write with a data sync linked behind it.

use io_uring::squeue::Flags;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of one write: of all sizes this is the fastest with eight in flight.
pub const BLOCK: usize = 256 << 10;
/// Writes in flight.
pub const DEPTH: usize = 8;

/// Memory at a page's border, in huge pages where there are any.
struct Staging(*mut u8, Layout);

impl Staging {
    fn new(bytes: usize) -> Staging {
        let layout = Layout::from_size_align(bytes, 2 << 20).expect("a constant size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the pages are of this allocation; advice changes no content.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
        // SAFETY: `bytes` long and ours.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
            .iter_mut()
            .enumerate()
            .for_each(|(i, byte)| *byte = (i * 31) as u8);
        Staging(start, layout)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0, self.1) };
    }
}

/// A recycled file and a ring that writes it.
pub struct LimitLog {
    ring: IoUring,
    staging: Staging,
    registered: bool,
    file: File,
    path: PathBuf,
    bytes: usize,
}

impl LimitLog {
    /// Writes a file of `bytes` once, so that its blocks have been written before.
    ///
    /// # Errors
    ///
    /// No io_uring, no direct I/O, or no room here.
    pub fn new(dir: &Path, bytes: usize) -> io::Result<LimitLog> {
        let bytes = bytes.next_multiple_of(BLOCK);
        let path = dir.join(format!("limit-log-{}.tmp", std::process::id()));
        let fill = || {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
            let zeros = vec![0u8; 1 << 20];
            for at in (0..bytes).step_by(zeros.len()) {
                file.write_all_at(&zeros[..zeros.len().min(bytes - at)], at as u64)?;
            }
            file.sync_all()?;
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path)
        };
        let file = fill().inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })?;
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2 * DEPTH as u32)?;
        let staging = Staging::new(BLOCK * DEPTH);
        let whole = libc::iovec { iov_base: staging.0.cast(), iov_len: BLOCK * DEPTH };
        // SAFETY: the staging is freed after the ring, whose field comes before it.
        let registered = unsafe { ring.submitter().register_buffers(&[whole]) }.is_ok();
        Ok(LimitLog { ring, staging, registered, file, path, bytes })
    }

    fn take(&mut self, mut each: impl FnMut(u64, i32)) {
        for completion in self.ring.completion() {
            each(completion.user_data(), completion.result());
        }
    }

    /// Writes the whole file, front to back, and syncs it; returns the bytes and the time.
    ///
    /// # Errors
    ///
    /// A write fell short or the system refused.
    pub fn write_all(&mut self) -> io::Result<(usize, Duration)> {
        let fd = Fd(self.file.as_raw_fd());
        let blocks = self.bytes / BLOCK;
        let (mut sent, mut done, mut short) = (0, 0, 0);
        let mut idle: Vec<usize> = (0..DEPTH).collect();
        let begun = Instant::now();
        while done < blocks {
            while sent < blocks
                && let Some(slot) = idle.pop()
            {
                // SAFETY: `slot` is below DEPTH, so this lies within the staging.
                let from = unsafe { self.staging.0.add(slot * BLOCK) };
                let at = (sent * BLOCK) as u64;
                let entry = if self.registered {
                    opcode::WriteFixed::new(fd, from, BLOCK as u32, 0).offset(at).build()
                } else {
                    opcode::Write::new(fd, from, BLOCK as u32).offset(at).build()
                };
                // SAFETY: file and staging live as long as the ring; nobody writes to the staging.
                unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }
                    .expect("no more in flight than there are entries");
                sent += 1;
            }
            self.ring.submit_and_wait(1)?;
            self.take(|slot, result| {
                short += u32::from(result != BLOCK as i32);
                idle.push(slot as usize);
                done += 1;
            });
        }
        let sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
        // SAFETY: the file is open as long as the ring is.
        unsafe { self.ring.submission().push(&sync) }.expect("nothing else is in flight");
        self.ring.submit_and_wait(1)?;
        self.take(|_, result| short += u32::from(result != 0));
        let took = begun.elapsed();
        if short > 0 {
            return Err(io::Error::other(format!("{short} operations failed or fell short")));
        }
        Ok((self.bytes, took))
    }

    /// Appends `count` times `bytes` (a multiple of 4096, at most one block), each made durable before the next;
    /// returns the time of each.
    ///
    /// # Errors
    ///
    /// A write fell short or the system refused.
    pub fn appends(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Duration>> {
        let fd = Fd(self.file.as_raw_fd());
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let at = (number * bytes % (self.bytes - BLOCK)) as u64;
            let write = opcode::Write::new(fd, self.staging.0, bytes as u32).offset(at).build();
            let sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build().user_data(1);
            let begun = Instant::now();
            // SAFETY: file and staging live as long as the ring; nobody writes to the staging.
            unsafe { self.ring.submission().push_multiple(&[write.flags(Flags::IO_LINK), sync]) }
                .expect("nothing else is in flight");
            self.ring.submit_and_wait(2)?;
            let mut good = 0;
            self.take(|which, result| {
                good += u32::from(result == if which == 1 { 0 } else { bytes as i32 });
            });
            times.push(begun.elapsed());
            if good != 2 {
                return Err(io::Error::other("an append failed or fell short"));
            }
        }
        Ok(times)
    }
}

impl Drop for LimitLog {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_writes_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = match LimitLog::new(dir.path(), 1 << 20) {
            Ok(log) => log,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        assert_eq!(log.write_all().unwrap().0, 1 << 20);
        assert_eq!(log.appends(3, 4096).unwrap().len(), 3);
        let bytes = std::fs::read(&log.path).unwrap();
        assert!(
            bytes.iter().enumerate().all(|(i, byte)| *byte == (i * 31) as u8),
            "staging is periodic in 256"
        );
    }
}
