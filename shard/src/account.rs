//! Counters and the three-state time account of one subtask.
//!
//! Each word has one writer, the subtask's shard, and is stored relaxed, per batch or per turn; readers take
//! each value whole and accept that the set of them is torn. So counting costs nothing per record and no
//! lock is ever taken.
//!
//! | state | meaning |
//! | --- | --- |
//! | idle | no input |
//! | back-pressured | an output is unavailable: soft, before a record; hard, output of one record waits on the heap |
//! | busy | all the rest, waiting for the core included |
//!
//! Time is booked when the state changes, and a reader adds what has passed since; so the three sum up to
//! the time that has passed at any moment, also in the first second.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a subtask is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TimeState {
    /// Working, or waiting for the core.
    Busy = 0,
    /// No input.
    Idle = 1,
    /// An output is unavailable, and no record was begun.
    SoftBackPressured = 2,
    /// An output is unavailable, and output of the last record waits on the heap.
    HardBackPressured = 3,
}

const STATES: usize = 4;

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`; the one writer only.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value; the one writer only.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted for one subtask.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SubtaskMetrics {
    /// Records taken from the input.
    pub records_in: Counter,
    /// Records put out, over all outputs.
    pub records_out: Counter,
    /// Bytes read.
    pub bytes_in: Counter,
    /// Bytes of finished buffers put out.
    pub bytes_out: Counter,
    /// Buffers read to their end.
    pub buffers_in: Counter,
    /// Buffers finished.
    pub buffers_out: Counter,
    /// Times that a partly filled buffer was handed over.
    pub flushes: Counter,
    /// Output segments in use.
    pub out_pool_used: Counter,
    /// Output segments that may be in use without overdraft.
    pub out_pool_size: Counter,
    /// Buffers that wait for credit.
    pub output_queue_length: Counter,
    /// Segments of the fullest subpartition.
    pub subpartition_held_max: Counter,
    /// Bytes of output held back on the heap.
    pub overflow_bytes: Counter,
    /// Exclusive permits of the input in use.
    pub exclusive_used: Counter,
    /// Exclusive permits of the input.
    pub exclusive_size: Counter,
    /// Floating permits lent.
    pub floating_used: Counter,
    /// Floating permits.
    pub floating_size: Counter,
    /// Buffers in the input's rings and at its reader.
    pub input_queue_length: Counter,
    /// Buffers in the input's rings and, as far as they have said, at its senders.
    pub input_on_the_way: Counter,
    /// Input watermark, above the least one.
    watermark: Counter,
    /// How long the last latency marker took from its source to a sink, in nanoseconds; 0 before the first.
    pub marker_latency_ns: Counter,
    /// Entries in keyed state.
    pub state_entries: Counter,
    /// Bytes of keyed state, memory included that is not filled.
    pub state_bytes: Counter,
    /// Turns taken.
    pub turns: Counter,
    /// The time account.
    pub time: TimeAccount,
}

impl SubtaskMetrics {
    /// Input watermark in milliseconds, `i64::MIN` before the first.
    pub fn watermark(&self) -> i64 {
        self.watermark.get().wrapping_add(i64::MIN as u64) as i64
    }

    /// Sets the input watermark; the one writer only.
    #[inline]
    pub fn set_watermark(&self, at: i64) {
        self.watermark.set((at as u64).wrapping_sub(i64::MIN as u64));
    }
}

/// Time spent in each state.
#[derive(Debug)]
#[repr(align(128))]
pub struct TimeAccount {
    /// State, and the number of switches so far, so that a reader knows a consistent set.
    switches: AtomicU64,
    state: AtomicU32,
    since_ns: AtomicU64,
    booked_ns: [AtomicU64; STATES],
    /// The longest single spell of back pressure: soft, hard.
    longest_ns: [AtomicU64; 2],
}

impl Default for TimeAccount {
    fn default() -> Self {
        TimeAccount {
            switches: AtomicU64::new(0),
            state: AtomicU32::new(TimeState::Idle as u32),
            since_ns: AtomicU64::new(u64::MAX),
            booked_ns: Default::default(),
            longest_ns: Default::default(),
        }
    }
}

/// Nanoseconds in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeShares {
    /// Working.
    pub busy_ns: u64,
    /// Without input.
    pub idle_ns: u64,
    /// Back-pressured before a record.
    pub soft_ns: u64,
    /// Back-pressured in the middle of a record's output.
    pub hard_ns: u64,
}

impl TimeShares {
    /// What has passed between two readings.
    pub fn since(&self, earlier: &TimeShares) -> TimeShares {
        TimeShares {
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            soft_ns: self.soft_ns.saturating_sub(earlier.soft_ns),
            hard_ns: self.hard_ns.saturating_sub(earlier.hard_ns),
        }
    }

    /// Sum of all states.
    pub fn total_ns(&self) -> u64 {
        self.busy_ns + self.idle_ns + self.soft_ns + self.hard_ns
    }
}

impl TimeAccount {
    /// Books the time since the last switch and begins `state`; the one writer only.
    #[inline]
    pub fn switch(&self, state: TimeState, now_ns: u64) {
        let old = self.state.load(Ordering::Relaxed);
        let since = self.since_ns.load(Ordering::Relaxed);
        if old == state as u32 && since != u64::MAX {
            return;
        }
        // Odd while the set is changing; the reader retries. Release keeps the marks around the set.
        let switches = self.switches.load(Ordering::Relaxed);
        self.switches.store(switches + 1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        if since != u64::MAX {
            let spell = now_ns.saturating_sub(since);
            let booked = &self.booked_ns[old as usize];
            booked.store(booked.load(Ordering::Relaxed) + spell, Ordering::Relaxed);
            if old >= TimeState::SoftBackPressured as u32 {
                let longest = &self.longest_ns[(old - TimeState::SoftBackPressured as u32) as usize];
                longest.store(longest.load(Ordering::Relaxed).max(spell), Ordering::Relaxed);
            }
        }
        self.state.store(state as u32, Ordering::Relaxed);
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.switches.store(switches + 2, Ordering::Release);
    }

    /// Time in each state until now, and what now was; all zero before the subtask has begun.
    ///
    /// `now_ns` is asked after the account was read, so that whatever the shard has booked lies before it: a
    /// reader that loses its core in between still gets shares that sum up to the time that has passed.
    pub fn read(&self, now_ns: impl Fn() -> u64) -> (TimeShares, u64) {
        // A shard switches some hundred thousand times a second at most, so few tries are ever needed; after
        // them a torn set is off by one spell.
        for _ in 0..64 {
            let before = self.switches.load(Ordering::Acquire);
            let (booked, state, since) = self.load();
            std::sync::atomic::fence(Ordering::Acquire);
            if before & 1 == 0 && self.switches.load(Ordering::Relaxed) == before {
                return Self::until(booked, state, since, now_ns());
            }
            std::hint::spin_loop();
        }
        let (booked, state, since) = self.load();
        Self::until(booked, state, since, now_ns())
    }

    fn load(&self) -> ([u64; STATES], u32, u64) {
        let booked = std::array::from_fn(|state| self.booked_ns[state].load(Ordering::Relaxed));
        (booked, self.state.load(Ordering::Relaxed), self.since_ns.load(Ordering::Relaxed))
    }

    fn until(mut ns: [u64; STATES], state: u32, since: u64, now_ns: u64) -> (TimeShares, u64) {
        if since != u64::MAX {
            ns[state as usize] += now_ns.saturating_sub(since);
        }
        (TimeShares { busy_ns: ns[0], idle_ns: ns[1], soft_ns: ns[2], hard_ns: ns[3] }, now_ns)
    }

    /// Whether an output is unavailable now; for the shard itself.
    #[cfg(feature = "sim")]
    pub(crate) fn is_back_pressured(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= TimeState::SoftBackPressured as u32
    }

    /// The longest spells of soft and of hard back pressure so far, in nanoseconds.
    pub fn longest_back_pressure_ns(&self) -> (u64, u64) {
        (self.longest_ns[0].load(Ordering::Relaxed), self.longest_ns[1].load(Ordering::Relaxed))
    }
}

/// What a shard is doing, for the stall detector and for reports; written by the shard, read by others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardMetrics {
    /// Task that holds the shard, plus one; 0 for none.
    pub running_task: Counter,
    /// Since when, in nanoseconds.
    pub running_since_ns: Counter,
    /// Time in background work of tasks, in nanoseconds.
    pub background_ns: Counter,
    /// Turns of the shard, those included that found nothing to do.
    pub turns: Counter,
    /// Time between the turns that found something to do, awake or asleep, in nanoseconds.
    pub idle_ns: Counter,
    /// Times that it blocked.
    pub parks: Counter,
    /// Mails delivered.
    pub mails: Counter,
    /// Longest time that a mail waited, in nanoseconds.
    pub mail_wait_max_ns: Counter,
    /// Segments of its pool.
    pub pool_total: Counter,
    /// Segments that are free.
    pub pool_free: Counter,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: at every moment the states sum up to the time since the start, also in the first spell.
    #[test]
    fn time_shares_sum_up_to_the_time_that_has_passed() {
        let account = TimeAccount::default();
        let read = |now_ns| account.read(|| now_ns).0;
        assert_eq!(read(500).total_ns(), 0, "nothing is booked before the start");
        account.switch(TimeState::Idle, 1_000);
        assert_eq!(read(1_400), TimeShares { idle_ns: 400, ..Default::default() });
        account.switch(TimeState::Busy, 1_500);
        account.switch(TimeState::Busy, 1_600);
        account.switch(TimeState::SoftBackPressured, 1_800);
        account.switch(TimeState::HardBackPressured, 2_000);
        let shares = read(2_050);
        assert_eq!(shares, TimeShares { busy_ns: 300, idle_ns: 500, soft_ns: 200, hard_ns: 50 });
        assert_eq!(shares.total_ns(), 1_050);
        account.switch(TimeState::Busy, 2_300);
        assert_eq!(account.longest_back_pressure_ns(), (200, 300));
    }
}
