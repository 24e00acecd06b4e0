//! One checkpoint under way.

use super::stats::{CheckpointStats, CheckpointStatus, FailureStats, PartStatus, SubtaskStats};
use super::topology::{Tasks, Topology};
use super::{Identity, Kind, WallClock};
use crate::checkpoint::{Ack, Timings};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_storage::metadata::{CheckpointMetadata, Finished, OperatorState, SubtaskState};

/// State of a task's operators, as its ack tells it.
pub(super) type OperatorStates = Vec<(usize, SubtaskState)>;

/// How far a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// The state of these vertices' source coordinators is waited for; no task knows of it yet.
    Coordinators(BTreeSet<usize>),
    /// Acks are waited for.
    Triggered,
    /// All acks are here; another one is being committed.
    Acknowledged,
    /// Its commit is under way, so that it may be complete at any moment.
    Committing,
}

#[derive(Debug, Clone)]
enum Part {
    Waiting,
    Acked { ack: Ack, at_ns: u64 },
    Finished,
}

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) request: Option<u64>,
    pub(super) base: u64,
    pub(super) triggered_at_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) phase: Phase,
    parts: Vec<Part>,
    waiting: usize,
    latest_ack_ns: Option<u64>,
    coordinators: BTreeMap<usize, Vec<u8>>,
    predictions: Vec<(Option<u64>, Option<u64>)>,
}

/// What became of an ack.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was waited for.
    Yes,
    /// The task had acknowledged before.
    Twice,
    /// The task has no part in the checkpoint.
    NotAsked,
}

impl Pending {
    /// That waits for the tasks that run.
    pub(super) fn new(
        id: u64,
        kind: Kind,
        base: u64,
        tasks: &Tasks,
        topology: &Topology,
        now_ns: u64,
        timeout_ns: u64,
    ) -> Pending {
        let mut parts = vec![Part::Finished; topology.subtasks.len()];
        tasks.that_run().for_each(|subtask| parts[subtask] = Part::Waiting);
        Pending {
            id,
            kind,
            request: None,
            base,
            triggered_at_ns: now_ns,
            deadline_ns: now_ns.saturating_add(timeout_ns),
            phase: Phase::Triggered,
            waiting: tasks.running(),
            parts,
            latest_ack_ns: None,
            coordinators: BTreeMap::new(),
            predictions: Vec::new(),
        }
    }

    /// Whether tasks may have been told of it.
    pub(super) fn is_known_to_tasks(&self) -> bool {
        !matches!(self.phase, Phase::Coordinators(_))
    }

    /// Whether nothing can take it back any more.
    pub(super) fn is_committing(&self) -> bool {
        self.phase == Phase::Committing
    }

    /// A source coordinator's state has come; whether it was waited for.
    pub(super) fn take_coordinator(&mut self, vertex: usize, state: Vec<u8>) -> bool {
        let Phase::Coordinators(waiting) = &mut self.phase else { return false };
        if !waiting.remove(&vertex) {
            return false;
        }
        self.coordinators.insert(vertex, state);
        true
    }

    pub(super) fn take_ack(&mut self, ack: Ack, now_ns: u64) -> Taken {
        match &mut self.parts[ack.subtask] {
            Part::Finished => Taken::NotAsked,
            Part::Acked { .. } => Taken::Twice,
            part @ Part::Waiting => {
                *part = Part::Acked { ack, at_ns: now_ns };
                self.waiting -= 1;
                self.latest_ack_ns = Some(now_ns);
                Taken::Yes
            }
        }
    }

    /// Whether the task's ack is waited for.
    pub(super) fn waits_for(&self, subtask: usize) -> bool {
        matches!(self.parts[subtask], Part::Waiting)
    }

    /// Tasks whose acks are waited for.
    pub(super) fn waits_for_all(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.parts.len()).filter(|subtask| self.waits_for(*subtask))
    }

    /// Whom it waits for, and for how long already, for people.
    pub(super) fn tell_what_is_missing(&self, topology: &Topology, waited_ns: u64) -> String {
        const NAMED_MAX: usize = 5;
        let missing: Vec<String> = match &self.phase {
            Phase::Coordinators(vertices) => vertices
                .iter()
                .map(|at| format!("the coordinator of {}", topology.vertices[*at].name))
                .collect(),
            _ => self.waits_for_all().map(|subtask| topology.task_name(subtask)).collect(),
        };
        let seconds = waited_ns as f64 / 1e9;
        let named = missing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        match missing.len() {
            0 => format!("expired after {seconds} s: it waits for the commit of another one"),
            n if n > NAMED_MAX => {
                format!("expired after {seconds} s without {named} and {} more", n - NAMED_MAX)
            }
            _ => format!("expired after {seconds} s without {named}"),
        }
    }

    /// Whether every ack is here.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.waiting == 0
    }

    /// Whether each task had no input left when it took its part, so that none waits for another checkpoint.
    pub(super) fn is_last(&self) -> bool {
        (0..self.parts.len()).all(|subtask| self.had_finished(subtask))
    }

    fn had_finished(&self, subtask: usize) -> bool {
        match &self.parts[subtask] {
            Part::Waiting => false,
            Part::Acked { ack, .. } => ack.finished,
            Part::Finished => true,
        }
    }

    /// Last states of tasks that had no input left.
    pub(super) fn into_final_states(self) -> impl Iterator<Item = (usize, OperatorStates)> {
        self.parts.into_iter().filter_map(|part| match part {
            Part::Acked { ack, .. } if ack.finished => Some((ack.subtask, ack.operators)),
            _ => None,
        })
    }

    /// What the barrier of a task is expected to wait for.
    pub(super) fn predict(&mut self, subtask: usize, predicted_ns: Option<u64>, static_ns: Option<u64>) {
        self.predictions.resize(self.parts.len(), (None, None));
        self.predictions[subtask] = (predicted_ns, static_ns);
    }

    /// What is to be committed. An operator is listed if it has state, or if a restored job must know that it had
    /// finished; `carried` are operators that had fully finished before the job was restored.
    pub(super) fn metadata(
        &self,
        topology: &Topology,
        identity: &Identity,
        wall: &WallClock,
        carried: &[OperatorState],
    ) -> CheckpointMetadata {
        let mut by_vertex = vec![Vec::new(); topology.vertices.len()];
        for (subtask, place) in topology.subtasks.iter().enumerate() {
            by_vertex[place.vertex].push(subtask);
        }
        let mut operators = Vec::new();
        for (index, vertex) in topology.vertices.iter().enumerate() {
            let subtasks = &by_vertex[index];
            let finished = match subtasks.iter().filter(|subtask| self.had_finished(**subtask)).count() {
                0 => Finished::Running,
                n if n == subtasks.len() => Finished::Fully,
                _ => Finished::Partly,
            };
            for (at, operator) in vertex.operators.iter().enumerate() {
                let mut states: Vec<SubtaskState> = Vec::new();
                for subtask in subtasks {
                    let finished = self.had_finished(*subtask);
                    let state = match &self.parts[*subtask] {
                        Part::Acked { ack, .. } => ack.operators.iter().find(|(operator, _)| *operator == at),
                        _ => None,
                    };
                    if state.is_none() && !finished {
                        continue;
                    }
                    let mut state = state.map(|(_, state)| state.clone()).unwrap_or_default();
                    (state.subtask, state.finished) = (topology.subtasks[*subtask].number, finished);
                    states.push(state);
                }
                let coordinator = match vertex.coordinated {
                    Some(coordinated) if coordinated == at => self.coordinators.get(&index).cloned(),
                    _ => None,
                };
                let coordinator = coordinator.unwrap_or_default();
                if finished == Finished::Fully
                    && states.iter().all(|state| state.pieces().next().is_none())
                    && let Some(before) = carried.iter().find(|before| before.uid == operator.uid)
                {
                    operators.push(before.clone());
                } else if !states.is_empty() || !coordinator.is_empty() {
                    operators.push(OperatorState {
                        uid: operator.uid.clone(),
                        name: operator.name.clone(),
                        parallelism: vertex.parallelism,
                        max_parallelism: vertex.max_parallelism,
                        finished,
                        coordinator,
                        subtasks: states,
                    });
                }
            }
        }
        CheckpointMetadata {
            lineage: identity.lineage,
            run: identity.run,
            id: self.id,
            triggered_ms: wall.unix_ms(self.triggered_at_ns),
            job: identity.job.clone(),
            operators,
        }
    }

    /// As it stands; `ended_at_ns` and `failure` if it does not stand any more.
    pub(super) fn stats(
        &self,
        topology: &Topology,
        wall: &WallClock,
        ended_at_ns: Option<u64>,
        failure: Option<FailureStats>,
    ) -> CheckpointStats {
        let mut subtasks = Vec::with_capacity(self.parts.len());
        let (mut written_bytes, mut state_bytes) = (0, 0);
        for (part, place) in self.parts.iter().zip(&topology.subtasks) {
            let (status, acked_at_ns, timings) = match part {
                Part::Waiting => (PartStatus::Waiting, None, Timings::default()),
                Part::Finished => (PartStatus::Finished, None, Timings::default()),
                Part::Acked { ack, at_ns } => (PartStatus::Acknowledged, Some(*at_ns), ack.timings),
            };
            written_bytes += timings.written_bytes;
            state_bytes += timings.state_bytes;
            let prediction = self.predictions.get(subtasks.len()).copied().unwrap_or_default();
            subtasks.push(SubtaskStats {
                vertex: place.vertex,
                subtask: place.number,
                status,
                acked_at_ms: acked_at_ns.map(|at| wall.unix_ms(at)),
                end_to_end_ns: acked_at_ns.map(|at| at.saturating_sub(self.triggered_at_ns)),
                timings,
                predicted_wait_ns: prediction.0,
                static_wait_ns: prediction.1,
            });
        }
        let of_status = |status| subtasks.iter().filter(|part| part.status == status).count();
        let acknowledged = of_status(PartStatus::Acknowledged);
        let since_trigger = |at: u64| at.saturating_sub(self.triggered_at_ns);
        let (mut end_to_end_ns, mut commit_ns) = (self.latest_ack_ns.map_or(0, since_trigger), 0);
        let status = match (ended_at_ns, &failure) {
            (None, _) => CheckpointStatus::InProgress,
            (Some(ended), None) => {
                commit_ns = since_trigger(ended).saturating_sub(end_to_end_ns);
                CheckpointStatus::Completed
            }
            (Some(ended), Some(_)) => {
                end_to_end_ns = since_trigger(ended);
                CheckpointStatus::Failed
            }
        };
        CheckpointStats {
            id: self.id,
            kind: self.kind,
            request: self.request,
            status,
            base: self.base,
            triggered_at_ms: wall.unix_ms(self.triggered_at_ns),
            latest_ack_at_ms: self.latest_ack_ns.map(|at| wall.unix_ms(at)),
            ended_at_ms: ended_at_ns.map(|at| wall.unix_ms(at)),
            end_to_end_ns,
            commit_ns,
            written_bytes,
            state_bytes,
            subtasks_total: acknowledged + of_status(PartStatus::Waiting),
            subtasks_acknowledged: acknowledged,
            subtasks,
            failure,
        }
    }
}
