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
//! A line, or a block of whole lines, is emitted as a `&str` that points into the buffer: no copy but the
//! kernel's, no allocation.
//! Bytes that are not UTF-8 become U+FFFD and the line is counted, or fail the job if
//! [`TextOptions::strict`] is set.

use super::error::TextError;
use super::gzip::GzipChunks;
use super::helper::{ChunkStream, Next, ReadChunk, remember_allowed_cores};
use super::lines::{Drained, LineBuffer, LineFault};
use super::page_cache::{self, Cached};
use super::position::{Begun, Identity, Position};
use super::split::{InputFile, InputKind, Inputs, Skipped, Split, modified_ns};
use super::stdin::StreamChunks;
use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll, Waker};
use crate::operator::Collector;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Reads in one poll without a line to emit, after which the poll ends and other tasks get their turn.
const READS_PER_POLL_MAX: u32 = 4;

/// Bytes read beyond the end of a split at a time, to find the end of its last line.
const BEYOND_BYTES: u64 = 16 << 10;

/// How text is read.
#[derive(Debug, Clone)]
pub struct TextOptions {
    /// Fail on a line that is not UTF-8, rather than replace what is not and count the line.
    pub strict: bool,
    /// Read all that is below a directory: what is hidden, caches and binary files too.
    pub all: bool,
    /// A longer line fails the job; the greatest size of a record.
    pub line_bytes_max: usize,
    /// A record is not a line but a block: as many whole lines as together have no more than so many bytes, with
    /// the line ends between them, or one line that is longer. Lines are what text is about, but where
    /// only their words count, a record by the line is too little work for what a record costs. 0 for lines.
    pub block_bytes: usize,
    /// Bytes read at a time: fits in a core's second-level cache.
    pub chunk_bytes: usize,
    /// Files are not cut into smaller splits than this.
    pub split_bytes_min: u64,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions {
            strict: false,
            all: false,
            line_bytes_max: 64 << 20,
            block_bytes: 0,
            chunk_bytes: 256 << 10,
            split_bytes_min: 1 << 20,
        }
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
        assert!(
            options.chunk_bytes > 0 && options.line_bytes_max > 0,
            "sizes of at least one byte: {options:?}"
        );
        remember_allowed_cores();
        let paths: Vec<PathBuf> = paths.into_iter().map(|p| p.as_ref().to_path_buf()).collect();
        let inputs = Inputs::find(&paths, options.all)?;
        let streams_begun = inputs.files.iter().map(|_| AtomicBool::new(false)).collect();
        let (identity, counters) = (OnceLock::new(), Mutex::default());
        Ok(TextPlan { shared: Arc::new(Shared { inputs, options, identity, streams_begun, counters }) })
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
    /// Made for the first checkpoint.
    identity: OnceLock<Identity>,
    /// By input: whether it is a stream that has been begun. It cannot be begun again.
    streams_begun: Vec<AtomicBool>,
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

impl Shared {
    fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity::of(&self.inputs))
    }
}

impl TextPlan {
    /// The first input that can be read only once: a job that reads it cannot go on after a failure.
    pub fn read_once(&self) -> Option<&InputFile> {
        self.files().iter().find(|file| matches!(file.kind, InputKind::Pipe | InputKind::Stdin))
    }

    /// The inputs, in the order of reading.
    pub fn files(&self) -> &[InputFile] {
        &self.shared.inputs.files
    }

    /// What lies in the given directories and is not read.
    pub fn skipped(&self) -> &[Skipped] {
        &self.shared.inputs.skipped
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
            let count = all.len().max(context.subtask as usize + 1);
            all.resize_with(count, Default::default);
            all[context.subtask as usize] = counters.clone();
        }
        let mut splits = self.splits(context.subtask, context.parallelism);
        splits.reverse();
        TextSource {
            lines: LineBuffer::new(options.chunk_bytes, options.line_bytes_max, options.strict)
                .in_blocks(options.block_bytes),
            plan: self.shared.clone(),
            waker: context.waker.clone(),
            counters,
            parallelism: context.parallelism,
            splits_total: splits.len(),
            splits,
            split: None,
            reading: Reading::Nothing,
            cached: true,
            failed: false,
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
    parallelism: u32,
    /// How many there were to be read, and which still are, the next one last.
    splits_total: usize,
    splits: Vec<Split>,
    split: Option<Split>,
    reading: Reading,
    lines: LineBuffer,
    /// Whether the page cache is asked at all. A test may say no, since what it holds is not ours to choose.
    cached: bool,
    /// Whether a line was found that may not be.
    failed: bool,
    /// Bytes of finished splits.
    done_bytes: u64,
    /// Bytes read of this split.
    split_bytes: u64,
}

/// Where the bytes of the split in work come from.
enum Reading {
    Nothing,
    /// This thread, as long as the page cache has them.
    Direct {
        file: File,
        offset: u64,
    },
    /// A reader thread.
    Stream(ChunkStream),
}

impl Source for TextSource {
    type Item = String;

    /// Files can be read again from any line. A [stream](TextPlan::read_once) cannot: a job that fails while it is
    /// read does not go on.
    const REPLAYS: bool = true;

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

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        if self.failed {
            return Err("the text has a line that fails the job".into());
        }
        let in_work = self.split.is_some() && !self.lines.is_drained();
        // While the end of the line before the split is looked for, nothing of the split is out.
        let begun = self.lines.position().filter(|_| in_work);
        let position = Position {
            parallelism: self.parallelism,
            split_bytes_min: self.plan.options.split_bytes_min,
            done: (self.splits_total - self.splits.len() - usize::from(in_work)) as u32,
            begun: begun.map(|(offset, lines)| Begun { offset, lines }),
            invalid_lines: self.lines.invalid_lines(),
        };
        position.seal(self.plan.identity(), state);
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let position = Position::open(state, &self.plan.inputs, self.plan.identity())?;
        let Position { parallelism, split_bytes_min, done, begun, invalid_lines } = position;
        if (parallelism, split_bytes_min) != (self.parallelism, self.plan.options.split_bytes_min) {
            let (found, expected) = (self.parallelism, parallelism);
            return Err(TextError::CutDifferently { found, expected, split_bytes_min }.into());
        }
        for _ in 0..done {
            let Some(split) = self.splits.pop() else {
                return Err(format!("{done} splits are done, of {}", self.splits_total).into());
            };
            self.done_bytes += self.bytes_of(split);
        }
        self.lines.add_invalid_lines(invalid_lines);
        if let Some(begun) = begun {
            let split = self.splits.pop().filter(|split| (split.start..split.end).contains(&begun.offset));
            let Some(split) = split else {
                return Err(format!("byte {} is in no split that is left", begun.offset).into());
            };
            self.resume(split, begun)?;
        }
        self.count();
        Ok(())
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

    /// Bytes of a split that is done, in the unit of [`TextPlan::bytes_total`].
    fn bytes_of(&self, split: Split) -> u64 {
        let input = &self.plan.inputs.files[split.input];
        match input.kind {
            // What was read twice, at the seams, is not counted twice.
            InputKind::Plain => split.end - split.start,
            InputKind::Gzip => input.bytes,
            InputKind::Pipe | InputKind::Stdin => self.split_bytes,
        }
    }

    /// Ends the split in work and opens the next one; false if there is none.
    fn next_split(&mut self) -> Result<bool, SourceError> {
        if let Some(split) = self.split.take() {
            self.done_bytes += self.bytes_of(split);
        }
        self.split_bytes = 0;
        self.reading = Reading::Nothing;
        self.count();
        let Some(split) = self.splits.pop() else {
            return Ok(false);
        };
        let offset = self.lines.begin(split.start, split.end);
        self.open(split, offset)?;
        Ok(true)
    }

    /// Goes on in the middle of a split. Blocks for as long as it takes to ask for a file's size.
    fn resume(&mut self, split: Split, begun: Begun) -> Result<(), SourceError> {
        let input = &self.plan.inputs.files[split.input];
        if matches!(input.kind, InputKind::Pipe | InputKind::Stdin) {
            return Err(TextError::ReadOnce { path: input.path.clone() }.into());
        }
        let found = input.path.metadata();
        let found = found.map_err(|cause| TextError::Unreadable { path: input.path.clone(), cause })?;
        if (found.len(), modified_ns(&found)) != (input.bytes, input.modified_ns) {
            let (path, planned, bytes) = (input.path.display(), input.bytes, found.len());
            let changes = if planned == bytes {
                format!("{path} was written to since")
            } else {
                format!("{path} had {planned} bytes and has {bytes}")
            };
            return Err(TextError::Changed { changes }.into());
        }
        if input.kind == InputKind::Plain {
            self.split_bytes = begun.offset - split.start;
        }
        self.lines.resume(begun.offset, split.end, begun.lines);
        self.open(split, begun.offset)
    }

    /// Takes `split` into work and has it read from `offset` on.
    fn open(&mut self, split: Split, offset: u64) -> Result<(), SourceError> {
        self.split = Some(split);
        let input = self.input().clone();
        if matches!(input.kind, InputKind::Pipe | InputKind::Stdin)
            && self.plan.streams_begun[split.input].swap(true, Ordering::Relaxed)
        {
            return Err(TextError::ReadOnce { path: input.path }.into());
        }
        self.reading = match input.kind {
            InputKind::Plain => match page_cache::open(&input.path) {
                Some(file) => Reading::Direct { file, offset },
                None => {
                    let path = input.path.clone();
                    self.stream(move || {
                        let file =
                            File::open(&path).map_err(|cause| TextError::Unreadable { path, cause })?;
                        Ok(FileChunks { file, offset, split, input })
                    })?
                }
            },
            InputKind::Gzip => self.stream(move || GzipChunks::open(input.path, offset))?,
            InputKind::Pipe => self.stream(move || StreamChunks::open(input.path))?,
            InputKind::Stdin => self.stream(|| Ok(StreamChunks::stdin()))?,
        };
        Ok(())
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
        let Reading::Direct { file, offset } = &mut self.reading else {
            unreachable!("called for this case")
        };
        let want = bytes_wanted(*offset, split, input, self.plan.options.chunk_bytes);
        if want == 0 {
            self.lines.end_of_input();
            return Ok(());
        }
        let space = self.lines.space(want);
        let cached = if self.cached { page_cache::read_at(file, *offset, space) } else { Cached::Miss };
        match cached {
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
        self.failed = true;
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

#[cfg(test)]
mod tests;
