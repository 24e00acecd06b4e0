//! Programs around the engine.
