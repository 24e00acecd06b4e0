//! Keyed count: records in memory, Flink's key groups, exchange, count, one row out per record.
//!
//! Each thread loops over its own pre-drawn records (drawing them costs as much as all the rest), finds the
//! target of each by its key group, and counts what it receives. For every record it hands a row (key, count)
//! to a sink, which folds it into a digest.
//!
//! There are two ways to find and write the target's segment, and two tables; [`fastest`] measures which pair of
//! them is the limit on this machine for this number of keys.

use super::Outcome;
use super::exchange::{self, Outlets, Work};
use super::table::{Brown, Counts, Linear, Pair};
use std::collections::HashMap;
use std::sync::Arc;

/// Key groups, Flink's default maximum parallelism for small jobs.
pub const KEY_GROUPS: u32 = 128;

/// Records that a source puts before the thread looks at its input: half a segment a target.
const RECORDS_A_TURN: usize = 2_048;

/// Records whose targets are found in one go, which lets the compiler do several at once.
const BATCH: usize = 64;

/// How records come to the segment of their target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// One after the other; the end of each segment is in memory.
    Push,
    /// With the ends in registers. For two targets without a branch: each record is written to both segments,
    /// and only the right one's end moves. For one target a copy. For more than two there are too few
    /// registers, and this is `Push`.
    Scatter,
}

/// What counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// hashbrown with foldhash.
    Hashbrown,
    /// Open addressing; where it is larger than the cache, batches of keys are prefetched.
    Batched,
}

/// One of the four programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// How records come to the segment of their target.
    pub exchange: Exchange,
    /// What counts.
    pub table: Table,
}

impl Variant {
    /// All four.
    pub const ALL: [Variant; 4] = [
        Variant { exchange: Exchange::Push, table: Table::Hashbrown },
        Variant { exchange: Exchange::Push, table: Table::Batched },
        Variant { exchange: Exchange::Scatter, table: Table::Hashbrown },
        Variant { exchange: Exchange::Scatter, table: Table::Batched },
    ];
}

/// `count` records with keys drawn uniformly from `0..keys`; the value is the record's number.
///
/// The same seed gives the same records. Threads take different seeds.
pub fn records(count: usize, keys: u64, seed: u64) -> Vec<Pair> {
    let first = super::splitmix(seed);
    let key = |i: u64| ((super::splitmix(first ^ i) as u128 * keys as u128) >> 64) as u64;
    (0..count as u64).map(|i| (key(i), i)).collect()
}

/// The digest of one output row. Digests of rows are summed, so the order of rows does not matter.
///
/// Two multiplications of which none waits for the row before: about half a nanosecond in a loop. Not against
/// an adversary, but any lost, doubled or changed row moves the sum.
#[inline(always)]
pub fn row_digest(key: u64, count: u64) -> u64 {
    let h = (key ^ count.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 32)
}

/// The digest of what [`run`] must put out, from a plain loop.
///
/// `records[i]` are looped over by thread i until it has sent `records_per_thread`. Rows do not depend on
/// threads: a key with n records gives the rows (key, 1) … (key, n). So records are counted once, and a key's rows
/// are digested in one go, which is quick enough for the records of a whole bench.
pub fn plain_digest(records: &[Arc<Vec<Pair>>], records_per_thread: u64) -> u64 {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for records in records {
        let (loops, rest) =
            (records_per_thread / records.len() as u64, records_per_thread % records.len() as u64);
        for (i, (key, _)) in records.iter().enumerate() {
            *counts.entry(*key).or_insert(0) += loops + u64::from((i as u64) < rest);
        }
    }
    let rows =
        |(key, count): (u64, u64)| (1..=count).fold(0u64, |sum, n| sum.wrapping_add(row_digest(key, n)));
    counts.into_iter().map(rows).fold(0, u64::wrapping_add)
}

/// Runs one thread a vector of `records`, each of which sends `records_per_thread` records.
///
/// `keys` is how many keys there are, for the size of the tables.
///
/// # Panics
///
/// If there are no threads or more than key groups, or if a vector of records is empty.
pub fn run(records: &[Arc<Vec<Pair>>], keys: usize, records_per_thread: u64, variant: Variant) -> Outcome {
    match variant.table {
        Table::Hashbrown => run_with::<Brown>(records, keys, records_per_thread, variant.exchange),
        Table::Batched => run_with::<Linear>(records, keys, records_per_thread, variant.exchange),
    }
}

/// The fastest of [`Variant::ALL`], each run three times in turn for `records_per_thread` records.
///
/// A million records a thread give a table its keys and take milliseconds.
pub fn fastest(records: &[Arc<Vec<Pair>>], keys: usize, records_per_thread: u64) -> Variant {
    let mut seconds = [f64::INFINITY; Variant::ALL.len()];
    for _ in 0..3 {
        for (best, variant) in seconds.iter_mut().zip(Variant::ALL) {
            *best = best.min(run(records, keys, records_per_thread, variant).seconds);
        }
    }
    let best = (0..seconds.len()).min_by(|a, b| seconds[*a].total_cmp(&seconds[*b]));
    Variant::ALL[best.expect("there are four variants")]
}

fn run_with<C: Counts>(
    records: &[Arc<Vec<Pair>>],
    keys: usize,
    records_per_thread: u64,
    exchange: Exchange,
) -> Outcome {
    let threads = records.len();
    assert!(threads <= KEY_GROUPS as usize, "{threads} threads for {KEY_GROUPS} key groups");
    assert!(records.iter().all(|records| !records.is_empty()), "a thread without records");
    let make = |me: usize| Keyed::<C> {
        records: &records[me],
        at: 0,
        left: records_per_thread,
        threads: threads as u32,
        scatter: exchange == Exchange::Scatter,
        counts: C::with_room_for(keys.div_ceil(threads)),
        digest: 0,
    };
    let (seconds, works) = exchange::run(threads, make);
    let digest = works.iter().fold(0u64, |sum, work| sum.wrapping_add(work.digest));
    Outcome { records: threads as u64 * records_per_thread, seconds, digest }
}

struct Keyed<'a, C> {
    records: &'a [Pair],
    at: usize,
    left: u64,
    threads: u32,
    scatter: bool,
    counts: C,
    digest: u64,
}

impl<C: Counts> Work for Keyed<'_, C> {
    type Item = Pair;

    fn produce(&mut self, out: &mut Outlets<Pair>) -> bool {
        let count = RECORDS_A_TURN.min(self.records.len() - self.at).min(self.left as usize);
        let turn = &self.records[self.at..self.at + count];
        match (self.threads, self.scatter) {
            (1, true) => copy(turn, out),
            (2, true) => scatter(turn, out),
            (threads, _) => push(turn, threads, out),
        }
        self.at = (self.at + count) % self.records.len();
        self.left -= count as u64;
        self.left > 0
    }

    fn consume(&mut self, records: &[Pair]) {
        let mut digest = self.digest;
        self.counts.count_all(records, |key, count| digest = digest.wrapping_add(row_digest(key, count)));
        self.digest = digest;
    }
}

/// Flink's key group of a `long`: its `hashCode`, the murmur finaliser, modulo the number of groups.
#[inline(always)]
fn key_group(key: u64) -> u32 {
    let mut h = (key ^ (key >> 32)) as u32;
    h = h.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    h = h.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    h ^= 4;
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^= h >> 16;
    // Java takes the absolute value first, 0 for the one that has none; that one's lower bits are 0 as well.
    (h as i32).unsigned_abs() % KEY_GROUPS
}

/// The thread that counts each record's key, eight keys at once where the processor can.
///
/// The baseline of x86-64 has no multiplication of four 32-bit numbers; AVX2 has one of eight.
#[inline(always)]
fn find_targets(records: &[Pair], threads: u32, targets: &mut [u32; BATCH]) {
    #[inline(always)]
    fn plain(records: &[Pair], threads: u32, targets: &mut [u32; BATCH]) {
        for (target, (key, _)) in targets.iter_mut().zip(records) {
            *target = key_group(*key) * threads / KEY_GROUPS;
        }
    }

    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(records: &[Pair], threads: u32, targets: &mut [u32; BATCH]) {
            plain(records, threads, targets);
        }

        if is_x86_feature_detected!("avx2") {
            // SAFETY: the one thing that `wide` needs is AVX2, and the line above found it.
            return unsafe { wide(records, threads, targets) };
        }
    }
    plain(records, threads, targets);
}

fn push(records: &[Pair], threads: u32, out: &mut Outlets<Pair>) {
    let mut targets = [0; BATCH];
    for batch in records.chunks(BATCH) {
        find_targets(batch, threads, &mut targets);
        for (record, target) in batch.iter().zip(targets) {
            out.push(target as usize, *record);
        }
    }
}

/// For one target. The key groups are found all the same, since that is part of the work.
fn copy(mut records: &[Pair], out: &mut Outlets<Pair>) {
    let mut targets = [0; BATCH];
    while !records.is_empty() {
        let open = out.open_one();
        let room = Outlets::<Pair>::ITEMS - open.len();
        let (now, later) = records.split_at(records.len().min(room).min(BATCH));
        find_targets(now, 1, &mut targets);
        assert!(targets.iter().all(|target| *target == 0), "a target beyond the only one");
        open.extend_from_slice(now);
        records = later;
    }
}

fn scatter(mut records: &[Pair], out: &mut Outlets<Pair>) {
    let mut targets = [0; BATCH];
    while !records.is_empty() {
        let [first, second] = out.open_two();
        let room = Outlets::<Pair>::ITEMS - first.len().max(second.len());
        let (now, later) = records.split_at(records.len().min(room).min(BATCH));
        find_targets(now, 2, &mut targets);
        let (mut ends, begins) = ([first.len(), second.len()], [first.as_mut_ptr(), second.as_mut_ptr()]);
        for (record, target) in now.iter().zip(targets) {
            // SAFETY: both segments had room for `now.len()` items and each end moves by at most one an item, so
            // both places lie in their vectors' capacity.
            unsafe {
                begins[0].add(ends[0]).write(*record);
                begins[1].add(ends[1]).write(*record);
            }
            ends[0] += 1 - target as usize;
            ends[1] += target as usize;
        }
        // SAFETY: the items up to each end have been written, and none lies beyond the capacity.
        unsafe {
            first.set_len(ends[0]);
            second.set_len(ends[1]);
        }
        records = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys go where Flink sends them.
    #[test]
    fn key_groups_are_flinks() {
        assert_eq!(key_group(0), 94);
        assert_eq!(key_group(4), 7);
        let second = (0..16).filter(|key| key_group(*key) * 2 / KEY_GROUPS == 1).count();
        assert_eq!(second, 9, "keys 0..16 split 7 : 9");
    }

    /// Goal: both sides of a bench send a key to the same thread.
    /// Method: the engine's own formula, for keys that differ in either half, in batches of every length.
    #[test]
    fn targets_are_the_engines() {
        use crate::graph::key_group::{key_group as engines, subtask};
        let records: Vec<Pair> = (0..64).map(|i| (crate::limit::splitmix(i) >> (i % 64), i)).collect();
        for threads in [1, 2, 3, 8, 128] {
            for length in 0..=records.len() {
                let mut targets = [0; BATCH];
                find_targets(&records[..length], threads, &mut targets);
                for ((key, _), target) in records[..length].iter().zip(targets) {
                    let hash = (key ^ (key >> 32)) as i32;
                    assert_eq!(target, subtask(engines(hash, KEY_GROUPS), KEY_GROUPS, threads), "key {key}");
                }
            }
        }
    }

    /// Goal: every variant puts out what a plain loop does.
    /// Method: 1 … 3 threads, few and many keys, a number of records that is no multiple of anything. The plain
    /// loop here is a second one, record by record, so that it checks `plain_digest`, too.
    #[test]
    fn every_variant_agrees_with_a_plain_loop() {
        for (threads, keys) in [(1, 16), (2, 16), (2, 40_000), (3, 1_000)] {
            let per_thread = 70_001;
            let records: Vec<_> =
                (0..threads).map(|seed| Arc::new(super::records(30_000, keys, seed))).collect();
            let mut counts = HashMap::new();
            let mut expected = 0u64;
            for records in &records {
                for (key, _) in records.iter().cycle().take(per_thread) {
                    let count = counts.entry(*key).or_insert(0);
                    *count += 1;
                    expected = expected.wrapping_add(row_digest(*key, *count));
                }
            }
            assert_eq!(plain_digest(&records, per_thread as u64), expected);
            for variant in Variant::ALL {
                let outcome = run(&records, keys as usize, per_thread as u64, variant);
                assert_eq!(outcome.digest, expected, "{variant:?}, {threads} threads, {keys} keys");
                assert_eq!(outcome.records, threads * per_thread as u64);
            }
        }
    }

    /// Goal: one row lost, doubled or changed is seen in the digest of many.
    #[test]
    fn a_digest_tells_rows_apart() {
        let sum =
            |rows: &[Pair]| rows.iter().fold(0u64, |sum, row| sum.wrapping_add(row_digest(row.0, row.1)));
        let rows = [(1, 1), (2, 1), (1, 2), (2, 2)];
        let mut others =
            vec![rows[..3].to_vec(), [&rows[..], &rows[..1]].concat(), vec![(1, 1), (1, 2), (2, 1), (2, 3)]];
        others.push(vec![(1, 1), (1, 2), (1, 3), (2, 1)]);
        others.push(vec![(2, 1), (3, 1), (0, 2), (2, 2)]);
        assert!(others.iter().all(|other| sum(other) != sum(&rows)));
    }

    /// Goal: records are the seed's, and use every key.
    #[test]
    fn records_are_drawn_from_their_seed() {
        let drawn = super::records(10_000, 16, 7);
        assert_eq!(drawn, super::records(10_000, 16, 7));
        assert_ne!(drawn, super::records(10_000, 16, 8));
        let mut counts = [0; 16];
        drawn.iter().for_each(|(key, _)| counts[*key as usize] += 1);
        assert!(counts.iter().all(|count| (500..750).contains(count)), "{counts:?}");
    }
}
