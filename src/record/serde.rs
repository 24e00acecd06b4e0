//! Any serde type as a record, encoded by postcard.
//!
//! Rust forbids `impl<T: Serialize> Record for T` beside the impls for numbers and strings, so a type of the
//! user's own crate is named once with [`record!`](crate::record!), and a foreign one is wrapped in [`Serde`].
//! How many bytes a value takes is known only after it is encoded, so it goes through the writer's reusable
//! buffer; and it is decoded into the reader's scratch, with the allocations of its own `Deserialize`.

use super::{DecodeError, Record};
use ::serde::Serialize;
use ::serde::de::DeserializeOwned;
use postcard::ser_flavors::Flavor;
use std::any::type_name;

/// A serde type of another crate as a record; an operator gets `&T`.
///
/// ```
/// use std::time::Duration;
/// use tidegate::record::{Record, Serde};
///
/// let pause = Duration::from_millis(1500);
/// let mut bytes = Vec::new();
/// Serde::<Duration>::encode_to_vec(&pause, &mut bytes);
/// assert_eq!(Serde::<Duration>::decode(&bytes, &mut None), Ok(&pause));
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serde<T>(pub T);

impl<T: Serialize + DeserializeOwned + Clone + 'static> Record for Serde<T> {
    type Ref<'a> = &'a T;
    type Scratch = Option<T>;
    const STRIDE: Option<u32> = None;

    #[inline(always)]
    fn view(&self) -> &T {
        &self.0
    }

    #[inline]
    fn from_view(view: &T) -> Self {
        Serde(view.clone())
    }

    #[inline(always)]
    fn encoded_len(_view: &T) -> Option<usize> {
        None
    }

    fn encode(view: &T, out: &mut [u8]) {
        let out_len = out.len();
        match postcard::to_slice(view, out) {
            Ok(used) => assert!(used.len() == out_len, "{} bytes of {out_len}", used.len()),
            Err(error) => refused::<T>(&error),
        }
    }

    #[inline]
    fn encode_to_vec(view: &T, out: &mut Vec<u8>) {
        if let Err(error) = postcard::serialize_with_flavor(view, Append(out)) {
            refused::<T>(&error);
        }
    }

    #[inline]
    fn decode<'a>(bytes: &'a [u8], scratch: &'a mut Option<T>) -> Result<&'a T, DecodeError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(scratch.insert(value)),
            Ok((_, rest)) => Err(DecodeError::wrong_length::<T>(bytes.len(), bytes.len() - rest.len())),
            Err(error) => Err(DecodeError::new::<T>(bytes.len(), error.to_string())),
        }
    }
}

/// Only the user's `Serialize` can be at fault, so this fails the operator as any panic in it does.
#[cold]
#[inline(never)]
fn refused<T>(error: &postcard::Error) -> ! {
    panic!("a {} cannot be encoded as a record: {error}", type_name::<T>())
}

/// Appends to a `Vec` that stays where it is: postcard's own sink takes it by value and loses it on failure.
struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Makes a serde type of this crate a [`Record`](crate::record::Record); an operator gets `&T`.
///
/// The type derives `Serialize`, `Deserialize` and `Clone`, and borrows nothing. One of another crate is
/// wrapped in [`Serde`](crate::record::Serde) instead.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidegate::record::Record;
///
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// struct Order {
///     id: u64,
///     items: Vec<String>,
/// }
/// tidegate::record!(Order);
///
/// let order = Order { id: 1, items: vec!["tea".to_owned()] };
/// let mut bytes = Vec::new();
/// Order::encode_to_vec(&order, &mut bytes);
/// assert_eq!(Order::decode(&bytes, &mut None), Ok(&order));
/// ```
#[macro_export]
macro_rules! record {
    ($name:ty) => {
        impl $crate::record::Record for $name {
            type Ref<'a> = &'a Self;
            type Scratch = ::core::option::Option<Self>;
            const STRIDE: ::core::option::Option<u32> = ::core::option::Option::None;

            #[inline(always)]
            fn view(&self) -> &Self {
                self
            }

            #[inline]
            fn from_view(view: &Self) -> Self {
                ::core::clone::Clone::clone(view)
            }

            #[inline(always)]
            fn encoded_len(_view: &Self) -> ::core::option::Option<usize> {
                ::core::option::Option::None
            }

            fn encode(view: &Self, out: &mut [u8]) {
                <$crate::record::Serde<Self> as $crate::record::Record>::encode(view, out);
            }

            #[inline]
            fn encode_to_vec(view: &Self, out: &mut ::std::vec::Vec<u8>) {
                <$crate::record::Serde<Self> as $crate::record::Record>::encode_to_vec(view, out);
            }

            #[inline]
            fn decode<'a>(
                bytes: &'a [u8],
                scratch: &'a mut Self::Scratch,
            ) -> ::core::result::Result<&'a Self, $crate::record::DecodeError> {
                <$crate::record::Serde<Self> as $crate::record::Record>::decode(bytes, scratch)
            }
        }
    };
}
