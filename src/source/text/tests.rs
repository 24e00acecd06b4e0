//! Text sources against `str::lines`, however the text is cut, compressed, damaged and rewound.

use super::*;
use crate::source::testing::{Capture, context, run};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use tempfile::TempDir;

/// Small in every respect, so that a short text has many chunks and splits.
fn small(chunk_bytes: usize, split_bytes_min: u64) -> TextOptions {
    TextOptions { chunk_bytes, split_bytes_min, ..TextOptions::default() }
}

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The lines of every subtask, or the first failure.
fn lines(plan: &TextPlan, parallelism: u32, budget: u32) -> Result<Vec<Vec<String>>, SourceError> {
    (0..parallelism).map(|i| run(&mut plan.source(&context(i, parallelism)), budget)).collect()
}

/// The lines that came in blocks; panics if a block of several lines has more bytes than asked for.
fn lines_of(blocks: Vec<String>, block_bytes: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for block in blocks {
        assert!(block.len() <= block_bytes || !block.contains('\n'), "{block:?} of {block_bytes} bytes");
        let ended: Vec<&str> = block.split('\n').collect();
        let (last, before) = ended.split_last().expect("a split has one piece at least");
        lines.extend(before.iter().map(|line| line.strip_suffix('\r').unwrap_or(line).to_string()));
        lines.push(last.to_string());
    }
    lines
}

fn failure(path: &Path, options: TextOptions) -> String {
    let plan = TextFiles::plan([path], options).unwrap();
    lines(&plan, 1, 100).unwrap_err().to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Goal: whatever the chunks, splits and subtasks, each line of a text comes exactly once.
    /// Method: texts of few different characters, so that line ends and multi-byte characters lie at every
    /// place; `str::lines` is the oracle; the same text through gzip.
    #[test]
    fn all_subtasks_together_emit_the_lines_of_the_text(
        text in "[a\n\r é€𝄞]{0,60}",
        chunk_bytes in 1usize..20,
        split_bytes in 1u64..30,
        parallelism in 1u32..5,
        budget in 1u32..4,
        block_bytes in 0usize..12,
    ) {
        let expected: Vec<&str> = text.lines().collect();
        let dir = directory(&[("plain", text.as_bytes()), ("packed.GZ", &gzip(text.as_bytes()))]);
        let options = small(chunk_bytes, split_bytes);
        let plan = TextFiles::plan([dir.path().join("plain")], options.clone()).unwrap();
        let got = lines(&plan, parallelism, budget).unwrap();
        if parallelism == 1 {
            prop_assert_eq!(&got[0], &expected);
        }
        let mut got: Vec<String> = got.into_iter().flatten().collect();
        let mut sorted = expected.clone();
        got.sort();
        sorted.sort();
        prop_assert_eq!(&got, &sorted);
        prop_assert_eq!(plan.bytes_read(), text.len() as u64);
        prop_assert_eq!(plan.invalid_lines(), 0);

        let blocks = TextOptions { block_bytes, ..options.clone() };
        let plan = TextFiles::plan([dir.path().join("plain")], blocks).unwrap();
        let got = lines(&plan, parallelism, budget).unwrap();
        let mut got: Vec<String> = got.into_iter().flat_map(|got| lines_of(got, block_bytes)).collect();
        got.sort();
        prop_assert_eq!(got, sorted);

        let packed = TextFiles::plan([dir.path().join("packed.GZ")], options).unwrap();
        prop_assert_eq!(lines(&packed, parallelism, budget).unwrap().concat(), expected);
        prop_assert_eq!(Some(packed.bytes_read()), packed.bytes_total());
    }

    /// Goal: bytes that are not UTF-8 become U+FFFD and their lines are counted; strict mode names the first.
    /// Method: arbitrary bytes of few values; `String::from_utf8_lossy` of each line is the oracle.
    #[test]
    fn bytes_that_are_not_utf8_are_replaced_or_refused(
        bytes in proptest::collection::vec(proptest::sample::select(&b"a\n\xc3\xa9\xf0\xff"[..]), 0..50),
        chunk_bytes in 1usize..20,
        split_bytes in 1u64..30,
        block_bytes in 0usize..12,
    ) {
        let raw: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
        let raw = match raw.split_last() {
            Some((&[], rest)) => rest,
            _ => &raw[..],
        };
        let expected: Vec<String> =
            raw.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        let dir = directory(&[("f", &bytes)]);
        let plan = TextFiles::plan([dir.path()], small(chunk_bytes, split_bytes)).unwrap();
        prop_assert_eq!(&lines(&plan, 1, 3).unwrap()[0], &expected);
        let invalid = raw.iter().filter(|line| std::str::from_utf8(line).is_err()).count();
        prop_assert_eq!(plan.invalid_lines(), invalid as u64);

        let blocks = TextOptions { block_bytes, ..small(chunk_bytes, split_bytes) };
        let plan = TextFiles::plan([dir.path()], blocks.clone()).unwrap();
        let got = lines(&plan, 1, 3).unwrap().concat();
        prop_assert_eq!(&lines_of(got, block_bytes), &expected);
        prop_assert_eq!(plan.invalid_lines(), invalid as u64);

        let strict = TextOptions { strict: true, ..blocks };
        let plan = TextFiles::plan([dir.path()], strict).unwrap();
        match (std::str::from_utf8(&bytes), lines(&plan, 1, 3)) {
            (Ok(_), got) => prop_assert_eq!(&lines_of(got.unwrap().concat(), block_bytes), &expected),
            (Err(at), got) => {
                let at = at.valid_up_to();
                let line = 1 + bytes[..at].iter().filter(|b| **b == b'\n').count();
                let message = got.unwrap_err().to_string();
                prop_assert!(message.contains(&format!("line {line} is not UTF-8 at byte {at};")), "{}", message);
            }
        }
    }
}

/// Goal: below a directory nothing is read that its user did not write, and what is not read is named;
/// whoever asks for everything, or names a file or a directory, gets it.
#[test]
fn hidden_files_caches_and_binary_files_are_left_out_unless_asked_for() {
    let tag = b"Signature: 8a477f597d28d172789f06886806bc55\nmade by a test";
    let dir = directory(&[
        ("text", b"text"),
        ("deep/er", b"deeper"),
        ("deep/.hidden", b"hidden"),
        (".git/HEAD", b"head"),
        ("target/CACHEDIR.TAG", tag),
        ("target/debug/notes", b"notes"),
        ("CACHEDIR.TAG", tag),
        ("image", b"\x89PNG\r\n\0\0"),
        ("other/CACHEDIR.TAG", b"no signature"),
    ]);
    let read = |paths: &[PathBuf], all: bool| {
        let plan = TextFiles::plan(paths, TextOptions { all, ..TextOptions::default() }).unwrap();
        let name = |path: &Path| path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_string();
        let files: Vec<String> = plan.files().iter().map(|file| name(&file.path)).collect();
        let skipped: Vec<String> =
            plan.skipped().iter().map(|s| format!("{}: {}", name(&s.path), s.reason)).collect();
        (files, skipped)
    };
    let (files, skipped) = read(&[dir.path().to_path_buf()], false);
    assert_eq!(files, ["CACHEDIR.TAG", "deep/er", "other/CACHEDIR.TAG", "text"]);
    assert_eq!(
        skipped,
        [".git: hidden", "deep/.hidden: hidden", "image: binary", "target: a cache, by its CACHEDIR.TAG"]
    );
    let (files, skipped) = read(&[dir.path().to_path_buf()], true);
    assert_eq!((files.len(), skipped.len()), (9, 0));
    let named = [".git", "target", "image", "deep/.hidden"].map(|name| dir.path().join(name));
    let (files, skipped) = read(&named, false);
    assert_eq!(files, [".git/HEAD", "target/CACHEDIR.TAG", "target/debug/notes", "image", "deep/.hidden"]);
    assert_eq!(skipped.len(), 0);
    fs::remove_file(dir.path().join("deep/er")).unwrap();
    let error = TextFiles::plan([dir.path().join("deep")], TextOptions::default()).unwrap_err();
    assert!(matches!(error, TextError::NothingToRead { .. }), "{error:?}");
    assert!(error.to_string().contains(".hidden (hidden)"), "{error}");
}

/// Goal: a directory is read whole, in order; links into a circle end.
#[test]
fn directories_are_read_recursively_in_order() {
    let dir =
        directory(&[("b/2", b"two\n"), ("b/1", b"one"), ("a", b"zero"), (".hidden", b"first"), ("c", b"")]);
    std::os::unix::fs::symlink(dir.path(), dir.path().join("b/around")).unwrap();
    let options = TextOptions { all: true, ..TextOptions::default() };
    let plan = TextFiles::plan([dir.path()], options).unwrap();
    assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["first", "zero", "one", "two"]);
    assert_eq!(plan.files().len(), 5);
    assert_eq!(plan.skipped().len(), 1);
    assert!(plan.skipped()[0].path.ends_with("b/around"), "{:?}", plan.skipped());
}

/// Goal: a file given twice is read twice, and several inputs come in the order given.
#[test]
fn inputs_come_in_the_order_given() {
    let dir = directory(&[("x", b"x"), ("y.gz", &gzip(b"y\nz"))]);
    let (x, y) = (dir.path().join("x"), dir.path().join("y.gz"));
    let plan = TextFiles::plan([&y, &x, &y], TextOptions::default()).unwrap();
    assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["y", "z", "x", "y", "z"]);
}

/// Goal: what cannot be read is known before the job starts, with its path.
#[test]
fn planning_names_what_cannot_be_read() {
    let dir = directory(&[("f", b"")]);
    let plan = |paths: &[&Path]| TextFiles::plan(paths, TextOptions::default());
    let missing = dir.path().join("nowhere");
    let error = plan(&[&dir.path().join("f"), &missing]).unwrap_err();
    assert!(matches!(&error, TextError::Missing { path } if *path == missing), "{error:?}");
    let empty = dir.path().join("empty/deep");
    fs::create_dir_all(&empty).unwrap();
    let error = plan(&[empty.parent().unwrap()]).unwrap_err();
    assert!(matches!(error, TextError::NoFiles { .. }), "{error:?}");
    assert!(error.to_string().contains("empty"), "{error}");
    assert!(matches!(plan(&[]).unwrap_err(), TextError::NoInput));
    let stdin = Path::new("-");
    assert!(matches!(plan(&[stdin, stdin]).unwrap_err(), TextError::StdinTwice { times: 2 }));
    std::os::unix::fs::symlink(&missing, dir.path().join("dangling")).unwrap();
    let error = plan(&[dir.path()]).unwrap_err().to_string();
    assert!(error.contains("dangling"), "{error}");
    // Root may read everything, so the check of permissions needs a user who is not.
    // SAFETY: asks for a number and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        use std::os::unix::fs::PermissionsExt;
        let closed = directory(&[("closed", b"x")]);
        fs::set_permissions(closed.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        let error = plan(&[closed.path()]).unwrap_err();
        assert!(matches!(error, TextError::Unreadable { .. }), "{error:?}");
    }
}

/// Goal: several members are one text; a damaged, cut or foreign file fails with path and place.
#[test]
fn gzip_members_are_joined_and_damage_is_named() {
    let text: Vec<u8> = (0..20_000).flat_map(|i| format!("{i} {}\n", i * 7919 % 1009).into_bytes()).collect();
    let packed = gzip(&text);
    let two = [gzip(b"one\ntw"), gzip(b"o\nthree")].concat();
    let mut damaged = packed.clone();
    damaged[packed.len() / 2] ^= 0x10;
    let dir = directory(&[
        ("two.gz", &two),
        ("cut.gz", &packed[..packed.len() - 5]),
        ("damaged.gz", &damaged),
        ("foreign.gz", b"this is no gzip file"),
        ("tail.gz", &[&packed[..], b"rubbish behind it"].concat()),
        ("nothing.gz", b""),
    ]);
    let plan = TextFiles::plan([dir.path().join("two.gz")], small(3, 1)).unwrap();
    assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["one", "two", "three"]);
    for name in ["cut.gz", "damaged.gz", "foreign.gz", "tail.gz", "nothing.gz"] {
        let message = failure(&dir.path().join(name), TextOptions::default());
        assert!(
            message.contains(name) && message.contains("broken gzip data at compressed byte"),
            "{message}"
        );
    }
    assert!(
        failure(&dir.path().join("foreign.gz"), TextOptions::default()).contains("byte 0:")
            || failure(&dir.path().join("foreign.gz"), TextOptions::default()).contains("byte 1")
    );
}

/// Goal: a line may be as long as the bound and no longer, however it is read.
#[test]
fn lines_longer_than_the_bound_are_refused_with_their_place() {
    let dir = directory(&[
        ("fits", b"ab\n12345\r\n12345"),
        ("long", b"ab\n12345\r\n123456\nx"),
        ("end", b"ab\n123456"),
    ]);
    for chunk_bytes in 1..=20 {
        let options = TextOptions { line_bytes_max: 5, ..small(chunk_bytes, 1 << 20) };
        let plan = TextFiles::plan([dir.path().join("fits")], options.clone()).unwrap();
        assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["ab", "12345", "12345"]);
        let message = failure(&dir.path().join("long"), options.clone());
        assert!(message.contains("long: the line at byte 10 is longer than 5 bytes"), "{message}");
        let message = failure(&dir.path().join("end"), options);
        assert!(message.contains("end: the line at byte 3 is longer than 5 bytes"), "{message}");
    }
}

/// Goal: in strict mode a fault in a later split has the number of its line in the file.
#[test]
fn a_line_that_is_not_utf8_in_a_later_split_has_its_number() {
    let mut bytes = b"0123456\n".repeat(40);
    bytes[35 * 8 + 3] = 0xff;
    let dir = directory(&[("f", &bytes)]);
    let plan = TextFiles::plan([dir.path()], TextOptions { strict: true, ..small(7, 16) }).unwrap();
    let message = lines(&plan, 3, 9).unwrap_err().to_string();
    assert!(message.contains("line 36 is not UTF-8 at byte 283;"), "{message}");
}

/// Goal: a file that shrinks under the reader is an error; one that grows is read as far as it was planned.
#[test]
fn files_are_read_as_planned() {
    let dir = directory(&[("f", b"one\ntwo\nthree")]);
    let path = dir.path().join("f");
    let plan = TextFiles::plan([&path], small(4, 1)).unwrap();
    fs::write(&path, b"one\ntwo\nthree and a half\nfour\n").unwrap();
    assert_eq!(lines(&plan, 1, 9).unwrap()[0], ["one", "two", "three"]);
    fs::write(&path, b"one\ntw").unwrap();
    let message = lines(&plan, 1, 9).unwrap_err().to_string();
    assert!(message.contains("ends at byte 6; expected 13 bytes"), "{message}");
}

/// Goal: a named pipe is read to its end, by a thread, in whatever pieces it is written.
#[test]
fn a_named_pipe_is_read_as_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a terminated string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let plan = TextFiles::plan([&path], TextOptions::default()).unwrap();
    assert_eq!(plan.bytes_total(), None);
    let writer = std::thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(path).unwrap();
        for piece in ["on", "e\r", "\nt", "wo"] {
            pipe.write_all(piece.as_bytes()).unwrap();
        }
    });
    assert_eq!(lines(&plan, 1, 1).unwrap()[0], ["one", "two"]);
    writer.join().unwrap();
    assert_eq!(plan.bytes_read(), 8);
}

/// Goal: where the page cache refuses, a reader thread gives the same lines from the same place on.
/// Method: the source is switched to the thread before its first read and in the middle.
#[test]
fn a_reader_thread_continues_where_the_cache_ends() {
    let bytes = b"line of text\n".repeat(50);
    let dir = directory(&[("f", &bytes)]);
    for direct_reads in 0..4 {
        let plan = TextFiles::plan([dir.path()], small(64, 1)).unwrap();
        let mut got = Vec::new();
        for subtask in 0..3 {
            let mut source = plan.source(&context(subtask, 3));
            let mut out = crate::source::testing::Capture::default();
            for _ in 0..direct_reads {
                out.poll(&mut source, 5, 0).unwrap();
            }
            source.cached = false;
            got.extend(out.taken);
            got.extend(run(&mut source, 5).unwrap());
        }
        assert_eq!(got, vec!["line of text"; 50], "{direct_reads} reads");
        assert_eq!(plan.bytes_read(), bytes.len() as u64);
    }
}

/// The lines of a source from the poll after `polls` on: those before it, and what its successor emits that is
/// restored from its state. The successor reads by threads only if not `cached`.
fn rewound(
    plan: &TextPlan,
    again: &TextPlan,
    (subtask, parallelism): (u32, u32),
    (polls, budget): (u32, u32),
    cached: bool,
) -> Result<Vec<String>, SourceError> {
    let mut first = plan.source(&context(subtask, parallelism));
    let mut out = Capture::default();
    for _ in 0..polls {
        if out.poll(&mut first, budget, 0)? == SourcePoll::Wait {
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
    }
    let mut state = Vec::new();
    first.snapshot(&mut state)?;
    let mut second = again.source(&context(subtask, parallelism));
    second.cached = cached;
    second.restore(&state)?;
    out.taken.extend(run(&mut second, budget)?);
    Ok(out.taken)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Goal: wherever a source is cut, what it emitted and what its restored successor emits are its lines, each
    /// once, whatever was read ahead.
    /// Method: texts of few different characters; every subtask is cut after the same number of polls; plain and
    /// compressed, from the page cache and by threads.
    #[test]
    fn a_rewound_text_source_emits_the_rest(
        text in "[a\n\r é]{0,50}",
        chunk_bytes in 1usize..20,
        split_bytes in 1u64..30,
        parallelism in 1u32..4,
        polls in 0u32..12,
        budget in 1u32..4,
        block_bytes in 0usize..12,
        cached: bool,
        strict: bool,
    ) {
        let dir = directory(&[("plain", text.as_bytes()), ("packed.gz", &gzip(text.as_bytes()))]);
        let options = TextOptions { block_bytes, strict, ..small(chunk_bytes, split_bytes) };
        let plan = || TextFiles::plan([dir.path()], options.clone()).unwrap();
        for subtask in 0..parallelism {
            let expected = run(&mut plan().source(&context(subtask, parallelism)), 100).unwrap();
            let of = (subtask, parallelism);
            let again = plan();
            let got = rewound(&plan(), &again, of, (polls, budget), cached).unwrap();
            prop_assert_eq!(lines_of(got, block_bytes), lines_of(expected, block_bytes));
        }
    }
}

/// Goal: lines and bytes are counted over a restart as without one, and a fault keeps its line's number.
#[test]
fn a_rewound_text_source_counts_on() {
    let mut bytes = b"0123456\n".repeat(40);
    bytes[3 * 8] = 0xff;
    bytes[35 * 8 + 3] = 0xff;
    let dir = directory(&[("f", &bytes), ("g.gz", &gzip(&bytes[4 * 8..]))]);
    for (name, lines_before) in [("f", 0), ("g.gz", 4)] {
        let path = dir.path().join(name);
        let plan = || TextFiles::plan([&path], small(7, 1 << 20)).unwrap();
        let again = plan();
        assert_eq!(
            rewound(&plan(), &again, (0, 1), (9, 3), true).unwrap().len(),
            40 - lines_before,
            "{name}"
        );
        assert_eq!(again.invalid_lines(), if lines_before == 0 { 2 } else { 1 });
        assert_eq!(Some(again.bytes_read()), again.bytes_total());
    }
    let path = dir.path().join("g.gz");
    let strict = || TextFiles::plan([&path], TextOptions { strict: true, ..small(7, 1 << 20) }).unwrap();
    let message = rewound(&strict(), &strict(), (0, 1), (9, 3), true).unwrap_err().to_string();
    assert!(message.contains("line 32 is not UTF-8 at byte 251;"), "{message}");
}

/// Goal: a source whose text has a fault cannot be part of a checkpoint, from which its job would go on.
#[test]
fn a_text_source_that_found_a_fault_has_no_position() {
    let mut bytes = b"0123456\n".repeat(40);
    bytes[35 * 8 + 3] = 0xff;
    let dir = directory(&[("f", &bytes)]);
    let plan = TextFiles::plan([dir.path()], TextOptions { strict: true, ..small(64, 160) }).unwrap();
    let mut source = plan.source(&context(1, 2));
    let mut out = Capture::default();
    while !source.failed {
        if out.poll(&mut source, 100, 0).is_err() {
            break;
        }
    }
    assert!(source.failed);
    let error = source.snapshot(&mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("a line that fails the job"), "{error}");
}

/// Goal: input that is not what it was at the checkpoint is refused, by the names of the files and what became
/// of them.
#[test]
fn input_that_changed_since_the_checkpoint_is_named() {
    let dir = directory(&[("a", b"one\ntwo\n"), ("b", b"three\n"), ("c.gz", &gzip(b"four\n"))]);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    let touch = |name: &str, at| {
        fs::OpenOptions::new().write(true).open(dir.path().join(name)).unwrap().set_modified(at).unwrap();
    };
    ["a", "b", "c.gz"].iter().for_each(|name| touch(name, old));
    let plan = || TextFiles::plan([dir.path()], small(4, 1)).unwrap();
    let mut source = plan().source(&context(0, 1));
    Capture::default().poll(&mut source, 1, 0).unwrap();
    let mut state = Vec::new();
    source.snapshot(&mut state).unwrap();
    let restored = || plan().source(&context(0, 1)).restore(&state).map_err(|error| error.to_string());
    restored().unwrap();

    fs::write(dir.path().join("d"), b"new").unwrap();
    assert!(restored().unwrap_err().contains("d is new"));
    fs::remove_file(dir.path().join("d")).unwrap();
    touch("b", old + std::time::Duration::from_secs(1));
    assert!(restored().unwrap_err().contains("b was written to since"));
    touch("b", old);
    restored().unwrap();
    fs::write(dir.path().join("a"), b"one\ntw").unwrap();
    let message = restored().unwrap_err();
    assert!(
        message.contains("a had 8 bytes and has 6") && message.contains("expected the same"),
        "{message}"
    );
    fs::write(dir.path().join("a"), b"one\ntwo\n").unwrap();
    touch("a", old);
    fs::remove_file(dir.path().join("c.gz")).unwrap();
    assert!(restored().unwrap_err().contains("c.gz is gone"));
    fs::write(dir.path().join("c.gz"), gzip(b"four\n")).unwrap();
    touch("c.gz", old);
    restored().unwrap();

    let message = plan().source(&context(0, 2)).restore(&state).unwrap_err().to_string();
    assert!(message.contains("read by 1 subtasks") && message.contains("which has 2"), "{message}");

    // The plan is of before, the file is not.
    let before = plan();
    fs::write(dir.path().join("a"), b"one\ntwo\nthree\n").unwrap();
    let message = before.source(&context(0, 1)).restore(&state).unwrap_err().to_string();
    assert!(message.contains("a had 8 bytes and has 14"), "{message}");
}

/// Goal: with more files than a state has room to name, changes are found all the same.
#[test]
fn changes_among_many_files_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    for i in 0..300 {
        let file = fs::File::create(dir.path().join(format!("{i:040}"))).unwrap();
        (&file).write_all(b"x\n").unwrap();
        file.set_modified(old).unwrap();
    }
    let plan = || TextFiles::plan([dir.path()], TextOptions::default()).unwrap();
    let mut state = Vec::new();
    plan().source(&context(0, 1)).snapshot(&mut state).unwrap();
    assert!(state.len() < 5 << 10, "{} bytes", state.len());
    plan().source(&context(0, 1)).restore(&state).unwrap();
    let last = dir.path().join(format!("{:040}", 299));
    fs::write(&last, b"y\n").unwrap();
    let message = plan().source(&context(0, 1)).restore(&state).unwrap_err().to_string();
    assert!(message.contains("299 is new or was written to since"), "{message}");
    fs::remove_file(&last).unwrap();
    let message = plan().source(&context(0, 1)).restore(&state).unwrap_err().to_string();
    assert!(message.contains("there were 300 files of 600 bytes and are 299 of 598"), "{message}");
}

/// Goal: a stream that was being read cannot be gone back to; one that was not begun or is done can.
#[test]
fn a_stream_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a terminated string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let plan = TextFiles::plan([&path], TextOptions::default()).unwrap();
    assert_eq!(plan.read_once().map(|input| &input.path), Some(&path));
    let restored = |state: &[u8]| {
        let mut source = plan.source(&context(0, 1));
        source.restore(state).and_then(|()| run(&mut source, 9)).map_err(|error| error.to_string())
    };
    let state_of = |source: &mut TextSource| {
        let mut state = Vec::new();
        source.snapshot(&mut state).map(|()| state).unwrap()
    };
    let mut source = plan.source(&context(0, 1));
    let not_begun = state_of(&mut source);
    let mut out = Capture::default();
    out.poll(&mut source, 9, 0).unwrap();
    let begun = state_of(&mut source);
    fs::write(&path, "one\n").unwrap();
    assert_eq!(run(&mut source, 9).unwrap(), ["one"]);
    let done = state_of(&mut source);
    assert!(restored(&begun).unwrap_err().contains("pipe: a stream can be read only once"));
    assert!(restored(&not_begun).unwrap_err().contains("pipe: a stream can be read only once"));
    assert_eq!(restored(&done).unwrap(), [""; 0]);
}

/// Goal: a damaged state is an error, never another position or a panic.
#[test]
fn a_damaged_position_is_an_error() {
    let dir = directory(&[("a", b"one\ntwo\n")]);
    let plan = TextFiles::plan([dir.path()], TextOptions::default()).unwrap();
    let mut state = Vec::new();
    plan.source(&context(0, 1)).snapshot(&mut state).unwrap();
    for bit in 0..state.len() * 8 {
        let mut damaged = state.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        plan.source(&context(0, 1)).restore(&damaged).unwrap_err();
    }
    // A sound state of another job.
    for (done, offset) in [(2, None), (1, Some(3)), (0, Some(8)), (0, Some(1 << 40))] {
        let split_bytes_min = TextOptions::default().split_bytes_min;
        let begun = offset.map(|offset| Begun { offset, lines: 0 });
        let position = Position { parallelism: 1, split_bytes_min, done, begun, invalid_lines: 0 };
        let mut state = Vec::new();
        position.seal(&Identity::of(&plan.shared.inputs), &mut state);
        plan.source(&context(0, 1)).restore(&state).unwrap_err();
    }
}
