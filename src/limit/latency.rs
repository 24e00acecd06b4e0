//! Latency from the due time: a source on one core, a keyed count on another, nothing between but a ring.
//!
//! The ring is made for one record at a time: each has a cache line to itself, and the line says itself whether it
//! is filled. So one line crosses, where an index beside the slots would make it two, one after the other.
//!
//! Open loop: record i is due at i / rate whatever became of the records before, so a stall is paid for by every
//! record that was due meanwhile [Tene's "coordinated omission"].

use super::keyed::row_digest;
use super::machine::{self, Clock};
use super::table::{Counts, Linear, Pair};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records between the two threads; at 500,000 a second a thread may be off its core for 8 ms.
const RING_RECORDS: usize = 4_096;

/// The part of a run, from its beginning, that is not recorded: one in this many.
const WARM_UP: u64 = 10;

/// What a run measured.
#[derive(Debug)]
pub struct Latency {
    /// Nanoseconds from when a record was due until its row was in the sink, after the warm-up.
    pub histogram: Histogram<u64>,
    /// Records in all, with the warm-up.
    pub records: u64,
    /// Sum of [`row_digest`] of all rows.
    pub digest: u64,
}

/// A ring from one thread to one other; both count the records themselves.
struct Ring {
    lines: Box<[Line]>,
    /// Records taken, as far as the taker has said: once in [`TAKEN_STEP`].
    taken: Padded,
}

/// One record. `filled` is 1 more than the record's number, which no earlier record of this line had.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    filled: AtomicU64,
    key: AtomicU64,
    due: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// Records between two words of the taker about how many it has taken.
const TAKEN_STEP: u64 = 256;

const _: () = assert!(RING_RECORDS.is_power_of_two() && TAKEN_STEP < RING_RECORDS as u64);

impl Ring {
    fn new() -> Self {
        Ring { lines: (0..RING_RECORDS).map(|_| Line::default()).collect(), taken: Padded::default() }
    }

    #[inline(always)]
    fn line(&self, number: u64) -> &Line {
        &self.lines[number as usize % RING_RECORDS]
    }

    /// Whether the line of record `number` may still be read.
    #[inline(always)]
    fn is_full(&self, number: u64) -> bool {
        // Pairs with the Release store in `take`: what was read there was read before it is written here.
        number - self.taken.0.load(Ordering::Acquire) >= RING_RECORDS as u64
    }

    #[inline(always)]
    fn put(&self, number: u64, (key, due): Pair) {
        let line = self.line(number);
        line.key.store(key, Ordering::Relaxed);
        line.due.store(due, Ordering::Relaxed);
        // Pairs with the Acquire load in `take`.
        line.filled.store(number + 1, Ordering::Release);
    }

    #[inline(always)]
    fn take(&self, number: u64) -> Option<Pair> {
        let line = self.line(number);
        // Pairs with the Release store in `put`.
        if line.filled.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let record = (line.key.load(Ordering::Relaxed), line.due.load(Ordering::Relaxed));
        if (number + 1).is_multiple_of(TAKEN_STEP) {
            // Pairs with the Acquire load in `is_full`.
            self.taken.0.store(number + 1, Ordering::Release);
        }
        Some(record)
    }
}

/// The key of record `number`.
#[inline(always)]
pub fn key_of(number: u64, keys: u64) -> u64 {
    ((super::splitmix(number) as u128 * keys as u128) >> 64) as u64
}

/// Sends `rate` records a second for `seconds`, each at once when it is due, and measures until it is counted.
///
/// Both threads spin, on two cores; where only one is allowed they yield, and the figure is the scheduler's.
pub fn run(rate: u64, seconds: f64, keys: u64) -> Latency {
    let cores = machine::allowed_cores();
    let wait = if cores.len() < 2 { std::thread::yield_now } else { std::hint::spin_loop };
    let clock = Clock::new();
    let count = (seconds * rate as f64) as u64;
    let ring = Ring::new();
    // Time enough for both threads to be on their cores and the table to be there.
    let start_ns = clock.now() + 20_000_000;
    let due_ns = |number: u64| start_ns + (number as f64 * 1e9 / rate as f64) as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine::pin(0, &cores);
            for number in 0..count {
                let due = due_ns(number);
                while clock.now() < due {
                    wait();
                }
                while ring.is_full(number) {
                    wait();
                }
                ring.put(number, (key_of(number, keys), due));
            }
        });
        let counter = scope.spawn(|| {
            machine::pin(1, &cores);
            let mut table = Linear::with_room_for(keys as usize);
            let mut histogram = super::nanoseconds_histogram();
            let mut digest = 0u64;
            let warm_ns = due_ns(count / WARM_UP);
            for number in 0..count {
                let record = loop {
                    match ring.take(number) {
                        Some(record) => break record,
                        None => wait(),
                    }
                };
                table.count_all(&[record], |key, count| digest = digest.wrapping_add(row_digest(key, count)));
                if record.1 >= warm_ns {
                    histogram.saturating_record(clock.now().saturating_sub(record.1));
                }
            }
            Latency { histogram, records: count, digest }
        });
        counter.join().expect("the counting thread")
    })
}

/// The machine's own line: what a pinned thread that only spins would have made of a record due every
/// microsecond.
///
/// A thread spins on each of two cores, as in [`run`], since a neighbour's slice comes only to a busy core; the
/// histogram holds both. It has the gaps in which a thread was off its core, weighted as latencies are.
pub fn machine_floor(seconds: f64) -> Histogram<u64> {
    const STEP_NS: u64 = 1_000;
    let cores = machine::allowed_cores();
    let clock = Clock::new();
    let spin = |index: usize| {
        machine::pin(index, &cores);
        let mut histogram = super::nanoseconds_histogram();
        let mut due = clock.now();
        let end = due + (seconds * 1e9) as u64;
        while due < end {
            let now = clock.now();
            while due <= now {
                histogram.saturating_record(now - due);
                due += STEP_NS;
            }
        }
        histogram
    };
    std::thread::scope(|scope| {
        let spinners: Vec<_> =
            (0..cores.len().min(2)).map(|index| scope.spawn(move || spin(index))).collect();
        let mut both = super::nanoseconds_histogram();
        for spinner in spinners {
            both += spinner.join().expect("a spinning thread");
        }
        both
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Goal: every record is counted once, and all but the warm-up are in the histogram.
    /// Method: 20,000 records in 0.1 s, rows compared with a plain loop's.
    #[test]
    fn every_record_is_counted_and_all_but_the_warm_up_recorded() {
        let latency = run(200_000, 0.1, 100);
        let mut counts = HashMap::new();
        let expected = (0..20_000).fold(0u64, |sum, number| {
            let count = counts.entry(key_of(number, 100)).or_insert(0);
            *count += 1;
            sum.wrapping_add(row_digest(key_of(number, 100), *count))
        });
        assert_eq!((latency.records, latency.digest), (20_000, expected));
        assert_eq!(latency.histogram.len(), 18_000);
    }

    /// Goal: a line is never written before it was read, and nothing is taken twice or missed.
    /// Method: five rounds of the ring, filled until it refuses and emptied in turn.
    #[test]
    fn a_full_ring_refuses_and_an_empty_one_has_nothing() {
        let ring = Ring::new();
        let (mut put, mut taken) = (0, 0);
        for _ in 0..5 {
            while !ring.is_full(put) {
                ring.put(put, (put * 3, put * 5));
                put += 1;
            }
            assert_eq!(put - taken, RING_RECORDS as u64);
            while let Some(record) = ring.take(taken) {
                assert_eq!(record, (taken * 3, taken * 5));
                taken += 1;
            }
            assert_eq!(put, taken);
        }
    }

    /// Goal: the machine's own line has one entry a microsecond and spinning thread.
    #[test]
    fn the_machines_own_line_has_an_entry_a_microsecond() {
        let threads = machine::allowed_cores().len().min(2) as u64;
        let floor = machine_floor(0.02);
        assert!(floor.len() >= threads * 20_000, "{}", floor.len());
    }
}
