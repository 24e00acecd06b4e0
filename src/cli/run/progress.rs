//! Waiting for a job: progress for people, and Ctrl-C.

use crate::cli::{CliError, Interrupted};
use crate::coordinator::{JobSummary, RunningJob};
use crate::source::text::TextPlan;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the job is looked at. Short, since a job of a few milliseconds should not take much longer for it.
const LOOK: Duration = Duration::from_millis(5);

/// Set by the first Ctrl-C. The second one ends the process at once, for jobs that cannot be stopped.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C (and a polite kill) is ours.
    pub fn catch() -> Result<Interrupt, CliError> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .map_err(|cause| format!("signal {signal} cannot be caught: {cause}"))?;
        }
        Ok(Interrupt(flag))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Waits for `job`, which reads `text`; shows how far it is if `shown`, and cancels it at Ctrl-C, after which `output`
/// says what became of that.
pub(super) fn wait(
    job: RunningJob,
    text: &TextPlan,
    interrupt: &Interrupt,
    shown: bool,
    output: &'static str,
) -> Result<JobSummary, CliError> {
    let bar = bar(text.bytes_total(), shown);
    let mut cancelled = false;
    while !job.is_over() {
        if interrupt.is_set() && !cancelled {
            cancelled = true;
            job.cancel();
        }
        bar.set_position(text.bytes_read());
        std::thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    match job.wait() {
        Ok(summary) => Ok(summary),
        Err(_) if cancelled => Err(Interrupted { output }.into()),
        Err(error) => Err(error.into()),
    }
}

/// Bytes, rate and, where the end is known, time left.
fn bar(bytes_total: Option<u64>, shown: bool) -> ProgressBar {
    let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
    let (bar, template) = match bytes_total {
        Some(total) => {
            (ProgressBar::new(total), "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left")
        }
        None => (ProgressBar::no_length(), "{spinner} {bytes}, {binary_bytes_per_sec}, {elapsed} so far"),
    };
    bar.set_draw_target(target);
    bar.with_style(ProgressStyle::with_template(template).expect("a template that indicatif knows"))
}
