//! Key groups: key to group, group to subtask, exactly as in Flink.
//!
//! A group is the unit of keyed state that moves when a job is rescaled. There are `max_parallelism` of them
//! for the life of a job, and each subtask owns a range of neighbours.
//!
//! ```text
//! key --Key::java_hash--> hash --murmur, mod max_parallelism--> group --* parallelism / max_parallelism--> subtask
//! ```
//!
//! The plain formulas here say what is meant. [`Assigner`] computes the same for every record, without a
//! division.
//!
//! The mixing function is the 32-bit MurmurHash3 of Austin Appleby over one word.

use std::ops::RangeInclusive;
use thiserror::Error;

/// The most key groups a job can have, and so its greatest parallelism.
pub const MAX_PARALLELISM_MAX: u32 = 1 << 15;

/// The fewest key groups that [`default_max_parallelism`] gives, so that a small job can still grow.
pub const DEFAULT_MAX_PARALLELISM_MIN: u32 = 1 << 7;

/// One of the `max_parallelism` units of keyed state; counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroup(pub u16);

/// A parallelism or a number of key groups that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyGroupError {
    /// Choose another max parallelism.
    #[error("max parallelism {value} is not between 1 and {MAX_PARALLELISM_MAX}")]
    MaxParallelism {
        /// What was asked for.
        value: u32,
    },
    /// Choose a smaller parallelism, or start the job anew with a greater max parallelism.
    #[error("parallelism {value} is not between 1 and the max parallelism {max_parallelism}")]
    Parallelism {
        /// What was asked for.
        value: u32,
        /// Key groups of the job.
        max_parallelism: u32,
    },
}

/// Mixes the bits of a key's `hashCode`; the result has its highest bit clear.
#[inline(always)]
pub const fn murmur(hash: i32) -> u32 {
    let mut code = (hash as u32).wrapping_mul(0xcc9e_2d51);
    code = code.rotate_left(15).wrapping_mul(0x1b87_3593);
    code = code.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    // The length of the input in bytes.
    code ^= 4;
    code = (code ^ (code >> 16)).wrapping_mul(0x85eb_ca6b);
    code = (code ^ (code >> 13)).wrapping_mul(0xc2b2_ae35);
    code ^= code >> 16;
    // The magnitude of the signed value. That of the least one does not fit 31 bits and becomes 0.
    (code as i32).unsigned_abs() & 0x7fff_ffff
}

/// The group of a key with this `hashCode`. `max_parallelism` is 1 to [`MAX_PARALLELISM_MAX`].
pub const fn key_group(hash: i32, max_parallelism: u32) -> KeyGroup {
    KeyGroup((murmur(hash) % max_parallelism) as u16)
}

/// The subtask that owns a group. `parallelism` is 1 to `max_parallelism`, the group is below it.
pub const fn subtask(group: KeyGroup, max_parallelism: u32, parallelism: u32) -> u32 {
    group.0 as u32 * parallelism / max_parallelism
}

/// The groups that a subtask owns, never none. `parallelism` is 1 to `max_parallelism`, the subtask is below it.
pub const fn key_group_range(subtask: u32, max_parallelism: u32, parallelism: u32) -> RangeInclusive<u16> {
    let first = (subtask * max_parallelism).div_ceil(parallelism);
    let last = ((subtask + 1) * max_parallelism - 1) / parallelism;
    RangeInclusive::new(first as u16, last as u16)
}

/// The max parallelism of an operator for which none was set: half as much again as its parallelism, rounded
/// up to a power of two, and from [`DEFAULT_MAX_PARALLELISM_MIN`] to [`MAX_PARALLELISM_MAX`].
pub const fn default_max_parallelism(parallelism: u32) -> u32 {
    if parallelism >= MAX_PARALLELISM_MAX {
        return MAX_PARALLELISM_MAX;
    }
    let wanted = (parallelism + parallelism / 2).next_power_of_two();
    if wanted < DEFAULT_MAX_PARALLELISM_MIN {
        DEFAULT_MAX_PARALLELISM_MIN
    } else if wanted > MAX_PARALLELISM_MAX {
        MAX_PARALLELISM_MAX
    } else {
        wanted
    }
}

/// Mixes a key's `hashCode` with one multiplication (Fibonacci hashing; Knuth, The Art of Computer Programming,
/// volume 3, 6.4): only the high bits are good.
#[inline(always)]
const fn golden(hash: i32) -> u32 {
    (hash as u32).wrapping_mul(0x9e37_79b1)
}

/// How the group of a key is found from its `hashCode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupHash {
    /// As Flink does: a job that is moved over finds each key on the same subtask.
    #[default]
    Flink,
    /// By one multiplication; keys are in other groups than in Flink.
    Fast,
}

/// Assigns groups and subtasks for one exchange, once for every record.
///
/// A max parallelism that is a power of two, as every default one is, takes a mask and a shift. For others the
/// division by `max_parallelism` is a multiplication and a shift (Granlund and Montgomery, "Division by
/// invariant integers using multiplication", 1994): with `2^(b-1) < max_parallelism <= 2^b`, `shift = 31 + b`
/// and `factor = ceil(2^shift / max_parallelism)`, `(n * factor) >> shift` is the exact quotient of every
/// `n < 2^31`. Murmur's result and `group * parallelism` both are below 2^31, and as `factor <= 2^32` the
/// product fits 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigner {
    max_parallelism: u32,
    parallelism: u32,
    hash: GroupHash,
    power_of_two: bool,
    /// `max_parallelism - 1`; means something for a power of two only, as does the next.
    mask: u32,
    /// Base-2 logarithm of `max_parallelism`.
    log2: u32,
    /// 31 plus that logarithm, rounded up.
    shift: u32,
    factor: u64,
}

impl Assigner {
    /// An assigner for `max_parallelism` groups on `parallelism` subtasks.
    ///
    /// # Errors
    ///
    /// [`KeyGroupError`] unless `1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_MAX`.
    pub const fn new(max_parallelism: u32, parallelism: u32) -> Result<Self, KeyGroupError> {
        if max_parallelism == 0 || max_parallelism > MAX_PARALLELISM_MAX {
            return Err(KeyGroupError::MaxParallelism { value: max_parallelism });
        }
        if parallelism == 0 || parallelism > max_parallelism {
            return Err(KeyGroupError::Parallelism { value: parallelism, max_parallelism });
        }
        let shift = 31 + max_parallelism.next_power_of_two().trailing_zeros();
        Ok(Assigner {
            max_parallelism,
            parallelism,
            hash: GroupHash::Flink,
            power_of_two: max_parallelism.is_power_of_two(),
            mask: max_parallelism - 1,
            log2: max_parallelism.trailing_zeros(),
            shift,
            factor: (1u64 << shift).div_ceil(max_parallelism as u64),
        })
    }

    /// The same assigner, with groups found by `hash`.
    pub const fn with_hash(mut self, hash: GroupHash) -> Self {
        self.hash = hash;
        self
    }

    /// Number of groups.
    #[inline(always)]
    pub const fn max_parallelism(&self) -> u32 {
        self.max_parallelism
    }

    /// Number of subtasks.
    #[inline(always)]
    pub const fn parallelism(&self) -> u32 {
        self.parallelism
    }

    /// The group of a key with this `hashCode`; see [`key_group`].
    #[inline(always)]
    pub const fn group(&self, hash: i32) -> u32 {
        match self.hash {
            GroupHash::Flink => self.group_as_flink(hash),
            GroupHash::Fast => self.group_fast(hash),
        }
    }

    /// The upper 17 bits of the mix as a fraction of the groups; with at most 2^15 of them that fits 32 bits.
    #[inline(always)]
    const fn group_fast(&self, hash: i32) -> u32 {
        ((golden(hash) >> 15) * self.max_parallelism) >> 17
    }

    #[inline(always)]
    const fn group_as_flink(&self, hash: i32) -> u32 {
        let mixed = murmur(hash);
        if self.power_of_two {
            mixed & self.mask
        } else {
            mixed - self.quotient(mixed) * self.max_parallelism
        }
    }

    /// The subtask that owns `group`, which is below `max_parallelism`; see [`subtask`].
    #[inline(always)]
    pub const fn subtask_of(&self, group: u32) -> u32 {
        debug_assert!(group < self.max_parallelism);
        let product = group * self.parallelism;
        if self.power_of_two { product >> self.log2 } else { self.quotient(product) }
    }

    /// The group of each record, of which `hash` gives the `hashCode` of the key; [`group`](Self::group) for
    /// many at once. Ends with the shorter of both.
    #[inline(always)]
    pub fn groups<R>(&self, records: impl Iterator<Item = R>, hash: impl Fn(R) -> i32, groups: &mut [u16]) {
        match self.hash {
            GroupHash::Flink => each(records, groups, |record| self.group_as_flink(hash(record)) as u16),
            GroupHash::Fast => each(records, groups, |record| self.group_fast(hash(record)) as u16),
        }
    }

    /// The subtask that owns each record's key; [`group`](Self::group) and [`subtask_of`](Self::subtask_of) for
    /// many at once. Ends with the shorter of both.
    ///
    /// This is for partitioners: 64 keys at a time take 0.6 ns a key where the processor has AVX2, one after
    /// another 2.5 ns (AMD EPYC, 128 groups).
    #[inline(always)]
    pub fn subtasks<R>(
        &self,
        records: impl Iterator<Item = R>,
        hash: impl Fn(R) -> i32,
        subtasks: &mut [u16],
    ) {
        match self.hash {
            GroupHash::Flink => {
                each(records, subtasks, |record| self.subtask_of(self.group_as_flink(hash(record))) as u16)
            }
            GroupHash::Fast => {
                each(records, subtasks, |record| self.subtask_of(self.group_fast(hash(record))) as u16)
            }
        }
    }

    /// The groups of one subtask, which is below `parallelism`; see [`key_group_range`].
    pub const fn range(&self, subtask: u32) -> RangeInclusive<u16> {
        key_group_range(subtask, self.max_parallelism, self.parallelism)
    }

    /// `dividend / max_parallelism`, for a dividend below 2^31.
    #[inline(always)]
    const fn quotient(&self, dividend: u32) -> u32 {
        ((dividend as u64 * self.factor) >> self.shift) as u32
    }
}

/// Calls `f` for each record, eight at once where the processor can: the baseline of x86-64 has no
/// multiplication of four 32-bit numbers, AVX2 has one of eight.
#[inline(always)]
fn each<R>(records: impl Iterator<Item = R>, out: &mut [u16], f: impl Fn(R) -> u16) {
    #[inline(always)]
    fn plain<R>(records: impl Iterator<Item = R>, out: &mut [u16], f: impl Fn(R) -> u16) {
        for (record, out) in std::iter::zip(records, out) {
            *out = f(record);
        }
    }

    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide<R>(records: impl Iterator<Item = R>, out: &mut [u16], f: impl Fn(R) -> u16) {
            plain(records, out, f);
        }

        if is_x86_feature_detected!("avx2") {
            // SAFETY: the one thing that `wide` needs is AVX2, and the line above found it.
            return unsafe { wide(records, out, f) };
        }
    }
    plain(records, out, f);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Key;
    use proptest::prelude::*;

    fn group_of<K: Key>(key: K, max_parallelism: u32) -> u16 {
        key_group(K::java_hash(key.view()), max_parallelism).0
    }

    /// Goal: keys land where Flink puts them. Method: its groups and subtasks for a few keys.
    #[test]
    fn keys_land_where_flink_puts_them() {
        assert_eq!([group_of(0i64, 128), group_of(4i64, 128)], [94, 7]);
        assert_eq!([subtask(KeyGroup(94), 128, 2), subtask(KeyGroup(7), 128, 2)], [1, 0]);
        let on_first = (0..16i64).filter(|key| subtask(KeyGroup(group_of(*key, 128)), 128, 2) == 0).count();
        assert_eq!(on_first, 7);
        let words = ["flink", "barrier", "", "你好"];
        assert_eq!(words.map(|word| group_of(word.to_owned(), 128)), [98, 50, 94, 66]);
    }

    #[test]
    fn default_max_parallelism_is_flinks() {
        let vectors = [
            (1, 128),
            (85, 128),
            (86, 256),
            (128, 256),
            (170, 256),
            (171, 256),
            (172, 512),
            (20_000, 32_768),
            (32_768, 32_768),
            (u32::MAX, 32_768),
        ];
        for (parallelism, max_parallelism) in vectors {
            assert_eq!(default_max_parallelism(parallelism), max_parallelism, "parallelism {parallelism}");
        }
    }

    /// Goal: every group belongs to exactly the subtask whose range holds it.
    /// Method: all small jobs, and the greatest; the ranges laid end to end are all groups in order.
    #[test]
    fn ranges_partition_the_groups_and_agree_with_subtask() {
        let small = (1..=200).flat_map(|max| (1..=max.min(64)).map(move |parallelism| (max, parallelism)));
        let great = [1, 3, 64, 1000, 32_767, 32_768].map(|parallelism| (32_768, parallelism));
        for (max, parallelism) in small.chain(great) {
            let assigner = Assigner::new(max, parallelism).unwrap();
            let mut next = 0;
            for owner in 0..parallelism {
                for group in assigner.range(owner) {
                    assert_eq!(u32::from(group), next, "{max} groups on {parallelism} subtasks");
                    assert_eq!(subtask(KeyGroup(group), max, parallelism), owner);
                    assert_eq!(assigner.subtask_of(next), owner);
                    next += 1;
                }
            }
            assert_eq!(next, max, "{max} groups on {parallelism} subtasks");
        }
    }

    /// Goal: the multiplication divides exactly. Method: around every multiple that a rounded factor would get
    /// wrong first, which are the greatest ones, for every max parallelism.
    #[test]
    fn multiplication_divides_exactly_up_to_the_greatest_dividend() {
        for max in 1..=MAX_PARALLELISM_MAX {
            let assigner = Assigner::new(max, 1).unwrap();
            let greatest = (i32::MAX as u32 / max) * max;
            for dividend in [0, max - 1, max, greatest - 1, greatest, i32::MAX as u32] {
                assert_eq!(assigner.quotient(dividend), dividend / max, "{dividend} / {max}");
            }
        }
    }

    /// Goal: the quick hash uses every group, about as often as the others, whatever step keys are apart.
    #[test]
    fn the_quick_hash_spreads_keys_over_all_groups() {
        for max in [1, 2, 128, 1000, 32_768] {
            let assigner = Assigner::new(max, 1).unwrap().with_hash(GroupHash::Fast);
            for step in [1, 2, 10, 4096] {
                let mut keys = vec![0u32; max as usize];
                (0..max as i32 * 64).for_each(|i| keys[assigner.group(i.wrapping_mul(step)) as usize] += 1);
                let (least, most) = (keys.iter().min().unwrap(), keys.iter().max().unwrap());
                assert!(
                    *least > 0 && *most <= 64 * 4,
                    "{least} to {most} keys a group, {max} groups, step {step}"
                );
            }
        }
    }

    #[test]
    fn a_job_without_groups_or_with_more_subtasks_than_groups_is_refused() {
        let refused = |max, parallelism| Assigner::new(max, parallelism).unwrap_err().to_string();
        assert_eq!(refused(0, 1), "max parallelism 0 is not between 1 and 32768");
        assert_eq!(refused(32_769, 1), "max parallelism 32769 is not between 1 and 32768");
        assert_eq!(refused(128, 0), "parallelism 0 is not between 1 and the max parallelism 128");
        assert_eq!(refused(128, 129), "parallelism 129 is not between 1 and the max parallelism 128");
    }

    proptest! {
        /// Goal: many at once are the same as one by one, whatever is left behind a multiple of eight.
        #[test]
        fn batches_equal_single_keys(
            hashes in proptest::collection::vec(any::<i32>(), 0..80),
            (max, parallelism) in (1..=MAX_PARALLELISM_MAX).prop_flat_map(|max| (Just(max), 1..=max)),
        ) {
            for hash in [GroupHash::Flink, GroupHash::Fast] {
                let assigner = Assigner::new(max, parallelism).unwrap().with_hash(hash);
                let (mut groups, mut subtasks) = (vec![0; hashes.len()], vec![0; hashes.len()]);
                assigner.groups(hashes.iter(), |hash| *hash, &mut groups);
                assigner.subtasks(hashes.iter(), |hash| *hash, &mut subtasks);
                for ((key, group), owner) in hashes.iter().zip(groups).zip(subtasks) {
                    prop_assert_eq!(u32::from(group), assigner.group(*key));
                    prop_assert_eq!(u32::from(owner), subtask(KeyGroup(group), max, parallelism));
                }
            }
        }

        #[test]
        fn assigner_equals_the_plain_formulas(hash: i32, max in 1..=MAX_PARALLELISM_MAX) {
            for parallelism in 1..=max.min(64) {
                let assigner = Assigner::new(max, parallelism).unwrap();
                let group = key_group(hash, max);
                prop_assert_eq!(assigner.group(hash), u32::from(group.0));
                prop_assert_eq!(assigner.subtask_of(u32::from(group.0)), subtask(group, max, parallelism));
            }
        }
    }
}
