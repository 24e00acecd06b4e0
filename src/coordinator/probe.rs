//! What the machine lets us do, looked at once at the start, and what is lost where it does not.

use std::fmt;
use std::io;
use std::sync::Once;
use tidegate_shard::topology;

/// Memory that one shard with io_uring registers, in bytes.
const REGISTERED_BYTES: u64 = 1 << 20;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Why io_uring cannot be used, if so.
    pub io_uring: Result<(), String>,
    /// Bytes of memory that may be locked; `None`: as many as there are.
    pub memlock_bytes: Option<u64>,
    /// Cores that this process may run on.
    pub allowed_cores: u32,
    /// Cores that are online.
    pub online_cores: u32,
    /// Mode of transparent huge pages: `always`, `madvise`, `never`, or `unknown`.
    pub huge_pages: String,
}

impl Probe {
    /// Looks at the machine. Costs some ten microseconds; call it before any thread is pinned.
    pub fn look() -> Probe {
        // SAFETY: asks for a number and touches no memory.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        Probe {
            io_uring: try_io_uring().map_err(|error| error.to_string()),
            memlock_bytes: memlock(),
            allowed_cores: topology::allowed_cores().map_or(1, |cores| cores.len() as u32),
            online_cores: online.max(1) as u32,
            huge_pages: modes.ok().and_then(|modes| chosen(&modes)).unwrap_or_else(|| "unknown".to_string()),
        }
    }

    /// Looks, and writes what was found to the log at level info; once a process.
    pub fn log_once() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            for line in Probe::look().to_string().lines() {
                tracing::info!("{line}");
            }
        });
    }
}

/// One line for each thing, with what is lost.
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.io_uring {
            Ok(()) => writeln!(f, "io_uring: available")?,
            Err(cause) => writeln!(
                f,
                "io_uring: blocked ({cause}); the glommio driver cannot run, the thread driver loses nothing"
            )?,
        }
        match self.memlock_bytes {
            None => writeln!(f, "memory that may be locked: unlimited")?,
            Some(bytes) if bytes < u64::from(self.allowed_cores) * REGISTERED_BYTES => writeln!(
                f,
                "memory that may be locked: {} KiB; too little to register 1 MiB a shard: glommio goes on \
                 unregistered or not at all",
                bytes >> 10
            )?,
            Some(bytes) => writeln!(f, "memory that may be locked: {} KiB", bytes >> 10)?,
        }
        if self.allowed_cores < self.online_cores {
            writeln!(
                f,
                "cores: {} of {} online ones may be used; the others are lost to shards",
                self.allowed_cores, self.online_cores
            )?;
        } else {
            writeln!(f, "cores: all {} may be used", self.online_cores)?;
        }
        match self.huge_pages.as_str() {
            "always" | "madvise" => write!(f, "transparent huge pages: {}", self.huge_pages),
            other => {
                write!(f, "transparent huge pages: {other}; large keyed state pays for more page-table walks")
            }
        }
    }
}

/// Sets up the smallest ring and closes it again.
fn try_io_uring() -> io::Result<()> {
    // Larger than the kernel's `io_uring_params` (120 bytes); all zero asks for nothing special.
    let mut params = [0u64; 32];
    // SAFETY: the kernel writes its parameters, 120 bytes, into `params`, which lives until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh and ours alone.
    unsafe { libc::close(fd as libc::c_int) };
    Ok(())
}

/// Bytes that may be had before others must give something up: what the kernel calls available, within the
/// limit of our control group. All there could be where neither is told.
pub(super) fn memory_available() -> u64 {
    let kib = |text: &str, field: &str| {
        let line = text.lines().find(|line| line.starts_with(field))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib(&text, "MemAvailable:"));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse::<u64>().ok());
    machine.map_or(u64::MAX, |kib| kib << 10).min(group.unwrap_or(u64::MAX))
}

fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`, which lives until it returns.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (rc != 0 || limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The word in brackets.
fn chosen(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    Some(rest.split_once(']')?.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_brackets_is_the_chosen_one() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
    }

    /// Goal: whatever is missing is named with what is lost, and nothing is lost where all is there.
    #[test]
    fn what_is_missing_is_named_with_what_is_lost() {
        let good = Probe {
            io_uring: Ok(()),
            memlock_bytes: None,
            allowed_cores: 2,
            online_cores: 2,
            huge_pages: "madvise".to_string(),
        };
        assert!(!good.to_string().contains("los"), "{good}");
        let bad = Probe {
            io_uring: Err("Operation not permitted".to_string()),
            memlock_bytes: Some(64 << 10),
            allowed_cores: 1,
            online_cores: 2,
            huge_pages: "never".to_string(),
        };
        let text = bad.to_string();
        for part in ["Operation not permitted", "64 KiB", "1 of 2", "never"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let here = Probe::look();
        assert!(here.allowed_cores >= 1 && here.allowed_cores <= here.online_cores);
    }
}
