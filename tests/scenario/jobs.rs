//! Whole jobs on real threads, against a plain loop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tidegate::api::Environment;
use tidegate::record::{Record, Timestamp};
use tidegate::sink::Sink;
use tidegate::source::SourceError;
use tidegate::subtask::SubtaskInfo;

/// Collects what all subtasks write.
#[derive(Clone)]
struct Collected<T>(Arc<Mutex<Vec<T>>>);

struct CollectSink<T>(Arc<Mutex<Vec<T>>>);

impl<T: Record> Sink for CollectSink<T> {
    type Item = T;
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        self.0.lock().unwrap().push(T::from_view(record));
        Ok(())
    }
    fn finish(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

impl<T: Record + Send> Collected<T> {
    fn new() -> Self {
        Collected(Arc::default())
    }
    fn sink(
        &self,
    ) -> impl Fn(&SubtaskInfo) -> Result<CollectSink<T>, SourceError> + Clone + Send + Sync + 'static {
        let all = self.0.clone();
        move |_: &SubtaskInfo| Ok(CollectSink(all.clone()))
    }
    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn keyed_counts_equal_a_plain_loop() {
    let env = Environment::new();
    let out = Collected::<(u64, u64)>::new();
    env.from_vec("numbers", (0..100_000u64).collect())
        .map(|n| n * 7 % 1000)
        .key_by::<u64, _>(|n| n)
        .count()
        .sink("out", out.sink());
    env.execute("count").unwrap();
    let mut last: HashMap<u64, u64> = HashMap::new();
    let rows = out.take();
    assert_eq!(rows.len(), 100_000);
    for (key, count) in rows {
        let before = last.insert(key, count).unwrap_or(0);
        assert_eq!(count, before + 1, "counts of key {key} in order");
    }
    assert!(last.values().all(|n| *n == 100) && last.len() == 1000);
}

#[test]
fn words_are_counted_once_at_the_end() {
    let env = Environment::new();
    let out = Collected::<(String, u64)>::new();
    let text: Vec<String> = (0..1000).map(|i| format!("a b{} c a", i % 10)).collect();
    env.from_vec("lines", text)
        .flat_map::<(String, u64), _>(|line, out| line.split(' ').for_each(|w| out.emit((w, 1))))
        .key_by::<String, _>(|(w, _)| w)
        .count_at_end()
        .sink("out", out.sink());
    env.execute("words").unwrap();
    let mut rows = out.take();
    rows.sort();
    let mut expected: Vec<_> = (0..10).map(|i| (format!("b{i}"), 100)).collect();
    expected.insert(0, ("a".into(), 2000));
    expected.push(("c".into(), 1000));
    assert_eq!(rows, expected);
}
