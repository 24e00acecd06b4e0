//! The logical graph: vertices, and the exchanges between them.

use crate::subtask::SubtaskContext;
use std::sync::Arc;
use tidegate_shard::task::{Task, TaskFailure};

/// Number of a vertex in its job, from 0, in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(pub u32);

/// Builds one subtask of a vertex, on its shard.
pub type Factory = Arc<dyn Fn(&mut SubtaskContext) -> Result<Box<dyn Task>, TaskFailure> + Send + Sync>;

/// One operator of a vertex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorInfo {
    /// Its name, for people.
    pub name: String,
    /// Its identity over changes of the job, for state.
    pub uid: Option<String>,
    /// What it is: `map`, `source` ….
    pub kind: &'static str,
    /// Whether, with checkpoints, it plays its part in exactly-once: a source that replays, a sink that commits
    /// with them. What lies between does.
    pub exactly_once: bool,
}

/// A chain of operators that run together, in parallel instances.
pub struct Vertex {
    /// Its operators in the order in which a record passes them.
    pub operators: Vec<OperatorInfo>,
    /// Parallel instances, or as the vertex before it, or the job's default.
    pub parallelism: Option<u32>,
    /// Key groups, or derived from the parallelism.
    pub max_parallelism: Option<u32>,
    /// Subtask i runs on shard i + this, modulo their number.
    pub shard_offset: u32,
    /// Builds a subtask; `None` until the chain is closed.
    pub factory: Option<Factory>,
    /// Whether its head is a source.
    pub is_source: bool,
}

impl Vertex {
    /// Name of the vertex: its operators, joined.
    pub fn name(&self) -> String {
        if self.operators.is_empty() {
            // A chain that only hands on, between two exchanges.
            return "pass on".to_string();
        }
        self.operators.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(" -> ")
    }
}

/// Who sends to whom on an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// Subtask i to subtask i; both sides have the same parallelism.
    Forward,
    /// Each subtask to a share of the consumers near it.
    Rescale,
    /// To the owner of the record's key group.
    Keyed,
    /// To each consumer in turn.
    Rebalance,
    /// To a consumer at random.
    Shuffle,
    /// To all consumers.
    Broadcast,
    /// To the first consumer.
    Global,
    /// As a function of the user's says.
    Custom,
}

impl Exchange {
    /// The name that is printed, as Flink has it.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::Forward => "FORWARD",
            Exchange::Rescale => "RESCALE",
            Exchange::Keyed => "HASH",
            Exchange::Rebalance => "REBALANCE",
            Exchange::Shuffle => "SHUFFLE",
            Exchange::Broadcast => "BROADCAST",
            Exchange::Global => "GLOBAL",
            Exchange::Custom => "CUSTOM",
        }
    }
}

/// An exchange between two vertices.
#[derive(Debug, Clone)]
pub struct Edge {
    /// The producing vertex.
    pub from: VertexId,
    /// Which of its outputs.
    pub output: u32,
    /// The consuming vertex.
    pub to: VertexId,
    /// Which of its logical inputs.
    pub input: u8,
    /// Who sends to whom.
    pub exchange: Exchange,
    /// Size of each record in bytes, or 0 if they are framed.
    pub stride: u32,
    /// Whether records carry timestamps.
    pub timestamps: bool,
    /// Rust name of the record type.
    pub record_type: &'static str,
}

/// A job that is to run.
#[derive(Default)]
pub struct LogicalGraph {
    /// Its vertices.
    pub vertices: Vec<Vertex>,
    /// Its exchanges.
    pub edges: Vec<Edge>,
}

impl LogicalGraph {
    pub(crate) fn add_vertex(&mut self, is_source: bool) -> VertexId {
        self.vertices.push(Vertex {
            operators: Vec::new(),
            parallelism: None,
            max_parallelism: None,
            shard_offset: 0,
            factory: None,
            is_source,
        });
        VertexId(self.vertices.len() as u32 - 1)
    }

    /// The vertex with this number.
    pub fn vertex(&self, id: VertexId) -> &Vertex {
        &self.vertices[id.0 as usize]
    }

    pub(crate) fn vertex_mut(&mut self, id: VertexId) -> &mut Vertex {
        &mut self.vertices[id.0 as usize]
    }

    /// What stands in the way of exactly-once from end to end, in words; empty if nothing does.
    pub fn missing_legs(&self) -> Vec<String> {
        let operators = self.vertices.iter().flat_map(|vertex| &vertex.operators);
        let missing = operators.filter(|operator| !operator.exactly_once);
        missing
            .map(|operator| match operator.kind {
                "source" => format!(
                    "source {:?} cannot emit again what was under way when the job fails: such records are lost",
                    operator.name
                ),
                _ => format!(
                    "{} {:?} shows records before their checkpoint is complete: after a failure some appear twice",
                    operator.kind, operator.name
                ),
            })
            .collect()
    }

    /// What names an operator in checkpoints: its uid or, without one, its place in the job, which changes with the
    /// job.
    pub fn operator_id(&self, vertex: usize, operator: usize) -> String {
        let info = &self.vertices[vertex].operators[operator];
        info.uid.clone().unwrap_or_else(|| format!("{vertex}.{operator}:{}", info.name))
    }

    /// Vertex and index of the operator that checkpoints name so.
    pub fn operator_with_id(&self, id: &str) -> Option<(usize, usize)> {
        let all = self.vertices.iter().enumerate();
        let mut all = all.flat_map(|(vertex, v)| (0..v.operators.len()).map(move |at| (vertex, at)));
        all.find(|(vertex, operator)| self.operator_id(*vertex, *operator) == id)
    }

    /// Number of outputs that a vertex has.
    pub fn outputs(&self, id: VertexId) -> u32 {
        self.edges.iter().filter(|e| e.from == id).map(|e| e.output + 1).max().unwrap_or(0)
    }
}
