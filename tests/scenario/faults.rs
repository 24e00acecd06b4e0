//! Faults that systems of this kind have had in the field: what this engine does instead.

use super::support::{config, run};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::api::Environment;
use tidegate::coordinator::JobError;
use tidegate::operator::Collector;
use tidegate::operator::Control;
use tidegate::sink::blackhole::Blackhole;
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};

/// A record whose own `Deserialize` may be at fault.
#[derive(Debug, Clone)]
struct Text {
    fault: u8,
    text: String,
}

/// What reading a [`Text`] does wrong.
const NOTHING: u8 = 0;
/// Leaves the text in the buffer.
const LESS: u8 = 1;
/// Reads a number that is not there.
const MORE: u8 = 2;

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.fault, &self.text).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Text, A::Error> {
                let fault = fields.next_element()?.unwrap_or(NOTHING);
                if fault == LESS {
                    return Ok(Text { fault, text: String::new() });
                }
                let text = fields.next_element()?.unwrap_or_default();
                if fault == MORE {
                    fields.next_element::<u64>()?;
                }
                Ok(Text { fault, text })
            }
        }
        deserializer.deserialize_tuple(3, Fields)
    }
}

tidegate::record!(Text);

/// Goal: a deserializer that takes fewer or more bytes than its record has fails its task, with operator, type and
/// length, wherever the record lies, and nothing behind it is handed out.
/// Method: the faulty record is the third; it fits in a segment, ends where one ends, or spans two and five.
#[test]
fn f13_a_deserializer_that_reads_too_little_or_too_much_fails_its_task_at_every_position() {
    const SEGMENT: usize = 256;
    // With frame header, tag and length a text of n bytes takes n + 6, of 128 and more n + 7.
    let ends_with_its_segment = SEGMENT - 2 * 16 - 7;
    for (position, len) in
        [("within", 50), ("at the end", ends_with_its_segment), ("two", 300), ("five", 1200)]
    {
        for fault in [LESS, MORE] {
            let settings = [
                "taskmanager.memory.segment-size=256",
                "tidegate.shards=1",
                "execution.buffer-timeout.interval=-1",
            ];
            let env = Environment::with_config(config(&settings));
            let text = |fault, len| Text { fault, text: "x".repeat(len) };
            let texts = vec![text(NOTHING, 10), text(NOTHING, 10), text(fault, len), text(NOTHING, 10)];
            let taken = Arc::new(AtomicU64::new(0));
            let counted = taken.clone();
            env.from_vec("texts", texts)
                .rebalance()
                .map(move |text| {
                    assert_eq!(text.fault, NOTHING);
                    counted.fetch_add(1, Ordering::Relaxed);
                    text.text.len() as u64
                })
                .name("measure")
                .sink("out", |_| Ok(Blackhole::new(Arc::default())));
            let error = run(&env).unwrap_err();
            assert!(matches!(error, JobError::Task { .. }), "{position}, fault {fault}: {error}");
            let error = error.to_string();
            let announced = len + if len < 128 { 2 } else { 3 };
            for piece in ["measure", "Text", &format!("{announced} bytes")] {
                assert!(error.contains(piece), "{position}, fault {fault}: no {piece:?} in {error}");
            }
            if fault == LESS {
                assert!(error.contains("more than the 1 bytes that it takes"), "{position}: {error}");
            }
            assert_eq!(
                taken.load(Ordering::Relaxed),
                2,
                "{position}, fault {fault}: records before it, none after"
            );
        }
    }
}

/// Several stages, all to all, that move some records.
fn graph(settings: &[&str]) -> Environment {
    let common = ["tidegate.shards=2", "taskmanager.memory.segment-size=1 kb"];
    let env = Environment::with_config(config(&[&common, settings].concat()));
    env.from_vec("texts", vec!["x".repeat(3000); 300])
        .parallelism(3)
        .rebalance()
        .map(|text| text.len() as u64)
        .parallelism(5)
        .key_by::<u64, _>(|n| n)
        .count()
        .parallelism(4)
        .sink("out", |_| Ok(Blackhole::new(Arc::default())));
    env
}

/// Goal: what a job needs to move is promised to it before it starts, so a pool of exactly that is enough, and
/// one that is smaller is refused with what is needed and what there is; nothing waits for ever.
#[test]
fn f53_a_pool_is_exactly_enough_or_is_refused() {
    const SEGMENT: u64 = 1 << 10;
    let job = graph(&[]).start("unlimited").unwrap();
    let needed = job.plan().memory.iter().map(|shard| u64::from(shard.guaranteed)).max().unwrap();
    job.wait().unwrap();
    // The limit is for both shards together.
    let limit = |segments: u64| format!("taskmanager.memory.network.max={} bytes", 2 * segments * SEGMENT);
    for _ in 0..5 {
        let summary = run(&graph(&[&limit(needed)])).unwrap();
        let taken: u64 =
            summary.subtasks.iter().filter(|s| s.vertex.starts_with("map")).map(|s| s.records_in).sum();
        assert_eq!(taken, 300);
    }
    for segments in [needed - 1, needed / 2] {
        let Err(error) = graph(&[&limit(segments)]).start("too large").map(|job| job.wait()) else {
            panic!("{segments} segments of {needed} are too few");
        };
        let error = error.to_string();
        for piece in [format!("at least {needed} segments"), format!("allows {segments} (")] {
            assert!(error.contains(&piece), "no {piece:?} in {error}");
        }
        assert!(error.contains("taskmanager.memory.network.max"), "{error}");
    }
}

/// Emits numbers with a watermark after every hundred.
struct Timed {
    next: i64,
    end: i64,
}

impl Source for Timed {
    type Item = u64;
    fn poll<C: Collector<u64>>(
        &mut self,
        out: &mut SourceOutput<'_, u64, C>,
    ) -> Result<SourcePoll, SourceError> {
        while self.next < self.end {
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            out.emit_at(self.next as u64, self.next);
            self.next += 1;
            if self.next % 100 == 0 {
                out.control(Control::Watermark(self.next));
            }
        }
        Ok(SourcePoll::Done)
    }
}

/// Goal: where a filter drops every record of many segments, watermark and end pass all the same, and nobody
/// counts on what was dropped.
#[test]
fn f55_watermark_and_end_pass_a_filter_that_drops_everything() {
    for timestamps in [false, true] {
        let env = Environment::with_config(config(&["taskmanager.memory.segment-size=256"]));
        let source = env.source("timed", |_: &SourceContext| Ok(Timed { next: 0, end: 50_000 }));
        let source = if timestamps { source.with_timestamps() } else { source };
        source
            .parallelism(2)
            .rebalance()
            .filter(|_| false)
            .rebalance()
            .sink("out", |_| Ok(Blackhole::new(Arc::default())));
        let summary = run(&env).unwrap();
        let of = |vertex: &str| {
            summary.subtasks.iter().filter(|s| s.vertex.starts_with(vertex)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(of("filter").iter().map(|s| s.records_in).sum::<u64>(), 100_000);
        for subtask in [of("filter"), of("out")].concat() {
            assert_eq!(subtask.watermark, Some(50_000), "{subtask:?}");
        }
        for subtask in of("out") {
            assert_eq!((subtask.records_in, subtask.in_pool_usage > 0.5), (0, false), "{subtask:?}");
        }
        for subtask in of("filter") {
            assert_eq!((subtask.records_out, subtask.output_queue_length), (0, 0), "{subtask:?}");
        }
    }
}
