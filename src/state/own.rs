//! State of an operator that is not keyed: one value a subtask, written whole to every checkpoint.

use super::encode;
use crate::operator::Lifecycle;
use crate::record::Record;
use crate::subtask::{SubtaskContext, operator_failure};
use tidegate_shard::task::TaskFailure;
use tidegate_storage::metadata::StateRef;

/// One value, of which a checkpoint has a copy: keep it to some kilobytes.
pub struct OwnState<W> {
    /// The value.
    pub value: W,
    /// Index of the operator in its vertex.
    operator: usize,
}

impl<W: Record + Default> OwnState<W> {
    /// Of the operator at this index: its default, or what it was at the checkpoint that the job goes on from.
    ///
    /// # Errors
    ///
    /// State that cannot be read, or is no `W`.
    pub(crate) fn new(cx: &SubtaskContext, operator: usize) -> Result<Self, TaskFailure> {
        let mut value = W::default();
        if let Some((checkpoint, pieces)) = cx.restored_state(operator)?
            && let Some(bytes) = pieces.first()
        {
            let mut scratch = W::Scratch::default();
            let view = W::decode(bytes, &mut scratch).map_err(|error| {
                let cause = format!("its state in checkpoint {checkpoint}: {error}");
                operator_failure(&*cx.operator_name(operator), &cause.into())
            })?;
            value = W::from_view(view);
        }
        Ok(OwnState { value, operator })
    }

    /// Its part of what a checkpoint asks for.
    pub(crate) fn lifecycle(&mut self, event: &mut Lifecycle<'_, '_>) {
        if let Lifecycle::Snapshot(snapshot) = event {
            let mut bytes = Vec::new();
            encode(&self.value, &mut bytes);
            snapshot.state_of(self.operator).operator.push(StateRef::Inline(bytes));
        }
    }
}
