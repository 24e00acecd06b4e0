//! Small state of sources and sinks as bytes: a checksum, a version, the fields.
//!
//! ```text
//! crc32 (4) | version (1) | fields
//! ```
//!
//! The checksum covers all that follows it. The store of checkpoints has checksums of its own; this one makes state
//! that was mixed up on its way there an error, rather than another position.

use std::fmt;
use tidegate_storage::format::{DecodeError, Decoder, Encoder};

const CRC_BYTES: usize = 4;

/// Appends a state that `write` puts into fields.
pub(crate) fn seal(version: u8, state: &mut Vec<u8>, write: impl FnOnce(&mut Encoder)) {
    let start = state.len();
    state.extend_from_slice(&[0; CRC_BYTES]);
    state.push(version);
    let mut fields = Encoder(std::mem::take(state));
    write(&mut fields);
    *state = fields.0;
    let crc = crc32fast::hash(&state[start + CRC_BYTES..]);
    state[start..start + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Checks `state`, which is called `what` in errors, and reads its fields.
///
/// # Errors
///
/// It is damaged, of a version after `newest`, or has fields too few or too many.
pub(crate) fn open<T>(
    what: &'static str,
    newest: u8,
    state: &[u8],
    read: impl FnOnce(u8, &mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<T, StateError> {
    let damaged = |problem: String| StateError { what, problem };
    let Some((crc, rest)) = state.split_first_chunk::<CRC_BYTES>() else {
        return Err(damaged(format!("{} bytes; expected more than {CRC_BYTES}", state.len())));
    };
    let (stored, found) = (u32::from_le_bytes(*crc), crc32fast::hash(rest));
    if stored != found {
        return Err(damaged(format!("checksum {found:08x}; expected {stored:08x}")));
    }
    let Some((&version, fields)) = rest.split_first() else {
        return Err(damaged("no version".to_string()));
    };
    if version == 0 || version > newest {
        return Err(damaged(format!("version {version}; expected at most {newest}")));
    }
    let mut decoder = Decoder::new(what, fields);
    let read = read(version, &mut decoder).and_then(|value| decoder.end().map(|()| value));
    read.map_err(|error| damaged(error.to_string()))
}

/// A state that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateError {
    what: &'static str,
    problem: String,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state of {} in the checkpoint: {}", self.what, self.problem)
    }
}

impl std::error::Error for StateError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was sealed is read back, and any damage is an error that names whose state it is.
    /// Method: every bit flipped, every length, a newer version.
    #[test]
    fn any_flipped_bit_and_any_cut_is_an_error() {
        let mut state = b"before".to_vec();
        seal(1, &mut state, |fields| {
            fields.u64(7);
            fields.text("seven");
        });
        let state = state.split_off(6);
        let read = |state: &[u8]| open("a test", 1, state, |_, fields| Ok((fields.u64()?, fields.text()?)));
        assert_eq!(read(&state).unwrap(), (7, "seven".to_string()));
        for bit in 0..state.len() * 8 {
            let mut damaged = state.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = read(&damaged).unwrap_err().to_string();
            assert!(error.contains("state of a test"), "{error}");
        }
        for len in 0..state.len() {
            read(&state[..len]).unwrap_err();
        }
        read(&[&state[..], b"x"].concat()).unwrap_err();
        let mut newer = Vec::new();
        seal(2, &mut newer, |_| {});
        let error = open("a test", 1, &newer, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("version 2; expected at most 1"), "{error}");
        let mut more = Vec::new();
        seal(1, &mut more, |fields| fields.u64(1));
        open("a test", 1, &more, |_, _| Ok(())).unwrap_err();
    }
}
