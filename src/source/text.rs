//! Text lines from files, directories, gzip files, pipes and standard input.
//!
//! [`TextFiles::plan`] looks at the world before the job starts; [`TextPlan::source`] makes one subtask's source,
//! which on its shard's thread reads what the page cache holds and leaves all that may block to a
//! reader thread:
//!
//! ```text
//!   plain file, cached ──────────── preadv2 ───┐
//!   plain file, not cached ─┐                  ├─► line buffer ─► out
//!   gzip, pipe, stdin ──────┴ reader thread ───┘
//! ```
//!
//! A line is emitted as a `&str` that points into the buffer: no copy but the kernel's, no allocation.
//! Bytes that are not UTF-8 become U+FFFD and the line is counted, or fail the job if
//! [`TextOptions::strict`] is set.

use super::error::TextError;
use super::gzip::GzipChunks;
use super::helper::{ChunkStream, Next, ReadChunk, remember_allowed_cores};
use super::lines::{Drained, LineBuffer, LineFault};
use super::page_cache::{self, Cached};
use super::split::{InputFile, InputKind, Inputs, Skipped, Split};
use super::stdin::StreamChunks;
use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll, Waker};
use crate::operator::Collector;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Reads in one poll without a line to emit, after which the poll ends and other tasks get their turn.
const READS_PER_POLL_MAX: u32 = 4;

/// Bytes read beyond the end of a split at a time, to find the end of its last line.
const BEYOND_BYTES: u64 = 16 << 10;

/// How text is read.
#[derive(Debug, Clone)]
pub struct TextOptions {
    /// Fail on a line that is not UTF-8, rather than replace what is not and count the line.
    pub strict: bool,
    /// A longer line fails the job; the greatest size of a record.
    pub line_bytes_max: usize,
    /// Bytes read at a time: fits in a core's second-level cache.
    pub chunk_bytes: usize,
    /// Files are not cut into smaller splits than this.
    pub split_bytes_min: u64,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { strict: false, line_bytes_max: 64 << 20, chunk_bytes: 256 << 10, split_bytes_min: 1 << 20 }
    }
}

/// The text source, before it is planned.
#[derive(Debug)]
pub struct TextFiles;

impl TextFiles {
    /// Finds all files that `paths` name (files, directories with all that is below them, `-` for
    /// standard input) and checks that they can be read. Blocks: to be called before the job starts.
    ///
    /// # Errors
    ///
    /// What is missing, unreadable or empty, by its path; nothing was started.
    ///
    /// # Panics
    ///
    /// If a size in `options` is 0.
    pub fn plan<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: TextOptions,
    ) -> Result<TextPlan, TextError> {
        assert!(options.chunk_bytes > 0 && options.line_bytes_max > 0, "sizes of at least one byte: {options:?}");
        remember_allowed_cores();
        let paths: Vec<PathBuf> = paths.into_iter().map(|p| p.as_ref().to_path_buf()).collect();
        let inputs = Inputs::find(&paths)?;
        Ok(TextPlan { shared: Arc::new(Shared { inputs, options, counters: Mutex::default() }) })
    }
}

/// Everything that will be read. Cheap to clone; clones show the same progress.
#[derive(Debug, Clone)]
pub struct TextPlan {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inputs: Inputs,
    options: TextOptions,
    /// By subtask; locked when a source is made and when progress is shown, never while reading.
    counters: Mutex<Vec<Arc<Counters>>>,
}

/// What one subtask has done, written by it alone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counters {
    bytes: AtomicU64,
    invalid_lines: AtomicU64,
}

impl TextPlan {
    /// The inputs, in the order of reading.
    pub fn files(&self) -> &[InputFile] {
        &self.shared.inputs.files
    }

    /// What lies in the given directories and is not read.
    pub fn skipped(&self) -> &[Skipped] {
        &self.shared.inputs.skipped
    }

    /// How many of the files are hidden (they are read like the others).
    pub fn hidden_files(&self) -> usize {
        self.shared.inputs.hidden
    }

    /// Bytes to read, compressed ones where a file is; `None` if an input is a stream.
    pub fn bytes_total(&self) -> Option<u64> {
        self.shared.inputs.bytes_total()
    }

    /// Bytes read so far by all subtasks, in the unit of [`bytes_total`](Self::bytes_total).
    pub fn bytes_read(&self) -> u64 {
        self.sum(|c| &c.bytes)
    }

    /// Lines so far in which bytes that are not UTF-8 were replaced.
    pub fn invalid_lines(&self) -> u64 {
        self.sum(|c| &c.invalid_lines)
    }

    fn sum(&self, which: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let counters = self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|c| which(c).load(Ordering::Relaxed)).sum()
    }

    /// The splits that a subtask reads.
    pub fn splits(&self, subtask: u32, parallelism: u32) -> Vec<Split> {
        let mut given = self.shared.inputs.assign(parallelism, self.shared.options.split_bytes_min);
        given.swap_remove(subtask as usize)
    }

    /// The source of one subtask. Opens nothing yet.
    pub fn source(&self, context: &SourceContext) -> TextSource {
        let options = &self.shared.options;
        let counters = Arc::new(Counters::default());
        {
            let mut all = self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner);
            all.resize_with(all.len().max(context.subtask as usize + 1), Default::default);
            all[context.subtask as usize] = counters.clone();
        }
        let mut splits = self.splits(context.subtask, context.parallelism);
        splits.reverse();
        TextSource {
            lines: LineBuffer::new(options.chunk_bytes, options.line_bytes_max, options.strict),
            plan: self.shared.clone(),
            waker: context.waker.clone(),
            counters,
            splits,
            split: None,
            reading: Reading::Nothing,
            done_bytes: 0,
            split_bytes: 0,
        }
    }
}

/// One subtask's source of text lines.
pub struct TextSource {
    plan: Arc<Shared>,
    waker: Waker,
    counters: Arc<Counters>,
    /// Still to be read, the next one last.
    splits: Vec<Split>,
    split: Option<Split>,
    reading: Reading,
    lines: LineBuffer,
    /// Bytes of finished splits.
    done_bytes: u64,
    /// Bytes read of this split.
    split_bytes: u64,
}

/// Where the bytes of the split in work come from.
enum Reading {
    Nothing,
    /// This thread, as long as the page cache has them.
    Direct { file: File, offset: u64 },
    /// A reader thread.
    Stream(ChunkStream),
}

impl Source for TextSource {
    type Item = String;

    #[inline]
    fn poll<C: Collector<String>>(
        &mut self,
        out: &mut SourceOutput<'_, String, C>,
    ) -> Result<SourcePoll, SourceError> {
        let mut idle_reads = 0;
        loop {
            let emitted = out.emitted();
            match self.lines.drain(out) {
                Ok(Drained::Full) => return Ok(SourcePoll::More),
                Ok(Drained::Empty) => {}
                Ok(Drained::Complete) => {
                    if !self.next_split()? {
                        return Ok(SourcePoll::Done);
                    }
                }
                Err(fault) => {
                    self.fail(fault)?;
                    return Ok(SourcePoll::Wait);
                }
            }
            idle_reads = if out.emitted() == emitted { idle_reads + 1 } else { 0 };
            if idle_reads > READS_PER_POLL_MAX {
                return Ok(SourcePoll::More);
            }
            match self.read() {
                Ok(true) => {}
                Ok(false) => return Ok(SourcePoll::Wait),
                Err(ReadFault::Line(fault)) => {
                    self.fail(fault)?;
                    return Ok(SourcePoll::Wait);
                }
                Err(ReadFault::Other(error)) => return Err(error),
            }
        }
    }
}

enum ReadFault {
    Line(LineFault),
    Other(SourceError),
}

impl From<LineFault> for ReadFault {
    fn from(fault: LineFault) -> ReadFault {
        ReadFault::Line(fault)
    }
}

impl From<SourceError> for ReadFault {
    fn from(error: SourceError) -> ReadFault {
        ReadFault::Other(error)
    }
}

impl From<TextError> for ReadFault {
    fn from(error: TextError) -> ReadFault {
        ReadFault::Other(error.into())
    }
}

impl TextSource {
    fn input(&self) -> &InputFile {
        &self.plan.inputs.files[self.split.expect("a split is in work").input]
    }

    /// Ends the split in work and opens the next one; false if there is none.
    fn next_split(&mut self) -> Result<bool, SourceError> {
        if let Some(split) = self.split.take() {
            // Plain files: what was read twice, at the seams, is not counted twice.
            let plain = self.plan.inputs.files[split.input].kind == InputKind::Plain;
            self.done_bytes += if plain { split.end - split.start } else { self.split_bytes };
        }
        self.split_bytes = 0;
        self.reading = Reading::Nothing;
        self.count();
        let Some(split) = self.splits.pop() else {
            return Ok(false);
        };
        self.split = Some(split);
        let offset = self.lines.begin(split.start, split.end);
        let input = self.input().clone();
        self.reading = match input.kind {
            InputKind::Plain => match page_cache::open(&input.path) {
                Some(file) => Reading::Direct { file, offset },
                None => {
                    let path = input.path.clone();
                    self.stream(move || {
                        let file = File::open(&path).map_err(|cause| TextError::Unreadable { path, cause })?;
                        Ok(FileChunks { file, offset, split, input })
                    })?
                }
            },
            InputKind::Gzip => self.stream(move || GzipChunks::open(input.path))?,
            InputKind::Pipe => self.stream(move || StreamChunks::open(input.path))?,
            InputKind::Stdin => self.stream(|| Ok(StreamChunks::stdin()))?,
        };
        Ok(true)
    }

    /// Has a reader thread read what `open` opens.
    fn stream<R, O>(&self, open: O) -> Result<Reading, SourceError>
    where
        R: ReadChunk,
        O: FnOnce() -> Result<R, SourceError> + Send + 'static,
    {
        let stream = ChunkStream::spawn(self.waker.clone(), self.plan.options.chunk_bytes, open);
        stream.map(Reading::Stream).map_err(|cause| {
            let path = self.input().path.clone();
            TextError::Thread { path, cause }.into()
        })
    }

    /// Brings more bytes into the line buffer; false if there are none at the moment.
    fn read(&mut self) -> Result<bool, ReadFault> {
        match &mut self.reading {
            Reading::Nothing => unreachable!("the line buffer is complete while no split is in work"),
            Reading::Stream(stream) => match stream.next()? {
                Next::Wait => return Ok(false),
                Next::End => self.lines.end_of_input(),
                Next::Chunk(chunk) => {
                    self.lines.space(chunk.bytes().len()).copy_from_slice(chunk.bytes());
                    let filled = self.lines.filled(chunk.bytes().len());
                    self.split_bytes = chunk.consumed;
                    stream.recycle(chunk);
                    filled?;
                }
            },
            Reading::Direct { .. } => self.read_direct()?,
        }
        self.count();
        Ok(true)
    }

    fn read_direct(&mut self) -> Result<(), ReadFault> {
        let split = self.split.expect("a split is in work");
        let input = &self.plan.inputs.files[split.input];
        let Reading::Direct { file, offset } = &mut self.reading else { unreachable!("called for this case") };
        let want = bytes_wanted(*offset, split, input, self.plan.options.chunk_bytes);
        if want == 0 {
            self.lines.end_of_input();
            return Ok(());
        }
        match page_cache::read_at(file, *offset, self.lines.space(want)) {
            Cached::Read(0) => {
                let (path, planned, found) = (input.path.clone(), input.bytes, *offset);
                return Err(TextError::Shrunk { path, planned, found }.into());
            }
            Cached::Read(count) => {
                *offset += count as u64;
                self.split_bytes += count as u64;
                self.lines.filled(count)?;
            }
            Cached::Miss => {
                let input = input.clone();
                if let Reading::Direct { file, offset } = mem::replace(&mut self.reading, Reading::Nothing) {
                    self.reading = self.stream(move || Ok(FileChunks { file, offset, split, input }))?;
                }
            }
            Cached::Failed(cause) => {
                let (path, offset) = (input.path.clone(), *offset);
                return Err(TextError::Read { path, offset, cause }.into());
            }
        }
        Ok(())
    }

    /// Shows progress. One writer, so a plain store is enough.
    fn count(&self) {
        let split = self.split.map_or(0, |s| s.end - s.start);
        self.counters.bytes.store(self.done_bytes + self.split_bytes.min(split), Ordering::Relaxed);
        self.counters.invalid_lines.store(self.lines.invalid_lines(), Ordering::Relaxed);
    }

    /// The error of a line; or nothing yet, where a reader thread first has to find the line's number.
    fn fail(&mut self, fault: LineFault) -> Result<(), SourceError> {
        let (path, split) = (self.input().path.clone(), self.split.expect("a split is in work"));
        match fault {
            LineFault::TooLong { offset } => {
                let bytes_max = self.plan.options.line_bytes_max;
                Err(TextError::LineTooLong { path, offset, bytes_max }.into())
            }
            LineFault::Invalid { offset, line } if split.start == 0 => {
                Err(TextError::InvalidUtf8 { path, offset, line }.into())
            }
            LineFault::Invalid { offset, .. } => {
                // Lines before this split were counted by nobody: go and count, off the shard.
                self.reading = self.stream(move || {
                    let line = 1 + count_lines(&path, offset)?;
                    Err::<StreamChunks, _>(TextError::InvalidUtf8 { path, offset, line }.into())
                })?;
                self.lines = LineBuffer::new(1, 1, true);
                self.lines.begin(0, u64::MAX);
                Ok(())
            }
        }
    }
}

/// How many bytes to read at `offset`: up to the split's end, then in small pieces up to the file's.
fn bytes_wanted(offset: u64, split: Split, input: &InputFile, chunk_bytes: usize) -> usize {
    let left = if offset < split.end {
        split.end - offset
    } else {
        (input.bytes.saturating_sub(offset)).min(BEYOND_BYTES)
    };
    left.min(chunk_bytes as u64) as usize
}

/// A split of a plain file, read by a thread that may wait for the disk.
struct FileChunks {
    file: File,
    offset: u64,
    split: Split,
    input: InputFile,
}

impl ReadChunk for FileChunks {
    fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let want = bytes_wanted(self.offset, self.split, &self.input, buf.len());
        if want == 0 {
            return Ok(0);
        }
        loop {
            let (path, offset) = (&self.input.path, self.offset);
            match self.file.read_at(&mut buf[..want], offset) {
                Ok(0) => {
                    let (path, planned) = (path.clone(), self.input.bytes);
                    return Err(TextError::Shrunk { path, planned, found: offset }.into());
                }
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(TextError::Read { path: path.clone(), offset, cause }.into()),
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.offset - self.split.start.min(self.offset)
    }
}

/// Line ends in the first `end` bytes of a file. Blocks.
fn count_lines(path: &Path, end: u64) -> Result<u64, SourceError> {
    let unreadable = |cause| TextError::Unreadable { path: path.to_path_buf(), cause };
    let mut input = File::open(path).map_err(unreadable)?.take(end);
    let mut buf = vec![0; 256 << 10];
    let mut lines = 0;
    loop {
        match input.read(&mut buf) {
            Ok(0) => return Ok(lines),
            Ok(count) => lines += memchr::memchr_iter(b'\n', &buf[..count]).count() as u64,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(unreadable(cause).into()),
        }
    }
}
