//! What a simulation must have reached, counted for each thread.

use std::cell::Cell;

thread_local! {
    static PAGE_SPLITS: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn page_split() {
    PAGE_SPLITS.with(|splits| splits.set(splits.get() + 1));
}

/// Takes the number of pages that were split on this thread since the last call.
pub fn take_page_splits() -> u64 {
    PAGE_SPLITS.with(Cell::take)
}
