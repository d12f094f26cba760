//! Buffers events while no reader takes them, and counts the events that it drops.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bottle_protocol::session::bundle::BundleEvent;
use tokio::sync::Notify;

/// A bounded queue of events. When it is full, it drops the oldest event. The next reader first receives the number of
/// dropped events.
#[derive(Debug)]
pub struct Backlog {
    capacity: usize,
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<BundleEvent>,
    lost: u64,
}

impl Backlog {
    /// Buffers at most `capacity` events.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, waiting: Mutex::default(), more: Notify::new() }
    }

    /// Adds an event. A [`BundleEvent::Lost`] increases the count of dropped events.
    pub fn push(&self, event: BundleEvent) {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                BundleEvent::Lost { count } => waiting.lost = waiting.lost.saturating_add(count),
                event => waiting.events.push_back(event),
            }
            if waiting.events.len() > self.capacity {
                waiting.events.pop_front();
                waiting.lost = waiting.lost.saturating_add(1);
            }
        }
        self.more.notify_one();
    }

    /// Returns the next event, and waits if there is none. Supports one reader at a time.
    pub async fn next(&self) -> BundleEvent {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            self.more.notified().await;
        }
    }

    /// Puts an event that was not delivered back at the front.
    pub fn put_back(&self, event: BundleEvent) {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                BundleEvent::Lost { count } => waiting.lost = waiting.lost.saturating_add(count),
                event => waiting.events.push_front(event),
            }
        }
        self.more.notify_one();
    }

    fn take(&self) -> Option<BundleEvent> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.lost > 0 {
            let count = std::mem::take(&mut waiting.lost);
            return Some(BundleEvent::Lost { count });
        }
        waiting.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(revision: u64) -> BundleEvent {
        BundleEvent::Live { revision }
    }

    #[tokio::test]
    async fn drops_and_counts_the_oldest_events() {
        let backlog = Backlog::new(2);
        for revision in 1..=4 {
            backlog.push(live(revision));
        }
        assert_eq!(backlog.next().await, BundleEvent::Lost { count: 2 });
        let third = backlog.next().await;
        assert_eq!(third, live(3));
        backlog.put_back(third);
        backlog.push(BundleEvent::Lost { count: 5 });
        assert_eq!(backlog.next().await, BundleEvent::Lost { count: 5 });
        assert_eq!(backlog.next().await, live(3));
        assert_eq!(backlog.next().await, live(4));
    }

    #[tokio::test]
    async fn a_listener_waits_for_the_next_event() {
        let backlog = std::sync::Arc::new(Backlog::new(2));
        let listener = tokio::spawn({
            let backlog = std::sync::Arc::clone(&backlog);
            async move { backlog.next().await }
        });
        tokio::task::yield_now().await;
        backlog.push(live(1));
        assert_eq!(listener.await.expect("listener"), live(1));
    }
}
