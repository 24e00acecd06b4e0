//! A word count of the command, which others kill, starve and break: its text, its options, and what readers see.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far more than any of these processes takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Numbers that a seed draws: splitmix64, after Steele, Lea and Flood, 2014.
pub struct Draw(pub u64);

impl Draw {
    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A whole number of the environment.
pub fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no whole number")))
}

/// Text of words of all lengths and frequencies, and how often each comes.
pub fn text(draw: &mut Draw, words: usize) -> (String, BTreeMap<String, u64>) {
    let (mut text, mut counts) = (String::new(), BTreeMap::new());
    for at in 0..words {
        let ranks = 1 << (1 + draw.below(13));
        let word = format!("w{}é", draw.below(ranks));
        text.push_str(&word);
        text.push(if at % 9 == 8 { '\n' } else { ' ' });
        *counts.entry(word).or_insert(0) += 1;
    }
    (text, counts)
}

/// How a process has ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if it was killed.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }
}

/// Runs a command to its end, which must come.
pub fn ended(command: &mut Command) -> Ended {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (done, over) = std::sync::mpsc::channel::<()>();
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || {
        let output = child.wait_with_output().unwrap();
        drop(done);
        output
    });
    // Nothing is ever sent: the end of the sender is the end of the process.
    if over.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
        let output = waiting.join().unwrap();
        panic!(
            "{command:?} hung for {:?} ({killed:?}): {}",
            begun.elapsed(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let output = waiting.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// The command, without what the test's own environment would change.
pub fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_remove("TIDEGATE_LOG").env_remove("TIDEGATE_FAILPOINTS");
    command
}

/// One word count: its input, and where it keeps its output and checkpoints.
pub struct Words {
    _temporary: Option<TempDir>,
    pub input: PathBuf,
    /// Below it are the output, `out`, and the checkpoints, `state`.
    pub root: PathBuf,
    /// Every row that it has to write, sorted.
    pub expected: Vec<String>,
    /// Milliseconds between checkpoints.
    pub interval_ms: u64,
    /// Size of a log file in KiB: small, so that the first checkpoint need not wait for a large one to be made.
    pub file_kb: u64,
    /// More options.
    pub options: Vec<OsString>,
}

impl Words {
    /// Of so many words, in a temporary directory.
    pub fn new(seed: u64, words: usize) -> Words {
        let dir = TempDir::new().unwrap();
        let root = dir.path().to_path_buf();
        Words { _temporary: Some(dir), ..Words::in_directory(&root, seed, words) }
    }

    /// In a directory that is there.
    pub fn in_directory(root: &Path, seed: u64, words: usize) -> Words {
        let input = root.join("in");
        fs::create_dir(&input).unwrap();
        let mut draw = Draw(seed);
        let mut counts = BTreeMap::new();
        for file in 0..2 {
            let (text, of_file) = text(&mut draw, words / 2);
            fs::write(input.join(format!("{file}.txt")), text).unwrap();
            of_file.into_iter().for_each(|(word, count)| *counts.entry(word).or_insert(0) += count);
        }
        let updates = |(word, count): (&String, &u64)| {
            let word = word.clone();
            (1..=*count).map(move |n| format!("{word}\t{n}")).collect::<Vec<_>>()
        };
        let mut expected: Vec<String> = counts.iter().flat_map(updates).collect();
        expected.sort_unstable();
        Words {
            _temporary: None,
            input,
            root: root.to_path_buf(),
            expected,
            interval_ms: 10,
            file_kb: 256,
            options: Vec::new(),
        }
    }

    /// The same input, with output and checkpoints elsewhere.
    pub fn elsewhere(&self, root: &Path) -> Words {
        Words {
            _temporary: None,
            input: self.input.clone(),
            root: root.to_path_buf(),
            expected: self.expected.clone(),
            interval_ms: self.interval_ms,
            file_kb: self.file_kb,
            options: self.options.clone(),
        }
    }

    pub fn output(&self) -> PathBuf {
        self.root.join("out")
    }

    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Ids of the checkpoints that have been published, the oldest first.
    pub fn checkpoints(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.state()) else { return Vec::new() };
        let id = |name: OsString| name.to_str()?.strip_prefix("chk-")?.parse().ok();
        let entries = entries.map(|entry| entry.unwrap());
        let whole = entries.filter(|entry| entry.path().join("_metadata").is_file());
        let mut ids: Vec<u64> = whole.filter_map(|entry| id(entry.file_name())).collect();
        ids.sort_unstable();
        ids
    }

    /// The command that begins the job, or goes on with it.
    pub fn command(&self) -> Command {
        let mut command = tidegate();
        command
            .args(["run", "wordcount", "--parallelism", "2", "--emit", "updates", "--shards", "2"])
            .arg(format!("-Dexecution.checkpointing.interval={} ms", self.interval_ms))
            .arg(format!("-Dtidegate.log.file-size={} kb", self.file_kb))
            .arg("-Dexecution.checkpointing.data-inline-threshold=0")
            .arg("--input")
            .arg(&self.input)
            .arg("--output")
            .arg(self.output())
            .arg("--checkpoint-dir")
            .arg(self.state())
            .args(&self.options);
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Ended {
        ended(&mut self.command())
    }

    /// Runs it with failpoints.
    pub fn run_with(&self, failpoints: &str) -> Ended {
        ended(self.command().env("TIDEGATE_FAILPOINTS", failpoints))
    }

    /// The rows of all final files, sorted; what is not final begins with a dot.
    pub fn rows(&self) -> Vec<String> {
        let mut rows = Vec::new();
        let Ok(entries) = fs::read_dir(self.output()) else { return rows };
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

    /// That readers have seen no row twice, and no wrong one; `what` is for the message.
    pub fn assert_no_duplicate(&self, what: &str) {
        let mut rest = self.expected.iter();
        for row in self.rows() {
            assert!(
                rest.any(|expected| *expected == row),
                "{what}: {row:?} was committed twice, or is wrong"
            );
        }
    }

    /// That readers have seen all rows, each once.
    pub fn assert_complete(&self, what: &str) {
        self.assert_no_duplicate(what);
        assert_eq!(self.rows().len(), self.expected.len(), "{what}: rows are missing");
    }
}
