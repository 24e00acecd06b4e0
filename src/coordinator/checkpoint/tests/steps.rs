//! One checkpoint from trigger to notice, and when the next one begins.

use super::*;

/// Goal: nothing is begun before every task runs, then the first one after an interval; the log says since when.
#[test]
fn m_18_checkpoints_begin_when_all_tasks_run() {
    let mut coordinator = coordinator_of(settings(200), row(&[2, 2]));
    assert_eq!(coordinator.tick(5 * S), []);
    assert_eq!(coordinator.next_deadline(), None);
    let (actions, log) = logged(|| coordinator.all_running(5 * S));
    assert_eq!(actions, []);
    assert!(log.contains("every 200 ms: all 4 tasks run"), "{log}");
    assert_eq!(coordinator.next_deadline(), Some(5 * S + 200 * MS));
    assert_eq!(coordinator.tick(5 * S + 200 * MS - 1), []);
    assert_eq!(triggered(&coordinator.tick(5 * S + 200 * MS)), [1]);
}

/// Goal: only sources are triggered, all tasks are awaited and told; the barrier says what is complete and when it
/// began; the metadata holds what the acks brought; the log has Flink's lines.
#[test]
fn m_04_m_31_m_65_a_checkpoint_from_trigger_to_notice() {
    let mut coordinator = running(settings(200));
    let (actions, log) = logged(|| coordinator.tick(200 * MS));
    assert_eq!(told(&actions), ["trigger 1 at 0", "trigger 1 at 1"]);
    let expected = Barrier { checkpoint: CheckpointId(1), base: 0, triggered_at_ns: 200 * MS, blocks: true };
    assert!(actions.iter().all(|a| matches!(a, Action::Trigger { barrier, .. } if *barrier == expected)));
    let job = "00000000000000000000000000000abc";
    let line = format!("Triggering checkpoint 1 (type=CHECKPOINT) @ 1700000000200 for job {job}.");
    assert!(log.contains(&line), "{log}");

    for (subtask, at) in [(3, 201), (0, 202), (1, 203)] {
        assert_eq!(coordinator.ack(at * MS, ack(1, subtask)), []);
    }
    let under_way = coordinator.statistics();
    let shown = &under_way.history[0];
    assert_eq!(
        (shown.status, shown.subtasks_acknowledged, shown.subtasks_total),
        (CheckpointStatus::InProgress, 3, 4)
    );
    let actions = coordinator.ack(210 * MS, ack(1, 2));
    let metadata = committed_metadata(&actions);
    assert_eq!((metadata.lineage, metadata.run, metadata.id), (0xabc, 2, 1));
    assert_eq!((metadata.triggered_ms, metadata.job.as_str()), (1_700_000_000_200, "count"));
    let told_states: Vec<_> = metadata
        .operators
        .iter()
        .map(|o| (o.uid.as_str(), o.finished, o.subtasks.iter().map(|s| s.subtask).collect::<Vec<_>>()))
        .collect();
    assert_eq!(
        told_states,
        [("uid-0", Finished::Running, vec![0, 1]), ("uid-1", Finished::Running, vec![0, 1])]
    );
    assert_eq!(metadata.operators[1].subtasks[1].operator, inline("1.3").operator);

    let (actions, log) = logged(|| coordinator.committed(214 * MS, 1));
    let notices = ["complete 1 at 0", "complete 1 at 1", "complete 1 at 2", "complete 1 at 3", "completed 1"];
    assert_eq!(told(&actions), notices);
    let line = format!(
        "Completed checkpoint 1 for job {job} (12 bytes, checkpointDuration=14.0 ms, finalizationTime=4.0 ms)."
    );
    assert!(log.contains(&line), "{log}");
    // The next one builds on it.
    let actions = coordinator.tick(400 * MS);
    assert!(actions.iter().all(|a| matches!(a, Action::Trigger { barrier, .. } if barrier.base == 1)));
    assert_eq!(triggered(&actions), [2]);
}

/// Goal: at-least-once differs in one thing: the barrier holds nothing back.
#[test]
fn m_55_at_least_once_does_not_block() {
    let mut coordinator = running(CheckpointSettings { exactly_once: false, ..settings(10) });
    let actions = coordinator.tick(S);
    assert!(actions.iter().all(|a| matches!(a, Action::Trigger { barrier, .. } if !barrier.blocks)));
    assert_eq!(actions.len(), 2);
}

/// Goal: the state of source coordinators is taken before any task is triggered, and what they tell their readers is
/// released after the triggers.
#[test]
fn m_27_m_30_coordinators_come_first() {
    let mut topology = row(&[1, 1]);
    topology.vertices[0].coordinated = Some(0);
    let mut coordinator = coordinator_of(settings(10), topology);
    coordinator.all_running(0);
    assert_eq!(told(&coordinator.tick(10 * MS)), ["coordinator 1 v0"]);
    // Nothing else begins meanwhile, and no task can have acknowledged it.
    assert_eq!(coordinator.tick(50 * MS), []);
    assert_eq!(coordinator.ack(50 * MS, ack(1, 0)), []);
    let actions = coordinator.coordinator_state(60 * MS, 1, 0, Ok(vec![9]));
    assert_eq!(told(&actions), ["trigger 1 at 0", "release 1"]);
    // The age counts from the decision.
    assert!(matches!(&actions[0], Action::Trigger { barrier, .. } if barrier.triggered_at_ns == 10 * MS));
    let actions = ack_all(&mut coordinator, 61 * MS, 1);
    assert_eq!(committed_metadata(&actions).operators[0].coordinator, [9]);
    // One that has no state fails the checkpoint, and no task hears of it.
    assert_eq!(told(&coordinator.committed(62 * MS, 1)).last().unwrap(), "coordinator 2 v0");
    let actions = coordinator.coordinator_state(71 * MS, 2, 0, Err("lost".to_string()));
    assert_eq!(told(&actions), ["release 2", "failed 2 TRIGGER_CHECKPOINT_FAILURE"]);
}

/// Goal: intervals count from start to start, and one that is over while another checkpoint is under way is made up
/// for once, at its end.
#[test]
fn m_20_intervals_count_from_the_start_and_do_not_pile_up() {
    let mut coordinator = running(settings(100));
    assert_eq!(triggered(&coordinator.tick(100 * MS)), [1]);
    assert_eq!(triggered(&complete(&mut coordinator, 190 * MS, 1)), [0; 0]);
    assert_eq!(coordinator.next_deadline(), Some(200 * MS));
    assert_eq!(triggered(&coordinator.tick(200 * MS)), [2]);
    for at in [300, 400, 500] {
        assert_eq!(coordinator.tick(at * MS), []);
    }
    assert_eq!(triggered(&complete(&mut coordinator, 550 * MS, 2)), [3]);
    assert_eq!(triggered(&complete(&mut coordinator, 560 * MS, 3)), [0; 0]);
    assert_eq!(coordinator.next_deadline(), Some(650 * MS));
}

/// Goal: with a pause of 3 s and an interval of 1 s the gap from an end, good or bad, to a start is 3 s.
#[test]
fn m_19_m_23_the_pause_counts_from_the_end() {
    let paused = CheckpointSettings { min_pause_ns: 3 * S, tolerable_failures: 9, ..settings(1000) };
    let mut coordinator = running(paused);
    assert_eq!(triggered(&coordinator.tick(S)), [1]);
    complete(&mut coordinator, 2 * S, 1);
    assert_eq!(coordinator.next_deadline(), Some(5 * S));
    assert_eq!(coordinator.tick(5 * S - 1), []);
    assert_eq!(triggered(&coordinator.tick(5 * S)), [2]);
    coordinator.decline(6 * S, 2, 0, &declined());
    assert_eq!(coordinator.next_deadline(), Some(9 * S));
    assert_eq!(triggered(&coordinator.tick(9 * S)), [3]);
}

#[test]
fn m_22_as_many_as_configured_are_under_way() {
    for concurrent_max in 1..=3 {
        let mut coordinator = running(CheckpointSettings { concurrent_max, ..settings(10) });
        for at in 1..20 {
            coordinator.tick(at * 10 * MS);
            assert!(coordinator.counts().in_progress <= u64::from(concurrent_max));
        }
        assert_eq!(coordinator.counts().in_progress, u64::from(concurrent_max));
        assert!(!triggered(&complete(&mut coordinator, S, 1)).is_empty());
    }
}

/// Goal: at its timeout a checkpoint is given up, all tasks are told, the log and the message name who is missing;
/// acks that come later change nothing.
#[test]
fn m_21_m_29_a_checkpoint_expires() {
    let short = CheckpointSettings { timeout_ns: S, tolerable_failures: 1, ..settings(5000) };
    let mut coordinator = running(short);
    coordinator.tick(5 * S);
    coordinator.ack(5 * S + 1, ack(1, 1));
    assert_eq!(coordinator.next_deadline(), Some(6 * S));
    assert_eq!(coordinator.tick(6 * S - 1), []);
    let (actions, log) = logged(|| coordinator.tick(6 * S));
    let expected =
        ["abort 1 at 0", "abort 1 at 1", "abort 1 at 2", "abort 1 at 3", "failed 1 CHECKPOINT_EXPIRED"];
    assert_eq!(told(&actions), expected);
    let job = "00000000000000000000000000000abc";
    for line in [
        format!("Checkpoint 1 of job {job} expired before completing."),
        format!(
            "Failed to trigger or complete checkpoint 1 for job {job}. (1 consecutive failed attempts so far)"
        ),
        "expired after 1 s without v0 (1/2), v1 (1/2), v1 (2/2)".to_string(),
    ] {
        assert!(log.contains(&line), "no {line:?} in {log}");
    }
    for subtask in [0, 2, 3] {
        assert_eq!(coordinator.ack(7 * S, ack(1, subtask)), []);
    }
    let report = coordinator.statistics();
    let failed = report.latest_failed.unwrap();
    assert_eq!((failed.subtasks_acknowledged, failed.end_to_end_ns), (1, S));
    assert_eq!(failed.subtasks[1].timings.sync_ns, 7, "what was measured is kept");
    // One more than is tolerated fails the job.
    coordinator.tick(10 * S);
    let (actions, log) = logged(|| coordinator.tick(11 * S));
    assert_eq!(told(&actions).last().unwrap(), "fail job 2");
    assert!(log.contains("Exceeded checkpoint tolerable failure threshold."), "{log}");
    // Until it has, none is begun any more.
    assert_eq!(coordinator.tick(100 * S), []);
    assert_eq!(told(&coordinator.trigger_now(100 * S, 7)), ["refused 7 NOT_ALL_REQUIRED_TASKS_RUNNING"]);
    assert_eq!(coordinator.not_running(101 * S), []);
}

/// Goal: a decline gives the checkpoint up at once, for its own reason, and is counted as that reason is.
#[test]
fn m_43_m_122_a_decline_ends_the_checkpoint_with_its_reason() {
    let storage = tidegate_storage::error::StorageError::Full { path: "/d".into(), wanted_bytes: 1 };
    for (reason, name, counts) in [
        (declined(), "CHECKPOINT_DECLINED", true),
        (storage.into(), "CHECKPOINT_ASYNC_EXCEPTION", true),
        (DeclineReason::TooLong { operator: 0, bytes: 2, max: 1 }, "CHECKPOINT_DECLINED", true),
        (
            tidegate_storage::keyed::SnapshotError::AsideFull { checkpoint: 2, bytes_max: 1 }.into(),
            "CHECKPOINT_ASYNC_EXCEPTION",
            true,
        ),
        (DeclineReason::Subsumed { newer: 2 }, "CHECKPOINT_DECLINED_SUBSUMED", false),
        (DeclineReason::InputEnded, "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM", false),
    ] {
        let mut coordinator = running(settings(10));
        coordinator.tick(10 * MS);
        coordinator.ack(11 * MS, ack(1, 0));
        let (actions, log) = logged(|| coordinator.decline(12 * MS, 1, 2, &reason));
        let words = told(&actions);
        assert_eq!(words[..4], ["abort 1 at 0", "abort 1 at 1", "abort 1 at 2", "abort 1 at 3"]);
        assert_eq!(words[4], format!("failed 1 {name}"));
        assert_eq!(words.get(5).is_some_and(|word| word == "fail job 1"), counts, "{words:?}");
        assert!(log.contains("Decline checkpoint 1 by task v1 (1/2) of job"), "{log}");
        let failure = coordinator.statistics().latest_failed.unwrap().failure.unwrap();
        assert_eq!(failure.subtask, Some(2));
        assert!(failure.message.starts_with("v1 (1/2): ") && failure.message.contains(&reason.to_string()));
        // What the others say of it comes too late.
        assert_eq!(coordinator.decline(13 * MS, 1, 3, &reason), []);
        assert_eq!(coordinator.ack(13 * MS, ack(1, 1)), []);
    }
}

/// Goal: doubled acks count once; acks of checkpoints that there are not, or not yet, change nothing.
#[test]
fn doubled_and_unknown_acks_are_ignored() {
    let mut coordinator = running(settings(10));
    assert_eq!(coordinator.ack(MS, ack(1, 0)), []);
    coordinator.tick(10 * MS);
    for _ in 0..4 {
        assert_eq!(coordinator.ack(11 * MS, ack(1, 0)), []);
    }
    let ((), log) = logged(|| assert_eq!(coordinator.ack(11 * MS, ack(7, 1)), []));
    assert!(log.contains("there is no such checkpoint"), "{log}");
    for subtask in [1, 2] {
        assert_eq!(coordinator.ack(12 * MS, ack(1, subtask)), []);
    }
    assert_eq!(told(&coordinator.ack(12 * MS, ack(1, 3))), ["commit 1"]);
    // A decline has no say any more, and neither has the clock.
    assert_eq!(coordinator.decline(13 * MS, 1, 3, &declined()), []);
    assert_eq!(coordinator.ack(13 * MS, ack(1, 3)), []);
    assert_eq!(coordinator.tick(3600 * S), []);
    assert_eq!(coordinator.committing(), Some(1));
    assert_eq!(told(&coordinator.committed(3601 * S, 1)).len(), 5 + 2);
}

/// Goal: commits follow each other, in the order in which they become possible, and completion never goes back.
#[test]
fn one_commit_at_a_time() {
    let mut coordinator = running(CheckpointSettings { concurrent_max: 3, ..settings(10) });
    (1..=3).for_each(|at| drop(coordinator.tick(at * 10 * MS)));
    assert_eq!(told(&ack_all(&mut coordinator, 31 * MS, 2)), ["commit 2"]);
    assert_eq!(ack_all(&mut coordinator, 32 * MS, 3), []);
    assert_eq!(ack_all(&mut coordinator, 33 * MS, 1), []);
    let words = told(&coordinator.committed(34 * MS, 2));
    let of_two = ["complete 2 at 0", "complete 2 at 1", "complete 2 at 2", "complete 2 at 3", "completed 2"];
    assert_eq!(words[..5], of_two);
    assert_eq!(words[9..11], ["failed 1 CHECKPOINT_SUBSUMED", "commit 3"]);
    assert_eq!(coordinator.newest_complete(), 2);
    assert_eq!(told(&coordinator.committed(35 * MS, 3))[4], "completed 3");
    // Of two that are ready the older one is first.
    let mut coordinator = running(CheckpointSettings { concurrent_max: 3, ..settings(10) });
    (1..=3).for_each(|at| drop(coordinator.tick(at * 10 * MS)));
    ack_all(&mut coordinator, 31 * MS, 1);
    ack_all(&mut coordinator, 31 * MS, 3);
    ack_all(&mut coordinator, 31 * MS, 2);
    assert!(told(&coordinator.committed(32 * MS, 1)).contains(&"commit 2".to_string()));
}

/// Goal: tasks are told of a commit that has certainly failed, and not of one that may be on the disk.
#[test]
fn a_failed_commit_is_told_only_if_it_is_certain() {
    for unknown in [false, true] {
        let mut coordinator = running(CheckpointSettings { tolerable_failures: 1, ..settings(10) });
        coordinator.tick(10 * MS);
        ack_all(&mut coordinator, 11 * MS, 1);
        let words = told(&coordinator.commit_failed(12 * MS, 1, &"disk", unknown));
        assert_eq!(
            words.iter().filter(|word| word.starts_with("abort")).count(),
            if unknown { 0 } else { 4 }
        );
        assert_eq!(words.last().unwrap(), "failed 1 FINALIZE_CHECKPOINT_FAILURE");
        assert_eq!((coordinator.newest_complete(), coordinator.consecutive_failures()), (0, 1));
        let actions = coordinator.tick(20 * MS);
        assert!(actions.iter().all(|a| matches!(a, Action::Trigger { barrier, .. } if barrier.base == 0)));
        complete(&mut coordinator, 21 * MS, 2);
        assert_eq!((coordinator.newest_complete(), coordinator.consecutive_failures()), (2, 0));
    }
}

/// Goal: when the job stops running nothing pending survives but the commit under way, tasks are not told, and the
/// next deployment goes on with greater ids, on top of what it was restored from.
#[test]
fn m_28_a_restart_gives_up_what_is_pending_and_no_id_comes_twice() {
    let mut coordinator = running(CheckpointSettings { concurrent_max: 3, ..settings(10) });
    (1..=3).for_each(|at| drop(coordinator.tick(at * 10 * MS)));
    assert_eq!(told(&ack_all(&mut coordinator, 31 * MS, 1)), ["commit 1"]);
    assert_eq!(coordinator.trigger_now(31 * MS, 70), []);
    let words = told(&coordinator.not_running(32 * MS));
    let suspended = "CHECKPOINT_COORDINATOR_SUSPEND";
    let expected =
        [format!("refused 70 {suspended}"), format!("failed 2 {suspended}"), format!("failed 3 {suspended}")];
    assert_eq!(words, expected);
    assert_eq!((coordinator.committing(), coordinator.consecutive_failures()), (Some(1), 0));
    // Late acks, notices of the end and time: nothing.
    assert_eq!(coordinator.ack(33 * MS, ack(2, 0)), []);
    assert_eq!(coordinator.task_finished(33 * MS, 0), []);
    assert_eq!(coordinator.end_of_data(33 * MS, 1), []);
    assert_eq!(coordinator.tick(10 * S), []);
    assert_eq!(told(&coordinator.committed(10 * S, 1)), ["completed 1"]);
    coordinator.deploy(11 * S, Restored { id: 1, finished: Vec::new() });
    coordinator.all_running(12 * S);
    let actions = coordinator.tick(13 * S);
    assert_eq!(triggered(&actions), [4]);
    assert!(actions.iter().all(|a| matches!(a, Action::Trigger { barrier, .. } if barrier.base == 1)));
    let counts = coordinator.counts();
    let expected = CheckpointCounts { restored: 1, total: 4, in_progress: 1, completed: 1, failed: 2 };
    assert_eq!(counts, expected);
    let restored = coordinator.statistics().latest_restored.unwrap();
    assert_eq!((restored.id, restored.restored_at_ms), (1, 1_700_000_011_000));
    // An older checkpoint, and one of another run with greater ids.
    coordinator.not_running(14 * S);
    coordinator.deploy(14 * S, Restored { id: 90, finished: Vec::new() });
    assert_eq!(coordinator.next_id(), 91);
    coordinator.deploy(14 * S, Restored { id: 1, finished: Vec::new() });
    assert_eq!((coordinator.next_id(), coordinator.newest_complete()), (91, 1));
}

/// Goal: a request waits for a place, not for the interval or the pause, and comes before the next periodic one.
#[test]
fn requests_wait_for_a_place_only() {
    let paused = CheckpointSettings { min_pause_ns: 50 * S, ..settings(1000) };
    let mut coordinator = running(paused);
    assert_eq!(triggered(&coordinator.trigger_now(MS, 71)), [1]);
    assert_eq!(coordinator.trigger_now(2 * MS, 72), []);
    let actions = complete(&mut coordinator, 3 * MS, 1);
    assert_eq!(triggered(&actions), [2]);
    let done = actions.iter().find_map(|action| match action {
        Action::Completed(stats) => Some((stats.kind, stats.request)),
        _ => None,
    });
    assert_eq!(done, Some((Kind::Requested, Some(71))));
    complete(&mut coordinator, 4 * MS, 2);
    // The interval was not moved by them; the pause was.
    assert_eq!(coordinator.next_deadline(), Some(50 * S + 4 * MS));
    let mut coordinator = running(settings(1000));
    for request in 0..REQUESTS_MAX as u64 + 1 {
        coordinator.trigger_now(MS, request);
    }
    let words = told(&coordinator.trigger_now(MS, 5000));
    assert_eq!(words, ["refused 5000 TOO_MANY_CHECKPOINT_REQUESTS"]);
    let mut stopped = coordinator_of(settings(10), row(&[1]));
    assert_eq!(told(&stopped.trigger_now(0, 1)), ["refused 1 NOT_ALL_REQUIRED_TASKS_RUNNING"]);
}

/// Goal: what is remembered is bounded, newest first, and its JSON has the stable names.
#[test]
fn m_117_m_120_history_is_bounded_and_complete() {
    let mut coordinator =
        running(CheckpointSettings { history_max: 3, tolerable_failures: 1, ..settings(10) });
    for id in 1..=8u64 {
        let at = id * 20 * MS;
        assert_eq!(triggered(&coordinator.tick(at)), [id]);
        coordinator.predict(id, 3, Some(5 * MS), Some(6 * MS));
        if id == 6 {
            coordinator.decline(at, id, 0, &declined());
        } else {
            ack_all(&mut coordinator, at + MS, id);
            coordinator.committed(at + MS + id * 1000, id);
        }
    }
    coordinator.tick(9 * 20 * MS);
    let report = coordinator.statistics();
    assert_eq!(report.history.iter().map(|stats| stats.id).collect::<Vec<_>>(), [9, 8, 7, 6]);
    assert_eq!(report.latest_failed.as_ref().unwrap().id, 6);
    assert_eq!(report.latest_completed.as_ref().unwrap().id, 8);
    assert_eq!(report.summary.end_to_end_ns.max, MS);
    assert_eq!((report.summary.duration_ns.min, report.summary.duration_ns.max), (MS + 1000, MS + 8000));
    assert_eq!(report.summary.written_bytes.avg, 12);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["counts"]["total"], 9);
    let newest = &json["history"][1];
    assert_eq!((&newest["status"], &newest["kind"]), (&"COMPLETED".into(), &"PERIODIC".into()));
    let part = &newest["subtasks"][3];
    for (name, value) in [
        ("vertex", 1),
        ("subtask", 1),
        ("sync_ns", 7),
        ("written_bytes", 3),
        ("predicted_wait_ns", 5 * MS),
        ("static_wait_ns", 6 * MS),
        ("end_to_end_ns", MS),
        ("acked_at_ms", 1_700_000_000_161),
    ] {
        assert_eq!(part[name], value, "{name} of {part}");
    }
    assert_eq!(json["history"][3]["failure"]["reason"], "CHECKPOINT_DECLINED");
}

/// Goal: it is said when a failure would take the job far back, once an age.
#[test]
fn m_130_a_job_without_complete_checkpoints_is_warned_of() {
    let mut coordinator = running(CheckpointSettings { timeout_ns: 3600 * S, ..settings(1000) });
    coordinator.tick(S);
    assert_eq!(coordinator.next_deadline(), Some(5 * S));
    let (actions, log) = logged(|| coordinator.tick(5 * S));
    assert_eq!(actions, []);
    assert!(log.contains("no checkpoint is complete since 5 intervals"), "{log}");
    let (_, log) = logged(|| coordinator.tick(6 * S));
    assert!(!log.contains("no checkpoint is complete"), "{log}");
    assert_eq!(coordinator.next_deadline(), Some(10 * S));
    complete(&mut coordinator, 9 * S, 1);
    assert_eq!(triggered(&coordinator.tick(10 * S)), [0; 0], "the second one is under way");
}
