//! A simulated disk: it keeps what was synced, and of the rest what the test or a seed says.
//!
//! Files are what the disk holds, plus the writes that no sync has covered; directories are what is durable, plus
//! the changes that no sync of the directory has covered. A crash keeps of each uncovered write nothing, all, or
//! a part of its sectors, and of each uncovered change of a name all or nothing, in any combination; only a file
//! made anew and never synced is as if it had not been.
//!
//! Operations of a device start and end in any order. A sync covers the writes that had *ended* when it started:
//! this is what makes a log fail that submits both together. Faults are put at an operation by its number, over
//! all devices and directory calls of the disk, so that "the n-th fails" can be tried for every n. A failed sync
//! behaves as ext4 was seen to: what it should have written is dropped from the disk but not from the cache, and
//! the next sync succeeds.

#![forbid(unsafe_code)]

use super::directory::{Directory, OpenFile, ReadFile, ReadMode, parent};
use super::memory::Block;
use super::{Completion, Device, FileSlot, Operation, OperationId, Request};
use crate::config::OPEN_FILES_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What may be torn: a sector is written whole or not at all.
const SECTOR: usize = 512;

/// What goes wrong with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// Half of the bytes are taken; of a call that writes none, EIO.
    Short,
    /// One byte is taken.
    ShortByOne,
    /// No byte is taken.
    Nothing,
    /// ECANCELED, and nothing was done.
    Cancelled,
    /// It ends only after the device was driven so many more times.
    Late(u32),
    /// The one that was submitted after it ends before it.
    Reordered,
    /// It ends twice.
    Twice,
    /// Says that it succeeded, and did nothing.
    Lie,
}

impl Fault {
    /// All that a disk which does not lie may do.
    pub const HONEST: [Fault; 9] = [
        Fault::Io,
        Fault::NoSpace,
        Fault::Short,
        Fault::ShortByOne,
        Fault::Nothing,
        Fault::Cancelled,
        Fault::Late(3),
        Fault::Reordered,
        Fault::Twice,
    ];
}

/// What a crash keeps of something that was not covered by a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept {
    /// All of it.
    All,
    /// Nothing.
    None,
    /// The first half of its sectors.
    Front,
    /// The second half.
    Back,
}

impl Kept {
    /// What can become of a write.
    pub const OF_WRITE: [Kept; 4] = [Kept::All, Kept::None, Kept::Front, Kept::Back];
}

/// A small generator of numbers (SplitMix64), so that a seed says everything.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }
}

#[derive(Debug, Clone)]
struct Pending {
    offset: u64,
    bytes: Vec<u8>,
    /// Still with the device: a sync that starts now does not cover it.
    under_way: Option<(u64, OperationId)>,
}

#[derive(Debug, Clone, Default)]
struct SimFile {
    size: u64,
    /// What is on the disk; sparse by block would be smaller, but test files are.
    disk: Vec<u8>,
    pending: Vec<Pending>,
    /// What a failed sync dropped, and the cache still shows.
    dropped: Vec<Pending>,
}

fn put(into: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[offset as usize..end].copy_from_slice(bytes);
}

impl SimFile {
    fn content(&self, mode: ReadMode) -> Vec<u8> {
        let mut bytes = self.disk.clone();
        bytes.resize(self.size as usize, 0);
        let cached = self.dropped.iter().filter(|_| mode == ReadMode::Cached);
        for write in cached.chain(self.pending.iter().filter(|write| write.under_way.is_none())) {
            put(&mut bytes, write.offset, &write.bytes);
        }
        bytes
    }

    fn sync(&mut self) {
        let (covered, rest) = self.pending.drain(..).partition(|write| write.under_way.is_none());
        self.pending = rest;
        let covered: Vec<Pending> = covered;
        for write in covered {
            put(&mut self.disk, write.offset, &write.bytes);
        }
    }

    fn fail_sync(&mut self) {
        let (lost, rest) = self.pending.drain(..).partition(|write| write.under_way.is_none());
        self.pending = rest;
        let lost: Vec<Pending> = lost;
        self.dropped.extend(lost);
    }
}

#[derive(Debug, Clone)]
enum Change {
    Set(String, u64),
    Unset(String),
}

#[derive(Debug, Clone, Default)]
struct SimDir {
    durable: BTreeMap<String, u64>,
    pending: Vec<Change>,
}

impl SimDir {
    fn apply(entries: &mut BTreeMap<String, u64>, change: &Change) {
        match change {
            Change::Set(name, file) => {
                entries.retain(|_, other| other != file);
                entries.insert(name.clone(), *file);
            }
            Change::Unset(name) => {
                entries.remove(name);
            }
        }
    }

    fn entries(&self) -> BTreeMap<String, u64> {
        let mut entries = self.durable.clone();
        self.pending.iter().for_each(|change| Self::apply(&mut entries, change));
        entries
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    files: BTreeMap<u64, SimFile>,
    /// Directories by their full name; "" is the root. A directory's own entry is durable at once: what is
    /// simulated are the names in it.
    dirs: BTreeMap<String, SimDir>,
    next_file: u64,
    next_device: u64,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    /// Faults that an operation met.
    met: u64,
    /// Operations that may still be carried out, where a test counts them out.
    allowed: Option<usize>,
    /// Of what is ready, the one that was submitted last is carried out first.
    last_first: bool,
}

/// A disk; clones share it.
#[derive(Debug, Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        let mut state = State::default();
        state.dirs.insert(String::new(), SimDir::default());
        SimDisk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets the operation with this number (from 0, over the disk's life) go wrong.
    pub fn put_fault(&self, operation: u64, fault: Fault) {
        self.state().faults.insert(operation, fault);
    }

    /// From now on devices carry out so many operations and no more, the last one submitted first if asked for.
    pub fn allow(&self, operations: usize, last_first: bool) {
        let mut state = self.state();
        state.allowed = Some(operations);
        state.last_first = last_first;
    }

    /// Operations and calls so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Faults that were met so far.
    pub fn faults_met(&self) -> u64 {
        self.state().met
    }

    /// A device on this disk. With a seed it starts and ends operations in an order drawn from it; without, in the
    /// order of their submission.
    pub fn device(&self, seed: Option<u64>) -> SimDevice {
        let mut state = self.state();
        state.next_device += 1;
        SimDevice {
            disk: self.clone(),
            number: state.next_device,
            files: vec![None; OPEN_FILES_MAX],
            queue: VecDeque::new(),
            ended: Vec::new(),
            random: seed.map(Random),
            drives: 0,
        }
    }

    /// How many things a crash now would decide on: uncovered writes, then uncovered changes of names.
    pub fn uncovered(&self) -> (usize, usize) {
        let state = self.state();
        let writes = state.files.values().map(|file| file.pending.len()).sum();
        (writes, state.dirs.values().map(|dir| dir.pending.len()).sum())
    }

    /// The disk after a crash now: `writes` and `names` say what is kept of each uncovered thing, in the order of
    /// [`uncovered`](Self::uncovered). This disk is not changed.
    pub fn crashed(
        &self,
        mut writes: impl FnMut(usize) -> Kept,
        mut names: impl FnMut(usize) -> bool,
    ) -> SimDisk {
        let mut state = self.state().clone();
        let mut number = 0;
        for file in state.files.values_mut() {
            for write in std::mem::take(&mut file.pending) {
                let kept = writes(number);
                number += 1;
                let middle = write.bytes.len() / SECTOR / 2 * SECTOR;
                let range = match kept {
                    Kept::All => 0..write.bytes.len(),
                    Kept::None => 0..0,
                    Kept::Front => 0..middle,
                    Kept::Back => middle..write.bytes.len(),
                };
                put(&mut file.disk, write.offset + range.start as u64, &write.bytes[range]);
            }
            file.dropped.clear();
        }
        let mut number = 0;
        for dir in state.dirs.values_mut() {
            for change in std::mem::take(&mut dir.pending) {
                if names(number) {
                    SimDir::apply(&mut dir.durable, &change);
                }
                number += 1;
            }
        }
        let named: BTreeSet<u64> =
            state.dirs.values().flat_map(|dir| dir.durable.values().copied()).collect();
        state.files.retain(|number, _| named.contains(number));
        state.faults.clear();
        state.allowed = None;
        SimDisk(Arc::new(Mutex::new(state)))
    }

    /// A crash whose outcome is drawn.
    pub fn crashed_at_random(&self, random: &mut Random) -> SimDisk {
        let mut other = Random(random.draw());
        self.crashed(|_| Kept::OF_WRITE[random.below(Kept::OF_WRITE.len())], |_| other.below(2) == 0)
    }

    /// Flips one bit of a file on the disk.
    pub fn flip(&self, name: &str, offset: u64, bit: u8) {
        let mut state = self.state();
        let number = state.find(name).expect("the file is there");
        let file = state.files.get_mut(&number).expect("named files exist");
        let size = file.size as usize;
        file.disk.resize(size, 0);
        file.disk[offset as usize] ^= 1 << bit;
    }

    /// Takes the next operation's number and the fault that was put there.
    fn fault(&self) -> Option<Fault> {
        let mut state = self.state();
        let number = state.operations;
        state.operations += 1;
        let fault = state.faults.remove(&number);
        state.met += u64::from(fault.is_some());
        fault
    }

    /// As [`fault`](Self::fault), of a call of a directory.
    fn call(&self) -> io::Result<bool> {
        match self.fault() {
            None | Some(Fault::Late(_) | Fault::Reordered | Fault::Twice) => Ok(true),
            Some(Fault::Lie) => Ok(false),
            Some(Fault::NoSpace | Fault::Nothing) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Some(Fault::Cancelled) => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            Some(Fault::Io | Fault::Short | Fault::ShortByOne) => {
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }
}

fn not_found() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

impl State {
    fn find(&self, name: &str) -> io::Result<u64> {
        let dir = self.dirs.get(parent(name)).ok_or_else(not_found)?;
        dir.entries().get(leaf(name)).copied().ok_or_else(not_found)
    }

    fn make(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let number = self.next_file;
        self.next_file += 1;
        let file = SimFile { size: bytes.len() as u64, disk: bytes, ..SimFile::default() };
        let dir = self.dirs.get_mut(parent(name)).ok_or_else(not_found)?;
        dir.pending.push(Change::Set(leaf(name).to_string(), number));
        self.files.insert(number, file);
        Ok(())
    }
}

fn leaf(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, leaf)| leaf)
}

impl Directory for SimDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("sim").join(name)
    }

    fn list(&self, parent: &str) -> io::Result<Vec<(String, u64)>> {
        let state = self.state();
        let dir = state.dirs.get(parent).ok_or_else(not_found)?;
        let mut names: Vec<(String, u64)> =
            dir.entries().into_iter().map(|(name, file)| (name, state.files[&file].size)).collect();
        if parent.is_empty() {
            names.extend(state.dirs.keys().filter(|name| !name.is_empty()).map(|name| (name.clone(), 0)));
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        if self.call()? {
            self.state().dirs.entry(name.to_string()).or_default();
        }
        Ok(())
    }

    fn create_written(&self, name: &str, size: u64) -> io::Result<()> {
        self.create_with(name, &vec![0; size as usize])
    }

    fn create_with(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let honest = self.call()?;
        let mut state = self.state();
        if state.find(name).is_ok() {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let mut bytes = bytes.to_vec();
        if !honest {
            bytes.fill(0xee);
        }
        state.make(name, bytes)
    }

    fn open(&self, name: &str, _direct: bool) -> io::Result<OpenFile> {
        self.call()?;
        Ok(OpenFile::Simulated(self.state().find(name)?))
    }

    fn open_read(&self, name: &str, mode: ReadMode) -> io::Result<Box<dyn ReadFile>> {
        let state = self.state();
        let file = state.find(name)?;
        Ok(Box::new(SimRead(state.files[&file].content(mode))))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if self.call()? {
            assert_eq!(parent(from), parent(to), "nobody moves files between directories");
            let mut state = self.state();
            let file = state.find(from)?;
            let dir = state.dirs.get_mut(parent(to)).expect("it was found in there");
            dir.pending.push(Change::Set(leaf(to).to_string(), file));
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if self.call()? {
            let mut state = self.state();
            if state.find(name).is_ok() {
                let dir = state.dirs.get_mut(parent(name)).expect("it was found in there");
                dir.pending.push(Change::Unset(leaf(name).to_string()));
            }
        }
        Ok(())
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        if self.call()? {
            let mut state = self.state();
            if state.dirs.get(name).is_some_and(|dir| !dir.entries().is_empty()) {
                return Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
            }
            // What is left in it after a crash is found by its name again, so the directory itself stays.
            if state.dirs.get(name).is_some_and(|dir| dir.pending.is_empty() && dir.durable.is_empty()) {
                state.dirs.remove(name);
            }
        }
        Ok(())
    }

    fn sync_dir(&self, parent: &str) -> io::Result<()> {
        let result = self.call();
        let mut state = self.state();
        let dir = state.dirs.get_mut(parent).ok_or_else(not_found)?;
        if let Ok(true) = result {
            dir.durable = dir.entries();
            dir.pending.clear();
        }
        result.map(|_| ())
    }
}

struct SimRead(Vec<u8>);

impl ReadFile for SimRead {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = self.0.get(offset as usize..).unwrap_or_default();
        let count = into.len().min(from.len());
        into[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

#[derive(Debug)]
enum Task {
    Write { file: u64, block: Block, length: usize, then_sync: Option<OperationId> },
    Sync { file: u64 },
}

#[derive(Debug)]
struct Queued {
    id: OperationId,
    task: Task,
    fault: Option<Fault>,
    /// Not to be started before the device was driven so often.
    from_drive: u64,
}

/// A device on a simulated disk.
pub struct SimDevice {
    disk: SimDisk,
    number: u64,
    files: Vec<Option<u64>>,
    queue: VecDeque<Queued>,
    ended: Vec<Completion>,
    random: Option<Random>,
    drives: u64,
}

impl SimDevice {
    fn push(&mut self, id: OperationId, task: Task) {
        let fault = self.disk.fault();
        let from_drive = match fault {
            Some(Fault::Late(drives)) => self.drives + 1 + u64::from(drives),
            _ => 0,
        };
        self.queue.push_back(Queued { id, task, fault, from_drive });
    }

    /// Carries one operation out and puts its completion up.
    fn run(&mut self, queued: Queued) {
        let Queued { id, task, fault, .. } = queued;
        let twice = fault == Some(Fault::Twice);
        let (result, block, linked) = match task {
            Task::Sync { file } => (self.sync(file, fault), None, None),
            Task::Write { file, block, length, then_sync } => {
                let taken = match fault {
                    Some(Fault::Io) => Err(libc::EIO),
                    Some(Fault::NoSpace) => Err(libc::ENOSPC),
                    Some(Fault::Cancelled) => Err(libc::ECANCELED),
                    Some(Fault::Short) => Ok(length / 2),
                    Some(Fault::ShortByOne) => Ok(1),
                    Some(Fault::Nothing) => Ok(0),
                    _ => Ok(length),
                };
                let mut state = self.disk.state();
                let pending = &mut state.files.get_mut(&file).expect("attached files exist").pending;
                let mine = (self.number, id);
                let at = pending.iter().position(|write| write.under_way == Some(mine));
                let at = at.expect("submitted with its bytes");
                match taken {
                    // After an error, what was under way may be on the disk or not: a crash decides.
                    Err(_) => pending[at].under_way = None,
                    Ok(_) if fault == Some(Fault::Lie) => drop(pending.remove(at)),
                    Ok(count) => {
                        pending[at].bytes.truncate(count);
                        pending[at].under_way = None;
                    }
                }
                drop(state);
                let whole = taken == Ok(length);
                (taken, Some(block), then_sync.map(|sync| (sync, file, whole)))
            }
        };
        self.ended.push(Completion { id, result, block });
        if twice {
            // The memory came with the first answer.
            self.ended.push(Completion { id, result, block: None });
        }
        if let Some((id, file, whole)) = linked {
            let fault = self.disk.fault();
            let result = if whole { self.sync(file, fault) } else { Err(libc::ECANCELED) };
            self.ended.push(Completion { id, result, block: None });
        }
    }

    fn sync(&mut self, file: u64, fault: Option<Fault>) -> Result<usize, i32> {
        let mut state = self.disk.state();
        let file = state.files.get_mut(&file).expect("attached files exist");
        match fault {
            Some(Fault::Cancelled) => Err(libc::ECANCELED),
            Some(Fault::Lie) => Ok(0),
            Some(Fault::Io | Fault::Short | Fault::ShortByOne) => {
                file.fail_sync();
                Err(libc::EIO)
            }
            Some(Fault::NoSpace | Fault::Nothing) => {
                file.fail_sync();
                Err(libc::ENOSPC)
            }
            _ => {
                file.sync();
                Ok(0)
            }
        }
    }
}

impl Device for SimDevice {
    fn describe(&self) -> String {
        "simulated".to_string()
    }

    fn attach(&mut self, file: &OpenFile) -> io::Result<FileSlot> {
        let OpenFile::Simulated(file) = file else {
            return Err(io::Error::other("a real file on a simulated device"));
        };
        let slot = self.files.iter().position(Option::is_none).expect("the log bounds its open files");
        self.files[slot] = Some(*file);
        Ok(FileSlot(slot as u32))
    }

    fn detach(&mut self, file: FileSlot) {
        let number = self.files[file.0 as usize].take().expect("detached once");
        let busy = self.queue.iter().any(|queued| match &queued.task {
            Task::Write { file, .. } | Task::Sync { file } => *file == number,
        });
        assert!(!busy, "operations are in flight");
    }

    fn submit(&mut self, operation: Operation) {
        let Operation { id, request } = operation;
        let number = |slot: FileSlot| self.files[slot.0 as usize].expect("operations are on attached files");
        match request {
            Request::Sync { file } => {
                let file = number(file);
                self.push(id, Task::Sync { file });
            }
            Request::Write { file, block, start, length, offset, then_sync } => {
                let file = number(file);
                let bytes = block[start..start + length].to_vec();
                let mut state = self.disk.state();
                let under_way = Some((self.number, id));
                let target = state.files.get_mut(&file).expect("attached files exist");
                assert!(offset + length as u64 <= target.size, "the log never grows a file");
                target.pending.push(Pending { offset, bytes, under_way });
                drop(state);
                self.push(id, Task::Write { file, block, length, then_sync });
            }
        }
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.drives += 1;
        let last_first = self.disk.state().last_first;
        // A call ends none, some or all of what is in flight; without a seed, all that is not late.
        let mut budget = match &mut self.random {
            Some(random) => random.below(self.queue.len() + 2),
            None => self.queue.len(),
        };
        while budget > 0 {
            budget -= 1;
            let ready: Vec<usize> =
                (0..self.queue.len()).filter(|index| self.queue[*index].from_drive <= self.drives).collect();
            let first = if last_first { ready.last() } else { ready.first() };
            let Some(mut choice) = first.copied() else { break };
            match &mut self.disk.state().allowed {
                Some(0) => break,
                Some(allowed) => *allowed -= 1,
                None => {}
            }
            if let Some(random) = &mut self.random {
                choice = ready[random.below(ready.len())];
            } else if self.queue[choice].fault == Some(Fault::Reordered) && ready.len() > 1 {
                choice = ready[1];
            }
            let queued = self.queue.remove(choice).expect("within bounds");
            self.run(queued);
        }
        done.append(&mut self.ended);
        Ok(())
    }

    /// Carries out all that is queued, however late: nobody waits for a simulated disk.
    fn blocking_drive(&mut self, _: Duration, done: &mut Vec<Completion>) -> io::Result<()> {
        while let Some(queued) = self.queue.pop_front() {
            self.run(queued);
        }
        done.append(&mut self.ended);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.ended.len()
    }
}
