//! What does a record cost from a source in memory through a keyed exchange and a count to a sink?
//!
//! Whole jobs, so the start of the shards is in the time; there are enough records that it does not matter.
//! Run as a test, one small job is run and its result checked.

use criterion::{BenchmarkId, Criterion, Throughput};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::api::Environment;
use tidegate::record::Timestamp;
use tidegate::sink::Sink;
use tidegate::source::memory::{InMemory, Repeat};
use tidegate::source::{SourceContext, SourceError};
use tidegate::subtask::SubtaskInfo;

/// Sums the counts of the rows that it takes.
struct SumSink {
    sum: u64,
    all: Arc<AtomicU64>,
}

impl Sink for SumSink {
    type Item = (u64, u64);

    fn write(&mut self, (_, count): (u64, u64), _: Timestamp) -> Result<(), SourceError> {
        self.sum += count;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.all.fetch_add(self.sum, Ordering::Relaxed);
        Ok(())
    }
}

/// Counts `loops` times `records` from one source, and checks the sum over all rows.
fn keyed_count(records: &Arc<[(u64, u64)]>, keys: u64, loops: u64) {
    let env = Environment::new();
    let all = Arc::new(AtomicU64::new(0));
    let (shared, sum) = (records.clone(), all.clone());
    env.source("records", move |_: &SourceContext| Ok(InMemory::new(shared.clone(), Repeat::Times(loops))))
        .parallelism(1)
        .key_by::<u64, _>(|(key, _)| key)
        .count()
        .sink("sum", move |_: &SubtaskInfo| Ok(SumSink { sum: 0, all: sum.clone() }));
    env.execute("keyed-count").expect("the job runs");
    // Every key comes equally often, and its rows count from 1 up.
    let times = records.len() as u64 * loops / keys;
    assert_eq!(all.load(Ordering::Relaxed), keys * times * (times + 1) / 2);
}

fn main() {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let records: u64 = 1 << 16;
    let mut group = criterion.benchmark_group("pipeline/keyed-count");
    for keys in [16, 1 << 14] {
        let drawn: Arc<[(u64, u64)]> = (0..records).map(|i| (i % keys, i)).collect();
        // `--test` and `cargo test` run each once; a measurement takes many more records.
        let loops = if std::env::args().any(|arg| arg == "--bench") { 100 } else { 1 };
        group.throughput(Throughput::Elements(records * loops));
        group.bench_with_input(BenchmarkId::from_parameter(keys), &keys, |bencher, keys| {
            bencher.iter(|| keyed_count(&drawn, *keys, loops));
        });
    }
    group.finish();
    criterion.final_summary();
}
