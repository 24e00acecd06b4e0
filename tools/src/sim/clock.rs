//! Chance and time of a simulation: both come from its seed.

use std::cell::{Cell, RefCell};
use tidegate_shard::task::Clock;

/// A sequence of numbers from a seed: SplitMix64, after Steele, Lea and Flood, 2014.
///
/// Our own, since a seed that once found a fault is kept as a test and must mean the same for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Another sequence, that depends on this one's present state.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of `range`.
    pub fn within(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Whether something happens that does so once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A number that looks like chance and depends on `x` only.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Time that passes only by being looked at, each time by a cost that the seed chooses, and by jumps.
pub struct VirtualClock {
    now_ns: Cell<u64>,
    rng: RefCell<Rng>,
    cost_max_ns: u64,
}

impl VirtualClock {
    /// A clock of which a look costs up to `cost_max_ns` nanoseconds.
    pub fn new(rng: Rng, cost_max_ns: u64) -> VirtualClock {
        VirtualClock { now_ns: Cell::new(1), rng: RefCell::new(rng), cost_max_ns }
    }

    /// The time, for free.
    pub fn peek_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Lets time pass until `at_ns`, if that is still to come.
    pub fn jump_to(&self, at_ns: u64) {
        self.now_ns.set(self.now_ns.get().max(at_ns));
    }
}

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        let cost_ns = self.rng.borrow_mut().within(20..=self.cost_max_ns);
        self.now_ns.set(self.now_ns.get() + cost_ns);
        self.now_ns.get()
    }
}
