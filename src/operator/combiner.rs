//! A bounded table of partial values: what it has no room for, it hands out.
//!
//! It stands before an exchange. Records of one key are added up here, and one
//! partial value goes out for many of them; whoever is behind the exchange adds up
//! the partial values. Which come out, and when, says nothing: what is certain is that
//! each record is in exactly one value that comes out of [`update`](Combiner::update) or
//! [`drain`](Combiner::drain).
//!
//! ```text
//! hash ─► set:  [ first    ][ second   ]
//!                 kept        on trial: gives way to a new key,
//!                             and is the first once its key comes again
//! ```
//!
//! A key that comes once pushes out another one that came once, and never one that came
//! again: of a text's words a twentieth of the keys take nine tenths of the records, and
//! those stay. There is no chain and no probing, so what a record costs is bounded.
//!
//! Long keys lie in an [`Arena`] of at most [`KEY_BYTES_MAX`] and one key more, and as much garbage.
//!
//! **Why not** a table that is emptied when it is full? It hands out everything at once,
//! the frequent keys with the rest, and the exchange gets bursts.

use tidegate_storage::table::{Arena, TableKey, prefetch};

/// Bytes of keys outside the slots. Beyond, entries are handed out until it is less.
pub const KEY_BYTES_MAX: usize = 1 << 20;

/// Slots that a compaction of the keys looks at for each key that is handed out.
const COMPACTION_STEP: usize = 64;

#[derive(Clone, Copy)]
struct Slot<C, V> {
    cell: C,
    value: V,
}

/// Where a key can be: in one cache line, if key and value are small.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set<C, V>([Slot<C, V>; 2]);

/// Where a key is to be found, and what it is compared by if it is short.
#[derive(Debug, Clone, Copy)]
pub struct Place<C> {
    set: usize,
    cell: Option<C>,
}

/// The key of an entry that is handed out.
pub struct Held<'a, K: TableKey> {
    cell: &'a K::Cell,
    keys: &'a Arena,
}

impl<K: TableKey> Held<'_, K> {
    /// The key, for no longer than it is borrowed here.
    pub fn key(&self) -> K::Ref<'_> {
        K::load(self.cell, self.keys)
    }
}

/// Partial values by key, at most as many as it has slots.
pub struct Combiner<K: TableKey, V: Copy + Default> {
    /// A power of two.
    sets: Box<[Set<K::Cell, V>]>,
    keys: Arena,
    /// Number of keys held.
    len: usize,
    /// Slots before this one were drained.
    drained: usize,
    /// Slot from which to make room for keys.
    hand: usize,
    /// Slot from which to compact the keys.
    compaction: usize,
}

impl<K: TableKey, V: Copy + Default> Combiner<K, V> {
    /// An empty one of so many slots, rounded up to a power of two, two at least. Takes its memory at once.
    pub fn new(slots: usize) -> Self {
        let vacant = Slot { cell: K::VACANT, value: V::default() };
        let sets = slots.next_power_of_two().max(2) / 2;
        Combiner {
            sets: vec![Set([vacant; 2]); sets].into_boxed_slice(),
            keys: Arena::default(),
            len: 0,
            drained: 0,
            hand: 0,
            compaction: 0,
        }
    }

    /// Where [`update_at`](Self::update_at) looks for `key`.
    #[inline(always)]
    pub fn place(&self, key: K::Ref<'_>) -> Place<K::Cell> {
        let cell = K::short(key);
        let hash = match &cell {
            Some(cell) => K::hash_cell(cell, &self.keys),
            None => K::hash(key),
        };
        Place { set: hash as usize & (self.sets.len() - 1), cell }
    }

    /// Asks for a place to be brought into the cache.
    #[inline(always)]
    pub fn prefetch(&self, place: &Place<K::Cell>) {
        prefetch(&self.sets[place.set]);
    }

    /// Changes the partial value of `key`, the default if none is held, by `add`. Hands what has to give way to
    /// `out`: one entry at most, unless long keys take too many bytes.
    #[inline(always)]
    pub fn update(&mut self, key: K::Ref<'_>, add: impl FnOnce(&mut V), out: impl FnMut(Held<'_, K>, &V)) {
        self.update_at(self.place(key), key, add, out);
    }

    /// [`update`](Self::update) of a key whose place is known.
    #[inline(always)]
    pub fn update_at(
        &mut self,
        place: Place<K::Cell>,
        key: K::Ref<'_>,
        add: impl FnOnce(&mut V),
        out: impl FnMut(Held<'_, K>, &V),
    ) {
        let first = &mut self.sets[place.set].0[0];
        if !K::is_vacant(key) && holds::<K>(&first.cell, &place, key, &self.keys) {
            add(&mut first.value);
        } else {
            self.update_further(place, key, add, out);
        }
    }

    #[inline(never)]
    fn update_further(
        &mut self,
        place: Place<K::Cell>,
        key: K::Ref<'_>,
        add: impl FnOnce(&mut V),
        mut out: impl FnMut(Held<'_, K>, &V),
    ) {
        if K::is_vacant(key) {
            // No slot could tell this one key from none.
            let mut value = V::default();
            add(&mut value);
            let cell = K::store(key, &mut self.keys);
            return out(Held { cell: &cell, keys: &self.keys }, &value);
        }
        let slots = &mut self.sets[place.set].0;
        if holds::<K>(&slots[1].cell, &place, key, &self.keys) {
            add(&mut slots[1].value);
            slots.swap(0, 1);
            return;
        }
        // Before anything is changed, since it is the user's and may panic.
        let mut value = V::default();
        add(&mut value);
        let way = usize::from(!K::is_vacant_cell(&slots[0].cell));
        self.hand_out(2 * place.set + way, &mut out);
        while self.keys.live_bytes() > KEY_BYTES_MAX {
            self.hand = (self.hand + 1) % (2 * self.sets.len());
            self.hand_out(self.hand, &mut out);
        }
        let cell = K::store(key, &mut self.keys);
        self.sets[place.set].0[way] = Slot { cell, value };
        self.len += 1;
    }

    /// Hands out at most `entries_max` entries; true when none is left.
    pub fn drain(&mut self, entries_max: usize, mut out: impl FnMut(Held<'_, K>, &V)) -> bool {
        let mut left = entries_max;
        while self.len > 0 && left > 0 {
            if self.drained >= 2 * self.sets.len() {
                self.drained = 0;
            }
            left -= usize::from(self.hand_out(self.drained, &mut out));
            self.drained += 1;
        }
        if self.len > 0 {
            return false;
        }
        self.drained = 0;
        true
    }

    /// Empties a slot; whether there was something in it.
    fn hand_out(&mut self, slot: usize, out: &mut impl FnMut(Held<'_, K>, &V)) -> bool {
        let vacant = Slot { cell: K::VACANT, value: V::default() };
        let Slot { cell, value } = std::mem::replace(&mut self.sets[slot / 2].0[slot % 2], vacant);
        let taken = !K::is_vacant_cell(&cell);
        if taken {
            self.len -= 1;
            out(Held { cell: &cell, keys: &self.keys }, &value);
            K::discard(&cell, &mut self.keys);
            if self.keys.wants_compaction() {
                self.compact();
            }
        }
        taken
    }

    #[cold]
    fn compact(&mut self) {
        for _ in 0..COMPACTION_STEP {
            self.compaction = (self.compaction + 1) % (2 * self.sets.len());
            let slot = &mut self.sets[self.compaction / 2].0[self.compaction % 2];
            if !K::is_vacant_cell(&slot.cell) {
                K::relocate(&mut slot.cell, &mut self.keys);
            }
        }
    }
}

/// Whether a cell holds the key of this place; never of a vacant one, as the key is not.
#[inline(always)]
fn holds<K: TableKey>(cell: &K::Cell, place: &Place<K::Cell>, key: K::Ref<'_>, keys: &Arena) -> bool {
    match &place.cell {
        Some(short) => cell == short,
        None => K::matches(cell, key, keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::splitmix;
    use std::collections::BTreeMap;
    use tidegate_storage::table::{Bytes, Fixed};

    /// Goal: each record is in exactly one value that comes out.
    /// Method: skewed keys, short and long, through tables of 2 to 1,024 slots, drained in the middle, in small
    /// steps with updates between them; sums compared with a map.
    #[test]
    fn what_comes_out_adds_up_to_what_went_in() {
        for slots in [1, 2, 8, 64, 1_024] {
            let mut combiner = Combiner::<Bytes, u64>::new(slots);
            let mut expected: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            let mut found: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            let mut out =
                |held: Held<'_, Bytes>, value: &u64| *found.entry(held.key().to_vec()).or_default() += value;
            for i in 0..40_000u64 {
                let drawn = splitmix((slots as u64) << 32 | i);
                let key = (drawn % 2_000).min(drawn >> 32 & 255);
                let key = "k".repeat(1 + key as usize % 40) + &key.to_string();
                combiner.update(key.as_bytes(), |value| *value += i, &mut out);
                *expected.entry(key.into_bytes()).or_default() += i;
                if drawn >> 40 & 1_023 == 0 {
                    combiner.drain(drawn as usize % 7, &mut out);
                }
                assert!(combiner.len <= slots.max(2));
            }
            while !combiner.drain(100, &mut out) {}
            assert!(combiner.len == 0);
            assert_eq!(found, expected, "{slots} slots");
        }
    }

    /// Goal: every key of a full range is counted, also the one that a vacant slot looks like.
    #[test]
    fn no_key_of_a_full_range_is_lost() {
        let vacant = Fixed::<u64>::VACANT;
        let (mut combiner, mut sum) = (Combiner::<Fixed<u64>, u64>::new(4), 0);
        for key in [0, vacant, 1, vacant, u64::MAX] {
            combiner.update(key, |value| *value += key, |_, value| sum += u128::from(*value));
        }
        combiner.drain(usize::MAX, |_, value| sum += u128::from(*value));
        assert_eq!(sum, 2 * u128::from(vacant) + 1 + u128::from(u64::MAX));
    }

    /// Goal: frequent keys stay however many rare ones come.
    #[test]
    fn a_key_that_came_twice_outlasts_those_that_come_once() {
        let (mut combiner, mut out) = (Combiner::<Fixed<u64>, u64>::new(2), Vec::new());
        for key in [7, 7].into_iter().chain(100..200).chain([7]) {
            combiner.update(key, |value| *value += 1, |held, value| out.push((held.key(), *value)));
        }
        assert_eq!(out, (100..199).map(|key| (key, 1)).collect::<Vec<_>>());
        combiner.drain(usize::MAX, |held, value| out.push((held.key(), *value)));
        assert_eq!(out[99..], [(7, 3), (199, 1)]);
    }

    /// Goal: memory is bounded whatever the keys.
    /// Method: 200 MB of keys of 10 kB, all different, through 4,096 slots.
    #[test]
    fn long_keys_do_not_pile_up() {
        let mut combiner = Combiner::<Bytes, u64>::new(4_096);
        let mut key = vec![b'x'; 10_000];
        let mut count = 0;
        for i in 0..20_000u64 {
            key[..8].copy_from_slice(&i.to_le_bytes());
            combiner.update(&key, |value| *value += 1, |_, value| count += value);
            assert!(
                combiner.keys.memory_bytes() < 8 * KEY_BYTES_MAX,
                "{} bytes",
                combiner.keys.memory_bytes()
            );
        }
        combiner.drain(usize::MAX, |_, value| count += value);
        assert_eq!(count, 20_000);
    }
}
