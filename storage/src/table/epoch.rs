//! Epochs: which entries a snapshot has to take, and what of them it must keep as it was.
//!
//! An epoch lasts from one barrier of the subtask to the next. Each entry has a *label*, one byte that names the
//! epoch of its last change, and the table the label of the epoch that runs. So the synchronous part of a
//! snapshot is to begin an epoch, and what a record pays is one comparison: the label of its entry is the table's,
//! or the entry is changed for the first time in this epoch ([`Table::change`](super::Table)).
//!
//! A snapshot knows by a [`Plan`] which labels it takes: those of all epochs since its base, and those of old
//! deltas that it *folds* into its own. Folded entries get the label of the snapshot's epoch as they are written,
//! as if they had been changed in it; whatever becomes of the snapshot, each entry is then still in the delta of
//! its label or newer than every base.
//!
//! While a snapshot runs, an entry that it takes and has not written is *put aside* before it is changed: encoded
//! into a buffer of the snapshot. The buffer is bounded; at the bound the snapshot is given up and the records go
//! on. Removed keys are kept as long as a base may lack them.
//!
//! Why labels that are handed out, and not the epoch's lowest byte: an entry may keep its label for as long as it
//! likes, and a label is used again once no entry has it. Nothing ages, nothing wraps.

use super::delta::{Chunks, put_sized};
use std::collections::VecDeque;

/// Removals are kept up to this many bytes, or a quarter of the table's memory. At the bound they are forgotten:
/// snapshots under way that need them are given up, and the next one is full.
const REMOVED_BYTES_MIN: usize = 1 << 20;

/// What one snapshot takes of a table.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of the snapshot; larger than those of all before it.
    pub number: u32,
    /// Whether it takes entries with a label.
    pub takes: Box<[bool; 256]>,
    /// Of those, the ones of deltas that it folds into its own.
    pub folds: Box<[bool; 256]>,
    /// Whether any entry is of a folded delta.
    pub folds_any: bool,
    /// The label that folded entries get.
    pub fold_label: u8,
    /// It takes what changed in epochs above this one. 0: everything.
    pub after: u64,
    /// It takes what changed up to the end of this epoch.
    pub through: u64,
    /// Bytes that it may put aside in each table.
    pub aside_bytes_max: usize,
}

/// Where a snapshot has got to in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Removals: the epoch, and the number of the chunk.
    Removed { epoch: u64, chunk: usize },
    /// Entries in pages and overflow lists: group counted from the first, place in its directory.
    Pages { group: u32, place: u32 },
    /// What was put aside.
    Aside,
    /// All is written.
    Done,
}

/// A snapshot of one table under way.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) plan: Plan,
    /// The labels that it takes, as few (first, further ones) as possible.
    pub(super) ranges: Vec<(u8, u8)>,
    pub(super) stage: Stage,
    pub(super) aside: Chunks,
    /// More had to be put aside than is allowed: the snapshot is given up.
    pub(super) overrun: bool,
}

impl Run {
    /// Takes nothing any more.
    pub(super) fn give_up(&mut self) {
        self.overrun = true;
        self.plan.takes.fill(false);
        self.aside = Chunks::default();
        self.stage = Stage::Done;
    }

    /// Whether the overflow list of a group, counted from the first, was written.
    pub(super) fn has_passed(&self, group: u32) -> bool {
        match self.stage {
            Stage::Removed { .. } => false,
            Stage::Pages { group: at, .. } => group < at,
            Stage::Aside | Stage::Done => true,
        }
    }
}

/// Labels as ranges, each a first label and how many further ones follow it.
fn ranges(takes: &[bool; 256]) -> Vec<(u8, u8)> {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for label in 0..=255u8 {
        if !takes[usize::from(label)] {
            continue;
        }
        match ranges.last_mut() {
            Some((first, further)) if *first + *further + 1 == label => *further += 1,
            _ => ranges.push((label, 0)),
        }
    }
    ranges
}

#[derive(Debug)]
struct Removed {
    epoch: u64,
    keys: Chunks,
}

/// What a table knows of epochs and of the snapshots under way.
#[derive(Debug)]
pub struct Epochs {
    /// Of the running epoch.
    pub(super) label: u8,
    epoch: u64,
    /// Entries with each label.
    pub(super) live: Box<[u64; 256]>,
    /// Snapshots under way, oldest first.
    pub(super) runs: Vec<Run>,
    /// By epoch, oldest first. Those of closed epochs do not change.
    removed: VecDeque<Removed>,
    removed_bytes: usize,
    /// Whether removals are kept: not before the first snapshot, which needs none.
    keeps_removed: bool,
    /// Removals of epochs up to this one may be forgotten.
    forgotten_through: u64,
    /// What a snapshot no longer needs, to be freed outside of its synchronous part.
    retired: Vec<Chunks>,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs {
            label: 1,
            epoch: 1,
            live: Box::new([0; 256]),
            runs: Vec::new(),
            removed: VecDeque::new(),
            removed_bytes: 0,
            keeps_removed: false,
            forgotten_through: 0,
            retired: Vec::new(),
        }
    }
}

impl Epochs {
    /// The epoch that runs.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Entries with each label.
    pub fn live(&self) -> &[u64; 256] {
        &self.live
    }

    /// Whether a snapshot is under way.
    pub fn is_running(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Begins an epoch under a label that no entry has and no snapshot under way takes.
    pub fn begin_epoch(&mut self, epoch: u64, label: u8) {
        debug_assert!(self.live[usize::from(label)] == 0, "label {label} is in use");
        debug_assert!(
            self.runs.iter().all(|run| !run.plan.takes[usize::from(label)]),
            "label {label} is taken"
        );
        self.epoch = epoch;
        self.label = label;
    }

    /// Begins a snapshot. From here on what it takes is kept as it is.
    pub fn begin(&mut self, plan: Plan) {
        let stage = Stage::Removed { epoch: plan.after + 1, chunk: 0 };
        let ranges = ranges(&plan.takes);
        self.runs.push(Run { plan, ranges, stage, aside: Chunks::default(), overrun: false });
        self.keeps_removed = true;
    }

    /// Ends a snapshot: its last entry was written, or it is given up.
    pub fn end(&mut self, number: u32) {
        self.runs.retain(|run| run.plan.number != number);
        self.retired.clear();
    }

    /// The bound of what the oldest snapshot under way may put aside, if it was met.
    pub fn overrun(&self) -> Option<usize> {
        self.runs.first().filter(|run| run.overrun).map(|run| run.plan.aside_bytes_max)
    }

    /// Bytes put aside, or kept of removed keys.
    pub fn memory_bytes(&self) -> usize {
        self.removed_bytes + self.runs.iter().map(|run| run.aside.bytes()).sum::<usize>()
    }

    /// From now on removals are kept: there is a base.
    pub fn keep_removed(&mut self) {
        self.keeps_removed = true;
    }

    /// Notes a removal in the running epoch.
    pub(super) fn remove(
        &mut self,
        group: u32,
        table_bytes: impl FnOnce() -> usize,
        key_bytes: Option<usize>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        if !self.keeps_removed {
            return;
        }
        if self.removed.back().is_none_or(|removed| removed.epoch != self.epoch) {
            self.removed.push_back(Removed { epoch: self.epoch, keys: Chunks::default() });
        }
        let keys = &mut self.removed.back_mut().expect("just made").keys;
        let before = keys.bytes();
        keys.push(group, |out| put_sized(out, key_bytes, encode));
        self.removed_bytes += keys.bytes() - before;
        if self.removed_bytes > REMOVED_BYTES_MIN && self.removed_bytes > table_bytes() / 4 {
            self.runs.iter_mut().filter(|run| run.plan.after > 0).for_each(Run::give_up);
            self.retired.extend(self.removed.drain(..).map(|removed| removed.keys));
            self.removed_bytes = 0;
            self.forgotten_through = self.epoch;
        }
    }

    /// Whether a snapshot based on the end of epoch `after` would lack removals.
    pub fn lacks_removed(&self, after: u64) -> bool {
        after < self.forgotten_through
    }

    /// Whether there are removals in epochs above `after`.
    pub fn has_removed(&self, after: u64) -> bool {
        self.removed.iter().any(|removed| removed.epoch > after)
    }

    /// Drops the removals of epochs up to `through`, which no base lacks any more.
    pub fn forget_removed(&mut self, through: u64) {
        // A snapshot under way goes through the chunks of the epochs since its base, if it has one.
        let needed = self.runs.iter().map(|run| run.plan.after).filter(|after| *after > 0).min();
        let through = through.min(needed.unwrap_or(u64::MAX));
        while let Some(first) = self.removed.front()
            && first.epoch <= through
        {
            let first = self.removed.pop_front().expect("just seen");
            self.removed_bytes -= first.keys.bytes();
            self.retired.push(first.keys);
        }
    }

    /// The chunk of removals at or behind a place, with its place; `None` behind the end of epoch `through`.
    pub(super) fn removed_chunk(&self, epoch: u64, chunk: usize, through: u64) -> Option<(u64, usize)> {
        self.removed.iter().filter(|removed| (epoch..=through).contains(&removed.epoch)).find_map(|removed| {
            let chunk = if removed.epoch == epoch { chunk } else { 0 };
            removed.keys.get(chunk).map(|_| (removed.epoch, chunk))
        })
    }

    pub(super) fn removed_keys(&self, epoch: u64) -> &Chunks {
        let found = self.removed.iter().find(|removed| removed.epoch == epoch);
        &found.expect("removed_chunk has found it").keys
    }

    /// Counts entries as having another label, by what `to` says of each.
    pub(super) fn relabel(&mut self, to: &[u8; 256]) {
        let mut live = Box::new([0; 256]);
        for (label, count) in self.live.iter().enumerate() {
            live[usize::from(to[label])] += count;
        }
        self.live = live;
        self.label = to[usize::from(self.label)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_few_ranges() {
        let of = |labels: &[u8]| {
            let mut takes = [false; 256];
            labels.iter().for_each(|label| takes[usize::from(*label)] = true);
            ranges(&takes)
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[0, 1, 2, 7, 254, 255]), [(0, 2), (7, 0), (254, 1)]);
        assert_eq!(ranges(&[true; 256]), [(0, 255)]);
    }

    /// Goal: removals are kept only from the first snapshot on, per epoch, and forgotten by bound or by name.
    #[test]
    fn removals_are_kept_by_epoch() {
        let mut epochs = Epochs::default();
        let remove = |epochs: &mut Epochs, bytes: usize| {
            epochs.remove(3, || 0, None, |out| out.resize(out.len() + bytes, 7));
        };
        remove(&mut epochs, 10);
        assert!(!epochs.has_removed(0) && !epochs.lacks_removed(0));
        epochs.keep_removed();
        remove(&mut epochs, 10);
        epochs.begin_epoch(2, 2);
        remove(&mut epochs, 10);
        assert!(epochs.has_removed(0) && epochs.has_removed(1) && !epochs.has_removed(2));
        epochs.forget_removed(1);
        assert_eq!(epochs.removed_chunk(1, 0, 9), Some((2, 0)));
        assert_eq!(epochs.removed_chunk(2, 1, 9), None);
        epochs.begin_epoch(3, 3);
        remove(&mut epochs, REMOVED_BYTES_MIN);
        assert!(!epochs.has_removed(0) && epochs.lacks_removed(2) && !epochs.lacks_removed(3));
        assert_eq!(epochs.memory_bytes(), 0);
    }
}
