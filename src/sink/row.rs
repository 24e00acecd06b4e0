//! How a record becomes a row of text.

use crate::record::Record;

/// Appends one record's row to a buffer: any `Fn(T::Ref<'_>, &mut Vec<u8>)`.
pub trait Format<T: Record>: for<'a> Fn(T::Ref<'a>, &mut Vec<u8>) + 'static {}

impl<T: Record, F: for<'a> Fn(T::Ref<'a>, &mut Vec<u8>) + 'static> Format<T> for F {}
