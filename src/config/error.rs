//! What can be wrong with a configuration: each error names thing, value, origin and expectation.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use thiserror::Error;

/// Where a value comes from; later variants win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The table, or the default of the verb that runs.
    Default,
    /// A configuration file.
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// Line, counted from 1, where it could be found.
        line: Option<usize>,
    },
    /// `-Dkey=value`, or an option that stands for a key.
    CommandLine,
    /// The program that builds the job.
    Code,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => Place(path, *line).fmt(f),
            Origin::CommandLine => f.write_str("command line"),
            Origin::Code => f.write_str("code"),
        }
    }
}

/// As text: `default`, `conf/config.yaml:3`, `command line`, `code`.
impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A configuration that is refused. The user corrects what is named and starts again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No row of the table has this name.
    #[error("{key} = {value:?} ({origin}): unknown key, expected {}", hint(*nearest))]
    UnknownKey {
        /// The name as it was given.
        key: String,
        /// Its value.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// The known name that was most likely meant.
        nearest: Option<&'static str>,
    },
    /// The value is not of the key's kind, or beyond its bounds.
    #[error("{key} = {value:?} ({origin}): expected {expected}")]
    BadValue {
        /// The name as it was given.
        key: String,
        /// Its value.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// What the key takes.
        expected: String,
    },
    /// One origin gives a key under two of its names, with two values.
    #[error("{} and {} ({origin}) are one key: expected only {key}", .given[0], .given[1])]
    AliasConflict {
        /// The name in use now.
        key: &'static str,
        /// What was given, in that order.
        given: Box<[Given; 2]>,
        /// Who gave the second.
        origin: Origin,
    },
    /// The value is legal by itself, but not together with that of another key.
    #[error("{key} = {value} ({origin}): expected {expected}")]
    Relation {
        /// The key that has to give way.
        key: &'static str,
        /// Its value.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// What the other key, with its value, demands.
        expected: String,
    },
    /// A `-D` argument that is not `key=value`.
    #[error("-D{argument}: expected {expected}")]
    BadDefine {
        /// What followed `-D`.
        argument: String,
        /// What should have.
        expected: &'static str,
    },
    /// A configuration file that cannot be used.
    #[error("{}: {found}: expected {expected}", Place(path, *line))]
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// Line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// Several of the above, so that one run shows all that is to be corrected.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    pub(super) fn file(path: &Path, line: Option<usize>, found: String, expected: &str) -> Self {
        ConfigError::File { path: path.to_owned(), line, found, expected: expected.to_owned() }
    }

    /// Nothing, the one error, or all of them as one.
    pub(super) fn from_all(mut errors: Vec<ConfigError>) -> Result<(), ConfigError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(ConfigError::Several(errors)),
        }
    }
}

/// A name and a value as they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The name, perhaps an older one.
    pub name: String,
    /// The text of the value.
    pub value: String,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.name, self.value)
    }
}

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("a known one; did you mean {nearest}?"),
        None => "a known one".to_owned(),
    }
}

/// A file and perhaps a line: `conf/config.yaml:3`.
struct Place<'a>(&'a Path, Option<usize>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)?;
        self.1.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Something that was accepted and will not do what whoever set it may believe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The key, by its name in use now.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Who gave it.
    pub origin: Origin,
    /// Why it has no effect.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({}): {}", self.key, self.value, self.origin, self.reason)
    }
}
