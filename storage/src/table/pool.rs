//! Memory for pages, in chunks that the kernel can back with huge pages.
//!
//! A table of 10^6 keys is read at random over some 30 MB. With 4 KiB pages of the
//! kernel nearly every record would miss the TLB as well as the cache, so chunks
//! are 2 MiB, lie on a 2 MiB boundary and ask for `MADV_HUGEPAGE`. The first chunk
//! is small and does not ask: a table of a few keys must not have 2 MiB zeroed.
//!
//! Blocks are cut off a chunk in order, and go to a free list of their size when
//! given back. Nothing is unmapped before the pool is dropped.

use std::ptr::NonNull;

/// Size of the first chunk, in bytes: what 128 groups with their first pages take.
const FIRST_CHUNK_BYTES: usize = 64 << 10;

/// Size and alignment of every further chunk, in bytes: one huge page on x86-64.
const CHUNK_BYTES: usize = 2 << 20;

/// Blocks begin on, and are a multiple of, a cache line.
pub(super) const BLOCK_ALIGN: usize = 64;

struct Chunk {
    start: NonNull<u8>,
    bytes: usize,
}

/// The chunks of one table, and what is free of them.
#[derive(Default)]
pub(super) struct Pool {
    chunks: Vec<Chunk>,
    /// Where the next block is cut, and how many bytes there are left.
    next: Option<NonNull<u8>>,
    left: usize,
    /// Free blocks by size; a table knows at most eight sizes.
    free: Vec<(usize, Vec<NonNull<u8>>)>,
    /// Bytes of blocks that are out.
    used: usize,
    mapped: usize,
}

impl Pool {
    /// A block of `bytes`, aligned to a cache line, of undefined content.
    pub(super) fn take(&mut self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(BLOCK_ALIGN) && bytes > 0);
        self.used += bytes;
        if let Some((_, blocks)) = self.free.iter_mut().find(|(size, _)| *size == bytes)
            && let Some(block) = blocks.pop()
        {
            return block;
        }
        if self.left < bytes || self.next.is_none() {
            self.map(bytes);
        }
        let block = self.next.expect("a chunk was mapped");
        self.left -= bytes;
        // SAFETY: `left >= bytes` before the subtraction, so the end of the block is
        // inside the chunk or one past it.
        self.next = Some(unsafe { block.add(bytes) });
        block
    }

    /// Takes back a block of `bytes` that `take(bytes)` returned.
    pub(super) fn give(&mut self, block: NonNull<u8>, bytes: usize) {
        self.used -= bytes;
        match self.free.iter_mut().find(|(size, _)| *size == bytes) {
            Some((_, blocks)) => blocks.push(block),
            None => self.free.push((bytes, vec![block])),
        }
    }

    /// Bytes of the blocks that are out.
    pub(super) fn used_bytes(&self) -> usize {
        self.used
    }

    /// Bytes cut off chunks so far, in use or free; the rest was never touched.
    pub(super) fn memory_bytes(&self) -> usize {
        self.mapped - self.left
    }

    #[cold]
    fn map(&mut self, bytes_min: usize) {
        let first = self.chunks.is_empty() && bytes_min <= FIRST_CHUNK_BYTES;
        let bytes = if first { FIRST_CHUNK_BYTES } else { bytes_min.next_multiple_of(CHUNK_BYTES) };
        let start = if first { map_anonymous(bytes) } else { map_huge(bytes) };
        self.chunks.push(Chunk { start, bytes });
        // What was left of the chunk before is lost, and counts as memory.
        self.mapped += bytes;
        self.next = Some(start);
        self.left = bytes;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            unmap(chunk.start, chunk.bytes);
        }
    }
}

fn map_anonymous(bytes: usize) -> NonNull<u8> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no
    // memory that anybody has.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        // As the global allocator does: nothing on a shard can go on without memory.
        std::alloc::handle_alloc_error(
            std::alloc::Layout::from_size_align(bytes, BLOCK_ALIGN).expect("small alignment"),
        );
    }
    NonNull::new(start.cast()).expect("mmap does not map page 0")
}

/// A mapping of `bytes` on a boundary of `CHUNK_BYTES`: maps more and cuts off both ends.
fn map_huge(bytes: usize) -> NonNull<u8> {
    let raw = map_anonymous(bytes + CHUNK_BYTES);
    let before = raw.as_ptr().align_offset(CHUNK_BYTES);
    let after = CHUNK_BYTES - before;
    // SAFETY: `before <= CHUNK_BYTES`, so both results are inside the mapping just made
    // or one past it.
    let (start, end) = unsafe { (raw.add(before), raw.add(before + bytes)) };
    if before > 0 {
        unmap(raw, before);
    }
    if after > 0 {
        unmap(end, after);
    }
    // SAFETY: advice about a mapping of ours, which has no content yet. A refusal
    // costs speed only, so its result is not looked at.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    start
}

fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: callers pass a page-aligned part of a mapping of this module that
    // nobody has a pointer into any more.
    let result = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    debug_assert_eq!(result, 0, "munmap of {bytes} bytes at {start:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: blocks are aligned, disjoint and writable, and come back.
    /// Method: fill 3,000 blocks of two sizes with their number, read all, give all, take again.
    #[test]
    fn blocks_are_disjoint_and_reused() {
        let mut pool = Pool::default();
        let size = |n: usize| if n.is_multiple_of(2) { 256 } else { 4160 };
        let take = |pool: &mut Pool| -> Vec<NonNull<u8>> { (0..3000).map(|n| pool.take(size(n))).collect() };
        let blocks = take(&mut pool);
        for (n, block) in blocks.iter().enumerate() {
            assert_eq!(block.as_ptr() as usize % BLOCK_ALIGN, 0);
            // SAFETY: the block has `size(n)` bytes and is ours.
            unsafe { block.as_ptr().write_bytes(n as u8, size(n)) };
        }
        for (n, block) in blocks.iter().enumerate() {
            // SAFETY: as above, and all of it was written.
            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), size(n)) };
            assert!(bytes.iter().all(|b| *b == n as u8), "block {n}");
        }
        let memory = pool.memory_bytes();
        for (n, block) in blocks.into_iter().enumerate() {
            pool.give(block, size(n));
        }
        assert_eq!(pool.used_bytes(), 0);
        take(&mut pool);
        assert_eq!(pool.memory_bytes(), memory);
    }

    #[test]
    fn a_small_pool_is_small() {
        let mut pool = Pool::default();
        pool.take(256);
        assert_eq!(pool.memory_bytes(), 256);
    }
}
