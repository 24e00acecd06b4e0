//! What an attempt goes on from.

use crate::graph::logical::LogicalGraph;
use crate::graph::plan::Plan;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_storage::device::directory::{Directory, ReadMode};
use tidegate_storage::log::reader::LogReader;
use tidegate_storage::metadata::{CheckpointMetadata, Finished, OperatorState, StateRef, SubtaskState};

/// Why a job cannot go on from a checkpoint.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum RestoreError {
    /// State of an operator that the job does not have.
    #[error(
        "checkpoint {checkpoint} has state of operator {name:?} ({uid}), which the job does not have; expected the \
         job that took it, or --fresh"
    )]
    Unknown {
        /// The checkpoint.
        checkpoint: u64,
        /// Its identity.
        uid: String,
        /// Its name.
        name: String,
    },
    /// An operator with another number of key groups.
    #[error(
        "operator {name:?} has {now} key groups (pipeline.max-parallelism) and had {then} in checkpoint \
         {checkpoint}; expected {then}"
    )]
    MaxParallelism {
        /// The checkpoint.
        checkpoint: u64,
        /// The operator.
        name: String,
        /// Key groups then.
        then: u32,
        /// Key groups now.
        now: u32,
    },
    /// An operator with another parallelism.
    #[error(
        "operator {name:?} has parallelism {now} and had {then} in checkpoint {checkpoint}; expected {then}: \
         state that is not keyed cannot be divided anew"
    )]
    Parallelism {
        /// The checkpoint.
        checkpoint: u64,
        /// The operator.
        name: String,
        /// Subtasks then.
        then: u32,
        /// Subtasks now.
        now: u32,
    },
}

/// A checkpoint, as the tasks of an attempt find their state in it.
pub struct Restored {
    checkpoint: Arc<CheckpointMetadata>,
    /// For each operator, by vertex and index, where its state is in the checkpoint.
    operators: HashMap<(usize, usize), usize>,
    directory: Arc<dyn Directory>,
}

impl Restored {
    /// Finds each operator's state by its identity.
    ///
    /// # Errors
    ///
    /// What does not fit, by name: nothing may be dropped silently.
    pub fn new(
        checkpoint: Arc<CheckpointMetadata>,
        directory: Arc<dyn Directory>,
        graph: &LogicalGraph,
        plan: &Plan,
    ) -> Result<Restored, RestoreError> {
        let mut operators = HashMap::new();
        let id = checkpoint.id;
        for (index, state) in checkpoint.operators.iter().enumerate() {
            let (vertex, operator) = graph.operator_with_id(&state.uid).ok_or_else(|| {
                let (uid, name) = (state.uid.clone(), state.name.clone());
                RestoreError::Unknown { checkpoint: id, uid, name }
            })?;
            let planned = &plan.vertices[vertex];
            let name = || state.name.clone();
            let (then, now) = (state.max_parallelism, planned.max_parallelism);
            if then != now {
                return Err(RestoreError::MaxParallelism { checkpoint: id, name: name(), then, now });
            }
            let (then, now) = (state.parallelism, planned.parallelism);
            let bound = |state: &SubtaskState| !state.operator.is_empty() || state.finished;
            if then != now && state.subtasks.iter().any(bound) {
                return Err(RestoreError::Parallelism { checkpoint: id, name: name(), then, now });
            }
            operators.insert((vertex, operator), index);
        }
        Ok(Restored { checkpoint, operators, directory })
    }

    /// The checkpoint's id.
    pub fn id(&self) -> u64 {
        self.checkpoint.id
    }

    fn operator(&self, vertex: usize, operator: usize) -> Option<&OperatorState> {
        self.operators.get(&(vertex, operator)).map(|index| &self.checkpoint.operators[*index])
    }

    /// A reader of the log, for one task.
    pub(crate) fn reader(&self) -> LogReader {
        LogReader::new(self.directory.clone(), self.checkpoint.lineage, ReadMode::Cached)
    }
}

/// The part of [`Restored`] that is one subtask's.
#[derive(Clone)]
pub(crate) struct RestoredSubtask {
    pub all: Arc<Restored>,
    pub vertex: usize,
    pub subtask: u32,
}

impl RestoredSubtask {
    /// The checkpoint's id.
    pub fn id(&self) -> u64 {
        self.all.id()
    }

    /// Whether the subtask had emitted everything.
    pub fn finished(&self) -> bool {
        let of_vertex = self.all.operators.iter().filter(|((vertex, _), _)| *vertex == self.vertex);
        let mut states = of_vertex.map(|(_, index)| &self.all.checkpoint.operators[*index]);
        states.any(|state| {
            state.finished == Finished::Fully
                || state.subtasks.iter().any(|own| own.subtask == self.subtask && own.finished)
        })
    }

    /// An operator's own state: what its subtask of the same number handed over.
    ///
    /// # Errors
    ///
    /// A frame that cannot be read, with its file.
    pub fn own(&self, operator: usize) -> Result<Vec<Vec<u8>>, tidegate_storage::error::StorageError> {
        let Some(state) = self.all.operator(self.vertex, operator) else { return Ok(Vec::new()) };
        let mut reader = self.all.reader();
        let own = state.subtasks.iter().filter(|own| own.subtask == self.subtask);
        own.flat_map(|own| &own.operator)
            .map(|piece| match piece {
                StateRef::Inline(bytes) => Ok(bytes.clone()),
                StateRef::Frame { handle, .. } => reader.read(*handle).map(|(_, bytes)| bytes.to_vec()),
            })
            .collect()
    }

    /// How many subtasks an operator had, and for each that has keyed state its number and its deltas.
    pub fn keyed(&self, operator: usize) -> Option<(u32, impl Iterator<Item = (u32, &[StateRef])>)> {
        let state = self.all.operator(self.vertex, operator)?;
        Some((state.parallelism, state.subtasks.iter().map(|own| (own.subtask, &own.keyed[..]))))
    }
}
