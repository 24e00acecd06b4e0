//! The real driver: a pinned thread that runs a shard's turns and sleeps on its eventfd.
//!
//! With the feature `glommio` a task of that executor may run the same turns on the thread instead.

#[cfg(feature = "glommio")]
pub mod glommio;

use crate::channel::doorbell::Wake;
use crate::shard::{Outcome, Shard};
use crate::task::Clock;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What a shard does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleStrategy {
    /// Looks again and again: quickest, and takes the whole core.
    Spin,
    /// Looks for so many nanoseconds, then sleeps: quick, and quiet when idle.
    Backoff {
        /// Time to look before sleeping, in nanoseconds.
        spin_ns: u64,
    },
    /// Sleeps at once.
    Park,
}

/// The monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// The process's clock: it counts from the first call on, and every one of them counts alike, so that a
    /// sink may compare its time with a source's of any shard.
    pub fn of_process() -> Self {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        MonotonicClock { origin: *ORIGIN.get_or_init(Instant::now) }
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

/// An eventfd that ends a shard's sleep.
pub struct EventFd(File);

impl EventFd {
    /// A fresh one.
    ///
    /// # Errors
    ///
    /// The kernel's answer, for instance when the limit of open files is reached.
    pub fn new() -> io::Result<Arc<EventFd>> {
        // SAFETY: makes a descriptor and touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and ours alone.
        Ok(Arc::new(EventFd(unsafe { File::from_raw_fd(fd) })))
    }

    /// The descriptor, for those who wake through it from elsewhere.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sleeps until woken or, if given, for `timeout_ns` nanoseconds.
    fn sleep(&self, timeout_ns: Option<u64>) {
        let timeout = timeout_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor and a timeout that live here; interrupted or timed out, the caller looks.
        unsafe { libc::ppoll(&raw mut poll, 1, timeout, std::ptr::null()) };
        if poll.revents != 0 {
            // Takes the count back to zero; that it may be zero already does not matter.
            let _ = (&self.0).read(&mut [0; 8]);
        }
    }
}

impl Wake for EventFd {
    fn wake(&self) {
        // Fails only if the count is at its maximum, and then the reader is awake in any case.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// Whether the thread waits for its core: then spinning only takes time from whom it waits for.
struct RunDelay {
    schedstat: Option<File>,
    looked_at_ns: u64,
    delay_ns: u64,
    shares_core: bool,
}

impl RunDelay {
    /// How often to look, in nanoseconds: a look costs about a microsecond.
    const EVERY_NS: u64 = 20_000_000;

    fn new() -> Self {
        let schedstat = File::open("/proc/thread-self/schedstat").ok();
        RunDelay { schedstat, looked_at_ns: 0, delay_ns: 0, shares_core: false }
    }

    /// Whether more than a tenth of the time since the last look was spent waiting for the core.
    fn shares_core(&mut self, now_ns: u64) -> bool {
        let since = now_ns.saturating_sub(self.looked_at_ns);
        if since < Self::EVERY_NS {
            return self.shares_core;
        }
        let Some(file) = &mut self.schedstat else { return false };
        let mut text = [0u8; 96];
        let len = file.rewind().and_then(|()| file.read(&mut text)).unwrap_or(0);
        // Three numbers: time on the core, time waiting for it, slices.
        let delay = std::str::from_utf8(&text[..len])
            .ok()
            .and_then(|s| s.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
        if let Some(delay) = delay {
            self.shares_core = self.looked_at_ns != 0 && (delay - self.delay_ns) * 10 > since;
            self.delay_ns = delay;
        }
        self.looked_at_ns = now_ns;
        self.shares_core
    }
}

/// A timer that is this near is waited for awake, in nanoseconds: about what it takes to fall asleep and
/// wake up.
const NEAR_NS: u64 = 2_000;

/// What to do after a turn that found nothing to do.
pub(crate) enum Idle {
    /// Look again.
    Look,
    /// Sleep, until that time at the latest.
    Sleep(Option<u64>),
}

/// Decides between looking and sleeping, and books idle time; the same for all drivers.
pub(crate) struct Idling {
    strategy: IdleStrategy,
    delay: RunDelay,
    since_ns: Option<u64>,
    /// Whether there was anything to do yet: what passes before is not idle, the job is being set up.
    began: bool,
}

impl Idling {
    pub fn new(strategy: IdleStrategy) -> Self {
        Idling { strategy, delay: RunDelay::new(), since_ns: None, began: false }
    }

    /// A turn found something to do.
    #[inline]
    pub fn worked(&mut self, shard: &Shard, outcome: &Outcome) {
        if let Some(since_ns) = self.since_ns.take()
            && std::mem::replace(&mut self.began, true)
        {
            shard.was_idle(since_ns, outcome.began_ns);
        }
    }

    /// A turn found nothing to do.
    #[inline]
    pub fn next(&mut self, outcome: &Outcome) -> Idle {
        let now_ns = outcome.began_ns;
        let spin_ns = match self.strategy {
            IdleStrategy::Spin => u64::MAX,
            IdleStrategy::Backoff { spin_ns } => spin_ns,
            IdleStrategy::Park => 0,
        };
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let near = outcome.next_timer_ns.is_some_and(|at| at <= now_ns + NEAR_NS);
        let keeps_looking = now_ns - since_ns < spin_ns
            && (self.strategy == IdleStrategy::Spin || !self.delay.shares_core(now_ns));
        if near || keeps_looking { Idle::Look } else { Idle::Sleep(outcome.next_timer_ns) }
    }
}

/// A driver of one shard, before its thread runs.
#[derive(Clone)]
pub enum Driver {
    /// The thread itself, which sleeps on an eventfd.
    Thread(Arc<EventFd>),
    /// A task of glommio's executor.
    #[cfg(feature = "glommio")]
    Glommio(Arc<glommio::TaskWaker>),
}

/// A driver that is set up on the thread that it runs on.
pub enum Seated {
    /// The thread itself.
    Thread(Arc<EventFd>),
    /// An executor.
    #[cfg(feature = "glommio")]
    Glommio(Box<::glommio::LocalExecutor>, Arc<glommio::TaskWaker>),
}

impl Driver {
    /// What ends the shard's sleep.
    pub fn wake(&self) -> Arc<dyn Wake> {
        match self {
            Driver::Thread(event) => event.clone(),
            #[cfg(feature = "glommio")]
            Driver::Glommio(waker) => waker.clone(),
        }
    }

    /// Sets the driver up on the calling thread, which should be pinned.
    ///
    /// # Errors
    ///
    /// Why an executor cannot be had; a thread always can.
    pub fn seat(self) -> io::Result<Seated> {
        match self {
            Driver::Thread(event) => Ok(Seated::Thread(event)),
            #[cfg(feature = "glommio")]
            Driver::Glommio(waker) => Ok(Seated::Glommio(Box::new(glommio::executor()?), waker)),
        }
    }
}

impl Seated {
    /// Runs a shard on the calling thread until it stops.
    pub fn run(&self, shard: &mut Shard, clock: &impl Clock, idle: IdleStrategy) {
        // SAFETY: sets this thread's timer slack and touches no memory. Sleeps then end within a
        // microsecond of their time rather than fifty.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
        match self {
            Seated::Thread(event) => run(shard, clock, event, idle),
            #[cfg(feature = "glommio")]
            Seated::Glommio(executor, waker) => glommio::run(executor, shard, clock, waker, idle),
        }
    }
}

/// Runs a shard on the calling thread until it stops.
pub fn run(shard: &mut Shard, clock: &impl Clock, event: &EventFd, idle: IdleStrategy) {
    let mut idling = Idling::new(idle);
    loop {
        let outcome = shard.turn(clock);
        if outcome.worked {
            idling.worked(shard, &outcome);
        }
        if outcome.stopped {
            return;
        }
        if outcome.worked {
            continue;
        }
        match idling.next(&outcome) {
            Idle::Look => std::hint::spin_loop(),
            Idle::Sleep(until_ns) => {
                if shard.may_sleep() {
                    event.sleep(until_ns.map(|at| at.saturating_sub(clock.now_ns())));
                    shard.woke();
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a shard without work looks for as long as its strategy says, and then sleeps until its next timer.
    /// Method: virtual times below that of the first look at the thread's run delay.
    #[test]
    fn strategies_look_for_as_long_as_they_say() {
        let at = |began_ns, next_timer_ns| Outcome { worked: false, began_ns, next_timer_ns, stopped: false };
        let looks = |strategy, times: &[u64]| {
            let mut idling = Idling::new(strategy);
            times.iter().take_while(|ns| matches!(idling.next(&at(**ns, None)), Idle::Look)).count()
        };
        let times = [1_000, 2_000, 50_999, 51_000, 10_000_000];
        assert_eq!(looks(IdleStrategy::Park, &times), 0);
        assert_eq!(looks(IdleStrategy::Backoff { spin_ns: 50_000 }, &times), 3);
        assert_eq!(looks(IdleStrategy::Backoff { spin_ns: 1_000 }, &times), 1);
        assert_eq!(looks(IdleStrategy::Spin, &times), times.len());

        let mut idling = Idling::new(IdleStrategy::Park);
        assert!(matches!(idling.next(&at(1_000, Some(9_000))), Idle::Sleep(Some(9_000))));
        assert!(matches!(idling.next(&at(8_000, Some(9_000))), Idle::Look), "too near to sleep for");
    }
}
