//! A whole exchange on one thread, moved step by step: partitions, channels, gates, and a reader of frames.
//!
//! Every step of a test moves one party: a producer puts, flushes or hears its doorbell; a gate hears its
//! doorbell and reads some. Nothing happens otherwise, so a script decides every interleaving of whole steps,
//! and what was sent is compared with what arrives, byte by byte and channel by channel.
#![allow(dead_code, reason = "each test target uses its part of it")]

use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_shard::barrier::{Barrier, CheckpointId, Event};
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper, Wake};
use tidegate_shard::channel::{IdleWord, Receiver, Sender, channel};
use tidegate_shard::config::{ExchangeConfig, FlushInterval};
use tidegate_shard::frame::{self, HEADER_BYTES, Kind, RECORD};
use tidegate_shard::input::{ChannelIndex, InputGate, Next};
use tidegate_shard::memory::{Pool, Region};
use tidegate_shard::output::ResultPartition;

/// Wakes nobody: a test moves everyone itself.
pub struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// A record's payload.
    Record(Vec<u8>),
    /// What is neither a record nor an event.
    Control(Kind, Vec<u8>),
    /// An event.
    Event(Event),
}

/// Reads at most `budget` elements from a gate, at most `grain` of one buffer before it is marked as read;
/// how many there were. Each goes to `take` with its channel.
pub fn read(
    gate: &mut InputGate,
    budget: usize,
    grain: usize,
    mut take: impl FnMut(ChannelIndex, Element),
) -> usize {
    let mut left = budget;
    while left > 0 {
        let channel = match gate.poll() {
            Next::Empty => break,
            Next::Event(channel, event) => {
                take(channel, Element::Event(event));
                left -= 1;
                continue;
            }
            Next::Data(channel) => channel,
        };
        if gate.is_assembling(channel) {
            if gate.is_assembled(channel) || gate.assemble(channel) {
                take(channel, Element::Record(gate.assembled(channel).to_vec()));
                gate.end_assembly(channel);
                left -= 1;
            }
            continue;
        }
        let unread = gate.unread(channel);
        assert!(!unread.bytes.is_empty(), "a channel that has data has bytes");
        let (mut at, mut taken) = (0, 0);
        if unread.stride > 0 {
            let stride = unread.stride as usize;
            assert_eq!(unread.bytes.len() % stride, 0, "fixed buffers hold whole records");
            for record in unread.bytes.chunks_exact(stride).take(left.min(grain)) {
                take(channel, Element::Record(record.to_vec()));
                (at, taken) = (at + stride, taken + 1);
            }
            gate.consume(channel, at);
            left -= taken;
            continue;
        }
        let mut spans = None;
        while at < unread.bytes.len() && taken < left.min(grain) {
            let (head, rest) = unread.bytes[at..].split_first_chunk().expect("a header is never split");
            let (kind, len) = frame::parse_header(*head);
            if rest.len() < len {
                assert_eq!(kind, RECORD, "what is no record never spans");
                spans = Some(len);
                break;
            }
            let payload = rest[..len].to_vec();
            take(
                channel,
                if kind == RECORD { Element::Record(payload) } else { Element::Control(kind, payload) },
            );
            (at, taken) = (at + HEADER_BYTES + len, taken + 1);
        }
        left -= taken;
        if at > 0 {
            gate.consume(channel, at);
        } else {
            gate.begin_assembly(channel, HEADER_BYTES, spans.expect("something is read in each step"));
        }
    }
    budget - left
}

/// The bytes of record `number`, `len` of them.
pub fn record_bytes(number: u64, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24) as u8 ^ (i.wrapping_mul(131) >> 3) as u8;
    }
    // So that no two records of at least 8 bytes are the same.
    for (byte, number) in out.iter_mut().zip(number.to_le_bytes()) {
        *byte = number;
    }
}

/// What was put and has not arrived: records by number and length, since they may be megabytes.
#[derive(Debug)]
enum Expected {
    Record(u64, usize),
    Control(Kind, Vec<u8>),
    Event(Event),
}

/// How an exchange is laid out.
#[derive(Debug, Clone)]
pub struct Layout {
    pub config: ExchangeConfig,
    pub producers: usize,
    pub gates: usize,
    /// Size of every record in bytes, or 0 for any.
    pub stride: u32,
    pub broadcast: bool,
    /// Segments of the pool that all producers share; 0 for as many as they want.
    pub segments: u32,
}

/// A small configuration: `segment_size_bytes` and all else as by default, but for a flush that only a test
/// asks for.
pub fn config(segment_size_bytes: u32) -> ExchangeConfig {
    ExchangeConfig { segment_size_bytes, flush: FlushInterval::After(1), ..Default::default() }
}

impl Layout {
    /// One producer and one gate for each of `channels`, framed.
    pub fn fan_out(config: ExchangeConfig, channels: usize) -> Self {
        Layout { config, producers: 1, gates: channels, stride: 0, broadcast: false, segments: 0 }
    }
}

/// Every producer is connected with every gate: channel g of a producer is channel p of gate g.
pub struct Exchange {
    pub layout: Layout,
    pub pool: Pool,
    pub partitions: Vec<ResultPartition>,
    pub gates: Vec<InputGate>,
    /// Doorbells of the producers, a slot for each gate, and of the gates, a slot for each producer.
    pub producer_doors: Vec<Arc<Doorbell>>,
    pub gate_doors: Vec<Arc<Doorbell>>,
    /// For each gate and producer, what is on its way.
    expected: Vec<Vec<VecDeque<Expected>>>,
    /// Barriers that were read and not resumed: gate, channel, checkpoint.
    pub to_resume: VecDeque<(usize, ChannelIndex, CheckpointId)>,
    pub arrived: u64,
    numbers: u64,
}

impl Exchange {
    pub fn new(layout: Layout) -> Self {
        let Layout { config, producers, gates, stride, broadcast, segments } = layout.clone();
        let each = config.pool_wanted(gates as u32) + config.overdraft_per_partition_max;
        let segments = if segments == 0 { producers as u32 * each } else { segments };
        let region = Arc::new(Region::map(segments, config.segment_size_bytes).expect("a small mapping"));
        let pool = Pool::new(region.clone(), config.overdraft_reserve_max);
        let sleeper = Arc::new(Sleeper::new(Arc::new(Nobody)));
        let doors = |count| (0..count).map(|_| Arc::new(Doorbell::default())).collect::<Vec<_>>();
        let (producer_doors, gate_doors) = (doors(producers), doors(gates));
        let mut senders: Vec<Vec<Sender>> = (0..producers).map(|_| Vec::new()).collect();
        let mut made = Vec::new();
        for (g, gate_door) in gate_doors.iter().enumerate() {
            let idle = Arc::new(IdleWord::default());
            let receivers: Vec<Receiver> = (0..producers)
                .map(|p| {
                    let to_gate = Bell::new(gate_door.clone(), sleeper.clone(), p as u32);
                    let to_producer = Bell::new(producer_doors[p].clone(), sleeper.clone(), g as u32);
                    let (sender, receiver) =
                        channel(&config, region.clone(), idle.clone(), to_gate, to_producer);
                    senders[p].push(sender);
                    receiver
                })
                .collect();
            made.push(InputGate::new(
                receivers,
                config.exclusive_per_channel,
                config.floating_per_gate,
                idle,
            ));
        }
        let n = gates as u32;
        let partitions = senders
            .into_iter()
            .map(|senders| {
                let share = pool
                    .share(
                        config.pool_guaranteed(n),
                        config.pool_wanted(n),
                        config.overdraft_per_partition_max,
                    )
                    .expect("the pool is large enough for the guarantees");
                ResultPartition::new(&config, share, senders, stride, broadcast)
            })
            .collect();
        Exchange {
            layout,
            pool,
            partitions,
            gates: made,
            producer_doors,
            gate_doors,
            expected: (0..gates).map(|_| (0..producers).map(|_| VecDeque::new()).collect()).collect(),
            to_resume: VecDeque::new(),
            arrived: 0,
            numbers: 0,
        }
    }

    fn expect(&mut self, producer: usize, channel: usize, make: impl Fn() -> Expected) {
        let gates = if self.layout.broadcast { 0..self.layout.gates } else { channel..channel + 1 };
        for gate in gates {
            self.expected[gate][producer].push_back(make());
        }
    }

    /// Puts a record of `len` bytes (or of the stride) on a channel, available or not.
    pub fn put(&mut self, producer: usize, channel: usize, len: usize) {
        let len = if self.layout.stride > 0 { self.layout.stride as usize } else { len };
        let number = self.numbers;
        self.numbers += 1;
        self.expect(producer, channel, || Expected::Record(number, len));
        let partition = &mut self.partitions[producer];
        let lane = if self.layout.broadcast { 0 } else { channel };
        if partition.stride() > 0 {
            partition.put_fixed(lane, len, |out| record_bytes(number, out));
        } else {
            partition.put_framed(lane, len, |out| record_bytes(number, out));
        }
    }

    /// Puts what is no record on all channels.
    pub fn put_control(&mut self, producer: usize, kind: Kind, payload: &[u8]) {
        for gate in 0..self.layout.gates {
            self.expected[gate][producer].push_back(Expected::Control(kind, payload.to_vec()));
        }
        self.partitions[producer].put_control(kind, payload);
    }

    /// Sends an event on all channels.
    pub fn event(&mut self, producer: usize, event: Event) {
        for gate in 0..self.layout.gates {
            self.expected[gate][producer].push_back(Expected::Event(event.clone()));
        }
        self.partitions[producer].broadcast_event(&event);
    }

    /// Lets a producer hear its doorbell; whether it rang.
    pub fn hear(&mut self, producer: usize) -> bool {
        let mut rang = false;
        let partition = &mut self.partitions[producer];
        self.producer_doors[producer].take(|channel| {
            rang = true;
            partition.rung(channel);
        });
        rang
    }

    /// Lets a gate hear its doorbell, without reading; whether it rang.
    pub fn gate_hears(&mut self, gate: usize) -> bool {
        let mut rang = false;
        let input = &mut self.gates[gate];
        self.gate_doors[gate].take(|channel| {
            rang = true;
            input.rung(ChannelIndex(channel));
        });
        input.publish();
        rang
    }

    /// Reads up to `budget` elements of a gate and checks that they are what was put; how many there were.
    pub fn read(&mut self, gate: usize, budget: usize, grain: usize) -> usize {
        let (expected, to_resume) = (&mut self.expected[gate], &mut self.to_resume);
        let mut scratch = Vec::new();
        let count = read(&mut self.gates[gate], budget, grain, |channel, element| {
            let queue = &mut expected[channel.0 as usize];
            match (queue.pop_front(), element) {
                (Some(Expected::Record(number, len)), Element::Record(bytes)) => {
                    scratch.resize(len, 0);
                    record_bytes(number, &mut scratch);
                    assert!(bytes == scratch, "gate {gate} {channel:?}: record {number} of {len} bytes");
                }
                (Some(Expected::Control(kind, payload)), element) => {
                    assert_eq!(element, Element::Control(kind, payload));
                }
                (Some(Expected::Event(expected)), Element::Event(event)) => {
                    assert_eq!(event, expected);
                    if let Some(id) = event.blocks() {
                        to_resume.push_back((gate, channel, id));
                    }
                }
                (expected, element) => panic!("gate {gate} {channel:?}: {element:?} instead of {expected:?}"),
            }
        });
        self.arrived += count as u64;
        self.gates[gate].publish();
        count
    }

    /// Resumes the channel whose barrier was read first; whether there was one.
    pub fn resume(&mut self) -> bool {
        let Some((gate, channel, id)) = self.to_resume.pop_front() else { return false };
        self.gates[gate].resume(channel, id);
        self.gates[gate].publish();
        true
    }

    /// Whether no doorbell of anyone rings, in truth.
    pub fn is_silent(&self) -> bool {
        self.producer_doors.iter().chain(&self.gate_doors).all(|door| door.is_silent())
    }

    /// Lets everyone hear and read until nothing rings any more. What has not arrived then never will.
    pub fn settle(&mut self) {
        loop {
            let mut worked = false;
            for gate in 0..self.layout.gates {
                worked |= self.gate_hears(gate);
                worked |= self.read(gate, usize::MAX, usize::MAX) > 0;
            }
            while self.resume() {
                worked = true;
            }
            for producer in 0..self.layout.producers {
                worked |= self.hear(producer);
                self.check();
            }
            if !worked && self.is_silent() {
                return;
            }
        }
    }

    /// What was put on a channel and has not arrived.
    pub fn outstanding(&self, producer: usize, gate: usize) -> usize {
        self.expected[gate][producer].len()
    }

    /// The sums that hold after every step.
    pub fn check(&self) {
        let usage = self.pool.usage();
        let used: u32 = self.partitions.iter().map(|p| p.load().used).sum();
        assert_eq!(usage.free + used, usage.total, "free + used = total");
        let config = &self.layout.config;
        for partition in &self.partitions {
            let held = partition.load().held_max;
            let most = config.buffers_per_subpartition_max + config.overdraft_per_partition_max;
            assert!(held <= most, "a subpartition holds {held} segments of {most}");
            if partition.is_available() {
                assert!(
                    held < config.buffers_per_subpartition_max,
                    "available with {held} in a subpartition"
                );
                assert!(!partition.is_overflowing());
            }
        }
        for gate in &self.gates {
            let usage = gate.usage();
            assert!(usage.floating_used <= usage.floating_size);
        }
    }

    /// Ends all streams and checks that everything arrived and every segment is back.
    pub fn finish(&mut self) {
        // Without a last event to push it, what was flushed has to arrive by itself.
        for partition in &mut self.partitions {
            if self.layout.config.flush != FlushInterval::EveryRecord {
                partition.flush();
            }
        }
        self.settle();
        // The rest of what waited on the heap has opened segments since, which nobody has flushed.
        self.partitions.iter_mut().for_each(ResultPartition::flush);
        self.settle();
        let left: usize = self.expected.iter().flatten().map(VecDeque::len).sum();
        assert_eq!(left, 0, "flushed, and never arrived");
        for producer in 0..self.layout.producers {
            self.event(producer, Event::EndOfInput);
        }
        self.settle();
        for (gate, channels) in self.expected.iter().enumerate() {
            for (producer, queue) in channels.iter().enumerate() {
                assert!(
                    queue.is_empty(),
                    "{} elements from {producer} to {gate} never arrived, first {:?}",
                    queue.len(),
                    queue.front()
                );
            }
        }
        for partition in &mut self.partitions {
            assert_eq!(partition.take_failure(), None);
            assert!(partition.is_drained());
            assert!(partition.is_available());
        }
        for gate in &self.gates {
            assert_eq!(gate.usage().floating_used, 0, "floating permits that nobody needs are not lent");
            assert_eq!(gate.usage().queued, 0);
        }
        let usage = self.pool.usage();
        assert_eq!(usage.free, usage.total, "every segment is back");
    }
}

/// A barrier of checkpoint `id`.
pub fn barrier(id: u64, blocks: bool) -> Event {
    Event::Barrier(Barrier { checkpoint: CheckpointId(id), base: 0, triggered_at_ns: 0, blocks })
}
