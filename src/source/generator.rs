//! A seeded generator: keys by a distribution, at a rate.
//!
//! What record `i` of a job holds depends on the seed and `i` alone, and which subtask emits it on `i` and the
//! parallelism: subtask `s` of `p` has the records `s, s + p, s + 2p, …`. So a run can be repeated exactly,
//! and draws (uniform, Zipf) are the same multiset at every parallelism. Patterns (round robin, runs)
//! are gone through by each subtask on its own, since a pattern dealt out to subtasks would leave
//! each with a few of the keys.
//!
//! With a rate it is an open loop: record `i` is due at `start + i / rate`, whatever became of the ones
//! before. A job that falls behind is sent what is overdue as fast as it takes it, so a latency counted from
//! the due time contains the waiting.

use super::{Source, SourceContext, SourceError, SourceOutput, SourcePoll};
use crate::operator::Collector;
use crate::sealed;
use rand_distr::Distribution;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Up to so many keys, a Zipf draw looks into a table (8 bytes a key); beyond, it computes.
const ALIAS_KEYS_MAX: u64 = 1 << 22;

/// Payloads are cut from one pool of random bytes, at so many different places.
const PAYLOAD_PLACES: usize = 4096;

/// Version of the state in a checkpoint.
const VERSION: u8 = 1;

/// What to generate.
#[derive(Debug, Clone)]
pub struct GeneratorOptions {
    /// The same seed gives the same records.
    pub seed: u64,
    /// Records per second of all subtasks together; `None`: as fast as they are taken.
    pub rate: Option<f64>,
    /// Records of all subtasks together; `None`: endless.
    pub count: Option<u64>,
    /// Bytes of payload a record, where records have one.
    pub payload_bytes: usize,
    /// Which keys.
    pub keys: KeyDistribution,
}

impl Default for GeneratorOptions {
    fn default() -> GeneratorOptions {
        let keys = KeyDistribution::Uniform { keys: 16 };
        GeneratorOptions { seed: 1, rate: None, count: None, payload_bytes: 0, keys }
    }
}

/// How keys are chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyDistribution {
    /// `0..keys`, each as likely as the others.
    Uniform {
        /// How many different ones.
        keys: u64,
    },
    /// `0..keys`, key `k` in proportion to `1 / (k + 1)^exponent`.
    Zipf {
        /// How many different ones.
        keys: u64,
        /// Greater than 0; the greater, the more skewed.
        exponent: f64,
    },
    /// `0, 1, …, keys - 1` and again from 0.
    RoundRobin {
        /// How many different ones.
        keys: u64,
    },
    /// Given runs of `(key, times)`, over and over.
    Runs(Vec<(u64, u64)>),
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyDistribution::Uniform { keys } => write!(f, "uniform over {keys}"),
            KeyDistribution::Zipf { keys, exponent } => {
                write!(f, "Zipf over {keys} with exponent {exponent}")
            }
            KeyDistribution::RoundRobin { keys } => write!(f, "{keys} in turn"),
            KeyDistribution::Runs(runs) => {
                // Long lists are told apart by their sum.
                let sum = runs.iter().fold(0u64, |sum, &(key, times)| mix(sum ^ mix(key) ^ times));
                write!(f, "{} runs ({sum:016x})", runs.len())
            }
        }
    }
}

/// Options from which nothing can be generated.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum GeneratorError {
    /// A distribution over no key.
    #[error("generator: 0 keys; expected at least 1")]
    NoKeys,
    /// An exponent that Zipf's law has no meaning for.
    #[error("generator: Zipf exponent {0}; expected a finite number greater than 0")]
    Exponent(f64),
    /// A rate at which nothing would come, or everything at once.
    #[error("generator: rate {0} records/s; expected a finite number greater than 0")]
    Rate(f64),
    /// What is generated is not what was generated before the checkpoint.
    #[error("generator: {what} {found}; expected {expected}, as at the checkpoint")]
    Changed {
        /// Which of the options.
        what: String,
        /// Its value now.
        found: String,
        /// Its value at the checkpoint.
        expected: String,
    },
}

impl GeneratorError {
    fn changed(what: &str, found: String, expected: String) -> GeneratorError {
        GeneratorError::Changed { what: what.to_string(), found, expected }
    }
}

/// Checked options, from which each subtask's source is made. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GeneratorPlan {
    options: GeneratorOptions,
    keys: Keys,
}

impl GeneratorPlan {
    /// Checks `options` and prepares what all subtasks share: for Zipf a table of 8 bytes a key.
    ///
    /// # Errors
    ///
    /// The option that is out of range, with its value.
    pub fn new(options: GeneratorOptions) -> Result<GeneratorPlan, GeneratorError> {
        if let Some(rate) = options.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(GeneratorError::Rate(rate));
        }
        let keys = Keys::new(&options.keys)?;
        Ok(GeneratorPlan { options, keys })
    }

    /// A subtask's source of `(key, payload)`.
    pub fn payloads(&self, context: &SourceContext) -> PayloadGenerator {
        let size = self.options.payload_bytes;
        let mut pool = vec![0; if size == 0 { 0 } else { size + PAYLOAD_PLACES }];
        for (i, bytes) in pool.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&mix(!self.options.seed ^ i as u64).to_le_bytes()[..bytes.len()]);
        }
        PayloadGenerator { schedule: self.schedule(context), pool, size }
    }

    /// A subtask's source of `(key, due)`: `due` is when the record should have been emitted, in nanoseconds
    /// of the clock of [`SourceOutput::now_ns`]. Without a rate a record is due when it is emitted.
    pub fn dues(&self, context: &SourceContext) -> DueGenerator {
        DueGenerator { schedule: self.schedule(context) }
    }

    fn schedule(&self, context: &SourceContext) -> Schedule {
        let (subtask, parallelism) = (u64::from(context.subtask), u64::from(context.parallelism));
        let end = self.options.count.unwrap_or(u64::MAX);
        Schedule {
            options: self.options.clone(),
            seed: mix(self.options.seed),
            keys: self.keys.clone(),
            subtask,
            skipped: 0,
            next: subtask,
            step: parallelism,
            end,
            period_ns: self.options.rate.map(|rate| 1e9 / rate),
            start_ns: None,
        }
    }
}

/// Emits `(key, payload)`; see [`GeneratorPlan::payloads`].
pub struct PayloadGenerator {
    schedule: Schedule,
    pool: Vec<u8>,
    size: usize,
}

impl Source for PayloadGenerator {
    type Item = (u64, Vec<u8>);

    const REPLAYS: bool = true;

    #[inline]
    fn poll<C: Collector<Self::Item>>(
        &mut self,
        out: &mut SourceOutput<'_, Self::Item, C>,
    ) -> Result<SourcePoll, SourceError> {
        let now_ns = out.now_ns();
        loop {
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            match self.schedule.next(now_ns) {
                Ok(record) => {
                    let at = if self.size == 0 { 0 } else { record.random as usize % PAYLOAD_PLACES };
                    out.emit((record.key, &self.pool[at..at + self.size]));
                }
                Err(poll) => return Ok(poll),
            }
        }
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        self.schedule.snapshot(state);
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        self.schedule.restore(state)
    }
}

/// Emits `(key, due)`; see [`GeneratorPlan::dues`].
pub struct DueGenerator {
    schedule: Schedule,
}

impl Source for DueGenerator {
    type Item = (u64, u64);

    const REPLAYS: bool = true;

    #[inline]
    fn poll<C: Collector<Self::Item>>(
        &mut self,
        out: &mut SourceOutput<'_, Self::Item, C>,
    ) -> Result<SourcePoll, SourceError> {
        let now_ns = out.now_ns();
        loop {
            if !out.ready() {
                return Ok(SourcePoll::More);
            }
            match self.schedule.next(now_ns) {
                Ok(record) => out.emit((record.key, record.due_ns)),
                Err(poll) => return Ok(poll),
            }
        }
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        self.schedule.snapshot(state);
        Ok(())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        self.schedule.restore(state)
    }
}

/// One subtask's records: which, and when.
struct Schedule {
    options: GeneratorOptions,
    seed: u64,
    keys: Keys,
    subtask: u64,
    /// Records of all subtasks that were due before a restart: the clock begins with the first one after it.
    skipped: u64,
    /// Number in the job of the next record: `subtask + n * parallelism`.
    next: u64,
    step: u64,
    end: u64,
    period_ns: Option<f64>,
    /// When the first record that is not skipped was due: the time of the first poll.
    start_ns: Option<u64>,
}

struct Generated {
    key: u64,
    due_ns: u64,
    random: u64,
}

impl Schedule {
    /// The next record if it is due, or what to wait for.
    #[inline(always)]
    fn next(&mut self, now_ns: u64) -> Result<Generated, SourcePoll> {
        if self.next >= self.end {
            return Err(SourcePoll::Done);
        }
        let mut due_ns = now_ns;
        if let Some(period_ns) = self.period_ns {
            let start_ns = *self.start_ns.get_or_insert(now_ns);
            // Exact to a nanosecond for 104 days.
            due_ns = start_ns + ((self.next - self.skipped) as f64 * period_ns) as u64;
            if due_ns > now_ns {
                return Err(SourcePoll::WaitUntil(due_ns));
            }
        }
        let random = mix(self.seed.wrapping_add(self.next));
        self.next = self.next.saturating_add(self.step);
        Ok(Generated { key: self.keys.draw(random), due_ns, random })
    }

    fn snapshot(&self, state: &mut Vec<u8>) {
        sealed::seal(VERSION, state, |fields| {
            fields.u64(self.options.seed);
            fields.text(&self.options.keys.to_string());
            fields.u64(self.step);
            fields.u64(self.subtask);
            fields.u64(self.next);
            let (at, left) = self.keys.place();
            fields.u64(at);
            fields.u64(left);
        });
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        let (seed, keys, numbers) = sealed::open("a generator", VERSION, state, |_, fields| {
            let (seed, keys) = (fields.u64()?, fields.text()?);
            Ok((seed, keys, [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?]))
        })?;
        let [step, subtask, next, at, left] = numbers;
        let same = |what: &str, found: &dyn fmt::Display, expected: &dyn fmt::Display| {
            let (found, expected) = (found.to_string(), expected.to_string());
            if found == expected { Ok(()) } else { Err(GeneratorError::changed(what, found, expected)) }
        };
        same("seed", &self.options.seed, &seed)?;
        same("keys", &self.options.keys, &keys)?;
        same("parallelism", &self.step, &step)?;
        same("subtask", &self.subtask, &subtask)?;
        if next < subtask || !self.keys.go_to(at, left) {
            return Err(format!("generator: no record {next}, no place {at} with {left} left").into());
        }
        self.next = next;
        self.skipped = next - subtask;
        Ok(())
    }
}

/// A distribution, ready to draw from.
#[derive(Debug, Clone)]
enum Keys {
    Uniform { keys: u64 },
    Alias(Arc<[Alias]>),
    Zipf(rand_distr::Zipf<f64>),
    RoundRobin { keys: u64, next: u64 },
    Runs { runs: Arc<[(u64, u64)]>, run: usize, left: u64 },
}

impl Keys {
    fn new(distribution: &KeyDistribution) -> Result<Keys, GeneratorError> {
        Ok(match *distribution {
            KeyDistribution::Uniform { keys: 0 }
            | KeyDistribution::Zipf { keys: 0, .. }
            | KeyDistribution::RoundRobin { keys: 0 } => return Err(GeneratorError::NoKeys),
            KeyDistribution::Uniform { keys } => Keys::Uniform { keys },
            KeyDistribution::RoundRobin { keys } => Keys::RoundRobin { keys, next: 0 },
            KeyDistribution::Zipf { exponent, .. } if !(exponent.is_finite() && exponent > 0.0) => {
                return Err(GeneratorError::Exponent(exponent));
            }
            KeyDistribution::Zipf { keys, exponent } if keys <= ALIAS_KEYS_MAX => {
                let weights = (1..=keys).map(|rank| (rank as f64).powf(-exponent)).collect();
                Keys::Alias(Alias::table(weights))
            }
            KeyDistribution::Zipf { keys, exponent } => Keys::Zipf(
                rand_distr::Zipf::new(keys as f64, exponent)
                    .map_err(|_| GeneratorError::Exponent(exponent))?,
            ),
            KeyDistribution::Runs(ref runs) => {
                let runs: Arc<[_]> = runs.iter().copied().filter(|&(_, times)| times > 0).collect();
                let left = runs.first().ok_or(GeneratorError::NoKeys)?.1;
                Keys::Runs { runs, run: 0, left }
            }
        })
    }

    /// Where in its pattern it is, if it is one.
    fn place(&self) -> (u64, u64) {
        match self {
            Keys::Uniform { .. } | Keys::Alias(_) | Keys::Zipf(_) => (0, 0),
            Keys::RoundRobin { next, .. } => (*next, 0),
            Keys::Runs { run, left, .. } => (*run as u64, *left),
        }
    }

    /// Goes to where in its pattern it was; false if there is no such place.
    fn go_to(&mut self, at: u64, at_left: u64) -> bool {
        match self {
            Keys::Uniform { .. } | Keys::Alias(_) | Keys::Zipf(_) => true,
            Keys::RoundRobin { keys, next } => {
                *next = at;
                at < *keys
            }
            Keys::Runs { runs, run, left } => {
                let found = runs.get(at as usize).is_some_and(|&(_, times)| at_left <= times);
                if found {
                    (*run, *left) = (at as usize, at_left);
                }
                found
            }
        }
    }

    /// The next key; `random` is 64 random bits.
    #[inline(always)]
    fn draw(&mut self, random: u64) -> u64 {
        match self {
            Keys::Uniform { keys } => below(random, *keys),
            Keys::Alias(table) => Alias::draw(table, random),
            Keys::Zipf(zipf) => zipf.sample(&mut Bits(random)) as u64 - 1,
            Keys::RoundRobin { keys, next } => {
                let key = *next;
                *next = if key + 1 == *keys { 0 } else { key + 1 };
                key
            }
            Keys::Runs { runs, run, left } => {
                if *left == 0 {
                    *run = if *run + 1 == runs.len() { 0 } else { *run + 1 };
                    *left = runs[*run].1;
                }
                *left -= 1;
                runs[*run].0
            }
        }
    }
}

/// One column of an alias table: its own key below the threshold, another one above.
///
/// After Walker, "An efficient method for generating discrete random variables with general
/// distributions", 1977; built by Vose's method, 1991. A draw is one multiplication and one look-up.
#[derive(Debug, Clone, Copy)]
struct Alias {
    threshold: u32,
    other: u32,
}

impl Alias {
    fn table(mut weights: Vec<f64>) -> Arc<[Alias]> {
        let scale = weights.len() as f64 / weights.iter().rev().sum::<f64>();
        weights.iter_mut().for_each(|w| *w *= scale);
        let mut table: Vec<Alias> =
            (0..weights.len() as u32).map(|other| Alias { threshold: u32::MAX, other }).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..weights.len() as u32).partition(|&k| weights[k as usize] < 1.0);
        // A small column is filled up from a large one, which may become small by that. What rounding
        // leaves over at the end is a full column.
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            let (p, r) = (poor as usize, rich as usize);
            table[p] = Alias { threshold: (weights[p] * 2f64.powi(32)) as u32, other: rich };
            weights[r] -= 1.0 - weights[p];
            if weights[r] < 1.0 {
                small.push(large.pop().expect("seen above"));
            }
        }
        table.into()
    }

    #[inline(always)]
    fn draw(table: &[Alias], random: u64) -> u64 {
        // The product's upper half chooses the column; the upper bits of its lower half, which are as
        // good as independent of it below 2^22 columns, choose within.
        let product = u128::from(random) * table.len() as u128;
        let column = (product >> 64) as usize;
        let alias = table[column];
        if ((product as u64) >> 32) as u32 <= alias.threshold {
            column as u64
        } else {
            u64::from(alias.other)
        }
    }
}

/// A number below `bound` from 64 random bits.
#[inline(always)]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014) at a place of its sequence.
#[inline(always)]
fn mix(place: u64) -> u64 {
    let mut z = place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// As many random numbers as a rejecting sampler wants, from the first one.
struct Bits(u64);

impl rand::RngCore for Bits {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        let bits = self.0;
        self.0 = mix(bits);
        bits
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::testing::{Capture, context, run};

    fn plan(keys: KeyDistribution, count: u64) -> GeneratorPlan {
        let options = GeneratorOptions { seed: 7, count: Some(count), keys, ..GeneratorOptions::default() };
        GeneratorPlan::new(options).unwrap()
    }

    fn drawn(plan: &GeneratorPlan, parallelism: u32, budget: u32) -> Vec<u64> {
        let mut keys = Vec::new();
        for subtask in 0..parallelism {
            let records = run(&mut plan.dues(&context(subtask, parallelism)), budget).unwrap();
            keys.extend(records.iter().map(|r| r.0));
        }
        keys
    }

    /// Goal: records depend on the seed alone; draws do not change with the parallelism.
    #[test]
    fn the_same_seed_gives_the_same_records_at_every_budget_and_parallelism() {
        for keys in [
            KeyDistribution::Uniform { keys: 100 },
            KeyDistribution::Zipf { keys: 100, exponent: 1.1 },
            KeyDistribution::Zipf { keys: ALIAS_KEYS_MAX + 1, exponent: 1.1 },
        ] {
            let plan = plan(keys, 1_001);
            let mut once = drawn(&plan, 1, 1_000_000);
            assert_eq!(once.len(), 1_001);
            assert_eq!(once, drawn(&plan, 1, 1));
            let mut other = plan.clone();
            other.options.seed = 8;
            assert_ne!(once, drawn(&other, 1, 100));
            once.sort_unstable();
            for parallelism in [2, 3, 16] {
                let mut keys = drawn(&plan, parallelism, 7);
                keys.sort_unstable();
                assert_eq!(keys, once, "parallelism {parallelism}");
            }
        }
    }

    /// Goal: draws follow the distribution, from the table and from the sampler.
    /// Method: Pearson's statistic over the first 20 keys and the rest together; with 20 degrees of
    /// freedom 45.3 is exceeded once in 1,000 seeds, and this seed is fixed.
    #[test]
    fn keys_are_as_frequent_as_the_distribution_says() {
        const DRAWS: u64 = 400_000;
        for (keys, exponent) in
            [(1_000, 0.0), (50, 0.4), (1_000, 1.0), (1_000, 1.5), (ALIAS_KEYS_MAX, 0.8), (1 << 23, 1.2)]
        {
            let distribution = match exponent {
                0.0 => KeyDistribution::Uniform { keys },
                exponent => KeyDistribution::Zipf { keys, exponent },
            };
            let mut seen = [0u64; 21];
            for key in drawn(&plan(distribution, DRAWS), 1, 1 << 20) {
                assert!(key < keys);
                seen[key.min(20) as usize] += 1;
            }
            let total: f64 = (1..=keys).rev().map(|rank| (rank as f64).powf(-exponent)).sum();
            let mut expected = [0f64; 21];
            for rank in 1..=20 {
                expected[rank - 1] = DRAWS as f64 * (rank as f64).powf(-exponent) / total;
            }
            expected[20] = DRAWS as f64 - expected[..20].iter().sum::<f64>();
            let statistic: f64 =
                seen.iter().zip(expected).map(|(&s, e)| (s as f64 - e).powi(2) / e.max(1e-9)).sum();
            assert!(statistic < 45.3, "{keys} keys, exponent {exponent}: {statistic}, {seen:?}");
        }
    }

    /// Goal: patterns are the patterns.
    #[test]
    fn round_robin_and_runs_repeat() {
        let round = plan(KeyDistribution::RoundRobin { keys: 3 }, 7);
        assert_eq!(drawn(&round, 1, 2), [0, 1, 2, 0, 1, 2, 0]);
        let even = plan(KeyDistribution::Runs(vec![(0, 1), (4, 1)]), 5);
        assert_eq!(drawn(&even, 1, 2), [0, 4, 0, 4, 0]);
        let skew = plan(KeyDistribution::Runs(vec![(4, 1000), (9, 0), (0, 1)]), 2_002);
        let keys = drawn(&skew, 1, 64);
        assert_eq!(keys.iter().filter(|k| **k == 4).count(), 2_000);
        assert_eq!((keys[999], keys[1_000], keys[1_001], keys[2_001]), (4, 0, 4, 0));
    }

    /// Goal: an open loop: nothing before its time, and a late poll gets all that is due, with the due times.
    /// Method: 1,000 records/s over two subtasks: one every 2 ms each; a poll after 7 ms.
    #[test]
    fn records_are_due_at_the_rate_whenever_the_polls_come() {
        let options = GeneratorOptions { rate: Some(1_000.0), ..GeneratorOptions::default() };
        let plan = GeneratorPlan::new(options).unwrap();
        let (ms, mut out) = (1_000_000, Capture::<(u64, u64)>::default());
        let mut source = plan.dues(&context(1, 2));
        assert_eq!(out.poll(&mut source, 9, 50 * ms).unwrap(), SourcePoll::WaitUntil(51 * ms));
        assert_eq!(out.poll(&mut source, 9, 57 * ms).unwrap(), SourcePoll::WaitUntil(59 * ms));
        let due: Vec<u64> = out.taken.iter().map(|r| r.1 / ms).collect();
        assert_eq!(due, [51, 53, 55, 57]);
        assert_eq!(out.poll(&mut source, 2, 100 * ms).unwrap(), SourcePoll::More);
    }

    /// Goal: payloads have the size asked for and are not all the same.
    #[test]
    fn payloads_have_their_size() {
        for size in [0, 1, 1_000] {
            let mut plan = plan(KeyDistribution::Uniform { keys: 16 }, 50);
            plan.options.payload_bytes = size;
            let records = run(&mut plan.payloads(&context(0, 1)), 8).unwrap();
            assert_eq!(records, run(&mut plan.payloads(&context(0, 1)), 3).unwrap());
            assert!(records.len() == 50 && records.iter().all(|r| r.1.len() == size));
            assert_eq!(size > 0, records.iter().any(|r| r.1 != records[0].1));
        }
    }

    /// Goal: options that mean nothing are refused with their value.
    #[test]
    fn impossible_options_are_named() {
        let refused = |options: GeneratorOptions| GeneratorPlan::new(options).unwrap_err().to_string();
        let keys = |keys| GeneratorOptions { keys, ..GeneratorOptions::default() };
        for distribution in [
            KeyDistribution::Uniform { keys: 0 },
            KeyDistribution::RoundRobin { keys: 0 },
            KeyDistribution::Runs(vec![(3, 0)]),
        ] {
            assert!(refused(keys(distribution)).contains("0 keys"));
        }
        for exponent in [0.0, -1.0, f64::NAN] {
            let message = refused(keys(KeyDistribution::Zipf { keys: 5, exponent }));
            assert!(message.contains(&format!("exponent {exponent}")), "{message}");
        }
        for rate in [0.0, -5.0, f64::INFINITY] {
            let message = refused(GeneratorOptions { rate: Some(rate), ..GeneratorOptions::default() });
            assert!(message.contains(&format!("rate {rate}")), "{message}");
        }
    }

    /// Goal: restored from where it was, a generator emits the rest and nothing else, wherever that was.
    #[test]
    fn a_rewound_generator_emits_the_rest() {
        for keys in [
            KeyDistribution::Uniform { keys: 100 },
            KeyDistribution::Zipf { keys: 100, exponent: 1.1 },
            KeyDistribution::RoundRobin { keys: 7 },
            KeyDistribution::Runs(vec![(4, 3), (9, 2)]),
        ] {
            let plan = plan(keys, 23);
            for subtask in 0..2 {
                let cx = context(subtask, 2);
                let expected = run(&mut plan.dues(&cx), 100).unwrap();
                for polls in 0..14 {
                    let (mut first, mut out) = (plan.dues(&cx), Capture::default());
                    for _ in 0..polls {
                        out.poll(&mut first, 1, 0).unwrap();
                    }
                    let mut state = Vec::new();
                    first.snapshot(&mut state).unwrap();
                    let mut second = plan.dues(&cx);
                    second.restore(&state).unwrap();
                    out.taken.extend(run(&mut second, 3).unwrap());
                    assert_eq!(out.taken, expected, "{polls} polls");
                }
            }
        }
    }

    /// Goal: a restored open loop goes on at its rate from the first poll on, whatever the clock was before.
    #[test]
    fn a_rewound_generator_keeps_its_rate() {
        let options = GeneratorOptions { rate: Some(1_000.0), ..GeneratorOptions::default() };
        let plan = GeneratorPlan::new(options).unwrap();
        let (ms, mut out) = (1_000_000, Capture::<(u64, u64)>::default());
        let mut first = plan.dues(&context(0, 1));
        assert_eq!(out.poll(&mut first, 9, 500 * ms).unwrap(), SourcePoll::WaitUntil(501 * ms));
        assert_eq!(out.poll(&mut first, 9, 503 * ms).unwrap(), SourcePoll::WaitUntil(504 * ms));
        let mut state = Vec::new();
        first.snapshot(&mut state).unwrap();
        let mut second = plan.dues(&context(0, 1));
        second.restore(&state).unwrap();
        assert_eq!(out.poll(&mut second, 9, 10 * ms).unwrap(), SourcePoll::WaitUntil(11 * ms));
        assert_eq!(out.taken.len(), 5);
    }

    /// Goal: another generator than the one of the checkpoint is refused, by what is different.
    #[test]
    fn another_generator_is_refused() {
        let keys =
            |keys| GeneratorOptions { keys: KeyDistribution::RoundRobin { keys }, ..Default::default() };
        let before = GeneratorPlan::new(keys(3)).unwrap();
        let mut state = Vec::new();
        before.dues(&context(1, 2)).snapshot(&mut state).unwrap();
        let refused = |options, cx: &SourceContext| {
            let mut source = GeneratorPlan::new(options).unwrap().payloads(cx);
            source.restore(&state).unwrap_err().to_string()
        };
        let message = refused(keys(4), &context(1, 2));
        assert!(message.contains("keys 4 in turn; expected 3 in turn"), "{message}");
        let message = refused(GeneratorOptions { seed: 9, ..keys(3) }, &context(1, 2));
        assert!(message.contains("seed 9; expected 1"), "{message}");
        assert!(refused(keys(3), &context(1, 3)).contains("parallelism 3; expected 2"));
        assert!(refused(keys(3), &context(0, 2)).contains("subtask 0; expected 1"));
    }
}
