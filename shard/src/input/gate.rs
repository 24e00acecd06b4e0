//! The input gate: all input channels of one subtask, read in turn.
//!
//! Only channels whose doorbell rang are looked at, each in turn for one buffer. Segments that were read
//! go back to their owners with new credit; senders are rung once a turn for all of it.
//!
//! | permits | who has them |
//! | --- | --- |
//! | exclusive, 2 a channel | always the channel's |
//! | floating, 8 a gate | lent to channels whose sender announces a backlog, taken back when it needs none |
//!
//! The gate can hand out a barrier and resume a channel, and does not know what a barrier means. It has no
//! blocked state: a channel is blocked at its sender, and its ring is empty behind the barrier.

use super::channel::{InputChannel, Polled, Unread};
use crate::barrier::{CheckpointId, Event};
use crate::channel::{IdleWord, Receiver};
use crate::coverage::reached;
use crate::memory::SegmentId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of a channel in its gate, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelIndex(pub u32);

/// What a gate has next.
#[derive(Debug)]
pub enum Next {
    /// Unread bytes on this channel: see [`InputGate::unread`].
    Data(ChannelIndex),
    /// An event, in order with the data of its channel or, from the priority lane, ahead of it.
    Event(ChannelIndex, Event),
    /// Nothing, until a doorbell rings.
    Empty,
}

/// How much of its permits a gate uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateUsage {
    /// Exclusive permits behind which a segment is.
    pub exclusive_used: u32,
    /// Exclusive permits of all channels.
    pub exclusive_size: u32,
    /// Floating permits that are lent.
    pub floating_used: u32,
    /// Floating permits.
    pub floating_size: u32,
    /// Buffers and events in the rings and at the reader, as far as this side has seen.
    pub queued: u32,
    /// Buffers in the rings and at the senders, as far as those have said.
    pub on_the_way: u32,
}

/// Segments given back after which the sender is rung within a turn: a long turn must not starve it.
const GIVEN_BACK_MAX: u32 = 4;

/// All input channels of one subtask.
pub struct InputGate {
    channels: Vec<InputChannel>,
    ready: VecDeque<u32>,
    /// Channels that have something, and that the task does not want now.
    aside: Vec<u32>,
    /// Channels that want more floating permits than were free, in the order in which they asked.
    wanting: VecDeque<u32>,
    to_publish: Vec<u32>,
    given_back: u32,
    floating_free: u32,
    floating_max: u32,
    exclusive: u32,
    /// Buffers and events of all channels, and exclusive permits behind which one is: kept up to date,
    /// since a look at each channel would make every turn as long as there are channels.
    queued: u32,
    on_the_way: u32,
    exclusive_used: u32,
    idle: Arc<IdleWord>,
    buffers_in: u64,
    bytes_in: u64,
}

impl InputGate {
    /// A gate over `receivers`, with `floating` permits to lend and the idle word its senders were given.
    ///
    /// # Panics
    ///
    /// If there is not a permit for each channel: the half filled segment of one could keep another waiting
    /// for ever.
    pub fn new(receivers: Vec<Receiver>, exclusive: u32, floating: u32, idle: Arc<IdleWord>) -> Self {
        let channels: Vec<_> = receivers.into_iter().map(InputChannel::new).collect();
        let count = channels.len();
        assert!(
            exclusive > 0 || floating as usize >= count,
            "{count} channels without permits of their own share {floating}"
        );
        InputGate {
            channels,
            ready: VecDeque::with_capacity(count),
            aside: Vec::new(),
            wanting: VecDeque::new(),
            to_publish: Vec::with_capacity(count),
            given_back: 0,
            floating_free: floating,
            floating_max: floating,
            exclusive,
            queued: 0,
            on_the_way: 0,
            exclusive_used: 0,
            idle,
            buffers_in: 0,
            bytes_in: 0,
        }
    }

    /// Number of channels.
    pub fn channels(&self) -> u32 {
        self.channels.len() as u32
    }

    /// To be called when the doorbell of a channel rang; [`publish`](Self::publish) after, even if nothing is
    /// read, since the sender may be granted credit.
    pub fn rung(&mut self, channel: ChannelIndex) {
        let input = &mut self.channels[channel.0 as usize];
        input.rung();
        if !input.ready {
            input.ready = true;
            self.ready.push_back(channel.0);
        } else if input.receiver.has_priority() && self.aside.contains(&channel.0) {
            // What overtakes the data overtakes the choice of inputs too.
            self.aside.retain(|aside| *aside != channel.0);
            self.ready.push_back(channel.0);
        }
        // A sender with a backlog may be waiting for permits that we have, and no segment to remind us.
        self.lend(channel.0);
        self.recount(channel.0);
    }

    /// What comes next, channels in turn.
    #[inline]
    pub fn poll(&mut self) -> Next {
        while let Some(&index) = self.ready.front() {
            let channel = &mut self.channels[index as usize];
            if let Some(event) = channel.receiver.take_priority() {
                self.mark_to_publish(index);
                return Next::Event(ChannelIndex(index), event);
            }
            match channel.poll() {
                Polled::Data => return Next::Data(ChannelIndex(index)),
                Polled::Finished(segment) => {
                    self.give_back(index, segment);
                    self.ready.rotate_left(1);
                }
                Polled::Event(event) => {
                    // The sender may hold more than the ring does.
                    self.mark_to_publish(index);
                    self.recount(index);
                    return Next::Event(ChannelIndex(index), event);
                }
                Polled::Empty => {
                    channel.ready = false;
                    self.ready.pop_front();
                    self.recount(index);
                }
            }
        }
        Next::Empty
    }

    /// Puts the channel that [`poll`](Self::poll) has just named aside: polls pass it over, until
    /// [`bring_back`](Self::bring_back). Its sender stops for want of credit.
    ///
    /// # Panics
    ///
    /// If it is another channel.
    pub fn set_aside(&mut self, channel: ChannelIndex) {
        assert_eq!(self.ready.pop_front(), Some(channel.0), "only the channel that is next is put aside");
        self.aside.push(channel.0);
    }

    /// Has polls come to all channels again.
    pub fn bring_back(&mut self) {
        self.ready.extend(self.aside.drain(..));
    }

    /// The unread bytes of a channel that has data.
    #[inline(always)]
    pub fn unread(&self, channel: ChannelIndex) -> Unread<'_> {
        self.channels[channel.0 as usize].unread()
    }

    /// Marks the first `bytes` of the unread ones as read. They must be whole elements.
    #[inline]
    pub fn consume(&mut self, channel: ChannelIndex, bytes: usize) {
        self.bytes_in += bytes as u64;
        let all = self.channels[channel.0 as usize].consume(bytes);
        // One buffer a channel, then the next channel.
        if all && self.ready.front() == Some(&channel.0) {
            self.ready.rotate_left(1);
        }
    }

    /// Moves the beginning of a record that goes on in the next buffer to the heap: `skip` bytes of header
    /// lie before it, and it will have `len` payload bytes.
    pub fn begin_assembly(&mut self, channel: ChannelIndex, skip: usize, len: usize) {
        let input = &mut self.channels[channel.0 as usize];
        self.bytes_in += input.unread().bytes.len() as u64;
        input.begin_assembly(skip, len);
    }

    /// Whether a record of the channel is being put together.
    #[inline(always)]
    pub fn is_assembling(&self, channel: ChannelIndex) -> bool {
        self.channels[channel.0 as usize].is_assembling()
    }

    /// Adds unread bytes to the record; whether it is whole and may be read by [`assembled`](Self::assembled).
    pub fn assemble(&mut self, channel: ChannelIndex) -> bool {
        let input = &mut self.channels[channel.0 as usize];
        let before = input.assembled().len();
        let whole = input.assemble();
        self.bytes_in += (input.assembled().len() - before) as u64;
        whole
    }

    /// The payload of the record that was put together.
    pub fn assembled(&self, channel: ChannelIndex) -> &[u8] {
        self.channels[channel.0 as usize].assembled()
    }

    /// Whether the record that is being put together is whole.
    pub fn is_assembled(&self, channel: ChannelIndex) -> bool {
        self.channels[channel.0 as usize].is_assembled()
    }

    /// Forgets the record that was put together.
    pub fn end_assembly(&mut self, channel: ChannelIndex) {
        self.channels[channel.0 as usize].end_assembly();
    }

    /// Lets the sender of a channel go on behind the blocking barrier of `checkpoint`.
    pub fn resume(&mut self, channel: ChannelIndex, checkpoint: CheckpointId) {
        self.channels[channel.0 as usize].receiver.resume(checkpoint);
        self.mark_to_publish(channel.0);
    }

    /// Says that the gate has run dry, so that senders hand over what they have at the end of their turns.
    pub fn set_idle(&mut self) {
        self.idle.set_idle();
    }

    /// Says that there is input again.
    pub fn set_active(&mut self) {
        self.idle.set_active();
    }

    /// Rings the senders of whatever was given back, granted or resumed since the last call.
    pub fn publish(&mut self) {
        self.given_back = 0;
        for index in self.to_publish.drain(..) {
            let channel = &mut self.channels[index as usize];
            channel.to_publish = false;
            channel.receiver.publish();
        }
    }

    fn mark_to_publish(&mut self, index: u32) {
        let channel = &mut self.channels[index as usize];
        if !channel.to_publish {
            channel.to_publish = true;
            self.to_publish.push(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_back(&mut self, index: u32, segment: SegmentId) {
        self.buffers_in += 1;
        let channel = &mut self.channels[index as usize];
        if channel.lent > 0 && channel.receiver.backlog() == 0 {
            // The permit that comes back with this segment is a floating one that is no longer needed.
            channel.lent -= 1;
            self.floating_free += 1;
        }
        channel.receiver.give_back(segment, channel.lent);
        self.mark_to_publish(index);
        self.recount(index);
        self.lend(index);
        while self.floating_free > 0
            && let Some(next) = self.wanting.pop_front()
        {
            self.channels[next as usize].wants = false;
            self.lend(next);
        }
        self.given_back += 1;
        if self.given_back >= GIVEN_BACK_MAX {
            self.publish();
        }
    }

    /// Counts again what waits in a channel.
    fn recount(&mut self, index: u32) {
        let channel = &mut self.channels[index as usize];
        let (before, now) = (channel.counted, channel.queued());
        channel.counted = now;
        let on_the_way = channel.receiver.on_the_way();
        let before_way = std::mem::replace(&mut channel.counted_on_the_way, on_the_way);
        self.on_the_way = self.on_the_way + on_the_way - before_way;
        self.queued = self.queued + now - before;
        self.exclusive_used = self.exclusive_used + now.min(self.exclusive) - before.min(self.exclusive);
    }

    /// Lends floating permits to a channel with a backlog.
    fn lend(&mut self, index: u32) {
        let input = &mut self.channels[index as usize];
        let wanted = input.receiver.backlog();
        let more = wanted.min(self.floating_free);
        if more < wanted && !input.wants {
            input.wants = true;
            self.wanting.push_back(index);
        }
        if more > 0 {
            reached!(FloatingLent);
            input.lent += more;
            self.floating_free -= more;
            input.receiver.grant(input.lent);
            self.mark_to_publish(index);
        }
    }

    /// How much of its permits the gate uses.
    pub fn usage(&self) -> GateUsage {
        GateUsage {
            exclusive_used: self.exclusive_used,
            exclusive_size: self.exclusive * self.channels(),
            floating_used: self.floating_max - self.floating_free,
            floating_size: self.floating_max,
            queued: self.queued,
            on_the_way: self.on_the_way,
        }
    }

    /// Buffers read to their end so far.
    pub fn buffers_in(&self) -> u64 {
        self.buffers_in
    }

    /// Bytes read so far.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// Bytes on the heap for records that span buffers.
    pub fn assembly_bytes(&self) -> usize {
        self.channels.iter().map(InputChannel::assembly_bytes).sum()
    }
}
