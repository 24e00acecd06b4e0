//! Alignment: which channels' barriers have come, and what follows from each.
//!
//! Events in, actions out; it knows no channel but by number, reads no clock and blocks nobody. A barrier that
//! blocks has closed its channel at the sender already, so that nothing waits here: the handler only says when
//! the sender may go on, once for each barrier that was read, whatever has become of its checkpoint.
//!
//! ```text
//! barrier of 7 on channel 0 ─► pending 7: 1 of 3
//! barrier of 7 on channel 2 ─► pending 7: 2 of 3
//! channel 1 ends            ─► resume 0, resume 2, start 7
//! barrier of 7 on channel 0, after abort 7 ─► resume 0
//! ```
//!
//! At least once is the same with barriers that do not block: then several checkpoints may be pending, since a
//! channel's next barrier can come before another's first.

use super::{Barrier, CheckpointId};
use std::collections::{BTreeSet, VecDeque};

/// All barriers of a checkpoint have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aligned {
    /// The barrier, to be sent on.
    pub barrier: Barrier,
    /// When the first one was read, in nanoseconds.
    pub first_ns: u64,
    /// When the last one was read, or the last channel without it ended, in nanoseconds.
    pub last_ns: u64,
    /// The channel of the last one.
    pub last_channel: u32,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Let the sender of this channel go on behind the barrier.
    Resume(u32, CheckpointId),
    /// Take the snapshot. Comes after the `Resume`s of its barriers, since the senders need not wait for it.
    Start(Aligned),
    /// A newer barrier has come before all of this one had: it is not waited for any longer.
    Subsumed {
        /// The one given up.
        old: CheckpointId,
        /// The one that came.
        newer: CheckpointId,
    },
}

struct Pending {
    barrier: Barrier,
    first_ns: u64,
    /// For each channel, whether its barrier has come.
    came: Vec<bool>,
    missing: u32,
}

/// The barriers of one gate.
pub struct BarrierHandler {
    ended: Vec<bool>,
    /// For each channel, the last barrier that was read.
    seen: Vec<Option<CheckpointId>>,
    /// For each channel, the blocking barrier that was read and not resumed.
    blocked: Vec<Option<CheckpointId>>,
    /// Oldest first.
    pending: VecDeque<Pending>,
    /// The newest checkpoint that was started or subsumed: no older one will be.
    newest: Option<CheckpointId>,
    /// Given up by the coordinator, above `newest`.
    aborted: BTreeSet<CheckpointId>,
}

impl BarrierHandler {
    /// For a gate of so many channels.
    pub fn new(channels: u32) -> Self {
        BarrierHandler {
            ended: vec![false; channels as usize],
            seen: vec![None; channels as usize],
            blocked: vec![None; channels as usize],
            pending: VecDeque::new(),
            newest: None,
            aborted: BTreeSet::new(),
        }
    }

    /// A barrier was read from a channel.
    pub fn barrier(&mut self, channel: u32, barrier: Barrier, now_ns: u64, out: &mut Vec<Action>) {
        let id = barrier.checkpoint;
        self.seen[channel as usize] = Some(id);
        if barrier.blocks {
            let before = self.blocked[channel as usize].replace(id);
            assert_eq!(before, None, "channel {channel} sent {id:?} behind a barrier that blocks it");
        }
        if self.newest.is_some_and(|newest| id <= newest) {
            return self.resume(id, out);
        }
        // A barrier that a channel has passed over does not come on it any more.
        let mut at = 0;
        while at < self.pending.len() && self.pending[at].barrier.checkpoint < id {
            if self.pending[at].came[channel as usize] && !barrier.blocks {
                at += 1;
            } else {
                let old = self.pending.remove(at).expect("the index is within").barrier.checkpoint;
                self.subsume(old, id, out);
            }
        }
        if self.aborted.contains(&id) {
            return self.resume(id, out);
        }
        if self.pending.get(at).is_none_or(|pending| pending.barrier.checkpoint != id) {
            if let Some(newer) = self.seen.iter().flatten().find(|newer| **newer > id).copied() {
                // Its channel has passed this one over.
                return self.subsume(id, newer, out);
            }
            let missing = self.ended.iter().filter(|ended| !**ended).count() as u32;
            let came = self.ended.clone();
            self.pending.push_back(Pending { barrier, first_ns: now_ns, came, missing });
        }
        self.came(at, channel, now_ns, out);
    }

    /// A channel has ended: it counts as if its barrier had come, for all checkpoints.
    pub fn end(&mut self, channel: u32, now_ns: u64, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.ended[channel as usize], true) {
            return;
        }
        // Newest first: a checkpoint that starts takes the older ones out.
        for at in (0..self.pending.len()).rev() {
            if at < self.pending.len() {
                self.came(at, channel, now_ns, out);
            }
        }
    }

    /// The coordinator has given a checkpoint up.
    pub fn abort(&mut self, id: CheckpointId, out: &mut Vec<Action>) {
        self.pending.retain(|pending| pending.barrier.checkpoint != id);
        if self.newest.is_none_or(|newest| id > newest) {
            self.aborted.insert(id);
        }
        self.resume(id, out);
    }

    /// Whether every channel has ended.
    pub fn all_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    /// The checkpoint whose barriers are waited for, and how many channels it waits for.
    pub fn waiting(&self) -> Option<(CheckpointId, u32)> {
        self.pending.front().map(|pending| (pending.barrier.checkpoint, pending.missing))
    }

    fn came(&mut self, at: usize, channel: u32, now_ns: u64, out: &mut Vec<Action>) {
        let pending = &mut self.pending[at];
        if !std::mem::replace(&mut pending.came[channel as usize], true) {
            pending.missing -= 1;
        }
        if pending.missing > 0 {
            return;
        }
        let pending = self.pending.remove(at).expect("it was just looked at");
        let id = pending.barrier.checkpoint;
        while let Some(old) = self.pending.front().map(|old| old.barrier.checkpoint).filter(|old| *old < id) {
            self.pending.pop_front();
            self.subsume(old, id, out);
        }
        self.close(id);
        self.resume(id, out);
        let Pending { barrier, first_ns, .. } = pending;
        out.push(Action::Start(Aligned { barrier, first_ns, last_ns: now_ns, last_channel: channel }));
    }

    fn subsume(&mut self, old: CheckpointId, newer: CheckpointId, out: &mut Vec<Action>) {
        // Not older than those that are still waited for, where several are.
        self.aborted.insert(old);
        self.resume(old, out);
        out.push(Action::Subsumed { old, newer });
    }

    /// No barrier of `id` or an older one counts any more.
    fn close(&mut self, id: CheckpointId) {
        self.newest = self.newest.max(Some(id));
        self.aborted = self.aborted.split_off(&id);
        self.aborted.remove(&id);
    }

    fn resume(&mut self, id: CheckpointId, out: &mut Vec<Action>) {
        for (channel, blocked) in self.blocked.iter_mut().enumerate() {
            if *blocked == Some(id) {
                *blocked = None;
                out.push(Action::Resume(channel as u32, id));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn barrier(id: u64, blocks: bool) -> Barrier {
        Barrier { checkpoint: CheckpointId(id), base: 0, triggered_at_ns: 0, blocks }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Input {
        Barrier(u32, u64),
        End(u32),
        Abort(u64),
    }

    /// What a sender does, as the channel would have it: nothing behind a barrier until it is resumed, barriers
    /// in ascending order, nothing behind the end.
    #[derive(Clone, Default)]
    struct Senders {
        blocked: [Option<u64>; 3],
        sent: [u64; 3],
        ended: [bool; 3],
        aborted: BTreeSet<u64>,
        started: Vec<u64>,
        subsumed: BTreeSet<u64>,
    }

    fn check(senders: &mut Senders, input: Input, blocks: bool, out: &[Action]) {
        match input {
            Input::Barrier(channel, id) => {
                senders.sent[channel as usize] = id;
                senders.blocked[channel as usize] = blocks.then_some(id);
            }
            Input::End(channel) => senders.ended[channel as usize] = true,
            Input::Abort(id) => {
                senders.aborted.insert(id);
            }
        }
        let has = |senders: &Senders, id| {
            (0..3).all(|channel| senders.ended[channel] || senders.sent[channel] >= id)
        };
        for action in out {
            match action {
                Action::Resume(channel, id) => {
                    let blocked = senders.blocked[*channel as usize].take();
                    assert_eq!(blocked, Some(id.0), "{input:?}: {out:?}");
                }
                Action::Start(aligned) => {
                    let id = aligned.barrier.checkpoint.0;
                    assert!(has(senders, id), "{id} started early: {input:?}");
                    assert!(
                        senders.started.last().is_none_or(|last| *last < id),
                        "{id} started out of order"
                    );
                    assert!(!senders.aborted.contains(&id), "{id} was aborted and started");
                    assert!(!senders.blocked.contains(&Some(id)), "{id} starts while a sender waits for it");
                    senders.started.push(id);
                }
                Action::Subsumed { old, newer } => {
                    assert!(old < newer);
                    senders.subsumed.insert(old.0);
                }
            }
        }
        // Whoever waits, waits for a checkpoint that can still start.
        for id in senders.blocked.iter().flatten() {
            assert!(!has(senders, *id), "{id} has come from all and did not start: {input:?}");
            assert!(!senders.aborted.contains(id) && senders.started.last().is_none_or(|last| last < id));
        }
        // What has come from all was started, unless it was given up or passed over.
        for id in 1..=3 {
            let came = (0..3).any(|channel| senders.sent[channel] == id);
            if came && has(senders, id) && !senders.aborted.contains(&id) {
                let newest = senders.started.last().copied().unwrap_or(0);
                assert!(senders.started.contains(&id) || senders.subsumed.contains(&id) || newest > id);
            }
        }
    }

    fn explore(blocks: bool, depth: usize, run: &mut Vec<Input>, senders: &Senders, runs: &mut u64) {
        *runs += 1;
        if run.len() == depth {
            return;
        }
        let mut next = Vec::new();
        for channel in 0..3 {
            let at = channel as usize;
            if senders.ended[at] || senders.blocked[at].is_some() {
                continue;
            }
            next.push(Input::End(channel));
            next.extend((senders.sent[at] + 1..=3).map(|id| Input::Barrier(channel, id)));
        }
        next.extend((1..=3).filter(|id| !senders.aborted.contains(id)).map(Input::Abort));
        for input in next {
            let mut senders = senders.clone();
            // The handler holds no clone: replaying a short run is quick enough.
            let mut handler = BarrierHandler::new(3);
            run.push(input);
            let mut out = Vec::new();
            for (at, input) in run.iter().enumerate() {
                out.clear();
                match *input {
                    Input::Barrier(channel, id) => {
                        handler.barrier(channel, barrier(id, blocks), at as u64, &mut out)
                    }
                    Input::End(channel) => handler.end(channel, at as u64, &mut out),
                    Input::Abort(id) => handler.abort(CheckpointId(id), &mut out),
                }
            }
            check(&mut senders, input, blocks, &out);
            explore(blocks, depth, run, &senders, runs);
            run.pop();
        }
    }

    /// Goal: in every order in which the barriers of three checkpoints, aborts and ends of input can come on three
    /// channels, each blocked sender is resumed exactly once, a checkpoint starts when and only when its barriers
    /// have come, and none starts after it was given up.
    #[test]
    fn every_order_of_barriers_aborts_and_ends() {
        for blocks in [true, false] {
            let mut runs = 0;
            explore(blocks, 6, &mut Vec::new(), &Senders::default(), &mut runs);
            assert!(runs > 100_000, "{runs}");
        }
    }

    #[test]
    fn alignment_is_timed_from_the_first_to_the_last() {
        let mut handler = BarrierHandler::new(2);
        let mut out = Vec::new();
        handler.barrier(1, barrier(4, true), 10, &mut out);
        assert_eq!(out, []);
        assert_eq!(handler.waiting(), Some((CheckpointId(4), 1)));
        handler.barrier(0, barrier(4, true), 35, &mut out);
        let aligned = Aligned { barrier: barrier(4, true), first_ns: 10, last_ns: 35, last_channel: 0 };
        assert_eq!(
            out,
            [Action::Resume(0, CheckpointId(4)), Action::Resume(1, CheckpointId(4)), Action::Start(aligned)]
        );
        assert_eq!(handler.waiting(), None);
    }
}
