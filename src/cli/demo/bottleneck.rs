//! Which operator limits a job: walk downstream from the sources; on each way the first operator that is not
//! back-pressured but busy is the bottleneck.
//!
//! What is upstream of a bottleneck is back-pressured by it; what is downstream is idle for want of records.
//! An operator counts as its most loaded subtask does: one slow subtask holds up the whole job, however
//! idle its neighbours are.

/// Back pressure above this, in ms/s, makes an operator back-pressured: a tenth, the border between "ok" and
/// "low" on the pages of other engines.
const BACK_PRESSURED_MS_PER_S: f64 = 100.0;

/// Busy for at least this long, in ms/s, an operator has nothing left to give. Not 1000: an operator that
/// limits its job is idle for a moment between one refill of its input and the next.
const BUSY_MS_PER_S: f64 = 750.0;

/// How loaded one subtask is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Index of its vertex.
    pub vertex: usize,
    /// Time back-pressured, in ms/s.
    pub back_pressured: f64,
    /// Time busy, in ms/s.
    pub busy: f64,
}

/// The bottlenecks among `vertices` vertices, given the load of each subtask and the exchanges as
/// (from, to); in the order in which a walk from the first source meets them. Empty if nobody limits the job.
pub(super) fn bottlenecks(vertices: usize, loads: &[Load], edges: &[(usize, usize)]) -> Vec<usize> {
    let most = |vertex: usize, of: fn(&Load) -> f64| {
        loads.iter().filter(|load| load.vertex == vertex).map(of).fold(0.0, f64::max)
    };
    let sources = (0..vertices).filter(|vertex| edges.iter().all(|(_, to)| to != vertex));
    let mut found = Vec::new();
    let mut seen = vec![false; vertices];
    // A stack with the first on top, so that ways are walked in order.
    let mut ways: Vec<usize> = sources.collect();
    ways.reverse();
    while let Some(vertex) = ways.pop() {
        if std::mem::replace(&mut seen[vertex], true) {
            continue;
        }
        let back_pressured = most(vertex, |load| load.back_pressured) > BACK_PRESSURED_MS_PER_S;
        if !back_pressured && most(vertex, |load| load.busy) >= BUSY_MS_PER_S {
            found.push(vertex);
            continue;
        }
        ways.extend(edges.iter().rev().filter(|(from, _)| *from == vertex).map(|(_, to)| *to));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads of one subtask a vertex, as (back-pressured, busy).
    fn find(loads: &[(f64, f64)], edges: &[(usize, usize)]) -> Vec<usize> {
        let loads: Vec<Load> = loads
            .iter()
            .enumerate()
            .map(|(vertex, &(back_pressured, busy))| Load { vertex, back_pressured, busy })
            .collect();
        bottlenecks(loads.len(), &loads, edges)
    }

    const NOBODY: [usize; 0] = [];
    const CHAIN: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 3)];

    #[test]
    fn the_first_busy_operator_behind_back_pressured_ones_limits_a_chain() {
        let loads = [(1000.0, 0.0), (970.0, 30.0), (0.0, 998.0), (0.0, 12.0)];
        assert_eq!(find(&loads, &CHAIN), [2]);
    }

    #[test]
    fn a_source_that_nobody_holds_up_is_the_bottleneck() {
        let loads = [(20.0, 980.0), (0.0, 400.0), (0.0, 400.0), (0.0, 1.0)];
        assert_eq!(find(&loads, &CHAIN), [0]);
    }

    #[test]
    fn the_last_operator_may_be_the_bottleneck() {
        let loads = [(1000.0, 0.0), (1000.0, 0.0), (900.0, 100.0), (0.0, 1000.0)];
        assert_eq!(find(&loads, &CHAIN), [3]);
    }

    #[test]
    fn a_job_with_time_to_spare_has_no_bottleneck() {
        assert_eq!(find(&[(0.0, 50.0), (0.0, 300.0), (0.0, 0.0), (0.0, 0.0)], &CHAIN), NOBODY);
        assert_eq!(find(&[], &[]), NOBODY);
    }

    /// Goal: busy alone is not enough, since a back-pressured operator may be busy for the rest of its time.
    #[test]
    fn a_back_pressured_operator_is_passed_by_however_busy() {
        assert_eq!(find(&[(240.0, 760.0), (0.0, 990.0)], &[(0, 1)]), [1]);
    }

    /// Goal: an operator is judged by its most loaded subtask.
    #[test]
    fn one_slow_subtask_makes_its_operator_the_bottleneck() {
        let loads = [
            Load { vertex: 0, back_pressured: 1000.0, busy: 0.0 },
            Load { vertex: 1, back_pressured: 0.0, busy: 3.0 },
            Load { vertex: 1, back_pressured: 0.0, busy: 999.0 },
        ];
        assert_eq!(bottlenecks(2, &loads, &[(0, 1)]), [1]);
    }

    /// Goal: where ways part and meet again, each is walked, and nobody is named twice.
    #[test]
    fn every_way_through_a_diamond_is_walked_once() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3)];
        let source = (1000.0, 0.0);
        assert_eq!(find(&[source, (0.0, 999.0), (0.0, 100.0), (0.0, 5.0)], &edges), [1]);
        assert_eq!(find(&[source, (990.0, 9.0), (1000.0, 0.0), (0.0, 998.0)], &edges), [3]);
        assert_eq!(find(&[source, (0.0, 900.0), (0.0, 950.0), (0.0, 5.0)], &edges), [1, 2]);
    }

    /// Goal: of two sources, one may be its own limit while the other is held up further down.
    #[test]
    fn each_source_has_its_own_way() {
        let edges = [(0, 2), (1, 3), (2, 4), (3, 4)];
        let loads = [(0.0, 1000.0), (1000.0, 0.0), (0.0, 200.0), (0.0, 1000.0), (0.0, 10.0)];
        assert_eq!(find(&loads, &edges), [0, 3]);
    }
}
