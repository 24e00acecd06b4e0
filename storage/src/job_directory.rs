//! A job's checkpoint directory: who may write in it, whose it is, and which run of the process this is.
//!
//! ```text
//! DIR/LOCK               held by the process that runs the job; its content is the pid, for messages
//! DIR/job                identity: lineage, run number, name
//! DIR/log/….log          frames
//! DIR/chk-N/_metadata    one completed checkpoint
//! ```
//!
//! The lineage is drawn once and is in every name and frame; the run number is durable before anything of the run
//! is named after it, and never used again. That is all that incarnations need in order to be unique.

#![forbid(unsafe_code)]

use crate::device::directory::{Directory, RealDirectory, publish, read_whole};
use crate::error::StorageError;
use crate::failpoint::{self, act};
use crate::format::{Decoder, Encoder, open_document, seal_document};
use crate::log::file::{FileName, LOG_DIRECTORY};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"TGJB";
const VERSION: u32 = 1;
const IDENTITY: &str = "job";
const LOCK: &str = "LOCK";

/// Whose directory it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The job: in every name and under every checksum.
    pub lineage: u128,
    /// Which start of a process: from 1.
    pub run: u32,
    /// The job's name.
    pub job: String,
}

impl Identity {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u128(self.lineage);
        out.u32(self.run);
        out.text(&self.job);
        seal_document(MAGIC, VERSION, &out.0)
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Identity, StorageError> {
        let (_, body) = open_document(path, MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new("job identity", body);
        let mut read =
            || Ok(Identity { lineage: decoder.u128()?, run: decoder.u32()?, job: decoder.text()? });
        read().map_err(|error: crate::format::DecodeError| StorageError::corrupt(path, 0, error.to_string()))
    }

    /// Reads the identity of a directory, without changing anything in it.
    ///
    /// # Errors
    ///
    /// [`StorageError::Missing`] where there never was a job; damage and versions by name.
    pub fn read(directory: &dyn Directory) -> Result<Identity, StorageError> {
        let bytes = read_whole(directory, IDENTITY, "every job's checkpoints")?;
        Identity::decode(&directory.path(IDENTITY), &bytes)
    }

    /// Takes the next run number, durably; the caller holds the lock. A directory without a job becomes `job`'s,
    /// with lineage `drawn`. Returns a warning where the identity had to be put together from the log's names.
    ///
    /// # Errors
    ///
    /// The directory is another job's, of a newer version, or cannot be written.
    pub fn claim(
        directory: &dyn Directory,
        job: &str,
        drawn: u128,
    ) -> Result<(Identity, Option<String>), StorageError> {
        let mut warning = None;
        let before = match Identity::read(directory) {
            Ok(identity) => identity,
            Err(StorageError::Missing { .. }) => Identity { lineage: drawn, run: 0, job: job.to_string() },
            Err(error @ StorageError::Corrupt { .. }) => {
                let Some(found) = Identity::from_names(directory, job) else { return Err(error) };
                warning = Some(format!(
                    "{error}; taken from the log files' names instead: job {:032x}, run {}",
                    found.lineage, found.run
                ));
                found
            }
            Err(error) => return Err(error),
        };
        if before.job != job {
            return Err(StorageError::OtherJob {
                path: directory.path(""),
                found: before.job,
                expected: job.to_string(),
            });
        }
        let run = before.run.checked_add(1).expect("2^32 starts of one job");
        let identity = Identity { run, ..before };
        publish(directory, IDENTITY, &identity.encode())?;
        Ok((identity, warning))
    }

    /// The log files' names tell lineage and the largest run that left anything behind.
    fn from_names(directory: &dyn Directory, job: &str) -> Option<Identity> {
        let names: Vec<FileName> = directory
            .list(LOG_DIRECTORY)
            .ok()?
            .iter()
            .filter_map(|(name, _)| FileName::parse(name))
            .collect();
        let lineage = names.first()?.lineage;
        if names.iter().any(|name| name.lineage != lineage) {
            return None;
        }
        let run = names.iter().map(|name| name.incarnation.run()).max()?;
        Some(Identity { lineage, run, job: job.to_string() })
    }
}

/// A directory that this process holds the lock of.
#[derive(Debug)]
pub struct JobDirectory {
    directory: Arc<RealDirectory>,
    identity: Identity,
    warnings: Vec<String>,
    /// Released when it is closed.
    _lock: File,
}

impl JobDirectory {
    /// Makes the directory if it is not there, locks it, and begins a run.
    ///
    /// # Errors
    ///
    /// [`StorageError::Locked`] names the other process; [`StorageError::OtherJob`] the other job; a directory
    /// that cannot be written is named.
    pub fn open(path: &Path, job: &str) -> Result<JobDirectory, StorageError> {
        make_durably(path)?;
        let lock = lock(&path.join(LOCK))?;
        let directory = Arc::new(RealDirectory::new(path));
        let mut warnings: Vec<String> = network(path).into_iter().collect();
        let (identity, warning) = Identity::claim(&*directory, job, draw(path)?)?;
        warnings.extend(warning);
        Ok(JobDirectory { directory, identity, warnings, _lock: lock })
    }

    /// Whose it is, and which run.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the user should know of the directory.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What lies in it.
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.directory.clone()
    }
}

/// Makes a directory and those above it that are not there, each durable in the one that it is in: else a power cut
/// could take all checkpoints, and leave the output that they have made visible.
fn make_durably(path: &Path) -> Result<(), StorageError> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_durably(above)?;
    match act(failpoint::JOB_DIRECTORY, || fs::create_dir(path)) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(error) => return Err(StorageError::io("create", path, error)),
    }
    act(failpoint::JOB_SYNC_DIRECTORY, || File::open(above)?.sync_all())
        .map_err(|error| StorageError::io("sync", above, error))
}

fn lock(path: &Path) -> Result<File, StorageError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|e| StorageError::io("open the lock file", path, e))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".to_string() } else { pid.trim().to_string() };
            return Err(StorageError::Locked { path: path.to_path_buf(), pid });
        }
        Err(error) => return Err(StorageError::io("lock", path, error.into())),
    }
    let write = act(failpoint::JOB_LOCK, || {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())
    });
    write.map_err(|e| StorageError::io("write", path, e))?;
    Ok(file)
}

fn draw(path: &Path) -> Result<u128, StorageError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| StorageError::io("draw a job id for", path, e))?;
    Ok(u128::from_le_bytes(bytes))
}

/// A warning where the directory lies on another machine: locks and syncs mean less there.
fn network(path: &Path) -> Option<String> {
    let kind = rustix::fs::statfs(path).ok()?.f_type as u64 & 0xffff_ffff;
    let name = match kind {
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "SMB",
        0x6573_5546 => "FUSE",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        _ => return None,
    };
    Some(format!(
        "{}: on a network file system ({name}); locks and syncs may not mean what they say there",
        PathBuf::from(path).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogConfig;
    use crate::log::file::{FileKind, LogFiles};

    /// Goal: one process a directory, one job a directory, and a run number that never comes again, even when the
    /// identity is lost.
    #[test]
    fn a_directory_has_one_process_one_job_and_growing_runs() {
        let dir = tempfile::tempdir().unwrap();
        let first = JobDirectory::open(dir.path(), "count").unwrap();
        assert_eq!(first.identity().run, 1);
        let error = JobDirectory::open(dir.path(), "count").unwrap_err().to_string();
        let expected = format!("LOCK: in use by process {}", std::process::id());
        assert!(error.contains(&expected), "{error}");
        let lineage = first.identity().lineage;
        LogFiles::open(first.directory(), lineage, 1, false, &LogConfig::default())
            .unwrap()
            .begin(FileKind::Data, 16384)
            .unwrap();
        drop(first);
        let error = JobDirectory::open(dir.path(), "other").unwrap_err().to_string();
        assert!(error.contains("belongs to job \"count\", not \"other\""), "{error}");
        let second = JobDirectory::open(dir.path(), "count").unwrap();
        assert_eq!((second.identity().lineage, second.identity().run), (lineage, 2));
        drop(second);
        let path = dir.path().join(IDENTITY);
        let whole = fs::read(&path).unwrap();
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 0x10;
            fs::write(&path, &flipped).unwrap();
            match JobDirectory::open(dir.path(), "count") {
                // The log file of run 1 is what is left to tell.
                Ok(again) => {
                    assert_eq!((again.identity().lineage, again.identity().run), (lineage, 2), "byte {byte}");
                    assert_eq!(again.warnings().len(), 1);
                }
                Err(error) => panic!("byte {byte}: {error}"),
            }
        }
        fs::write(&path, seal_document(MAGIC, 2, b"")).unwrap();
        assert!(matches!(
            JobDirectory::open(dir.path(), "count"),
            Err(StorageError::Version { found: 2, .. })
        ));
    }
}
