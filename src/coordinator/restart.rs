//! When a job that has failed is started again.
//!
//! | strategy | restarts | after |
//! | --- | --- | --- |
//! | `none`, `off`, `disable` | never | |
//! | `fixed-delay` | a number of times | the same time always |
//! | `failure-rate` | while failures are not too many in any interval | the same time always |
//! | `exponential-delay` | endless, or a number of times since it was reset | a time that grows with each failure |
//!
//! `exponential-delay` begins anew when the job has run for long without a failure. Its times vary at random, so that
//! jobs that fail together do not come back together; the numbers come from a seed, so that a test knows them.

use std::collections::VecDeque;
use std::time::Duration;

/// When a failed job is restarted, as configured under `restart-strategy.`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RestartSettings {
    /// Never.
    Disabled,
    /// A number of times.
    FixedDelay {
        /// Restarts.
        attempts_max: u32,
        /// Time before each.
        delay: Duration,
    },
    /// While failures are rare.
    FailureRate {
        /// Failures in an interval that are borne.
        failures_max: u32,
        /// The interval.
        interval: Duration,
        /// Time before each restart.
        delay: Duration,
    },
    /// With times that grow.
    ExponentialDelay {
        /// Time before the first restart.
        initial: Duration,
        /// Longest time before a restart.
        max: Duration,
        /// From one time to the next, at least 1.
        multiplier: f64,
        /// Time without a failure after which the times begin anew.
        reset: Duration,
        /// Share of a time by which it varies, up or down, from 0 to 1.
        jitter: f64,
        /// Restarts between two beginnings; `None`: endless.
        attempts_max: Option<u32>,
    },
}

impl RestartSettings {
    /// The strategy's name, as configured.
    pub fn name(&self) -> &'static str {
        match self {
            RestartSettings::Disabled => "disable",
            RestartSettings::FixedDelay { .. } => "fixed-delay",
            RestartSettings::FailureRate { .. } => "failure-rate",
            RestartSettings::ExponentialDelay { .. } => "exponential-delay",
        }
    }
}

/// What to do with a job that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// Start it again after this time.
    After(Duration),
    /// Leave it.
    No {
        /// Why, as the end of a sentence.
        why: String,
    },
}

/// Decides on restarts; reads no clock.
#[derive(Debug)]
pub struct RestartStrategy {
    settings: RestartSettings,
    /// Since the beginning, or since times began anew.
    attempts: u32,
    /// Failures in the last interval, oldest first; at most one more than are borne.
    failures_ns: VecDeque<u64>,
    /// When the restart after the last failure was due.
    restarted_ns: Option<u64>,
    random: u64,
}

impl RestartStrategy {
    /// As configured; times vary by `seed`.
    pub fn new(settings: RestartSettings, seed: u64) -> RestartStrategy {
        RestartStrategy {
            settings,
            attempts: 0,
            failures_ns: VecDeque::new(),
            restarted_ns: None,
            random: seed,
        }
    }

    /// As configured.
    pub fn settings(&self) -> &RestartSettings {
        &self.settings
    }

    /// The job has failed, and nothing of it runs any more.
    pub fn on_failure(&mut self, now_ns: u64) -> Restart {
        let restart = self.decide(now_ns);
        if let Restart::After(delay) = &restart {
            self.restarted_ns = Some(now_ns.saturating_add(nanos(*delay)));
        }
        restart
    }

    fn decide(&mut self, now_ns: u64) -> Restart {
        match self.settings {
            RestartSettings::Disabled => {
                Restart::No { why: "no restart strategy is set (restart-strategy.type)".to_string() }
            }
            RestartSettings::FixedDelay { attempts_max, delay } => {
                self.attempt(Some(attempts_max), delay, || {
                    format!("it was restarted {attempts_max} times (restart-strategy.fixed-delay.attempts)")
                })
            }
            RestartSettings::FailureRate { failures_max, interval, delay } => {
                self.failures_ns.push_back(now_ns);
                let interval_ns = nanos(interval);
                self.failures_ns.retain(|failed_ns| now_ns.saturating_sub(*failed_ns) <= interval_ns);
                if self.failures_ns.len() <= failures_max as usize {
                    return Restart::After(delay);
                }
                let why = format!(
                    "it has failed {} times in {interval:?}, {failures_max} are borne \
                     (restart-strategy.failure-rate.max-failures-per-interval)",
                    self.failures_ns.len()
                );
                Restart::No { why }
            }
            RestartSettings::ExponentialDelay { initial, max, multiplier, reset, jitter, attempts_max } => {
                let quiet_ns = self.restarted_ns.map_or(0, |restarted| now_ns.saturating_sub(restarted));
                if quiet_ns >= nanos(reset) {
                    self.attempts = 0;
                }
                let grown = initial.as_secs_f64() * multiplier.powf(f64::from(self.attempts));
                let delay = grown.min(max.as_secs_f64()) * (1.0 + jitter * self.draw());
                let delay = Duration::from_secs_f64(delay.min(max.as_secs_f64()));
                self.attempt(attempts_max, delay, || {
                    format!(
                        "it was restarted {} times (restart-strategy.exponential-delay.attempts-before-reset-backoff)",
                        attempts_max.unwrap_or(u32::MAX)
                    )
                })
            }
        }
    }

    fn attempt(&mut self, max: Option<u32>, delay: Duration, why: impl Fn() -> String) -> Restart {
        if max.is_some_and(|max| self.attempts >= max) {
            return Restart::No { why: why() };
        }
        self.attempts = self.attempts.saturating_add(1);
        Restart::After(delay)
    }

    /// From −1 to 1, each as likely.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(1);
        let bits = crate::limit::splitmix(self.random) >> 11;
        bits as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn exponential(jitter: f64, attempts_max: Option<u32>) -> RestartSettings {
        RestartSettings::ExponentialDelay {
            initial: secs(1),
            max: secs(60),
            multiplier: 1.5,
            reset: secs(3600),
            jitter,
            attempts_max,
        }
    }

    fn delay(restart: Restart) -> f64 {
        match restart {
            Restart::After(delay) => delay.as_secs_f64(),
            Restart::No { why } => panic!("{why}"),
        }
    }

    fn refusal(restart: Restart) -> String {
        match restart {
            Restart::After(delay) => panic!("after {delay:?}"),
            Restart::No { why } => why,
        }
    }

    #[test]
    fn without_a_strategy_a_job_is_left() {
        let mut strategy = RestartStrategy::new(RestartSettings::Disabled, 1);
        assert!(refusal(strategy.on_failure(0)).contains("restart-strategy.type"));
    }

    /// Goal: three attempts are three restarts; the fourth failure is the last, however much later it comes.
    #[test]
    fn m_132_fixed_delay_restarts_a_number_of_times() {
        let settings = RestartSettings::FixedDelay { attempts_max: 3, delay: secs(2) };
        let mut strategy = RestartStrategy::new(settings, 1);
        for failure in 0..3 {
            assert_eq!(strategy.on_failure(failure * 10_000 * S), Restart::After(secs(2)));
        }
        assert!(refusal(strategy.on_failure(90_000 * S)).contains("restarted 3 times"));
        let none = RestartSettings::FixedDelay { attempts_max: 0, delay: secs(2) };
        refusal(RestartStrategy::new(none, 1).on_failure(0));
    }

    /// Goal: as many failures in an interval as are borne are borne, one more is not; what is older is forgotten.
    #[test]
    fn failure_rate_counts_failures_in_a_sliding_interval() {
        let settings = RestartSettings::FailureRate { failures_max: 2, interval: secs(60), delay: secs(1) };
        let mut strategy = RestartStrategy::new(settings, 1);
        for failed in [0, 50, 111, 120, 181, 190] {
            assert_eq!(strategy.on_failure(failed * S), Restart::After(secs(1)), "at {failed} s");
        }
        assert!(refusal(strategy.on_failure(241 * S)).contains("3 times in 60s, 2 are borne"));
    }

    /// Goal: the times are 1, 1.5, 2.25 … s up to a minute, each within a tenth; with another seed they are others.
    #[test]
    fn m_132_exponential_delay_grows_by_half_up_to_a_minute() {
        let times = |seed: u64| {
            let mut strategy = RestartStrategy::new(exponential(0.1, None), seed);
            let mut now = 0;
            let mut times = Vec::new();
            for attempt in 0..200 {
                let time = delay(strategy.on_failure(now));
                let plain = 1.5f64.powi(attempt).min(60.0);
                assert!(
                    time >= 0.9 * plain - 1e-6 && time <= (1.1 * plain).min(60.0) + 1e-6,
                    "{attempt}: {time}"
                );
                now += (time * 1e9) as u64 + S;
                times.push(time);
            }
            times
        };
        let (one, two) = (times(1), times(2));
        assert_eq!(one, times(1));
        assert_ne!(one, two);
        let (low, high) = one[..10].iter().enumerate().fold((f64::MAX, 0.0f64), |(low, high), (i, time)| {
            let share = time / 1.5f64.powi(i as i32);
            (low.min(share), high.max(share))
        });
        assert!(low < 0.97 && high > 1.03, "times vary both ways: {low} to {high}");
    }

    /// Goal: an hour without a failure, counted from the restart, begins the times anew, a second less does not.
    #[test]
    fn exponential_delay_begins_anew_after_a_quiet_time() {
        let mut strategy = RestartStrategy::new(exponential(0.0, Some(2)), 1);
        assert_eq!(delay(strategy.on_failure(0)), 1.0);
        assert_eq!(delay(strategy.on_failure(S + 3599 * S)), 1.5);
        let quiet = 3600 * S + 1_500_000_000;
        assert_eq!(delay(strategy.on_failure(3600 * S + quiet)), 1.0);
        assert_eq!(delay(strategy.on_failure(3600 * S + quiet + 2 * S)), 1.5);
        assert!(refusal(strategy.on_failure(3600 * S + quiet + 9 * S)).contains("restarted 2 times"));
    }
}
