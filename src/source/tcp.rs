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
    #[error("{address}: the line at byte {offset} is longer than {bytes_max} bytes, the greatest size of a record")]
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
        let shared = Shared { address, local: local.ok(), socket: Mutex::new(Some(socket)), options, invalid_lines };
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
    Open(ChunkStream, #[allow(dead_code, reason = "held for its drop")] Unblock),
    Ended,
}

impl Source for TcpSource {
    type Item = String;

    fn poll<C: Collector<String>>(
        &mut self,
        out: &mut SourceOutput<'_, String, C>,
    ) -> Result<SourcePoll, SourceError> {
        loop {
            match &mut self.state {
                State::New => self.start()?,
                State::Ended => return Ok(SourcePoll::Done),
                State::Open(stream, _) => {
                    let chunk = match stream.next()? {
                        Next::Wait => None,
                        Next::End => {
                            self.lines.end_of_input();
                            None
                        }
                        Next::Chunk(chunk) => Some(chunk),
                    };
                    let _ = (chunk, &out);
                    unreachable!()
                }
            }
        }
    }
}
