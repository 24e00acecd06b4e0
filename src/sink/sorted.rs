//! Rows of several subtasks in the order of their bytes: kept in memory, sorted by run, merged at the end.
//!
//! [`SortedFile`](super::file::SortedFile) writes them to a file from within the job. [`SortedRows`] hands them to
//! whoever started the job, once it has finished: a job that fails has shown nothing, and no shard is held up
//! by sorting and by waiting for a disk or a reader.

use super::{Sink, row::Format};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use crate::subtask::SubtaskInfo;
use std::cmp::Reverse;
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// The sorted rows of all subtasks. Cheap to clone: all clones are one.
///
/// A job that is restarted in its process goes on with the rows of before its checkpoint. Another process has none
/// of them.
#[derive(Debug, Clone, Default)]
pub struct SortedRows {
    runs: Arc<Mutex<Vec<Run>>>,
}

/// Rows of one subtask.
#[derive(Debug)]
struct Run {
    subtask: u32,
    /// Before the barrier of which checkpoint they came; the greatest number, while no such barrier has come.
    checkpoint: u64,
    rows: Rows,
}

impl SortedRows {
    /// The sink of one subtask. It keeps all rows that `format` makes in memory, 24 bytes more for each.
    pub fn sink<T: Record, F: Format<T>>(&self, info: &SubtaskInfo, format: F) -> SortedRowsSink<T, F> {
        let subtask = info.subtask;
        // Else `restore` says what of an attempt before counts.
        if info.checkpoints.is_none_or(|checkpoints| checkpoints.restored.is_none()) {
            self.runs().retain(|run| run.subtask != subtask);
        }
        SortedRowsSink { format, rows: Rows::default(), subtask, all: self.clone(), item: PhantomData }
    }

    fn runs(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the rows of all subtasks that have finished, in order, each ended by a line end. Sorts each
    /// subtask's on a thread of its own; for threads that may block.
    ///
    /// # Errors
    ///
    /// What `to` answers; part of the rows may have been written.
    pub fn write_to(&self, to: impl Write) -> io::Result<()> {
        let mut runs = self.runs();
        std::thread::scope(|scope| {
            for run in runs.iter_mut() {
                scope.spawn(|| run.rows.sort());
            }
        });
        let runs: Vec<&Rows> = runs.iter().map(|run| &run.rows).collect();
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, to);
        merge(&runs, |row| to.write_all(row).and_then(|()| to.write_all(b"\n")))?;
        to.flush()
    }
}

/// Keeps a row for each record; see [`SortedRows::sink`].
pub struct SortedRowsSink<T, F> {
    format: F,
    /// Since the last barrier.
    rows: Rows,
    subtask: u32,
    all: SortedRows,
    item: PhantomData<fn(T)>,
}

impl<T, F> SortedRowsSink<T, F> {
    fn hand_over(&mut self, checkpoint: u64) {
        let rows = mem::take(&mut self.rows);
        if !rows.rows.is_empty() {
            self.all.runs().push(Run { subtask: self.subtask, checkpoint, rows });
        }
    }
}

impl<T: Record, F: Format<T>> Sink for SortedRowsSink<T, F> {
    type Item = T;

    #[inline]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        let start = self.rows.bytes.len();
        (self.format)(record, &mut self.rows.bytes);
        self.rows.ended(start);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.hand_over(u64::MAX);
        Ok(())
    }

    fn pre_commit(&mut self, checkpoint: u64, _: &mut Vec<u8>) -> Result<(), SourceError> {
        self.hand_over(checkpoint);
        for run in self.all.runs().iter_mut().filter(|run| run.subtask == self.subtask) {
            run.checkpoint = run.checkpoint.min(checkpoint);
        }
        Ok(())
    }

    fn restore(&mut self, checkpoint: u64, _: &[u8]) -> Result<(), SourceError> {
        self.all.runs().retain(|run| run.subtask != self.subtask || run.checkpoint <= checkpoint);
        Ok(())
    }
}

/// Rows one after another, and where each lies.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) bytes: Vec<u8>,
    rows: Vec<Row>,
}

/// Most comparisons are decided by the first bytes, without a look at the row.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// The first 8 bytes, filled up with zeros, as a big-endian number: ordered as the bytes are.
    prefix: u64,
    start: usize,
    /// Without the line end.
    len: usize,
}

impl Rows {
    /// A row has been appended, from `start` to the end.
    pub(super) fn ended(&mut self, start: usize) {
        let row = &self.bytes[start..];
        let row = row.strip_suffix(b"\n").unwrap_or(row);
        let mut prefix = [0; 8];
        let known = row.len().min(8);
        prefix[..known].copy_from_slice(&row[..known]);
        self.rows.push(Row { prefix: u64::from_be_bytes(prefix), start, len: row.len() });
    }

    /// Bytes of all rows, each with a line end.
    pub(super) fn written_bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.len as u64 + 1).sum()
    }

    fn row(&self, row: &Row) -> &[u8] {
        &self.bytes[row.start..row.start + row.len]
    }

    pub(super) fn sort(&mut self) {
        let mut rows = mem::take(&mut self.rows);
        rows.sort_unstable_by(|a, b| a.prefix.cmp(&b.prefix).then_with(|| self.row(a).cmp(self.row(b))));
        self.rows = rows;
    }
}

/// Calls `take` with the rows of all runs in order.
pub(super) fn merge(runs: &[&Rows], mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut behind: Vec<_> = runs.iter().map(|run| run.rows.iter()).collect();
    // By prefix first, as for sorting.
    let mut next = |run: usize| behind[run].next().map(|row| Reverse((row.prefix, runs[run].row(row), run)));
    let mut heads: BinaryHeap<_> = (0..runs.len()).filter_map(&mut next).collect();
    while let Some(mut least) = heads.peek_mut() {
        let Reverse((_, row, run)) = *least;
        take(row)?;
        match next(run) {
            Some(head) => *least = head,
            None => {
                PeekMut::pop(least);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpointing;

    fn info(subtask: u32, restored: Option<u64>) -> SubtaskInfo {
        SubtaskInfo {
            vertex: "rows".into(),
            subtask,
            parallelism: 3,
            max_parallelism: 128,
            operators: [].into(),
            checkpoints: Some(Checkpointing { lineage: 1, run: 1, attempt: 1, restored }),
        }
    }

    fn text(record: &str, rows: &mut Vec<u8>) {
        rows.extend_from_slice(record.as_bytes());
    }

    fn written(rows: &SortedRows) -> String {
        let mut written = Vec::new();
        rows.write_to(&mut written).unwrap();
        String::from_utf8(written).unwrap()
    }

    /// Goal: rows of several subtasks come out in order, and only those of subtasks that have finished.
    #[test]
    fn rows_of_finished_subtasks_are_merged() {
        let rows = SortedRows::default();
        let mut sinks: Vec<_> = (0..3).map(|i| rows.sink::<String, _>(&info(i, None), text)).collect();
        for (sink, words) in sinks.iter_mut().zip([["pear", "apple"], ["fig", "plum"], ["lime", "never"]]) {
            words.iter().for_each(|word| sink.write(word, 0).unwrap());
        }
        sinks[0].finish().unwrap();
        sinks[1].finish().unwrap();
        assert_eq!(written(&rows), "apple\nfig\npear\nplum\n");
    }

    /// Goal: an attempt that goes on from a checkpoint has the rows of before it, and none of after it, also when the
    /// attempt before had finished; one that begins anew has none.
    #[test]
    fn a_restarted_attempt_has_the_rows_of_before_its_checkpoint() {
        for (restored, before) in [(Some(1), "a\n"), (Some(2), "a\nb\n"), (Some(3), "a\nb\nc\n"), (None, "")]
        {
            let rows = SortedRows::default();
            let mut first = rows.sink::<String, _>(&info(0, None), text);
            for (checkpoint, word) in [(1, "a"), (2, "b")] {
                first.write(word, 0).unwrap();
                first.pre_commit(checkpoint, &mut Vec::new()).unwrap();
            }
            first.write("c", 0).unwrap();
            first.finish().unwrap();
            if restored == Some(3) {
                first.pre_commit(3, &mut Vec::new()).unwrap();
            }
            let mut second = rows.sink::<String, _>(&info(0, restored), text);
            if let Some(restored) = restored {
                second.restore(restored, &[]).unwrap();
            }
            second.write("z", 0).unwrap();
            second.finish().unwrap();
            assert_eq!(written(&rows), format!("{before}z\n"), "from {restored:?}");
        }
    }
}
