//! Wiring: the channels, gates and bells of a plan, as deployments for its shards.
//!
//! Both the real runtime and the simulation start jobs by this one function.

use super::{
    CheckpointSeat, GateParts, OutputParts, Restored, RestoredSubtask, SharedLog, SubtaskContext, SubtaskInfo,
};
use crate::checkpoint::{CheckpointReports, Checkpointing};
use crate::graph::logical::{Exchange, LogicalGraph};
use crate::graph::plan::Plan;
use crate::source::Waker;
use std::sync::Arc;
use tidegate_shard::account::SubtaskMetrics;
use tidegate_shard::channel::doorbell::{Bell, Doorbell, Sleeper};
use tidegate_shard::channel::{IdleWord, channel};
use tidegate_shard::input::ChannelIndex;
use tidegate_shard::memory::Region;
use tidegate_shard::shard::{Deployment, Room};
use tidegate_shard::task::Port;

/// What others need of a shard to send to it.
pub struct ShardLinks {
    /// Its segments.
    pub region: Arc<Region>,
    /// The doorbells that ring at it: of each shard, then of other threads.
    pub doors: Vec<Arc<Doorbell>>,
    /// Where it says that it sleeps.
    pub sleeper: Arc<Sleeper>,
}

/// The doorbells of a shard among `shards`, all silent.
pub fn doors(shards: u32) -> Vec<Arc<Doorbell>> {
    (0..=shards).map(|_| Arc::default()).collect()
}

/// What tasks need to take part in checkpoints.
#[derive(Clone)]
pub struct WireCheckpoints {
    /// Who is told.
    pub reports: Arc<dyn CheckpointReports>,
    /// What is known of the job's checkpoints.
    pub info: Checkpointing,
    /// State of at most this many bytes goes into the metadata.
    pub inline_max: usize,
    /// Whether subtasks whose input has ended wait for one more checkpoint.
    pub waits_at_end: bool,
    /// Whether a checkpoint writes what changed since the last complete one.
    pub incremental: bool,
    /// What the attempt goes on from.
    pub restored: Option<Arc<Restored>>,
}

struct Draft {
    gate: Option<GateParts>,
    outputs: Vec<Option<OutputParts>>,
    ports: Vec<(usize, u32, Port)>,
}

/// Next free slot of each doorbell.
struct Slots(Vec<Vec<u32>>);

impl Slots {
    /// A slot of the doorbell that `from` rings at `to`.
    fn take(&mut self, to: usize, from: usize) -> u32 {
        let slot = &mut self.0[to][from];
        *slot += 1;
        *slot - 1
    }
}

/// Makes the channels of a plan and hands their ends to its subtasks: what each shard is to set up. `metrics` are
/// the counters of each subtask, in the plan's order.
///
/// With `checkpoints`, each shard's [`SharedLog`] must be in its [`Room`].
pub fn wire(
    plan: &Plan,
    graph: &LogicalGraph,
    links: &[ShardLinks],
    metrics: &[Arc<SubtaskMetrics>],
    checkpoints: Option<&WireCheckpoints>,
) -> Vec<Vec<Deployment>> {
    let exchange = Arc::new(plan.exchange.clone());
    let shards = links.len();
    let mut slots = Slots(vec![vec![0; shards + 1]; shards]);
    let mut drafts = drafts(plan);
    for planned in &plan.channels {
        let edge = &plan.edges[planned.edge];
        let (from, to) = (&plan.subtasks[planned.from], &plan.subtasks[planned.to]);
        let (from_shard, to_shard) = (from.shard.0 as usize, to.shard.0 as usize);
        let bell = |slots: &mut Slots, to: usize, from: usize| {
            let slot = slots.take(to, from);
            (Bell::new(links[to].doors[from].clone(), links[to].sleeper.clone(), slot), slot)
        };
        let (to_receiver, data_slot) = bell(&mut slots, to_shard, from_shard);
        let (to_sender, return_slot) = bell(&mut slots, from_shard, to_shard);
        let gate = drafts[planned.to].gate.as_mut().expect("a consuming subtask has a gate");
        let region = links[from_shard].region.clone();
        let (sender, receiver) = channel(&exchange, region, gate.idle.clone(), to_receiver, to_sender);
        let input = Port::Input { gate: 0, channel: ChannelIndex(gate.receivers.len() as u32) };
        gate.receivers.push(receiver);
        gate.inputs.push(edge.input);
        gate.timestamps.push(edge.timestamps);
        drafts[planned.to].ports.push((from_shard, data_slot, input));
        let output = drafts[planned.from].outputs[edge.output as usize]
            .as_mut()
            .expect("a producing subtask has the output");
        let port = Port::Output { partition: edge.output, channel: output.senders.len() as u32 };
        output.senders.push(sender);
        drafts[planned.from].ports.push((to_shard, return_slot, port));
    }
    let mut deployments: Vec<Vec<Deployment>> = (0..shards).map(|_| Vec::new()).collect();
    for (number, ((planned, draft), metrics)) in plan.subtasks.iter().zip(drafts).zip(metrics).enumerate() {
        let shard = planned.shard.0 as usize;
        let Draft { gate, outputs, mut ports } = draft;
        ports.push((shards, planned.task.0, Port::Waker));
        let bell =
            Bell::new(links[shard].doors[shards].clone(), links[shard].sleeper.clone(), planned.task.0);
        let waker = Waker::new(move || bell.ring());
        let vertex = &plan.vertices[planned.vertex.0 as usize];
        let logical = graph.vertex(planned.vertex);
        let info = SubtaskInfo {
            vertex: Arc::from(vertex.name.as_str()),
            subtask: planned.subtask,
            parallelism: vertex.parallelism,
            max_parallelism: vertex.max_parallelism,
            operators: logical.operators.iter().map(|o| Arc::from(o.name.as_str())).collect(),
            checkpoints: checkpoints.map(|checkpoints| checkpoints.info),
        };
        let factory = logical.factory.clone().expect("the plan has checked that every chain is closed");
        let (exchange, counters, group_hash) = (exchange.clone(), metrics.clone(), plan.group_hash);
        let seat = checkpoints.map(|checkpoints| CheckpointSeat {
            subtask: number,
            reports: checkpoints.reports.clone(),
            inline_max: checkpoints.inline_max,
            waits_at_end: checkpoints.waits_at_end,
            incremental: checkpoints.incremental,
        });
        let restored = checkpoints
            .and_then(|checkpoints| checkpoints.restored.clone())
            .map(|all| RestoredSubtask { all, vertex: planned.vertex.0 as usize, subtask: planned.subtask });
        let make = Box::new(move |room: &Room| {
            let pool = room.pool.clone();
            let metrics = counters;
            let log = || {
                let log = room.local.as_ref().and_then(|local| local.downcast_ref::<SharedLog>());
                log.expect("a shard whose tasks take checkpoints has a log").clone()
            };
            let checkpoints = seat.map(|seat| (seat, log()));
            let mut cx = SubtaskContext {
                info,
                gate,
                outputs,
                exchange,
                group_hash,
                metrics,
                waker,
                pool,
                checkpoints,
                restored,
            };
            factory(&mut cx)
        });
        let deployment = Deployment { task: planned.task, make, ports, metrics: metrics.clone() };
        deployments[shard].push(deployment);
    }
    deployments
}

fn drafts(plan: &Plan) -> Vec<Draft> {
    plan.subtasks
        .iter()
        .map(|subtask| {
            let reads = plan.edges.iter().any(|e| e.to == subtask.vertex);
            let gate = reads.then(|| GateParts {
                receivers: Vec::new(),
                idle: Arc::new(IdleWord::default()),
                inputs: Vec::new(),
                timestamps: Vec::new(),
            });
            // Outputs of a vertex are numbered from 0 without gaps, one edge each.
            let mut edges: Vec<_> = plan.edges.iter().filter(|e| e.from == subtask.vertex).collect();
            edges.sort_by_key(|e| e.output);
            let outputs = edges
                .into_iter()
                .map(|edge| {
                    let to = &plan.vertices[edge.to.0 as usize];
                    let channels = plan.fan_out(subtask, edge);
                    Some(OutputParts {
                        senders: Vec::new(),
                        stride: edge.stride,
                        broadcast: edge.exchange == Exchange::Broadcast,
                        timestamps: edge.timestamps,
                        pool_size: plan.pool_size(subtask, edge),
                        pool_guaranteed: plan.exchange.pool_guaranteed(channels),
                        to_parallelism: to.parallelism,
                        to_max_parallelism: to.max_parallelism,
                    })
                })
                .collect();
            Draft { gate, outputs, ports: Vec::new() }
        })
        .collect()
}
