//! Configuration: every key with its name, unit, default and bounds.
