//! `tidegate run wordcount`, as a user runs it: against a plain loop, and on everything that can be wrong.

use flate2::{Compression, write::GzEncoder};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::{TempDir, tempdir};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["run", "wordcount"]).args(args).env_remove("TIDEGATE_LOG").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Standard output and standard error of a run that must succeed.
fn succeeds(args: &[&str]) -> (String, String) {
    let Output { status, stdout, stderr } = run(args);
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{args:?}: {status}: {stderr}");
    (String::from_utf8(stdout).unwrap(), stderr)
}

/// Standard error of a run that must fail with this exit code and print nothing else.
fn fails(args: &[&str], code: i32) -> String {
    let Output { status, stdout, stderr } = run(args);
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8(stdout).unwrap(), "", "{args:?}");
    stderr
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Adds the words of a text by the definition, character by character.
fn count(text: &str, counts: &mut BTreeMap<String, u64>) {
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_alphanumeric() {
            word.push(c);
        } else if !word.is_empty() {
            *counts.entry(std::mem::take(&mut word).to_lowercase()).or_default() += 1;
        }
    }
}

fn rows(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(word, count)| format!("{word}\t{count}\n")).collect()
}

/// Pseudo-random text of many scripts, with capitals whose lower case is special and lines of all lengths.
fn unicode(words: u64) -> String {
    const PARTS: [&str; 12] =
        ["der", "ÉTÉ", "Σ", "ΟΔΟΣ", "İ", "straße", "東京", "слово", "x²", "𝒳", "a\u{301}", "Q7"];
    let mut state = 7u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = String::new();
    for _ in 0..words {
        for _ in 0..=next(3) {
            text.push_str(PARTS[next(12) as usize]);
        }
        text.push_str([" ", "\n", "\r\n", "-", "’", "\u{a0}", "  ", "…"][next(8) as usize]);
    }
    text
}

/// A directory of real and generated files, and what a plain loop counts in them.
fn corpus() -> (TempDir, Vec<PathBuf>, BTreeMap<String, u64>) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempdir().unwrap();
    let generated = unicode(40_000);
    fs::write(dir.path().join("unicode.txt"), &generated).unwrap();
    fs::write(dir.path().join("packed.gz"), [gzip(b"of two mem"), gzip(b"bers\nMEMBERS")].concat()).unwrap();
    let mut lossy = b"fa\xc3\xa7ade gar\xffbage\nend\xc3".to_vec();
    lossy.extend_from_slice(generated.as_bytes());
    fs::write(dir.path().join("lossy"), &lossy).unwrap();
    let mut counts = BTreeMap::new();
    count(&generated, &mut counts);
    count("of two members\nMEMBERS", &mut counts);
    count(&String::from_utf8_lossy(&lossy), &mut counts);
    let mut inputs = vec![dir.path().to_path_buf(), here.join("LICENSE"), here.join("src")];
    inputs.push(dir.path().join("packed.gz"));
    count("of two members\nMEMBERS", &mut counts);
    count(&fs::read_to_string(here.join("LICENSE")).unwrap(), &mut counts);
    let mut folders = vec![here.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                count(&fs::read_to_string(entry).unwrap(), &mut counts);
            }
        }
    }
    (dir, inputs, counts)
}

/// Goal: the counts are those of a plain loop, whatever the parallelism, the shards and the segments.
/// Method: our own sources, the licence, generated text of many scripts, gzip members, bytes that are no UTF-8;
/// to standard output and to a file; segments of 256 bytes, which most words' buffers and many lines fill.
#[test]
fn counts_equal_a_plain_loop_at_every_parallelism() {
    let (dir, inputs, counts) = corpus();
    let expected = rows(&counts);
    let out = tempdir().unwrap();
    let path = out.path().join("counts.tsv");
    for (parallelism, shards) in [(1, 1), (2, 1), (2, 2), (3, 2), (7, 3), (1, 3)] {
        let (parallelism, shards) = (parallelism.to_string(), shards.to_string());
        let mut args = vec!["--parallelism", &parallelism, "--shards", &shards, "--input"];
        args.extend(inputs.iter().map(|input| text(input)));
        let (stdout, stderr) = succeeds(&args);
        assert!(stdout == expected, "parallelism {parallelism}, {shards} shards: rows differ");
        assert!(stderr.contains("2 lines were not UTF-8"), "{stderr}");
        args.extend(["--output", text(&path), "-Dtaskmanager.memory.segment-size=256"]);
        succeeds(&args);
        assert!(fs::read_to_string(&path).unwrap() == expected, "small segments: rows differ");
    }
    assert_eq!(names(out.path()), ["counts.tsv"]);
    drop(dir);
}

/// Goal: updates are one row a word, and each word's counts go up by one.
#[test]
fn updates_count_up_word_by_word() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("in");
    let text_of = unicode(5_000);
    fs::write(&path, &text_of).unwrap();
    let mut expected = BTreeMap::new();
    count(&text_of, &mut expected);
    let (stdout, _) =
        succeeds(&["--input", text(&path), "--emit", "updates", "--parallelism", "3", "--shards", "2"]);
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for line in stdout.lines() {
        let (word, count) = line.split_once('\t').unwrap();
        let before = last.entry(word.to_string()).or_default();
        *before += 1;
        assert_eq!(count.parse::<u64>().unwrap(), *before, "{word}");
    }
    assert_eq!(last, expected);
}

/// Goal: one JSON object, with figures that agree with a plain loop.
#[test]
fn json_is_one_object_with_the_figures() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("in");
    fs::write(&path, b"one two\ntwo \xff three\nTHREE three\n").unwrap();
    for emit in ["final", "updates"] {
        let (stdout, stderr) =
            succeeds(&["--input", text(&path), "--json", "--emit", emit, "-Dtidegate.stall.threshold=1h"]);
        let figures: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(figures["words"], 6);
        assert_eq!(figures["distinct"], 3);
        assert_eq!(figures["bytes"], 32);
        assert_eq!(figures["invalid_lines"], 1);
        assert_eq!(figures["files"], 1);
        assert!(figures["seconds"].as_f64().unwrap() > 0.0 && figures["mb_per_s"].as_f64().unwrap() > 0.0);
        assert_eq!(stderr, "");
    }
}

/// Goal: what is not read below a folder is said, and `--all` reads it.
#[test]
fn what_is_left_out_is_said() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("text"), "seen").unwrap();
    fs::write(dir.path().join(".hidden"), "unseen").unwrap();
    fs::write(dir.path().join("binary"), "\0blob").unwrap();
    let (stdout, stderr) = succeeds(&["--input", text(dir.path())]);
    assert_eq!(stdout, "seen\t1\n");
    assert!(stderr.contains(".hidden (hidden)") && stderr.contains("binary (binary)"), "{stderr}");
    let (stdout, _) = succeeds(&["--input", text(dir.path()), "--all"]);
    assert_eq!(stdout, "blob\t1\nseen\t1\nunseen\t1\n");
}

/// Goal: everything that is wrong with input, output or options is named with its value and what was expected,
/// and leaves the output as it was, with nothing beside it.
/// Method: for each fault the exit code and pieces of the message; an older output must survive.
#[test]
fn faults_are_named_and_leave_the_output_alone() {
    let dir = tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_string();
    fs::write(at("text"), "some text\n").unwrap();
    fs::create_dir_all(at("empty/deep")).unwrap();
    fs::write(at("latin"), b"first\nna\xefve\n").unwrap();
    fs::write(at("long"), format!("short\n{}\n", "x".repeat(2_000))).unwrap();
    let packed = gzip(unicode(20_000).as_bytes());
    fs::write(at("cut.gz"), &packed[..packed.len() / 2]).unwrap();
    fs::write(at("foreign.gz"), "plain").unwrap();
    fs::create_dir(at("out")).unwrap();
    let old = at("out/counts.tsv");
    fs::write(&old, "old").unwrap();
    let (good, missing) = (at("text"), at("missing"));

    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--input", &good, &missing], 1, &["missing: no such file or directory", "expected"]),
        (&["--input", &at("empty")], 1, &["empty: a directory without files", "expected"]),
        (&["--input", &at("latin"), "--strict"], 1, &["latin: line 2 is not UTF-8 at byte 8", "expected"]),
        (&["--input", &at("latin"), "-Dtidegate.source.strict-utf8=true"], 1, &["line 2 is not UTF-8"]),
        (&["--input", &at("cut.gz")], 1, &["cut.gz: broken gzip data", "expected"]),
        (&["--input", &good, &at("foreign.gz")], 1, &["foreign.gz: broken gzip data"]),
        (
            &["--input", &at("long"), "-Dtidegate.record.max-size=1kb"],
            1,
            &["long: the line at byte 6 is longer than 1024 bytes"],
        ),
        (&["--input", &good, "--parallelism", "0"], 1, &["parallelism", "0", "from 1 to 32768"]),
        (&["--input", &good, "--parallelism", "40000"], 1, &["40000", "from 1 to 32768"]),
        (&["--input", &good, "--parallelism", "-1"], 1, &["parallelism", "-1", "from 1 to 32768"]),
        // More channels than a job may have, and more memory than the machine.
        (
            &["--input", &good, "--parallelism", "20000"],
            1,
            &["parallelism 20000", "1048576 channels", "expected"],
        ),
        (
            &["--input", &good, "--parallelism", "1000", "-Dtaskmanager.memory.segment-size=1mb"],
            1,
            &["bytes at once", "are available", "expected a smaller parallelism.default"],
        ),
        (&["--input", &good, "--shards", "-3"], 1, &["tidegate.shards", "-3", "from 1 to 1024"]),
        (
            &["--input", &good, "--parallelism", "8", "-Dpipeline.max-parallelism=4"],
            1,
            &["8", "4", "parallelism"],
        ),
        (&["--input", &good, "--shards", "0"], 1, &["tidegate.shards", "0", "from 1 to 1024"]),
        (&["--input", &good, "--shards", "two"], 1, &["tidegate.shards", "two", "from 1 to 1024"]),
        (
            &["--input", &good, "-Dtaskmanager.memory.segment-siz=256"],
            1,
            &["taskmanager.memory.segment-siz", "did you mean taskmanager.memory.segment-size?"],
        ),
        (
            &["--input", &good, "-Dtaskmanager.memory.segment-size=255"],
            1,
            &["segment-size", "255", "256 bytes"],
        ),
        (&["--input", &good, "-Dnonsense"], 1, &["nonsense", "key=value"]),
        (&["--input", &good, "--config", &missing], 1, &["missing"]),
        (&["--input", &good, "--emit", "sometimes"], 2, &["sometimes", "final, updates"]),
        (&["--inputs", &good], 2, &["--inputs"]),
        (&[], 2, &["--input"]),
        (&["--input", "-", "-"], 1, &["standard input is given 2 times; expected at most once"]),
    ];
    for (args, code, pieces) in cases {
        let args = [*args, &["--output", &old]].concat();
        let message = fails(&args, *code);
        for piece in *pieces {
            assert!(message.contains(piece), "{args:?}: no {piece:?} in {message}");
        }
        assert_eq!(fs::read(&old).unwrap(), b"old", "{args:?}");
        assert_eq!(names(&dir.path().join("out")), ["counts.tsv"], "{args:?}");
    }

    let outputs: &[(&str, &str)] = &[
        ("nowhere/counts.tsv", "there is no directory"),
        ("out", "is a directory; expected the name of a file"),
        ("text/counts.tsv", "expected"),
    ];
    for (output, piece) in outputs {
        let message = fails(&["--input", &good, "--output", &at(output)], 1);
        assert!(message.contains(piece), "{message}");
    }

    let (_, stderr) = succeeds(&["--input", &good, "--output", &old]);
    assert!(stderr.contains("in place of what was there"), "{stderr}");
    assert_eq!(fs::read_to_string(&old).unwrap(), "some\t1\ntext\t1\n");

    // SAFETY: asks for a number and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&good, fs::Permissions::from_mode(0o000)).unwrap();
        let message = fails(&["--input", &good], 1);
        assert!(message.contains("text: cannot be read") && message.contains("expected"), "{message}");
    }
}

/// A run that reads from us, and has made its temporary output: it catches Ctrl-C from then on.
fn waiting(dir: &Path, args: &[&str]) -> Child {
    let child = command(&[&["--input", "-"], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Two minutes at most.
    let there = (0..12_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !names(dir).is_empty()
    });
    assert!(there, "two minutes, and no temporary output");
    child
}

/// Goal: Ctrl-C ends the job with exit code 130 and no output, not even a temporary one.
#[test]
fn an_interrupt_leaves_no_output() {
    let dir = tempdir().unwrap();
    let output = dir.path().join("counts.tsv");
    let mut child = waiting(dir.path(), &["--output", text(&output)]);
    child.stdin.as_mut().unwrap().write_all(b"words that are read and then forgotten\n").unwrap();
    // SAFETY: sends a signal to the child, which has not been waited for, so the id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
    let mut stdin = child.stdin.take();
    let status = child.wait().unwrap();
    drop(stdin.take());
    assert_eq!(status.code(), Some(130));
    assert_eq!(names(dir.path()), [""; 0]);
}

/// Goal: a reader of standard output that has seen enough is no failure.
#[test]
fn a_closed_standard_output_ends_quietly() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for emit in ["final", "updates"] {
        let mut child = command(&["--emit", emit, "--input", text(&here.join("src"))])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{emit}: {}: {stderr}", output.status);
        assert!(!stderr.contains("closed"), "{emit}: {stderr}");
    }
}

/// Goal: the listing of keys shows values, where they come from and what they do, for people and for programs.
#[test]
fn keys_are_listed_with_their_origin() {
    let config = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("config").args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let listing = config(&["-Dtidegate.idle=spin"]);
    assert!(listing.contains("tidegate.idle = spin  (command line; default backoff)"), "{listing}");
    assert!(listing.contains("taskmanager.memory.segment-size = 32 kb  (default)"), "{listing}");
    let entries: serde_json::Value = serde_json::from_str(&config(&["--json", "--shards", "3"])).unwrap();
    let shards = entries.as_array().unwrap().iter().find(|e| e["key"] == "tidegate.shards").unwrap();
    assert_eq!((&shards["value"], &shards["origin"]), (&"3".into(), &"command line".into()));
}

/// Goal: options of checkpoints that make no sense together are refused, by their names, before anything is made.
#[test]
fn impossible_options_of_checkpoints_are_named() {
    let dir = tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_string();
    fs::write(at("text"), "some text\n").unwrap();
    fs::write(at("file"), "old").unwrap();
    let (good, state, out) = (at("text"), at("state"), at("out"));
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--fresh", "--output", &out], 1, &["--fresh", "expected --checkpoint-dir DIR as well"]),
        (&["--from", "chk-3", "--output", &out], 1, &["--from", "expected --checkpoint-dir"]),
        (&["--retract-output", "--output", &out], 1, &["--retract-output", "expected --checkpoint-dir"]),
        (&["--accept-duplicates", "--output", &out], 1, &["--accept-duplicates", "--checkpoint-dir"]),
        (&["--checkpoint-dir", &state], 1, &["expected --output DIR as well"]),
        (
            &["--checkpoint-dir", &state, "--output", &out, "--from", "x", "--fresh"],
            2,
            &["--from", "cannot be used with", "--fresh"],
        ),
        (
            &["--checkpoint-dir", &state, "--output", &out, "--retract-output", "--accept-duplicates"],
            2,
            &["--retract-output", "cannot be used with", "--accept-duplicates"],
        ),
        (
            &["--checkpoint-dir", &state, "--output", &out, "--from", dir.path().to_str().unwrap()],
            1,
            &["no checkpoint; expected a chk-N directory with _metadata"],
        ),
        (
            &["--checkpoint-dir", &state, "--output", &at("file")],
            1,
            &["file: is a file", "expected a directory"],
        ),
        (
            &["--checkpoint-dir", &state, "--output", &out, "-Dexecution.checkpointing.interval=0s"],
            1,
            &["execution.checkpointing.interval", "0s", "expected"],
        ),
    ];
    for (args, code, pieces) in cases {
        let args = [&["--input", &good], *args].concat();
        let message = fails(&args, *code);
        for piece in *pieces {
            assert!(message.contains(piece), "{args:?}: no {piece:?} in {message}");
        }
        assert_eq!(names(dir.path()), ["file", "text"], "{args:?}");
    }
}
