//! Figures of alternated pairs: medians with their spread, as a table or as JSON.

use serde::Serialize;

/// Median, least and greatest of some runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        assert!(!sorted.is_empty(), "a spread is of at least one figure");
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Spread { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    }

    /// Of the ratios of alternated pairs, of which there is at least one.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Spread {
        Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
    }

    /// `median (min … max)` with so many decimals.
    pub fn text(&self, decimals: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$} … {max:.decimals$})")
    }
}

/// What the figures were taken on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
}

impl Machine {
    pub fn here() -> Machine {
        let cpu = std::fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find(|line| line.starts_with("model name"))?;
                Some(line.split_once(':')?.1.trim().to_string())
            })
            .unwrap_or_else(|| "unknown".to_string());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine { cpu, cores, kernel: kernel.trim().to_string() }
    }
}

/// `123.4 M/s` of a rate in records per second.
pub(crate) fn millions(rate: f64) -> String {
    format!("{:.1} M/s", rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([1.0, 2.0, 4.0]).text(1), "2.0 (1.0 … 4.0)");
    }
}
