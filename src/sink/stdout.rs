//! A sink that writes rows to standard output.

use super::{Sink, row::Format};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use std::io::{self, Write};
use std::marker::PhantomData;

/// Written when so many bytes have gathered, and at the end of each turn.
const BUFFER_BYTES: usize = 64 << 10;

/// Whoever read standard output has gone. Not a fault of the job: `tidegate … | head` ends like this, and a
/// command should then end without a message.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed by its reader")]
pub struct StdoutClosed;

/// Whether a failure comes from a reader of standard output that has gone.
pub fn is_stdout_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<StdoutClosed>() || error.source().is_some_and(is_stdout_closed)
}

/// Writes a row for each record. Rows of several subtasks may come in any order, but each is whole.
///
/// A terminal or pipe that is not read holds up the shard at the end of a turn.
pub struct Stdout<T, F, W = io::Stdout> {
    format: F,
    rows: Vec<u8>,
    to: W,
    item: PhantomData<fn(T)>,
}

impl<T: Record, F: Format<T>> Stdout<T, F> {
    /// A sink that writes what `format` appends for a record, which should end in `\n`.
    pub fn new(format: F) -> Stdout<T, F> {
        Stdout::to(format, io::stdout())
    }
}

impl<T: Record, F: Format<T>, W: Write + 'static> Stdout<T, F, W> {
    fn to(format: F, to: W) -> Stdout<T, F, W> {
        Stdout { format, rows: Vec::with_capacity(BUFFER_BYTES), to, item: PhantomData }
    }
}

impl<T: Record, F: Format<T>, W: Write + 'static> Sink for Stdout<T, F, W> {
    type Item = T;

    #[inline]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        (self.format)(record, &mut self.rows);
        if self.rows.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// One `write_all`, which `io::Stdout` does under its lock.
    fn flush(&mut self) -> Result<(), SourceError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let written = self.to.write_all(&self.rows).and_then(|()| self.to.flush());
        self.rows.clear();
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => StdoutClosed.into(),
            _ => format!("standard output: {error}; expected a place to write to").into(),
        })
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn row(number: u64, rows: &mut Vec<u8>) {
        writeln!(rows, "{number}").unwrap();
    }

    /// Goal: rows appear together at the end of a turn, or when many have gathered.
    #[test]
    fn rows_are_written_at_each_flush() {
        let shown = Shown::default();
        let mut sink = Stdout::<u64, _, _>::to(row, shown.clone());
        sink.write(1, 0).unwrap();
        sink.write(20, 0).unwrap();
        assert_eq!(shown.0.lock().unwrap().len(), 0);
        sink.flush().unwrap();
        sink.flush().unwrap();
        assert_eq!(*shown.0.lock().unwrap(), [b"1\n20\n"]);
        for _ in 0..BUFFER_BYTES / 2 {
            sink.write(7, 0).unwrap();
        }
        assert_eq!(shown.0.lock().unwrap().len(), 2);
    }

    /// Goal: a closed pipe is told apart from other failures, wherever in the chain of causes it is.
    #[test]
    fn a_closed_pipe_can_be_recognised() {
        let (reader, pipe) = io::pipe().unwrap();
        drop(reader);
        let mut sink = Stdout::<u64, _, _>::to(row, pipe);
        sink.write(1, 0).unwrap();
        let error = sink.finish().unwrap_err();
        assert!(is_stdout_closed(&*error), "{error}");

        #[derive(Debug, thiserror::Error)]
        #[error("sink failed")]
        struct Failed(#[source] SourceErrorBox);
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        struct SourceErrorBox(SourceError);
        assert!(!is_stdout_closed(&Failed(SourceErrorBox("disk full".into()))));
        assert!(!is_stdout_closed(&io::Error::other("x")));
    }
}
