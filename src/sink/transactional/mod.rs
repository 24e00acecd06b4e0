//! Files as exactly-once output: a directory of parts, each of which is seen when the checkpoint is complete that
//! what is in it came before.
//!
//! ```text
//!   .part-….open ──barrier: sync, rename──► .part-….pending ──complete: rename──► part-SUBTASK-CHECKPOINT-LINEAGE
//! ```
//!
//! Who reads only names that begin with `part-` sees every record once, whatever was killed when: never one that
//! will be written again, never one less than checkpoints say. A subtask without records since the last
//! barrier makes no file. A job that begins anew wants an empty directory, and one that goes on from a
//! checkpoint wants no output of later ones, since it would write it again; [`Beyond`] says what
//! to do if there is some. One process at a time writes to a directory: it holds a lock on it.
//!
//! On the shard's thread rows are gathered, and written to the page cache when there are many; whatever may wait for
//! the disk is left to a thread of each sink. A file is durable when its data is synced and, after the rename, its
//! directory.

mod name;
#[cfg(test)]
mod tests;

use self::name::Name;
use super::disk::{Content, Disk, DiskError, Job, Phase, Publish, act, create, sync_directory_of};
use super::row::Format;
use super::sorted::Rows;
use super::two_phase::{TwoPhase, TwoPhaseSink};
use crate::checkpoint::{Beyond, Checkpointing};
use crate::record::{Record, Timestamp};
use crate::source::{SourceError, Waker, remember_allowed_cores};
use crate::subtask::SubtaskInfo;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tidegate_storage::failpoint;
use tidegate_storage::format::{DecodeError, Decoder, Encoder};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 128 << 10;

/// Made and removed to know that files can be made.
const PROBE: &str = ".tidegate-probe";

/// Files that an error names.
const NAMED_MAX: usize = 5;

/// Why a directory cannot be the output.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransactionalError {
    /// A file, where a directory is needed.
    #[error("{}: is a file; a job with checkpoints writes a directory with a part for each subtask and checkpoint, so expected a directory, or nothing there", path.display())]
    NoDirectory {
        /// The output as given.
        path: PathBuf,
    },
    /// The directory in which the output would lie does not exist.
    #[error("{}: there is no directory {}; expected a path in an existing directory", path.display(), parent.display())]
    NoParent {
        /// The output as given.
        path: PathBuf,
        /// What is missing.
        parent: PathBuf,
    },
    /// Another process writes to it.
    #[error("{}: another process writes to it; expected a directory of its own for each job", path.display())]
    InUse {
        /// The output as given.
        path: PathBuf,
    },
    /// Something is in it, and the job begins anew.
    #[error("{}: is not empty, {names}; a job that begins anew expected an empty directory", path.display())]
    NotEmpty {
        /// The output as given.
        path: PathBuf,
        /// What is in it.
        names: String,
    },
    /// Output is in it that the job would write again.
    #[error("{}: holds output of checkpoints after {restored}, {names}; a job that goes on from there would write it again (--retract-output moves it aside first, --accept-duplicates leaves it)", path.display())]
    Beyond {
        /// The output as given.
        path: PathBuf,
        /// The checkpoint that the job goes on from.
        restored: u64,
        /// Which files, of which checkpoints.
        names: String,
    },
    /// The system refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A directory as exactly-once output of all subtasks of a sink. Cheap to clone: all clones are one.
#[derive(Debug, Clone)]
pub struct TransactionalFiles {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    beyond: Beyond,
    /// Stands for the lineage in a job without checkpoints.
    drawn: u128,
    /// The directory, locked while this is open.
    _lock: File,
}

impl TransactionalFiles {
    /// Makes the directory `path` if it is not there, and locks it. Blocks: to be called before the job starts.
    ///
    /// # Errors
    ///
    /// What is in the way, by its path.
    pub fn plan(path: impl AsRef<Path>, beyond: Beyond) -> Result<TransactionalFiles, TransactionalError> {
        remember_allowed_cores();
        let path = path.as_ref().to_path_buf();
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(TransactionalError::NoDirectory { path }),
            Err(_) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.unwrap_or(Path::new("."));
                if !parent.is_dir() {
                    let parent = parent.to_path_buf();
                    return Err(TransactionalError::NoParent { path, parent });
                }
                act(failpoint::SINK_DIRECTORY, &path, "make it", || fs::create_dir(&path))?;
                sync_directory_of(&path)?;
            }
        }
        let lock = act(failpoint::SINK_PROBE, &path, "open it", || File::open(&path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(TransactionalError::InUse { path }),
            // A file system without locks: what the lock of the checkpoints protects is protected all the same.
            Err(error) => tracing::warn!("{}: cannot be locked: {error}", path.display()),
        }
        // One that a process left that was killed just then is in nobody's way.
        let probe = path.join(PROBE);
        act(failpoint::SINK_PROBE, &path, "make a file in it", || File::create(&probe))?;
        act(failpoint::SINK_PROBE, &probe, "remove it", || fs::remove_file(&probe))?;
        let halves = [(); 2].map(|()| u128::from(RandomState::new().hash_one(std::process::id())));
        let drawn = halves[0] << 64 | halves[1];
        Ok(TransactionalFiles { shared: Arc::new(Shared { path, beyond, drawn, _lock: lock }) })
    }

    /// The sink of one subtask, which writes what `format` appends for each record; that should end in `\n`. Waits
    /// for the disk: to be called before records flow.
    ///
    /// # Errors
    ///
    /// [`TransactionalError`], if a job begins anew and the directory is not empty.
    pub fn sink<T: Record, F: Format<T>>(
        &self,
        info: &SubtaskInfo,
        format: F,
    ) -> Result<PartSink<T, F>, SourceError> {
        self.parts(info, format, false)
    }

    /// The same, with the rows of each part in the order of their bytes. It keeps all that `format` makes since the
    /// last barrier in memory, 24 bytes more for each.
    ///
    /// # Errors
    ///
    /// As [`sink`](Self::sink).
    pub fn sorted_sink<T: Record, F: Format<T>>(
        &self,
        info: &SubtaskInfo,
        format: F,
    ) -> Result<PartSink<T, F>, SourceError> {
        self.parts(info, format, true)
    }

    fn parts<T: Record, F: Format<T>>(
        &self,
        info: &SubtaskInfo,
        format: F,
        sorted: bool,
    ) -> Result<PartSink<T, F>, SourceError> {
        let alone = Checkpointing { lineage: self.shared.drawn, run: 0, attempt: 0, restored: None };
        let parts = Parts {
            shared: self.shared.clone(),
            job: info.checkpoints.unwrap_or(alone),
            subtask: info.subtask,
            parallelism: info.parallelism,
            format,
            sorted,
            begun: 0,
            disk: Disk::new(),
            item: PhantomData,
        };
        TwoPhaseSink::new(parts, info.checkpoints)
    }
}

/// The sink of one subtask; see [`TransactionalFiles::sink`].
pub type PartSink<T, F> = TwoPhaseSink<Parts<T, F>>;

/// The parts of one subtask, as a target of two-phase commits.
pub struct Parts<T, F> {
    shared: Arc<Shared>,
    job: Checkpointing,
    subtask: u32,
    parallelism: u32,
    format: F,
    sorted: bool,
    /// Parts begun in this attempt.
    begun: u64,
    disk: Disk,
    item: PhantomData<fn(T)>,
}

/// A part that is being written.
pub struct Part {
    name: Name,
    body: Body,
}

enum Body {
    File {
        /// Made when there is more than a buffer.
        file: Option<File>,
        /// Rows that are not written yet.
        rows: Vec<u8>,
        /// Bytes that are.
        written: u64,
    },
    Rows(Rows),
}

/// What a checkpoint knows of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    name: Name,
    /// Its size; 0 if nobody knew it.
    bytes: u64,
}

impl Handle {
    fn encode(&self, handle: &mut Vec<u8>) {
        let mut fields = Encoder(mem::take(handle));
        self.name.encode(&mut fields);
        fields.u64(self.bytes);
        *handle = fields.0;
    }

    fn decode(handle: &[u8]) -> Result<Handle, DecodeError> {
        let mut fields = Decoder::new("a part in a checkpoint", handle);
        let handle = Handle { name: Name::decode(&mut fields)?, bytes: fields.u64()? };
        fields.end().map(|()| handle)
    }
}

impl Shared {
    fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// What is in the directory, sorted; our names read.
    fn list(&self) -> Result<Vec<(OsString, Option<Name>)>, DiskError> {
        let mut entries = act(failpoint::SINK_LIST, &self.path, "list it", || {
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        })?;
        entries.sort_unstable();
        let read = |entry: OsString| {
            let name = entry.to_str().and_then(|text| text.parse().ok());
            (entry, name)
        };
        Ok(entries.into_iter().map(read).collect())
    }
}

impl<T, F> Parts<T, F> {
    /// Whether this subtask has to look after a file of this job: its own, or one of a subtask that is no more.
    fn looks_after(&self, name: &Name) -> bool {
        name.lineage == self.job.lineage
            && (name.subtask == self.subtask || (self.subtask == 0 && name.subtask >= self.parallelism))
    }

    /// Whether readers see it although the job goes on from before it.
    fn is_beyond(&self, name: &Name, restored: Option<u64>) -> bool {
        name.lineage == self.job.lineage && name.is_published() && name.checkpoint() > restored
    }

    #[cold]
    fn write_rows(&mut self, part: &mut Part) -> Result<(), SourceError> {
        if let Body::File { file, rows, written } = &mut part.body {
            let path = self.shared.path_of(&part.name);
            let file = match file {
                Some(file) => file,
                none => none.insert(act(failpoint::SINK_CREATE, &path, "create it", || create(&path))?),
            };
            act(failpoint::SINK_WRITE, &path, "write to it", || file.write_all(rows))?;
            *written += rows.len() as u64;
            rows.clear();
        }
        Ok(())
    }
}

impl<T: Record, F: Format<T>> TwoPhase for Parts<T, F> {
    type Item = T;
    type Transaction = Part;

    fn begin(&mut self) -> Result<Part, SourceError> {
        self.disk.be_ready()?;
        let name = Name::open(self.subtask, &self.job, self.begun);
        self.begun += 1;
        let body = if self.sorted {
            Body::Rows(Rows::default())
        } else {
            Body::File { file: None, rows: Vec::with_capacity(BUFFER_BYTES), written: 0 }
        };
        Ok(Part { name, body })
    }

    #[inline]
    fn write(&mut self, part: &mut Part, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        match &mut part.body {
            Body::File { rows, .. } => {
                (self.format)(record, rows);
                if rows.len() >= BUFFER_BYTES {
                    self.write_rows(part)?;
                }
            }
            Body::Rows(rows) => {
                let start = rows.bytes.len();
                (self.format)(record, &mut rows.bytes);
                rows.ended(start);
            }
        }
        Ok(())
    }

    fn pre_commit(&mut self, part: Part, checkpoint: u64, handle: &mut Vec<u8>) -> Result<(), SourceError> {
        let pending = part.name.pending(&self.job, checkpoint);
        let (content, bytes) = match part.body {
            Body::File { file, rows, written } => {
                let bytes = written + rows.len() as u64;
                (Content::Bytes(file, rows), bytes)
            }
            Body::Rows(rows) => {
                let bytes = rows.written_bytes();
                (Content::Rows(rows), bytes)
            }
        };
        Handle { name: pending, bytes }.encode(handle);
        let (open, pending) = (self.shared.path_of(&part.name), self.shared.path_of(&pending));
        self.disk.give(Job::Prepare { open, content, pending }, checkpoint)
    }

    fn flush(&mut self, _: &mut Part) -> Result<(), SourceError> {
        self.disk.check()
    }

    fn is_durable(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.disk.is_done(Phase::Prepare, checkpoint)
    }

    fn commit(&mut self, checkpoint: u64, handle: &[u8]) -> Result<(), SourceError> {
        let Handle { name, bytes } = Handle::decode(handle)?;
        let of = name.checkpoint().ok_or_else(|| format!("checkpoint {checkpoint} lists {name}"))?;
        let (pending, last) = (self.shared.path_of(&name), self.shared.path_of(&name.published(of)));
        self.disk.give(Job::Publish(Publish { pending, bytes, last, checkpoint }), checkpoint)
    }

    fn is_committed(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.disk.is_done(Phase::Publish, checkpoint)
    }

    fn blocking_settle(&mut self) -> Result<(), SourceError> {
        self.disk.blocking_settle()
    }

    fn blocking_leftovers(&mut self) -> Result<Vec<Vec<u8>>, SourceError> {
        let names = self.shared.list()?.into_iter().filter_map(|(_, name)| name);
        let left = names.filter(|name| self.looks_after(name) && !name.is_published());
        Ok(left
            .map(|name| {
                let mut handle = Vec::new();
                Handle { name, bytes: 0 }.encode(&mut handle);
                handle
            })
            .collect())
    }

    fn blocking_abort(&mut self, handle: &[u8]) -> Result<(), SourceError> {
        let path = self.shared.path_of(&Handle::decode(handle)?.name);
        act(failpoint::SINK_REMOVE, &path, "remove it", || match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })?;
        Ok(())
    }

    fn blocking_check(&mut self, restored: Option<u64>) -> Result<(), SourceError> {
        let beyond = self.shared.beyond;
        if beyond == Beyond::Accept {
            return Ok(());
        }
        let in_the_way = |entry: &OsString, name: &Option<Name>| match name {
            Some(name) if self.is_beyond(name, restored) => beyond == Beyond::Refuse,
            // Whose job begins anew may not mix with others, nor with files that a reader would take for its own.
            Some(name) => restored.is_none() && name.lineage != self.job.lineage,
            None => restored.is_none() && !entry.as_encoded_bytes().starts_with(b"."),
        };
        let mut found = self.shared.list()?;
        found.retain(|(entry, name)| in_the_way(entry, name));
        if found.is_empty() {
            return Ok(());
        }
        let (path, names) = (self.shared.path.clone(), describe(&found));
        Err(match restored {
            Some(restored) => TransactionalError::Beyond { path, restored, names },
            None => TransactionalError::NotEmpty { path, names },
        }
        .into())
    }

    fn blocking_retract(&mut self, restored: Option<u64>) -> Result<(), SourceError> {
        if self.shared.beyond != Beyond::Retract {
            return Ok(());
        }
        let Checkpointing { lineage, run, attempt, .. } = self.job;
        let aside = self.shared.path.join(format!(".retracted-{lineage:032x}-{run}-{attempt}"));
        let mut moved = 0;
        for (entry, name) in self.shared.list()? {
            if name.is_some_and(|name| self.looks_after(&name) && self.is_beyond(&name, restored)) {
                act(failpoint::SINK_RETRACT, &aside, "make it", || match fs::create_dir(&aside) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    result => result,
                })?;
                let (from, to) = (self.shared.path.join(&entry), aside.join(&entry));
                act(failpoint::SINK_RETRACT, &from, "move it aside", || fs::rename(&from, &to))?;
                sync_directory_of(&to)?;
                moved += 1;
            }
        }
        if moved > 0 {
            sync_directory_of(&aside)?;
            tracing::warn!(
                "{moved} files of checkpoints after {restored:?} were moved to {}",
                aside.display()
            );
        }
        Ok(())
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.disk.wake_with(waker);
    }
}

/// The first of the files, and how many more there are.
fn describe(found: &[(OsString, Option<Name>)]) -> String {
    let named = found.iter().take(NAMED_MAX).map(|(entry, name)| {
        let entry = Path::new(entry).display();
        match name.and_then(|name| name.checkpoint()) {
            Some(checkpoint) => format!("{entry} (checkpoint {checkpoint})"),
            None => entry.to_string(),
        }
    });
    let named: Vec<String> = named.collect();
    match found.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
