//! One input channel: the buffer that is being read, and the record that spans buffers.

use crate::barrier::Event;
use crate::channel::{Buffer, Item, Receiver};
use crate::coverage::reached;
use crate::memory::{Committed, SegmentId};

/// The part of a buffer that was not read yet.
#[derive(Debug, Clone, Copy)]
pub struct Unread<'a> {
    /// The bytes: whole records, or in a framed buffer whole elements and at its end perhaps the
    /// beginning of a record.
    pub bytes: &'a [u8],
    /// Size of each record in bytes, or 0 if they are framed.
    pub stride: u32,
}

struct Reading {
    buffer: Buffer,
    read: u32,
    committed: Committed,
    /// Whether the ring or a doorbell has promised news since the last look.
    news: bool,
}

pub(super) enum Polled {
    Data,
    Event(Event),
    Finished(SegmentId),
    Empty,
}

/// One input channel.
pub(super) struct InputChannel {
    pub receiver: Receiver,
    reading: Option<Reading>,
    /// A record that spans buffers, as far as it has come: payload only.
    assembly: Vec<u8>,
    /// Payload bytes that the record in `assembly` will have; 0 if there is none.
    assembly_len: usize,
    /// Floating permits that the gate has lent.
    pub lent: u32,
    /// Buffers and events in the ring and at the reader, as the gate has counted them.
    pub counted: u32,
    /// Buffers in the ring and at the sender, as the gate has counted them.
    pub counted_on_the_way: u32,
    /// Whether the channel is in the gate's list of those that want floating permits.
    pub wants: bool,
    /// Whether the channel is in the gate's ready list.
    pub ready: bool,
    /// Whether the sender should be rung at the end of the turn.
    pub to_publish: bool,
}

impl InputChannel {
    pub fn new(receiver: Receiver) -> Self {
        InputChannel {
            receiver,
            reading: None,
            assembly: Vec::new(),
            assembly_len: 0,
            lent: 0,
            counted: 0,
            counted_on_the_way: 0,
            wants: false,
            ready: false,
            to_publish: false,
        }
    }

    pub fn rung(&mut self) {
        self.receiver.rung();
        if let Some(reading) = &mut self.reading {
            reading.news = true;
        }
    }

    /// Buffers and events in the ring and at the reader, as far as this side has seen.
    pub fn queued(&self) -> u32 {
        self.receiver.grants().held() + self.receiver.waiting()
    }

    /// What comes next. A segment that is read to its end is handed out, to be given back.
    #[inline]
    pub fn poll(&mut self) -> Polled {
        if self.is_assembled() {
            // Put together, and not taken yet: the chain was not ready.
            reached!(AssembledNotReady);
            return Polled::Data;
        }
        loop {
            if let Some(reading) = &mut self.reading {
                if reading.read < reading.committed.bytes {
                    return Polled::Data;
                }
                if !reading.committed.sealed {
                    let last = if reading.news { None } else { Some(reading.committed) };
                    reading.news = false;
                    reading.committed = self.receiver.committed(&reading.buffer, last);
                    if reading.read < reading.committed.bytes {
                        return Polled::Data;
                    }
                    if !reading.committed.sealed {
                        return Polled::Empty;
                    }
                }
                let segment = reading.buffer.segment;
                self.reading = None;
                return Polled::Finished(segment);
            }
            match self.receiver.take() {
                None => return Polled::Empty,
                Some(Item::Event(event)) => return Polled::Event(*event),
                Some(Item::Buffer(buffer)) => {
                    let committed = Committed { bytes: 0, sealed: false };
                    self.reading = Some(Reading { buffer, read: 0, committed, news: true });
                }
            }
        }
    }

    /// The unread part of the buffer that `poll` said has data.
    #[inline(always)]
    pub fn unread(&self) -> Unread<'_> {
        let Some(Reading { buffer, read, committed, .. }) = &self.reading else {
            return Unread { bytes: &[], stride: 0 };
        };
        Unread { bytes: self.receiver.bytes(buffer, *read, *committed), stride: buffer.stride }
    }

    /// Marks `bytes` as read; whether that was all that is committed.
    #[inline]
    pub fn consume(&mut self, bytes: usize) -> bool {
        let reading = self.reading.as_mut().expect("only a buffer that has data is consumed");
        let left = (reading.committed.bytes - reading.read) as usize;
        assert!(bytes <= left, "{bytes} bytes are consumed of {left}");
        reading.read += bytes as u32;
        bytes == left
    }

    /// Begins a record of `len` payload bytes of which the unread bytes after `skip` are the first.
    pub fn begin_assembly(&mut self, skip: usize, len: usize) {
        debug_assert!(self.assembly_len == 0);
        reached!(SpanningRecord);
        let mut assembly = std::mem::take(&mut self.assembly);
        assembly.clear();
        assembly.reserve_exact(len);
        let unread = self.unread().bytes;
        assembly.extend_from_slice(&unread[skip..]);
        let all = unread.len();
        assert!(assembly.len() < len, "a record that lies in one buffer is read in place");
        self.assembly = assembly;
        self.assembly_len = len;
        self.consume(all);
    }

    /// Whether a record is being put together.
    #[inline(always)]
    pub fn is_assembling(&self) -> bool {
        self.assembly_len != 0
    }

    /// Whether the record that is being put together is whole.
    pub fn is_assembled(&self) -> bool {
        self.assembly_len != 0 && self.assembly.len() == self.assembly_len
    }

    /// Adds unread bytes to the record; whether it is whole.
    pub fn assemble(&mut self) -> bool {
        let mut assembly = std::mem::take(&mut self.assembly);
        let unread = self.unread().bytes;
        let take = unread.len().min(self.assembly_len - assembly.len());
        assembly.extend_from_slice(&unread[..take]);
        self.assembly = assembly;
        self.consume(take);
        self.assembly.len() == self.assembly_len
    }

    /// The payload of the record that was put together.
    pub fn assembled(&self) -> &[u8] {
        &self.assembly
    }

    /// Forgets the record that was put together.
    pub fn end_assembly(&mut self) {
        self.assembly_len = 0;
        self.assembly.clear();
        // A record of megabytes should not keep its memory for ever.
        self.assembly.shrink_to(1 << 20);
    }

    /// Bytes on the heap for a record that spans buffers.
    pub fn assembly_bytes(&self) -> usize {
        self.assembly.capacity()
    }
}
