//! Records that lie in memory: the source of benches, which costs next to nothing.

use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use crate::operator::{Collector, Owned};
use crate::record::Record;
use crate::sealed;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Version of the state in a checkpoint.
const VERSION: u8 = 1;

/// How often the records are emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// So many times, each time from the first to the last.
    Times(u64),
    /// Over and over until this long after the first poll; ends where it happens to be.
    For(Duration),
}

/// Emits a range of shared records, from the first to the last, over and over.
pub struct InMemory<T> {
    records: Arc<[T]>,
    range: Range<usize>,
    at: usize,
    repeat: Repeat,
    /// Rounds not yet begun, where they are counted.
    rounds_left: u64,
    ends_ns: Option<u64>,
}

impl<T: Record> InMemory<T> {
    /// Emits all of `records`.
    pub fn new(records: Arc<[T]>, repeat: Repeat) -> InMemory<T> {
        let range = 0..records.len();
        InMemory::of_range(records, range, repeat)
    }

    /// Emits this subtask's part of `records`: all parts are as long as the others or one longer.
    pub fn of_subtask(records: Arc<[T]>, context: &SourceContext, repeat: Repeat) -> InMemory<T> {
        let cut = |i: u32| records.len() * i as usize / context.parallelism as usize;
        let range = cut(context.subtask)..cut(context.subtask + 1);
        InMemory::of_range(records, range, repeat)
    }

    /// Emits `records[range]`.
    ///
    /// # Panics
    ///
    /// If there is no such range.
    pub fn of_range(records: Arc<[T]>, range: Range<usize>, repeat: Repeat) -> InMemory<T> {
        assert!(range.start <= range.end && range.end <= records.len(), "{range:?} of {}", records.len());
        let rounds = match repeat {
            _ if range.is_empty() => 0,
            Repeat::Times(rounds) => rounds,
            Repeat::For(_) => u64::MAX,
        };
        // The first round begins at once, if there is one.
        let at = if rounds == 0 { range.end } else { range.start };
        InMemory { records, range, at, repeat, rounds_left: rounds.saturating_sub(1), ends_ns: None }
    }
}

impl<T: Record> Source for InMemory<T> {
    type Item = T;

    /// What ends by the clock has its whole time again after a restart.
    const REPLAYS: bool = true;

    #[inline]
    fn poll<C: Collector<T>>(&mut self, out: &mut SourceOutput<'_, T, C>) -> Result<SourcePoll, SourceError> {
        if let Repeat::For(duration) = self.repeat {
            let now_ns = out.now_ns();
            let ends_ns = *self.ends_ns.get_or_insert(now_ns.saturating_add(duration.as_nanos() as u64));
            if now_ns >= ends_ns {
                return Ok(SourcePoll::Done);
            }
        }
        loop {
            while self.at < self.range.end && out.ready() {
                self.at += out.emit_batch(Owned(&self.records[self.at..self.range.end]));
            }
            if self.at < self.range.end {
                return Ok(SourcePoll::More);
            }
            if self.rounds_left == 0 {
                return Ok(SourcePoll::Done);
            }
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            self.rounds_left -= 1;
            self.at = self.range.start;
        }
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        sealed::seal(VERSION, state, |fields| {
            for index in [self.range.start, self.range.end, self.at] {
                fields.u64(index as u64);
            }
            fields.u64(self.rounds_left);
        });
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let [start, end, at, rounds_left] =
            sealed::open("records in memory", VERSION, state, |_, fields| {
                Ok([fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?])
            })?;
        let Range { start: own_start, end: own_end } = self.range;
        if (start, end) != (own_start as u64, own_end as u64) || !(start..=end).contains(&at) {
            return Err(format!(
                "records {own_start}..{own_end}; expected {start}..{end}, as at the checkpoint, where {at} was next"
            )
            .into());
        }
        (self.at, self.rounds_left) = (at as usize, rounds_left);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::testing::{Capture, context, run};

    /// Goal: every record comes as often as asked, in order, wherever polls are cut.
    /// Method: budgets of 1 to 7 records over 5 records, 3 times.
    #[test]
    fn records_are_repeated_whole_whatever_the_budget() {
        let records: Arc<[u64]> = (10..15).collect();
        for budget in 1..=7 {
            let mut source = InMemory::new(records.clone(), Repeat::Times(3));
            let expected: Vec<u64> = (0..3).flat_map(|_| 10..15).collect();
            assert_eq!(run(&mut source, budget).unwrap(), expected, "budget {budget}");
        }
    }

    /// Goal: nothing to emit is the end, not an endless loop.
    #[test]
    fn no_records_or_no_rounds_is_done() {
        for (records, repeat) in
            [(0, Repeat::Times(3)), (0, Repeat::For(Duration::from_secs(1))), (4, Repeat::Times(0))]
        {
            let records: Arc<[u64]> = (0..records).collect();
            assert_eq!(run(&mut InMemory::new(records, repeat), 10).unwrap(), [0u64; 0]);
        }
    }

    /// Goal: subtasks share the records out without gap or overlap.
    #[test]
    fn parts_of_subtasks_cover_all_records() {
        let records: Arc<[u64]> = (0..101).collect();
        let mut all = Vec::new();
        for subtask in 0..7 {
            let mut part = InMemory::of_subtask(records.clone(), &context(subtask, 7), Repeat::Times(1));
            all.extend(run(&mut part, 3).unwrap());
        }
        assert_eq!(all, records.to_vec());
    }

    /// Goal: a duration ends the source by the clock of its polls, and not before.
    #[test]
    fn a_duration_ends_it() {
        let mut source = InMemory::new((0..3u64).collect(), Repeat::For(Duration::from_nanos(100)));
        let mut out = Capture::<u64>::default();
        for now_ns in [1_000, 1_050, 1_099] {
            assert_eq!(out.poll(&mut source, 4, now_ns).unwrap(), SourcePoll::More);
        }
        assert_eq!(out.poll(&mut source, 4, 1_100).unwrap(), SourcePoll::Done);
        assert_eq!(out.taken.len(), 12);
    }

    /// Goal: restored from where it was, it emits the rest and nothing else, wherever that was.
    #[test]
    fn a_rewound_source_emits_the_rest() {
        let records: Arc<[u64]> = (10..15).collect();
        let expected: Vec<u64> = (0..3).flat_map(|_| 10..15).collect();
        for polls in 0..20 {
            let mut first = InMemory::new(records.clone(), Repeat::Times(3));
            let mut out = Capture::default();
            for _ in 0..polls {
                out.poll(&mut first, 1, 0).unwrap();
            }
            let mut state = Vec::new();
            first.snapshot(&mut state).unwrap();
            let mut second = InMemory::new(records.clone(), Repeat::Times(3));
            second.restore(&state).unwrap();
            out.taken.extend(run(&mut second, 2).unwrap());
            assert_eq!(out.taken, expected, "{polls} polls");
            let other: Arc<[u64]> = (0..4).collect();
            let error = InMemory::new(other, Repeat::Times(3)).restore(&state).unwrap_err().to_string();
            assert!(error.contains("records 0..4; expected 0..5"), "{error}");
        }
    }
}
