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
            splits,
            split: None,
            reading: Reading::Nothing,
            cached: true,
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
    /// Whether the page cache is asked at all. A test may say no, since what it holds is not ours to choose.
    cached: bool,
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
            let input = &self.plan.inputs.files[split.input];
            self.done_bytes += match input.kind {
                // What was read twice, at the seams, is not counted twice.
                InputKind::Plain => split.end - split.start,
                InputKind::Gzip => input.bytes,
                InputKind::Pipe | InputKind::Stdin => self.split_bytes,
            };
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
                        let file =
                            File::open(&path).map_err(|cause| TextError::Unreadable { path, cause })?;
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
mod tests {
    use super::*;
    use crate::source::testing::{context, run};
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::fs;
    use std::io::Write;
    use tempfile::TempDir;

    /// Small in every respect, so that a short text has many chunks and splits.
    fn small(chunk_bytes: usize, split_bytes_min: u64) -> TextOptions {
        TextOptions { chunk_bytes, split_bytes_min, ..TextOptions::default() }
    }

    fn directory(files: &[(&str, &[u8])]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        dir
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// The lines of every subtask, or the first failure.
    fn lines(plan: &TextPlan, parallelism: u32, budget: u32) -> Result<Vec<Vec<String>>, SourceError> {
        (0..parallelism).map(|i| run(&mut plan.source(&context(i, parallelism)), budget)).collect()
    }

    /// The lines that came in blocks; panics if a block of several lines has more bytes than asked for.
    fn lines_of(blocks: Vec<String>, block_bytes: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for block in blocks {
            assert!(block.len() <= block_bytes || !block.contains('\n'), "{block:?} of {block_bytes} bytes");
            let ended: Vec<&str> = block.split('\n').collect();
            let (last, before) = ended.split_last().expect("a split has one piece at least");
            lines.extend(before.iter().map(|line| line.strip_suffix('\r').unwrap_or(line).to_string()));
            lines.push(last.to_string());
        }
        lines
    }

    fn failure(path: &Path, options: TextOptions) -> String {
        let plan = TextFiles::plan([path], options).unwrap();
        lines(&plan, 1, 100).unwrap_err().to_string()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Goal: whatever the chunks, splits and subtasks, each line of a text comes exactly once.
        /// Method: texts of few different characters, so that line ends and multi-byte characters lie at every
        /// place; `str::lines` is the oracle; the same text through gzip.
        #[test]
        fn all_subtasks_together_emit_the_lines_of_the_text(
            text in "[a\n\r é€𝄞]{0,60}",
            chunk_bytes in 1usize..20,
            split_bytes in 1u64..30,
            parallelism in 1u32..5,
            budget in 1u32..4,
            block_bytes in 0usize..12,
        ) {
            let expected: Vec<&str> = text.lines().collect();
            let dir = directory(&[("plain", text.as_bytes()), ("packed.GZ", &gzip(text.as_bytes()))]);
            let options = small(chunk_bytes, split_bytes);
            let plan = TextFiles::plan([dir.path().join("plain")], options.clone()).unwrap();
            let got = lines(&plan, parallelism, budget).unwrap();
            if parallelism == 1 {
                prop_assert_eq!(&got[0], &expected);
            }
            let mut got: Vec<String> = got.into_iter().flatten().collect();
            let mut sorted = expected.clone();
            got.sort();
            sorted.sort();
            prop_assert_eq!(&got, &sorted);
            prop_assert_eq!(plan.bytes_read(), text.len() as u64);
            prop_assert_eq!(plan.invalid_lines(), 0);

            let blocks = TextOptions { block_bytes, ..options.clone() };
            let plan = TextFiles::plan([dir.path().join("plain")], blocks).unwrap();
            let got = lines(&plan, parallelism, budget).unwrap();
            let mut got: Vec<String> = got.into_iter().flat_map(|got| lines_of(got, block_bytes)).collect();
            got.sort();
            prop_assert_eq!(got, sorted);

            let packed = TextFiles::plan([dir.path().join("packed.GZ")], options).unwrap();
            prop_assert_eq!(lines(&packed, parallelism, budget).unwrap().concat(), expected);
            prop_assert_eq!(Some(packed.bytes_read()), packed.bytes_total());
        }

        /// Goal: bytes that are not UTF-8 become U+FFFD and their lines are counted; strict mode names the first.
        /// Method: arbitrary bytes of few values; `String::from_utf8_lossy` of each line is the oracle.
        #[test]
        fn bytes_that_are_not_utf8_are_replaced_or_refused(
            bytes in proptest::collection::vec(proptest::sample::select(&b"a\n\xc3\xa9\xf0\xff"[..]), 0..50),
            chunk_bytes in 1usize..20,
            split_bytes in 1u64..30,
            block_bytes in 0usize..12,
        ) {
            let raw: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
            let raw = match raw.split_last() {
                Some((&[], rest)) => rest,
                _ => &raw[..],
            };
            let expected: Vec<String> =
                raw.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
            let dir = directory(&[("f", &bytes)]);
            let plan = TextFiles::plan([dir.path()], small(chunk_bytes, split_bytes)).unwrap();
            prop_assert_eq!(&lines(&plan, 1, 3).unwrap()[0], &expected);
            let invalid = raw.iter().filter(|line| std::str::from_utf8(line).is_err()).count();
            prop_assert_eq!(plan.invalid_lines(), invalid as u64);

            let blocks = TextOptions { block_bytes, ..small(chunk_bytes, split_bytes) };
            let plan = TextFiles::plan([dir.path()], blocks.clone()).unwrap();
            let got = lines(&plan, 1, 3).unwrap().concat();
            prop_assert_eq!(&lines_of(got, block_bytes), &expected);
            prop_assert_eq!(plan.invalid_lines(), invalid as u64);

            let strict = TextOptions { strict: true, ..blocks };
            let plan = TextFiles::plan([dir.path()], strict).unwrap();
            match (std::str::from_utf8(&bytes), lines(&plan, 1, 3)) {
                (Ok(_), got) => prop_assert_eq!(&lines_of(got.unwrap().concat(), block_bytes), &expected),
                (Err(at), got) => {
                    let at = at.valid_up_to();
                    let line = 1 + bytes[..at].iter().filter(|b| **b == b'\n').count();
                    let message = got.unwrap_err().to_string();
                    prop_assert!(message.contains(&format!("line {line} is not UTF-8 at byte {at};")), "{}", message);
                }
            }
        }
    }

    /// Goal: below a directory nothing is read that its user did not write, and what is not read is named;
    /// whoever asks for everything, or names a file or a directory, gets it.
    #[test]
    fn hidden_files_caches_and_binary_files_are_left_out_unless_asked_for() {
        let tag = b"Signature: 8a477f597d28d172789f06886806bc55\nmade by a test";
        let dir = directory(&[
            ("text", b"text"),
            ("deep/er", b"deeper"),
            ("deep/.hidden", b"hidden"),
            (".git/HEAD", b"head"),
            ("target/CACHEDIR.TAG", tag),
            ("target/debug/notes", b"notes"),
            ("CACHEDIR.TAG", tag),
            ("image", b"\x89PNG\r\n\0\0"),
            ("other/CACHEDIR.TAG", b"no signature"),
        ]);
        let read = |paths: &[PathBuf], all: bool| {
            let plan = TextFiles::plan(paths, TextOptions { all, ..TextOptions::default() }).unwrap();
            let name = |path: &Path| path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_string();
            let files: Vec<String> = plan.files().iter().map(|file| name(&file.path)).collect();
            let skipped: Vec<String> =
                plan.skipped().iter().map(|s| format!("{}: {}", name(&s.path), s.reason)).collect();
            (files, skipped)
        };
        let (files, skipped) = read(&[dir.path().to_path_buf()], false);
        assert_eq!(files, ["CACHEDIR.TAG", "deep/er", "other/CACHEDIR.TAG", "text"]);
        assert_eq!(
            skipped,
            [".git: hidden", "deep/.hidden: hidden", "image: binary", "target: a cache, by its CACHEDIR.TAG"]
        );
        let (files, skipped) = read(&[dir.path().to_path_buf()], true);
        assert_eq!((files.len(), skipped.len()), (9, 0));
        let named = [".git", "target", "image", "deep/.hidden"].map(|name| dir.path().join(name));
        let (files, skipped) = read(&named, false);
        assert_eq!(
            files,
            [".git/HEAD", "target/CACHEDIR.TAG", "target/debug/notes", "image", "deep/.hidden"]
        );
        assert_eq!(skipped.len(), 0);
        fs::remove_file(dir.path().join("deep/er")).unwrap();
        let error = TextFiles::plan([dir.path().join("deep")], TextOptions::default()).unwrap_err();
        assert!(matches!(error, TextError::NothingToRead { .. }), "{error:?}");
        assert!(error.to_string().contains(".hidden (hidden)"), "{error}");
    }

    /// Goal: a directory is read whole, in order; links into a circle end.
    #[test]
    fn directories_are_read_recursively_in_order() {
        let dir = directory(&[
            ("b/2", b"two\n"),
            ("b/1", b"one"),
            ("a", b"zero"),
            (".hidden", b"first"),
            ("c", b""),
        ]);
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/around")).unwrap();
        let options = TextOptions { all: true, ..TextOptions::default() };
        let plan = TextFiles::plan([dir.path()], options).unwrap();
        assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["first", "zero", "one", "two"]);
        assert_eq!(plan.files().len(), 5);
        assert_eq!(plan.skipped().len(), 1);
        assert!(plan.skipped()[0].path.ends_with("b/around"), "{:?}", plan.skipped());
    }

    /// Goal: a file given twice is read twice, and several inputs come in the order given.
    #[test]
    fn inputs_come_in_the_order_given() {
        let dir = directory(&[("x", b"x"), ("y.gz", &gzip(b"y\nz"))]);
        let (x, y) = (dir.path().join("x"), dir.path().join("y.gz"));
        let plan = TextFiles::plan([&y, &x, &y], TextOptions::default()).unwrap();
        assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["y", "z", "x", "y", "z"]);
    }

    /// Goal: what cannot be read is known before the job starts, with its path.
    #[test]
    fn planning_names_what_cannot_be_read() {
        let dir = directory(&[("f", b"")]);
        let plan = |paths: &[&Path]| TextFiles::plan(paths, TextOptions::default());
        let missing = dir.path().join("nowhere");
        let error = plan(&[&dir.path().join("f"), &missing]).unwrap_err();
        assert!(matches!(&error, TextError::Missing { path } if *path == missing), "{error:?}");
        let empty = dir.path().join("empty/deep");
        fs::create_dir_all(&empty).unwrap();
        let error = plan(&[empty.parent().unwrap()]).unwrap_err();
        assert!(matches!(error, TextError::NoFiles { .. }), "{error:?}");
        assert!(error.to_string().contains("empty"), "{error}");
        assert!(matches!(plan(&[]).unwrap_err(), TextError::NoInput));
        let stdin = Path::new("-");
        assert!(matches!(plan(&[stdin, stdin]).unwrap_err(), TextError::StdinTwice { times: 2 }));
        std::os::unix::fs::symlink(&missing, dir.path().join("dangling")).unwrap();
        let error = plan(&[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("dangling"), "{error}");
        // Root may read everything, so the check of permissions needs a user who is not.
        // SAFETY: asks for a number and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            use std::os::unix::fs::PermissionsExt;
            let closed = directory(&[("closed", b"x")]);
            fs::set_permissions(closed.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
            let error = plan(&[closed.path()]).unwrap_err();
            assert!(matches!(error, TextError::Unreadable { .. }), "{error:?}");
        }
    }

    /// Goal: several members are one text; a damaged, cut or foreign file fails with path and place.
    #[test]
    fn gzip_members_are_joined_and_damage_is_named() {
        let text: Vec<u8> =
            (0..20_000).flat_map(|i| format!("{i} {}\n", i * 7919 % 1009).into_bytes()).collect();
        let packed = gzip(&text);
        let two = [gzip(b"one\ntw"), gzip(b"o\nthree")].concat();
        let mut damaged = packed.clone();
        damaged[packed.len() / 2] ^= 0x10;
        let dir = directory(&[
            ("two.gz", &two),
            ("cut.gz", &packed[..packed.len() - 5]),
            ("damaged.gz", &damaged),
            ("foreign.gz", b"this is no gzip file"),
            ("tail.gz", &[&packed[..], b"rubbish behind it"].concat()),
            ("nothing.gz", b""),
        ]);
        let plan = TextFiles::plan([dir.path().join("two.gz")], small(3, 1)).unwrap();
        assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["one", "two", "three"]);
        for name in ["cut.gz", "damaged.gz", "foreign.gz", "tail.gz", "nothing.gz"] {
            let message = failure(&dir.path().join(name), TextOptions::default());
            assert!(
                message.contains(name) && message.contains("broken gzip data at compressed byte"),
                "{message}"
            );
        }
        assert!(
            failure(&dir.path().join("foreign.gz"), TextOptions::default()).contains("byte 0:")
                || failure(&dir.path().join("foreign.gz"), TextOptions::default()).contains("byte 1")
        );
    }

    /// Goal: a line may be as long as the bound and no longer, however it is read.
    #[test]
    fn lines_longer_than_the_bound_are_refused_with_their_place() {
        let dir = directory(&[
            ("fits", b"ab\n12345\r\n12345"),
            ("long", b"ab\n12345\r\n123456\nx"),
            ("end", b"ab\n123456"),
        ]);
        for chunk_bytes in 1..=20 {
            let options = TextOptions { line_bytes_max: 5, ..small(chunk_bytes, 1 << 20) };
            let plan = TextFiles::plan([dir.path().join("fits")], options.clone()).unwrap();
            assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["ab", "12345", "12345"]);
            let message = failure(&dir.path().join("long"), options.clone());
            assert!(message.contains("long: the line at byte 10 is longer than 5 bytes"), "{message}");
            let message = failure(&dir.path().join("end"), options);
            assert!(message.contains("end: the line at byte 3 is longer than 5 bytes"), "{message}");
        }
    }

    /// Goal: in strict mode a fault in a later split has the number of its line in the file.
    #[test]
    fn a_line_that_is_not_utf8_in_a_later_split_has_its_number() {
        let mut bytes = b"0123456\n".repeat(40);
        bytes[35 * 8 + 3] = 0xff;
        let dir = directory(&[("f", &bytes)]);
        let plan = TextFiles::plan([dir.path()], TextOptions { strict: true, ..small(7, 16) }).unwrap();
        let message = lines(&plan, 3, 9).unwrap_err().to_string();
        assert!(message.contains("line 36 is not UTF-8 at byte 283;"), "{message}");
    }

    /// Goal: a file that shrinks under the reader is an error; one that grows is read as far as it was planned.
    #[test]
    fn files_are_read_as_planned() {
        let dir = directory(&[("f", b"one\ntwo\nthree")]);
        let path = dir.path().join("f");
        let plan = TextFiles::plan([&path], small(4, 1)).unwrap();
        fs::write(&path, b"one\ntwo\nthree and a half\nfour\n").unwrap();
        assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["one", "two", "three"]);
        fs::write(&path, b"one\ntw").unwrap();
        let message = lines(&plan, 1, 9).unwrap_err().to_string();
        assert!(message.contains("ends at byte 6; expected 13 bytes"), "{message}");
    }

    /// Goal: a named pipe is read to its end, by a thread, in whatever pieces it is written.
    #[test]
    fn a_named_pipe_is_read_as_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a terminated string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let plan = TextFiles::plan([&path], TextOptions::default()).unwrap();
        assert_eq!(plan.bytes_total(), None);
        let writer = std::thread::spawn(move || {
            let mut pipe = fs::OpenOptions::new().write(true).open(path).unwrap();
            for piece in ["on", "e\r", "\nt", "wo"] {
                pipe.write_all(piece.as_bytes()).unwrap();
            }
        });
        assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["one", "two"]);
        writer.join().unwrap();
        assert_eq!(plan.bytes_read(), 8);
    }

    /// Goal: where the page cache refuses, a reader thread gives the same lines from the same place on.
    /// Method: the source is switched to the thread before its first read and in the middle.
    #[test]
    fn a_reader_thread_continues_where_the_cache_ends() {
        let bytes = b"line of text\n".repeat(50);
        let dir = directory(&[("f", &bytes)]);
        for direct_reads in 0..4 {
            let plan = TextFiles::plan([dir.path()], small(64, 1)).unwrap();
            let mut got = Vec::new();
            for subtask in 0..3 {
                let mut source = plan.source(&context(subtask, 3));
                let mut out = crate::source::testing::Capture::default();
                for _ in 0..direct_reads {
                    out.poll(&mut source, 5, 0).unwrap();
                }
                source.cached = false;
                got.extend(out.taken);
                got.extend(run(&mut source, 5).unwrap());
            }
            assert_eq!(got, vec!["line of text"; 50], "{direct_reads} reads");
            assert_eq!(plan.bytes_read(), bytes.len() as u64);
        }
    }
}
