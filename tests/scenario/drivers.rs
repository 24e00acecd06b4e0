//! The driver that is asked for runs the job, or is refused with what to do.

use tidegate::api::Environment;
use tidegate::config::{Config, Origin};
use tidegate::sink::collect::{Collect, Collected};
use tidegate::subtask::SubtaskInfo;

/// Sums by key over two shards, under glommio; the rows, sorted.
fn run_under_glommio() -> Result<Vec<(u64, u64)>, String> {
    let mut config = Config::default();
    config.set("tidegate.driver", "glommio", Origin::CommandLine).unwrap();
    config.set("tidegate.shards", "2", Origin::CommandLine).unwrap();
    let env = Environment::with_config(config);
    let rows = Collected::default();
    let all = rows.clone();
    env.from_vec("numbers", (0..100_000u64).map(|i| (i % 10, i)).collect())
        .key_by::<u64, _>(|(key, _)| key)
        .count_at_end()
        .sink("rows", move |_: &SubtaskInfo| Ok(Collect::new(all.clone())));
    env.execute("glommio").map_err(|error| error.to_string())?;
    let mut rows = std::mem::take(&mut *rows.lock().unwrap());
    rows.sort_unstable();
    Ok(rows)
}

/// Goal: glommio's executor runs the same turns of the same shards.
/// Method: a keyed exchange between two shards, counted; skipped where io_uring is forbidden.
#[cfg(feature = "glommio")]
#[test]
fn glommio_runs_an_exchange() {
    let probe = tidegate::coordinator::probe::Probe::look();
    if let Err(cause) = &probe.io_uring {
        eprintln!("skipped: io_uring is blocked ({cause})");
        return;
    }
    let rows = run_under_glommio().unwrap();
    assert_eq!(rows, (0..10).map(|key| (key, 10_000)).collect::<Vec<_>>());
}

/// Goal: a build without glommio says so, and how to build one with it.
#[cfg(not(feature = "glommio"))]
#[test]
fn without_glommio_the_error_says_how_to_build_it() {
    let error = run_under_glommio().unwrap_err();
    assert!(error.contains("tidegate.driver") && error.contains("--features glommio"), "{error}");
}
