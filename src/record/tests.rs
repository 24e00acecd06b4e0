//! What holds for every type of record.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt::Debug;

#[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
struct Order {
    id: u64,
    items: Vec<(String, u32)>,
    note: Option<String>,
}
crate::record!(Order);

crate::fixed_record! {
    /// One field of each kind that a fixed record may have.
    #[derive(Debug, PartialEq)]
    struct Reading {
        sensor: u64,
        celsius: f32,
        valid: bool,
        unit: char,
        place: (i16, Option<u8>),
        raw: [u8; 3],
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Inner {
    reading: Reading,
    count: u16,
}
crate::fixed_record!(Inner { count: u16, reading: Reading });

fn reading() -> impl Strategy<Value = Reading> {
    (any::<u64>(), -90f32..60.0, any::<bool>(), any::<char>(), any::<(i16, Option<u8>)>(), any::<[u8; 3]>())
        .prop_map(|(sensor, celsius, valid, unit, place, raw)| Reading {
            sensor,
            celsius,
            valid,
            unit,
            place,
            raw,
        })
}

fn order() -> impl Strategy<Value = Order> {
    (any::<u64>(), vec(any::<(String, u32)>(), 0..4), any::<Option<String>>())
        .prop_map(|(id, items, note)| Order { id, items, note })
}

fn encoded<T: Record>(record: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    T::encode_to_vec(record.view(), &mut bytes);
    bytes
}

fn decoded<T: Record>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::decode(bytes, &mut T::Scratch::default()).map(T::from_view)
}

/// A value comes back as it was, and both ways of encoding it agree with each other and with what the type
/// says about its length.
fn round_trips<T: Record + Debug + PartialEq>(record: T) {
    let before = vec![0xee; 3];
    let mut bytes = before.clone();
    T::encode_to_vec(record.view(), &mut bytes);
    assert_eq!(bytes[..3], before, "what was in the buffer stays");
    let bytes = &bytes[3..];

    let len = T::encoded_len(record.view());
    if let Some(stride) = T::STRIDE {
        assert_ne!(stride, 0);
        assert_eq!(len, Some(stride as usize));
    }
    if let Some(len) = len {
        let mut in_place = vec![0xee; len];
        T::encode(record.view(), &mut in_place);
        assert_eq!(in_place, bytes);
    }
    assert_eq!(decoded::<T>(bytes).as_ref(), Ok(&record));
}

/// One byte less and one more are errors that name the type and the length.
fn one_byte_off_is_refused<T: Record + Debug>(record: &T) {
    let mut bytes = encoded(record);
    bytes.push(0);
    for len in [bytes.len() - 2, bytes.len()] {
        let error = decoded::<T>(&bytes[..len]).expect_err("a wrong length");
        assert_eq!((error.type_name, error.announced), (type_name::<T>(), len), "{error}");
    }
}

/// Whatever the bytes, decoding returns; and what it accepts is the encoding of what it returns.
fn garbage_is_refused_or_meant<T: Record>(bytes: &[u8]) {
    if let Ok(record) = decoded::<T>(bytes) {
        assert_eq!(encoded(&record), bytes);
    }
}

fn fixed<T: Record + Debug + PartialEq>(record: T) {
    assert!(T::STRIDE.is_some());
    one_byte_off_is_refused(&record);
    round_trips(record);
}

proptest! {
    #[test]
    fn numbers(record: ((u8, u16, u32, u64, u128), (i8, i16, i32, i64, i128))) {
        let (a, b) = record;
        fixed(a.0);
        fixed(a.1);
        fixed(a.2);
        fixed(a.3);
        fixed(a.4);
        fixed(b.0);
        fixed(b.1);
        fixed(b.2);
        fixed(b.3);
        fixed(b.4);
        fixed(record);
    }

    #[test]
    fn floats_keep_every_bit(single: u32, double: u64) {
        let (single, double) = (f32::from_bits(single), f64::from_bits(double));
        let (again, again_double) = decoded::<(f32, f64)>(&encoded(&(single, double))).unwrap();
        prop_assert_eq!(again.to_bits(), single.to_bits());
        prop_assert_eq!(again_double.to_bits(), double.to_bits());
    }

    #[test]
    fn other_fixed_types(flag: bool, letter: char, bytes: [u8; 5], maybe: Option<u32>, reading in reading()) {
        fixed(flag);
        fixed(letter);
        fixed(bytes);
        fixed(maybe);
        fixed(Some(maybe));
        fixed(reading);
        fixed(Some(Inner { reading, count: 7 }));
        fixed((flag,));
        fixed((letter, bytes, (maybe, reading), flag));
    }

    #[test]
    fn texts_and_bytes(text: String, bytes: Vec<u8>) {
        round_trips(Some(text.clone()));
        round_trips((text.clone(), bytes.clone()));
        round_trips(text);
        round_trips(bytes);
    }

    #[test]
    fn tuples_of_every_size(
        a: u8, b: String, c: Option<String>, d: Vec<u8>, e: bool, f: (String, u16), g: (), h: i64, x in order(),
    ) {
        let t = (a, b, c, d, e, f, g, h);
        round_trips((t.1.clone(),));
        round_trips((t.0, t.1.clone()));
        round_trips((t.1.clone(), t.0, t.2.clone()));
        round_trips((t.2.clone(), t.1.clone(), t.3.clone(), t.0));
        round_trips((t.3.clone(), x.clone(), t.5.clone(), t.6, t.1.clone()));
        round_trips((x.clone(), t.0, t.3.clone(), x.clone(), t.5.clone(), x.clone()));
        round_trips((t.0, t.1.clone(), t.2.clone(), t.3.clone(), t.4, t.5.clone(), t.6));
        one_byte_off_is_refused(&t);
        one_byte_off_is_refused(&(x, t.1.clone(), t.0));
        round_trips(t);
    }

    #[test]
    fn serde_types(order in order(), set: std::collections::BTreeSet<String>, maybe: Option<u64>) {
        round_trips(Serde(set.clone()));
        round_trips((Serde(set), maybe));
        round_trips(Serde(maybe));
        round_trips(Some(order.clone()));
        let bytes = encoded(&order);
        prop_assert!(decoded::<Order>(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(decoded::<Order>(&[&bytes[..], &[0]].concat()).is_err());
        round_trips(order);
    }

    #[test]
    fn garbage(bytes in vec(prop_oneof![0..3u8, any::<u8>()], 0..40)) {
        garbage_is_refused_or_meant::<bool>(&bytes);
        garbage_is_refused_or_meant::<char>(&bytes);
        garbage_is_refused_or_meant::<()>(&bytes);
        garbage_is_refused_or_meant::<String>(&bytes);
        garbage_is_refused_or_meant::<Option<u16>>(&bytes);
        garbage_is_refused_or_meant::<Option<Option<String>>>(&bytes);
        garbage_is_refused_or_meant::<(String, Option<u8>, String)>(&bytes);
        garbage_is_refused_or_meant::<(Vec<u8>, (String, bool), (), char)>(&bytes);
        garbage_is_refused_or_meant::<Reading>(&bytes);
        // Postcard accepts a number in more bytes than it takes, so here only the return counts.
        let _ = decoded::<Order>(&bytes);
        let _ = decoded::<(Order, Order)>(&bytes);
    }
}

#[test]
fn layout_is_little_endian_with_lengths_before_all_but_the_last_field() {
    assert_eq!(encoded(&0x0102_0304u32), [4, 3, 2, 1]);
    assert_eq!(encoded(&("ab".to_owned(), 1u16)), [2, 0, 0, 0, b'a', b'b', 1, 0]);
    assert_eq!(encoded(&(1u16, "ab".to_owned())), [1, 0, b'a', b'b']);
    assert_eq!([encoded(&Some(1u16)), encoded(&None::<u16>)], [[1, 1, 0], [0, 0, 0]]);
    assert_eq!(encoded(&None::<String>), [0]);
    assert_eq!((<(u64, (u8, bool))>::STRIDE, <(u64, String)>::STRIDE, <()>::STRIDE), (Some(10), None, None));
    assert_eq!((Reading::STRIDE, Inner::STRIDE), (Some(24), Some(26)));
}

/// Goal: the engine may tell from the type that decoding twice costs nothing twice.
#[test]
fn only_serde_types_have_a_scratch() {
    assert_eq!(size_of::<<(u64, String, (Option<Vec<u8>>, Inner)) as Record>::Scratch>(), 0);
    assert_ne!(size_of::<<(u64, Order) as Record>::Scratch>(), 0);
}

#[test]
fn errors_name_type_length_and_what() {
    let message = |result: Result<(), DecodeError>| result.unwrap_err().to_string();
    assert_eq!(
        message(decoded::<u64>(&[0; 7]).map(drop)),
        "7 bytes are not a u64: less than the 8 bytes that it takes"
    );
    assert_eq!(
        message(decoded::<(u64, u64)>(&[0; 17]).map(drop)),
        "17 bytes are not a (u64, u64): more than the 16 bytes that it takes"
    );
    assert_eq!(message(decoded::<bool>(&[2]).map(drop)), "1 bytes are not a bool: the byte is 2, not 0 or 1");
    assert_eq!(
        message(decoded::<char>(&0xd800u32.to_le_bytes()).map(drop)),
        "4 bytes are not a char: 0xd800 is not a Unicode scalar value"
    );
    assert_eq!(
        message(decoded::<String>(b"ab\xff").map(drop)),
        "3 bytes are not a alloc::string::String: invalid utf-8 sequence of 1 bytes from index 2"
    );
    assert_eq!(
        message(decoded::<(u8, Option<u8>)>(&[0, 2, 0]).map(drop)),
        "3 bytes are not a (u8, core::option::Option<u8>): field 1: 2 bytes are not a \
         core::option::Option<u8>: the tag is 2, not 0 or 1"
    );
    assert_eq!(
        message(decoded::<(Vec<u8>, u8)>(&[9, 0, 0, 0, 1]).map(drop)),
        "5 bytes are not a (alloc::vec::Vec<u8>, u8): field 0: 1 bytes are not a alloc::vec::Vec<u8>: \
         less than the 9 bytes that it takes"
    );
}

#[test]
#[should_panic(expected = "Unsizable cannot be encoded as a record")]
fn a_value_that_its_own_serialize_refuses_panics_with_its_type() {
    #[derive(Clone, ::serde::Deserialize)]
    struct Unsizable;
    impl ::serde::Serialize for Unsizable {
        fn serialize<S: ::serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(::serde::ser::Error::custom("no"))
        }
    }
    encoded(&Serde(Unsizable));
}

/// A field that is `Copy` is stopped by nothing else: `()` and `[u8; 0]` have no stride.
#[test]
#[should_panic(expected = "is not of fixed size")]
fn a_fixed_record_takes_no_field_of_varying_size() {
    stride_of_fields(&[u64::STRIDE, <()>::STRIDE]);
}
