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

    /// Shows `visitor` the key as the table looks it up; `scratch` may serve to encode it.
    fn visit<R>(view: Self::Ref<'_>, scratch: &mut Vec<u8>, visitor: impl Visitor<Self::Table, R>) -> R;

    /// Calls `f` with the key as the table looks it up.
    #[inline(always)]
    fn with_table<R>(
        view: Self::Ref<'_>,
        scratch: &mut Vec<u8>,
        f: impl FnOnce(<Self::Table as TableKey>::Ref<'_>) -> R,
    ) -> R {
        Self::visit(view, scratch, Call(f))
    }

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

/// What is done with a key in the form of its table. A type and no closure where each record passes, since a
/// closure cannot be told to be inlined.
pub trait Visitor<K: TableKey, R> {
    /// Does it.
    fn visit(self, key: K::Ref<'_>) -> R;
}

struct Call<F>(F);

impl<K: TableKey, R, F: FnOnce(K::Ref<'_>) -> R> Visitor<K, R> for Call<F> {
    #[inline(always)]
    fn visit(self, key: K::Ref<'_>) -> R {
        (self.0)(key)
    }
}

macro_rules! fixed_key {
    ($($type:ty),+) => {$(
        impl StateKey for $type {
            type Table = Fixed<$type>;

            #[inline(always)]
            fn visit<R>(view: $type, _: &mut Vec<u8>, visitor: impl Visitor<Fixed<$type>, R>) -> R {
                visitor.visit(view)
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
    fn visit<R>(view: &str, _: &mut Vec<u8>, visitor: impl Visitor<Bytes, R>) -> R {
        visitor.visit(view.as_bytes())
    }

    fn from_table<'a>(key: &'a [u8], scratch: &'a mut ()) -> Result<&'a str, DecodeError> {
        Self::decode(key, scratch)
    }
}

impl StateKey for Vec<u8> {
    type Table = Bytes;

    #[inline(always)]
    fn visit<R>(view: &[u8], _: &mut Vec<u8>, visitor: impl Visitor<Bytes, R>) -> R {
        visitor.visit(view)
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
            fn visit<R>(
                view: Self::Ref<'_>,
                scratch: &mut Vec<u8>,
                visitor: impl Visitor<Bytes, R>,
            ) -> R {
                scratch.clear();
                match Self::encoded_len(view) {
                    Some(len) => {
                        scratch.resize(len, 0);
                        Self::encode(view, scratch);
                    }
                    None => Self::encode_to_vec(view, scratch),
                }
                visitor.visit(scratch)
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
