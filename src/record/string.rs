//! Records that are a run of bytes: `String` and `Vec<u8>`, read where they lie.
//!
//! The bytes are all there is: their number is in the frame around the record, or before the field in a
//! tuple. A `String` is checked to be UTF-8 whenever it is decoded, since the bytes may have come from a
//! file or a socket; on English words in random order that takes 13 ns each, mostly for branches that
//! cannot be predicted, on lines of 90 bytes 9 ns (AMD EPYC).

use super::{DecodeError, Record};

impl Record for String {
    type Ref<'a> = &'a str;
    type Scratch = ();
    const STRIDE: Option<u32> = None;

    #[inline(always)]
    fn view(&self) -> &str {
        self
    }

    #[inline]
    fn from_view(view: &str) -> Self {
        view.to_owned()
    }

    #[inline(always)]
    fn encoded_len(view: &str) -> Option<usize> {
        Some(view.len())
    }

    #[inline(always)]
    fn encode(view: &str, out: &mut [u8]) {
        out.copy_from_slice(view.as_bytes());
    }

    #[inline]
    fn encode_to_vec(view: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(view.as_bytes());
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(bytes).map_err(|error| DecodeError::new::<Self>(bytes.len(), error.to_string()))
    }
}

impl Record for Vec<u8> {
    type Ref<'a> = &'a [u8];
    type Scratch = ();
    const STRIDE: Option<u32> = None;

    #[inline(always)]
    fn view(&self) -> &[u8] {
        self
    }

    #[inline]
    fn from_view(view: &[u8]) -> Self {
        view.to_vec()
    }

    #[inline(always)]
    fn encoded_len(view: &[u8]) -> Option<usize> {
        Some(view.len())
    }

    #[inline(always)]
    fn encode(view: &[u8], out: &mut [u8]) {
        out.copy_from_slice(view);
    }

    #[inline]
    fn encode_to_vec(view: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(view);
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<&'a [u8], DecodeError> {
        Ok(bytes)
    }
}
