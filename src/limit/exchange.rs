//! The smallest exchange that still is one.
//!
//! ```text
//!   thread a                                     thread b
//!   produce ─▶ open ─▶ full ══ ring of segments ══▶ consume
//!               ▲                                     │
//!             spare ◀══ ring of empty segments ═══════┘
//! ```
//!
//! P threads, each a source and a consumer; between each pair a ring of full segments one way and of empty
//! ones the other. An empty segment is the credit: a source without one waits, so memory is bounded by
//! [`CREDITS`] segments a pair. What a thread sends to itself it consumes at once, while it is in its cache.
//!
//! Nothing is allocated after the start, except for an item that is larger than a segment.

use super::machine;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::time::Instant;

/// Bytes of items in a segment, as in the engine.
pub const SEGMENT_BYTES: usize = 32 * 1024;

/// Segments between a pair of threads, one way: enough to outlast a thread that is put off its core for a while. The
/// last one to come back is the first to be filled, so that those in use stay in the cache all the same.
pub const CREDITS: usize = 64;

/// Spare segments a target must have before [`Work::produce`] is called.
const CREDITS_TO_PRODUCE: usize = 4;

/// Segments taken from one channel before the next thing is looked at.
const BURST: usize = 4;

/// Spins without progress before the core is given up: about 50 µs. Two spinning threads of which one has been
/// put off its core lose a factor of ten; one that yields lets the other finish.
const SPINS_MAX: u32 = 2_000;

/// What each thread does.
pub trait Work {
    /// What a segment is a sequence of.
    type Item: Copy + Send;

    /// Puts the next items into `out`, at most about two segments a target; false after the last.
    fn produce(&mut self, out: &mut Outlets<Self::Item>) -> bool;

    /// Takes the items of one segment, in the order in which they were put.
    fn consume(&mut self, items: &[Self::Item]);
}

/// The sending side of one thread: a segment being filled for each target.
pub struct Outlets<T> {
    targets: Vec<Outlet<T>>,
}

struct Outlet<T> {
    open: Vec<T>,
    full: VecDeque<Vec<T>>,
    spare: Vec<Vec<T>>,
}

impl<T: Copy> Outlets<T> {
    /// Items that fit into a segment.
    pub const ITEMS: usize = SEGMENT_BYTES / size_of::<T>();

    fn new(targets: usize) -> Self {
        let segment = || Vec::with_capacity(Self::ITEMS);
        let outlet = |_| Outlet {
            open: segment(),
            full: VecDeque::with_capacity(CREDITS + 1),
            spare: (1..CREDITS).map(|_| segment()).collect(),
        };
        Outlets { targets: (0..targets).map(outlet).collect() }
    }

    /// How many threads there are to send to.
    pub fn count(&self) -> usize {
        self.targets.len()
    }

    /// Appends one item for `target`.
    #[inline(always)]
    pub fn push(&mut self, target: usize, item: T) {
        let outlet = &mut self.targets[target];
        if outlet.open.len() >= Self::ITEMS {
            outlet.roll();
        }
        outlet.open.push(item);
    }

    /// Appends `items` for `target` so that they come out in one segment, however many they are.
    pub fn push_whole(&mut self, target: usize, items: &[T]) {
        let outlet = &mut self.targets[target];
        if !outlet.open.is_empty() && outlet.open.len() + items.len() > Self::ITEMS {
            outlet.roll();
        }
        outlet.open.extend_from_slice(items);
    }

    /// The open segment of the only target, with room for one item at least.
    #[inline(always)]
    pub fn open_one(&mut self) -> &mut Vec<T> {
        let [only] = &mut self.targets[..] else { panic!("not one target") };
        only.make_room()
    }

    /// The open segments of both targets, each with room for one item at least.
    #[inline(always)]
    pub fn open_two(&mut self) -> [&mut Vec<T>; 2] {
        let [first, second] = &mut self.targets[..] else { panic!("not two targets") };
        [first.make_room(), second.make_room()]
    }

    fn may_produce(&self) -> bool {
        self.targets.iter().all(|outlet| outlet.spare.len() >= CREDITS_TO_PRODUCE)
    }

    /// Hands over what is open, and after it an empty segment, which says that no more will come.
    fn close(&mut self) {
        for outlet in &mut self.targets {
            outlet.roll();
            if outlet.full.back().is_some_and(|last| !last.is_empty()) {
                outlet.full.push_back(Vec::new());
            }
        }
    }
}

impl<T: Copy> Outlet<T> {
    #[inline(always)]
    fn make_room(&mut self) -> &mut Vec<T> {
        if self.open.len() >= Outlets::<T>::ITEMS {
            self.roll();
        }
        &mut self.open
    }

    #[cold]
    fn roll(&mut self) {
        // Only a producer that puts more at once than it should gets here without a spare segment.
        let empty = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(Outlets::<T>::ITEMS));
        self.full.push_back(std::mem::replace(&mut self.open, empty));
    }
}

/// This thread's four ring ends towards one other thread.
struct Link<T> {
    other: usize,
    send: Producer<Vec<T>>,
    returned: Consumer<Vec<T>>,
    receive: Consumer<Vec<T>>,
    give_back: Producer<Vec<T>>,
    receiving: bool,
}

/// Runs `threads` pinned threads until every item has been consumed.
///
/// `make` is called on each thread with its index before the common start, so that a thread's memory is
/// touched first where it is used. Returns the seconds from the start of the first thread to the end of the
/// last, and what `make` made.
///
/// # Panics
///
/// If `threads` is 0, or if a thread panics.
pub fn run<W: Work + Send>(threads: usize, make: impl Fn(usize) -> W + Sync) -> (f64, Vec<W>) {
    assert!(threads > 0, "an exchange of no threads");
    let cores = machine::allowed_cores();
    let spins_max = if threads > cores.len() { 0 } else { SPINS_MAX };
    let start = Barrier::new(threads);
    let done: Vec<(Instant, Instant, W)> = std::thread::scope(|scope| {
        let handles: Vec<_> = links(threads)
            .into_iter()
            .enumerate()
            .map(|(me, links)| {
                let (cores, start, make) = (&cores, &start, &make);
                scope.spawn(move || {
                    machine::pin(me, cores);
                    let mut work = make(me);
                    let out = Outlets::new(threads);
                    start.wait();
                    let begin = Instant::now();
                    work_until_done(me, &mut work, out, links, spins_max);
                    (begin, Instant::now(), work)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a limit thread panicked")).collect()
    });
    let begin = done.iter().map(|(begin, _, _)| *begin).min().expect("one thread at least");
    let end = done.iter().map(|(_, end, _)| *end).max().expect("one thread at least");
    ((end - begin).as_secs_f64(), done.into_iter().map(|(_, _, work)| work).collect())
}

/// For each thread, its links to all others.
fn links<T>(threads: usize) -> Vec<Vec<Link<T>>> {
    let mut of: Vec<Vec<Link<T>>> = (0..threads).map(|_| Vec::new()).collect();
    for a in 0..threads {
        for b in a + 1..threads {
            // All segments of a pair and the mark at the end fit, so a ring is full only after an emergency.
            let ring = || RingBuffer::new(2 * CREDITS);
            let ((a_full, b_receives), (b_gives, a_returned)) = (ring(), ring());
            let ((b_full, a_receives), (a_gives, b_returned)) = (ring(), ring());
            let link = |other, send, returned, receive, give_back| Link {
                other,
                send,
                returned,
                receive,
                give_back,
                receiving: true,
            };
            of[a].push(link(b, a_full, a_returned, a_receives, a_gives));
            of[b].push(link(a, b_full, b_returned, b_receives, b_gives));
        }
    }
    of
}

fn work_until_done<W: Work>(
    me: usize,
    work: &mut W,
    mut out: Outlets<W::Item>,
    mut links: Vec<Link<W::Item>>,
    spins_max: u32,
) {
    let mut producing = true;
    let mut idle_spins = 0;
    loop {
        let mut progressed = false;
        if producing && out.may_produce() {
            progressed = true;
            producing = work.produce(&mut out);
            if !producing {
                out.close();
            }
        }
        let own = &mut out.targets[me];
        while let Some(mut segment) = own.full.pop_front() {
            work.consume(&segment);
            segment.clear();
            own.spare.push(segment);
        }
        let mut finished = !producing;
        for link in &mut links {
            let outlet = &mut out.targets[link.other];
            while let Some(segment) = outlet.full.pop_front() {
                if let Err(PushError::Full(segment)) = link.send.push(segment) {
                    outlet.full.push_front(segment);
                    break;
                }
            }
            while let Ok(segment) = link.returned.pop() {
                outlet.spare.push(segment);
            }
            progressed |= link.take(work);
            finished &= outlet.full.is_empty() && !link.receiving;
        }
        if finished {
            return;
        }
        if progressed {
            idle_spins = 0;
        } else if idle_spins < spins_max {
            idle_spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl<T: Copy> Link<T> {
    /// Consumes what has come in; false if nothing had.
    fn take<W: Work<Item = T>>(&mut self, work: &mut W) -> bool {
        for taken in 0..BURST {
            match self.receive.pop() {
                Ok(segment) if segment.is_empty() => self.receiving = false,
                Ok(mut segment) => {
                    work.consume(&segment);
                    segment.clear();
                    // Refused only if the other side is gone or put in more segments than it began with.
                    let _ = self.give_back.push(segment);
                }
                Err(_) => {
                    let lost = self.receiving && self.receive.is_abandoned() && self.receive.is_empty();
                    assert!(!lost, "limit thread {} ended before its last segment", self.other);
                    return taken > 0;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `left` numbers, each to the target of its remainder, and remembers what comes in.
    struct Numbers {
        me: u64,
        threads: u64,
        next: u64,
        end: u64,
        large: usize,
        got: Vec<u64>,
    }

    impl Work for Numbers {
        type Item = u64;

        fn produce(&mut self, out: &mut Outlets<u64>) -> bool {
            let stop = (self.next + 5_000).min(self.end);
            for number in self.next..stop {
                out.push((number % self.threads) as usize, number);
            }
            self.next = stop;
            if stop == self.end {
                let large: Vec<u64> = vec![self.me; self.large];
                (0..self.threads).for_each(|target| out.push_whole(target as usize, &large));
            }
            stop < self.end
        }

        fn consume(&mut self, items: &[u64]) {
            self.got.extend_from_slice(items);
        }
    }

    /// Goal: every item arrives once at its target, in order, whatever its size and whoever shares a core.
    /// Method: 1 … 3 threads (more than this machine may have cores), each sends 100,003 numbers, and at last
    /// one piece larger than a segment.
    #[test]
    fn every_item_arrives_once_at_its_target_and_in_order() {
        let (count, large) = (100_003, 3 * Outlets::<u64>::ITEMS);
        for threads in 1..=3u64 {
            let make = |me: usize| {
                let me = me as u64;
                Numbers { me, threads, next: me * count, end: (me + 1) * count, large, got: Vec::new() }
            };
            let (_, works) = run(threads as usize, make);
            for (target, work) in works.iter().enumerate() {
                for from in 0..threads {
                    let (begin, end) = (from * count, (from + 1) * count);
                    let sent: Vec<u64> = (begin..end).filter(|n| n % threads == target as u64).collect();
                    // Senders' own numbers are below `threads` and would be taken for the large piece.
                    let got: Vec<u64> = work
                        .got
                        .iter()
                        .copied()
                        .filter(|n| (begin..end).contains(n) && *n >= threads)
                        .collect();
                    let sent: Vec<u64> = sent.into_iter().filter(|n| *n >= threads).collect();
                    assert_eq!(got, sent, "{threads} threads, from {from} to {target}");
                }
                let marks = work.got.iter().filter(|n| **n < threads).count();
                let small = (0..threads).filter(|n| n % threads == target as u64 && *n < count).count();
                assert_eq!(marks, threads as usize * large + small);
            }
        }
    }

    /// Goal: an exchange without items ends.
    #[test]
    fn nothing_sent_is_nothing_received() {
        let make = |me: usize| Numbers { me: me as u64, threads: 2, next: 0, end: 0, large: 0, got: vec![] };
        let (_, works) = run(2, make);
        assert!(works.iter().all(|work| work.got.is_empty()));
    }
}
