//! The task of an operator with two inputs of different types.

use super::SubtaskContext;
use super::reader::{Channels, Stop, Take, read};
use super::tail::{Pace, Tail};
use crate::operator::{Collector, Wait};
use crate::record::{Record, Timestamp};
use std::marker::PhantomData;
use tidegate_shard::input::Next;
use tidegate_shard::mailbox::Mail;
use tidegate_shard::task::{Background, Port, Progress, Task, TurnContext};

/// The inputs from which an operator wants its next record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Inputs {
    /// Whichever has one.
    #[default]
    Both,
    /// The first only.
    First,
    /// The second only.
    Second,
}

/// An operator with two inputs, at the head of a chain; as a collector it takes neither.
pub trait TwoInput<A: Record, B: Record> {
    /// Whether it ever wants less than both inputs.
    const SELECTS: bool;
    /// Where it wants its next record from.
    fn wants(&self) -> Inputs;
    /// Takes a record of the first input.
    fn first(&mut self, record: A::Ref<'_>, at: Timestamp);
    /// Takes a record of the second input.
    fn second(&mut self, record: B::Ref<'_>, at: Timestamp);
}

struct First<'a, H, U>(&'a mut H, PhantomData<fn(U)>);
struct Second<'a, H, U>(&'a mut H, PhantomData<fn(U)>);

/// What both inputs do alike: no batches, no waiting.
macro_rules! take {
    ($side:ident, $type:ident, $method:ident) => {
        impl<A: Record, B: Record, U: Record, H> Take<$type> for $side<'_, H, (A, B, U)>
        where
            H: TwoInput<A, B> + Collector<U>,
        {
            #[inline(always)]
            fn ready(&self) -> bool {
                self.0.ready()
            }

            #[inline(always)]
            fn take(&mut self, record: $type::Ref<'_>, at: Timestamp) {
                self.0.$method(record, at);
            }

            #[inline(always)]
            fn may_wait(&self) -> bool {
                false
            }

            fn offer(&mut self, record: $type::Ref<'_>, at: Timestamp) -> Wait {
                self.0.$method(record, at);
                Wait::Done
            }

            #[inline(always)]
            fn wants_batches(&self) -> bool {
                false
            }
        }
    };
}

take!(First, A, first);
take!(Second, B, second);

/// A task that reads two types of records and hands them to one operator.
pub struct TwoInputTask<A, B, U: Record, H: Collector<U>> {
    channels: Channels,
    tail: Tail<U, H>,
    pace: Pace,
    /// What the operator wanted when channels were put aside.
    wanted: Inputs,
    records: PhantomData<fn(A, B)>,
}

impl<A, B, U: Record, H: Collector<U>> TwoInputTask<A, B, U, H> {
    pub(crate) fn new(cx: &mut SubtaskContext, head: H) -> Self {
        TwoInputTask {
            channels: Channels::new(cx.input()),
            tail: Tail::new(cx, head),
            pace: Pace::new(),
            wanted: Inputs::Both,
            records: PhantomData,
        }
    }

    /// What the operator wants; both inputs if it waits for one that has ended.
    fn wanted(&self) -> Inputs
    where
        A: Record,
        B: Record,
        H: TwoInput<A, B>,
    {
        match self.tail.next.wants() {
            Inputs::First if self.channels.data_came_of(0) => Inputs::Both,
            Inputs::Second if self.channels.data_came_of(1) => Inputs::Both,
            wanted => wanted,
        }
    }

    fn end_turn(&mut self, records: u64, progress: Progress) -> Progress {
        self.channels.end_turn(&self.tail.metrics);
        self.tail.end_turn(records, matches!(progress, Progress::Ready));
        progress
    }
}

impl<A, B, U, H> Task for TwoInputTask<A, B, U, H>
where
    A: Record,
    B: Record,
    U: Record,
    H: TwoInput<A, B> + Collector<U>,
{
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        self.channels.begin_turn(&mut self.tail, cx.clock);
        if !self.tail.is_running() {
            return self.channels.end(&mut self.tail, cx);
        }
        let mut records = 0;
        let mut looked_at_ns = cx.now_ns;
        self.tail.next.begin_turn(cx.now_ns);
        loop {
            if !self.tail.next.ready() {
                let obstacle = self.tail.obstacle();
                return self.end_turn(records, obstacle);
            }
            if H::SELECTS {
                let wanted = self.wanted();
                if wanted != self.wanted {
                    self.wanted = wanted;
                    self.channels.gate.bring_back();
                }
            }
            let (channel, event) = match self.channels.gate.poll() {
                Next::Data(channel) => (channel, None),
                Next::Event(channel, event) => (channel, Some(event)),
                // A subtask that nobody sends to has no event to wait for.
                Next::Empty if self.channels.all_data_came() => {
                    return self.channels.end(&mut self.tail, cx);
                }
                Next::Empty => {
                    let progress = self.end_turn(records, Progress::Idle);
                    self.channels.gate.set_idle();
                    return progress;
                }
            };
            self.channels.gate.set_active();
            if let Some(event) = event {
                let now_ns = cx.clock.now_ns();
                self.channels.event(channel, event, now_ns, |control| self.tail.next.control(control));
                self.channels.act(&mut self.tail, cx.clock);
                if self.channels.all_data_came() {
                    self.tail.end_turn(records, false);
                    return self.channels.end(&mut self.tail, cx);
                }
                continue;
            }
            let input = self.channels.inputs[channel.0 as usize];
            if H::SELECTS && matches!((self.wanted, input), (Inputs::First, 1) | (Inputs::Second, 0)) {
                self.channels.gate.set_aside(channel);
                continue;
            }
            let timestamps = self.channels.timestamps[channel.0 as usize];
            // What it wants next may change with each record.
            let limit = if H::SELECTS { 1 } else { self.pace.batch() };
            let gate = &mut self.channels.gate;
            let read = match input {
                0 => {
                    let mut head = First::<_, (A, B, U)>(&mut self.tail.next, PhantomData);
                    read::<A>(gate, channel, timestamps, limit, &mut head)
                }
                _ => {
                    let mut head = Second::<_, (A, B, U)>(&mut self.tail.next, PhantomData);
                    read::<B>(gate, channel, timestamps, limit, &mut head)
                }
            };
            let (taken, stop) = match read {
                Ok(read) => read,
                Err(mut failure) => {
                    failure.operator.get_or_insert_with(|| self.tail.vertex().to_string());
                    return self.end_turn(records, Progress::Failed(failure));
                }
            };
            records += u64::from(taken);
            if let Stop::Control(control) = stop {
                self.channels.control(channel, control, |control| self.tail.next.control(control));
            }
            let now_ns = cx.clock.now_ns();
            if taken == limit && !H::SELECTS {
                self.pace.took(now_ns - looked_at_ns, cx.quantum_ns());
            }
            looked_at_ns = now_ns;
            if now_ns >= cx.until_ns {
                return self.end_turn(records, Progress::Ready);
            }
        }
    }

    fn rung(&mut self, port: Port) {
        if !self.channels.rung(port) {
            self.tail.rung(port);
        }
    }

    fn mail(&mut self, mail: Mail, _: u64) {
        self.channels.mail(&mail);
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
