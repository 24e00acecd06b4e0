//! Finding the end of a log that nobody else describes: the coordinator's commits.
//!
//! Frames are taken one behind the other as long as they are this file's, in number and in checksum. Where one
//! is not, the rest of the file is looked through for a later frame of the *same incarnation*. There is none: the
//! tail was torn by a crash, and is cut. There is one: something that was complete is damaged, since a commit is
//! begun only when the one before is durable, and that is an error, which names file and offset.

#![forbid(unsafe_code)]

use super::file::FileName;
use super::frame::FrameHeader;
use crate::config::{ALIGNMENT_BYTES, FRAME_PAYLOAD_BYTES_MAX};
use crate::device::directory::{Directory, ReadBuffer, ReadFile, ReadMode};
use crate::error::StorageError;
use crate::format::{FILE_HEAD_BYTES, FRAME_HEADER_BYTES, frame_stored_bytes};
use crate::handle::Handle;

/// How a log ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// Behind the last frame there is nothing of this file.
    Clean,
    /// Something was begun there and is not whole: a crash.
    Torn {
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
}

/// A frame that a scan found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its header.
    pub header: FrameHeader,
    /// Where it lies.
    pub handle: Handle,
    /// What it holds.
    pub payload: Vec<u8>,
}

/// What a scan found.
#[derive(Debug, Clone)]
pub struct Scan {
    /// All whole frames, in order.
    pub frames: Vec<Found>,
    /// Behind the last of them.
    pub end: u64,
    /// How it ends.
    pub tail: Tail,
}

/// Reads a file of frames that were written one at a time, up to its end.
///
/// # Errors
///
/// [`StorageError::Corrupt`] where a frame is damaged that was complete; [`StorageError::Io`] where the disk
/// refuses.
pub fn scan(directory: &dyn Directory, name: FileName) -> Result<Scan, StorageError> {
    let text = name.to_name();
    let path = directory.path(&text);
    let io = |e| StorageError::io("read", &path, e);
    let file = directory.open_read(&text, ReadMode::Cached).map_err(io)?;
    let mut buffer = ReadBuffer::new();
    let mut scan = Scan { frames: Vec::new(), end: FILE_HEAD_BYTES as u64, tail: Tail::Clean };
    let head = buffer.bytes(FILE_HEAD_BYTES);
    let read = file.read_at(0, head).map_err(io)?;
    let head = name.check_head(&path, &head[..read]);
    if let Err(error @ StorageError::Version { .. }) = head {
        return Err(error);
    }
    loop {
        let number = scan.frames.len() as u32;
        let what = match frame_at(&*file, &mut buffer, name, scan.end).map_err(io)? {
            Ok(found) if found.header.number == number => {
                scan.end += found.handle.stored_bytes();
                scan.frames.push(found);
                continue;
            }
            Ok(found) => format!("frame {}, {number} was expected", found.header.number),
            Err(what) => what,
        };
        if let Some(offset) = later_frame(&*file, &mut buffer, name, scan.end, number).map_err(io)? {
            let what =
                format!("{what}; a later frame at {offset} is whole, so this is damage, not a torn tail");
            return Err(StorageError::corrupt(&path, scan.end, what));
        }
        if let Err(error) = head
            && number > 1
        {
            // The head is written and synced with the first frame, which a crash may tear, and is durable before
            // there is a second.
            return Err(error);
        }
        // A header of ours that came through says that something was begun; so does a head without a frame.
        if begun(&*file, &mut buffer, name, scan.end).map_err(io)? {
            scan.tail = Tail::Torn { offset: scan.end, what };
        }
        return Ok(scan);
    }
}

fn is_ours(header: &FrameHeader, name: FileName) -> bool {
    header.lineage == name.lineage && header.incarnation == name.incarnation
}

fn header_at(
    file: &dyn ReadFile,
    buffer: &mut ReadBuffer,
    name: FileName,
    offset: u64,
) -> std::io::Result<Result<FrameHeader, String>> {
    let bytes = buffer.bytes(ALIGNMENT_BYTES);
    let read = file.read_at(offset, bytes)?;
    Ok(FrameHeader::decode(&bytes[..read]).and_then(|header| {
        if !is_ours(&header, name) {
            return Err(format!(
                "a frame of job {:032x} and incarnation {}",
                header.lineage, header.incarnation
            ));
        }
        if header.length as usize > FRAME_PAYLOAD_BYTES_MAX {
            return Err(format!("a frame of {} bytes, at most {FRAME_PAYLOAD_BYTES_MAX}", header.length));
        }
        Ok(header)
    }))
}

fn frame_at(
    file: &dyn ReadFile,
    buffer: &mut ReadBuffer,
    name: FileName,
    offset: u64,
) -> std::io::Result<Result<Found, String>> {
    let header = match header_at(file, buffer, name, offset)? {
        Ok(header) => header,
        Err(what) => return Ok(Err(what)),
    };
    let length = header.length as usize;
    let bytes = buffer.bytes(frame_stored_bytes(length));
    let read = file.read_at(offset, bytes)?;
    let Some(payload) = bytes[..read].get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length) else {
        return Ok(Err(format!("a frame of {length} bytes, the file ends before")));
    };
    if let Err(what) = header.check_payload(payload) {
        return Ok(Err(what));
    }
    let handle = Handle { incarnation: name.incarnation, offset, length: header.length, crc: header.crc };
    Ok(Ok(Found { header, handle, payload: payload.to_vec() }))
}

/// The first place at or behind `from` where a whole frame of this file begins, other than frame `number` itself.
fn later_frame(
    file: &dyn ReadFile,
    buffer: &mut ReadBuffer,
    name: FileName,
    from: u64,
    number: u32,
) -> std::io::Result<Option<u64>> {
    let mut offset = from;
    while offset < file.size() {
        if let Ok(found) = frame_at(file, buffer, name, offset)?
            && found.header.number > number
        {
            return Ok(Some(offset));
        }
        offset += ALIGNMENT_BYTES as u64;
    }
    Ok(None)
}

/// Whether the header of a frame of this file lies at `offset`.
fn begun(file: &dyn ReadFile, buffer: &mut ReadBuffer, name: FileName, offset: u64) -> std::io::Result<bool> {
    Ok(offset < file.size() && header_at(file, buffer, name, offset)?.is_ok())
}

/// The largest checkpoint id in the headers of a log file's frames, holes or not: no such id is used again.
///
/// # Errors
///
/// The disk refuses.
pub fn largest_checkpoint(directory: &dyn Directory, name: FileName) -> Result<u64, StorageError> {
    let text = name.to_name();
    let path = directory.path(&text);
    let io = |e| StorageError::io("read", &path, e);
    let file = directory.open_read(&text, ReadMode::Cached).map_err(io)?;
    let mut buffer = ReadBuffer::new();
    let (mut largest, mut offset) = (0, FILE_HEAD_BYTES as u64);
    while offset < file.size() {
        offset += match header_at(&*file, &mut buffer, name, offset).map_err(io)? {
            Ok(header) => {
                largest = largest.max(header.tag.checkpoint);
                frame_stored_bytes(header.length as usize) as u64
            }
            Err(_) => ALIGNMENT_BYTES as u64,
        };
    }
    Ok(largest)
}
