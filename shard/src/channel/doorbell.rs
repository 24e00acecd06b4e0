//! Doorbells: the one way in which a shard hears that something was published for it.
//!
//! There is one doorbell for each ordered pair of shards, and one for all threads that are no shard. It
//! holds a bit for each *slot* (an end of a channel, a mailbox, a task to wake), under a summary word, so
//! a turn reads one word a pair, however many channels there are. Rings [`Doorbell::SLOTS`] ends apart
//! share a slot; a rung slot is a hint to look, and looking in vain is harmless.
//!
//! Sleeping is Dekker's problem: the publisher stores its news and loads `asleep`, the shard stores
//! `asleep` and loads the news, and one of them must see the other. Acquire and release do not order a
//! store before a later load, so both sides put a `fence(SeqCst)` between the two.
//!
//! Nothing else may wake a shard.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence, view};
use std::sync::Arc;

/// Ends a blocked shard's wait, from any thread; called at most once a sleep.
pub trait Wake: Send + Sync {
    /// Ends the wait, or makes the next one return at once.
    fn wake(&self);
}

/// Where a shard says that it sleeps.
pub struct Sleeper {
    asleep: AtomicBool,
    waker: Arc<dyn Wake>,
}

impl Sleeper {
    /// A shard that is awake and is woken by `waker`.
    pub fn new(waker: Arc<dyn Wake>) -> Self {
        Sleeper { asleep: AtomicBool::new(false), waker }
    }

    /// Says that the shard is about to block. It may do so only if it then finds every doorbell silent
    /// by [`Doorbell::is_silent`]; otherwise it calls [`wake_up`](Self::wake_up) and goes on.
    pub fn fall_asleep(&self) {
        // Only swaps change the flag, so all its changes have one order: loom does not order a plain store and
        // another thread's swap, and reports lost wake-ups.
        self.asleep.swap(true, Ordering::AcqRel);
        // Pairs with the fence in `wake_if_asleep`: our store first, then our loads of the bells.
        fence(Ordering::SeqCst);
    }

    /// Says that the shard is awake.
    pub fn wake_up(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }

    #[inline]
    fn wake_if_asleep(&self) {
        // Pairs with the fence in `fall_asleep`: the bell first, then this load.
        fence(Ordering::SeqCst);
        // The swap picks one winner, so a sleep costs one system call however many ring.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

#[cfg(not(loom))]
const WORDS: usize = 64;
#[cfg(loom)]
const WORDS: usize = 1;

/// Bits that are set by publishers and taken by one shard.
#[repr(align(128))]
pub struct Doorbell {
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Default for Doorbell {
    fn default() -> Self {
        Doorbell { summary: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Doorbell {
    /// Slots of a doorbell; ends beyond it share one.
    pub const SLOTS: u32 = (WORDS * 64) as u32;

    /// Publishes what was stored before: sets the bit of `slot` and wakes the shard if it sleeps.
    ///
    /// One atomic operation if the bit is still set from before, else three and a fence.
    #[inline]
    pub fn ring(&self, slot: u32, sleeper: &Sleeper) {
        let slot = slot % Self::SLOTS;
        let (word, bit) = ((slot / 64) as usize, 1u64 << (slot % 64));
        // Release: pairs with the Acquire in `take`, so that the taker sees what was stored before.
        if self.words[word].fetch_or(bit, Ordering::Release) & bit != 0 {
            // Rung and not taken: whoever takes the word from here on takes our news with it, and the
            // summary and the sleeper were seen to by the one who set the bit.
            return;
        }
        self.summary.fetch_or(1 << word, Ordering::Release);
        sleeper.wake_if_asleep();
    }

    /// Whether no bell was rung since the last `take`.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.summary.load(Ordering::Relaxed) == 0
    }

    /// Calls `f` with each slot that was rung, and clears them.
    #[inline]
    pub fn take(&self, mut f: impl FnMut(u32)) {
        if view(true, self.is_silent()) {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::Acquire);
        while summary != 0 {
            let word = summary.trailing_zeros();
            summary &= summary - 1;
            // Pairs with the Release in `ring`.
            let mut bits = self.words[word as usize].swap(0, Ordering::Acquire);
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                f(word * 64 + bit);
            }
        }
    }
}

/// One slot of one doorbell, with the shard to wake: what a publisher holds.
#[derive(Clone)]
pub struct Bell {
    door: Arc<Doorbell>,
    sleeper: Arc<Sleeper>,
    slot: u32,
}

impl Bell {
    /// The bell `slot` of `door`, which wakes `sleeper`.
    pub fn new(door: Arc<Doorbell>, sleeper: Arc<Sleeper>, slot: u32) -> Self {
        Bell { door, sleeper, slot }
    }

    /// Publishes what was stored before.
    #[inline]
    pub fn ring(&self) {
        self.door.ring(self.slot, &self.sleeper);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Goal: each rung slot is taken once, and a sleep is ended by one wake-up only.
    #[test]
    fn doorbell_gives_each_slot_once_and_wakes_once() {
        let count = Arc::new(Count(AtomicU32::new(0)));
        let sleeper = Arc::new(Sleeper::new(count.clone()));
        let door = Arc::new(Doorbell::default());
        sleeper.fall_asleep();
        for slot in [0, 63, 64, 4095, 4096, 63] {
            Bell::new(door.clone(), sleeper.clone(), slot).ring();
        }
        assert!(!door.is_silent());
        let mut taken = Vec::new();
        door.take(|slot| taken.push(slot));
        // 4096 shares slot 0.
        assert_eq!(taken, [0, 63, 64, 4095]);
        assert!(door.is_silent());
        door.take(|slot| panic!("slot {slot} was taken before"));
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
