//! Going through all entries: in group order, a bounded step at a time.

use super::{Arena, Slot, Table, TableKey};

/// A place between two entries of a [`Table`], from which to go on later.
///
/// The default is the beginning. While no key is put in or removed, every entry
/// is met once; one that is moved by a split in between may be met twice or not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Groups before this one, then place in its directory, or its overflow list behind
    /// the last place; then slot in the page, or index in the list.
    group: u32,
    place: u32,
    slot: u32,
}

/// All entries of a table; see [`Table::iter`].
#[derive(Debug)]
pub struct Iter<'a, K: TableKey, V: Copy + 'static> {
    table: &'a Table<K, V>,
    cursor: Cursor,
}

impl<'a, K: TableKey, V: Copy + 'static> Iterator for Iter<'a, K, V> {
    type Item = (u32, K::Ref<'a>, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.table.next(&mut self.cursor)
    }
}

impl<'a, K: TableKey, V: Copy + 'static> IntoIterator for &'a Table<K, V> {
    type Item = (u32, K::Ref<'a>, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: TableKey, V: Copy + 'static> Table<K, V> {
    /// All entries as (group, key, value), by ascending group. The order within a
    /// group depends on hashes and on the order in which keys came, and on nothing else.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { table: self, cursor: Cursor::default() }
    }

    /// The entry at the cursor, which moves past it; `None` at the end.
    #[inline]
    pub fn next(&self, cursor: &mut Cursor) -> Option<(u32, K::Ref<'_>, &V)> {
        let (group, slot) = self.next_slot(cursor)?;
        // SAFETY: the slot has an entry, so its value was written. Nothing changes it
        // while the table is borrowed.
        let slot = unsafe { &*slot };
        // SAFETY: as above.
        let value = unsafe { slot.value.assume_init_ref() };
        Some((group, K::load(&slot.cell, &self.keys), value))
    }

    /// Whether an arena of this table is more than half garbage.
    pub fn wants_compaction(&self) -> bool {
        self.keys.wants_compaction() || self.blobs.wants_compaction()
    }

    /// Goes through at most `entries_max` entries and moves together what is left in
    /// sparse chunks of the arenas; chunks that become empty are given back.
    ///
    /// `relocate` is called with each value and calls [`Arena::relocate`] for each
    /// handle in it. True when the end was reached and the next step begins anew.
    /// Between two steps the table may be used in every way.
    pub fn compact_step(&mut self, entries_max: usize, mut relocate: impl FnMut(&mut V, &mut Arena)) -> bool {
        for _ in 0..entries_max {
            let mut cursor = self.compaction;
            let next = self.next_slot(&mut cursor);
            self.compaction = cursor;
            let Some((_, slot)) = next else {
                self.compaction = Cursor::default();
                return true;
            };
            // SAFETY: the slot has an entry, and the table is borrowed for writing; the
            // arenas are not part of any slot.
            unsafe {
                K::relocate(&mut (*slot).cell, &mut self.keys);
                relocate((*slot).value.assume_init_mut(), &mut self.blobs);
            }
        }
        false
    }

    fn next_slot(&self, cursor: &mut Cursor) -> Option<(u32, *mut Slot<K::Cell, V>)> {
        while cursor.group < self.group_count {
            let number = self.first_group + cursor.group;
            let index = self.index(number);
            // SAFETY: groups live as long as the table.
            let group = unsafe { &*self.group(index) };
            while cursor.place <= group.dir_mask {
                // SAFETY: the directory has `dir_mask + 1` pages, all live, with the mask
                // of the group. The page of a group without one has no entry.
                unsafe {
                    let page = *group.dir.add(cursor.place as usize);
                    // A page is gone through at the first of its places only.
                    if cursor.place >> (*page.head()).depth == 0
                        && let Some(slot) = page.taken_from::<K>(cursor.slot as usize, group.slot_mask)
                    {
                        cursor.slot = slot as u32 + 1;
                        return Some((number, page.slot(slot)));
                    }
                }
                cursor.place += 1;
                cursor.slot = 0;
            }
            if let Some(list) = self.overflow.get(&(index as u32))
                && let Some(entry) = list.get(cursor.slot as usize)
            {
                cursor.slot += 1;
                return Some((number, entry.slot.get()));
            }
            *cursor = Cursor { group: cursor.group + 1, place: 0, slot: 0 };
        }
        None
    }
}
