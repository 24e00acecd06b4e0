//! Snapshots and restore against a model, with everything that may come in between.
//!
//! What is claimed everywhere: the list of a finished snapshot, restored into empty tables, gives exactly the state
//! at its barrier, whatever became of the snapshots before it and whatever the records did meanwhile.

use super::*;
use crate::config::LogConfig;
use crate::device::directory::ReadMode;
use crate::device::memory::Block;
use crate::device::sim::{Random, SimDisk};
use crate::log::file::{FileKind, InlineSource, LogFiles};
use crate::log::reader::LogReader;
use crate::log::writer::Outcome;
use crate::table::tests::Masked;
use crate::table::{BlobHandle, Bytes, Fixed, Table, TableKey};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

const LINEAGE: u128 = 0x7ab1e;

/// Key groups of the operator; more than a table of a few keys has pages for.
const GROUPS: Range<u32> = 3..9;

fn group_of(key: u64) -> u32 {
    GROUPS.start + (key % u64::from(GROUPS.end - GROUPS.start)) as u32
}

/// A log on a simulated disk.
struct Log {
    disk: SimDisk,
    writer: LogWriter,
    now: Duration,
}

impl Log {
    fn new(config: LogConfig) -> Log {
        let disk = SimDisk::new();
        let files = LogFiles::open(Arc::new(disk.clone()), LINEAGE, 1, true, &config).unwrap();
        let source = InlineSource::new(Arc::new(Mutex::new(files)), FileKind::Data, config.file_size_bytes);
        let blocks = Block::region(config.block_size_bytes, config.blocks);
        let device = Box::new(disk.device(None));
        let writer = LogWriter::new(config, LINEAGE, device, Box::new(source), blocks);
        Log { disk, writer, now: Duration::ZERO }
    }

    /// Frames of at most 12 KiB, and few of them at once.
    fn small() -> Log {
        Log::new(LogConfig {
            file_size_bytes: 16 << 10,
            block_size_bytes: 8 << 10,
            blocks: 3,
            ..LogConfig::default()
        })
    }

    fn poll(&mut self) {
        self.now += Duration::from_millis(1);
        self.writer.poll(self.now).unwrap();
    }

    fn make_durable(&mut self, span: Option<Span>) {
        let Some(span) = span else { return };
        self.writer.flush();
        for _ in 0..400 {
            match self.writer.outcome(span) {
                Outcome::Pending => self.poll(),
                Outcome::Durable => return,
                Outcome::Failed(error) => panic!("{error}"),
            }
        }
        panic!("{span:?} is pending after 400 polls");
    }

    fn reader(&self) -> LogReader {
        LogReader::new(Arc::new(self.disk.clone()), LINEAGE, ReadMode::Cached)
    }
}

/// Numbers, byte strings, and numbers of which most are in overflow lists.
struct State {
    numbers: Table<Fixed<u64>, u64>,
    texts: Table<Bytes, BlobHandle>,
    crowd: Table<Masked<{ 3 << 32 | 1 }>, [u64; 9]>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    numbers: BTreeMap<u64, u64>,
    texts: BTreeMap<Vec<u8>, Vec<u8>>,
    crowd: BTreeMap<u64, u64>,
}

fn text_key(key: u64) -> Vec<u8> {
    format!("{key}:").repeat(1 + (key % 7) as usize).into_bytes()
}

fn text_group(key: &[u8]) -> u32 {
    group_of(key.iter().map(|byte| u64::from(*byte)).sum())
}

impl State {
    fn new(groups: Range<u32>) -> State {
        State {
            numbers: Table::new(groups.clone()),
            texts: Table::new(groups.clone()),
            crowd: Table::new(groups),
        }
    }

    fn tables(&mut self) -> [&mut dyn StateTable; 3] {
        [&mut self.numbers, &mut self.texts, &mut self.crowd]
    }

    fn model(&self) -> Model {
        let texts = self.texts.iter();
        Model {
            numbers: self.numbers.iter().map(|(_, key, value)| (key, *value)).collect(),
            texts: texts
                .map(|(_, key, value)| (key.to_vec(), self.texts.blob_get(*value).to_vec()))
                .collect(),
            crowd: self.crowd.iter().map(|(_, key, value)| (key, value[8])).collect(),
        }
    }

    fn check_counts(&self) {
        let lens = [self.numbers.len(), self.texts.len(), self.crowd.len()];
        let epochs = [self.numbers.epochs(), self.texts.epochs(), self.crowd.epochs()];
        for (len, epochs) in lens.iter().zip(epochs) {
            assert_eq!(epochs.live().iter().sum::<u64>(), *len as u64, "labels are of all entries");
        }
    }
}

impl Model {
    /// What a subtask that owns only these groups has of it.
    fn of_groups(&self, groups: Range<u32>) -> Model {
        let mut model = self.clone();
        model.numbers.retain(|key, _| groups.contains(&group_of(*key)));
        model.texts.retain(|key, _| groups.contains(&text_group(key)));
        model.crowd.retain(|key, _| groups.contains(&group_of(*key)));
        model
    }
}

/// A subtask, its model, and the coordinator's view of it.
struct World {
    log: Log,
    state: State,
    model: Model,
    backend: KeyedBackend,
    random: Random,
    next: u64,
    /// The last completed checkpoint, as barriers name it, and its list.
    base: u64,
    completed: Option<(u64, Vec<StateRef>, Model)>,
    /// Snapshots under way with the state at their barrier.
    running: VecDeque<(u64, Model)>,
    /// Acknowledged, and neither completed nor aborted.
    acknowledged: Vec<(u64, Vec<StateRef>, Model)>,
    full: u64,
    incremental: u64,
    empty: u64,
    given_up: u64,
}

impl World {
    fn new(seed: u64, aside_bytes_max: Option<usize>) -> World {
        World {
            log: Log::small(),
            state: State::new(GROUPS),
            model: Model::default(),
            backend: KeyedBackend::new(aside_bytes_max),
            random: Random(seed),
            next: 1,
            base: 0,
            completed: None,
            running: VecDeque::new(),
            acknowledged: Vec::new(),
            full: 0,
            incremental: 0,
            empty: 0,
            given_up: 0,
        }
    }

    fn change(&mut self, keys: u64) {
        let key = self.random.below(keys as usize) as u64;
        let value = self.random.draw();
        match self.random.below(10) {
            0..=3 => {
                let place = self.state.numbers.entry(group_of(key), key, || 0);
                *place = place.wrapping_add(value);
                *self.model.numbers.entry(key).or_default() = *place;
            }
            4 => {
                let vacant = <Fixed<u64> as TableKey>::VACANT;
                let key = if value.is_multiple_of(3) { vacant } else { key };
                let removed = self.state.numbers.remove(group_of(key), key);
                assert_eq!(removed, self.model.numbers.remove(&key));
                if value.is_multiple_of(2) {
                    self.state.numbers.entry(group_of(key), key, || value);
                    self.model.numbers.insert(key, value);
                }
            }
            5 | 6 => {
                let key = text_key(key);
                let text = vec![value as u8; (value % 60) as usize];
                let hash = self.state.texts.hash(&key);
                let (place, blobs) =
                    self.state.texts.entry_and_blobs(text_group(&key), hash, &key, BlobHandle::default);
                blobs.put(place, &text);
                self.model.texts.insert(key, text);
            }
            7 => {
                let key = text_key(key);
                if let Some(removed) = self.state.texts.remove(text_group(&key), &key) {
                    self.state.texts.blobs_mut().free(removed);
                }
                self.model.texts.remove(&key);
            }
            8 => {
                let key = key % 150;
                self.state.crowd.entry(group_of(key), key, || [0; 9])[8] = value;
                self.model.crowd.insert(key, value);
            }
            _ => {
                let key = key % 150;
                if value.is_multiple_of(3) {
                    let changed = self.state.crowd.get_mut(group_of(key), key).map(|place| place[8] = value);
                    assert_eq!(changed, self.model.crowd.get_mut(&key).map(|place| *place = value));
                } else {
                    let removed = self.state.crowd.remove(group_of(key), key).map(|value| value[8]);
                    assert_eq!(removed, self.model.crowd.remove(&key));
                }
            }
        }
    }

    fn begin(&mut self, full: bool) {
        let id = self.next;
        self.next += 1;
        self.backend.begin(&mut self.state.tables(), id, self.base, full).unwrap();
        self.running.push_back((id, self.model.clone()));
    }

    /// One step of the oldest snapshot under way; checks its list when it is finished.
    fn step(&mut self, entries_max: usize) {
        if self.running.is_empty() {
            return;
        }
        match self.backend.step(&mut self.state.tables(), &mut self.log.writer, 7, entries_max) {
            Ok(Progress::More) => {}
            Ok(Progress::Blocked) => self.log.poll(),
            Ok(Progress::Done) => {
                let finished = self.backend.finish(&mut self.state.tables());
                let (id, at_barrier) = self.running.pop_front().unwrap();
                assert_eq!(finished.checkpoint, id);
                assert!(finished.deltas.len() <= DELTAS_MAX, "{} deltas", finished.deltas.len());
                self.full += u64::from(finished.full && finished.delta_bytes > 0);
                self.incremental += u64::from(!finished.full);
                self.empty += u64::from(finished.delta_bytes == 0);
                self.log.make_durable(finished.span);
                self.check(id, &finished.deltas, &at_barrier);
                self.acknowledged.push((id, finished.deltas, at_barrier));
            }
            Err(SnapshotError::AsideFull { checkpoint, .. }) => {
                let (id, _) = self.running.pop_front().unwrap();
                assert_eq!(checkpoint, id);
                self.given_up += 1;
            }
            Err(error) => panic!("{error}"),
        }
        self.state.check_counts();
    }

    /// Restores a list: whole, and as two subtasks would.
    fn check(&mut self, id: u64, deltas: &[StateRef], at_barrier: &Model) {
        let cut = GROUPS.start + 1 + self.random.below(GROUPS.len() - 1) as u32;
        for groups in [GROUPS, GROUPS.start..cut, cut..GROUPS.end] {
            let mut state = State::new(groups.clone());
            let old = OldSubtask { first_group: GROUPS.start, last_group: GROUPS.end - 1, deltas };
            let mut backend = KeyedBackend::default();
            let restored = backend
                .restore(&mut state.tables(), &mut self.log.reader(), id, &[old], |_| ())
                .unwrap_or_else(|error| panic!("checkpoint {id}: {error}"));
            assert_eq!(restored.incremental, groups == GROUPS);
            assert_eq!(state.model(), at_barrier.of_groups(groups), "checkpoint {id}");
            state.check_counts();
        }
    }

    /// What the coordinator may do with what was acknowledged. Without a notice the subtask learns of a completed
    /// one by the next barrier, and of an aborted one never.
    fn settle(&mut self) {
        if self.acknowledged.is_empty() {
            return;
        }
        let at = self.random.below(self.acknowledged.len());
        let (id, deltas, model) = self.acknowledged.remove(at);
        match self.random.below(4) {
            0 => self.backend.abort(&mut self.state.tables(), id),
            1 => {}
            _ if id > self.base => {
                self.base = id;
                self.completed = Some((id, deltas, model));
            }
            _ => {}
        }
    }

    fn abort_running(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len());
        let (id, _) = self.running.remove(at).unwrap();
        self.backend.abort(&mut self.state.tables(), id);
    }

    /// The process dies and comes back.
    fn restart(&mut self) {
        self.running.clear();
        self.acknowledged.clear();
        self.state = State::new(GROUPS);
        self.backend = KeyedBackend::default();
        self.model = Model::default();
        if let Some((id, deltas, model)) = &self.completed {
            let old = OldSubtask { first_group: GROUPS.start, last_group: GROUPS.end - 1, deltas };
            let tables = &mut self.state.tables();
            self.backend.restore(tables, &mut self.log.reader(), *id, &[old], |_| ()).unwrap();
            self.model = model.clone();
        }
        assert_eq!(self.state.model(), self.model);
    }
}

/// Goal: what the head of this file claims, for snapshots that overlap, fail and are forgotten.
/// Method: seeds. Each draws records, barriers with up to three snapshots under way, steps of every size,
/// completions, aborts with and without notice, and restarts; tables grow, split, overflow and shrink meanwhile.
#[test]
fn every_finished_list_restores_the_state_at_its_barrier() {
    let (mut full, mut incremental, mut empty) = (0, 0, 0);
    for seed in 1..=24 {
        let mut world = World::new(seed * 7919, None);
        let keys = [40, 400, 4000][seed as usize % 3];
        for _ in 0..6000 {
            match world.random.below(100) {
                0..=79 => (0..world.random.below(5)).for_each(|_| world.change(keys)),
                80..=82 if world.running.len() < 3 => {
                    let full = world.random.below(30) == 0;
                    world.begin(full);
                }
                83..=95 => {
                    let entries_max = [1, 5, 50, 1000][world.random.below(4)];
                    world.step(entries_max);
                }
                96 | 97 => world.settle(),
                98 if world.random.below(4) == 0 => world.abort_running(),
                99 if world.random.below(30) == 0 => world.restart(),
                _ => {}
            }
        }
        full += world.full;
        incremental += world.incremental;
        empty += world.empty;
    }
    eprintln!("{full} full, {incremental} incremental, {empty} without a delta");
    assert!(full > 50 && incremental > 500 && empty > 0);
}

/// Goal: checkpoints that are never completed do not use up the labels, and their changes are not lost.
/// Method: 1,200 snapshots of which one in 350 completes, each with other keys changed, so that labels stay in use.
#[test]
fn labels_last_over_a_thousand_aborted_checkpoints() {
    let mut world = World::new(5, None);
    for key in 0..3000 {
        world.state.numbers.entry(group_of(key), key, || key);
        world.model.numbers.insert(key, key);
    }
    for round in 0..1200u64 {
        for key in [round * 2 % 3000, (round * 2 + 1) % 3000] {
            *world.state.numbers.entry(group_of(key), key, || 0) += 1;
            *world.model.numbers.get_mut(&key).unwrap() += 1;
        }
        world.begin(false);
        if round % 10 != 0 {
            let (id, _) = world.running.pop_front().unwrap();
            world.step_once_and_abort(id);
            continue;
        }
        while !world.running.is_empty() {
            world.step(100);
        }
        let (id, deltas, model) = world.acknowledged.pop().unwrap();
        if round % 350 == 0 {
            world.base = id;
            world.completed = Some((id, deltas, model));
        }
    }
    assert!(world.backend.relabelled() >= 2, "{} times", world.backend.relabelled());
    assert!(world.backend.relabelled() < 10, "{} times", world.backend.relabelled());
    assert!(world.incremental > 50);
}

impl World {
    fn step_once_and_abort(&mut self, id: u64) {
        // Some of it was folded or written by then.
        let step = self.backend.step(&mut self.state.tables(), &mut self.log.writer, 7, 40);
        if step.unwrap() == Progress::Blocked {
            self.log.poll();
        }
        self.backend.abort(&mut self.state.tables(), id);
        assert!(!self.backend.is_running());
    }
}

/// Goal: nothing changed means nothing written, however often, and the same list.
#[test]
fn idle_checkpoints_cost_nothing() {
    let mut world = World::new(9, None);
    (0..2000).for_each(|_| world.change(500));
    let mut lists = Vec::new();
    for _ in 0..600 {
        world.begin(false);
        while !world.running.is_empty() {
            world.step(1000);
        }
        let (id, deltas, _) = world.acknowledged.pop().unwrap();
        world.base = id;
        lists.push(deltas);
    }
    assert!(lists.iter().all(|list| *list == lists[0]) && lists[0].len() == 1);
    assert_eq!(world.empty, 599);
    assert_eq!(world.backend.epoch, 2, "one epoch was enough");
}

/// Goal: at the bound of what is put aside the snapshot is given up by name, records go on, and the next snapshot
/// has everything.
#[test]
fn what_is_put_aside_is_bounded() {
    let mut world = World::new(11, Some(2000));
    (0..3000).for_each(|_| world.change(800));
    world.begin(false);
    (0..3000).for_each(|_| world.change(800));
    world.step(1);
    assert_eq!((world.given_up, world.backend.is_running()), (1, false));
    world.begin(false);
    (0..10).for_each(|_| world.change(800));
    while !world.running.is_empty() {
        world.step(100);
    }
    assert_eq!((world.full, world.given_up), (1, 1));
}

/// Goal: more removals than are kept make the next snapshot full, and right.
#[test]
fn too_many_removals_make_a_full_snapshot() {
    let mut world = World::new(13, None);
    let run = |world: &mut World, removed: Range<u64>| {
        for key in removed {
            world.state.numbers.entry(group_of(key), key, || key);
            world.state.numbers.remove(group_of(key), key);
        }
        world.begin(false);
        while !world.running.is_empty() {
            world.step(1000);
        }
        world.base = world.acknowledged.pop().unwrap().0;
    };
    (0..200).for_each(|_| world.change(100));
    run(&mut world, 1000..1001);
    run(&mut world, 1000..2000);
    assert_eq!((world.full, world.incremental), (1, 1));
    run(&mut world, 1000..200_000);
    assert_eq!((world.full, world.incremental), (2, 1));
    run(&mut world, 1000..2000);
    assert_eq!((world.full, world.incremental), (2, 2));
}

/// Goal: what is damaged, or of other tables, is an error that says where, and no panic.
#[test]
fn other_bytes_are_refused() {
    let restore = |bytes: &[u8]| {
        let mut state = State::new(GROUPS);
        let deltas = [StateRef::Inline(bytes.to_vec())];
        let old = OldSubtask { first_group: GROUPS.start, last_group: GROUPS.end - 1, deltas: &deltas };
        let mut reader = Log::small().reader();
        KeyedBackend::default().restore(&mut state.tables(), &mut reader, 1, &[old], |_| ())
    };
    let mut world = World::new(17, None);
    (0..60).for_each(|_| world.change(30));
    world.begin(false);
    (0..20).for_each(|_| world.change(30));
    while !world.running.is_empty() {
        world.step(1000);
    }
    let StateRef::Inline(bytes) = &world.acknowledged[0].1[0] else { panic!("small state is inline") };
    restore(bytes).unwrap();
    let (mut refused, mut whole) = (0, 0);
    for at in 0..bytes.len() {
        whole += usize::from(restore(&bytes[..at]).is_ok());
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            refused += usize::from(restore(&other).is_err());
        }
    }
    assert!(refused > 300, "{refused}");
    // Cuts behind the head and between the sections of entries, removals and what was put aside.
    assert!(whole <= 6, "{whole} cuts were not seen");
    let mut numbers = Table::<Fixed<u32>, u64>::new(GROUPS);
    let old = OldSubtask { first_group: 3, last_group: 8, deltas: &world.acknowledged[0].1 };
    let error = KeyedBackend::default()
        .restore(&mut [&mut numbers], &mut world.log.reader(), 1, &[old], |_| ())
        .unwrap_err();
    assert!(error.to_string().contains("_metadata: damaged at offset 20"), "{error}");
}

/// Goal: an incremental checkpoint costs little more than what changed, rewriting included, and its list is short.
/// Method: 100,000 keys of 16 bytes and 300 checkpoints that change 1 %: drawn uniformly, always the same, or a
/// window that moves through the keys. Bytes are those of whole frames, with padding.
#[test]
fn checkpoints_of_one_percent_cost_little_more_than_that() {
    const KEYS: u64 = 100_000;
    for (shape, percent_max) in [("uniform", 2.5), ("same", 1.5), ("window", 2.1)] {
        let mut log = Log::new(LogConfig { file_size_bytes: 8 << 20, ..LogConfig::default() });
        let mut table = Table::<Fixed<u64>, u64>::new(0..128);
        let mut backend = KeyedBackend::default();
        let mut random = Random(3);
        let group = |key: u64| (key % 128) as u32;
        (0..KEYS).for_each(|key| *table.entry(group(key), key, || 0) = key);
        let (mut written, mut deltas, mut last) = (0, 0, Vec::new());
        for id in 1..=301u64 {
            for n in 0..KEYS / 100 {
                let key = match shape {
                    "uniform" => random.below(KEYS as usize) as u64,
                    "same" => n * 100,
                    _ => (id * KEYS / 100 + n) % KEYS,
                };
                *table.entry(group(key), key, || 0) += 1;
            }
            let tables: &mut [&mut dyn StateTable] = &mut [&mut table];
            backend.begin(tables, id, id - 1, false).unwrap();
            while backend.step(tables, &mut log.writer, 1, 10_000).unwrap() != Progress::Done {
                log.poll();
            }
            let finished = backend.finish(tables);
            log.make_durable(finished.span);
            deltas = deltas.max(finished.deltas.len());
            written += if id > 1 { finished.written_bytes } else { 0 };
            last = finished.deltas;
        }
        let percent = written as f64 / 300.0 / (KEYS * 16) as f64 * 100.0;
        let live = (KEYS * 16) as f64 / last.iter().map(StateRef::state_bytes).sum::<u64>() as f64;
        eprintln!(
            "{shape}: {percent:.2} % a checkpoint, at most {deltas} deltas, {:.0} % alive",
            live * 100.0
        );
        assert!(deltas <= DELTAS_MAX);
        assert!(percent <= percent_max, "{shape}: {percent:.2} %");
        assert!(live >= 0.5, "{shape}: {live}");
    }
}
