//! Programs around the engine: the simulation of whole jobs.

pub mod sim;
