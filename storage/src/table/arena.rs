//! Bytes of variable length: long keys, and values that have no fixed size.
//!
//! Append-only: a changed value is written anew and its handle re-pointed; the
//! old bytes stay as they are until nobody counts them. So a snapshot that still
//! has to read an old value needs no copy of it, only its handle.
//!
//! ```text
//! chunk 0  [ value | garbage | value | value ]   live 61 %
//! chunk 1  [ garbage                         ]   live  0 %: given back at once
//! chunk 2  [ value | value |  room ......... ]   open: appended to
//! ```
//!
//! Live bytes are counted per chunk. A chunk is given back when its count reaches
//! zero, and never otherwise: a compaction that misses an entry (since the table
//! changed between two steps) leaves garbage, not a dangling handle.

/// Size of the first chunk, in bytes; each further one is twice as large, to `CHUNK_BYTES_MAX`.
const CHUNK_BYTES_MIN: usize = 16 << 10;

/// Size of a chunk of a large arena, in bytes. A longer value gets a chunk of its own.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Marks that no chunk is open.
const NONE: u32 = u32::MAX;

/// Where one value lies in an [`Arena`]. The default is the empty value.
///
/// It is the caller's to keep, usually in the `V` of a table; copies of it do not
/// count as further owners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BlobHandle {
    pub(super) chunk: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

impl BlobHandle {
    /// Length of the value in bytes.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether this is the empty value, which takes no room.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[derive(Debug, Default)]
struct Chunk {
    /// What was appended; never grows beyond its first capacity.
    bytes: Vec<u8>,
    /// Bytes of it that a handle still counts; at most `bytes.len()`.
    live: usize,
}

/// Append-only store of byte strings.
#[derive(Debug)]
pub struct Arena {
    chunks: Vec<Chunk>,
    /// Indices of chunks that were given back.
    vacant: Vec<u32>,
    /// The chunk that is appended to, or `NONE`.
    open: u32,
    /// Bytes appended to chunks that are still kept; `live <= used <= reserved`.
    used: usize,
    live: usize,
    reserved: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Arena { chunks: Vec::new(), vacant: Vec::new(), open: NONE, used: 0, live: 0, reserved: 0 }
    }
}

impl Arena {
    /// The bytes of `handle`.
    ///
    /// # Panics
    ///
    /// If `handle` was freed or comes from another arena, and points outside.
    #[inline]
    pub fn get(&self, handle: BlobHandle) -> &[u8] {
        if handle.len == 0 {
            return &[];
        }
        let start = handle.start as usize;
        &self.chunks[handle.chunk as usize].bytes[start..start + handle.len as usize]
    }

    /// Makes `handle` stand for a copy of `bytes`; what it stood for becomes garbage.
    ///
    /// # Panics
    ///
    /// If `bytes` is 4 GiB or longer.
    #[inline]
    pub fn put(&mut self, handle: &mut BlobHandle, bytes: &[u8]) {
        let new = self.append(bytes);
        self.free(*handle);
        *handle = new;
    }

    /// Gives up the value of `handle`, which must not be used again.
    #[inline]
    pub fn free(&mut self, handle: BlobHandle) {
        if handle.len == 0 {
            return;
        }
        let len = handle.len as usize;
        let chunk = &mut self.chunks[handle.chunk as usize];
        debug_assert!(chunk.live >= len, "freed {len} bytes of a chunk with {} live", chunk.live);
        chunk.live -= len;
        self.live -= len;
        if chunk.live == 0 && handle.chunk != self.open {
            self.release(handle.chunk);
        }
    }

    /// Moves the value of `handle` if it lies in a chunk that is more than half garbage.
    ///
    /// Returns the bytes moved, 0 if it stayed.
    pub fn relocate(&mut self, handle: &mut BlobHandle) -> usize {
        if handle.len == 0 {
            return 0;
        }
        let len = handle.len as usize;
        if !self.is_sparse(handle.chunk) {
            return 0;
        }
        // Nothing is moved to where it would have to be moved from again.
        if self.is_sparse(self.open) {
            self.open_chunk(len);
        }
        let start = handle.start as usize;
        let (open, at) = self.reserve(len);
        // Taken out for the copy, since source and target are elements of one vector.
        let mut target = std::mem::take(&mut self.chunks[open as usize].bytes);
        target.extend_from_slice(&self.chunks[handle.chunk as usize].bytes[start..start + len]);
        self.chunks[open as usize].bytes = target;
        self.free(*handle);
        *handle = BlobHandle { chunk: open, start: at, len: handle.len };
        len
    }

    /// Whether a chunk is worth emptying: it is not nearly new, and more than half garbage.
    fn is_sparse(&self, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).is_some_and(|chunk| {
            let used = chunk.bytes.len();
            (chunk.live * 2 <= used) && used >= CHUNK_BYTES_MIN / 2
        })
    }

    /// Bytes appended and since given up, that still take room.
    pub fn garbage_bytes(&self) -> usize {
        self.used - self.live
    }

    /// Bytes of the values that are in use.
    pub fn live_bytes(&self) -> usize {
        self.live
    }

    /// Bytes taken from the system.
    pub fn memory_bytes(&self) -> usize {
        self.reserved
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.vacant.capacity() * size_of::<u32>()
    }

    /// Whether more than half is garbage, and it is worth a compaction.
    pub fn wants_compaction(&self) -> bool {
        self.used > CHUNK_BYTES_MIN && self.garbage_bytes() * 2 > self.used
    }

    /// Stores a copy of `bytes`.
    pub(super) fn append(&mut self, bytes: &[u8]) -> BlobHandle {
        if bytes.is_empty() {
            return BlobHandle::default();
        }
        let (chunk, start) = self.reserve(bytes.len());
        self.chunks[chunk as usize].bytes.extend_from_slice(bytes);
        BlobHandle { chunk, start, len: bytes.len() as u32 }
    }

    /// Counts `len` bytes as appended and says to which chunk and place they have to go.
    #[inline]
    fn reserve(&mut self, len: usize) -> (u32, u32) {
        let room = match self.chunks.get(self.open as usize) {
            Some(chunk) => chunk.bytes.capacity() - chunk.bytes.len(),
            None => 0,
        };
        if room < len {
            self.open_chunk(len);
        }
        let chunk = &mut self.chunks[self.open as usize];
        chunk.live += len;
        self.live += len;
        self.used += len;
        (self.open, chunk.bytes.len() as u32)
    }

    #[cold]
    #[inline(never)]
    fn open_chunk(&mut self, len: usize) {
        assert!(len < u32::MAX as usize, "a value of {len} bytes; the most is 4 GiB - 2");
        let full = self.open;
        let size = self.reserved.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(len);
        let chunk = Chunk { bytes: Vec::with_capacity(size), live: 0 };
        self.reserved += chunk.bytes.capacity();
        self.open = match self.vacant.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                index
            }
            None => {
                self.chunks.push(chunk);
                (self.chunks.len() - 1) as u32
            }
        };
        if full != NONE && self.chunks[full as usize].live == 0 {
            self.release(full);
        }
    }

    fn release(&mut self, index: u32) {
        let chunk = std::mem::take(&mut self.chunks[index as usize]);
        self.used -= chunk.bytes.len();
        self.reserved -= chunk.bytes.capacity();
        self.vacant.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the old bytes of a value are untouched while another value is put in its place.
    /// Method: keep the old handle, put, and read through both.
    #[test]
    fn put_never_overwrites() {
        let mut arena = Arena::default();
        let mut pin = BlobHandle::default();
        arena.put(&mut pin, b"keeps the chunk");
        let mut handle = BlobHandle::default();
        assert_eq!(arena.get(handle), b"");
        arena.put(&mut handle, b"first");
        let old = handle;
        arena.put(&mut handle, b"second");
        assert_eq!(arena.get(old), b"first");
        assert_eq!(arena.get(handle), b"second");
        assert_eq!(arena.garbage_bytes(), 5);
    }

    /// Goal: memory follows the live bytes, not the number of updates.
    /// Method: 100,000 updates of 8 values of 1 KiB.
    #[test]
    fn dead_chunks_are_given_back() {
        let mut arena = Arena::default();
        let mut handles = [BlobHandle::default(); 8];
        for update in 0..100_000usize {
            arena.put(&mut handles[update % 8], &[update as u8; 1024]);
        }
        assert_eq!(arena.live_bytes(), 8 * 1024);
        assert!(arena.memory_bytes() < 4 * CHUNK_BYTES_MAX, "{}", arena.memory_bytes());
        for (at, handle) in handles.iter().enumerate() {
            assert!(arena.get(*handle).iter().all(|b| *b == (99_992 + at) as u8));
        }
    }

    /// Goal: relocating what lies in sparse chunks frees these chunks.
    /// Method: keep every 10th of many values, then relocate all that is left.
    #[test]
    fn relocation_empties_sparse_chunks() {
        let mut arena = Arena::default();
        let mut kept = Vec::new();
        for value in 0..40_000u32 {
            let handle = arena.append(&[value as u8; 100]);
            if value % 10 == 0 { kept.push((value, handle)) } else { arena.free(handle) }
        }
        assert!(arena.wants_compaction());
        let before = arena.memory_bytes();
        for (_, handle) in &mut kept {
            arena.relocate(handle);
        }
        assert!(!arena.wants_compaction(), "{} of {}", arena.garbage_bytes(), arena.used);
        assert!(arena.memory_bytes() * 3 < before, "{} of {before}", arena.memory_bytes());
        for (value, handle) in kept {
            assert_eq!(arena.get(handle), [value as u8; 100]);
        }
    }

    #[test]
    fn a_value_longer_than_a_chunk_gets_its_own() {
        let mut arena = Arena::default();
        let long = vec![7; 3 * CHUNK_BYTES_MAX];
        let mut handle = BlobHandle::default();
        arena.put(&mut handle, &long);
        assert_eq!(arena.get(handle), long);
        arena.put(&mut handle, b"short");
        assert_eq!(arena.get(handle), b"short");
    }
}
