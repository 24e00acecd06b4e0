//! The source of the benches that take checkpoints: every key once, then keys of a window that moves.

use crate::operator::{Collector, Owned};
use crate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use std::ops::Range;
use std::sync::Arc;

/// Offsets drawn once, and then looped over.
const DRAWN: usize = 1 << 20;

/// Records that are put together before they are emitted.
const BATCH: usize = 64;

/// Which keys are drawn.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    keys: u64,
    window: u64,
    interval_ns: u64,
    offsets: Arc<[u64]>,
}

impl Windows {
    /// Of `keys` keys a part `dirty`, which moves on by itself every `interval_ns`.
    pub fn new(keys: u64, dirty: f64, interval_ns: u64) -> Windows {
        let window = ((keys as f64 * dirty) as u64).clamp(1, keys);
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            ((u128::from(seed) * u128::from(window)) >> 64) as u64
        };
        let offsets = (0..DRAWN).map(|_| draw()).collect();
        Windows { keys, window, interval_ns, offsets }
    }

    /// The source of one subtask.
    pub fn source(&self, cx: &SourceContext) -> WindowSource {
        let cut = |i: u32| self.keys * u64::from(i) / u64::from(cx.parallelism);
        let at = (cx.subtask as usize * DRAWN / 7) % DRAWN;
        WindowSource { windows: self.clone(), first: cut(cx.subtask)..cut(cx.subtask + 1), at }
    }
}

/// (key, 1) for each key of its part once, and then of the window, without end.
pub(super) struct WindowSource {
    windows: Windows,
    /// Keys that were not emitted yet at all.
    first: Range<u64>,
    /// The next offset.
    at: usize,
}

impl Source for WindowSource {
    type Item = (u64, u64);

    const REPLAYS: bool = true;

    fn poll<C: Collector<(u64, u64)>>(
        &mut self,
        out: &mut SourceOutput<'_, (u64, u64), C>,
    ) -> Result<SourcePoll, SourceError> {
        let Windows { keys, window, interval_ns, offsets } = &self.windows;
        let mut batch = [(0, 1); BATCH];
        while out.ready() && !self.first.is_empty() {
            let count = BATCH.min((self.first.end - self.first.start) as usize);
            for (record, key) in batch.iter_mut().zip(self.first.clone()) {
                record.0 = key;
            }
            self.first.start += out.emit_batch(Owned(&batch[..count])) as u64;
        }
        // Where the window is, in keys, when this poll began.
        let base = (u128::from(out.now_ns() / interval_ns) * u128::from(*window) % u128::from(*keys)) as u64;
        while out.ready() {
            let count = BATCH.min(DRAWN - self.at);
            for (record, offset) in batch.iter_mut().zip(&offsets[self.at..self.at + count]) {
                let key = base + offset;
                record.0 = if key >= *keys { key - keys } else { key };
            }
            self.at = (self.at + out.emit_batch(Owned(&batch[..count]))) % DRAWN;
        }
        Ok(SourcePoll::More)
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        state.extend_from_slice(&self.first.start.to_le_bytes());
        state.extend_from_slice(&(self.at as u64).to_le_bytes());
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let words: Vec<u64> =
            state.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        let [first, at] = words[..] else {
            return Err(format!("{} bytes of state; expected 16", state.len()).into());
        };
        if !(self.first.start..=self.first.end).contains(&first) || at >= DRAWN as u64 {
            return Err(format!("state ({first}, {at}) is not of this part of the keys").into());
        }
        (self.first.start, self.at) = (first, at as usize);
        Ok(())
    }
}
