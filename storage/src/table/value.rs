//! Values: how one is written to a snapshot, and read back.

use super::arena::{Arena, BlobHandle};
use crate::format::DecodeError;

/// A value that a snapshot can take: plain data, with what is of variable length in the table's arena.
///
/// The bytes are the same for equal values whatever table they lie in. An implementation writes fields, never the
/// memory of the value, which may have padding.
pub trait TableValue: Copy + 'static {
    /// Bytes of every encoded value, if all take as many.
    const ENCODED_BYTES: Option<usize>;

    /// Appends the value; `blobs` is the arena that its handles are of.
    fn encode(&self, blobs: &Arena, out: &mut Vec<u8>);

    /// Reads what [`encode`](Self::encode) wrote as just these bytes, putting blobs into `blobs`.
    ///
    /// # Errors
    ///
    /// The bytes are not those of a value. Nothing was put into `blobs`.
    fn decode(bytes: &[u8], blobs: &mut Arena) -> Result<Self, DecodeError>;

    /// Frees what the value has in `blobs`, as it is replaced by another.
    fn discard(&self, blobs: &mut Arena) {
        let _ = blobs;
    }
}

#[cold]
#[inline(never)]
fn wrong_length(length: usize, expected: usize) -> DecodeError {
    DecodeError { at: 0, what: "value", problem: format!("{length} bytes, {expected} were expected") }
}

macro_rules! number_value {
    ($($type:ty),*) => { $(
        impl TableValue for $type {
            const ENCODED_BYTES: Option<usize> = Some(size_of::<$type>());

            #[inline(always)]
            fn encode(&self, _: &Arena, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn decode(bytes: &[u8], _: &mut Arena) -> Result<Self, DecodeError> {
                match bytes.try_into() {
                    Ok(bytes) => Ok(Self::from_le_bytes(bytes)),
                    Err(_) => Err(wrong_length(bytes.len(), size_of::<$type>())),
                }
            }
        }
    )* };
}

number_value!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

/// A set needs no value.
impl TableValue for () {
    const ENCODED_BYTES: Option<usize> = Some(0);

    fn encode(&self, _: &Arena, _: &mut Vec<u8>) {}

    fn decode(bytes: &[u8], _: &mut Arena) -> Result<Self, DecodeError> {
        if bytes.is_empty() { Ok(()) } else { Err(wrong_length(bytes.len(), 0)) }
    }
}

impl<const N: usize> TableValue for [u64; N] {
    const ENCODED_BYTES: Option<usize> = Some(N * 8);

    #[inline]
    fn encode(&self, _: &Arena, out: &mut Vec<u8>) {
        for word in self {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    #[inline]
    fn decode(bytes: &[u8], _: &mut Arena) -> Result<Self, DecodeError> {
        if bytes.len() != N * 8 {
            return Err(wrong_length(bytes.len(), N * 8));
        }
        Ok(std::array::from_fn(|at| {
            u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"))
        }))
    }
}

/// A value that is nothing but bytes in the arena.
impl TableValue for BlobHandle {
    const ENCODED_BYTES: Option<usize> = None;

    #[inline]
    fn encode(&self, blobs: &Arena, out: &mut Vec<u8>) {
        out.extend_from_slice(blobs.get(*self));
    }

    #[inline]
    fn decode(bytes: &[u8], blobs: &mut Arena) -> Result<Self, DecodeError> {
        Ok(blobs.append(bytes))
    }

    fn discard(&self, blobs: &mut Arena) {
        blobs.free(*self);
    }
}
