//! What it costs to wake a thread that sleeps on an eventfd: the floor of every latency below the rate at which
//! shards stay awake.
//!
//! ```text
//!   a: sleeps until due ─▶ writes b's eventfd            ─▶ ppoll ─▶ round trip
//!   b:        ppoll ─────────────▶ woken: one way ─▶ writes a's ──┘
//! ```

use super::machine;
use hdrhistogram::Histogram;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long one thread waits for the other, which answers in microseconds unless it has failed.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Nanoseconds that waking took.
#[derive(Debug)]
pub struct Ping {
    /// From when a sleeping thread's timer was due until it ran: what the clock alone costs a parked source.
    pub timer: Histogram<u64>,
    /// From before the write to the eventfd until the other thread ran.
    pub one_way: Histogram<u64>,
    /// From before the write until the answer had woken the writer.
    pub round_trip: Histogram<u64>,
}

/// `rounds` round trips between two pinned threads, one each `interval`, so that both sleep in between.
///
/// # Errors
///
/// If the kernel refuses an eventfd or a poll.
pub fn eventfd(rounds: u64, interval: Duration) -> io::Result<Ping> {
    let cores = machine::allowed_cores();
    let (to_a, to_b) = (Wake::new()?, Wake::new()?);
    let origin = Instant::now();
    let now = || origin.elapsed().as_nanos() as u64;
    let sent_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let b = scope.spawn(|| {
            machine::pin(1, &cores);
            let mut one_way = super::nanoseconds_histogram();
            for _ in 0..rounds {
                to_b.wait()?;
                // The eventfd orders this after the store; the word itself needs no ordering.
                one_way.saturating_record(now().saturating_sub(sent_ns.load(Ordering::Relaxed)));
                to_a.wake()?;
            }
            io::Result::Ok(one_way)
        });
        let a = scope.spawn(|| {
            machine::pin(0, &cores);
            exact_timers();
            let (mut timer, mut round_trip) =
                (super::nanoseconds_histogram(), super::nanoseconds_histogram());
            for _ in 0..rounds {
                let due = now() + interval.as_nanos() as u64;
                to_a.wait_for(interval)?;
                let sent = now();
                timer.saturating_record(sent.saturating_sub(due));
                sent_ns.store(sent, Ordering::Relaxed);
                to_b.wake()?;
                to_a.wait()?;
                round_trip.saturating_record(now() - sent);
            }
            io::Result::Ok((timer, round_trip))
        });
        let (timer, round_trip) = a.join().expect("the asking thread")?;
        let one_way = b.join().expect("the answering thread")?;
        Ok(Ping { timer, one_way, round_trip })
    })
}

/// An eventfd of one sleeper.
struct Wake(OwnedFd);

impl Wake {
    fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is used.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(Wake(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn wake(&self) -> io::Result<()> {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eight bytes live until the call returns.
        let written = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if written == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sleeps until woken.
    fn wait(&self) -> io::Result<()> {
        let mut value = [0u8; 8];
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no wake-up by the other thread"));
            }
            self.wait_for(ANSWER_MAX)?;
            // SAFETY: the eight bytes live until the call returns.
            let read = unsafe { libc::read(self.0.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
            match read {
                8 => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Sleeps for `timeout`, as a shard does that has nothing to do before its next timer.
    fn wait_for(&self, timeout: Duration) -> io::Result<()> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd and the timeout live until the call returns; no signal mask.
        let ready = unsafe { libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) };
        match ready {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }
}

/// Lets this thread's timers fire within a microsecond; by default the kernel may add fifty.
fn exact_timers() {
    // SAFETY: no pointers; where it is refused, timers are as late as they were.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each round is answered once, and no way back is shorter than the way there.
    #[test]
    fn each_round_is_answered_once() {
        let ping = eventfd(50, Duration::from_micros(200)).expect("eventfds are allowed here");
        assert_eq!([ping.timer.len(), ping.one_way.len(), ping.round_trip.len()], [50; 3]);
        assert!(ping.one_way.min() <= ping.round_trip.min());
        assert!(ping.one_way.max() <= ping.round_trip.max());
    }
}
