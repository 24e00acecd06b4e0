//! Reader threads: what may block does so off the shard.
//!
//! A [`ChunkStream`] is one thread that opens an input, reads it into chunks and passes them on, and the
//! shard's end of it, which never waits. At most [`CHUNKS`] chunks exist: the thread waits for an empty
//! one, so a slow job holds back the reading and not the memory.
//!
//! ```text
//!   thread: open, read ── full chunks, end or error, then wake ──► shard: next()
//!                      ◄──────────────── empty chunks ──────────── recycle()
//! ```
//!
//! Dropping the shard's end ends the thread at its next hand-over. A thread that sits in a read which never
//! returns (a terminal) lives until then or until the process ends; it holds nothing of the job.

use super::{SourceError, Waker};
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use tidegate_shard::topology;

/// Chunks of one stream: two on each side, so neither side waits for the other's last one.
pub(super) const CHUNKS: usize = 4;

/// Bytes on their way to the shard.
pub(super) struct Chunk {
    bytes: Vec<u8>,
    len: usize,
    /// How much of the input had been taken when the chunk was full: bytes of the file, compressed or not.
    pub(super) consumed: u64,
}

impl Chunk {
    /// What was read.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a reader thread reads from. May block.
pub(super) trait ReadChunk {
    /// Fills the beginning of `buf` with at least one byte, or returns 0 at the end of the input.
    fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError>;

    /// How much of the input has been taken, in its own bytes.
    fn consumed(&self) -> u64;
}

enum Delivery {
    Chunk(Chunk),
    End,
    Failed(SourceError),
}

/// What the shard's end of a stream has.
pub(super) enum Next {
    /// The next bytes; give them back with [`ChunkStream::recycle`].
    Chunk(Chunk),
    /// Nothing yet: the waker will be used.
    Wait,
    /// The input has ended.
    End,
}

/// The shard's end of a reader thread.
pub(super) struct ChunkStream {
    full: Receiver<Delivery>,
    empty: SyncSender<Vec<u8>>,
}

impl ChunkStream {
    /// Starts a thread that reads what `open` opens, in chunks of `chunk_bytes`.
    ///
    /// # Errors
    ///
    /// What the system says if it has no thread left.
    pub(super) fn spawn<R, O>(waker: Waker, chunk_bytes: usize, open: O) -> io::Result<ChunkStream>
    where
        R: ReadChunk,
        O: FnOnce() -> Result<R, SourceError> + Send + 'static,
    {
        // Room for every chunk and the last word: the thread waits for empty chunks only.
        let (full_in, full) = sync_channel(CHUNKS + 1);
        let (empty, empty_out) = sync_channel(CHUNKS);
        let feeder = Feeder { full: Some(full_in), empty: empty_out, waker, chunk_bytes };
        std::thread::Builder::new().name("tidegate-read".into()).spawn(move || {
            use_allowed_cores();
            feeder.run(open);
        })?;
        Ok(ChunkStream { full, empty })
    }

    /// The next chunk, if there is one. Never waits.
    ///
    /// # Errors
    ///
    /// What the reader met; it has ended.
    pub(super) fn next(&mut self) -> Result<Next, SourceError> {
        match self.full.try_recv() {
            Ok(Delivery::Chunk(chunk)) => Ok(Next::Chunk(chunk)),
            Ok(Delivery::End) => Ok(Next::End),
            Ok(Delivery::Failed(error)) => Err(error),
            Err(TryRecvError::Empty) => Ok(Next::Wait),
            Err(TryRecvError::Disconnected) => Err("the reader thread ended without a word".into()),
        }
    }

    /// Gives a chunk's memory back to the reader.
    pub(super) fn recycle(&mut self, chunk: Chunk) {
        // The channel holds every chunk there is, so this fails only if the reader has ended.
        let _ = self.empty.try_send(chunk.bytes);
    }
}

/// The thread's end.
struct Feeder {
    /// `None` only while it is dropped.
    full: Option<SyncSender<Delivery>>,
    empty: Receiver<Vec<u8>>,
    waker: Waker,
    chunk_bytes: usize,
}

impl Feeder {
    fn run<R: ReadChunk>(self, open: impl FnOnce() -> Result<R, SourceError>) {
        let last = match open().and_then(|reader| self.read(reader)) {
            Ok(()) => Delivery::End,
            Err(error) => Delivery::Failed(error),
        };
        self.deliver(last);
    }

    /// Reads to the end, or until the shard's end is gone.
    fn read<R: ReadChunk>(&self, mut reader: R) -> Result<(), SourceError> {
        let mut made = 0;
        loop {
            let mut bytes = match self.empty.try_recv() {
                Ok(bytes) => bytes,
                Err(TryRecvError::Empty) if made < CHUNKS => {
                    made += 1;
                    vec![0; self.chunk_bytes]
                }
                Err(_) => match self.empty.recv() {
                    Ok(bytes) => bytes,
                    Err(_) => return Ok(()),
                },
            };
            let len = reader.read_chunk(&mut bytes)?;
            if len == 0 {
                return Ok(());
            }
            if !self.deliver(Delivery::Chunk(Chunk { bytes, len, consumed: reader.consumed() })) {
                return Ok(());
            }
        }
    }

    /// Passes `delivery` on; false if nobody is there to take it.
    fn deliver(&self, delivery: Delivery) -> bool {
        let sent = self.full.as_ref().is_some_and(|full| full.send(delivery).is_ok());
        self.waker.wake();
        sent
    }
}

impl Drop for Feeder {
    /// A reader that panics must not leave its task waiting: first the channel closes, then it is woken.
    fn drop(&mut self) {
        self.full = None;
        self.waker.wake();
    }
}

static ALLOWED_CORES: OnceLock<Vec<u32>> = OnceLock::new();

/// Remembers on which cores this thread may run as those that helper threads may use.
///
/// A thread inherits the mask of the one that starts it, and a shard's is a single core, on which a helper would
/// take time from the shard. So the first call, before any thread is pinned, decides.
pub fn remember_allowed_cores() {
    // Where the kernel does not say, helpers run where they are started.
    ALLOWED_CORES.get_or_init(|| topology::allowed_cores().unwrap_or_default());
}

/// Lets this thread run wherever the process may, not only where the thread that started it was pinned.
pub(crate) fn use_allowed_cores() {
    if let Some(cores) = ALLOWED_CORES.get() {
        // Refused if the cores were taken away meanwhile: then the kernel has chosen others already.
        let _ = topology::pin(cores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::stdin::StreamChunks;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    fn until(what: impl Fn() -> bool) {
        let since = Instant::now();
        while !what() {
            assert!(since.elapsed() < Duration::from_secs(120), "it does not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Endless zeros; counts the chunks that were read.
    struct Zeros(Arc<AtomicU32>);

    impl ReadChunk for Zeros {
        fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(buf.len())
        }

        fn consumed(&self) -> u64 {
            0
        }
    }

    /// Goal: the thread reads no further than the chunks there are, however long nobody takes them.
    #[test]
    fn a_shard_that_does_not_take_chunks_holds_back_the_reader() {
        let read = Arc::new(AtomicU32::new(0));
        let counted = read.clone();
        let mut stream = ChunkStream::spawn(Waker::new(|| {}), 16, || Ok(Zeros(counted))).unwrap();
        for taken in 0..10 {
            until(|| read.load(Ordering::Relaxed) == CHUNKS as u32 + taken);
            thread::sleep(Duration::from_millis(2));
            assert_eq!(read.load(Ordering::Relaxed), CHUNKS as u32 + taken);
            let Ok(Next::Chunk(chunk)) = stream.next() else { panic!("a chunk was read") };
            stream.recycle(chunk);
        }
    }

    /// Goal: a reader that fails or panics says so and wakes the task.
    #[test]
    fn a_reader_that_fails_or_panics_is_an_error() {
        for (panics, message) in [(false, "as it should"), (true, "without a word")] {
            let wakes = Arc::new(AtomicU32::new(0));
            let counted = wakes.clone();
            let waker = Waker::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            let mut stream = ChunkStream::spawn(waker, 16, move || {
                assert!(!panics, "on purpose");
                Err::<StreamChunks, SourceError>("fails as it should".into())
            })
            .unwrap();
            until(|| wakes.load(Ordering::Relaxed) > 0);
            let Err(error) = stream.next() else { panic!("the reader failed") };
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    /// Goal: a helper that a pinned thread starts may run on all cores of the process.
    #[test]
    fn helpers_are_not_pinned_as_the_thread_that_starts_them() {
        remember_allowed_cores();
        let allowed = ALLOWED_CORES.get().unwrap();
        thread::spawn(move || {
            topology::pin(&allowed[..1]).unwrap();
            let (tell, told) = sync_channel(1);
            let _stream = ChunkStream::spawn(Waker::new(|| {}), 16, move || {
                tell.send(topology::allowed_cores().unwrap()).unwrap();
                Err::<StreamChunks, SourceError>("done".into())
            })
            .unwrap();
            assert_eq!(told.recv().unwrap(), *allowed);
        })
        .join()
        .unwrap();
    }
}
