//! A reader of the parts that can be seen finds each record once, up to the checkpoint that the job is at, in whatever
//! order things happen.
//!
//! The unit under test is one sink on a real directory; source, coordinator and restarts are played by [`World`]. Its
//! disk does one job at a time when the test says so, and can fail at any step.

use super::*;
use crate::sink::Sink;
use crate::sink::disk::faults::{Fault, fail_after, struck};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LINEAGE: u128 = 0xabcd;

type TestSink = PartSink<u64, fn(u64, &mut Vec<u8>)>;

fn row(record: u64, row: &mut Vec<u8>) {
    row.extend_from_slice(format!("{record}\n").as_bytes());
}

/// Where syncs cost nothing, if there is such a place.
fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn info(subtask: u32, parallelism: u32, checkpoints: Option<Checkpointing>) -> SubtaskInfo {
    SubtaskInfo {
        vertex: "sink".into(),
        subtask,
        parallelism,
        max_parallelism: 128,
        operators: [].into(),
        checkpoints,
    }
}

/// The parts that can be seen, with what is in each.
fn published(dir: &Path) -> Vec<(String, String)> {
    let mut parts: Vec<(String, String)> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_str().unwrap().starts_with("part-"))
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect();
    parts.sort();
    parts
}

fn records(dir: &Path) -> Vec<u64> {
    let parts = published(dir);
    parts.iter().flat_map(|(_, text)| text.lines().map(|line| line.parse().unwrap())).collect()
}

fn hidden(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

/// Writes so much that there is a file before the next barrier.
fn write_much<F: Format<u64>>(sink: &mut PartSink<u64, F>) {
    for _ in 0..=BUFFER_BYTES / 2 {
        sink.write(8, 0).unwrap();
    }
}

/// A checkpoint that a barrier has begun.
#[derive(Debug, Clone)]
struct Taken {
    id: u64,
    state: Vec<u8>,
    /// Records before it.
    position: u64,
}

/// A job of one sink: its source, coordinator and checkpoint store.
struct World {
    dir: TempDir,
    beyond: Beyond,
    sorted: bool,
    sink: Option<TestSink>,
    attempt: u32,
    next_id: u64,
    /// The next record; record `n` is the number `n`.
    position: u64,
    under_way: VecDeque<Taken>,
    completed: Option<Taken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A record comes.
    Write,
    /// A barrier comes.
    Barrier,
    /// The oldest checkpoint completes, and the sink is told.
    Complete,
    /// The newest one completes before the others, which are given up, and the sink is told.
    CompleteNewest,
    /// The oldest one completes, and nobody tells the sink.
    LoseNotice,
    /// The oldest one is given up.
    Abort,
    /// The disk does what it was given first.
    DiskStep,
    /// The process dies, and another one goes on from the last complete checkpoint.
    Crash,
}

use Event::*;

impl World {
    fn new() -> World {
        let mut world = World {
            dir: directory(),
            beyond: Beyond::Refuse,
            sorted: false,
            sink: None,
            attempt: 0,
            next_id: 1,
            position: 0,
            under_way: VecDeque::new(),
            completed: None,
        };
        world.start().unwrap();
        world
    }

    fn checkpointing(&self) -> Checkpointing {
        let restored = self.completed.as_ref().map(|taken| taken.id);
        Checkpointing { lineage: LINEAGE, run: 1, attempt: self.attempt, restored }
    }

    /// Begins an attempt, from the last complete checkpoint.
    fn start(&mut self) -> Result<(), SourceError> {
        self.sink = None;
        self.under_way.clear();
        self.attempt += 1;
        let files = TransactionalFiles::plan(self.dir.path(), self.beyond)?;
        let checkpoints = Some(self.checkpointing());
        let mut sink = files.parts(&info(0, 1, checkpoints), row as fn(_, &mut _), self.sorted)?;
        sink.target().disk = Disk::stepped();
        if let Some(Taken { id, state, .. }) = &self.completed {
            sink.restore(*id, state)?;
        }
        self.position = self.completed.as_ref().map_or(0, |taken| taken.position);
        self.sink = Some(sink);
        Ok(())
    }

    fn sink(&mut self) -> &mut TestSink {
        self.sink.as_mut().expect("the process lives")
    }

    /// Whether something would change.
    fn can(&mut self, event: Event) -> bool {
        match event {
            Write | Crash => true,
            Barrier => self.under_way.len() < 2,
            Complete | LoseNotice | Abort => !self.under_way.is_empty(),
            CompleteNewest => self.under_way.len() == 2,
            DiskStep => !self.sink().target().disk.is_idle(),
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), SourceError> {
        match event {
            Write => {
                let record = self.position;
                self.sink().write(record, 0)?;
                self.position += 1;
            }
            Barrier => {
                let (id, position, mut state) = (self.next_id, self.position, Vec::new());
                self.next_id += 1;
                self.sink().pre_commit(id, &mut state)?;
                self.under_way.push_back(Taken { id, state, position });
            }
            Complete => self.completes(0, true)?,
            CompleteNewest => self.completes(self.under_way.len() - 1, true)?,
            LoseNotice => self.completes(0, false)?,
            Abort => drop(self.under_way.pop_front()),
            DiskStep => drop(self.sink().target().disk.step()?),
            Crash => self.start()?,
        }
        Ok(())
    }

    fn completes(&mut self, which: usize, told: bool) -> Result<(), SourceError> {
        let taken = self.under_way.drain(..=which).next_back().expect("there is one");
        let id = taken.id;
        while !self.sink().is_durable(id)? {
            self.sink().target().disk.step()?;
        }
        self.completed = Some(taken);
        if told { self.sink().commit(id) } else { Ok(()) }
    }

    /// What must hold at every moment.
    fn check(&self, history: &[Event], just_restored: bool) {
        let seen = records(self.dir.path());
        let complete = self.completed.as_ref().map_or(0, |taken| taken.position);
        let expected: Vec<u64> = (0..seen.len() as u64).collect();
        assert_eq!(seen, expected, "a duplicate or a hole: {history:?}");
        assert!(seen.len() as u64 <= complete, "seen before it was complete: {history:?}");
        if just_restored {
            assert_eq!(seen.len() as u64, complete, "missing after going on: {history:?}");
        }
    }

    /// The input ends: a last checkpoint publishes the rest.
    fn end(&mut self, history: &[Event]) -> Result<(), SourceError> {
        self.sink().finish()?;
        self.under_way.clear();
        self.happens(Barrier)?;
        self.happens(Complete)?;
        let id = self.completed.as_ref().unwrap().id;
        while !self.sink().is_committed(id)? {
            self.sink().target().disk.step()?;
        }
        self.check(history, true);
        assert_eq!(hidden(self.dir.path()), [""; 0], "{history:?}");
        Ok(())
    }
}

/// Goal: F-23, F-37, F-69: whatever the order of records, barriers, completions, lost notices, aborts, steps of the
/// disk and crashes, a reader sees no duplicate and no hole, nothing that is not complete, and after a restart
/// all that is; at the end all records, and no leftovers.
/// Method: every sequence of events that change something, up to length 7, with up to two checkpoints under
/// way; the claim is checked after each event, and the end is played after each sequence.
#[test]
fn f23_f37_f69_no_order_of_events_shows_a_duplicate_or_a_hole() {
    const EVENTS: [Event; 8] = [Write, Barrier, Complete, CompleteNewest, LoseNotice, Abort, DiskStep, Crash];
    const LENGTH: usize = 7;
    fn explore(history: &mut Vec<Event>, played: &mut u32) {
        let mut world = World::new();
        for (at, &event) in history.iter().enumerate() {
            world.happens(event).unwrap();
            world.check(&history[..=at], event == Crash);
        }
        *played += 1;
        let next: Vec<Event> = EVENTS.into_iter().filter(|&event| world.can(event)).collect();
        world.end(history).unwrap();
        drop(world);
        if history.len() == LENGTH {
            return;
        }
        for event in next {
            // A crash after a crash is one; so is a third record in a row as good as two.
            if (event == Crash && matches!(history.last(), None | Some(Crash)))
                || (event == Write && history.ends_with(&[Write, Write]))
            {
                continue;
            }
            history.push(event);
            explore(history, played);
            history.pop();
        }
    }
    let mut played = 0;
    explore(&mut Vec::new(), &mut played);
    assert!(played > 10_000, "only {played} sequences");
}

/// Goal: F-65, F-67, F-69: whichever step on the disk is the last one, and whether it was done or not, a process that
/// goes on loses and repeats nothing.
/// Method: a script that meets every kind of step, with one record between barriers; its n-th step fails, and all
/// after it, for every n; then a new process. The step may also be one of the next process's going on.
#[test]
fn f65_f67_f69_the_last_step_of_a_process_may_be_any() {
    let script = [
        Write,
        Barrier,
        DiskStep,
        Complete,
        DiskStep,
        Write,
        Barrier,
        Abort,
        Write,
        Barrier,
        LoseNotice,
        Crash,
        Write,
        Write,
        Barrier,
        Write,
        Barrier,
        CompleteNewest,
        Crash,
        Write,
        Barrier,
        Complete,
        Write,
    ];
    for sorted in [false, true] {
        for fault in [Fault::Before, Fault::After] {
            let mut steps = 0;
            loop {
                let mut world = World { sorted, ..World::new() };
                world.start().unwrap();
                fail_after(Some((steps, fault)));
                let mut failures = 0;
                for (at, &event) in script.iter().enumerate() {
                    if !world.can(event) {
                        continue;
                    }
                    let mut result = world.happens(event);
                    while result.is_err() {
                        failures += 1;
                        assert!(failures < 3, "a process without faults fails: {result:?}");
                        fail_after(None);
                        result = world.start();
                    }
                    world.check(&script[..=at], false);
                }
                let was_struck = struck();
                fail_after(None);
                if was_struck {
                    world.start().unwrap();
                }
                world.check(&script, was_struck);
                world.end(&script).unwrap();
                if failures == 0 && !was_struck {
                    break;
                }
                steps += 1;
            }
            assert!(steps > 30, "the script has only {steps} steps on the disk");
        }
    }
}

/// Goal: F-67: a sync that fails is told before the checkpoint is acknowledged, and never forgotten: no later
/// checkpoint can succeed as if the records were there.
/// Method: one record an interval; each step of making its part durable fails.
#[test]
fn f67_a_failed_sync_fails_its_checkpoint_and_all_after_it() {
    for steps in 0..6 {
        let mut world = World::new();
        world.happens(Write).unwrap();
        world.happens(Barrier).unwrap();
        fail_after(Some((steps, Fault::Before)));
        let durable = (|| {
            while !world.sink().is_durable(1)? {
                world.sink().target().disk.step()?;
            }
            Ok::<_, SourceError>(())
        })();
        fail_after(None);
        if steps == 5 {
            durable.unwrap();
            continue;
        }
        let message = durable.unwrap_err().to_string();
        let at = world.dir.path().to_str().unwrap();
        assert!(message.contains(at) && message.contains("cannot "), "{message}");
        assert!(world.sink().is_durable(1).is_err());
        assert!(world.sink().write(1, 0).is_err(), "the next record");
        assert!(world.sink().flush().is_err());
        assert!(world.sink().pre_commit(2, &mut Vec::new()).is_err());
        assert!(world.sink().commit(1).is_err());
        assert_eq!(records(world.dir.path()), [0; 0]);
        world.start().unwrap();
        world.happens(Write).unwrap();
        world.end(&[]).unwrap();
    }
}

/// Goal: what was written into a part that could not be ended is never missed in silence: the sink that lost it
/// takes part in no later checkpoint.
/// Method: making its file fails, or writing to it, in the middle of a part or at its end.
#[test]
fn a_sink_that_lost_a_part_is_in_no_later_checkpoint() {
    for steps in 0..2 {
        let mut world = World::new();
        world.happens(Write).unwrap();
        fail_after(Some((steps, Fault::Before)));
        let failed = (0..=BUFFER_BYTES).any(|_| world.sink().write(8, 0).is_err());
        fail_after(None);
        assert!(failed, "step {steps}");
        assert!(world.happens(Barrier).is_err());
        assert!(world.sink().finish().is_err());

        let mut world = World::new();
        world.happens(Write).unwrap();
        world.happens(Barrier).unwrap();
        fail_after(Some((steps, Fault::Before)));
        assert!(world.happens(DiskStep).is_err());
        fail_after(None);
        world.happens(Barrier).unwrap();
        assert!(world.sink().is_durable(2).is_err(), "it lists the part");
        assert!(world.sink().write(8, 0).is_err());
    }
}

/// Goal: F-71: going on from an older checkpoint than the newest that has published is refused, with the files and
/// their checkpoints, before anything is changed; or the later output is moved aside; or it stays.
/// Method: parts of checkpoints 1 to 4; from 2, in the three ways. The refused job can still go on from 4.
#[test]
fn f71_going_back_behind_published_output_is_refused_unless_wanted() {
    for beyond in [Beyond::Refuse, Beyond::Retract, Beyond::Accept] {
        let mut world = World::new();
        let mut second = None;
        for checkpoint in 1..=4 {
            world.happens(Write).unwrap();
            world.happens(Barrier).unwrap();
            // The last one's notice is lost: its part is pending.
            world.happens(if checkpoint == 4 { LoseNotice } else { Complete }).unwrap();
            world.sink().target().disk.blocking_settle().unwrap();
            if checkpoint == 2 {
                second = world.completed.clone();
            }
        }
        let newest = std::mem::replace(&mut world.completed, second);
        world.beyond = beyond;
        match beyond {
            Beyond::Refuse => {
                let before = hidden(world.dir.path());
                let message = world.start().unwrap_err().to_string();
                for part in
                    ["part-00000-0000000003", "(checkpoint 3)", "checkpoints after 2", "--retract-output"]
                {
                    assert!(message.contains(part), "{message}");
                }
                assert!(!message.contains("0000000002"), "{message}");
                assert_eq!(hidden(world.dir.path()), before);
                world.completed = newest;
                world.start().unwrap();
                assert_eq!(records(world.dir.path()), [0, 1, 2, 3]);
            }
            Beyond::Retract => {
                world.start().unwrap();
                assert_eq!(records(world.dir.path()), [0, 1]);
                let aside = world.dir.path().join(&hidden(world.dir.path())[0]);
                assert_eq!(records(&aside), [2]);
                world.happens(Write).unwrap();
                world.happens(Barrier).unwrap();
                world.happens(Complete).unwrap();
                world.sink().target().disk.blocking_settle().unwrap();
                assert_eq!(records(world.dir.path()), [0, 1, 2]);
            }
            Beyond::Accept => {
                world.start().unwrap();
                world.happens(Write).unwrap();
                world.happens(Barrier).unwrap();
                world.happens(Complete).unwrap();
                world.sink().target().disk.blocking_settle().unwrap();
                assert_eq!(records(world.dir.path()), [0, 1, 2, 2], "as was asked for");
            }
        }
    }
}

/// Goal: F-73: a commit that was done before is success; one of which nobody knows anything, or less than was
/// written, is an error that names file and checkpoint.
#[test]
fn f73_a_commit_twice_is_success_and_a_lost_part_is_an_error() {
    let pending_world = || {
        let mut world = World::new();
        world.happens(Write).unwrap();
        world.happens(Barrier).unwrap();
        world.happens(LoseNotice).unwrap();
        world.sink = None;
        world
    };
    let mut world = pending_world();
    for _ in 0..3 {
        world.start().unwrap();
        world.sink().commit(1).unwrap();
        world.sink().commit(0).unwrap();
        world.sink().commit(7).unwrap();
        assert_eq!(records(world.dir.path()), [0]);
    }
    let last = published(world.dir.path())[0].0.clone();
    fs::remove_file(world.dir.path().join(&last)).unwrap();
    let message = world.start().unwrap_err().to_string();
    assert!(message.contains(&last) && message.contains("checkpoint 1 lists"), "{message}");
    // The user says that it was taken away on purpose.
    fs::write(world.dir.path().join(&last), "").unwrap();
    world.start().unwrap();

    let mut world = pending_world();
    let pending = world.dir.path().join(&hidden(world.dir.path())[0]);
    fs::write(&pending, "").unwrap();
    let message = world.start().unwrap_err().to_string();
    assert!(message.contains("has 0 bytes; expected 2, as checkpoint 1 lists it"), "{message}");
    assert!(pending.exists());

    let mut world = pending_world();
    fs::write(world.dir.path().join(&last), "somebody else's").unwrap();
    let message = world.start().unwrap_err().to_string();
    assert!(message.contains("is there already") && message.contains("checkpoint 1"), "{message}");
}

/// Goal: F-27: leftovers that somebody else removes meanwhile are no error.
#[test]
fn f27_removing_what_is_gone_is_success() {
    let mut world = World::new();
    world.happens(Write).unwrap();
    world.happens(Barrier).unwrap();
    world.sink().target().disk.blocking_settle().unwrap();
    let left = world.sink().target().blocking_leftovers().unwrap();
    assert_eq!(left.len(), 1);
    for _ in 0..2 {
        world.sink().target().blocking_abort(&left[0]).unwrap();
    }
    assert_eq!(hidden(world.dir.path()), [""; 0]);
}

/// Goal: each subtask clears away its own leftovers, and the first one also those of subtasks that are no more; nobody
/// touches those of other jobs, or what is not ours.
#[test]
fn leftovers_are_cleared_away_by_the_subtask_that_they_belong_to() {
    let dir = directory();
    let job = |attempt, restored| Checkpointing { lineage: LINEAGE, run: 1, attempt, restored };
    let files = TransactionalFiles::plan(dir.path(), Beyond::Refuse).unwrap();
    let sink = |subtask, parallelism, attempt, restored| {
        files.sink::<u64, _>(&info(subtask, parallelism, Some(job(attempt, restored))), row)
    };
    for subtask in 0..4 {
        let mut sink = sink(subtask, 4, 1, None).unwrap();
        sink.write(7, 0).unwrap();
        sink.pre_commit(1, &mut Vec::new()).unwrap();
        sink.target().blocking_settle().unwrap();
        write_much(&mut sink);
    }
    let foreign = format!(".part-00000-{:010}-{:032x}-1-1.pending", 1, LINEAGE + 1);
    fs::write(dir.path().join(&foreign), "x").unwrap();
    fs::write(dir.path().join(".hidden"), "x").unwrap();
    assert_eq!(hidden(dir.path()).len(), 10);
    let left = || {
        let mut left: Vec<u32> = hidden(dir.path())
            .iter()
            .filter_map(|name| name.parse::<Name>().ok())
            .filter(|name| name.lineage == LINEAGE)
            .map(|name| name.subtask)
            .collect();
        left.sort_unstable();
        left
    };
    let restored = |subtask| sink(subtask, 2, 2, Some(5)).and_then(|mut sink| sink.restore(5, &[]));
    restored(1).unwrap();
    assert_eq!(left(), [0, 0, 2, 2, 3, 3]);
    restored(0).unwrap();
    assert_eq!(left(), [0; 0]);
    assert_eq!(hidden(dir.path()).len(), 2);

    // A fresh start does not mix with another job.
    let message = sink(0, 2, 3, None).err().expect("another job's").to_string();
    assert!(message.contains(&foreign) && message.contains("(checkpoint 1)"), "{message}");
}

/// Goal: a job that begins anew is refused by whatever can be seen, of its own or not, and clears away what earlier
/// attempts left that never completed a checkpoint.
#[test]
fn a_job_that_begins_anew_wants_an_empty_directory() {
    let mut world = World::new();
    world.happens(Write).unwrap();
    world.happens(Barrier).unwrap();
    world.sink().target().disk.blocking_settle().unwrap();
    write_much(world.sink());
    assert_eq!(hidden(world.dir.path()).len(), 2);
    world.start().unwrap();
    assert_eq!(hidden(world.dir.path()), [""; 0]);
    world.happens(Write).unwrap();
    world.end(&[]).unwrap();
    world.completed = None;
    let message = world.start().unwrap_err().to_string();
    assert!(message.contains("part-00000-") && message.contains("expected an empty directory"), "{message}");
    world.beyond = Beyond::Retract;
    world.start().unwrap();
    assert_eq!(records(world.dir.path()), [0; 0]);

    let mut other = World::new();
    fs::write(other.dir.path().join("notes"), "of a user").unwrap();
    for beyond in [Beyond::Refuse, Beyond::Retract] {
        other.beyond = beyond;
        let message = other.start().unwrap_err().to_string();
        assert!(message.contains("is not empty, notes;"), "{message}");
    }
    other.beyond = Beyond::Accept;
    other.start().unwrap();
}

/// Goal: what cannot be an output is known before the job starts, by its path.
#[test]
fn planning_names_what_is_in_the_way() {
    let dir = directory();
    let plan = |path: &Path| TransactionalFiles::plan(path, Beyond::Refuse);
    fs::write(dir.path().join("file"), "x").unwrap();
    let message = plan(&dir.path().join("file")).unwrap_err().to_string();
    assert!(message.contains("file: is a file") && message.contains("expected a directory"), "{message}");
    let message = plan(&dir.path().join("no/where")).unwrap_err().to_string();
    assert!(message.contains("there is no directory"), "{message}");
    let path = dir.path().join("out");
    let first = plan(&path).unwrap();
    let message = plan(&path).unwrap_err().to_string();
    assert!(message.contains("another process writes to it"), "{message}");
    drop(first);
    plan(&path).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "no probe is left");
}

/// Goal: with its own thread, a sink publishes what completes, wakes its task when it is done, and leaves nothing
/// behind, sorted or not; without checkpoints it publishes at the end.
#[test]
fn a_sink_with_a_thread_publishes_and_wakes() {
    let patience = Duration::from_secs(120);
    let until = |mut done: Box<dyn FnMut() -> bool + '_>| {
        let since = Instant::now();
        while !done() {
            std::thread::park_timeout(patience);
            assert!(since.elapsed() < patience, "the waker was not used");
        }
    };
    for sorted in [false, true] {
        for parallel in [Some(Checkpointing { lineage: LINEAGE, run: 1, attempt: 1, restored: None }), None] {
            let dir = tempfile::tempdir().unwrap();
            let files = TransactionalFiles::plan(dir.path(), Beyond::Refuse).unwrap();
            let mut sink =
                files.parts::<u64, _>(&info(0, 1, parallel), row as fn(u64, &mut _), sorted).unwrap();
            let thread = std::thread::current();
            sink.wake_with(&Waker::new(move || thread.unpark()));
            let mut expected = Vec::new();
            for checkpoint in 1..4 {
                // More than a buffer, so that something has really been written before.
                let numbers = (0..30_000u64).map(|i| i * 7_919 % 30_000 + 100_000 * checkpoint);
                let first = expected.len();
                expected.extend(numbers.clone());
                if sorted && parallel.is_some() {
                    expected[first..].sort_unstable();
                }
                for record in numbers {
                    sink.write(record, 0).unwrap();
                }
                sink.flush().unwrap();
                if parallel.is_some() {
                    sink.pre_commit(checkpoint, &mut Vec::new()).unwrap();
                    until(Box::new(|| sink.is_durable(checkpoint).unwrap()));
                    assert_eq!(published(dir.path()).len() as u64, checkpoint - 1);
                    sink.commit(checkpoint).unwrap();
                    until(Box::new(|| sink.is_committed(checkpoint).unwrap()));
                }
            }
            sink.finish().unwrap();
            if sorted && parallel.is_none() {
                expected.sort_unstable();
            }
            assert_eq!(records(dir.path()), expected);
            assert_eq!(hidden(dir.path()), [""; 0]);
        }
    }
}

/// Goal: a sink that is dropped in the middle touches nothing afterwards.
#[test]
fn a_dropped_sink_is_quiet() {
    for round in 0..20 {
        let dir = directory();
        let files = TransactionalFiles::plan(dir.path(), Beyond::Refuse).unwrap();
        let job = Checkpointing { lineage: LINEAGE, run: 1, attempt: round, restored: None };
        let mut sink = files.sink::<u64, _>(&info(0, 1, Some(job)), row).unwrap();
        for checkpoint in 1..=u64::from(round) {
            sink.write(1, 0).unwrap();
            sink.pre_commit(checkpoint, &mut Vec::new()).unwrap();
            sink.commit(checkpoint).unwrap();
        }
        drop(sink);
        let names = |dir: &Path| {
            let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = names(dir.path());
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(names(dir.path()), before);
    }
}

/// Goal: a damaged list is an error, never another list or a panic.
#[test]
fn a_damaged_state_is_an_error() {
    let mut world = World::new();
    world.happens(Write).unwrap();
    world.happens(Barrier).unwrap();
    world.happens(LoseNotice).unwrap();
    let sound = world.completed.clone().unwrap();
    for bit in 0..sound.state.len() * 8 {
        let mut damaged = sound.clone();
        damaged.state[bit / 8] ^= 1 << (bit % 8);
        world.completed = Some(damaged);
        world.start().unwrap_err();
    }
    world.completed = Some(sound);
    world.start().unwrap();
    assert_eq!(records(world.dir.path()), [0]);
}
