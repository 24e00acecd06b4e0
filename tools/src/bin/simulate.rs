//! Runs simulated jobs for as long as it is told, from one seed on; see `tidegate_tools::sim`.

use std::process::ExitCode;
use std::time::Duration;
use tidegate_tools::sim;

const USAGE: &str = "usage: simulate [--seed N] [--minutes M] [--replay]
  --seed N      the first seed (default 1)
  --minutes M   how long to go on with the following ones (default 1)
  --replay      only this seed, every step printed";

fn main() -> ExitCode {
    let (mut seed, mut minutes, mut replay) = (1u64, 1.0f64, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let taken = match argument.as_str() {
            "--seed" => arguments.next().and_then(|n| n.parse().ok()).map(|n| seed = n),
            "--minutes" => arguments
                .next()
                .and_then(|m| m.parse().ok())
                .filter(|m: &f64| m.is_finite() && *m >= 0.0)
                .map(|m| minutes = m),
            "--replay" => {
                replay = true;
                Some(())
            }
            _ => None,
        };
        if taken.is_none() {
            eprintln!("{argument:?} is not an option, or its value is no number\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    let done = if replay {
        sim::run(seed, true).map(|summary| println!("{summary:?}"))
    } else {
        let time = Duration::from_secs_f64(minutes * 60.0);
        sim::explore(seed, 1, time).map(|all| println!("{}", all.describe()))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
