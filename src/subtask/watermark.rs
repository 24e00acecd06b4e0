//! The watermark of a task with several channels: the least of those that are not idle.

use crate::operator::Control;

#[derive(Debug, Clone, Copy)]
struct ChannelTime {
    watermark: i64,
    idle: bool,
}

/// Combines the watermarks and idleness of channels.
#[derive(Debug)]
pub(super) struct WatermarkValve {
    channels: Vec<ChannelTime>,
    watermark: i64,
    idle: bool,
}

impl WatermarkValve {
    pub fn new(channels: u32) -> Self {
        let start = ChannelTime { watermark: i64::MIN, idle: false };
        WatermarkValve { channels: vec![start; channels as usize], watermark: i64::MIN, idle: false }
    }

    /// Takes what a channel said; `emit` is called with what follows from it for the task.
    pub fn take(&mut self, channel: u32, control: Control, mut emit: impl FnMut(Control)) {
        let time = &mut self.channels[channel as usize];
        match control {
            Control::Watermark(at) => {
                time.watermark = time.watermark.max(at);
                // A channel that knows the time is not idle.
                time.idle = false;
            }
            Control::Idle => time.idle = true,
            Control::Active => time.idle = false,
            Control::Marker { .. } => return emit(control),
        }
        self.update(emit);
    }

    /// A channel has ended: it no longer holds the others back.
    pub fn end(&mut self, channel: u32, emit: impl FnMut(Control)) {
        self.channels[channel as usize] = ChannelTime { watermark: i64::MAX, idle: true };
        self.update(emit);
    }

    fn update(&mut self, mut emit: impl FnMut(Control)) {
        let idle = self.channels.iter().all(|c| c.idle);
        if idle != self.idle {
            self.idle = idle;
            emit(if idle { Control::Idle } else { Control::Active });
        }
        let least = self.channels.iter().filter(|c| !c.idle).map(|c| c.watermark).min();
        if let Some(least) = least
            && least > self.watermark
        {
            self.watermark = least;
            emit(Control::Watermark(least));
        }
    }

    /// The task's watermark, `i64::MIN` before the first.
    pub fn watermark(&self) -> i64 {
        self.watermark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: idle only when all inputs are, said once however often they repeat it; active again with the first
    /// that is.
    #[test]
    fn f59_idleness_is_said_once_when_all_are_idle() {
        let mut valve = WatermarkValve::new(3);
        let mut said = Vec::new();
        for channel in [0, 0, 2, 0, 1, 1, 2, 0] {
            valve.take(channel, Control::Idle, |c| said.push(c));
        }
        assert_eq!(said, [Control::Idle]);
        valve.take(2, Control::Active, |c| said.push(c));
        valve.take(1, Control::Active, |c| said.push(c));
        assert_eq!(said, [Control::Idle, Control::Active]);
    }

    /// Goal: the least watermark counts, an idle channel does not hold it back, idleness is said once and
    /// only when all are idle, and time never goes back.
    #[test]
    fn the_least_watermark_of_active_channels_counts() {
        let mut valve = WatermarkValve::new(2);
        let mut said = Vec::new();
        let script = [
            (0, Control::Watermark(10), vec![]),
            (1, Control::Watermark(5), vec![Control::Watermark(5)]),
            (1, Control::Watermark(4), vec![]),
            (1, Control::Idle, vec![Control::Watermark(10)]),
            (0, Control::Idle, vec![Control::Idle]),
            (0, Control::Idle, vec![]),
            (1, Control::Active, vec![Control::Active]),
            (1, Control::Watermark(8), vec![]),
            (1, Control::Watermark(12), vec![Control::Watermark(12)]),
            (0, Control::Active, vec![]),
        ];
        for (channel, control, expected) in script {
            said.clear();
            valve.take(channel, control, |c| said.push(c));
            assert_eq!(said, expected, "after {control:?} on channel {channel}");
        }
        said.clear();
        valve.end(0, |c| said.push(c));
        assert_eq!(said, []);
        assert_eq!(valve.watermark(), 12);
    }
}
