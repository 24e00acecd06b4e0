//! The environment: configuration and the graph that streams add to.

use super::stream::{SourceChain, Stream};
use crate::config::Config;
use crate::coordinator::{JobError, JobSummary, RunningJob};
use crate::graph::logical::{LogicalGraph, OperatorInfo, VertexId};
use crate::record::Record;
use crate::source::memory::{InMemory, Repeat};
use crate::source::{Source, SourceContext, SourceError};
use std::cell::{Ref, RefCell, RefMut};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

struct Inner {
    config: Config,
    graph: RefCell<LogicalGraph>,
    chaining: bool,
    marker_interval_ns: Option<u64>,
}

/// Where a job is put together. Cheap to clone: all clones are one.
#[derive(Clone)]
pub struct Environment(Rc<Inner>);

/// A job that is put together and not started.
pub struct JobGraph {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub config: Config,
    /// Its vertices and exchanges.
    pub graph: LogicalGraph,
}

impl Environment {
    /// An environment with all defaults.
    pub fn new() -> Self {
        Self::with_config(Config::default())
    }

    /// An environment with a configuration.
    pub fn with_config(config: Config) -> Self {
        Environment(Rc::new(Inner {
            chaining: config.operator_chaining(),
            marker_interval_ns: config.latency_interval().map(|d| d.as_nanos() as u64),
            config,
            graph: RefCell::default(),
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Adds a source; `open` makes one parallel instance, on its shard.
    pub fn source<S, F>(&self, name: &str, open: F) -> Stream<S::Item, SourceChain<S, F>>
    where
        S: Source,
        F: Fn(&SourceContext) -> Result<S, SourceError> + Clone + Send + Sync + 'static,
    {
        let vertex = self.add_vertex(true, name, "source");
        self.keeps_exactly_once(vertex, S::REPLAYS);
        let chain = SourceChain {
            open,
            name: Arc::from(name),
            vertex,
            marker_interval_ns: self.0.marker_interval_ns,
            source: PhantomData,
        };
        Stream::new(self.clone(), vertex, chain, false)
    }

    /// Adds a source that emits these records, each parallel instance its share.
    pub fn from_vec<T>(
        &self,
        name: &str,
        records: Vec<T>,
    ) -> Stream<
        T,
        SourceChain<
            InMemory<T>,
            impl Fn(&SourceContext) -> Result<InMemory<T>, SourceError> + Clone + Send + Sync + 'static,
        >,
    >
    where
        T: Record + Send + Sync,
    {
        let records: Arc<[T]> = records.into();
        self.source(name, move |cx: &SourceContext| {
            Ok(InMemory::of_subtask(records.clone(), cx, Repeat::Times(1)))
        })
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    ///
    /// [`JobError`] if it cannot be started, or fails.
    pub fn execute(&self, name: &str) -> Result<JobSummary, JobError> {
        self.start(name)?.wait()
    }

    /// Starts the job and returns at once.
    ///
    /// # Errors
    ///
    /// [`JobError`] if it cannot be started.
    pub fn start(&self, name: &str) -> Result<RunningJob, JobError> {
        RunningJob::start(self.job(name))
    }

    /// Takes the job as it has been put together so far; the environment is then empty.
    pub fn job(&self, name: &str) -> JobGraph {
        JobGraph {
            name: name.to_string(),
            config: self.0.config.clone(),
            graph: std::mem::take(&mut self.0.graph.borrow_mut()),
        }
    }

    pub(super) fn chaining(&self) -> bool {
        self.0.chaining
    }

    pub(super) fn graph(&self) -> Ref<'_, LogicalGraph> {
        self.0.graph.borrow()
    }

    pub(super) fn graph_mut(&self) -> RefMut<'_, LogicalGraph> {
        self.0.graph.borrow_mut()
    }

    pub(super) fn add_vertex(&self, is_source: bool, name: &str, kind: &'static str) -> VertexId {
        let vertex = self.graph_mut().add_vertex(is_source);
        self.add_operator(vertex, name, kind);
        vertex
    }

    /// Says whether the operator of `vertex` that was added last keeps to exactly-once.
    pub(super) fn keeps_exactly_once(&self, vertex: VertexId, does: bool) {
        if let Some(operator) = self.graph_mut().vertex_mut(vertex).operators.last_mut() {
            operator.exactly_once = does;
        }
    }

    /// Index of the operator of `vertex` that was added last.
    pub(super) fn last_operator(&self, vertex: VertexId) -> usize {
        self.graph().vertex(vertex).operators.len().saturating_sub(1)
    }

    pub(super) fn add_operator(&self, vertex: VertexId, name: &str, kind: &'static str) {
        let operator = OperatorInfo { name: name.to_string(), uid: None, kind, exactly_once: true };
        self.graph_mut().vertex_mut(vertex).operators.push(operator);
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::new()
    }
}
