//! Records that are at hand together.

use crate::record::{DecodeError, Record};

/// Records of which each may be looked at more than once, so that an operator with keyed state can find the
/// groups of all of them together, and then their entries, before it works on the first.
///
/// Looking at a record decodes it: what is not looked at costs nothing, and no copy is made.
pub trait Batch<'a, T: Record>: Copy {
    /// How many records.
    fn len(self) -> usize;

    /// Whether there is none.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The records in order.
    fn records(self) -> impl Iterator<Item = T::Ref<'a>>;

    /// The first `len` of them.
    fn first(self, len: usize) -> Self;

    /// Those behind the first `len`.
    fn behind(self, len: usize) -> Self;
}

/// Views of records.
pub struct Views<'b, 'a, T: Record>(pub &'b [T::Ref<'a>]);

impl<T: Record> Clone for Views<'_, '_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Record> Copy for Views<'_, '_, T> {}

impl<'a, T: Record> Batch<'a, T> for Views<'_, 'a, T> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn records(self) -> impl Iterator<Item = T::Ref<'a>> {
        self.0.iter().copied()
    }

    #[inline(always)]
    fn first(self, len: usize) -> Self {
        Views(&self.0[..len])
    }

    #[inline(always)]
    fn behind(self, len: usize) -> Self {
        Views(&self.0[len..])
    }
}

/// Owned records.
pub struct Owned<'a, T>(pub &'a [T]);

impl<T> Clone for Owned<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Owned<'_, T> {}

impl<'a, T: Record> Batch<'a, T> for Owned<'a, T> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn records(self) -> impl Iterator<Item = T::Ref<'a>> {
        self.0.iter().map(T::view)
    }

    #[inline(always)]
    fn first(self, len: usize) -> Self {
        Owned(&self.0[..len])
    }

    #[inline(always)]
    fn behind(self, len: usize) -> Self {
        Owned(&self.0[len..])
    }
}

/// Encoded records of fixed size, read where they lie.
pub struct Encoded<'a, T> {
    bytes: &'a [u8],
    record: std::marker::PhantomData<fn() -> T>,
}

impl<T> Clone for Encoded<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Encoded<'_, T> {}

impl<'a, T: Record> Encoded<'a, T> {
    /// Whether records of `T` can be read so: of fixed size, and in place.
    pub const POSSIBLE: bool = T::STRIDE.is_some() && size_of::<T::Scratch>() == 0;

    /// Bytes of a record; of no meaning where these are not `POSSIBLE`.
    const STRIDE: usize = match T::STRIDE {
        Some(stride) => stride as usize,
        None => 1,
    };

    /// The records in `bytes`, once each was found to decode. Of a type that is only a pattern of bits, as
    /// numbers are, nothing is left of that look.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] of the first record that does not.
    #[inline(always)]
    pub fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        assert!(Self::POSSIBLE, "records of another kind are decoded one by one");
        for record in bytes.chunks_exact(Self::STRIDE) {
            Self::decode(record)?;
        }
        Ok(Encoded { bytes, record: std::marker::PhantomData })
    }

    #[inline(always)]
    fn decode(record: &'a [u8]) -> Result<T::Ref<'a>, DecodeError> {
        // Of no bytes: nothing is allocated.
        T::decode(record, Box::leak(Box::<T::Scratch>::default()))
    }
}

impl<'a, T: Record> Batch<'a, T> for Encoded<'a, T> {
    #[inline(always)]
    fn len(self) -> usize {
        self.bytes.len() / Self::STRIDE
    }

    #[inline(always)]
    fn records(self) -> impl Iterator<Item = T::Ref<'a>> {
        let decode = |record| Self::decode(record).expect("it decoded when the batch was made");
        self.bytes.chunks_exact(Self::STRIDE).map(decode)
    }

    #[inline(always)]
    fn first(self, len: usize) -> Self {
        Encoded { bytes: &self.bytes[..len * Self::STRIDE], ..self }
    }

    #[inline(always)]
    fn behind(self, len: usize) -> Self {
        Encoded { bytes: &self.bytes[len * Self::STRIDE..], ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a, T: Record>(batch: impl Batch<'a, T>) -> Vec<T> {
        assert_eq!(batch.is_empty(), batch.len() == 0);
        let all: Vec<T> = batch.records().map(T::from_view).collect();
        assert_eq!(all.len(), batch.len());
        all
    }

    /// Goal: however the records are at hand, a batch and its parts give the same ones.
    #[test]
    fn batches_of_all_kinds_give_the_same_records() {
        let owned: Vec<(u64, u32)> = (0..9).map(|i| (i << 40, i as u32)).collect();
        let views: Vec<_> = owned.iter().map(Record::view).collect();
        let mut bytes = Vec::new();
        owned.iter().for_each(|record| <(u64, u32)>::encode_to_vec(record.view(), &mut bytes));
        let encoded = Encoded::<(u64, u32)>::new(&bytes).unwrap();
        for cut in 0..=owned.len() {
            let (first, behind) = owned.split_at(cut);
            assert_eq!(read(Owned(&owned).first(cut)), first);
            assert_eq!(read(Owned(&owned).behind(cut)), behind);
            assert_eq!(read(Views::<(u64, u32)>(&views).first(cut)), first);
            assert_eq!(read(Views::<(u64, u32)>(&views).behind(cut)), behind);
            assert_eq!(read(encoded.first(cut)), first);
            assert_eq!(read(encoded.behind(cut)), behind);
        }
    }

    /// Goal: bytes that are no record are told before any is handed out.
    #[test]
    fn a_record_that_does_not_decode_is_an_error_of_the_batch() {
        assert_eq!(read(Encoded::<bool>::new(&[1, 0, 1]).unwrap()), [true, false, true]);
        assert!(Encoded::<bool>::new(&[1, 0, 2]).is_err());
    }
}
