//! Property: whatever is put arrives, byte by byte and in the order of its channel, and every segment comes
//! back, in every order of steps and for every size of record and segment.
//!
//! Method: a script from proptest moves producers and gates one step at a time; the sums of pool, credit and
//! cap are checked after each. With the feature `sim` every case also acts on stale views of the words that
//! the two sides share, chosen by a seed.
#![cfg(not(loom))]

mod support;

use proptest::prelude::*;
use support::{Exchange, Layout, barrier, config};
use tidegate_shard::barrier::{CheckpointId, Event};
use tidegate_shard::config::{ExchangeConfig, FlushInterval};
use tidegate_shard::frame;
use tidegate_shard::output::PartitionFailure;

/// One step; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    /// Records of about this size, while the partition is available.
    Put {
        producer: usize,
        channel: usize,
        len: usize,
        count: usize,
    },
    /// The output of one record, available or not.
    Burst {
        producer: usize,
        channel: usize,
        len: usize,
        count: usize,
    },
    Control {
        producer: usize,
        kind: u8,
    },
    Event {
        producer: usize,
        blocks: Option<bool>,
    },
    Flush {
        producer: usize,
    },
    FlushToIdle {
        producer: usize,
        more: bool,
    },
    Hear {
        producer: usize,
    },
    GateHears {
        gate: usize,
    },
    Read {
        gate: usize,
        budget: usize,
        grain: usize,
    },
    Idle {
        gate: usize,
        idle: bool,
    },
    Resume,
}

/// Mostly small, some that span a few segments, few that are huge.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        40 => 0..40usize,
        10 => 40..400usize,
        4 => 400..40_000usize,
        1 => 40_000..=(1usize << 20),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64usize;
    prop_oneof![
        10 => (n.clone(), n.clone(), len(), 1..40usize)
            .prop_map(|(producer, channel, len, count)| Step::Put { producer, channel, len, count }),
        1 => (n.clone(), n.clone(), 0..100usize, 1..400usize)
            .prop_map(|(producer, channel, len, count)| Step::Burst { producer, channel, len, count }),
        2 => (n.clone(), 1..5u8).prop_map(|(producer, kind)| Step::Control { producer, kind }),
        1 => (n.clone(), any::<Option<bool>>()).prop_map(|(producer, blocks)| Step::Event { producer, blocks }),
        3 => n.clone().prop_map(|producer| Step::Flush { producer }),
        2 => (n.clone(), any::<bool>()).prop_map(|(producer, more)| Step::FlushToIdle { producer, more }),
        6 => n.clone().prop_map(|producer| Step::Hear { producer }),
        6 => n.clone().prop_map(|gate| Step::GateHears { gate }),
        10 => (n.clone(), 1..60usize, 1..20usize)
            .prop_map(|(gate, budget, grain)| Step::Read { gate, budget, grain }),
        1 => (n, any::<bool>()).prop_map(|(gate, idle)| Step::Idle { gate, idle }),
        2 => Just(Step::Resume),
    ]
}

fn layout() -> impl Strategy<Value = Layout> {
    let segment = prop_oneof![3 => Just(64u32), 2 => Just(72u32), 2 => Just(256u32), 1 => Just(32 << 10)];
    let flush = prop_oneof![
        4 => Just(FlushInterval::After(1)),
        1 => Just(FlushInterval::EveryRecord),
        1 => Just(FlushInterval::Never)
    ];
    let stride =
        prop_oneof![2 => Just(0u32), 1 => Just(8u32), 1 => Just(12u32), 1 => Just(16u32), 1 => Just(60u32)];
    let credit = (0..4u32, 0..9u32);
    (segment, flush, stride, credit, (2..12u32, 0..21u32), (1..4usize, 1..6usize), any::<bool>(), 0..20u32)
        .prop_map(
            |(
                size,
                flush,
                stride,
                (exclusive, floating),
                (cap, overdraft),
                (producers, gates),
                broadcast,
                more,
            )| {
                let config = ExchangeConfig {
                    flush,
                    exclusive_per_channel: exclusive,
                    floating_per_gate: floating,
                    buffers_per_subpartition_max: cap,
                    overdraft_per_partition_max: overdraft,
                    ..config(size)
                };
                // A permit for each channel, its own or a floating one.
                let exclusive = if floating < producers as u32 { exclusive.max(1) } else { exclusive };
                let config = ExchangeConfig { exclusive_per_channel: exclusive, ..config };
                // From the guarantees alone to about what all want.
                let segments = producers as u32 * config.pool_guaranteed(gates as u32) + more * more / 4;
                Layout { config, producers, gates, stride, broadcast, segments }
            },
        )
}

fn run(layout: Layout, steps: Vec<Step>, seed: u64) {
    stale_views(seed);
    let mut exchange = Exchange::new(layout);
    let (producers, gates) = (exchange.layout.producers, exchange.layout.gates);
    let mut checkpoint = 0;
    for step in steps {
        match step {
            Step::Put { producer, channel, len, count } => {
                let (producer, channel) = (producer % producers, channel % gates);
                // Long ones once, or a case takes minutes.
                for i in 0..if len < 400 { count } else { 1 } {
                    if exchange.partitions[producer].is_available() {
                        exchange.put(producer, channel, len + i % 3);
                    }
                }
            }
            Step::Burst { producer, channel, len, count } => {
                let (producer, channel) = (producer % producers, channel % gates);
                if exchange.partitions[producer].is_available() {
                    (0..count).for_each(|_| exchange.put(producer, channel, len));
                }
            }
            Step::Control { producer, kind } => {
                let payload = [7u8; frame::CONTROL_BYTES_MAX];
                let len = [0, 8, 0, 0, 16][kind as usize];
                exchange.put_control(producer % producers, kind, &payload[..len]);
            }
            Step::Event { producer, blocks } => {
                checkpoint += 1;
                let event = match blocks {
                    Some(blocks) => barrier(checkpoint, blocks),
                    None => Event::Cancel(CheckpointId(checkpoint)),
                };
                exchange.event(producer % producers, event);
            }
            Step::Flush { producer } => exchange.partitions[producer % producers].flush(),
            Step::FlushToIdle { producer, more } => {
                exchange.partitions[producer % producers].flush_to_idle(more)
            }
            Step::Hear { producer } => {
                exchange.hear(producer % producers);
            }
            Step::GateHears { gate } => {
                exchange.gate_hears(gate % gates);
            }
            Step::Read { gate, budget, grain } => {
                exchange.read(gate % gates, budget, grain);
            }
            Step::Idle { gate, idle } => {
                let gate = &mut exchange.gates[gate % gates];
                if idle { gate.set_idle() } else { gate.set_active() }
            }
            Step::Resume => {
                exchange.resume();
            }
        }
        exchange.check();
    }
    exchange.finish();
}

/// From now on this case sees old news now and then; only with the feature `sim`.
fn stale_views(seed: u64) {
    #[cfg(feature = "sim")]
    tidegate_shard::sync::stale::seed(seed | 1);
    let _ = seed;
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_time: 20_000, ..Default::default() })]

    #[test]
    fn everything_that_is_put_arrives_in_order_and_every_segment_comes_back(
        layout in layout(),
        steps in prop::collection::vec(step(), 1..120),
        seed in any::<u64>(),
    ) {
        run(layout, steps, seed);
    }
}

/// Goal: the output of one record ends whatever its size, while nobody reads: nothing blocks, nothing is
/// lost, and what the pool cannot take is on the heap and counted.
#[test]
fn output_of_one_record_waits_on_the_heap_while_nobody_reads() {
    for broadcast in [false, true] {
        stale_views(11);
        let mut exchange = Exchange::new(Layout { broadcast, ..Layout::fan_out(config(256), 2) });
        for i in 0..3_000 {
            exchange.put(0, i % 2, 1_000);
            exchange.check();
        }
        exchange.event(0, barrier(1, true));
        exchange.put_control(0, frame::WATERMARK, &[1; 8]);
        exchange.put(0, 1, 3 << 20);
        let load = exchange.partitions[0].load();
        assert!(!exchange.partitions[0].is_available() && exchange.partitions[0].is_overflowing());
        assert!(load.overflow_bytes > 5_000_000, "{load:?}");
        exchange.finish();
        assert_eq!(exchange.partitions[0].load().overflow_bytes, 0);
    }
}

/// Goal: beyond the limit the partition refuses by name and stays up; nothing before it is touched.
#[test]
fn output_beyond_the_limit_is_a_named_failure() {
    let limit = ExchangeConfig { record_size_bytes_max: 10_000, ..config(256) };
    let mut exchange = Exchange::new(Layout::fan_out(limit.clone(), 1));
    exchange.put(0, 0, 10_000);
    assert_eq!(exchange.partitions[0].take_failure(), None, "as large as allowed");
    exchange.settle();
    exchange.put(0, 0, 10_001);
    assert_eq!(
        exchange.partitions[0].take_failure(),
        Some(PartitionFailure::RecordTooLarge { bytes: 10_001, max: 10_000 })
    );
    let mut exchange = Exchange::new(Layout::fan_out(limit, 1));
    let failure = (0..).find_map(|_| {
        exchange.put(0, 0, 4_000);
        exchange.partitions[0].take_failure()
    });
    let Some(PartitionFailure::OverflowFull { bytes: 12_000, max: 10_000 }) = failure else {
        panic!("{failure:?} instead of two records held back and no room for a third");
    };
}

/// Goal: records of a fixed size go back to fixed segments after what had to be framed.
#[test]
fn fixed_records_return_to_fixed_segments_after_a_control_element() {
    let mut exchange = Exchange::new(Layout { stride: 16, ..Layout::fan_out(config(256), 1) });
    exchange.put(0, 0, 16);
    exchange.put_control(0, frame::WATERMARK, &[3; 8]);
    // The rest of the framed segment: (256 - 12) / 20 records.
    (0..12).for_each(|_| exchange.put(0, 0, 16));
    exchange.partitions[0].flush();
    exchange.settle();
    assert_eq!(exchange.outstanding(0, 0), 0);
    let (bytes, buffers, _) = exchange.partitions[0].totals();
    assert_eq!((bytes, buffers), (16, 1), "the framed segment is still open");
    exchange.put(0, 0, 16);
    let (bytes, buffers, _) = exchange.partitions[0].totals();
    assert_eq!((bytes, buffers), (16 + 12 + 12 * 20, 2), "sealed when it is full");
    exchange.partitions[0].flush();
    exchange.gate_hears(0);
    exchange.read(0, 0, 1);
    assert!(matches!(exchange.gates[0].poll(), tidegate_shard::input::Next::Data(_)));
    exchange.finish();
    assert_eq!(exchange.partitions[0].totals().0, 16 + 12 + 12 * 20 + 16, "the last one without a header");
}
