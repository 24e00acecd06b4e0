//! Staging memory: blocks that the kernel may read from while nobody writes to them.
//!
//! A block moves into an operation and comes back with its completion, so that what is being written is out of
//! everyone's reach. The region is freed when the last block is; a block whose operation never completed is
//! leaked on purpose, since the disk may still read it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Huge pages are asked for, so the region begins where one does.
const REGION_ALIGNMENT: usize = 2 << 20;

/// The memory of all blocks of one log.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the region owns its memory and reads or writes none of it; access is by the blocks, each of which has
// a part of its own.
unsafe impl Send for Region {}
// SAFETY: as above, a shared region gives out an address and a size only.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: usize) -> Region {
        assert!(bytes > 0);
        let layout = Layout::from_size_align(bytes, REGION_ALIGNMENT).expect("bounded by the configuration");
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: just the pages of this allocation, which nobody has seen yet; advice changes no content, and
        // where it is refused pages are small.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Region { start, layout }
    }

    /// Where it begins, for registration with the kernel.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and the last block is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A fixed part of a region, 4096-aligned; derefs to its bytes.
pub struct Block {
    region: Arc<Region>,
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a block is the only access to its part of the region, as a `Box<[u8]>` is to its bytes.
unsafe impl Send for Block {}

impl Block {
    /// `count` zeroed blocks of `size` bytes, which lie one behind the other.
    ///
    /// # Panics
    ///
    /// If a size is zero or not a multiple of 4096.
    pub fn region(size: usize, count: usize) -> Vec<Block> {
        assert!(size > 0 && size.is_multiple_of(crate::config::ALIGNMENT_BYTES), "block of {size} bytes");
        assert!(count > 0);
        let region = Arc::new(Region::new(size * count));
        (0..count)
            .map(|index| {
                // SAFETY: `index * size` is less than the region's size.
                let start = unsafe { region.start.add(index * size) };
                Block { region: region.clone(), start, size }
            })
            .collect()
    }

    /// One block of its own, at least `size` bytes.
    pub fn alone(size: usize) -> Block {
        let size = size.max(1).next_multiple_of(crate::config::ALIGNMENT_BYTES);
        Block::region(size, 1).pop().expect("one was asked for")
    }

    pub(crate) fn of(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the part lies within the region, which lives as long as `self.region`, was zeroed at its
        // allocation, and belongs to this block alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the block is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_apart() {
        let mut blocks = Block::region(4096, 3);
        for (value, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.as_ptr() as usize % 4096, 0);
            block.fill(value as u8 + 1);
        }
        let last = blocks.pop();
        drop(blocks);
        assert!(last.unwrap().iter().all(|byte| *byte == 3), "a block outlives its neighbours");
    }
}
