//! The keyed state of one operator of one subtask: a hash table divided by key group.
//!
//! It is what `count()` does per record, so it is built for one thing: find the
//! value of a key that is there, and hand out `&mut V` to it. It holds plain
//! values (`V: Copy`); variable-size ones lie in its [`Arena`] behind a
//! [`BlobHandle`]. It knows no operator, no time and no file.
//!
//! ```text
//! key group ─► group ─► directory ─────────► page ─► slot, and those behind it
//!              64 B     40 B a page          4 KiB   cell, value
//!              mask     by hash bits 32 up           by hash bits 0 to 7
//! ```
//!
//! | module     | what it is                                                     |
//! | ---------- | -------------------------------------------------------------- |
//! | [`key`]    | keys: their hash, and what a slot keeps of them                |
//! | [`arena`]  | bytes of long keys and of values without a fixed size          |
//! | `pool`     | memory for pages: chunks of 2 MiB, huge pages asked for        |
//! | `page`     | up to 256 slots, searched line by line                         |
//! | `group`    | the pages of one key group: first page, growth, split          |
//! | [`cursor`] | going through all entries, a bounded step at a time            |
//! | [`epoch`]  | which entries changed since when; what a snapshot must keep    |
//! | [`value`]  | what of a value is written to a snapshot                       |
//! | [`delta`]  | entries and removals as bytes                                  |
//! | [`snapshot`] | writing what changed, a bounded step at a time; reading it   |
//!
//! **Growth.** Extendible hashing (Fagin et al., 1979): a page that can seat no
//! further key is split in two, in a few microseconds, and nothing else moves.
//! A group has no page before its first key, and its first page takes 192 bytes
//! and doubles up to full size, so that 32,768 groups of few keys stay cheap.
//! Where hashes are so bad that no split would help, a key goes to the overflow
//! list of its group: found one by one, but found.
//!
//! **Batches.** Of a large table each lookup misses the cache. The caller hashes a
//! batch of records, calls [`Table::prefetch`] for each, and only then
//! [`Table::entry_hashed`]. While [`Table::is_small`], plain [`Table::entry`] is
//! quicker.
//!
//! **Why not** one open-addressed array? It would spare the directory, which stays in
//! the cache, and it would move a whole group or table at once when it grows.
//!
//! `cargo bench --bench table` measures it beside hashbrown and a sized linear table.

pub mod arena;
pub mod cursor;
pub mod delta;
pub mod epoch;
mod group;
pub mod key;
mod page;
mod pool;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
pub mod value;

pub use arena::{Arena, BlobHandle};
pub use cursor::{Cursor, Iter};
pub use key::{Bytes, Fixed, TableKey};
pub use snapshot::StateTable;
pub use value::TableValue;

use epoch::{Epochs, Run};
use group::Group;
pub use page::prefetch;
use page::{Page, Slot, directory_bits};
use pool::Pool;
use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;

/// A table of at most this many bytes of pages is expected to stay in the core's
/// own cache: an L2 of 512 KiB.
const SMALL_BYTES: usize = 512 << 10;

/// Keyed state: a value for each key, divided by key group.
///
/// Every method that takes a `group` panics if it is none of the owned ones. The
/// group is the caller's to compute, and must be the same for a key each time.
pub struct Table<K: TableKey, V: Copy + 'static> {
    /// A boxed slice of `group_mask + 1` groups. Kept as a pointer since groups with one
    /// page point to themselves.
    groups: NonNull<Group<K::Cell, V>>,
    /// The group at an index is the owned one with these lowest bits. Those at the
    /// indices left over stay without a page.
    group_mask: u32,
    small: bool,
    /// Whether there is less than a key to two groups, so that nearly every key is in its home slot.
    sparse: bool,
    first_group: u32,
    group_count: u32,
    len: usize,
    /// The bytes of long keys.
    keys: Arena,
    blobs: Arena,
    /// Stands for the page of a group without one; never written to.
    none: Page<K::Cell, V>,
    pool: Pool,
    /// Keys that no page could seat, by index of the group.
    overflow: BTreeMap<u32, Vec<Overflow<K::Cell, V>>>,
    directory_bytes: usize,
    compaction: Cursor,
    epochs: Epochs,
    /// How an entry is encoded; set by the first snapshot, which asks of `V` what the table does not.
    encode: Option<Encode<K::Cell, V>>,
}

/// Appends the entry of a cell and a value, whose bytes lie in the arenas of keys and of values.
type Encode<C, V> = fn(&C, &V, &Arena, &Arena, &mut Vec<u8>);

struct Overflow<C, V> {
    hash: u64,
    /// In a cell since it is changed through pointers, as slots in pages are.
    slot: UnsafeCell<Slot<C, V>>,
    label: Cell<u8>,
}

// SAFETY: all that a table points to is its own, and nothing of it is shared.
unsafe impl<K: TableKey, V: Copy + Send + 'static> Send for Table<K, V> where K::Cell: Send {}

impl<K: TableKey, V: Copy + 'static> Table<K, V> {
    /// An empty table that owns `groups`. Takes 64 bytes a group and no page.
    pub fn new(groups: Range<u32>) -> Self {
        let mut pool = Pool::default();
        let mask = Page::<K::Cell, V>::CAPACITY_MIN as u32 - 1;
        let block = pool.take(Page::<K::Cell, V>::bytes(mask));
        // SAFETY: the block is as long as the page, aligned, and just taken.
        let none = unsafe { Page::format(block, mask, K::VACANT) };
        let places = groups.len().next_power_of_two();
        let boxed: Box<[_]> = (0..places).map(|_| Group::new(none)).collect();
        let start = NonNull::from(Box::leak(boxed)).cast::<Group<K::Cell, V>>();
        for index in 0..places {
            // SAFETY: `index` is below the length of the slice.
            unsafe { Group::point_to_itself(start.add(index).as_ptr()) };
        }
        Table {
            groups: start,
            group_mask: places as u32 - 1,
            small: true,
            sparse: true,
            first_group: groups.start,
            group_count: groups.len() as u32,
            len: 0,
            keys: Arena::default(),
            blobs: Arena::default(),
            none,
            pool,
            overflow: BTreeMap::new(),
            directory_bytes: 0,
            compaction: Cursor::default(),
            epochs: Epochs::default(),
            encode: None,
        }
    }

    /// The key groups that this table owns.
    pub fn groups(&self) -> Range<u32> {
        self.first_group..self.first_group + self.group_count
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the table fits in a core's cache: prefetching does not pay then.
    #[inline(always)]
    pub fn is_small(&self) -> bool {
        self.small
    }

    /// Bytes of memory taken: pages in use or free, directories, groups, arenas.
    pub fn memory_bytes(&self) -> usize {
        let overflow: usize =
            self.overflow.values().map(|list| list.capacity() * size_of::<Overflow<K::Cell, V>>()).sum();
        self.pool.memory_bytes()
            + self.directory_bytes
            + (self.group_mask as usize + 1) * size_of::<Group<K::Cell, V>>()
            + self.keys.memory_bytes()
            + self.blobs.memory_bytes()
            + overflow
            + self.epochs.memory_bytes()
    }

    /// The hash to pass to the methods that take one.
    #[inline(always)]
    pub fn hash(&self, key: K::Ref<'_>) -> u64 {
        K::hash(key)
    }

    /// Fetches the slot of a key that is about to be looked up.
    #[inline(always)]
    pub fn prefetch(&self, group: u32, hash: u64) {
        let (page, mask) = self.page(self.index(group), hash);
        page.prefetch(hash, mask);
    }

    /// The value of `key`, or what `default` makes, put in if there was none.
    #[inline(always)]
    pub fn entry(&mut self, group: u32, key: K::Ref<'_>, default: impl FnOnce() -> V) -> &mut V {
        let hash = K::hash(key);
        let slot = match self.find(group, hash, key) {
            Some((page, at)) => self.slot_to_change(group, page, at),
            None => self.entry_cold(group, hash, key, default),
        };
        // SAFETY: the slot has an entry, so its value was written; the reference borrows
        // the table, through which alone it could be reached otherwise.
        unsafe { (*slot).value.assume_init_mut() }
    }

    /// [`entry`](Self::entry) of a key whose hash is known; `hash` must be that of `key`. It is quicker where the
    /// table does not fit the cache.
    #[inline(always)]
    pub fn entry_hashed(
        &mut self,
        group: u32,
        hash: u64,
        key: K::Ref<'_>,
        default: impl FnOnce() -> V,
    ) -> &mut V {
        debug_assert_eq!(hash, K::hash(key));
        let slot = match self.find(group, hash, key) {
            Some((page, at)) => self.known_slot_to_change(group, hash, page, at),
            None => self.entry_cold(group, hash, key, default),
        };
        // SAFETY: the slot has an entry, so its value was written; the reference borrows
        // the table, through which alone it could be reached otherwise.
        unsafe { (*slot).value.assume_init_mut() }
    }

    /// [`entry`](Self::entry), and beside it the arena in which its blobs lie.
    #[inline(always)]
    pub fn entry_and_blobs(
        &mut self,
        group: u32,
        hash: u64,
        key: K::Ref<'_>,
        default: impl FnOnce() -> V,
    ) -> (&mut V, &mut Arena) {
        let value: *mut V = self.entry_hashed(group, hash, key, default);
        // SAFETY: the value lies in a page or an overflow list, neither of which the
        // arena contains; both references borrow the table.
        unsafe { (&mut *value, &mut self.blobs) }
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, group: u32, key: K::Ref<'_>) -> Option<&V> {
        self.get_hashed(group, K::hash(key), key)
    }

    /// [`get`](Self::get) of a key whose hash is known; `hash` must be that of `key`.
    #[inline]
    pub fn get_hashed(&self, group: u32, hash: u64, key: K::Ref<'_>) -> Option<&V> {
        let slot = match self.find(group, hash, key) {
            // SAFETY: `find` gives slots of the page.
            Some((page, at)) => unsafe { page.slot(at) },
            None => self.overflow_entry(group, hash, key)?.slot.get(),
        };
        // SAFETY: as in `entry_hashed`.
        Some(unsafe { (*slot).value.assume_init_ref() })
    }

    /// The value of `key`, to be changed.
    #[inline]
    pub fn get_mut(&mut self, group: u32, key: K::Ref<'_>) -> Option<&mut V> {
        let hash = K::hash(key);
        let slot = match self.find(group, hash, key) {
            Some((page, at)) => self.slot_to_change(group, page, at),
            None => self.overflow_slot_to_change(group, hash, key)?,
        };
        // SAFETY: as in `entry_hashed`.
        Some(unsafe { (*slot).value.assume_init_mut() })
    }

    /// Takes out `key` and returns its value. Blobs of the value remain the caller's to free.
    pub fn remove(&mut self, group: u32, key: K::Ref<'_>) -> Option<V> {
        let hash = K::hash(key);
        let index = self.index(group);
        let found = self.find(group, hash, key);
        let slot = match found {
            Some((page, at)) => self.slot_to_change(group, page, at),
            None => self.overflow_slot_to_change(group, hash, key)?,
        };
        // SAFETY: the slot has an entry, so both parts were written.
        let (cell, value) = unsafe { ((*slot).cell, (*slot).value.assume_init()) };
        self.note_removal(group, &cell);
        K::discard(&cell, &mut self.keys);
        if let Some((page, at)) = found {
            let (_, mask) = self.page(index, hash);
            // SAFETY: the slot is of this page, and has an entry. The page is at the place of its keys.
            unsafe {
                page.remove::<K>(at, mask, &self.keys);
                let group = self.group(index);
                Group::forget(group, directory_bits(hash) & (*group).dir_mask, page);
            }
        } else {
            self.remove_overflow(index as u32, slot);
        }
        self.set_len(self.len - 1);
        self.shrink(index);
        Some(value)
    }

    /// The bytes of a value.
    #[inline]
    pub fn blob_get(&self, handle: BlobHandle) -> &[u8] {
        self.blobs.get(handle)
    }

    /// Makes `handle`, which is to be kept in a value of this table, stand for a copy of `bytes`.
    #[inline]
    pub fn blob_put(&mut self, handle: &mut BlobHandle, bytes: &[u8]) {
        self.blobs.put(handle, bytes);
    }

    /// The arena of the values.
    pub fn blobs(&self) -> &Arena {
        &self.blobs
    }

    /// The arena of the values, to put and free blobs.
    pub fn blobs_mut(&mut self) -> &mut Arena {
        &mut self.blobs
    }

    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.sparse = len * 2 <= self.group_count as usize;
    }

    /// Where the group is kept. One that is not owned shares its place with another:
    /// it is told by `check_owned`, when a key is not found.
    #[inline(always)]
    fn index(&self, group: u32) -> usize {
        debug_assert!(self.groups().contains(&group) || self.not_owned(group));
        (group & self.group_mask) as usize
    }

    fn check_owned(&self, group: u32) {
        if !self.groups().contains(&group) {
            self.not_owned(group);
        }
    }

    #[cold]
    #[inline(never)]
    fn not_owned(&self, group: u32) -> bool {
        panic!("key group {group} is not of this table, which owns {:?}", self.groups());
    }

    #[inline(always)]
    fn group(&self, index: usize) -> *mut Group<K::Cell, V> {
        debug_assert!(index <= self.group_mask as usize);
        // SAFETY: `index()` is the only source of indices, and gives none above the mask.
        unsafe { self.groups.add(index).as_ptr() }
    }

    /// The page that has, or would have, the key, and its capacity less one.
    #[inline(always)]
    fn page(&self, index: usize, hash: u64) -> (Page<K::Cell, V>, u32) {
        // SAFETY: groups live as long as the table; the directory has `dir_mask + 1` pages.
        unsafe {
            let group = &*self.group(index);
            let at = directory_bits(hash) & group.dir_mask;
            (*group.dir.add(at as usize), group.slot_mask)
        }
    }

    /// The page and the index of the slot in which the key is, if it is in a page.
    #[inline(always)]
    fn find(&self, group: u32, hash: u64, key: K::Ref<'_>) -> Option<(Page<K::Cell, V>, usize)> {
        if K::is_vacant(key) {
            return None;
        }
        let (page, mask) = self.page(self.index(group), hash);
        // SAFETY: the page comes from the directory of its group, with the mask of that group.
        let at = unsafe { page.find::<K>(hash, mask, key, &self.keys, self.sparse) }?;
        Some((page, at))
    }

    /// Looks where `find` does not: in the overflow list.
    #[inline(never)]
    fn overflow_entry(&self, group: u32, hash: u64, key: K::Ref<'_>) -> Option<&Overflow<K::Cell, V>> {
        self.check_owned(group);
        let index = self.index(group);
        let (page, _) = self.page(index, hash);
        // SAFETY: the page comes from the directory.
        if K::is_vacant(key) || unsafe { (*page.head()).crowded } {
            let list = self.overflow.get(&(index as u32))?;
            return list.iter().find(|entry| {
                // SAFETY: no reference to an entry is held here; both parts were written.
                entry.hash == hash && K::matches(unsafe { &(*entry.slot.get()).cell }, key, &self.keys)
            });
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn entry_cold(
        &mut self,
        group: u32,
        hash: u64,
        key: K::Ref<'_>,
        default: impl FnOnce() -> V,
    ) -> *mut Slot<K::Cell, V> {
        if let Some(slot) = self.overflow_slot_to_change(group, hash, key) {
            return slot;
        }
        // Before anything is changed, since it is the user's and may panic.
        let value = default();
        let cell = K::store(key, &mut self.keys);
        self.set_len(self.len + 1);
        let index = self.index(group);
        self.note_insert(index);
        self.insert(index, hash, Slot { cell, value: std::mem::MaybeUninit::new(value) })
    }

    /// The slot of an entry that the caller may change.
    #[inline(always)]
    fn slot_to_change(&mut self, group: u32, page: Page<K::Cell, V>, at: usize) -> *mut Slot<K::Cell, V> {
        // SAFETY: `find` gave the page and a slot of it.
        unsafe {
            if *page.label(at) != self.epochs.label {
                self.change(group, page, at);
            }
            page.slot(at)
        }
    }

    /// As [`slot_to_change`](Self::slot_to_change), by the bits of the directory where they tell.
    #[inline(always)]
    fn known_slot_to_change(
        &mut self,
        group: u32,
        hash: u64,
        page: Page<K::Cell, V>,
        at: usize,
    ) -> *mut Slot<K::Cell, V> {
        let to = self.group(self.index(group));
        // SAFETY: groups live as long as the table; the place is within the directory, the slot within the page,
        // and there is a bit for each.
        unsafe {
            let word = *Group::known(to, directory_bits(hash) & (*to).dir_mask).add(at / 64);
            if (*to).changed != self.epochs.epoch() as u32 || word >> (at % 64) & 1 == 0 {
                self.learn(group, hash, page, at);
            }
            page.slot(at)
        }
    }

    /// Does what the label of an entry asks for, and notes that it is done.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, group: u32, hash: u64, page: Page<K::Cell, V>, at: usize) {
        self.slot_to_change(group, page, at);
        let to = self.group(self.index(group));
        // SAFETY: as in `known_slot_to_change`.
        unsafe {
            Group::note_change(to, self.epochs.epoch() as u32);
            *Group::known(to, directory_bits(hash) & (*to).dir_mask).add(at / 64) |= 1 << (at % 64);
        }
    }

    /// An entry in a page is about to be changed, for the first time in this epoch.
    #[cold]
    #[inline(never)]
    fn change(&mut self, group: u32, page: Page<K::Cell, V>, at: usize) {
        // SAFETY: the page is live, and the slot has an entry.
        let (label, written, slot) = unsafe { (*page.label(at), (*page.head()).written, page.slot(at)) };
        if self.epochs.is_running() {
            self.put_aside(group, label, slot, |run| written >= run.plan.number);
        }
        // SAFETY: as above.
        unsafe { page.label(at).write(self.epochs.label) };
        self.note_change(group, label);
    }

    /// As [`slot_to_change`](Self::slot_to_change), of a key in the overflow list.
    #[cold]
    fn overflow_slot_to_change(
        &mut self,
        group: u32,
        hash: u64,
        key: K::Ref<'_>,
    ) -> Option<*mut Slot<K::Cell, V>> {
        let now = self.epochs.label;
        let entry = self.overflow_entry(group, hash, key)?;
        let (label, slot) = (entry.label.replace(now), entry.slot.get());
        if label != now {
            let nth = group - self.first_group;
            self.put_aside(group, label, slot, |run| run.has_passed(nth));
            self.note_change(group, label);
        }
        Some(slot)
    }

    /// Encodes an entry for each snapshot under way that takes its label and has not written it.
    fn put_aside(
        &mut self,
        group: u32,
        label: u8,
        slot: *const Slot<K::Cell, V>,
        is_written: impl Fn(&Run) -> bool,
    ) {
        for run in &mut self.epochs.runs {
            if !run.plan.takes[usize::from(label)] || is_written(run) {
                continue;
            }
            let encode = self.encode.expect("set before a snapshot begins");
            // SAFETY: the slot has an entry, which nobody changes meanwhile.
            let (cell, value) = unsafe { (&(*slot).cell, (*slot).value.assume_init_ref()) };
            run.aside.push(group, |out| encode(cell, value, &self.keys, &self.blobs, out));
            if run.aside.bytes() > run.plan.aside_bytes_max {
                run.give_up();
            }
        }
    }

    fn note_change(&mut self, group: u32, label: u8) {
        self.epochs.live[usize::from(label)] -= 1;
        self.note_insert(self.index(group));
    }

    fn note_insert(&mut self, index: usize) {
        self.epochs.live[usize::from(self.epochs.label)] += 1;
        // SAFETY: groups live as long as the table.
        unsafe { Group::note_change(self.group(index), self.epochs.epoch() as u32) };
    }

    /// Of an entry that was about to be changed.
    fn note_removal(&mut self, group: u32, cell: &K::Cell) {
        self.epochs.live[usize::from(self.epochs.label)] -= 1;
        let Table { epochs, keys, pool, .. } = self;
        let bytes = || pool.memory_bytes();
        epochs.remove(group, bytes, K::ENCODED_BYTES, |out| K::encode(cell, keys, out));
    }
}

impl<K: TableKey, V: Copy + 'static> Drop for Table<K, V> {
    fn drop(&mut self) {
        for index in 0..=self.group_mask as usize {
            // SAFETY: the group is live, and not used after.
            unsafe { Group::free_directory(self.group(index)) };
        }
        let groups = std::ptr::slice_from_raw_parts_mut(self.groups.as_ptr(), self.group_mask as usize + 1);
        // SAFETY: it was made from a box of this length in `new`.
        drop(unsafe { Box::from_raw(groups) });
    }
}

impl<K: TableKey, V: Copy + 'static> std::fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("groups", &self.groups())
            .field("len", &self.len)
            .field("memory_bytes", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}
