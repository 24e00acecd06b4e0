//! `kill -9` at any moment: what readers of the final files have seen is every row exactly once, and what the
//! command writes when it is let alone at last is what it would have written in one go.
//!
//! `TIDEGATE_KILLS` says how many processes are killed (3); `TIDEGATE_SEED` draws the moments anew.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::tempdir;

/// Of a process that is not killed; a checkpoint directory of its own makes the first checkpoint come after it.
const LIFE_MS: u64 = 900;

/// Text of words of all lengths and frequencies, and how often each comes.
fn text(rng: &mut SmallRng, words: usize) -> (String, BTreeMap<String, u64>) {
    let (mut text, mut counts) = (String::new(), BTreeMap::new());
    for at in 0..words {
        let ranks = 1u32 << rng.random_range(1..14);
        let rank = rng.random_range(1..=ranks);
        let word = format!("w{rank}é");
        text.push_str(&word);
        text.push(if at % 9 == 8 { '\n' } else { ' ' });
        *counts.entry(word).or_insert(0) += 1;
    }
    (text, counts)
}

fn start(root: &Path, emit: &str, interval_ms: u64) -> Child {
    let name = |name: &str| root.join(name).into_os_string();
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["run", "wordcount", "--parallelism", "2", "--emit", emit])
        .arg(format!("-Dexecution.checkpointing.interval={interval_ms} ms"))
        // Small files, so that the first checkpoint need not wait for a large one to be made.
        .args(["-Dtidegate.log.file-size=4 mb", "-Dexecution.checkpointing.data-inline-threshold=0"])
        .args(["--input".into(), name("in"), "--output".into(), name("out")])
        .args(["--checkpoint-dir".into(), name("checkpoints")])
        .env_remove("TIDEGATE_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The rows of all final files; what is not final begins with a dot.
fn rows(dir: &Path) -> Vec<String> {
    let mut rows = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else { return rows };
    for entry in entries {
        let entry = entry.unwrap();
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            let text = fs::read_to_string(entry.path()).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'), "{:?} ends within a row", entry.path());
            rows.extend(text.lines().map(str::to_string));
        }
    }
    rows.sort_unstable();
    rows
}

/// Every row of `part` is in `all`, no row twice; both are sorted.
fn assert_within(part: &[String], all: &[String]) {
    let mut rest = all.iter();
    for row in part {
        assert!(rest.any(|expected| expected == row), "{row:?} was committed twice, or is wrong");
    }
}

fn killed_and_resumed(emit: &str, expected: impl Fn(&BTreeMap<String, u64>) -> Vec<String>) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let (mut left, seed) = (number("TIDEGATE_KILLS").unwrap_or(3), number("TIDEGATE_SEED").unwrap_or(1));
    let mut rng = SmallRng::seed_from_u64(seed);
    while left > 0 {
        let root = tempdir().unwrap();
        let root = root.path();
        fs::create_dir(root.join("in")).unwrap();
        let mut counts = BTreeMap::new();
        for file in 0..3 {
            let (text, of_file) = text(&mut rng, 150_000);
            fs::write(root.join(format!("in/{file}.txt")), text).unwrap();
            of_file.into_iter().for_each(|(word, count)| *counts.entry(word).or_insert(0) += count);
        }
        let mut expected = expected(&counts);
        expected.sort_unstable();
        let mut kills = rng.random_range(1..=6).min(left);
        loop {
            let mut child = start(root, emit, rng.random_range(10..40));
            if kills > 0 {
                // Half of the moments are early, where the process recovers and commits again.
                let life_ms = LIFE_MS >> if rng.random() { 0 } else { rng.random_range(1..6) };
                std::thread::sleep(Duration::from_micros(rng.random_range(0..life_ms * 1_000)));
                kills -= 1;
                left -= 1;
                child.kill().unwrap();
            }
            let output = child.wait_with_output().unwrap();
            assert_within(&rows(&root.join("out")), &expected);
            if output.status.success() {
                break;
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code().is_none(), "seed {seed}, {left} kills left: {stderr}");
        }
        let rows = rows(&root.join("out"));
        assert_eq!(rows.len(), expected.len(), "seed {seed}, {left} kills left");
        assert!(rows == expected, "seed {seed}, {left} kills left");
    }
}

#[test]
fn every_update_is_there_once() {
    killed_and_resumed("updates", |counts| {
        let updates = |(word, count): (&String, &u64)| {
            let word = word.clone();
            (1..=*count).map(move |n| format!("{word}\t{n}")).collect::<Vec<_>>()
        };
        counts.iter().flat_map(updates).collect()
    });
}

#[test]
fn every_count_is_there_once() {
    killed_and_resumed("final", |counts| {
        counts.iter().map(|(word, count)| format!("{word}\t{count}")).collect()
    });
}
