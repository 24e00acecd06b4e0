//! A word count that ends at, or fails at, every step that its checkpoints' fate may hang on; then it is run again.
//!
//! | variable | effect |
//! | --- | --- |
//! | `TIDEGATE_FAULTS=n` | so many rounds over all points, and every step of a run rather than one in eight |
//! | `TIDEGATE_SEED=n` | draws the later hits anew |
//!
//! A failure names the rules that lead to it: `TIDEGATE_FAILPOINTS='log.commit.synced@1=kill'` before the command.

use super::words::{Draw, Ended, Words, variable};
use std::fs;
use std::path::Path;
use tempfile::tempdir;
use tidegate_storage::failpoint::{self, Point};

/// How many words make a run of some checkpoints.
const WORDS: usize = 200_000;

/// Points that a run comes to only when it goes on from an older checkpoint than its output: another test's.
const RETRACTING: &[Point] = &[failpoint::SINK_RETRACT];

/// The names that a process came to, and whether each is a step on the disk.
fn traced(path: &Path) -> Vec<(String, bool)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| match line.strip_suffix(" -") {
            Some(name) => (name.to_string(), false),
            None => (line.to_string(), true),
        })
        .collect()
}

/// Runs the job with failpoints that may kill it; the name of the point that did.
fn killed(words: &Words, rules: &str, what: &str) -> Option<String> {
    let trace = words.root.join("trace");
    let Ended { code, stderr, .. } = words.run_with(&format!("{rules};trace={}", trace.display()));
    words.assert_no_duplicate(what);
    assert!(code.is_none() || code == Some(0), "{what}: {code:?}: {stderr}");
    // Another thread may have come to one more point, which is no matter: then nobody counts this end.
    code.is_none().then(|| traced(&trace).pop().map(|(name, _)| name).unwrap_or_default())
}

/// Lets the job come to its end.
fn finish(words: &Words, what: &str) {
    let ended = words.run();
    assert!(ended.succeeded() && ended.stdout.is_empty(), "{what}: {ended:?}");
    words.assert_complete(what);
}

/// Goal: whatever the last thing was that a process did, and whatever the last thing was that the next one did on
/// its way back, readers see every row once.
/// Method: each point in turn is where the process ends, as by `kill -9`, the first time it is come to; the one that
/// recovers ends there, too. A point that only a recovery comes to gets processes before it that end while they
/// give a part its pending name. In later rounds it is the n-th time, and recovery ends at any step.
#[test]
fn f27_f69_a_process_may_end_at_every_point() {
    /// So many processes leave more log files than are kept for later.
    const BEFORE_MAX: u64 = 8;
    let rounds = variable("TIDEGATE_FAULTS").unwrap_or(1);
    let seed = variable("TIDEGATE_SEED").unwrap_or(1);
    let mut draw = Draw(seed);
    let words = Words::new(seed, WORDS);
    let mut never: Vec<&str> = failpoint::ALL.iter().map(|point| point.name()).collect();
    never.retain(|name| RETRACTING.iter().all(|point| point.name() != *name));
    let (mut ends, mut recoveries) = (0, 0);
    for round in 0..rounds {
        for point in failpoint::ALL {
            let name = point.name();
            let directory = tempdir().unwrap();
            let mut words = words.elsewhere(directory.path());
            if round > 0 {
                let action = ["kill", "killed"][draw.below(2) as usize];
                let first = format!("{name}@{}={action};coordinator.notice@12=kill", 1 + draw.below(12));
                let second = format!("*@{}=kill", 1 + draw.below(60));
                let what = format!("{first}, then {second}");
                ends += u32::from(killed(&words, &first, &what).is_some_and(|at| at == name));
                recoveries += u32::from(killed(&words, &second, &what).is_some());
                finish(&words, &what);
                continue;
            }
            for before in 0..BEFORE_MAX {
                // Files of another size are not used again.
                words.file_kb = 256 + 64 * before;
                let rules = format!("{name}@1=kill;sink.pending@2=kill");
                if killed(&words, &rules, &rules).is_some_and(|at| at == name) {
                    never.retain(|n| *n != name);
                    ends += 1;
                    break;
                }
            }
            let rules = format!("{name}@1=kill");
            recoveries += u32::from(killed(&words, &rules, &rules).is_some());
            finish(&words, &rules);
        }
    }
    println!("{ends} processes ended at their point, and {recoveries} that recovered");
    assert_eq!(never, [""; 0], "points at which no process has ended");
}

/// Goal: whatever step on the disk fails, however it does, the job goes on or ends with an error that says on what and
/// why; what readers see is right, and the next process finishes the job.
/// Method: the n-th of all steps of a run fails, in one way after the other, with and without restarts.
#[test]
fn f79_every_step_on_the_disk_may_fail() {
    let all = variable("TIDEGATE_FAULTS").is_some();
    let seed = variable("TIDEGATE_SEED").unwrap_or(1);
    let words = Words::new(seed, WORDS);
    let directory = tempdir().unwrap();
    let trace = directory.path().join("trace");
    let of_trace = words.elsewhere(directory.path());
    let ended = of_trace.run_with(&format!("trace={}", trace.display()));
    assert!(ended.succeeded(), "{ended:?}");
    let steps = traced(&trace).iter().filter(|(_, disk)| *disk).count() as u64;
    assert!(steps > 60, "{steps} steps are no run with checkpoints");
    let faults = ["eio", "enospc", "short", "none", "lost"];
    let (mut survived, mut failed) = (0, 0);
    let mut draw = Draw(seed);
    let mut at = 1;
    while at <= steps {
        for restarts in if all { vec![false, true] } else { vec![draw.below(2) == 0] } {
            let fault = faults[draw.below(5) as usize];
            let directory = tempdir().unwrap();
            let mut words = words.elsewhere(directory.path());
            let strategy = if restarts { "fixed-delay" } else { "disable" };
            words.options.push(format!("-Drestart-strategy.type={strategy}").into());
            words.options.push("-Drestart-strategy.fixed-delay.delay=1 ms".into());
            words.options.push("-Drestart-strategy.fixed-delay.attempts=3".into());
            let trace = directory.path().join("trace");
            let rules = format!("*@{at}={fault};trace={}", trace.display());
            let Ended { code, stderr, .. } = words.run_with(&rules);
            let (come_to, _) =
                traced(&trace).into_iter().filter(|(_, disk)| *disk).nth(at as usize - 1).unwrap_or_default();
            let what = format!("{rules} ({come_to}), {strategy}: {code:?}: {stderr}");
            words.assert_no_duplicate(&what);
            assert!(!stderr.contains("panicked"), "{what}");
            match code {
                Some(0) => {
                    survived += 1;
                    words.assert_complete(&what);
                }
                Some(_) => {
                    failed += 1;
                    let says = ["Input/output error", "No space left", "out of space"];
                    assert!(says.iter().any(|cause| stderr.contains(cause)), "no cause: {what}");
                    assert!(stderr.contains(directory.path().to_str().unwrap()), "no file: {what}");
                }
                None => panic!("killed: {what}"),
            }
            finish(&words, &what);
        }
        at += if all { 1 } else { 1 + draw.below(15) };
    }
    println!("of {steps} steps: {survived} jobs went on, {failed} ended and were resumed");
    assert!(survived > 0 && failed > 0);
}

/// Goal: moving output aside that goes beyond an older checkpoint may end at any step, and is then done once more.
#[test]
fn f71_a_process_may_end_while_it_retracts_output() {
    let words = Words::new(5, WORDS);
    let mut ends = 0;
    for step in 1..=4 {
        let directory = tempdir().unwrap();
        let mut words = words.elsewhere(directory.path());
        words.options.push("-Dexecution.checkpointing.num-retained=100".into());
        killed(&words, "coordinator.complete@3=kill", "to have checkpoints");
        let checkpoints = words.checkpoints();
        assert!(checkpoints.len() > 1, "{checkpoints:?}");
        let oldest = words.state().join(format!("chk-{}", checkpoints[0]));
        words.options.extend(["--from".into(), oldest.into(), "--retract-output".into()]);
        let rules = format!("sink.retract@{step}=kill");
        ends += u32::from(killed(&words, &rules, &rules).is_some_and(|at| at == "sink.retract"));
        finish(&words, &rules);
    }
    assert!(ends >= 2, "{ends} of 4 ended there");
}

/// Goal: the points are many, and no two have one name, or a rule would mean both.
#[test]
fn points_have_names_of_their_own() {
    let mut names: Vec<&str> = failpoint::ALL.iter().map(|point| point.name()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(all >= 40);
}
