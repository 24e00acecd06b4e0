//! `run wordcount`: how often each word occurs in files.
//!
//! ```text
//!   text files -> words -> combine ==by word==> count -> rows, sorted when the job is over   (--emit final)
//!                 words ============by word==> count ==all to one==> rows as they come       (--emit updates)
//! ```

use super::progress::{Interrupt, wait};
use super::recovery::RecoveryOptions;
use crate::api::Environment;
use crate::checkpoint::Recovery;
use crate::cli::CliError;
use crate::cli::common::{JobOptions, print, set_parallelism};
use crate::cli::words::{counts_at_end, parallelism, row, text_options, text_words};
use crate::config::Origin;
use crate::record::Timestamp;
use crate::sink::Sink;
use crate::sink::file::FileOutput;
use crate::sink::sorted::SortedRows;
use crate::sink::stdout::{Stdout, StdoutClosed, is_stdout_closed};
use crate::sink::transactional::TransactionalFiles;
use crate::source::text::{TextFiles, TextOptions, TextPlan};
use crate::source::{SourceError, Waker, describe_skipped};
use crate::subtask::SubtaskInfo;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Options of `run wordcount`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Wordcount {
    /// Files, folders (with all below them), .gz files, or - for standard input
    ///
    /// Below a folder, what is hidden, caches (CACHEDIR.TAG, as in cargo's target) and binary files are left out.
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    input: Vec<PathBuf>,

    /// File for the rows word<TAB>count, complete or absent; replaces what is there [default: standard output]
    ///
    /// With checkpoints a directory of parts, each with the rows of one instance up to one checkpoint, which appear
    /// when that is complete: together every row once, whatever was killed when. With --emit final the rows of
    /// each part are sorted: LC_ALL=C sort -m DIR/part-* is what the file would be.
    #[arg(long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,

    /// Parallel instances of each operator [default: one a shard]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    parallelism: Option<String>,

    /// Each word once at the end, sorted by bytes; or a row for each word that is read
    #[arg(long, value_enum, default_value_t = Emit::Final)]
    emit: Emit,

    /// Fail on text that is not UTF-8, rather than replace what is not and count the lines
    #[arg(long)]
    strict: bool,

    /// Read all that is below a folder: hidden files, caches and binary files too
    #[arg(long)]
    all: bool,

    /// Say how the job is laid out and what memory it has
    #[arg(long, short)]
    verbose: bool,

    #[command(flatten)]
    recovery: RecoveryOptions,

    #[command(flatten)]
    job: JobOptions,
}

const EXAMPLES: &str = "\
Examples:
  tidegate run wordcount --input .
  tidegate run wordcount --input book.txt more.txt.gz --output counts.tsv
  tidegate run wordcount --input . --checkpoint-dir state --output counts   (again after a kill -9: it goes on)
  journalctl | tidegate run wordcount --input - | sort -k2nr -t'\t' | head";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// Each word once, with its count, when all is read
    Final,
    /// The word and its count so far, for each word that is read
    Updates,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Figures {
    words: u64,
    distinct: u64,
    /// Read; of compressed files: compressed.
    bytes: u64,
    seconds: f64,
    mb_per_s: f64,
    invalid_lines: u64,
    files: usize,
}

impl Wordcount {
    pub fn run(mut self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        if self.strict {
            config.set("tidegate.source.strict-utf8", "true", Origin::CommandLine)?;
        }
        let recovery = self.recovery.apply(&mut config)?;
        if recovery.is_some() && self.output.is_none() {
            return Err(
                "--checkpoint-dir: expected --output DIR as well: what standard output has shown before a \
                        failure cannot be taken back"
                    .into(),
            );
        }
        if self.job.json && self.output.is_none() {
            // One object and nothing else on standard output: whoever wants the rows as well names a file.
            self.output = Some("/dev/null".into());
        }
        let options = TextOptions { all: self.all, ..text_options(&config) };
        let text = TextFiles::plan(&self.input, options)?;
        if !text.skipped().is_empty() && !self.job.json {
            eprintln!("tidegate: not read: {}; --all reads everything", describe_skipped(text.skipped()));
        }
        if let Some(input) = text.read_once().filter(|_| recovery.is_some()) {
            eprintln!(
                "tidegate: warning: {}: can be read only once; a job that fails while it is read cannot go on",
                input.path.display()
            );
        }
        let interrupt = Interrupt::catch()?;
        let env = Environment::with_config(config);
        let replaced = self.output.as_ref().is_some_and(|path| path.is_file());
        let rows = self.build(&env, &text, recovery.as_ref())?;
        let job = env.start("wordcount")?;
        let layout = job.plan().describe();
        if self.verbose {
            eprint!("{layout}");
        } else {
            tracing::info!("the job's layout:\n{layout}");
        }
        let shown = !self.job.json && io::stderr().is_terminal();
        let kept = match recovery {
            None => "no file was written",
            Some(_) => "the same command goes on from the last checkpoint",
        };
        let summary = match wait(job, &text, &interrupt, shown, kept) {
            Err(_) if rows.tally.stdout_closed.load(Ordering::Relaxed) => return Err(StdoutClosed.into()),
            result => result?,
        };
        let printing = self.output.is_none();
        let mut seconds = summary.elapsed.as_secs_f64();
        let begun = Instant::now();
        rows.show()?;
        if !printing {
            // A file is part of the work; a terminal or a reader is as slow as it likes.
            seconds += begun.elapsed().as_secs_f64();
        }
        let figures = Figures {
            words: rows.tally.counted().words,
            distinct: rows.tally.counted().distinct,
            bytes: text.bytes_read(),
            seconds,
            mb_per_s: text.bytes_read() as f64 / 1e6 / seconds,
            invalid_lines: text.invalid_lines(),
            files: text.files().len(),
        };
        self.report(&figures, replaced)
    }

    /// Puts the job together; where its rows will be.
    fn build(
        &self,
        env: &Environment,
        text: &TextPlan,
        recovery: Option<&Recovery>,
    ) -> Result<Rows, CliError> {
        let parallelism = parallelism(env.config())?;
        // With checkpoints there is an output, which was asked for.
        let parts = match (recovery, &self.output) {
            (Some(recovery), Some(path)) => Some(TransactionalFiles::plan(path, recovery.beyond)?),
            _ => None,
        };
        let (tally, sorted) = (Arc::<Tally>::default(), SortedRows::default());
        let mut rows = Rows { tally: tally.clone(), sorted: sorted.clone(), file: None };
        match self.emit {
            Emit::Final => {
                let counts = counts_at_end(env, text, parallelism);
                match (parts, &self.output) {
                    (Some(parts), _) => counts.sink("parts", move |info: &SubtaskInfo| {
                        let sink = parts.sorted_sink::<(String, u64), _>(info, row)?;
                        Ok(Tallying::every_row(sink, &tally, info))
                    }),
                    (None, output) => {
                        rows.file = output.as_ref().map(|path| FileOutput::plan(path, 1)).transpose()?;
                        counts.sink("rows", move |info: &SubtaskInfo| {
                            Ok(Tallying::every_row(sorted.sink::<(String, u64), _>(info, row), &tally, info))
                        });
                    }
                }
            }
            Emit::Updates => {
                // Without a local combine: a row is for a word that was read.
                let words = text_words(env, text).key_by::<String, _>(|word| word);
                let counts = words.parallelism(parallelism).count();
                // All rows to one sink: several writers would need a file each.
                let counts = counts.global().parallelism(1);
                match (parts, &self.output) {
                    (Some(parts), _) => counts.sink("parts", move |info: &SubtaskInfo| {
                        let sink = parts.sink::<(String, u64), _>(info, row)?;
                        Ok(Tallying::first_rows(sink, &tally, info))
                    }),
                    (None, None) => counts.sink("standard output", move |info: &SubtaskInfo| {
                        Ok(Tallying::first_rows(Stdout::<(String, u64), _>::new(row), &tally, info))
                    }),
                    (None, Some(path)) => {
                        let file = FileOutput::plan(path, 1)?;
                        counts.sink("file", move |info: &SubtaskInfo| {
                            let sink = file.sink::<(String, u64), _>(info.subtask, row)?;
                            Ok(Tallying::first_rows(sink, &tally, info))
                        });
                    }
                }
            }
        }
        Ok(rows)
    }

    fn report(&self, figures: &Figures, replaced: bool) -> Result<(), CliError> {
        if self.job.json {
            return print(|out| writeln!(out, "{}", serde_json::to_string(figures)?));
        }
        let Figures { words, distinct, bytes, seconds, mb_per_s, invalid_lines, files } = figures;
        let files = if *files == 1 { "1 file".to_string() } else { format!("{files} files") };
        eprintln!(
            "tidegate: {words} words, {distinct} distinct, in {files} of {:.1} MB, in {seconds:.3} s ({mb_per_s:.1} MB/s)",
            *bytes as f64 / 1e6
        );
        if *invalid_lines > 0 {
            eprintln!(
                "tidegate: {invalid_lines} lines were not UTF-8; what was not became U+FFFD (--strict fails)"
            );
        }
        if let Some(path) = &self.output {
            let instead = if replaced { ", in place of what was there" } else { "" };
            eprintln!("tidegate: {} is written{instead}", path.display());
        }
        Ok(())
    }
}

/// What the sinks leave behind.
struct Rows {
    tally: Arc<Tally>,
    /// Of `--emit final`; else empty, since the sink has written the rows.
    sorted: SortedRows,
    /// Where the sorted rows go, if not to standard output.
    file: Option<FileOutput>,
}

impl Rows {
    fn show(&self) -> Result<(), CliError> {
        match &self.file {
            Some(file) => Ok(file.write(|file| self.sorted.write_to(file))?),
            None => print(|out| self.sorted.write_to(out)),
        }
    }
}

/// What the sinks of all subtasks have seen.
#[derive(Default)]
struct Tally {
    /// By subtask; written when one finishes, or goes on from a checkpoint.
    counted: Mutex<Vec<Counted>>,
    /// Whether whoever read standard output has gone: a failure of the job names its cause in words only.
    stdout_closed: AtomicBool,
}

/// Words, and how many different ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    words: u64,
    distinct: u64,
}

impl Counted {
    const BYTES: usize = 16;

    fn append(&self, state: &mut Vec<u8>) {
        state.extend_from_slice(&self.words.to_le_bytes());
        state.extend_from_slice(&self.distinct.to_le_bytes());
    }

    fn read(bytes: [u8; Self::BYTES]) -> Counted {
        let both = u128::from_le_bytes(bytes);
        Counted { words: both as u64, distinct: (both >> 64) as u64 }
    }
}

impl Tally {
    fn set(&self, subtask: u32, counted: Counted) {
        let mut all = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.len().max(subtask as usize + 1);
        all.resize(count, Counted::default());
        all[subtask as usize] = counted;
    }

    /// By all subtasks.
    fn counted(&self) -> Counted {
        let all = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |sum: Counted, one: &Counted| Counted {
            words: sum.words + one.words,
            distinct: sum.distinct + one.distinct,
        };
        all.iter().fold(Counted::default(), sum)
    }
}

/// A sink that also counts words.
struct Tallying<S> {
    sink: S,
    /// Whether a word has several rows, the first of which has count 1.
    updates: bool,
    subtask: u32,
    counted: Counted,
    tally: Arc<Tally>,
}

impl<S> Tallying<S> {
    fn every_row(sink: S, tally: &Arc<Tally>, info: &SubtaskInfo) -> Self {
        let (subtask, counted, tally) = (info.subtask, Counted::default(), tally.clone());
        Tallying { sink, updates: false, subtask, counted, tally }
    }

    fn first_rows(sink: S, tally: &Arc<Tally>, info: &SubtaskInfo) -> Self {
        Tallying { updates: true, ..Self::every_row(sink, tally, info) }
    }

    fn noting(&self, result: Result<(), SourceError>) -> Result<(), SourceError> {
        if let Err(error) = &result
            && is_stdout_closed(&**error)
        {
            self.tally.stdout_closed.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<S: Sink<Item = (String, u64)>> Sink for Tallying<S> {
    type Item = (String, u64);

    const TRANSACTIONAL: bool = S::TRANSACTIONAL;

    #[inline]
    fn write(&mut self, record: (&str, u64), at: Timestamp) -> Result<(), SourceError> {
        self.counted.words += if self.updates { 1 } else { record.1 };
        self.counted.distinct += u64::from(!self.updates || record.1 == 1);
        let result = self.sink.write(record, at);
        self.noting(result)
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        let result = self.sink.flush();
        self.noting(result)
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.tally.set(self.subtask, self.counted);
        let result = self.sink.finish();
        self.noting(result)
    }

    /// The counts go before the state of the sink.
    fn pre_commit(&mut self, checkpoint: u64, state: &mut Vec<u8>) -> Result<(), SourceError> {
        self.counted.append(state);
        let result = self.sink.pre_commit(checkpoint, state);
        self.noting(result)
    }

    fn is_durable(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.sink.is_durable(checkpoint)
    }

    fn commit(&mut self, checkpoint: u64) -> Result<(), SourceError> {
        self.sink.commit(checkpoint)
    }

    fn is_committed(&mut self, checkpoint: u64) -> Result<bool, SourceError> {
        self.sink.is_committed(checkpoint)
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.sink.wake_with(waker);
    }

    fn restore(&mut self, checkpoint: u64, state: &[u8]) -> Result<(), SourceError> {
        let rest = match state.split_first_chunk() {
            Some((counted, rest)) => {
                self.counted = Counted::read(*counted);
                rest
            }
            None if state.is_empty() => state,
            None => return Err(format!("a state of {} bytes; expected 16 or more", state.len()).into()),
        };
        // All input may have ended before the checkpoint.
        self.tally.set(self.subtask, self.counted);
        self.sink.restore(checkpoint, rest)
    }
}
