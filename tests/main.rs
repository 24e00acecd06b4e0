//! Tests across crates, one scenario a file.

mod scenario;
