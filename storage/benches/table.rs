//! What does one `*entry += 1` cost, beside the maps that one would use without snapshots?
//!
//! Three contenders count the same uniformly drawn `u64` keys:
//!
//! - `table`: this crate's, 128 key groups, the group of each record known. Batches of
//!   32 with prefetching, unless the table is small.
//! - `hashbrown`: one map for all keys, with the foldhash it is usually used with.
//! - `linear`: linear probing at a fill of at most one half, sized beforehand, in
//!   batches of 32 with one prefetch a record unless it is small. It has neither groups
//!   nor removal nor growth: what a program with nothing else to do could reach.
//!
//! The machine is shared, so the contenders take turns and medians are compared. Run as
//! a test, everything is done once at small sizes and the sums are checked.

use criterion::{Criterion, Throughput};
use std::hash::BuildHasher;
use std::hint::black_box;
use tidegate_storage::table::{Fixed, Table};

const GROUPS: u32 = 128;
const BATCH: usize = 32;

/// Records of a run; they are drawn once and lie in memory as (key, group).
const RECORDS: usize = 1 << 20;

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The group of a key as a job computes it: hash of a Java `Long`, murmur3 of that, modulo.
fn group_of(key: u64) -> u32 {
    let mut k = ((key ^ key >> 32) as u32).wrapping_mul(0xcc9e_2d51).rotate_left(15);
    k = k.wrapping_mul(0x1b87_3593).rotate_left(13);
    let mut h = k.wrapping_mul(5).wrapping_add(0xe654_6b64) ^ 4;
    h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
    h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
    (h ^ h >> 16) % GROUPS
}

struct Draw {
    keys: Vec<u64>,
    groups: Vec<u16>,
}

fn draw(distinct: u64, records: usize) -> Draw {
    let mut state = distinct;
    let keys: Vec<u64> = (0..records).map(|_| splitmix(&mut state) % distinct).collect();
    let groups = keys.iter().map(|key| group_of(*key) as u16).collect();
    Draw { keys, groups }
}

#[inline(never)]
fn count_table(table: &mut Table<Fixed<u64>, u64>, draw: &Draw) {
    let mut hashes = [0u64; BATCH];
    for (keys, groups) in draw.keys.chunks(BATCH).zip(draw.groups.chunks(BATCH)) {
        if table.is_small() {
            for (key, group) in keys.iter().zip(groups) {
                *table.entry(u32::from(*group), *key, || 0) += 1;
            }
            continue;
        }
        for ((key, group), hash) in keys.iter().zip(groups).zip(&mut hashes) {
            *hash = table.hash(*key);
            table.prefetch(u32::from(*group), *hash);
        }
        for ((key, group), hash) in keys.iter().zip(groups).zip(&hashes) {
            *table.entry_hashed(u32::from(*group), *hash, *key, || 0) += 1;
        }
    }
}

type Brown = hashbrown::HashMap<u64, u64, foldhash::fast::FixedState>;

#[inline(never)]
fn count_brown(map: &mut Brown, draw: &Draw) {
    for key in &draw.keys {
        *map.entry(*key).or_insert(0) += 1;
    }
}

/// Entries with a count of 0 are free.
struct Linear {
    entries: Vec<(u64, u64)>,
    hasher: foldhash::fast::FixedState,
}

impl Linear {
    fn new(distinct: usize) -> Self {
        let mut entries = Vec::with_capacity((distinct * 2).next_power_of_two());
        // Before the first touch, as the table's memory has it.
        #[cfg(target_os = "linux")]
        // SAFETY: advice about whole pages inside the vector's memory; changes no content.
        unsafe {
            let start = entries.as_mut_ptr() as usize;
            let bytes = entries.capacity() * size_of::<(u64, u64)>();
            let aligned = start.next_multiple_of(4096);
            if bytes > 4 << 20 {
                libc::madvise(aligned as *mut libc::c_void, bytes - (aligned - start), libc::MADV_HUGEPAGE);
            }
        }
        entries.resize((distinct * 2).next_power_of_two(), (0, 0));
        Linear { entries, hasher: foldhash::fast::FixedState::default() }
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        self.hasher.hash_one(key) as usize & (self.entries.len() - 1)
    }

    #[inline(always)]
    fn add(&mut self, key: u64) {
        let mut at = self.home(key);
        loop {
            let mask = self.entries.len() - 1;
            let entry = &mut self.entries[at & mask];
            if entry.0 == key || entry.1 == 0 {
                *entry = (key, entry.1 + 1);
                return;
            }
            at += 1;
        }
    }
}

#[inline(never)]
fn count_linear(linear: &mut Linear, draw: &Draw) {
    let small = linear.entries.len() * size_of::<(u64, u64)>() <= 512 << 10;
    for keys in draw.keys.chunks(BATCH) {
        if !small {
            for key in keys {
                let at = linear.home(*key);
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a prefetch never faults.
                unsafe {
                    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T0>(linear.entries.as_ptr().wrapping_add(at).cast());
                }
                let _ = at;
            }
        }
        for key in keys {
            linear.add(*key);
        }
    }
}

/// Time of this thread on a core: other threads of the machine do not count, though
/// what they do to its caches does.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the clock exists on every Linux.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ns_per_record(records: usize, run: impl FnOnce()) -> f64 {
    let start = thread_ns();
    run();
    (thread_ns() - start) as f64 / records as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Alternates the contenders `rounds` times, prints one line, and checks all sums.
fn compare(distinct: u64, records: usize, rounds: usize) {
    let draw = draw(distinct, records);
    let mut table = Table::new(0..GROUPS);
    let mut brown = Brown::default();
    let mut linear = Linear::new(distinct as usize);
    let (mut first, mut times) = ([0.0; 3], [vec![], vec![], vec![]]);
    for round in 0..=rounds {
        let now = [
            ns_per_record(records, || count_table(&mut table, black_box(&draw))),
            ns_per_record(records, || count_brown(&mut brown, black_box(&draw))),
            ns_per_record(records, || count_linear(&mut linear, black_box(&draw))),
        ];
        if round == 0 {
            first = now;
            continue;
        }
        for (times, now) in times.iter_mut().zip(now) {
            times.push(now);
        }
    }
    let [own, brown_ns, linear_ns] = times.map(median);
    println!(
        "{distinct:>9} keys: table {own:6.2} ns, hashbrown {brown_ns:6.2}, linear {linear_ns:6.2}; \
         table / hashbrown {:.2}, table / best {:.2}; first round {:.1} / {:.1} / {:.1} ns; {:.1} B a key",
        own / brown_ns,
        own / brown_ns.min(linear_ns),
        first[0],
        first[1],
        first[2],
        table.memory_bytes() as f64 / table.len() as f64,
    );
    assert_eq!(table.len(), brown.len());
    let total = (records * (rounds + 1)) as u64;
    assert_eq!(table.iter().map(|(_, _, count)| count).sum::<u64>(), total);
    for (group, key, count) in &table {
        assert_eq!((group_of(key), brown.get(&key)), (group, Some(count)), "key {key}");
    }
    assert_eq!(linear.entries.iter().map(|entry| entry.1).sum::<u64>(), total);
}

fn criterion_benches(criterion: &mut Criterion, records: usize) {
    let mut group = criterion.benchmark_group("table");
    group.throughput(Throughput::Elements(records as u64)).sample_size(10);
    for distinct in [16, 1_000] {
        let draw = draw(distinct, records);
        let mut table = Table::new(0..GROUPS);
        group.bench_function(format!("count/{distinct}"), |b| {
            b.iter(|| count_table(&mut table, black_box(&draw)))
        });
    }
    group.finish();
}

/// With `--bench`, which `cargo bench` passes: sizes that mean something. The size
/// can be named: `cargo bench --bench table -- 1000000`.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let named: Vec<u64> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = match (&named[..], measured) {
        ([], true) => &[16, 1_000, 10_000, 100_000, 1_000_000, 10_000_000][..],
        ([], false) => &[16, 1_000, 20_000],
        (named, _) => named,
    };
    for distinct in sizes {
        let records = if measured { RECORDS.max(2 * *distinct as usize) } else { 1 << 14 };
        compare(*distinct, records, if measured { 21 } else { 1 });
    }
    if named.is_empty() {
        let mut criterion = Criterion::default().configure_from_args();
        criterion_benches(&mut criterion, if measured { 1 << 16 } else { 1 << 10 });
        criterion.final_summary();
    }
}
