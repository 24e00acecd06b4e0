//! Records: how a value becomes bytes in a segment and is read there in place.
//!
//! A record is encoded straight into the open segment of a subpartition and decoded where it lies, so
//! records of fixed size and strings cross the exchange without an allocation. What an operator is handed
//! is [`Record::Ref`]: the value itself for numbers, `&str` for `String`, a tuple of the fields' views
//! for tuples.

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

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a record of {} bytes is not a {}: {}", self.announced, self.type_name, self.what)
    }
}

impl std::error::Error for DecodeError {}
