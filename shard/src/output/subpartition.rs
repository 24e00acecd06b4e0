//! A subpartition: what waits for one consumer, in order.

use crate::barrier::Event;
use crate::channel::{Buffer, Sender};
use crate::coverage::reached;
use std::collections::VecDeque;

/// A buffer or an event that is not in the ring yet.
pub(super) enum Queued {
    Buffer(Buffer),
    Event(Event),
}

/// The queue towards one consumer.
///
/// Data may leave when the channel is not blocked and either a flush was asked for or a buffer is finished:
/// finished buffers are queued here at once, the open one follows only at a flush.
pub(super) struct Subpartition {
    pub sender: Sender,
    queue: VecDeque<Queued>,
    queued_buffers: u32,
    /// Number of the next buffer.
    sequence: u64,
    /// Segments owned on this consumer's behalf: open, queued, in the ring, at the reader.
    pub held: u32,
    /// Whether the open segment's descriptor is in the ring.
    pub open_sent: bool,
    /// Whether the open segment should leave as soon as it may.
    pub flush_requested: bool,
    /// The consumer's spell of idleness in which it was last handed something.
    pub served_spell: u32,
}

impl Subpartition {
    pub fn new(sender: Sender) -> Self {
        Subpartition {
            sender,
            queue: VecDeque::with_capacity(16),
            queued_buffers: 0,
            sequence: 0,
            held: 0,
            open_sent: false,
            flush_requested: false,
            served_spell: 0,
        }
    }

    /// Adds a finished buffer.
    pub fn push_buffer(&mut self, mut buffer: Buffer) {
        buffer.sequence = self.next_sequence();
        self.queue.push_back(Queued::Buffer(buffer));
        self.queued_buffers += 1;
    }

    /// Adds an event.
    pub fn push_event(&mut self, event: Event) {
        if event == Event::EndOfInput && self.queued_buffers > 0 {
            reached!(EndBehindData);
        }
        self.queue.push_back(Queued::Event(event));
    }

    /// Sends what may leave now: queued items in order, then, if a flush was asked for, `open`, the open
    /// segment's committed part. Rings the consumer if anything was sent, or if the first buffer waits for
    /// credit.
    pub fn send(&mut self, open: Option<Buffer>) {
        let mut sent = false;
        while let Some(front) = self.queue.front() {
            let takes = match front {
                Queued::Buffer(_) => self.sender.takes_buffer(),
                Queued::Event(_) => self.sender.takes_event(),
            };
            if !takes {
                if matches!(front, Queued::Buffer(_)) {
                    reached!(CreditExhausted);
                }
                break;
            }
            match self.queue.pop_front().expect("there is a front") {
                Queued::Buffer(buffer) => {
                    self.queued_buffers -= 1;
                    self.sender.send_buffer(buffer);
                }
                Queued::Event(event) => self.sender.send_event(event),
            }
            sent = true;
        }
        let (mut waiting, behind_barrier) = self.waiting();
        if let Some(mut buffer) = open
            && self.flush_requested
            && !self.open_sent
        {
            if self.queue.is_empty() && self.sender.takes_buffer() {
                buffer.sequence = self.next_sequence();
                self.sender.send_buffer(buffer);
                self.open_sent = true;
                sent = true;
            } else if !behind_barrier {
                waiting += 1;
            }
        }
        let announces = self.sender.announce(waiting);
        if sent || announces {
            self.sender.publish();
        }
    }

    /// Queued buffers that wait for nothing but credit, and whether a barrier closes the channel behind them.
    fn waiting(&self) -> (u32, bool) {
        if self.sender.is_blocked() {
            return (0, true);
        }
        let mut buffers = 0;
        for queued in &self.queue {
            match queued {
                Queued::Buffer(_) => buffers += 1,
                Queued::Event(event) if event.blocks().is_some() => return (buffers, true),
                Queued::Event(_) => {}
            }
        }
        (buffers, false)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// Buffers that wait for credit.
    pub fn queued_buffers(&self) -> u32 {
        self.queued_buffers
    }

    /// Whether nothing waits and no segment is out.
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.held == 0
    }
}
