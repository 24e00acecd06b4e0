//! `tidegate demo`: experiments that show how the engine behaves.

use super::CliError;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Demo {}

impl Demo {
    pub fn run(self) -> Result<(), CliError> {
        match self {}
    }
}
