//! The plan: graph x parallelism, as subtasks on shards, channels between them, and the memory they need.

use super::key_group::{self, GroupHash};
use super::logical::{Edge, Exchange, LogicalGraph, VertexId};
use std::fmt::Write;
use tidegate_shard::config::{ExchangeConfig, SEGMENT_SIZE_BYTES_MAX, SEGMENT_SIZE_BYTES_MIN};
use tidegate_shard::shard::ShardId;
use tidegate_shard::task::TaskIndex;

/// A graph that cannot run as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is nothing to run.
    #[error("the job has no source")]
    NoSource,
    /// A chain was begun and never closed.
    #[error("the stream behind {vertex:?} goes nowhere: end it with a sink or drop its source")]
    Open {
        /// Name of the vertex.
        vertex: String,
    },
    /// A parallelism out of range.
    #[error("parallelism {parallelism} of {vertex:?} must be 1 … {max} (pipeline.max-parallelism)")]
    Parallelism {
        /// Name of the vertex.
        vertex: String,
        /// What was asked for.
        parallelism: u32,
        /// The largest that its key groups allow.
        max: u32,
    },
    /// A number of key groups out of range.
    #[error("max parallelism {value} of {vertex:?} must be 1 … {max} (pipeline.max-parallelism)", max = key_group::MAX_PARALLELISM_MAX)]
    MaxParallelism {
        /// Name of the vertex.
        vertex: String,
        /// What was asked for.
        value: u32,
    },
    /// A forward exchange between vertices of different parallelism.
    #[error(
        "{from:?} has parallelism {from_parallelism} and {to:?} has {to_parallelism}, but a forward exchange \
         needs both alike: put a rebalance between them"
    )]
    Forward {
        /// Name of the producing vertex.
        from: String,
        /// Its parallelism.
        from_parallelism: u32,
        /// Name of the consuming vertex.
        to: String,
        /// Its parallelism.
        to_parallelism: u32,
    },
    /// A segment size out of range.
    #[error(
        "a segment of {bytes} bytes must have {SEGMENT_SIZE_BYTES_MIN} … {SEGMENT_SIZE_BYTES_MAX} bytes and a multiple of 8 (taskmanager.memory.segment-size)"
    )]
    SegmentSize {
        /// What was asked for.
        bytes: u32,
    },
    /// More channels than a job may have.
    #[error(
        "{from:?} (parallelism {from_parallelism}) and {to:?} (parallelism {to_parallelism}) bring the job beyond \
         {CHANNELS_MAX} channels; expected a smaller parallelism (parallelism.default)"
    )]
    Channels {
        /// The producing vertex.
        from: String,
        /// Its parallelism.
        from_parallelism: u32,
        /// The consuming vertex.
        to: String,
        /// Its parallelism.
        to_parallelism: u32,
    },
    /// Too little memory is allowed for the exchange.
    #[error(
        "shard {shard} needs at least {needed} segments ({needed_bytes} bytes) for its {partitions} result \
         partitions, and taskmanager.memory.network.max allows {allowed} ({allowed_bytes} bytes)"
    )]
    Memory {
        /// The shard.
        shard: u32,
        /// Its partitions.
        partitions: u32,
        /// Segments that must be guaranteed.
        needed: u32,
        /// The same in bytes.
        needed_bytes: u64,
        /// Segments that are allowed.
        allowed: u32,
        /// The same in bytes.
        allowed_bytes: u64,
    },
    /// Two operators with one identity.
    #[error("two operators have the uid {uid:?}")]
    DuplicateUid {
        /// The uid.
        uid: String,
    },
}

/// Channels of a job, all exchanges together: each takes some kilobytes whether it is used or not, and a
/// parallelism that was meant otherwise should be an error rather than the machine's memory.
pub const CHANNELS_MAX: usize = 1 << 20;

/// Bytes of a channel's rings and words, about, at the default counts.
pub const CHANNEL_BYTES: u64 = 4 << 10;

/// How a graph is to be laid out.
#[derive(Debug, Clone)]
pub struct PlanConfig {
    /// Shards to run on, at least 1.
    pub shards: u32,
    /// Parallelism of vertices that do not say.
    pub parallelism: u32,
    /// Key groups of vertices that do not say, or derived from their parallelism.
    pub max_parallelism: Option<u32>,
    /// The exchange.
    pub exchange: ExchangeConfig,
    /// How the group of a key is found.
    pub group_hash: GroupHash,
    /// Bytes that the segments of all shards may take together, if limited.
    pub memory_bytes_max: Option<u64>,
}

/// A vertex with its numbers settled.
#[derive(Debug, Clone)]
pub struct PlannedVertex {
    /// Its operators' names, joined.
    pub name: String,
    /// Parallel instances.
    pub parallelism: u32,
    /// Key groups.
    pub max_parallelism: u32,
    /// Whether its head is a source.
    pub is_source: bool,
}

/// One subtask and where it runs.
#[derive(Debug, Clone)]
pub struct PlannedSubtask {
    /// Its vertex.
    pub vertex: VertexId,
    /// Which of the parallel instances, from 0.
    pub subtask: u32,
    /// Its shard.
    pub shard: ShardId,
    /// Its number on that shard.
    pub task: TaskIndex,
}

/// One channel.
#[derive(Debug, Clone, Copy)]
pub struct PlannedChannel {
    /// Index of the edge in the graph.
    pub edge: usize,
    /// Index of the producing subtask in the plan.
    pub from: usize,
    /// Index of the consuming subtask in the plan.
    pub to: usize,
}

/// Segments of one shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardMemory {
    /// Result partitions of its tasks.
    pub partitions: u32,
    /// Segments that partitions are sure of.
    pub guaranteed: u32,
    /// Segments that partitions would like, however much memory there is.
    pub wished: u32,
    /// Segments that partitions may use without overdraft.
    pub wanted: u32,
    /// Segments for overdraft.
    pub overdraft: u32,
    /// Bytes that records which span buffers may take on the heap at most.
    pub assembly_bytes_max: u64,
}

impl ShardMemory {
    /// Segments of the region.
    pub fn segments(&self) -> u32 {
        self.wanted + self.overdraft
    }
}

/// A job, laid out on shards.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its vertices.
    pub vertices: Vec<PlannedVertex>,
    /// Its subtasks, vertex by vertex.
    pub subtasks: Vec<PlannedSubtask>,
    /// Its channels, edge by edge; for each producer in order of its consumers.
    pub channels: Vec<PlannedChannel>,
    /// Its exchanges.
    pub edges: Vec<Edge>,
    /// Memory of each shard.
    pub memory: Vec<ShardMemory>,
    /// The exchange.
    pub exchange: ExchangeConfig,
    /// How the group of a key is found.
    pub group_hash: GroupHash,
    first_subtask: Vec<usize>,
}

impl Plan {
    /// Lays a graph out.
    ///
    /// # Errors
    ///
    /// [`PlanError`] that names what cannot be; nothing was started.
    pub fn new(graph: &LogicalGraph, config: &PlanConfig) -> Result<Plan, PlanError> {
        let size = config.exchange.segment_size_bytes;
        if !(SEGMENT_SIZE_BYTES_MIN..=SEGMENT_SIZE_BYTES_MAX).contains(&size) || !size.is_multiple_of(8) {
            return Err(PlanError::SegmentSize { bytes: size });
        }
        if !graph.vertices.iter().any(|v| v.is_source) {
            return Err(PlanError::NoSource);
        }
        check_uids(graph)?;
        let vertices = settle_vertices(graph, config)?;
        let (mut subtasks, mut first_subtask) = (Vec::new(), Vec::new());
        let mut tasks_on = vec![0; config.shards as usize];
        for (index, vertex) in vertices.iter().enumerate() {
            first_subtask.push(subtasks.len());
            for subtask in 0..vertex.parallelism {
                let shard = (subtask + graph.vertices[index].shard_offset) % config.shards;
                let task = TaskIndex(tasks_on[shard as usize]);
                tasks_on[shard as usize] += 1;
                let vertex = VertexId(index as u32);
                subtasks.push(PlannedSubtask { vertex, subtask, shard: ShardId(shard), task });
            }
        }
        let mut channels = Vec::new();
        for (index, edge) in graph.edges.iter().enumerate() {
            let (from, to) = (&vertices[edge.from.0 as usize], &vertices[edge.to.0 as usize]);
            for producer in 0..from.parallelism {
                for consumer in consumers(edge.exchange, producer, from.parallelism, to.parallelism) {
                    if channels.len() == CHANNELS_MAX {
                        return Err(PlanError::Channels {
                            from: from.name.clone(),
                            from_parallelism: from.parallelism,
                            to: to.name.clone(),
                            to_parallelism: to.parallelism,
                        });
                    }
                    channels.push(PlannedChannel {
                        edge: index,
                        from: first_subtask[edge.from.0 as usize] + producer as usize,
                        to: first_subtask[edge.to.0 as usize] + consumer as usize,
                    });
                }
            }
        }
        let mut plan = Plan {
            vertices,
            subtasks,
            channels,
            edges: graph.edges.clone(),
            memory: Vec::new(),
            exchange: config.exchange.clone(),
            group_hash: config.group_hash,
            first_subtask,
        };
        plan.memory = plan.settle_memory(config)?;
        Ok(plan)
    }

    /// Index of a subtask in [`subtasks`](Self::subtasks).
    pub fn subtask_index(&self, vertex: VertexId, subtask: u32) -> usize {
        self.first_subtask[vertex.0 as usize] + subtask as usize
    }

    /// Channels that a subtask sends on through one edge.
    pub fn fan_out(&self, subtask: &PlannedSubtask, edge: &Edge) -> u32 {
        let from = self.vertices[edge.from.0 as usize].parallelism;
        let to = self.vertices[edge.to.0 as usize].parallelism;
        consumers(edge.exchange, subtask.subtask, from, to).len() as u32
    }

    fn settle_memory(&self, config: &PlanConfig) -> Result<Vec<ShardMemory>, PlanError> {
        let mut memory = vec![ShardMemory::default(); config.shards as usize];
        for subtask in &self.subtasks {
            let shard = &mut memory[subtask.shard.0 as usize];
            for edge in self.edges.iter().filter(|e| e.from == subtask.vertex) {
                let channels = self.fan_out(subtask, edge);
                shard.partitions += 1;
                shard.guaranteed += config.exchange.pool_guaranteed(channels);
                shard.wished += config.exchange.pool_wanted(channels);
                shard.wanted = shard.wished;
            }
        }
        for channel in &self.channels {
            memory[self.subtasks[channel.to].shard.0 as usize].assembly_bytes_max +=
                u64::from(config.exchange.record_size_bytes_max);
        }
        let allowed = config.memory_bytes_max.map(|bytes| {
            let segments = bytes / u64::from(config.shards) / u64::from(config.exchange.segment_size_bytes);
            segments.min(u64::from(u32::MAX)) as u32
        });
        for (index, shard) in memory.iter_mut().enumerate() {
            shard.overdraft = (shard.partitions * config.exchange.overdraft_per_partition_max)
                .min(config.exchange.overdraft_reserve_max);
            let Some(allowed) = allowed else { continue };
            if shard.guaranteed > allowed {
                let size = u64::from(config.exchange.segment_size_bytes);
                return Err(PlanError::Memory {
                    shard: index as u32,
                    partitions: shard.partitions,
                    needed: shard.guaranteed,
                    needed_bytes: u64::from(shard.guaranteed) * size,
                    allowed,
                    allowed_bytes: u64::from(allowed) * size,
                });
            }
            shard.overdraft = shard.overdraft.min(allowed - shard.guaranteed);
            shard.wanted = shard.wanted.min(allowed - shard.overdraft);
        }
        Ok(memory)
    }

    /// Segments that the partition of a subtask on an edge may use without overdraft.
    ///
    /// Where memory is limited, partitions share what is beyond their guarantees in proportion to their
    /// wishes, settled here and not by who comes first.
    pub fn pool_size(&self, subtask: &PlannedSubtask, edge: &Edge) -> u32 {
        let channels = self.fan_out(subtask, edge);
        let wanted = self.exchange.pool_wanted(channels);
        let guaranteed = self.exchange.pool_guaranteed(channels);
        let shard = &self.memory[subtask.shard.0 as usize];
        if shard.wished <= shard.wanted {
            return wanted;
        }
        let extra = u64::from(shard.wanted - shard.guaranteed) * u64::from(wanted - guaranteed)
            / u64::from((shard.wished - shard.guaranteed).max(1));
        guaranteed + extra as u32
    }

    /// The plan and its memory, for people.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (index, vertex) in self.vertices.iter().enumerate() {
            let shards: Vec<String> = self
                .subtasks
                .iter()
                .filter(|s| s.vertex.0 as usize == index)
                .map(|s| s.shard.0.to_string())
                .collect();
            let _ = writeln!(
                text,
                "  {}  parallelism {} on shards {}, {} key groups",
                vertex.name,
                vertex.parallelism,
                abbreviate(&shards),
                vertex.max_parallelism
            );
            for edge in self.edges.iter().filter(|e| e.from.0 as usize == index) {
                let channels =
                    self.channels.iter().filter(|c| std::ptr::eq(&self.edges[c.edge], edge)).count();
                let _ = writeln!(
                    text,
                    "    {} -> {}  {} channels of {}",
                    edge.exchange.name(),
                    self.vertices[edge.to.0 as usize].name,
                    channels,
                    short_type(edge.record_type)
                );
            }
        }
        if self.group_hash == GroupHash::Fast {
            text.push_str("  keys are in other key groups than in Flink (tidegate.key-group-hash = fast)\n");
        }
        let size = self.exchange.segment_size_bytes;
        for (shard, memory) in self.memory.iter().enumerate() {
            let _ = writeln!(
                text,
                "  memory of shard {shard}: {} partitions want {} segments (sure of {}), overdraft {}: {} x {} B = {}",
                memory.partitions,
                memory.wanted,
                memory.guaranteed,
                memory.overdraft,
                memory.segments(),
                size,
                mib(u64::from(memory.segments()) * u64::from(size)),
            );
        }
        text
    }

    /// Bytes that the exchange takes, about: segments and channels.
    pub fn exchange_bytes(&self) -> u64 {
        self.segment_bytes() + self.channels.len() as u64 * CHANNEL_BYTES
    }

    /// Bytes of all shards' segments.
    pub fn segment_bytes(&self) -> u64 {
        self.memory.iter().map(|m| u64::from(m.segments())).sum::<u64>()
            * u64::from(self.exchange.segment_size_bytes)
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn short_type(name: &str) -> String {
    let mut short = String::new();
    let mut path = String::new();
    for c in name.chars() {
        if c.is_alphanumeric() || c == '_' {
            path.push(c);
        } else if c == ':' {
            path.clear();
        } else {
            short.push_str(&path);
            path.clear();
            short.push(c);
        }
    }
    short + &path
}

fn abbreviate(shards: &[String]) -> String {
    if shards.len() <= 8 {
        shards.join(" ")
    } else {
        format!("{} … {}", shards[..4].join(" "), shards[shards.len() - 1])
    }
}

fn check_uids(graph: &LogicalGraph) -> Result<(), PlanError> {
    let mut seen = std::collections::HashSet::new();
    for uid in graph.vertices.iter().flat_map(|v| v.operators.iter().filter_map(|o| o.uid.as_deref())) {
        if !seen.insert(uid) {
            return Err(PlanError::DuplicateUid { uid: uid.to_string() });
        }
    }
    Ok(())
}

fn settle_vertices(graph: &LogicalGraph, config: &PlanConfig) -> Result<Vec<PlannedVertex>, PlanError> {
    let mut vertices: Vec<PlannedVertex> = Vec::with_capacity(graph.vertices.len());
    for (index, vertex) in graph.vertices.iter().enumerate() {
        let name = vertex.name();
        if vertex.factory.is_none() {
            return Err(PlanError::Open { vertex: name });
        }
        let forward =
            graph.edges.iter().find(|e| e.to.0 as usize == index && e.exchange == Exchange::Forward);
        // A producer is always added before its consumers, so it is settled.
        let inherited = forward.map(|e| vertices[e.from.0 as usize].parallelism);
        let parallelism = vertex.parallelism.or(inherited).unwrap_or(config.parallelism);
        let max_parallelism = vertex
            .max_parallelism
            .or(config.max_parallelism)
            .unwrap_or_else(|| key_group::default_max_parallelism(parallelism.max(1)));
        if max_parallelism == 0 || max_parallelism > key_group::MAX_PARALLELISM_MAX {
            return Err(PlanError::MaxParallelism { vertex: name, value: max_parallelism });
        }
        if parallelism == 0 || parallelism > max_parallelism {
            return Err(PlanError::Parallelism { vertex: name, parallelism, max: max_parallelism });
        }
        if let (Some(edge), Some(from_parallelism)) = (forward, inherited)
            && from_parallelism != parallelism
        {
            let from = vertices[edge.from.0 as usize].name.clone();
            return Err(PlanError::Forward { from, from_parallelism, to: name, to_parallelism: parallelism });
        }
        vertices.push(PlannedVertex { name, parallelism, max_parallelism, is_source: vertex.is_source });
    }
    Ok(vertices)
}

/// The consumers that one of `from` producers sends to, of `to`.
fn consumers(exchange: Exchange, producer: u32, from: u32, to: u32) -> std::ops::Range<u32> {
    match exchange {
        Exchange::Forward => producer..producer + 1,
        Exchange::Global => 0..1,
        Exchange::Rescale if from <= to => producer * to / from..(producer + 1) * to / from,
        Exchange::Rescale => {
            let consumer = producer * to / from;
            consumer..consumer + 1
        }
        _ => 0..to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: on a rescale edge every consumer has a producer and every producer a consumer.
    #[test]
    fn rescale_connects_everybody() {
        for from in 1..20 {
            for to in 1..20 {
                let mut seen = vec![0; to as usize];
                for producer in 0..from {
                    let consumers = consumers(Exchange::Rescale, producer, from, to);
                    assert!(!consumers.is_empty(), "producer {producer} of {from} to {to}");
                    consumers.for_each(|c| seen[c as usize] += 1);
                }
                assert!(seen.iter().all(|n| *n > 0), "{from} to {to}: {seen:?}");
            }
        }
    }

    #[test]
    fn type_names_lose_their_paths() {
        assert_eq!(short_type("(alloc::string::String, u64)"), "(String, u64)");
        assert_eq!(short_type("tidegate::record::serde::Serde<a::b::C>"), "Serde<C>");
    }
}
