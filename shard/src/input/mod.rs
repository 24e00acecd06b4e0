//! Inputs: the channels of one subtask, read in turn, buffers in place.

mod channel;
mod gate;

pub use channel::Unread;
pub use gate::{ChannelIndex, GateUsage, InputGate, Next};
