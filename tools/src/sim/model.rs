//! The sequential model: what a record is made of, what operators make of it, and what each operator must
//! therefore have been given.
//!
//! A record is an *id* and a *stamp*. Ids are numbers that look like chance, so that a multiset of them tells
//! every loss, doubling and exchange; whatever else a record holds (text, event time, key) follows from its
//! id. A stamp says which operator instance put the record out, and as its how-manieth: every operator looks
//! at what it is given, and puts its own stamp on what it emits.
//!
//! | checked | where |
//! | --- | --- |
//! | text and timestamp belong to the id | at each record |
//! | order of each producer, nothing twice | at each record, by the stamps |
//! | one key, one subtask; state counts as a map does | at each record of a keyed operator |
//! | multiset of ids equals the model's | at the end, for each operator and sink |

use super::clock::mix;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::record::{NO_TIMESTAMP, Record, Timestamp};
use tidegate::source::Waker;

/// Low bits of an id that hold its event time.
const TIME_BITS: u32 = 16;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// The id of the `number`-th record of a source, with its event time.
pub fn source_id(instance: u64, number: u64, time: u64) -> u64 {
    mix(instance << 32 | number) & !TIME_MASK | time & TIME_MASK
}

/// The id of the `number`-th record that the operator with this salt makes of `id`.
pub fn child_id(id: u64, salt: u64, number: u64) -> u64 {
    mix((id ^ salt).wrapping_add(number << 40)) & !TIME_MASK | id & TIME_MASK
}

/// Event time of a record, in milliseconds.
pub fn time_of(id: u64) -> Timestamp {
    (id & TIME_MASK) as Timestamp
}

/// Key of a record among `keys`.
pub fn key_of(id: u64, keys: u64) -> u64 {
    mix(id >> TIME_BITS) % keys
}

/// Id of the one record that a keyed operator emits for a key with `count` records.
pub fn total_id(key: u64, count: u64, salt: u64) -> u64 {
    mix(mix(key) ^ salt ^ count) & !TIME_MASK
}

/// Records without text: 16 bytes each.
pub type Plain = (u64, u64);
/// Records with a text that follows from the id.
pub type Text = (u64, u64, String);

/// A record of the simulation.
pub trait Item: Record + Send + Sync {
    /// Its id.
    fn id(view: Self::Ref<'_>) -> u64;
    /// Its stamp.
    fn stamp(view: Self::Ref<'_>) -> u64;
    /// Whether the rest of it is what belongs to the id; `text_max` is the longest text.
    fn is_whole(view: Self::Ref<'_>, text_max: u64) -> bool;
    /// Calls `f` with the record of an id and a stamp.
    fn with<R>(id: u64, stamp: u64, text_max: u64, f: impl FnOnce(Self::Ref<'_>) -> R) -> R;
}

impl Item for Plain {
    fn id((id, _): Plain) -> u64 {
        id
    }

    fn stamp((_, stamp): Plain) -> u64 {
        stamp
    }

    fn is_whole(_: Plain, _: u64) -> bool {
        true
    }

    fn with<R>(id: u64, stamp: u64, _: u64, f: impl FnOnce(Plain) -> R) -> R {
        f((id, stamp))
    }
}

impl Item for Text {
    fn id((id, ..): (u64, u64, &str)) -> u64 {
        id
    }

    fn stamp((_, stamp, _): (u64, u64, &str)) -> u64 {
        stamp
    }

    fn is_whole((id, _, text): (u64, u64, &str), text_max: u64) -> bool {
        text == text_of(id, text_max)
    }

    fn with<R>(id: u64, stamp: u64, text_max: u64, f: impl FnOnce((u64, u64, &str)) -> R) -> R {
        f((id, stamp, &text_of(id, text_max)))
    }
}

/// The text of an id: often short or empty, sometimes as long as several segments.
pub fn text_of(id: u64, text_max: u64) -> String {
    let chance = mix(id ^ 0x7E87);
    let len = match chance & 7 {
        0 | 1 => 0,
        2..=5 => (chance >> 8) % 24,
        _ => (chance >> 8) % (text_max + 1),
    };
    (0..len).map(|at| char::from(b'a' + ((chance >> (at % 48)) as u8 ^ at as u8) % 26)).collect()
}

/// What an operator emits for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// One record.
    Map,
    /// One or none.
    Filter,
    /// Some, and seldom so many at once that they do not fit in any pool.
    Burst(u64),
}

impl Op {
    /// Calls `emit` with the id of each record that is made of `id`.
    pub fn apply(self, id: u64, salt: u64, mut emit: impl FnMut(u64)) {
        let chance = mix(id ^ salt ^ 0x0B);
        let count = match self {
            Op::Map => 1,
            Op::Filter => u64::from(!chance.is_multiple_of(4)),
            Op::Burst(most) if chance.is_multiple_of(32) => most,
            Op::Burst(_) => chance >> 8 & 1,
        };
        for number in 0..count {
            emit(child_id(id, salt, number));
        }
    }
}

/// A multiset of ids, as an expression over others.
#[derive(Debug, Clone, Copy)]
pub enum Node {
    /// What the source at this point has emitted.
    Source(Point),
    /// What an operator makes of each.
    Applied(NodeIndex, Op, u64),
    /// Each so often.
    Times(NodeIndex, u64),
    /// Both.
    Both(NodeIndex, NodeIndex),
    /// One for each key of so many, with how many records it had.
    Totals(NodeIndex, u64, u64),
}

/// Number of a node in its model.
pub type NodeIndex = usize;

/// Number of a place where ids are noted: an operator's input, a sink, or a source's output.
pub type Point = usize;

/// What every point must see.
#[derive(Debug, Default)]
pub struct Model {
    nodes: Vec<Node>,
    /// For each point, its name and, but for sources, what it must see.
    points: Vec<(String, Option<NodeIndex>)>,
}

impl Model {
    /// Adds a node.
    pub fn node(&mut self, node: Node) -> NodeIndex {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds a point that must see a node's ids.
    pub fn point(&mut self, name: impl Into<String>, expected: NodeIndex) -> Point {
        self.points.push((name.into(), Some(expected)));
        self.points.len() - 1
    }

    /// Adds a point that notes what a source emits.
    pub fn source(&mut self, name: impl Into<String>) -> (Point, NodeIndex) {
        self.points.push((name.into(), None));
        let point = self.points.len() - 1;
        (point, self.node(Node::Source(point)))
    }

    /// Number of points.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Compares what was noted at each point with what must have been, given what the sources emitted.
    pub fn check(&self, seen: &[Vec<u64>]) -> Result<(), String> {
        let mut values: Vec<Vec<u64>> = Vec::new();
        for node in &self.nodes {
            let value = match *node {
                Node::Source(point) => seen[point].clone(),
                Node::Applied(of, op, salt) => {
                    let mut ids = Vec::new();
                    values[of].iter().for_each(|id| op.apply(*id, salt, |child| ids.push(child)));
                    ids
                }
                Node::Times(of, times) => values[of].repeat(times as usize),
                Node::Both(a, b) => [&values[a][..], &values[b][..]].concat(),
                Node::Totals(of, keys, salt) => {
                    let mut counts = BTreeMap::<u64, u64>::new();
                    values[of].iter().for_each(|id| *counts.entry(key_of(*id, keys)).or_default() += 1);
                    counts.into_iter().map(|(key, count)| total_id(key, count, salt)).collect()
                }
            };
            values.push(value);
        }
        for ((name, expected), seen) in self.points.iter().zip(seen) {
            let Some(expected) = expected else { continue };
            let mut balance = BTreeMap::<u64, i64>::new();
            values[*expected].iter().for_each(|id| *balance.entry(*id).or_default() -= 1);
            seen.iter().for_each(|id| *balance.entry(*id).or_default() += 1);
            let missing: i64 = balance.values().map(|n| (-n).max(0)).sum();
            let surplus: i64 = balance.values().map(|n| (*n).max(0)).sum();
            if missing + surplus > 0 {
                return Err(format!(
                    "{name} was given {} records instead of {}: {missing} are missing, {surplus} are too many",
                    seen.len(),
                    values[*expected].len()
                ));
            }
        }
        Ok(())
    }
}

/// The hash of all that happens, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace(u64);

impl Trace {
    fn add(&mut self, word: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ word);
    }
}

struct Notes {
    trace: Trace,
    seen: Vec<Vec<u64>>,
    key_owners: HashMap<(Point, u64), u64>,
    instances: u64,
    wakers: Vec<Waker>,
    fault: Option<String>,
    records: u64,
}

/// Where operators and sinks of a running simulation note what they see.
///
/// Shared, as the API wants what goes into a job to be `Send`; only ever used by one thread.
#[derive(Clone)]
pub struct Ledger(Arc<Mutex<Notes>>);

impl Ledger {
    /// A ledger for so many points.
    pub fn new() -> Ledger {
        Ledger(Arc::new(Mutex::new(Notes {
            trace: Trace(0),
            seen: Vec::new(),
            key_owners: HashMap::new(),
            instances: 0,
            wakers: Vec::new(),
            fault: None,
            records: 0,
        })))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a word part of the trace.
    pub fn trace(&self, word: u64) {
        self.notes().trace.add(word);
    }

    /// The hash of all that has happened.
    pub fn hash(&self) -> u64 {
        self.notes().trace.0
    }

    /// Notes a record that a source emits.
    pub fn emitted(&self, point: Point, id: u64) {
        self.notes().note(point, id);
    }

    /// Keeps a waiting source's waker, to be used by [`take_waker`](Self::take_waker)'s caller.
    pub fn waits(&self, waker: Waker) {
        self.notes().wakers.push(waker);
    }

    /// Sources that wait to be woken.
    pub fn waiting(&self) -> usize {
        self.notes().wakers.len()
    }

    /// The waker of a source that waits.
    pub fn take_waker(&self, index: usize) -> Waker {
        self.notes().wakers.swap_remove(index)
    }

    /// The first thing that was wrong.
    pub fn take_fault(&self) -> Option<String> {
        self.notes().fault.take()
    }

    /// Ids seen at each point.
    pub fn seen(&self, points: usize) -> Vec<Vec<u64>> {
        let mut notes = self.notes();
        notes.seen.resize_with(points, Vec::new);
        std::mem::take(&mut notes.seen)
    }

    /// Records noted so far.
    pub fn records(&self) -> u64 {
        self.notes().records
    }

    fn instance(&self) -> u64 {
        let mut notes = self.notes();
        notes.instances += 1;
        notes.instances
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Notes {
    fn note(&mut self, point: Point, id: u64) {
        if self.seen.len() <= point {
            self.seen.resize_with(point + 1, Vec::new);
        }
        self.records += 1;
        self.seen[point].push(id);
        self.trace.add(point as u64);
        self.trace.add(id);
    }
}

/// What an operator, sink or source instance knows of itself: looks at its input, stamps its output.
///
/// A clone is another instance: the engine clones the recipe of an operator for each subtask.
pub struct Instance {
    ledger: Ledger,
    point: Point,
    /// Whether records must have the event time of their id, or must have none, if that is known.
    timed: Option<bool>,
    text_max: u64,
    /// Its number; also part of its stamps.
    pub number: u64,
    /// Last stamp of each producer.
    last: HashMap<u64, u64>,
    /// Records of each key.
    counts: HashMap<u64, u64>,
    emitted: u64,
}

impl Clone for Instance {
    fn clone(&self) -> Self {
        Instance::new(self.ledger.clone(), self.point, self.timed, self.text_max)
    }
}

impl Instance {
    /// An instance of the operator whose input is noted at `point`.
    pub fn new(ledger: Ledger, point: Point, timed: Option<bool>, text_max: u64) -> Instance {
        let number = ledger.instance();
        let (last, counts) = Default::default();
        Instance { ledger, point, timed, text_max, number, last, counts, emitted: 0 }
    }

    /// Looks at a record of the input and notes it; its id.
    pub fn take<T: Item>(&mut self, record: T::Ref<'_>, at: Timestamp) -> u64 {
        let (id, stamp) = (T::id(record), T::stamp(record));
        let (producer, number) = (stamp >> 32, stamp & 0xFFFF_FFFF);
        let mut notes = self.ledger.notes();
        let before = self.last.insert(producer, number);
        if before.is_some_and(|before| before >= number) {
            notes.fault.get_or_insert(format!(
                "instance {} at point {} was given record {number} of instance {producer} after {before:?}",
                self.number, self.point
            ));
        }
        if !T::is_whole(record, self.text_max) {
            notes.fault.get_or_insert(format!(
                "record {number} of instance {producer} came to point {} with a text that is not its own",
                self.point
            ));
        }
        let expected = self.timed.map(|timed| if timed { time_of(id) } else { NO_TIMESTAMP });
        if expected.is_some_and(|expected| at != expected) {
            notes.fault.get_or_insert(format!(
                "record {number} of instance {producer} came to point {} with timestamp {at} and not {expected:?}",
                self.point
            ));
        }
        notes.note(self.point, id);
        id
    }

    /// Compares the state of a keyed operator before this record of `key` with its own count.
    pub fn count(&mut self, key: u64, state: u64) {
        let mut notes = self.ledger.notes();
        let owner = *notes.key_owners.entry((self.point, key)).or_insert(self.number);
        let count = self.counts.entry(key).or_default();
        if owner != self.number || *count != state {
            notes.fault.get_or_insert(format!(
                "key {key} at point {}: instance {} counts {count}, its state says {state}; \
                 its first record was at instance {owner}",
                self.point, self.number
            ));
        }
        *count += 1;
    }

    /// Emits the record of an id with the next stamp.
    pub fn emit<T: Item, R>(&mut self, id: u64, f: impl FnOnce(T::Ref<'_>) -> R) -> R {
        self.emitted += 1;
        T::with(id, self.number << 32 | self.emitted, self.text_max, f)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The point at which it notes its input.
    pub fn point(&self) -> Point {
        self.point
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger_of(take: impl FnOnce(&mut Instance)) -> Option<String> {
        let ledger = Ledger::new();
        take(&mut Instance::new(ledger.clone(), 0, Some(false), 100));
        ledger.take_fault()
    }

    /// Goal: the checks refuse what they are for.
    /// Method: each fault once, at the smallest size.
    #[test]
    fn every_check_refuses_its_fault() {
        let in_order = |i: &mut Instance| {
            i.take::<Plain>((7, 1 << 32 | 1), NO_TIMESTAMP);
            i.take::<Plain>((7, 1 << 32 | 2), NO_TIMESTAMP);
            i.take::<Plain>((7, 2 << 32 | 1), NO_TIMESTAMP);
        };
        assert_eq!(ledger_of(in_order), None);
        let twice = |i: &mut Instance| {
            i.take::<Plain>((7, 1 << 32 | 1), NO_TIMESTAMP);
            i.take::<Plain>((7, 1 << 32 | 1), NO_TIMESTAMP);
        };
        assert!(ledger_of(twice).unwrap().contains("after"));
        let id = (1..).find(|id| text_of(*id, 100).len() > 5).unwrap();
        let torn = |i: &mut Instance| {
            i.take::<Text>((id, 1, &text_of(id, 100)[1..]), NO_TIMESTAMP);
        };
        assert!(ledger_of(torn).unwrap().contains("text"));
        let late = |i: &mut Instance| {
            i.take::<Plain>((7, 1), 3);
        };
        assert!(ledger_of(late).unwrap().contains("timestamp"));
        let forgotten = |i: &mut Instance| {
            i.count(5, 0);
            i.count(5, 0);
        };
        assert!(ledger_of(forgotten).unwrap().contains("key 5"));
        let strayed = |i: &mut Instance| {
            i.count(5, 0);
            i.clone().count(5, 0);
        };
        assert!(ledger_of(strayed).unwrap().contains("key 5"));
    }

    /// Goal: the model derives what each point must see, and tells a loss, a doubling and an exchange.
    #[test]
    fn the_model_tells_lost_doubled_and_exchanged_records() {
        let mut model = Model::default();
        let (_, source) = model.source("source");
        let twice = model.node(Node::Times(source, 2));
        let mapped = model.node(Node::Applied(twice, Op::Map, 9));
        let totals = model.node(Node::Totals(mapped, 1, 4));
        model.point("sink", mapped);
        model.point("totals", totals);
        let (a, b) = (child_id(1 << 16, 9, 0), child_id(2 << 16, 9, 0));
        let check =
            |sink: Vec<u64>, count| model.check(&[vec![1 << 16, 2 << 16], sink, vec![total_id(0, count, 4)]]);
        assert_eq!(check(vec![a, b, b, a], 4), Ok(()));
        assert!(check(vec![a, b, b], 4).unwrap_err().contains("1 are missing, 0 are too many"));
        assert!(check(vec![a, b, b, a, a], 4).unwrap_err().contains("0 are missing, 1 are too many"));
        assert!(check(vec![a, b, b, b], 4).unwrap_err().contains("1 are missing, 1 are too many"));
        assert!(check(vec![a, b, b, a], 3).unwrap_err().contains("totals"));
    }
}
