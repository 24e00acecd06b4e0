//! Completed checkpoints: their commit point, `chk-N/_metadata`, retention, and which one to restore from.
//!
//! A checkpoint is complete when one frame of the coordinator's own log, its metadata inline, is durable: one
//! append and one sync. `chk-N/_metadata` is published after that and off the critical path, but always before an
//! older checkpoint is deleted. Recovery reads both. The log wins where both have an id; where a commit's frame
//! is damaged the published file is used.
//!
//! ```text
//! begin ─► append, flush ─► poll: durable ─► complete ─► publish ─► subsume ─► files free
//! ```
//!
//! **A commit that failed may be on the disk nevertheless**, and then a recovery finds it complete. So what its
//! checkpoint holds (pending output of a sink, mostly) must be kept until a later checkpoint is complete; see
//! [`Committed::Unknown`].

#![forbid(unsafe_code)]

use crate::device::directory::{Directory, publish, read_whole};
use crate::error::StorageError;
use crate::format::{Decoder, Encoder, open_document, seal_document};
use crate::handle::Incarnation;
use crate::log::file::{FileKind, FileName, LOG_DIRECTORY};
use crate::log::frame::{FrameKind, FrameTag};
use crate::log::reader::LogReader;
use crate::log::recover::{Tail, largest_checkpoint, scan};
use crate::log::writer::{AppendError, LogWriter, Outcome, Span};
use crate::metadata::{CheckpointMetadata, METADATA_MAGIC, files_in_use};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A commit whose metadata is too long for a frame names the published file instead.
const REFERENCE_MAGIC: [u8; 4] = *b"TGMR";
const REFERENCE_VERSION: u32 = 1;

/// The name of a checkpoint's directory.
pub fn directory_name(id: u64) -> String {
    format!("chk-{id}")
}

/// The name of a checkpoint's metadata.
pub fn metadata_name(id: u64) -> String {
    format!("chk-{id}/_metadata")
}

/// What was found damaged, and is not used.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The checkpoint, where that is known.
    pub checkpoint: Option<u64>,
    /// Which file, where, and why.
    pub error: StorageError,
}

/// What a directory holds.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// Readable checkpoints, newest first; those whose files are gone are not among them.
    pub checkpoints: Vec<Arc<CheckpointMetadata>>,
    /// Those among them that only the log has.
    pub unpublished: BTreeSet<u64>,
    /// What could not be read. Nothing of it was deleted.
    pub damaged: Vec<Damage>,
    /// Logs that end in a frame that a crash cut off, with the place: ordinary.
    pub torn: Vec<String>,
    /// The largest checkpoint id that was ever used, complete or not. The next is one more.
    pub largest_id: u64,
}

impl Loaded {
    /// Reads a job's directory: the coordinator's logs, then `chk-*`. Writes nothing.
    ///
    /// # Errors
    ///
    /// The directory cannot be read; a newer format version; [`StorageError::NoReadableCheckpoint`] if there are
    /// checkpoints and none can be used.
    pub fn read(directory: &Arc<dyn Directory>, lineage: u128) -> Result<Loaded, StorageError> {
        let mut loaded = Loaded::default();
        let mut found: BTreeMap<u64, Arc<CheckpointMetadata>> = BTreeMap::new();
        let names = log_names(&**directory, lineage)?;
        for name in names.iter().filter(|name| name.kind == FileKind::Commits) {
            loaded.read_commits(&**directory, *name, &mut found)?;
        }
        let path = directory.path("");
        for (name, _) in directory.list("").map_err(|e| StorageError::io("list", &path, e))? {
            let Some(id) = name.strip_prefix("chk-").and_then(|id| id.parse::<u64>().ok()) else { continue };
            loaded.largest_id = loaded.largest_id.max(id);
            loaded.read_published(&**directory, lineage, id, &mut found)?;
        }
        let present: BTreeSet<Incarnation> = names.iter().map(|name| name.incarnation).collect();
        for (id, metadata) in found.into_iter().rev() {
            match metadata.files().into_keys().find(|file| !present.contains(file)) {
                None => loaded.checkpoints.push(metadata),
                // Subsumed, and its files used again; or lost.
                Some(file) => {
                    let name = FileName { kind: FileKind::Data, lineage, incarnation: file };
                    let path = directory.path(&name.to_name());
                    let needed_by = format!("checkpoint {id}");
                    let error = StorageError::Missing { path, needed_by };
                    loaded.damaged.push(Damage { checkpoint: Some(id), error });
                }
            }
        }
        loaded.find_largest_id(&**directory, &names)?;
        // A commit that was subsumed stays in its log until the file is used again: that its state is gone is no
        // damage as long as a newer checkpoint is there.
        if let Some(newest) = loaded.checkpoints.first() {
            let newest = newest.id;
            loaded.damaged.retain(|damage| {
                let missing = matches!(damage.error, StorageError::Missing { .. });
                !missing || damage.checkpoint.is_none_or(|id| id > newest)
            });
            return Ok(loaded);
        }
        match loaded.damaged.iter().max_by_key(|damage| damage.checkpoint) {
            None => Ok(loaded),
            Some(newest) => Err(StorageError::NoReadableCheckpoint {
                path: directory.path(""),
                count: loaded.damaged.len(),
                newest: Box::new(newest.error.clone()),
            }),
        }
    }

    fn read_commits(
        &mut self,
        directory: &dyn Directory,
        name: FileName,
        found: &mut BTreeMap<u64, Arc<CheckpointMetadata>>,
    ) -> Result<(), StorageError> {
        let path = directory.path(&name.to_name());
        let scanned = match scan(directory, name) {
            Ok(scanned) => scanned,
            Err(error @ StorageError::Corrupt { .. }) => {
                self.damaged.push(Damage { checkpoint: None, error });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if let Tail::Torn { offset, what } = scanned.tail {
            self.torn.push(format!("{}: cut at offset {offset}: {what}", path.display()));
        }
        for frame in scanned.frames {
            let id = frame.header.tag.checkpoint;
            self.largest_id = self.largest_id.max(id);
            if frame.header.tag.kind != FrameKind::Commit {
                continue;
            }
            match decode_commit(directory, &path, &frame.payload) {
                Ok(metadata) => {
                    self.unpublished.insert(metadata.id);
                    found.insert(metadata.id, Arc::new(metadata));
                }
                Err(error @ StorageError::Version { .. }) => return Err(error),
                Err(error) => self.damaged.push(Damage { checkpoint: Some(id), error }),
            }
        }
        Ok(())
    }

    fn read_published(
        &mut self,
        directory: &dyn Directory,
        lineage: u128,
        id: u64,
        found: &mut BTreeMap<u64, Arc<CheckpointMetadata>>,
    ) -> Result<(), StorageError> {
        let name = metadata_name(id);
        let read = read_whole(directory, &name, &format!("checkpoint {id}"))
            .and_then(|bytes| CheckpointMetadata::decode(&directory.path(&name), &bytes))
            .and_then(|metadata| check_identity(&directory.path(&name), metadata, lineage, id));
        match read {
            Ok(metadata) => {
                self.unpublished.remove(&id);
                found.entry(id).or_insert_with(|| Arc::new(metadata));
            }
            Err(error @ StorageError::Version { .. }) => return Err(error),
            // The log has it: it is published again.
            Err(_) if found.contains_key(&id) => {}
            // A crash between making the directory and publishing, or between the two steps of a deletion.
            Err(StorageError::Missing { .. }) => {}
            Err(error) => self.damaged.push(Damage { checkpoint: Some(id), error }),
        }
        Ok(())
    }

    /// Ids only grow over runs, so the newest run that left any frame has the largest.
    fn find_largest_id(&mut self, directory: &dyn Directory, names: &[FileName]) -> Result<(), StorageError> {
        let mut names: Vec<FileName> = names.to_vec();
        names.sort_by_key(|name| std::cmp::Reverse(name.incarnation));
        let mut run = None;
        for name in names {
            if run.is_some_and(|run| name.incarnation.run() < run) {
                break;
            }
            let largest = largest_checkpoint(directory, name)?;
            if largest > 0 {
                run = Some(name.incarnation.run());
                self.largest_id = self.largest_id.max(largest);
            }
        }
        Ok(())
    }
}

fn log_names(directory: &dyn Directory, lineage: u128) -> Result<Vec<FileName>, StorageError> {
    let listed = match directory.list(LOG_DIRECTORY) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(StorageError::io("list", &directory.path(LOG_DIRECTORY), error)),
    };
    let names = listed.iter().filter_map(|(name, _)| FileName::parse(name));
    Ok(names.filter(|name| name.lineage == lineage).collect())
}

fn check_identity(
    path: &Path,
    metadata: CheckpointMetadata,
    lineage: u128,
    id: u64,
) -> Result<CheckpointMetadata, StorageError> {
    if metadata.lineage != lineage || metadata.id != id {
        let what = format!(
            "checkpoint {} of job {:032x}, expected {id} of {lineage:032x}",
            metadata.id, metadata.lineage
        );
        return Err(StorageError::corrupt(path, 0, what));
    }
    Ok(metadata)
}

fn decode_commit(
    directory: &dyn Directory,
    path: &Path,
    payload: &[u8],
) -> Result<CheckpointMetadata, StorageError> {
    if payload.get(..4) != Some(&REFERENCE_MAGIC[..]) {
        return CheckpointMetadata::decode(path, payload);
    }
    let (_, body) = open_document(path, REFERENCE_MAGIC, REFERENCE_VERSION, payload)?;
    let mut decoder = Decoder::new("reference to metadata", body);
    let mut read = || Ok((decoder.u64()?, decoder.u64()?, decoder.u32()?));
    let (id, length, crc) = read()
        .map_err(|error: crate::format::DecodeError| StorageError::corrupt(path, 0, error.to_string()))?;
    let name = metadata_name(id);
    let bytes = read_whole(directory, &name, &format!("the commit of checkpoint {id}"))?;
    if (bytes.len() as u64, crc32fast::hash(&bytes)) != (length, crc) {
        return Err(StorageError::corrupt(&directory.path(&name), 0, "not the metadata that was committed"));
    }
    CheckpointMetadata::decode(&directory.path(&name), &bytes)
}

/// Reads every frame of a checkpoint; returns the bytes that verified.
///
/// # Errors
///
/// The first frame that does not verify, with file and offset.
pub fn verify(reader: &mut LogReader, checkpoint: &CheckpointMetadata) -> Result<u64, StorageError> {
    let mut bytes = 0;
    for handle in checkpoint.handles() {
        bytes += reader.verify(handle)?;
    }
    Ok(bytes)
}

/// What has become of a commit.
#[derive(Debug, Clone)]
pub enum Committed {
    /// On its way, or there is none.
    Pending,
    /// The checkpoint is complete.
    Complete(Arc<CheckpointMetadata>),
    /// It is not, as far as we know; but a recovery may find its frame. Nothing that it needs may be undone or
    /// deleted before a later checkpoint is complete.
    Unknown {
        /// Which.
        id: u64,
        /// Why.
        cause: StorageError,
    },
}

/// The completed checkpoints of a running job.
pub struct CheckpointStore {
    directory: Arc<dyn Directory>,
    lineage: u128,
    retained_max: usize,
    /// Oldest first.
    completed: VecDeque<Arc<CheckpointMetadata>>,
    unpublished: BTreeSet<u64>,
    /// Beyond retention, but not yet deleted; newest first.
    subsumed: Vec<Arc<CheckpointMetadata>>,
    log: LogWriter,
    commit: Option<Commit>,
}

struct Commit {
    metadata: Arc<CheckpointMetadata>,
    payload: Vec<u8>,
    span: Option<Span>,
}

impl CheckpointStore {
    /// Of what was loaded, with a writer of [`FileKind::Commits`] files. Publishes what only the log has, so that
    /// the files of earlier runs are not needed any more.
    ///
    /// # Errors
    ///
    /// What is missing could not be published.
    pub fn open(
        directory: Arc<dyn Directory>,
        lineage: u128,
        retained_max: usize,
        loaded: &Loaded,
        log: LogWriter,
    ) -> Result<CheckpointStore, StorageError> {
        assert!(retained_max > 0, "the configuration asks for at least 1");
        let mut newest = loaded.checkpoints.clone();
        let subsumed = newest.split_off(newest.len().min(retained_max));
        let mut store = CheckpointStore {
            directory,
            lineage,
            retained_max,
            completed: newest.into_iter().rev().collect(),
            unpublished: loaded.unpublished.clone(),
            subsumed,
            log,
            commit: None,
        };
        let retained: Vec<u64> = store.completed.iter().map(|checkpoint| checkpoint.id).collect();
        for id in retained {
            store.publish(id)?;
        }
        Ok(store)
    }

    /// Retained checkpoints, oldest first.
    pub fn completed(&self) -> impl DoubleEndedIterator<Item = &Arc<CheckpointMetadata>> {
        self.completed.iter()
    }

    /// The newest.
    pub fn newest(&self) -> Option<&Arc<CheckpointMetadata>> {
        self.completed.back()
    }

    /// The coordinator's log, for its counts.
    pub fn log(&self) -> &LogWriter {
        &self.log
    }

    /// Begins the commit of a checkpoint whose state is durable. One at a time.
    ///
    /// # Errors
    ///
    /// Metadata beyond what a frame takes is published first, which may fail: the checkpoint has, too.
    ///
    /// # Panics
    ///
    /// If a commit is under way, or the id is not above the newest.
    pub fn begin(&mut self, metadata: CheckpointMetadata) -> Result<(), StorageError> {
        assert!(self.commit.is_none(), "a commit is under way");
        assert_eq!(metadata.lineage, self.lineage);
        assert!(self.newest().is_none_or(|newest| newest.id < metadata.id), "ids only grow");
        let mut payload = metadata.encode();
        if payload.len() > self.log.frame_payload_bytes_max() {
            let mut reference = Encoder::default();
            reference.u64(metadata.id);
            reference.u64(payload.len() as u64);
            reference.u32(crc32fast::hash(&payload));
            self.publish_bytes(metadata.id, &payload)?;
            payload = seal_document(REFERENCE_MAGIC, REFERENCE_VERSION, &reference.0);
        } else {
            self.unpublished.insert(metadata.id);
        }
        self.commit = Some(Commit { metadata: Arc::new(metadata), payload, span: None });
        Ok(())
    }

    /// Moves a commit on. Never blocks. A completed checkpoint is in [`completed`](Self::completed) from now on.
    pub fn poll(&mut self, now: Duration) -> Committed {
        let polled = self.log.poll(now);
        let Some(commit) = &mut self.commit else { return Committed::Pending };
        if let Err(cause) = polled {
            return self.failed(cause);
        }
        if commit.span.is_none() {
            let tag = FrameTag { kind: FrameKind::Commit, checkpoint: commit.metadata.id, owner: 0 };
            let from = self.log.position();
            match self.log.append(tag, &commit.payload) {
                Ok(_) => commit.span = Some(Span { from, to: self.log.position() }),
                Err(AppendError::BufferFull | AppendError::NoFile) => return Committed::Pending,
                Err(AppendError::Storage(cause)) => return self.failed(cause),
            }
            self.log.flush();
            if let Err(cause) = self.log.poll(now) {
                return self.failed(cause);
            }
        }
        match self.log.outcome(commit.span.expect("just set")) {
            Outcome::Pending => Committed::Pending,
            Outcome::Failed(cause) => self.failed(cause),
            Outcome::Durable => {
                let metadata = self.commit.take().expect("it is under way").metadata;
                self.completed.push_back(metadata.clone());
                Committed::Complete(metadata)
            }
        }
    }

    fn failed(&mut self, cause: StorageError) -> Committed {
        let id = self.commit.take().expect("it is under way").metadata.id;
        self.unpublished.remove(&id);
        Committed::Unknown { id, cause }
    }

    /// As [`poll`](Self::poll), but sleeps up to `timeout` for something to happen. For the coordinator's thread.
    pub fn blocking_poll(&mut self, now: Duration, timeout: Duration) -> Committed {
        match self.poll(now) {
            Committed::Pending if self.commit.is_some() => {
                if let Err(cause) = self.log.blocking_poll(now, timeout) {
                    return self.failed(cause);
                }
                self.poll(now)
            }
            settled => settled,
        }
    }

    /// Publishes `chk-N/_metadata`, if it is not there already. Blocks; off the critical path.
    ///
    /// # Errors
    ///
    /// It could not be published; the checkpoint is complete all the same, and this may be tried again.
    pub fn publish(&mut self, id: u64) -> Result<(), StorageError> {
        if !self.unpublished.contains(&id) {
            return Ok(());
        }
        let Some(metadata) = self.completed.iter().find(|checkpoint| checkpoint.id == id) else {
            return Ok(());
        };
        let bytes = metadata.encode();
        self.publish_bytes(id, &bytes)?;
        self.unpublished.remove(&id);
        Ok(())
    }

    fn publish_bytes(&self, id: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let name = directory_name(id);
        let path = self.directory.path(&name);
        self.directory.create_dir(&name).map_err(|e| StorageError::io("create", &path, e))?;
        publish(&*self.directory, &metadata_name(id), bytes)?;
        self.directory.sync_dir("").map_err(|e| StorageError::io("sync the parent of", &path, e))
    }

    /// Up to here every completed checkpoint is published: the coordinator's log files up to it are not needed.
    pub fn published(&self) -> u64 {
        let unpublished = |checkpoint: &&Arc<CheckpointMetadata>| self.unpublished.contains(&checkpoint.id);
        match self.completed.iter().find(unpublished) {
            Some(first) => first.id - 1,
            None => self.completed.back().map_or(0, |newest| newest.id),
        }
    }

    /// Deletes the checkpoints beyond the retained ones, oldest first, if the newest is published. Returns them.
    ///
    /// # Errors
    ///
    /// A deletion failed. It is tried again at the next call; what is gone already is success.
    pub fn subsume(&mut self) -> Result<Vec<u64>, StorageError> {
        if self.newest().is_some_and(|newest| self.unpublished.contains(&newest.id)) {
            return Ok(Vec::new());
        }
        while self.completed.len() > self.retained_max {
            let oldest = self.completed.pop_front().expect("there is more than one");
            self.subsumed.insert(0, oldest);
        }
        let mut deleted = Vec::new();
        while let Some(checkpoint) = self.subsumed.last() {
            let id = checkpoint.id;
            for result in
                [self.directory.remove(&metadata_name(id)), self.directory.remove_dir(&directory_name(id))]
            {
                result
                    .map_err(|e| StorageError::io("delete", &self.directory.path(&directory_name(id)), e))?;
            }
            self.subsumed.pop();
            self.unpublished.remove(&id);
            deleted.push(id);
        }
        Ok(deleted)
    }

    /// The log files that completed checkpoints need, those to be deleted and the one being committed included.
    pub fn files_in_use(&self) -> BTreeSet<Incarnation> {
        let committing = self.commit.iter().map(|commit| &commit.metadata);
        files_in_use(self.completed.iter().chain(&self.subsumed).chain(committing).map(|c| &**c))
    }

    /// Takes a checkpoint out that turned out damaged on restore: the next older one is the newest then. Its files
    /// stay.
    pub fn reject(&mut self, id: u64) {
        self.completed.retain(|checkpoint| checkpoint.id != id);
    }
}

// The first four bytes of a commit's payload tell which of the two it is.
const _: () = assert!(METADATA_MAGIC[3] != REFERENCE_MAGIC[3]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogConfig;
    use crate::device::Wake;
    use crate::device::directory::{ReadMode, RealDirectory};
    use crate::device::probe;
    use crate::log::file::{InlineSource, LogFiles, SharedFiles};
    use crate::log::reclaim::Needs;
    use crate::log::writer::LogSeed;
    use crate::metadata::StateRef;
    use crate::metadata::tests::sample;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::time::Instant;

    const LINEAGE: u128 = 0x11;

    struct Job {
        directory: Arc<dyn Directory>,
        files: SharedFiles,
        data: LogWriter,
        store: CheckpointStore,
        begun: Instant,
    }

    fn config() -> LogConfig {
        LogConfig { file_size_bytes: 64 << 10, block_size_bytes: 16 << 10, blocks: 4, ..Default::default() }
    }

    impl Job {
        fn start(dir: &Path, run: u32, retained: usize) -> Result<(Job, Loaded), StorageError> {
            let directory: Arc<dyn Directory> = Arc::new(RealDirectory::new(dir));
            let loaded = Loaded::read(&directory, LINEAGE)?;
            let chosen = probe::choose(&*directory, "", &config())?;
            let files = LogFiles::open(directory.clone(), LINEAGE, run, chosen.direct, &config())?;
            let files = Arc::new(Mutex::new(files));
            let writer = |kind| {
                let source = InlineSource::new(files.clone(), kind, config().file_size_bytes);
                LogSeed::new(config(), LINEAGE, chosen.clone(), Box::new(source), Wake::nobody())?.open()
            };
            let (data, commits) = (writer(FileKind::Data)?, writer(FileKind::Commits)?);
            let store = CheckpointStore::open(directory.clone(), LINEAGE, retained, &loaded, commits)?;
            Ok((Job { directory, files, data, store, begun: Instant::now() }, loaded))
        }

        /// Appends a frame of state and commits it as checkpoint `id`.
        fn checkpoint(&mut self, id: u64) {
            let tag = FrameTag { kind: FrameKind::Data, checkpoint: id, owner: 0 };
            let from = self.data.position();
            let handle = loop {
                match self.data.append(tag, &[id as u8; 9000]) {
                    Ok(handle) => break handle,
                    Err(AppendError::Storage(error)) => panic!("{error}"),
                    Err(_) => {
                        self.data.blocking_poll(self.begun.elapsed(), Duration::from_millis(20)).unwrap()
                    }
                }
            };
            self.data.flush();
            let span = Span { from, to: self.data.position() };
            while matches!(self.data.outcome(span), Outcome::Pending) {
                self.data.blocking_poll(self.begun.elapsed(), Duration::from_millis(20)).unwrap();
            }
            self.store.begin(sample(id, &[handle])).unwrap();
            loop {
                match self.store.blocking_poll(self.begun.elapsed(), Duration::from_millis(20)) {
                    Committed::Pending => {}
                    Committed::Complete(metadata) => return assert_eq!(metadata.id, id),
                    Committed::Unknown { cause, .. } => panic!("{cause}"),
                }
            }
        }

        fn settle(&mut self, id: u64) {
            self.store.publish(id).unwrap();
            self.store.subsume().unwrap();
            let needs = Needs {
                in_use: self.store.files_in_use(),
                oldest_pending: id + 1,
                published: self.store.published(),
            };
            self.files.lock().unwrap().reclaim(&needs).unwrap();
        }
    }

    fn ids(loaded: &Loaded) -> Vec<u64> {
        loaded.checkpoints.iter().map(|checkpoint| checkpoint.id).collect()
    }

    fn newest_log(dir: &Path, word: &str) -> PathBuf {
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(dir.join(LOG_DIRECTORY)).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(word));
        names.pop().unwrap()
    }

    /// Goal: the newest complete checkpoint is found, published or not; retention deletes what is beyond it; disk
    /// use is bounded; ids are never used again.
    #[test]
    fn m_71_checkpoints_are_kept_found_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut job, loaded) = Job::start(dir.path(), 1, 2).unwrap();
        assert_eq!((ids(&loaded), loaded.largest_id), (vec![], 0));
        for id in 1..=60 {
            job.checkpoint(id);
            job.settle(id);
        }
        let counts = job.files.lock().unwrap().counts();
        assert!(counts.recycled > 5 && counts.sealed < 8 && counts.created < 16, "{counts:?}");
        // Complete, but the process ends before it is published; then one that never became complete.
        job.checkpoint(61);
        let tag = FrameTag { kind: FrameKind::Data, checkpoint: 63, owner: 0 };
        while job.data.append(tag, b"pending").is_err() {
            job.data.poll(job.begun.elapsed()).unwrap();
        }
        job.data.flush();
        drop(job);
        assert!(!dir.path().join("chk-61").exists() && !dir.path().join("chk-58").exists());
        let (job, loaded) = Job::start(dir.path(), 2, 2).unwrap();
        assert_eq!(ids(&loaded)[..2], [61, 60]);
        assert_eq!(loaded.largest_id, 63, "the id of a checkpoint that never completed is used up as well");
        assert!(loaded.damaged.is_empty(), "{:?}", loaded.damaged);
        assert!(dir.path().join("chk-61/_metadata").exists(), "published by the next run");
        let mut reader = LogReader::new(job.directory.clone(), LINEAGE, ReadMode::Direct);
        for checkpoint in job.store.completed() {
            assert_eq!(verify(&mut reader, checkpoint).unwrap(), 9000);
            let StateRef::Frame { handle, .. } = &checkpoint.operators[1].subtasks[0].keyed[0] else {
                panic!()
            };
            assert_eq!(reader.read(*handle).unwrap().1, [checkpoint.id as u8; 9000]);
        }
        drop(job);
        // And without the log of commits the published ones are enough.
        std::fs::remove_file(newest_log(dir.path(), "commits")).unwrap();
        assert_eq!(ids(&Job::start(dir.path(), 3, 2).unwrap().1)[..2], [61, 60]);
    }

    /// Goal: a damaged newest checkpoint is named, nothing is deleted, and the one before is offered; with none
    /// readable recovery refuses.
    #[test]
    fn f_35_damaged_metadata_is_named_and_the_one_before_used() {
        let dir = tempfile::tempdir().unwrap();
        let (mut job, _) = Job::start(dir.path(), 1, 3).unwrap();
        for id in 1..=3 {
            job.checkpoint(id);
            job.store.publish(id).unwrap();
        }
        let directory = job.directory.clone();
        drop(job);
        let log = newest_log(dir.path(), "commits");
        let path = dir.path().join("chk-3/_metadata");
        let whole = std::fs::read(&path).unwrap();
        let damages: Vec<Option<Vec<u8>>> = [0, 10, whole.len() / 2, whole.len() - 1]
            .into_iter()
            .map(|byte| {
                let mut flipped = whole.clone();
                flipped[byte] ^= 4;
                Some(flipped)
            })
            .chain([Some(whole[..whole.len() / 2].to_vec()), Some(Vec::new()), None])
            .collect();
        for damage in &damages {
            match damage {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let loaded = Loaded::read(&directory, LINEAGE).unwrap();
            assert_eq!(ids(&loaded), [3, 2, 1], "the log has it");
            let away = log.with_extension("away");
            std::fs::rename(&log, &away).unwrap();
            let loaded = Loaded::read(&directory, LINEAGE).unwrap();
            std::fs::rename(&away, &log).unwrap();
            assert_eq!((ids(&loaded), loaded.largest_id), (vec![2, 1], 3));
            if damage.is_some() {
                let text = loaded.damaged[0].error.to_string();
                assert!(text.contains("chk-3/_metadata: damaged at offset"), "{text}");
            }
        }
        // The last commit torn, and its file gone: the one before. A commit before the last damaged: said, and the
        // published ones are used.
        let text = std::fs::read(&log).unwrap();
        let commits: Vec<usize> = (0..text.len() / 4096)
            .map(|block| block * 4096)
            .filter(|at| text[*at..].starts_with(b"TGFR"))
            .collect();
        assert_eq!(commits.len(), 3);
        let mut flipped = text.clone();
        flipped[commits[2] + 100] ^= 1;
        std::fs::write(&log, &flipped).unwrap();
        let loaded = Loaded::read(&directory, LINEAGE).unwrap();
        assert_eq!((ids(&loaded), loaded.torn.len(), loaded.largest_id), (vec![2, 1], 1, 3));
        flipped = text.clone();
        flipped[commits[0] + 100] ^= 1;
        std::fs::write(&log, &flipped).unwrap();
        let loaded = Loaded::read(&directory, LINEAGE).unwrap();
        assert_eq!(ids(&loaded), [2, 1], "as published");
        let error = loaded.damaged[0].error.to_string();
        assert!(error.contains(&format!("damaged at offset {}", commits[0])), "{error}");
        for id in [1, 2] {
            std::fs::write(dir.path().join(metadata_name(id)), b"noise").unwrap();
        }
        let error = Loaded::read(&directory, LINEAGE).unwrap_err();
        assert!(matches!(error, StorageError::NoReadableCheckpoint { .. }), "{error}");
        let newer = seal_document(METADATA_MAGIC, 2, b"");
        std::fs::write(dir.path().join(metadata_name(2)), newer).unwrap();
        assert!(matches!(Loaded::read(&directory, LINEAGE), Err(StorageError::Version { found: 2, .. })));
    }

    /// Goal: metadata that no frame takes is committed by name.
    #[test]
    fn long_metadata_is_published_and_referred_to() {
        let dir = tempfile::tempdir().unwrap();
        let (mut job, _) = Job::start(dir.path(), 1, 2).unwrap();
        job.checkpoint(1);
        let mut long = sample(2, &[]);
        long.operators[0].coordinator = vec![5; 200_000];
        job.store.begin(long.clone()).unwrap();
        while matches!(
            job.store.blocking_poll(job.begun.elapsed(), Duration::from_millis(20)),
            Committed::Pending
        ) {}
        drop(job);
        let (job, loaded) = Job::start(dir.path(), 2, 2).unwrap();
        assert_eq!(ids(&loaded), [2, 1]);
        assert_eq!(**job.store.newest().unwrap(), long);
    }
}
