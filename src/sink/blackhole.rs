//! A sink that counts records and forgets them.

use super::Sink;
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes everything. The compiler must produce each record, but nothing is done with it.
pub struct Blackhole<T> {
    count: u64,
    shown: Arc<AtomicU64>,
    item: PhantomData<fn(T)>,
}

impl<T: Record> Blackhole<T> {
    /// A sink that shows how many records it took, at the end of each turn, in `shown`: one for each subtask,
    /// which is its only writer.
    pub fn new(shown: Arc<AtomicU64>) -> Blackhole<T> {
        Blackhole { count: 0, shown, item: PhantomData }
    }
}

impl<T: Record> Sink for Blackhole<T> {
    type Item = T;

    /// Nobody sees a record, so nobody sees one twice.
    const TRANSACTIONAL: bool = true;

    #[inline(always)]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        black_box(record);
        self.count += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        self.shown.store(self.count, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the count is that of the records, shown at each flush.
    #[test]
    fn records_are_counted() {
        let shown = Arc::new(AtomicU64::new(0));
        let mut sink = Blackhole::<u64>::new(shown.clone());
        for record in 0..5 {
            sink.write(record, 0).unwrap();
        }
        assert_eq!(shown.load(Ordering::Relaxed), 0);
        sink.finish().unwrap();
        assert_eq!(shown.load(Ordering::Relaxed), 5);
    }
}
