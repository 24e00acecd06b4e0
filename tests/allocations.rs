//! In its steady state a job allocates nothing for its records.
//!
//! The allocator of this test counts for each thread. The sinks, which run on the shards' threads like all
//! else of the job, note the count after a warm-up and again so many records later; whatever source,
//! exchange, state and sink have allocated in between is in the difference. Growing tables map their memory
//! rather than allocate it, so they are not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use tidegate::api::Environment;
use tidegate::record::{Record, Timestamp};
use tidegate::sink::Sink;
use tidegate::source::memory::{InMemory, Repeat};
use tidegate::source::{SourceContext, SourceError};
use tidegate::subtask::SubtaskInfo;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The last allocations of a thread may come when its counter is gone.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: hands everything on to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Records before the count begins, and records that are counted, at each sink.
const WARM_UP: u64 = 500_000;
const COUNTED: u64 = 1_000_000;

/// A handful over a million records are growing queues, not records.
const ALLOCATIONS_MAX: u64 = 50;

/// Notes how much its thread has allocated between two records.
struct Watching<T> {
    seen: u64,
    at_start: u64,
    found: Option<u64>,
    all: Arc<Mutex<Vec<u64>>>,
    item: PhantomData<fn(T)>,
}

impl<T: Record> Sink for Watching<T> {
    type Item = T;

    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        std::hint::black_box(record);
        self.seen += 1;
        if self.seen == WARM_UP {
            self.at_start = ALLOCATIONS.get();
        } else if self.seen == WARM_UP + COUNTED {
            self.found = Some(ALLOCATIONS.get() - self.at_start);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.all.lock().unwrap().extend(self.found);
        Ok(())
    }
}

fn watching<T: Record>(
    all: &Arc<Mutex<Vec<u64>>>,
) -> impl Fn(&SubtaskInfo) -> Result<Watching<T>, SourceError> + Clone + Send + Sync + 'static {
    let all = all.clone();
    move |_: &SubtaskInfo| {
        Ok(Watching { seen: 0, at_start: 0, found: None, all: all.clone(), item: PhantomData })
    }
}

fn check(what: &str, all: &Arc<Mutex<Vec<u64>>>) {
    let all = all.lock().unwrap();
    eprintln!("{what}: allocations over {COUNTED} records at each sink: {all:?}");
    assert_eq!(all.len(), 2, "both sinks have seen enough records");
    assert!(all.iter().all(|n| *n < ALLOCATIONS_MAX), "{what}: {all:?}");
}

/// Goal: the allocator counts, so that a zero below means something.
#[test]
fn the_allocator_counts() {
    let before = ALLOCATIONS.get();
    std::hint::black_box(Box::new(1));
    let mut grown = Vec::with_capacity(1);
    grown.extend(std::hint::black_box([1, 2, 3]));
    assert!(ALLOCATIONS.get() - before >= 3);
}

#[test]
fn a_keyed_count_of_numbers_allocates_nothing_for_a_record() {
    let all = Arc::default();
    let env = Environment::new();
    let records: Arc<[(u64, u64)]> = (0..20_000u64).map(|i| (i * 7919 % 10_007, i)).collect();
    env.source("records", move |_: &SourceContext| Ok(InMemory::new(records.clone(), Repeat::Times(100))))
        .parallelism(2)
        .key_by::<u64, _>(|(key, _)| key)
        .count()
        .parallelism(2)
        .sink("watching", watching(&all));
    env.execute("numbers").unwrap();
    check("numbers", &all);
}

#[test]
fn a_keyed_count_of_words_allocates_nothing_for_a_record() {
    let all = Arc::default();
    let env = Environment::new();
    let words: Arc<[String]> =
        (0..20_000u32).map(|i| format!("{}{}", "word".repeat(i as usize % 5), i % 5_003)).collect();
    env.source("words", move |_: &SourceContext| Ok(InMemory::new(words.clone(), Repeat::Times(100))))
        .parallelism(2)
        .key_by::<String, _>(|word| word)
        .count()
        .parallelism(2)
        .sink("watching", watching(&all));
    env.execute("words").unwrap();
    check("words", &all);
}
