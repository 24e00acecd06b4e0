//! `tidegate run`: jobs on real input.

use super::CliError;
use super::common::{JobOptions, set_parallelism};
use crate::api::Environment;
use crate::config::Config;
use crate::coordinator::RunningJob;
use crate::operator::Output;
use crate::operator::words::words;
use crate::sink::collect::{Collect, Collected};
use crate::sink::file::{FileOutput, SortedFile};
use crate::sink::stdout::Stdout;
use crate::source::text::{TextFiles, TextOptions, TextPlan};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Run {
    /// Count words: maximal runs of Unicode letters or digits, lower-cased.
    #[command(after_help = "Examples:
  tidegate run wordcount --input .
  tidegate run wordcount --input book.txt logs/ more.gz --output counts.tsv
  cat book.txt | tidegate run wordcount --input - | sort -k2 -rn | head")]
    Wordcount(Wordcount),
}

/// What is put out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// Each word once, with its count, sorted by the bytes of the word
    Final,
    /// Each word with its count so far, as it comes
    Updates,
}

/// Options of `run wordcount`.
#[derive(Args)]
pub(crate) struct Wordcount {
    /// Files, folders (with all below them but git and cache folders), .gz files, or - for standard input
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    input: Vec<PathBuf>,

    /// Write here rather than to standard output: complete when the job has finished, absent before
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What is put out, as word<TAB>count
    #[arg(long, value_enum, default_value_t = Emit::Final)]
    emit: Emit,

    /// Parallel instances of each operator [default: one a shard]
    #[arg(long, value_name = "P")]
    parallelism: Option<String>,

    /// Fail on text that is not UTF-8, rather than replace what is not and count the lines
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    job: JobOptions,
}

#[derive(Serialize)]
struct Summary {
    files: usize,
    bytes: u64,
    words: u64,
    invalid_lines: u64,
    seconds: f64,
    mb_per_s: f64,
}

impl Run {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Run::Wordcount(wordcount) => wordcount.run(),
        }
    }
}

impl Wordcount {
    fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        let options = TextOptions {
            strict: self.strict || config.strict_utf8(),
            line_bytes_max: config.max_record_size() as usize,
            ..TextOptions::default()
        };
        let plan = TextFiles::plan(&self.input, options)?;
        for skipped in plan.skipped() {
            eprintln!("tidegate: skipped {}: {}", skipped.path.display(), skipped.reason);
        }
        let counts = Collected::<(String, u64)>::default();
        let job = self.start(&config, &plan, &counts)?;
        if self.job.verbose {
            eprint!("{}", job.plan().describe());
        }
        show_progress(&job, &plan, self.job.json);
        let summary = match job.wait() {
            Ok(summary) => summary,
            // The reader of our output has had enough.
            Err(error) if error.to_string().contains("standard output was closed by its reader") => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if self.output.is_none() && self.emit == Emit::Final {
            let mut counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
            counts.sort_unstable();
            if let Err(error) = print_counts(&counts) {
                return if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) };
            }
        }
        let seconds = summary.elapsed.as_secs_f64();
        let words = summary.subtasks.iter().filter(|s| s.records_in > 0 && s.vertex.contains("count"));
        let summary = Summary {
            files: plan.files().len(),
            bytes: plan.bytes_read(),
            words: words.map(|s| s.records_in).sum(),
            invalid_lines: plan.invalid_lines(),
            seconds,
            mb_per_s: plan.bytes_read() as f64 / 1e6 / seconds,
        };
        if self.job.json {
            // Standard output may hold the counts; then the object is its last line.
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            eprintln!(
                "counted {} words of {} files, {:.1} MB in {:.2} s: {:.0} MB/s",
                summary.words,
                summary.files,
                summary.bytes as f64 / 1e6,
                summary.seconds,
                summary.mb_per_s
            );
            if summary.invalid_lines > 0 {
                eprintln!(
                    "{} lines are not UTF-8: what is not was replaced by U+FFFD (--strict fails instead)",
                    summary.invalid_lines
                );
            }
        }
        Ok(())
    }

    /// Puts the job together and starts it.
    fn start(
        &self,
        config: &Config,
        plan: &TextPlan,
        counts: &Collected<(String, u64)>,
    ) -> Result<RunningJob, CliError> {
        let env = Environment::with_config(config.clone());
        let source = plan.clone();
        let mut scratch = String::new();
        let by_word = env
            .source("text", move |cx| Ok(source.source(cx)))
            .flat_map::<String, _>(move |line, out: &mut Output<'_, String>| {
                words(line, &mut scratch, |word| out.emit(word));
            })
            .name("words")
            .key_by::<String, _>(|word| word);
        let row = |(word, count): (&str, u64), row: &mut Vec<u8>| {
            // Writing to a vector cannot fail.
            let _ = write!(row, "{word}\t{count}");
        };
        let line = move |record: (&str, u64), to: &mut Vec<u8>| {
            row(record, to);
            to.push(b'\n');
        };
        let shards = config.shards().unwrap_or_else(super::common::cores);
        let parallelism = if config.is_set("parallelism.default") { config.parallelism() } else { shards };
        match (self.emit, &self.output) {
            (Emit::Final, Some(path)) => {
                let file = SortedFile::plan(path, parallelism)?;
                by_word.count_at_end().sink("sorted file", move |_| Ok(file.sink::<(String, u64), _>(row)));
            }
            (Emit::Final, None) => {
                let counts = Arc::clone(counts);
                by_word.count_at_end().sink("counts", move |_| Ok(Collect::new(counts.clone())));
            }
            (Emit::Updates, Some(path)) => {
                let file = FileOutput::plan(path, parallelism)?;
                by_word
                    .count()
                    .sink("file", move |info| Ok(file.sink::<(String, u64), _>(info.subtask, line)?));
            }
            (Emit::Updates, None) => {
                by_word.count().sink("stdout", move |_| Ok(Stdout::<(String, u64), _>::new(line)));
            }
        }
        Ok(env.start("wordcount")?)
    }
}

fn print_counts(counts: &[(String, u64)]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for (word, count) in counts {
        writeln!(out, "{word}\t{count}")?;
    }
    out.flush()
}

/// Shows bytes, rate and time left on a terminal until the job is over.
fn show_progress(job: &RunningJob, plan: &TextPlan, json: bool) {
    if json || !io::stderr().is_terminal() {
        return;
    }
    let bar = match plan.bytes_total() {
        Some(total) => ProgressBar::new(total).with_style(
            ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left")
                .expect("a constant template"),
        ),
        None => ProgressBar::no_length().with_style(
            ProgressStyle::with_template("{spinner} {bytes}  {bytes_per_sec}").expect("a constant template"),
        ),
    };
    while !job.is_over() {
        bar.set_position(plan.bytes_read());
        std::thread::sleep(Duration::from_millis(50));
    }
    bar.finish_and_clear();
}
