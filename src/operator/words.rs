//! Words of a text: maximal runs of Unicode letters or digits, in lower case.
//!
//! What counts is [`char::is_alphanumeric`]; the case is that of [`str::to_lowercase`] on the word. Most text is
//! ASCII, and there 64 bytes at a time become one bit mask of letters and digits, in which words
//! are found by counting zeros: the cost is by word, not by byte. Bytes above 127 count as part of a word at
//! first: a run with such bytes in it is read again, character by character, with a table for the
//! characters below 65,536. The runs beside it are words as they are.

use arrayvec::ArrayVec;
use std::sync::LazyLock;

/// Words that are emitted at once, at most.
pub const BATCH: usize = 32;

/// Bytes classified at a time.
const BLOCK: usize = 64;

/// What a text is filled up with, to whole blocks and at least by one byte.
const FILLER: &str = match str::from_utf8(&[0; BLOCK]) {
    Ok(filler) => filler,
    Err(_) => unreachable!(),
};

/// Finds words. Holds the memory that it works in, so one is to be kept for many texts.
#[derive(Debug, Clone, Default)]
pub struct Words {
    lowered: String,
    word: String,
}

impl Words {
    /// Calls `emit` with the words of `text`, in order and in lower case, one to [`BATCH`] at a time.
    ///
    /// Allocates only while its memory grows, and for words with a capital sigma, whose lower case depends on
    /// where in the word it is.
    #[inline]
    pub fn find(&mut self, text: &str, mut emit: impl FnMut(&[&str])) {
        let Words { lowered, word } = self;
        lowered.clear();
        lowered.push_str(text);
        lowered.make_ascii_lowercase();
        // Whole blocks, and the last run ended by something that is not part of it.
        lowered.push_str(&FILLER[text.len() % BLOCK..]);
        let lowered = &lowered[..];
        let mut batch: ArrayVec<&str, BATCH> = ArrayVec::new();
        let (mut begun, mut inside, mut suspect) = (0, 0u64, false);
        for (i, block) in lowered.as_bytes().as_chunks::<BLOCK>().0.iter().enumerate() {
            let base = i * BLOCK;
            let (mask, high) = classify(block);
            suspect |= high != 0;
            let mut run = |begun: usize, end: usize| {
                let run = &lowered[begun..end];
                if suspect && !run.is_ascii() {
                    // The words before it first.
                    if !batch.is_empty() {
                        emit(&batch);
                        batch.clear();
                    }
                    return unicode_words(&text[begun..end], word, &mut |word| emit(&[word]));
                }
                batch.push(run);
                if batch.is_full() {
                    emit(&batch);
                    batch.clear();
                }
            };
            // One bit where a run begins, and one behind each run's last byte. One place where runs are taken, so
            // that it is compiled into the loop.
            let before = mask << 1 | inside;
            let (mut begins, mut ends) = (mask & !before, before & !mask);
            let mut begin = || {
                let at = base + begins.trailing_zeros() as usize;
                begins &= begins.wrapping_sub(1);
                at
            };
            if inside == 0 {
                begun = begin();
            }
            while ends != 0 {
                run(begun, base + ends.trailing_zeros() as usize);
                ends &= ends - 1;
                begun = begin();
            }
            inside = mask >> 63;
            // What was seen in this block matters in the next one if a run goes on.
            suspect &= inside == 1;
        }
        if !batch.is_empty() {
            emit(&batch);
        }
    }
}

/// Bit `i` of the first says whether byte `i` is a lower-case letter, a digit or above 127, of the second whether
/// it is above 127.
#[inline(always)]
fn classify(block: &[u8; BLOCK]) -> (u64, u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { sse2_classify(block) };
    #[cfg(not(target_arch = "x86_64"))]
    portable_classify(block)
}

/// As [`classify`], 16 bytes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
fn sse2_classify(block: &[u8; BLOCK]) -> (u64, u64) {
    use std::arch::x86_64::*;
    let (mut mask, mut high) = (0, 0);
    for (i, part) in block.as_chunks::<16>().0.iter().enumerate() {
        let part = u128::from_le_bytes(*part);
        let bytes = _mm_set_epi64x((part >> 64) as i64, part as i64);
        // The comparison is of signed bytes, so what is above 127 is below all others.
        let letter = _mm_and_si128(
            _mm_cmpgt_epi8(bytes, _mm_set1_epi8(b'a' as i8 - 1)),
            _mm_cmplt_epi8(bytes, _mm_set1_epi8(b'z' as i8 + 1)),
        );
        let digit = _mm_and_si128(
            _mm_cmpgt_epi8(bytes, _mm_set1_epi8(b'0' as i8 - 1)),
            _mm_cmplt_epi8(bytes, _mm_set1_epi8(b'9' as i8 + 1)),
        );
        mask |= u64::from(_mm_movemask_epi8(_mm_or_si128(letter, digit)) as u16) << (16 * i);
        high |= u64::from(_mm_movemask_epi8(bytes) as u16) << (16 * i);
    }
    (mask | high, high)
}

/// As [`classify`], in arithmetic that every machine has.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn portable_classify(block: &[u8; BLOCK]) -> (u64, u64) {
    let gather = |bits: [u8; BLOCK]| {
        let mut mask = 0;
        for (i, eight) in bits.as_chunks::<8>().0.iter().enumerate() {
            // The product gathers the lowest bit of each byte in the highest byte, the first lowest.
            mask |= (u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
        }
        mask
    };
    let word = gather(block.map(|b| u8::from(b.is_ascii_lowercase() || b.is_ascii_digit())));
    let high = gather(block.map(|b| b >> 7));
    (word | high, high)
}

/// Words of any text.
fn unicode_words(line: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
    let table = &**TABLE;
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        // Between words, then within one. `changes` gathers whether lower case differs at all.
        let (mut class, mut len) = class_at(table, line, at);
        if class & WORD == 0 {
            at += len;
            continue;
        }
        let begun = at;
        let mut changes = 0;
        while class & WORD != 0 {
            changes |= class;
            at += len;
            if at == bytes.len() {
                break;
            }
            (class, len) = class_at(table, line, at);
        }
        let word = &line[begun..at];
        if changes & CHANGES == 0 {
            emit(word);
        } else if changes & CONTEXT != 0 {
            emit(&word.to_lowercase());
        } else {
            scratch.clear();
            for c in word.chars() {
                if c.is_ascii() {
                    scratch.push(c.to_ascii_lowercase());
                } else {
                    scratch.extend(c.to_lowercase());
                }
            }
            emit(scratch);
        }
    }
}

/// A letter or digit.
const WORD: u8 = 1;
/// Its lower case is something else.
const CHANGES: u8 = 2;
/// Its lower case depends on its neighbours.
const CONTEXT: u8 = 4;

/// Classes of the characters below 65,536, which are nearly all that occur. The library's own tables are
/// several times as slow, since they are packed to be small.
static TABLE: LazyLock<Box<[u8; 1 << 16]>> = LazyLock::new(|| {
    let classes: Vec<u8> = (0..1 << 16).map(|c| char::from_u32(c).map_or(0, class_of)).collect();
    classes.into_boxed_slice().try_into().expect("as many as counted")
});

fn class_of(c: char) -> u8 {
    let mut class = 0;
    if c.is_alphanumeric() {
        class |= WORD;
    }
    if !c.to_lowercase().eq([c]) {
        class |= CHANGES;
    }
    if c == 'Σ' {
        class |= CONTEXT;
    }
    class
}

/// Class of the character that begins at `at`, and how many bytes it has.
#[inline(always)]
fn class_at(table: &[u8; 1 << 16], line: &str, at: usize) -> (u8, usize) {
    let first = line.as_bytes()[at];
    if first.is_ascii() {
        return (table[usize::from(first)], 1);
    }
    let c = line[at..].chars().next().expect("`at` is before the end");
    let class = table.get(c as usize).copied().unwrap_or_else(|| class_of(c));
    (class, c.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition.
    fn plainly(line: &str) -> Vec<String> {
        line.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
    }

    fn collected(line: &str) -> Vec<String> {
        let mut words = Words { lowered: "left over".into(), word: "left over".into() };
        let mut found = Vec::new();
        words.find(line, |batch| {
            assert!((1..=BATCH).contains(&batch.len()));
            found.extend(batch.iter().map(|word| word.to_string()));
        });
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        /// Goal: words are those of the definition, in ASCII around the edges of blocks and in any text.
        #[test]
        fn words_are_maximal_runs_in_lower_case(
            ascii in "[aB3 .\0\x7f]{0,200}",
            some in "[aZ0 ’éÉΣσßİǅ𝄞𐐀٣_\u{301}]{0,40}",
            any in "\\PC{0,40}",
            mixed in "([a-zA-Z0-9 \n]{0,70}|[É’Σ世𝄞]{0,30}){0,6}",
        ) {
            for line in [&ascii, &some, &any, &mixed] {
                prop_assert_eq!(collected(line), plainly(line), "{:?}", line);
            }
        }
    }

    /// Goal: one line for each rule that is easy to break.
    #[test]
    fn capitals_that_are_special_are_lowered_as_the_library_does() {
        assert_eq!(collected("ΟΔΥΣΣΕΥΣ, Σ ΑΣ1"), plainly("ΟΔΥΣΣΕΥΣ, Σ ΑΣ1"));
        assert_eq!(collected("ΟΔΟΣ"), ["οδος"], "a final sigma");
        assert_eq!(collected("Isn’t DON'T"), ["isn", "t", "don", "t"]);
        assert_eq!(collected("Straße ÉTÉ x²"), ["straße", "été", "x²"]);
        for length in 0..200 {
            assert_eq!(collected(&"x".repeat(length)), plainly(&"x".repeat(length)), "{length}");
        }
    }

    /// Goal: every character has the class that the library says, and both ways to classify are the same.
    #[test]
    fn tables_agree_with_the_library() {
        for c in ('\0'..=char::MAX).filter(|c| c.is_alphanumeric() || !c.to_lowercase().eq([*c])) {
            let line = format!("-{c}é");
            assert_eq!(collected(&line), plainly(&line), "{c:?}");
        }
        let bytes: Vec<u8> = (0..=255).collect();
        for start in 0..=256 - BLOCK {
            let block = bytes[start..].first_chunk().unwrap();
            assert_eq!(classify(block), portable_classify(block), "from {start}");
        }
    }
}
