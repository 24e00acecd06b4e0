//! Bounds of the log, with their units, and what happens at each.

use crate::error::StorageError;
use std::time::Duration;

/// What every offset, length and address of a direct write is a multiple of.
///
/// The kernel asks for 512 on most disks, and some ask for 4096; a file system block is 4096, and a block that
/// holds acknowledged bytes is never written again, so nothing smaller would be of use.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Largest payload of one frame: 1 MiB, so that metadata of a large job still is one frame.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Log files that one writer has open at once. At the bound, appends wait until an older one is synced.
pub const OPEN_FILES_MAX: usize = 8;

/// Failed spans that a writer remembers one by one. What is older is failed as a whole: nobody waits so long.
pub const FAILED_SPANS_MAX: usize = 64;

/// How often one write is submitted again that was interrupted, cancelled, or made no whole block of progress.
/// Then its file is given up.
pub const WRITE_RETRIES_MAX: u32 = 8;

/// Which device writes the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// io_uring where a probe of the directory finds it working, else `pwrite` and `fdatasync`.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// `pwrite` and `fdatasync` on a thread of their own.
    Blocking,
}

/// Whether the page cache is passed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectChoice {
    /// `O_DIRECT` where a probe of the directory finds it working.
    #[default]
    Auto,
    /// `O_DIRECT`, or an error that says why not.
    Required,
    /// Through the page cache. The rules of durability are the same.
    Off,
}

/// Bounds of one shard's log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// Bytes of one log file, a multiple of [`ALIGNMENT_BYTES`]. Larger files are synced and switched less often,
    /// smaller ones are free again sooner. Default 64 MiB: 13 ms of the disk at 5 GB/s.
    pub file_size_bytes: u64,
    /// Bytes of one staging block, which is the largest write. Default 256 KiB: with eight in flight this writes
    /// 4.9 GB/s where 32 KiB by 32 writes 3.6.
    pub block_size_bytes: usize,
    /// Staging blocks, each being filled, written or free. At the bound, appends are refused until one is free.
    /// Default 8: the whole 2 MiB fits one huge page and, for several shards, the usual 8 MiB of lockable memory.
    pub blocks: usize,
    /// How long one operation may take before what it carries has failed. Its memory stays with it for as long
    /// as it takes. Default 30 s, as of the kernel's own disk timeout.
    pub operation_deadline: Duration,
    /// Free files kept for use again, for all shards together; more are deleted. Default 8.
    pub spare_files_max: usize,
    /// Which device writes.
    pub backend: BackendChoice,
    /// Whether the page cache is passed by.
    pub direct: DirectChoice,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            file_size_bytes: 64 << 20,
            block_size_bytes: 256 << 10,
            blocks: 8,
            operation_deadline: Duration::from_secs(30),
            spare_files_max: 8,
            backend: BackendChoice::Auto,
            direct: DirectChoice::Auto,
        }
    }
}

impl LogConfig {
    /// The bounds of the coordinator's own log, whose frames are few and small.
    pub fn of_commits(&self) -> LogConfig {
        LogConfig {
            file_size_bytes: (8 << 20).min(self.file_size_bytes),
            blocks: self.blocks.max(3),
            ..self.clone()
        }
    }

    /// The largest payload of one frame under these bounds: it must fit a file beside the file's head, and all
    /// but one of the staging blocks, since a frame need not begin where a block does.
    pub fn frame_payload_bytes_max(&self) -> usize {
        let header = crate::format::FRAME_HEADER_BYTES;
        let in_file = self.file_size_bytes as usize - ALIGNMENT_BYTES - header;
        let in_staging = (self.blocks - 1) * self.block_size_bytes - header;
        FRAME_PAYLOAD_BYTES_MAX.min(in_file).min(in_staging)
    }

    /// Checks the bounds against each other.
    ///
    /// # Errors
    ///
    /// [`StorageError::Config`] names the bound, its value and what is expected.
    pub fn validate(&self) -> Result<(), StorageError> {
        let bad = |name: &'static str, value: u64, expected: &'static str| {
            Err(StorageError::Config { name, value, expected })
        };
        let alignment = ALIGNMENT_BYTES as u64;
        if self.block_size_bytes == 0 || !self.block_size_bytes.is_multiple_of(ALIGNMENT_BYTES) {
            return bad("block_size_bytes", self.block_size_bytes as u64, "a multiple of 4096, and not 0");
        }
        if self.block_size_bytes > 64 << 20 {
            return bad("block_size_bytes", self.block_size_bytes as u64, "at most 64 MiB");
        }
        if !(2..=256).contains(&self.blocks) {
            return bad("blocks", self.blocks as u64, "2 to 256: one is filled while another is written");
        }
        if !self.file_size_bytes.is_multiple_of(alignment) || self.file_size_bytes < 4 * alignment {
            return bad("file_size_bytes", self.file_size_bytes, "a multiple of 4096, at least 16384");
        }
        // Offsets within a file are 32 bits wide in several tables.
        if self.file_size_bytes > 1 << 31 {
            return bad("file_size_bytes", self.file_size_bytes, "at most 2 GiB");
        }
        if self.operation_deadline.is_zero() {
            return bad("operation_deadline", 0, "more than 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_hold_a_mebibyte_in_a_frame() {
        LogConfig::default().validate().unwrap();
        assert_eq!(LogConfig::default().frame_payload_bytes_max(), FRAME_PAYLOAD_BYTES_MAX);
        LogConfig::default().of_commits().validate().unwrap();
        assert_eq!(LogConfig::default().of_commits().frame_payload_bytes_max(), FRAME_PAYLOAD_BYTES_MAX);
    }

    #[test]
    fn each_bad_bound_is_named_with_its_value() {
        let cases: [(LogConfig, &str); 5] = [
            (LogConfig { block_size_bytes: 1000, ..Default::default() }, "block_size_bytes 1000"),
            (LogConfig { blocks: 1, ..Default::default() }, "blocks 1"),
            (LogConfig { file_size_bytes: 5000, ..Default::default() }, "file_size_bytes 5000"),
            (LogConfig { file_size_bytes: 1 << 40, ..Default::default() }, "file_size_bytes 1099511627776"),
            (LogConfig { operation_deadline: Duration::ZERO, ..Default::default() }, "operation_deadline 0"),
        ];
        for (config, expected) in cases {
            let text = config.validate().unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
