//! Tuples and options of records.
//!
//! The fields of a tuple lie one after another without padding. A field of varying size has its length before
//! it as a `u32`, except the last, which takes what the record has left: `(String, u64)` is length, text,
//! number, and `(u64, String)` is number, text. Fields of fixed size only make a tuple of fixed size.

use super::{DecodeError, Record};

/// Bytes of the length before a field of varying size.
const FIELD_LENGTH_BYTES: usize = size_of::<u32>();

/// Sum of the strides, if every field has one.
const fn stride_of_tuple(fields: &[Option<u32>]) -> Option<u32> {
    let (mut sum, mut at) = (0, 0);
    while at < fields.len() {
        match fields[at] {
            Some(stride) => sum += stride,
            None => return None,
        }
        at += 1;
    }
    Some(sum)
}

/// Bytes that a field before the last takes, with its length.
#[inline(always)]
fn field_len<T: Record>(view: T::Ref<'_>) -> Option<usize> {
    match T::STRIDE {
        Some(stride) => Some(stride as usize),
        None => Some(FIELD_LENGTH_BYTES + T::encoded_len(view)?),
    }
}

/// Encodes a field before the last and returns the room behind it.
#[inline(always)]
fn encode_field<'o, T: Record>(view: T::Ref<'_>, out: &'o mut [u8]) -> &'o mut [u8] {
    let (len, out) = match T::STRIDE {
        Some(stride) => (stride as usize, out),
        None => {
            let len = T::encoded_len(view).expect("encode is for records whose length is known");
            let (prefix, out) = out.split_at_mut(FIELD_LENGTH_BYTES);
            u32::encode(field_length(len), prefix);
            (len, out)
        }
    };
    let (field, rest) = out.split_at_mut(len);
    T::encode(view, field);
    rest
}

/// Appends a field before the last.
#[inline(always)]
fn append_field<T: Record>(view: T::Ref<'_>, out: &mut Vec<u8>) {
    if T::STRIDE.is_some() {
        return T::encode_to_vec(view, out);
    }
    let prefix_at = out.len();
    out.extend_from_slice(&[0; FIELD_LENGTH_BYTES]);
    let field_at = out.len();
    T::encode_to_vec(view, out);
    let len = out.len() - field_at;
    u32::encode(field_length(len), &mut out[prefix_at..field_at]);
}

#[inline(always)]
fn field_length(len: usize) -> u32 {
    u32::try_from(len).expect("a field of a record takes less than 4 GiB")
}

/// Out of line, so that an encode is its check and its stores.
#[cold]
#[inline(never)]
pub(super) fn wrong_room(room: usize, stride: u32) -> ! {
    panic!("{room} bytes were reserved for a record of {stride}")
}

/// The bytes of a field before the last, and those behind it.
#[inline(always)]
fn split_field<T: Record>(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (len, bytes) = match T::STRIDE {
        Some(stride) => (stride as usize, bytes),
        None => match bytes.split_first_chunk::<FIELD_LENGTH_BYTES>() {
            Some((prefix, bytes)) => (u32::from_le_bytes(*prefix) as usize, bytes),
            None => return Err(DecodeError::new::<T>(bytes.len(), "less than the 4 bytes of its length")),
        },
    };
    bytes.split_at_checked(len).ok_or_else(|| DecodeError::wrong_length::<T>(bytes.len(), len))
}

macro_rules! tuple_record {
    ($($field:ident $index:tt)* ; $last:ident $last_index:tt) => {
        impl<$($field: Record,)* $last: Record> Record for ($($field,)* $last,) {
            type Ref<'a> = ($($field::Ref<'a>,)* $last::Ref<'a>,);
            type Scratch = ($($field::Scratch,)* $last::Scratch,);
            const STRIDE: Option<u32> = stride_of_tuple(&[$($field::STRIDE,)* $last::STRIDE]);

            #[inline(always)]
            fn view(&self) -> Self::Ref<'_> {
                ($(self.$index.view(),)* self.$last_index.view(),)
            }

            #[inline(always)]
            fn from_view(view: Self::Ref<'_>) -> Self {
                ($($field::from_view(view.$index),)* $last::from_view(view.$last_index),)
            }

            #[inline(always)]
            fn encoded_len(view: Self::Ref<'_>) -> Option<usize> {
                let before = 0usize $(+ field_len::<$field>(view.$index)?)*;
                $last::encoded_len(view.$last_index).map(|last| before + last)
            }

            #[inline(always)]
            fn encode(view: Self::Ref<'_>, out: &mut [u8]) {
                // The only length check of a tuple of fixed size: those of its fields fold away behind it.
                if let Some(stride) = Self::STRIDE
                    && out.len() != stride as usize
                {
                    wrong_room(out.len(), stride);
                }
                $(let out = encode_field::<$field>(view.$index, out);)*
                $last::encode(view.$last_index, out);
            }

            #[inline(always)]
            fn encode_to_vec(view: Self::Ref<'_>, out: &mut Vec<u8>) {
                $(append_field::<$field>(view.$index, out);)*
                $last::encode_to_vec(view.$last_index, out);
            }

            #[inline(always)]
            #[allow(non_snake_case, reason = "each field's variable is named as its type")]
            fn decode<'a>(
                bytes: &'a [u8],
                scratch: &'a mut Self::Scratch,
            ) -> Result<Self::Ref<'a>, DecodeError> {
                if let Some(stride) = Self::STRIDE
                    && bytes.len() != stride as usize
                {
                    return Err(DecodeError::wrong_length::<Self>(bytes.len(), stride as usize));
                }
                let rest = bytes;
                $(
                    let ($field, rest) = match split_field::<$field>(rest) {
                        Ok(split) => split,
                        Err(error) => return Err(error.in_field::<Self>(bytes.len(), $index)),
                    };
                    let $field = match $field::decode($field, &mut scratch.$index) {
                        Ok(view) => view,
                        Err(error) => return Err(error.in_field::<Self>(bytes.len(), $index)),
                    };
                )*
                match $last::decode(rest, &mut scratch.$last_index) {
                    Ok($last) => Ok(($($field,)* $last,)),
                    Err(error) => Err(error.in_field::<Self>(bytes.len(), $last_index)),
                }
            }
        }
    };
}

tuple_record!(; A 0);
tuple_record!(A 0; B 1);
tuple_record!(A 0 B 1; C 2);
tuple_record!(A 0 B 1 C 2; D 3);
tuple_record!(A 0 B 1 C 2 D 3; E 4);
tuple_record!(A 0 B 1 C 2 D 3 E 4; F 5);
tuple_record!(A 0 B 1 C 2 D 3 E 4 F 5; G 6);
tuple_record!(A 0 B 1 C 2 D 3 E 4 F 5 G 6; H 7);

/// A tag byte, 0 or 1, then the value. Where `T` is of fixed size so is the option, and `None` fills it with
/// zeros: one value has one encoding.
impl<T: Record> Record for Option<T> {
    type Ref<'a> = Option<T::Ref<'a>>;
    type Scratch = T::Scratch;
    const STRIDE: Option<u32> = match T::STRIDE {
        Some(stride) => Some(1 + stride),
        None => None,
    };

    #[inline(always)]
    fn view(&self) -> Self::Ref<'_> {
        self.as_ref().map(T::view)
    }

    #[inline(always)]
    fn from_view(view: Self::Ref<'_>) -> Self {
        view.map(T::from_view)
    }

    #[inline(always)]
    fn encoded_len(view: Self::Ref<'_>) -> Option<usize> {
        match (Self::STRIDE, view) {
            (Some(stride), _) => Some(stride as usize),
            (None, Some(view)) => Some(1 + T::encoded_len(view)?),
            (None, None) => Some(1),
        }
    }

    #[inline(always)]
    fn encode(view: Self::Ref<'_>, out: &mut [u8]) {
        let (tag, value) = out.split_first_mut().expect("an option has a tag byte");
        *tag = u8::from(view.is_some());
        match view {
            Some(view) => T::encode(view, value),
            None => value.fill(0),
        }
    }

    #[inline(always)]
    fn encode_to_vec(view: Self::Ref<'_>, out: &mut Vec<u8>) {
        out.push(u8::from(view.is_some()));
        match view {
            Some(view) => T::encode_to_vec(view, out),
            None => out.resize(out.len() + T::STRIDE.unwrap_or(0) as usize, 0),
        }
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], scratch: &'a mut Self::Scratch) -> Result<Self::Ref<'a>, DecodeError> {
        match bytes.split_first() {
            Some((1, value)) => match T::decode(value, scratch) {
                Ok(view) => Ok(Some(view)),
                Err(error) => Err(error.in_field::<Self>(bytes.len(), "Some")),
            },
            Some((0, value)) => {
                let zeros = T::STRIDE.unwrap_or(0) as usize;
                if value.len() != zeros {
                    return Err(DecodeError::wrong_length::<Self>(bytes.len(), 1 + zeros));
                }
                if value.iter().any(|byte| *byte != 0) {
                    return Err(DecodeError::new::<Self>(bytes.len(), "the bytes behind None are not zero"));
                }
                Ok(None)
            }
            Some((tag, _)) => {
                Err(DecodeError::new::<Self>(bytes.len(), format!("the tag is {tag}, not 0 or 1")))
            }
            None => Err(DecodeError::new::<Self>(0, "less than the byte of its tag")),
        }
    }
}
