//! Named places at which a test ends the process, or has the disk fail.
//!
//! Every step that a checkpoint's fate may hang on passes a [`Point`]: each write, sync, rename, ack, notice, commit
//! and delete. With the feature `failpoints`, which only test builds have, the environment of a process says what
//! is to happen where; without it a point is nothing.
//!
//! ```text
//! TIDEGATE_FAILPOINTS = rule;rule;…     rule = NAME@N=ACTION   the N-th time that a process comes to NAME (from 1)
//!                                              trace=PATH      appends each name to a file, as it is come to
//! ```
//!
//! `*` in place of a name counts every step on the disk. Actions: `kill` before the step, as `kill -9` does;
//! `killed` after it; `eio`, `enospc`: the step is not done and fails so; `lost`: it is done, and fails; `short`:
//! a write takes half of its bytes, and other steps are not touched; `none`: a write takes nothing.
//!
//! [`ALL`] holds every point, as they can only be made here; so a test can ask for one at each.

use std::io;

/// A named place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point(&'static str);

impl Point {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.0
    }
}

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: Point = Point($text);)*
        /// Every point.
        pub const ALL: &[Point] = &[$($name),*];
    };
}

points! {
    /// A job's directory is made.
    JOB_DIRECTORY = "job.make-directory";
    /// The lock is taken, and says by whom.
    JOB_LOCK = "job.lock";
    /// The next run's identity is written.
    IDENTITY_WRITE = "identity.write";
    /// The next run's identity is synced.
    IDENTITY_SYNC = "identity.sync";
    /// The next run's identity takes its name.
    IDENTITY_RENAME = "identity.rename";
    /// Names in the job's directory are made durable.
    JOB_SYNC_DIRECTORY = "job.sync-directory";
    /// The directory of the log files is made.
    LOG_DIRECTORY = "log.make-directory";
    /// The blocks of a new log file are written.
    LOG_FILE_WRITE = "log.file.write";
    /// A new log file is synced.
    LOG_FILE_SYNC = "log.file.sync";
    /// A new or recycled log file takes its name.
    LOG_FILE_RENAME = "log.file.rename";
    /// A log file is opened for writing.
    LOG_FILE_OPEN = "log.file.open";
    /// A log file is removed.
    LOG_FILE_REMOVE = "log.file.remove";
    /// Names of log files are made durable.
    LOG_SYNC_DIRECTORY = "log.sync-directory";
    /// A write of state begins.
    DATA_WRITE = "log.data.write";
    /// The end of a write of state is seen.
    DATA_WRITTEN = "log.data.written";
    /// A data sync of state begins.
    DATA_SYNC = "log.data.sync";
    /// The end of a data sync of state is seen.
    DATA_SYNCED = "log.data.synced";
    /// The write of a commit begins.
    COMMIT_WRITE = "log.commit.write";
    /// The end of the write of a commit is seen.
    COMMIT_WRITTEN = "log.commit.written";
    /// The data sync of a commit begins.
    COMMIT_SYNC = "log.commit.sync";
    /// The end of the data sync of a commit is seen.
    COMMIT_SYNCED = "log.commit.synced";
    /// The directory of a checkpoint is made.
    METADATA_DIRECTORY = "metadata.make-directory";
    /// `_metadata` is written.
    METADATA_WRITE = "metadata.write";
    /// `_metadata` is synced.
    METADATA_SYNC = "metadata.sync";
    /// `_metadata` takes its name.
    METADATA_RENAME = "metadata.rename";
    /// The name of `_metadata` is made durable.
    METADATA_SYNC_DIRECTORY = "metadata.sync-directory";
    /// `_metadata` of a subsumed checkpoint is removed.
    METADATA_REMOVE = "metadata.remove";
    /// The directory of a subsumed checkpoint is removed.
    METADATA_REMOVE_DIRECTORY = "metadata.remove-directory";
    /// An unfinished file is removed.
    UNFINISHED_REMOVE = "unfinished.remove";
    /// A directory is listed.
    LIST = "read.list";
    /// A file is opened for reading.
    READ_OPEN = "read.open";
    /// Bytes are read back.
    READ = "read.bytes";
    /// The directory of a sink's output is made.
    SINK_DIRECTORY = "sink.make-directory";
    /// A sink's directory is tried out: locked, a file made and removed.
    SINK_PROBE = "sink.probe";
    /// A sink lists its directory.
    SINK_LIST = "sink.list";
    /// A part is made.
    SINK_CREATE = "sink.create";
    /// A part is written.
    SINK_WRITE = "sink.write";
    /// A part is synced.
    SINK_SYNC = "sink.sync";
    /// A part takes its pending name.
    SINK_PENDING = "sink.pending";
    /// A part is looked at before it is published.
    SINK_LOOK = "sink.look";
    /// A part takes its last name.
    SINK_PUBLISH = "sink.publish";
    /// Names of parts are made durable.
    SINK_SYNC_DIRECTORY = "sink.sync-directory";
    /// What an earlier process left behind is removed.
    SINK_REMOVE = "sink.remove";
    /// Output beyond the restored checkpoint is moved aside.
    SINK_RETRACT = "sink.retract";
    /// A subtask tells that its part of a checkpoint is durable.
    SUBTASK_ACK = "subtask.ack";
    /// A subtask is told that a checkpoint is complete.
    SUBTASK_NOTICE = "subtask.notice";
    /// The coordinator takes an ack.
    COORDINATOR_ACK = "coordinator.ack";
    /// All acks are there, and the commit is about to begin.
    COORDINATOR_COMMIT = "coordinator.commit";
    /// The commit is durable, and nobody knows of it yet.
    COORDINATOR_COMPLETE = "coordinator.complete";
    /// A subtask is about to be sent a notice.
    COORDINATOR_NOTICE = "coordinator.notice";
    /// What is not needed any more is about to be cleared away.
    COORDINATOR_CLEAN = "coordinator.clean";
}

#[cfg(not(feature = "failpoints"))]
mod nothing {
    use super::{Point, io};

    /// Does a step on the disk.
    ///
    /// # Errors
    ///
    /// As the step.
    #[inline(always)]
    pub fn act<T>(_: Point, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        step()
    }

    /// Comes to a point that is no step on the disk.
    #[inline(always)]
    pub fn pass(_: Point) {}
}

#[cfg(not(feature = "failpoints"))]
pub use nothing::{act, pass};

#[cfg(feature = "failpoints")]
pub use armed::{act, pass};

#[cfg(feature = "failpoints")]
pub(crate) use armed::{Fault, come_to, die};

#[cfg(feature = "failpoints")]
mod armed {
    use super::{ALL, Point, io};
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What becomes of a step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// The process ends before it.
        Kill,
        /// The process ends after it.
        Killed,
        /// It is not done, and fails.
        Error(i32),
        /// It is done, and fails.
        Lost,
        /// Of a write: half is done.
        Short,
        /// Of a write: nothing is done, without an error.
        None,
    }

    struct Rule {
        /// Of one point, or of all steps on the disk.
        name: Option<&'static str>,
        at: u64,
        fault: Fault,
        count: AtomicU64,
    }

    #[derive(Default)]
    struct Rules {
        rules: Vec<Rule>,
        trace: Option<File>,
    }

    fn rules() -> &'static Rules {
        static RULES: OnceLock<Rules> = OnceLock::new();
        RULES.get_or_init(|| {
            let text = std::env::var("TIDEGATE_FAILPOINTS").unwrap_or_default();
            let mut rules = Rules::default();
            for rule in text.split(';').filter(|rule| !rule.is_empty()) {
                let parsed = rules.parse(rule);
                assert!(
                    parsed.is_some(),
                    "TIDEGATE_FAILPOINTS: {rule:?}: expected NAME@N=ACTION or trace=PATH"
                );
            }
            rules
        })
    }

    impl Rules {
        fn parse(&mut self, rule: &str) -> Option<()> {
            let (place, action) = rule.split_once('=')?;
            if place == "trace" {
                self.trace = Some(OpenOptions::new().append(true).create(true).open(action).ok()?);
                return Some(());
            }
            let (name, at) = place.split_once('@')?;
            let name = match name {
                "*" => None,
                name => Some(ALL.iter().find(|point| point.name() == name)?.name()),
            };
            let fault = match action {
                "kill" => Fault::Kill,
                "killed" => Fault::Killed,
                "eio" => Fault::Error(libc::EIO),
                "enospc" => Fault::Error(libc::ENOSPC),
                "lost" => Fault::Lost,
                "short" => Fault::Short,
                "none" => Fault::None,
                _ => return None,
            };
            self.rules.push(Rule { name, at: at.parse().ok()?, fault, count: AtomicU64::new(0) });
            Some(())
        }
    }

    /// What is to happen at a point that is come to.
    pub(crate) fn come_to(point: Point, disk: bool) -> Option<Fault> {
        let rules = rules();
        if let Some(mut trace) = rules.trace.as_ref() {
            let mark = if disk { "" } else { " -" };
            // In one call, so that lines of several threads do not mix.
            let _ = trace.write_all(format!("{}{mark}\n", point.name()).as_bytes());
        }
        let mut fault = None;
        for rule in &rules.rules {
            if rule.name.map_or(disk, |name| name == point.name())
                && rule.count.fetch_add(1, Ordering::Relaxed) + 1 == rule.at
            {
                fault = Some(rule.fault);
            }
        }
        if fault == Some(Fault::Kill) {
            die();
        }
        fault
    }

    /// Ends the process as `kill -9` does: nothing is flushed, nobody is told.
    pub(crate) fn die() -> ! {
        // SAFETY: takes two numbers and touches no memory.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park();
        }
    }

    /// Does a step on the disk, unless it is to fail.
    ///
    /// # Errors
    ///
    /// As the step, or as it is to fail.
    pub fn act<T>(point: Point, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match come_to(point, true) {
            Some(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Lost) => step().and(Err(io::Error::from_raw_os_error(libc::EIO))),
            Some(Fault::Killed) => {
                let _ = step();
                die()
            }
            Some(Fault::Kill | Fault::Short | Fault::None) | None => step(),
        }
    }

    /// Comes to a point that is no step on the disk.
    pub fn pass(point: Point) {
        if come_to(point, false) == Some(Fault::Killed) {
            die();
        }
    }
}
