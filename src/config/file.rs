//! The configuration file: text in, names and values with their lines out.
//!
//! Takes both shapes that Flink has had, whatever the name of the file:
//!
//! | shape                                 | example                             |
//! | ------------------------------------- | ----------------------------------- |
//! | nested YAML (`config.yaml`, 2.x)      | `parallelism:` newline `  default: 4` |
//! | flat lines (`flink-conf.yaml`, 1.x)   | `parallelism.default: 4`            |
//!
//! Flat lines are YAML too, except for values such as `*:*:*` that YAML gives
//! a meaning of its own. So a file is read as YAML first, and if that fails and
//! the name is `flink-conf.yaml`, line by line as Flink 1.x did. A name that
//! occurs twice is an error, in either shape, and a list is joined with `;`.
//!
//! Knows no key: what a name means is the business of the table.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_yaml_ng::Value as Yaml;

use super::error::ConfigError;

/// Largest configuration file. The largest real one is a few tens of KiB; what
/// is larger is the wrong file.
pub const FILE_SIZE_MAX: u64 = 1 << 20;

/// Name under which Flink 1.x has its flat file.
const FLAT_NAME: &str = "flink-conf.yaml";

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Full name, joined with dots.
    pub name: String,
    /// Text of the value.
    pub value: String,
    /// Line, counted from 1; `None` where the shape of the YAML hides it.
    pub line: Option<usize>,
}

/// Reads every setting of the file at `path`, in its order.
///
/// # Errors
///
/// [`ConfigError::File`] with the path, the line where there is one, what is
/// there and what was expected: a file that cannot be read, is larger than
/// [`FILE_SIZE_MAX`], is not UTF-8, is not YAML, is no mapping, or names a key twice.
pub fn read(path: &Path) -> Result<Vec<Setting>, ConfigError> {
    let fail = |found: String, expected: &str| ConfigError::file(path, None, found, expected);
    let expected = "a readable file in YAML or with lines `key: value`";
    let file = File::open(path).map_err(|error| fail(error.to_string(), expected))?;
    let mut bytes = Vec::new();
    // One more than may be, to see that there is more; a pipe has no length to ask for.
    file.take(FILE_SIZE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fail(error.to_string(), expected))?;
    if bytes.len() as u64 > FILE_SIZE_MAX {
        return Err(fail("more than 1 mb".to_owned(), "a configuration file of at most 1 mb"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
        ConfigError::file(path, Some(line), "bytes that are not UTF-8".to_owned(), "text in UTF-8")
    })?;
    parse(path, &text)
}

/// Reads every setting of `text`; `path` is for messages and for the choice of shape only.
///
/// # Errors
///
/// As [`read`].
pub fn parse(path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let settings = match serde_yaml_ng::from_str::<Yaml>(text) {
        // A file of comments only sets nothing, which is fine.
        Ok(Yaml::Null) => Vec::new(),
        Ok(Yaml::Mapping(mapping)) => {
            let mut flat = Flattener { path, lines: line_index(text), settings: Vec::new() };
            flat.mapping("", &mapping)?;
            flat.settings
        }
        Ok(other) => {
            let found = format!("{} at the top", describe(&other));
            return Err(ConfigError::file(path, None, found, "a mapping: lines `key: value`, or nested"));
        }
        Err(_) if path.file_name().is_some_and(|name| name == FLAT_NAME) => parse_flat(path, text)?,
        Err(error) => {
            let line = error.location().map(|location| location.line());
            return Err(ConfigError::file(path, line, error.to_string(), "YAML"));
        }
    };
    refuse_twice(path, &settings)?;
    Ok(settings)
}

/// Lines `key: value` as Flink 1.x read them: `#` begins a comment, the first `: ` ends the name.
fn parse_flat(path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let mut settings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let Some((name, value)) = content.split_once(": ") else {
            return Err(ConfigError::file(
                path,
                Some(index + 1),
                format!("{content:?}"),
                "a line `key: value`",
            ));
        };
        let (name, value) = (name.trim().to_owned(), unquote(value.trim()).to_owned());
        settings.push(Setting { name, value, line: Some(index + 1) });
    }
    Ok(settings)
}

fn refuse_twice(path: &Path, settings: &[Setting]) -> Result<(), ConfigError> {
    let mut seen = HashMap::new();
    for setting in settings {
        if let Some(first) = seen.insert(&setting.name, setting.line) {
            let first = first.map(|line| format!(" (first on line {line})")).unwrap_or_default();
            let found = format!("{} a second time{first}", setting.name);
            return Err(ConfigError::file(path, setting.line, found, "each key once"));
        }
    }
    Ok(())
}

/// Walks nested YAML and joins the names with dots.
struct Flattener<'a> {
    path: &'a Path,
    lines: HashMap<String, Line<'a>>,
    settings: Vec<Setting>,
}

impl Flattener<'_> {
    fn mapping(&mut self, prefix: &str, mapping: &serde_yaml_ng::Mapping) -> Result<(), ConfigError> {
        for (name, value) in mapping {
            let Some(name) = name.as_str() else {
                let found = format!("a name that is {}", describe(name));
                return Err(ConfigError::file(self.path, None, found, "names that are text"));
            };
            let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            match value {
                Yaml::Mapping(inner) => self.mapping(&name, inner)?,
                value => self.setting(name, value)?,
            }
        }
        Ok(())
    }

    fn setting(&mut self, name: String, value: &Yaml) -> Result<(), ConfigError> {
        let line = self.lines.get(&name);
        let text = match value {
            Yaml::Sequence(items) => {
                items.iter().map(scalar).collect::<Option<Vec<_>>>().map(|all| all.join(";"))
            }
            // YAML reads 1.10 as 1.1; the name of a job or a version is what was written.
            Yaml::Number(_) => line.and_then(|line| line.number_as_written(value)).or_else(|| scalar(value)),
            value => scalar(value),
        };
        let line = line.map(|line| line.number);
        match text {
            Some(value) => self.settings.push(Setting { name, value, line }),
            None => {
                let found = format!("{name} is {}", describe(value));
                let expected = "a value (leave the key out to have its default)";
                return Err(ConfigError::file(self.path, line, found, expected));
            }
        }
        Ok(())
    }
}

/// The text of a plain value; `None` for nothing, lists and mappings.
fn scalar(value: &Yaml) -> Option<String> {
    match value {
        Yaml::Bool(switch) => Some(switch.to_string()),
        Yaml::Number(number) => Some(number.to_string()),
        Yaml::String(text) => Some(text.clone()),
        Yaml::Null | Yaml::Sequence(_) | Yaml::Mapping(_) | Yaml::Tagged(_) => None,
    }
}

fn describe(value: &Yaml) -> &'static str {
    match value {
        Yaml::Null => "empty",
        Yaml::Bool(_) => "a switch",
        Yaml::Number(_) => "a number",
        Yaml::String(_) => "plain text",
        Yaml::Sequence(_) => "a list",
        Yaml::Mapping(_) => "a mapping",
        Yaml::Tagged(_) => "a value with a tag",
    }
}

/// Where a name stands in the text, and what is written after its colon.
struct Line<'a> {
    number: usize,
    value: &'a str,
}

impl Line<'_> {
    /// What is written on the line, if YAML reads it as this number.
    fn number_as_written(&self, number: &Yaml) -> Option<String> {
        let written = self.value.split(" #").next().unwrap_or_default().trim();
        let same = serde_yaml_ng::from_str::<Yaml>(written).is_ok_and(|read| read == *number);
        same.then(|| written.to_owned())
    }
}

/// The line of each full name in block style, found by indentation.
///
/// The parser keeps no lines, so this looks at the text beside it. It serves
/// messages only: names in flow style (`{a: 1}`) are simply not found.
fn line_index(text: &str) -> HashMap<String, Line<'_>> {
    let mut index = HashMap::new();
    // Names of the mappings around the line, each with its indentation.
    let mut around: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let content = line.trim_start();
        if content.is_empty() || content.starts_with(['#', '-']) {
            continue;
        }
        let Some((name, value)) = content.split_once(':') else { continue };
        if !(value.is_empty() || value.starts_with(char::is_whitespace)) {
            continue;
        }
        let indent = line.len() - content.len();
        while around.last().is_some_and(|(outer, _)| *outer >= indent) {
            around.pop();
        }
        around.push((indent, unquote(name.trim())));
        let full = around.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(".");
        index.insert(full, Line { number: number + 1, value });
    }
    index
}

fn unquote(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String, Option<usize>)> {
        let settings = parse(Path::new("config.yaml"), text).unwrap();
        settings.into_iter().map(|s| (s.name, s.value, s.line)).collect()
    }

    fn refused(name: &str, text: &str) -> String {
        parse(Path::new(name), text).unwrap_err().to_string()
    }

    fn setting(name: &str, value: &str, line: usize) -> (String, String, Option<usize>) {
        (name.to_owned(), value.to_owned(), Some(line))
    }

    #[test]
    fn nested_and_flat_yaml_say_the_same() {
        let nested = "\
# of a cluster
parallelism:
  default: 4

execution:
  checkpointing:
    interval: 10 s   # often
    unaligned.enabled: true
  buffer-timeout: {interval: 5 ms}
metrics:
  reporters:
    - prom
    - slf4j
";
        let mut expected = vec![
            setting("parallelism.default", "4", 3),
            setting("execution.checkpointing.interval", "10 s", 7),
            setting("execution.checkpointing.unaligned.enabled", "true", 8),
            ("execution.buffer-timeout.interval".to_owned(), "5 ms".to_owned(), None),
            setting("metrics.reporters", "prom;slf4j", 11),
        ];
        assert_eq!(parsed(nested), expected);

        let flat = "\
parallelism.default: 4
execution.checkpointing.interval: 10 s
execution.checkpointing.unaligned.enabled: true
execution.buffer-timeout.interval: 5 ms
metrics.reporters: prom;slf4j
";
        for (index, (_, _, line)) in expected.iter_mut().enumerate() {
            *line = Some(index + 1);
        }
        assert_eq!(parsed(flat), expected);
    }

    #[test]
    fn values_are_kept_as_they_are_written() {
        let text = "a.b: 1.10 # not 1.1\nc: \"quoted: text\"\nd: 0x10\ne: -1\nf: FALSE\n'g': 'h'\n";
        assert_eq!(
            parsed(text),
            [
                setting("a.b", "1.10", 1),
                setting("c", "quoted: text", 2),
                setting("d", "0x10", 3),
                setting("e", "-1", 4),
                setting("f", "false", 5),
                setting("g", "h", 6),
            ]
        );
    }

    #[test]
    fn a_file_without_settings_sets_nothing() {
        for text in ["", "# nothing\n\n", "\u{feff}", "---\n"] {
            assert_eq!(parsed(text), [], "{text:?}");
        }
    }

    /// Goal: what Flink 1.x read and YAML does not is read under the old name only.
    #[test]
    fn lines_that_are_not_yaml_are_read_under_the_old_name_of_the_file() {
        let text =
            "metrics.reporter.x.filter.includes: *:*:*\nenv.java.opts: -Da: b # why\npipeline.name: \"x\"\n";
        let settings = parse(Path::new("conf/flink-conf.yaml"), text).unwrap();
        let expected = [
            ("metrics.reporter.x.filter.includes", "*:*:*", 1),
            ("env.java.opts", "-Da: b", 2),
            ("pipeline.name", "x", 3),
        ];
        assert_eq!(settings.len(), expected.len());
        for (setting, (name, value, line)) in settings.iter().zip(expected) {
            assert_eq!(
                (setting.name.as_str(), setting.value.as_str(), setting.line),
                (name, value, Some(line))
            );
        }
        assert!(refused("config.yaml", text).contains("config.yaml:1"), "{}", refused("config.yaml", text));
        let message = refused("flink-conf.yaml", "a: *x\nno colon here\n");
        assert!(message.contains("flink-conf.yaml:2") && message.contains("no colon here"), "{message}");
    }

    #[test]
    fn bad_files_are_refused_with_the_place_and_the_expectation() {
        for (text, parts) in [
            ("- a\n- b\n", &["config.yaml", "a list at the top", "a mapping"][..]),
            ("just text\n", &["plain text at the top"]),
            ("a: 1\nb: [1, 2\n", &["config.yaml:", "expected YAML"]),
            ("a:\n  b:\nc: 1\n", &["config.yaml:2", "a.b is empty"]),
            ("a: ~\n", &["a is empty", "a value"]),
            ("1: 2\n", &["a name that is a number"]),
            ("a: [[1]]\n", &["a is a list"]),
            ("a: 1\na: 2\n", &["config.yaml", "duplicate"]),
            ("a.b: 1\na:\n  b: 2\n", &["a.b a second time", "each key once"]),
        ] {
            let message = refused("config.yaml", text);
            for part in parts {
                assert!(message.contains(part), "{text:?}: {message}");
            }
        }
        let message = refused("flink-conf.yaml", "a: *x\nb: 1\na: 2\n");
        assert!(message.contains("flink-conf.yaml:3") && message.contains("first on line 1"), "{message}");
    }

    #[test]
    fn files_that_cannot_be_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none.yaml");
        let message = read(&missing).unwrap_err().to_string();
        assert!(message.contains("none.yaml") && message.contains("No such file"), "{message}");
        assert!(read(dir.path()).unwrap_err().to_string().contains("directory"));

        let binary = dir.path().join("binary.yaml");
        std::fs::write(&binary, b"a: 1\nb: \xff\n").unwrap();
        let message = read(&binary).unwrap_err().to_string();
        assert!(message.contains("binary.yaml:2") && message.contains("UTF-8"), "{message}");

        let large = dir.path().join("large.yaml");
        std::fs::write(&large, "#".repeat(FILE_SIZE_MAX as usize + 1)).unwrap();
        assert!(read(&large).unwrap_err().to_string().contains("at most 1 mb"));
        std::fs::write(&large, "#".repeat(FILE_SIZE_MAX as usize)).unwrap();
        assert_eq!(read(&large).unwrap(), []);
    }
}
