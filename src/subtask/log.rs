//! The log of a shard, as its tasks share it.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;
use tidegate_shard::task::Service;
use tidegate_storage::log::writer::LogWriter;

/// A shard's end of the log. All its tasks append to it, and what they ask to be made durable at about the same
/// time shares a write and a sync.
#[derive(Clone)]
pub struct SharedLog {
    writer: Rc<RefCell<LogWriter>>,
    /// Whether completions wake the shard; else it has to look.
    wakes: bool,
    looked_ns: u64,
}

/// How often a shard that completions do not wake looks for them, in nanoseconds.
const LOOK_NS: u64 = 100_000;

impl SharedLog {
    /// Shares `writer` among the tasks of this thread; whether its completions wake the shard.
    pub fn new(writer: LogWriter, wakes: bool) -> Self {
        SharedLog { writer: Rc::new(RefCell::new(writer)), wakes, looked_ns: 0 }
    }

    /// The writer, for a step.
    pub(super) fn writer(&self) -> RefMut<'_, LogWriter> {
        self.writer.borrow_mut()
    }
}

impl Service for SharedLog {
    fn poll(&mut self, now_ns: u64) -> bool {
        self.looked_ns = now_ns;
        let mut writer = self.writer.borrow_mut();
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
        let deadline = self.writer.borrow().next_deadline()?;
        Some(if self.wakes { deadline.as_nanos() as u64 } else { self.looked_ns + LOOK_NS })
    }
}
