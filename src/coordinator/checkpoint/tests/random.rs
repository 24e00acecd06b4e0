//! The coordinator in random jobs, watched for what must always hold.
//!
//! A job is a graph, settings, and tasks that answer in any order, twice, late, with a no, or never; commits that take
//! a while and fail in three ways; sources that end; and restarts. `TIDEGATE_SEED=n` runs one seed.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        crate::limit::splitmix(self.0) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A task, as far as the coordinator can tell.
#[derive(Debug, Default, Clone)]
struct Task {
    finished: bool,
    data_ended: bool,
    /// The checkpoint that lets it end, and whether it is complete.
    last: Option<u64>,
    may_end: bool,
}

struct World {
    dice: Dice,
    now: u64,
    coordinator: CheckpointCoordinator,
    settings: CheckpointSettings,
    tasks: Vec<Task>,
    /// Barriers that tasks may still answer: checkpoint and task.
    open: BTreeSet<(u64, usize)>,
    /// Acks that have been handed in, and for which checkpoints they were the last word.
    acked: BTreeMap<u64, BTreeSet<usize>>,
    awaited: BTreeMap<u64, BTreeSet<usize>>,
    under_way: BTreeSet<u64>,
    committing: Option<u64>,
    newest: u64,
    largest: u64,
    must_fail: bool,
    events: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed << 20);
        let stages: Vec<u32> = (0..1 + dice.below(3)).map(|_| 1 + dice.below(3) as u32).collect();
        let settings = CheckpointSettings {
            interval_ns: Some((1 + dice.below(5)) * 10 * MS),
            timeout_ns: (1 + dice.below(10)) * 10 * MS,
            min_pause_ns: [0, 0, 15 * MS][dice.below(3) as usize],
            concurrent_max: 1 + dice.below(3) as u32,
            tolerable_failures: dice.below(4) as u32,
            after_tasks_finish: !dice.one_in(6),
            history_max: dice.below(12) as usize,
            ..CheckpointSettings::default()
        };
        let coordinator = coordinator_of(settings.clone(), row(&stages));
        let tasks = vec![Task::default(); coordinator.topology().subtasks.len()];
        World {
            dice,
            now: 0,
            coordinator,
            settings,
            tasks,
            open: BTreeSet::new(),
            acked: BTreeMap::new(),
            awaited: BTreeMap::new(),
            under_way: BTreeSet::new(),
            committing: None,
            newest: 0,
            largest: 0,
            must_fail: false,
            events: BTreeMap::new(),
        }
    }

    fn saw(&mut self, event: &'static str) {
        *self.events.entry(event).or_default() += 1;
    }

    fn running(&self) -> BTreeSet<usize> {
        (0..self.tasks.len()).filter(|task| !self.tasks[*task].finished).collect()
    }

    /// Whether all that send to a task have finished.
    fn is_head(&self, task: usize) -> bool {
        let subtasks = &self.coordinator.topology().subtasks;
        (0..subtasks.len())
            .all(|from| self.tasks[from].finished || !subtasks[from].consumers.contains(&(task as u32)))
    }

    /// Carries actions out, and checks each.
    fn take(&mut self, actions: Vec<Action>) {
        let mut triggers: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        let mut notices: BTreeMap<(&str, u64), BTreeSet<usize>> = BTreeMap::new();
        for action in actions {
            match action {
                Action::Trigger { subtask, barrier } => {
                    let id = barrier.checkpoint.0;
                    assert_eq!(barrier.base, self.newest);
                    assert_eq!(barrier.triggered_at_ns, self.now);
                    assert!(!self.tasks[subtask].finished && self.is_head(subtask));
                    triggers.entry(id).or_default().insert(subtask);
                    if self.under_way.insert(id) {
                        assert!(id > self.largest, "{id} is not new");
                        assert!(
                            self.settings.after_tasks_finish || self.tasks.iter().all(|task| !task.finished)
                        );
                        self.largest = id;
                        let running = self.running();
                        self.open.extend(running.iter().map(|task| (id, *task)));
                        self.awaited.insert(id, running);
                    }
                    assert!(self.under_way.len() <= self.settings.concurrent_max as usize);
                }
                Action::Commit(metadata) => {
                    let id = metadata.id;
                    assert_eq!(self.committing.replace(id), None, "two commits at once");
                    assert!(self.under_way.contains(&id) && id > self.newest);
                    let missing: Vec<usize> = {
                        let acked = self.acked.entry(id).or_default();
                        self.awaited[&id].difference(acked).copied().collect()
                    };
                    for task in missing {
                        // Only with what it had when it was let go.
                        assert!(self.tasks[task].finished && self.tasks[task].may_end, "{id} without {task}");
                        self.saw("final ack reused");
                    }
                }
                Action::Complete { subtask, id } => {
                    assert_eq!(id.0, self.newest, "told before it is");
                    assert!(notices.entry(("complete", id.0)).or_default().insert(subtask));
                    let task = &mut self.tasks[subtask];
                    task.may_end |= task.last == Some(id.0);
                }
                Action::Abort { subtask, id } => {
                    assert!(notices.entry(("abort", id.0)).or_default().insert(subtask));
                }
                Action::Completed(stats) => {
                    assert!(self.under_way.remove(&stats.id));
                    assert_eq!(stats.subtasks_acknowledged, stats.subtasks_total);
                    self.saw("completed");
                }
                Action::Failed(stats) => {
                    assert!(self.under_way.remove(&stats.id));
                    assert_ne!(self.committing, Some(stats.id), "{} may be complete", stats.id);
                    self.saw(stats.failure.as_ref().unwrap().reason.name());
                }
                Action::FailJob(failure) => {
                    assert!(
                        failure.reason.counts()
                            && failure.consecutive == self.settings.tolerable_failures + 1
                    );
                    self.must_fail = true;
                    self.saw("job failed");
                }
                other => panic!("{other:?}"),
            }
        }
        for (id, triggered) in triggers {
            let heads: BTreeSet<usize> =
                self.running().into_iter().filter(|task| self.is_head(*task)).collect();
            assert_eq!(triggered, heads, "checkpoint {id}");
        }
        for ((what, id), told) in notices {
            assert_eq!(told, self.running(), "{what} {id}");
        }
        let counts = self.coordinator.counts();
        assert_eq!(counts.total, counts.completed + counts.failed + counts.in_progress);
        assert_eq!(counts.in_progress, self.under_way.len() as u64);
        assert_eq!(self.coordinator.committing(), self.committing);
        assert_eq!(self.coordinator.newest_complete(), self.newest);
        let deadline = self.coordinator.next_deadline();
        assert!(deadline.is_none_or(|at| at > self.now), "{deadline:?} is over at {}", self.now);
        if !self.dice.one_in(20) {
            return;
        }
        let history = self.coordinator.statistics().history;
        assert!(history.len() <= self.settings.history_max + self.under_way.len());
        assert!(history.is_sorted_by(|newer, older| newer.id > older.id));
    }

    /// Some answer of some task, good or bad.
    fn answer(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (id, subtask) = *self.open.iter().nth(self.dice.below(self.open.len() as u64) as usize).unwrap();
        if self.tasks[subtask].finished {
            self.open.remove(&(id, subtask));
            return;
        }
        if self.dice.one_in(40) {
            self.open.remove(&(id, subtask));
            let reason = match self.dice.below(3) {
                0 => declined(),
                1 => DeclineReason::InputEnded,
                _ => DeclineReason::Subsumed { newer: id + 1 },
            };
            let actions = self.coordinator.decline(self.now, id, subtask, &reason);
            return self.take(actions);
        }
        // Now and then the same ack comes again.
        if !self.dice.one_in(10) {
            self.open.remove(&(id, subtask));
        }
        let subtasks = &self.coordinator.topology().subtasks;
        let consumes = |from: &usize| subtasks[*from].consumers.contains(&(subtask as u32));
        let finished = match subtasks[subtask].is_source {
            true => self.tasks[subtask].data_ended,
            false => (0..self.tasks.len()).filter(consumes).all(|from| {
                self.tasks[from].finished || self.tasks[from].last.is_some_and(|last| last <= id)
            }),
        };
        if finished && self.tasks[subtask].last.is_none_or(|last| last > id) {
            self.tasks[subtask].last = Some(id);
        }
        let finished = self.tasks[subtask].last.is_some_and(|last| last <= id);
        let ack = Ack { finished, ..ack(id, subtask) };
        if finished && !self.under_way.contains(&id) {
            // Nobody hears it: the next one is its last.
            self.tasks[subtask].last = None;
        }
        if self.under_way.contains(&id) {
            self.acked.entry(id).or_default().insert(subtask);
        }
        let actions = self.coordinator.ack(self.now, ack);
        self.take(actions);
    }

    fn settle_commit(&mut self) {
        let Some(id) = self.committing.take() else { return };
        let actions = match self.dice.below(20) {
            0 => self.coordinator.commit_failed(self.now, id, &"disk", true),
            1 => self.coordinator.commit_failed(self.now, id, &"disk", false),
            _ => {
                self.newest = id;
                self.coordinator.committed(self.now, id)
            }
        };
        self.take(actions);
    }

    fn end_data(&mut self) {
        let source = self.dice.below(self.tasks.len() as u64) as usize;
        if self.coordinator.topology().subtasks[source].is_source && !self.tasks[source].finished {
            self.tasks[source].data_ended = true;
            let actions = self.coordinator.end_of_data(self.now, source);
            self.take(actions);
        }
    }

    fn finish(&mut self) {
        let may_end = |task: &usize| self.tasks[*task].may_end && !self.tasks[*task].finished;
        let Some(task) = (0..self.tasks.len()).find(may_end) else { return };
        self.tasks[task].finished = true;
        let actions = self.coordinator.task_finished(self.now, task);
        self.take(actions);
    }

    fn restart(&mut self) {
        self.must_fail = false;
        let actions = self.coordinator.not_running(self.now);
        assert!(!actions.iter().any(|a| matches!(a, Action::Abort { .. } | Action::Trigger { .. })));
        self.take(actions);
        while self.committing.is_some() {
            self.now += 10 * MS;
            self.settle_commit();
        }
        self.open.clear();
        self.tasks.fill(Task::default());
        self.coordinator.deploy(self.now, Restored { id: self.newest, finished: Vec::new() });
        self.now += 30 * MS;
        let actions = self.coordinator.all_running(self.now);
        self.take(actions);
        self.saw("restarted");
    }

    fn step(&mut self) {
        if self.must_fail || self.dice.one_in(300) {
            return self.restart();
        }
        match self.dice.below(24) {
            0..=2 => {
                self.now += 1 + self.dice.below(20 * MS);
                let actions = self.coordinator.tick(self.now);
                self.take(actions);
            }
            3..=5 => self.settle_commit(),
            6 if self.dice.one_in(8) => self.end_data(),
            7..=8 => self.finish(),
            _ => self.answer(),
        }
    }

    /// After faults stop a checkpoint completes, or the job has ended in good order.
    fn settle_down(&mut self) {
        if self.must_fail {
            self.restart();
        }
        let before = self.newest;
        if !self.settings.after_tasks_finish && self.tasks.iter().any(|task| task.finished) {
            return;
        }
        for _ in 0..10_000 {
            if self.newest > before
                || self.running().is_empty()
                || self.coordinator.next_deadline().is_none() && self.under_way.is_empty()
            {
                return;
            }
            if let Some(id) = self.committing.take() {
                self.newest = id;
                let actions = self.coordinator.committed(self.now, id);
                self.take(actions);
            } else if let Some((id, subtask)) = self.open.pop_first() {
                if self.under_way.contains(&id) && !self.tasks[subtask].finished {
                    self.acked.entry(id).or_default().insert(subtask);
                    let actions = self.coordinator.ack(self.now, ack(id, subtask));
                    self.take(actions);
                }
            } else {
                self.now = self.coordinator.next_deadline().unwrap_or(self.now);
                let actions = self.coordinator.tick(self.now);
                self.take(actions);
            }
        }
        panic!("no checkpoint completes: {:?}, under way {:?}", self.settings, self.under_way);
    }
}

/// Goal: ids grow; never two commits at once nor more checkpoints under way than allowed; one is committed only when
/// all its tasks have acknowledged; heads are triggered and running tasks told, and only these; counts add up;
/// deadlines lie ahead; after faults stop a checkpoint completes.
#[test]
fn random_jobs_keep_every_invariant() {
    let seeds = match std::env::var("TIDEGATE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("TIDEGATE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..300,
    };
    let mut events: BTreeMap<&'static str, u64> = BTreeMap::new();
    let all = seeds.end - seeds.start > 1;
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            let actions = world.coordinator.all_running(0);
            world.take(actions);
            (0..800).for_each(|_| world.step());
            world.settle_down();
            world.events
        });
        let seen = outcome.unwrap_or_else(|panic| {
            eprintln!("TIDEGATE_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        seen.into_iter().for_each(|(event, count)| *events.entry(event).or_default() += count);
    }
    let expected = [
        "completed",
        "final ack reused",
        "job failed",
        "restarted",
        "CHECKPOINT_EXPIRED",
        "CHECKPOINT_DECLINED",
        "CHECKPOINT_DECLINED_SUBSUMED",
        "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
        "CHECKPOINT_SUBSUMED",
        "CHECKPOINT_COORDINATOR_SUSPEND",
        "FINALIZE_CHECKPOINT_FAILURE",
    ];
    for event in expected {
        assert!(
            !all || events.get(event).is_some_and(|count| *count > 10),
            "too little of {event}: {events:?}"
        );
    }
}
