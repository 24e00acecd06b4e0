//! The cores we may run on, and a clock cheap enough to be read once a record.

use std::time::{Duration, Instant};

/// The cores that this thread is allowed to run on, in ascending order; never empty.
///
/// Not `0..n`: in a container or under `taskset` the allowed cores are any set.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: a `cpu_set_t` is a plain bit array, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the size given; pid 0 is the calling thread.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    let mut cores = Vec::new();
    if rc == 0 {
        // SAFETY: `core` is below CPU_SETSIZE, so the bit lies in the set.
        cores.extend((0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }));
    }
    if cores.is_empty() {
        cores.push(0);
    }
    cores
}

/// Pins the calling thread to the `index`-th of `cores`, going round where there are fewer.
///
/// Threads started by a pinned thread inherit its core, so this is called on threads of our own only.
/// A refusal is logged and the thread runs on unpinned: the figure is then the scheduler's, too.
pub fn pin(index: usize, cores: &[usize]) {
    let core = cores[index % cores.len()];
    // SAFETY: as in `allowed_cores`, zeroes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` came from `allowed_cores`, so it is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `set` is a live cpu_set_t of the size given; pid 0 is the calling thread.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if rc != 0 {
        tracing::warn!(core, error = %std::io::Error::last_os_error(), "cannot pin a limit thread");
    }
}

/// Nanoseconds since the clock was made, the same on every core.
///
/// Reads the time-stamp counter where it is invariant (6 ns instead of 25 for the system's clock), calibrated
/// once against the system's clock. An error of calibration is one of rate, about 1 in 10^6, and the same
/// for both ends of a difference.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    tsc: Option<Tsc>,
}

#[derive(Debug, Clone, Copy)]
struct Tsc {
    origin: u64,
    ns_per_tick: f64,
}

/// Long enough that the 50 ns of reading two clocks one after the other vanish.
const CALIBRATION: Duration = Duration::from_millis(50);

impl Clock {
    /// Takes 50 ms where there is a counter to calibrate.
    pub fn new() -> Self {
        let origin = Instant::now();
        let Some(first) = invariant_tsc().then(tsc) else {
            return Clock { origin, tsc: None };
        };
        while origin.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (elapsed, last) = (origin.elapsed(), tsc());
        let ns_per_tick = elapsed.as_nanos() as f64 / last.wrapping_sub(first) as f64;
        Clock { origin, tsc: Some(Tsc { origin: first, ns_per_tick }) }
    }

    /// Nanoseconds since [`new`](Self::new).
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self.tsc {
            Some(at) => (tsc().wrapping_sub(at.origin) as f64 * at.ns_per_tick) as u64,
            None => self.origin.elapsed().as_nanos() as u64,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_arch = "x86_64")]
fn invariant_tsc() -> bool {
    use std::arch::x86_64::__cpuid;
    // Leaf 8000_0007h, EDX bit 8: the counter runs at one rate in all power states.
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86_64 and has no preconditions.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn invariant_tsc() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a pinned thread runs on a core that it was allowed to run on, and only there.
    /// Method: pin a thread to each allowed core in turn, and one index beyond; ask the kernel again.
    #[test]
    fn a_pinned_thread_has_exactly_the_core_it_was_given() {
        let cores = allowed_cores();
        for index in 0..=cores.len() {
            let seen = std::thread::scope(|scope| {
                let pinned = scope.spawn(|| {
                    pin(index, &cores);
                    allowed_cores()
                });
                pinned.join().expect("a thread that only pins")
            });
            assert_eq!(seen, [cores[index % cores.len()]]);
        }
    }

    /// Goal: the clock counts nanoseconds.
    /// Method: it may not run backwards, and must agree with the system's clock over 20 ms to 5 %, of which
    /// most is for a neighbour that takes the core between two readings.
    #[test]
    fn the_clock_agrees_with_the_systems() {
        let clock = Clock::new();
        // Being put off the core between two readings only ever makes one attempt wrong, not all of them.
        let agrees = (0..20).any(|_| {
            let (ours, theirs) = (clock.now(), Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            let (ours, theirs) = (clock.now() - ours, theirs.elapsed().as_nanos() as u64);
            ours.abs_diff(theirs) < theirs / 20
        });
        assert!(agrees);
    }
}
