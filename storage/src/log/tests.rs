//! The log on a simulated disk: all short histories, all crashes, all faults, and many seeds.
//!
//! What is claimed everywhere: a frame that was called durable is read back after any crash; of any other frame
//! either its very bytes are read or an error; and the log goes on after a fault.

use super::file::{FileKind, FileName, InlineSource, LogFiles, SharedFiles};
use super::frame::{FrameKind, FrameTag};
use super::reader::LogReader;
use super::reclaim::Needs;
use super::recover::scan;
use super::writer::{AppendError, LogWriter, Outcome, Span};
use crate::checkpoint_store::{CheckpointStore, Committed, Loaded, metadata_name, verify};
use crate::config::LogConfig;
use crate::device::directory::{Directory, ReadMode, publish, read_whole};
use crate::device::memory::Block;
use crate::device::sim::{Fault, Kept, Random, SimDisk};
use crate::error::StorageError;
use crate::handle::Handle;
use crate::metadata::tests::sample;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LINEAGE: u128 = 0x11;

/// Files of three blocks beside their head, staging of two blocks: switches and spanning frames come at once.
fn config() -> LogConfig {
    LogConfig {
        file_size_bytes: 16 << 10,
        block_size_bytes: 8 << 10,
        blocks: 3,
        operation_deadline: Duration::from_secs(10),
        spare_files_max: 2,
        ..LogConfig::default()
    }
}

fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + number * 131 + (i >> 8)) as u8).collect()
}

struct Written {
    handle: Handle,
    payload: Vec<u8>,
    span: Span,
}

/// A log on a simulated disk, and what was written to it.
struct World {
    writer: LogWriter,
    frames: Vec<Written>,
    now: Duration,
}

impl World {
    fn start(disk: &SimDisk, run: u32, seed: Option<u64>) -> Result<World, StorageError> {
        let files = LogFiles::open(Arc::new(disk.clone()), LINEAGE, run, true, &config())?;
        Ok(World {
            writer: writer(disk, &Arc::new(Mutex::new(files)), FileKind::Data, seed),
            frames: Vec::new(),
            now: Duration::ZERO,
        })
    }

    /// Appends if there is room now.
    fn append(&mut self, length: usize) -> Result<(), AppendError> {
        let number = self.frames.len();
        let payload = payload(number, length);
        let tag = FrameTag { kind: FrameKind::Data, checkpoint: number as u64 + 1, owner: 0 };
        let from = self.writer.position();
        let handle = self.writer.append(tag, &payload)?;
        let span = Span { from, to: self.writer.position() };
        self.frames.push(Written { handle, payload, span });
        Ok(())
    }

    fn poll(&mut self) {
        self.now += Duration::from_millis(1);
        self.writer.poll(self.now).expect("a simulated device itself never fails");
    }

    /// Appends, making room by polling a bounded number of times.
    fn append_for_sure(&mut self, length: usize) -> Result<(), StorageError> {
        for _ in 0..200 {
            match self.append(length) {
                Ok(()) => return Ok(()),
                Err(AppendError::Storage(error)) => return Err(error),
                Err(AppendError::BufferFull | AppendError::NoFile) => self.poll(),
            }
        }
        panic!("no room after 200 polls");
    }

    fn settle(&mut self, span: Span) -> Outcome {
        self.writer.flush();
        for _ in 0..400 {
            match self.writer.outcome(span) {
                Outcome::Pending => self.poll(),
                settled => return settled,
            }
        }
        panic!("{span:?} is pending after 400 polls");
    }

    /// Checks what a crash now would leave, for one choice of what is kept.
    fn check_crashed(&self, after: &SimDisk, what: &dyn Fn() -> String) {
        for read in [ReadMode::Direct, ReadMode::Cached] {
            let mut reader = LogReader::new(Arc::new(after.clone()), LINEAGE, read);
            for (number, frame) in self.frames.iter().enumerate() {
                let durable = matches!(self.writer.outcome(frame.span), Outcome::Durable);
                match reader.read(frame.handle) {
                    Ok((_, bytes)) => assert_eq!(bytes, frame.payload, "frame {number}, {}", what()),
                    Err(error) => {
                        assert!(!durable, "frame {number} was durable: {error}; {}", what());
                        assert!(error.is_damage(), "{error}");
                    }
                }
            }
        }
    }
}

fn writer(disk: &SimDisk, files: &SharedFiles, kind: FileKind, seed: Option<u64>) -> LogWriter {
    let source = InlineSource::new(files.clone(), kind, config().file_size_bytes);
    let blocks = Block::region(config().block_size_bytes, config().blocks);
    LogWriter::new(config(), LINEAGE, Box::new(disk.device(seed)), Box::new(source), blocks)
}

/// Calls `each` with the disk after every possible crash now.
fn all_crashes(disk: &SimDisk, mut each: impl FnMut(&SimDisk, &dyn Fn() -> String)) -> usize {
    let (writes, names) = disk.uncovered();
    let all = 4usize.pow(writes as u32) << names;
    for choice in 0..all {
        let after = disk.crashed(
            |index| Kept::OF_WRITE[choice >> names >> (2 * index) & 3],
            |index| choice >> index & 1 == 1,
        );
        each(&after, &|| format!("crash {choice} of {all}: {writes} writes, {names} names"));
    }
    all
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A frame of one block.
    Small,
    /// A frame of three, which does not fit the file behind another and spans staging blocks.
    Large,
    Flush,
    /// The disk carries out one operation, the oldest or the newest, and the log sees it.
    First,
    Last,
}

const OPS: [Op; 5] = [Op::Small, Op::Large, Op::Flush, Op::First, Op::Last];

/// Goal: no crash takes what was called durable, and none makes a frame of other bytes.
/// Method: all sequences of at most 4 operations, on a fresh log and on one with a durable frame; each crash after
/// the last of them (earlier ones are the last of a shorter sequence); each combination of what is kept of each
/// uncovered write (all, none, first half, second half) and each name. Then the next run begins and writes.
#[test]
fn all_short_histories_and_all_their_crashes() {
    let (mut histories, mut crashes, mut durable) = (0, 0, 0);
    for begun in [false, true] {
        for length in 1..=4 {
            for number in 0..OPS.len().pow(length) {
                let history: Vec<Op> =
                    (0..length).map(|i| OPS[number / OPS.len().pow(i) % OPS.len()]).collect();
                let disk = SimDisk::new();
                let mut world = World::start(&disk, 1, None).unwrap();
                if begun {
                    world.append(100).unwrap();
                    assert!(matches!(world.settle(world.frames[0].span), Outcome::Durable));
                }
                disk.allow(0, false);
                for op in &history {
                    match op {
                        Op::Small => drop(world.append(4000)),
                        Op::Large => drop(world.append(3 * 4096 - 64)),
                        Op::Flush => world.writer.flush(),
                        Op::First | Op::Last => disk.allow(1, matches!(op, Op::Last)),
                    }
                    world.poll();
                    disk.allow(0, false);
                }
                histories += 1;
                durable += usize::from(world.writer.durable() > 0);
                crashes += all_crashes(&disk, |after, what| {
                    world.check_crashed(after, &|| format!("{history:?}, {}", what()));
                });
                let after = disk.crashed(|_| Kept::Front, |_| true);
                let mut next = World::start(&after, 2, None).unwrap();
                next.append(50).unwrap();
                assert!(matches!(next.settle(next.frames[0].span), Outcome::Durable));
                world.check_crashed(&after, &|| format!("{history:?}, and another run"));
            }
        }
    }
    eprintln!("{histories} histories, {crashes} crashes, {durable} with something durable");
    assert!(histories == 2 * (5 + 25 + 125 + 625) && durable > histories / 2);
}

/// Goal: of commits, written one at a time, a scan after any crash finds all that were durable, in order, cuts what
/// was torn, and never calls a crash damage; but a flipped bit before the last commit is damage, with its place.
#[test]
fn a_torn_tail_is_cut_and_damage_before_it_is_an_error() {
    let mut crashes = 0;
    for steps in 0..10 {
        let disk = SimDisk::new();
        // An earlier life left frames in the blocks of the file.
        let files = Arc::new(Mutex::new(
            LogFiles::open(Arc::new(disk.clone()), LINEAGE, 1, true, &config()).unwrap(),
        ));
        let mut old = writer(&disk, &files, FileKind::Commits, None);
        for id in 1..=3 {
            commit(&mut old, id).unwrap();
            old.flush();
            old.poll(Duration::ZERO).unwrap();
        }
        drop(old);
        let free = Needs { in_use: BTreeSet::new(), oldest_pending: 9, published: 9 };
        assert_eq!(files.lock().unwrap().reclaim(&free).unwrap().len(), 2, "one was ready, one written");
        let mut log = writer(&disk, &files, FileKind::Commits, None);
        let mut written: Vec<(Handle, Span)> = Vec::new();
        let mut done = Vec::new();
        for step in 0..steps {
            let settled =
                written.last().is_none_or(|(_, span)| matches!(log.outcome(*span), Outcome::Durable));
            if step % 2 == 0 && settled {
                disk.allow(0, false);
                let from = log.position();
                let handle = commit(&mut log, 10 + step as u64).unwrap();
                written.push((handle, Span { from, to: log.position() }));
                log.flush();
            } else {
                disk.allow(1, false);
            }
            log.poll(Duration::ZERO).unwrap();
        }
        done.extend(written.iter().filter(|w| matches!(log.outcome(w.1), Outcome::Durable)).map(|w| w.0));
        let Some((first, _)) = written.first() else { continue };
        let name = FileName { kind: FileKind::Commits, lineage: LINEAGE, incarnation: first.incarnation };
        crashes += all_crashes(&disk, |after, what| {
            let Ok(found) = scan(after, name) else { panic!("{}", what()) };
            let handles: Vec<Handle> = found.frames.iter().map(|frame| frame.handle).collect();
            assert!(handles.starts_with(&done), "{}", what());
            let all: Vec<Handle> = written.iter().map(|w| w.0).collect();
            assert!(all.starts_with(&handles), "{}", what());
        });
        if done.len() < 2 {
            continue;
        }
        for (index, handle) in done.iter().enumerate() {
            for byte in 0..64 + 40u64 {
                let after = disk.crashed(|_| Kept::None, |_| true);
                after.flip(&name.to_name(), handle.offset + byte, (byte % 8) as u8);
                match scan(&after, name) {
                    Err(StorageError::Corrupt { path, offset, .. }) => {
                        assert!(index + 1 < done.len());
                        assert_eq!((path, offset), (after.path(&name.to_name()), handle.offset));
                    }
                    Ok(found) => {
                        assert_eq!((index + 1, found.frames.len()), (done.len(), index), "the last is cut");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    assert!(crashes > 8, "{crashes}");
}

fn commit(log: &mut LogWriter, id: u64) -> Result<Handle, AppendError> {
    log.append(FrameTag { kind: FrameKind::Commit, checkpoint: id, owner: 0 }, &payload(id as usize, 40))
}

/// Appends frames of all sizes and settles each pair; returns what became of the pairs, and why none could be had.
fn script(world: &mut World) -> (Vec<(Span, Outcome)>, Vec<StorageError>) {
    let (mut spans, mut refused) = (Vec::new(), Vec::new());
    for length in [10, 5000, 4032, 12_000, 1, 9000] {
        let from = world.writer.position();
        for length in [length, length / 2] {
            if let Err(error) = world.append_for_sure(length) {
                refused.push(error);
            }
        }
        let span = Span { from, to: world.writer.position() };
        spans.push((span, world.settle(span)));
    }
    (spans, refused)
}

/// Goal: whichever operation fails, and however, nothing durable is lost, every span ends, a failure names its file,
/// and the log goes on; a failed sync condemns its file, which is never synced again.
#[test]
fn f_77_f_79_the_nth_operation_fails_in_every_way() {
    let disk = SimDisk::new();
    let (spans, _) = script(&mut World::start(&disk, 1, None).unwrap());
    assert!(spans.iter().all(|(_, outcome)| matches!(outcome, Outcome::Durable)));
    let operations = disk.operations();
    assert!(operations > 40, "{operations}");
    let (mut failed, mut condemned) = (0, 0);
    for number in 0..operations {
        for fault in Fault::HONEST {
            let what = format!("operation {number}: {fault:?}");
            let disk = SimDisk::new();
            disk.put_fault(number, fault);
            let mut world = match World::start(&disk, 1, None) {
                Ok(world) => world,
                Err(error) => {
                    assert!(error.to_string().contains("sim"), "{what}: {error}");
                    continue;
                }
            };
            let (spans, refused) = script(&mut world);
            for error in &refused {
                assert!(error.to_string().contains("sim/log/"), "{what}: {error}");
            }
            for (_, outcome) in &spans {
                if let Outcome::Failed(error) = outcome {
                    failed += 1;
                    assert!(error.to_string().contains("sim/log/data-"), "{what}: {error}");
                }
            }
            let faults = world.writer.take_condemned();
            condemned += faults.len();
            for condemned in &faults {
                assert!(matches!(condemned.cause, StorageError::SyncFailed { .. }), "{what}");
                let later =
                    world.frames.iter().filter(|frame| frame.handle.incarnation == condemned.incarnation);
                for frame in later {
                    let outcome = world.writer.outcome(frame.span);
                    assert!(matches!(outcome, Outcome::Failed(_)), "{what}: {outcome:?}");
                }
            }
            if matches!(fault, Fault::Late(_) | Fault::Reordered | Fault::Twice | Fault::Short) {
                let all = spans.iter().all(|(_, outcome)| matches!(outcome, Outcome::Durable));
                // A directory's call has no bytes to be short of: it fails.
                assert!(all || fault == Fault::Short, "{what}: nothing is lost by it");
            }
            // Once is all it takes: the next span is durable.
            let from = world.writer.position();
            world.append_for_sure(6000).unwrap();
            let span = Span { from, to: world.writer.position() };
            assert!(matches!(world.settle(span), Outcome::Durable), "{what}");
            for kept in Kept::OF_WRITE {
                world.check_crashed(&disk.crashed(|_| kept, |_| kept == Kept::All), &|| what.clone());
            }
            assert!(world.writer.counts().strays <= 1, "{what}");
        }
    }
    eprintln!("{operations} operations: {failed} failed spans, {condemned} condemned files");
    assert!(failed > 40 && condemned > 10);
}

/// Goal: a disk that says it has written, and has not, is found out when the frame is read; no bytes are made up.
#[test]
fn a_disk_that_lies_is_found_out_by_the_checksum() {
    let disk = SimDisk::new();
    script(&mut World::start(&disk, 1, None).unwrap());
    let mut lost = 0;
    for number in 0..disk.operations() {
        let disk = SimDisk::new();
        disk.put_fault(number, Fault::Lie);
        let Ok(mut world) = World::start(&disk, 1, None) else { continue };
        script(&mut world);
        let after = disk.crashed(|_| Kept::None, |_| false);
        let mut reader = LogReader::new(Arc::new(after), LINEAGE, ReadMode::Direct);
        for frame in &world.frames {
            match reader.read(frame.handle) {
                Ok((_, bytes)) => assert_eq!(bytes, frame.payload, "operation {number}"),
                Err(error) => {
                    assert!(error.is_damage(), "{error}");
                    lost += 1;
                }
            }
        }
    }
    assert!(lost > 10, "{lost}");
}

/// Goal: an operation without an answer fails its span at the deadline; its memory comes back with the answer, and
/// the answer changes nothing.
#[test]
fn an_operation_without_an_answer_fails_at_the_deadline() {
    let disk = SimDisk::new();
    let mut world = World::start(&disk, 1, None).unwrap();
    world.append(100).unwrap();
    let first = world.frames[0].span;
    disk.allow(0, false);
    world.writer.flush();
    world.poll();
    assert_eq!(world.writer.next_deadline(), Some(Duration::from_secs(10)));
    world.now = Duration::from_secs(9);
    world.poll();
    assert!(matches!(world.writer.outcome(first), Outcome::Pending));
    world.now = Duration::from_secs(10);
    world.poll();
    let Outcome::Failed(error) = world.writer.outcome(first) else { panic!("overdue") };
    assert!(error.to_string().contains("within 10000 ms"), "{error}");
    // Two of three blocks are left, so a frame of one still goes, to another file.
    world.append(100).unwrap();
    assert_ne!(world.frames[0].handle.incarnation, world.frames[1].handle.incarnation);
    disk.allow(usize::MAX, false);
    assert!(matches!(world.settle(world.frames[1].span), Outcome::Durable));
    assert!(matches!(world.writer.outcome(first), Outcome::Failed(_)), "for good");
    for _ in 0..20 {
        world.append_for_sure(9000).unwrap();
    }
    assert!(matches!(world.settle(world.frames[21].span), Outcome::Durable), "no memory was lost");
}

/// Goal: whatever order the disk chooses, whatever goes wrong, wherever the power goes: as above.
/// Method: seeds; `TIDEGATE_LOG_SEEDS` says how many.
#[test]
fn f_77_power_cuts_at_random_take_nothing_durable() {
    let seeds = std::env::var("TIDEGATE_LOG_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (mut cuts, mut durable, mut failed) = (0u64, 0u64, 0u64);
    for seed in 1..=seeds {
        let mut random = Random(seed);
        let disk = SimDisk::new();
        let mut world = World::start(&disk, 1, Some(seed)).unwrap();
        for _ in 0..random.below(4) {
            let fault = Fault::HONEST[random.below(Fault::HONEST.len())];
            disk.put_fault(disk.operations() + random.below(60) as u64, fault);
        }
        for step in 0..40 {
            match random.below(6) {
                0..=2 => {
                    let length = random.below(12_000);
                    let _ = world.append(length);
                }
                3 => world.writer.flush(),
                _ => world.poll(),
            }
            if random.below(4) == 0 {
                cuts += 1;
                let after = disk.crashed_at_random(&mut random);
                world.check_crashed(&after, &|| format!("seed {seed}, step {step}"));
            }
        }
        world.writer.flush();
        for _ in 0..400 {
            world.poll();
        }
        for frame in &world.frames {
            match world.writer.outcome(frame.span) {
                Outcome::Durable => durable += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::Pending => panic!("seed {seed}: pending although all was settled"),
            }
        }
    }
    eprintln!("{cuts} power cuts over {seeds} seeds; frames durable {durable}, failed {failed}");
    assert!(cuts > seeds && durable > failed && failed > 0);
}

/// Goal: a published file is the old one or the new one, whole, whatever fails and wherever the power goes; and
/// the new one once publishing has succeeded.
#[test]
fn publishing_is_all_or_nothing() {
    for fault in std::iter::once(None).chain(Fault::HONEST.map(Some)) {
        for number in 0..4 {
            let disk = SimDisk::new();
            publish(&disk, "job", b"old").unwrap();
            if let Some(fault) = fault {
                disk.put_fault(disk.operations() + number, fault);
            }
            let published = publish(&disk, "job", b"new, and longer").is_ok();
            all_crashes(&disk, |after, what| {
                let text = read_whole(after, "job", "the test").unwrap();
                assert!(
                    text == b"new, and longer" || text == b"old" && !published,
                    "{fault:?} at {number}, {}: {text:?}",
                    what()
                );
            });
        }
    }
}

/// Goal: over any number of crashes the newest complete checkpoint is found and verifies, ids are not used again,
/// and no file that it needs was recycled.
/// Method: seeds; each is a chain of runs on one disk. A run takes checkpoints whose state is the last three
/// frames, publishes and reclaims when it likes, meets faults, and ends in a crash.
#[test]
fn the_newest_complete_checkpoint_outlives_every_crash() {
    let (mut complete, mut unknown, mut recycled) = (0u64, 0u64, 0u64);
    for seed in 1..=60u64 {
        let mut random = Random(seed);
        let mut disk = SimDisk::new();
        let (mut newest, mut largest) = (0u64, 0u64);
        for run in 1..=6u32 {
            let directory: Arc<dyn Directory> = Arc::new(disk.clone());
            let what = format!("seed {seed}, run {run}");
            let loaded = Loaded::read(&directory, LINEAGE).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = loaded.checkpoints.first().map_or(0, |checkpoint| checkpoint.id);
            assert!(found >= newest, "{what}: {found} was found, {newest} was complete");
            assert!(loaded.largest_id >= largest.min(newest) && loaded.largest_id >= found, "{what}");
            let mut reader = LogReader::new(directory.clone(), LINEAGE, ReadMode::Direct);
            if let Some(checkpoint) = loaded.checkpoints.first() {
                verify(&mut reader, checkpoint).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let files = LogFiles::open(directory.clone(), LINEAGE, run, true, &config()).unwrap();
            let files = Arc::new(Mutex::new(files));
            let mut data = writer(&disk, &files, FileKind::Data, Some(random.draw()));
            let commits = writer(&disk, &files, FileKind::Commits, Some(random.draw()));
            let mut store = CheckpointStore::open(directory, LINEAGE, 2, &loaded, commits).unwrap();
            newest = found;
            let mut id = loaded.largest_id;
            let mut list: Vec<Handle> = Vec::new();
            for _ in 0..random.below(3) {
                let fault = Fault::HONEST[random.below(Fault::HONEST.len())];
                disk.put_fault(disk.operations() + random.below(80) as u64, fault);
            }
            let mut now = Duration::ZERO;
            for _ in 0..3 + random.below(8) {
                id += 1;
                largest = id;
                let tag = FrameTag { kind: FrameKind::Data, checkpoint: id, owner: 0 };
                let from = data.position();
                let mut handle = None;
                for _ in 0..200 {
                    match data.append(tag, &payload(id as usize, 3000)) {
                        Ok(at) => handle = Some(at),
                        Err(AppendError::Storage(_)) => {}
                        Err(_) => {
                            data.poll(now).unwrap();
                            continue;
                        }
                    }
                    break;
                }
                data.flush();
                let span = Span { from, to: data.position() };
                while matches!(data.outcome(span), Outcome::Pending) {
                    now += Duration::from_millis(1);
                    data.poll(now).unwrap();
                }
                let condemned = !data.take_condemned().is_empty();
                let (Some(handle), Outcome::Durable, false) = (handle, data.outcome(span), condemned) else {
                    // Frames of a condemned file count only once they are read again; here they are left.
                    list.clear();
                    continue;
                };
                list.push(handle);
                let keep = list.len().saturating_sub(3);
                list.drain(..keep);
                let mut metadata = sample(id, &list);
                metadata.run = run;
                store.begin(metadata).unwrap();
                let committed = loop {
                    now += Duration::from_millis(1);
                    match store.poll(now) {
                        Committed::Pending => {}
                        settled => break settled,
                    }
                };
                match committed {
                    Committed::Complete(_) => {
                        complete += 1;
                        newest = id;
                    }
                    _ => unknown += 1,
                }
                if random.below(3) > 0 && store.publish(id).is_ok() {
                    let _ = store.subsume();
                    let needs = Needs {
                        in_use: store.files_in_use(),
                        oldest_pending: id + 1,
                        published: store.published(),
                    };
                    let _ = files.lock().unwrap().reclaim(&needs);
                }
            }
            recycled += files.lock().unwrap().counts().recycled;
            let after = disk.crashed_at_random(&mut random);
            drop((data, store));
            disk = after;
        }
    }
    eprintln!("{complete} complete, {unknown} of unknown outcome, {recycled} files recycled");
    assert!(complete > 1000 && unknown > 5 && recycled > 100);
}

/// Goal: a flipped bit anywhere in the published metadata is named, and the log's copy used; the simulated disk
/// shows what the real one's test shows for a few.
#[test]
fn the_path_in_an_error_is_the_files() {
    let disk = SimDisk::new();
    disk.create_dir("chk-1").unwrap();
    publish(&disk, &metadata_name(1), b"noise").unwrap();
    let directory: Arc<dyn Directory> = Arc::new(disk);
    match Loaded::read(&directory, LINEAGE) {
        Err(StorageError::NoReadableCheckpoint { newest, count: 1, .. }) => match *newest {
            StorageError::Corrupt { path, .. } => assert_eq!(path, Path::new("sim/chk-1/_metadata")),
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}
