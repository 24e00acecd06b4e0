//! The lock-free single-producer single-consumer ring.
//!
//! A power of two of slots between two indices that only grow, after Lamport, "Specifying Concurrent
//! Program Modules", 1983; each side keeps the other's index in a cached copy and looks at the shared one
//! only when the copy says full or empty, after Lee, Bu and Chandranmenon, "A Lock-Free, Cache-Efficient
//! Shared Ring Buffer", 2009. Refuses to wait: a full ring gives the value back.
//!
//! | word | written by | read by |
//! | --- | --- | --- |
//! | `tail` | producer | consumer, when its copy says empty |
//! | `head` | consumer | producer, when its copy says full |
//!
//! Invariant: `head <= tail <= head + capacity`, as differences that wrap at 2^32.

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell, view};
use std::mem::MaybeUninit;

/// One cache line and its neighbour, which the prefetcher brings along.
#[repr(align(128))]
struct Line<T>(T);

struct Shared<T> {
    tail: Line<AtomicU32>,
    head: Line<AtomicU32>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot belongs to one side at a time, handed over by `tail` and `head`; so `T` moves between
// threads, and nothing is ever shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            let index = head as usize & (self.slots.len() - 1);
            self.slots[index].with_mut(|slot| {
                // SAFETY: slots in head..tail hold values, and both sides are gone.
                unsafe { (*slot).assume_init_drop() }
            });
            head = head.wrapping_add(1);
        }
    }
}

/// The side that fills.
pub struct Producer<T> {
    ring: Arc<Shared<T>>,
    tail: u32,
    head_cached: u32,
}

/// The side that empties.
pub struct Consumer<T> {
    ring: Arc<Shared<T>>,
    head: u32,
    tail_cached: u32,
}

/// A ring was full; the value comes back.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// Makes a ring of `capacity` slots.
///
/// # Panics
///
/// If `capacity` is not a power of two.
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
    let ring = Arc::new(Shared {
        tail: Line(AtomicU32::new(0)),
        head: Line(AtomicU32::new(0)),
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    (Producer { ring: ring.clone(), tail: 0, head_cached: 0 }, Consumer { ring, head: 0, tail_cached: 0 })
}

impl<T> Producer<T> {
    /// Adds a value, visible to the consumer at once.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value: nothing changed; try again after the consumer has popped.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        if self.is_full() {
            return Err(Full(value));
        }
        let index = self.tail as usize & (self.ring.slots.len() - 1);
        self.ring.slots[index].with_mut(|slot| {
            // SAFETY: the slot at `tail` is empty and only ours.
            // - Empty: `is_full` found `tail - head_cached < capacity`, and the true head is never behind
            //   the cached one.
            // - Ours: `ring()` makes the only `Producer`, which is not `Clone`, and the consumer reads
            //   only slots before the published tail.
            unsafe { (*slot).write(value) };
        });
        self.tail = self.tail.wrapping_add(1);
        // Pairs with the Acquire load in `Consumer::load_tail`: slot first, then index.
        self.ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Whether `push` would refuse now.
    #[inline]
    pub fn is_full(&mut self) -> bool {
        let capacity = self.ring.slots.len() as u32;
        if self.tail.wrapping_sub(self.head_cached) < capacity {
            return false;
        }
        self.head_cached = view(self.head_cached, self.load_head());
        self.tail.wrapping_sub(self.head_cached) == capacity
    }

    /// Sees everything that was popped before the doorbell that the caller has just taken.
    #[inline]
    pub fn refresh(&mut self) {
        self.head_cached = self.load_head();
    }

    #[inline(always)]
    fn load_head(&self) -> u32 {
        // Pairs with the Release store in `Consumer::pop`.
        self.ring.head.0.load(Ordering::Acquire)
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_cached {
            self.tail_cached = view(self.tail_cached, self.load_tail());
            if self.head == self.tail_cached {
                return None;
            }
        }
        let index = self.head as usize & (self.ring.slots.len() - 1);
        let value = self.ring.slots[index].with(|slot| {
            // SAFETY: the slot at `head` is filled and only ours: `head < tail_cached <= tail`, the
            // producer writes it again only after it sees `head` move past it, and `Consumer` is not
            // `Clone`.
            unsafe { (*slot).assume_init_read() }
        });
        self.head = self.head.wrapping_add(1);
        // Pairs with the Acquire load in `Producer::load_head`: emptied first, then index.
        self.ring.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Sees everything that was pushed before the doorbell that the caller has just taken.
    #[inline]
    pub fn refresh(&mut self) {
        self.tail_cached = self.load_tail();
    }

    #[inline(always)]
    fn load_tail(&self) -> u32 {
        // Pairs with the Release store in `Producer::push`.
        self.ring.tail.0.load(Ordering::Acquire)
    }

    /// Values that the consumer knows to be there.
    pub fn known_len(&self) -> usize {
        self.tail_cached.wrapping_sub(self.head) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a full ring refuses and gives the value back, an empty one gives none, and order holds
    /// across many laps.
    #[test]
    fn ring_keeps_order_and_refuses_when_full() {
        let (mut tx, mut rx) = ring::<Box<u32>>(4);
        for lap in 0..1_000u32 {
            for i in 0..4 {
                tx.push(Box::new(lap * 4 + i)).expect("the ring has room for four");
            }
            let Err(Full(back)) = tx.push(Box::new(7)) else { panic!("the fifth value fits in four slots") };
            assert_eq!(*back, 7);
            for i in 0..4 {
                assert_eq!(rx.pop().as_deref(), Some(&(lap * 4 + i)));
            }
            assert!(rx.pop().is_none());
        }
    }

    /// Goal: values that nobody popped are dropped once, with the ring.
    #[test]
    fn ring_drops_what_is_left() {
        let value = std::sync::Arc::new(());
        let (mut tx, rx) = ring(8);
        for _ in 0..3 {
            tx.push(value.clone()).expect("room for eight");
        }
        drop((tx, rx));
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    /// Goal: two threads see each value once and in order.
    #[test]
    fn ring_between_two_threads() {
        let (mut tx, mut rx) = ring::<u64>(8);
        let producer = std::thread::spawn(move || {
            for mut i in 0..10_000u64 {
                while let Err(Full(back)) = tx.push(i) {
                    i = back;
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..10_000u64 {
            let value = loop {
                match rx.pop() {
                    Some(value) => break value,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(value, i);
        }
        producer.join().expect("the producer does not panic");
    }
}
