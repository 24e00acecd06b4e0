//! The rules of when data leaves, when a partition is available, and what credit lets through, as truth
//! tables.
//!
//! Method: segments of 64 bytes and records of 16, so four records fill one, and the fifth finishes it.
#![cfg(not(loom))]

mod support;

use support::{Exchange, Layout, barrier, config};
use tidegate_shard::barrier::{CheckpointId, Event};
use tidegate_shard::config::{ExchangeConfig, FlushInterval};
use tidegate_shard::input::{ChannelIndex, Next};

const PER_SEGMENT: usize = 4;

/// One producer and `gates` gates of one channel each.
fn exchange(config: ExchangeConfig, gates: usize) -> Exchange {
    Exchange::new(Layout { stride: 16, ..Layout::fan_out(config, gates) })
}

fn plain() -> ExchangeConfig {
    ExchangeConfig { flush: FlushInterval::Never, ..config(64) }
}

/// Fills `segments` segments of a channel and finishes all but the last.
fn fill(exchange: &mut Exchange, channel: usize, segments: usize) {
    (0..segments * PER_SEGMENT).for_each(|_| exchange.put(0, channel, 16));
}

/// Buffers and events that have arrived at a gate and were not read, without granting anything for them.
fn in_ring(exchange: &mut Exchange, gate: usize) -> u32 {
    exchange.gates[gate].rung(ChannelIndex(0));
    exchange.gates[gate].usage().queued
}

/// Goal: data may leave = not blocked and (flush requested or at least one finished buffer).
/// Method: all eight rows; what left is what the gate can read, which is a flushed part only after a flush.
#[test]
fn data_leaves_if_not_blocked_and_flushed_or_finished() {
    for row in 0..8 {
        let (blocked, flush, finished) = (row & 1 != 0, row & 2 != 0, row & 4 != 0);
        let mut exchange = exchange(plain(), 1);
        if blocked {
            exchange.event(0, barrier(1, true));
            exchange.gate_hears(0);
            assert_eq!(exchange.read(0, 10, 10), 1, "the barrier");
        }
        let records = if finished { PER_SEGMENT + 1 } else { 1 };
        (0..records).for_each(|_| exchange.put(0, 0, 16));
        if flush {
            exchange.partitions[0].flush();
        }
        exchange.gate_hears(0);
        let expected = match (blocked, flush, finished) {
            (true, ..) | (false, false, false) => 0,
            (false, true, _) => records,
            (false, false, true) => PER_SEGMENT,
        };
        let read = exchange.read(0, 100, 100);
        assert_eq!(read, expected, "blocked {blocked}, flush {flush}, finished {finished}");
        exchange.finish();
    }
}

/// Goal: the rest of a segment that was handed over half filled follows when the segment is finished, with
/// no flush to ask for it.
#[test]
fn rest_of_a_flushed_segment_follows_when_it_is_finished() {
    let mut exchange = exchange(plain(), 1);
    exchange.put(0, 0, 16);
    exchange.partitions[0].flush();
    assert!(exchange.gate_hears(0));
    assert_eq!(exchange.read(0, 100, 100), 1);
    (1..PER_SEGMENT).for_each(|_| exchange.put(0, 0, 16));
    assert!(!exchange.gate_hears(0), "full, and not finished yet");
    exchange.put(0, 0, 16);
    assert!(exchange.gate_hears(0));
    assert_eq!(exchange.read(0, 100, 100), PER_SEGMENT - 1);
    assert!(exchange.hear(0), "the segment went back");
    exchange.finish();
}

/// Goal: a partition is available = it has a free segment and no subpartition is at its cap; it changes
/// exactly at the crossing, both ways, although all other channels are idle.
#[test]
fn one_subpartition_at_its_cap_makes_the_whole_partition_unavailable() {
    for cap in [2, 3, 10] {
        let mut exchange = exchange(ExchangeConfig { buffers_per_subpartition_max: cap, ..plain() }, 4);
        for held in 1..=cap {
            assert!(exchange.partitions[0].is_available(), "{held} of {cap}");
            // The first record of a segment takes it.
            exchange.put(0, 2, 16);
            assert_eq!(exchange.partitions[0].load().held_max, held);
            assert_eq!(exchange.partitions[0].is_available(), held < cap, "{held} of {cap}");
            (1..PER_SEGMENT).for_each(|_| exchange.put(0, 2, 16));
        }
        // A record in work may go on, on overdraft.
        exchange.put(0, 2, 16);
        assert_eq!(exchange.partitions[0].load().held_max, cap + 1);
        exchange.gate_hears(2);
        // The elements of one buffer at a time; its segment goes back at the next look.
        for held in [cap + 1, cap, cap - 1] {
            assert!(exchange.hear(0) || held == cap + 1);
            assert_eq!(exchange.partitions[0].load().held_max, held);
            assert_eq!(exchange.partitions[0].is_available(), held < cap, "{held} of {cap}");
            exchange.gate_hears(2);
            assert!(held < cap || exchange.read(2, PER_SEGMENT, 100) == PER_SEGMENT);
            assert!(held < cap || matches!(exchange.gates[2].poll(), Next::Data(_) | Next::Empty));
            exchange.gates[2].publish();
        }
        exchange.finish();
    }
}

/// Goal: a subpartition never holds more than its cap and the overdraft, for which its rings have slots.
/// Method: what another subpartition gives back repays the partition's overdraft, which then is there again.
#[test]
fn overdraft_that_others_repaid_does_not_take_a_subpartition_further() {
    let config =
        ExchangeConfig { buffers_per_subpartition_max: 2, overdraft_per_partition_max: 1, ..plain() };
    let mut exchange = exchange(config, 2);
    fill(&mut exchange, 1, 1);
    exchange.put(0, 1, 16);
    fill(&mut exchange, 0, 3);
    assert_eq!(exchange.partitions[0].load().held_max, 3, "the cap, and one overdrawn");
    exchange.gate_hears(1);
    exchange.read(1, PER_SEGMENT, 100);
    assert!(matches!(exchange.gates[1].poll(), Next::Empty));
    exchange.gates[1].publish();
    assert!(exchange.hear(0));
    exchange.put(0, 0, 16);
    assert_eq!(exchange.partitions[0].load().held_max, 3);
    assert!(exchange.partitions[0].is_overflowing(), "the rest is on the heap");
    exchange.finish();
}

/// Goal: the other reason, no free segment, also holds at the crossing both ways.
#[test]
fn partition_without_a_free_segment_is_unavailable() {
    // Three channels want 14 segments; four of them are below the cap together.
    let mut exchange = Exchange::new(Layout { segments: 6, stride: 16, ..Layout::fan_out(plain(), 3) });
    let mut segments = 0;
    while exchange.partitions[0].is_available() {
        fill(&mut exchange, segments % 3, 1);
        segments += 1;
    }
    assert_eq!(segments, 6);
    assert_eq!(exchange.pool.usage().free, 0);
    assert!(exchange.partitions[0].load().held_max < 10, "no subpartition is at its cap");
    exchange.gate_hears(0);
    exchange.read(0, PER_SEGMENT, 100);
    assert!(matches!(exchange.gates[0].poll(), Next::Empty));
    exchange.gates[0].publish();
    assert!(exchange.hear(0));
    assert!(exchange.partitions[0].is_available());
    exchange.finish();
}

/// Goal: with credit, what has data is sent; without, only an event at the head of the queue.
/// Method: the gate reads nothing and hears nothing, so it grants nothing; what is in the ring is counted
/// at the end.
#[test]
fn without_credit_only_an_event_at_the_head_leaves() {
    for (exclusive, segments, event, in_ring_expected) in [
        // Credit, and data: sent. Without data: nothing to send.
        (2, 2, false, 2),
        (2, 0, false, 0),
        // No credit: an event behind two that were sent is at the head; behind a third one it is not.
        (2, 2, true, 3),
        (2, 3, true, 2),
        (2, 3, false, 2),
        // A channel that never had any: a barrier at the head is delivered, with data ahead it is not.
        (0, 0, true, 1),
        (0, 1, true, 0),
        (0, 1, false, 0),
    ] {
        let config = ExchangeConfig { exclusive_per_channel: exclusive, floating_per_gate: 8, ..plain() };
        let mut exchange = exchange(config, 1);
        fill(&mut exchange, 0, segments);
        if event {
            // Seals the last segment.
            exchange.event(0, barrier(1, false));
        } else {
            exchange.partitions[0].flush();
        }
        assert_eq!(
            in_ring(&mut exchange, 0),
            in_ring_expected,
            "exclusive {exclusive}, {segments} segments, event {event}"
        );
        exchange.finish();
    }
}

/// Goal: two buffers are the initial credit; a reader that reads nothing but hears lends its floating
/// permits to the one channel that is busy, so that it gets up to 2 + 8, and none of them to idle ones.
#[test]
fn one_busy_channel_of_four_gets_its_exclusive_and_all_floating_permits() {
    let config = ExchangeConfig { buffers_per_subpartition_max: 12, ..plain() };
    let layout = Layout { producers: 4, stride: 16, ..Layout::fan_out(config, 1) };
    let mut exchange = Exchange::new(layout);
    (0..12 * PER_SEGMENT).for_each(|_| exchange.put(1, 0, 16));
    exchange.partitions[1].flush();
    let queued = |exchange: &Exchange| exchange.partitions[1].load().queued;
    assert_eq!(queued(&exchange), 9, "eleven are finished, and two were sent");
    assert_eq!(exchange.gates[0].usage().queued, 0, "nobody has looked");
    for _ in 0..10 {
        exchange.gate_hears(0);
        exchange.hear(1);
        exchange.check();
    }
    let usage = exchange.gates[0].usage();
    assert_eq!((usage.queued, usage.floating_used), (10, 8));
    assert_eq!(queued(&exchange), 1);
    // The others go on with their exclusive ones.
    for producer in [0, 2, 3] {
        exchange.put(producer, 0, 16);
        exchange.partitions[producer].flush();
    }
    exchange.gate_hears(0);
    assert_eq!(exchange.gates[0].usage().queued, 13);
    exchange.finish();
}

/// Goal: permits that come free go to the channel that asked for them, also if it has none of its own and
/// nothing rings for it any more.
#[test]
fn permits_that_come_free_go_to_the_channel_that_waits_for_them() {
    let config = ExchangeConfig { exclusive_per_channel: 0, floating_per_gate: 2, ..plain() };
    let mut exchange = Exchange::new(Layout { producers: 2, stride: 16, ..Layout::fan_out(config, 1) });
    (0..3 * PER_SEGMENT).for_each(|_| exchange.put(0, 0, 16));
    exchange.gate_hears(0);
    exchange.hear(0);
    exchange.put(1, 0, 16);
    exchange.partitions[1].flush();
    exchange.gate_hears(0);
    exchange.hear(1);
    assert_eq!(exchange.gates[0].usage().floating_used, 2, "both are lent to the first channel");
    assert_eq!(exchange.read(0, 100, 100), 2 * PER_SEGMENT);
    assert!(exchange.hear(1), "the second is granted what the first gave back");
    exchange.gate_hears(0);
    assert_eq!(exchange.read(0, 1, 1), 1);
    exchange.finish();
}

/// Goal: a gate without a permit for each channel is refused: a half filled segment keeps its permit, so the
/// other channel would wait for ever.
#[test]
#[should_panic(expected = "2 channels without permits of their own share 1")]
fn gate_without_a_permit_for_each_channel_is_refused() {
    let config = ExchangeConfig { exclusive_per_channel: 0, floating_per_gate: 1, ..plain() };
    Exchange::new(Layout { producers: 2, ..Layout::fan_out(config, 1) });
}

/// Goal: a blocking barrier closes its channel until it is resumed, and no other.
#[test]
fn blocking_barrier_closes_its_channel_until_it_is_resumed() {
    let mut exchange = exchange(plain(), 2);
    exchange.event(0, barrier(7, true));
    for gate in 0..2 {
        exchange.put(0, gate, 16);
    }
    exchange.partitions[0].flush();
    for gate in 0..2 {
        exchange.gate_hears(gate);
        assert_eq!(exchange.read(gate, 10, 10), 1, "the barrier only");
    }
    exchange.event(0, Event::EndOfData);
    // The first in the list is gate 0's.
    assert!(exchange.resume());
    assert!(exchange.hear(0));
    for (gate, read) in [(0, 2), (1, 0)] {
        exchange.gate_hears(gate);
        assert_eq!(exchange.read(gate, 10, 10), read, "gate {gate}");
    }
    exchange.finish();
}

/// Goal: a resume is for the barrier that blocks, once: anything else is a bug that stops here.
#[test]
fn stale_or_second_resume_is_a_bug() {
    let blocked = |id| {
        let mut exchange = exchange(plain(), 1);
        exchange.event(0, barrier(id, true));
        exchange.gate_hears(0);
        exchange.read(0, 1, 1);
        exchange.to_resume.clear();
        exchange
    };
    let resumed = |mut exchange: Exchange, id| {
        exchange.gates[0].resume(ChannelIndex(0), CheckpointId(id));
        exchange.gates[0].publish();
        exchange.hear(0);
        exchange
    };
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    let second = || {
        let mut exchange = resumed(blocked(7), 7);
        exchange.event(0, barrier(8, true));
        exchange.gate_hears(0);
        exchange.read(0, 1, 1);
        exchange
    };
    assert!(!panics(&|| drop(resumed(blocked(7), 7))));
    assert!(!panics(&|| drop(resumed(second(), 8))));
    assert!(panics(&|| drop(resumed(blocked(7), 6))), "of an earlier checkpoint");
    assert!(panics(&|| drop(resumed(blocked(7), 8))), "of one that has not come");
    assert!(panics(&|| drop(resumed(resumed(blocked(7), 7), 7))), "a second time");
    assert!(panics(&|| drop(resumed(second(), 7))), "of the one before");
}

/// Goal: a consumer that never reads holds its own channels only. Its producer stops; the producer that
/// does not send to it goes on, and so does the channel beside it at the same gate.
#[test]
fn frozen_consumer_does_not_hold_up_channels_of_others() {
    let layout = Layout { producers: 2, stride: 16, ..Layout::fan_out(plain(), 2) };
    let mut exchange = Exchange::new(layout);
    while exchange.partitions[0].is_available() {
        exchange.put(0, 0, 16);
    }
    // Gate 0 is frozen, so the first producer is stuck; the second sends a thousand segments to gate 1.
    for _ in 0..1_000 {
        assert!(exchange.partitions[1].is_available());
        fill(&mut exchange, 1, 0);
        (0..PER_SEGMENT).for_each(|_| exchange.put(1, 1, 16));
        exchange.gate_hears(1);
        exchange.read(1, 100, 100);
        exchange.hear(1);
        exchange.check();
    }
    assert!(!exchange.partitions[0].is_available());
    exchange.finish();
}

/// Goal: the cap is why a slow consumer cannot take all of its partition's segments: without it, it does.
#[test]
fn without_a_cap_one_slow_consumer_takes_the_whole_pool() {
    for (cap, most) in [(4, 4), (1_000, 16)] {
        let config = ExchangeConfig { buffers_per_subpartition_max: cap, ..plain() };
        let mut exchange = exchange(config, 4);
        // Four channels want 16 segments.
        while exchange.partitions[0].is_available() {
            fill(&mut exchange, 2, 1);
        }
        let load = exchange.partitions[0].load();
        assert_eq!((load.held_max, load.size), (most, 16), "cap {cap}");
        exchange.finish();
    }
}

/// Goal: two channels that both have data are read buffer by buffer in turn, so none starves.
#[test]
fn channels_that_have_data_are_read_in_turn() {
    let layout = Layout { producers: 2, stride: 16, ..Layout::fan_out(plain(), 1) };
    let mut exchange = Exchange::new(layout);
    for producer in [0, 1] {
        (0..8 * PER_SEGMENT).for_each(|_| exchange.put(producer, 0, 16));
        exchange.partitions[producer].flush();
    }
    let mut order = Vec::new();
    for _ in 0..40 {
        exchange.gate_hears(0);
        exchange.hear(0);
        exchange.hear(1);
        if let Next::Data(ChannelIndex(channel)) = exchange.gates[0].poll() {
            order.push(channel);
            assert_eq!(exchange.read(0, PER_SEGMENT, 100), PER_SEGMENT);
        }
    }
    assert_eq!(order.len(), 16);
    for pair in order.chunks(2) {
        assert_ne!(pair[0], pair[1], "one of each in turn: {order:?}");
    }
    exchange.finish();
}

/// Goal: news of credit is gathered: far fewer calls for attention than buffers, where both sides are busy.
#[test]
fn credit_is_announced_for_many_buffers_at_once() {
    let mut exchange = exchange(plain(), 1);
    let (mut buffers, mut heard) = (0, 0);
    for _ in 0..200 {
        while exchange.partitions[0].is_available() {
            fill(&mut exchange, 0, 1);
            buffers += 1;
        }
        exchange.gate_hears(0);
        exchange.read(0, 1_000, 1_000);
        // One look at the doorbell, however many segments came back.
        heard += u32::from(exchange.hear(0));
    }
    assert!(buffers > 2 * heard, "{heard} calls for {buffers} buffers");
    exchange.finish();
}
