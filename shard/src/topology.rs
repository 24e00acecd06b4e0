//! Cores: which ones this process may use, and pinning to one of them.

use std::io;

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
///
/// The kernel's answer, if it does not say.
pub fn allowed_cores() -> io::Result<Vec<u32>> {
    let mut set = empty_set();
    // SAFETY: the kernel writes at most the size that is given into a set that lives here.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: reads a bit of a set that lives here; the number is below its size.
    Ok((0..libc::CPU_SETSIZE as u32)
        .filter(|core| unsafe { libc::CPU_ISSET(*core as usize, &set) })
        .collect())
}

/// Lets the calling thread run on these cores only. Threads that it starts inherit that.
///
/// # Errors
///
/// The kernel's answer, for instance if none of the cores may be used.
pub fn pin(cores: &[u32]) -> io::Result<()> {
    let mut set = empty_set();
    for core in cores {
        if *core >= libc::CPU_SETSIZE as u32 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: sets a bit of a set that lives here; the number is below its size.
        unsafe { libc::CPU_SET(*core as usize, &mut set) };
    }
    // SAFETY: the kernel reads the set, which lives here.
    if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: an array of integers, for which all zeros is the empty set.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_to_an_allowed_core_holds_and_to_none_is_refused() {
        std::thread::spawn(|| {
            let cores = allowed_cores().expect("the kernel tells");
            pin(&cores[..1]).expect("an allowed core");
            assert_eq!(allowed_cores().expect("the kernel tells"), cores[..1]);
            assert!(pin(&[1_000_000]).is_err());
            assert!(pin(&[]).is_err());
        })
        .join()
        .expect("the thread does not panic");
    }
}
