//! Word count: read, find words, count, merge sorted, in two ways.
//!
//! A word is a maximal run of Unicode letters or digits, lower-cased; bytes that are not UTF-8 separate words.
//! Each thread reads its share of the files' bytes. It counts all words that it finds, and at the end the
//! tables of all threads are added up; or it sends each word to the thread that its hash chooses, which counts it.
//! Either way each thread sorts a part of the words, and the parts are merged into rows.
//!
//! Text is classified 64 bytes at a time. Bytes above 127 at first count as part of a word: a run with such bytes
//! in it is looked at again, character by character; all others are words as they are. A word of at most 16 bytes
//! travels and is counted as one 16-byte integer padded with zeroes, lower-cased by setting a bit in each byte.
//! A longer one is announced by a mark that is no word, and counted by its bytes, so no length is too long.

use super::Outcome;
use super::exchange::{self, Outlets, Work};
use super::table::{huge, prefetch};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

/// A word of at most 16 bytes, padded with zeroes, little-endian.
type Word = u128;

/// What comes before a word of more than 16 bytes: the word itself, 16 bytes an item, the last one padded. In the
/// lower half its length. Not a word, since no UTF-8 has a byte of ones.
const LONG: Word = Word::MAX << 64;

/// Bytes of a [`Word`].
const SHORT_BYTES: usize = size_of::<Word>();

/// Bytes classified at a time.
const BLOCK: usize = 64;

/// Bytes of text before a thread looks at its input: even one-letter words then fill two segments at most.
const BYTES_A_TURN: usize = 8 * 1024;

/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;

/// Bytes after the text in a buffer: a block or a word may begin at the last byte.
const SLACK_BYTES: usize = 2 * BLOCK;

/// How words get to their counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each thread counts what it reads; tables are added up at the end.
    AddUp,
    /// Each word goes to the thread that counts it, as in a job without a local combine.
    Exchange,
}

impl Way {
    /// Both.
    pub const ALL: [Way; 2] = [Way::AddUp, Way::Exchange];
}

/// What [`run`] counted.
#[derive(Debug)]
pub struct Counted {
    /// The run: `records` are words, `digest` the sum of [`word_digest`].
    pub outcome: Outcome,
    /// Bytes of text.
    pub bytes: u64,
    /// `word<TAB>count` and a line end for each word, sorted by the word's bytes.
    pub rows: Vec<u8>,
}

/// The digest of one word and its count; digests are summed.
pub fn word_digest(word: &[u8], count: u64) -> u64 {
    let mut h = word.len() as u64;
    for chunk in word.chunks(8) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        h = super::splitmix(h ^ u64::from_le_bytes(padded));
    }
    h.wrapping_mul(count)
}

/// The sum of [`word_digest`] over rows as in [`Counted::rows`]; 0 for a row that is none.
pub fn rows_digest(rows: &[u8]) -> u64 {
    let digest = |row: &[u8]| {
        let tab = memchr::memrchr(b'\t', row)?;
        let count = str::from_utf8(&row[tab + 1..]).ok()?.parse().ok()?;
        Some(word_digest(&row[..tab], count))
    };
    rows.split(|byte| *byte == b'\n').filter_map(digest).fold(0, u64::wrapping_add)
}

/// The faster way for these files, each run once; the files are in the page cache afterwards.
///
/// # Errors
///
/// As [`run`].
pub fn fastest(files: &[PathBuf], threads: usize) -> io::Result<Way> {
    let mut fastest = (f64::INFINITY, Way::AddUp);
    // The first run only warms up.
    for way in [Way::AddUp, Way::Exchange, Way::AddUp] {
        let seconds = run(files, threads, way)?.outcome.seconds;
        if seconds < fastest.0 {
            fastest = (seconds, way);
        }
    }
    Ok(fastest.1)
}

/// Counts the words of `files` with `threads` threads, as if each file ended with a line end.
///
/// The seconds are those of reading, counting, sorting and making the rows, without opening the files.
///
/// # Errors
///
/// If a file cannot be opened or read, or gets shorter meanwhile.
///
/// # Panics
///
/// If `threads` is 0.
pub fn run(files: &[PathBuf], threads: usize, way: Way) -> io::Result<Counted> {
    let shares = Share::of(files, threads)?;
    let bytes = shares.iter().flatten().map(|share| share.end - share.begin).sum();
    let make = |me: usize| Words {
        text: Text::new(&shares[me]),
        scratch: String::new(),
        found: 0,
        batch: Vec::with_capacity(2 * BYTES_A_TURN),
        short: ShortWords::new(SHORT_SLOTS),
        long: HashMap::with_hasher(FixedState::default()),
        error: None,
        way,
    };
    let (counted, mut works) = exchange::run(threads, make);
    let begin = Instant::now();
    if let Some(error) = works.iter_mut().find_map(|work| work.error.take()) {
        return Err(error);
    }
    let works = &works;
    let parts: Vec<Vec<Entry<'_>>> = std::thread::scope(|scope| {
        let part = |me| scope.spawn(move || entries_of(works, me));
        let parts: Vec<_> = (0..threads).map(part).collect();
        parts.into_iter().map(|part| part.join().expect("a limit thread panicked")).collect()
    });
    let rows = merge(&parts);
    let seconds = counted + begin.elapsed().as_secs_f64();
    let records = works.iter().map(|work| work.found).sum();
    let digest = rows_digest(&rows);
    Ok(Counted { outcome: Outcome { records, seconds, digest }, bytes, rows })
}

/// A word with its count, ordered by the word's bytes.
struct Entry<'a> {
    /// The first 16 bytes as a big-endian number, padded with zeroes, which no word has.
    prefix: u128,
    rest: &'a [u8],
    count: u64,
}

impl Entry<'_> {
    fn key(&self) -> (u128, &[u8]) {
        (self.prefix, self.rest)
    }
}

/// The words of thread `me` with the counts of all, sorted.
fn entries_of<'a>(works: &'a [Words<'_>], me: usize) -> Vec<Entry<'a>> {
    let threads = works.len();
    let used: usize = works.iter().map(|work| work.short.used).sum();
    let mut short = ShortWords::new((2 * used / threads).next_power_of_two().max(SHORT_SLOTS));
    let mut long: HashMap<&[u8], u64, FixedState> = HashMap::default();
    for work in works {
        let own = |slot: &&Slot| slot.count > 0 && target(hash(slot.word), threads) == me;
        work.short.slots.iter().filter(own).for_each(|slot| short.add(slot.word, slot.count));
        for (word, count) in &work.long {
            if target(FixedState::default().hash_one(&word[..]), threads) == me {
                *long.entry(word).or_insert(0) += count;
            }
        }
    }
    let words = short.slots.iter().filter(|slot| slot.count > 0);
    let words = words.map(|slot| Entry { prefix: slot.word.swap_bytes(), rest: &[], count: slot.count });
    let mut entries: Vec<_> = words.collect();
    entries.extend(long.into_iter().map(|(word, count)| {
        let (prefix, rest) = word.split_first_chunk().expect("a long word has more than 16 bytes");
        Entry { prefix: u128::from_be_bytes(*prefix), rest, count }
    }));
    entries.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
    entries
}

/// The rows of all parts in order.
fn merge(parts: &[Vec<Entry<'_>>]) -> Vec<u8> {
    let mut heads: Vec<&[Entry<'_>]> =
        parts.iter().map(Vec::as_slice).filter(|part| !part.is_empty()).collect();
    let mut rows = Vec::new();
    let mut digits = itoa::Buffer::new();
    while let Some(least) = (0..heads.len()).min_by_key(|i| heads[*i][0].key()) {
        let (entry, behind) = heads[least].split_first().expect("parts without entries are taken out");
        let first = entry.prefix.to_be_bytes();
        rows.extend_from_slice(&first[..SHORT_BYTES - entry.prefix.trailing_zeros() as usize / 8]);
        rows.extend_from_slice(entry.rest);
        rows.push(b'\t');
        rows.extend_from_slice(digits.format(entry.count).as_bytes());
        rows.push(b'\n');
        heads[least] = behind;
        if behind.is_empty() {
            heads.swap_remove(least);
        }
    }
    rows
}

struct Words<'a> {
    text: Text<'a>,
    scratch: String,
    found: u64,
    /// Words of one turn that this thread counts itself.
    batch: Vec<Word>,
    short: ShortWords,
    long: HashMap<Vec<u8>, u64, FixedState>,
    error: Option<io::Error>,
    way: Way,
}

impl Work for Words<'_> {
    type Item = Word;

    fn produce(&mut self, out: &mut Outlets<Word>) -> bool {
        let Words { text, scratch, found, batch, way, .. } = self;
        let threads = out.count();
        let scanned = match way {
            Way::AddUp => text.scan(|text, begin, end, plain| {
                if plain && end - begin <= SHORT_BYTES {
                    batch.push(short_word(text, begin, end));
                } else {
                    words_of(&text[begin..end], scratch, |word| put_in(word, batch));
                }
            }),
            Way::Exchange => text.scan(|text, begin, end, plain| {
                if plain && end - begin <= SHORT_BYTES {
                    let word = short_word(text, begin, end);
                    out.push(target(hash(word), threads), word);
                    *found += 1;
                } else {
                    words_of(&text[begin..end], scratch, |word| {
                        send(word, out);
                        *found += 1;
                    });
                }
            }),
        };
        if *way == Way::AddUp {
            let words = std::mem::take(&mut self.batch);
            self.found += self.count(&words);
            self.batch = words;
            self.batch.clear();
        }
        scanned.unwrap_or_else(|failed| {
            self.error = Some(failed);
            false
        })
    }

    fn consume(&mut self, items: &[Word]) {
        self.count(items);
    }
}

impl Words<'_> {
    /// Counts the words that `items` are, and returns how many that is.
    #[inline(always)]
    fn count(&mut self, mut items: &[Word]) -> u64 {
        let mut counted = 0;
        while let Some(long) = self.short.count_until_long(items) {
            let length = long[0] as u64 as usize;
            let (word, after) = long[1..].split_at(length.div_ceil(SHORT_BYTES));
            let mut bytes: Vec<u8> = word.iter().flat_map(|part| part.to_le_bytes()).collect();
            bytes.truncate(length);
            *self.long.entry(bytes).or_insert(0) += 1;
            counted += (items.len() - long.len()) as u64 + 1;
            items = after;
        }
        counted + items.len() as u64
    }
}

/// A run of ASCII letters and digits, of at most 16 bytes.
#[inline(always)]
fn short_word(text: &[u8], begin: usize, end: usize) -> Word {
    let loaded: [u8; SHORT_BYTES] = text[begin..begin + SHORT_BYTES].try_into().expect("16 bytes");
    (Word::from_le_bytes(loaded) | LOWER) & (Word::MAX >> (8 * (SHORT_BYTES - (end - begin))))
}

/// Sets the bit that tells lower from upper case in each byte; all letters and digits of ASCII are right then.
const LOWER: Word = Word::from_ne_bytes([0x20; SHORT_BYTES]);

/// Calls `found` with the words of a run that may hold any character above 127, or is long.
#[cold]
fn words_of(run: &[u8], word: &mut String, mut found: impl FnMut(&[u8])) {
    let mut end = |word: &mut String| {
        if word.is_ascii() {
            word.make_ascii_lowercase();
        } else {
            // By the word and not by the letter: a sigma at its end is another one.
            *word = word.to_lowercase();
        }
        if !word.is_empty() {
            found(word.as_bytes());
            word.clear();
        }
    };
    for chunk in run.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_alphanumeric() {
                word.push(c);
            } else {
                end(word);
            }
        }
        if !chunk.invalid().is_empty() {
            end(word);
        }
    }
    end(word);
}

/// The parts of a word, the last one padded.
fn parts(word: &[u8]) -> impl Iterator<Item = Word> {
    word.chunks(SHORT_BYTES).map(|part| {
        let mut padded = [0; SHORT_BYTES];
        padded[..part.len()].copy_from_slice(part);
        Word::from_le_bytes(padded)
    })
}

/// Adds a word of any length.
fn put_in(word: &[u8], batch: &mut Vec<Word>) {
    if word.len() > SHORT_BYTES {
        batch.push(LONG | word.len() as Word);
    }
    batch.extend(parts(word));
}

/// Sends a word of any length to the thread that counts it.
fn send(word: &[u8], out: &mut Outlets<Word>) {
    if word.len() <= SHORT_BYTES {
        let word = parts(word).next().expect("not empty");
        out.push(target(hash(word), out.count()), word);
    } else {
        let whole: Vec<Word> = std::iter::once(LONG | word.len() as Word).chain(parts(word)).collect();
        out.push_whole(target(FixedState::default().hash_one(word), out.count()), &whole);
    }
}

#[inline(always)]
fn hash(word: Word) -> u64 {
    let (low, high) = (word as u64, (word >> 64) as u64);
    let h = low ^ high.rotate_left(23).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let h = (h ^ (h >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 29)
}

/// The thread that counts the words of this hash: by its upper bits, since the table takes lower ones.
#[inline(always)]
fn target(hash: u64, threads: usize) -> usize {
    (((hash >> 48) * threads as u64) >> 16) as usize
}

/// Slots of a table at first: a language's common words at half fill, 1 MiB.
const SHORT_SLOTS: usize = 1 << 15;

/// Words whose slots are prefetched together.
const BATCH: usize = 32;

/// Counts of words of at most 16 bytes: open addressing, linear probing, at most half full.
struct ShortWords {
    slots: Vec<Slot>,
    used: usize,
}

/// Two to a cache line and none across; `count` 0 marks a free one.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    word: Word,
    count: u64,
}

impl ShortWords {
    fn new(slots: usize) -> Self {
        ShortWords { slots: huge(slots, Slot { word: 0, count: 0 }), used: 0 }
    }

    #[inline(always)]
    fn slot_of(&self, word: Word) -> usize {
        hash(word) as usize & (self.slots.len() - 1)
    }

    /// Counts `items` up to the first long word; returns that one's items and all behind it.
    #[inline(always)]
    fn count_until_long<'a>(&mut self, items: &'a [Word]) -> Option<&'a [Word]> {
        for (batch, words) in items.chunks(BATCH).enumerate() {
            for word in words {
                prefetch(&self.slots, self.slot_of(*word));
            }
            for (at, word) in words.iter().enumerate() {
                if *word >= LONG {
                    return Some(&items[batch * BATCH + at..]);
                }
                self.add(*word, 1);
            }
        }
        None
    }

    #[inline(always)]
    fn add(&mut self, word: Word, count: u64) {
        let mask = self.slots.len() - 1;
        let mut index = self.slot_of(word);
        loop {
            // SAFETY: `index` is masked to the table's length, which is a power of two.
            let slot = unsafe { self.slots.get_unchecked_mut(index) };
            // A free slot's word is 0, which is no word.
            if slot.word == word {
                slot.count += count;
                return;
            }
            if slot.count == 0 {
                *slot = Slot { word, count };
                self.used += 1;
                if self.used * 2 > self.slots.len() {
                    self.grow();
                }
                return;
            }
            index = (index + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = ShortWords::new(self.slots.len() * 2);
        self.slots.iter().filter(|slot| slot.count > 0).for_each(|slot| larger.add(slot.word, slot.count));
        *self = larger;
    }
}

/// A range of one file that begins and ends at the edge of a run.
struct Share {
    file: File,
    path: PathBuf,
    begin: u64,
    end: u64,
}

impl Share {
    /// Divides the bytes of all files evenly among `threads`, each file's in its order.
    fn of(files: &[PathBuf], threads: usize) -> io::Result<Vec<Vec<Share>>> {
        let named = |path: &PathBuf| {
            let path = path.clone();
            move |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let mut sizes = Vec::new();
        for path in files {
            sizes.push(std::fs::metadata(path).map_err(named(path))?.len());
        }
        let total: u64 = sizes.iter().sum();
        let edge = |thread: usize| (total as u128 * thread as u128 / threads as u128) as u64;
        let mut shares = Vec::new();
        for thread in 0..threads {
            let (begin, end) = (edge(thread), edge(thread + 1));
            let (mut of_thread, mut before) = (Vec::new(), 0);
            for (path, size) in files.iter().zip(&sizes) {
                let within = |edge: u64| edge.clamp(before, before + size) - before;
                if within(begin) < within(end) {
                    let file = File::open(path).map_err(named(path))?;
                    let cut = |at| next_edge(&file, at, *size).map_err(named(path));
                    let (begin, end) = (cut(within(begin))?, cut(within(end))?);
                    of_thread.push(Share { file, path: path.clone(), begin, end });
                }
                before += size;
            }
            shares.push(of_thread);
        }
        Ok(shares)
    }
}

/// The first offset at or after `at` that is not inside a run.
fn next_edge(file: &File, at: u64, size: u64) -> io::Result<u64> {
    if at == 0 || at >= size {
        return Ok(at.min(size));
    }
    let mut bytes = [0; 4096];
    // A run goes on at `at` if the byte before belongs to one.
    let mut from = at - 1;
    loop {
        let count = file.read_at(&mut bytes, from)?;
        if count == 0 {
            return Ok(size);
        }
        if let Some(outside) = bytes[..count].iter().position(|byte| !in_run(*byte)) {
            return Ok(from + outside as u64 + 1);
        }
        from += count as u64;
    }
}

fn in_run(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// The text of one thread's shares and the place in it.
struct Text<'a> {
    shares: std::slice::Iter<'a, Share>,
    /// The share being read, and the offset of what is to be read next.
    reading: Option<(&'a Share, u64)>,
    /// Text up to `length`, then blanks.
    buffer: Vec<u8>,
    length: usize,
    /// Classified up to here.
    scanned: usize,
    /// Where the run that goes on at `scanned` began, and whether it may have bytes above 127.
    run: Option<(usize, bool)>,
}

impl<'a> Text<'a> {
    fn new(shares: &'a [Share]) -> Self {
        Text {
            shares: shares.iter(),
            reading: None,
            buffer: vec![b' '; READ_BYTES + SLACK_BYTES],
            length: 0,
            scanned: 0,
            run: None,
        }
    }

    /// Classifies the next [`BYTES_A_TURN`] or so, and calls `run` with the buffer, begin, end, and whether it is
    /// certain that all bytes are ASCII, for each run that ends there. False after the last.
    #[inline(always)]
    fn scan(&mut self, mut run: impl FnMut(&[u8], usize, usize, bool)) -> io::Result<bool> {
        let complete = self.fill()?;
        let last = self.length.min(self.scanned + BYTES_A_TURN);
        loop {
            let more = self.scanned + BLOCK <= last
                || (complete && last == self.length && (self.scanned < last || self.run.is_some()));
            if !more {
                break;
            }
            let base = self.scanned;
            let block = self.buffer[base..base + BLOCK].try_into().expect("a block");
            let (word, high) = classify(block);
            let mut edges = word ^ ((word << 1) | u64::from(self.run.is_some()));
            let mut next = || {
                let bit = edges.trailing_zeros();
                edges &= edges.wrapping_sub(1);
                (bit < 64).then_some(base + bit as usize)
            };
            let suspect = high != 0;
            if let Some((begin, was_suspect)) = self.run {
                let suspect = suspect || was_suspect;
                match next() {
                    Some(end) => {
                        self.run = None;
                        run(&self.buffer, begin, end, !suspect || self.buffer[begin..end].is_ascii());
                    }
                    None => self.run = Some((begin, suspect)),
                }
            }
            while let Some(begin) = next() {
                match next() {
                    Some(end) => {
                        run(&self.buffer, begin, end, !suspect || self.buffer[begin..end].is_ascii())
                    }
                    None => self.run = Some((begin, suspect)),
                }
            }
            self.scanned += BLOCK;
        }
        Ok(!complete || self.scanned < self.length || self.reading.is_some() || self.shares.len() > 0)
    }

    /// Sees to it that there is a block to classify; true if the buffer ends where a share does.
    #[inline(always)]
    fn fill(&mut self) -> io::Result<bool> {
        if self.scanned + BLOCK <= self.length {
            return Ok(self.reading.is_none());
        }
        self.refill()
    }

    fn refill(&mut self) -> io::Result<bool> {
        if self.reading.is_none() {
            if self.scanned < self.length {
                return Ok(true);
            }
            // The share is done, and with it its last run.
            (self.length, self.scanned) = (0, 0);
            self.reading = self.shares.next().map(|share| (share, share.begin));
        }
        let Some((share, offset)) = self.reading else { return Ok(true) };
        // What has not been given away goes to the front: the unfinished run and what is not classified yet.
        let keep = self.run.map_or(self.scanned, |(begin, _)| begin);
        self.buffer.copy_within(keep..self.length, 0);
        self.length -= keep;
        self.scanned -= keep;
        self.run = self.run.map(|(_, suspect)| (0, suspect));
        if self.length + BLOCK > self.buffer.len() - SLACK_BYTES {
            self.buffer.resize(2 * self.buffer.len(), b' ');
        }
        let room = self.buffer.len() - SLACK_BYTES - self.length;
        let wanted = room.min(READ_BYTES).min((share.end - offset) as usize);
        let count = share.file.read_at(&mut self.buffer[self.length..self.length + wanted], offset)?;
        if count == 0 && wanted > 0 {
            let what = format!("{} ends at byte {offset}, not at {}", share.path.display(), share.end);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        self.length += count;
        let offset = offset + count as u64;
        self.reading = (offset < share.end).then_some((share, offset));
        self.buffer[self.length..self.length + SLACK_BYTES].fill(b' ');
        Ok(self.reading.is_none())
    }
}

/// One bit a byte: whether it belongs to a run, and whether it is above 127.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn classify(block: &[u8; BLOCK]) -> (u64, u64) {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8, _mm_sub_epi8,
    };
    let (mut word, mut high) = (0, 0);
    for (i, part) in block.chunks_exact(16).enumerate() {
        // SAFETY: `part` is 16 readable bytes; SSE2 is part of x86_64.
        let bytes = unsafe { _mm_loadu_si128(part.as_ptr().cast::<__m128i>()) };
        // SAFETY: as above, SSE2 is part of x86_64.
        let (in_word, above) = unsafe {
            // x <= last is min(x, last) == x: there is no unsigned comparison.
            let upto = |x, last| _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(last)), x);
            let lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
            let letter = upto(_mm_sub_epi8(lower, _mm_set1_epi8(b'a' as i8)), 25);
            let digit = upto(_mm_sub_epi8(bytes, _mm_set1_epi8(b'0' as i8)), 9);
            (_mm_movemask_epi8(_mm_or_si128(letter, digit)), _mm_movemask_epi8(bytes))
        };
        word |= u64::from(in_word as u16) << (16 * i);
        high |= u64::from(above as u16) << (16 * i);
    }
    (word | high, high)
}

/// One bit a byte: whether it belongs to a run, and whether it is above 127.
#[cfg(not(target_arch = "x86_64"))]
fn classify(block: &[u8; BLOCK]) -> (u64, u64) {
    let bits = |is: fn(u8) -> bool| (0..BLOCK).fold(0, |bits, i| bits | u64::from(is(block[i])) << i);
    (bits(in_run), bits(|byte| !byte.is_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Words as the definition has them, character by character; rows and the number of words.
    fn plain(texts: &[Vec<u8>]) -> (String, u64) {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for text in texts {
            for word in String::from_utf8_lossy(text).split(|c: char| !c.is_alphanumeric()) {
                if !word.is_empty() {
                    *counts.entry(word.to_lowercase()).or_insert(0) += 1;
                }
            }
        }
        (counts.iter().map(|(word, count)| format!("{word}\t{count}\n")).collect(), counts.values().sum())
    }

    fn check(texts: &[Vec<u8>]) {
        let directory = tempfile::tempdir().expect("a directory for the texts");
        let write = |(i, text): (usize, &Vec<u8>)| {
            let path = directory.path().join(i.to_string());
            std::fs::write(&path, text).expect("writing a text");
            path
        };
        let files: Vec<PathBuf> = texts.iter().enumerate().map(write).collect();
        let (expected, words) = plain(texts);
        for (threads, way) in [1, 2, 3].into_iter().flat_map(|threads| Way::ALL.map(|way| (threads, way))) {
            let counted = run(&files, threads, way).expect("readable files");
            assert!(counted.rows == expected.as_bytes(), "{threads} threads, {way:?}: rows differ");
            assert_eq!(counted.outcome.records, words, "{threads} threads, {way:?}");
            assert_eq!(counted.bytes, texts.iter().map(|text| text.len() as u64).sum::<u64>());
        }
    }

    /// Goal: the words are those of the definition, wherever blocks, buffers and shares are cut.
    /// Method: 1,500 kB drawn from pieces that are hard in one way each, so that each comes to lie across every
    /// kind of edge; compared with the definition taken literally.
    #[test]
    fn words_are_those_of_the_definition_whatever_is_cut_where() {
        let long = "Ab9".repeat(40);
        let pieces: [&[u8]; 16] = [
            b"The",
            b"a",
            b"counterrevolution",
            b"SIXTEENletters16",
            "Über".as_bytes(),
            "naïve—it’s".as_bytes(),
            "ΟΔΟΣ".as_bytes(),
            "İstanbul".as_bytes(),
            "你好，世界".as_bytes(),
            b"x\xffy",
            b"\xe2\x82",
            b"don't",
            b"0",
            "½²".as_bytes(),
            "e\u{301}".as_bytes(),
            long.as_bytes(),
        ];
        let separators: [&[u8]; 6] = [b" ", b"\n", b", ", b"", b"\r\n\t", b"_"];
        let mut text = Vec::new();
        for i in 0.. {
            let drawn = crate::limit::splitmix(i);
            text.extend_from_slice(pieces[drawn as usize % pieces.len()]);
            text.extend_from_slice(separators[(drawn >> 32) as usize % separators.len()]);
            if text.len() > 1_500_000 {
                break;
            }
        }
        check(&[text]);
    }

    /// Goal: files are counted apart, and none is too small or too odd.
    /// Method: no file, empty ones, a word at either end, a word longer than a segment and a buffer, lengths of a
    /// block and one more or less.
    #[test]
    fn odd_files_are_counted_as_they_are() {
        check(&[]);
        check(&[vec![], b"one".to_vec(), vec![], b"two one".to_vec(), b" ".to_vec()]);
        let mut texts = vec![vec![b'Z'; 700_000], [vec![b' '; 300_000], vec![b'q'; 17]].concat()];
        texts.extend((60..70).map(|length| vec![b'k'; length]));
        texts.extend((60..70).map(|length| [vec![b'.'; length], b"end".to_vec()].concat()));
        check(&texts);
    }

    /// Goal: a table with more words than planned for counts them all.
    #[test]
    fn more_words_than_planned_for_are_counted() {
        let text: String = (0..80_000).map(|i| format!("w{} w{} ", i, i / 2)).collect();
        check(&[text.into_bytes()]);
    }

    /// Goal: what cannot be read is named.
    #[test]
    fn a_missing_file_is_named() {
        let error = run(&[PathBuf::from("/no/such/text")], 2, Way::AddUp).expect_err("there is no such file");
        assert!(error.to_string().starts_with("/no/such/text: "), "{error}");
    }
}
