//! `bench words`: the word count of `run wordcount` over text files, rows made and sorted in memory.
//!
//! `--limit` alternates with the hand-written program that does the same work, and prints the ratio pair by
//! pair. The rows of every run are compared byte by byte with those of the hand-written program.

use super::report::{Machine, Spread};
use crate::api::Environment;
use crate::cli::CliError;
use crate::cli::common::{JobOptions, set_parallelism};
use crate::cli::words::{counts_at_end, parallelism, row, text_options};
use crate::config::Config;
use crate::limit::words::{self, Way};
use crate::sink::sorted::SortedRows;
use crate::source::InputKind;
use crate::source::text::{TextFiles, TextPlan};
use crate::subtask::SubtaskInfo;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Options of `bench words`.
#[derive(Args)]
pub(crate) struct Words {
    /// Text files, or folders with all below them; 200 MB or more for figures that hold
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    input: Vec<PathBuf>,

    /// Parallel instances of text and count [default: one a shard]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    parallelism: Option<String>,

    /// Counted runs, after one that warms up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Alternate with the hand-written program that does the same work, and print the ratio
    #[arg(long)]
    limit: bool,

    #[command(flatten)]
    job: JobOptions,
}

#[derive(Serialize)]
struct Figures {
    bytes: u64,
    words: u64,
    distinct: usize,
    invalid_lines: u64,
    parallelism: u32,
    runs: u32,
    mb_per_s: f64,
    mb_per_s_spread: Spread,
    words_per_s: f64,
    limit_mb_per_s: Option<f64>,
    limit_mb_per_s_spread: Option<Spread>,
    limit_program: Option<String>,
    ratio: Option<f64>,
    ratio_spread: Option<Spread>,
    rows_checked: bool,
    machine: Machine,
}

/// One run of the engine: seconds until the last row is made, and the rows.
fn run_engine(config: &Config, text: &TextPlan, parallelism: u32) -> Result<(f64, Vec<u8>), CliError> {
    let env = Environment::with_config(config.clone());
    let rows = SortedRows::default();
    let sorted = rows.clone();
    counts_at_end(&env, text, parallelism)
        .sink("rows", move |info: &SubtaskInfo| Ok(sorted.sink::<(String, u64), _>(info, row)));
    let summary = env.execute("words")?;
    let begun = Instant::now();
    let mut written = Vec::new();
    rows.write_to(&mut written)?;
    Ok((summary.elapsed.as_secs_f64() + begun.elapsed().as_secs_f64(), written))
}

impl Words {
    pub fn run(self) -> Result<(), CliError> {
        let mut config = self.job.load()?;
        set_parallelism(&mut config, self.parallelism.as_deref())?;
        let parallelism = parallelism(&config)?;
        let text = TextFiles::plan(&self.input, text_options(&config))?;
        if let Some(file) = text.files().iter().find(|file| file.kind != InputKind::Plain) {
            let path = file.path.display();
            return Err(
                format!("{path}: the hand-written program reads plain files only; name others").into()
            );
        }
        let files: Vec<PathBuf> = text.files().iter().map(|file| file.path.clone()).collect();
        // Warms up, and has the rows that all others must equal.
        let expected = words::run(&files, parallelism as usize, Way::AddUp)?;
        let check = |rows: &[u8]| {
            if rows == expected.rows {
                return Ok(());
            }
            let digest = words::rows_digest(rows);
            let right = expected.outcome.digest;
            Err(format!(
                "the rows' digest is {digest:x} and that of the right ones {right:x}: rows are wrong"
            ))
        };
        check(&run_engine(&config, &text, parallelism)?.1)?;
        let invalid_lines = text.invalid_lines();
        let way = self.limit.then(|| words::fastest(&files, parallelism as usize)).transpose()?;
        let mb = expected.bytes as f64 / 1e6;
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        for run in 1..=self.runs {
            let (seconds, rows) = run_engine(&config, &text, parallelism)?;
            check(&rows)?;
            let rate = mb / seconds;
            ours.push(rate);
            let mut line = format!("run {run}: {rate:.1} MB/s");
            if let Some(way) = way {
                let counted = words::run(&files, parallelism as usize, way)?;
                check(&counted.rows)?;
                let limit = mb / counted.outcome.seconds;
                limits.push(limit);
                line += &format!(", limit {limit:.1} MB/s, ratio {:.3}", rate / limit);
            }
            if !self.job.json {
                eprintln!("{line}");
            }
        }
        let rate = Spread::of(ours.iter().copied());
        let limit = way.map(|_| Spread::of(limits.iter().copied()));
        let ratio = way.map(|_| Spread::of_ratios(&ours, &limits));
        let words = expected.outcome.records;
        let figures = Figures {
            bytes: expected.bytes,
            words,
            distinct: memchr::memchr_iter(b'\n', &expected.rows).count(),
            invalid_lines,
            parallelism,
            runs: self.runs,
            mb_per_s: rate.median,
            mb_per_s_spread: rate,
            words_per_s: rate.median / mb * words as f64,
            limit_mb_per_s: limit.map(|limit| limit.median),
            limit_mb_per_s_spread: limit,
            limit_program: way.map(|way| format!("{way:?}")),
            ratio: ratio.map(|ratio| ratio.median),
            ratio_spread: ratio,
            rows_checked: true,
            machine: Machine::here(),
        };
        if self.job.json {
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(());
        }
        println!(
            "words, {words} in {mb:.1} MB, {} distinct, parallelism {parallelism}, median (min … max) of {} runs",
            figures.distinct, self.runs
        );
        println!("  engine   {} MB/s, {:.1} M words/s", rate.text(1), figures.words_per_s / 1e6);
        if let (Some(limit), Some(ratio), Some(way)) = (limit, ratio, way) {
            println!("  limit    {} MB/s, hand-written, the same work ({way:?})", limit.text(1));
            println!("  ratio    {}", ratio.text(3));
        }
        println!("  the rows of every run are those of the hand-written program");
        Ok(())
    }
}
