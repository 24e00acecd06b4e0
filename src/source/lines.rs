//! Lines out of bytes: where a line ends, whether it is UTF-8, and which lines belong to a byte range.
//!
//! Reads nothing itself: a reader asks for [`space`](LineBuffer::space), fills it and says how much;
//! [`drain`](LineBuffer::drain) then hands every complete line to the output as a `&str` that points into
//! the buffer.
//!
//! ```text
//!   0      pos            ready        len        buf.len()
//!   | done | whole lines  | begun line | free     |
//!          '- UTF-8 checked at once -'
//! ```
//!
//! Invariant: `pos <= ready <= len <= buf.len()`, and if `valid`, then `buf[pos..ready]` is UTF-8.
//!
//! Lines end at `\n`; one `\r` before it is taken off; the end of the input ends the last line, unless
//! nothing is in it: the rules of [`str::lines`]. A range `start..stop` of a file owns the lines that
//! *begin* in it, so its reader begins one byte early, drops everything up to the first `\n`, and
//! goes on after `stop` to the end of the last line.
//!
//! Where the lines do not matter, only that none is cut, they go out in blocks: as many whole lines together as
//! have no more bytes than asked for, with the line ends between them. Lines that are not UTF-8 go out one by one.
//!
//! UTF-8 is checked for all whole lines of a chunk in one go, since a check per line costs as much as
//! finding it; only a chunk that fails is checked line by line.

use super::SourceOutput;
use crate::operator::Collector;
use std::str;

/// What a line may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFault {
    /// Longer than the bound; the line begins at this offset.
    TooLong { offset: u64 },
    /// Not UTF-8 from this offset on, in a buffer that is strict; `line` counts from 1 in this range.
    Invalid { offset: u64, line: u64 },
}

/// What is wanted next, after [`LineBuffer::drain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// The output is not ready; whole lines remain.
    Full,
    /// Every whole line is out: read on.
    Empty,
    /// Every line of the range is out.
    Complete,
}

/// The bytes between a reader and the output; see the module's description.
pub(super) struct LineBuffer {
    buf: Vec<u8>,
    pos: usize,
    ready: usize,
    len: usize,
    valid: bool,
    /// Offset in the input of `buf[0]`.
    base: u64,
    /// Lines that begin here or later belong to somebody else.
    stop: u64,
    /// Whether the bytes before the first `\n` are still to be dropped.
    skipping: bool,
    /// Whether the last line of the range lies whole in the buffer.
    complete: bool,
    /// Lines that are out, if strict; else of no meaning, as nobody asks.
    lines: u64,
    invalid_lines: u64,
    lossy: String,
    strict: bool,
    line_bytes_max: usize,
    chunk_bytes: usize,
    /// Bytes of lines that go out together; 0 for one by one.
    block_bytes: usize,
}

impl LineBuffer {
    /// An empty buffer that expects reads of about `chunk_bytes`.
    pub(super) fn new(chunk_bytes: usize, line_bytes_max: usize, strict: bool) -> LineBuffer {
        LineBuffer {
            buf: Vec::new(),
            pos: 0,
            ready: 0,
            len: 0,
            valid: true,
            base: 0,
            stop: u64::MAX,
            skipping: false,
            complete: true,
            lines: 0,
            invalid_lines: 0,
            lossy: String::new(),
            strict,
            line_bytes_max,
            chunk_bytes,
            block_bytes: 0,
        }
    }

    /// The same, handing out lines in blocks of at most so many bytes; 0 for one by one.
    pub(super) fn in_blocks(self, block_bytes: usize) -> LineBuffer {
        LineBuffer { block_bytes: block_bytes.min(self.line_bytes_max), ..self }
    }

    /// Begins the range `start..stop` and returns the offset from which to read.
    pub(super) fn begin(&mut self, start: u64, stop: u64) -> u64 {
        assert!(start < stop, "a range of no bytes: {start}..{stop}");
        self.skipping = start > 0;
        self.base = start.saturating_sub(1);
        (self.pos, self.ready, self.len) = (0, 0, 0);
        self.stop = stop;
        self.complete = false;
        self.lines = 0;
        self.base
    }

    /// Goes on in a range that ends at `stop`, with the line that begins at `offset`, before which it had `lines`.
    pub(super) fn resume(&mut self, offset: u64, stop: u64, lines: u64) {
        assert!(offset < stop, "no line of the range begins at {offset}: it ends at {stop}");
        self.skipping = false;
        self.base = offset;
        (self.pos, self.ready, self.len) = (0, 0, 0);
        self.stop = stop;
        self.complete = false;
        self.lines = lines;
    }

    /// Where the first line begins that is not out, and how many of the range are before it; `None` if all are out,
    /// or while what comes before the range is still to be dropped.
    pub(super) fn position(&self) -> Option<(u64, u64)> {
        (!self.is_drained() && !self.skipping).then_some((self.base + self.pos as u64, self.lines))
    }

    /// Whether every line of the range is out.
    pub(super) fn is_drained(&self) -> bool {
        self.complete && self.pos == self.ready
    }

    /// Room for the next `want` bytes, behind what has not been emitted.
    pub(super) fn space(&mut self, want: usize) -> &mut [u8] {
        debug_assert_eq!(self.pos, self.ready, "whole lines must be drained before reading on");
        if self.pos > 0 {
            self.buf.copy_within(self.pos..self.len, 0);
            self.base += self.pos as u64;
            self.len -= self.pos;
            (self.pos, self.ready) = (0, 0);
        }
        // One long line must not hold its memory for the rest of the job.
        if self.buf.len() > 8 * self.chunk_bytes && self.len + want <= self.chunk_bytes {
            self.buf.truncate(self.chunk_bytes);
            self.buf.shrink_to_fit();
        }
        if self.buf.len() < self.len + want {
            self.buf.resize(self.len + want, 0);
        }
        &mut self.buf[self.len..self.len + want]
    }

    /// The first `count` bytes of the last [`space`](Self::space) are filled.
    pub(super) fn filled(&mut self, count: usize) -> Result<(), LineFault> {
        let new = self.len;
        self.len += count;
        if self.skipping && !self.skip() {
            return Ok(());
        }
        let new = new.max(self.pos);
        let fill_end = self.base + self.len as u64;
        if fill_end >= self.stop {
            // The last line of the range is the one that covers the byte before `stop`.
            let last = (self.stop - 1).saturating_sub(self.base) as usize;
            if let Some(at) = memchr::memchr(b'\n', &self.buf[last.max(new)..self.len]) {
                self.ready = last.max(new) + at + 1;
                self.len = self.ready;
                self.complete = true;
            }
        }
        if !self.complete {
            if let Some(at) = memchr::memrchr(b'\n', &self.buf[new..self.len]) {
                self.ready = new + at + 1;
            }
            // `\r\n` may end a line of the greatest length.
            if self.len - self.ready > self.line_bytes_max.saturating_add(1) {
                return Err(LineFault::TooLong { offset: self.base + self.ready as u64 });
            }
        }
        self.check();
        Ok(())
    }

    /// The input ends here: what has been begun is the last line.
    pub(super) fn end_of_input(&mut self) {
        self.complete = true;
        if self.skipping {
            self.pos = self.len;
        }
        self.ready = self.len;
        self.check();
    }

    /// Hands whole lines to `out` while it is ready.
    #[inline]
    pub(super) fn drain<C: Collector<String>>(
        &mut self,
        out: &mut SourceOutput<'_, String, C>,
    ) -> Result<Drained, LineFault> {
        while self.pos < self.ready {
            if !out.ready() {
                return Ok(Drained::Full);
            }
            let rest = &self.buf[self.pos..self.ready];
            let block = if self.valid { last_line_end(rest, self.block_bytes) } else { None };
            let (mut line, next) = match block.or_else(|| memchr::memchr(b'\n', rest)) {
                Some(at) => (&rest[..at], at + 1),
                None => (rest, rest.len()),
            };
            // As `str::lines`: `\r` belongs to the line end, not to a line that the input's end cuts off.
            if next > line.len() {
                line = line.strip_suffix(b"\r").unwrap_or(line);
            }
            if line.len() > self.line_bytes_max {
                return Err(LineFault::TooLong { offset: self.base + self.pos as u64 });
            }
            if self.valid {
                // SAFETY: `check` found `buf[pos..ready]` to be UTF-8, for the `pos` of that moment. Since then
                // only `pos` moved, to just after a `\n`. A `\n` or `\r` byte is never a part of another
                // character, so cutting there leaves UTF-8 on both sides.
                out.emit(unsafe { str::from_utf8_unchecked(line) });
            } else {
                match str::from_utf8(line) {
                    Ok(line) => out.emit(line),
                    Err(error) if self.strict => {
                        let offset = self.base + (self.pos + error.valid_up_to()) as u64;
                        return Err(LineFault::Invalid { offset, line: self.lines + 1 });
                    }
                    Err(_) => {
                        self.lossy.clear();
                        for part in line.utf8_chunks() {
                            self.lossy.push_str(part.valid());
                            if !part.invalid().is_empty() {
                                self.lossy.push(char::REPLACEMENT_CHARACTER);
                            }
                        }
                        self.invalid_lines += 1;
                        out.emit(&self.lossy);
                    }
                }
            }
            if self.strict {
                self.lines += 1 + memchr::memchr_iter(b'\n', line).count() as u64;
            }
            self.pos += next;
        }
        Ok(if self.complete { Drained::Complete } else { Drained::Empty })
    }

    /// Counts these lines, of before, as lines in which bytes were replaced.
    pub(super) fn add_invalid_lines(&mut self, lines: u64) {
        self.invalid_lines += lines;
    }

    /// Lines in which bytes were replaced, since the buffer was made.
    pub(super) fn invalid_lines(&self) -> u64 {
        self.invalid_lines
    }

    /// Drops what comes before the first line of the range; true once that line begins.
    fn skip(&mut self) -> bool {
        if let Some(at) = memchr::memchr(b'\n', &self.buf[..self.len]) {
            self.skipping = false;
            (self.pos, self.ready) = (at + 1, at + 1);
        } else {
            self.base += self.len as u64;
            self.len = 0;
        }
        // A line that would begin at `stop` or later is the next range's.
        let begin = self.base + self.pos as u64;
        if begin >= self.stop || (self.skipping && begin + 1 >= self.stop) {
            self.complete = true;
            (self.pos, self.ready, self.len) = (0, 0, 0);
            return false;
        }
        !self.skipping
    }

    fn check(&mut self) {
        self.valid = simdutf8::basic::from_utf8(&self.buf[self.pos..self.ready]).is_ok();
    }
}

/// The last line end in the first `block_bytes` of a text and the byte behind them.
#[inline]
fn last_line_end(text: &[u8], block_bytes: usize) -> Option<usize> {
    match block_bytes {
        0 => None,
        _ => memchr::memrchr(b'\n', &text[..text.len().min(block_bytes + 1)]),
    }
}
