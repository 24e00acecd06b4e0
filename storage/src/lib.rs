//! What outlives a process.

pub mod table;
