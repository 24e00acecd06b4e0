//! Records of one size: numbers, `bool`, `char`, byte arrays, and structs of them.
//!
//! Encoding checks the length of the output once and stores; decoding checks it once and loads. In a loop
//! that cuts a segment by the stride the compiler knows the length, and nothing but the load or store is
//! left. That is why all of this is `inline(always)`.

use super::{DecodeError, Record};

/// The parts of `Record` that are the same for every value that is its own view.
macro_rules! by_value {
    ($size:expr) => {
        type Ref<'a> = Self;
        type Scratch = ();
        const STRIDE: Option<u32> = Some($size as u32);

        #[inline(always)]
        fn view(&self) -> Self {
            *self
        }

        #[inline(always)]
        fn from_view(view: Self) -> Self {
            view
        }

        #[inline(always)]
        fn encoded_len(_view: Self) -> Option<usize> {
            Some($size)
        }
    };
}

macro_rules! number_record {
    ($($number:ty),+) => {$(
        impl Record for $number {
            by_value!(size_of::<$number>());

            #[inline(always)]
            fn encode(view: Self, out: &mut [u8]) {
                let room = out.len();
                // Not `copy_from_slice`, which may become a call even where the length is known.
                let Ok(out) = <&mut [u8; size_of::<Self>()]>::try_from(out) else {
                    super::tuple::wrong_room(room, size_of::<Self>() as u32)
                };
                *out = view.to_le_bytes();
            }

            #[inline(always)]
            fn encode_to_vec(view: Self, out: &mut Vec<u8>) {
                out.extend_from_slice(&view.to_le_bytes());
            }

            #[inline(always)]
            fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<Self, DecodeError> {
                match bytes.try_into() {
                    Ok(bytes) => Ok(Self::from_le_bytes(bytes)),
                    Err(_) => Err(DecodeError::wrong_length::<Self>(bytes.len(), size_of::<Self>())),
                }
            }
        }
    )+};
}

number_record!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

impl Record for bool {
    by_value!(1);

    #[inline(always)]
    fn encode(view: Self, out: &mut [u8]) {
        out.copy_from_slice(&[u8::from(view)]);
    }

    #[inline(always)]
    fn encode_to_vec(view: Self, out: &mut Vec<u8>) {
        out.push(u8::from(view));
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<Self, DecodeError> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(DecodeError::new::<Self>(1, format!("the byte is {other}, not 0 or 1"))),
            _ => Err(DecodeError::wrong_length::<Self>(bytes.len(), 1)),
        }
    }
}

impl Record for char {
    by_value!(4);

    #[inline(always)]
    fn encode(view: Self, out: &mut [u8]) {
        u32::encode(u32::from(view), out);
    }

    #[inline(always)]
    fn encode_to_vec(view: Self, out: &mut Vec<u8>) {
        u32::encode_to_vec(u32::from(view), out);
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], scratch: &'a mut ()) -> Result<Self, DecodeError> {
        let Ok(code) = u32::decode(bytes, scratch) else {
            return Err(DecodeError::wrong_length::<Self>(bytes.len(), 4));
        };
        char::from_u32(code)
            .ok_or_else(|| DecodeError::new::<Self>(4, format!("{code:#x} is not a Unicode scalar value")))
    }
}

impl Record for () {
    type Ref<'a> = ();
    type Scratch = ();
    const STRIDE: Option<u32> = None;

    #[inline(always)]
    fn view(&self) {}

    #[inline(always)]
    fn from_view(_view: ()) {}

    #[inline(always)]
    fn encoded_len(_view: ()) -> Option<usize> {
        Some(0)
    }

    #[inline(always)]
    fn encode(_view: (), out: &mut [u8]) {
        debug_assert!(out.is_empty(), "() has no bytes, and {} were reserved", out.len());
    }

    #[inline(always)]
    fn encode_to_vec(_view: (), _out: &mut Vec<u8>) {}

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<(), DecodeError> {
        if bytes.is_empty() { Ok(()) } else { Err(DecodeError::wrong_length::<()>(bytes.len(), 0)) }
    }
}

impl<const N: usize> Record for [u8; N] {
    type Ref<'a> = &'a [u8; N];
    type Scratch = ();
    const STRIDE: Option<u32> = {
        assert!(N <= u32::MAX as usize, "a record takes less than 4 GiB");
        if N == 0 { None } else { Some(N as u32) }
    };

    #[inline(always)]
    fn view(&self) -> &[u8; N] {
        self
    }

    #[inline(always)]
    fn from_view(view: &[u8; N]) -> Self {
        *view
    }

    #[inline(always)]
    fn encoded_len(_view: &[u8; N]) -> Option<usize> {
        Some(N)
    }

    #[inline(always)]
    fn encode(view: &[u8; N], out: &mut [u8]) {
        out.copy_from_slice(view);
    }

    #[inline(always)]
    fn encode_to_vec(view: &[u8; N], out: &mut Vec<u8>) {
        out.extend_from_slice(view);
    }

    #[inline(always)]
    fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<&'a [u8; N], DecodeError> {
        bytes.try_into().map_err(|_| DecodeError::wrong_length::<Self>(bytes.len(), N))
    }
}

macro_rules! number_arrays {
    ($($type:ty),+) => {$(
        /// By value: one number after the other, little-endian.
        impl<const N: usize> Record for [$type; N] {
            type Ref<'a> = [$type; N];
            type Scratch = ();
            const STRIDE: Option<u32> = {
                assert!(N * size_of::<$type>() <= u32::MAX as usize, "a record takes less than 4 GiB");
                if N == 0 { None } else { Some((N * size_of::<$type>()) as u32) }
            };

            #[inline(always)]
            fn view(&self) -> Self {
                *self
            }

            #[inline(always)]
            fn from_view(view: Self) -> Self {
                view
            }

            #[inline(always)]
            fn encoded_len(_view: Self) -> Option<usize> {
                Some(N * size_of::<$type>())
            }

            #[inline(always)]
            fn encode(view: Self, out: &mut [u8]) {
                for (number, out) in view.iter().zip(out.chunks_exact_mut(size_of::<$type>())) {
                    out.copy_from_slice(&number.to_le_bytes());
                }
            }

            #[inline(always)]
            fn encode_to_vec(view: Self, out: &mut Vec<u8>) {
                view.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }

            #[inline(always)]
            fn decode<'a>(bytes: &'a [u8], _scratch: &'a mut ()) -> Result<Self, DecodeError> {
                if bytes.len() != N * size_of::<$type>() {
                    return Err(DecodeError::wrong_length::<Self>(bytes.len(), N * size_of::<$type>()));
                }
                let mut numbers = bytes.chunks_exact(size_of::<$type>());
                Ok(std::array::from_fn(|_| {
                    let number = numbers.next().expect("as many as the length says");
                    <$type>::from_le_bytes(number.try_into().expect("chunks of its size"))
                }))
            }
        }
    )+};
}

number_arrays!(u16, u32, u64, i16, i32, i64, f32, f64);

/// The stride of a record whose fields have these strides, for a [`fixed_record!`](crate::fixed_record).
///
/// # Panics
///
/// At compile time, if a field is not of fixed size.
pub const fn stride_of_fields(fields: &[Option<u32>]) -> u32 {
    let (mut sum, mut at) = (0, 0);
    while at < fields.len() {
        match fields[at] {
            Some(stride) => sum += stride,
            None => panic!("a field of a fixed_record! is not of fixed size; use record! for the type"),
        }
        at += 1;
    }
    sum
}

/// Makes a plain struct a [`Record`](crate::record::Record) of fixed size, which an operator gets by value.
///
/// Every field is a record of fixed size itself: a number, `bool`, `char`, `[u8; N]`, a tuple of such, an
/// `Option` of one, or another `fixed_record!`. Anything else is refused at compile time. The macro takes
/// the struct's definition, to which it adds `Clone` and `Copy`:
///
/// ```
/// use tidegate::record::Record;
///
/// tidegate::fixed_record! {
///     /// A trade.
///     #[derive(Debug, PartialEq)]
///     pub struct Trade {
///         /// Whose.
///         pub account: u64,
///         /// What one piece costs.
///         pub price: f64,
///         /// Whether it was bought.
///         pub bought: bool,
///     }
/// }
///
/// let trade = Trade { account: 7, price: 12.5, bought: true };
/// let mut bytes = [0; 17];
/// Trade::encode(trade, &mut bytes);
/// assert_eq!(Trade::decode(&bytes, &mut ()), Ok(trade));
/// assert!(Trade::decode(&bytes[..16], &mut ()).is_err());
/// ```
///
/// For a struct that has its definition elsewhere in the crate, and is `Copy`, it takes the fields in the
/// order in which they shall be encoded. All must be named:
///
/// ```
/// #[derive(Clone, Copy)]
/// struct Point { x: f64, y: f64 }
/// tidegate::fixed_record!(Point { x: f64, y: f64 });
/// ```
///
/// ```compile_fail
/// tidegate::fixed_record!(struct Line { text: String }); // A String is not of fixed size.
/// ```
///
/// ```compile_fail
/// #[derive(Clone, Copy)]
/// struct Point { x: f64, y: f64 }
/// tidegate::fixed_record!(Point { x: f64 }); // Field y is missing.
/// ```
///
/// Fields are encoded one after another, so how the compiler lays out the struct does not matter: no
/// padding reaches the bytes, and no `repr` and no unsafe code are needed. Neighbouring fields become wide
/// loads and stores in the optimised code.
#[macro_export]
macro_rules! fixed_record {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $ty:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty),+
        }
        $crate::fixed_record!($name { $($field: $ty),+ });
    };
    ($name:ident { $($field:ident : $ty:ty),+ $(,)? }) => {
        impl $crate::record::Record for $name {
            type Ref<'a> = Self;
            type Scratch = ();
            const STRIDE: ::core::option::Option<u32> = ::core::option::Option::Some(
                $crate::record::stride_of_fields(&[$(<$ty as $crate::record::Record>::STRIDE),+]),
            );

            #[inline(always)]
            fn view(&self) -> Self {
                *self
            }

            #[inline(always)]
            fn from_view(view: Self) -> Self {
                view
            }

            #[inline(always)]
            fn encoded_len(_view: Self) -> ::core::option::Option<usize> {
                const { <Self as $crate::record::Record>::STRIDE }.map(|stride| stride as usize)
            }

            #[inline(always)]
            fn encode(view: Self, out: &mut [u8]) {
                const STRIDE: usize = <$name as $crate::record::Record>::STRIDE.unwrap() as usize;
                // The only length check: those of the fields fold away behind it.
                let rest: &mut [u8; STRIDE] =
                    out.try_into().expect("a record is encoded into as many bytes as it takes");
                let rest: &mut [u8] = rest;
                let Self { $($field),+ } = view;
                $(
                    let (out, rest) =
                        rest.split_at_mut(<$ty as $crate::record::Record>::STRIDE.unwrap() as usize);
                    <$ty as $crate::record::Record>::encode(
                        <$ty as $crate::record::Record>::view(&$field),
                        out,
                    );
                )+
                let _ = rest;
            }

            #[inline(always)]
            fn encode_to_vec(view: Self, out: &mut ::std::vec::Vec<u8>) {
                let Self { $($field),+ } = view;
                $(
                    <$ty as $crate::record::Record>::encode_to_vec(
                        <$ty as $crate::record::Record>::view(&$field),
                        out,
                    );
                )+
            }

            #[inline(always)]
            fn decode<'a>(
                bytes: &'a [u8],
                _scratch: &'a mut (),
            ) -> ::core::result::Result<Self, $crate::record::DecodeError> {
                const STRIDE: usize = <$name as $crate::record::Record>::STRIDE.unwrap() as usize;
                if bytes.len() != STRIDE {
                    return ::core::result::Result::Err(
                        $crate::record::DecodeError::wrong_length::<Self>(bytes.len(), STRIDE),
                    );
                }
                let rest = bytes;
                $(
                    let (field, rest) =
                        rest.split_at(<$ty as $crate::record::Record>::STRIDE.unwrap() as usize);
                    let mut scratch = ::core::default::Default::default();
                    let $field = match <$ty as $crate::record::Record>::decode(field, &mut scratch) {
                        ::core::result::Result::Ok(view) => {
                            <$ty as $crate::record::Record>::from_view(view)
                        }
                        ::core::result::Result::Err(error) => {
                            return ::core::result::Result::Err(
                                error.in_field::<Self>(STRIDE, ::core::stringify!($field)),
                            );
                        }
                    };
                )+
                let _ = rest;
                ::core::result::Result::Ok(Self { $($field),+ })
            }
        }

        // Refuses a field of varying size here, not only where the record is first used.
        const _: () = ::core::assert!(<$name as $crate::record::Record>::STRIDE.is_some());
    };
}
