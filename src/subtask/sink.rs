//! The end of a chain that writes to a sink.

use crate::operator::{Collector, Control, Lifecycle, OperatorFailure, Settled, Step};
use crate::record::{Record, Timestamp};
use crate::sink::Sink;
use crate::source::SourceError;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::output::ResultPartition;
use tidegate_storage::failpoint;
use tidegate_storage::metadata::StateRef;

/// A sink at the end of a chain.
pub struct SinkEnd<S: Sink> {
    sink: S,
    name: Arc<str>,
    /// Its index in the vertex.
    operator: usize,
    failed: Option<SourceError>,
    /// Whether something was written since the last flush.
    unflushed: bool,
    now_ns: u64,
    metrics: Arc<SubtaskMetrics>,
}

impl<S: Sink> SinkEnd<S> {
    pub(crate) fn new(sink: S, name: Arc<str>, operator: usize, metrics: Arc<SubtaskMetrics>) -> Self {
        SinkEnd { sink, name, operator, failed: None, unflushed: false, now_ns: 0, metrics }
    }
}

impl<S: Sink> Collector<S::Item> for SinkEnd<S> {
    #[inline(always)]
    fn collect(&mut self, record: <S::Item as Record>::Ref<'_>, at: Timestamp) {
        self.unflushed = true;
        if let Err(cause) = self.sink.write(record, at) {
            self.failed.get_or_insert(cause);
        }
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.failed.is_none()
    }

    fn begin_turn(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn control(&mut self, control: Control) {
        if let Control::Marker { at_ns, .. } = control {
            // Within one turn no time passes; 0 says that there was no marker.
            self.metrics.marker_latency_ns.set(self.now_ns.saturating_sub(at_ns).max(1));
        }
    }

    fn finish(&mut self) -> Step {
        if let Err(cause) = self.sink.finish() {
            self.failed.get_or_insert(cause);
        }
        Step::Done
    }

    fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        match event {
            Lifecycle::Snapshot(snapshot) => {
                let mut state = Vec::new();
                match self.sink.pre_commit(snapshot.checkpoint, &mut state) {
                    Err(cause) => snapshot.fail(&self.name, cause),
                    Ok(()) if state.is_empty() => {}
                    Ok(()) => snapshot.state_of(self.operator).operator.push(StateRef::Inline(state)),
                }
            }
            Lifecycle::Complete(checkpoint) => {
                failpoint::pass(failpoint::SUBTASK_NOTICE);
                if let Err(cause) = self.sink.commit(*checkpoint) {
                    self.failed.get_or_insert(cause);
                }
            }
            Lifecycle::Settle(settling) => {
                let settled = match settling.what {
                    Settled::Durable => self.sink.is_durable(settling.checkpoint),
                    Settled::Committed => self.sink.is_committed(settling.checkpoint),
                };
                match settled {
                    Ok(true) => {}
                    Ok(false) => settling.waits(),
                    Err(cause) => settling.fail(&self.name, cause),
                }
            }
            Lifecycle::PreBarrier(_) | Lifecycle::Abort(_) | Lifecycle::Write(_) => {}
        }
    }

    fn outputs(&mut self, _: &mut dyn FnMut(&mut ResultPartition)) {}

    fn end_of_turn(&mut self) {
        if self.unflushed && self.failed.is_none() {
            self.unflushed = false;
            if let Err(cause) = self.sink.flush() {
                self.failed = Some(cause);
            }
        }
    }

    fn failure(&mut self) -> Option<OperatorFailure> {
        let cause = self.failed.take()?;
        Some(OperatorFailure { operator: self.name.to_string(), cause })
    }
}
