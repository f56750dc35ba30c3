//! Every slot of the cache, in an order that can be walked fast.
//!
//! Walking the map itself costs a look-up for each key, ten times what a sweep may cost.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use super::slot::Slot;

/// Rows are locked one at a time, so that a newcomer waits for the walk of one row at most.
const ROWS: usize = 16;

/// Every slot of the cache.
#[derive(Debug, Default)]
pub(super) struct Roster {
    rows: [Mutex<Vec<Arc<Slot>>>; ROWS],
    next_row: AtomicUsize,
}

/// Where a slot sits. Changed only under the lock of its row.
#[derive(Debug, Default)]
pub(super) struct Seat {
    row: AtomicUsize,
    position: AtomicUsize,
}

impl Roster {
    /// Adds a slot that has no seat yet.
    pub(super) fn add(&self, slot: &Arc<Slot>) {
        let row = self.next_row.fetch_add(1, Ordering::Relaxed) % ROWS;
        let mut seats = self.rows[row].lock();
        slot.seat.row.store(row, Ordering::Relaxed);
        slot.seat.position.store(seats.len(), Ordering::Relaxed);
        seats.push(Arc::clone(slot));
    }

    /// Removes a slot; the last of its row takes its seat.
    pub(super) fn remove(&self, slot: &Slot) {
        let mut seats = self.rows[slot.seat.row.load(Ordering::Relaxed)].lock();
        let position = slot.seat.position.load(Ordering::Relaxed);
        if seats.get(position).is_some_and(|seated| std::ptr::eq(&**seated, slot)) {
            seats.swap_remove(position);
            if let Some(moved) = seats.get(position) {
                moved.seat.position.store(position, Ordering::Relaxed);
            }
        }
    }

    /// Those for which `wanted` gives something. It must not lock a slot: whoever retires one holds that lock when it
    /// takes the row's.
    pub(super) fn filter_map<T>(&self, mut wanted: impl FnMut(&Arc<Slot>) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        for row in &self.rows {
            found.extend(row.lock().iter().filter_map(&mut wanted));
        }
        found
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Slot>> {
        self.filter_map(|slot| Some(Arc::clone(slot)))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.iter().map(|row| row.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkspaceId;

    #[test]
    fn seats_stay_right_whatever_the_order_of_leaving() {
        let roster = Roster::default();
        let slots: Vec<_> = (0..100).map(|n| Slot::new(WorkspaceId::new(n.to_string()).unwrap())).collect();
        slots.iter().for_each(|slot| roster.add(slot));
        for slot in slots.iter().step_by(3).chain(slots.iter().rev().step_by(2)) {
            roster.remove(slot);
            roster.remove(slot);
            assert!(roster.all().iter().all(|left| !Arc::ptr_eq(left, slot)));
        }
        slots.iter().for_each(|slot| roster.remove(slot));
        assert_eq!(roster.len(), 0);
    }
}
