//! Keyed state: how a key and its value lie in the tables of `storage`.

mod keyed;
mod own;

pub(crate) use keyed::encode;
pub use keyed::{KeyedState, Plain, StateValue};
pub use own::OwnState;

use crate::record::{DecodeError, Key, Record};
use tidegate_storage::table::{Bytes, Fixed, TableKey};

/// A key by which state can be kept.
pub trait StateKey: Key {
    /// How the table keeps it.
    type Table: TableKey;

    /// Calls `f` with the key as the table looks it up; `scratch` may serve to encode it.
    fn with_table<R>(
        view: Self::Ref<'_>,
        scratch: &mut Vec<u8>,
        f: impl FnOnce(<Self::Table as TableKey>::Ref<'_>) -> R,
    ) -> R;

    /// The key as operators see it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the table holds something else: its bytes were damaged.
    fn from_table<'a>(
        key: <Self::Table as TableKey>::Ref<'a>,
        scratch: &'a mut Self::Scratch,
    ) -> Result<Self::Ref<'a>, DecodeError>;
}

macro_rules! fixed_key {
    ($($type:ty),+) => {$(
        impl StateKey for $type {
            type Table = Fixed<$type>;

            #[inline(always)]
            fn with_table<R>(view: $type, _: &mut Vec<u8>, f: impl FnOnce($type) -> R) -> R {
                f(view)
            }

            #[inline(always)]
            fn from_table(key: $type, (): &mut ()) -> Result<$type, DecodeError> {
                Ok(key)
            }
        }
    )+};
}

fixed_key!(u8, u16, u32, u64, i8, i16, i32, i64, bool);

impl StateKey for String {
    type Table = Bytes;

    #[inline(always)]
    fn with_table<R>(view: &str, _: &mut Vec<u8>, f: impl FnOnce(&[u8]) -> R) -> R {
        f(view.as_bytes())
    }

    fn from_table<'a>(key: &'a [u8], scratch: &'a mut ()) -> Result<&'a str, DecodeError> {
        Self::decode(key, scratch)
    }
}

impl StateKey for Vec<u8> {
    type Table = Bytes;

    #[inline(always)]
    fn with_table<R>(view: &[u8], _: &mut Vec<u8>, f: impl FnOnce(&[u8]) -> R) -> R {
        f(view)
    }

    fn from_table<'a>(key: &'a [u8], _: &'a mut ()) -> Result<&'a [u8], DecodeError> {
        Ok(key)
    }
}

macro_rules! encoded_key {
    ($($field:ident),+) => {
        /// Kept as the bytes of its encoding.
        impl<$($field: Key),+> StateKey for ($($field,)+) {
            type Table = Bytes;

            #[inline]
            fn with_table<R>(
                view: Self::Ref<'_>,
                scratch: &mut Vec<u8>,
                f: impl FnOnce(&[u8]) -> R,
            ) -> R {
                scratch.clear();
                match Self::encoded_len(view) {
                    Some(len) => {
                        scratch.resize(len, 0);
                        Self::encode(view, scratch);
                    }
                    None => Self::encode_to_vec(view, scratch),
                }
                f(scratch)
            }

            fn from_table<'a>(
                key: &'a [u8],
                scratch: &'a mut Self::Scratch,
            ) -> Result<Self::Ref<'a>, DecodeError> {
                Self::decode(key, scratch)
            }
        }
    };
}

encoded_key!(A);
encoded_key!(A, B);
encoded_key!(A, B, C);
encoded_key!(A, B, C, D);
