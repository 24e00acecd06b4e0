//! The data plane of one core.

pub mod output;
