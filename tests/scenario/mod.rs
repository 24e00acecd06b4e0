//! The scenarios.

mod demos;
mod drivers;
mod failures;
mod jobs;
mod support;
mod wordcount;
