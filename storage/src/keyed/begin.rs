//! The synchronous part of a snapshot: what it takes is settled, and an epoch begins.
//!
//! Its cost is that of the 256 labels and the list of at most 64 deltas, for each table; the entries are not
//! looked at.

use super::{ASIDE_BYTES_MIN, Delta, KeyedBackend, RUNNING_MAX, Running, SnapshotError};
use crate::log::index::FrameIndex;
use crate::log::reclaim;
use crate::table::StateTable;
use crate::table::epoch::Plan;
use std::sync::Arc;

impl KeyedBackend {
    /// Begins the snapshot of a checkpoint: the state is cut here, between two records.
    ///
    /// `base` is the checkpoint that had completed last when the barrier was sent, 0 if none. The delta holds what
    /// changed since; everything if that snapshot is not known here, or if `full`, in which case the list is this
    /// one delta.
    ///
    /// # Errors
    ///
    /// No snapshot was begun.
    ///
    /// # Panics
    ///
    /// If the checkpoint is not newer than all others.
    pub fn begin(
        &mut self,
        tables: &mut [&mut dyn StateTable],
        checkpoint: u64,
        base: u64,
        full: bool,
    ) -> Result<(), SnapshotError> {
        let newest = [self.running.back().map(|run| run.checkpoint), self.taken.back().map(|t| t.checkpoint)];
        assert!(
            newest.iter().flatten().all(|id| *id < checkpoint),
            "checkpoint {checkpoint} after {newest:?}"
        );
        assert!(base < checkpoint, "checkpoint {checkpoint} on base {base}");
        if self.running.len() == RUNNING_MAX {
            return Err(SnapshotError::TooManyRunning { checkpoint });
        }
        self.taken.retain(|taken| taken.checkpoint >= base);
        let known = self.taken.front().filter(|taken| taken.checkpoint == base && !full);
        let known =
            known.filter(|taken| !tables.iter().any(|table| table.epochs().lacks_removed(taken.through)));
        let (mut after, mut list) = match known {
            Some(taken) => (taken.through, taken.deltas.clone()),
            None => (0, Vec::new()),
        };
        if list.is_empty() {
            // On an empty base everything is new, and there is nothing that removals could be of.
            after = 0;
        }

        let mut live = sum_live(tables);
        let changed: u64 =
            (0..256).filter(|label| self.epochs[*label] > after).map(|label| live[label]).sum();
        let removed = after > 0 && tables.iter().any(|table| table.epochs().has_removed(after));
        let mut fold_epochs = Vec::new();
        let mut folds_any = false;
        if changed > 0 || removed {
            let deltas: Vec<_> = list.iter().map(|delta| self.measure(delta, &live)).collect();
            let folded = reclaim::fold(&deltas, changed * mean_bytes(tables, &list));
            folds_any = deltas.iter().zip(&folded).any(|(delta, folded)| *folded && delta.live_bytes > 0);
            let mut at = 0;
            list.retain(|delta| {
                at += 1;
                if folded[at - 1] {
                    fold_epochs.push((delta.after, delta.through));
                }
                !folded[at - 1]
            });
        }

        // The running epoch ends if anything was changed in it, or is to be folded into it.
        let touched = live[usize::from(self.label)] > 0
            || folds_any
            || tables.iter().any(|table| table.epochs().has_removed(self.epoch - 1));
        let through = if touched { self.epoch } else { self.epoch - 1 };
        let fold_label = self.label;
        if touched {
            let label = match self.free_label(&live) {
                Some(label) => label,
                None if self.running.is_empty() => {
                    self.relabel(tables, &live);
                    live = sum_live(tables);
                    self.free_label(&live).expect("no more labels are left than deltas")
                }
                None => return Err(SnapshotError::NoLabel { checkpoint }),
            };
            self.epoch += 1;
            self.label = label;
            self.epochs[usize::from(label)] = self.epoch;
            tables.iter_mut().for_each(|table| table.epochs_mut().begin_epoch(self.epoch, label));
        }

        let folds = self.labels(|epoch| fold_epochs.iter().any(|(after, to)| epoch > *after && epoch <= *to));
        let mut takes = self.labels(|epoch| epoch > after && epoch <= through);
        takes.iter_mut().zip(&folds[..]).for_each(|(takes, folds)| *takes |= folds);
        self.number += 1;
        let empty = changed == 0 && !removed;
        if !empty {
            for table in tables.iter_mut() {
                let quarter = (table.memory_bytes() / 4).max(ASIDE_BYTES_MIN);
                table.begin(Plan {
                    number: self.number,
                    takes: takes.clone(),
                    folds: folds.clone(),
                    folds_any,
                    fold_label,
                    after,
                    through,
                    aside_bytes_max: self.aside_bytes_max.unwrap_or(quarter),
                });
            }
        }
        tables.iter_mut().for_each(|table| table.epochs_mut().keep_removed());
        self.running.push_back(Running {
            checkpoint,
            number: self.number,
            after,
            through,
            takes,
            kept: list,
            table: if empty { tables.len() } else { 0 },
            index: FrameIndex::default(),
            entries: 0,
            removals: 0,
            written_bytes: 0,
            span: None,
            state: None,
            done: empty,
        });
        // What any base to come has already needs no removals any more.
        let bases = self.taken.iter().map(|taken| taken.through);
        let oldest = bases.chain(self.running.iter().map(|run| run.through)).min().unwrap_or(through);
        tables.iter_mut().for_each(|table| table.epochs_mut().forget_removed(oldest));
        Ok(())
    }

    /// Labels whose last epoch is one that `is` says.
    fn labels(&self, is: impl Fn(u64) -> bool) -> Box<[bool; 256]> {
        let mut labels = Box::new([false; 256]);
        for (label, epoch) in labels.iter_mut().zip(&self.epochs[..]) {
            *label = *epoch > 0 && is(*epoch);
        }
        labels
    }

    /// A label that no entry has and no snapshot under way takes: the next one after the running epoch's, so that
    /// those of a base's time lie together.
    fn free_label(&self, live: &[u64; 256]) -> Option<u8> {
        (1..=255).map(|step| self.label.wrapping_add(step)).find(|label| {
            let at = usize::from(*label);
            live[at] == 0 && self.running.iter().all(|run| !run.takes[at])
        })
    }

    /// What is alive of a delta.
    fn measure(&self, delta: &Delta, live: &[u64; 256]) -> reclaim::Delta {
        let of_delta =
            |label: &usize| self.epochs[*label] > delta.after && self.epochs[*label] <= delta.through;
        let alive: u64 = (0..256).filter(of_delta).map(|label| live[label]).sum();
        let share = u128::from(delta.bytes) * u128::from(alive) / u128::from(delta.entries.max(alive).max(1));
        // Never 0 while an entry lives.
        let live_bytes = (share as u64).max(alive.min(1));
        reclaim::Delta { bytes: delta.bytes, live_bytes, removes: delta.removes }
    }

    /// Frees labels: entries that no snapshot to come will tell apart get the same one. Entries of one delta of the
    /// oldest possible base get that of the delta's newest, and so do those newer than this base.
    ///
    /// Writes a byte for each entry, some milliseconds for ten millions; it is needed only after some 190
    /// checkpoints in a row that were begun and not completed.
    fn relabel(&mut self, tables: &mut [&mut dyn StateTable], live: &[u64; 256]) {
        let base = self.taken.front();
        let class = |epoch: u64| {
            let of = |delta: &Arc<Delta>| epoch > delta.after && epoch <= delta.through;
            base.filter(|base| epoch <= base.through).and_then(|base| base.deltas.iter().position(of))
        };
        let mut to = [0; 256];
        for (label, to) in to.iter_mut().enumerate() {
            let newest = (0..256)
                .filter(|other| *other == label || (live[*other] > 0 && self.epochs[*other] > 0))
                .filter(|other| class(self.epochs[*other]) == class(self.epochs[label]))
                .max_by_key(|other| self.epochs[*other]);
            *to = newest.unwrap_or(label) as u8;
        }
        to[usize::from(self.label)] = self.label;
        tables.iter_mut().for_each(|table| table.relabel(&to));
        self.relabelled += 1;
    }
}

fn sum_live(tables: &[&mut dyn StateTable]) -> [u64; 256] {
    let mut sums = [0; 256];
    for table in tables {
        sums.iter_mut().zip(table.epochs().live()).for_each(|(sum, live)| *sum += live);
    }
    sums
}

/// Bytes of an entry, where sizes differ as seen in the deltas so far.
fn mean_bytes(tables: &[&mut dyn StateTable], list: &[Arc<Delta>]) -> u64 {
    let fixed: Option<Vec<usize>> = tables.iter().map(|table| table.shape().entry_bytes()).collect();
    if let Some(fixed) = fixed.filter(|fixed| fixed.len() == 1) {
        return fixed[0] as u64;
    }
    let (bytes, entries) = list.iter().fold((0, 0), |(b, e), delta| (b + delta.bytes, e + delta.entries));
    bytes / entries.max(1) + 1
}
