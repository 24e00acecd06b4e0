//! Names of the files of a transactional output: whose each is, and how far it has come.
//!
//! | how far | name |
//! | --- | --- |
//! | open | `.part-SUBTASK-LINEAGE-RUN-ATTEMPT-N.open` |
//! | pending | `.part-SUBTASK-CHECKPOINT-LINEAGE-RUN-ATTEMPT.pending` |
//! | published | `part-SUBTASK-CHECKPOINT-LINEAGE` |
//!
//! What can be seen is in the order of its writing when it is sorted by name. The lineage tells jobs apart, run and
//! attempt tell apart what several processes, or tries, of one job may have called the same.

use crate::checkpoint::Checkpointing;
use std::fmt;
use std::str::FromStr;
use tidegate_storage::format::{DecodeError, Decoder, Encoder};

/// A file of a transactional output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) subtask: u32,
    pub(super) lineage: u128,
    pub(super) stage: Stage,
}

/// How far a file has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It is being written.
    Open {
        run: u32,
        attempt: u32,
        /// Number in its attempt.
        number: u64,
    },
    /// It is durable and complete.
    Pending { checkpoint: u64, run: u32, attempt: u32 },
    /// Readers see it.
    Published { checkpoint: u64 },
}

impl Name {
    pub(super) fn open(subtask: u32, job: &Checkpointing, number: u64) -> Name {
        let (run, attempt) = (job.run, job.attempt);
        Name { subtask, lineage: job.lineage, stage: Stage::Open { run, attempt, number } }
    }

    /// The next name, when it is pending.
    pub(super) fn pending(self, job: &Checkpointing, checkpoint: u64) -> Name {
        let (run, attempt) = (job.run, job.attempt);
        Name { stage: Stage::Pending { checkpoint, run, attempt }, ..self }
    }

    /// The last name.
    pub(super) fn published(self, checkpoint: u64) -> Name {
        Name { stage: Stage::Published { checkpoint }, ..self }
    }

    /// For which checkpoint it was made pending.
    pub(super) fn checkpoint(&self) -> Option<u64> {
        match self.stage {
            Stage::Open { .. } => None,
            Stage::Pending { checkpoint, .. } | Stage::Published { checkpoint } => Some(checkpoint),
        }
    }

    /// Whether readers see it.
    pub(super) fn is_published(&self) -> bool {
        matches!(self.stage, Stage::Published { .. })
    }

    pub(super) fn encode(&self, fields: &mut Encoder) {
        fields.text(&self.to_string());
    }

    pub(super) fn decode(fields: &mut Decoder<'_>) -> Result<Name, DecodeError> {
        let name = fields.text()?;
        name.parse().map_err(|NoName| fields.error(format!("{name:?} is no name of a part")))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name { subtask, lineage, stage } = self;
        match stage {
            Stage::Open { run, attempt, number } => {
                write!(f, ".part-{subtask:05}-{lineage:032x}-{run}-{attempt}-{number}.open")
            }
            Stage::Pending { checkpoint, run, attempt } => {
                write!(f, ".part-{subtask:05}-{checkpoint:010}-{lineage:032x}-{run}-{attempt}.pending")
            }
            Stage::Published { checkpoint } => write!(f, "part-{subtask:05}-{checkpoint:010}-{lineage:032x}"),
        }
    }
}

/// Not the name of a file of a transactional output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoName;

impl FromStr for Name {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Name, NoName> {
        let (inner, kind) = match text.strip_prefix(".part-") {
            Some(rest) => rest.split_once('.').ok_or(NoName)?,
            None => (text.strip_prefix("part-").ok_or(NoName)?, ""),
        };
        let pieces: Vec<&str> = inner.split('-').collect();
        let lineage = |text: &str| u128::from_str_radix(text, 16).map_err(|_| NoName);
        fn number<T: FromStr>(text: &str) -> Result<T, NoName> {
            text.parse().map_err(|_| NoName)
        }
        let name = match (kind, &pieces[..]) {
            ("open", [subtask, of, run, attempt, n]) => Name {
                subtask: number(subtask)?,
                lineage: lineage(of)?,
                stage: Stage::Open { run: number(run)?, attempt: number(attempt)?, number: number(n)? },
            },
            ("pending", [subtask, checkpoint, of, run, attempt]) => Name {
                subtask: number(subtask)?,
                lineage: lineage(of)?,
                stage: Stage::Pending {
                    checkpoint: number(checkpoint)?,
                    run: number(run)?,
                    attempt: number(attempt)?,
                },
            },
            ("", [subtask, checkpoint, of]) => Name {
                subtask: number(subtask)?,
                lineage: lineage(of)?,
                stage: Stage::Published { checkpoint: number(checkpoint)? },
            },
            _ => return Err(NoName),
        };
        // Only what we would write ourselves: `part-1-2-3` is somebody else's.
        if name.to_string() == text { Ok(name) } else { Err(NoName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_name() -> impl Strategy<Value = Name> {
        let stage = prop_oneof![
            any::<(u32, u32, u64)>().prop_map(|(run, attempt, number)| Stage::Open { run, attempt, number }),
            any::<(u64, u32, u32)>().prop_map(|(checkpoint, run, attempt)| Stage::Pending {
                checkpoint,
                run,
                attempt
            }),
            any::<u64>().prop_map(|checkpoint| Stage::Published { checkpoint }),
        ];
        (any::<u32>(), any::<u128>(), stage).prop_map(|(subtask, lineage, stage)| Name {
            subtask,
            lineage,
            stage,
        })
    }

    proptest! {
        /// Goal: every name is read back as what it was, and only what cannot be seen is hidden.
        #[test]
        fn names_are_read_back(name in any_name()) {
            let text = name.to_string();
            prop_assert_eq!(text.parse(), Ok(name));
            prop_assert_eq!(text.starts_with('.'), !name.is_published());
        }

        /// Goal: whatever lies in a directory, reading its name is no panic, and a name of ours is exactly ours.
        #[test]
        fn other_names_are_nobodys(text in "[.]?part[-][-0-9a-f.opendig]{0,60}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }

    /// Goal: names of one subtask sort in the order of its checkpoints.
    #[test]
    fn published_names_sort_by_subtask_and_checkpoint() {
        let name = |subtask, checkpoint| {
            Name { subtask, lineage: 7, stage: Stage::Published { checkpoint } }.to_string()
        };
        assert!(name(1, 9) < name(1, 10) && name(1, 10) < name(2, 1));
        assert_eq!(name(3, 12), "part-00003-0000000012-00000000000000000000000000000007");
    }
}
