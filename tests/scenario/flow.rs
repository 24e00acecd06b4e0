//! How flow control shapes a job: shares of records, hard back pressure and what rescues from it.

use super::support::{PATIENCE, config, run, until};
use std::sync::Arc;
use std::time::Duration;
use tidegate::api::Environment;
use tidegate::coordinator::JobError;
use tidegate::operator::{Output, Wait};
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::SourceContext;
use tidegate::source::generator::{GeneratorOptions, GeneratorPlan, KeyDistribution};

/// Goal: a record whose output is a little more than the pool rises into overdraft and not onto the heap; with no
/// overdraft it does, which is hard back pressure.
#[test]
fn overdraft_rescues_from_hard_back_pressure() {
    for (overdraft, hard) in [(20, false), (0, true)] {
        let overdraft = format!("taskmanager.network.memory.max-overdraft-buffers-per-gate={overdraft}");
        let settings = [
            overdraft.as_str(),
            "taskmanager.memory.segment-size=1 kb",
            "tidegate.shards=2",
            "parallelism.default=1",
        ];
        let env = Environment::with_config(config(&settings));
        // Twenty segments from one record; ten are the cap of a subpartition.
        env.from_vec("seeds", vec![0u64; 5])
            .flat_map::<String, _>(|_, out| (0..20).for_each(|_| out.emit(&"y".repeat(1000))))
            .rebalance()
            .shard_offset(1)
            .process::<u64, _>(|_, out| out.busy_for(Duration::from_millis(1)))
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let source = run(&env).unwrap().subtasks[0].clone();
        assert_eq!(source.time.hard_ns > 0, hard, "{settings:?}: {source:?}");
        assert!(source.time.soft_ns > 0, "{settings:?}: {source:?}");
    }
}

/// Goal: of sixteen keys in turn seven belong to one subtask and nine to the other; where both are slow, the one
/// with nine takes its pace to the source, and the other gets its share of that.
#[test]
fn the_heavier_subtask_sets_the_pace_and_the_lighter_one_follows() {
    let env = Environment::with_config(config(&["tidegate.shards=2"]));
    let options = GeneratorOptions {
        payload_bytes: 1000,
        keys: KeyDistribution::RoundRobin { keys: 16 },
        ..GeneratorOptions::default()
    };
    let generator = GeneratorPlan::new(options).unwrap();
    env.source("source", move |cx: &SourceContext| Ok(generator.payloads(cx)))
        .parallelism(2)
        .key_by::<u64, _>(|(key, _)| key)
        .process::<u64, u64, _, _>("seen", |_, _, out: &mut Output<'_, u64>| -> Wait {
            out.busy_for(Duration::from_millis(2))
        })
        .name("slow")
        .parallelism(2)
        .max_parallelism(128)
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    let job = env.start("seven and nine").unwrap();
    let taken = || {
        let all = job.snapshot();
        let mut taken: Vec<u64> =
            all.iter().filter(|s| s.vertex.starts_with("slow")).map(|s| s.records_in).collect();
        taken.sort_unstable();
        taken
    };
    // Over some stretch of nine hundred records of the heavier one: what is on its way at the start, and a core that
    // is taken from one of them, make others differ.
    let (mut before, mut ratio) = (taken(), 0.0);
    let found = until(PATIENCE, || {
        let now = taken();
        if now[1] - before[1] < 900 {
            return false;
        }
        ratio = (now[0] - before[0]) as f64 / (now[1] - before[1]) as f64;
        before = now;
        (0.7..0.86).contains(&ratio)
    });
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
    assert!(found, "{ratio} is not near 7 to 9");
}

/// Goal: a source whose output is unavailable is back-pressured softly, not idle and not busy, and answers mail.
#[test]
fn soft_back_pressure_leaves_mail_and_the_time_account_right() {
    let env = Environment::with_config(config(&["tidegate.shards=2", "parallelism.default=1"]));
    env.from_vec("texts", vec!["x".repeat(1000); 100_000])
        .rebalance()
        .shard_offset(1)
        .process::<u64, _>(|_, out| Wait::NotYet(out.now_ns() + 1_000_000))
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    let job = env.start("stuck").unwrap();
    assert!(until(PATIENCE, || job.snapshot()[0].time.soft_ns > 0));
    let before = job.snapshot()[0].clone();
    for _ in 0..100 {
        assert!(job.blocking_probe(0).is_some());
    }
    let after = job.snapshot()[0].clone();
    assert_eq!((after.records_out, after.time.hard_ns), (before.records_out, 0));
    let spent = after.time.since(&before.time);
    assert!(spent.soft_ns > 0 && spent.idle_ns == 0, "{spent:?}");
    assert_eq!(spent.total_ns(), after.at_ns - before.at_ns, "the states sum up to the time that has passed");
    job.cancel();
    assert!(matches!(job.wait(), Err(JobError::Canceled)));
}
