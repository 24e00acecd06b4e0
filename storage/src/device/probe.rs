//! What a directory allows: io_uring, direct I/O. Found out by doing it, once, at the start.
//!
//! Some file systems open files with `O_DIRECT` and refuse the first write; io_uring may be compiled in and
//! forbidden by policy. So a block is written, synced and read back through the very device that would be used.

#![forbid(unsafe_code)]

use super::blocking::BlockingDevice;
use super::directory::{Directory, OpenFile, ReadMode};
use super::memory::Block;
use super::uring::UringDevice;
use super::{Device, Operation, OperationId, Request, Wake};
use crate::config::{ALIGNMENT_BYTES, BackendChoice, DirectChoice, LogConfig};
use crate::error::StorageError;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The backend and mode that were chosen for a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// io_uring rather than a thread with `pwrite`.
    pub uring: bool,
    /// The page cache is passed by.
    pub direct: bool,
    /// Why not the better of either, in words.
    pub reasons: Vec<String>,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.uring { "io_uring" } else { "pwrite and fdatasync" })?;
        f.write_str(if self.direct { ", direct" } else { ", through the page cache" })?;
        for reason in &self.reasons {
            write!(f, "; {reason}")?;
        }
        Ok(())
    }
}

/// How long a probe's write may take.
const PROBE_MAX: Duration = Duration::from_secs(30);

fn try_device(device: &mut dyn Device, file: &OpenFile) -> io::Result<()> {
    let slot = device.attach(file)?;
    let mut block = Block::alone(ALIGNMENT_BYTES);
    block.fill(0xa5);
    let (write, sync) = (OperationId { slot: 0, generation: 1 }, OperationId { slot: 1, generation: 1 });
    let request = Request::Write {
        file: slot,
        block,
        start: 0,
        length: ALIGNMENT_BYTES,
        offset: 0,
        then_sync: Some(sync),
    };
    device.submit(Operation { id: write, request });
    let begun = Instant::now();
    let mut done = Vec::new();
    while done.len() < 2 {
        if begun.elapsed() > PROBE_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        device.blocking_drive(Duration::from_millis(100), &mut done)?;
    }
    device.detach(slot);
    for completion in &done {
        let expected = if completion.id == write { ALIGNMENT_BYTES } else { 0 };
        match completion.result {
            Ok(count) if count == expected => {}
            Ok(count) => return Err(io::Error::other(format!("{count} of {expected} bytes were written"))),
            Err(number) => return Err(io::Error::from_raw_os_error(number)),
        }
    }
    Ok(())
}

fn probe_write(directory: &dyn Directory, name: &str, uring: bool, direct: bool) -> io::Result<()> {
    let file = directory.open(name, direct)?;
    if uring {
        let staging = [Block::alone(ALIGNMENT_BYTES)];
        try_device(&mut UringDevice::new(&staging, direct, &Wake::nobody())?, &file)?;
    } else {
        try_device(&mut BlockingDevice::start(direct, Wake::nobody())?, &file)?;
    }
    let mode = if direct { ReadMode::Direct } else { ReadMode::Cached };
    let mut back = Block::alone(ALIGNMENT_BYTES);
    let read = directory.open_read(name, mode)?.read_at(0, &mut back)?;
    if read != ALIGNMENT_BYTES || back.iter().any(|byte| *byte != 0xa5) {
        return Err(io::Error::other("what was written is not what is read"));
    }
    Ok(())
}

/// Finds out what `parent` in `directory` allows, and chooses.
///
/// # Errors
///
/// The directory cannot be written, or what was demanded is not possible here: each names path and reason.
pub fn choose(directory: &dyn Directory, parent: &str, config: &LogConfig) -> Result<Chosen, StorageError> {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let number = PROBES.fetch_add(1, Ordering::Relaxed);
    let name = format!("{parent}/probe-{}-{number}{}", std::process::id(), super::directory::UNFINISHED);
    let name = name.trim_start_matches('/');
    let path = directory.path(name);
    directory
        .create_written(name, ALIGNMENT_BYTES as u64)
        .map_err(|error| StorageError::io("write to the directory with", &path, error))?;
    let chosen = choose_with(directory, parent, name, config);
    let _ = directory.remove(name);
    chosen
}

fn choose_with(
    directory: &dyn Directory,
    parent: &str,
    name: &str,
    config: &LogConfig,
) -> Result<Chosen, StorageError> {
    let unsupported = |wanted, error: &io::Error| StorageError::Unsupported {
        path: directory.path(parent),
        wanted,
        reason: error.to_string(),
    };
    let mut reasons = Vec::new();
    let direct = match config.direct {
        DirectChoice::Off => false,
        choice => match probe_write(directory, name, false, true) {
            Ok(()) => true,
            Err(error) if choice == DirectChoice::Required => return Err(unsupported("direct I/O", &error)),
            Err(error) => {
                reasons.push(format!("no direct I/O here: {error}"));
                false
            }
        },
    };
    let uring = match config.backend {
        BackendChoice::Blocking => false,
        choice => match probe_write(directory, name, true, direct) {
            Ok(()) => true,
            Err(error) if choice == BackendChoice::Uring => return Err(unsupported("io_uring", &error)),
            Err(error) => {
                reasons.push(format!("no io_uring: {error}"));
                false
            }
        },
    };
    Ok(Chosen { uring, direct, reasons })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::directory::RealDirectory;

    /// Goal: every backend that a directory allows is found by writing through it, and demands are refused by
    /// name where they cannot be met.
    #[test]
    fn f_85_what_a_directory_allows_is_found_by_doing_it() {
        let dir = tempfile::tempdir().unwrap();
        let directory = RealDirectory::new(dir.path());
        let blocking =
            LogConfig { backend: BackendChoice::Blocking, direct: DirectChoice::Off, ..Default::default() };
        let chosen = choose(&directory, "", &blocking).unwrap();
        assert_eq!(chosen, Chosen { uring: false, direct: false, reasons: vec![] });
        let any = choose(&directory, "", &LogConfig::default()).unwrap();
        eprintln!("{any}");
        assert!(any.uring && any.direct || !any.reasons.is_empty(), "the worse choice says why: {any}");
        assert_eq!(directory.list("").unwrap(), [], "the probe cleans up");
        let missing = RealDirectory::new(dir.path().join("missing"));
        let error = choose(&missing, "", &blocking).unwrap_err().to_string();
        assert!(error.contains("missing/probe-"), "{error}");
    }
}
