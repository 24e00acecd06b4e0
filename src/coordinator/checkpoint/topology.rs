//! What the coordinator of checkpoints knows of the job: who sends to whom, and whose state is whose.

use crate::graph::logical::{LogicalGraph, VertexId};
use crate::graph::plan::Plan;

/// One operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorPlace {
    /// Its identity over restarts ([`LogicalGraph::operator_id`]).
    pub uid: String,
    /// For people.
    pub name: String,
}

/// One vertex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VertexPlace {
    /// For people.
    pub name: String,
    /// Its subtasks.
    pub parallelism: u32,
    /// Its key groups.
    pub max_parallelism: u32,
    /// Its operators in the order in which a record passes them.
    pub operators: Vec<OperatorPlace>,
    /// Index of the operator whose splits the coordinator hands out, if one does; its state is taken before any
    /// task is triggered.
    pub coordinated: Option<usize>,
}

/// One subtask; its number in [`Topology::subtasks`] is that of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubtaskPlace {
    /// Index of its vertex.
    pub vertex: usize,
    /// Which of the parallel instances, from 0.
    pub number: u32,
    /// Whether it is a source's.
    pub is_source: bool,
    /// The subtasks that it sends to, once a channel.
    pub consumers: Vec<u32>,
}

/// A job's subtasks and channels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Its vertices, in the order of the graph.
    pub vertices: Vec<VertexPlace>,
    /// Its subtasks, in the order of the plan.
    pub subtasks: Vec<SubtaskPlace>,
}

impl Topology {
    /// Of a graph and its layout.
    pub fn new(plan: &Plan, graph: &LogicalGraph) -> Topology {
        let vertices = plan.vertices.iter().enumerate().map(|(index, planned)| {
            let id = VertexId(index as u32);
            let operators = graph.vertex(id).operators.iter().enumerate();
            VertexPlace {
                name: planned.name.clone(),
                parallelism: planned.parallelism,
                max_parallelism: planned.max_parallelism,
                operators: operators
                    .map(|(at, info)| OperatorPlace {
                        uid: graph.operator_id(index, at),
                        name: info.name.clone(),
                    })
                    .collect(),
                coordinated: None,
            }
        });
        let subtasks = plan.subtasks.iter().map(|planned| SubtaskPlace {
            vertex: planned.vertex.0 as usize,
            number: planned.subtask,
            is_source: plan.vertices[planned.vertex.0 as usize].is_source,
            consumers: Vec::new(),
        });
        let mut topology = Topology { vertices: vertices.collect(), subtasks: subtasks.collect() };
        for channel in &plan.channels {
            topology.subtasks[channel.from].consumers.push(channel.to as u32);
        }
        topology
    }

    /// A subtask for people: its vertex and its number, from 1.
    pub fn task_name(&self, subtask: usize) -> String {
        let place = &self.subtasks[subtask];
        let vertex = &self.vertices[place.vertex];
        format!("{} ({}/{})", vertex.name, place.number + 1, vertex.parallelism)
    }
}

/// Which tasks of one deployment run, and which of them have no running predecessor.
///
/// ```text
/// running ─► data ended ─► finished
/// ```
#[derive(Debug, Clone)]
pub(super) struct Tasks {
    finished: Vec<bool>,
    data_ended: Vec<bool>,
    /// Channels from running predecessors, for each subtask.
    running_inputs: Vec<u32>,
    running: usize,
    /// Source subtasks whose data has not ended.
    sources_with_data: usize,
}

impl Tasks {
    /// All running.
    pub(super) fn new(topology: &Topology) -> Tasks {
        let count = topology.subtasks.len();
        let mut running_inputs = vec![0; count];
        for consumer in topology.subtasks.iter().flat_map(|place| &place.consumers) {
            running_inputs[*consumer as usize] += 1;
        }
        Tasks {
            finished: vec![false; count],
            data_ended: vec![false; count],
            running_inputs,
            running: count,
            sources_with_data: topology.subtasks.iter().filter(|place| place.is_source).count(),
        }
    }

    /// A subtask has finished; whether it had not before.
    pub(super) fn finish(&mut self, topology: &Topology, subtask: usize) -> bool {
        if std::mem::replace(&mut self.finished[subtask], true) {
            return false;
        }
        self.end_data(topology, subtask);
        self.running -= 1;
        for consumer in &topology.subtasks[subtask].consumers {
            self.running_inputs[*consumer as usize] -= 1;
        }
        true
    }

    /// A subtask has no more data; whether it had until now.
    pub(super) fn end_data(&mut self, topology: &Topology, subtask: usize) -> bool {
        let had = !std::mem::replace(&mut self.data_ended[subtask], true);
        if had && topology.subtasks[subtask].is_source {
            self.sources_with_data -= 1;
        }
        had
    }

    pub(super) fn is_finished(&self, subtask: usize) -> bool {
        self.finished[subtask]
    }

    /// Number of tasks that run.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Number of tasks that have finished.
    pub(super) fn finished(&self) -> usize {
        self.finished.len() - self.running
    }

    /// Whether no source has data any more.
    pub(super) fn all_sources_ended(&self) -> bool {
        self.sources_with_data == 0
    }

    /// Subtasks that run.
    pub(super) fn that_run(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.finished.len()).filter(|subtask| !self.finished[*subtask])
    }

    /// Subtasks that run and have no running predecessor: the ones to trigger.
    pub(super) fn to_trigger(&self) -> impl Iterator<Item = usize> + '_ {
        self.that_run().filter(|subtask| self.running_inputs[*subtask] == 0)
    }
}
