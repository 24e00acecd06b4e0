//! The scenarios.

mod demos;
mod drivers;
mod failures;
mod jobs;
mod simulation;
mod support;
mod wordcount;
