//! What to read, and who reads what: planned once, before the job starts.
//!
//! Planning may block; it finds every file, opens each once to know that it can be read, and fails with the path if
//! not. Below a directory, hidden files and directories, caches (`CACHEDIR.TAG`: cargo puts one into `target`)
//! and binary files are left out and reported, unless everything is asked for; what is named is
//! always read. A plain file is cut into byte ranges, a few per subtask; what cannot be entered in the middle
//! (gzip, pipes) is one split. Splits are given to subtasks by size, the largest first, each to
//! whoever has least: the same files and the same parallelism always give the same assignment.

use super::error::TextError;
use super::gzip::is_gzip;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Splits made per subtask: more balance better, fewer read longer stretches.
const SPLITS_PER_SUBTASK: u64 = 4;

/// A compressed byte is about as much work as this many plain ones.
const GZIP_WEIGHT: u64 = 4;

/// Where a binary file shows: text has no NUL byte in its first 8 KiB.
const BINARY_LOOK_BYTES: usize = 8 << 10;

/// How a file begins that marks a directory as a cache (<https://bford.info/cachedir/>).
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// How an input must be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A regular file: can be read from any offset.
    Plain,
    /// A gzip file: from its beginning only.
    Gzip,
    /// A named pipe or a device: once, and of unknown length.
    Pipe,
    /// Standard input.
    Stdin,
}

/// One input of a plan.
#[derive(Debug, Clone)]
pub struct InputFile {
    /// As given, or as found below a directory that was given.
    pub path: PathBuf,
    /// How it is read.
    pub kind: InputKind,
    /// Size when it was planned, in bytes; 0 for streams. Plain files are read up to here, even if they grow.
    pub bytes: u64,
    /// When it was last written to before it was planned, in nanoseconds since 1970; 0 for streams.
    pub modified_ns: i64,
}

/// A range of an input: the lines that begin in `start..end` of `inputs[input]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Split {
    /// Index of the input in the plan.
    pub input: usize,
    /// First byte.
    pub start: u64,
    /// Byte after the last; `u64::MAX` where the whole input is one split.
    pub end: u64,
}

/// What lies in a directory and is not read, with the reason.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Where it lies.
    pub path: PathBuf,
    /// Why it is not read.
    pub reason: &'static str,
}

/// All inputs, in the order in which they were given; directories by name, depth first.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) files: Vec<InputFile>,
    pub(super) skipped: Vec<Skipped>,
}

impl Inputs {
    /// Finds and opens everything that `paths` name; below directories `all`, or what is not left out. Blocks.
    pub(super) fn find(paths: &[PathBuf], all: bool) -> Result<Inputs, TextError> {
        if paths.is_empty() {
            return Err(TextError::NoInput);
        }
        let times = paths.iter().filter(|p| is_stdin(p)).count();
        if times > 1 {
            return Err(TextError::StdinTwice { times });
        }
        let mut inputs = Inputs::default();
        for path in paths {
            if is_stdin(path) {
                inputs.files.push(InputFile {
                    path: path.clone(),
                    kind: InputKind::Stdin,
                    bytes: 0,
                    modified_ns: 0,
                });
                continue;
            }
            let metadata = path.metadata().map_err(|cause| unreadable(path.clone(), cause))?;
            if metadata.is_dir() {
                inputs.add_directory(path, all)?;
            } else {
                inputs.add_file(path, &metadata, true)?;
            }
        }
        Ok(inputs)
    }

    fn add_directory(&mut self, root: &Path, all: bool) -> Result<(), TextError> {
        let before = (self.files.len(), self.skipped.len());
        let mut walk = WalkDir::new(root).follow_links(true).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = error.path().unwrap_or(root).to_path_buf();
                    if !all && path != root && is_hidden(&path) {
                        self.skipped.push(Skipped { path, reason: "hidden" });
                        continue;
                    }
                    if error.loop_ancestor().is_some() {
                        self.skipped.push(Skipped { path, reason: "a link to a directory around it" });
                        continue;
                    }
                    let cause = error.into_io_error().unwrap_or_else(|| io::ErrorKind::Other.into());
                    return Err(unreadable(path, cause));
                }
            };
            let kind = entry.file_type();
            let left_out = if all || entry.depth() == 0 {
                None
            } else if is_hidden(entry.path()) {
                Some("hidden")
            } else if kind.is_dir() && is_cache(entry.path()) {
                Some("a cache, by its CACHEDIR.TAG")
            } else {
                None
            };
            if let Some(reason) = left_out {
                self.skipped.push(Skipped { path: entry.path().to_path_buf(), reason });
                if kind.is_dir() {
                    walk.skip_current_dir();
                }
                continue;
            }
            if kind.is_dir() {
                continue;
            }
            if !kind.is_file() {
                let reason = name_of(kind);
                self.skipped.push(Skipped { path: entry.into_path(), reason });
                continue;
            }
            let metadata =
                entry.path().metadata().map_err(|cause| unreadable(entry.path().to_path_buf(), cause))?;
            self.add_file(entry.path(), &metadata, all)?;
        }
        if self.files.len() > before.0 {
            return Ok(());
        }
        let path = root.to_path_buf();
        match describe_skipped(&self.skipped[before.1..]) {
            skipped if skipped.is_empty() => Err(TextError::NoFiles { path }),
            skipped => Err(TextError::NothingToRead { path, skipped }),
        }
    }

    /// Adds a file, or skips it if it is binary and not wanted as such.
    fn add_file(&mut self, path: &Path, metadata: &Metadata, binary_too: bool) -> Result<(), TextError> {
        let path = path.to_path_buf();
        let (kind, bytes) = if !metadata.is_file() {
            (InputKind::Pipe, 0)
        } else {
            let mut file = File::open(&path).map_err(|cause| unreadable(path.clone(), cause))?;
            if is_gzip(&path) {
                (InputKind::Gzip, metadata.len())
            } else if metadata.len() == 0 && file.read(&mut [0]).is_ok_and(|count| count > 0) {
                // Files of /proc and the like do not know how long they are.
                (InputKind::Pipe, 0)
            } else {
                if !binary_too && looks_binary(&file) {
                    self.skipped.push(Skipped { path, reason: "binary" });
                    return Ok(());
                }
                (InputKind::Plain, metadata.len())
            }
        };
        let modified_ns = if kind == InputKind::Pipe { 0 } else { modified_ns(metadata) };
        self.files.push(InputFile { path, kind, bytes, modified_ns });
        Ok(())
    }

    /// Size of all inputs in bytes (of gzip files: compressed), unless one of them is a stream.
    pub(super) fn bytes_total(&self) -> Option<u64> {
        self.files
            .iter()
            .map(|f| matches!(f.kind, InputKind::Plain | InputKind::Gzip).then_some(f.bytes))
            .sum()
    }

    /// The splits of each subtask, in the order of the inputs.
    pub(super) fn assign(&self, parallelism: u32, split_bytes_min: u64) -> Vec<Vec<Split>> {
        let plain: u64 =
            self.files.iter().map(|f| if f.kind == InputKind::Plain { f.bytes } else { 0 }).sum();
        let split_bytes =
            plain.div_ceil(u64::from(parallelism) * SPLITS_PER_SUBTASK).max(split_bytes_min).max(1);
        let mut splits = Vec::new();
        for (input, file) in self.files.iter().enumerate() {
            match file.kind {
                InputKind::Plain => {
                    // Equal parts, so that no file ends with a split of a few bytes.
                    let parts = file.bytes.div_ceil(split_bytes);
                    let cut =
                        |part: u64| (u128::from(file.bytes) * u128::from(part) / u128::from(parts)) as u64;
                    splits.extend((0..parts).map(|part| {
                        let split = Split { input, start: cut(part), end: cut(part + 1) };
                        (split.end - split.start, split)
                    }));
                }
                InputKind::Gzip => {
                    splits.push((
                        file.bytes.saturating_mul(GZIP_WEIGHT),
                        Split { input, start: 0, end: u64::MAX },
                    ));
                }
                // Nobody knows how long it is: as if it were all the rest together.
                InputKind::Pipe | InputKind::Stdin => {
                    splits.push((plain.max(1), Split { input, start: 0, end: u64::MAX }));
                }
            }
        }
        splits.sort_by_key(|&(weight, split)| (std::cmp::Reverse(weight), split));
        let mut given: Vec<(u64, Vec<Split>)> = vec![(0, Vec::new()); parallelism as usize];
        for (weight, split) in splits {
            let least = given.iter_mut().min_by_key(|(load, _)| *load).expect("parallelism is at least 1");
            least.0 = least.0.saturating_add(weight);
            least.1.push(split);
        }
        given
            .into_iter()
            .map(|(_, mut splits)| {
                splits.sort_unstable();
                splits
            })
            .collect()
    }
}

/// When a file was last written to, in nanoseconds since 1970.
pub(super) fn modified_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn unreadable(path: PathBuf, cause: io::Error) -> TextError {
    match cause.kind() {
        io::ErrorKind::NotFound => TextError::Missing { path },
        _ => TextError::Unreadable { path, cause },
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_cache(directory: &Path) -> bool {
    let mut begin = [0; CACHE_TAG.len()];
    File::open(directory.join("CACHEDIR.TAG")).is_ok_and(|mut tag| tag.read_exact(&mut begin).is_ok())
        && begin == CACHE_TAG
}

/// A file that cannot be read is left to its reader, who says why.
fn looks_binary(file: &File) -> bool {
    let mut begin = [0; BINARY_LOOK_BYTES];
    file.read_at(&mut begin, 0).is_ok_and(|count| memchr::memchr(0, &begin[..count]).is_some())
}

/// What was left out, by reason, each with its number and its first path; empty if nothing was.
pub fn describe_skipped(skipped: &[Skipped]) -> String {
    let mut reasons: Vec<(&str, &Path, usize)> = Vec::new();
    for Skipped { path, reason } in skipped {
        match reasons.iter_mut().find(|(known, ..)| known == reason) {
            Some((.., count)) => *count += 1,
            None => reasons.push((reason, path, 1)),
        }
    }
    let text = reasons.iter().map(|(reason, path, count)| match count {
        1 => format!("{} ({reason})", path.display()),
        _ => format!("{} and {} more ({reason})", path.display(), count - 1),
    });
    text.collect::<Vec<_>>().join(", ")
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: u64) -> InputFile {
        InputFile { path: "f".into(), kind: InputKind::Plain, bytes, modified_ns: 0 }
    }

    /// Goal: splits cover every byte once, and the subtasks' shares are about equal.
    /// Method: files of very different sizes, all parallelisms to 9, a smallest split of one byte.
    #[test]
    fn every_byte_is_in_one_split_and_shares_are_balanced() {
        let inputs = Inputs { files: [0, 1, 5, 10_007, 64, 3_000].map(plain).into(), ..Inputs::default() };
        for parallelism in 1..=9 {
            let given = inputs.assign(parallelism, 1);
            assert_eq!(given, inputs.assign(parallelism, 1), "deterministic");
            let loads: Vec<u64> =
                given.iter().map(|splits| splits.iter().map(|s| s.end - s.start).sum()).collect();
            let mut all: Vec<Split> = given.into_iter().flatten().collect();
            all.sort();
            for (input, file) in inputs.files.iter().enumerate() {
                let mut at = 0;
                for split in all.iter().filter(|s| s.input == input) {
                    assert_eq!(split.start, at, "parallelism {parallelism}");
                    assert!(split.end > at);
                    at = split.end;
                }
                assert_eq!(at, file.bytes, "parallelism {parallelism}");
            }
            let mean = inputs.bytes_total().unwrap() / u64::from(parallelism);
            let most = *loads.iter().max().unwrap();
            assert!(most <= mean + mean / SPLITS_PER_SUBTASK + 2, "{loads:?}");
        }
    }

    /// Goal: small files are not cut, and gzip files and streams never are.
    #[test]
    fn what_cannot_or_need_not_be_cut_is_one_split() {
        let mut inputs = Inputs { files: vec![plain(900_000)], ..Inputs::default() };
        inputs.files.push(InputFile {
            path: "a.gz".into(),
            kind: InputKind::Gzip,
            bytes: 1 << 40,
            modified_ns: 0,
        });
        inputs.files.push(InputFile { path: "-".into(), kind: InputKind::Stdin, bytes: 0, modified_ns: 0 });
        assert_eq!(inputs.bytes_total(), None, "a stream has no length");
        let given = inputs.assign(2, 1 << 20);
        assert_eq!(given.iter().flatten().count(), 3);
        assert_eq!(given[0], [Split { input: 1, start: 0, end: u64::MAX }], "the heaviest stands alone");
    }
}
