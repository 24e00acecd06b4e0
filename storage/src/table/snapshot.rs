//! Writing what a snapshot takes of a table, and reading it into another.
//!
//! ```text
//! removals of epochs since the base ─► pages, group by group ─► what was put aside
//! ```
//!
//! A page is written as a whole or not yet: it carries the number of the last snapshot that has gone through it, and
//! both halves of a split inherit it. So between two steps the table may change in every way, and growth needs no
//! special care. The entries of an overflow list count as one page, behind those of their group; while a snapshot
//! runs, no entry leaves a list for a page.
//!
//! What is left alone: a group without a change since the base, if nothing is folded; of a page, all slots whose
//! label is not taken, 8 of them in a glance.

use super::delta::{DeltaWriter, Run as EntryRun, Section, SectionKind, Shape, TooLarge, put_sized};
use super::epoch::{Epochs, Plan, Run, Stage};
use super::page::{CAPACITY_LIMIT, Page, prefetch};
use super::{Arena, Table, TableKey, TableValue};
use crate::format::DecodeError;
use std::ops::Range;

/// What a step may do for looking at one page; an entry that is written counts 1.
const PAGE_COST: usize = 8;

/// Entries whose slots are fetched together in a restore.
const BATCH: usize = 32;

/// Labels of pages that are compared range by range; with more ranges each label is looked up.
const RANGES_MAX: usize = 4;

/// A table as its snapshots see it, whatever its keys and values. Called per step, never per record.
pub trait StateTable {
    /// The key groups that it owns.
    fn groups(&self) -> Range<u32>;

    /// Number of entries.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory taken.
    fn memory_bytes(&self) -> usize;

    /// Sizes of its encoded keys and values.
    fn shape(&self) -> Shape;

    /// What it knows of epochs.
    fn epochs(&self) -> &Epochs;

    /// To begin an epoch or end a snapshot.
    fn epochs_mut(&mut self) -> &mut Epochs;

    /// Begins a snapshot.
    fn begin(&mut self, plan: Plan);

    /// Goes on with the oldest snapshot under way, until `budget`, counted down by 1 an entry, is used up, or a frame
    /// is ready. True when all is written. `number` stands for the table in the frames.
    ///
    /// # Errors
    ///
    /// An entry that fits no frame; the snapshot must be ended.
    fn write(&mut self, number: u16, out: &mut DeltaWriter, budget: &mut usize) -> Result<bool, TooLarge>;

    /// Applies a section to the entries of some of the groups that it owns: an entry replaces what was there.
    /// Returns how many it has applied.
    ///
    /// # Errors
    ///
    /// The bytes are not of a table of this kind. Some may have been applied.
    fn apply(&mut self, section: Section<'_>, groups: &Range<u32>) -> Result<u64, DecodeError>;

    /// Replaces all labels, by what `to` says of each. No snapshot is under way. Takes as long as the table is
    /// large: one byte an entry is written.
    fn relabel(&mut self, to: &[u8; 256]);
}

fn encode_entry<K: TableKey, V: TableValue>(
    cell: &K::Cell,
    value: &V,
    keys: &Arena,
    blobs: &Arena,
    out: &mut Vec<u8>,
) {
    put_sized(out, K::ENCODED_BYTES, |out| K::encode(cell, keys, out));
    put_sized(out, V::ENCODED_BYTES, |out| value.encode(blobs, out));
}

impl<K: TableKey, V: TableValue> StateTable for Table<K, V> {
    fn groups(&self) -> Range<u32> {
        Table::groups(self)
    }

    fn len(&self) -> usize {
        Table::len(self)
    }

    fn memory_bytes(&self) -> usize {
        Table::memory_bytes(self)
    }

    fn shape(&self) -> Shape {
        Shape { key_bytes: K::ENCODED_BYTES, value_bytes: V::ENCODED_BYTES }
    }

    fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    fn epochs_mut(&mut self) -> &mut Epochs {
        &mut self.epochs
    }

    fn begin(&mut self, plan: Plan) {
        self.encode = Some(encode_entry::<K, V>);
        self.epochs.begin(plan);
    }

    fn write(&mut self, number: u16, out: &mut DeltaWriter, budget: &mut usize) -> Result<bool, TooLarge> {
        // Taken out, since what is written lies beside it.
        let mut runs = std::mem::take(&mut self.epochs.runs);
        let result = match runs.first_mut() {
            Some(run) => self.write_run(run, number, out, budget),
            None => Ok(true),
        };
        self.epochs.runs = runs;
        result
    }

    fn apply(&mut self, mut section: Section<'_>, groups: &Range<u32>) -> Result<u64, DecodeError> {
        let (own, shape) = (StateTable::shape(self), section.shape);
        if own != shape {
            return Err(section.input.error(format!("entries of {shape:?} for a table of {own:?}")));
        }
        let mut applied = 0;
        match section.kind {
            SectionKind::Runs => {
                while let Some(run) = section.next_run()? {
                    if groups.contains(&run.group) {
                        applied += run.count as u64;
                        self.apply_run(run)?;
                    }
                }
            }
            SectionKind::Loose | SectionKind::Removals => {
                let input = &mut section.input;
                while !input.is_empty() {
                    let group = u32::from(input.u16()?);
                    let key = input.sized(K::ENCODED_BYTES)?;
                    let Some(key) = K::decode(key) else { return Err(input.error("no such key")) };
                    if section.kind == SectionKind::Loose {
                        let value = input.sized(V::ENCODED_BYTES)?;
                        if groups.contains(&group) {
                            self.replace(group, K::hash(key), key, value)?;
                            applied += 1;
                        }
                    } else if groups.contains(&group)
                        && let Some(value) = self.remove(group, key)
                    {
                        value.discard(&mut self.blobs);
                        applied += 1;
                    }
                }
            }
        }
        Ok(applied)
    }

    fn relabel(&mut self, to: &[u8; 256]) {
        assert!(!self.epochs.is_running(), "labels are replaced between snapshots");
        for index in 0..=self.group_mask as usize {
            // SAFETY: groups live as long as the table, the directory has `dir_mask + 1` pages, and all have the
            // mask of the group. Nobody else has a reference to a label. The page of a group without one is
            // passed by, having no entry.
            unsafe {
                let group = &*self.group(index);
                for place in 0..=group.dir_mask {
                    let page = *group.dir.add(place as usize);
                    if place >> (*page.head()).depth == 0 && (*page.head()).count > 0 {
                        for label in page.labels(group.slot_mask) {
                            *label = to[usize::from(*label)];
                        }
                    }
                }
            }
        }
        for entry in self.overflow.values().flatten() {
            entry.label.set(to[usize::from(entry.label.get())]);
        }
        self.epochs.relabel(to);
    }
}

impl<K: TableKey, V: TableValue> Table<K, V> {
    fn write_run(
        &mut self,
        run: &mut Run,
        number: u16,
        out: &mut DeltaWriter,
        budget: &mut usize,
    ) -> Result<bool, TooLarge> {
        let shape = StateTable::shape(self);
        while *budget > 0 && out.ready_count() == 0 {
            match run.stage {
                Stage::Removed { epoch, chunk } => {
                    // Behind no base there is nothing to remove.
                    let next = match run.plan.after {
                        0 => None,
                        _ => self.epochs.removed_chunk(epoch, chunk, run.plan.through),
                    };
                    let Some((epoch, chunk)) = next else {
                        run.stage = Stage::Pages { group: 0, place: 0 };
                        continue;
                    };
                    let keys = self.epochs.removed_keys(epoch).get(chunk).expect("just found");
                    out.chunk(number, shape, SectionKind::Removals, keys)?;
                    run.stage = Stage::Removed { epoch, chunk: chunk + 1 };
                    *budget = budget.saturating_sub(keys.count());
                }
                Stage::Pages { group, place } => {
                    run.stage = self.write_place(run, group, place, number, out, budget)?;
                }
                Stage::Aside => {
                    let Some(chunk) = run.aside.pop() else {
                        run.stage = Stage::Done;
                        continue;
                    };
                    out.chunk(number, shape, SectionKind::Loose, &chunk)?;
                    *budget = budget.saturating_sub(chunk.count());
                }
                Stage::Done => return Ok(true),
            }
        }
        Ok(run.stage == Stage::Done)
    }

    /// Writes a page, or passes one or more by; says where to go on.
    fn write_place(
        &mut self,
        run: &Run,
        nth: u32,
        place: u32,
        number: u16,
        out: &mut DeltaWriter,
        budget: &mut usize,
    ) -> Result<Stage, TooLarge> {
        if nth == self.group_count {
            return Ok(Stage::Aside);
        }
        let plan = &run.plan;
        let group = self.first_group + nth;
        let index = self.index(group);
        let next_group = Stage::Pages { group: nth + 1, place: 0 };
        *budget -= 1;
        // SAFETY: groups live as long as the table.
        let (dir, dir_mask, mask, changed) = unsafe {
            let group = &*self.group(index);
            (group.dir, group.dir_mask, group.slot_mask, group.changed)
        };
        // A difference, since the counter wraps; a group can only seem to have changed.
        let unchanged = (changed.wrapping_sub(plan.after as u32) as i32) <= 0;
        if place == 0 && plan.after > 0 && unchanged && !plan.folds_any {
            return Ok(next_group);
        }
        if place > dir_mask {
            *budget = budget.saturating_sub(self.write_overflow(run, group, index, number, out)?);
            return Ok(next_group);
        }
        let next_place = Stage::Pages { group: nth, place: place + 1 };
        // SAFETY: the directory has `dir_mask + 1` pages, all live, with the mask of the group.
        unsafe {
            if place < dir_mask {
                (*dir.add(place as usize + 1)).prefetch_labels(mask);
            }
            let page = *dir.add(place as usize);
            let head = page.head();
            // A page is gone through at the first of its places only. One without entries may be the table's own,
            // and one that was split since it was written is in two places.
            let elsewhere = place >> (*head).depth != 0;
            if elsewhere || (*head).count == 0 || (*head).written >= plan.number {
                return Ok(next_place);
            }
            let taken = self.write_page(run, page, mask, group, number, out)?;
            *budget = budget.saturating_sub(taken + PAGE_COST);
        }
        Ok(next_place)
    }

    /// Writes what a snapshot takes of a page; returns how many entries.
    ///
    /// # Safety
    ///
    /// The page is live, of `group`, and `mask` its own.
    unsafe fn write_page(
        &mut self,
        run: &Run,
        page: Page<K::Cell, V>,
        mask: u32,
        group: u32,
        number: u16,
        out: &mut DeltaWriter,
    ) -> Result<usize, TooLarge> {
        let shape = Shape { key_bytes: K::ENCODED_BYTES, value_bytes: V::ENCODED_BYTES };
        let (plan, mut taken, mut folded) = (&run.plan, 0, false);
        // SAFETY: as the caller vouches; the table is borrowed, so nobody changes a label, slot or head meanwhile.
        // Cells of all slots are initialised, and values of those that are not vacant.
        unsafe {
            let labels = page.labels(mask);
            let mut hits = [0u8; CAPACITY_LIMIT];
            mark(run, labels, &mut hits);
            for (eight, hits) in hits.as_chunks::<8>().0[..labels.len() / 8].iter().enumerate() {
                let mut hits = u64::from_le_bytes(*hits);
                while hits != 0 {
                    // Each byte is 0 or 1.
                    let at = eight * 8 + hits.trailing_zeros() as usize / 8;
                    hits &= hits - 1;
                    // The label of slot 0 is the last.
                    let slot = &*page.slot(mask as usize - at);
                    if K::is_vacant_cell(&slot.cell) {
                        continue;
                    }
                    let value = slot.value.assume_init_ref();
                    out.entry(number, shape, group, |out| {
                        encode_entry::<K, V>(&slot.cell, value, &self.keys, &self.blobs, out);
                    })?;
                    taken += 1;
                    if plan.folds[usize::from(labels[at])] {
                        self.epochs.live[usize::from(labels[at])] -= 1;
                        self.epochs.live[usize::from(plan.fold_label)] += 1;
                        labels[at] = plan.fold_label;
                        folded = true;
                    }
                }
            }
            if taken > 0 {
                (*page.head()).written = plan.number;
            }
        }
        if folded {
            self.note_fold(group, plan);
        }
        Ok(taken)
    }

    fn write_overflow(
        &mut self,
        run: &Run,
        group: u32,
        index: usize,
        number: u16,
        out: &mut DeltaWriter,
    ) -> Result<usize, TooLarge> {
        let (plan, mut taken) = (&run.plan, 0);
        let shape = StateTable::shape(self);
        for entry in self.overflow.get(&(index as u32)).into_iter().flatten() {
            let label = entry.label.get();
            if !plan.takes[usize::from(label)] {
                continue;
            }
            // SAFETY: the table is borrowed, so nobody changes the entry; both parts were written.
            let (cell, value) =
                unsafe { (&(*entry.slot.get()).cell, (*entry.slot.get()).value.assume_init_ref()) };
            out.entry(number, shape, group, |out| {
                encode_entry::<K, V>(cell, value, &self.keys, &self.blobs, out);
            })?;
            taken += 1;
            if plan.folds[usize::from(label)] {
                self.epochs.live[usize::from(label)] -= 1;
                self.epochs.live[usize::from(plan.fold_label)] += 1;
                entry.label.set(plan.fold_label);
            }
        }
        if taken > 0 {
            self.note_fold(group, plan);
        }
        Ok(taken)
    }

    /// What was folded counts as changed in the snapshot's epoch.
    fn note_fold(&mut self, group: u32, plan: &Plan) {
        let group = self.group(self.index(group));
        let through = plan.through as u32;
        // SAFETY: groups live as long as the table.
        unsafe {
            if (through.wrapping_sub((*group).changed) as i32) > 0 {
                (*group).changed = through;
            }
        }
    }

    fn apply_run(&mut self, run: EntryRun<'_>) -> Result<(), DecodeError> {
        let EntryRun { group, count, mut input } = run;
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            left -= batch;
            let mut found: [Option<(u64, K::Ref<'_>, &[u8])>; BATCH] = [None; BATCH];
            for entry in &mut found[..batch] {
                let key = input.sized(K::ENCODED_BYTES)?;
                let Some(key) = K::decode(key) else { return Err(input.error("no such key")) };
                let value = input.sized(V::ENCODED_BYTES)?;
                let hash = K::hash(key);
                self.prefetch(group, hash);
                *entry = Some((hash, key, value));
            }
            for (hash, key, value) in found[..batch].iter().flatten() {
                self.replace(group, *hash, *key, value)?;
            }
        }
        if !input.is_empty() {
            return Err(input.error("a run goes on behind its last entry"));
        }
        Ok(())
    }

    #[inline]
    fn replace(&mut self, group: u32, hash: u64, key: K::Ref<'_>, value: &[u8]) -> Result<(), DecodeError> {
        let value = V::decode(value, &mut self.blobs)?;
        let mut is_new = false;
        let place = self.entry_hashed(group, hash, key, || {
            is_new = true;
            value
        });
        if !is_new {
            let old = std::mem::replace(place, value);
            old.discard(&mut self.blobs);
        }
        Ok(())
    }
}

/// Writes 1 for each label that is taken, 0 for others.
fn mark(run: &Run, labels: &[u8], hits: &mut [u8; CAPACITY_LIMIT]) {
    let hits = &mut hits[..labels.len()];
    if run.ranges.len() > RANGES_MAX {
        for (hit, label) in hits.iter_mut().zip(labels) {
            *hit = run.plan.takes[usize::from(*label)].into();
        }
        return;
    }
    // One pass a range, over bytes in 16 at a time.
    for (first, further) in &run.ranges {
        for (hit, label) in hits.iter_mut().zip(labels) {
            *hit |= u8::from(label.wrapping_sub(*first) <= *further);
        }
    }
}

impl<C: Copy + 'static, V: Copy> Page<C, V> {
    /// Asks for the head and all labels.
    ///
    /// # Safety
    ///
    /// The page is live and `mask` its own.
    unsafe fn prefetch_labels(self, mask: u32) {
        // SAFETY: as the caller vouches.
        let first = unsafe { self.label(mask as usize) };
        for line in 0..=(mask as usize + 1).div_ceil(64) {
            prefetch(first.wrapping_add(line * 64));
        }
    }
}
