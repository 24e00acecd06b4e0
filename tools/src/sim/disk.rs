//! The storage of a simulated job: logs and completed checkpoints on a disk that loses what was not synced.
//!
//! What is real: log files, writers, the store of checkpoints and its recovery. What is not: the thread that
//! makes files ready, and the disk. A device starts and ends its operations in an order that the seed chooses.

use super::clock::Rng;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_storage::checkpoint_store::{CheckpointStore, Committed, Loaded};
use tidegate_storage::config::LogConfig;
use tidegate_storage::device::directory::Directory;
use tidegate_storage::device::memory::Block;
use tidegate_storage::device::sim::{Random, SimDisk};
use tidegate_storage::error::StorageError;
use tidegate_storage::log::file::{FileKind, InlineSource, LogFiles, SharedFiles};
use tidegate_storage::log::writer::LogWriter;
use tidegate_storage::metadata::CheckpointMetadata;

/// Bounds at which files are switched and staging is full all the time.
fn tiny() -> LogConfig {
    LogConfig {
        file_size_bytes: 16 << 10,
        block_size_bytes: 8 << 10,
        blocks: 3,
        operation_deadline: Duration::from_secs(3600),
        spare_files_max: 2,
        ..LogConfig::default()
    }
}

/// What is open on the disk during one life of the process.
pub struct Storage {
    disk: SimDisk,
    files: SharedFiles,
    store: CheckpointStore,
    lineage: u128,
    run: u32,
    next_id: u64,
    base: Option<Arc<CheckpointMetadata>>,
}

impl Storage {
    /// Recovers what a disk holds, as run `run` of a job.
    ///
    /// # Errors
    ///
    /// What is wrong on the disk: for the simulation, a fault of the engine.
    pub fn open(disk: SimDisk, lineage: u128, run: u32, rng: &mut Rng) -> Result<Storage, StorageError> {
        let directory: Arc<dyn Directory> = Arc::new(disk.clone());
        let loaded = Loaded::read(&directory, lineage)?;
        let files = LogFiles::open(directory.clone(), lineage, run, true, &tiny())?;
        let files = Arc::new(Mutex::new(files));
        let log = writer(&disk, &files, FileKind::Commits, lineage, rng);
        let store = CheckpointStore::open(directory, lineage, 1, &loaded, log)?;
        let base = loaded.checkpoints.first().cloned();
        Ok(Storage { disk, files, store, lineage, run, next_id: loaded.largest_id + 1, base })
    }

    /// The next checkpoint's id: greater than any that was ever used.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The job, and which run of it this is.
    pub fn identity(&self) -> (u128, u32) {
        (self.lineage, self.run)
    }

    /// What the next attempt goes on from.
    pub fn base(&self) -> Option<Arc<CheckpointMetadata>> {
        self.base.clone()
    }

    /// What lies on the disk.
    pub fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(self.disk.clone())
    }

    /// A log for one shard.
    pub fn shard_log(&self, rng: &mut Rng) -> LogWriter {
        writer(&self.disk, &self.files, FileKind::Data, self.lineage, rng)
    }

    /// Begins to make a checkpoint complete; [`poll`](Self::poll) goes on with it.
    ///
    /// # Errors
    ///
    /// It was never begun.
    pub fn begin(&mut self, metadata: CheckpointMetadata) -> Result<(), StorageError> {
        self.store.begin(metadata)
    }

    /// Lets the disk do something for the commit that is under way: a step of its own, so that a crash may come
    /// between any two.
    pub fn poll(&mut self, now_ns: u64) -> Committed {
        let committed = self.store.poll(Duration::from_nanos(now_ns));
        if let Committed::Complete(metadata) = &committed {
            self.base = Some(metadata.clone());
        }
        committed
    }

    /// The disk after a crash now. What was not synced is kept, lost or torn as the seed says.
    pub fn crashed(&self, rng: &mut Rng) -> SimDisk {
        self.disk.crashed_at_random(&mut Random(rng.next()))
    }
}

fn writer(disk: &SimDisk, files: &SharedFiles, kind: FileKind, lineage: u128, rng: &mut Rng) -> LogWriter {
    let config = if kind == FileKind::Commits { tiny().of_commits() } else { tiny() };
    let source = InlineSource::new(files.clone(), kind, config.file_size_bytes);
    let blocks = Block::region(config.block_size_bytes, config.blocks);
    LogWriter::new(config, lineage, Box::new(disk.device(Some(rng.next()))), Box::new(source), blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINEAGE: u128 = 7;

    /// Goal: what was said to be complete is what a later life starts from, or something newer that was begun.
    /// Method: lives of a random number of disk steps, each ended by a crash; both outcomes of a crash amid a
    /// commit must have come up.
    #[test]
    fn a_complete_checkpoint_survives_every_crash() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut disk, mut complete, mut begun) = (SimDisk::new(), 0, 0);
            for run in 1..=6 {
                let mut storage = Storage::open(disk, LINEAGE, run, &mut rng).unwrap();
                let base = storage.base().map_or(0, |base| base.id);
                assert!((complete..=begun).contains(&base), "seed {seed}: {base} of {complete}..={begun}");
                if begun > complete {
                    *(if base == begun { &mut kept } else { &mut lost }) += 1;
                }
                (complete, begun) = (base, base);
                let mut id = storage.next_id();
                let mut under_way = false;
                for step in 0..rng.below(60) {
                    if !under_way {
                        let job = "sim".to_string();
                        let metadata = CheckpointMetadata {
                            lineage: LINEAGE,
                            run,
                            id,
                            triggered_ms: 0,
                            job,
                            operators: Vec::new(),
                        };
                        storage.begin(metadata).unwrap();
                        (under_way, begun, id) = (true, id, id + 1);
                    }
                    match storage.poll(step) {
                        Committed::Pending => {}
                        Committed::Complete(metadata) => (under_way, complete) = (false, metadata.id),
                        Committed::Unknown { id, cause } => panic!("seed {seed}: checkpoint {id}: {cause}"),
                    }
                }
                disk = storage.crashed(&mut rng);
            }
        }
        assert!(kept > 0 && lost > 0, "{kept} commits amid a crash were kept, {lost} lost");
    }
}
