//! Log files: their one name format, how they come into being, and how they are used again.
//!
//! ```text
//! new:      write all blocks as data-….log.tmp, sync ─► rename, sync directory ─► active
//! recycled: a free file                              ─► rename, sync directory ─► active
//! active ─► sealed (no more writes) ─► free (no checkpoint needs it) ─► recycled or removed
//! ```
//!
//! A file is handed out only when its name is durable, so that a frame whose data is synced can be found. Its
//! blocks have all been written before, which is what makes a durable append cheap: the file system has no size
//! and no extent to record (measured: 0.13 ms against 0.2 to 0.25).
//!
//! The name says kind, job and incarnation: `data-<job>-<incarnation>.log`. What a recycled file held before is
//! still in its blocks and has valid checksums; the incarnation under them keeps it from being taken for ours.

#![forbid(unsafe_code)]

use super::reclaim::{Needs, SealedFile, unneeded};
use crate::config::LogConfig;
use crate::device::Wake;
use crate::device::directory::{Directory, OpenFile, UNFINISHED};
use crate::error::StorageError;
use crate::format::{FILE_HEAD_BYTES, FILE_MAGIC, LOG_VERSION};
use crate::handle::Incarnation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// The directory of the log files, below the job's.
pub const LOG_DIRECTORY: &str = "log";

/// Whose frames a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A shard's: state and in-flight data.
    Data,
    /// The coordinator's: commit points.
    Commits,
}

impl FileKind {
    const ALL: [FileKind; 2] = [FileKind::Data, FileKind::Commits];

    fn word(self) -> &'static str {
        match self {
            FileKind::Data => "data",
            FileKind::Commits => "commits",
        }
    }

    fn number(self) -> u16 {
        match self {
            FileKind::Data => 1,
            FileKind::Commits => 2,
        }
    }
}

/// What a log file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName {
    /// Whose frames.
    pub kind: FileKind,
    /// The job.
    pub lineage: u128,
    /// The file's life.
    pub incarnation: Incarnation,
}

impl FileName {
    /// The name, below the job's directory.
    pub fn to_name(&self) -> String {
        format!("{LOG_DIRECTORY}/{}-{:032x}-{}.log", self.kind.word(), self.lineage, self.incarnation)
    }

    /// Reads a name without its directory; `None` of what is no log file.
    pub fn parse(name: &str) -> Option<FileName> {
        let (word, rest) = name.strip_suffix(".log")?.split_once('-')?;
        let (lineage, incarnation) = rest.split_once('-')?;
        if lineage.len() != 32 || incarnation.len() != 16 {
            return None;
        }
        Some(FileName {
            kind: FileKind::ALL.into_iter().find(|kind| kind.word() == word)?,
            lineage: u128::from_str_radix(lineage, 16).ok()?,
            incarnation: Incarnation(u64::from_str_radix(incarnation, 16).ok()?),
        })
    }

    /// The first 4096 bytes of the file.
    pub(crate) fn encode_head(&self, size: u64, into: &mut [u8]) {
        let head = &mut into[..FILE_HEAD_BYTES];
        head.fill(0);
        head[0..4].copy_from_slice(&FILE_MAGIC);
        head[4..6].copy_from_slice(&LOG_VERSION.to_le_bytes());
        head[6..8].copy_from_slice(&self.kind.number().to_le_bytes());
        head[8..24].copy_from_slice(&self.lineage.to_le_bytes());
        head[24..32].copy_from_slice(&self.incarnation.0.to_le_bytes());
        head[32..40].copy_from_slice(&size.to_le_bytes());
        let crc = crc32fast::hash(&head[..60]);
        head[60..64].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks that a head is this file's.
    pub(crate) fn check_head(&self, path: &Path, head: &[u8]) -> Result<(), StorageError> {
        let Some(head) = head.first_chunk::<64>() else {
            return Err(StorageError::corrupt(
                path,
                0,
                format!("{} bytes, no head of a log file", head.len()),
            ));
        };
        let crc = u32::from_le_bytes(head[60..64].try_into().expect("four bytes"));
        if head[0..4] != FILE_MAGIC || crc != crc32fast::hash(&head[..60]) {
            return Err(StorageError::corrupt(path, 0, "the head of the log file is damaged"));
        }
        let version = u16::from_le_bytes(head[4..6].try_into().expect("two bytes"));
        if version != LOG_VERSION {
            return Err(StorageError::Version {
                path: path.to_path_buf(),
                found: version.into(),
                supported: LOG_VERSION.into(),
            });
        }
        let lineage = u128::from_le_bytes(head[8..24].try_into().expect("sixteen bytes"));
        let incarnation = u64::from_le_bytes(head[24..32].try_into().expect("eight bytes"));
        if (lineage, incarnation) != (self.lineage, self.incarnation.0) {
            return Err(StorageError::corrupt(
                path,
                0,
                format!(
                    "the head names job {lineage:032x} and incarnation {incarnation:016x}, not those of the file's name"
                ),
            ));
        }
        Ok(())
    }
}

/// A file to begin: named, durable, each block written before.
#[derive(Debug)]
pub struct FreshFile {
    /// Its name.
    pub name: FileName,
    /// Where it lies, for messages.
    pub path: PathBuf,
    /// Open for a device.
    pub file: OpenFile,
    /// Its size.
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A writer has it.
    Active,
    /// No writer has it; frames of checkpoints up to this id are in it.
    Sealed { last_checkpoint: u64 },
}

#[derive(Debug)]
struct Known {
    name: FileName,
    size: u64,
    state: Use,
}

/// What a job's log files are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileCounts {
    /// With a writer.
    pub active: usize,
    /// Written, and needed.
    pub sealed: usize,
    /// Free, to be used again.
    pub spare: usize,
    /// Files made since the start, rather than recycled.
    pub created: u64,
    /// Files recycled since the start.
    pub recycled: u64,
}

/// All log files of a job.
pub struct LogFiles {
    directory: Arc<dyn Directory>,
    lineage: u128,
    run: u32,
    next: u32,
    direct: bool,
    spare_files_max: usize,
    known: BTreeMap<Incarnation, Known>,
    spares: Vec<(String, u64)>,
    created: u64,
    recycled: u64,
}

impl LogFiles {
    /// Takes stock of the directory, whoever wrote what is there: this run has the lock. Unfinished files are
    /// removed; the others count as sealed until [`reclaim`](Self::reclaim) finds them free.
    ///
    /// # Errors
    ///
    /// The directory cannot be made or read.
    pub fn open(
        directory: Arc<dyn Directory>,
        lineage: u128,
        run: u32,
        direct: bool,
        config: &LogConfig,
    ) -> Result<LogFiles, StorageError> {
        let path = directory.path(LOG_DIRECTORY);
        directory.create_dir(LOG_DIRECTORY).map_err(|e| StorageError::io("create", &path, e))?;
        directory.sync_dir("").map_err(|e| StorageError::io("sync the parent of", &path, e))?;
        let mut known = BTreeMap::new();
        for (name, size) in directory.list(LOG_DIRECTORY).map_err(|e| StorageError::io("list", &path, e))? {
            if name.ends_with(UNFINISHED) {
                let name = format!("{LOG_DIRECTORY}/{name}");
                directory
                    .remove(&name)
                    .map_err(|e| StorageError::io("remove the unfinished", &directory.path(&name), e))?;
            } else if let Some(name) = FileName::parse(&name) {
                // What it holds is told by the checkpoints that need it; nothing else in it counts.
                known.insert(
                    name.incarnation,
                    Known { name, size, state: Use::Sealed { last_checkpoint: 0 } },
                );
            }
        }
        Ok(LogFiles {
            directory,
            lineage,
            run,
            next: 0,
            direct,
            spare_files_max: config.spare_files_max,
            known,
            spares: Vec::new(),
            created: 0,
            recycled: 0,
        })
    }

    /// What the directory is, for readers.
    pub fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// The job.
    pub fn lineage(&self) -> u128 {
        self.lineage
    }

    /// Makes a file ready: a free one of the right size under a new name, or a new one.
    ///
    /// # Errors
    ///
    /// [`StorageError::Full`] without room; it may be tried again. Else what failed.
    pub fn begin(&mut self, kind: FileKind, size: u64) -> Result<FreshFile, StorageError> {
        self.next = self.next.checked_add(1).expect("2^32 files of 64 MiB in one run");
        let name =
            FileName { kind, lineage: self.lineage, incarnation: Incarnation::new(self.run, self.next) };
        let to = name.to_name();
        let path = self.directory.path(&to);
        let spare = self.spares.iter().position(|(_, spare)| *spare == size);
        match spare {
            Some(index) => {
                let (from, _) = self.spares.remove(index);
                self.directory.rename(&from, &to).map_err(|e| {
                    StorageError::io(format!("recycle {}", self.directory.path(&from).display()), &path, e)
                })?;
                self.recycled += 1;
            }
            None => {
                let unfinished = format!("{to}{UNFINISHED}");
                self.directory.create_written(&unfinished, size).map_err(|error| {
                    if crate::error::is_full(&error) {
                        StorageError::Full { path: path.clone(), wanted_bytes: size }
                    } else {
                        StorageError::io("create", &path, error)
                    }
                })?;
                self.directory.rename(&unfinished, &to).map_err(|e| StorageError::io("name", &path, e))?;
                self.created += 1;
            }
        }
        // From here on the file is known, so that a failure below leaks nothing: it is free.
        let ready = self
            .directory
            .sync_dir(LOG_DIRECTORY)
            .map_err(|e| StorageError::io("sync the directory of", &path, e))
            .and_then(|()| {
                self.directory.open(&to, self.direct).map_err(|e| StorageError::io("open", &path, e))
            });
        match ready {
            Ok(file) => {
                self.known.insert(name.incarnation, Known { name, size, state: Use::Active });
                Ok(FreshFile { name, path, file, size })
            }
            Err(error) => {
                // A failed sync of a directory says nothing of the name: the file is not used under it.
                let _ = self.directory.remove(&to);
                Err(error)
            }
        }
    }

    /// A writer has let a file go; frames up to `last_checkpoint` are in it.
    pub fn sealed(&mut self, incarnation: Incarnation, last_checkpoint: u64) {
        let known = self.known.get_mut(&incarnation).expect("a writer seals a file that it was given");
        assert_eq!(known.state, Use::Active, "{incarnation} is sealed once");
        known.state = Use::Sealed { last_checkpoint };
    }

    /// Frees the files that nothing needs and returns their incarnations, which no handle may name from now on.
    ///
    /// # Errors
    ///
    /// A surplus file could not be removed. It is tried again at the next call.
    pub fn reclaim(&mut self, needs: &Needs) -> Result<Vec<Incarnation>, StorageError> {
        let sealed = self.known.values().filter_map(|known| match known.state {
            Use::Sealed { last_checkpoint } => {
                let FileName { kind, incarnation, .. } = known.name;
                Some(SealedFile { incarnation, kind, last_checkpoint })
            }
            Use::Active => None,
        });
        let mut freed = unneeded(sealed, needs);
        for (index, incarnation) in freed.iter().enumerate() {
            let known = &self.known[incarnation];
            let name = known.name.to_name();
            if self.spares.len() < self.spare_files_max {
                self.spares.push((name, known.size));
            } else if let Err(error) = self.directory.remove(&name) {
                let path = self.directory.path(&name);
                freed.truncate(index);
                for incarnation in &freed {
                    self.known.remove(incarnation);
                }
                return Err(StorageError::io("remove", &path, error));
            }
        }
        for incarnation in &freed {
            self.known.remove(incarnation);
        }
        Ok(freed)
    }

    /// Files of an earlier run or this one that are not free.
    pub fn names(&self) -> impl Iterator<Item = FileName> {
        self.known.values().map(|known| known.name)
    }

    /// How many files there are of each kind.
    pub fn counts(&self) -> FileCounts {
        let active = self.known.values().filter(|known| known.state == Use::Active).count();
        FileCounts {
            active,
            sealed: self.known.len() - active,
            spare: self.spares.len(),
            created: self.created,
            recycled: self.recycled,
        }
    }
}

/// Where a writer gets its files, and gives them back.
pub trait FileSource {
    /// Asks for the next file, unless one is on its way.
    fn request(&mut self);

    /// The file asked for, when it is ready, or why there is none; a failure ends the request.
    fn take(&mut self) -> Option<Result<FreshFile, StorageError>>;

    /// Sleeps until the file asked for is ready or `timeout` is over. Not for a shard.
    fn blocking_wait(&mut self, timeout: Duration);

    /// The writer has let a file go.
    fn sealed(&mut self, incarnation: Incarnation, last_checkpoint: u64);
}

/// Shared log files.
pub type SharedFiles = Arc<Mutex<LogFiles>>;

pub(crate) fn lock(files: &SharedFiles) -> MutexGuard<'_, LogFiles> {
    // Every change of the tables is done after the calls that may fail, so they are whole after a panic, too.
    files.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes files when they are taken: for the simulation and for tools, where waiting is no matter.
pub struct InlineSource {
    files: SharedFiles,
    kind: FileKind,
    size: u64,
    requested: bool,
}

impl InlineSource {
    /// Of files of one kind and size.
    pub fn new(files: SharedFiles, kind: FileKind, size: u64) -> Self {
        InlineSource { files, kind, size, requested: false }
    }
}

impl FileSource for InlineSource {
    fn request(&mut self) {
        self.requested = true;
    }

    fn take(&mut self) -> Option<Result<FreshFile, StorageError>> {
        std::mem::take(&mut self.requested).then(|| lock(&self.files).begin(self.kind, self.size))
    }

    fn blocking_wait(&mut self, _: Duration) {}

    fn sealed(&mut self, incarnation: Incarnation, last_checkpoint: u64) {
        lock(&self.files).sealed(incarnation, last_checkpoint);
    }
}

enum Errand {
    Begin { kind: FileKind, size: u64, answer: Sender<Result<FreshFile, StorageError>>, wake: Wake },
    Sealed { incarnation: Incarnation, last_checkpoint: u64 },
}

/// A thread that makes files ready, so that no shard waits for one. Ends when the last source is gone.
pub struct Keeper {
    errands: Option<Sender<Errand>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread; call this where threads may run on any core.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(files: SharedFiles) -> std::io::Result<Keeper> {
        let (errands, received) = channel();
        let thread = std::thread::Builder::new()
            .name("tidegate-files".to_string())
            .spawn(move || keep(&files, &received))?;
        Ok(Keeper { errands: Some(errands), thread: Some(thread) })
    }

    /// A source for one writer, which is woken when its file is ready.
    pub fn source(&self, kind: FileKind, size: u64, wake: Wake) -> KeeperSource {
        let errands = self.errands.clone().expect("open until drop");
        KeeperSource { errands, kind, size, wake, answer: None, ready: None }
    }
}

impl Drop for Keeper {
    /// Does not wait for writers: the thread ends with the last of them.
    fn drop(&mut self) {
        self.errands = None;
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

fn keep(files: &SharedFiles, errands: &Receiver<Errand>) {
    while let Ok(errand) = errands.recv() {
        match errand {
            Errand::Begin { kind, size, answer, wake } => {
                let fresh = lock(files).begin(kind, size);
                if let Err(std::sync::mpsc::SendError(Ok(fresh))) = answer.send(fresh) {
                    // The writer is gone; nothing was written.
                    lock(files).sealed(fresh.name.incarnation, 0);
                }
                wake.wake();
            }
            Errand::Sealed { incarnation, last_checkpoint } => {
                lock(files).sealed(incarnation, last_checkpoint)
            }
        }
    }
}

/// Files from a [`Keeper`].
pub struct KeeperSource {
    errands: Sender<Errand>,
    kind: FileKind,
    size: u64,
    wake: Wake,
    answer: Option<Receiver<Result<FreshFile, StorageError>>>,
    ready: Option<Result<FreshFile, StorageError>>,
}

impl FileSource for KeeperSource {
    fn request(&mut self) {
        if self.answer.is_some() || self.ready.is_some() {
            return;
        }
        let (answer, received) = channel();
        let errand = Errand::Begin { kind: self.kind, size: self.size, answer, wake: self.wake.clone() };
        self.errands.send(errand).expect("the keeper's thread runs while there is a source");
        self.answer = Some(received);
    }

    fn take(&mut self) -> Option<Result<FreshFile, StorageError>> {
        if let Some(ready) = self.ready.take() {
            return Some(ready);
        }
        match self.answer.as_ref()?.try_recv() {
            Ok(fresh) => {
                self.answer = None;
                Some(fresh)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the keeper's thread ended: see its panic above"),
        }
    }

    fn blocking_wait(&mut self, timeout: Duration) {
        if self.ready.is_some() {
            return;
        }
        let Some(answer) = &self.answer else { return };
        match answer.recv_timeout(timeout) {
            Ok(fresh) => {
                self.ready = Some(fresh);
                self.answer = None;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }

    fn sealed(&mut self, incarnation: Incarnation, last_checkpoint: u64) {
        // The keeper runs while there is a source; at the end of the process nobody cares.
        let _ = self.errands.send(Errand::Sealed { incarnation, last_checkpoint });
    }
}

impl Drop for KeeperSource {
    fn drop(&mut self) {
        let fresh = self.ready.take().or_else(|| self.answer.take()?.try_recv().ok());
        if let Some(Ok(fresh)) = fresh {
            self.sealed(fresh.name.incarnation, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::directory::RealDirectory;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_read_back_and_others_left_alone() {
        let name = FileName { kind: FileKind::Commits, lineage: 0xabc, incarnation: Incarnation::new(3, 9) };
        let text = name.to_name();
        assert_eq!(text, "log/commits-00000000000000000000000000000abc-0000000300000009.log");
        assert_eq!(FileName::parse(text.strip_prefix("log/").unwrap()), Some(name));
        for other in [
            "",
            "x.log",
            "data-1-2.log",
            "data-.log",
            "other-00000000000000000000000000000abc-0000000300000009.log",
        ] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }

    /// Goal: a file nobody needs is used again under a new incarnation; one that is needed, or holds frames of a
    /// checkpoint that may complete, is not; the surplus is removed.
    #[test]
    fn files_are_recycled_when_nothing_needs_them() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig { spare_files_max: 1, ..Default::default() };
        let directory = Arc::new(RealDirectory::new(dir.path()));
        let mut files = LogFiles::open(directory.clone(), 7, 1, false, &config).unwrap();
        let names: Vec<Incarnation> =
            (0..4).map(|_| files.begin(FileKind::Data, 16384).unwrap().name.incarnation).collect();
        for (index, name) in names.iter().enumerate() {
            files.sealed(*name, index as u64 + 1);
        }
        let in_use = BTreeSet::from([names[1]]);
        let needs = Needs { in_use, oldest_pending: 4, published: 0 };
        let freed = files.reclaim(&needs).unwrap();
        assert_eq!(freed, [names[0], names[2]], "2 is in use, 4 may still complete");
        assert_eq!(files.counts(), FileCounts { active: 0, sealed: 2, spare: 1, created: 4, recycled: 0 });
        assert_eq!(directory.list(LOG_DIRECTORY).unwrap().len(), 3);
        let recycled = files.begin(FileKind::Data, 16384).unwrap();
        assert!(recycled.name.incarnation > names[3]);
        assert_eq!(files.counts().recycled, 1);
        // Another size is never taken for it.
        files.sealed(recycled.name.incarnation, 0);
        files.reclaim(&needs).unwrap();
        files.begin(FileKind::Commits, 32768).unwrap();
        assert_eq!(files.counts().created, 5);
        // The next run finds all of them.
        let again = LogFiles::open(directory, 7, 2, false, &config).unwrap();
        assert_eq!(again.names().count(), 4);
    }
}
