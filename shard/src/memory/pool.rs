//! The segments of one shard, and how its result partitions share them.
//!
//! | share of a partition with n subpartitions | segments |
//! | --- | --- |
//! | guaranteed: reserved when it is set up | n + 1 |
//! | its pool: what it may use while the region has free ones beyond others' guarantees | 2 n + 8 |
//! | overdraft: only to finish the record in work, from a reserve that all partitions share | 20 |
//!
//! Invariant, checked whenever the shard parks: free + used by partitions = segments of the region.
//! Too small a region is refused when partitions are set up, with both numbers; nothing waits for memory.

use super::segment::{Region, SegmentId};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

struct Inner {
    region: Arc<Region>,
    free: Vec<SegmentId>,
    /// Guarantees that are not used at the moment, over all partitions.
    unfilled: u32,
    overdraft_free: u32,
}

/// A shard's segments; cheap to clone, stays on its shard.
#[derive(Clone)]
pub struct Pool(Rc<RefCell<Inner>>);

/// A region is too small for what is to run on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the partitions of this shard need at least {needed} segments, and its pool has {available} left")]
pub struct PoolError {
    /// Segments that must be guaranteed.
    pub needed: u32,
    /// Segments that are not promised to others.
    pub available: u32,
}

/// How much of a shard's pool is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Segments of the region.
    pub total: u32,
    /// Segments that nobody uses.
    pub free: u32,
}

impl Pool {
    /// A pool of all segments of `region`, of which `overdraft_reserve` are for overdraft.
    pub fn new(region: Arc<Region>, overdraft_reserve: u32) -> Self {
        let free = (0..region.segments()).rev().map(SegmentId).collect();
        Pool(Rc::new(RefCell::new(Inner { region, free, unfilled: 0, overdraft_free: overdraft_reserve })))
    }

    /// The region that the segments lie in.
    pub fn region(&self) -> Arc<Region> {
        self.0.borrow().region.clone()
    }

    /// Total and free segments.
    pub fn usage(&self) -> PoolUse {
        let inner = self.0.borrow();
        PoolUse { total: inner.region.segments(), free: inner.free.len() as u32 }
    }

    /// Reserves `guaranteed` segments for a partition that wants `wanted`, and may overdraw by `overdraft`.
    ///
    /// # Errors
    ///
    /// [`PoolError`] if the guarantee cannot be kept: the job does not fit, and must be refused.
    pub fn share(&self, guaranteed: u32, wanted: u32, overdraft: u32) -> Result<Share, PoolError> {
        let mut inner = self.0.borrow_mut();
        let available = inner.free.len() as u32 - inner.unfilled;
        if guaranteed > available {
            return Err(PoolError { needed: guaranteed, available });
        }
        inner.unfilled += guaranteed;
        Ok(Share { pool: self.clone(), guaranteed, wanted, overdraft, used: 0, overdrawn: 0 })
    }
}

/// What one partition may take from its shard's pool. Every segment taken must be given back before drop.
pub struct Share {
    pool: Pool,
    guaranteed: u32,
    wanted: u32,
    overdraft: u32,
    used: u32,
    overdrawn: u32,
}

impl Share {
    /// Takes a segment within the share's size, if there is one.
    pub fn take(&mut self) -> Option<SegmentId> {
        if !self.has_free() {
            return None;
        }
        let mut inner = self.pool.0.borrow_mut();
        if self.used < self.guaranteed {
            inner.unfilled -= 1;
        }
        self.used += 1;
        inner.free.pop()
    }

    /// Takes a segment beyond the share's size, to finish the record in work.
    pub fn overdraw(&mut self) -> Option<SegmentId> {
        let mut inner = self.pool.0.borrow_mut();
        if self.overdrawn == self.overdraft
            || inner.overdraft_free == 0
            || inner.free.len() as u32 <= inner.unfilled
        {
            return None;
        }
        inner.overdraft_free -= 1;
        self.overdrawn += 1;
        inner.free.pop()
    }

    /// Gives a segment back, overdraft first.
    pub fn give_back(&mut self, segment: SegmentId) {
        let mut inner = self.pool.0.borrow_mut();
        if self.overdrawn > 0 {
            self.overdrawn -= 1;
            inner.overdraft_free += 1;
        } else {
            assert!(self.used > 0, "segment {segment:?} came back to a share that has none out");
            self.used -= 1;
            if self.used < self.guaranteed {
                inner.unfilled += 1;
            }
        }
        inner.free.push(segment);
    }

    /// Whether `take` would give a segment.
    pub fn has_free(&self) -> bool {
        if self.used < self.guaranteed {
            return true;
        }
        let inner = self.pool.0.borrow();
        self.used < self.wanted && inner.free.len() as u32 > inner.unfilled
    }

    /// Segments taken and not given back, overdraft included.
    pub fn used(&self) -> u32 {
        self.used + self.overdrawn
    }

    /// Segments taken beyond the share's size.
    pub fn overdrawn(&self) -> u32 {
        self.overdrawn
    }

    /// Segments that the share may use without overdraft.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// The region that the segments lie in.
    pub fn region(&self) -> Arc<Region> {
        self.pool.region()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pool(segments: u32, reserve: u32) -> Pool {
        Pool::new(Arc::new(Region::map(segments, 64).expect("a small mapping")), reserve)
    }

    /// Goal: a guarantee is kept whatever others take, and a pool that cannot keep it is refused.
    #[test]
    fn guaranteed_segments_are_there_whatever_the_others_take() {
        let pool = pool(10, 0);
        let mut greedy = pool.share(2, 100, 0).expect("two of ten");
        let mut modest = pool.share(3, 3, 0).expect("three of eight");
        let taken: Vec<_> = std::iter::from_fn(|| greedy.take()).collect();
        assert_eq!(taken.len(), 7, "ten less the three that are promised");
        assert_eq!(std::iter::from_fn(|| modest.take()).count(), 3);
        assert_eq!(pool.usage(), PoolUse { total: 10, free: 0 });
        assert_eq!(pool.share(1, 1, 0).err(), Some(PoolError { needed: 1, available: 0 }));
        taken.into_iter().for_each(|s| greedy.give_back(s));
        assert_eq!(pool.usage().free, 7);
        assert_eq!(pool.share(6, 6, 0).err(), Some(PoolError { needed: 6, available: 5 }));
    }

    /// Goal: overdraft is bounded by the share's own limit and by the common reserve, and is repaid first.
    #[test]
    fn overdraft_is_bounded_and_repaid_first() {
        let pool = pool(10, 3);
        let mut a = pool.share(1, 2, 2).expect("fits");
        let mut b = pool.share(1, 2, 2).expect("fits");
        let mut held: Vec<_> = std::iter::from_fn(|| a.take()).collect();
        assert_eq!(held.len(), 2);
        held.extend(std::iter::from_fn(|| a.overdraw()));
        assert_eq!((held.len(), a.overdrawn()), (4, 2));
        assert_eq!(std::iter::from_fn(|| b.overdraw()).count(), 1, "one of the reserve of three is left");
        a.give_back(held.pop().expect("four are held"));
        assert_eq!((a.used(), a.overdrawn()), (3, 1));
        assert!(!a.has_free());
    }
}
