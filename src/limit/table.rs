//! Counting 64-bit keys, in two ways.
//!
//! | table       | below half of L2               | beyond                                   |
//! | ----------- | ------------------------------ | ---------------------------------------- |
//! | [`Brown`]   | 16 slots compared at once: few mispredicted branches | one miss a record  |
//! | [`Linear`]  | sparse, so that the first slot is nearly always right | misses of a batch overlap |
//!
//! Which is faster depends on the number of keys and on the machine's caches, so it is measured, not decided.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// A record or a row: key and value, or key and count.
pub type Pair = (u64, u64);

/// A table of counters.
pub trait Counts: Send {
    /// An empty table with room for `keys` keys; grows beyond.
    fn with_room_for(keys: usize) -> Self;

    /// Counts the key of each record, in order, and hands `row` the key with its count so far.
    fn count_all(&mut self, records: &[Pair], row: impl FnMut(u64, u64));
}

/// hashbrown with foldhash.
#[derive(Debug)]
pub struct Brown(HashMap<u64, u64, FixedState>);

impl Counts for Brown {
    fn with_room_for(keys: usize) -> Self {
        Brown(HashMap::with_capacity_and_hasher(keys, FixedState::default()))
    }

    #[inline(always)]
    fn count_all(&mut self, records: &[Pair], mut row: impl FnMut(u64, u64)) {
        for (key, _) in records {
            let count = self.0.entry(*key).or_insert(0);
            *count += 1;
            row(*key, *count);
        }
    }
}

/// Open addressing with linear probing over 16-byte slots; a count of 0 marks a free slot.
#[derive(Debug)]
pub struct Linear {
    slots: Vec<Pair>,
    used: usize,
    /// Whether to prefetch: beyond this the misses cost more than the second pass over a batch.
    large: bool,
}

/// Bytes that a table may fill without prefetch: half of a small L2.
const CACHED_BYTES: usize = 256 * 1024;

/// Slots a key where the whole stays in the cache: at 1 in 16 the first slot is the right one for 97 % of the
/// keys, and a mispredicted branch costs as much as five counts.
const SPARSE: usize = 16;

/// Slots a key where memory counts.
const DENSE: usize = 2;

/// Records whose slots are prefetched together: more than the ten or so misses a core has in flight, few
/// enough that none is evicted before it is used.
const BATCH: usize = 32;

#[inline(always)]
fn hash(key: u64) -> usize {
    let h = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 24) as usize
}

impl Linear {
    fn with_slots(count: usize) -> Self {
        let large = count * size_of::<Pair>() > CACHED_BYTES;
        Linear { slots: huge(count, (0, 0)), used: 0, large }
    }

    /// Counts `key`, whose hash is `hash`, and returns its count.
    #[inline(always)]
    fn count(&mut self, key: u64, hash: usize) -> u64 {
        let mask = self.slots.len() - 1;
        let mut index = hash & mask;
        loop {
            // SAFETY: `index` is masked to the table's length, which is a power of two.
            let slot = unsafe { self.slots.get_unchecked_mut(index) };
            if slot.0 == key && slot.1 != 0 {
                slot.1 += 1;
                return slot.1;
            }
            if slot.1 == 0 {
                *slot = (key, 1);
                self.used += 1;
                if self.used * 4 > self.slots.len() * 3 {
                    self.grow();
                }
                return 1;
            }
            index = (index + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Linear::with_slots(self.slots.len() * 2);
        let mask = larger.slots.len() - 1;
        for (key, count) in self.slots.iter().filter(|slot| slot.1 != 0) {
            let mut index = hash(*key) & mask;
            while larger.slots[index].1 != 0 {
                index = (index + 1) & mask;
            }
            larger.slots[index] = (*key, *count);
        }
        larger.used = self.used;
        *self = larger;
    }

    #[inline(always)]
    fn prefetch(&self, hash: usize) {
        prefetch(&self.slots, hash & (self.slots.len() - 1));
    }
}

impl Counts for Linear {
    fn with_room_for(keys: usize) -> Self {
        let dense = (keys * DENSE).next_power_of_two().max(64);
        let sparse = (keys * SPARSE).next_power_of_two().min(CACHED_BYTES / size_of::<Pair>());
        Linear::with_slots(dense.max(sparse))
    }

    #[inline(always)]
    fn count_all(&mut self, records: &[Pair], mut row: impl FnMut(u64, u64)) {
        if !self.large {
            for (key, _) in records {
                row(*key, self.count(*key, hash(*key)));
            }
            return;
        }
        for batch in records.chunks(BATCH) {
            for (key, _) in batch {
                self.prefetch(hash(*key));
            }
            for (key, _) in batch {
                row(*key, self.count(*key, hash(*key)));
            }
        }
    }
}

/// Asks for the cache line of `slots[index]`; nothing where the machine has no such instruction.
#[inline(always)]
pub(super) fn prefetch<T>(slots: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slots.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slots, index);
}

/// `count` times `zero`, on 2 MiB pages where the kernel gives them.
///
/// On pages of 4 KiB a table of 16 MiB has more of them than the TLB: a miss there costs as much as the one in
/// the cache.
pub(super) fn huge<T: Copy>(count: usize, zero: T) -> Vec<T> {
    const PAGE: usize = 4096;
    let mut slots: Vec<T> = Vec::with_capacity(count);
    let bytes = count * size_of::<T>();
    if bytes >= 4 << 20 {
        let inner = slots.as_mut_ptr().cast::<u8>().map_addr(|at| at.next_multiple_of(PAGE));
        // SAFETY: the range lies in the allocation: it begins at most a page in and ends a page earlier or more.
        // The advice changes no contents, and a refusal only leaves the pages small.
        unsafe { libc::madvise(inner.cast(), bytes - 2 * PAGE, libc::MADV_HUGEPAGE) };
    }
    slots.resize(count, zero);
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn rows<C: Counts>(room: usize, records: &[Pair]) -> Vec<Pair> {
        let mut table = C::with_room_for(room);
        let mut rows = Vec::new();
        // In uneven pieces, so that batches begin and end everywhere.
        for piece in records.chunks(101) {
            table.count_all(piece, |key, count| rows.push((key, count)));
        }
        rows
    }

    /// Goal: both tables emit the row that a sorted map would, for each record, in order.
    /// Method: keys 0 and u64::MAX among them; few keys (no prefetch), many (prefetch), and more than there is
    /// room for (growth, in the middle of a batch).
    #[test]
    fn tables_count_as_a_sorted_map_does() {
        for (keys, room) in [(3u64, 3usize), (1_000, 1_000), (50_000, 50_000), (50_000, 1)] {
            let key = |i: u64| match crate::limit::splitmix(i) % keys {
                1 => u64::MAX,
                key => key,
            };
            let records: Vec<Pair> = (0..100_000).map(|i| (key(i), i)).collect();
            let mut map = BTreeMap::new();
            let mut expected = Vec::new();
            for (key, _) in &records {
                let count = map.entry(*key).or_insert(0);
                *count += 1;
                expected.push((*key, *count));
            }
            assert_eq!(rows::<Brown>(room, &records), expected, "hashbrown, {keys} keys, room for {room}");
            assert_eq!(rows::<Linear>(room, &records), expected, "linear, {keys} keys, room for {room}");
        }
    }
}
