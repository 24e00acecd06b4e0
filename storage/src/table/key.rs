//! Keys: what a slot keeps of a key, and how a looked-up key is compared with it.
//!
//! | key            | cell                                                             |
//! | -------------- | ---------------------------------------------------------------- |
//! | up to 8 bytes  | a `u64`                                                          |
//! | 16 bytes       | two `u64`                                                        |
//! | byte string    | 16 bytes: up to 15 bytes and their length, or a place in the arena |
//!
//! A slot without an entry holds the cell [`TableKey::VACANT`], so that a lookup
//! needs no separate look at whether the slot is taken. Where every bit pattern
//! is a key, one of them is also `VACANT`; [`TableKey::is_vacant`] names it, and
//! the table keeps that key apart.

use super::arena::{Arena, BlobHandle};
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;

/// Bits without a pattern, from the fractional part of pi and of the golden ratio.
const MIX_A: u64 = 0x243f_6a88_85a3_08d3;
const MIX_B: u64 = 0x9e37_79b9_7f4a_7c15;

/// Folded multiply: one multiplication of which both halves are used, so that
/// every bit of the hash depends on all of the key.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A kind of key. The implementors are names only; [`TableKey::Ref`] is the key itself.
pub trait TableKey: 'static {
    /// The key as it is looked up and as it is given back.
    type Ref<'a>: Copy;

    /// What a slot keeps of it. Cells of short keys are equal if and only if the keys are.
    type Cell: Copy + PartialEq + 'static;

    /// The cell of a slot without an entry.
    const VACANT: Self::Cell;

    /// 64 well-mixed bits, independent of the hash that chose the key group.
    fn hash(key: Self::Ref<'_>) -> u64;

    /// The hash of the key in a cell that is not vacant; equals [`hash`](Self::hash) of that key.
    fn hash_cell(cell: &Self::Cell, arena: &Arena) -> u64;

    /// Whether `key` is the one key whose cell is equal to [`VACANT`](Self::VACANT).
    fn is_vacant(key: Self::Ref<'_>) -> bool;

    /// Whether a cell is [`VACANT`](Self::VACANT).
    fn is_vacant_cell(cell: &Self::Cell) -> bool;

    /// Whether `cell` holds `key`. Of a vacant cell: false, unless `is_vacant(key)`.
    fn matches(cell: &Self::Cell, key: Self::Ref<'_>, arena: &Arena) -> bool;

    /// The cell for `key` if that needs no arena: the whole key is in it.
    fn short(key: Self::Ref<'_>) -> Option<Self::Cell>;

    /// The cell for `key`; long keys are copied to the arena.
    fn store(key: Self::Ref<'_>, arena: &mut Arena) -> Self::Cell;

    /// The key in a cell that is not vacant.
    fn load<'a>(cell: &'a Self::Cell, arena: &'a Arena) -> Self::Ref<'a>;

    /// Gives up what `cell` holds in the arena.
    fn discard(cell: &Self::Cell, arena: &mut Arena);

    /// Moves what `cell` holds in a sparse part of the arena.
    fn relocate(cell: &mut Self::Cell, arena: &mut Arena);

    /// Bytes of a key as [`encode`](Self::encode) writes it, if all keys take as many.
    const ENCODED_BYTES: Option<usize>;

    /// Appends the key of a cell that is not vacant, as bytes that mean the same in every table.
    fn encode(cell: &Self::Cell, arena: &Arena, out: &mut Vec<u8>);

    /// The key that [`encode`](Self::encode) wrote as just these bytes; `None` if it writes none such.
    fn decode(bytes: &[u8]) -> Option<Self::Ref<'_>>;
}

/// Keys of a fixed size, held in the slot.
pub struct Fixed<T>(PhantomData<T>);

/// `$pattern` is a cell that no key of the type has, or, if `$full`, that one has.
macro_rules! fixed_key {
    ($($type:ty, $pattern:expr, $full:expr, $to:expr, $from:expr;)*) => { $(
        impl TableKey for Fixed<$type> {
            type Ref<'a> = $type;
            type Cell = u64;
            const VACANT: u64 = $pattern;

            #[inline(always)]
            fn hash(key: $type) -> u64 {
                fold($to(key), MIX_B)
            }

            #[inline(always)]
            fn hash_cell(cell: &u64, _: &Arena) -> u64 {
                fold(*cell, MIX_B)
            }

            #[inline(always)]
            fn is_vacant(key: $type) -> bool {
                $full && $to(key) == Self::VACANT
            }

            #[inline(always)]
            fn is_vacant_cell(cell: &u64) -> bool {
                *cell == Self::VACANT
            }

            #[inline(always)]
            fn matches(cell: &u64, key: $type, _: &Arena) -> bool {
                *cell == $to(key)
            }

            #[inline(always)]
            fn short(key: $type) -> Option<u64> {
                Some($to(key))
            }

            #[inline(always)]
            fn store(key: $type, _: &mut Arena) -> u64 {
                $to(key)
            }

            #[inline(always)]
            fn load<'a>(cell: &'a u64, _: &'a Arena) -> $type {
                $from(*cell)
            }

            #[inline(always)]
            fn discard(_: &u64, _: &mut Arena) {}

            #[inline(always)]
            fn relocate(_: &mut u64, _: &mut Arena) {}

            const ENCODED_BYTES: Option<usize> = Some(size_of::<$type>());

            #[inline(always)]
            fn encode(cell: &u64, _: &Arena, out: &mut Vec<u8>) {
                out.extend_from_slice(&cell.to_le_bytes()[..size_of::<$type>()]);
            }

            #[inline(always)]
            fn decode(bytes: &[u8]) -> Option<$type> {
                let bytes: [u8; size_of::<$type>()] = bytes.try_into().ok()?;
                let mut cell = [0; 8];
                cell[..size_of::<$type>()].copy_from_slice(&bytes);
                let key = $from(u64::from_le_bytes(cell));
                // Of a type in which not every pattern is a value, what was read must be what is written.
                ($to(key) == u64::from_le_bytes(cell)).then_some(key)
            }
        }
    )* };
}

/// A pattern that no program uses by habit: not 0, not -1, not a small number. A
/// negative number of 32 bits, since that can be part of a compare instruction.
const UNLIKELY: u64 = -0x5bf6_c7de_i64 as u64;

/// Above all values of the narrow types, whose cells are zero-extended.
const OUTSIDE: u64 = 1 << 63;

fixed_key! {
    u64, UNLIKELY, true, |k: u64| k, |c: u64| c;
    i64, UNLIKELY, true, |k: i64| k as u64, |c: u64| c as i64;
    [u8; 8], UNLIKELY, true, u64::from_le_bytes, u64::to_le_bytes;
    u32, OUTSIDE, false, |k: u32| u64::from(k), |c: u64| c as u32;
    i32, OUTSIDE, false, |k: i32| u64::from(k as u32), |c: u64| c as i32;
    u16, OUTSIDE, false, |k: u16| u64::from(k), |c: u64| c as u16;
    i16, OUTSIDE, false, |k: i16| u64::from(k as u16), |c: u64| c as i16;
    u8, OUTSIDE, false, |k: u8| u64::from(k), |c: u64| c as u8;
    i8, OUTSIDE, false, |k: i8| u64::from(k as u8), |c: u64| c as i8;
    bool, OUTSIDE, false, |k: bool| u64::from(k), |c: u64| c != 0;
}

/// Low and high half of 16 bytes.
#[inline(always)]
fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let word = u128::from_le_bytes(*bytes);
    (word as u64, (word >> 64) as u64)
}

impl TableKey for Fixed<[u8; 16]> {
    type Ref<'a> = [u8; 16];
    type Cell = [u64; 2];
    const VACANT: [u64; 2] = [UNLIKELY, !UNLIKELY];

    #[inline(always)]
    fn hash(key: [u8; 16]) -> u64 {
        let (low, high) = halves(&key);
        // Two rounds: in one, either half could cancel the other.
        fold(fold(low ^ MIX_A, MIX_B) ^ high, MIX_B)
    }

    #[inline(always)]
    fn hash_cell(cell: &[u64; 2], _: &Arena) -> u64 {
        fold(fold(cell[0] ^ MIX_A, MIX_B) ^ cell[1], MIX_B)
    }

    #[inline(always)]
    fn is_vacant(key: [u8; 16]) -> bool {
        halves(&key) == (Self::VACANT[0], Self::VACANT[1])
    }

    #[inline(always)]
    fn is_vacant_cell(cell: &[u64; 2]) -> bool {
        *cell == Self::VACANT
    }

    #[inline(always)]
    fn matches(cell: &[u64; 2], key: [u8; 16], _: &Arena) -> bool {
        let (low, high) = halves(&key);
        (cell[0] ^ low) | (cell[1] ^ high) == 0
    }

    #[inline(always)]
    fn short(key: [u8; 16]) -> Option<[u64; 2]> {
        let (low, high) = halves(&key);
        Some([low, high])
    }

    #[inline(always)]
    fn store(key: [u8; 16], _: &mut Arena) -> [u64; 2] {
        let (low, high) = halves(&key);
        [low, high]
    }

    #[inline(always)]
    fn load<'a>(cell: &'a [u64; 2], _: &'a Arena) -> [u8; 16] {
        (u128::from(cell[0]) | u128::from(cell[1]) << 64).to_le_bytes()
    }

    #[inline(always)]
    fn discard(_: &[u64; 2], _: &mut Arena) {}

    #[inline(always)]
    fn relocate(_: &mut [u64; 2], _: &mut Arena) {}

    const ENCODED_BYTES: Option<usize> = Some(16);

    #[inline(always)]
    fn encode(cell: &[u64; 2], arena: &Arena, out: &mut Vec<u8>) {
        out.extend_from_slice(&Self::load(cell, arena));
    }

    #[inline(always)]
    fn decode(bytes: &[u8]) -> Option<[u8; 16]> {
        bytes.try_into().ok()
    }
}

/// Byte strings of any length below 4 GiB; strings are looked up by their bytes.
pub struct Bytes;

/// A byte string in 16 bytes.
///
/// The last byte is the length if that is at most 15, and the bytes before it are
/// the key and zeros. Of a longer key the last byte is `LONG`, and the others are
/// four bytes of its hash, four of its length and seven of its place in the arena.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct BytesCell([u8; 16]);

/// The longest key that lies in its cell.
const INLINE_MAX: usize = 15;

/// Last byte of the cell of a longer key.
const LONG: u8 = 0x80;

/// Chunks of the arena that a cell can name: 24 bits, which at 1 MiB each is 16 TiB.
const CHUNK_LIMIT: u32 = 1 << 24;

impl BytesCell {
    /// The cell of a key of at most 15 bytes. Reads in pieces of 8, 4, 2 that may
    /// overlap, since a copy of unknown length would be a call.
    #[inline(always)]
    fn inline(key: &[u8]) -> u128 {
        let len = key.len();
        debug_assert!(len <= INLINE_MAX);
        let body = if len >= 8 {
            let (head, tail) = (key.first_chunk().unwrap(), key.last_chunk().unwrap());
            let (head, tail) = (u64::from_le_bytes(*head), u64::from_le_bytes(*tail));
            u128::from(head) | u128::from(tail) << (8 * (len - 8))
        } else if len >= 4 {
            let (head, tail) = (key.first_chunk().unwrap(), key.last_chunk().unwrap());
            let (head, tail) = (u32::from_le_bytes(*head), u32::from_le_bytes(*tail));
            u128::from(u64::from(head) | u64::from(tail) << (8 * (len - 4)))
        } else if len >= 1 {
            let (first, middle, last) = (key[0], key[len / 2], key[len - 1]);
            let word =
                u32::from(first) | u32::from(middle) << (8 * (len / 2)) | u32::from(last) << (8 * (len - 1));
            u128::from(word)
        } else {
            0
        };
        body | (len as u128) << 120
    }

    #[inline(always)]
    fn word(&self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    #[inline(always)]
    fn hash_inline(word: u128) -> u64 {
        fold(word as u64 ^ MIX_A, (word >> 64) as u64 ^ MIX_B)
    }

    fn hash_long(key: &[u8]) -> u64 {
        let mut hasher = FixedState::with_seed(MIX_A).build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    fn is_long(&self) -> bool {
        self.0[15] == LONG
    }

    /// First word of a long key's cell: what can be told without the arena.
    fn long_digest(key: &[u8]) -> u64 {
        Self::hash_long(key) >> 32 | (key.len() as u64) << 32
    }

    fn long(digest: u64, handle: BlobHandle) -> BytesCell {
        assert!(handle.chunk < CHUNK_LIMIT, "long keys fill more than {CHUNK_LIMIT} arena chunks");
        let place = u64::from(handle.start) | u64::from(handle.chunk) << 32 | u64::from(LONG) << 56;
        BytesCell((u128::from(digest) | u128::from(place) << 64).to_le_bytes())
    }

    fn digest(&self) -> u64 {
        self.word() as u64
    }

    fn handle(&self) -> BlobHandle {
        let (digest, place) = halves(&self.0);
        BlobHandle {
            chunk: (place >> 32) as u32 & (CHUNK_LIMIT - 1),
            start: place as u32,
            len: (digest >> 32) as u32,
        }
    }
}

impl TableKey for Bytes {
    type Ref<'a> = &'a [u8];
    type Cell = BytesCell;
    const VACANT: BytesCell = BytesCell([0xff; 16]);

    #[inline(always)]
    fn hash(key: &[u8]) -> u64 {
        if key.len() <= INLINE_MAX {
            BytesCell::hash_inline(BytesCell::inline(key))
        } else {
            BytesCell::hash_long(key)
        }
    }

    #[inline(always)]
    fn hash_cell(cell: &BytesCell, arena: &Arena) -> u64 {
        if cell.is_long() {
            BytesCell::hash_long(arena.get(cell.handle()))
        } else {
            BytesCell::hash_inline(cell.word())
        }
    }

    #[inline(always)]
    fn is_vacant(_: &[u8]) -> bool {
        false
    }

    #[inline(always)]
    fn is_vacant_cell(cell: &BytesCell) -> bool {
        *cell == Self::VACANT
    }

    #[inline(always)]
    fn matches(cell: &BytesCell, key: &[u8], arena: &Arena) -> bool {
        if key.len() <= INLINE_MAX {
            cell.word() == BytesCell::inline(key)
        } else {
            cell.is_long() && cell.digest() == BytesCell::long_digest(key) && arena.get(cell.handle()) == key
        }
    }

    #[inline(always)]
    fn short(key: &[u8]) -> Option<BytesCell> {
        (key.len() <= INLINE_MAX).then(|| BytesCell(BytesCell::inline(key).to_le_bytes()))
    }

    #[inline]
    fn store(key: &[u8], arena: &mut Arena) -> BytesCell {
        Self::short(key).unwrap_or_else(|| BytesCell::long(BytesCell::long_digest(key), arena.append(key)))
    }

    #[inline]
    fn load<'a>(cell: &'a BytesCell, arena: &'a Arena) -> &'a [u8] {
        if cell.is_long() { arena.get(cell.handle()) } else { &cell.0[..usize::from(cell.0[15])] }
    }

    #[inline]
    fn discard(cell: &BytesCell, arena: &mut Arena) {
        if cell.is_long() {
            arena.free(cell.handle());
        }
    }

    fn relocate(cell: &mut BytesCell, arena: &mut Arena) {
        if cell.is_long() {
            let mut handle = cell.handle();
            if arena.relocate(&mut handle) > 0 {
                *cell = BytesCell::long(cell.digest(), handle);
            }
        }
    }

    const ENCODED_BYTES: Option<usize> = None;

    #[inline]
    fn encode(cell: &BytesCell, arena: &Arena, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::load(cell, arena));
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Option<&[u8]> {
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<K: TableKey>(key: K::Ref<'_>)
    where
        for<'a> K::Ref<'a>: PartialEq + std::fmt::Debug,
    {
        let mut arena = Arena::default();
        let cell = K::store(key, &mut arena);
        assert!(K::matches(&cell, key, &arena), "{key:?}");
        assert!(K::is_vacant(key) || !K::matches(&K::VACANT, key, &arena), "{key:?}");
        assert_eq!(K::hash_cell(&cell, &arena), K::hash(key), "{key:?}");
        let mut bytes = Vec::new();
        K::encode(&cell, &arena, &mut bytes);
        assert!(K::ENCODED_BYTES.is_none_or(|length| length == bytes.len()), "{key:?}");
        let decoded = K::decode(&bytes).unwrap();
        assert!(K::matches(&cell, decoded, &arena) && K::hash(decoded) == K::hash(key), "{key:?}");
        assert!(K::short(key).is_none_or(|short| short == cell), "{key:?}");
    }

    #[test]
    fn fixed_keys_survive_their_cell() {
        for key in [0, 1, u64::MAX, UNLIKELY, OUTSIDE] {
            round_trip::<Fixed<u64>>(key);
            round_trip::<Fixed<i64>>(key as i64);
            round_trip::<Fixed<u32>>(key as u32);
            round_trip::<Fixed<i32>>(key as i32);
            round_trip::<Fixed<i16>>(key as i16);
            round_trip::<Fixed<i8>>(key as i8);
            round_trip::<Fixed<[u8; 8]>>(key.to_be_bytes());
            round_trip::<Fixed<[u8; 16]>>((u128::from(key) << 64 | 5).to_be_bytes());
        }
        round_trip::<Fixed<bool>>(true);
        assert_eq!((Fixed::<bool>::decode(&[2]), Fixed::<u64>::decode(&[0; 7])), (None, None));
        let arena = Arena::default();
        assert_eq!(Fixed::<i8>::load(&Fixed::<i8>::store(-3, &mut Arena::default()), &arena), -3);
        assert_eq!(Fixed::<i32>::load(&Fixed::<i32>::store(-3, &mut Arena::default()), &arena), -3);
    }

    /// Goal: keys of every length are told apart from their neighbours.
    /// Method: prefixes of one text, and the same with one byte changed at each place.
    #[test]
    fn byte_strings_of_every_length_survive_their_cell() {
        let text: Vec<u8> = (0..60u8).map(|b| b.wrapping_mul(37)).collect();
        let mut arena = Arena::default();
        for len in 0..=text.len() {
            let key = &text[..len];
            round_trip::<Bytes>(key);
            let cell = Bytes::store(key, &mut arena);
            assert_eq!(Bytes::load(&cell, &arena), key);
            assert_eq!(Bytes::hash_cell(&cell, &arena), Bytes::hash(key));
            for at in 0..len {
                let mut other = key.to_vec();
                other[at] ^= 1;
                assert!(!Bytes::matches(&cell, &other, &arena), "length {len}, byte {at}");
                assert_ne!(Bytes::hash(&other), Bytes::hash(key), "length {len}, byte {at}");
            }
            assert!(len == 0 || !Bytes::matches(&cell, &key[..len - 1], &arena));
            let longer = [key, &[0]].concat();
            assert!(!Bytes::matches(&cell, &longer, &arena), "length {len} and a zero");
        }
    }

    /// Goal: the parts of the hash that the table uses are balanced for keys in sequence.
    /// Method: count the values of each part over keys 0, s, 2s ... for strides of powers of two.
    #[test]
    fn hash_bits_are_balanced_for_strided_keys() {
        for stride_bits in (0..=48).step_by(4) {
            for (shift, bits) in [(0, 6), (26, 6), (59, 5), (32, 7)] {
                let mut counts = vec![0u32; 1 << bits];
                for key in 0..8192u64 {
                    let hash = Fixed::<u64>::hash(key << stride_bits);
                    counts[(hash >> shift) as usize & ((1 << bits) - 1)] += 1;
                }
                let mean = 8192 >> bits;
                let (low, high) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(
                    *low * 3 > mean && *high < mean * 3,
                    "stride 2^{stride_bits}, shift {shift}: {low}..{high} around {mean}"
                );
            }
        }
    }
}
