//! Named events: what a set of simulated runs must have reached to have tested anything.
//!
//! The engine marks the spots with `reached!`; without the feature `sim` a mark is nothing. Counts are kept
//! for each thread, since a simulation is one thread.

/// What may happen in an exchange, and seldom does at the default sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Named {
    /// A partition took a segment beyond its pool.
    Overdraft,
    /// Output went to the heap: hard back pressure.
    Overflow,
    /// A partly filled segment was handed over.
    PartialFlush,
    /// One was handed over because its consumer was idle.
    FlushToIdle,
    /// A record spans segments.
    SpanningRecord,
    /// A gate lent a floating permit.
    FloatingLent,
    /// A buffer waits for credit.
    CreditExhausted,
    /// A subpartition holds as many segments as it may.
    SubpartitionAtCap,
    /// A channel of a broadcast gave a segment back that another one still holds.
    BroadcastHold,
    /// A shard slept and was woken.
    ParkAndWake,
    /// A shard was rung while it fell asleep.
    RungWhileFallingAsleep,
    /// A task ran mail while it was back-pressured.
    MailWhileBackPressured,
    /// The end of input was put behind data that waits for credit.
    EndBehindData,
    /// A record was put together while the chain was not ready for it.
    AssembledNotReady,
    /// A reader acted on an old view of a word.
    StaleView,
}

impl Named {
    /// All of them.
    pub const ALL: [Named; 15] = [
        Named::Overdraft,
        Named::Overflow,
        Named::PartialFlush,
        Named::FlushToIdle,
        Named::SpanningRecord,
        Named::FloatingLent,
        Named::CreditExhausted,
        Named::SubpartitionAtCap,
        Named::BroadcastHold,
        Named::ParkAndWake,
        Named::RungWhileFallingAsleep,
        Named::MailWhileBackPressured,
        Named::EndBehindData,
        Named::AssembledNotReady,
        Named::StaleView,
    ];
}

/// How often each event was reached, in the order of [`Named::ALL`].
pub type Counts = [u64; Named::ALL.len()];

#[cfg(feature = "sim")]
mod counts {
    use super::{Counts, Named};
    use std::cell::Cell;

    thread_local! {
        static COUNTS: Cell<Counts> = const { Cell::new([0; Named::ALL.len()]) };
    }

    pub(crate) fn reach(named: Named) {
        COUNTS.with(|counts| {
            let mut all = counts.get();
            all[named as usize] += 1;
            counts.set(all);
        });
    }

    /// Takes what this thread has reached since the last call.
    pub fn take() -> Counts {
        COUNTS.with(Cell::take)
    }
}

#[cfg(feature = "sim")]
pub(crate) use counts::reach;
#[cfg(feature = "sim")]
pub use counts::take;

/// Marks a spot that a simulation must reach.
macro_rules! reached {
    ($named:ident) => {
        #[cfg(feature = "sim")]
        $crate::coverage::reach($crate::coverage::Named::$named)
    };
}

pub(crate) use reached;
