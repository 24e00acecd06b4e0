//! Words of a configuration value: durations, sizes, numbers, switches.
//!
//! Text in, numbers out, and back. Knows no key and no bound: those are in the
//! table. Each `parse_…` returns `None` for text that is not of its kind; the
//! caller knows the key and says what was expected.
//!
//! | kind     | accepted                                                  | bare number  |
//! | -------- | --------------------------------------------------------- | ------------ |
//! | duration | `ns`, `us` or `µs`, `ms`, `s`, `min` or `m`, `h`, `d`     | milliseconds |
//! | size     | `bytes` or `b`, `kb` or `k`, `mb`, `gb`, `tb`; 1024-based | bytes        |
//!
//! Units are those of Flink, long names (`seconds`, `mebibytes`) included, in
//! either case, with or without a space. Fractions are refused, as in Flink:
//! `1500 ms`, not `1.5 s`.

use std::time::Duration;

/// Nanoseconds a unit, the largest first, with the names it may go by. The
/// first name is the one that [`format_duration`] writes.
const DURATION_UNITS: &[(u64, &[&str])] = &[
    (86_400_000_000_000, &["d", "day", "days"]),
    (3_600_000_000_000, &["h", "hour", "hours"]),
    (60_000_000_000, &["min", "m", "minute", "minutes"]),
    (1_000_000_000, &["s", "sec", "secs", "second", "seconds"]),
    (1_000_000, &["ms", "milli", "millis", "millisecond", "milliseconds"]),
    // The micro sign and the Greek letter look alike and are typed alike.
    (1_000, &["us", "\u{b5}s", "\u{3bc}s", "micro", "micros", "microsecond", "microseconds"]),
    (1, &["ns", "nano", "nanos", "nanosecond", "nanoseconds"]),
];

/// What a duration without a unit counts, as in Flink.
const DURATION_UNIT_BARE: u64 = 1_000_000;

/// Bytes a unit, the largest first; the first name is the one written back.
const SIZE_UNITS: &[(u64, &[&str])] = &[
    (1 << 40, &["tb", "t", "tib", "tebibytes"]),
    (1 << 30, &["gb", "g", "gib", "gibibytes"]),
    (1 << 20, &["mb", "m", "mib", "mebibytes"]),
    (1 << 10, &["kb", "k", "kib", "kibibytes"]),
    (1, &["bytes", "b", "byte"]),
];

/// Reads `100 ms`, `5s`, `10 min`; a bare number is milliseconds.
///
/// `None` if it is not a duration or does not fit 64 bits of nanoseconds (584 years).
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse_with_unit(text, DURATION_UNITS, DURATION_UNIT_BARE).map(Duration::from_nanos)
}

/// Reads `32 kb`, `64mb`, `1 g`; a bare number is bytes, and 1 kb is 1024 of them.
///
/// `None` if it is not a size or does not fit 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    parse_with_unit(text, SIZE_UNITS, 1)
}

/// Reads `true` or `false`, in either case.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Reads a decimal integer with an optional sign.
pub fn parse_int(text: &str) -> Option<i64> {
    text.trim().parse().ok()
}

/// Reads a decimal fraction; infinities and NaN are refused.
pub fn parse_float(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

/// Whether `text` names ports: `9249`, `9250-9260`, or several with commas.
pub fn is_port_list(text: &str) -> bool {
    let port = |text: &str| text.trim().parse::<u16>().ok();
    text.split(',').all(|part| match part.split_once('-') {
        None => port(part).is_some(),
        Some((first, last)) => matches!((port(first), port(last)), (Some(f), Some(l)) if f <= l),
    })
}

/// Writes a duration in the largest unit that divides it: `1500 ms`, `10 min`.
pub fn format_duration(duration: Duration) -> String {
    match u64::try_from(duration.as_nanos()) {
        Ok(0) => "0 ms".to_owned(),
        Ok(nanos) => format_with_unit(nanos, DURATION_UNITS),
        // Beyond what can be read back, so only code can have made it.
        Err(_) => format!("{} s", duration.as_secs()),
    }
}

/// Writes a size in the largest unit that divides it: `32 kb`, `4097 bytes`.
pub fn format_size(bytes: u64) -> String {
    match bytes {
        0 => "0 bytes".to_owned(),
        _ => format_with_unit(bytes, SIZE_UNITS),
    }
}

fn parse_with_unit(text: &str, units: &[(u64, &[&str])], bare: u64) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let number: u64 = digits.parse().ok()?;
    let unit = unit.trim().to_lowercase();
    let factor = if unit.is_empty() {
        bare
    } else {
        units.iter().find(|(_, names)| names.contains(&unit.as_str()))?.0
    };
    number.checked_mul(factor)
}

fn format_with_unit(number: u64, units: &[(u64, &[&str])]) -> String {
    let (factor, names) =
        units.iter().find(|(factor, _)| number.is_multiple_of(*factor)).expect("the last unit is 1");
    format!("{} {}", number / factor, names[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every unit a Flink user writes is read as Flink reads it.
    #[test]
    fn durations_are_read_in_every_unit() {
        let cases: &[(&str, u64)] = &[
            ("7 ns", 7),
            ("7 nanoseconds", 7),
            ("50 us", 50_000),
            ("50us", 50_000),
            ("50 \u{b5}s", 50_000),
            ("50 \u{3bc}s", 50_000),
            ("100 ms", 100_000_000),
            ("100", 100_000_000),
            ("0", 0),
            ("  100   MS ", 100_000_000),
            ("5 s", 5_000_000_000),
            ("5 seconds", 5_000_000_000),
            ("10 min", 600_000_000_000),
            ("10m", 600_000_000_000),
            ("1 h", 3_600_000_000_000),
            ("1 d", 86_400_000_000_000),
            ("18446744073709551615 ns", u64::MAX),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(*nanos)), "{text:?}");
        }
    }

    /// Goal: what is not a duration is refused, not guessed at.
    #[test]
    fn text_that_is_no_duration_is_refused() {
        for text in [
            "",
            " ",
            "ms",
            "-1",
            "-1 ms",
            "1.5 s",
            "5 parsecs",
            "5 s 3 ms",
            "1e3",
            "five",
            "5 kb",
            "+5 s",
            "18446744073709551616 ns",
            "213504 d",
            "\u{ff15} s",
        ] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("4096", 4096),
            ("256 bytes", 256),
            ("256b", 256),
            ("32 kb", 32 << 10),
            ("32KB", 32 << 10),
            ("32 k", 32 << 10),
            ("64 mb", 64 << 20),
            ("1 g", 1 << 30),
            ("2 tebibytes", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Some(*bytes), "{text:?}");
        }
    }

    #[test]
    fn text_that_is_no_size_is_refused() {
        for text in ["", "kb", "-1", "1.5 mb", "5 s", "32 kbit", "0x10", "16777216 tb", "1 kb 2 b"] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }

    #[test]
    fn switches_and_numbers_refuse_near_misses() {
        assert_eq!(parse_bool(" TRUE"), Some(true));
        assert_eq!(parse_bool("False "), Some(false));
        for text in ["yes", "on", "1", "", "tru"] {
            assert_eq!(parse_bool(text), None, "{text:?}");
        }
        assert_eq!(parse_int("-1"), Some(-1));
        for text in ["", "1.0", "1 2", "0x10", "9223372036854775808"] {
            assert_eq!(parse_int(text), None, "{text:?}");
        }
        assert_eq!(parse_float("1.5"), Some(1.5));
        for text in ["", "NaN", "inf", "1,5"] {
            assert_eq!(parse_float(text), None, "{text:?}");
        }
    }

    #[test]
    fn port_lists_are_ports_ranges_or_both() {
        for text in ["0", "8081", "8081-8090", "8081, 9000-9010"] {
            assert!(is_port_list(text), "{text:?}");
        }
        for text in ["", "http", "65536", "90-80", "8081,", "1-2-3"] {
            assert!(!is_port_list(text), "{text:?}");
        }
    }

    /// Goal: a printed value can be pasted back. Method: write, read, compare,
    /// over every unit and its neighbours.
    #[test]
    fn what_is_written_is_read_back() {
        for (factor, _) in DURATION_UNITS {
            for nanos in [0, *factor, 3 * factor, factor + 1] {
                let duration = Duration::from_nanos(nanos);
                assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
            }
        }
        for (factor, _) in SIZE_UNITS {
            for bytes in [0, *factor, 3 * factor, factor + 1] {
                assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
            }
        }
        assert_eq!(format_duration(Duration::from_millis(1500)), "1500 ms");
        assert_eq!(format_size(32 << 10), "32 kb");
    }
}
