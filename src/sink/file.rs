//! Files as output: complete under their name, or absent.
//!
//! Everything is written under a hidden temporary name in the same directory. When the last subtask has
//! finished, it is synced and renamed; a job that fails or is dropped before leaves what was under the
//! name before, and the temporary is removed.
//!
//! | subtasks | at the path | temporary |
//! | --- | --- | --- |
//! | 1 | a file | `.NAME.tidegate-PID-N` |
//! | more | a directory with `part-00000` … | the same, a directory |
//! | any, sorted | a file | the same |
//!
//! Devices and pipes cannot be replaced; they are written to directly.
//!
//! A job that is restarted in its process, from a checkpoint, cuts its files to their length of then and goes on. A
//! device shows some rows twice, and another process starts with nothing: what outlives a process is the
//! [transactional](super::transactional) output.
//!
//! Writing goes to the page cache, and syncing waits for the disk, at the end only; both on the shard's thread.

use super::sorted::{Rows, merge};
use super::{Sink, row::Format};
use crate::record::{Record, Timestamp};
use crate::source::SourceError;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 128 << 10;

/// Why an output cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileOutputError {
    /// The directory in which the output would lie does not exist.
    #[error("{}: there is no directory {}; expected a path in an existing directory", path.display(), directory.display())]
    NoDirectory {
        /// The output as given.
        path: PathBuf,
        /// What is missing.
        directory: PathBuf,
    },
    /// A directory, where a file was to be written.
    #[error("{}: is a directory; expected the name of a file", path.display())]
    IsDirectory {
        /// The output as given.
        path: PathBuf,
    },
    /// Something is there, where a directory with a file for each subtask was to be made.
    #[error("{}: exists; {subtasks} subtasks write a directory of files, so expected nothing there or an empty directory", path.display())]
    Exists {
        /// The output as given.
        path: PathBuf,
        /// How many write to it.
        subtasks: u32,
    },
    /// The system refused.
    #[error("{}: cannot {doing}: {cause}", path.display())]
    Io {
        /// The output as given.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

/// An output of several subtasks, published when the last of them has finished. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FileOutput {
    shared: Arc<Shared>,
}

/// What is written to, and whether it has been published.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Where the output will lie: the path, without symbolic links if there is something.
    target: PathBuf,
    place: Place,
    subtasks: u32,
    finished: Mutex<Finished>,
}

/// How far the subtasks are.
#[derive(Debug, Default)]
struct Finished {
    /// Those that have finished, each once however often.
    subtasks: BTreeSet<u32>,
    /// Whether the output has its name.
    published: bool,
}

#[derive(Debug)]
enum Place {
    /// A file under a temporary name.
    File(PathBuf),
    /// A directory of parts under a temporary name.
    Directory(PathBuf),
    /// A device or pipe.
    Direct,
}

impl FileOutput {
    /// Checks that `path` can be written by so many subtasks, and makes the temporary. Blocks: to be called
    /// before the job starts.
    ///
    /// # Errors
    ///
    /// What is in the way, by its path; nothing has changed.
    pub fn plan(path: impl AsRef<Path>, subtasks: u32) -> Result<FileOutput, FileOutputError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);

        let path = path.as_ref().to_path_buf();
        let io = |doing| {
            let path = path.clone();
            move |cause| FileOutputError::Io { path, doing, cause }
        };
        // What a link points to is replaced, not the link.
        let target = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let found = fs::metadata(&target).ok();
        let directory = match target.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(FileOutputError::IsDirectory { path }),
        };
        if !directory.is_dir() {
            let directory = directory.to_path_buf();
            return Err(FileOutputError::NoDirectory { path, directory });
        }
        let Some(name) = target.file_name() else {
            return Err(FileOutputError::IsDirectory { path });
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        hidden.push(format!(".tidegate-{}-{number}", std::process::id()));
        let temporary = directory.join(hidden);

        let place = if subtasks > 1 {
            let free = match &found {
                None => true,
                Some(found) => {
                    found.is_dir() && fs::read_dir(&target).map_err(io("read it"))?.next().is_none()
                }
            };
            if !free {
                return Err(FileOutputError::Exists { path, subtasks });
            }
            fs::create_dir(&temporary).map_err(io("make a directory beside it"))?;
            Place::Directory(temporary)
        } else {
            match found {
                Some(found) if found.is_dir() => return Err(FileOutputError::IsDirectory { path }),
                Some(found) if !found.is_file() => Place::Direct,
                _ => {
                    let created = OpenOptions::new().write(true).create_new(true).open(&temporary);
                    created.map_err(io("create a file beside it"))?;
                    Place::File(temporary)
                }
            }
        };
        Ok(FileOutput {
            shared: Arc::new(Shared { path, target, place, subtasks, finished: Mutex::default() }),
        })
    }

    /// The sink of one subtask, which writes what `format` appends for each record; that should end in `\n`.
    ///
    /// # Errors
    ///
    /// [`FileOutputError::Io`] if its file cannot be opened.
    ///
    /// # Panics
    ///
    /// If there is no such subtask.
    pub fn sink<T: Record, F: Format<T>>(
        &self,
        subtask: u32,
        format: F,
    ) -> Result<FileSink<T, F>, FileOutputError> {
        assert!(subtask < self.shared.subtasks, "subtask {subtask} of {}", self.shared.subtasks);
        let part =
            Part { subtask, file: self.shared.open(subtask)?, length: None, shared: self.shared.clone() };
        Ok(FileSink { format, rows: Vec::with_capacity(BUFFER_BYTES), part, item: PhantomData })
    }
}

impl FileOutput {
    /// Writes the output as a whole and gives it its name. Blocks: for whoever started a job, when it is over.
    ///
    /// # Errors
    ///
    /// [`FileOutputError::Io`]; what was there before is there still.
    ///
    /// # Panics
    ///
    /// If the output was planned for several subtasks.
    pub fn write(&self, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), FileOutputError> {
        assert_eq!(self.shared.subtasks, 1, "a file that is written as a whole is written by one");
        let mut part =
            Part { subtask: 0, file: self.shared.open(0)?, length: None, shared: self.shared.clone() };
        part.begin()?;
        write(&mut part.file).map_err(|cause| self.shared.io("write to it", cause))?;
        part.finish()
    }
}

impl Shared {
    fn io(&self, doing: &'static str, cause: io::Error) -> FileOutputError {
        FileOutputError::Io { path: self.path.clone(), doing, cause }
    }

    fn open(&self, subtask: u32) -> Result<File, FileOutputError> {
        let opened = match &self.place {
            Place::File(temporary) => OpenOptions::new().write(true).open(temporary),
            Place::Directory(temporary) => {
                let path = temporary.join(format!("part-{subtask:05}"));
                OpenOptions::new().write(true).create(true).truncate(false).open(path)
            }
            Place::Direct => OpenOptions::new().write(true).open(&self.target),
        };
        opened.map_err(|cause| self.io("open it for writing", cause))
    }

    /// Gives the output its name, if all of it is there.
    fn finished(&self, subtask: u32) -> Result<(), FileOutputError> {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.subtasks.insert(subtask);
        if finished.subtasks.len() == self.subtasks as usize {
            let temporary = match &self.place {
                Place::File(temporary) => temporary,
                Place::Directory(temporary) => {
                    sync_directory(temporary).map_err(|cause| self.io("sync it", cause))?;
                    temporary
                }
                Place::Direct => return Ok(()),
            };
            fs::rename(temporary, &self.target).map_err(|cause| self.io("give it its name", cause))?;
            // Only now: a rename that failed leaves a temporary to be removed.
            finished.published = true;
            let directory = self.target.parent().filter(|p| !p.as_os_str().is_empty());
            let synced = sync_directory(directory.unwrap_or(Path::new(".")));
            synced.map_err(|cause| self.io("sync its directory", cause))?;
        }
        Ok(())
    }
}

impl Drop for Shared {
    /// The last user is gone: what has not been published never will be.
    fn drop(&mut self) {
        if !self.finished.get_mut().unwrap_or_else(PoisonError::into_inner).published {
            // Nobody is left to be told of a failure; the name tells what it is.
            let _ = match &self.place {
                Place::File(temporary) => fs::remove_file(temporary),
                Place::Directory(temporary) => fs::remove_dir_all(temporary),
                Place::Direct => Ok(()),
            };
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// One subtask's open file.
struct Part {
    subtask: u32,
    file: File,
    /// Bytes written, once it is begun: until then an attempt before may have written to it.
    length: Option<u64>,
    shared: Arc<Shared>,
}

impl Part {
    fn is_direct(&self) -> bool {
        matches!(self.shared.place, Place::Direct)
    }

    /// Begins the file, if that has not been done.
    fn begin(&mut self) -> Result<(), FileOutputError> {
        match self.length {
            None => self.begin_at(0),
            Some(_) => Ok(()),
        }
    }

    /// Cuts the file to a length, and goes on there.
    fn begin_at(&mut self, length: u64) -> Result<(), FileOutputError> {
        if !self.is_direct() {
            let mut cut = || {
                self.file.set_len(length)?;
                self.file.seek(SeekFrom::Start(length))
            };
            cut().map_err(|cause| self.shared.io("cut it to what the checkpoint has", cause))?;
        }
        self.length = Some(length);
        Ok(())
    }

    fn write(&mut self, rows: &mut Vec<u8>) -> Result<(), FileOutputError> {
        self.begin()?;
        let written = self.file.write_all(rows);
        self.length = self.length.map(|length| length + rows.len() as u64);
        rows.clear();
        written.map_err(|cause| self.shared.io("write to it", cause))
    }

    fn finish(&mut self) -> Result<(), FileOutputError> {
        if !self.is_direct() {
            self.file.sync_all().map_err(|cause| self.shared.io("sync it", cause))?;
        }
        self.shared.finished(self.subtask)
    }

    /// Goes back to the length that a checkpoint has.
    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let length = u64::from_le_bytes(state.try_into()?);
        let found = self.file.metadata().map_err(|cause| self.shared.io("look at it", cause))?.len();
        if !self.is_direct() && found < length {
            let path = self.shared.path.display();
            return Err(format!(
                "{path}: {found} bytes of it are left; expected the {length} that were written before the checkpoint \
                 (only a transactional output outlives its process)"
            )
            .into());
        }
        self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner).subtasks.remove(&self.subtask);
        Ok(self.begin_at(length)?)
    }
}

/// Writes a row for each record; see [`FileOutput::sink`].
pub struct FileSink<T, F> {
    format: F,
    rows: Vec<u8>,
    part: Part,
    item: PhantomData<fn(T)>,
}

impl<T: Record, F: Format<T>> Sink for FileSink<T, F> {
    type Item = T;

    #[inline]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        (self.format)(record, &mut self.rows);
        if self.rows.len() >= BUFFER_BYTES {
            self.part.write(&mut self.rows)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.part.write(&mut self.rows)?;
        Ok(self.part.finish()?)
    }

    fn pre_commit(&mut self, _: u64, state: &mut Vec<u8>) -> Result<(), SourceError> {
        self.part.write(&mut self.rows)?;
        state.extend_from_slice(&self.part.length.unwrap_or(0).to_le_bytes());
        Ok(())
    }

    fn restore(&mut self, _: u64, state: &[u8]) -> Result<(), SourceError> {
        self.part.restore(state)
    }
}

/// A sorted file of several subtasks' rows, written when the last of them has finished. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SortedFile {
    output: FileOutput,
    subtasks: u32,
    /// Sorted rows of the subtasks that have finished.
    runs: Arc<Mutex<Vec<Rows>>>,
}

impl SortedFile {
    /// As [`FileOutput::plan`], but however many subtasks there are, the output is one file.
    ///
    /// # Errors
    ///
    /// What is in the way, by its path; nothing has changed.
    pub fn plan(path: impl AsRef<Path>, subtasks: u32) -> Result<SortedFile, FileOutputError> {
        Ok(SortedFile { output: FileOutput::plan(path, 1)?, subtasks, runs: Arc::default() })
    }

    /// The sink of one subtask. It keeps all rows that `format` makes in memory, 24 bytes more for each, and sorts
    /// them by their bytes when it finishes.
    pub fn sink<T: Record, F: Format<T>>(&self, format: F) -> SortedSink<T, F> {
        SortedSink { format, rows: Rows::default(), file: self.clone(), item: PhantomData }
    }

    fn finished(&self, run: Rows) -> Result<(), FileOutputError> {
        let runs = {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.push(run);
            if runs.len() < self.subtasks as usize {
                return Ok(());
            }
            mem::take(&mut *runs)
        };
        let shared = &self.output.shared;
        let mut part = Part { subtask: 0, file: shared.open(0)?, length: None, shared: shared.clone() };
        part.begin()?;
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, &part.file);
        let runs: Vec<&Rows> = runs.iter().collect();
        let written = merge(&runs, |row| to.write_all(row).and_then(|()| to.write_all(b"\n")));
        written.and_then(|()| to.flush()).map_err(|cause| shared.io("write to it", cause))?;
        drop(to);
        part.finish()
    }
}

/// Keeps a row for each record; see [`SortedFile::sink`].
pub struct SortedSink<T, F> {
    format: F,
    rows: Rows,
    file: SortedFile,
    item: PhantomData<fn(T)>,
}

impl<T: Record, F: Format<T>> Sink for SortedSink<T, F> {
    type Item = T;

    #[inline]
    fn write(&mut self, record: T::Ref<'_>, _: Timestamp) -> Result<(), SourceError> {
        let start = self.rows.bytes.len();
        (self.format)(record, &mut self.rows.bytes);
        self.rows.ended(start);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        let mut rows = mem::take(&mut self.rows);
        rows.sort();
        Ok(self.file.finished(rows)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tempfile::{TempDir, tempdir};

    fn text(record: &str, rows: &mut Vec<u8>) {
        rows.extend_from_slice(record.as_bytes());
        rows.push(b'\n');
    }

    fn names(dir: &TempDir) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Goal: one subtask writes one file, which is as before until the end, and then complete.
    #[test]
    fn a_file_is_replaced_only_when_it_is_complete() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "old").unwrap();
        for fail in [true, false] {
            let output = FileOutput::plan(&path, 1).unwrap();
            let mut sink = output.sink::<String, _>(0, text).unwrap();
            drop(output);
            // More than a buffer, so that something has really been written.
            for _ in 0..BUFFER_BYTES {
                sink.write("row", 0).unwrap();
            }
            sink.flush().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(names(&dir).len(), 2, "a temporary beside it");
            if !fail {
                sink.finish().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), "row\n".repeat(BUFFER_BYTES));
            }
            drop(sink);
            assert_eq!(names(&dir), ["out"]);
        }
    }

    /// Goal: several subtasks write a directory, which appears when the last has finished, or never.
    #[test]
    fn a_directory_of_parts_appears_whole_or_not_at_all() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("out");
        for last_finishes in [false, true] {
            let output = FileOutput::plan(&path, 3).unwrap();
            let mut sinks: Vec<_> = (0..3).map(|i| output.sink::<String, _>(i, text).unwrap()).collect();
            drop(output);
            for (i, sink) in sinks.iter_mut().enumerate() {
                sink.write(&format!("of {i}"), 0).unwrap();
            }
            sinks[2].finish().unwrap();
            sinks[0].finish().unwrap();
            assert!(!path.exists());
            if last_finishes {
                sinks[1].finish().unwrap();
            }
            drop(sinks);
            assert_eq!(names(&dir), if last_finishes { &["out"][..] } else { &[] });
        }
        for i in 0..3 {
            assert_eq!(fs::read_to_string(path.join(format!("part-0000{i}"))).unwrap(), format!("of {i}\n"));
        }
        let error = FileOutput::plan(&path, 3).unwrap_err();
        assert!(matches!(error, FileOutputError::Exists { subtasks: 3, .. }), "{error}");
        assert!(error.to_string().contains("out: exists"), "{error}");
    }

    proptest! {
        /// Goal: a sorted file holds all subtasks' rows in the order of their bytes.
        #[test]
        fn sorted_rows_are_those_of_all_subtasks_in_order(
            subtasks in proptest::collection::vec(
                proptest::collection::vec("[ab\t\0é]{0,12}", 0..20), 1..4),
        ) {
            let dir = tempdir().unwrap();
            let path = dir.path().join("out");
            let file = SortedFile::plan(&path, subtasks.len() as u32).unwrap();
            for rows in &subtasks {
                prop_assert!(!path.exists());
                let mut sink = file.sink::<String, _>(text);
                for row in rows {
                    sink.write(row, 0).unwrap();
                }
                sink.finish().unwrap();
            }
            let mut expected: Vec<&String> = subtasks.iter().flatten().collect();
            expected.sort();
            let got = fs::read_to_string(&path).unwrap();
            prop_assert_eq!(got.split_terminator('\n').collect::<Vec<_>>(), expected);
            drop(file);
            prop_assert_eq!(names(&dir), ["out"]);
        }
    }

    /// Goal: a sorted output of which one subtask fails is absent.
    #[test]
    fn a_sorted_file_without_one_of_its_subtasks_is_absent() {
        let dir = tempdir().unwrap();
        let file = SortedFile::plan(dir.path().join("out"), 2).unwrap();
        let mut one = file.sink::<String, _>(text);
        let other = file.sink::<String, _>(text);
        one.write("row", 0).unwrap();
        one.finish().unwrap();
        drop((one, other, file));
        assert_eq!(names(&dir), [""; 0]);
    }

    /// Goal: outputs that cannot be are refused before the job starts, and leave nothing behind.
    #[test]
    fn planning_names_what_is_in_the_way() {
        let dir = tempdir().unwrap();
        let refused = |path: &Path, subtasks| FileOutput::plan(path, subtasks).unwrap_err();
        let error = refused(&dir.path().join("no/out"), 1);
        assert!(matches!(error, FileOutputError::NoDirectory { .. }), "{error}");
        assert!(error.to_string().contains("no/out: there is no directory"), "{error}");
        assert!(matches!(refused(dir.path(), 1), FileOutputError::IsDirectory { .. }));
        assert!(matches!(refused(Path::new("/"), 1), FileOutputError::IsDirectory { .. }));
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(refused(&file, 2), FileOutputError::Exists { .. }));
        assert_eq!(names(&dir), ["file"]);
    }

    /// Goal: a link stays a link, and a device stays a device.
    #[test]
    fn links_are_followed_and_devices_written_to() {
        let dir = tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&link, Path::new("/dev/null")] {
            let mut sink = FileOutput::plan(path, 1).unwrap().sink::<String, _>(0, text).unwrap();
            sink.write("new", 0).unwrap();
            sink.finish().unwrap();
        }
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
        use std::os::unix::fs::FileTypeExt;
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    /// Goal: an attempt that goes on from a checkpoint writes behind what was written before it, also when the
    /// attempt before had finished; another process, which has nothing of that, is refused.
    #[test]
    fn a_restarted_attempt_goes_on_behind_its_checkpoint() {
        for subtasks in [1, 2] {
            let dir = tempdir().unwrap();
            let path = dir.path().join("out");
            let output = FileOutput::plan(&path, subtasks).unwrap();
            let mut state = Vec::new();
            let mut first = output.sink::<String, _>(0, text).unwrap();
            first.write("before", 0).unwrap();
            first.pre_commit(1, &mut state).unwrap();
            first.write("after", 0).unwrap();
            first.flush().unwrap();
            if subtasks > 1 {
                first.finish().unwrap();
                output.sink::<String, _>(1, text).unwrap().write("lost with its attempt", 0).unwrap();
            }
            drop(first);
            let mut second = output.sink::<String, _>(0, text).unwrap();
            second.restore(1, &state).unwrap();
            second.write("again", 0).unwrap();
            second.finish().unwrap();
            if subtasks == 1 {
                assert_eq!(fs::read_to_string(&path).unwrap(), "before\nagain\n");
            } else {
                assert!(!path.exists(), "one of two has finished");
                output.sink::<String, _>(1, text).unwrap().finish().unwrap();
                assert_eq!(fs::read_to_string(path.join("part-00000")).unwrap(), "before\nagain\n");
                assert_eq!(fs::read_to_string(path.join("part-00001")).unwrap(), "");
            }
            let other = FileOutput::plan(dir.path().join("other"), 1).unwrap();
            let mut other = other.sink::<String, _>(0, text).unwrap();
            let message = other.restore(1, &state).unwrap_err().to_string();
            assert!(message.contains("other: 0 bytes") && message.contains("expected the 7"), "{message}");
        }
    }
}
