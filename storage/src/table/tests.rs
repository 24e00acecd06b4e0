//! The table against a model, and its growth at every size.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Keys whose hash keeps only the bits of a mask: collisions of every kind.
pub(crate) struct Masked<const MASK: u64>;

impl<const MASK: u64> TableKey for Masked<MASK> {
    type Ref<'a> = u64;
    type Cell = u64;
    const VACANT: u64 = <Fixed<u64> as TableKey>::VACANT;

    fn hash(key: u64) -> u64 {
        Fixed::<u64>::hash(key) & MASK
    }

    fn hash_cell(cell: &u64, _: &Arena) -> u64 {
        Self::hash(*cell)
    }

    fn is_vacant(key: u64) -> bool {
        key == Self::VACANT
    }

    fn is_vacant_cell(cell: &u64) -> bool {
        *cell == Self::VACANT
    }

    fn matches(cell: &u64, key: u64, _: &Arena) -> bool {
        *cell == key
    }

    fn short(key: u64) -> Option<u64> {
        Some(key)
    }

    fn store(key: u64, _: &mut Arena) -> u64 {
        key
    }

    fn load<'a>(cell: &'a u64, _: &'a Arena) -> u64 {
        *cell
    }

    fn discard(_: &u64, _: &mut Arena) {}

    fn relocate(_: &mut u64, _: &mut Arena) {}

    const ENCODED_BYTES: Option<usize> = Some(8);

    fn encode(cell: &u64, _: &Arena, out: &mut Vec<u8>) {
        out.extend_from_slice(&cell.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<u64> {
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

const GROUPS: Range<u32> = 5..9;

fn group_of(key: u64) -> u32 {
    GROUPS.start + (key % 4) as u32
}

#[derive(Debug, Clone)]
enum Op {
    Add(u64, u64),
    Set(u64, u64),
    Remove(u64),
    RemoveGroup(u32),
    Walk,
}

/// Keys from a small range, so that they meet, and the one that looks like a vacant cell.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = prop_oneof![20 => 0..900u64, 1 => Just(Fixed::<u64>::VACANT), 1 => any::<u64>()];
    let op = prop_oneof![
        12 => (key.clone(), any::<u64>()).prop_map(|(key, by)| Op::Add(key, by)),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, to)| Op::Set(key, to)),
        4 => key.prop_map(Op::Remove),
        1 => (0..40u32).prop_map(|n| if n < 4 { Op::RemoveGroup(GROUPS.start + n) } else { Op::Walk }),
    ];
    prop::collection::vec(op, 1..1500)
}

fn assert_same<K: for<'a> TableKey<Ref<'a> = u64>>(table: &Table<K, u64>, model: &BTreeMap<u64, u64>) {
    assert_eq!(table.len(), model.len());
    let mut seen: Vec<_> = table.iter().map(|(group, key, value)| (group, key, *value)).collect();
    assert!(seen.is_sorted_by_key(|(group, ..)| *group), "not in group order");
    seen.sort_unstable();
    let mut want: Vec<_> = model.iter().map(|(key, value)| (group_of(*key), *key, *value)).collect();
    want.sort_unstable();
    assert_eq!(seen, want);
}

fn run<K: for<'a> TableKey<Ref<'a> = u64>>(ops: &[Op]) {
    let mut table = Table::<K, u64>::new(GROUPS);
    let mut model = BTreeMap::new();
    for op in ops {
        match *op {
            Op::Add(key, by) => {
                let value = table.entry(group_of(key), key, || 0);
                *value = value.wrapping_add(by);
                let entry: &mut u64 = model.entry(key).or_default();
                *entry = entry.wrapping_add(by);
                assert_eq!(*value, *entry);
            }
            Op::Set(key, to) => {
                let found = table.get_mut(group_of(key), key).map(|value| *value = to).is_some();
                assert_eq!(found, model.get_mut(&key).map(|value| *value = to).is_some());
            }
            Op::Remove(key) => {
                assert_eq!(table.remove(group_of(key), key), model.remove(&key), "key {key}");
                assert_eq!(table.get(group_of(key), key), None);
            }
            Op::RemoveGroup(group) => {
                let keys: Vec<_> = model.keys().copied().filter(|key| group_of(*key) == group).collect();
                for key in keys {
                    assert_eq!(table.remove(group, key), model.remove(&key));
                }
            }
            Op::Walk => assert_same(&table, &model),
        }
    }
    for (key, value) in &model {
        assert_eq!(table.get(group_of(*key), *key), Some(value));
    }
    assert_same(&table, &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Goal: the table is a map, whatever the hashes. Method: random operations beside
    /// a `BTreeMap`: good hashes; all equal; 16 different; equal but in the bits that
    /// choose the slot, the bucket, or the page.
    #[test]
    fn agrees_with_a_model(ops in ops()) {
        run::<Fixed<u64>>(&ops);
        run::<Masked<0>>(&ops);
        run::<Masked<0xf>>(&ops);
        run::<Masked<0xffff_ffff>>(&ops);
        run::<Masked<{ 0x1f << 59 }>>(&ops);
        run::<Masked<{ 0x7ff_ffff << 32 }>>(&ops);
        run::<Masked<{ 1 << 58 }>>(&ops);
    }

    /// Goal: byte strings, short and long, in any mix. Method: as above.
    #[test]
    fn byte_keys_agree_with_a_model(
        keys in prop::collection::vec(prop::collection::vec(0..3u8, 0..24), 1..600),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
    ) {
        let mut table = Table::<Bytes, u32>::new(0..1);
        let mut model = BTreeMap::new();
        for key in &keys {
            *table.entry(0, key, || 0) += 1;
            *model.entry(key.clone()).or_insert(0) += 1;
        }
        for index in removed {
            let key = &keys[index.index(keys.len())];
            prop_assert_eq!(table.remove(0, key), model.remove(key));
        }
        while !table.compact_step(7, |_, _| ()) {}
        let seen: BTreeMap<_, _> = table.iter().map(|(_, key, n)| (key.to_vec(), *n)).collect();
        prop_assert_eq!(table.len(), model.len());
        prop_assert_eq!(seen, model);
    }
}

/// Goal: each growth step of a page and each split keeps every entry.
/// Method: after every insert up to three pages a group all keys are looked up, with
/// slots of several sizes, hence pages of 256, 128, 32 and 8 slots.
#[test]
fn every_size_keeps_every_entry() {
    fn fill<const N: usize>(keys: u64) {
        let mut table = Table::<Fixed<u64>, [u64; N]>::new(0..2);
        for new in 0..keys {
            *table.entry((new % 2) as u32, new, || [0; N]) = [new; N];
            for key in 0..=new {
                assert_eq!(table.get((key % 2) as u32, key), Some(&[key; N]), "{N}: {key} after {new}");
            }
            assert_eq!(table.get((new % 2) as u32 ^ 1, new), None, "a key of the other group");
        }
        assert_eq!(table.iter().count(), keys as usize);
    }
    fill::<1>(700);
    fill::<2>(700);
    fill::<9>(400);
    fill::<90>(100);
}

/// Goal: 32,768 groups of one key each take little memory, and empty ones nearly none.
#[test]
fn many_groups_of_few_keys_are_cheap() {
    let groups = 32_768;
    let mut table = Table::<Fixed<u64>, u64>::new(0..groups);
    assert!(table.memory_bytes() <= 65 * groups as usize, "{} bytes empty", table.memory_bytes());
    for key in 0..groups {
        *table.entry(key, u64::from(key), || 1) += 1;
    }
    let bytes = table.memory_bytes() / groups as usize;
    assert!(bytes <= 300, "{bytes} bytes a group");
    assert!(
        table.iter().enumerate().all(|(at, (group, key, n))| (at as u32, at as u64, 2) == (group, key, *n))
    );
}

/// Goal: at 10^5 keys, memory a key is bounded, prefetching pays, and changes nothing.
#[test]
fn many_keys_fill_pages_well() {
    let mut table = Table::<Fixed<u64>, u64>::new(0..16);
    assert!(table.is_small());
    for round in 0..3 {
        for key in 0..100_000u64 {
            let (group, hash) = ((key % 16) as u32, table.hash(key));
            table.prefetch(group, hash);
            *table.entry_hashed(group, hash, key, || 0) += key + round;
        }
    }
    assert!(!table.is_small());
    assert!(table.overflow.values().map(Vec::len).sum::<usize>() < 20, "the overflow is for a few");
    let bytes = table.memory_bytes() / table.len();
    assert!(bytes <= 56, "{bytes} bytes a key, of which 16 are key and value");
    assert!(table.iter().all(|(_, key, sum)| *sum == 3 * key + 3));
}

/// Goal: keys that a split cannot part neither hang the table nor blow up its directory.
/// Method: 3,000 keys with one hash, then 3,000 that differ only in the page bits' top.
#[test]
fn equal_hashes_end_in_the_overflow_list() {
    fn fill<const MASK: u64>() -> usize {
        let mut table = Table::<Masked<MASK>, u64>::new(0..1);
        for key in 0..3000 {
            *table.entry(0, key, || 7) += key;
        }
        for key in 0..3000 {
            assert_eq!(table.get(0, key), Some(&(key + 7)));
            assert_eq!(table.get(0, key + 3000), None);
        }
        table.memory_bytes()
    }
    assert!(fill::<0>() < 256 << 10);
    assert!(fill::<{ 1 << 58 }>() < 256 << 10);
    assert!(fill::<{ !(0x3_ffff << 32) }>() < 512 << 10);
}

/// Goal: a table whose keys come and go does not grow, and gives back what a peak took.
#[test]
fn removed_keys_leave_nothing_behind() {
    let mut table = Table::<Bytes, u64>::new(0..4);
    let mut peak = 0;
    for round in 0..8u64 {
        for n in 0..5000u64 {
            let key = format!("key {n} of round {round}");
            *table.entry((n % 4) as u32, key.as_bytes(), || n) += 1;
        }
        if round == 1 {
            peak = table.memory_bytes();
        }
        for n in 0..5000u64 {
            let key = format!("key {n} of round {round}");
            assert_eq!(table.remove((n % 4) as u32, key.as_bytes()), Some(n + 1));
        }
        assert!(table.is_empty() && table.iter().next().is_none());
        assert!(table.is_small(), "pages are given back");
    }
    assert!(table.memory_bytes() <= peak * 5 / 4, "{} after {peak}", table.memory_bytes());
}

/// Goal: a cursor goes on where it stopped. Method: steps of 7 entries.
#[test]
fn a_cursor_resumes() {
    let mut table = Table::<Fixed<u32>, u32>::new(3..7);
    for key in 0..1000u32 {
        table.entry(3 + key % 4, key, || key);
    }
    let mut cursor = Cursor::default();
    let mut seen = BTreeSet::new();
    loop {
        let step: Vec<_> = std::iter::from_fn(|| table.next(&mut cursor)).take(7).collect();
        seen.extend(step.iter().map(|(_, key, _)| *key));
        if step.len() < 7 {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
    assert!(table.next(&mut cursor).is_none(), "stays at the end");
}

/// Goal: blobs stay right over updates, removals and a compaction among which the table grows.
#[test]
fn blobs_survive_updates_growth_and_compaction() {
    let mut table = Table::<Fixed<u64>, BlobHandle>::new(0..2);
    let text = |key: u64, version: u64| format!("{key}:{version}:").repeat((key % 9) as usize).into_bytes();
    let put = |table: &mut Table<Fixed<u64>, BlobHandle>, key: u64, version| {
        let hash = table.hash(key);
        let (handle, blobs) = table.entry_and_blobs((key % 2) as u32, hash, key, BlobHandle::default);
        blobs.put(handle, &text(key, version));
    };
    for version in 0..20 {
        for key in 0..3000 {
            put(&mut table, key, version);
        }
    }
    for key in (0..3000).filter(|key| key % 5 != 0) {
        let handle = table.remove((key % 2) as u32, key).unwrap();
        table.blobs_mut().free(handle);
    }
    assert!(table.wants_compaction(), "{:?} live {}", table, table.blobs().live_bytes());
    let mut new = 10_000;
    loop {
        let done = table.compact_step(64, |handle, blobs| {
            blobs.relocate(handle);
        });
        put(&mut table, new, 19);
        new += 1;
        if done {
            break;
        }
    }
    assert!(!table.wants_compaction(), "{} garbage", table.blobs().garbage_bytes());
    for key in (0..3000).filter(|key| key % 5 == 0).chain(10_000..new) {
        let handle = *table.get((key % 2) as u32, key).unwrap();
        assert_eq!(table.blob_get(handle), text(key, 19));
    }
}

/// Goal: a default that panics leaves the table as it was.
#[test]
fn a_panicking_default_changes_nothing() {
    let mut table = Table::<Fixed<u64>, u64>::new(0..1);
    table.entry(0, 1, || 1);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        table.entry(0, 2, || panic!("as asked"));
    }));
    assert!(result.is_err());
    assert_eq!((table.len(), table.get(0, 2)), (1, None));
    assert_eq!(*table.entry(0, 2, || 5), 5);
}

#[test]
#[should_panic(expected = "key group 9 is not of this table, which owns 5..9")]
fn a_foreign_group_is_refused() {
    Table::<Fixed<u64>, u64>::new(GROUPS).get(9, 1);
}
