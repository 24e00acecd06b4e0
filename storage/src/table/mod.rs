//! Keyed state tables.
