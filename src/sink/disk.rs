//! A thread that waits for the disk in the place of a shard: syncs, names, renames, one after the other.
//!
//! ```text
//!   shard: prepare, publish ──── jobs ────► thread: write, sync, rename, sync the directory
//!          is_done          ◄─── results ── then wake
//! ```
//!
//! Jobs are done in the order in which they were given. The first that fails is the last: what it was about is in an
//! unknown state, so nothing after it may be believed, and every later question gets that error. A failed sync is
//! never repeated, since a second one may succeed without having written what the first one lost.
//!
//! As many jobs wait as the job has checkpoints under way, which is bounded by its coordinator. Dropping the shard's
//! end waits for the job in work and leaves the rest undone, so that nothing is renamed behind its back.

use super::sorted::{Rows, merge};
use crate::source::{SourceError, Waker, use_allowed_cores};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use thiserror::Error;
use tidegate_storage::failpoint::{self, Point};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 128 << 10;

/// A step that failed: on which path, and what was tried.
#[derive(Debug, Error)]
#[error("{}: cannot {doing}: {cause}", path.display())]
pub struct DiskError {
    /// The file or directory.
    pub path: PathBuf,
    /// What was tried.
    pub doing: &'static str,
    /// What the system said.
    pub cause: io::Error,
}

/// Which of the two phases a job belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Prepare,
    Publish,
}

/// What is written before a file is pending.
pub(super) enum Content {
    /// What is left to write, to a file that may not be there yet.
    Bytes(Option<File>, Vec<u8>),
    /// These rows, sorted.
    Rows(Rows),
}

/// What the thread does.
pub(super) enum Job {
    /// Makes a file durable, under another name of the same directory.
    Prepare {
        /// Its name while it was written to.
        open: PathBuf,
        content: Content,
        pending: PathBuf,
    },
    /// Gives a file its last name, durably.
    Publish(Publish),
}

/// A file that a checkpoint lists.
#[derive(Debug)]
pub(super) struct Publish {
    pub(super) pending: PathBuf,
    /// Its size; 0 says that nobody knew it.
    pub(super) bytes: u64,
    pub(super) last: PathBuf,
    /// For whom it is pending.
    pub(super) checkpoint: u64,
}

/// Why a file that a checkpoint lists cannot be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Neither under its pending name nor under its last.
    #[error("{}: is missing, and so is {}, which checkpoint {checkpoint} lists; expected one of the two (if it was taken away on purpose, an empty file in its place lets the job go on)", last.display(), pending.display())]
    Lost {
        /// Its last name.
        last: PathBuf,
        /// Its pending name.
        pending: PathBuf,
        /// The checkpoint that it is pending for.
        checkpoint: u64,
    },
    /// Not as long as when it was made durable.
    #[error("{}: has {found} bytes; expected {expected}, as checkpoint {checkpoint} lists it", pending.display())]
    Damaged {
        /// Its pending name.
        pending: PathBuf,
        /// Its size.
        found: u64,
        /// Its size when it was made durable.
        expected: u64,
        /// The checkpoint that it is pending for.
        checkpoint: u64,
    },
    /// Another file has its last name.
    #[error("{}: is there already; expected that name to be free for {}, which checkpoint {checkpoint} lists", last.display(), pending.display())]
    Taken {
        /// Its last name.
        last: PathBuf,
        /// Its pending name.
        pending: PathBuf,
        /// The checkpoint that it is pending for.
        checkpoint: u64,
    },
    /// The system refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Job {
    fn phase(&self) -> Phase {
        match self {
            Job::Prepare { .. } => Phase::Prepare,
            Job::Publish(_) => Phase::Publish,
        }
    }

    fn run(self) -> Result<(), SourceError> {
        match self {
            Job::Prepare { open, content, pending } => Ok(prepare(&open, content, &pending)?),
            Job::Publish(publish) => Ok(publish.run()?),
        }
    }
}

/// Writes what is not written, syncs the file and gives it its pending name.
fn prepare(open: &Path, content: Content, pending: &Path) -> Result<(), DiskError> {
    let file = match content {
        Content::Bytes(file, rest) => {
            let mut file = match file {
                Some(file) => file,
                None => act(failpoint::SINK_CREATE, open, "create it", || create(open))?,
            };
            act(failpoint::SINK_WRITE, open, "write to it", || file.write_all(&rest))?;
            file
        }
        Content::Rows(mut rows) => {
            rows.sort();
            let file = act(failpoint::SINK_CREATE, open, "create it", || create(open))?;
            act(failpoint::SINK_WRITE, open, "write to it", || {
                let mut to = BufWriter::with_capacity(BUFFER_BYTES, &file);
                merge(&[&rows], |row| to.write_all(row).and_then(|()| to.write_all(b"\n")))?;
                to.flush()
            })?;
            file
        }
    };
    act(failpoint::SINK_SYNC, open, "sync it", || file.sync_all())?;
    act(failpoint::SINK_PENDING, open, "give it its pending name", || fs::rename(open, pending))?;
    sync_directory_of(pending)
}

impl Publish {
    /// Does it; that it was done before is success.
    fn run(self) -> Result<(), PublishError> {
        let Publish { pending, bytes: expected, last, checkpoint } = self;
        match act(failpoint::SINK_LOOK, &pending, "look at it", || found(&pending))? {
            Some(found) if expected != 0 && found != expected => {
                return Err(PublishError::Damaged { pending, found, expected, checkpoint });
            }
            Some(_) => match act(failpoint::SINK_PUBLISH, &pending, "give it its last name", || {
                rename_new(&pending, &last)
            }) {
                Ok(()) => {}
                Err(DiskError { cause, .. }) if cause.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(PublishError::Taken { last, pending, checkpoint });
                }
                Err(error) => return Err(error.into()),
            },
            // Done before, perhaps by a process that did not live to sync it.
            None if act(failpoint::SINK_LOOK, &last, "look at it", || found(&last))?.is_some() => {}
            None => return Err(PublishError::Lost { last, pending, checkpoint }),
        }
        Ok(sync_directory_of(&last)?)
    }
}

/// Size of a file; `None` if it is not there.
fn found(path: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a file that is not there yet.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Renames to a name that is free: two files with one name are a fault that must not cost either.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do it in one step.
        Err(Errno::INVAL | Errno::NOSYS) if !to.try_exists()? => fs::rename(from, to),
        Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
        result => Ok(result?),
    }
}

/// Makes the names durable of the directory in which `path` lies.
pub(super) fn sync_directory_of(path: &Path) -> Result<(), DiskError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    act(failpoint::SINK_SYNC_DIRECTORY, directory, "sync it", || File::open(directory)?.sync_all())
}

/// One step on the disk. All go through here.
pub(super) fn act<T>(
    point: Point,
    path: &Path,
    doing: &'static str,
    step: impl FnOnce() -> io::Result<T>,
) -> Result<T, DiskError> {
    let failed = |cause| DiskError { path: path.to_path_buf(), doing, cause };
    let step = || failpoint::act(point, step);
    #[cfg(test)]
    return faults::act(step).map_err(failed);
    #[cfg(not(test))]
    step().map_err(failed)
}

/// The shard's end.
pub(super) struct Disk {
    worker: Worker,
    waker: Option<Waker>,
    /// Jobs that are not known to be done, the oldest first, with their checkpoints.
    outstanding: VecDeque<(Phase, u64)>,
    /// What failed, once somebody has been told.
    failed: Option<String>,
}

enum Worker {
    /// A sink that has nothing to do has no thread.
    Idle,
    Thread(Thread),
    /// A test does one job after the other.
    #[cfg(test)]
    Stepped(VecDeque<Job>),
}

impl Disk {
    pub(super) fn new() -> Disk {
        Disk { worker: Worker::Idle, waker: None, outstanding: VecDeque::new(), failed: None }
    }

    /// Whom to wake when something is done. To be called before the first job.
    pub(super) fn wake_with(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
    }

    /// Has a thread for the jobs to come, if it had none. Takes some time, which a barrier has not.
    ///
    /// # Errors
    ///
    /// As [`give`](Self::give).
    pub(super) fn be_ready(&mut self) -> Result<(), SourceError> {
        self.check()?;
        if matches!(self.worker, Worker::Idle) {
            let thread = Thread::spawn(self.waker.clone());
            self.worker = Worker::Thread(thread.map_err(|cause| format!("no thread for the disk: {cause}"))?);
        }
        Ok(())
    }

    /// Has a job done for a checkpoint.
    ///
    /// # Errors
    ///
    /// A job before it failed, or there is no thread.
    pub(super) fn give(&mut self, job: Job, checkpoint: u64) -> Result<(), SourceError> {
        self.be_ready()?;
        self.outstanding.push_back((job.phase(), checkpoint));
        match &mut self.worker {
            Worker::Idle => unreachable!("it has been made ready"),
            // Fails only if the thread is gone, of which its results tell.
            Worker::Thread(thread) => drop(thread.jobs.as_ref().map(|jobs| jobs.send(job))),
            #[cfg(test)]
            Worker::Stepped(jobs) => jobs.push_back(job),
        }
        Ok(())
    }

    /// Whether all jobs of a phase for this checkpoint and earlier ones are done. Never waits.
    ///
    /// # Errors
    ///
    /// One of all jobs so far has failed.
    pub(super) fn is_done(&mut self, phase: Phase, checkpoint: u64) -> Result<bool, SourceError> {
        self.take_results()?;
        Ok(!self.outstanding.iter().any(|&(of, id)| of == phase && id <= checkpoint))
    }

    /// Waits until all jobs are done.
    ///
    /// # Errors
    ///
    /// As [`is_done`](Self::is_done).
    pub(super) fn blocking_settle(&mut self) -> Result<(), SourceError> {
        self.check()?;
        #[cfg(test)]
        while matches!(self.worker, Worker::Stepped(_)) && !self.outstanding.is_empty() {
            self.step()?;
        }
        while !self.outstanding.is_empty() {
            let Worker::Thread(thread) = &mut self.worker else { unreachable!("it has jobs") };
            let result = thread.results.recv().unwrap_or_else(|_| Err(GONE.into()));
            self.took(result)?;
        }
        Ok(())
    }

    /// That nothing has failed.
    ///
    /// # Errors
    ///
    /// What did.
    pub(super) fn check(&mut self) -> Result<(), SourceError> {
        match &self.failed {
            None => self.take_results(),
            Some(failed) => Err(failed.clone().into()),
        }
    }

    fn take_results(&mut self) -> Result<(), SourceError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        while let Worker::Thread(thread) = &mut self.worker {
            match thread.results.try_recv() {
                Ok(result) => self.took(result)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.took(Err(GONE.into()))?,
            }
        }
        Ok(())
    }

    fn took(&mut self, result: Result<(), SourceError>) -> Result<(), SourceError> {
        self.outstanding.pop_front();
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }
}

const GONE: &str = "the thread that waits for the disk ended without a word";

struct Thread {
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    results: Receiver<Result<(), SourceError>>,
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    fn spawn(waker: Option<Waker>) -> io::Result<Thread> {
        let ((jobs, todo), (done, results)) = (channel::<Job>(), channel());
        let cancelled = Arc::new(AtomicBool::new(false));
        let stop = cancelled.clone();
        let thread = std::thread::Builder::new().name("tidegate-sink".into()).spawn(move || {
            use_allowed_cores();
            // Wakes also when a job panics: the results end then, which is an error.
            let _wake = WakeAtEnd(waker.clone());
            for job in todo {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let result = job.run();
                let failed = result.is_err();
                if done.send(result).is_err() || failed {
                    break;
                }
                if let Some(waker) = &waker {
                    waker.wake();
                }
            }
            drop(done);
        })?;
        Ok(Thread { jobs: Some(jobs), results, cancelled, thread: Some(thread) })
    }
}

struct WakeAtEnd(Option<Waker>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        if let Some(waker) = &self.0 {
            waker.wake();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has told of a panic by ending.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
impl Disk {
    /// One that does nothing by itself.
    pub(super) fn stepped() -> Disk {
        Disk { worker: Worker::Stepped(VecDeque::new()), ..Disk::new() }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Does the next job, if there is one.
    pub(super) fn step(&mut self) -> Result<bool, SourceError> {
        self.check()?;
        let Worker::Stepped(jobs) = &mut self.worker else { panic!("it steps by itself") };
        let Some(job) = jobs.pop_front() else { return Ok(false) };
        let result = job.run();
        self.took(result).map(|()| true)
    }
}

/// Steps that fail, in tests.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;
    use std::io;

    /// What becomes of the step that fails. All after it fail and do nothing, as after the end of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// It is not done.
        Before,
        /// It is done, and its end was not seen.
        After,
    }

    thread_local! {
        static AT: Cell<Option<(u32, Fault)>> = const { Cell::new(None) };
    }

    /// From now on the step after `steps` others fails; none if `None`.
    pub(crate) fn fail_after(steps: Option<(u32, Fault)>) {
        AT.set(steps);
    }

    /// Whether the step that was to fail has been reached.
    pub(crate) fn struck() -> bool {
        AT.get().is_some_and(|(left, _)| left == u32::MAX)
    }

    pub(super) fn act<T>(step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let error = || io::Error::from_raw_os_error(libc::EIO);
        match AT.get() {
            None => step(),
            Some((u32::MAX, _)) => Err(error()),
            Some((0, fault)) => {
                AT.set(Some((u32::MAX, fault)));
                if fault == Fault::After {
                    let _ = step();
                }
                Err(error())
            }
            Some((left, fault)) => {
                AT.set(Some((left - 1, fault)));
                step()
            }
        }
    }
}
