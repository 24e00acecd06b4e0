//! Names and directories: what makes a file findable after a crash, and how it is read.
//!
//! Every call blocks and belongs to the coordinator's side, never to a shard. Names are relative to one root,
//! `a/b` with one slash at most.

use crate::error::StorageError;
use crate::failpoint::{self, Point, act};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::memory::Block;

/// An open log file, as devices take it.
#[derive(Debug, Clone)]
pub enum OpenFile {
    /// Of the operating system.
    Real(Arc<File>),
    /// Of a simulated disk: its number there.
    #[cfg(any(test, feature = "sim"))]
    Simulated(u64),
}

impl OpenFile {
    /// The file, for a device of the operating system.
    pub(crate) fn real(&self) -> io::Result<&Arc<File>> {
        match self {
            OpenFile::Real(file) => Ok(file),
            #[cfg(any(test, feature = "sim"))]
            OpenFile::Simulated(_) => Err(io::Error::other("a simulated file on a real device")),
        }
    }
}

/// How bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Through the page cache.
    Cached,
    /// From the disk itself: what a cache says after a failed sync means nothing. Where the file system has no
    /// direct I/O its cache is all there is.
    Direct,
}

/// A file to read from, at most whole.
pub trait ReadFile: Send {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Reads at `offset` until `into` is full or the file ends; returns the bytes read. `offset`, the length of
    /// `into` and its address are multiples of 4096 where the mode is direct.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// One directory and what lies below it.
pub trait Directory: Send + Sync {
    /// Where `name` lies, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Names directly below `parent` ("" for the root), sorted, with their sizes.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn list(&self, parent: &str) -> io::Result<Vec<(String, u64)>>;

    /// Makes a directory; that it is there already is success.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn create_dir(&self, name: &str) -> io::Result<()>;

    /// Makes a file of `size` bytes, every block of which has been written, and syncs it, but not its directory.
    ///
    /// # Errors
    ///
    /// What the system said; a file that could not be finished is removed.
    fn create_written(&self, name: &str, size: u64) -> io::Result<()>;

    /// Makes a file of these bytes and syncs it, but not its directory.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn create_with(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Opens a file for a device, direct where `direct` says so.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn open(&self, name: &str, direct: bool) -> io::Result<OpenFile>;

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn open_read(&self, name: &str, mode: ReadMode) -> io::Result<Box<dyn ReadFile>>;

    /// Gives a file another name, in place of what has that name.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; that it is gone already is success.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes an empty directory; that it is gone already is success.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn remove_dir(&self, name: &str) -> io::Result<()>;

    /// Makes the names in `parent` durable.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn sync_dir(&self, parent: &str) -> io::Result<()>;
}

/// The parent of a name: what is before its last slash.
pub(crate) fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Publishes `bytes` as `name`: write, sync, rename, sync the directory. A reader finds all of it or the file
/// that was there before.
///
/// # Errors
///
/// What failed and where. The old file, if any, is whole.
pub fn publish(directory: &dyn Directory, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
    let path = directory.path(name);
    let unfinished = format!("{name}{UNFINISHED}");
    let fail = |action: &'static str| {
        let path = path.clone();
        move |error| StorageError::io(action, &path, error)
    };
    directory.remove(&unfinished).map_err(fail("remove the unfinished one of an earlier run"))?;
    directory.create_with(&unfinished, bytes).map_err(fail("write"))?;
    directory.rename(&unfinished, name).map_err(fail("publish"))?;
    directory.sync_dir(parent(name)).map_err(fail("sync the directory"))
}

/// How names end that are not published: whoever holds the directory's lock may remove them.
pub const UNFINISHED: &str = ".tmp";

/// Reads a whole small file.
///
/// # Errors
///
/// [`StorageError::Missing`] where it is not, else what the system said.
pub fn read_whole(directory: &dyn Directory, name: &str, needed_by: &str) -> Result<Vec<u8>, StorageError> {
    let path = directory.path(name);
    let file = directory.open_read(name, ReadMode::Cached).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            StorageError::Missing { path: path.clone(), needed_by: needed_by.to_string() }
        }
        _ => StorageError::io("open", &path, error),
    })?;
    // Metadata is megabytes at most; a size that is a mistake must not take all memory.
    const WHOLE_MAX: u64 = 1 << 30;
    if file.size() > WHOLE_MAX {
        return Err(StorageError::corrupt(&path, 0, format!("{} bytes, at most {WHOLE_MAX}", file.size())));
    }
    let mut bytes = vec![0; file.size() as usize];
    let read = file.read_at(0, &mut bytes).map_err(|error| StorageError::io("read", &path, error))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// A directory of the operating system.
#[derive(Debug, Clone)]
pub struct RealDirectory {
    root: PathBuf,
}

impl RealDirectory {
    /// Of an existing directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        RealDirectory { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Bytes written at a time when a file is made.
const FILL_BYTES: usize = 1 << 20;

fn found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Of three points the one of a checkpoint's files, of log files, or of the job's own.
fn of(name: &str, [checkpoint, log, job]: [Point; 3]) -> Point {
    if name.starts_with("chk-") {
        checkpoint
    } else if name.starts_with("log") {
        log
    } else {
        job
    }
}

impl Directory for RealDirectory {
    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn list(&self, parent: &str) -> io::Result<Vec<(String, u64)>> {
        let mut names = Vec::new();
        for entry in act(failpoint::LIST, || fs::read_dir(self.path(parent)))? {
            let entry = entry?;
            // A name that is not UTF-8 is none of ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            match entry.metadata() {
                Ok(metadata) => names.push((name, metadata.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        let point =
            of(name, [failpoint::METADATA_DIRECTORY, failpoint::LOG_DIRECTORY, failpoint::JOB_DIRECTORY]);
        match act(point, || fs::create_dir(self.path(name))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn create_written(&self, name: &str, size: u64) -> io::Result<()> {
        let path = self.path(name);
        let fill = || {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
            // In one piece where the file system can; where it cannot, writing finds out whether there is room.
            let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size);
            let zeros = vec![0; FILL_BYTES.min(size as usize)];
            let mut at = 0;
            while at < size {
                let length = zeros.len().min((size - at) as usize);
                act(failpoint::LOG_FILE_WRITE, || file.write_all_at(&zeros[..length], at))?;
                at += length as u64;
            }
            act(failpoint::LOG_FILE_SYNC, || file.sync_all())
        };
        fill().inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })
    }

    fn create_with(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            let point =
                of(name, [failpoint::METADATA_WRITE, failpoint::LOG_FILE_WRITE, failpoint::IDENTITY_WRITE]);
            act(point, || file.write_all(bytes))?;
            let point =
                of(name, [failpoint::METADATA_SYNC, failpoint::LOG_FILE_SYNC, failpoint::IDENTITY_SYNC]);
            act(point, || file.sync_all())
        };
        write().inspect_err(|error| {
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = fs::remove_file(&path);
            }
        })
    }

    fn open(&self, name: &str, direct: bool) -> io::Result<OpenFile> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let open = || OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path(name));
        let file = act(failpoint::LOG_FILE_OPEN, open)?;
        Ok(OpenFile::Real(Arc::new(file)))
    }

    fn open_read(&self, name: &str, mode: ReadMode) -> io::Result<Box<dyn ReadFile>> {
        let path = self.path(name);
        let open = |flags| {
            act(failpoint::READ_OPEN, || OpenOptions::new().read(true).custom_flags(flags).open(&path))
        };
        let file = match mode {
            ReadMode::Cached => open(0)?,
            ReadMode::Direct => match open(libc::O_DIRECT) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0)?,
                other => other?,
            },
        };
        let size = file.metadata()?.len();
        if mode == ReadMode::Cached {
            // A hint; whole frames are read one behind the other.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        }
        Ok(Box::new(RealRead { file, size }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let point =
            of(to, [failpoint::METADATA_RENAME, failpoint::LOG_FILE_RENAME, failpoint::IDENTITY_RENAME]);
        act(point, || fs::rename(self.path(from), self.path(to)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let point = if name.ends_with(UNFINISHED) {
            failpoint::UNFINISHED_REMOVE
        } else {
            of(name, [failpoint::METADATA_REMOVE, failpoint::LOG_FILE_REMOVE, failpoint::UNFINISHED_REMOVE])
        };
        found(act(point, || fs::remove_file(self.path(name))))
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        found(act(failpoint::METADATA_REMOVE_DIRECTORY, || fs::remove_dir(self.path(name))))
    }

    fn sync_dir(&self, parent: &str) -> io::Result<()> {
        let point = of(
            parent,
            [
                failpoint::METADATA_SYNC_DIRECTORY,
                failpoint::LOG_SYNC_DIRECTORY,
                failpoint::JOB_SYNC_DIRECTORY,
            ],
        );
        act(point, || File::open(self.path(parent))?.sync_all())
    }
}

struct RealRead {
    file: File,
    size: u64,
}

impl ReadFile for RealRead {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match act(failpoint::READ, || self.file.read_at(&mut into[read..], offset + read as u64)) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

/// Memory for reading frames: aligned, and grown to the largest that was asked for.
#[derive(Debug)]
pub(crate) struct ReadBuffer(Block);

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        ReadBuffer(Block::alone(crate::config::ALIGNMENT_BYTES))
    }

    /// `size` bytes of any content.
    pub(crate) fn bytes(&mut self, size: usize) -> &mut [u8] {
        if self.0.len() < size {
            self.0 = Block::alone(size.next_power_of_two());
        }
        &mut self.0[..size]
    }
}
