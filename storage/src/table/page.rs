//! Pages: up to 256 slots, searched from a slot that the hash says to the first vacant one.
//!
//! ```text
//! labels       one byte a slot, that of slot 0 last
//! head, 8 B    written | count | depth | crowded
//! slots        (cell, value) x capacity
//! ```
//!
//! A slot's label says in which epoch its entry was last changed; see [`epoch`](super::epoch). Labels and head lie
//! before the slots, backwards, so that each is at an offset from the first slot that does not depend on the
//! capacity: of a lookup that has the slot's index, comparing the label takes four instructions. In a page of few
//! slots they share one cache line.
//!
//! The search goes through slots `home ^ 0, home ^ 1, home ^ 2, …`: first those in the cache line of the home
//! slot, then those in its neighbour, and never out of the page. It is in one case of four that it goes on after
//! the first slot, and in few that it leaves the line; the head it does not need. A page is at most three
//! quarters full, so a search ends; one of less than 64 slots is at most half full, since where a table fits the
//! cache a search that goes on costs more than a slot.
//!
//! **Removal** leaves no tombstone. All slots before an entry's own in its search must have entries, so one whose
//! search meets the hole moves there, and leaves a hole in turn. Only few slots need a look: `home ^ i` goes
//! through whole aligned blocks of 2, 4, 8, … slots one after the other, so a block that has a vacancy besides
//! the hole was left by no search.
//!
//! With 256 slots of 16 bytes a page has 4 KiB, and the directory of 10^6 keys 60 KiB, which stay in the
//! core's own cache: what misses it is one line of slots a lookup.

use super::{Arena, TableKey};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Slots of a page, at most.
pub(super) const CAPACITY_LIMIT: usize = 256;

/// Slots of a group's first page: with 16-byte slots it takes 192 bytes.
const CAPACITY_FIRST: usize = 8;

/// Bytes of slots of a page, at most, unless eight slots take more.
const SLOTS_BYTES_MAX: usize = 4096;

/// Pages of fewer slots are at most half full, others three quarters.
const SPARSE_BELOW: usize = 64;

/// What an insert, a split or a snapshot reads of a page besides its slots and labels.
#[repr(C, align(8))]
pub(super) struct Head {
    /// The last snapshot that has gone through this page, by its number.
    pub(super) written: u32,
    /// Slots with an entry.
    pub(super) count: u16,
    /// How many bits of the directory index all keys of this page agree in.
    pub(super) depth: u8,
    /// Whether some key of this page is in the overflow list of the group.
    pub(super) crowded: bool,
}

/// Bytes of a head, which lies right before the first slot.
const HEAD_BYTES: usize = 8;

const _: () = assert!(size_of::<Head>() == HEAD_BYTES, "labels begin where the head does");

/// One entry, or a vacant cell and nothing.
#[repr(C)]
pub(super) struct Slot<C, V> {
    pub(super) cell: C,
    pub(super) value: MaybeUninit<V>,
}

impl<C: Copy, V: Copy> Clone for Slot<C, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Copy, V: Copy> Copy for Slot<C, V> {}

/// The bits of the hash that choose a page: 32 and up.
#[inline(always)]
pub(super) fn directory_bits(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Where the search for a key begins: the lowest bits. `mask` is the capacity less one.
#[inline(always)]
fn home(hash: u64, mask: u32) -> usize {
    (hash as u32 & mask) as usize
}

/// A pointer to a page of slots with cells `C` and values `V`.
///
/// The page does not know its capacity: all pages of a group have the same, and
/// the group knows it. Every `mask` below is that capacity less one.
pub(super) struct Page<C, V> {
    /// The first slot. The head lies before it, since an address without an offset to
    /// add is one instruction less for each lookup.
    slots: NonNull<Slot<C, V>>,
}

impl<C, V> Clone for Page<C, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, V> Copy for Page<C, V> {}

impl<C: Copy + 'static, V: Copy> Page<C, V> {
    const SLOT: usize = size_of::<Slot<C, V>>();

    /// Slots in a cache line; a power of two.
    const LINE: usize = match 64 / Self::SLOT {
        0 | 1 => 1,
        2 | 3 => 2,
        4..8 => 4,
        _ => 8,
    };

    /// Slots of a page of a group that has several pages.
    pub(super) const CAPACITY_MAX: usize = {
        assert!(align_of::<Slot<C, V>>() <= 64, "keys and values are aligned to 64 bytes at most");
        let mut capacity = CAPACITY_LIMIT;
        while capacity > CAPACITY_FIRST && capacity * Self::SLOT > SLOTS_BYTES_MAX {
            capacity /= 2;
        }
        capacity
    };

    /// Slots of the first page of a group.
    pub(super) const CAPACITY_MIN: usize = CAPACITY_FIRST;

    /// Bytes before the first slot, which lies on a cache line.
    const fn bytes_before(mask: u32) -> usize {
        (HEAD_BYTES + mask as usize + 1).next_multiple_of(64)
    }

    /// Bytes of a page, a multiple of a cache line.
    pub(super) const fn bytes(mask: u32) -> usize {
        let capacity = mask as usize + 1;
        (Self::bytes_before(mask) + capacity * Self::SLOT).next_multiple_of(64)
    }

    /// Entries of a page, at most.
    pub(super) const fn entries_max(mask: u32) -> usize {
        let capacity = mask as usize + 1;
        if capacity < SPARSE_BELOW { capacity / 2 } else { capacity / 4 * 3 }
    }

    /// Makes an empty page of a block.
    ///
    /// # Safety
    ///
    /// `block` is `bytes(mask)` long, aligned to 64, writable, and nobody else uses it.
    pub(super) unsafe fn format(block: NonNull<u8>, mask: u32, vacant: C) -> Self {
        // SAFETY: the block is longer than that.
        let page: Self = Page { slots: unsafe { block.add(Self::bytes_before(mask)) }.cast() };
        // SAFETY: what lies before the slots is of the block.
        unsafe { block.write_bytes(0, Self::bytes_before(mask)) };
        // SAFETY: as above; the first slot is aligned to 64, so the head before it is aligned to 8.
        unsafe { page.head().write(Head { written: 0, count: 0, depth: 0, crowded: false }) };
        for index in 0..=mask as usize {
            // SAFETY: `index <= mask`, and the block has room for `mask + 1` slots.
            unsafe { (&raw mut (*page.slot(index)).cell).write(vacant) };
        }
        page
    }

    /// The block that the page was made of.
    pub(super) fn block(self, mask: u32) -> NonNull<u8> {
        // SAFETY: so many bytes lie before the first slot; `format` put them there.
        unsafe { self.slots.cast::<u8>().sub(Self::bytes_before(mask)) }
    }

    #[inline(always)]
    pub(super) fn head(self) -> *mut Head {
        self.slots.as_ptr().cast::<Head>().wrapping_sub(1)
    }

    /// Where the label of slot `index` lies.
    ///
    /// # Safety
    ///
    /// `index` is below the capacity of the page.
    #[inline(always)]
    pub(super) unsafe fn label(self, index: usize) -> *mut u8 {
        // SAFETY: a byte for each slot lies before the head, `bytes_before` has counted them.
        unsafe { self.slots.as_ptr().cast::<u8>().sub(HEAD_BYTES + 1 + index) }
    }

    /// All labels, that of slot 0 last.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and nobody changes a label while the slice is used.
    pub(super) unsafe fn labels<'a>(self, mask: u32) -> &'a mut [u8] {
        // SAFETY: `format` has initialised so many bytes from the last slot's label on.
        unsafe { std::slice::from_raw_parts_mut(self.label(mask as usize), mask as usize + 1) }
    }

    /// Where slot `index` lies.
    ///
    /// # Safety
    ///
    /// `index` is below the capacity of the page.
    #[inline(always)]
    pub(super) unsafe fn slot(self, index: usize) -> *mut Slot<C, V> {
        // SAFETY: the caller vouches for `index`; the first slot is aligned, since it is
        // 64 bytes into an aligned block, and slots are aligned to 64 at most.
        unsafe { self.slots.as_ptr().add(index) }
    }

    /// Asks for the slot where the search for a key begins.
    #[inline(always)]
    pub(super) fn prefetch(self, hash: u64, mask: u32) {
        let home = home(hash, mask);
        let slot = self.slots.as_ptr().wrapping_add(home);
        prefetch(slot);
        if !64usize.is_multiple_of(Self::SLOT) {
            // The slot may end in another line than it begins in.
            prefetch(slot.wrapping_add(1).cast::<u8>().wrapping_sub(1));
        }
    }

    /// Index of the slot of a key, which is not the one that looks vacant. In a `sparse` page it is expected in its home
    /// slot.
    ///
    /// # Safety
    ///
    /// The page is live, and `mask` its own.
    #[inline(always)]
    pub(super) unsafe fn find<K: TableKey<Cell = C>>(
        self,
        hash: u64,
        mask: u32,
        key: K::Ref<'_>,
        arena: &Arena,
        sparse: bool,
    ) -> Option<usize> {
        let home = home(hash, mask);
        if !sparse {
            // All slots of the line without a branch: which of them has the key nobody could predict.
            // SAFETY: a page has a multiple of `LINE` slots, so `home ^ at` is one of them.
            unsafe {
                let matches = |at: usize| K::matches(&(*self.slot(home ^ at)).cell, key, arena);
                let at = (1..Self::LINE).fold(0, |found, at| found | (at * usize::from(matches(at))));
                if matches(at) {
                    return Some(home ^ at);
                }
            }
        }
        let mut step = 0;
        loop {
            // SAFETY: a page is never full, so a vacant slot is found before `step` exceeds `mask`, and until then
            // `home ^ step` does not exceed it either. The cell of every slot is initialised.
            unsafe {
                let slot = self.slot(home ^ step);
                if K::matches(&(*slot).cell, key, arena) {
                    return Some(home ^ step);
                }
                if K::is_vacant_cell(&(*slot).cell) {
                    return None;
                }
            }
            step += 1;
        }
    }

    /// Puts in an entry whose key is not there, and says where it lies; `None` if the page has no room.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own.
    pub(super) unsafe fn insert<K: TableKey<Cell = C>>(
        self,
        hash: u64,
        mask: u32,
        entry: Slot<C, V>,
        label: u8,
    ) -> Option<*mut Slot<C, V>> {
        // SAFETY: the head of a live page is initialised; `find` gives no slot where nothing matches, and
        // ends at a vacant one, since a page is never full.
        unsafe {
            if usize::from((*self.head()).count) >= Self::entries_max(mask) {
                return None;
            }
            let (home, mut step) = (home(hash, mask), 0);
            while !K::is_vacant_cell(&(*self.slot(home ^ step)).cell) {
                step += 1;
            }
            self.slot(home ^ step).write(entry);
            self.label(home ^ step).write(label);
            (*self.head()).count += 1;
            Some(self.slot(home ^ step))
        }
    }

    /// Takes the entry out of a slot. Others may move.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and `slot` the index of one of its slots, with an entry.
    pub(super) unsafe fn remove<K: TableKey<Cell = C>>(self, slot: usize, mask: u32, arena: &Arena) {
        // SAFETY: indices that `misplaced` gives are slots of the page.
        unsafe {
            let mut hole = slot;
            (*self.slot(hole)).cell = K::VACANT;
            while let Some(index) = self.misplaced::<K>(hole, mask, arena) {
                self.slot(hole).write(*self.slot(index));
                self.label(hole).write(*self.label(index));
                (*self.slot(index)).cell = K::VACANT;
                hole = index;
            }
            (*self.head()).count -= 1;
        }
    }

    /// A slot whose entry belongs into the vacant slot `hole`, which its search meets first.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and `hole` at most that.
    unsafe fn misplaced<K: TableKey<Cell = C>>(self, hole: usize, mask: u32, arena: &Arena) -> Option<usize> {
        let mut block = 1;
        let mut vacant = false;
        while block <= mask as usize && !vacant {
            // The other half of the block twice as large: the half with the hole was looked at.
            let from = (hole ^ block) & !(block - 1);
            for index in from..from + block {
                // SAFETY: the block lies in the page, as its size is at most half of the capacity. The cells of
                // slots that are not vacant have a hash.
                let cell = unsafe { &(*self.slot(index)).cell };
                if K::is_vacant_cell(cell) {
                    vacant = true;
                    continue;
                }
                let home = home(K::hash_cell(cell, arena), mask);
                if home ^ hole < home ^ index {
                    return Some(index);
                }
            }
            block *= 2;
        }
        None
    }

    /// Copies all entries to an empty page of twice the capacity.
    ///
    /// # Safety
    ///
    /// Both pages are live and formatted with `mask` and `2 * mask + 1`.
    pub(super) unsafe fn grow_into<K: TableKey<Cell = C>>(self, larger: Self, mask: u32, arena: &Arena) {
        // SAFETY: as the caller vouches. The larger page has room for what this one may hold.
        unsafe {
            (*larger.head()).crowded = (*self.head()).crowded;
            (*larger.head()).written = (*self.head()).written;
            self.for_each::<K>(mask, |entry, label| {
                let put = larger.insert::<K>(K::hash_cell(&entry.cell, arena), 2 * mask + 1, entry, label);
                debug_assert!(put.is_some());
            });
        }
    }

    /// Copies the entries to two empty pages of the same capacity, by directory bit `depth`, and makes those
    /// one bit deeper.
    ///
    /// # Safety
    ///
    /// All three pages are live and formatted with `mask`.
    pub(super) unsafe fn split_into<K: TableKey<Cell = C>>(
        self,
        halves: [Self; 2],
        mask: u32,
        arena: &Arena,
    ) {
        // SAFETY: as the caller vouches. A half has room for all.
        unsafe {
            let depth = (*self.head()).depth;
            for half in halves {
                (*half.head()).crowded = (*self.head()).crowded;
                (*half.head()).written = (*self.head()).written;
                (*half.head()).depth = depth + 1;
            }
            self.for_each::<K>(mask, |entry, label| {
                let hash = K::hash_cell(&entry.cell, arena);
                let half = halves[(directory_bits(hash) >> depth & 1) as usize];
                let put = half.insert::<K>(hash, mask, entry, label);
                debug_assert!(put.is_some());
            });
        }
    }

    /// # Safety
    ///
    /// The page is live and `mask` its own.
    unsafe fn for_each<K: TableKey<Cell = C>>(self, mask: u32, mut f: impl FnMut(Slot<C, V>, u8)) {
        for index in 0..=mask as usize {
            // SAFETY: `index` is at most `mask`, and the cell of every slot is initialised.
            unsafe {
                if !K::is_vacant_cell(&(*self.slot(index)).cell) {
                    f(*self.slot(index), *self.label(index));
                }
            }
        }
    }

    /// The first slot with an entry from `index` on.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own.
    pub(super) unsafe fn taken_from<K: TableKey<Cell = C>>(self, index: usize, mask: u32) -> Option<usize> {
        // SAFETY: as in `for_each`.
        (index..=mask as usize).find(|index| unsafe { !K::is_vacant_cell(&(*self.slot(*index)).cell) })
    }
}

/// Asks for the cache line at `address`. A hint: any address will do.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_follows_the_size_of_a_slot() {
        assert_eq!(Page::<u64, u64>::CAPACITY_MAX, 256);
        assert_eq!(Page::<[u64; 2], u64>::CAPACITY_MAX, 128);
        assert_eq!(Page::<u64, [u64; 8]>::CAPACITY_MAX, 32);
        assert_eq!(Page::<u64, [u64; 1000]>::CAPACITY_MAX, 8);
        assert_eq!(Page::<u64, u64>::bytes(7), 192);
        assert_eq!(Page::<u64, u64>::bytes(255), 4096 + 256 + 64);
    }

    #[test]
    fn a_page_is_never_full() {
        assert_eq!([7, 31, 63, 255].map(Page::<u64, u64>::entries_max), [4, 16, 48, 192]);
    }
}
