//! The log on real files: both devices, a full disk, a sync that really fails.
//!
//! What a machine does not offer (io_uring, mounting) is skipped with a printed reason.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_storage::config::{BackendChoice, DirectChoice, LogConfig};
use tidegate_storage::device::Wake;
use tidegate_storage::device::directory::{ReadMode, RealDirectory};
use tidegate_storage::device::probe;
use tidegate_storage::error::StorageError;
use tidegate_storage::handle::Handle;
use tidegate_storage::log::file::{FileKind, Keeper, LogFiles, SharedFiles};
use tidegate_storage::log::frame::{FrameKind, FrameTag};
use tidegate_storage::log::index::{FrameIndex, IndexEntry};
use tidegate_storage::log::reader::LogReader;
use tidegate_storage::log::reclaim::Needs;
use tidegate_storage::log::writer::{AppendError, LogSeed, LogWriter, Outcome, Span};

const LINEAGE: u128 = 0x11;

struct Log {
    files: SharedFiles,
    directory: Arc<RealDirectory>,
    writer: LogWriter,
    begun: Instant,
    _keeper: Keeper,
}

impl Log {
    fn open(dir: &Path, run: u32, config: &LogConfig) -> Result<Log, StorageError> {
        let directory = Arc::new(RealDirectory::new(dir));
        let chosen = probe::choose(&*directory, "", config)?;
        let files = LogFiles::open(directory.clone(), LINEAGE, run, chosen.direct, config)?;
        let files = Arc::new(Mutex::new(files));
        let keeper = Keeper::start(files.clone()).unwrap();
        let source = keeper.source(FileKind::Data, config.file_size_bytes, Wake::nobody());
        let seed = LogSeed::new(config.clone(), LINEAGE, chosen, Box::new(source), Wake::nobody())?;
        Ok(Log { files, directory, writer: seed.open()?, begun: Instant::now(), _keeper: keeper })
    }

    fn poll(&mut self) {
        self.writer.blocking_poll(self.begun.elapsed(), Duration::from_millis(20)).unwrap();
    }

    fn append(&mut self, kind: FrameKind, checkpoint: u64, payload: &[u8]) -> Result<Handle, StorageError> {
        loop {
            match self.writer.append(FrameTag { kind, checkpoint, owner: 3 }, payload) {
                Ok(handle) => return Ok(handle),
                Err(AppendError::BufferFull | AppendError::NoFile) => self.poll(),
                Err(AppendError::Storage(error)) => return Err(error),
            }
        }
    }

    fn settle(&mut self, span: Span) -> Outcome {
        self.writer.flush();
        loop {
            match self.writer.outcome(span) {
                Outcome::Pending => self.poll(),
                settled => return settled,
            }
        }
    }

    fn reader(&self, mode: ReadMode) -> LogReader {
        LogReader::new(self.directory.clone(), LINEAGE, mode)
    }
}

/// Bytes that differ from frame to frame.
fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) ^ number.wrapping_mul(0x9e37) ^ (i >> 8)) as u8).collect()
}

fn small() -> LogConfig {
    LogConfig { file_size_bytes: 256 << 10, block_size_bytes: 32 << 10, blocks: 4, ..Default::default() }
}

/// Goal: what was durable is read back, over file switches, with either device, direct or not, and by the next
/// run; files of checkpoints that are gone are recycled, and old handles into them are refused by name.
#[test]
fn both_devices_keep_what_they_call_durable() {
    for backend in [BackendChoice::Uring, BackendChoice::Blocking] {
        for direct in [DirectChoice::Required, DirectChoice::Off] {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let config = LogConfig { backend, direct, ..small() };
            let mut log = match Log::open(dir.path(), 1, &config) {
                Ok(log) => log,
                Err(error @ StorageError::Unsupported { .. }) => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            eprintln!("{}", log.writer.describe());
            let mut kept: Vec<(Handle, usize, usize)> = Vec::new();
            let mut indexes = Vec::new();
            for checkpoint in 1..=8u64 {
                let from = log.writer.position();
                let mut index = FrameIndex::default();
                for n in 0..12usize {
                    let number = checkpoint as usize * 100 + n;
                    let length = [0, 1, 4032, 4033, 20_000, 70_000][number % 6];
                    let handle = log.append(FrameKind::Data, checkpoint, &payload(number, length)).unwrap();
                    index.frames.push(IndexEntry { handle, first_group: 0, last_group: 127, entries: 1 });
                    kept.push((handle, number, length));
                }
                indexes.push(log.append(FrameKind::Index, checkpoint, &index.encode()).unwrap());
                let span = Span { from, to: log.writer.position() };
                assert!(matches!(log.settle(span), Outcome::Durable));
            }
            assert!(log.writer.counts().files > 4, "files were switched");
            for mode in [ReadMode::Direct, ReadMode::Cached] {
                let mut reader = log.reader(mode);
                for (handle, number, length) in &kept {
                    let (header, bytes) = reader.read(*handle).unwrap();
                    assert_eq!((bytes, header.tag.owner), (&payload(*number, *length)[..], 3));
                }
                assert!(indexes.iter().all(|index| reader.verify(*index).is_ok()));
            }
            // The last checkpoint only is retained.
            let directory = log.directory.clone();
            drop(log);
            let mut log = Log::open(dir.path(), 2, &config).unwrap();
            let in_use: BTreeSet<_> = kept[84..].iter().map(|k| k.0.incarnation).collect();
            let freed = log
                .files
                .lock()
                .unwrap()
                .reclaim(&Needs { in_use, oldest_pending: 9, published: 0 })
                .unwrap();
            assert!(!freed.is_empty());
            let from = log.writer.position();
            for n in 0..20 {
                log.append(FrameKind::Data, 9, &payload(n, 30_000)).unwrap();
            }
            assert!(matches!(log.settle(Span { from, to: log.writer.position() }), Outcome::Durable));
            let counts = log.files.lock().unwrap().counts();
            assert!(counts.recycled > 0, "{counts:?}");
            let mut reader = LogReader::new(directory, LINEAGE, ReadMode::Cached);
            for (handle, ..) in &kept[84..] {
                reader.read(*handle).unwrap();
            }
            let gone = kept.iter().find(|k| freed.contains(&k.0.incarnation)).unwrap().0;
            let error = reader.read(gone).unwrap_err();
            assert!(matches!(error, StorageError::Missing { .. }), "{error}");
        }
    }
}

/// Goal: each flipped bit of a frame, header or payload, is an error that names file and offset; padding is
/// nobody's.
#[test]
fn a_flipped_bit_of_the_log_is_named() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut log = Log::open(dir.path(), 1, &small()).unwrap();
    let handle = log.append(FrameKind::Data, 1, &payload(1, 5000)).unwrap();
    let span = Span { from: 0, to: log.writer.position() };
    assert!(matches!(log.settle(span), Outcome::Durable));
    let mut reader = log.reader(ReadMode::Cached);
    let path = reader.path(handle.incarnation);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    for byte in (0..64 + 5000).filter(|b| *b < 64 || b % 97 == 0) {
        let at = handle.offset + byte;
        let mut one = [0];
        file.read_exact_at(&mut one, at).unwrap();
        file.write_all_at(&[one[0] ^ 1 << (byte % 8)], at).unwrap();
        match reader.read(handle) {
            Err(StorageError::Corrupt { path: named, offset, .. }) => {
                assert_eq!((named, offset), (path.clone(), handle.offset));
            }
            other => panic!("byte {byte}: {other:?}"),
        }
        file.write_all_at(&one, at).unwrap();
    }
    assert_eq!(reader.read(handle).unwrap().1.len(), 5000);
}

/// Goal: frames built in place are frames like others, and one that is dropped leaves nothing.
#[test]
fn frames_are_built_in_place() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut log = Log::open(dir.path(), 1, &small()).unwrap();
    let tag = FrameTag { kind: FrameKind::Data, checkpoint: 1, owner: 0 };
    let mut handles = Vec::new();
    for number in 0..40 {
        let text = payload(number, 10_000 + number * 100);
        loop {
            match log.writer.build(tag, 20_000) {
                Ok(mut frame) => {
                    frame.payload()[..text.len()].copy_from_slice(&text);
                    if number % 5 != 4 {
                        handles.push((frame.finish(text.len()), text));
                    }
                    break;
                }
                Err(AppendError::BufferFull | AppendError::NoFile) => log.poll(),
                Err(error) => panic!("{error}"),
            }
        }
    }
    let span = Span { from: 0, to: log.writer.position() };
    assert!(matches!(log.settle(span), Outcome::Durable));
    let mut reader = log.reader(ReadMode::Direct);
    assert_eq!(handles.len(), 32);
    for (handle, text) in &handles {
        assert_eq!(reader.read(*handle).unwrap().1, &text[..]);
    }
}

/// A file system mounted for one test.
struct Mounted(PathBuf, Option<String>);

impl Mounted {
    fn run(command: &mut Command) -> Result<String, String> {
        let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
        } else {
            Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    fn tmpfs(at: PathBuf, mebibytes: u32) -> Result<Mounted, String> {
        std::fs::create_dir_all(&at).unwrap();
        let options = format!("size={mebibytes}m");
        Self::run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at))?;
        Ok(Mounted(at, None))
    }

    fn ext4(at: PathBuf, image: &Path, bytes: u64) -> Result<Mounted, String> {
        std::fs::create_dir_all(&at).unwrap();
        File::create(image).unwrap().set_len(bytes).unwrap();
        let device = Self::run(Command::new("losetup").args(["-f", "--show"]).arg(image))?;
        let mount = Self::run(Command::new("mkfs.ext4").args(["-q", &device]))
            .and_then(|_| Self::run(Command::new("mount").arg(&device).arg(&at)));
        match mount {
            Ok(_) => Ok(Mounted(at, Some(device))),
            Err(error) => {
                let _ = Self::run(Command::new("losetup").args(["-d", &device]));
                Err(error)
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A helper thread may still be closing its files.
        for _ in 0..50 {
            if Self::run(Command::new("umount").arg(&self.0)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(device) = &self.1 {
            let _ = Self::run(Command::new("losetup").args(["-d", device]));
        }
    }
}

/// Goal: on a full disk the snapshot fails by name, the log goes on living, and succeeds again once there is
/// room; what was durable before is still there.
/// Method: a tmpfs of 64 MB, log files of 4 MiB, a ballast file that takes the rest.
#[test]
fn f_79_a_full_disk_fails_the_snapshot_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = match Mounted::tmpfs(dir.path().join("full"), 64) {
        Ok(mounted) => mounted,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let config = LogConfig { file_size_bytes: 4 << 20, ..Default::default() };
    let mut log = Log::open(&mounted.0, 1, &config).unwrap();
    eprintln!("{}", log.writer.describe());
    let first = log.append(FrameKind::Data, 1, &payload(1, 100_000)).unwrap();
    let span = Span { from: 0, to: log.writer.position() };
    assert!(matches!(log.settle(span), Outcome::Durable));
    let ballast = mounted.0.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[1; 1 << 20]).is_ok() {}
    let mut failed = None;
    for number in 0..100 {
        if let Err(error) = log.append(FrameKind::Data, 2, &payload(number, 1 << 20)) {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("100 MiB do not fit");
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("out of space"), "{error}");
    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    let from = log.writer.position();
    let again = log.append(FrameKind::Data, 3, &payload(3, 1 << 20)).unwrap();
    assert!(matches!(log.settle(Span { from, to: log.writer.position() }), Outcome::Durable));
    let mut reader = log.reader(ReadMode::Cached);
    assert_eq!(reader.read(first).unwrap().1, &payload(1, 100_000)[..]);
    assert_eq!(reader.read(again).unwrap().1, &payload(3, 1 << 20)[..]);
    drop(log);
}

/// Goal: when the disk under the file system cannot take the bytes, the snapshot fails by name, and what the disk
/// lost although it had acknowledged it is found by a direct read.
/// Method: ext4 on a loop device whose image lies in a tmpfs that is too small. Buffered writes, so that the
/// failure shows at the sync and not at the write.
#[test]
fn a_disk_that_loses_acknowledged_bytes_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let mounts = Mounted::tmpfs(dir.path().join("small"), 24).and_then(|small| {
        let image = small.0.join("image");
        let disk = Mounted::ext4(dir.path().join("disk"), &image, 200 << 20)?;
        Ok((small, disk))
    });
    // Dropped in reverse: the disk before the memory that its image lies in.
    let (_small, disk) = match mounts {
        Ok(mounts) => mounts,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    // Files are made by writing all their blocks, so those are holes in the image that the log fills up.
    let config = LogConfig {
        file_size_bytes: 2 << 20,
        direct: DirectChoice::Off,
        backend: BackendChoice::Blocking,
        ..Default::default()
    };
    let mut log = Log::open(&disk.0, 1, &config).unwrap();
    let mut durable: Vec<(Handle, Vec<u8>)> = Vec::new();
    let mut error = None;
    for number in 0..100usize {
        let from = log.writer.position();
        let bytes = payload(number, 900_000);
        let handle = match log.append(FrameKind::Data, number as u64, &bytes) {
            Ok(handle) => handle,
            Err(failed) => {
                error = Some(failed);
                break;
            }
        };
        match log.settle(Span { from, to: log.writer.position() }) {
            Outcome::Durable => durable.push((handle, bytes)),
            Outcome::Failed(failed) => {
                error = Some(failed);
                break;
            }
            Outcome::Pending => unreachable!("settled"),
        }
    }
    let error = error.expect("90 MB do not fit 24");
    eprintln!("after {} frames: {error}", durable.len());
    let condemned = log.writer.take_condemned();
    let synced = matches!(error, StorageError::SyncFailed { .. });
    assert_eq!(
        condemned.len(),
        usize::from(synced),
        "a failed sync condemns its file, and nothing else does"
    );
    // This disk has been seen to lose what it had acknowledged, in other files, too: a direct read finds it, and
    // never takes it for what was written.
    let mut reader = log.reader(ReadMode::Direct);
    let mut lost = 0;
    for (handle, bytes) in &durable {
        match reader.read(*handle) {
            Ok((_, read)) => assert_eq!(read, &bytes[..]),
            Err(error) => {
                assert!(error.is_damage() || matches!(error, StorageError::Io { .. }), "{error}");
                lost += 1;
            }
        }
    }
    eprintln!("{lost} of {} acknowledged frames are damaged, each found by a direct read", durable.len());
}
