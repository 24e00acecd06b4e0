//! `tidegate config`: every key, its value and where that comes from.

use super::CliError;
use super::common::{JobOptions, print};
use crate::config::keys;
use clap::Args;
use std::io::Write;

/// Options of `config`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    #[command(flatten)]
    job: JobOptions,
}

const EXAMPLES: &str = "\
Examples:
  tidegate config
  tidegate config --config config.yaml -Dtidegate.idle=spin --json";

impl Config {
    pub fn run(self) -> Result<(), CliError> {
        let entries = self.job.load()?.entries();
        if self.job.json {
            return print(|out| writeln!(out, "{}", serde_json::to_string(&entries)?));
        }
        let meanings = keys::reference();
        print(|out| {
            for section in meanings.chunk_by(|a, b| a.section == b.section) {
                writeln!(out, "{}\n", section[0].section)?;
                for key in section {
                    // A family has members where any is set, and else only its own line.
                    for entry in
                        entries.iter().filter(|e| keys::find(&e.key).is_some_and(|k| k.name == key.key))
                    {
                        let value = entry.value.as_deref().unwrap_or("(none)");
                        write!(out, "  {} = {value}  ({}", entry.key, entry.origin)?;
                        match entry.default.as_deref() {
                            Some(default) if default != value => writeln!(out, "; default {default})")?,
                            _ => writeln!(out, ")")?,
                        }
                    }
                    if key.key.contains('*') {
                        writeln!(out, "  {}", key.key)?;
                    }
                    writeln!(out, "      {}", key.meaning)?;
                    if let Some(note) = key.note {
                        writeln!(out, "      {}: {note}", key.status)?;
                    }
                }
                writeln!(out)?;
            }
            Ok(())
        })
    }
}
