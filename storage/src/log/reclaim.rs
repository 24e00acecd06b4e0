//! Which files nothing needs any more, and how much of its oldest frames a snapshot should write again.
//!
//! The log is never read in order to be cleaned: what is still alive of old frames is in memory, and the next
//! snapshot writes it again. A subtask's state in a checkpoint is an ordered list of *deltas*; some of them are
//! folded into the new one when the list grows too long or too little of it is alive.

#![forbid(unsafe_code)]

use super::file::FileKind;
use crate::handle::Incarnation;
use std::collections::BTreeSet;

/// A file that is no longer written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedFile {
    /// Which.
    pub incarnation: Incarnation,
    /// Whose frames are in it.
    pub kind: FileKind,
    /// The largest checkpoint id of its frames.
    pub last_checkpoint: u64,
}

/// What files are needed for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Files of retained checkpoints, of uploads under way, and of the checkpoints that pending ones are based on.
    pub in_use: BTreeSet<Incarnation>,
    /// The oldest checkpoint that may still complete; with none pending, the next id. Frames of it and of later
    /// ones are named by nobody yet.
    pub oldest_pending: u64,
    /// Up to this id completed checkpoints are published, and need no commit in the log.
    pub published: u64,
}

/// The files that nothing needs.
pub fn unneeded(sealed: impl Iterator<Item = SealedFile>, needs: &Needs) -> Vec<Incarnation> {
    let free = |file: &SealedFile| match file.kind {
        FileKind::Data => {
            !needs.in_use.contains(&file.incarnation) && file.last_checkpoint < needs.oldest_pending
        }
        FileKind::Commits => file.last_checkpoint <= needs.published,
    };
    sealed.filter(free).map(|file| file.incarnation).collect()
}

/// One delta of a subtask's list: a snapshot's frames, or a part of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    /// Bytes of its frames.
    pub bytes: u64,
    /// Bytes of its entries that no later delta has replaced.
    pub live_bytes: u64,
    /// Whether it removes keys: they could come back from an older delta if it were left out.
    pub removes: bool,
}

/// Most deltas in one list: what a restore has to merge.
pub const DELTAS_MAX: usize = 64;

/// The share of a list's bytes that stays alive. Above the promised 40 %, since files are freed as wholes and the
/// one that is being written is never free.
pub const LIVE_SHARE_MIN: f64 = 0.6;

/// Of deltas that cost nearly the same the youngest is folded, and this is nearly: in a workload whose changes
/// move through the keys, old ones die by themselves.
const NEARLY: f64 = 1.06;

/// Which of `deltas` (in order, oldest first) the next snapshot folds into its own delta of `new_bytes`, of which
/// it already knows which old entries it replaces: `live_bytes` leave those out.
///
/// As few bytes as keep the list within [`DELTAS_MAX`] and at least [`LIVE_SHARE_MIN`] of its bytes alive: what has
/// nothing alive goes for nothing; where the list is too long, the delta with the least alive; where too little is
/// alive, the one whose folding frees the most for what it costs. One that removes keys only behind all before it.
pub fn fold(deltas: &[Delta], new_bytes: u64) -> Vec<bool> {
    let live: u64 = deltas.iter().map(|delta| delta.live_bytes).sum::<u64>() + new_bytes;
    let mut bytes: u64 = deltas.iter().map(|delta| delta.bytes).sum::<u64>() + new_bytes;
    let mut folded = vec![false; deltas.len()];
    let mut kept = deltas.len();
    loop {
        let oldest = folded.iter().position(|folded| !folded).unwrap_or(deltas.len());
        let mut candidates =
            (oldest..deltas.len()).filter(|at| !folded[*at] && (*at == oldest || !deltas[*at].removes));
        let too_dead = (live as f64) < bytes as f64 * LIVE_SHARE_MIN;
        let chosen = match candidates.clone().find(|at| deltas[*at].live_bytes == 0) {
            Some(dead) => Some(dead),
            None if kept + 1 > DELTAS_MAX => {
                let least = candidates.clone().map(|at| deltas[at].live_bytes).min();
                let nearly = least.map_or(0, |least| (least as f64 * NEARLY) as u64);
                candidates.rfind(|at| deltas[*at].live_bytes <= nearly)
            }
            None if too_dead => {
                let gain = |delta: &Delta| delta.bytes.saturating_sub(delta.live_bytes) as f64;
                let worth = |at: usize| gain(&deltas[at]) / deltas[at].live_bytes as f64;
                candidates.max_by(|a, b| worth(*a).total_cmp(&worth(*b)))
            }
            None => None,
        };
        let Some(chosen) = chosen else { return folded };
        folded[chosen] = true;
        kept -= 1;
        bytes = (bytes + deltas[chosen].live_bytes).saturating_sub(deltas[chosen].bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame_stored_bytes;

    /// Goal: over 1,000 checkpoints at least 40 % of the log is alive, the list is bounded, and what is written
    /// beyond the changes stays a fraction of it.
    /// Method: 40,000 entries of 16 bytes. Each checkpoint changes 1 %, at random or in a moving window, or all
    /// of them now and then, and folds what the policy says. The log's bytes are those of all files that the
    /// last three checkpoints need, of 64 KiB each.
    #[test]
    fn over_1000_checkpoints_two_fifths_of_the_log_are_alive() {
        const KEYS: u64 = 40_000;
        const ENTRY: u64 = 16;
        const FILE: u64 = 64 << 10;
        for shape in ["uniform", "window", "bursts"] {
            let mut newest = vec![0usize; KEYS as usize];
            let mut live: Vec<u64> = vec![KEYS];
            let mut stored: Vec<u64> = vec![frame_stored_bytes((KEYS * ENTRY) as usize) as u64];
            // Where each delta lies in an endless log, and the list that each checkpoint holds.
            let mut place: Vec<(u64, u64)> = vec![(0, stored[0])];
            let mut end = stored[0];
            let mut list: Vec<usize> = vec![0];
            let mut retained: Vec<Vec<usize>> = vec![list.clone()];
            let (mut changes, mut written) = (0u64, 0u64);
            let mut seed = 1u64;
            let mut draw = |n: u64| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) % n
            };
            let mut worst = 1f64;
            for id in 1..=1000u64 {
                let all = shape == "bursts" && id % 100 == 0;
                let count = if all { KEYS } else { KEYS / 100 };
                let changed: BTreeSet<u64> = (0..count)
                    .map(|i| match shape {
                        "window" => (id * count + i) % KEYS,
                        _ if all => i,
                        _ => draw(KEYS),
                    })
                    .collect();
                let me = live.len();
                live.push(0);
                for key in &changed {
                    live[newest[*key as usize]] -= 1;
                    live[me] += 1;
                    newest[*key as usize] = me;
                }
                let deltas: Vec<Delta> = list
                    .iter()
                    .map(|d| Delta { bytes: stored[*d], live_bytes: live[*d] * ENTRY, removes: false })
                    .collect();
                let folded = fold(&deltas, live[me] * ENTRY);
                for at in (0..list.len()).rev().filter(|at| folded[*at]) {
                    let delta = list.remove(at);
                    live[me] += std::mem::take(&mut live[delta]);
                    newest.iter_mut().filter(|d| **d == delta).for_each(|d| *d = me);
                }
                stored.push(frame_stored_bytes((live[me] * ENTRY) as usize) as u64);
                place.push((end, end + stored[me]));
                end += stored[me];
                list.push(me);
                changes += changed.len() as u64 * ENTRY;
                written += stored[me];
                retained.push(list.clone());
                if retained.len() > 3 {
                    retained.remove(0);
                }
                assert!(list.len() <= DELTAS_MAX);
                let files: BTreeSet<u64> = retained
                    .iter()
                    .flatten()
                    .flat_map(|d| place[*d].0 / FILE..=(place[*d].1 - 1) / FILE)
                    .collect();
                let share = (KEYS * ENTRY) as f64 / (files.len() as u64 * FILE) as f64;
                worst = worst.min(if id > 10 { share } else { 1.0 });
            }
            eprintln!(
                "{shape}: at least {:.0} % alive, {:.2} bytes written for one changed",
                worst * 100.0,
                written as f64 / changes as f64
            );
            // With everything dirty at once, three retained checkpoints hold up to three times the state.
            let least = if shape == "bursts" { 0.2 } else { 0.4 };
            assert!(worst >= least, "{shape}: {worst}");
            assert!(written < changes * 6, "{shape}: {written} for {changes}");
        }
    }
}
