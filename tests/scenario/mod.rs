//! The scenarios.

mod checkpoint_keys;
mod checkpoints;
mod configuration;
mod demos;
mod drivers;
mod failpoints;
mod failures;
mod faults;
mod flow;
mod inputs;
mod jobs;
mod kills;
mod simulation;
mod support;
mod wordcount;
mod words;
