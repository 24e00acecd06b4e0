//! The result partition: all output of one subtask to one exchange.
//!
//! ```text
//! put ─► cursor of a lane ─► open segment ─► sealed ─► subpartition's queue ─► ring
//!                 │ no segment to be had
//!                 └► overflow on the heap, bounded, until segments come back
//! ```
//!
//! A *lane* is a stream of bytes into segments. There is one for each subpartition or, for a broadcast, one
//! for all of them: then each channel has its own hold on every segment, and a segment goes back to the
//! pool when all holds are gone.
//!
//! The partition is *available* while it has a free segment and no subpartition has reached its cap. The
//! task asks before each record and takes none while it is not, since it cannot know where the next record
//! goes. A record in work always ends: pool (up to the cap), then overdraft, then the heap, up to a limit at
//! which the job fails; so mail never waits for memory.
//!
//! Invariant: a subpartition holds at most cap + overdraft segments, for which its rings have slots.

use super::subpartition::Subpartition;
use crate::barrier::Event;
use crate::channel::{Buffer, Sender};
use crate::config::{BUFFERS_PER_SUBPARTITION_MAX_MIN, ExchangeConfig, FlushInterval, RECORD_SIZE_BYTES_MAX};
use crate::coverage::reached;
use crate::frame::{self, HEADER_BYTES, Kind, RECORD};
use crate::memory::{Region, SegmentId, Share};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Why a partition can take no more records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionFailure {
    /// A single record is larger than allowed.
    #[error("a record of {bytes} bytes is larger than the limit of {max} bytes (tidegate.record.max-size)")]
    RecordTooLarge {
        /// Its encoded size.
        bytes: u64,
        /// The limit.
        max: u32,
    },
    /// One record led to more output than may be held back.
    #[error(
        "the output of one record exceeds what may be held back while its consumers are busy: \
         {bytes} bytes of {max} (tidegate.record.max-size)"
    )]
    OverflowFull {
        /// Bytes that would be held.
        bytes: u64,
        /// The limit.
        max: u32,
    },
}

/// How full a partition is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionLoad {
    /// Segments in use, overdraft included.
    pub used: u32,
    /// Segments that it may use without overdraft.
    pub size: u32,
    /// Buffers that wait in the subpartitions for credit.
    pub queued: u32,
    /// Segments of the fullest subpartition.
    pub held_max: u32,
    /// Bytes held back on the heap.
    pub overflow_bytes: u64,
}

/// Where the next byte of a lane goes; both null without an open segment. `end` equals `at` where the fast
/// path must not write: a framed segment in a lane of fixed records.
#[derive(Clone, Copy)]
struct Cursor {
    at: *mut u8,
    end: *mut u8,
}

const NOWHERE: Cursor = Cursor { at: std::ptr::null_mut(), end: std::ptr::null_mut() };

impl Cursor {
    #[inline(always)]
    fn room(&self) -> usize {
        self.end as usize - self.at as usize
    }
}

/// Part of a segment, one in so many, below which it is little that a lane has to hand over.
const LITTLE_PART: u32 = 8;

/// The segment that a lane is filling.
struct Open {
    segment: SegmentId,
    generation: u32,
    stride: u32,
    base: *mut u8,
    committed: u32,
    /// The true end; the cursor's may be nearer.
    end: *mut u8,
}

/// What waits on the heap for segments.
enum Held {
    /// An element: its kind, payload, and how many payload bytes have left, or none with its header.
    Element {
        kind: Kind,
        payload: Box<[u8]>,
        left: Option<usize>,
    },
    Event(Event),
}

#[derive(Default)]
struct Lane {
    open: Option<Open>,
    overflow: VecDeque<Held>,
}

/// All output of one subtask to one exchange.
pub struct ResultPartition {
    cursors: Vec<Cursor>,
    available: bool,
    records: u64,
    index: u32,
    stride: u32,
    record_bytes_max: u32,
    flush_every_record: bool,
    flush_to_idle: bool,
    broadcast: bool,
    lanes: Vec<Lane>,
    subs: Vec<Subpartition>,
    share: Share,
    region: Arc<Region>,
    /// For a broadcast, the channels that still hold each segment; else empty.
    holds: Vec<u32>,
    cap: u32,
    /// Overdraft of the partition, which is also the most that one subpartition may hold beyond its cap.
    overdraft: u32,
    at_cap: u32,
    /// Buffers in all subpartitions that wait for credit, and how many subpartitions hold how many segments:
    /// kept up to date, since a look at each would make every turn as long as there are channels.
    queued: u32,
    holding: Vec<u32>,
    held_max: u32,
    overflow_bytes: u64,
    failure: Option<PartitionFailure>,
    scratch: Vec<u8>,
    bytes_out: u64,
    buffers_out: u64,
    flushes: u64,
}

impl ResultPartition {
    /// A partition towards `senders`, for records of `stride` bytes each or, if that is 0, of any size.
    ///
    /// A record that fits in a segment is always taken, so the effective limit of a record's size is the
    /// configured one or a segment's size, whichever is larger.
    ///
    /// # Panics
    ///
    /// If the configured cap of a subpartition is below [`BUFFERS_PER_SUBPARTITION_MAX_MIN`].
    pub fn new(
        config: &ExchangeConfig,
        share: Share,
        senders: Vec<Sender>,
        stride: u32,
        broadcast: bool,
    ) -> Self {
        let cap = config.buffers_per_subpartition_max;
        assert!(cap >= BUFFERS_PER_SUBPARTITION_MAX_MIN, "a subpartition with {cap} segments never moves");
        let lanes = if broadcast { 1 } else { senders.len() };
        let region = share.region();
        // Records that fill a large part of a segment are framed, so that they can span.
        let stride = if stride > region.segment_size() / 4 { 0 } else { stride };
        let holds = if broadcast { vec![0; region.segments() as usize] } else { Vec::new() };
        let mut partition = ResultPartition {
            cursors: vec![NOWHERE; lanes],
            available: true,
            records: 0,
            index: 0,
            stride,
            record_bytes_max: config
                .record_size_bytes_max
                .max(region.segment_size())
                .min(RECORD_SIZE_BYTES_MAX),
            flush_every_record: config.flush == FlushInterval::EveryRecord,
            flush_to_idle: config.flush_to_idle && config.flush != FlushInterval::Never,
            broadcast,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            subs: senders.into_iter().map(Subpartition::new).collect(),
            share,
            region,
            holds,
            cap,
            overdraft: config.overdraft_per_partition_max,
            at_cap: 0,
            queued: 0,
            holding: Vec::new(),
            held_max: 0,
            overflow_bytes: 0,
            failure: None,
            scratch: Vec::new(),
            bytes_out: 0,
            buffers_out: 0,
            flushes: 0,
        };
        let held_most = cap + config.overdraft_per_partition_max + 1;
        partition.holding = vec![0; held_most as usize + 1];
        partition.holding[0] = partition.subs.len() as u32;
        partition.update_available();
        partition
    }

    /// Gives the partition its number among its task's outputs, by which doorbells name it.
    pub fn with_index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// Its number among its task's outputs.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Number of lanes: of subpartitions, or 1 for a broadcast.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.subs.len()
    }

    /// Size of a record in bytes if the lanes carry fixed ones, else 0.
    #[inline(always)]
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Whether each record is handed over at once.
    pub fn flushes_every_record(&self) -> bool {
        self.flush_every_record
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> u32 {
        self.region.segment_size()
    }

    /// Whether one more record may be begun.
    #[inline(always)]
    pub fn is_available(&self) -> bool {
        self.available
    }

    /// Whether output waits on the heap: back pressure in the middle of a record.
    pub fn is_overflowing(&self) -> bool {
        self.overflow_bytes > 0
    }

    /// Why the partition takes no more records, once.
    pub fn take_failure(&mut self) -> Option<PartitionFailure> {
        self.failure.take()
    }

    /// Adds a record of exactly [`stride`](Self::stride) bytes to a lane; `encode` fills them.
    #[inline(always)]
    pub fn put_fixed(&mut self, lane: usize, len: usize, encode: impl FnOnce(&mut [u8])) {
        debug_assert_eq!(len, self.stride as usize);
        self.records += 1;
        if self.cursors[lane].room() < len && !self.make_fixed_room(lane) {
            let mut scratch = self.take_scratch(len);
            encode(&mut scratch);
            self.put_slow(lane, RECORD, scratch);
        } else {
            let cursor = &mut self.cursors[lane];
            // SAFETY: `room` says that `len` bytes from `at` lie in the lane's open segment, at and after
            // what is committed, so nobody else touches them; they are initialised, as all of a region is.
            encode(unsafe { std::slice::from_raw_parts_mut(cursor.at, len) });
            cursor.at = cursor.at.wrapping_add(len);
        }
        if self.flush_every_record {
            self.flush_lane(lane);
        }
    }

    /// Adds records of exactly [`stride`](Self::stride) bytes, which is `len`: the i-th of `records` goes to
    /// `lanes[i]`, and `encode` fills its bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer records than lanes.
    #[inline(always)]
    pub fn put_all_fixed<R>(
        &mut self,
        lanes: &[u16],
        mut records: impl Iterator<Item = R>,
        len: usize,
        encode: impl Fn(R, &mut [u8]),
    ) {
        debug_assert_eq!(len, self.stride as usize);
        debug_assert!(!self.flush_every_record);
        let mut next = || records.next().expect("a record for each lane");
        self.records += lanes.len() as u64;
        let mut left = lanes;
        while !left.is_empty() {
            // One or two lanes have their cursors in registers, for as many records as all have room for.
            let now = match self.cursors[..] {
                [cursor] => {
                    let now = left.len().min(cursor.room() / len);
                    let mut at = cursor.at;
                    for _ in 0..now {
                        // SAFETY: as in `put_fixed`: `now` records fit from the cursor on.
                        encode(next(), unsafe { std::slice::from_raw_parts_mut(at, len) });
                        at = at.wrapping_add(len);
                    }
                    self.cursors[0].at = at;
                    now
                }
                [first, second] => {
                    let now = left.len().min(first.room().min(second.room()) / len);
                    let (mut first, mut second) = (first.at, second.at);
                    for lane in &left[..now] {
                        let to_second = *lane != 0;
                        let at = if to_second { second } else { first };
                        // SAFETY: as in `put_fixed`: in each lane `now` records fit from the cursor on.
                        encode(next(), unsafe { std::slice::from_raw_parts_mut(at, len) });
                        first = first.wrapping_add(len * usize::from(!to_second));
                        second = second.wrapping_add(len * usize::from(to_second));
                    }
                    (self.cursors[0].at, self.cursors[1].at) = (first, second);
                    now
                }
                _ => self.put_some_fixed(left, &mut next, len, &encode),
            };
            let Some(lane) = left.get(now) else { return };
            // A lane is full, this one or perhaps the other of two.
            self.records -= 1;
            let record = next();
            self.put_fixed(usize::from(*lane), len, |out| encode(record, out));
            left = &left[now + 1..];
        }
    }

    /// Adds records to lanes until one of them is full; how many.
    #[inline(always)]
    fn put_some_fixed<R>(
        &mut self,
        lanes: &[u16],
        mut next: impl FnMut() -> R,
        len: usize,
        encode: impl Fn(R, &mut [u8]),
    ) -> usize {
        // Held apart, so that writing records, which for all the compiler knows may be anywhere, does not
        // have the cursors' place looked up again for each.
        let mut cursors = std::mem::take(&mut self.cursors);
        let mut now = 0;
        for lane in lanes {
            let cursor = &mut cursors[usize::from(*lane)];
            if cursor.room() < len {
                break;
            }
            // SAFETY: as in `put_fixed`.
            encode(next(), unsafe { std::slice::from_raw_parts_mut(cursor.at, len) });
            cursor.at = cursor.at.wrapping_add(len);
            now += 1;
        }
        self.cursors = cursors;
        now
    }

    /// Adds a framed record of `len` bytes to a lane; `encode` fills them.
    #[inline(always)]
    pub fn put_framed(&mut self, lane: usize, len: usize, encode: impl FnOnce(&mut [u8])) {
        self.records += 1;
        if self.cursors[lane].room() < HEADER_BYTES + len || self.stride != 0 {
            if len > self.record_bytes_max as usize {
                return self.fail(PartitionFailure::RecordTooLarge {
                    bytes: len as u64,
                    max: self.record_bytes_max,
                });
            }
            let mut scratch = self.take_scratch(len);
            encode(&mut scratch);
            self.put_slow(lane, RECORD, scratch);
        } else {
            let cursor = &mut self.cursors[lane];
            // SAFETY: as in `put_fixed`, for header and payload together.
            let bytes = unsafe { std::slice::from_raw_parts_mut(cursor.at, HEADER_BYTES + len) };
            let (head, payload) = bytes.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&frame::header(RECORD, len));
            encode(payload);
            cursor.at = cursor.at.wrapping_add(HEADER_BYTES + len);
        }
        if self.flush_every_record {
            self.flush_lane(lane);
        }
    }

    /// Adds a record that is already encoded.
    #[inline]
    pub fn put_encoded(&mut self, lane: usize, payload: &[u8]) {
        self.put_framed(lane, payload.len(), |out| out.copy_from_slice(payload));
    }

    /// Adds what is no record to all lanes.
    pub fn put_control(&mut self, kind: Kind, payload: &[u8]) {
        for lane in 0..self.lanes.len() {
            self.put_control_on(lane, kind, payload);
        }
    }

    /// Adds what is no record to one lane.
    pub fn put_control_on(&mut self, lane: usize, kind: Kind, payload: &[u8]) {
        assert!(payload.len() <= frame::CONTROL_BYTES_MAX);
        let mut scratch = self.take_scratch(payload.len());
        scratch.copy_from_slice(payload);
        self.put_slow(lane, kind, scratch);
        if self.flush_every_record {
            self.flush_lane(lane);
        }
    }

    /// Sends an event on all channels, behind everything put before. Seals the open segments.
    pub fn broadcast_event(&mut self, event: &Event) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].overflow.is_empty() {
                self.send_event(lane, event);
            } else {
                self.lanes[lane].overflow.push_back(Held::Event(event.clone()));
            }
        }
    }

    /// Hands over what every lane has.
    pub fn flush(&mut self) {
        for lane in 0..self.lanes.len() {
            self.flush_lane(lane);
        }
    }

    /// Hands over to consumers that are idle and were not handed anything in this spell.
    ///
    /// If there is `more` to come, because the turn ended with its quantum, a lane that has little is left to
    /// fill: with very many lanes each gets little in a turn, and a consumer's visit to a channel costs as much
    /// as some hundred records. It leaves in one of the next turns, or when nothing more comes, or by time.
    pub fn flush_to_idle(&mut self, more: bool) {
        if !self.flush_to_idle {
            return;
        }
        let least = if more { self.region.segment_size() / LITTLE_PART } else { 1 };
        for lane in 0..self.lanes.len() {
            if self.uncommitted(lane) < least {
                continue;
            }
            let unserved = |sub: &Subpartition| {
                let spell = sub.sender.idle_spell();
                spell & 1 == 1 && spell != sub.served_spell
            };
            // A spell in which there was nothing to hand over is still to be served.
            if self.subs_of(lane).any(|sub| unserved(&self.subs[sub])) && self.flush_lane(lane) {
                reached!(FlushToIdle);
                for sub in self.subs_of(lane) {
                    self.subs[sub].served_spell = self.subs[sub].sender.idle_spell();
                }
            }
        }
    }

    /// Bytes of a lane's open segment that were not handed over.
    #[inline]
    fn uncommitted(&self, lane: usize) -> u32 {
        self.lanes[lane]
            .open
            .as_ref()
            .map_or(0, |open| (self.cursors[lane].at as usize - open.base as usize) as u32 - open.committed)
    }

    /// To be called when the doorbell of a channel rang: takes segments back and sends what waited.
    pub fn rung(&mut self, channel: u32) {
        let index = channel as usize;
        let sub = &mut self.subs[index];
        sub.sender.rung();
        while let Some(segment) = self.subs[index].sender.take_back() {
            self.release(index, segment);
        }
        let lane = if self.broadcast { 0 } else { index };
        if self.overflow_bytes > 0 {
            // A segment of any channel may serve any lane.
            for lane in 0..self.lanes.len() {
                self.drain_overflow(lane);
                if self.flush_every_record {
                    self.flush_lane(lane);
                }
            }
        }
        let open = self.open_buffer(lane);
        self.send(index, open);
        self.update_available();
    }

    /// Whether nothing is left here and every segment is back.
    pub fn is_drained(&self) -> bool {
        self.overflow_bytes == 0
            && self.lanes.iter().all(|lane| lane.open.is_none() && lane.overflow.is_empty())
            && self.subs.iter().all(Subpartition::is_drained)
    }

    /// Records put since the last call.
    #[inline]
    pub fn take_records(&mut self) -> u64 {
        std::mem::take(&mut self.records)
    }

    /// Bytes, buffers and hand-overs so far; the open segments count when they are sealed.
    pub fn totals(&self) -> (u64, u64, u64) {
        (self.bytes_out, self.buffers_out, self.flushes)
    }

    /// How full the partition is.
    pub fn load(&self) -> PartitionLoad {
        PartitionLoad {
            used: self.share.used(),
            size: self.share.wanted(),
            queued: self.queued,
            held_max: self.held_max,
            overflow_bytes: self.overflow_bytes,
        }
    }

    /// Sends what a subpartition may.
    fn send(&mut self, sub: usize, open: Option<Buffer>) {
        let sub = &mut self.subs[sub];
        let before = sub.queued_buffers();
        sub.send(open);
        self.queued -= before - sub.queued_buffers();
    }

    /// Counts a subpartition that held `before` segments and now holds one more or one less.
    fn recount_held(&mut self, before: u32, now: u32) {
        self.holding[before as usize] -= 1;
        self.holding[now as usize] += 1;
        if now > self.held_max {
            self.held_max = now;
        } else if self.holding[self.held_max as usize] == 0 {
            self.held_max -= 1;
        }
    }

    fn subs_of(&self, lane: usize) -> Range<usize> {
        if self.broadcast { 0..self.subs.len() } else { lane..lane + 1 }
    }

    fn take_scratch(&mut self, len: usize) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.resize(len, 0);
        scratch
    }

    #[cold]
    fn fail(&mut self, failure: PartitionFailure) {
        self.failure.get_or_insert(failure);
        self.available = false;
    }

    fn update_available(&mut self) {
        self.available =
            self.at_cap == 0 && self.overflow_bytes == 0 && self.failure.is_none() && self.share.has_free();
    }

    /// Opens a segment of fixed records in a lane whose cursor is at its end; whether there is room now.
    #[cold]
    #[inline(never)]
    fn make_fixed_room(&mut self, lane: usize) -> bool {
        if !self.lanes[lane].overflow.is_empty() {
            return false;
        }
        match &self.lanes[lane].open {
            // The rest of a framed segment is used up first.
            Some(open)
                if open.stride == 0 && self.framed_room(lane) >= HEADER_BYTES + self.stride as usize =>
            {
                return false;
            }
            _ => self.seal(lane),
        }
        self.open(lane, self.stride, true)
    }

    /// Puts an element on the slow way: into a framed segment, over several segments, or on the heap.
    /// Takes the scratch buffer and puts it back.
    #[cold]
    #[inline(never)]
    fn put_slow(&mut self, lane: usize, kind: Kind, payload: Vec<u8>) {
        let mut left = None;
        if !self.lanes[lane].overflow.is_empty() || !self.append(lane, kind, &payload, &mut left, true) {
            let bytes = self.overflow_bytes + payload.len() as u64;
            if bytes > u64::from(self.record_bytes_max) {
                self.fail(PartitionFailure::OverflowFull { bytes, max: self.record_bytes_max });
            } else {
                reached!(Overflow);
                // At least one byte, so that a control element without payload counts as well.
                self.overflow_bytes += payload.len().max(1) as u64;
                self.lanes[lane].overflow.push_back(Held::Element {
                    kind,
                    payload: payload.as_slice().into(),
                    left,
                });
                self.available = false;
            }
        }
        self.scratch = payload;
        // A record of megabytes should not keep its memory for ever.
        self.scratch.truncate(0);
        self.scratch.shrink_to(1 << 20);
    }

    /// Appends what is left of an element; whether it is all in segments now. `left` is the number of
    /// payload bytes that went before, or `None` with the header to come.
    fn append(
        &mut self,
        lane: usize,
        kind: Kind,
        payload: &[u8],
        left: &mut Option<usize>,
        overdraw: bool,
    ) -> bool {
        // What is no record never spans, and fixed records that come here do not either.
        let spans = kind == RECORD && self.stride == 0;
        if left.is_none() {
            let needed = HEADER_BYTES + if spans { payload.len().min(1) } else { payload.len() };
            if self.framed_room(lane) < needed {
                self.seal(lane);
                if !self.open(lane, 0, overdraw) {
                    return false;
                }
            }
            self.write(lane, &frame::header(kind, payload.len()));
        }
        let mut from = left.unwrap_or(0);
        while from < payload.len() {
            *left = Some(from);
            let room = self.framed_room(lane);
            if room == 0 {
                self.seal(lane);
                if !self.open(lane, 0, overdraw) {
                    return false;
                }
                continue;
            }
            let piece = room.min(payload.len() - from);
            self.write(lane, &payload[from..from + piece]);
            from += piece;
        }
        true
    }

    /// Bytes that the lane's open segment has room for, if it is a framed one.
    fn framed_room(&self, lane: usize) -> usize {
        match &self.lanes[lane].open {
            Some(open) if open.stride == 0 => open.end as usize - self.cursors[lane].at as usize,
            _ => 0,
        }
    }

    /// Copies bytes to the cursor of a lane, within its open segment.
    fn write(&mut self, lane: usize, bytes: &[u8]) {
        let open = self.lanes[lane].open.as_ref().expect("bytes are written to an open segment");
        let cursor = &mut self.cursors[lane];
        assert!(bytes.len() <= open.end as usize - cursor.at as usize);
        // SAFETY: within the open segment by the assertion, at and after what is committed, and `bytes`
        // lies elsewhere: it is the scratch buffer, a header, or on the heap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), cursor.at, bytes.len()) };
        cursor.at = cursor.at.wrapping_add(bytes.len());
        if self.stride != 0 {
            cursor.end = cursor.at;
        }
    }

    /// Opens a segment of records of `stride` bytes, or a framed one if that is 0, in a lane without an open
    /// one; whether there was a segment.
    fn open(&mut self, lane: usize, stride: u32, overdraw: bool) -> bool {
        // Beyond the cap only overdraft, however much the pool has, and no more of it than there are slots for
        // in the rings: what other subpartitions give back repays overdraft, so the share's own limit is not
        // enough.
        let held = if self.at_cap == 0 {
            0
        } else {
            self.subs_of(lane).map(|s| self.subs[s].held).max().unwrap_or(0)
        };
        let within_cap = if held < self.cap { self.share.take() } else { None };
        let taken = match within_cap {
            None if overdraw && held < self.cap + self.overdraft => {
                let taken = self.share.overdraw();
                if taken.is_some() {
                    reached!(Overdraft);
                }
                taken
            }
            taken => taken,
        };
        let Some(segment) = taken else {
            self.available = false;
            return false;
        };
        for sub in self.subs_of(lane) {
            let sub = &mut self.subs[sub];
            sub.held += 1;
            if sub.held == self.cap {
                reached!(SubpartitionAtCap);
                self.at_cap += 1;
            }
            sub.open_sent = false;
            sub.flush_requested = false;
            let held = sub.held;
            self.recount_held(held - 1, held);
        }
        if self.broadcast {
            self.holds[segment.0 as usize] = self.subs.len() as u32;
        }
        let generation = self.region.state(segment).begin();
        let base = self.region.data(segment);
        let end = base.wrapping_add(self.region.segment_size() as usize);
        self.lanes[lane].open = Some(Open { segment, generation, stride, base, committed: 0, end });
        self.cursors[lane] = Cursor { at: base, end: if stride == self.stride { end } else { base } };
        self.update_available();
        true
    }

    /// Finishes the open segment of a lane, if there is one: nothing is added to it, and it may leave.
    fn seal(&mut self, lane: usize) {
        let Some(open) = self.lanes[lane].open.take() else { return };
        let used = (self.cursors[lane].at as usize - open.base as usize) as u32;
        self.cursors[lane] = NOWHERE;
        self.region.state(open.segment).commit(open.generation, used, true);
        if used == 0 {
            // Never handed over, so it goes straight back.
            for sub in self.subs_of(lane) {
                self.release(sub, open.segment);
            }
            return;
        }
        self.bytes_out += u64::from(used);
        self.buffers_out += 1;
        for index in self.subs_of(lane) {
            let sub = &mut self.subs[index];
            if sub.open_sent {
                sub.open_sent = false;
                sub.sender.publish();
            } else {
                let Open { segment, generation, stride, .. } = open;
                sub.push_buffer(Buffer { segment, generation, stride, sequence: 0 });
                self.queued += 1;
                self.send(index, None);
            }
        }
    }

    /// Hands over what a lane has; whether there was anything new.
    #[inline(never)]
    pub fn flush_lane(&mut self, lane: usize) -> bool {
        let Some(open) = &mut self.lanes[lane].open else { return false };
        let used = (self.cursors[lane].at as usize - open.base as usize) as u32;
        if used == open.committed {
            return false;
        }
        open.committed = used;
        self.region.state(open.segment).commit(open.generation, used, false);
        reached!(PartialFlush);
        self.flushes += 1;
        let buffer = self.open_buffer(lane);
        for index in self.subs_of(lane) {
            let sub = &mut self.subs[index];
            if sub.open_sent {
                sub.sender.publish();
            } else {
                sub.flush_requested = true;
                self.send(index, buffer);
            }
        }
        true
    }

    /// The open segment of a lane as a buffer, if anything of it is committed.
    fn open_buffer(&self, lane: usize) -> Option<Buffer> {
        let Open { segment, generation, stride, committed, .. } = *self.lanes[lane].open.as_ref()?;
        (committed > 0).then_some(Buffer { segment, generation, stride, sequence: 0 })
    }

    fn send_event(&mut self, lane: usize, event: &Event) {
        self.seal(lane);
        for sub in self.subs_of(lane) {
            self.subs[sub].push_event(event.clone());
            self.send(sub, None);
        }
    }

    /// Drops one channel's hold on a segment.
    fn release(&mut self, sub: usize, segment: SegmentId) {
        let sub = &mut self.subs[sub];
        assert!(sub.held > 0, "{segment:?} came back to a subpartition that holds none");
        self.at_cap -= u32::from(sub.held == self.cap);
        sub.held -= 1;
        let held = sub.held;
        self.recount_held(held + 1, held);
        if self.broadcast {
            let holds = &mut self.holds[segment.0 as usize];
            *holds -= 1;
            if *holds > 0 {
                reached!(BroadcastHold);
                return;
            }
        }
        self.share.give_back(segment);
        self.update_available();
    }

    /// Moves what waits on the heap into segments, as far as there are any.
    fn drain_overflow(&mut self, lane: usize) {
        while let Some(held) = self.lanes[lane].overflow.pop_front() {
            match held {
                Held::Event(event) => self.send_event(lane, &event),
                Held::Element { kind, payload, mut left } => {
                    if !self.append(lane, kind, &payload, &mut left, false) {
                        self.lanes[lane].overflow.push_front(Held::Element { kind, payload, left });
                        return;
                    }
                    self.overflow_bytes -= payload.len().max(1) as u64;
                }
            }
        }
    }
}
