//! The pages of one key group, and how they become more.
//!
//! ```text
//! pages 0    dir ─► inline ─► the table's page without entries
//! pages 1    dir ─► inline ─► page of 8, 16, ... slots
//! pages n    dir ─► [p0 p1 p0 p2]      p0 has depth 1, p1 and p2 have depth 2
//! ```
//!
//! The directory is indexed by the lowest of the hash bits that it uses, so it
//! doubles by being repeated. A page of depth d is in it once every 2^d places.
//!
//! Behind the pages the directory has 256 bits for each place: of which slots it is *known* that their entries were
//! changed in the running epoch, by keys of that place. They save a lookup the label, whose cache line it would
//! touch for nothing else: with 10^6 keys the bits take 0.3 MB and stay in the core's cache, labels take 1.7 MB and
//! cost 20 ns a record. A bit that is set is true; one that is not says nothing. They count only while `changed` is
//! the running epoch, and begin with it as zeros.

use super::page::CAPACITY_LIMIT;
use super::{Overflow, Page, SMALL_BYTES, Slot, Table, TableKey, directory_bits};
use std::alloc::Layout;
use std::cell::Cell;

/// Directory bits of a hash. At 130 keys a page that is 8 * 10^9 keys a group.
const DEPTH_MAX: u8 = 26;

/// A directory may have this many places for each of its pages, and no more: where
/// hashes do not differ, splitting would double it for nothing. Hashes that do
/// differ need about 2.
const PLACES_PER_PAGE_MAX: u32 = 8;

/// Overflow entries that a split tries to seat, to bound its work. Only bad hashes bring a key there.
const RESEATED_MAX: usize = 32;

/// Words of the bits of a place.
const WORDS: usize = CAPACITY_LIMIT / 64;

/// One cache line.
#[repr(C, align(64))]
pub(super) struct Group<C, V> {
    /// `dir_mask + 1` pages and the bits of their places: `inline` and `known`, or memory of its own if there are
    /// several places.
    pub(super) dir: *mut Page<C, V>,
    pub(super) dir_mask: u32,
    /// Slots of each page, less one.
    pub(super) slot_mask: u32,
    /// Pages that are this group's own.
    pages: u32,
    /// The epoch of the newest change, by its lowest bits: a snapshot passes by a group without changes since
    /// its base.
    pub(super) changed: u32,
    inline: Page<C, V>,
    /// Right behind `inline`, as the bits of a directory of one place.
    known: [u64; WORDS],
}

const _: () = {
    let known = std::mem::offset_of!(Group<u64, u64>, known);
    assert!(known == std::mem::offset_of!(Group<u64, u64>, inline) + size_of::<Page<u64, u64>>());
    assert!(size_of::<Group<u64, u64>>() == 64);
};

impl<C: Copy + 'static, V: Copy> Group<C, V> {
    /// A group without entries. To be followed by `point_to_itself` at its final place.
    pub(super) fn new(none: Page<C, V>) -> Self {
        Group {
            dir: std::ptr::null_mut(),
            dir_mask: 0,
            slot_mask: Page::<C, V>::CAPACITY_MIN as u32 - 1,
            pages: 0,
            changed: 0,
            inline: none,
            known: [0; WORDS],
        }
    }

    /// # Safety
    ///
    /// `group` is live, has no directory of its own, and will not move from here.
    pub(super) unsafe fn point_to_itself(group: *mut Self) {
        // SAFETY: as the caller vouches. From the whole group, since the bits behind `inline` are reached by it.
        unsafe { (*group).dir = group.byte_add(std::mem::offset_of!(Self, inline)).cast() }
    }

    fn directory(places: usize) -> Layout {
        let bytes = places * (size_of::<Page<C, V>>() + WORDS * size_of::<u64>());
        Layout::from_size_align(bytes, 64).expect("a directory is far smaller than the address space")
    }

    /// Bytes of a directory outside the group.
    fn directory_bytes(&self) -> usize {
        if self.dir_mask == 0 { 0 } else { Self::directory(self.dir_mask as usize + 1).size() }
    }

    /// Gives back the directory if it has memory of its own; `dir` is invalid after.
    ///
    /// # Safety
    ///
    /// `group` is live.
    pub(super) unsafe fn free_directory(group: *mut Self) {
        // SAFETY: `double` took it, with this layout.
        unsafe {
            if (*group).dir_mask > 0 {
                std::alloc::dealloc((*group).dir.cast(), Self::directory((*group).dir_mask as usize + 1));
            }
        }
    }

    /// Repeats the directory.
    ///
    /// # Safety
    ///
    /// `group` is live.
    unsafe fn double(group: *mut Self) {
        // SAFETY: the directory has `dir_mask + 1` pages and behind them the bits; the doubled one has room for
        // twice as many of both, and is new.
        unsafe {
            let places = (*group).dir_mask as usize + 1;
            let layout = Self::directory(places * 2);
            let doubled = std::alloc::alloc(layout).cast::<Page<C, V>>();
            if doubled.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            let (pages, bits) = ((*group).dir, Self::known(group, 0));
            let doubled_bits = doubled.add(places * 2).cast::<u64>();
            for half in 0..2 {
                doubled.add(half * places).copy_from_nonoverlapping(pages, places);
                doubled_bits.add(half * places * WORDS).copy_from_nonoverlapping(bits, places * WORDS);
            }
            Self::free_directory(group);
            (*group).dir = doubled;
            (*group).dir_mask = places as u32 * 2 - 1;
        }
    }

    /// Where the bits of a place lie.
    ///
    /// # Safety
    ///
    /// `group` is live and has the place.
    #[inline(always)]
    pub(super) unsafe fn known(group: *mut Self, place: u32) -> *mut u64 {
        // SAFETY: the bits lie behind the pages, in the order of places.
        unsafe {
            let places = (*group).dir_mask as usize + 1;
            (*group).dir.add(places).cast::<u64>().add(place as usize * WORDS)
        }
    }

    /// Nothing is known of the slots of a page, one of whose places is given.
    ///
    /// # Safety
    ///
    /// `group` is live and the page in its directory at the place.
    pub(super) unsafe fn forget(group: *mut Self, place: u32, page: Page<C, V>) {
        // SAFETY: the page is in the directory once every `2^depth` places.
        unsafe {
            let depth = (*page.head()).depth;
            for place in (place & ((1 << depth) - 1)..=(*group).dir_mask).step_by(1 << depth) {
                Self::known(group, place).write_bytes(0, WORDS);
            }
        }
    }

    /// An entry of the group is changed in `epoch`, the running one.
    ///
    /// # Safety
    ///
    /// `group` is live.
    #[inline(always)]
    pub(super) unsafe fn note_change(group: *mut Self, epoch: u32) {
        // SAFETY: as the caller vouches; the bits of all places lie one behind the other.
        unsafe {
            if (*group).changed != epoch {
                (*group).changed = epoch;
                Self::known(group, 0).write_bytes(0, ((*group).dir_mask as usize + 1) * WORDS);
            }
        }
    }
}

impl<K: TableKey, V: Copy + 'static> Table<K, V> {
    /// Puts in an entry whose key is not there yet, and says where it now lies.
    pub(super) fn insert(
        &mut self,
        index: usize,
        hash: u64,
        entry: Slot<K::Cell, V>,
    ) -> *mut Slot<K::Cell, V> {
        if K::is_vacant_cell(&entry.cell) {
            // The one key that looks like no key.
            return self.push_overflow(index, hash, entry);
        }
        loop {
            let group = self.group(index);
            // SAFETY: groups live as long as the table.
            if unsafe { (*group).pages } == 0 {
                self.first_page(index);
            }
            if let Some(slot) = self.seat(index, hash, entry, self.epochs.label) {
                return slot;
            }
            // SAFETY: as above.
            let mask = unsafe { (*group).slot_mask };
            if (mask as usize) < Page::<K::Cell, V>::CAPACITY_MAX - 1 {
                self.grow(index);
            } else if self.may_split(index, hash) {
                self.split(index, hash);
            } else {
                return self.push_overflow(index, hash, entry);
            }
        }
    }

    fn seat(
        &mut self,
        index: usize,
        hash: u64,
        entry: Slot<K::Cell, V>,
        label: u8,
    ) -> Option<*mut Slot<K::Cell, V>> {
        let (page, mask) = self.page(index, hash);
        // SAFETY: the group has a page of its own, which the directory gave.
        unsafe { page.insert::<K>(hash, mask, entry, label) }
    }

    fn take_page(&mut self, mask: u32) -> Page<K::Cell, V> {
        let bytes = Page::<K::Cell, V>::bytes(mask);
        let block = self.pool.take(bytes);
        self.small = self.pool.used_bytes() <= SMALL_BYTES;
        // SAFETY: the block was just taken, is aligned, and as long as the page.
        unsafe { Page::format(block, mask, K::VACANT) }
    }

    fn give_page(&mut self, page: Page<K::Cell, V>, mask: u32) {
        self.pool.give(page.block(mask), Page::<K::Cell, V>::bytes(mask));
        self.small = self.pool.used_bytes() <= SMALL_BYTES;
    }

    fn first_page(&mut self, index: usize) {
        let mask = Page::<K::Cell, V>::CAPACITY_MIN as u32 - 1;
        let page = self.take_page(mask);
        // SAFETY: the group is live; without pages, its directory is `inline`.
        unsafe {
            let group = self.group(index);
            (*group).inline = page;
            (*group).slot_mask = mask;
            (*group).pages = 1;
        }
    }

    /// Gives a group that has one page a page of twice the capacity.
    #[cold]
    fn grow(&mut self, index: usize) {
        let group = self.group(index);
        // SAFETY: the group is live. Only groups with one page have pages below full size.
        let (page, mask) = unsafe { ((*group).inline, (*group).slot_mask) };
        let larger = self.take_page(2 * mask + 1);
        // SAFETY: both pages are live and formatted with these masks.
        unsafe {
            page.grow_into::<K>(larger, mask, &self.keys);
            (*group).inline = larger;
            (*group).slot_mask = 2 * mask + 1;
            Group::forget(group, 0, larger);
        }
        self.give_page(page, mask);
    }

    /// Whether a split may help the page of `hash`: it is at least half full, so
    /// that it is not the fault of a few keys, and the directory is not out of proportion.
    fn may_split(&self, index: usize, hash: u64) -> bool {
        let (page, mask) = self.page(index, hash);
        // SAFETY: group and page are live.
        unsafe {
            let (group, head) = (&*self.group(index), &*page.head());
            let places = group.dir_mask + 1;
            let roomy = 1u32 << head.depth < places
                || (head.depth < DEPTH_MAX && places < PLACES_PER_PAGE_MAX * (group.pages + 1));
            roomy && u32::from(head.count) * 2 > mask
        }
    }

    #[cold]
    fn split(&mut self, index: usize, hash: u64) {
        #[cfg(feature = "sim")]
        crate::sim::page_split();
        let group = self.group(index);
        let (page, mask) = self.page(index, hash);
        let halves = [self.take_page(mask), self.take_page(mask)];
        // SAFETY: the group is live and all three pages have its mask; the directory has
        // `dir_mask + 1` places, and after doubling more than `depth` bits.
        unsafe {
            let depth = (*page.head()).depth;
            if 1u32 << depth == (*group).dir_mask + 1 {
                self.directory_bytes -= (*group).directory_bytes();
                Group::double(group);
                self.directory_bytes += (*group).directory_bytes();
            }
            page.split_into::<K>(halves, mask, &self.keys);
            let first = directory_bits(hash) & ((1 << depth) - 1);
            for place in (first..=(*group).dir_mask).step_by(1 << depth) {
                *(*group).dir.add(place as usize) = halves[(place >> depth & 1) as usize];
                Group::known(group, place).write_bytes(0, WORDS);
            }
            (*group).pages += 1;
        }
        self.give_page(page, mask);
        self.reseat_overflow(index);
    }

    #[cold]
    fn push_overflow(&mut self, index: usize, hash: u64, slot: Slot<K::Cell, V>) -> *mut Slot<K::Cell, V> {
        if !K::is_vacant_cell(&slot.cell) {
            let (page, _) = self.page(index, hash);
            // SAFETY: the page is live, and the group's own since it was full.
            unsafe { (*page.head()).crowded = true };
        }
        let list = self.overflow.entry(index as u32).or_default();
        list.push(Overflow { hash, slot: slot.into(), label: Cell::new(self.epochs.label) });
        let last = list.last().expect("just pushed");
        last.slot.get()
    }

    pub(super) fn remove_overflow(&mut self, index: u32, slot: *mut Slot<K::Cell, V>) {
        let list = self.overflow.get_mut(&index).expect("the slot was found in this list");
        let at = list.iter().position(|entry| entry.slot.get() == slot).expect("as above");
        list.swap_remove(at);
        if list.is_empty() {
            self.overflow.remove(&index);
        }
    }

    /// Tries to seat what was put to the overflow list before a split made room.
    ///
    /// Not while a snapshot runs: it may be through with the page, and not yet with the list.
    fn reseat_overflow(&mut self, index: usize) {
        if self.epochs.is_running() {
            return;
        }
        let Some(mut list) = self.overflow.remove(&(index as u32)) else { return };
        for at in (0..list.len().min(RESEATED_MAX)).rev() {
            // SAFETY: the list was taken out, so nobody refers to its entries.
            let slot = unsafe { *list[at].slot.get() };
            // The key that looks like no key stays in a list.
            let may_move = !K::is_vacant_cell(&slot.cell);
            if may_move && self.seat(index, list[at].hash, slot, list[at].label.get()).is_some() {
                list.swap_remove(at);
            }
        }
        if !list.is_empty() {
            self.overflow.insert(index as u32, list);
        }
    }

    /// Gives back the pages of a group of several whose last entry was removed.
    pub(super) fn shrink(&mut self, index: usize) {
        let group = self.group(index);
        // SAFETY: the group and all pages of its directory are live; each page is given
        // back once, at the first of its places.
        unsafe {
            if (*group).pages < 2 || self.overflow.contains_key(&(index as u32)) {
                return;
            }
            let pages = std::slice::from_raw_parts((*group).dir, (*group).dir_mask as usize + 1);
            if pages.iter().any(|page| (*page.head()).count > 0) {
                return;
            }
            let (none, mask) = (self.none, (*group).slot_mask);
            for (place, page) in pages.iter().enumerate() {
                if place >> (*page.head()).depth == 0 {
                    self.give_page(*page, mask);
                }
            }
            self.directory_bytes -= (*group).directory_bytes();
            Group::free_directory(group);
            let changed = (*group).changed;
            group.write(Group { changed, ..Group::new(none) });
            Group::point_to_itself(group);
        }
    }
}
