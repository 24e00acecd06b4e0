//! Credit: how many more segments the consumer of one channel will hold.
//!
//! One credit is the consumer's promise to hold one more segment, so what was sent is never refused.
//! Counts segments, never bytes; events need none. Segments belong to their writer's pool all the way, so
//! credit bounds what the receiver may *hold*, and the writer's pool bounds memory.
//!
//! | total      | written by | read by            |
//! | ---------- | ---------- | ------------------ |
//! | `granted`  | consumer   | producer, consumer |
//! | `sent`     | producer   | producer           |
//! | `announced`| producer   | producer, consumer |
//! | `received` | consumer   | consumer           |
//! | `returned` | consumer   | consumer           |
//!
//! Invariant: `returned <= received <= sent <= granted = returned + exclusive + lent`. A permit that was lent
//! is taken back by not granting again, so `granted` never falls. `announced = sent + backlog` is what the
//! producer could use; the consumer lends towards it and never beyond, so no lent permit lies unused while
//! another channel waits for it. Each side asserts the half it can see. Totals wrap at 2^32, so code
//! compares differences.
//!
//! Why totals, not one counter that both sides edit: each cache line has one writer, and reading a stale
//! total costs a delay, never a lost segment.
//!
//! After Kung, Blackwell and Chapman, "Credit-based flow control for ATM networks", 1994.

/// The consumer's half.
#[derive(Debug, Clone)]
pub struct Grants {
    exclusive: u32,
    granted: u32,
    received: u32,
    returned: u32,
}

impl Grants {
    /// Grants `exclusive` segments to begin with.
    pub fn new(exclusive: u32) -> Self {
        Grants { exclusive, granted: exclusive, received: 0, returned: 0 }
    }

    /// A buffer was taken from the ring.
    #[inline]
    pub fn receive(&mut self) {
        assert!(
            self.granted.wrapping_sub(self.received) > 0,
            "buffer {} was sent with only {} granted",
            self.received,
            self.granted
        );
        self.received = self.received.wrapping_add(1);
    }

    /// A segment went back to its owner.
    #[inline]
    pub fn give_back(&mut self) {
        assert_ne!(self.returned, self.received, "more segments go back than came");
        self.returned = self.returned.wrapping_add(1);
    }

    /// Grants up to what the exclusive permits and `lent` floating ones allow.
    #[inline]
    pub fn grant(&mut self, lent: u32) {
        let aim = self.returned.wrapping_add(self.exclusive + lent);
        // Permits that were taken back may leave more granted than aimed at: wait until it evens out.
        if (aim.wrapping_sub(self.granted) as i32) > 0 {
            self.granted = aim;
        }
    }

    /// Total granted.
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// How many of the `announced` buffers no credit was granted for.
    #[inline]
    pub fn short_of(&self, announced: u32) -> u32 {
        (announced.wrapping_sub(self.granted) as i32).max(0) as u32
    }

    /// How many of the `announced` buffers were not taken from the ring.
    #[inline]
    pub fn behind(&self, announced: u32) -> u32 {
        (announced.wrapping_sub(self.received) as i32).max(0) as u32
    }

    /// Permits that are out: granted and not yet returned.
    pub fn outstanding(&self) -> u32 {
        self.granted.wrapping_sub(self.returned)
    }

    /// Segments taken from the ring and not given back.
    pub fn held(&self) -> u32 {
        self.received.wrapping_sub(self.returned)
    }
}

/// The producer's half.
#[derive(Debug, Clone)]
pub struct Spending {
    granted: u32,
    sent: u32,
}

impl Spending {
    /// Begins with `granted` credits.
    pub fn new(granted: u32) -> Self {
        Spending { granted, sent: 0 }
    }

    /// Takes note of the consumer's total.
    #[inline]
    pub fn refresh(&mut self, granted: u32) {
        self.granted = granted;
        assert!((self.granted.wrapping_sub(self.sent) as i32) >= 0, "{} sent of {}", self.sent, self.granted);
    }

    /// The consumer's total as last taken note of.
    #[inline]
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// Credits left.
    #[inline]
    pub fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// Uses one credit.
    #[inline]
    pub fn spend(&mut self) {
        assert!(self.available() > 0, "buffer {} is sent without credit", self.sent);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Total sent.
    pub fn sent(&self) -> u32 {
        self.sent
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: lending raises what may be out, taking back lowers it without ever lowering the total, also
    /// where the totals wrap.
    #[test]
    fn permits_are_lent_and_taken_back_without_lowering_the_total() {
        for start in [0u32, u32::MAX - 3] {
            let mut grants =
                Grants { exclusive: 2, granted: start.wrapping_add(2), received: start, returned: start };
            let mut spending = Spending { granted: grants.granted(), sent: start };
            grants.grant(3);
            spending.refresh(grants.granted());
            assert_eq!(spending.available(), 5);
            for _ in 0..5 {
                spending.spend();
                grants.receive();
            }
            // All three floating permits go to another channel: three returns grant nothing.
            for outstanding in [4, 3, 2, 2, 2] {
                grants.give_back();
                grants.grant(0);
                assert_eq!(grants.outstanding(), outstanding);
            }
            spending.refresh(grants.granted());
            assert_eq!(spending.available(), 2);
        }
    }

    #[test]
    #[should_panic(expected = "without credit")]
    fn sending_without_credit_is_a_bug() {
        Spending::new(0).spend();
    }
}
