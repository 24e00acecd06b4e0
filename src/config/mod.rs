//! Configuration: every key with its name, unit, default, bounds and effect.
//!
//! Keys are Flink's, under the names of 2.x and of 1.x, and a few of our own
//! under [`tidegate.`](keys::ENGINE_PREFIX). Nothing that is set is ever ignored
//! in silence: an unknown key is an error that suggests the nearest known one,
//! and a known key without effect gives a [`Warning`] with the reason.
//!
//! Values come in layers, and each effective value knows its [`Origin`]:
//!
//! ```text
//! code  >  command line (-Dkey=value)  >  file (--config)  >  default
//! ```
//!
//! | module       | what it holds                                             |
//! | ------------ | --------------------------------------------------------- |
//! | [`units`]    | durations, sizes, numbers: text to value and back         |
//! | [`keys`]     | what a row of the table says; lookup, suggestion, listing |
//! | `table`      | the rows                                                  |
//! | [`mod@file`] | YAML, nested or flat, to names and values                 |
//! | `getters`    | one typed method for each value that the engine uses      |
//! | `relations`  | what two keys demand of each other                        |
//!
//! Why text in, typed values out, rather than a struct that serde fills: the
//! origin of each value, its older name and the reason why it has no effect
//! are what a user asks for, and a struct field has no place for them.
//!
//! ```
//! use tidegate::config::{Config, Origin};
//!
//! let mut config = Config::default();
//! config.define("taskmanager.memory.segment-size=64 kb")?;
//! assert_eq!(config.segment_size(), 64 << 10);
//! assert_eq!(config.origin("taskmanager.memory.segment-size"), Origin::CommandLine);
//!
//! let error = config.define("tidegate.shard=2").unwrap_err();
//! assert!(error.to_string().contains("did you mean tidegate.shards?"));
//! # Ok::<(), tidegate::config::ConfigError>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tidegate_shard::config as shard;

use self::keys::{Key, Kind, Value};

mod error;
pub mod file;
mod getters;
pub mod keys;
mod relations;
mod table;
pub mod units;

pub use self::error::{ConfigError, Given, Origin, Warning};
pub use self::getters::{BufferTimeout, Driver};

/// Shards of a process: as many cores as an affinity mask of the C library holds (`CPU_SETSIZE`).
pub const SHARDS_MAX: u32 = 1024;
/// Key groups, and so subtasks, of an operator: Flink's bound, which keeps a key group in 16 bits.
pub const KEY_GROUPS_MAX: u32 = 1 << 15;
/// Least segment that a user may choose: below it, headers outweigh records.
pub const SEGMENT_SIZE_MIN: u32 = 256;
/// Least segment in simulation, where records are meant to span several.
pub const SEGMENT_SIZE_MIN_SIMULATION: u32 = shard::SEGMENT_SIZE_BYTES_MIN;
/// Greatest segment: at the default counts a channel then holds 32 MiB at most.
pub const SEGMENT_SIZE_MAX: u32 = shard::SEGMENT_SIZE_BYTES_MAX;
/// Segments are cut from one region, and each begins on a word.
pub const SEGMENT_SIZE_STEP: u32 = 8;
/// Exclusive buffers of a channel.
pub const EXCLUSIVE_BUFFERS_MAX: u32 = 1024;
/// Floating buffers of a gate.
pub const FLOATING_BUFFERS_MAX: u32 = 1 << 16;
/// With one, the open segment would close its own partition and never be finished.
pub const BUFFERS_PER_CHANNEL_MIN: u32 = shard::BUFFERS_PER_SUBPARTITION_MAX_MIN;
/// Buffers queued in a subpartition.
pub const BUFFERS_PER_CHANNEL_MAX: u32 = 1024;
/// Overdraft buffers of a result partition.
pub const OVERDRAFT_BUFFERS_MAX: u32 = 1024;
/// Overdraft segments that a shard keeps for all its result partitions.
pub const OVERDRAFT_RESERVE_MAX: u32 = 1 << 16;
/// Events that may be in a ring besides buffers: they need no credit, so they need room.
pub const RING_EVENTS: u32 = shard::EVENTS_PER_CHANNEL_MAX;
/// Slots of the largest ring: 64 KiB of descriptors a channel.
pub const RING_SLOTS_MAX: u32 = 4096;
/// Bytes of the largest record that may be configured: whole megabytes that a frame header can state.
pub const RECORD_SIZE_MAX: u32 = 255 << 20;

/// Slots of a channel's ring: a power of two with room for every buffer that a
/// subpartition may have, its overdraft, and [`RING_EVENTS`].
pub const fn ring_slots(buffers_per_channel: u32, overdraft_buffers: u32) -> u32 {
    (buffers_per_channel + overdraft_buffers + RING_EVENTS).next_power_of_two()
}

const _: () = {
    // Whatever is configured, a ring stays within the memory that we plan for it.
    assert!(ring_slots(BUFFERS_PER_CHANNEL_MAX, OVERDRAFT_BUFFERS_MAX) <= RING_SLOTS_MAX);
    // With Flink's counts everything that may be on its way fits the ring at once.
    assert!(ring_slots(10, 20) == 64);
    // Exclusive segments come back through a ring of that size.
    assert!(EXCLUSIVE_BUFFERS_MAX <= BUFFERS_PER_CHANNEL_MAX);
    // A partition's overdraft is borrowed from the shard's reserve.
    assert!(OVERDRAFT_BUFFERS_MAX <= OVERDRAFT_RESERVE_MAX);
    // The length of a record is stated in its frame header.
    assert!(RECORD_SIZE_MAX <= shard::RECORD_SIZE_BYTES_MAX);
    // What a user may choose the data plane can do, and all sizes are whole words.
    assert!(SEGMENT_SIZE_MIN >= shard::SEGMENT_SIZE_BYTES_MIN);
    assert!(SEGMENT_SIZE_MIN_SIMULATION.is_multiple_of(SEGMENT_SIZE_STEP));
    assert!(SEGMENT_SIZE_MIN.is_multiple_of(SEGMENT_SIZE_STEP));
    assert!(SEGMENT_SIZE_MAX.is_multiple_of(SEGMENT_SIZE_STEP));
    // A job may have at least one subtask on each shard.
    assert!(SHARDS_MAX <= KEY_GROUPS_MAX);
};

/// The effective configuration: what was set, by whom, over the defaults of the table.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What each layer sets, by the name in use now: default, file, command line, code.
    layers: [BTreeMap<String, Set>; 4],
    /// Whether bounds are those of the simulation.
    simulated: bool,
}

/// A value that a layer sets.
#[derive(Clone, Debug)]
struct Set {
    /// The name under which it was given.
    typed: String,
    value: Value,
    origin: Origin,
}

/// A key with its effective value, for listings and the configuration endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name in use now.
    pub key: String,
    /// The older name under which it was set, if it was.
    pub alias: Option<String>,
    /// The effective value; `None` if it is not set and has no default. Secrets are hidden.
    pub value: Option<String>,
    /// Where the value comes from.
    pub origin: Origin,
    /// The default of the table.
    pub default: Option<String>,
    /// What the key does here: `use`, `map`, `warn` or `later`.
    pub status: &'static str,
    /// The translation, or the reason why it has no effect.
    pub note: Option<&'static str>,
}

impl Config {
    /// Defaults with the bounds of the simulation: segments down to [`SEGMENT_SIZE_MIN_SIMULATION`].
    pub fn for_simulation() -> Self {
        Config { simulated: true, ..Config::default() }
    }

    /// What a command starts with: the file if one is named, then each `-D` argument, then
    /// the relations between keys. The caller prints [`warnings`](Self::warnings).
    ///
    /// # Errors
    ///
    /// All that is wrong, as one error ([`ConfigError::Several`]).
    pub fn load<D: AsRef<str>>(file: Option<&Path>, defines: &[D]) -> Result<Self, ConfigError> {
        let mut config = Config::default();
        let mut errors = Vec::new();
        errors.extend(file.and_then(|path| config.read_file(path).err()));
        errors.extend(defines.iter().filter_map(|argument| config.define(argument.as_ref()).err()));
        if errors.is_empty() {
            config.validate()?;
        }
        ConfigError::from_all(errors).map(|()| config)
    }

    /// Sets `name` to the value that `text` stands for, in the layer of `origin`.
    ///
    /// `name` is a key or one of its older names. A second value from the same origin
    /// replaces the first, as on Flink's command line. With
    /// [`Origin::Default`] a verb or a test has a default of its own, under all other layers.
    ///
    /// # Errors
    ///
    /// Nothing is changed by a call that fails.
    /// - [`ConfigError::UnknownKey`]: no such key; correct the name.
    /// - [`ConfigError::BadValue`]: not of its kind or beyond its bounds.
    /// - [`ConfigError::AliasConflict`]: this layer has another value under another of its names.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let shown = || show(name, text);
        let Some(key) = keys::find(name) else {
            let nearest = keys::nearest(name);
            return Err(ConfigError::UnknownKey { key: name.to_owned(), value: shown(), origin, nearest });
        };
        let kind = self.kind(key);
        let Some(value) = kind.parse(text) else {
            let expected = kind.expected();
            return Err(ConfigError::BadValue { key: name.to_owned(), value: shown(), origin, expected });
        };
        let layer = &mut self.layers[layer(&origin)];
        let full = full_name(key, name);
        if let Some(before) = layer.get(full)
            && before.typed != name
            && before.value != value
        {
            let first = Given { name: before.typed.clone(), value: show(full, &before.value.to_string()) };
            let second = Given { name: name.to_owned(), value: shown() };
            let given = Box::new([first, second]);
            return Err(ConfigError::AliasConflict { key: key.name, given, origin });
        }
        layer.insert(full.to_owned(), Set { typed: name.to_owned(), value, origin });
        Ok(())
    }

    /// Sets what a `-D` argument says: `key=value`.
    ///
    /// # Errors
    ///
    /// As [`parse_define`] and [`set`](Self::set).
    pub fn define(&mut self, argument: &str) -> Result<(), ConfigError> {
        let (name, value) = parse_define(argument)?;
        self.set(name, value, Origin::CommandLine)
    }

    /// Sets what the file at `path` says.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`] if it cannot be read; else all its settings that are refused, as one
    /// error. The settings that are not refused are in force then, but who goes on with them?
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let settings = file::read(path)?;
        let refused = settings.into_iter().filter_map(|setting| {
            let origin = Origin::File { path: path.to_owned(), line: setting.line };
            self.set(&setting.name, &setting.value, origin).err()
        });
        ConfigError::from_all(refused.collect())
    }

    /// Checks what keys demand of each other.
    ///
    /// # Errors
    ///
    /// Every relation that does not hold, as one error.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::from_all(relations::errors(self))
    }

    /// All that was set and has no effect, with the reason: keys that do
    /// nothing here, and keys that another one overrules. The caller prints them.
    pub fn warnings(&self) -> Vec<Warning> {
        let dead = self.names_set().into_iter().filter_map(|name| {
            let reason = keys::find(name)?.effect.dead()?;
            (self.origin(name) != Origin::Default).then(|| self.warning(name, reason.to_owned()))
        });
        dead.chain(relations::warnings(self)).collect()
    }

    /// The effective value of `name`.
    ///
    /// # Panics
    ///
    /// If there is no such key, it has neither value nor default, or it is not of type
    /// `T`: the caller has mistaken the table. No value that a user sets can cause it.
    pub fn get<T: FromValue>(&self, name: &str) -> T {
        self.get_if_set(name).unwrap_or_else(|| panic!("{name} has neither a value nor a default"))
    }

    /// The effective value of `name`; `None` if it is not set and has no default.
    ///
    /// # Panics
    ///
    /// If there is no such key or it is not of type `T`: the caller has mistaken the table.
    pub fn get_if_set<T: FromValue>(&self, name: &str) -> Option<T> {
        let value = self.value(name)?;
        let typed = T::from_value(&value);
        Some(typed.unwrap_or_else(|| panic!("{name} = {value:?} is no {}", std::any::type_name::<T>())))
    }

    /// Where the effective value of `name` comes from.
    pub fn origin(&self, name: &str) -> Origin {
        self.effective(name).map_or(Origin::Default, |set| set.origin.clone())
    }

    /// Whether file, command line or code set `name`.
    pub fn is_set(&self, name: &str) -> bool {
        self.origin(name) != Origin::Default
    }

    /// Every key with its effective value and origin, in the order of the table; then members of
    /// families that are set.
    pub fn entries(&self) -> Vec<Entry> {
        let exact = keys::all().filter(|key| !key.is_family()).map(|key| key.name);
        let members = self.names_set();
        let members = members.into_iter().filter(|name| keys::find(name).is_some_and(Key::is_family));
        exact.chain(members).map(|name| self.entry(name)).collect()
    }

    fn entry(&self, name: &str) -> Entry {
        let key = row(name);
        let set = self.effective(name);
        Entry {
            key: name.to_owned(),
            alias: set.filter(|set| set.typed != name).map(|set| set.typed.clone()),
            value: self.value(name).map(|value| show(name, &value.to_string())),
            origin: self.origin(name),
            default: (!key.default.is_empty()).then(|| key.default.to_owned()),
            status: key.effect.word(),
            note: key.effect.note(),
        }
    }

    fn warning(&self, name: &str, reason: String) -> Warning {
        let value = self.value(name).map(|value| show(name, &value.to_string())).unwrap_or_default();
        Warning { key: name.to_owned(), value, origin: self.origin(name), reason }
    }

    fn value(&self, name: &str) -> Option<Value> {
        self.effective(name).map(|set| set.value.clone()).or_else(|| row(name).default_value())
    }

    /// What the highest layer that sets `name` says.
    fn effective(&self, name: &str) -> Option<&Set> {
        let full = full_name(row(name), name);
        self.layers.iter().rev().find_map(|layer| layer.get(full))
    }

    /// Names that any layer sets, sorted, each once.
    fn names_set(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.layers.iter().flat_map(BTreeMap::keys).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What a value of `key` may be: in simulation segments may be smaller.
    fn kind(&self, key: &Key) -> Kind {
        match key.kind {
            Kind::Size { max, step, .. } if self.simulated && key.name == getters::SEGMENT_SIZE => {
                Kind::Size { min: u64::from(SEGMENT_SIZE_MIN_SIMULATION), max, step }
            }
            kind => kind,
        }
    }
}

/// Splits a `-D` argument into key and value, at the first `=`; space around both is dropped.
///
/// # Errors
///
/// [`ConfigError::BadDefine`] if there is no `=` or nothing before it.
pub fn parse_define(argument: &str) -> Result<(&str, &str), ConfigError> {
    let bad = |expected| ConfigError::BadDefine { argument: argument.to_owned(), expected };
    let (name, value) = argument.split_once('=').ok_or_else(|| bad("key=value, with = between them"))?;
    match (name.trim(), value.trim()) {
        ("", _) => Err(bad("key=value, with a key before the =")),
        (name, value) => Ok((name, value)),
    }
}

/// A type that the value of a key can be read as.
pub trait FromValue: Sized {
    /// The value as this type; `None` if it is of another kind or does not fit.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $pattern:pat => $result:expr;)*) => {
        $(impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $pattern => $result,
                    _ => None,
                }
            }
        })*
    };
}

from_value! {
    bool: Value::Bool(switch) => Some(*switch);
    i64: Value::Int(number) => Some(*number);
    u32: Value::Int(number) => u32::try_from(*number).ok();
    f64: Value::Float(number) => Some(*number);
    Duration: Value::Duration(duration) => Some(*duration);
    u64: Value::Size(bytes) => Some(*bytes);
    &'static str: Value::Word(word) => Some(word);
    String: Value::Text(text) => Some(text.clone());
}

/// The row of a name that code uses.
fn row(name: &str) -> &'static Key {
    keys::find(name).unwrap_or_else(|| panic!("{name} is not in the table of keys"))
}

/// The name under which a value is kept: the one in use now, or the member of a family itself.
fn full_name<'a>(key: &'static Key, name: &'a str) -> &'a str {
    if key.is_family() { name } else { key.name }
}

fn layer(origin: &Origin) -> usize {
    match origin {
        Origin::Default => 0,
        Origin::File { .. } => 1,
        Origin::CommandLine => 2,
        Origin::Code => 3,
    }
}

/// The value as it may be shown.
fn show(name: &str, value: &str) -> String {
    if keys::is_secret(name) { "******".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests;
