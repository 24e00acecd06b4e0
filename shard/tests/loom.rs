//! Models of everything that two shards share, explored by loom at tiny capacities.
//!
//! `RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom cargo test -p tidegate-shard --test loom --release`
//!
//! A consumer in these models never looks again and again: it blocks, as a shard does, so the models are
//! finite, and a lost wake-up is a deadlock that loom reports.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper, Wake};
use tidegate_shard::channel::ring::{Consumer, Producer, ring};
use tidegate_shard::channel::{Grants, Spending};
use tidegate_shard::memory::SegmentState;
use tidegate_shard::sync::{AtomicU32, Ordering};

/// Explores `model` with at most three preemptions, or as many as `LOOM_MAX_PREEMPTIONS` says: which finds
/// nearly all that more would, in seconds.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

/// The eventfd of a model: a count that is taken back to zero by the one who waits for it.
#[derive(Default)]
struct Event {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn block(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Event {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// What a shard sleeps with: its flag, its eventfd, and the doorbells that are rung for it.
struct Bedside<const DOORS: usize> {
    event: Arc<Event>,
    sleeper: Arc<Sleeper>,
    doors: [Arc<Doorbell>; DOORS],
}

impl<const DOORS: usize> Bedside<DOORS> {
    fn new() -> Self {
        let event = Arc::new(Event::default());
        let sleeper = Arc::new(Sleeper::new(event.clone()));
        Bedside { event, sleeper, doors: std::array::from_fn(|_| Arc::new(Doorbell::default())) }
    }

    fn bell(&self, door: usize, slot: u32) -> Bell {
        Bell::new(self.doors[door].clone(), self.sleeper.clone(), slot)
    }

    /// What a shard's driver does after a turn in which nothing was done.
    fn park(&self) {
        self.sleeper.fall_asleep();
        if self.doors.iter().all(|door| door.is_silent()) {
            self.event.block();
        }
        self.sleeper.wake_up();
    }
}

/// Goal: values pass a ring of two slots once, in order, over a wrap, and a full ring gives them back.
/// Method: the producer parks until a pop makes room, the consumer until a push makes news.
#[test]
fn ring_passes_each_value_once_and_in_order_over_a_wrap() {
    explore(|| {
        let (mut tx, mut rx) = ring::<Box<u32>>(2);
        let (room, news) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let (room2, news2) = (room.clone(), news.clone());
        let producer = thread::spawn(move || {
            for i in 0..3 {
                let mut value = Box::new(i);
                while let Err(full) = tx.push(value) {
                    value = full.0;
                    room2.block();
                }
                news2.wake();
            }
        });
        for i in 0..3 {
            let value = loop {
                match rx.pop() {
                    Some(value) => break value,
                    None => news.block(),
                }
            };
            assert_eq!(*value, i);
            room.wake();
        }
        producer.join().unwrap();
        assert!(rx.pop().is_none());
    });
}

/// Goal: what is left in a ring when both ends are gone is dropped, whichever end goes last.
#[test]
fn ring_drops_what_is_left_whichever_end_goes_last() {
    explore(|| {
        let (mut tx, mut rx) = ring::<loom::sync::Arc<()>>(2);
        let value = loom::sync::Arc::new(());
        let sent = value.clone();
        let producer = thread::spawn(move || {
            tx.push(sent.clone()).unwrap();
            tx.push(sent).unwrap();
        });
        drop(rx.pop());
        drop(rx);
        producer.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&value), 1);
    });
}

/// One segment of two bytes, each with its own race detector, behind the real state word.
struct Segment {
    state: SegmentState,
    bytes: [UnsafeCell<u32>; 2],
}

/// Goal: a segment is read while it is written, sealed, goes back, and lives again, and no byte is ever
/// read and written at once.
/// Method: two publications, the second one sealed, then the same in the next generation. loom reports
/// any access to a byte's cell that the protocol does not order.
#[test]
fn segment_is_published_twice_sealed_recycled_and_used_again() {
    explore(|| {
        let segment =
            Arc::new(Segment { state: SegmentState::new(), bytes: [UnsafeCell::new(0), UnsafeCell::new(0)] });
        let (mut data_tx, mut data_rx) = ring::<u32>(2);
        let (mut back_tx, mut back_rx) = ring::<()>(2);
        let (news, room) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let (segment2, news2, room2) = (segment.clone(), news.clone(), room.clone());
        let writer = thread::spawn(move || {
            for life in 1..=2 {
                let generation = segment2.state.begin();
                assert_eq!(generation, life);
                for byte in 0..2 {
                    // SAFETY: the byte lies at `committed`, where only the writer goes; loom checks it.
                    segment2.bytes[byte as usize].with_mut(|b| unsafe { *b = life * 10 + byte });
                    segment2.state.commit(generation, byte + 1, byte == 1);
                    if byte == 0 {
                        data_tx.push(generation).unwrap();
                    }
                    news2.wake();
                }
                while back_rx.pop().is_none() {
                    room2.block();
                }
            }
        });
        for life in 1..=2 {
            let generation = loop {
                match data_rx.pop() {
                    Some(generation) => break generation,
                    None => news.block(),
                }
            };
            let mut read = 0;
            loop {
                let committed = segment.state.committed(generation);
                while read < committed.bytes {
                    // SAFETY: the byte lies before `committed`; loom checks it.
                    let byte = segment.bytes[read as usize].with(|b| unsafe { *b });
                    assert_eq!(byte, life * 10 + read);
                    read += 1;
                }
                if committed.sealed {
                    break;
                }
                news.block();
            }
            assert_eq!(read, 2);
            back_tx.push(()).unwrap();
            room.wake();
        }
        writer.join().unwrap();
    });
}

/// Goal: the sender, which looks at the granted total at any time, never has more out than the ring has
/// slots and the receiver has permits; and every buffer gets through.
/// Method: one exclusive permit, one floating one that is lent at the first return and then taken back.
#[test]
fn credit_bounds_what_is_out_whenever_the_sender_looks() {
    const BUFFERS: u32 = 3;
    explore(|| {
        let (mut tx, mut rx) = ring::<u32>(2);
        let mut grants = Grants::new(1);
        let granted = Arc::new(AtomicU32::new(grants.granted()));
        let out = Arc::new(AtomicU32::new(0));
        let (news, credit) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let (granted2, out2, news2, credit2) = (granted.clone(), out.clone(), news.clone(), credit.clone());
        let sender = thread::spawn(move || {
            let mut spending = Spending::new(1);
            for i in 0..BUFFERS {
                loop {
                    spending.refresh(granted2.load(Ordering::Relaxed));
                    if spending.available() > 0 && !tx.is_full() {
                        break;
                    }
                    credit2.block();
                }
                spending.spend();
                let before = out2.fetch_add(1, Ordering::Relaxed);
                assert!(before < 2, "{before} out, and another one sent, with two permits");
                tx.push(i).expect("credit says that the ring has room");
                news2.wake();
            }
        });
        for i in 0..BUFFERS {
            let value = loop {
                match rx.pop() {
                    Some(value) => break value,
                    None => news.block(),
                }
            };
            assert_eq!(value, i);
            grants.receive();
            out.fetch_sub(1, Ordering::Relaxed);
            grants.give_back();
            grants.grant(u32::from(i == 0));
            granted.store(grants.granted(), Ordering::Relaxed);
            credit.wake();
        }
        sender.join().unwrap();
    });
}

/// Takes what rang and pops those rings, as a turn does; the values that came.
fn turn<const DOORS: usize>(
    bedside: &Bedside<DOORS>,
    rings: &mut [Consumer<u32>; DOORS],
    mut got: impl FnMut(usize, u32),
) -> bool {
    let mut worked = false;
    for (door, rx) in bedside.doors.iter().zip(rings.iter_mut()).enumerate().map(|(i, (d, r))| ((i, d), r)) {
        let mut rang = false;
        door.1.take(|_| rang = true);
        if rang {
            worked = true;
            rx.refresh();
            while let Some(value) = rx.pop() {
                got(door.0, value);
            }
        }
    }
    worked
}

fn push_and_ring(mut tx: Producer<u32>, bell: &Bell, values: u32) {
    for value in 0..values {
        tx.push(value).unwrap();
        bell.ring();
    }
}

/// Goal: no wake-up is lost between two producers, each with its doorbell, and one shard that parks. So a
/// shard that only pops rings whose bell it took gets everything.
/// Method: the consumer blocks for good if it misses one, which loom reports as a deadlock.
#[test]
fn shard_that_parks_between_two_producers_gets_everything() {
    explore(|| {
        let bedside = Bedside::<2>::new();
        let (tx0, rx0) = ring::<u32>(2);
        let (tx1, rx1) = ring::<u32>(2);
        let bells = [bedside.bell(0, 0), bedside.bell(1, 5)];
        let [bell0, bell1] = bells;
        let first = thread::spawn(move || push_and_ring(tx0, &bell0, 1));
        let second = thread::spawn(move || push_and_ring(tx1, &bell1, 1));
        let mut rings = [rx0, rx1];
        let mut got = [0u32; 2];
        while got != [1, 1] {
            let worked = turn(&bedside, &mut rings, |door, value| {
                assert_eq!(value, got[door]);
                got[door] += 1;
            });
            if !worked {
                bedside.park();
            }
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// Goal: a ring that finds its bit still set may leave at once: whoever takes the bit takes its news too.
/// Method: one producer rings the same slot twice, a second one another slot of the same word, as threads
/// that are no shard do.
#[test]
fn bell_that_still_rings_need_not_be_rung_again() {
    explore(|| {
        let bedside = Bedside::<1>::new();
        let (tx, rx) = ring::<u32>(2);
        let bell = bedside.bell(0, 3);
        let other = bedside.bell(0, 4);
        let rings = thread::spawn(move || push_and_ring(tx, &bell, 2));
        let also = thread::spawn(move || other.ring());
        let mut rings_rx = [rx];
        let mut got = 0;
        while got < 2 {
            if !turn(&bedside, &mut rings_rx, |_, value| {
                assert_eq!(value, got);
                got += 1;
            }) {
                bedside.park();
            }
        }
        rings.join().unwrap();
        also.join().unwrap();
    });
}

/// Goal: a partly filled segment that grows and is sealed wakes its reader each time, without passing the
/// ring again.
/// Method: descriptor and first byte, then a second byte, then the seal; a second producer rings too. The
/// reader looks at the state word only if a bell rang.
#[test]
fn partly_filled_segment_that_grows_wakes_its_reader() {
    explore(|| {
        let bedside = Bedside::<2>::new();
        let segment =
            Arc::new(Segment { state: SegmentState::new(), bytes: [UnsafeCell::new(0), UnsafeCell::new(0)] });
        let (mut tx, rx) = ring::<u32>(2);
        let (bell, other) = (bedside.bell(0, 0), bedside.bell(1, 0));
        let segment2 = segment.clone();
        let writer = thread::spawn(move || {
            let generation = segment2.state.begin();
            // SAFETY: at `committed`, where only the writer goes; loom checks it.
            segment2.bytes[0].with_mut(|b| unsafe { *b = 7 });
            segment2.state.commit(generation, 1, false);
            tx.push(generation).unwrap();
            bell.ring();
            // SAFETY: as above.
            segment2.bytes[1].with_mut(|b| unsafe { *b = 8 });
            segment2.state.commit(generation, 2, true);
            bell.ring();
        });
        let also = thread::spawn(move || other.ring());
        let (mut rx, mut generation, mut read, mut sealed) = (rx, None, 0u32, false);
        while !sealed {
            let mut rang = false;
            for door in &bedside.doors {
                door.take(|_| rang = true);
            }
            if !rang {
                bedside.park();
                continue;
            }
            rx.refresh();
            generation = generation.or_else(|| rx.pop());
            let Some(generation) = generation else { continue };
            let committed = segment.state.committed(generation);
            while read < committed.bytes {
                // SAFETY: before `committed`; loom checks it.
                let byte = segment.bytes[read as usize].with(|b| unsafe { *b });
                assert_eq!(byte, 7 + read);
                read += 1;
            }
            sealed = committed.sealed;
        }
        assert_eq!(read, 2);
        writer.join().unwrap();
        also.join().unwrap();
    });
}
