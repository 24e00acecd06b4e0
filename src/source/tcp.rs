//! Lines from a TCP connection, made by us (`host:port`) or by the other side (`listen:address:port`).
//!
//! One connection, read to its end, by subtask 0; the others have nothing to do and end at once. A job that is
//! slower than the sender stops reading, and TCP stops the sender.

use super::helper::{ChunkStream, Next, ReadChunk, remember_allowed_cores};
use super::lines::{Drained, LineBuffer, LineFault};
use super::text::TextOptions;
use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll, Waker};
use crate::operator::Collector;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// A fault of a TCP source.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// Nobody answers there.
    #[error("{address}: cannot connect: {cause}; expected a server that listens at this host:port")]
    Connect {
        /// As given.
        address: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The address cannot be listened at.
    #[error("listen:{address}: cannot listen: {cause}; expected a local address:port that nobody else uses")]
    Listen {
        /// As given, without `listen:`.
        address: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The connection broke.
    #[error("{address}: connection lost after {offset} bytes: {cause}")]
    Read {
        /// As given.
        address: String,
        /// Bytes received before.
        offset: u64,
        /// What the system said.
        cause: io::Error,
    },
    /// A line that is not UTF-8, where only UTF-8 is accepted.
    #[error("{address}: line {line} is not UTF-8 at byte {offset}; expected UTF-8")]
    InvalidUtf8 {
        /// As given.
        address: String,
        /// Offset in the connection of the first byte that is not UTF-8.
        offset: u64,
        /// Number of the line, from 1.
        line: u64,
    },
    /// A line longer than a record may be.
    #[error(
        "{address}: the line at byte {offset} is longer than {bytes_max} bytes, the greatest size of a record"
    )]
    LineTooLong {
        /// As given.
        address: String,
        /// Offset in the connection at which the line begins.
        offset: u64,
        /// The bound.
        bytes_max: usize,
    },
    /// The connection was given to a source already, which cannot be read again from the start.
    #[error("{address}: this connection has been read before; expected one source")]
    Taken {
        /// As given.
        address: String,
    },
}

/// An open connection or listening socket, from which the sources are made. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TcpLines {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: String,
    local: Option<SocketAddr>,
    socket: Mutex<Option<Socket>>,
    options: TextOptions,
    invalid_lines: AtomicU64,
}

#[derive(Debug)]
enum Socket {
    Connected(TcpStream),
    Listening(TcpListener),
}

impl TcpLines {
    /// Connects to `host:port`, or listens at the address after `listen:`. Blocks: to be called before
    /// the job starts. Of `options`, the sizes and `strict` count.
    ///
    /// # Errors
    ///
    /// [`TcpError::Connect`] or [`TcpError::Listen`], with the address.
    pub fn open(address: &str, options: TextOptions) -> Result<TcpLines, TcpError> {
        remember_allowed_cores();
        let socket = match address.strip_prefix("listen:") {
            Some(at) => TcpListener::bind(at)
                .map(Socket::Listening)
                .map_err(|cause| TcpError::Listen { address: at.to_string(), cause })?,
            None => TcpStream::connect(address)
                .map(Socket::Connected)
                .map_err(|cause| TcpError::Connect { address: address.to_string(), cause })?,
        };
        let local = match &socket {
            Socket::Connected(stream) => stream.local_addr(),
            Socket::Listening(listener) => listener.local_addr(),
        };
        let (address, invalid_lines) = (address.to_string(), AtomicU64::new(0));
        let shared =
            Shared { address, local: local.ok(), socket: Mutex::new(Some(socket)), options, invalid_lines };
        Ok(TcpLines { shared: Arc::new(shared) })
    }

    /// Our end's address: where to connect to, if port 0 was asked for.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.shared.local
    }

    /// Lines so far in which bytes that are not UTF-8 were replaced.
    pub fn invalid_lines(&self) -> u64 {
        self.shared.invalid_lines.load(Ordering::Relaxed)
    }

    /// The source of one subtask.
    pub fn source(&self, context: &SourceContext) -> TcpSource {
        let options = &self.shared.options;
        TcpSource {
            lines: LineBuffer::new(options.chunk_bytes, options.line_bytes_max, options.strict),
            shared: self.shared.clone(),
            waker: context.waker.clone(),
            state: if context.subtask == 0 { State::New } else { State::Ended },
        }
    }
}

/// One subtask's source of lines from a connection.
pub struct TcpSource {
    shared: Arc<Shared>,
    waker: Waker,
    lines: LineBuffer,
    state: State,
}

enum State {
    New,
    Open { stream: ChunkStream, _unblock: Unblock },
    Ended,
}

impl Source for TcpSource {
    type Item = String;

    #[inline]
    fn poll<C: Collector<String>>(
        &mut self,
        out: &mut SourceOutput<'_, String, C>,
    ) -> Result<SourcePoll, SourceError> {
        loop {
            match &mut self.state {
                State::Ended => return Ok(SourcePoll::Done),
                State::New => self.state = self.start()?,
                State::Open { stream, .. } => {
                    match self.lines.drain(out).map_err(|fault| self.shared.fault(fault))? {
                        Drained::Full => return Ok(SourcePoll::More),
                        Drained::Complete => {
                            self.state = State::Ended;
                            continue;
                        }
                        Drained::Empty => {}
                    }
                    match stream.next()? {
                        Next::Wait => return Ok(SourcePoll::Wait),
                        Next::End => self.lines.end_of_input(),
                        Next::Chunk(chunk) => {
                            self.lines.space(chunk.bytes().len()).copy_from_slice(chunk.bytes());
                            let filled = self.lines.filled(chunk.bytes().len());
                            stream.recycle(chunk);
                            filled.map_err(|fault| self.shared.fault(fault))?;
                        }
                    }
                    // One writer: only subtask 0 reads.
                    self.shared.invalid_lines.store(self.lines.invalid_lines(), Ordering::Relaxed);
                }
            }
        }
    }
}

impl TcpSource {
    fn start(&mut self) -> Result<State, SourceError> {
        let address = self.shared.address.clone();
        let socket = self.shared.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(socket) = socket else {
            return Err(TcpError::Taken { address }.into());
        };
        let failed = |cause| TcpError::Read { address: address.clone(), offset: 0, cause };
        let waits_for: OwnedFd = match &socket {
            Socket::Connected(stream) => stream.try_clone().map_err(failed)?.into(),
            Socket::Listening(listener) => listener.try_clone().map_err(failed)?.into(),
        };
        let waits_for = Arc::new(Mutex::new(Some(waits_for)));
        let unblock = Unblock(waits_for.clone());
        self.lines.begin(0, u64::MAX);
        let of_thread = address.clone();
        let stream = ChunkStream::spawn(self.waker.clone(), self.shared.options.chunk_bytes, move || {
            let broken = |cause| TcpError::Read { address: of_thread.clone(), offset: 0, cause };
            let stream = match socket {
                Socket::Connected(stream) => stream,
                Socket::Listening(listener) => {
                    let stream = listener.accept().map_err(broken)?.0;
                    if !Unblock::set(&waits_for, stream.try_clone().map_err(broken)?.into()) {
                        return Err("the source has been dropped".into());
                    }
                    stream
                }
            };
            Ok(TcpChunks { address: of_thread, stream, offset: 0 })
        });
        Ok(State::Open { stream: stream.map_err(failed)?, _unblock: unblock })
    }
}

impl Shared {
    fn fault(&self, fault: LineFault) -> SourceError {
        let address = self.address.clone();
        match fault {
            LineFault::TooLong { offset } => {
                let bytes_max = self.options.line_bytes_max;
                TcpError::LineTooLong { address, offset, bytes_max }.into()
            }
            LineFault::Invalid { offset, line } => TcpError::InvalidUtf8 { address, offset, line }.into(),
        }
    }
}

/// The reader thread's side.
struct TcpChunks {
    address: String,
    stream: TcpStream,
    offset: u64,
}

impl ReadChunk for TcpChunks {
    fn read_chunk(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            match self.stream.read(buf) {
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => {
                    let (address, offset) = (self.address.clone(), self.offset);
                    return Err(TcpError::Read { address, offset, cause }.into());
                }
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.offset
    }
}

/// Ends the reader thread's wait, in `accept` or `read`, when the source is dropped.
struct Unblock(Arc<Mutex<Option<OwnedFd>>>);

impl Unblock {
    /// Remembers what the thread waits for from now on; false if the source has been dropped.
    fn set(waits_for: &Mutex<Option<OwnedFd>>, socket: OwnedFd) -> bool {
        match &mut *waits_for.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waits_for) => {
                *waits_for = socket;
                true
            }
            None => false,
        }
    }
}

impl Drop for Unblock {
    fn drop(&mut self) {
        if let Some(socket) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // SAFETY: `socket` owns the descriptor, so it is open. Whether it still is connected does not
            // matter: then there is nobody to wake.
            unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::testing::{Capture, context, run};
    use std::io::Write;
    use std::time::Duration;

    fn sent(mut to: TcpStream, text: &'static [u8]) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || to.write_all(text).unwrap())
    }

    /// Goal: both ways to a connection give the lines that were sent.
    #[test]
    fn lines_arrive_from_either_side() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let lines = TcpLines::open(&address, TextOptions::default()).unwrap();
        let sender = sent(server.accept().unwrap().0, b"a\r\nb\n\xff\nlast");
        let got = run(&mut lines.source(&context(0, 2)), 1).unwrap();
        assert_eq!(got, ["a", "b", "\u{fffd}", "last"]);
        assert_eq!(lines.invalid_lines(), 1);
        sender.join().unwrap();
        assert_eq!(run(&mut lines.source(&context(1, 2)), 1).unwrap(), [""; 0]);
        let again = run(&mut lines.source(&context(0, 2)), 1).unwrap_err().to_string();
        assert!(again.contains(&address) && again.contains("read before"), "{again}");

        let lines = TcpLines::open("listen:127.0.0.1:0", TextOptions::default()).unwrap();
        let sender = sent(TcpStream::connect(lines.local_address().unwrap()).unwrap(), b"x\n\ny\n");
        assert_eq!(run(&mut lines.source(&context(0, 1)), 9).unwrap(), ["x", "", "y"]);
        sender.join().unwrap();
    }

    /// Goal: a port in use and a port where nobody listens are errors with the address.
    #[test]
    fn refusals_name_the_address() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let error = TcpLines::open(&format!("listen:{address}"), TextOptions::default()).unwrap_err();
        assert!(matches!(error, TcpError::Listen { .. }));
        assert!(error.to_string().contains(&address) && error.to_string().contains("in use"), "{error}");
        drop(server);
        let error = TcpLines::open(&address, TextOptions::default()).unwrap_err();
        assert!(matches!(error, TcpError::Connect { .. }));
        assert!(error.to_string().contains(&address) && error.to_string().contains("refused"), "{error}");
    }

    /// Goal: dropping the source ends a reader thread that waits for a connection that never comes.
    /// Method: the thread's end is seen by its last wake.
    #[test]
    fn dropping_the_source_ends_the_wait_for_a_connection() {
        let lines = TcpLines::open("listen:127.0.0.1:0", TextOptions::default()).unwrap();
        let (ended, end) = std::sync::mpsc::channel();
        let mut context = context(0, 1);
        context.waker = Waker::new(move || ended.send(()).unwrap_or(()));
        let mut source = lines.source(&context);
        let polled = Capture::<String>::default().poll(&mut source, 1, 0).unwrap();
        assert_eq!(polled, SourcePoll::Wait);
        assert!(end.try_recv().is_err());
        drop(source);
        end.recv_timeout(Duration::from_secs(120)).unwrap();
    }
}
