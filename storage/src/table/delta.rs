//! Deltas as bytes: entries and removals of several tables, by key and value, whatever the layout of the tables.
//!
//! A frame begins with the magic `KD` and a version of 16 bits, then sections follow up to its end. All numbers
//! are little endian.
//!
//! | bytes | section |
//! | ----- | ------- |
//! | 2     | number of the table |
//! | 1     | kind: 1 runs, 2 loose entries, 3 removals |
//! | 1     | zero |
//! | 4     | bytes of every key, or 2^32 - 1 if they differ |
//! | 4     | bytes of every value, or 2^32 - 1 |
//! | 4     | bytes of what follows: |
//!
//! *Runs* hold most entries, sorted by key group: 16 bits of group, a 32-bit count, 32 bits of length if keys or
//! values differ in theirs, and then the entries, so that a run of a group that nobody wants is passed by. *Loose*
//! entries were put aside, in any order: each has 16 bits of group before it. A *removal* is group and key. A key
//! or value whose length is not that of all has it before it, seven bits a byte, lowest first, all but the last
//! byte with bit 7.
//!
//! In a delta removals come first, and of a key that has an entry it is the only one or equal to the others.

#![forbid(unsafe_code)]

use crate::format::DecodeError;
use std::collections::VecDeque;

const MAGIC: [u8; 2] = *b"KD";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 4;
const SECTION_BYTES: usize = 16;
const RUN_BYTES: usize = 6;
const VARIES: u32 = u32::MAX;

/// Bytes from which on a chunk of loose items is closed: small, so that a chunk fits what a frame has left.
const CHUNK_BYTES: usize = 4096;

/// Buffers of frames that are kept for use again.
const SPARE_BUFFERS_MAX: usize = 2;

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SectionKind {
    /// Entries by group.
    Runs = 1,
    /// Entries in any order.
    Loose = 2,
    /// Keys that were removed.
    Removals = 3,
}

/// Sizes of the keys and values of a table; `None` where they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of every key.
    pub key_bytes: Option<usize>,
    /// Bytes of every value.
    pub value_bytes: Option<usize>,
}

impl Shape {
    /// Bytes of every entry, if all take as many.
    pub fn entry_bytes(self) -> Option<usize> {
        Some(self.key_bytes? + self.value_bytes?)
    }
}

/// Appends what `encode` appends, and its length before it unless that is `fixed`.
#[inline(always)]
pub fn put_sized(out: &mut Vec<u8>, fixed: Option<usize>, encode: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    if let Some(length) = fixed {
        encode(out);
        debug_assert_eq!(out.len() - at, length, "an encoding of fixed length");
        return;
    }
    // One byte is enough for most lengths; for others the bytes make room.
    out.push(0);
    encode(out);
    let mut length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let mut head = [0; 5];
    let mut used = 0;
    loop {
        head[used] = length as u8 & 0x7f | if length >= 0x80 { 0x80 } else { 0 };
        used += 1;
        length >>= 7;
        if length == 0 {
            break;
        }
    }
    out.splice(at..at + 1, head[..used].iter().copied());
}

/// Loose items, each with its group before it.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    count: u32,
    first_group: u32,
    last_group: u32,
}

impl Chunk {
    /// Items.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

/// Loose items in chunks, in the order in which they came.
#[derive(Debug, Default)]
pub struct Chunks {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Chunks {
    /// Adds an item that `encode` appends.
    pub fn push(&mut self, group: u32, encode: impl FnOnce(&mut Vec<u8>)) {
        let room = self.chunks.back().is_some_and(|chunk| chunk.bytes.len() < CHUNK_BYTES);
        if !room {
            let bytes = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
            self.chunks.push_back(Chunk { bytes, count: 0, first_group: group, last_group: group });
        }
        let chunk = self.chunks.back_mut().expect("one has room");
        let before = chunk.bytes.len();
        chunk.bytes.extend_from_slice(&(group as u16).to_le_bytes());
        encode(&mut chunk.bytes);
        chunk.count += 1;
        chunk.first_group = chunk.first_group.min(group);
        chunk.last_group = chunk.last_group.max(group);
        self.bytes += chunk.bytes.len() - before;
    }

    /// Bytes of all items.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The chunk of a number, from 0.
    pub fn get(&self, number: usize) -> Option<&Chunk> {
        self.chunks.get(number)
    }

    /// Takes out the first chunk.
    pub fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.bytes.len();
        Some(chunk)
    }
}

/// An entry that fits no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of {bytes} bytes; a frame of the log takes {bytes_max}")]
pub struct TooLarge {
    /// What it takes, with what goes before it.
    pub bytes: usize,
    /// What there is room for.
    pub bytes_max: usize,
}

/// One frame's payload.
#[derive(Debug)]
pub struct DeltaFrame {
    /// The payload.
    pub bytes: Vec<u8>,
    /// First key group of what is in it.
    pub first_group: u32,
    /// Last one.
    pub last_group: u32,
    /// Entries.
    pub entries: u32,
    /// Removals.
    pub removals: u32,
}

#[derive(Debug)]
struct OpenSection {
    at: usize,
    table: u16,
    kind: SectionKind,
    varies: bool,
    /// Where the open run begins, its group and count.
    run: Option<(usize, u32, u32)>,
}

/// Packs entries into frames.
#[derive(Debug)]
pub struct DeltaWriter {
    bytes_target: usize,
    bytes_max: usize,
    /// The frame being filled; empty if there is none.
    bytes: Vec<u8>,
    first_group: u32,
    last_group: u32,
    entries: u32,
    removals: u32,
    section: Option<OpenSection>,
    ready: VecDeque<DeltaFrame>,
    spare: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

impl DeltaWriter {
    /// Of frames of `bytes_target`, or of one entry and up to `bytes_max`.
    pub fn new(bytes_target: usize, bytes_max: usize) -> DeltaWriter {
        assert!(bytes_target <= bytes_max && bytes_max <= u32::MAX as usize);
        DeltaWriter {
            bytes_target,
            bytes_max,
            bytes: Vec::new(),
            first_group: 0,
            last_group: 0,
            entries: 0,
            removals: 0,
            section: None,
            ready: VecDeque::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds an entry to the run of its group.
    ///
    /// # Errors
    ///
    /// It fits no frame.
    #[inline]
    pub fn entry(
        &mut self,
        table: u16,
        shape: Shape,
        group: u32,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TooLarge> {
        if let Some(bytes) = shape.entry_bytes() {
            self.open_run(table, shape, group, bytes)?;
            encode(&mut self.bytes);
        } else {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            encode(&mut scratch);
            self.open_run(table, shape, group, scratch.len())?;
            self.bytes.extend_from_slice(&scratch);
            self.scratch = scratch;
        }
        self.entries += 1;
        if let Some(OpenSection { run: Some((.., count)), .. }) = &mut self.section {
            *count += 1;
        }
        Ok(())
    }

    /// Adds loose entries, or removals.
    ///
    /// # Errors
    ///
    /// They fit no frame.
    pub fn chunk(
        &mut self,
        table: u16,
        shape: Shape,
        kind: SectionKind,
        chunk: &Chunk,
    ) -> Result<(), TooLarge> {
        self.open_section(table, shape, kind, chunk.bytes.len())?;
        self.bytes.extend_from_slice(&chunk.bytes);
        match kind {
            SectionKind::Removals => self.removals += chunk.count,
            SectionKind::Runs | SectionKind::Loose => self.entries += chunk.count,
        }
        self.first_group = self.first_group.min(chunk.first_group);
        self.last_group = self.last_group.max(chunk.last_group);
        Ok(())
    }

    /// Makes a frame of what is there.
    pub fn seal(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        self.close_section();
        let bytes = std::mem::replace(&mut self.bytes, self.spare.pop().unwrap_or_default());
        self.ready.push_back(DeltaFrame {
            bytes,
            first_group: self.first_group,
            last_group: self.last_group,
            entries: self.entries,
            removals: self.removals,
        });
    }

    /// The first frame that is whole.
    pub fn ready(&self) -> Option<&DeltaFrame> {
        self.ready.front()
    }

    /// Frames that are whole.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Drops the first whole frame.
    pub fn pop(&mut self) {
        if let Some(mut frame) = self.ready.pop_front()
            && self.spare.len() < SPARE_BUFFERS_MAX
        {
            frame.bytes.clear();
            self.spare.push(frame.bytes);
        }
    }

    /// Drops all that is there.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.section = None;
        self.ready.clear();
    }

    #[inline(always)]
    fn open_run(&mut self, table: u16, shape: Shape, group: u32, bytes: usize) -> Result<(), TooLarge> {
        if let Some(OpenSection { table: open, run: Some((_, run_group, _)), .. }) = self.section
            && (open, run_group) == (table, group)
            && self.bytes.len() + bytes <= self.bytes_target
        {
            return Ok(());
        }
        self.begin_run(table, shape, group, bytes)
    }

    #[cold]
    fn begin_run(&mut self, table: u16, shape: Shape, group: u32, bytes: usize) -> Result<(), TooLarge> {
        let varies = shape.entry_bytes().is_none();
        let head = if varies { RUN_BYTES + 4 } else { RUN_BYTES };
        self.close_run();
        self.open_section(table, shape, SectionKind::Runs, head + bytes)?;
        let section = self.section.as_mut().expect("just opened");
        section.run = Some((self.bytes.len(), group, 0));
        self.bytes.extend_from_slice(&(group as u16).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 8][..head - 2]);
        self.first_group = self.first_group.min(group);
        self.last_group = self.last_group.max(group);
        Ok(())
    }

    fn open_section(
        &mut self,
        table: u16,
        shape: Shape,
        kind: SectionKind,
        bytes: usize,
    ) -> Result<(), TooLarge> {
        let open = self.section.as_ref().is_some_and(|s| (s.table, s.kind) == (table, kind));
        let needed = if open { bytes } else { SECTION_BYTES + bytes };
        if open && self.bytes.len() + needed <= self.bytes_target {
            return Ok(());
        }
        let alone = HEAD_BYTES + SECTION_BYTES + bytes;
        if alone > self.bytes_max {
            return Err(TooLarge { bytes: alone, bytes_max: self.bytes_max });
        }
        if self.bytes.len() + needed > self.bytes_target {
            self.seal();
        }
        self.close_section();
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&MAGIC);
            self.bytes.extend_from_slice(&VERSION.to_le_bytes());
            (self.first_group, self.last_group) = (u32::MAX, 0);
            (self.entries, self.removals) = (0, 0);
        }
        let varies = shape.entry_bytes().is_none();
        self.section = Some(OpenSection { at: self.bytes.len(), table, kind, varies, run: None });
        let size = |bytes: Option<usize>| bytes.map_or(VARIES, |bytes| bytes as u32).to_le_bytes();
        self.bytes.extend_from_slice(&table.to_le_bytes());
        self.bytes.extend_from_slice(&[kind as u8, 0]);
        self.bytes.extend_from_slice(&size(shape.key_bytes));
        self.bytes.extend_from_slice(&size(shape.value_bytes));
        self.bytes.extend_from_slice(&[0; 4]);
        Ok(())
    }

    fn close_run(&mut self) {
        let Some(section) = &mut self.section else { return };
        let Some((at, _, count)) = section.run.take() else { return };
        self.bytes[at + 2..at + 6].copy_from_slice(&count.to_le_bytes());
        if section.varies {
            let length = (self.bytes.len() - at - RUN_BYTES - 4) as u32;
            self.bytes[at + 6..at + 10].copy_from_slice(&length.to_le_bytes());
        }
    }

    fn close_section(&mut self) {
        self.close_run();
        if let Some(section) = self.section.take() {
            let length = (self.bytes.len() - section.at - SECTION_BYTES) as u32;
            let at = section.at + SECTION_BYTES - 4;
            self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
    }
}

/// Bytes of a delta that are being read; takes nothing on trust.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn error(&self, problem: impl Into<String>) -> DecodeError {
        DecodeError { at: self.at, what: "delta", problem: problem.into() }
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next `count` bytes.
    #[inline(always)]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        match rest.get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => Err(self.short(count)),
        }
    }

    #[cold]
    fn short(&self, count: usize) -> DecodeError {
        self.error(format!("{count} bytes expected, {} left", self.bytes.len() - self.at))
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("just so many bytes were taken"))
    }

    /// A number of 16 bits.
    #[inline(always)]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A key or value of `fixed` bytes, or with its length before it.
    #[inline(always)]
    pub fn sized(&mut self, fixed: Option<usize>) -> Result<&'a [u8], DecodeError> {
        if let Some(length) = fixed {
            return self.take(length);
        }
        let mut length = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            length |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return self.take(length as usize);
            }
        }
        Err(self.error("a length of more than 35 bits"))
    }
}

/// One section of a frame.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    /// Number of the table.
    pub table: u16,
    /// What it holds.
    pub kind: SectionKind,
    /// Sizes of its keys and values.
    pub shape: Shape,
    /// Its runs or items.
    pub input: Input<'a>,
}

/// A run of entries of one group.
#[derive(Debug, Clone)]
pub struct Run<'a> {
    /// The group.
    pub group: u32,
    /// Entries.
    pub count: usize,
    /// The entries.
    pub input: Input<'a>,
}

impl<'a> Section<'a> {
    /// The next run of a section of runs.
    ///
    /// # Errors
    ///
    /// The bytes are none.
    pub fn next_run(&mut self) -> Result<Option<Run<'a>>, DecodeError> {
        if self.input.is_empty() {
            return Ok(None);
        }
        let group = u32::from(self.input.u16()?);
        let count = self.input.u32()? as usize;
        let length = match self.shape.entry_bytes() {
            Some(0) => return Err(self.input.error("entries of no bytes")),
            Some(bytes) => count
                .checked_mul(bytes)
                .ok_or_else(|| self.input.error(format!("{count} entries of {bytes} bytes")))?,
            None => self.input.u32()? as usize,
        };
        let at = self.input.at;
        self.input.take(length)?;
        Ok(Some(Run { group, count, input: Input { bytes: &self.input.bytes[..at + length], at } }))
    }
}

/// Calls `each` with the sections of a frame, in order.
///
/// # Errors
///
/// The first that is none, or that `each` returned.
pub fn read_sections<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(Section<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut input = Input { bytes, at: 0 };
    if input.take(2)? != MAGIC {
        return Err(input.error("not a delta of keyed state: no magic"));
    }
    let version = input.u16()?;
    if version != VERSION {
        return Err(input.error(format!("deltas of version {version}; this program reads {VERSION}")));
    }
    while !input.is_empty() {
        let table = input.u16()?;
        let [kind, _] = input.array()?;
        let kind = match kind {
            1 => SectionKind::Runs,
            2 => SectionKind::Loose,
            3 => SectionKind::Removals,
            other => return Err(input.error(format!("a section of kind {other}, 1 to 3 was expected"))),
        };
        let size = |size: u32| (size != VARIES).then_some(size as usize);
        let shape = Shape { key_bytes: size(input.u32()?), value_bytes: size(input.u32()?) };
        let length = input.u32()? as usize;
        let at = input.at;
        input.take(length)?;
        each(Section { table, kind, shape, input: Input { bytes: &bytes[..at + length], at } })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIXED: Shape = Shape { key_bytes: Some(8), value_bytes: Some(8) };
    const VARIED: Shape = Shape { key_bytes: None, value_bytes: Some(2) };

    type Read = Vec<(u16, u32, SectionKind, Vec<u8>, Vec<u8>)>;

    fn read(bytes: &[u8]) -> Result<Read, DecodeError> {
        let mut all = Vec::new();
        read_sections(bytes, |mut section| {
            let (table, kind, shape) = (section.table, section.kind, section.shape);
            let mut item = |group: u32, input: &mut Input<'_>| {
                let key = input.sized(shape.key_bytes)?.to_vec();
                let value = match kind {
                    SectionKind::Removals => Vec::new(),
                    _ => input.sized(shape.value_bytes)?.to_vec(),
                };
                all.push((table, group, kind, key, value));
                Ok(())
            };
            if kind == SectionKind::Runs {
                while let Some(mut run) = section.next_run()? {
                    for _ in 0..run.count {
                        item(run.group, &mut run.input)?;
                    }
                }
                return Ok(());
            }
            while !section.input.is_empty() {
                let group = u32::from(section.input.u16()?);
                item(group, &mut section.input)?;
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Goal: what is packed into frames is read back, in order, whatever the size of the frames and the lengths.
    /// Method: two tables, groups in order, removals first and loose entries last; targets from tiny to large.
    #[test]
    fn frames_are_read_back() {
        for target in [200, 300, 4096, 1 << 20] {
            let mut writer = DeltaWriter::new(target, 1 << 20);
            let mut expected: Read = Vec::new();
            let mut removals = Chunks::default();
            for n in 0..20u8 {
                let key = vec![n; usize::from(n) * 20];
                removals.push(n.into(), |out| put_sized(out, None, |out| out.extend_from_slice(&key)));
                expected.push((1, n.into(), SectionKind::Removals, key, vec![]));
            }
            while let Some(chunk) = removals.pop() {
                writer.chunk(1, VARIED, SectionKind::Removals, &chunk).unwrap();
            }
            for n in 0..300u64 {
                let group = (n / 40) as u32;
                writer
                    .entry(0, FIXED, group, |out| {
                        out.extend_from_slice(&n.to_le_bytes());
                        out.extend_from_slice(&(n * 3).to_le_bytes());
                    })
                    .unwrap();
                let value = (n * 3).to_le_bytes().to_vec();
                expected.push((0, group, SectionKind::Runs, n.to_le_bytes().to_vec(), value));
            }
            for n in 0..300u64 {
                let key = vec![n as u8; (n * n % 150) as usize];
                writer
                    .entry(1, VARIED, (n / 100) as u32, |out| {
                        put_sized(out, None, |out| out.extend_from_slice(&key));
                        out.extend_from_slice(&[1, 2]);
                    })
                    .unwrap();
                expected.push((1, (n / 100) as u32, SectionKind::Runs, key, vec![1, 2]));
            }
            writer.seal();
            let mut seen = Read::new();
            let mut groups = Vec::new();
            while let Some(frame) = writer.ready() {
                let part = read(&frame.bytes).unwrap();
                assert_eq!(part.len(), (frame.entries + frame.removals) as usize);
                assert_eq!(part.iter().map(|item| item.1).min(), Some(frame.first_group));
                assert_eq!(part.iter().map(|item| item.1).max(), Some(frame.last_group));
                assert!(frame.bytes.len() <= target || part.len() == 1 || part[0].2 == SectionKind::Removals);
                groups.push((frame.first_group, frame.last_group));
                seen.extend(part);
                writer.pop();
            }
            assert_eq!(seen, expected, "target {target}");
        }
    }

    #[test]
    fn an_entry_that_fits_no_frame_is_refused() {
        let mut writer = DeltaWriter::new(100, 200);
        let put = |writer: &mut DeltaWriter, bytes: usize| {
            writer.entry(0, VARIED, 0, |out| out.resize(bytes, 0)).map_err(|error| error.bytes)
        };
        assert_eq!(put(&mut writer, 150), Ok(()));
        assert_eq!(put(&mut writer, 170), Ok(()));
        assert_eq!(put(&mut writer, 171), Err(201));
    }

    proptest! {
        /// Goal: arbitrary bytes behind a good beginning are an error or entries, and never a panic.
        #[test]
        fn arbitrary_bytes_are_refused_or_read(
            table in 0..3u16, kind in 0..5u8, key in prop::option::of(0..20u32), value in prop::option::of(0..20u32),
            rest in prop::collection::vec(any::<u8>(), 0..80), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = b"KD\x01\x00".to_vec();
            bytes.extend_from_slice(&table.to_le_bytes());
            bytes.extend_from_slice(&[kind, 0]);
            bytes.extend_from_slice(&key.unwrap_or(VARIES).to_le_bytes());
            bytes.extend_from_slice(&value.unwrap_or(VARIES).to_le_bytes());
            bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&rest);
            let _ = read(&bytes);
            let _ = read(&bytes[..cut.index(bytes.len())]);
        }
    }
}
