//! What does it cost to pass a descriptor through the ring, and to ring a doorbell?
//!
//! One thread, so the figures are the instructions' own, without the cache misses between two cores.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tidegate_shard::channel::Item;
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper, Wake};
use tidegate_shard::channel::ring::ring;
use tidegate_shard::memory::SegmentId;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

fn descriptor(sequence: u64) -> Item {
    Item::Buffer(tidegate_shard::channel::Buffer {
        segment: SegmentId(3),
        generation: 1,
        stride: 16,
        sequence,
    })
}

fn rings(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    for burst in [1u64, 16, 64] {
        group.throughput(Throughput::Elements(burst));
        group.bench_function(format!("push_pop_{burst}"), |b| {
            let (mut tx, mut rx) = ring::<Item>(64);
            let mut sequence = 0;
            b.iter(|| {
                for i in 0..burst {
                    assert!(tx.push(descriptor(sequence + i)).is_ok());
                }
                for i in 0..burst {
                    let Some(Item::Buffer(buffer)) = rx.pop() else { panic!("a ring lost a buffer") };
                    assert_eq!(buffer.sequence, sequence + i);
                }
                sequence += burst;
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("doorbell");
    let door = Arc::new(Doorbell::default());
    let bell = Bell::new(door.clone(), Arc::new(Sleeper::new(Arc::new(Nobody))), 70);
    group.bench_function("ring_and_take", |b| {
        b.iter(|| {
            bell.ring();
            let mut taken = 0;
            door.take(|slot| taken += slot);
            assert_eq!(taken, 70);
        });
    });
    bell.ring();
    group.bench_function("ring_while_rung", |b| b.iter(|| bell.ring()));
    door.take(|_| ());
    group.bench_function("take_silent", |b| {
        b.iter(|| {
            door.take(|slot| {
                black_box(slot);
            })
        })
    });
    group.finish();
}

criterion_group!(benches, rings);
criterion_main!(benches);
