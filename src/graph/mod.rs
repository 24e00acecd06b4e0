//! The job graph: what is to run, before it is known where.

pub mod key_group;
pub mod logical;
pub mod plan;
