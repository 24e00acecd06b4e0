//! Reading records out of a gate's buffers, in place, and the task that does so.

use super::snapshot::triggered;
use super::tail::{Pace, Tail};
use super::watermark::WatermarkValve;
use super::writer::{TIMESTAMP_BYTES, decode_control};
use super::{Input, SubtaskContext};
use crate::operator::keyed::BATCH;
use crate::operator::{Batch, Collector, Control, Encoded, Views, Wait};
use crate::record::{NO_TIMESTAMP, Record, Timestamp};
use arrayvec::ArrayVec;
use std::marker::PhantomData;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::barrier::{Action, BarrierHandler, Event};
use tidegate_shard::frame::{self, HEADER_BYTES, RECORD};
use tidegate_shard::input::{ChannelIndex, InputGate, Next};
use tidegate_shard::mailbox::Mail;
use tidegate_shard::task::{Background, Clock, Port, Progress, Task, TaskFailure, TurnContext};

/// Who takes the records of one input: the head of the chain.
pub(super) trait Take<T: Record> {
    fn ready(&self) -> bool;
    fn take(&mut self, record: T::Ref<'_>, at: Timestamp);
    fn may_wait(&self) -> bool;
    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait;
    fn wants_batches(&self) -> bool;

    /// Takes records one after the other until the batch ends or it is no longer ready; how many.
    #[inline(always)]
    fn take_batch<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize {
        for (taken, record) in batch.records().enumerate() {
            if !self.ready() {
                return taken;
            }
            self.take(record, times.get(taken).copied().unwrap_or(NO_TIMESTAMP));
        }
        batch.len()
    }
}

/// A chain as the head of its own input.
pub(super) struct Head<'a, C>(pub &'a mut C);

impl<T: Record, C: Collector<T>> Take<T> for Head<'_, C> {
    #[inline(always)]
    fn ready(&self) -> bool {
        self.0.ready()
    }

    #[inline(always)]
    fn take(&mut self, record: T::Ref<'_>, at: Timestamp) {
        self.0.collect(record, at);
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    #[inline]
    fn offer(&mut self, record: T::Ref<'_>, at: Timestamp) -> Wait {
        self.0.offer(record, at)
    }

    #[inline(always)]
    fn wants_batches(&self) -> bool {
        self.0.wants_batches()
    }

    #[inline(always)]
    fn take_batch<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize {
        self.0.collect_batch(batch, times)
    }
}

/// Why reading a buffer stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The limit of records, or the end of what is committed.
    Limit,
    /// The chain takes no more now.
    NotReady,
    /// Something that is no record.
    Control(Control),
    /// The chain is busy, or wants the next record again, at this time in nanoseconds.
    Wait(u64),
}

/// Hands up to `limit` records of a channel's present buffer to `head`; how many, and why it stopped.
#[inline(always)]
pub(super) fn read<T: Record>(
    gate: &mut InputGate,
    channel: ChannelIndex,
    timestamps: bool,
    limit: u32,
    head: &mut impl Take<T>,
) -> Result<(u32, Stop), TaskFailure> {
    let stride = gate.unread(channel).stride;
    if !timestamps && !head.may_wait() && T::STRIDE == Some(stride) {
        return read_fixed(gate, channel, limit, head);
    }
    if stride != 0 {
        read_stride(gate, channel, stride, timestamps, limit, head)
    } else {
        read_framed(gate, channel, timestamps, limit, head)
    }
}

/// Records of fixed size without timestamps: one tight loop.
#[inline(always)]
fn read_fixed<T: Record>(
    gate: &mut InputGate,
    channel: ChannelIndex,
    limit: u32,
    head: &mut impl Take<T>,
) -> Result<(u32, Stop), TaskFailure> {
    let Some(size) = T::STRIDE.map(|size| size as usize) else { return Ok((0, Stop::Limit)) };
    let bytes = gate.unread(channel).bytes;
    let whole = (bytes.len() / size).min(limit as usize);
    let records = bytes[..whole * size].chunks_exact(size);
    let mut taken = 0;
    if Encoded::<T>::POSSIBLE && head.wants_batches() {
        let batch = Encoded::new(&bytes[..whole * size]).map_err(|error| corrupt(error.to_string()))?;
        taken = head.take_batch(batch, &[]);
    } else {
        let mut scratch = T::Scratch::default();
        for record in records {
            if !head.ready() {
                break;
            }
            head.take(decode::<T>(record, &mut scratch)?, NO_TIMESTAMP);
            taken += 1;
        }
    }
    gate.consume(channel, taken * size);
    Ok((taken as u32, if taken < whole { Stop::NotReady } else { Stop::Limit }))
}

/// Records of fixed size, with timestamps or for a head that may wait.
#[inline(never)]
fn read_stride<T: Record>(
    gate: &mut InputGate,
    channel: ChannelIndex,
    stride: u32,
    timestamps: bool,
    limit: u32,
    head: &mut impl Take<T>,
) -> Result<(u32, Stop), TaskFailure> {
    let size = stride as usize;
    let bytes = gate.unread(channel).bytes;
    let mut scratch = T::Scratch::default();
    let mut taken = 0;
    let mut stop = Stop::Limit;
    for record in bytes.chunks_exact(size).take(limit as usize) {
        if !head.ready() {
            stop = Stop::NotReady;
            break;
        }
        match hand_over::<T>(record, timestamps, head, &mut scratch)? {
            Wait::Done => taken += 1,
            Wait::BusyUntil(at_ns) => {
                taken += 1;
                stop = Stop::Wait(at_ns);
                break;
            }
            Wait::NotYet(at_ns) => {
                stop = Stop::Wait(at_ns);
                break;
            }
        }
    }
    gate.consume(channel, taken * size);
    Ok((taken as u32, stop))
}

/// Elements with headers, and records that span buffers.
#[inline(always)]
fn read_framed<T: Record>(
    gate: &mut InputGate,
    channel: ChannelIndex,
    timestamps: bool,
    limit: u32,
    head: &mut impl Take<T>,
) -> Result<(u32, Stop), TaskFailure> {
    if gate.is_assembling(channel) {
        return read_assembled(gate, channel, timestamps, head);
    }
    let bytes = gate.unread(channel).bytes;
    let (mut at, mut taken, mut stop) = (0, 0, Stop::Limit);
    let mut spans = None;
    if size_of::<T::Scratch>() == 0 && !head.may_wait() {
        let mut scratch: [T::Scratch; BATCH] = std::array::from_fn(|_| T::Scratch::default());
        'buffer: while taken < limit {
            let mut batch: ArrayVec<T::Ref<'_>, BATCH> = ArrayVec::new();
            let mut times: ArrayVec<Timestamp, BATCH> = ArrayVec::new();
            let mut ends = [0; BATCH];
            let mut from = at;
            for scratch in &mut scratch {
                match element(&bytes[from..])? {
                    Element::Record(payload) => {
                        let (time, payload) = split_timestamp::<T>(payload, timestamps)?;
                        batch.push(decode::<T>(payload, scratch)?);
                        if timestamps {
                            times.push(time);
                        }
                        from += HEADER_BYTES + payload.len() + if timestamps { TIMESTAMP_BYTES } else { 0 };
                        ends[batch.len() - 1] = from;
                        if taken + batch.len() as u32 == limit {
                            break;
                        }
                    }
                    // The records before it first.
                    _ => break,
                }
            }
            if !batch.is_empty() {
                let took = head.take_batch(Views(&batch), &times);
                taken += took as u32;
                at = if took > 0 { ends[took - 1] } else { at };
                if took < batch.len() {
                    stop = Stop::NotReady;
                    break 'buffer;
                }
            }
            if taken >= limit {
                break;
            }
            match element(&bytes[at..])? {
                Element::Record(_) => {}
                Element::Control(control, len) => {
                    at += len;
                    stop = Stop::Control(control);
                    break;
                }
                Element::Spans(len) => {
                    spans = Some(len);
                    break;
                }
                Element::End => break,
            }
        }
    } else {
        let mut scratch = T::Scratch::default();
        while taken < limit {
            match element(&bytes[at..])? {
                Element::Record(payload) => {
                    if !head.ready() {
                        stop = Stop::NotReady;
                        break;
                    }
                    let wait = hand_over::<T>(payload, timestamps, head, &mut scratch)?;
                    if !matches!(wait, Wait::NotYet(_)) {
                        at += HEADER_BYTES + payload.len();
                        taken += 1;
                    }
                    if let Wait::NotYet(at_ns) | Wait::BusyUntil(at_ns) = wait {
                        stop = Stop::Wait(at_ns);
                        break;
                    }
                }
                Element::Control(control, len) => {
                    at += len;
                    stop = Stop::Control(control);
                    break;
                }
                Element::Spans(len) => {
                    spans = Some(len);
                    break;
                }
                Element::End => break,
            }
        }
    }
    if at > 0 {
        gate.consume(channel, at);
    }
    if let Some(len) = spans {
        gate.begin_assembly(channel, HEADER_BYTES, len);
    }
    Ok((taken, stop))
}

/// A record that spans buffers: adds what has come, and hands it over when it is whole.
#[inline(never)]
fn read_assembled<T: Record>(
    gate: &mut InputGate,
    channel: ChannelIndex,
    timestamps: bool,
    head: &mut impl Take<T>,
) -> Result<(u32, Stop), TaskFailure> {
    if !gate.is_assembled(channel) && !gate.assemble(channel) {
        return Ok((0, Stop::Limit));
    }
    if !head.ready() {
        return Ok((0, Stop::NotReady));
    }
    let mut scratch = T::Scratch::default();
    let wait = hand_over::<T>(gate.assembled(channel), timestamps, head, &mut scratch)?;
    Ok(match wait {
        Wait::NotYet(at_ns) => (0, Stop::Wait(at_ns)),
        Wait::BusyUntil(at_ns) => {
            gate.end_assembly(channel);
            (1, Stop::Wait(at_ns))
        }
        Wait::Done => {
            gate.end_assembly(channel);
            (1, Stop::Limit)
        }
    })
}

/// Decodes one record and hands it to the head.
#[inline(always)]
fn hand_over<T: Record>(
    bytes: &[u8],
    timestamps: bool,
    head: &mut impl Take<T>,
    scratch: &mut T::Scratch,
) -> Result<Wait, TaskFailure> {
    let (at, payload) = split_timestamp::<T>(bytes, timestamps)?;
    let record = decode::<T>(payload, scratch)?;
    if head.may_wait() {
        return Ok(head.offer(record, at));
    }
    head.take(record, at);
    Ok(Wait::Done)
}

#[inline(always)]
fn split_timestamp<T: Record>(bytes: &[u8], timestamps: bool) -> Result<(Timestamp, &[u8]), TaskFailure> {
    if !timestamps {
        return Ok((NO_TIMESTAMP, bytes));
    }
    match bytes.split_first_chunk::<TIMESTAMP_BYTES>() {
        Some((at, payload)) => Ok((i64::from_le_bytes(*at), payload)),
        None => Err(corrupt(format!(
            "a record of {} bytes has no room for a timestamp before its {}",
            bytes.len(),
            std::any::type_name::<T>()
        ))),
    }
}

#[inline(always)]
fn decode<'a, T: Record>(bytes: &'a [u8], scratch: &'a mut T::Scratch) -> Result<T::Ref<'a>, TaskFailure> {
    T::decode(bytes, scratch).map_err(|error| corrupt(error.to_string()))
}

#[cold]
#[inline(never)]
fn corrupt(cause: String) -> TaskFailure {
    TaskFailure { operator: None, cause }
}

enum Element<'a> {
    Record(&'a [u8]),
    /// What is no record, and its length with the header.
    Control(Control, usize),
    /// A record of so many payload bytes that goes on in the next buffer.
    Spans(usize),
    End,
}

#[inline(always)]
fn element(bytes: &[u8]) -> Result<Element<'_>, TaskFailure> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        if bytes.is_empty() {
            return Ok(Element::End);
        }
        return Err(corrupt(format!("{} bytes at the end of a buffer are no frame header", bytes.len())));
    };
    let (kind, len) = frame::parse_header(*head);
    if kind == RECORD {
        return Ok(if len <= rest.len() { Element::Record(&rest[..len]) } else { Element::Spans(len) });
    }
    control(kind, rest.get(..len), len)
}

#[cold]
fn control(kind: frame::Kind, payload: Option<&[u8]>, len: usize) -> Result<Element<'_>, TaskFailure> {
    payload
        .and_then(|payload| decode_control(kind, payload))
        .map(|control| Element::Control(control, HEADER_BYTES + len))
        .ok_or_else(|| corrupt(format!("an element of kind {kind} and {len} bytes is not known")))
}

/// The input of a task: gate, watermarks, which channels have ended.
pub(super) struct Channels {
    pub gate: InputGate,
    /// For each channel, the logical input that it belongs to.
    pub inputs: Vec<u8>,
    pub timestamps: Vec<bool>,
    valve: WatermarkValve,
    /// For each channel, whether it has sent all its data.
    data_came: Vec<bool>,
    open: u32,
    /// Channels of each logical input that have data to come.
    open_of: [u32; 2],
    /// The chain takes nothing before this time.
    pub wait_until_ns: u64,
    barriers: BarrierHandler,
    /// What follows from events that were taken.
    actions: Vec<Action>,
}

impl Channels {
    pub fn new(input: Input) -> Self {
        let Input { gate, inputs, timestamps } = input;
        let channels = gate.channels();
        let of = |input| inputs.iter().filter(|of| **of == input).count() as u32;
        let open_of = [of(0), of(1)];
        Channels {
            gate,
            inputs,
            timestamps,
            valve: WatermarkValve::new(channels),
            data_came: vec![false; channels as usize],
            open: channels,
            open_of,
            wait_until_ns: 0,
            barriers: BarrierHandler::new(channels),
            actions: Vec::new(),
        }
    }

    /// Whether every channel has sent all its data.
    pub fn all_data_came(&self) -> bool {
        self.open == 0
    }

    /// Whether every channel of a logical input has sent all its data.
    pub fn data_came_of(&self, input: u8) -> bool {
        self.open_of[usize::from(input)] == 0
    }

    /// Takes an event; [`act`](Self::act) on it after.
    pub fn event(&mut self, channel: ChannelIndex, event: Event, now_ns: u64, emit: impl FnMut(Control)) {
        match event {
            Event::EndOfData => {
                if !std::mem::replace(&mut self.data_came[channel.0 as usize], true) {
                    self.open -= 1;
                    self.open_of[usize::from(self.inputs[channel.0 as usize])] -= 1;
                    self.valve.end(channel.0, emit);
                }
            }
            Event::EndOfInput => self.barriers.end(channel.0, now_ns, &mut self.actions),
            Event::Barrier(barrier) => {
                self.barriers.barrier(channel.0, barrier, now_ns, &mut self.actions);
            }
            Event::Cancel(id) => self.barriers.abort(id, &mut self.actions),
        }
    }

    /// Does what follows from the events that were taken: lets senders go on, takes snapshots.
    pub fn act<T: Record, C: Collector<T>>(&mut self, tail: &mut Tail<T, C>, clock: &dyn Clock) {
        if self.actions.is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Resume(channel, id) => self.gate.resume(ChannelIndex(channel), id),
                Action::Start(aligned) => {
                    // The senders need not wait for the snapshot.
                    self.gate.publish();
                    tail.checkpoint(&aligned, clock, |_| {});
                }
                Action::Subsumed { old, newer } => tail.subsumed(old.0, newer.0),
            }
        }
        self.actions = actions;
    }

    /// Before input is looked at: triggers that came by mail, and what follows from other mail.
    pub fn begin_turn<T: Record, C: Collector<T>>(&mut self, tail: &mut Tail<T, C>, clock: &dyn Clock) {
        self.act(tail, clock);
        while let Some(barrier) = tail.next_trigger() {
            tail.checkpoint(&triggered(barrier, clock), clock, |_| {});
        }
    }

    /// A mail has come; [`begin_turn`](Self::begin_turn) follows.
    pub fn mail(&mut self, mail: &Mail) {
        if let Mail::Abort(id) = mail {
            self.barriers.abort(*id, &mut self.actions);
        }
    }

    /// A turn of a task that has got all its data: only barriers and the ends of channels are left to come.
    pub fn end<T: Record, C: Collector<T>>(
        &mut self,
        tail: &mut Tail<T, C>,
        cx: &TurnContext<'_>,
    ) -> Progress {
        while tail.is_final() {
            match self.gate.poll() {
                Next::Event(channel, event) => {
                    self.event(channel, event, cx.clock.now_ns(), |_| {});
                    self.act(tail, cx.clock);
                }
                Next::Data(channel) => {
                    let cause = format!("channel {} has sent data behind its end", channel.0);
                    return Progress::Failed(TaskFailure { operator: None, cause });
                }
                Next::Empty => break,
            }
        }
        self.end_turn(&tail.metrics);
        tail.finish(self.barriers.all_ended(), || cx.clock.now_ns() >= cx.until_ns)
    }

    pub fn control(&mut self, channel: ChannelIndex, control: Control, emit: impl FnMut(Control)) {
        self.valve.take(channel.0, control, emit);
    }

    /// Books a turn and rings the senders.
    pub fn end_turn(&mut self, metrics: &SubtaskMetrics) {
        self.gate.publish();
        metrics.bytes_in.set(self.gate.bytes_in());
        metrics.buffers_in.set(self.gate.buffers_in());
        metrics.set_watermark(self.valve.watermark());
        let usage = self.gate.usage();
        metrics.exclusive_used.set(u64::from(usage.exclusive_used));
        metrics.exclusive_size.set(u64::from(usage.exclusive_size));
        metrics.floating_used.set(u64::from(usage.floating_used));
        metrics.floating_size.set(u64::from(usage.floating_size));
        metrics.input_queue_length.set(u64::from(usage.queued));
        metrics.input_on_the_way.set(u64::from(usage.on_the_way));
    }

    pub fn rung(&mut self, port: Port) -> bool {
        let Port::Input { channel, .. } = port else { return false };
        self.gate.rung(channel);
        true
    }
}

/// A task that reads one type of record and hands it to a chain.
pub struct ReaderTask<T: Record, C: Collector<T>> {
    channels: Channels,
    tail: Tail<T, C>,
    pace: Pace,
    record: PhantomData<fn(T)>,
}

impl<T: Record, C: Collector<T>> ReaderTask<T, C> {
    pub(crate) fn new(cx: &mut SubtaskContext, next: C) -> Self {
        ReaderTask {
            channels: Channels::new(cx.input()),
            tail: Tail::new(cx, next),
            pace: Pace::new(),
            record: PhantomData,
        }
    }

    fn end_turn(&mut self, records: u64, progress: Progress) -> Progress {
        self.channels.end_turn(&self.tail.metrics);
        self.tail.end_turn(records, matches!(progress, Progress::Ready));
        progress
    }
}

impl<T: Record, C: Collector<T>> Task for ReaderTask<T, C> {
    fn turn(&mut self, cx: &mut TurnContext<'_>) -> Progress {
        self.channels.begin_turn(&mut self.tail, cx.clock);
        if !self.tail.is_running() {
            return self.channels.end(&mut self.tail, cx);
        }
        if self.channels.wait_until_ns > cx.now_ns {
            return Progress::BusyUntil(self.channels.wait_until_ns);
        }
        let mut records = 0;
        let (mut looked_at_ns, mut since_look) = (cx.now_ns, 0);
        self.tail.next.begin_turn(cx.now_ns);
        loop {
            if !self.tail.next.ready() {
                let obstacle = self.tail.obstacle();
                return self.end_turn(records, obstacle);
            }
            let (channel, event) = match self.channels.gate.poll() {
                Next::Data(channel) => (channel, None),
                Next::Event(channel, event) => (channel, Some(event)),
                // A consumer that nobody sends to, as behind a global exchange, has no event to wait for.
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
            let timestamps = self.channels.timestamps[channel.0 as usize];
            let limit = self.pace.batch() - since_look;
            let read = read::<T>(
                &mut self.channels.gate,
                channel,
                timestamps,
                limit,
                &mut Head(&mut self.tail.next),
            );
            let (taken, stop) = match read {
                Ok(read) => read,
                Err(mut failure) => {
                    failure.operator.get_or_insert_with(|| self.tail.vertex().to_string());
                    return self.end_turn(records, Progress::Failed(failure));
                }
            };
            records += u64::from(taken);
            since_look += taken;
            match stop {
                Stop::Control(control) => {
                    self.channels.control(channel, control, |control| self.tail.next.control(control));
                }
                Stop::Wait(at_ns) => {
                    self.channels.wait_until_ns = at_ns;
                    if let Some(failure) = self.tail.failure() {
                        return self.end_turn(records, Progress::Failed(failure));
                    }
                    return self.end_turn(records, Progress::BusyUntil(at_ns));
                }
                Stop::Limit | Stop::NotReady => {}
            }
            if since_look >= self.pace.batch() {
                let now_ns = cx.clock.now_ns();
                self.pace.took(now_ns - looked_at_ns, cx.quantum_ns());
                (looked_at_ns, since_look) = (now_ns, 0);
                if now_ns >= cx.until_ns {
                    return self.end_turn(records, Progress::Ready);
                }
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
