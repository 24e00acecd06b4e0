//! Where a frame lies: what acks, indexes and metadata carry in the place of data.

use std::fmt;

/// One life of a log file. Never used again, not by another shard, run or recycled file.
///
/// The run of the process in the upper 32 bits, a count within the run in the lower: the run number is durable
/// before the first file of the run is named, so nothing else needs to be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The `count`-th file of a run.
    pub fn new(run: u32, count: u32) -> Incarnation {
        Incarnation(u64::from(run) << 32 | u64::from(count))
    }

    /// The run of the process that began the file.
    pub fn run(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a frame lies and which it is; 24 bytes when encoded.
///
/// A file is recycled under a new incarnation, and `crc` covers incarnation, frame number and the payload's own
/// checksum: a handle never verifies against what was written there in another life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The file.
    pub incarnation: Incarnation,
    /// Where in the file the frame's header begins: a multiple of 4096.
    pub offset: u64,
    /// Bytes of payload, from 64 bytes behind `offset`.
    pub length: u32,
    /// The checksum of the frame's header, in which the payload's is.
    pub crc: u32,
}

impl Handle {
    /// Bytes that the frame takes in its file: header, payload, and padding to whole blocks.
    pub fn stored_bytes(&self) -> u64 {
        crate::format::frame_stored_bytes(self.length as usize) as u64
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}+{}", self.incarnation, self.offset, self.length)
    }
}
