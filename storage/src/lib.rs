//! What outlives a process.

#[cfg(feature = "sim")]
pub mod sim;
pub mod table;
