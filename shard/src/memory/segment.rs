//! The mapped region of one shard, cut into segments that are read while they are written.
//!
//! ```text
//! data    | segment 0 | line | segment 1 | ... 32 KiB each, nothing but records
//! states  | 128 bytes | 128 bytes | ...        a line each, apart from the data
//!
//! state word:  generation (32 bits) | SEALED (1) | committed bytes (31)
//! ```
//!
//! The shard that mapped the region owns every segment; one writer at a time appends to a segment, one
//! reader (or several, each on its own, for a broadcast) follows behind it:
//!
//! - the writer writes only at and after `committed`, and publishes complete pieces with one Release store;
//! - the reader reads only before a `committed` that it loaded with Acquire;
//! - after `SEALED` nobody writes; the reader gives the segment back after it saw that flag and read to the
//!   end, and only the owner then begins a new generation.
//!
//! So no byte is ever written and read at the same time, and no reference to a whole segment exists.
//! The region is private anonymous memory, 2 MiB-aligned, huge pages asked for, and first touched by its
//! owner, which is all the NUMA placement there is.
//!
//! From one segment to the next it is an odd number of cache lines. A task that deals records out to many
//! channels fills their segments side by side, at the same offset; with a power of two between them all these
//! lines would lie in the same set of the cache, and from some dozens of channels on each record would be a
//! miss.

use crate::sync::{AtomicU64, Ordering};

/// A segment's number in its shard's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// How far a segment is filled, as its reader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Bytes from the segment's start that may be read.
    pub bytes: u32,
    /// Whether nothing will be added.
    pub sealed: bool,
}

const SEALED: u64 = 1 << 31;

/// The state word of one segment, on a line of its own.
#[repr(align(128))]
pub struct SegmentState(AtomicU64);

impl SegmentState {
    /// A segment in generation 0 with nothing in it.
    pub fn new() -> Self {
        SegmentState(AtomicU64::new(0))
    }

    /// Begins a new life of the segment; only its owner does so, when it holds it. Returns the generation.
    pub fn begin(&self) -> u32 {
        let generation = ((self.0.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        // Relaxed: the reader hears of this generation through a ring or a later `commit`.
        self.0.store((generation as u64) << 32, Ordering::Relaxed);
        generation
    }

    /// Publishes the first `bytes` bytes; the writer only, with the generation that `begin` gave it.
    #[inline]
    pub fn commit(&self, generation: u32, bytes: u32, sealed: bool) {
        let old = self.0.load(Ordering::Relaxed);
        assert_eq!(
            (old >> 32) as u32,
            generation,
            "a segment is written in the generation that it was begun in"
        );
        debug_assert!(old & SEALED == 0 && bytes >= (old as u32), "commit {bytes} after {old:x}");
        // Pairs with the Acquire in `committed`: bytes first, then their count.
        let word = (generation as u64) << 32 | u64::from(bytes) | if sealed { SEALED } else { 0 };
        self.0.store(word, Ordering::Release);
    }

    /// What a reader of `generation` may read.
    #[inline]
    pub fn committed(&self, generation: u32) -> Committed {
        // Pairs with the Release in `commit`.
        let word = self.0.load(Ordering::Acquire);
        assert_eq!(
            (word >> 32) as u32,
            generation,
            "a segment is read in the generation that it was sent in"
        );
        Committed { bytes: (word & (SEALED - 1)) as u32, sealed: word & SEALED != 0 }
    }
}

impl Default for SegmentState {
    fn default() -> Self {
        Self::new()
    }
}

/// A region could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes for {segments} segments of {segment_size} bytes: {cause}")]
pub struct RegionError {
    /// Bytes that were asked for.
    pub bytes: usize,
    /// Segments that they were for.
    pub segments: u32,
    /// Bytes of each.
    pub segment_size: u32,
    /// The kernel's answer.
    pub cause: std::io::Error,
}

/// The memory of one shard's segments.
pub struct Region {
    map: *mut u8,
    map_len: usize,
    base: *mut u8,
    segment_size: u32,
    /// Bytes from the beginning of one segment to that of the next.
    pitch: usize,
    states: Box<[SegmentState]>,
}

// SAFETY: the bytes of a segment are handed between threads by its state word and by the rings, as the
// module says; the rest is constant after construction.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

const HUGE_PAGE: usize = 2 << 20;

const CACHE_LINE: usize = 64;

/// The least odd number of cache lines that holds a segment, in bytes.
const fn pitch(segment_size: u32) -> usize {
    ((segment_size as usize).div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}

impl Region {
    /// Bytes that a region of `segments` segments takes: whole huge pages.
    const fn bytes_of(segments: u32, segment_size: u32) -> usize {
        let bytes = segments as usize * pitch(segment_size);
        (if bytes == 0 { 1 } else { bytes }).next_multiple_of(HUGE_PAGE)
    }

    /// Maps `segments` segments of `segment_size` bytes and touches them, on the calling thread.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the kernel refuses the memory: use fewer or smaller segments.
    pub fn map(segments: u32, segment_size: u32) -> Result<Region, RegionError> {
        let bytes = Self::bytes_of(segments, segment_size);
        // One huge page more, so that an aligned base lies in it.
        let map_len = bytes + HUGE_PAGE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(RegionError { bytes, segments, segment_size, cause });
        }
        let map = map.cast::<u8>();
        let base = map.wrapping_add(map.align_offset(HUGE_PAGE));
        // SAFETY: `base..base + bytes` lies in the mapping: alignment skips less than the page added.
        let populated = unsafe {
            // Refused where huge pages are switched off: then small ones serve.
            libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE);
            libc::madvise(base.cast(), bytes, libc::MADV_POPULATE_WRITE)
        };
        if populated != 0 {
            let cause = std::io::Error::last_os_error();
            // Kernels before 5.14 do not know the advice: touch page by page.
            if cause.raw_os_error() != Some(libc::EINVAL) {
                // SAFETY: the mapping is ours and nothing points into it yet.
                unsafe { libc::munmap(map.cast(), map_len) };
                return Err(RegionError { bytes, segments, segment_size, cause });
            }
            for offset in (0..bytes).step_by(4096) {
                // SAFETY: `offset` is within the mapping, which nobody else has seen.
                unsafe { base.add(offset).write_volatile(0) };
            }
        }
        let states = (0..segments).map(|_| SegmentState::new()).collect();
        Ok(Region { map, map_len, base, segment_size, pitch: pitch(segment_size), states })
    }

    /// Number of segments.
    pub fn segments(&self) -> u32 {
        self.states.len() as u32
    }

    /// Bytes of each segment.
    pub fn segment_size(&self) -> u32 {
        self.segment_size
    }

    /// The state word of a segment.
    #[inline(always)]
    pub fn state(&self, segment: SegmentId) -> &SegmentState {
        &self.states[segment.0 as usize]
    }

    /// Where a segment begins. Who may access what behind it is said in the module's documentation.
    #[inline(always)]
    pub(crate) fn data(&self, segment: SegmentId) -> *mut u8 {
        assert!((segment.0 as usize) < self.states.len());
        self.base.wrapping_add(segment.0 as usize * self.pitch)
    }

    /// The bytes `from..to` of a segment.
    ///
    /// # Safety
    ///
    /// `to` is at most a `committed` that the caller loaded in the segment's present generation, and the
    /// caller gives the segment back only after the slice is gone.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self, segment: SegmentId, from: u32, to: u32) -> &[u8] {
        debug_assert!(from <= to && to <= self.segment_size);
        // SAFETY: within the region by the assertion in `data` and `to <= segment_size`; initialised,
        // since the kernel zeroes pages; not written meanwhile, since the writer stays at and after
        // `committed` until the owner begins a new generation.
        unsafe { std::slice::from_raw_parts(self.data(segment).add(from as usize), (to - from) as usize) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: whoever could point into the mapping held this region by `Arc`.
        unsafe { libc::munmap(self.map.cast(), self.map_len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: segments do not overlap, and those of neighbouring channels, filled side by side, spread over
    /// the sets of a cache, whatever their size.
    #[test]
    fn segments_are_an_odd_number_of_lines_apart() {
        for size in [64, 72, 256, 1000, 4096, 32 << 10, 1 << 20] {
            let region = Region::map(65, size).expect("a small mapping");
            let at: Vec<usize> = (0..65).map(|id| region.data(SegmentId(id)) as usize).collect();
            assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= size as usize), "{size}: overlap");
            // A first-level cache of 64 sets of lines.
            let mut sets: Vec<usize> = at[..64].iter().map(|at| at / CACHE_LINE % 64).collect();
            sets.sort_unstable();
            sets.dedup();
            assert_eq!(sets.len(), 64, "{size}: several segments begin in one set");
            assert!(
                at[64] + size as usize <= at[0] + Region::bytes_of(65, size),
                "{size}: beyond the region"
            );
        }
    }
}
