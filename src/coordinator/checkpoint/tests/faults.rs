//! Faults that systems of this kind had in the field.

use super::*;

/// Goal: no checkpoint is begun while a task is not ready, so none waits for it; after it is ready the first one is
/// at most an interval away. An answer from before the start counts for nothing.
#[test]
fn f_01_nothing_is_triggered_before_a_task_is_ready() {
    let mut coordinator = coordinator_of(settings(50), row(&[1, 1, 1]));
    for at in 0..40 {
        assert_eq!(coordinator.tick(at * 50 * MS), []);
        assert_eq!(coordinator.ack(at * 50 * MS, ack(1, 1)), []);
    }
    coordinator.all_running(2 * S);
    assert_eq!(triggered(&coordinator.tick(2 * S + 50 * MS)), [1]);
    assert_eq!(coordinator.counts().failed, 0);
}

/// Goal: the job gives up on n and triggers n + 1 while tasks still write n; what they say of n then costs nothing.
/// Method: 2,000 times; every second one expires with one ack missing, which comes afterwards or is a decline.
#[test]
fn f_07_an_expired_checkpoint_that_is_still_written_does_no_harm() {
    let short = CheckpointSettings { timeout_ns: 30 * MS, tolerable_failures: 1, ..settings(40) };
    let mut coordinator = running(short);
    for id in 1..=2000u64 {
        let at = id * 40 * MS;
        assert_eq!(triggered(&coordinator.tick(at)), [id]);
        if id.is_multiple_of(2) {
            // The task that was late with the one before.
            let late = match id % 4 {
                0 => coordinator.ack(at, ack(id - 1, 3)),
                _ => coordinator.decline(at, id - 1, 3, &DeclineReason::Subsumed { newer: id }),
            };
            assert_eq!(late, []);
            complete(&mut coordinator, at + MS, id);
        } else {
            (0..3).for_each(|subtask| assert_eq!(coordinator.ack(at + MS, ack(id, subtask)), []));
            let words = told(&coordinator.tick(at + 30 * MS));
            assert_eq!(words.last().unwrap(), &format!("failed {id} CHECKPOINT_EXPIRED"));
        }
    }
    let counts = coordinator.counts();
    assert_eq!((counts.completed, counts.failed, counts.in_progress), (1000, 1000, 0));
}

/// Goal: triggers while the job is being restored would be failures; there are none, also not after many restarts.
#[test]
fn f_11_no_checkpoint_is_taken_during_a_restore() {
    let mut coordinator = running(settings(100));
    for round in 1..=50u64 {
        let at = round * 100 * S;
        coordinator.tick(at);
        coordinator.not_running(at + MS);
        coordinator.deploy(at + S, Restored::default());
        for restoring in 10..30 {
            assert_eq!(coordinator.tick(at + restoring * 100 * MS), []);
            assert_eq!(coordinator.next_deadline(), None);
        }
        assert_eq!(coordinator.all_running(at + 3 * S), []);
        assert_eq!(coordinator.next_deadline(), Some(at + 3 * S + 100 * MS));
        assert_eq!(coordinator.consecutive_failures(), 0);
    }
}

/// Goal: requests never bring more barriers in flight than are allowed.
#[test]
fn f_15_requests_queue_behind_the_running_checkpoint() {
    let mut coordinator = running(settings(50));
    let (mut now, mut asked, mut answered) = (0, 0u64, 0);
    let mut actions = Vec::new();
    while answered < 200 {
        now += 7 * MS;
        let until = (asked + 2).min(200);
        (asked..until).for_each(|request| actions.extend(coordinator.trigger_now(now, request)));
        asked = until;
        actions.extend(coordinator.tick(now));
        assert!(coordinator.counts().in_progress <= 1);
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Trigger { subtask: 0, barrier } => {
                    actions.extend(complete(&mut coordinator, now, barrier.checkpoint.0));
                }
                Action::Completed(stats) => answered += u64::from(stats.request.is_some()),
                Action::Trigger { .. } | Action::Complete { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((asked, coordinator.counts().failed), (200, 0));
}

/// Goal: a checkpoint whose source's coordinator is slow expires on time, the next one is taken, and the late answer
/// changes nothing.
#[test]
fn f_17_an_abort_while_a_coordinator_is_asked() {
    let mut topology = row(&[1, 1]);
    topology.vertices[0].coordinated = Some(0);
    let borne = CheckpointSettings { timeout_ns: S, tolerable_failures: 1, ..settings(1500) };
    let mut coordinator = coordinator_of(borne, topology);
    coordinator.all_running(0);
    assert_eq!(told(&coordinator.tick(1500 * MS)), ["coordinator 1 v0"]);
    assert_eq!(coordinator.next_deadline(), Some(2500 * MS));
    // Its readers are served again, and tasks never hear of it.
    let words = told(&coordinator.tick(2500 * MS));
    assert_eq!(words, ["release 1", "failed 1 CHECKPOINT_EXPIRED"]);
    let failure = coordinator.statistics().latest_failed.unwrap().failure.unwrap();
    assert!(failure.message.contains("without the coordinator of v0"), "{}", failure.message);
    assert_eq!(told(&coordinator.tick(3 * S)), ["coordinator 2 v0"]);
    assert_eq!(coordinator.coordinator_state(3 * S + MS, 1, 0, Ok(vec![1])), []);
    assert_eq!(triggered(&coordinator.coordinator_state(3 * S + MS, 2, 0, Ok(vec![2]))), [2]);
    assert_eq!(coordinator.coordinator_state(3 * S + MS, 2, 0, Ok(vec![3])), []);
    let actions = ack_all(&mut coordinator, 3 * S + 2 * MS, 2);
    assert_eq!(committed_metadata(&actions).operators[0].coordinator, [2]);
}

/// Goal: a checkpoint ends once, however many say so at the same time, and counts add up at every moment.
/// Method: 500 seeds; in each, declines, expiry, finishing tasks and the end of the job meet in another order.
#[test]
fn f_19_counts_never_go_negative() {
    for seed in 0..500u64 {
        let borne = CheckpointSettings {
            timeout_ns: 10 * MS,
            tolerable_failures: 100,
            concurrent_max: 3,
            ..settings(10)
        };
        let mut coordinator = running(borne);
        (1..=3).for_each(|at| drop(coordinator.tick(at * 10 * MS)));
        for step in 0..6 {
            let now = 40 * MS;
            match crate::limit::splitmix(seed * 6 + step) % 6 {
                0 => drop(coordinator.tick(now)),
                1 => drop(coordinator.decline(now, 1 + step % 3, 0, &declined())),
                2 => drop(coordinator.decline(now, 1 + step % 3, 1, &declined())),
                3 => drop(coordinator.task_finished(now, (step % 4) as usize)),
                4 => drop(coordinator.not_running(now)),
                _ => drop(coordinator.shut_down(now)),
            }
            let counts = coordinator.counts();
            assert_eq!(counts.total, counts.completed + counts.failed + counts.in_progress, "seed {seed}");
            assert!(counts.in_progress <= 3, "seed {seed}: {counts:?}");
        }
    }
}

/// Goal: failures in a row are counted by id, with three checkpoints under way. Method: the field's script.
#[test]
fn f_21_failures_in_a_row_with_concurrent_checkpoints() {
    let borne = CheckpointSettings { concurrent_max: 3, tolerable_failures: 5, ..settings(10) };
    let mut coordinator = running(borne);
    let mut now = 0;
    let mut until = |coordinator: &mut CheckpointCoordinator, id: u64| {
        while coordinator.next_id() <= id {
            now += 10 * MS;
            coordinator.tick(now);
        }
        now
    };
    let at = until(&mut coordinator, 2);
    complete(&mut coordinator, at, 1);
    complete(&mut coordinator, at, 2);
    let mut counts = Vec::new();
    let at = until(&mut coordinator, 4);
    coordinator.decline(at, 4, 0, &declined());
    coordinator.decline(at, 4, 1, &declined());
    counts.push(coordinator.consecutive_failures());
    complete(&mut coordinator, at, 3);
    counts.push(coordinator.consecutive_failures());
    for id in [5, 6] {
        let at = until(&mut coordinator, id);
        coordinator.decline(at, id, 0, &declined());
        counts.push(coordinator.consecutive_failures());
    }
    let at = until(&mut coordinator, 7);
    complete(&mut coordinator, at, 7);
    counts.push(coordinator.consecutive_failures());
    let at = until(&mut coordinator, 8);
    coordinator.decline(at, 8, 0, &declined());
    counts.push(coordinator.consecutive_failures());
    assert_eq!(counts, [1, 0, 1, 2, 0, 1]);
}

/// Goal: notices of completion go up: when 8 is complete 7 never will be, whatever its tasks still say; and 7 is told
/// as given up only after 8 was told as complete, so that a sink has committed what it held for both.
#[test]
fn f_23_notices_do_not_overtake_each_other() {
    let mut coordinator = running(CheckpointSettings { concurrent_max: 2, ..settings(10) });
    coordinator.tick(10 * MS);
    coordinator.tick(20 * MS);
    (0..3).for_each(|subtask| drop(coordinator.ack(21 * MS, ack(1, subtask))));
    ack_all(&mut coordinator, 22 * MS, 2);
    let words = told(&coordinator.committed(23 * MS, 2));
    let complete = words.iter().rposition(|word| word.starts_with("complete 2")).unwrap();
    let abort = words.iter().position(|word| word.starts_with("abort 1")).unwrap();
    assert!(complete < abort, "{words:?}");
    assert!(words.contains(&"failed 1 CHECKPOINT_SUBSUMED".to_string()));
    assert_eq!(coordinator.ack(24 * MS, ack(1, 3)), []);
    assert_eq!((coordinator.newest_complete(), coordinator.consecutive_failures()), (2, 0));
}

/// Goal: a job ends without waiting for any barrier, also when as many checkpoints are under way as may be and a task
/// answers none of them.
#[test]
fn f_29_the_end_of_a_job_waits_for_no_checkpoint() {
    let mut coordinator = running(CheckpointSettings { concurrent_max: 2, ..settings(10) });
    coordinator.tick(10 * MS);
    coordinator.tick(20 * MS);
    let words = told(&coordinator.shut_down(21 * MS));
    let reason = "CHECKPOINT_COORDINATOR_SHUTDOWN";
    assert_eq!(words, [format!("failed 1 {reason}"), format!("failed 2 {reason}")]);
    assert_eq!((coordinator.counts().in_progress, coordinator.next_deadline()), (0, None));
}
