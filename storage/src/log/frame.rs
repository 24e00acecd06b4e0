//! One frame: header, payload, padding. The table is in [`format`](crate::format).

#![forbid(unsafe_code)]

use crate::format::{FRAME_HEADER_BYTES, FRAME_MAGIC, LOG_VERSION};
use crate::handle::{Handle, Incarnation};

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FrameKind {
    /// Entries of state, or in-flight data: bytes of whoever wrote them.
    Data = 1,
    /// A [`FrameIndex`](super::index::FrameIndex): which frames make up one subtask's snapshot.
    Index = 2,
    /// The metadata of a completed checkpoint: its commit point.
    Commit = 3,
}

impl FrameKind {
    fn of(number: u16) -> Option<FrameKind> {
        [FrameKind::Data, FrameKind::Index, FrameKind::Commit].into_iter().find(|kind| *kind as u16 == number)
    }
}

/// What the writer of a frame says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameTag {
    /// What it holds.
    pub kind: FrameKind,
    /// For which checkpoint it was written: after a crash no id found here is used again.
    pub checkpoint: u64,
    /// Whose it is; of a subtask its vertex and index. The log reads nothing into it.
    pub owner: u64,
}

/// All of a frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What its writer said.
    pub tag: FrameTag,
    /// The job.
    pub lineage: u128,
    /// The file's life.
    pub incarnation: Incarnation,
    /// Which frame of the file, from 0.
    pub number: u32,
    /// Bytes of payload.
    pub length: u32,
    /// Checksum of the payload.
    pub payload_crc: u32,
    /// Checksum of all the above.
    pub crc: u32,
}

impl FrameHeader {
    /// Of a payload; computes both checksums.
    pub fn of(
        tag: FrameTag,
        lineage: u128,
        incarnation: Incarnation,
        number: u32,
        payload: &[u8],
    ) -> FrameHeader {
        let length = u32::try_from(payload.len()).expect("payloads are bounded far below 4 GiB");
        let payload_crc = crc32fast::hash(payload);
        let mut header = FrameHeader { tag, lineage, incarnation, number, length, payload_crc, crc: 0 };
        header.crc = crc32fast::hash(&header.encode()[..60]);
        header
    }

    /// The 64 bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4..6].copy_from_slice(&LOG_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.tag.kind as u16).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.lineage.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.number.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.length.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.tag.checkpoint.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.tag.owner.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Reads a header and checks its own checksum; the payload is not looked at.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<FrameHeader, String> {
        let Some(bytes) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Err(format!("{} bytes, a frame header takes {FRAME_HEADER_BYTES}", bytes.len()));
        };
        fn part<const N: usize>(bytes: &[u8; FRAME_HEADER_BYTES], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().expect("within the header")
        }
        if bytes[0..4] != FRAME_MAGIC {
            return Err(format!("no frame: it begins with {:02x?}, not {FRAME_MAGIC:02x?}", &bytes[..4]));
        }
        let crc = u32::from_le_bytes(part(bytes, 60));
        let computed = crc32fast::hash(&bytes[..60]);
        if crc != computed {
            return Err(format!("the frame header's checksum is {crc:08x}, its bytes give {computed:08x}"));
        }
        let version = u16::from_le_bytes(part(bytes, 4));
        if version != LOG_VERSION {
            return Err(format!("frame format version {version}, this program reads {LOG_VERSION}"));
        }
        let kind = u16::from_le_bytes(part(bytes, 6));
        let kind = FrameKind::of(kind).ok_or_else(|| format!("unknown frame kind {kind}"))?;
        Ok(FrameHeader {
            tag: FrameTag {
                kind,
                checkpoint: u64::from_le_bytes(part(bytes, 40)),
                owner: u64::from_le_bytes(part(bytes, 48)),
            },
            lineage: u128::from_le_bytes(part(bytes, 8)),
            incarnation: Incarnation(u64::from_le_bytes(part(bytes, 24))),
            number: u32::from_le_bytes(part(bytes, 32)),
            length: u32::from_le_bytes(part(bytes, 36)),
            payload_crc: u32::from_le_bytes(part(bytes, 56)),
            crc,
        })
    }

    /// Checks that this is the frame that `handle` names, of this job.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn check(&self, lineage: u128, handle: &Handle) -> Result<(), String> {
        if self.incarnation != handle.incarnation {
            return Err(format!(
                "a frame of incarnation {}, {} was expected",
                self.incarnation, handle.incarnation
            ));
        }
        if self.lineage != lineage {
            return Err(format!("a frame of job {:032x}, {lineage:032x} was expected", self.lineage));
        }
        if self.length != handle.length || self.crc != handle.crc {
            return Err(format!(
                "a frame of {} bytes with checksum {:08x}; {} bytes with {:08x} were expected",
                self.length, self.crc, handle.length, handle.crc
            ));
        }
        Ok(())
    }

    /// Checks the payload's checksum.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), String> {
        let computed = crc32fast::hash(payload);
        if computed != self.payload_crc {
            return Err(format!(
                "the payload's checksum is {:08x}, its bytes give {computed:08x}",
                self.payload_crc
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: a header survives its encoding, and no flipped bit of header or payload passes.
        #[test]
        fn a_frame_is_read_back_or_refused(
            checkpoint: u64, owner: u64, lineage: u128, incarnation: u64, number: u32,
            payload in prop::collection::vec(any::<u8>(), 0..300),
            bit in any::<prop::sample::Index>(),
        ) {
            let tag = FrameTag { kind: FrameKind::Index, checkpoint, owner };
            let header = FrameHeader::of(tag, lineage, Incarnation(incarnation), number, &payload);
            let mut bytes = header.encode().to_vec();
            bytes.extend_from_slice(&payload);
            prop_assert_eq!(FrameHeader::decode(&bytes), Ok(header));
            prop_assert_eq!(header.check_payload(&payload), Ok(()));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let passes = FrameHeader::decode(&bytes)
                .is_ok_and(|h| h.check_payload(&bytes[FRAME_HEADER_BYTES..]).is_ok());
            prop_assert!(!passes, "bit {bit} flipped and nobody saw");
        }
    }
}
