//! The job graph: vertices, edges, key groups.

pub mod key_group;
