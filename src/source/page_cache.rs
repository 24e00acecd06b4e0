//! File access that never waits for a device: what the caches hold, or a refusal.
//!
//! A shard's thread may not block, and a plain `read` blocks when a page is not in memory. Linux can be
//! asked to refuse instead: `preadv2` with `RWF_NOWAIT` and `openat2` with `RESOLVE_CACHED`. Whoever is
//! refused lets a [helper thread](super::helper) do the work. Not every file system and sandbox
//! supports them; there every call is a refusal, which is slower and equally right.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a read found.
pub(super) enum Cached {
    /// So many bytes, 0 at the end of the file. May be fewer than were asked for.
    Read(usize),
    /// Not in the page cache, or the question cannot be asked here.
    Miss,
    /// An error that waiting would not mend.
    Failed(io::Error),
}

/// Opens `path` for reading if that needs no device; `None` says nothing about why not.
pub(super) fn open(path: &Path) -> Option<File> {
    /// The kernel's `struct open_how`.
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    const RESOLVE_CACHED: u64 = 0x20;

    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let how = OpenHow { flags: (libc::O_RDONLY | libc::O_CLOEXEC) as u64, mode: 0, resolve: RESOLVE_CACHED };
    // SAFETY: `path` is a terminated string and `how` a `struct open_how` of the size given; both
    // outlive the call, which writes to neither.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size_of::<OpenHow>())
    };
    if fd < 0 {
        return None;
    }
    // SAFETY: the call above returned this descriptor just now, and nobody else knows it.
    Some(unsafe { File::from_raw_fd(fd as i32) })
}

/// Reads into `buf` from `offset` what the page cache holds.
pub(super) fn read_at(file: &File, offset: u64, buf: &mut [u8]) -> Cached {
    let part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    loop {
        // SAFETY: `part` describes `buf`, which is exclusively borrowed and outlives the call.
        let count = unsafe {
            libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset as libc::off_t, libc::RWF_NOWAIT)
        };
        if count >= 0 {
            return Cached::Read(count as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EINVAL) => {
                return Cached::Miss;
            }
            _ => return Cached::Failed(error),
        }
    }
}
