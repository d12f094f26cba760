//! What the user should hear of, kept for whoever listens later, and told to whoever listens now.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::broadcast;

use super::protocol::Notice;

/// Notices kept for a client that comes later.
const KEPT: usize = 256;

/// The notices of one bottle.
#[derive(Debug)]
pub(super) struct Notices {
    kept: Mutex<VecDeque<Notice>>,
    listeners: broadcast::Sender<Notice>,
}

impl Notices {
    pub(super) fn new() -> Self {
        Self { kept: Mutex::default(), listeners: broadcast::channel(KEPT).0 }
    }

    pub(super) fn tell(&self, notice: Notice) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(notice.clone());
        // Sent under the lock, so that a new listener gets each notice exactly once. Nobody listening is
        // no error.
        let _ = self.listeners.send(notice);
    }

    /// Those so far, and a receiver of those to come.
    pub(super) fn listen(&self) -> (Vec<Notice>, broadcast::Receiver<Notice>) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.iter().cloned().collect(), self.listeners.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_listener_gets_the_latest_and_each_once() {
        let notices = Notices::new();
        for n in 0..=KEPT {
            notices.tell(Notice::Warning(n.to_string()));
        }
        let (kept, mut coming) = notices.listen();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0], Notice::Warning("1".to_owned()));
        notices.tell(Notice::Warning("new".to_owned()));
        assert_eq!(coming.try_recv().expect("a notice"), Notice::Warning("new".to_owned()));
        assert!(coming.try_recv().is_err());
    }
}
