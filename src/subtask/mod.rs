//! Subtasks: a chain of operators between an input gate or a source and result partitions or a sink.
//!
//! This is the only room that knows both the data plane and what a record means.

mod log;
mod reader;
mod restore;
mod sink;
mod snapshot;
mod source;
mod tail;
mod two_input;
mod watermark;
pub mod wire;
mod writer;

pub use log::SharedLog;
pub(crate) use reader::ReaderTask;
pub(crate) use restore::RestoredSubtask;
pub use restore::{RestoreError, Restored};
pub(crate) use sink::SinkEnd;
pub use snapshot::CheckpointSeat;
pub(crate) use source::{SOURCE_OPERATOR, SourceTask};
pub use two_input::Inputs;
pub(crate) use two_input::{TwoInput, TwoInputTask};
pub(crate) use writer::{WriterEnd, stride};

use crate::checkpoint::Checkpointing;
use crate::graph::key_group::{Assigner, GroupHash};
use crate::partitioner::MakePartitioner;
use crate::record::Record;
use crate::source::{SourceContext, SourceError, Waker};
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::channel::{IdleWord, Receiver, Sender};
use tidegate_shard::config::ExchangeConfig;
use tidegate_shard::input::InputGate;
use tidegate_shard::memory::Pool;
use tidegate_shard::output::ResultPartition;
use tidegate_shard::task::TaskFailure;

/// Which subtask it is.
#[derive(Debug, Clone)]
pub struct SubtaskInfo {
    /// Name of its vertex: its operators, joined.
    pub vertex: Arc<str>,
    /// Which of the parallel instances, from 0.
    pub subtask: u32,
    /// How many there are.
    pub parallelism: u32,
    /// Key groups of the vertex.
    pub max_parallelism: u32,
    /// Names of the vertex's operators.
    pub operators: Arc<[Arc<str>]>,
    /// The job's checkpoints, if it takes any.
    pub checkpoints: Option<Checkpointing>,
}

/// One gate of a subtask, before it is on its shard.
pub(crate) struct GateParts {
    pub receivers: Vec<Receiver>,
    pub idle: Arc<IdleWord>,
    /// For each channel, the logical input that it belongs to.
    pub inputs: Vec<u8>,
    /// For each channel, whether its records have timestamps.
    pub timestamps: Vec<bool>,
}

/// One output of a subtask, before it is on its shard.
pub(crate) struct OutputParts {
    pub senders: Vec<Sender>,
    pub stride: u32,
    pub broadcast: bool,
    pub timestamps: bool,
    /// Segments that the partition may use without overdraft, and those it is sure of.
    pub pool_size: u32,
    pub pool_guaranteed: u32,
    /// Parallelism and key groups of the vertex at the other end.
    pub to_parallelism: u32,
    pub to_max_parallelism: u32,
}

/// What a subtask is built from, on its shard.
pub struct SubtaskContext {
    pub(crate) info: SubtaskInfo,
    pub(crate) gate: Option<GateParts>,
    pub(crate) outputs: Vec<Option<OutputParts>>,
    pub(crate) exchange: Arc<ExchangeConfig>,
    pub(crate) group_hash: GroupHash,
    pub(crate) metrics: Arc<SubtaskMetrics>,
    pub(crate) waker: Waker,
    pub(crate) pool: Pool,
    /// For a job that takes checkpoints, the subtask's part in them and the shard's log.
    pub(crate) checkpoints: Option<(CheckpointSeat, SharedLog)>,
    pub(crate) restored: Option<RestoredSubtask>,
}

/// The gate of a subtask with what its reader must know of each channel.
pub(crate) struct Input {
    pub gate: InputGate,
    pub inputs: Vec<u8>,
    pub timestamps: Vec<bool>,
}

impl SubtaskContext {
    /// Which subtask it is.
    pub fn info(&self) -> &SubtaskInfo {
        &self.info
    }

    /// Who owns which key of a vertex of so many key groups and subtasks.
    fn assigner_of(&self, max_parallelism: u32, parallelism: u32) -> Assigner {
        Assigner::new(max_parallelism, parallelism)
            .expect("the plan has checked both parallelisms")
            .with_hash(self.group_hash)
    }

    /// Who owns which key of this vertex.
    pub(crate) fn assigner(&self) -> Assigner {
        self.assigner_of(self.info.max_parallelism, self.info.parallelism)
    }

    /// Name of an operator of the vertex.
    pub(crate) fn operator_name(&self, index: usize) -> Arc<str> {
        self.info.operators.get(index).unwrap_or(&self.info.vertex).clone()
    }

    /// What an operator of the vertex had handed over for the checkpoint that the job goes on from, if it does:
    /// the checkpoint's id and each piece.
    pub(crate) fn restored_state(&self, operator: usize) -> Result<Option<(u64, Vec<Vec<u8>>)>, TaskFailure> {
        let Some(restored) = &self.restored else { return Ok(None) };
        let pieces = restored
            .own(operator)
            .map_err(|cause| operator_failure(&*self.operator_name(operator), &SourceError::from(cause)))?;
        Ok(Some((restored.id(), pieces)))
    }

    pub(crate) fn source_context(&self) -> SourceContext {
        SourceContext {
            subtask: self.info.subtask,
            parallelism: self.info.parallelism,
            waker: self.waker.clone(),
        }
    }

    /// Takes the input gate; a task has one.
    pub(crate) fn input(&mut self) -> Input {
        let GateParts { receivers, idle, inputs, timestamps } =
            self.gate.take().expect("a task that reads has a gate, and takes it once");
        let ExchangeConfig { exclusive_per_channel, floating_per_gate, .. } = *self.exchange;
        let gate = InputGate::new(receivers, exclusive_per_channel, floating_per_gate, idle);
        Input { gate, inputs, timestamps }
    }

    /// The end of a chain that writes records to an output of the vertex.
    pub(crate) fn writer<T: Record, M: MakePartitioner<T>>(
        &mut self,
        output: u32,
        partitioner: M,
    ) -> Result<WriterEnd<T, M::Partitioner>, TaskFailure> {
        let parts = self.outputs[output as usize].take().expect("an output is written by one operator");
        let share = self
            .pool
            .share(parts.pool_guaranteed, parts.pool_size, self.exchange.overdraft_per_partition_max)
            .map_err(|error| TaskFailure { operator: None, cause: error.to_string() })?;
        let partition =
            ResultPartition::new(&self.exchange, share, parts.senders, parts.stride, parts.broadcast)
                .with_index(output);
        let to = self.assigner_of(parts.to_max_parallelism, parts.to_parallelism);
        let partitioner = partitioner.make(self.info.subtask, to);
        Ok(WriterEnd::new(partition, partitioner, parts.timestamps))
    }
}

/// A failure of the operator `operator`, with the chain of causes.
pub(crate) fn operator_failure(operator: impl Into<String>, cause: &SourceError) -> TaskFailure {
    let mut text = cause.to_string();
    let mut source = cause.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        // Many errors print their cause already.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    TaskFailure { operator: Some(operator.into()), cause: text }
}
