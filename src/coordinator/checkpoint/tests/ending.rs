//! Tasks that finish while others run, and the last checkpoint of all.

use super::*;

/// A job of one source with two subtasks before one that counts, at its first checkpoint.
fn job(settings: CheckpointSettings) -> CheckpointCoordinator {
    let mut coordinator = coordinator_of(settings, row(&[2, 1]));
    coordinator.all_running(0);
    assert_eq!(triggered(&coordinator.tick(10 * MS)), [1]);
    coordinator
}

/// Goal: a task that has finished is neither triggered nor awaited nor told; when all before it have, a task is
/// triggered itself; the metadata says who had finished.
#[test]
fn finished_tasks_have_no_part() {
    let mut coordinator = job(settings(10));
    coordinator.end_of_data(11 * MS, 0);
    coordinator.ack(11 * MS, final_ack(1, 0));
    coordinator.ack(11 * MS, ack(1, 1));
    let actions = coordinator.ack(11 * MS, ack(1, 2));
    let metadata = committed_metadata(&actions);
    let source = &metadata.operators[0];
    assert_eq!((source.finished, metadata.operators[1].finished), (Finished::Partly, Finished::Running));
    let finished: Vec<_> =
        source.subtasks.iter().map(|s| (s.subtask, s.finished, s.operator.len())).collect();
    assert_eq!(finished, [(0, true, 1), (1, false, 1)]);
    assert_eq!(coordinator.committed(12 * MS, 1).len(), 4);
    assert_eq!(coordinator.task_finished(13 * MS, 0), []);
    assert_eq!(coordinator.task_finished(13 * MS, 0), [], "a second report is ignored");

    assert_eq!(told(&coordinator.tick(20 * MS)), ["trigger 2 at 1"]);
    assert_eq!(coordinator.ack(21 * MS, ack(2, 0)), [], "it has no part any more");
    coordinator.ack(21 * MS, final_ack(2, 1));
    let actions = coordinator.ack(21 * MS, ack(2, 2));
    let source = &committed_metadata(&actions).operators[0];
    assert_eq!(source.finished, Finished::Fully);
    let finished: Vec<_> =
        source.subtasks.iter().map(|s| (s.subtask, s.finished, s.operator.len())).collect();
    assert_eq!(finished, [(0, true, 0), (1, true, 1)]);
    let words = told(&coordinator.committed(22 * MS, 2));
    assert_eq!(words, ["complete 2 at 1", "complete 2 at 2", "completed 2"]);
    assert_eq!(
        told(&coordinator.task_finished(23 * MS, 1)),
        ["trigger 3 at 2"],
        "nothing else sends it a barrier"
    );
}

/// Goal: a task that finishes after a checkpoint was triggered counts with what it had at the one before; nothing
/// expires for it.
#[test]
fn a_task_that_ends_in_between_counts_with_its_last_ack() {
    let mut coordinator = job(CheckpointSettings { concurrent_max: 2, ..settings(10) });
    coordinator.ack(11 * MS, final_ack(1, 0));
    coordinator.ack(11 * MS, ack(1, 1));
    assert_eq!(triggered(&coordinator.tick(20 * MS)), [2]);
    assert_eq!(told(&coordinator.ack(21 * MS, ack(1, 2))), ["commit 1"]);
    coordinator.ack(21 * MS, ack(2, 1));
    coordinator.ack(21 * MS, ack(2, 2));
    // The notice reaches it before the trigger of 2, which nobody takes any more.
    assert_eq!(told(&coordinator.committed(22 * MS, 1)).last().unwrap(), "completed 1");
    let actions = coordinator.task_finished(23 * MS, 0);
    let source = &committed_metadata(&actions).operators[0];
    assert_eq!(source.finished, Finished::Partly);
    assert_eq!((source.subtasks[0].finished, &source.subtasks[0].operator), (true, &inline("1.0").operator));
    let words = told(&coordinator.committed(24 * MS, 2));
    assert_eq!(words, ["complete 2 at 1", "complete 2 at 2", "completed 2"]);
    let counts = coordinator.counts();
    assert_eq!((counts.completed, counts.failed), (2, 0));
}

/// Goal: one that ends without an ack to fall back on fails what waits for it, at once and uncounted.
#[test]
fn a_task_that_ends_without_an_ack_fails_what_waits_for_it() {
    let mut coordinator = job(settings(10));
    let words = told(&coordinator.task_finished(11 * MS, 0));
    let expected = ["abort 1 at 1", "abort 1 at 2", "failed 1 NOT_ALL_REQUIRED_TASKS_RUNNING"];
    assert_eq!(words, expected);
    assert_eq!(coordinator.consecutive_failures(), 0);
    assert_eq!(told(&coordinator.tick(20 * MS)), ["trigger 2 at 1"]);
}

/// Goal: when the last source has no data any more a checkpoint is taken at once, whatever interval and pause say,
/// also if it becomes known while another one is under way; after it there is none.
#[test]
fn m_180_the_last_checkpoint_is_taken_at_once() {
    let slow = CheckpointSettings { min_pause_ns: 3600 * S, ..settings(600_000) };
    let mut coordinator = coordinator_of(slow, row(&[2, 1]));
    coordinator.all_running(0);
    assert_eq!(coordinator.end_of_data(S, 0), []);
    assert_eq!(coordinator.end_of_data(S, 0), []);
    assert_eq!(told(&coordinator.end_of_data(2 * S, 1)), ["trigger 1 at 0", "trigger 1 at 1"]);
    let mut actions = Vec::new();
    for subtask in 0..3 {
        actions = coordinator.ack(2 * S + MS, final_ack(1, subtask));
    }
    assert!(committed_metadata(&actions).operators.iter().all(|o| o.finished == Finished::Fully));
    assert_eq!(told(&coordinator.committed(2 * S + 2 * MS, 1)).last().unwrap(), "completed 1");
    assert_eq!(told(&coordinator.trigger_now(3 * S, 7)), ["refused 7 NOT_ALL_REQUIRED_TASKS_RUNNING"]);
    for subtask in 0..3 {
        assert_eq!(coordinator.task_finished(3 * S, subtask), []);
    }
    assert_eq!((coordinator.next_deadline(), coordinator.tick(9000 * S)), (None, vec![]));
    assert_eq!(coordinator.next_id(), 2);

    // Also where there are none before it.
    let on_request = CheckpointSettings { interval_ns: None, ..settings(1) };
    let mut coordinator = coordinator_of(on_request, row(&[1, 1]));
    coordinator.all_running(0);
    assert_eq!(coordinator.next_deadline(), None);
    assert_eq!(told(&coordinator.end_of_data(S, 0)), ["trigger 1 at 0"]);

    // One that was under way, and took no note of the end, does not do.
    let mut coordinator = job(CheckpointSettings { min_pause_ns: 3600 * S, ..settings(10) });
    coordinator.end_of_data(11 * MS, 0);
    assert_eq!(coordinator.end_of_data(12 * MS, 1), []);
    assert_eq!(triggered(&complete(&mut coordinator, 13 * MS, 1)), [2]);
    // One that did does: no second one follows.
    let mut coordinator = job(settings(1));
    coordinator.end_of_data(11 * MS, 0);
    coordinator.end_of_data(11 * MS, 1);
    (0..3).for_each(|subtask| drop(coordinator.ack(12 * MS, final_ack(1, subtask))));
    assert_eq!(triggered(&coordinator.committed(13 * MS, 1)), [0; 0]);
    assert_eq!(coordinator.tick(S), []);
}

/// Goal: a source that ends before all other tasks run is not forgotten.
#[test]
fn an_end_before_the_start_is_remembered() {
    let mut coordinator = coordinator_of(settings(600_000), row(&[1, 1]));
    assert_eq!(coordinator.end_of_data(MS, 0), []);
    assert_eq!(told(&coordinator.all_running(2 * MS)), ["trigger 1 at 0"]);
}

/// Goal: a last checkpoint that fails is tried again soon, however long the interval, but not at once; a deployment
/// after that begins anew.
#[test]
fn a_last_checkpoint_that_fails_is_tried_again() {
    let borne = CheckpointSettings { tolerable_failures: 100, ..settings(600_000) };
    let mut coordinator = coordinator_of(borne, row(&[1, 1]));
    coordinator.all_running(0);
    coordinator.end_of_data(0, 0);
    for id in 1..=20u64 {
        let now = id * FINAL_RETRY_NS;
        coordinator.decline(now, id, 1, &declined());
        assert_eq!(coordinator.next_deadline(), Some(now + FINAL_RETRY_NS));
        assert_eq!(coordinator.tick(now + FINAL_RETRY_NS - 1), []);
        assert_eq!(triggered(&coordinator.tick(now + FINAL_RETRY_NS)), [id + 1]);
    }
    coordinator.not_running(5 * S);
    coordinator.deploy(5 * S, Restored::default());
    assert_eq!(coordinator.all_running(6 * S), []);
    assert_eq!(coordinator.next_deadline(), Some(606 * S));
}

/// Goal: where checkpoints are to end with the first task that finishes, they do, and it is said.
#[test]
fn without_checkpoints_after_tasks_finish_there_are_none() {
    let mut coordinator = job(CheckpointSettings { after_tasks_finish: false, ..settings(10) });
    assert_eq!(coordinator.trigger_now(11 * MS, 7), []);
    let (actions, log) = logged(|| coordinator.task_finished(12 * MS, 0));
    let words = told(&actions);
    assert!(words.contains(&"failed 1 NOT_ALL_REQUIRED_TASKS_RUNNING".to_string()), "{words:?}");
    assert!(words.contains(&"refused 7 NOT_ALL_REQUIRED_TASKS_RUNNING".to_string()), "{words:?}");
    assert!(
        log.contains("have already finished and checkpointing with finished tasks is not enabled"),
        "{log}"
    );
    coordinator.end_of_data(13 * MS, 1);
    assert_eq!(coordinator.tick(S), []);
    assert_eq!(triggered(&coordinator.task_finished(S, 1)), [0; 0]);
    assert_eq!(coordinator.next_id(), 2);
}

/// Goal: operators that had finished before a restore, and have nothing of their own to say, stay in the metadata as
/// they were; what runs again is as it is now.
#[test]
fn operators_that_had_finished_are_carried_over() {
    let finished = OperatorState {
        uid: "uid-0".to_string(),
        name: "op0".to_string(),
        parallelism: 5,
        max_parallelism: 128,
        finished: Finished::Fully,
        coordinator: vec![4],
        subtasks: vec![SubtaskState { finished: true, ..inline("old") }],
    };
    let running = OperatorState { uid: "uid-1".to_string(), finished: Finished::Running, ..finished.clone() };
    let metadata = CheckpointMetadata {
        lineage: 0xabc,
        run: 1,
        id: 8,
        triggered_ms: 0,
        job: "count".to_string(),
        operators: vec![finished.clone(), running],
    };
    let restored = Restored::from(&metadata);
    assert_eq!((restored.id, restored.finished.len()), (8, 1));
    let mut coordinator = coordinator_of(settings(600_000), row(&[2, 1]));
    coordinator.deploy(0, restored);
    coordinator.all_running(0);
    coordinator.end_of_data(0, 0);
    assert_eq!(triggered(&coordinator.end_of_data(0, 1)), [9]);
    let silent = |subtask| Ack { operators: Vec::new(), ..final_ack(9, subtask) };
    (0..2).for_each(|subtask| drop(coordinator.ack(MS, silent(subtask))));
    let actions = coordinator.ack(MS, final_ack(9, 2));
    let operators = &committed_metadata(&actions).operators;
    assert_eq!(operators[0], finished);
    assert_eq!(
        (operators[1].finished, &operators[1].subtasks[0].operator),
        (Finished::Fully, &inline("9.2").operator)
    );
}
