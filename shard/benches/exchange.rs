//! What does a record cost from `put` to its reader, by size and by number of channels?
//!
//! One thread moves one producer and one reader by turns of 4,096 records, so a figure is the sum of both
//! sides, with the segments in the cache as far as they fit. The target is that 4,096 channels cost at most
//! 1.5 times what 2 do; the small size that tests run checks the sums only.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::sync::Arc;
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper, Wake};
use tidegate_shard::channel::{IdleWord, channel};
use tidegate_shard::config::{ExchangeConfig, FlushInterval};
use tidegate_shard::frame::{self, HEADER_BYTES};
use tidegate_shard::input::{ChannelIndex, InputGate, Next};
use tidegate_shard::memory::{Pool, Region};
use tidegate_shard::output::ResultPartition;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

const BATCH: u64 = 4_096;

/// A partition and a gate with `channels` channels between them, and the doorbells of the two.
struct Pair {
    partition: ResultPartition,
    gate: InputGate,
    to_gate: Arc<Doorbell>,
    to_partition: Arc<Doorbell>,
    next: u64,
}

impl Pair {
    fn new(channels: u32, stride: u32) -> Self {
        let config = ExchangeConfig { flush: FlushInterval::Never, ..Default::default() };
        let region = Region::map(config.pool_wanted(channels) + 20, config.segment_size_bytes);
        let region = Arc::new(region.expect("memory for the segments"));
        let pool = Pool::new(region.clone(), config.overdraft_reserve_max);
        let sleeper = Arc::new(Sleeper::new(Arc::new(Nobody)));
        let (to_gate, to_partition) = (Arc::new(Doorbell::default()), Arc::new(Doorbell::default()));
        let idle = Arc::new(IdleWord::default());
        let (senders, receivers) = (0..channels)
            .map(|slot| {
                let bells = [&to_gate, &to_partition].map(|d| Bell::new(d.clone(), sleeper.clone(), slot));
                let [to_receiver, to_sender] = bells;
                channel(&config, region.clone(), idle.clone(), to_receiver, to_sender)
            })
            .unzip();
        let share = pool
            .share(config.pool_guaranteed(channels), config.pool_wanted(channels), 20)
            .expect("the pool was made for it");
        let partition = ResultPartition::new(&config, share, senders, stride, false);
        let gate = InputGate::new(receivers, config.exclusive_per_channel, config.floating_per_gate, idle);
        Pair { partition, gate, to_gate, to_partition, next: 0 }
    }

    /// Puts a batch round-robin and reads what has arrived; the sum of the numbers that were read.
    fn turn<const LEN: usize>(&mut self, mask: u64) -> u64 {
        let fixed = self.partition.stride() != 0;
        for _ in 0..BATCH {
            if !self.partition.is_available() {
                break;
            }
            let (lane, value) = ((self.next & mask) as usize, self.next);
            let encode = |out: &mut [u8]| {
                let out: &mut [u8; LEN] = out.try_into().expect("as long as asked for");
                *out = [0; LEN];
                out[..8].copy_from_slice(&value.to_le_bytes());
            };
            if fixed {
                self.partition.put_fixed(lane, LEN, encode);
            } else {
                self.partition.put_framed(lane, LEN, encode);
            }
            self.next += 1;
        }
        let sum = self.read::<LEN>();
        let partition = &mut self.partition;
        self.to_partition.take(|channel| partition.rung(channel));
        sum
    }

    fn read<const LEN: usize>(&mut self) -> u64 {
        let gate = &mut self.gate;
        self.to_gate.take(|channel| gate.rung(ChannelIndex(channel)));
        let value = |record: &[u8]| u64::from_le_bytes(*record.first_chunk().expect("eight bytes"));
        let mut sum = 0u64;
        while let Next::Data(channel) = gate.poll() {
            if gate.is_assembling(channel) {
                if gate.assemble(channel) {
                    sum = sum.wrapping_add(value(gate.assembled(channel)));
                    gate.end_assembly(channel);
                }
                continue;
            }
            let unread = gate.unread(channel);
            let mut bytes = unread.bytes;
            if unread.stride > 0 {
                for record in bytes.chunks_exact(LEN) {
                    sum = sum.wrapping_add(value(record));
                }
                let all = bytes.len();
                gate.consume(channel, all);
                continue;
            }
            let all = bytes.len();
            let mut spans = None;
            while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
                let (_, len) = frame::parse_header(*head);
                if rest.len() < len {
                    spans = Some(len);
                    break;
                }
                sum = sum.wrapping_add(value(&rest[..len]));
                bytes = &rest[len..];
            }
            let read = all - bytes.len();
            if read > 0 {
                gate.consume(channel, read);
            }
            if let Some(len) = spans {
                gate.begin_assembly(channel, HEADER_BYTES, len);
            }
        }
        gate.publish();
        sum
    }
}

fn exchange<const LEN: usize>(c: &mut Criterion, name: &str, stride: u32) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(BATCH));
    for channels in [1u32, 64, 1024] {
        // Everything that is put is read: nothing lost, nothing twice.
        let mut pair = Pair::new(channels, stride);
        let mut sum: u64 = (0..64).map(|_| pair.turn::<LEN>(u64::from(channels) - 1)).sum();
        pair.partition.flush();
        for _ in 0..3 {
            sum += pair.read::<LEN>();
            let partition = &mut pair.partition;
            pair.to_partition.take(|channel| partition.rung(channel));
        }
        assert_eq!(sum, (0..pair.next).sum::<u64>(), "{channels} channels");
        group.bench_function(format!("channels_{channels}"), |b| {
            b.iter(|| pair.turn::<LEN>(u64::from(channels) - 1));
        });
    }
    group.finish();
}

fn all(c: &mut Criterion) {
    exchange::<16>(c, "fixed_16", 16);
    exchange::<64>(c, "framed_64", 0);
}

criterion_group!(benches, all);
criterion_main!(benches);
