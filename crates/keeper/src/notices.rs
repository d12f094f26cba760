//! Buffers notices for the user and broadcasts them to connected clients.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::broadcast;

use super::protocol::Notice;

/// The maximum number of notices that are buffered for clients that connect later. If there are more notices, the
/// oldest are dropped.
const CAPACITY: usize = 256;

/// The notices of one bottle.
#[derive(Debug)]
pub(super) struct Notices {
    buffered: Mutex<VecDeque<Notice>>,
    listeners: broadcast::Sender<Notice>,
}

impl Notices {
    pub(super) fn new() -> Self {
        Self { buffered: Mutex::default(), listeners: broadcast::channel(CAPACITY).0 }
    }

    pub(super) fn send(&self, notice: Notice) {
        let mut buffered = self.buffered.lock().unwrap_or_else(PoisonError::into_inner);
        if buffered.len() == CAPACITY {
            buffered.pop_front();
        }
        buffered.push_back(notice.clone());
        // The notice is sent while the lock is held, so that a new listener receives each notice exactly once. `send`
        // fails if there are no listeners, and this error is ignored.
        let _ = self.listeners.send(notice);
    }

    /// Returns the buffered notices and a receiver for new notices.
    pub(super) fn subscribe(&self) -> (Vec<Notice>, broadcast::Receiver<Notice>) {
        let buffered = self.buffered.lock().unwrap_or_else(PoisonError::into_inner);
        (buffered.iter().cloned().collect(), self.listeners.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_subscriber_gets_the_latest_notices_each_once() {
        let notices = Notices::new();
        for n in 0..=CAPACITY {
            notices.send(Notice::Warning(n.to_string()));
        }
        let (buffered, mut receiver) = notices.subscribe();
        assert_eq!(buffered.len(), CAPACITY);
        assert_eq!(buffered[0], Notice::Warning("1".to_owned()));
        notices.send(Notice::Warning("new".to_owned()));
        assert_eq!(receiver.try_recv().expect("a notice"), Notice::Warning("new".to_owned()));
        assert!(receiver.try_recv().is_err());
    }
}
