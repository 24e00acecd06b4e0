//! Records: how a value becomes bytes in a segment and is read there in place.
//!
//! A record is encoded straight into the open segment of a subpartition and decoded where it lies, so
//! records of fixed size and strings cross the exchange without an allocation. What an operator is handed
//! is [`Record::Ref`]: the value itself for numbers, `&str` for `String`, a tuple of the fields' views
//! for tuples.
//!
//! | type                                    | `Ref`           | bytes, little endian                                 |
//! | --------------------------------------- | --------------- | ---------------------------------------------------- |
//! | integers, floats, `bool`, `char`        | the value       | its own width; `char` as `u32`                       |
//! | `[u8; N]`                               | `&[u8; N]`      | the bytes                                            |
//! | `String`, `Vec<u8>`                     | `&str`, `&[u8]` | the bytes; the frame or the tuple knows how many     |
//! | `Option<T>`                             | `Option<Ref>`   | tag 0 or 1, then `T`; zeros if `T` is of fixed size  |
//! | tuples of 1 to 8                        | tuple of `Ref`s | the fields; a `u32` length before one of varying size, except the last |
//! | [`fixed_record!`](crate::fixed_record)  | the value       | the fields                                           |
//! | [`record!`](crate::record!), [`Serde`]  | `&T`            | postcard                                             |
//!
//! The first five rows and `fixed_record!` are read where they lie and allocate nothing. The last row
//! decodes into the scratch of its reader and allocates what the type's own `Deserialize` allocates.

mod fixed;
mod key;
mod serde;
mod string;
#[cfg(test)]
mod tests;
mod tuple;

pub use self::fixed::stride_of_fields;
pub use self::key::{Key, KeySelector};
pub use self::serde::Serde;

use std::any::type_name;
use std::fmt;

/// Event time in milliseconds since the epoch; [`NO_TIMESTAMP`] where a record has none.
pub type Timestamp = i64;

/// The timestamp of a record that has none.
pub const NO_TIMESTAMP: Timestamp = i64::MIN;

/// A value that can cross an exchange.
pub trait Record: Sized + 'static {
    /// How an operator sees the value: cheap to copy, may borrow from the segment it was read in.
    type Ref<'a>: Copy;

    /// Where `decode` may keep an owned value that `Ref` then borrows; `()` for what is read in place.
    type Scratch: Default + 'static;

    /// Encoded size in bytes if it is the same for every value: such records need no length in a segment.
    ///
    /// Never `Some(0)`: records without bytes could not be counted, so `()` takes a length like a string.
    const STRIDE: Option<u32>;

    /// The view of an owned value.
    fn view(&self) -> Self::Ref<'_>;

    /// The owned value of a view.
    fn from_view(view: Self::Ref<'_>) -> Self;

    /// Encoded size in bytes, or `None` if only encoding tells; always `Some` where `STRIDE` is.
    fn encoded_len(view: Self::Ref<'_>) -> Option<usize>;

    /// Encodes into `out`, whose length is what [`encoded_len`](Self::encoded_len) returned.
    fn encode(view: Self::Ref<'_>, out: &mut [u8]);

    /// Appends the encoding to `out`; for values whose length only encoding tells.
    ///
    /// # Panics
    ///
    /// If the value cannot be encoded: its own `Serialize` refuses, or it has a field of 4 GiB or more.
    fn encode_to_vec(view: Self::Ref<'_>, out: &mut Vec<u8>);

    /// Decodes a value from exactly `bytes`.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are not the encoding of one value, or if fewer or more bytes
    /// than there are would be needed.
    fn decode<'a>(bytes: &'a [u8], scratch: &'a mut Self::Scratch) -> Result<Self::Ref<'a>, DecodeError>;
}

/// Bytes that are not the encoding of the expected type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The Rust name of the type that was expected.
    pub type_name: &'static str,
    /// Length of the record as its frame or stride announced it, in bytes.
    pub announced: usize,
    /// What was wrong.
    pub what: String,
}

impl DecodeError {
    /// `announced` bytes are not a `T` because of `what`.
    #[cold]
    #[inline(never)]
    pub fn new<T>(announced: usize, what: impl Into<String>) -> Self {
        DecodeError { type_name: type_name::<T>(), announced, what: what.into() }
    }

    /// `announced` bytes are not a `T`, which always takes `needed`.
    #[cold]
    #[inline(never)]
    pub fn wrong_length<T>(announced: usize, needed: usize) -> Self {
        let side = if announced < needed { "less" } else { "more" };
        Self::new::<T>(announced, format!("{side} than the {needed} bytes that it takes"))
    }

    /// The same error as seen by the record of `announced` bytes of which the bytes were field `field`.
    #[cold]
    #[inline(never)]
    pub fn in_field<T>(self, announced: usize, field: impl fmt::Display) -> Self {
        Self::new::<T>(announced, format!("field {field}: {self}"))
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are not a {}: {}", self.announced, self.type_name, self.what)
    }
}

impl std::error::Error for DecodeError {}
