//! What outlives the process, as the coordinator uses it: the job's directory, its log files, its commits.
//!
//! All calls are the coordinator thread's. A commit is waited for there: it is one append and one sync, and until
//! it has ended there is nothing to decide that could not wait for it.

use crate::checkpoint::Recovery;
use crate::coordinator::job::JobError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_shard::task::Clock;
use tidegate_storage::checkpoint_store::{CheckpointStore, Committed, Damage, Loaded, verify};
use tidegate_storage::config::LogConfig;
use tidegate_storage::device::Wake;
use tidegate_storage::device::directory::{Directory, ReadMode};
use tidegate_storage::device::probe::{self, Chosen};
use tidegate_storage::error::StorageError;
use tidegate_storage::job_directory::JobDirectory;
use tidegate_storage::log::file::{FileKind, Keeper, LogFiles, SharedFiles};
use tidegate_storage::log::reader::LogReader;
use tidegate_storage::log::reclaim::Needs;
use tidegate_storage::log::writer::LogSeed;
use tidegate_storage::metadata::CheckpointMetadata;

/// How long one wait for a commit lasts before it is looked at again.
const COMMIT_LOOK: Duration = Duration::from_millis(100);

/// A directory that is removed with the job: where checkpoints are kept if nobody says where.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(cause) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("{}: cannot remove the temporary checkpoints: {cause}", self.0.display());
        }
    }
}

/// The job's directory and what is open in it.
pub(super) struct Durable {
    // In this order: what is open is closed before the directory goes.
    store: CheckpointStore,
    keeper: Keeper,
    files: SharedFiles,
    job: JobDirectory,
    config: LogConfig,
    chosen: Chosen,
    /// The next checkpoint's id.
    next_id: u64,
    /// What the next attempt goes on from: not the newest of the directory, where the user wants another one.
    base: Option<Arc<CheckpointMetadata>>,
    _temporary: Option<Temporary>,
}

/// How a commit has ended.
pub(super) enum CommitResult {
    /// The checkpoint is complete.
    Complete,
    /// It is not, as far as we know.
    Unknown(StorageError),
    /// It was never begun.
    Failed(StorageError),
}

impl Durable {
    /// Locks and reads the directory of a job's checkpoints; with `None` they are kept in a temporary one.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the directory, by name.
    pub fn open(
        recovery: Option<&Recovery>,
        job: &str,
        config: LogConfig,
        retained: usize,
    ) -> Result<Durable, JobError> {
        let temporary = recovery.is_none().then(temporary_path);
        let path = recovery.map(|recovery| &recovery.directory).or(temporary.as_ref());
        let path: &Path = path.expect("one of both is given");
        let opened = JobDirectory::open(path, job)?;
        let temporary = temporary.clone().map(Temporary);
        for warning in opened.warnings() {
            tracing::warn!("{warning}");
        }
        let directory = opened.directory();
        let lineage = opened.identity().lineage;
        let mut loaded = Loaded::read(&directory, lineage)?;
        for torn in &loaded.torn {
            tracing::info!("{torn}");
        }
        for Damage { checkpoint, error } in &loaded.damaged {
            let which = checkpoint.map_or(String::new(), |id| format!("checkpoint {id}: "));
            tracing::error!("{which}{error}");
        }
        let base = choose(&mut loaded, &directory, lineage, recovery)?;
        let chosen = probe::choose(&*directory, "", &config)?;
        let run = opened.identity().run;
        let files = LogFiles::open(directory.clone(), lineage, run, chosen.direct, &config)?;
        let files = Arc::new(Mutex::new(files));
        let keeper = Keeper::start(files.clone()).map_err(|cause| JobError::System {
            what: "cannot start the thread of the log files".to_string(),
            cause,
        })?;
        let commits = config.of_commits();
        let source = keeper.source(FileKind::Commits, commits.file_size_bytes, Wake::nobody());
        let seed = LogSeed::new(commits, lineage, chosen.clone(), Box::new(source), Wake::nobody())?;
        let store = CheckpointStore::open(directory, lineage, retained, &loaded, seed.open()?)?;
        let next_id = loaded.largest_id + 1;
        let mut durable = Durable {
            store,
            keeper,
            files,
            job: opened,
            config,
            chosen,
            next_id,
            base,
            _temporary: temporary,
        };
        tracing::info!(
            "Checkpoints are kept in {} ({}).",
            durable.job.directory().path("").display(),
            durable.store.log().describe()
        );
        durable.clean(next_id);
        Ok(durable)
    }

    /// The job over all its runs, and which run this is.
    pub fn identity(&self) -> (u128, u32) {
        let identity = self.job.identity();
        (identity.lineage, identity.run)
    }

    /// The next checkpoint's id: greater than any that was ever used.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// What lies in the directory.
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.job.directory()
    }

    /// The checkpoint that the next attempt goes on from.
    pub fn base(&self) -> Option<Arc<CheckpointMetadata>> {
        self.base.clone()
    }

    /// A log for one shard, to be opened on the shard's thread.
    pub fn shard_log(&self, wake: Wake) -> Result<LogSeed, StorageError> {
        let source = self.keeper.source(FileKind::Data, self.config.file_size_bytes, wake.clone());
        let lineage = self.job.identity().lineage;
        LogSeed::new(self.config.clone(), lineage, self.chosen.clone(), Box::new(source), wake)
    }

    /// Makes a checkpoint complete. Waits for the disk.
    pub fn commit(&mut self, metadata: CheckpointMetadata, clock: &dyn Clock) -> CommitResult {
        if let Err(cause) = self.store.begin(metadata) {
            return CommitResult::Failed(cause);
        }
        loop {
            let now = Duration::from_nanos(clock.now_ns());
            match self.store.blocking_poll(now, COMMIT_LOOK) {
                Committed::Pending => {}
                Committed::Complete(metadata) => {
                    self.base = Some(metadata);
                    return CommitResult::Complete;
                }
                Committed::Unknown { cause, .. } => return CommitResult::Unknown(cause),
            }
        }
    }

    /// Publishes the newest checkpoint, deletes those beyond the retained ones, and frees log files.
    /// `oldest_pending` is the oldest checkpoint that may still complete, or the next one's id.
    pub fn clean(&mut self, oldest_pending: u64) {
        if let Some(newest) = self.store.newest().map(|newest| newest.id)
            && let Err(cause) = self.store.publish(newest)
        {
            tracing::warn!("checkpoint {newest} is complete and was not published: {cause}");
        }
        if let Err(cause) = self.store.subsume() {
            tracing::warn!("an old checkpoint was not deleted: {cause}");
        }
        let needs =
            Needs { in_use: self.store.files_in_use(), oldest_pending, published: self.store.published() };
        let mut files = self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(cause) = files.reclaim(&needs) {
            tracing::warn!("{cause}");
        }
    }
}

fn temporary_path() -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("tidegate-checkpoints-{}-{count}", std::process::id()))
}

/// The checkpoint to go on from; those that are passed over are taken out of `loaded`.
fn choose(
    loaded: &mut Loaded,
    directory: &Arc<dyn Directory>,
    lineage: u128,
    recovery: Option<&Recovery>,
) -> Result<Option<Arc<CheckpointMetadata>>, JobError> {
    let Some(recovery) = recovery else { return Ok(None) };
    if recovery.fresh {
        return Ok(None);
    }
    if let Some(from) = &recovery.from {
        return from_path(loaded, directory, from).map(Some);
    }
    let mut reader = LogReader::new(directory.clone(), lineage, ReadMode::Cached);
    let mut damaged = Vec::new();
    let found = loaded.checkpoints.iter().find(|checkpoint| match verify(&mut reader, checkpoint) {
        Ok(_) => true,
        Err(cause) => {
            tracing::error!("checkpoint {} cannot be used: {cause}", checkpoint.id);
            damaged.push((checkpoint.id, cause));
            false
        }
    });
    match (found.cloned(), damaged.into_iter().next()) {
        (None, Some((_, newest))) => Err(JobError::Storage(StorageError::NoReadableCheckpoint {
            path: directory.path(""),
            count: loaded.checkpoints.len(),
            newest: Box::new(newest),
        })),
        (found, _) => Ok(found),
    }
}

/// The checkpoint that a `chk-N` directory, or the `_metadata` in it, stands for.
fn from_path(
    loaded: &Loaded,
    directory: &Arc<dyn Directory>,
    from: &Path,
) -> Result<Arc<CheckpointMetadata>, JobError> {
    let wrong = |expected: String| JobError::From { path: from.to_path_buf(), expected };
    let chk =
        if from.file_name().is_some_and(|name| name == "_metadata") { from.parent() } else { Some(from) };
    let chk = chk.unwrap_or(from);
    let root = directory.path("");
    let ids = || loaded.checkpoints.iter().map(|c| format!("chk-{}", c.id)).collect::<Vec<_>>().join(", ");
    if !chk.join("_metadata").is_file() {
        return Err(wrong(format!("a directory with a _metadata file; {} holds: {}", root.display(), ids())));
    }
    let inside = chk.canonicalize().ok().zip(root.canonicalize().ok());
    if inside.is_none_or(|(chk, root)| chk.parent() != Some(&root)) {
        return Err(wrong(format!("a checkpoint in the job's own directory {}", root.display())));
    }
    let id = chk.file_name().and_then(|name| name.to_str()?.strip_prefix("chk-")?.parse::<u64>().ok());
    let found = loaded.checkpoints.iter().find(|checkpoint| Some(checkpoint.id) == id);
    found.cloned().ok_or_else(|| wrong(format!("one of the readable checkpoints: {}", ids())))
}
