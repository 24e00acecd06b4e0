//! A sink that measures how long records were on their way.

use super::Sink;
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use hdrhistogram::Histogram;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Latencies above this count as this: one minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Decimal digits of a latency that are kept.
const DIGITS: u8 = 3;

/// Latencies of all subtasks in nanoseconds, complete when each has finished.
pub type Latencies = Arc<Mutex<Histogram<u64>>>;

/// An empty histogram to be shared by the subtasks' sinks.
pub fn latencies() -> Latencies {
    Arc::new(Mutex::new(histogram()))
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("constant bounds that are in order")
}

/// Records `now - due` of each record, where `due` is what `due_ns` reads from it and `now` the time when the
/// sink takes it. Both are of one clock.
pub struct LatencySink<T, D, N> {
    due_ns: D,
    now_ns: N,
    /// Records due earlier are not counted; known once the first record has come.
    warm_at_ns: Option<u64>,
    warm_up: Duration,
    own: Histogram<u64>,
    all: Latencies,
    item: PhantomData<fn(T)>,
}

impl<T, D, N> LatencySink<T, D, N>
where
    T: Record,
    D: for<'a> Fn(T::Ref<'a>) -> u64 + 'static,
    N: Fn() -> u64 + 'static,
{
    /// A sink that skips what is due within `warm_up` of the first record, and adds its latencies
    /// to `all` when it finishes.
    pub fn new(due_ns: D, now_ns: N, warm_up: Duration, all: Latencies) -> LatencySink<T, D, N> {
        LatencySink { due_ns, now_ns, warm_at_ns: None, warm_up, own: histogram(), all, item: PhantomData }
    }
}

impl<T, D, N> Sink for LatencySink<T, D, N>
where
    T: Record,
    D: for<'a> Fn(T::Ref<'a>) -> u64 + 'static,
    N: Fn() -> u64 + 'static,
{
    type Item = T;

    #[inline]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        let due_ns = (self.due_ns)(record);
        let warm_up_ns = self.warm_up.as_nanos() as u64;
        let warm_at_ns = *self.warm_at_ns.get_or_insert(due_ns.saturating_add(warm_up_ns));
        if due_ns >= warm_at_ns {
            self.own.saturating_record((self.now_ns)().saturating_sub(due_ns));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(&self.own)?;
        self.own.reset();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Goal: latencies after the warm-up are counted, of all subtasks, and too long ones as the longest.
    #[test]
    fn latencies_after_the_warm_up_are_shared_at_the_end() {
        let (all, now) = (latencies(), Rc::new(Cell::new(0)));
        for _ in 0..2 {
            let clock = now.clone();
            let warm_up = Duration::from_nanos(100);
            let mut sink =
                LatencySink::<(u64, u64), _, _>::new(|r| r.1, move || clock.get(), warm_up, all.clone());
            for (due_ns, latency_ns) in
                [(1_000, 7_000), (1_099, 7_000), (1_100, 50), (1_200, 2 * LATENCY_NS_MAX)]
            {
                now.set(due_ns + latency_ns);
                sink.write((1, due_ns), 0).unwrap();
            }
            sink.finish().unwrap();
        }
        let all = all.lock().unwrap();
        assert_eq!((all.len(), all.min()), (4, 50));
        assert!(all.max().abs_diff(LATENCY_NS_MAX) < LATENCY_NS_MAX / 500, "{}", all.max());
    }
}
