//! The end of a chain that writes to an exchange: partitioner, codec, result partition.

use crate::operator::{Batch, Collector, Control, Encoded, Lifecycle, OperatorFailure, Step, one_by_one};
use crate::partitioner::Partitioner;
use crate::record::{Record, Timestamp};
use std::marker::PhantomData;
use tidegate_shard::frame;
use tidegate_shard::output::ResultPartition;

/// Bytes of a timestamp before a record, on edges that carry them.
pub(crate) const TIMESTAMP_BYTES: usize = 8;

/// Size of each record of `T` on an edge, in bytes, or 0 if they are framed.
pub(crate) fn stride<T: Record>(timestamps: bool) -> u32 {
    match T::STRIDE {
        // A record of no bytes needs a frame to be seen.
        Some(0) | None => 0,
        Some(bytes) if timestamps => bytes + TIMESTAMP_BYTES as u32,
        Some(bytes) => bytes,
    }
}

/// Records of fixed size whose lanes are found together, at most.
const STAGED: usize = 64;

/// Bytes of staged records, so that what is staged when a partition becomes unavailable fits in what it
/// may use to finish the record in work.
const STAGED_BYTES_MAX: usize = 2048;

/// Encodes records into the lanes of a result partition.
///
/// Where lanes are found by hash, records of fixed size are staged until there are some dozens, or until
/// anybody looks at the partition: together with their neighbours their lanes are found in a fourth of the time.
pub struct WriterEnd<T: Record, P> {
    partition: ResultPartition,
    /// Staged records, encoded.
    staged: Vec<u8>,
    staged_count: usize,
    /// Records to stage; 0 where each is put at once.
    staged_max: usize,
    partitioner: P,
    timestamps: bool,
    fixed: bool,
    lanes: usize,
    scratch: Vec<u8>,
    marker_lane: usize,
    record: PhantomData<fn(T)>,
}

impl<T: Record, P: Partitioner<T>> WriterEnd<T, P> {
    pub(crate) fn new(partition: ResultPartition, partitioner: P, timestamps: bool) -> Self {
        let stride = partition.stride() as usize;
        let stages = P::BY_HASH
            && Encoded::<T>::POSSIBLE
            && stride != 0
            && !timestamps
            && !partition.flushes_every_record();
        let staged_max = if stages {
            // No more than a part of a segment, so that small segments are not overrun.
            let bytes = STAGED_BYTES_MAX.min(partition.segment_size() as usize / 4);
            (bytes / stride).clamp(1, STAGED)
        } else {
            0
        };
        WriterEnd {
            staged: vec![0; staged_max * stride],
            staged_count: 0,
            staged_max,
            timestamps,
            fixed: partition.stride() != 0,
            lanes: partition.lanes(),
            partition,
            partitioner,
            scratch: Vec::new(),
            marker_lane: 0,
            record: PhantomData,
        }
    }

    /// Puts what is staged into the partition.
    #[inline(never)]
    fn unstage(&mut self) {
        let (count @ 1.., Some(len)) = (std::mem::take(&mut self.staged_count), T::STRIDE) else { return };
        let staged = std::mem::take(&mut self.staged);
        let part = Encoded::<T>::new(&staged[..count * len as usize]).expect("what was encoded decodes");
        self.put_part(part, len as usize);
        self.staged = staged;
    }

    /// Puts up to [`STAGED`] records of fixed size into the partition: lanes, then straight into segments.
    #[inline(always)]
    fn put_part<'a>(&mut self, part: impl Batch<'a, T>, len: usize) {
        let mut lanes = [0; STAGED];
        let lanes = &mut lanes[..part.len()];
        // Where there is but one lane its hash need not be known.
        if self.lanes > 1 {
            self.partitioner.lanes_of(part.records(), lanes);
        }
        self.partition.put_all_fixed(lanes, part.records(), len, T::encode);
    }

    /// The way of records that are not written as fixed ones without a timestamp.
    #[inline]
    fn put_other(&mut self, lane: usize, record: T::Ref<'_>, at: Timestamp) {
        let before = if self.timestamps { TIMESTAMP_BYTES } else { 0 };
        let encode = |out: &mut [u8]| {
            let (time, payload) = out.split_at_mut(before);
            if let Some(time) = time.first_chunk_mut() {
                *time = at.to_le_bytes();
            }
            T::encode(record, payload);
        };
        match T::encoded_len(record) {
            Some(len) if self.fixed => self.partition.put_fixed(lane, before + len, encode),
            Some(len) => self.partition.put_framed(lane, before + len, encode),
            None => {
                self.scratch.clear();
                if self.timestamps {
                    self.scratch.extend_from_slice(&at.to_le_bytes());
                }
                T::encode_to_vec(record, &mut self.scratch);
                self.partition.put_encoded(lane, &self.scratch);
            }
        }
    }
}

impl<T: Record, P: Partitioner<T>> Collector<T> for WriterEnd<T, P> {
    #[inline(always)]
    fn collect(&mut self, record: T::Ref<'_>, at: Timestamp) {
        if let (true, Some(len)) = (P::BY_HASH && self.staged_max != 0 && self.lanes > 1, T::STRIDE) {
            let (len, count) = (len as usize, self.staged_count);
            T::encode(record, &mut self.staged[count * len..][..len]);
            self.staged_count = count + 1;
            if self.staged_count == self.staged_max {
                self.unstage();
            }
            return;
        }
        let one = P::BY_HASH && self.lanes == 1;
        let lane = if one { 0 } else { self.partitioner.lane(record, self.lanes) };
        match T::STRIDE {
            Some(len) if self.fixed && !self.timestamps => {
                self.partition.put_fixed(lane, len as usize, |out| T::encode(record, out));
            }
            _ => self.put_other(lane, record, at),
        }
    }

    /// Where records of fixed size go by hash, a part at a time.
    #[inline(always)]
    fn collect_batch<'a>(&mut self, batch: impl Batch<'a, T>, times: &[Timestamp]) -> usize {
        let (true, Some(len)) = (P::BY_HASH && self.staged_max != 0, T::STRIDE) else {
            return one_by_one(self, batch, times);
        };
        let mut taken = 0;
        while taken < batch.len() && self.ready() {
            self.unstage();
            let part = batch.behind(taken).first((batch.len() - taken).min(self.staged_max));
            self.put_part(part, len as usize);
            taken += part.len();
        }
        taken
    }

    #[inline(always)]
    fn wants_batches(&self) -> bool {
        P::BY_HASH && T::STRIDE.is_some()
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.partition.is_available()
    }

    fn begin_turn(&mut self, _: u64) {}

    fn control(&mut self, control: Control) {
        self.unstage();
        match control {
            Control::Watermark(at) => self.partition.put_control(frame::WATERMARK, &at.to_le_bytes()),
            Control::Idle => self.partition.put_control(frame::IDLE, &[]),
            Control::Active => self.partition.put_control(frame::ACTIVE, &[]),
            Control::Marker { vertex, subtask, at_ns } => {
                let mut payload = [0; frame::CONTROL_BYTES_MAX];
                payload[..4].copy_from_slice(&vertex.to_le_bytes());
                payload[4..8].copy_from_slice(&subtask.to_le_bytes());
                payload[8..].copy_from_slice(&at_ns.to_le_bytes());
                // One consumer each time: to all of them markers would multiply from exchange to exchange.
                self.marker_lane = (self.marker_lane + 1) % self.lanes;
                self.partition.put_control_on(self.marker_lane, frame::MARKER, &payload);
            }
        }
    }

    fn finish(&mut self) -> Step {
        Step::Done
    }

    fn lifecycle(&mut self, _: &mut Lifecycle<'_, '_>) {}

    fn outputs(&mut self, f: &mut dyn FnMut(&mut ResultPartition)) {
        if self.staged_count > 0 {
            self.unstage();
        }
        f(&mut self.partition);
    }

    fn end_of_turn(&mut self) {}

    fn failure(&mut self) -> Option<OperatorFailure> {
        let cause = self.partition.take_failure()?;
        Some(OperatorFailure { operator: String::new(), cause: cause.into() })
    }
}

/// What is not a record, from its frame; `None` if the bytes are not that.
pub(crate) fn decode_control(kind: frame::Kind, payload: &[u8]) -> Option<Control> {
    match (kind, payload.len()) {
        (frame::WATERMARK, 8) => Some(Control::Watermark(i64::from_le_bytes(*payload.first_chunk()?))),
        (frame::IDLE, 0) => Some(Control::Idle),
        (frame::ACTIVE, 0) => Some(Control::Active),
        (frame::MARKER, frame::CONTROL_BYTES_MAX) => Some(Control::Marker {
            vertex: u32::from_le_bytes(*payload.first_chunk()?),
            subtask: u32::from_le_bytes(*payload[4..].first_chunk()?),
            at_ns: u64::from_le_bytes(*payload[8..].first_chunk()?),
        }),
        _ => None,
    }
}
