//! Outputs.

/// All output of one subtask to one exchange.
pub struct ResultPartition {}
