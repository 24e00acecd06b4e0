//! Keys: what one row of the table says, and how a name is found in it.
//!
//! A row gives the name, the names it had before, what a value may be, the
//! default, and what the key does here ([`Effect`]). A key that does nothing is
//! a row too, with the reason, so that whoever sets it is told. The rows
//! themselves are in the `table` module, in the order of Flink's manual.
//!
//! A name with a `*` is a family: `taskmanager.network.netty.*` stands for every
//! key that begins so. Exact names win over families, earlier families over
//! later ones.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

use serde::Serialize;

use super::table::SECTIONS;
use super::units;

/// The first word of every key that only this engine has.
pub const ENGINE_PREFIX: &str = "tidegate.";

/// Longest duration of any key: a century, so that sums and nanoseconds in 64 signed bits are safe.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Keys of one subject, under one heading.
#[derive(Debug)]
pub struct Section {
    /// Heading in listings.
    pub title: &'static str,
    /// Rows, in the order in which they are listed.
    pub keys: &'static [Key],
}

/// One row of the table.
#[derive(Debug)]
pub struct Key {
    /// The name in use now (Flink 2.x). With a `*`, a family of names.
    pub name: &'static str,
    /// Names it had before (Flink 1.x); accepted, reported as [`name`](Self::name).
    pub aliases: &'static [&'static str],
    /// What a value may be.
    pub kind: Kind,
    /// Text of the default as it is written in a file; empty means that the key has none.
    pub default: &'static str,
    /// What setting it does.
    pub effect: Effect,
    /// What it means, in a line.
    pub meaning: &'static str,
}

impl Key {
    /// A row without older names.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        effect: Effect,
        meaning: &'static str,
    ) -> Self {
        Key { name, aliases: &[], kind, default, effect, meaning }
    }

    /// The same row, also found under `aliases`.
    pub(super) const fn aka(self, aliases: &'static [&'static str]) -> Self {
        Key { aliases, ..self }
    }

    /// The default as a value; `None` if the key has none.
    ///
    /// # Panics
    ///
    /// If the table is wrong; a test reads every default.
    pub fn default_value(&self) -> Option<Value> {
        let value = || self.kind.parse(self.default).unwrap_or_else(|| panic!("default of {}", self.name));
        (!self.default.is_empty()).then(value)
    }

    /// Whether the name stands for many.
    pub fn is_family(&self) -> bool {
        self.name.contains('*')
    }

    /// Whether `name` is one of this family: equal around the `*`, not empty in its place.
    fn covers(&self, name: &str) -> bool {
        self.name.split_once('*').is_some_and(|(head, tail)| {
            name.len() > head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        })
    }
}

/// What setting a key does here. Ends in a reason wherever it is not the plain thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What its meaning says.
    Use,
    /// Accepted and translated into the notion that this engine has in its place.
    Map(&'static str),
    /// Accepted, and never of effect: whoever sets it is warned with this reason.
    Warn(&'static str),
    /// Accepted, without effect in this version: whoever sets it is warned with this reason.
    Later(&'static str),
}

impl Effect {
    /// One word for listings: `use`, `map`, `warn`, `later`.
    pub fn word(&self) -> &'static str {
        match self {
            Effect::Use => "use",
            Effect::Map(_) => "map",
            Effect::Warn(_) => "warn",
            Effect::Later(_) => "later",
        }
    }

    /// The translation or the reason; `None` if the key does just what it says.
    pub fn note(&self) -> Option<&'static str> {
        match self {
            Effect::Use => None,
            Effect::Map(note) | Effect::Warn(note) | Effect::Later(note) => Some(note),
        }
    }

    /// The reason why setting the key changes nothing; `None` if it does change something.
    pub fn dead(&self) -> Option<&'static str> {
        match self {
            Effect::Use | Effect::Map(_) => None,
            Effect::Warn(reason) | Effect::Later(reason) => Some(reason),
        }
    }
}

/// What the value of a key may be, bounds included (both ends belong to the range).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer in a range, or the one value outside that has a meaning of its own.
    Int {
        /// Least value.
        min: i64,
        /// Greatest value.
        max: i64,
        /// Value outside the range that is accepted too, such as −1 for "derive it".
        or: Option<i64>,
    },
    /// A fraction in a range.
    Float {
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// A duration in a range.
    Duration {
        /// Shortest.
        min: Duration,
        /// Whether −1 (with or without a unit) is accepted and means never.
        never: bool,
        /// Longest.
        max: Duration,
    },
    /// A number of bytes.
    Size {
        /// Least value in bytes.
        min: u64,
        /// Greatest value in bytes.
        max: u64,
        /// Every value is a multiple of this.
        step: u64,
    },
    /// One of these words, in either case.
    Word(&'static [&'static str]),
    /// Ports: one, a range, or several with commas.
    Ports,
    /// Any text.
    Text,
}

impl Kind {
    /// Reads `text` and checks it against the bounds; `None` if it is not of this kind.
    pub fn parse(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        match *self {
            Kind::Bool => units::parse_bool(text).map(Value::Bool),
            Kind::Int { min, max, or } => units::parse_int(text)
                .filter(|number| (min..=max).contains(number) || Some(*number) == or)
                .map(Value::Int),
            Kind::Float { min, max } => {
                units::parse_float(text).filter(|number| (min..=max).contains(number)).map(Value::Float)
            }
            Kind::Duration { never: true, .. } if is_minus_one(text) => Some(Value::Never),
            Kind::Duration { min, max, .. } => units::parse_duration(text)
                .filter(|duration| (min..=max).contains(duration))
                .map(Value::Duration),
            Kind::Size { min, max, step } => units::parse_size(text)
                .filter(|size| (min..=max).contains(size) && size.is_multiple_of(step))
                .map(Value::Size),
            Kind::Word(words) => {
                words.iter().find(|word| word.eq_ignore_ascii_case(text)).map(|word| Value::Word(word))
            }
            Kind::Ports => units::is_port_list(text).then(|| Value::Text(text.to_owned())),
            Kind::Text => Some(Value::Text(text.to_owned())),
        }
    }

    /// What a value of this kind looks like, to end the sentence "expected …".
    pub fn expected(&self) -> String {
        match *self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int { min, max, or } => {
                let range = match max {
                    i64::MAX => format!("an integer of at least {min}"),
                    _ => format!("an integer from {min} to {max}"),
                };
                range + &or.map(|number| format!(", or {number}")).unwrap_or_default()
            }
            Kind::Float { min, max: f64::MAX } => format!("a number of at least {min}"),
            Kind::Float { min, max } => format!("a number from {min} to {max}"),
            Kind::Duration { min, never, max } => {
                let range = match (min, max) {
                    (Duration::ZERO, DURATION_MAX) => String::new(),
                    (min, DURATION_MAX) => format!(" of at least {}", units::format_duration(min)),
                    (min, max) => {
                        format!(" from {} to {}", units::format_duration(min), units::format_duration(max))
                    }
                };
                let or = if never { ", or -1 for never" } else { "" };
                format!("a duration{range} (a number and ns, us, ms, s, min, h or d){or}")
            }
            Kind::Size { min, max, step } => {
                let range = match (min, max) {
                    (0, u64::MAX) => String::new(),
                    (min, u64::MAX) => format!(" of at least {}", units::format_size(min)),
                    (min, max) => format!(" from {} to {}", units::format_size(min), units::format_size(max)),
                };
                let steps = if step > 1 { format!(", a multiple of {step} bytes") } else { String::new() };
                format!("a size{range}{steps} (a number and bytes, kb, mb or gb)")
            }
            Kind::Word(words) => match words {
                [] | [_] => words.concat(),
                [first @ .., last] => format!("{} or {last}", first.join(", ")),
            },
            Kind::Ports => "a port, a range such as 8081-8090, or several with commas".to_owned(),
            Kind::Text => "text".to_owned(),
        }
    }
}

/// Whether `text` is −1, bare or with a unit of time: −1 of anything is before zero, so never.
fn is_minus_one(text: &str) -> bool {
    text.strip_prefix("-1").is_some_and(|unit| {
        !unit.starts_with(|c: char| c.is_ascii_digit())
            && units::parse_duration(&format!("1{unit}")).is_some()
    })
}

/// A value that its kind has accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A switch.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A fraction.
    Float(f64),
    /// A duration.
    Duration(Duration),
    /// The −1 of a duration that may be so.
    Never,
    /// Bytes.
    Size(u64),
    /// One of the words of the kind, as the table spells it.
    Word(&'static str),
    /// Text, without space around it.
    Text(String),
}

/// Writes the value so that it can be read back: `32 kb`, `100 ms`, `-1`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(switch) => switch.fmt(f),
            Value::Int(number) => number.fmt(f),
            Value::Float(number) => write!(f, "{number:?}"),
            Value::Duration(duration) => f.write_str(&units::format_duration(*duration)),
            Value::Never => f.write_str("-1"),
            Value::Size(bytes) => f.write_str(&units::format_size(*bytes)),
            Value::Word(word) => f.write_str(word),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// All rows, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The row for `name`: an exact name, an older name, or a member of a family.
pub fn find(name: &str) -> Option<&'static Key> {
    /// Rows under each exact name they go by, old and new.
    static BY_NAME: LazyLock<HashMap<&str, &Key>> = LazyLock::new(|| {
        let exact = all().filter(|key| !key.is_family());
        exact.flat_map(|key| key.aliases.iter().chain([&key.name]).map(move |name| (*name, key))).collect()
    });
    let family = || all().find(|key| key.covers(name));
    BY_NAME.get(name).copied().or_else(family)
}

/// The known name that whoever typed `name` most likely meant; `None` if none is near.
///
/// A name without its beginning (`segment-size`) finds the only key that ends
/// so. Else the nearest by edits, if these are at most a quarter of the name. Costs a pass
/// over the table.
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = || all().filter(|key| !key.is_family()).flat_map(|key| key.aliases.iter().chain([&key.name]));

    let end = format!(".{name}");
    let mut ending = names().filter(|known| known.ends_with(&end));
    if let (Some(only), None) = (ending.next(), ending.next()) {
        return Some(only);
    }
    let edits_max = (name.chars().count() / 4).max(2);
    names()
        .map(|known| (strsim::damerau_levenshtein(name, known), *known))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, known)| known)
}

/// Whether the value of `name` is to be hidden wherever values are shown: passwords, tokens, keys.
pub fn is_secret(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "password",
        "secret",
        "token",
        "apikey",
        "api-key",
        "access-key",
        "account.key",
        "auth-params",
        "basic-auth",
        "jaas.config",
        "service-key",
    ];
    let name = name.to_ascii_lowercase();
    PARTS.iter().any(|part| name.contains(part))
}

/// A row of the table in words, for a listing of all keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reference {
    /// Heading under which it belongs.
    pub section: &'static str,
    /// The name in use now.
    pub key: &'static str,
    /// Names it had before.
    pub aliases: &'static [&'static str],
    /// Text of the default; `None` if there is none.
    pub default: Option<&'static str>,
    /// What a value may be.
    pub expected: String,
    /// `use`, `map`, `warn` or `later`.
    pub status: &'static str,
    /// The translation, or the reason why it has no effect.
    pub note: Option<&'static str>,
    /// What it means.
    pub meaning: &'static str,
}

/// Every row in words, in the order of the table.
pub fn reference() -> Vec<Reference> {
    let in_words = |title: &'static str, key: &'static Key| Reference {
        section: title,
        key: key.name,
        aliases: key.aliases,
        default: (!key.default.is_empty()).then_some(key.default),
        expected: key.kind.expected(),
        status: key.effect.word(),
        note: key.effect.note(),
        meaning: key.meaning,
    };
    SECTIONS.iter().flat_map(|s| s.keys.iter().map(move |key| in_words(s.title, key))).collect()
}

/// Every row as text for a terminal: headings, then name, default, and what it does.
///
/// Names and defaults are in columns; the meaning and, where there is one, the
/// note follow on a line of their own, so that no line needs a wide terminal.
pub fn reference_text() -> String {
    let mut text = String::new();
    let width = all().map(|key| key.name.len()).max().unwrap_or(0);
    for section in SECTIONS {
        writeln!(text, "{}\n", section.title).expect("a String grows");
        for key in section.keys {
            let default = if key.default.is_empty() { "(none)" } else { key.default };
            write!(text, "  {:width$}  {default}\n      {}", key.name, key.meaning).expect("a String grows");
            let note = key.effect.note().map(|note| format!("; {note}")).unwrap_or_default();
            let old = match key.aliases {
                [] => String::new(),
                aliases => format!(" [also {}]", aliases.join(", ")),
            };
            writeln!(text, "{note}{old}").expect("a String grows");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Goal: a name leads to one row only.
    #[test]
    fn no_name_or_alias_occurs_twice() {
        let mut seen = HashSet::new();
        for key in all() {
            for name in key.aliases.iter().chain([&key.name]) {
                assert!(seen.insert(*name), "{name} occurs twice");
                assert!(!name.contains(' ') && !name.is_empty(), "{name:?}");
            }
        }
        assert!(seen.len() > 150, "{} names", seen.len());
    }

    /// Goal: every default is legal, and is written as it would be printed.
    #[test]
    fn every_default_is_within_its_bounds_and_written_as_printed() {
        for key in all().filter(|key| !key.default.is_empty()) {
            let value = key.kind.parse(key.default).unwrap_or_else(|| {
                panic!("{} = {:?}: expected {}", key.name, key.default, key.kind.expected())
            });
            assert_eq!(value.to_string(), key.default, "{}", key.name);
        }
    }

    /// Goal: whoever sets a key without effect reads why, in one form.
    #[test]
    fn every_dead_key_says_why() {
        for key in all() {
            assert!(!key.meaning.is_empty() && !key.meaning.ends_with('.'), "{}", key.name);
            match key.effect {
                Effect::Use => {}
                Effect::Map(note) => assert!(!note.is_empty(), "{}", key.name),
                Effect::Warn(reason) => assert!(reason.starts_with("no effect: "), "{}", key.name),
                Effect::Later(reason) => assert!(reason.starts_with("no effect yet: "), "{}", key.name),
            }
            assert!(!key.is_family() || key.aliases.is_empty(), "{}: a family has one name", key.name);
        }
    }

    /// Goal: bounds refuse on both sides and keep their ends.
    #[test]
    fn bounds_keep_their_ends_and_refuse_beyond() {
        let int = Kind::Int { min: 1, max: 32_768, or: Some(-1) };
        for (text, accepted) in [("1", true), ("32768", true), ("-1", true), ("0", false), ("32769", false)] {
            assert_eq!(int.parse(text).is_some(), accepted, "{text}");
        }
        let size = Kind::Size { min: 256, max: 1 << 20, step: 8 };
        for (text, accepted) in
            [("256", true), ("1 mb", true), ("248", false), ("1048584", false), ("260", false)]
        {
            assert_eq!(size.parse(text).is_some(), accepted, "{text}");
        }
        let ten = Duration::from_millis(10);
        let duration = Kind::Duration { min: ten, max: DURATION_MAX, never: false };
        for (text, accepted) in [("10 ms", true), ("9999 us", false), ("-1", false), ("36500 d", true)] {
            assert_eq!(duration.parse(text).is_some(), accepted, "{text}");
        }
        assert_eq!(duration.parse("36501 d"), None);
    }

    #[test]
    fn minus_one_of_any_unit_is_never() {
        let kind = Kind::Duration { min: Duration::ZERO, max: DURATION_MAX, never: true };
        for text in ["-1", "-1 ms", "-1ms", " -1 s "] {
            assert_eq!(kind.parse(text), Some(Value::Never), "{text:?}");
        }
        for text in ["-2", "-10 ms", "-1 kb", "--1", "-", "-1.0", "- 1"] {
            assert_eq!(kind.parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn words_are_accepted_in_either_case_and_kept_as_the_table_spells_them() {
        let kind = Kind::Word(&["EXACTLY_ONCE", "AT_LEAST_ONCE"]);
        assert_eq!(kind.parse("exactly_once"), Some(Value::Word("EXACTLY_ONCE")));
        assert_eq!(kind.parse("exactly-once"), None);
        assert_eq!(kind.expected(), "EXACTLY_ONCE or AT_LEAST_ONCE");
    }

    #[test]
    fn exact_names_win_over_families_and_families_have_a_middle() {
        assert_eq!(find("metrics.reporter.prom.port").unwrap().name, "metrics.reporter.prom.port");
        assert_eq!(find("metrics.reporter.slf4j.interval").unwrap().name, "metrics.reporter.*.interval");
        assert_eq!(find("taskmanager.network.netty.num-arenas").unwrap().name, "taskmanager.network.netty.*");
        assert!(find("taskmanager.network.netty.").is_none());
        assert!(find("taskmanager.network.netty").is_none());
    }

    #[test]
    fn old_names_lead_to_the_row_of_the_new_one() {
        for (old, new) in [
            ("execution.checkpointing.unaligned", "execution.checkpointing.unaligned.enabled"),
            ("state.checkpoints.dir", "execution.checkpointing.dir"),
            ("state.savepoints.dir", "execution.checkpointing.savepoint-dir"),
            ("state.backend", "state.backend.type"),
            ("state.backend.incremental", "execution.checkpointing.incremental"),
            (
                "execution.checkpointing.alignment-timeout",
                "execution.checkpointing.aligned-checkpoint-timeout",
            ),
            ("execution.buffer-timeout", "execution.buffer-timeout.interval"),
        ] {
            assert_eq!(find(old).unwrap().name, new);
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_key_that_was_meant() {
        for (typed, meant) in [
            ("taskmanager.memory.segmentsize", "taskmanager.memory.segment-size"),
            ("paralelism.defualt", "parallelism.default"),
            ("tidegate.shard", "tidegate.shards"),
            ("tidegate.idel", "tidegate.idle"),
            ("segment-size", "taskmanager.memory.segment-size"),
            ("state.chekpoints.dir", "state.checkpoints.dir"),
        ] {
            assert_eq!(nearest(typed), Some(meant), "{typed}");
        }
        assert_eq!(nearest("something.quite.different"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn the_listing_names_every_key_with_default_and_reason() {
        let text = reference_text();
        assert_eq!(reference().len(), all().count());
        for row in reference() {
            assert!(text.contains(&format!("  {}", row.key)), "{}", row.key);
            assert!(text.contains(row.note.unwrap_or_default()), "{}", row.key);
        }
        assert!(text.contains("taskmanager.memory.segment-size") && text.contains("32 kb"));
    }
}
