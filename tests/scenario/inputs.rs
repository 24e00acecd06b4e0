//! Operators with two inputs, and who of several consumers gets what.

use super::support::{config, run};
use std::sync::{Arc, Mutex};
use tidegate::api::{Environment, InputChain, Inputs, Stream};
use tidegate::operator::Output;
use tidegate::record::Timestamp;
use tidegate::sink::Sink;
use tidegate::sink::collect::{Collect, Collected};
use tidegate::source::SourceError;

/// What each consumer took: subtask and number.
type Taken = Arc<Mutex<Vec<(u32, u64)>>>;

/// Notes which subtask took which number.
struct Note {
    subtask: u32,
    taken: Taken,
}

impl Sink for Note {
    type Item = u64;
    fn write(&mut self, n: u64, _: Timestamp) -> Result<(), SourceError> {
        self.taken.lock().unwrap().push((self.subtask, n));
        Ok(())
    }
    fn finish(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Sends `0..1200` from `producers` subtasks to `consumers` over an exchange, and returns for each consumer the
/// numbers that it took, sorted.
fn divided<P>(producers: u32, consumers: u32, exchange: P) -> Vec<Vec<u64>>
where
    P: Fn(Stream<u64, InputChain<u64>>) -> Stream<u64, InputChain<u64>>,
{
    let env = Environment::with_config(config(&["tidegate.shards=2"]));
    let taken = Taken::default();
    let all = taken.clone();
    let numbers = env.from_vec("numbers", (0..1200u64).collect()).parallelism(producers).disable_chaining();
    exchange(numbers.parallelism(producers).map(|n| n).disable_chaining().parallelism(producers))
        .parallelism(consumers)
        .sink("out", move |info| Ok(Note { subtask: info.subtask, taken: all.clone() }));
    run(&env).unwrap();
    let mut each = vec![Vec::new(); consumers as usize];
    for (subtask, n) in taken.lock().unwrap().drain(..) {
        each[subtask as usize].push(n);
    }
    each.iter_mut().for_each(|numbers| numbers.sort_unstable());
    each
}

/// Goal: each partitioner divides as its name says.
#[test]
fn partitioners_divide_as_they_say() {
    let all: Vec<u64> = (0..1200).collect();
    let whole = |each: &[Vec<u64>]| {
        let mut union: Vec<u64> = each.concat();
        union.sort_unstable();
        assert_eq!(union, all);
    };
    let sizes = |each: &[Vec<u64>]| each.iter().map(Vec::len).collect::<Vec<_>>();

    let each = divided(2, 3, |s| s.rebalance());
    whole(&each);
    assert_eq!(sizes(&each), [400, 400, 400], "rebalance");

    // Two producers and four consumers: each producer deals out to its own two.
    let each = divided(2, 4, |s| s.rescale());
    whole(&each);
    assert_eq!(sizes(&each), [300; 4], "rescale");
    assert!(each[..2].concat().iter().all(|n| *n < 600), "the first producer has the first half");

    let each = divided(2, 3, |s| s.broadcast());
    assert!(each.iter().all(|numbers| *numbers == all), "broadcast");

    let each = divided(2, 3, |s| s.global());
    assert_eq!(sizes(&each), [1200, 0, 0], "global");

    let each = divided(3, 3, |s| s.forward());
    assert!(
        each.iter().zip([0..400, 400..800, 800..1200]).all(|(n, own)| n.iter().copied().eq(own)),
        "forward"
    );

    let each = divided(2, 3, |s| s.shuffle(7));
    whole(&each);
    assert!(sizes(&each).iter().all(|n| (300..500).contains(n)), "shuffle: {:?}", sizes(&each));

    let each = divided(2, 3, |s| s.partition_custom(|n, consumers| n as usize % consumers));
    assert!((0..3).all(|i| each[i].iter().copied().eq((i as u64..1200).step_by(3))), "custom");

    let each = divided(2, 3, |s| s.key_by::<u64, _>(|n| n % 10).into_stream());
    whole(&each);
    for digit in 0..10 {
        let owners = each.iter().filter(|numbers| numbers.iter().any(|n| n % 10 == digit)).count();
        assert_eq!(owners, 1, "key {digit}");
    }
}

/// Goal: a keyed exchange of M producers and N consumers has M x N channels.
#[test]
fn a_keyed_exchange_has_a_channel_for_each_pair() {
    let env = Environment::new();
    env.from_vec("numbers", (0..100u64).collect())
        .parallelism(3)
        .key_by::<u64, _>(|n| n)
        .count()
        .parallelism(5)
        .sink("out", |_| Ok(Collect::new(Collected::default())));
    let job = env.start("pairs").unwrap();
    assert_eq!(job.plan().channels.len(), 15);
    job.wait().unwrap();
}

/// Goal: an operator that wants one input first is given none of the other before that one has ended, though
/// both have records all the time; then it is given all of it.
/// Method: more of the unwanted records than buffers on their way can hold.
#[test]
fn an_operator_reads_the_input_that_it_wants() {
    for first in [true, false] {
        let env = Environment::with_config(config(&["taskmanager.memory.segment-size=256"]));
        let rows = Collected::<(u64, bool)>::default();
        let all = rows.clone();
        let a = env.from_vec("a", (0..20_000u64).collect());
        let b = env.from_vec("b", (0..30_000u32).collect());
        a.connect(b)
            .process_selecting::<(), (u64, bool), _, _, _>(
                |n, _, out| out.emit((n, true)),
                |n, _, out| out.emit((u64::from(n), false)),
                move |_| if first { Inputs::First } else { Inputs::Second },
            )
            .parallelism(1)
            .sink("out", move |_| Ok(Collect::new(all.clone())));
        run(&env).unwrap();
        let rows = std::mem::take(&mut *rows.lock().unwrap());
        let wanted = if first { 20_000 } else { 30_000 };
        assert_eq!(rows.len(), 50_000);
        assert!(rows[..wanted].iter().all(|(_, of_first)| *of_first == first), "first {first}");
        assert!(rows[wanted..].iter().all(|(_, of_first)| *of_first != first), "first {first}");
    }
}

/// Goal: the choice is made anew after each record.
#[test]
fn an_operator_may_take_from_its_inputs_in_turn() {
    let env = Environment::new();
    let rows = Collected::<u64>::default();
    let all = rows.clone();
    let a = env.from_vec("a", (0..5_000u64).map(|n| 2 * n).collect()).parallelism(1);
    let b = env.from_vec("b", (0..5_000u64).map(|n| 2 * n + 1).collect()).parallelism(1);
    a.connect(b)
        .process_selecting::<u64, u64, _, _, _>(
            |n, taken, out| {
                *taken += 1;
                out.emit(n);
            },
            |n, taken, out| {
                *taken += 1;
                out.emit(n);
            },
            |taken| if taken % 2 == 0 { Inputs::First } else { Inputs::Second },
        )
        .parallelism(1)
        .sink("out", move |_| Ok(Collect::new(all.clone())));
    run(&env).unwrap();
    assert!(rows.lock().unwrap().iter().copied().eq(0..10_000), "the two merge into one sequence");
}

/// Goal: records of one key meet in one state, from whichever input they come.
#[test]
fn both_inputs_of_a_keyed_operator_share_state() {
    let env = Environment::new();
    let rows = Collected::<(u64, i64)>::default();
    let all = rows.clone();
    let plus = env.from_vec("plus", (0..3_000u64).collect());
    let minus = env.from_vec("minus", (0..3_000u64).map(|n| (n, 1i64)).collect());
    plus.key_by::<u64, _>(|n| n % 30)
        .connect(minus, |(n, _): (u64, i64)| n % 30)
        .process::<i64, (u64, i64), _, _>(
            |n, sum, out: &mut Output<'_, (u64, i64)>| {
                *sum += 1;
                out.emit((n % 30, *sum));
            },
            |(n, one), sum, out| {
                *sum -= one;
                out.emit((n % 30, *sum));
            },
        )
        .parallelism(3)
        .sink("out", move |_| Ok(Collect::new(all.clone())));
    run(&env).unwrap();
    let rows = rows.lock().unwrap();
    assert_eq!(rows.len(), 6_000);
    for key in 0..30 {
        let mut steps = rows.iter().filter(|(k, _)| *k == key).map(|(_, sum)| *sum);
        let last = steps.try_fold(0, |before, sum: i64| ((sum - before).abs() == 1).then_some(sum));
        assert_eq!(
            last,
            Some(0),
            "key {key}: each record is one step from the one before, and they cancel out"
        );
    }
}

/// Goal: every subtask sees all of a broadcast input; keyed records read what it has left.
#[test]
fn every_subtask_sees_all_of_a_broadcast_input() {
    let env = Environment::new();
    let rows = Collected::<(u64, u64)>::default();
    let all = rows.clone();
    let keyed = env.from_vec("keyed", (0..1_000u64).collect());
    let rules = env.from_vec("rules", (1..=10u64).collect());
    keyed
        .key_by::<u64, _>(|n| n)
        .connect_broadcast(rules)
        .process::<u64, u64, (u64, u64), _, _>(
            |n, seen, rules, out: &mut Output<'_, (u64, u64)>| {
                *seen += 1;
                assert!(*rules <= 55);
                out.emit((n, 0));
            },
            |rule, rules, out| {
                *rules += rule;
                if *rules == 55 {
                    out.emit((u64::MAX, *rules));
                }
            },
        )
        .parallelism(4)
        .sink("out", move |_| Ok(Collect::new(all.clone())));
    run(&env).unwrap();
    let rows = rows.lock().unwrap();
    assert_eq!(
        rows.iter().filter(|(n, _)| *n == u64::MAX).count(),
        4,
        "each of four subtasks sees the last rule"
    );
    assert_eq!(rows.len(), 1_004);
}
