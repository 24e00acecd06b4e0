//! glommio's executor as a driver: one task of it runs the same turns of the same shard.
//!
//! Shards wake each other through the same doorbells; only the last step differs, a [`Waker`] of the task
//! in the place of an eventfd. Log, timers and wake-ups of the engine depend on nothing of it.
//!
//! Settings that work: a preempt timer of 1 ms (at its default of 100 ms a neighbouring task waits that
//! long), and 1 MiB of registered memory, which fits under the usual limit of 8 MiB with several shards.

use super::{Idle, IdleStrategy, Idling};
use crate::channel::doorbell::Wake;
use crate::shard::Shard;
use crate::task::Clock;
use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long a task of the executor may run before it should let others.
const PREEMPT: Duration = Duration::from_millis(1);

/// Memory that the executor registers with the kernel, in bytes; below 512 KiB it refuses to start.
const IO_MEMORY_BYTES: usize = 1 << 20;

/// Ends the sleep of the task that runs a shard.
#[derive(Default)]
pub struct TaskWaker {
    rung: AtomicBool,
    /// The task, while it sleeps.
    task: Mutex<Option<Waker>>,
}

impl Wake for TaskWaker {
    fn wake(&self) {
        self.rung.store(true, Ordering::Release);
        // The lock orders this with `sleep`: either it is there, or it finds `rung` after us.
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl TaskWaker {
    /// Sleeps until woken or, if given, for `timeout`. Returns at once after a wake that nobody slept through.
    async fn sleep(&self, timeout: Option<Duration>) {
        let mut timer = pin!(async {
            match timeout {
                Some(timeout) => {
                    Timer::new(timeout).await;
                }
                None => std::future::pending().await,
            }
        });
        poll_fn(|cx| {
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            if self.rung.swap(false, Ordering::AcqRel) || timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// An executor on the calling thread, which stays pinned as it is.
///
/// # Errors
///
/// What glommio says: io_uring is forbidden, or too little memory may be locked.
pub(super) fn executor() -> io::Result<LocalExecutor> {
    LocalExecutorBuilder::new(Placement::Unbound)
        .name("tidegate-shard")
        .preempt_timer(PREEMPT)
        .io_memory(IO_MEMORY_BYTES)
        .make()
        .map_err(|error| io::Error::other(error.to_string()))
}

/// Runs a shard as a task of `executor` until it stops.
pub(super) fn run(
    executor: &LocalExecutor,
    shard: &mut Shard,
    clock: &impl Clock,
    waker: &TaskWaker,
    idle: IdleStrategy,
) {
    executor.run(async {
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
                glommio::yield_if_needed().await;
                continue;
            }
            match idling.next(&outcome) {
                Idle::Look => {
                    std::hint::spin_loop();
                    glommio::yield_if_needed().await;
                }
                Idle::Sleep(until_ns) => {
                    if shard.may_sleep() {
                        let left_ns = until_ns.map(|at| at.saturating_sub(clock.now_ns()));
                        waker.sleep(left_ns.map(Duration::from_nanos)).await;
                        shard.woke();
                    }
                }
            }
        }
    });
}
