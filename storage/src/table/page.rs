//! Pages: up to 64 slots of which a key can be in one only.
//!
//! ```text
//! head, 64 B   32 seeds, one a bucket | for the snapshot | crowded | count | depth
//! slots        (cell, value) x capacity
//! tags         one byte a slot: the bucket of its entry, or VACANT
//! ```
//!
//! A hash says which bucket of a page a key belongs to, and hash and seed of the
//! bucket say which slot it is in. When two keys want one slot, the bucket of the
//! later gets another seed, under which all of its keys (1.6 on average in a full
//! page) fall on slots that are free. So a lookup reads the head, one slot, and
//! nothing else; there is no probing that a branch predictor could get wrong, an
//! absent key is known after one compare, and a removed one leaves no tombstone.
//! The tags are read by inserts only: they tell, 16 at a time, which slots are
//! free and where the keys of a bucket are.
//!
//! Growing and splitting a page keep every seed, hence move no entry within a
//! page: a grown page uses one more bit of the same product, and both halves of a
//! split page have the entry where it was.
//!
//! With 64 slots and 32 buckets, pages are split at a fill of about 0.8. At 128 slots
//! the seeds run out near 0.6: 42 bytes a key instead of 33 at 10^6 keys of 16 bytes
//! with their value, and a table of 10^4 keys that no longer fits the core's cache.
//!
//! After "hash, displace, and compress" (Belazzougui, Botelho, Dietzfelbinger,
//! 2009), made dynamic by keeping it within a page.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Buckets of a page. With 32, the head is one cache line.
pub(super) const BUCKETS: usize = 32;

/// Tag of a slot without an entry.
const VACANT: u8 = 0xff;

/// Slots of a page, at most: one bit each of a `u64`.
const CAPACITY_LIMIT: usize = 64;

/// Slots of a group's first page: with 16-byte slots it takes 256 bytes.
const CAPACITY_FIRST: usize = 8;

/// Bytes of slots of a page, at most, unless eight slots take more.
const SLOTS_BYTES_MAX: usize = 4096;

/// Tags are read in pieces of this many bytes.
const TAGS_STEP: usize = 16;

/// Keys of one bucket that are given a common seed; one more makes it crowded.
/// A bucket of a full page has 1.6 of them, so good hashes never get there.
const BUCKET_KEYS_MAX: usize = 12;

/// What a lookup reads of a page besides its slot: one cache line.
#[repr(C, align(64))]
pub(super) struct Head {
    /// Which slots the keys of each bucket are in.
    seeds: [u8; BUCKETS],
    /// Place for the epoch and the changed-slot bits (one a slot) of a snapshot.
    _snapshot: [u64; 3],
    /// Bit b: some key of bucket b is in the overflow list of the group.
    crowded: u32,
    /// Slots with an entry.
    pub(super) count: u16,
    /// How many bits of the directory index all keys of this page agree in.
    pub(super) depth: u8,
    _pad: u8,
}

const _: () = assert!(size_of::<Head>() == 64, "the head is one cache line");

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

/// The bucket of a key, in every page: the five uppermost bits.
#[inline(always)]
pub(super) fn bucket_of(hash: u64) -> usize {
    (hash >> (u64::BITS - BUCKETS.ilog2())) as usize
}

/// The bits of the hash that choose a page: 32 and up, of which the directory never
/// uses so many that it meets those of the bucket.
#[inline(always)]
pub(super) fn directory_bits(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The slot of a key under a seed. `mask` is the capacity less one.
///
/// The rotation is there since a product alone could never separate two hashes
/// that differ by less than 2^26 / 255.
#[inline(always)]
pub(super) fn slot_of(hash: u64, seed: u8, mask: u32) -> usize {
    let seed = u32::from(seed);
    let product = (hash as u32).rotate_left(seed).wrapping_mul(seed);
    (product >> 26 & mask) as usize
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

impl<C: Copy, V: Copy> Page<C, V> {
    const SLOT: usize = size_of::<Slot<C, V>>();

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

    /// Bytes of a page, a multiple of a cache line.
    pub(super) const fn bytes(mask: u32) -> usize {
        let capacity = mask as usize + 1;
        let tags = capacity.next_multiple_of(TAGS_STEP);
        (size_of::<Head>() + capacity * Self::SLOT + tags).next_multiple_of(64)
    }

    /// Makes an empty page of a block.
    ///
    /// # Safety
    ///
    /// `block` is `bytes(mask)` long, aligned to 64, writable, and nobody else uses it.
    pub(super) unsafe fn format(block: NonNull<u8>, mask: u32, vacant: C) -> Self {
        // SAFETY: the block is longer than a head.
        let page: Self = Page { slots: unsafe { block.cast::<Head>().add(1) }.cast() };
        let head = Head { seeds: [1; BUCKETS], _snapshot: [0; 3], crowded: 0, count: 0, depth: 0, _pad: 0 };
        // SAFETY: the block is aligned and longer than a head.
        unsafe { page.head().write(head) };
        let capacity = mask as usize + 1;
        for index in 0..capacity {
            // SAFETY: `index <= mask`, and the block has room for `mask + 1` slots.
            unsafe { (&raw mut (*page.slot(index)).cell).write(vacant) };
        }
        // SAFETY: the tags follow the slots; `bytes` counts them.
        unsafe { page.tags(mask).write_bytes(VACANT, capacity.next_multiple_of(TAGS_STEP)) };
        page
    }

    /// The block that the page was made of.
    pub(super) fn block(self) -> NonNull<u8> {
        // SAFETY: a head lies before the first slot; `format` put it there.
        unsafe { self.slots.cast::<Head>().sub(1) }.cast()
    }

    #[inline(always)]
    pub(super) fn head(self) -> *mut Head {
        self.slots.as_ptr().cast::<Head>().wrapping_sub(1)
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

    /// The tags, the capacity of the page rounded up to 16 of them.
    ///
    /// # Safety
    ///
    /// `mask` is that of the page.
    #[inline(always)]
    unsafe fn tags(self, mask: u32) -> *mut u8 {
        // SAFETY: one past the last slot, inside the block by `bytes`.
        unsafe { self.slot(mask as usize + 1).cast() }
    }

    /// In which slot a key with this hash is, if it is in this page.
    ///
    /// # Safety
    ///
    /// The page is live, and `mask` its own.
    #[inline(always)]
    pub(super) unsafe fn locate(self, hash: u64, mask: u32) -> *mut Slot<C, V> {
        // SAFETY: the head of a live page is initialised; `slot_of` is at most `mask`.
        unsafe {
            let seed = (*self.head()).seeds[bucket_of(hash)];
            self.slot(slot_of(hash, seed, mask))
        }
    }

    /// Whether keys of the bucket of `hash` are in the overflow list of the group.
    ///
    /// # Safety
    ///
    /// The page is live.
    #[inline]
    pub(super) unsafe fn is_crowded(self, hash: u64) -> bool {
        // SAFETY: the head of a live page is initialised.
        unsafe { (*self.head()).crowded >> bucket_of(hash) & 1 != 0 }
    }

    /// Notes that a key of this bucket is in the overflow list.
    ///
    /// # Safety
    ///
    /// The page is live.
    pub(super) unsafe fn set_crowded(self, hash: u64) {
        // SAFETY: the head of a live page is initialised.
        unsafe { (*self.head()).crowded |= 1 << bucket_of(hash) }
    }

    /// Whether the slot has an entry.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and `slot` one of its slots.
    pub(super) unsafe fn is_taken(self, slot: *mut Slot<C, V>, mask: u32) -> bool {
        // SAFETY: there is a tag for every slot.
        unsafe { *self.tags(mask).add(self.index_of(slot)) != VACANT }
    }

    /// # Safety
    ///
    /// `slot` is one of the page.
    unsafe fn index_of(self, slot: *mut Slot<C, V>) -> usize {
        // SAFETY: both are in the same block.
        unsafe { slot.offset_from(self.slot(0)) as usize }
    }

    /// A place for one more key: its slot if that is free, or else one under a new
    /// seed, to which the other keys of its bucket are moved. The tag is set and the
    /// entry counted; cell and value are the caller's to write. `None` if no seed will do.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own; `hash_cell` gives the hash of a cell of an entry.
    pub(super) unsafe fn seat(
        self,
        hash: u64,
        mask: u32,
        vacant: C,
        hash_cell: impl Fn(&C) -> u64,
    ) -> Option<*mut Slot<C, V>> {
        // SAFETY: as the caller vouches.
        unsafe {
            let slot = self.locate(hash, mask);
            if !self.is_taken(slot, mask) {
                self.fill(self.index_of(slot), hash, mask);
                return Some(slot);
            }
            self.reseat(hash, mask, vacant, hash_cell)
        }
    }

    /// # Safety
    ///
    /// As [`seat`](Self::seat).
    unsafe fn reseat(
        self,
        hash: u64,
        mask: u32,
        vacant: C,
        hash_cell: impl Fn(&C) -> u64,
    ) -> Option<*mut Slot<C, V>> {
        let bucket = bucket_of(hash);
        // SAFETY: the page is live and `mask` its own.
        let (own, all) = unsafe { (self.tagged(bucket as u8, mask), self.taken(mask)) };
        let count = own.count_ones() as usize;
        if count > BUCKET_KEYS_MAX {
            return None;
        }
        let mut hashes = [hash; BUCKET_KEYS_MAX + 1];
        let mut moved = [const { MaybeUninit::<Slot<C, V>>::uninit() }; BUCKET_KEYS_MAX];
        for (at, index) in bits(own).enumerate() {
            // SAFETY: `index` is tagged, so it is a slot of this page with an entry.
            unsafe {
                moved[at].write(*self.slot(index));
                hashes[at] = hash_cell(&moved[at].assume_init_ref().cell);
            }
        }
        let hashes = &hashes[..=count];
        let seed = find_seed(hashes, all & !own, mask)?;
        for index in bits(own) {
            // SAFETY: as above.
            unsafe { self.clear(index, mask, vacant) };
        }
        // SAFETY: the page is live; every slot written below is free, since the seed
        // was found among those that are not taken by other buckets, and own ones
        // were cleared; `moved` was written for all of `own`.
        unsafe {
            (*self.head()).seeds[bucket] = seed;
            for (slot, hash) in moved[..count].iter().zip(hashes) {
                let index = slot_of(*hash, seed, mask);
                self.slot(index).write(slot.assume_init());
                self.fill(index, *hash, mask);
            }
            let index = slot_of(hash, seed, mask);
            self.fill(index, hash, mask);
            Some(self.slot(index))
        }
    }

    /// # Safety
    ///
    /// The page is live, `mask` its own, `index` at most `mask`.
    unsafe fn fill(self, index: usize, hash: u64, mask: u32) {
        // SAFETY: there is a tag for every slot.
        unsafe {
            *self.tags(mask).add(index) = bucket_of(hash) as u8;
            (*self.head()).count += 1;
        }
    }

    /// Takes the entry out of a slot.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and slot `index` has an entry.
    unsafe fn clear(self, index: usize, mask: u32, vacant: C) {
        // SAFETY: there is a slot and a tag.
        unsafe {
            (*self.slot(index)).cell = vacant;
            *self.tags(mask).add(index) = VACANT;
            (*self.head()).count -= 1;
        }
    }

    /// Takes the entry out of a slot of this page.
    ///
    /// # Safety
    ///
    /// The page is live, `mask` its own, and `slot` one of its slots, with an entry.
    pub(super) unsafe fn vacate(self, slot: *mut Slot<C, V>, mask: u32, vacant: C) {
        // SAFETY: as the caller vouches.
        unsafe { self.clear(self.index_of(slot), mask, vacant) }
    }

    /// Copies all entries to an empty page of twice the capacity.
    ///
    /// # Safety
    ///
    /// Both pages are live and formatted with `mask` and `2 * mask + 1`.
    pub(super) unsafe fn grow_into(self, larger: Self, mask: u32, hash_cell: impl Fn(&C) -> u64) {
        let mask_larger = 2 * mask + 1;
        // SAFETY: indices of entries are slots of this page; a key's slot in the larger
        // page is its slot in this one, or that plus the old capacity.
        unsafe {
            (*larger.head()).seeds = (*self.head()).seeds;
            (*larger.head()).crowded = (*self.head()).crowded;
            for index in bits(self.taken(mask)) {
                let slot = *self.slot(index);
                let hash = hash_cell(&slot.cell);
                let target = larger.locate(hash, mask_larger);
                target.write(slot);
                larger.fill(larger.index_of(target), hash, mask_larger);
            }
        }
    }

    /// Moves the entries whose directory bit `depth` is set to an empty page of the
    /// same capacity, and makes both pages one bit deeper.
    ///
    /// # Safety
    ///
    /// Both pages are live and formatted with `mask`.
    pub(super) unsafe fn split_into(self, other: Self, mask: u32, vacant: C, hash_cell: impl Fn(&C) -> u64) {
        // SAFETY: indices of entries are slots of either page, and free in the empty one.
        unsafe {
            let depth = (*self.head()).depth;
            (*other.head()).seeds = (*self.head()).seeds;
            (*other.head()).crowded = (*self.head()).crowded;
            for index in bits(self.taken(mask)) {
                let slot = *self.slot(index);
                let hash = hash_cell(&slot.cell);
                if directory_bits(hash) >> depth & 1 != 0 {
                    other.slot(index).write(slot);
                    other.fill(index, hash, mask);
                    self.clear(index, mask, vacant);
                }
            }
            (*self.head()).depth = depth + 1;
            (*other.head()).depth = depth + 1;
        }
    }

    /// The slots with an entry, as bits.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own.
    pub(super) unsafe fn taken(self, mask: u32) -> u64 {
        let within = u64::MAX >> (CAPACITY_LIMIT - 1 - mask as usize);
        // SAFETY: as the caller vouches.
        !unsafe { self.tagged(VACANT, mask) } & within
    }

    /// The slots with this tag, as bits.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own.
    unsafe fn tagged(self, tag: u8, mask: u32) -> u64 {
        // SAFETY: as the caller vouches.
        let tags = unsafe { self.tags(mask) };
        let mut found = 0;
        for step in 0..(mask as usize + 1).div_ceil(TAGS_STEP) {
            // SAFETY: there are as many tags as slots, rounded up to whole steps.
            let equal = unsafe { equal_bytes(tags.add(step * TAGS_STEP), tag) };
            found |= u64::from(equal) << (step * TAGS_STEP);
        }
        found
    }
}

/// A seed under which all `hashes` fall on different slots, none of them `taken`.
fn find_seed(hashes: &[u64], taken: u64, mask: u32) -> Option<u8> {
    (1..=u8::MAX).find(|seed| {
        let mut taken = taken;
        hashes.iter().all(|hash| {
            let bit = 1 << slot_of(*hash, *seed, mask);
            let free = taken & bit == 0;
            taken |= bit;
            free
        })
    })
}

/// The indices of the set bits, from the lowest.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let index = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(index)
    })
}

/// Bit i: the i-th of 16 bytes is `byte`.
///
/// # Safety
///
/// 16 bytes can be read at `bytes`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn equal_bytes(bytes: *const u8, byte: u8) -> u16 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64; the load needs no alignment.
    unsafe {
        let loaded = _mm_loadu_si128(bytes.cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(loaded, _mm_set1_epi8(byte as i8))) as u16
    }
}

/// Bit i: the i-th of 16 bytes is `byte`.
///
/// # Safety
///
/// 16 bytes can be read at `bytes`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn equal_bytes(bytes: *const u8, byte: u8) -> u16 {
    // SAFETY: as the caller vouches.
    let bytes = unsafe { bytes.cast::<[u8; 16]>().read() };
    portable_equal_bytes(&bytes, byte)
}

/// What [`equal_bytes`] computes, without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn portable_equal_bytes(bytes: &[u8; 16], byte: u8) -> u16 {
    bytes.iter().enumerate().fold(0, |set, (at, b)| set | u16::from(*b == byte) << at)
}

/// Asks for the cache line at `address`. A hint: any address will do.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
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
        assert_eq!(Page::<u64, u64>::CAPACITY_MAX, 64);
        assert_eq!(Page::<[u64; 2], u64>::CAPACITY_MAX, 64);
        assert_eq!(Page::<u64, [u64; 8]>::CAPACITY_MAX, 32);
        assert_eq!(Page::<u64, [u64; 1000]>::CAPACITY_MAX, 8);
        assert_eq!(Page::<u64, u64>::bytes(7), 256);
    }

    #[test]
    fn tags_compare_the_same_with_and_without_vectors() {
        for case in 0..=255u8 {
            let bytes: [u8; 16] = std::array::from_fn(|at| case.wrapping_mul(at as u8 | 1) % 5);
            for byte in 0..5 {
                // SAFETY: the array has 16 bytes.
                let got = unsafe { equal_bytes(bytes.as_ptr(), byte) };
                assert_eq!(got, portable_equal_bytes(&bytes, byte), "{bytes:?} {byte}");
            }
        }
    }

    /// Goal: two hashes that differ in one bit of the part that chooses the slot can
    /// be separated. Method: each of the 32 bits, at a few hashes.
    #[test]
    fn some_seed_separates_any_two_hashes() {
        for base in [0u64, 1, 0xffff_ffff, 0x1234_5678] {
            for bit in 0..32 {
                assert!(find_seed(&[base, base ^ 1 << bit], 0, 63).is_some(), "{base:#x} bit {bit}");
            }
        }
        assert_eq!(find_seed(&[5, 5], 0, 63), None);
    }
}
