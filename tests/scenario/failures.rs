//! Jobs that fail: the error names vertex, operator and cause, and the job ends. Jobs with a record that needs
//! more memory than there is: they go on.

use super::support::{Finished, run, run_watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate::api::Environment;
use tidegate::config::{Config, Origin};
use tidegate::coordinator::JobError;
use tidegate::operator::{Collector, Output, Wait};
use tidegate::record::{Record, Timestamp};
use tidegate::sink::Sink;
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use tidegate::subtask::SubtaskInfo;

/// Endless numbers, each subtask its own, so that a job that fails is in the middle of its work; an error
/// after so many.
struct Numbers {
    next: u64,
    fail_at: u64,
}

impl Source for Numbers {
    type Item = u64;
    fn poll<C: Collector<u64>>(
        &mut self,
        out: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        while out.ready() {
            if self.next >= self.fail_at {
                return Err(format!("no number after {}", self.next).into());
            }
            out.emit(self.next);
            self.next += 1;
        }
        Ok(SourcePoll::More)
    }
}

fn numbers(_: &SourceContext) -> Result<Numbers, SourceError> {
    Ok(Numbers { next: 0, fail_at: u64::MAX })
}

fn blackhole<T: Record>(_: &SubtaskInfo) -> Result<Blackhole<T>, SourceError> {
    Ok(Blackhole::new(Arc::default()))
}

/// The parts of the error of a task that failed.
fn task_error(env: &Environment) -> (String, Option<String>, String) {
    match run(env) {
        Err(JobError::Task { vertex, operator, cause, subtask, parallelism }) => {
            assert!((1..=parallelism).contains(&subtask), "subtask {subtask} of {parallelism}");
            (vertex, operator, cause)
        }
        other => panic!("a task should have failed, but: {other:?}"),
    }
}

#[test]
fn an_operator_that_panics_fails_the_job_with_its_vertex_and_message() {
    let env = Environment::new();
    env.source("numbers", numbers)
        .key_by::<u64, _>(|n| n)
        .process::<u64, u64, _, _>("sum", |n, _, out: &mut Output<'_, u64>| {
            assert!(n != 5_000, "number {n} is not liked");
            out.emit(n);
        })
        .sink("out", blackhole);
    let (vertex, _, cause) = task_error(&env);
    assert_eq!(vertex, "sum -> out");
    assert_eq!(cause, "panicked: number 5000 is not liked");
}

#[test]
fn an_operator_that_fails_is_named_with_its_cause() {
    let env = Environment::new();
    env.source("numbers", numbers)
        .rebalance()
        .map(|n| n + 1)
        .flat_map::<u64, _>(|n, out| {
            if n == 5_000 { out.fail(format!("number {n} is out of range")) } else { out.emit(n) }
        })
        .name("check")
        .sink("out", blackhole);
    let (vertex, operator, cause) = task_error(&env);
    assert_eq!(vertex, "map -> check -> out");
    assert_eq!(operator.as_deref(), Some("check"));
    assert_eq!(cause, "number 5000 is out of range");
}

/// Goal: an operator that waits is asked for its failure too, also if it says at once that it is busy.
#[test]
fn a_busy_operator_that_fails_is_named_with_its_cause() {
    let env = Environment::new();
    env.source("numbers", numbers)
        .process::<u64, _>(|n, out| {
            if n == 3 {
                out.fail("three is too many");
            }
            out.busy_for(Duration::from_millis(1))
        })
        .name("slow")
        .sink("out", blackhole);
    let (vertex, operator, cause) = task_error(&env);
    assert_eq!(
        (vertex.as_str(), operator.as_deref(), cause.as_str()),
        ("slow -> out", Some("slow"), "three is too many")
    );
}

#[test]
fn a_source_that_fails_is_named_with_its_cause() {
    let env = Environment::new();
    env.source("numbers", |_: &SourceContext| Ok(Numbers { next: 0, fail_at: 70_000 }))
        .map(|n| n * 2)
        .rebalance()
        .sink("out", blackhole);
    let (vertex, operator, cause) = task_error(&env);
    assert_eq!(vertex, "numbers -> map");
    assert_eq!(operator.as_deref(), Some("numbers"));
    assert_eq!(cause, "no number after 70000");
}

#[test]
fn a_source_that_cannot_be_opened_is_named_with_its_cause() {
    let env = Environment::new();
    let open = |_: &SourceContext| -> Result<Numbers, SourceError> { Err("the well is dry".into()) };
    env.source("numbers", open).rebalance().sink("out", blackhole);
    let error = run(&env).expect_err("nothing to read from").to_string();
    assert!(error.starts_with("numbers (") && error.ends_with(": the well is dry"), "{error}");
}

/// Fails at a record, or at the end.
struct Full {
    after: u64,
}

impl Sink for Full {
    type Item = u64;
    fn write(&mut self, _: u64, _: Timestamp) -> Result<(), SourceError> {
        self.after = self.after.checked_sub(1).ok_or("the disk is full")?;
        Ok(())
    }
    fn finish(&mut self) -> Result<(), SourceError> {
        Err("the disk cannot be synced".into())
    }
}

#[test]
fn a_sink_that_fails_is_named_with_its_cause() {
    let env = Environment::new();
    env.source("numbers", numbers)
        .key_by::<u64, _>(|n| n)
        .count()
        .map(|(_, n)| n)
        .sink("disk", |_| Ok(Full { after: 1_000 }));
    let (vertex, operator, cause) = task_error(&env);
    assert_eq!(vertex, "count -> map -> disk");
    assert_eq!((operator.as_deref(), cause.as_str()), (Some("disk"), "the disk is full"));
}

#[test]
fn a_sink_that_fails_at_the_end_fails_the_job() {
    let env = Environment::new();
    env.from_vec("numbers", vec![1, 2, 3]).rebalance().sink("disk", |_| Ok(Full { after: 1_000 }));
    let error = run(&env).expect_err("not synced").to_string();
    assert!(error.starts_with("disk (") && error.ends_with(": the disk cannot be synced"), "{error}");
}

#[test]
fn a_custom_partitioner_out_of_range_is_named_with_what_it_chose() {
    let env = Environment::new();
    env.source("numbers", numbers)
        .partition_custom(|n, consumers| if n < 5_000 { n as usize % consumers } else { consumers + 3 })
        .parallelism(2)
        .sink("out", blackhole);
    let (vertex, _, cause) = task_error(&env);
    assert_eq!(vertex, "numbers");
    assert!(cause.contains("custom partitioner chose consumer 5 of 2"), "{cause}");
}

#[test]
fn a_record_above_the_limit_fails_the_job_with_both_sizes_and_the_key() {
    let mut config = Config::default();
    config.set("tidegate.record.max-size", "64kb", Origin::CommandLine).unwrap();
    let env = Environment::with_config(config);
    let text: Vec<String> = vec!["small".into(), "x".repeat(100_000)];
    env.from_vec("texts", text).parallelism(1).rebalance().sink("out", blackhole::<String>);
    let (vertex, _, cause) = task_error(&env);
    assert_eq!(vertex, "texts");
    for expected in ["100000", "65536", "tidegate.record.max-size"] {
        assert!(cause.contains(expected), "{expected} is missing: {cause}");
    }
}

/// Goal: a record of any allowed size passes segments that are much smaller.
#[test]
fn a_record_of_five_megabytes_passes_whole() {
    let env = Environment::new();
    let sum = Arc::new(AtomicU64::new(0));
    let seen = sum.clone();
    let large: String = (0..5_000_000u32).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    let expected: u64 = large.bytes().map(u64::from).sum();
    env.from_vec("texts", vec!["b".to_string(), large, "c".to_string()])
        .parallelism(1)
        .rebalance()
        .parallelism(1)
        .map(move |text: &str| {
            seen.fetch_add(text.bytes().map(u64::from).sum(), Ordering::Relaxed);
            text.len() as u64
        })
        .sink("out", blackhole);
    run(&env).unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), expected + u64::from(b'b') + u64::from(b'c'));
}

/// Goal: one record whose output is many times what the pool holds, before a consumer that is slow, blocks
/// neither its shard nor the job: mail is answered meanwhile, and everything arrives.
#[test]
fn ten_megabytes_from_one_record_arrive_and_mail_is_answered_meanwhile() {
    const PIECES: u64 = 10_000;
    let env = Environment::new();
    let bytes = Arc::new(AtomicU64::new(0));
    let seen = bytes.clone();
    env.from_vec("seeds", vec![7u64])
        .parallelism(1)
        .flat_map::<(u64, String), _>(|seed, out| {
            let piece = "y".repeat(1000 - 7);
            (0..PIECES).for_each(|i| out.emit((seed + i, &piece)));
        })
        .name("burst")
        .rebalance()
        .process::<u64, _>(move |(i, text), out| {
            seen.fetch_add(text.len() as u64 + 7, Ordering::Relaxed);
            // 250 ms for all that each of two subtasks is sent.
            if i % 40 < 2 { out.busy_for(Duration::from_millis(2)) } else { Wait::Done }
        })
        .parallelism(2)
        .sink("out", blackhole);
    // Mails that were answered while output of the one record waited on the heap before and after.
    let mut answered = 0;
    let Finished { result, hard_back_pressured } = run_watched(&env, |job| {
        let held = || job.snapshot().iter().any(|subtask| subtask.overflow_bytes > 0);
        let before = held();
        let all = (0..job.plan().subtasks.len()).all(|subtask| job.blocking_probe(subtask).is_some());
        answered += u32::from(before && all && held());
    });
    result.unwrap();
    assert_eq!(bytes.load(Ordering::Relaxed), PIECES * 1000);
    assert!(hard_back_pressured, "ten megabytes are far beyond the pool: output waited on the heap");
    assert!(answered > 0, "no mail was answered while output waited");
}
