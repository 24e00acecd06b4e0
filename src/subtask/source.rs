//! The task of a source.

use super::snapshot::triggered;
use super::tail::{Pace, Tail};
use super::{SubtaskContext, operator_failure};
use crate::operator::{Collector, Control};
use crate::source::{Source, SourceOutput, SourcePoll};
use std::sync::Arc;
use tidegate_shard::mailbox::Mail;
use tidegate_shard::task::{Background, Port, Progress, Task, TurnContext};
use tidegate_storage::metadata::StateRef;

/// A source is the first operator of its vertex.
pub(crate) const SOURCE_OPERATOR: usize = 0;

/// A source and the chain behind it.
pub struct SourceTask<S: Source, C: Collector<S::Item>> {
    source: S,
    name: Arc<str>,
    tail: Tail<S::Item, C>,
    pace: Pace,
    stopped: bool,
    /// Identity in latency markers, and when the next one is due; never if `u64::MAX`.
    vertex: u32,
    subtask: u32,
    marker_interval_ns: u64,
    next_marker_ns: u64,
}

impl<S: Source, C: Collector<S::Item>> SourceTask<S, C> {
    pub(crate) fn new(
        cx: &SubtaskContext,
        source: S,
        name: Arc<str>,
        next: C,
        vertex: u32,
        marker_interval_ns: Option<u64>,
    ) -> Self {
        let tail = Tail::new(cx, next);
        SourceTask {
            stopped: tail.had_emitted_all(),
            source,
            name,
            tail,
            pace: Pace::new(),
            vertex,
            subtask: cx.info.subtask,
            marker_interval_ns: marker_interval_ns.unwrap_or(u64::MAX),
            next_marker_ns: if marker_interval_ns.is_some() { 0 } else { u64::MAX },
        }
    }
}

impl<S: Source, C: Collector<S::Item>> Task for SourceTask<S, C> {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        while let Some(barrier) = self.tail.next_trigger() {
            let (source, name) = (&mut self.source, &self.name);
            self.tail.checkpoint(&triggered(barrier, cx.clock), cx.clock, |snapshot| {
                let mut state = Vec::new();
                match source.snapshot(&mut state) {
                    Ok(()) => snapshot.state_of(SOURCE_OPERATOR).operator.push(StateRef::Inline(state)),
                    Err(cause) => snapshot.fail(name, cause),
                }
            });
        }
        if !self.tail.is_running() {
            return self.tail.finish(true, || cx.clock.now_ns() >= cx.until_ns);
        }
        let mut now_ns = cx.now_ns;
        self.tail.next.begin_turn(now_ns);
        if now_ns >= self.next_marker_ns && self.tail.next.ready() {
            self.next_marker_ns = now_ns + self.marker_interval_ns;
            let (vertex, subtask) = (self.vertex, self.subtask);
            self.tail.next.control(Control::Marker { vertex, subtask, at_ns: now_ns });
        }
        loop {
            if self.stopped {
                return self.tail.finish(true, || cx.clock.now_ns() >= cx.until_ns);
            }
            if !self.tail.next.ready() {
                self.tail.end_turn(0, false);
                return self.tail.obstacle();
            }
            let batch = self.pace.batch();
            let mut out = SourceOutput::new(&mut self.tail.next, batch, now_ns);
            let poll = self.source.poll(&mut out);
            let emitted = out.emitted();
            let before_ns = now_ns;
            now_ns = cx.clock.now_ns();
            if emitted >= batch {
                self.pace.took(now_ns - before_ns, cx.quantum_ns());
            }
            match poll {
                Err(cause) => return Progress::Failed(operator_failure(&*self.name, &cause)),
                Ok(SourcePoll::Done) => self.stopped = true,
                Ok(SourcePoll::WaitUntil(at_ns)) if at_ns > now_ns => {
                    self.tail.end_turn(0, false);
                    return Progress::IdleUntil(at_ns.min(self.next_marker_ns));
                }
                Ok(SourcePoll::Wait) => {
                    self.tail.end_turn(0, false);
                    return Progress::Idle;
                }
                Ok(SourcePoll::WaitUntil(_) | SourcePoll::More) => {
                    if now_ns >= cx.until_ns {
                        self.tail.end_turn(0, true);
                        return Progress::Ready;
                    }
                }
            }
        }
    }

    fn rung(&mut self, port: Port) {
        self.tail.rung(port);
    }

    fn mail(&mut self, mail: Mail, _: u64) {
        match mail {
            Mail::Stop => self.stopped = true,
            Mail::Complete(id) => self.source.complete(id.0),
            _ => {}
        }
        self.tail.mail(&mail);
    }

    fn flush(&mut self) {
        self.tail.flush();
    }

    fn wants_flush(&self) -> bool {
        self.tail.wants_flush()
    }

    fn has_background(&self) -> bool {
        self.tail.has_background()
    }

    fn background(&mut self, cx: &mut TurnContext<'_>) -> Background {
        self.tail.background(cx)
    }
}
