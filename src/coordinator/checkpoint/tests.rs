//! The machine step by step: events and times in, actions out.

use super::*;
use std::sync::Mutex;
use tidegate_storage::metadata::{Finished, StateRef, SubtaskState};

mod ending;
mod faults;
mod random;
mod steps;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Vertices in a row, each of one operator, with all-to-all exchanges between them.
pub(super) fn row(parallelism: &[u32]) -> Topology {
    let first = |vertex: usize| parallelism[..vertex].iter().sum::<u32>();
    let mut topology = Topology::default();
    for (vertex, count) in parallelism.iter().enumerate() {
        topology.vertices.push(VertexPlace {
            name: format!("v{vertex}"),
            parallelism: *count,
            max_parallelism: 128,
            operators: vec![OperatorPlace { uid: format!("uid-{vertex}"), name: format!("op{vertex}") }],
            coordinated: None,
        });
        let consumers = match parallelism.get(vertex + 1) {
            Some(next) => (first(vertex + 1)..first(vertex + 1) + next).collect(),
            None => Vec::new(),
        };
        topology.subtasks.extend((0..*count).map(|number| SubtaskPlace {
            vertex,
            number,
            is_source: vertex == 0,
            consumers: consumers.clone(),
        }));
    }
    topology
}

fn settings(interval_ms: u64) -> CheckpointSettings {
    CheckpointSettings {
        interval_ns: Some(interval_ms * MS),
        timeout_ns: 600 * S,
        ..CheckpointSettings::default()
    }
}

fn coordinator_of(settings: CheckpointSettings, topology: Topology) -> CheckpointCoordinator {
    let identity = Identity { lineage: 0xabc, run: 2, job: "count".to_string() };
    let wall = WallClock { at_ns: 0, unix_ms: 1_700_000_000_000 };
    let mut coordinator = CheckpointCoordinator::new(settings, topology, identity, wall, 1);
    coordinator.deploy(0, Restored::default());
    coordinator
}

/// Two sources and two counters, which run since 0.
fn running(settings: CheckpointSettings) -> CheckpointCoordinator {
    let mut coordinator = coordinator_of(settings, row(&[2, 2]));
    assert_eq!(coordinator.all_running(0), []);
    coordinator
}

fn inline(text: &str) -> SubtaskState {
    SubtaskState { operator: vec![StateRef::Inline(text.into())], ..SubtaskState::default() }
}

fn ack(checkpoint: u64, subtask: usize) -> Ack {
    let operators = vec![(0, inline(&format!("{checkpoint}.{subtask}")))];
    let timings = Timings { written_bytes: 3, state_bytes: 5, sync_ns: 7, ..Timings::default() };
    Ack { checkpoint, subtask, finished: false, operators, timings }
}

fn final_ack(checkpoint: u64, subtask: usize) -> Ack {
    Ack { finished: true, ..ack(checkpoint, subtask) }
}

fn declined() -> DeclineReason {
    DeclineReason::Operator { operator: "op".to_string(), cause: "no".to_string() }
}

/// What is looked at in actions: each in a word.
fn told(actions: &[Action]) -> Vec<String> {
    let tell = |action: &Action| match action {
        Action::SnapshotCoordinator { id, vertex, .. } => format!("coordinator {id} v{vertex}"),
        Action::ReleaseCoordinators { id } => format!("release {id}"),
        Action::Trigger { subtask, barrier } => format!("trigger {} at {subtask}", barrier.checkpoint.0),
        Action::Commit(metadata) => format!("commit {}", metadata.id),
        Action::Complete { subtask, id } => format!("complete {} at {subtask}", id.0),
        Action::Abort { subtask, id } => format!("abort {} at {subtask}", id.0),
        Action::Completed(stats) => format!("completed {}", stats.id),
        Action::Failed(stats) => {
            format!("failed {} {}", stats.id, stats.failure.as_ref().unwrap().reason.name())
        }
        Action::Refused { request, reason } => format!("refused {request} {}", reason.name()),
        Action::FailJob(failure) => format!("fail job {}", failure.checkpoint),
    };
    actions.iter().map(tell).collect()
}

/// Ids that are triggered by these actions, each once.
fn triggered(actions: &[Action]) -> Vec<u64> {
    let ids = actions.iter().filter_map(|action| match action {
        Action::Trigger { barrier, .. } => Some(barrier.checkpoint.0),
        _ => None,
    });
    let mut ids: Vec<u64> = ids.collect();
    ids.dedup();
    ids
}

fn committed_metadata(actions: &[Action]) -> &CheckpointMetadata {
    let found = actions.iter().find_map(|action| match action {
        Action::Commit(metadata) => Some(metadata),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no commit in {:?}", told(actions)))
}

/// All four tasks acknowledge; returns what the last ack leads to.
fn ack_all(coordinator: &mut CheckpointCoordinator, now: u64, id: u64) -> Vec<Action> {
    let mut last = Vec::new();
    for subtask in 0..coordinator.topology().subtasks.len() {
        assert_eq!(last, []);
        last = coordinator.ack(now, ack(id, subtask));
    }
    last
}

/// A checkpoint from its acks to its end.
fn complete(coordinator: &mut CheckpointCoordinator, now: u64, id: u64) -> Vec<Action> {
    assert_eq!(told(&ack_all(coordinator, now, id)), [format!("commit {id}")]);
    coordinator.committed(now, id)
}

/// What is logged meanwhile.
fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let result = tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    (result, text)
}
