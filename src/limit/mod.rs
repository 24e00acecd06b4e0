//! The same work with no framework: hand-written programs that the benches run beside the engine.
//!
//! An absolute figure moves with whoever else is on the machine, so `tidegate bench … --limit` alternates the
//! engine with one of these in the same process run and prints the ratio. Each does the work of its job and
//! nothing else: no credits that grow or shrink, no metrics, no barriers, no state that could be snapshot.
//! They share no code with the engine, so that a mistake there cannot cancel out here, and every result has a
//! digest that does not depend on order and is compared with the engine's and with a plain loop's.
//!
//! | module       | the work                                                                     |
//! | ------------ | ---------------------------------------------------------------------------- |
//! | [`machine`]  | allowed cores, pinning, a clock that costs a few nanoseconds                 |
//! | [`table`]    | counting 64-bit keys: hashbrown, and open addressing with prefetched batches |
//! | [`exchange`] | P threads, a ring a pair each way, segments of 32 KiB, empty ones as credit  |
//! | [`keyed`]    | records in memory, Flink's key groups, exchange, count, one row out a record |
//! | [`words`]    | word count over text files                                                   |
//! | [`latency`]  | open-loop source on one core, count on the other; the machine's own gaps     |
//! | [`log`]      | a recycled file through io_uring: bandwidth, one durable append              |
//! | [`ping`]     | what waking a thread that sleeps on an eventfd costs                         |
//!
//! All of it spins and pins: made to be fast for seconds, not to share a machine.

pub mod exchange;
pub mod keyed;
pub mod latency;
pub mod log;
pub mod machine;
pub mod ping;
pub mod table;
pub mod words;

/// What one run did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Records that went in (for the word count: words), all threads together.
    pub records: u64,
    /// From the common start of the threads until the last one was done.
    pub seconds: f64,
    /// Sum of the digests of everything that came out; wraps, and does not depend on order.
    pub digest: u64,
}

impl Outcome {
    /// Records a second, all threads together.
    pub fn records_per_second(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}

/// A histogram of nanoseconds that takes everything from 1 ns to a minute, to three digits.
pub(crate) fn nanoseconds_histogram() -> hdrhistogram::Histogram<u64> {
    hdrhistogram::Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// SplitMix64's output function: every bit of `x` moves every bit of the result.
///
/// After Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
pub(crate) fn splitmix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
