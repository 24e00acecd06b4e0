//! A channel: the directed link from one subpartition to one input channel.
//!
//! ```text
//! sender's shard                                   receiver's shard
//!   subpartition ── data ring: buffers, events ──►  input channel
//!                ── lane: events that overtake ──►
//!                ◄── return ring: segments ───────
//!                ◄── granted, resumed ────────────
//!                ─── announced ──────────────────►
//! ```
//!
//! Buffers are descriptors; the bytes stay in the sender's region and are read there in place. Each
//! publication ends with one ring of the other side's doorbell. Channels between tasks of one shard are the
//! same channel: their rings are never contended, cost a segment a few nanoseconds, and keep one set of
//! rules for credit, blocking and order.

mod credit;
pub mod doorbell;
pub mod ring;

use crate::barrier::CheckpointId;
use crate::barrier::Event;
use crate::config::{EVENTS_PER_CHANNEL_MAX, ExchangeConfig};
use crate::memory::{Committed, Region, SegmentId};
use crate::sync::{AtomicU32, AtomicU64, Ordering, view};
pub use credit::{Grants, Spending};
use doorbell::Bell;
use ring::{Consumer, Full, Producer, ring};
use std::sync::Arc;

/// The filled part of a segment, on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Where the bytes are, in the sender's region.
    pub segment: SegmentId,
    /// The segment's generation, asserted at each access.
    pub generation: u32,
    /// Size of every record in bytes, or 0 if each is framed.
    pub stride: u32,
    /// Number of this buffer in its channel, from 0.
    pub sequence: u64,
}

/// What travels in the data ring.
#[derive(Debug)]
pub enum Item {
    /// Records.
    Buffer(Buffer),
    /// What is not a record, in order with the buffers.
    Event(Box<Event>),
}

/// Set by a gate when it has nothing to read, cleared when it has: odd while idle, so that a producer can
/// tell one spell of idleness from the next. A hint.
#[derive(Default)]
#[repr(align(128))]
pub struct IdleWord(AtomicU32);

impl IdleWord {
    /// The gate has run dry.
    pub fn set_idle(&self) {
        let spell = self.0.load(Ordering::Relaxed);
        if spell & 1 == 0 {
            self.0.store(spell.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The gate has something to read.
    pub fn set_active(&self) {
        let spell = self.0.load(Ordering::Relaxed);
        if spell & 1 == 1 {
            self.0.store(spell.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The present spell; odd while the gate is idle.
    #[inline]
    pub fn spell(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Words that one side writes and the other reads, a line for each writer.
#[derive(Default)]
struct Words {
    receiver: ReceiverWords,
    sender: SenderWords,
}

#[derive(Default)]
#[repr(align(128))]
struct ReceiverWords {
    /// Total of segments that the receiver has ever agreed to hold.
    granted: AtomicU32,
    /// Checkpoint whose blocking barrier was last resumed, plus one.
    resumed: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
struct SenderWords {
    /// Total of buffers sent, and of those that wait for credit.
    announced: AtomicU32,
    /// Total of priority events: beside `announced`, which the receiver reads anyway, so that the lane itself
    /// is looked at only when there is something in it.
    priority: AtomicU32,
}

/// The subpartition's end.
pub struct Sender {
    data: Producer<Item>,
    lane: Producer<Box<Event>>,
    back: Consumer<SegmentId>,
    words: Arc<Words>,
    spending: Spending,
    announced: u32,
    /// Priority events sent.
    priority: u32,
    blocked: Option<CheckpointId>,
    /// The `resumed` word as last seen.
    resumed: u64,
    idle: Arc<IdleWord>,
    bell: Bell,
}

/// The input channel's end.
pub struct Receiver {
    data: Consumer<Item>,
    lane: Consumer<Box<Event>>,
    back: Producer<SegmentId>,
    words: Arc<Words>,
    grants: Grants,
    /// Priority events taken, and known to have been sent.
    priority_taken: u32,
    priority_known: u32,
    /// Checkpoint whose blocking barrier was read and not resumed.
    blocked: Option<CheckpointId>,
    region: Arc<Region>,
    bell: Bell,
}

/// Makes a channel out of segments of `region`.
///
/// `to_receiver` and `to_sender` are the bells that each side rings; `idle` is the word of the gate that
/// the receiver belongs to.
pub fn channel(
    config: &ExchangeConfig,
    region: Arc<Region>,
    idle: Arc<IdleWord>,
    to_receiver: Bell,
    to_sender: Bell,
) -> (Sender, Receiver) {
    let (data_tx, data_rx) = ring(config.ring_slots());
    let (lane_tx, lane_rx) = ring(EVENTS_PER_CHANNEL_MAX as usize);
    let (back_tx, back_rx) = ring(config.ring_slots());
    let words = Arc::new(Words::default());
    let grants = Grants::new(config.exclusive_per_channel);
    words.receiver.granted.store(grants.granted(), Ordering::Relaxed);
    (
        Sender {
            data: data_tx,
            lane: lane_tx,
            back: back_rx,
            words: words.clone(),
            spending: Spending::new(grants.granted()),
            announced: 0,
            priority: 0,
            blocked: None,
            resumed: 0,
            idle,
            bell: to_receiver,
        },
        Receiver {
            data: data_rx,
            lane: lane_rx,
            back: back_tx,
            words,
            grants,
            priority_taken: 0,
            priority_known: 0,
            blocked: None,
            region,
            bell: to_sender,
        },
    )
}

impl Sender {
    /// Whether a buffer would be taken now: not blocked by a barrier, credit, and room in the ring.
    pub fn takes_buffer(&mut self) -> bool {
        self.blocked.is_none() && self.credit() > 0 && !self.data.is_full()
    }

    /// Whether an event would be taken now. Events need no credit.
    pub fn takes_event(&mut self) -> bool {
        self.blocked.is_none() && !self.data.is_full()
    }

    /// Segments that the receiver has agreed to hold and does not.
    pub fn credit(&mut self) -> u32 {
        let granted = self.words.receiver.granted.load(Ordering::Relaxed);
        self.spending.refresh(view(self.spending.granted(), granted));
        self.spending.available()
    }

    /// Hands a buffer over; spends one credit. Call [`publish`](Self::publish) after the last one.
    ///
    /// # Panics
    ///
    /// If [`takes_buffer`](Self::takes_buffer) is false.
    pub fn send_buffer(&mut self, buffer: Buffer) {
        assert!(self.blocked.is_none(), "a buffer is sent behind the barrier of {:?}", self.blocked);
        self.spending.spend();
        if let Err(Full(item)) = self.data.push(Item::Buffer(buffer)) {
            panic!("the ring has no room for {item:?}");
        }
    }

    /// Hands an event over; a blocking barrier closes the channel until it is resumed.
    ///
    /// # Panics
    ///
    /// If [`takes_event`](Self::takes_event) is false.
    pub fn send_event(&mut self, event: Event) {
        assert!(self.blocked.is_none(), "an event is sent behind the barrier of {:?}", self.blocked);
        self.blocked = event.blocks();
        if let Err(Full(item)) = self.data.push(Item::Event(Box::new(event))) {
            panic!("the ring has no room for {item:?}");
        }
    }

    /// Hands an event over that overtakes what is in the ring, also on a blocked channel.
    ///
    /// # Errors
    ///
    /// [`Full`] if as many as may wait already do: keep it and try again when rung.
    pub fn send_priority(&mut self, event: Event) -> Result<(), Full<Event>> {
        self.lane.push(Box::new(event)).map_err(|Full(event)| Full(*event))?;
        self.priority = self.priority.wrapping_add(1);
        // Relaxed, as `announced`: the doorbell publishes it, after the event.
        self.words.sender.priority.store(self.priority, Ordering::Relaxed);
        Ok(())
    }

    /// Says how many buffers wait for credit; whether the receiver should hear of them now, by
    /// [`publish`](Self::publish): they are the first that it has granted no credit for.
    ///
    /// What waits behind a blocking barrier does not count, or it would keep permits from the channels whose
    /// barriers are still to come.
    #[inline]
    pub fn announce(&mut self, waiting: u32) -> bool {
        let announced = self.spending.sent().wrapping_add(waiting);
        if announced == self.announced {
            return false;
        }
        let first = self.announced.wrapping_sub(self.spending.granted()) as i32 <= 0;
        debug_assert!(announced.wrapping_sub(self.announced) as i32 > 0, "the total of buffers has fallen");
        self.announced = announced;
        self.words.sender.announced.store(announced, Ordering::Relaxed);
        first && announced.wrapping_sub(self.spending.granted()) as i32 > 0
    }

    /// Rings the receiver's doorbell: makes visible whatever was sent or committed before.
    #[inline]
    pub fn publish(&self) {
        self.bell.ring();
    }

    /// To be called when this side's doorbell was rung: lifts the block if the receiver has resumed.
    pub fn rung(&mut self) {
        self.back.refresh();
        self.data.refresh();
        self.spending.refresh(self.words.receiver.granted.load(Ordering::Relaxed));
        let resumed = self.words.receiver.resumed.load(Ordering::Relaxed);
        if resumed != self.resumed {
            assert_eq!(
                self.blocked,
                Some(CheckpointId(resumed - 1)),
                "only the barrier that blocks is resumed, once"
            );
            self.resumed = resumed;
            self.blocked = None;
        }
    }

    /// A segment that the receiver has finished with.
    #[inline]
    pub fn take_back(&mut self) -> Option<SegmentId> {
        self.back.pop()
    }

    /// Whether a blocking barrier was sent and not resumed.
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Segments sent so far that the receiver was allowed to hold.
    pub fn sent(&self) -> u32 {
        self.spending.sent()
    }

    /// The receiver's present spell of idleness (odd) or activity (even).
    #[inline]
    pub fn idle_spell(&self) -> u32 {
        self.idle.spell()
    }
}

impl Receiver {
    /// To be called when this side's doorbell was rung.
    pub fn rung(&mut self) {
        self.data.refresh();
        self.priority_known = self.words.sender.priority.load(Ordering::Relaxed);
        if self.priority_known != self.priority_taken {
            self.lane.refresh();
        }
    }

    /// The oldest item in the ring.
    #[inline]
    pub fn take(&mut self) -> Option<Item> {
        let item = self.data.pop();
        match &item {
            Some(Item::Buffer(_)) => self.grants.receive(),
            Some(Item::Event(event)) => {
                assert!(self.blocked.is_none(), "{event:?} came behind the barrier of {:?}", self.blocked);
                self.blocked = event.blocks();
            }
            None => {}
        }
        item
    }

    /// Whether an event that overtakes the ring waits, as far as this side has seen.
    #[inline]
    pub fn has_priority(&self) -> bool {
        self.priority_known != self.priority_taken
    }

    /// An event that overtakes the ring.
    #[inline]
    pub fn take_priority(&mut self) -> Option<Event> {
        if !self.has_priority() {
            return None;
        }
        let event = self.lane.pop()?;
        self.priority_taken = self.priority_taken.wrapping_add(1);
        Some(*event)
    }

    /// How far a buffer may be read; `last` is what was seen before, if nothing since (a doorbell, or the
    /// ring that brought the buffer) promises that there is more.
    #[inline]
    pub fn committed(&self, buffer: &Buffer, last: Option<Committed>) -> Committed {
        let now = self.region.state(buffer.segment).committed(buffer.generation);
        view(last.unwrap_or(now), now)
    }

    /// The bytes of a buffer between what was read and what is committed.
    #[inline(always)]
    pub(crate) fn bytes(&self, buffer: &Buffer, read: u32, committed: Committed) -> &[u8] {
        // SAFETY: `Reading` in `input::channel` passes what `committed` gave it for this buffer, and
        // gives the segment back only when it drops the buffer, which needs `&mut` of this receiver.
        unsafe { self.region.bytes(buffer.segment, read, committed.bytes) }
    }

    /// Gives a segment back and grants another; `lent` is the number of floating permits the channel has
    /// now. Call [`publish`](Self::publish) after the last one of a turn.
    pub fn give_back(&mut self, segment: SegmentId, lent: u32) {
        if let Err(Full(segment)) = self.back.push(segment) {
            // It has a slot for every segment that a subpartition may own, and the sender emptied the slots
            // of those that it filled again before it sent them: so the true head is far enough.
            self.back.refresh();
            self.back.push(segment).expect("the return ring has room for every segment of the subpartition");
        }
        self.grants.give_back();
        self.grant(lent);
    }

    /// Grants what the exclusive permits and `lent` floating ones allow.
    pub fn grant(&mut self, lent: u32) {
        self.grants.grant(lent);
        self.words.receiver.granted.store(self.grants.granted(), Ordering::Relaxed);
    }

    /// Lets the sender go on behind the blocking barrier of `id`. Call [`publish`](Self::publish) after.
    ///
    /// # Panics
    ///
    /// If the channel is not blocked by that barrier: each one that was read is resumed once.
    pub fn resume(&mut self, id: CheckpointId) {
        assert_eq!(self.blocked.take(), Some(id), "only the barrier that blocks is resumed, once");
        self.words.receiver.resumed.store(id.0 + 1, Ordering::Relaxed);
    }

    /// Buffers that the sender says wait for credit that was not granted yet.
    #[inline]
    pub fn backlog(&self) -> u32 {
        self.grants.short_of(self.words.sender.announced.load(Ordering::Relaxed))
    }

    /// Buffers on their way: in the ring, and those that the sender says it holds back.
    #[inline]
    pub fn on_the_way(&self) -> u32 {
        self.grants.behind(self.words.sender.announced.load(Ordering::Relaxed))
    }

    /// Items that this side knows to wait in the ring.
    pub fn waiting(&self) -> u32 {
        self.data.known_len() as u32
    }

    /// What was granted, received and given back.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Rings the sender's doorbell: makes visible what was given back, granted or resumed.
    #[inline]
    pub fn publish(&self) {
        self.bell.ring();
    }

    /// Bytes of the sender's segments.
    pub fn segment_size(&self) -> u32 {
        self.region.segment_size()
    }
}
