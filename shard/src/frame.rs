//! The bytes inside a segment.
//!
//! | segment | content |
//! | --- | --- |
//! | fixed (stride n) | records of n bytes, one after the other; the stride is in the descriptor |
//! | framed (stride 0) | elements: 4-byte header, then its payload |
//!
//! ```text
//! header, little endian:  kind (4 bits) | payload length in bytes (28 bits)
//! kind 0  record           payload = [timestamp: 8 bytes, if the edge carries them] encoded record
//! kind 1  watermark        payload = event time, 8 bytes
//! kind 2  idle             no payload
//! kind 3  active           no payload
//! kind 4  latency marker   payload = vertex 4, subtask 4, emission time in ns 8
//! ```
//!
//! A record may span segments; the rest then begins the next segment, with no header of its own. A header
//! is never split, and what is no record never spans. A stream of fixed segments goes over to a framed one
//! for what is no record, and back when that is full.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 4;

/// Kind of an element.
pub type Kind = u8;
/// A record.
pub const RECORD: Kind = 0;
/// A watermark.
pub const WATERMARK: Kind = 1;
/// The input is idle.
pub const IDLE: Kind = 2;
/// The input is active again.
pub const ACTIVE: Kind = 3;
/// A latency marker.
pub const MARKER: Kind = 4;

/// Largest payload of an element that is no record, in bytes.
pub const CONTROL_BYTES_MAX: usize = 16;

/// The header of an element.
#[inline(always)]
pub fn header(kind: Kind, payload_len: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(payload_len < 1 << 28 && kind < 16);
    ((kind as u32) << 28 | payload_len as u32).to_le_bytes()
}

/// Kind and payload length that a header states.
#[inline(always)]
pub fn parse_header(bytes: [u8; HEADER_BYTES]) -> (Kind, usize) {
    let word = u32::from_le_bytes(bytes);
    ((word >> 28) as u8, (word & ((1 << 28) - 1)) as usize)
}

// Whatever is no record fits in the smallest segment, so it never has to span.
const _: () = assert!(HEADER_BYTES + CONTROL_BYTES_MAX <= crate::config::SEGMENT_SIZE_BYTES_MIN as usize);
