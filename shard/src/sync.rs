//! Atomics and cells: std's, or loom's under the model checker; and stale views under the simulation.
//!
//! Every word that two threads share is one of these types. The page that lists them all, with writer,
//! reader and partner of each ordering:
//!
//! | word | written by | read by | pairs |
//! | --- | --- | --- | --- |
//! | ring `tail` | producer | consumer | Release after the slot, Acquire before it |
//! | ring `head` | consumer | producer | Release after the slot was emptied, Acquire before it is filled |
//! | segment state | writer of the segment | its reader | Release after the bytes, Acquire before them |
//! | `granted`, `announced` | consumer; producer | the other | totals and hints: Relaxed, ordered by the doorbell |
//! | `resumed` | consumer | producer | as `granted` |
//! | gate's idle word | consumer | its producers | a hint: Relaxed |
//! | doorbell words | any publisher | the shard that is rung | Release in `ring`, Acquire in `take` |
//! | `asleep` | the shard; its wakers | both | `fence(SeqCst)` between own store and the other's load |
//! | counters, time account | the task's shard | whoever reports | one writer, Relaxed |

#[cfg(not(loom))]
mod imp {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// A cell that the ring's protocol guards; the shape of loom's.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer to read through.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer to write through.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::Arc;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}

pub use imp::*;

/// The value that a reader of a monotone word acts on, given the one it saw last and the true one.
///
/// In production that is the true one. Under the simulation a seed may choose the last one seen, which
/// real memory may show as well until something orders the two: so interleaving whole turns on one thread
/// also explores what a reader does with old news.
#[inline(always)]
pub fn view<T: Copy>(last: T, now: T) -> T {
    #[cfg(feature = "sim")]
    if stale::choose() {
        crate::coverage::reach(crate::coverage::Named::StaleView);
        return last;
    }
    let _ = last;
    now
}

/// The seed that chooses stale views on this thread.
#[cfg(feature = "sim")]
pub mod stale {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }

    /// From now on about one view in four on this thread is a stale one; 0 switches that off.
    pub fn seed(seed: u64) {
        STATE.with(|s| s.set(seed));
    }

    pub(super) fn choose() -> bool {
        STATE.with(|s| {
            let mut x = s.get();
            if x == 0 {
                return false;
            }
            // xorshift64: never 0 from a start that is not.
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            s.set(x);
            x >> 62 == 0
        })
    }
}
