//! The log of a shard, as its tasks share it.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;
use tidegate_shard::task::Service;
use tidegate_storage::log::writer::LogWriter;

/// A shard's end of the log. All its tasks append to it, and what they ask to be made durable at about the same
/// time shares a write and a sync.
#[derive(Clone)]
pub struct SharedLog(Rc<RefCell<LogWriter>>);

impl SharedLog {
    /// Shares `writer` among the tasks of this thread.
    pub fn new(writer: LogWriter) -> Self {
        SharedLog(Rc::new(RefCell::new(writer)))
    }

    /// The writer, for a step.
    pub(super) fn writer(&self) -> RefMut<'_, LogWriter> {
        self.0.borrow_mut()
    }
}

impl Service for SharedLog {
    fn poll(&mut self, now_ns: u64) -> bool {
        let mut writer = self.0.borrow_mut();
        if !writer.is_busy() {
            return false;
        }
        let before = (writer.durable(), writer.counts());
        if let Err(cause) = writer.poll(Duration::from_nanos(now_ns)) {
            // Whoever waits for a span of it is told by the span.
            tracing::error!("the log of a shard: {cause}");
            return true;
        }
        before != (writer.durable(), writer.counts())
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.0.borrow().next_deadline().map(|at| at.as_nanos() as u64)
    }
}
