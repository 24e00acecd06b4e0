//! A sink that keeps all records in memory, for tests and small results.

use super::Sink;
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use std::sync::{Arc, Mutex, PoisonError};

/// Records of all subtasks, in the order in which they were flushed.
pub type Collected<T> = Arc<Mutex<Vec<T>>>;

/// Appends records to a shared list, all of a turn at once.
pub struct Collect<T> {
    turn: Vec<T>,
    all: Collected<T>,
}

impl<T: Record> Collect<T> {
    /// A sink that appends to `all`.
    pub fn new(all: Collected<T>) -> Collect<T> {
        Collect { turn: Vec::new(), all }
    }
}

impl<T: Record> Sink for Collect<T> {
    type Item = T;

    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        self.turn.push(T::from_view(record));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.turn);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each subtask's records stay in order, and are seen once flushed.
    #[test]
    fn records_are_appended_at_each_flush() {
        let all = Collected::<u64>::default();
        let (mut a, mut b) = (Collect::new(all.clone()), Collect::new(all.clone()));
        a.write(1, 0).unwrap();
        b.write(2, 0).unwrap();
        b.flush().unwrap();
        a.write(3, 0).unwrap();
        a.finish().unwrap();
        b.finish().unwrap();
        assert_eq!(*all.lock().unwrap(), [2, 1, 3]);
    }
}
