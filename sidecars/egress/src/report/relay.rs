//! Queues log lines for the keeper process, which writes them to the bottle's directory.
//!
//! The proxy uses the relay instead of the journal if the keeper cannot read the proxy's directory, as in a container.
//! A line stays in the queue until the keeper has written it. When the queue is full, the oldest lines are dropped, and
//! the relay sends the number of dropped lines before the next line.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bottle_channel::Stream;
use bottle_protocol::session::bundle::{BundleEvent, Written};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::bounds;
use crate::connected_keepers::ConnectedKeepers;

/// The log lines that the keeper has not acknowledged.
#[derive(Default)]
pub(crate) struct LogRelay {
    queue: Mutex<Queue>,
    /// Number of queued lines, including a line about dropped lines.
    count: watch::Sender<usize>,
    keepers: ConnectedKeepers,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    /// Size of the queued lines, in bytes.
    bytes: usize,
    /// The number of lines at the front that were sent and are not acknowledged. A full queue does not drop these
    /// lines.
    sent: usize,
    /// Lines dropped since the last line about dropped lines.
    dropped: u64,
}

impl LogRelay {
    /// Queues one line without its line break. Never blocks on a keeper.
    pub(crate) fn line(&self, line: String) {
        let mut queue = self.queue();
        queue.push(line);
        self.count.send_replace(queue.len());
    }

    /// Sends lines until the stream closes. After a stream closes, its unacknowledged lines are sent over the next
    /// stream.
    pub(crate) async fn serve(&self, mut stream: Stream) {
        let _connected = self.keepers.connect();
        self.send(&mut stream).await;
        self.queue().sent = 0;
    }

    async fn send(&self, stream: &mut Stream) {
        let mut count = self.count.subscribe();
        loop {
            let lines = self.queue().next_batch();
            if lines.is_empty() {
                tokio::select! {
                    more = count.wait_for(|count| *count > 0) => if more.is_err() { return },
                    // The keeper sends nothing while the queue is empty, so this is the end of the stream.
                    _ = stream.next() => return,
                }
                continue;
            }
            if stream.message(&BundleEvent::Logged { lines }).await.is_err() {
                return;
            }
            let Ok(Written {}) = stream.receive::<Written>().await else { return };
            let mut queue = self.queue();
            queue.acknowledge();
            self.count.send_replace(queue.len());
        }
    }

    /// Waits, at shutdown, until a connected keeper has written the queued lines.
    pub(crate) async fn settle(&self) {
        let mut count = self.count.subscribe();
        let settled = async {
            tokio::select! {
                _ = count.wait_for(|count| *count == 0) => {}
                () = self.keepers.none() => {}
            }
        };
        let _ = timeout(bounds::LOG_TAKEN_WITHIN, settled).await;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.lines.len() + usize::from(self.dropped > 0)
    }

    fn push(&mut self, line: String) {
        if line.len() > bounds::LOG_BATCH_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > bounds::LOG_QUEUE_BYTES
            && let Some(oldest) = self.lines.remove(self.sent)
        {
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }

    /// Returns the lines at the front, up to [`bounds::LOG_BATCH_BYTES`] but at least one line. The lines stay in the
    /// queue until [`Queue::acknowledge`] is called.
    fn next_batch(&mut self) -> Vec<String> {
        let lost = std::mem::take(&mut self.dropped);
        if lost > 0 {
            let line = format!("{{\"event\":\"lost\",\"lines\":{lost}}}");
            self.bytes += line.len();
            self.lines.push_front(line);
        }
        let mut bytes = 0;
        let within = |line: &&String| {
            let is_first = bytes == 0;
            bytes += line.len();
            is_first || bytes <= bounds::LOG_BATCH_BYTES
        };
        let lines: Vec<String> = self.lines.iter().take_while(within).cloned().collect();
        self.sent = lines.len();
        lines
    }

    fn acknowledge(&mut self) {
        for line in self.lines.drain(..self.sent) {
            self.bytes -= line.len();
        }
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: usize) -> String {
        format!("{number:01000}")
    }

    #[test]
    fn keeps_the_newest_lines_within_the_bound_and_counts_the_others() {
        let mut queue = Queue::default();
        let all = 2 * bounds::LOG_QUEUE_BYTES / 1000;
        (0..all).for_each(|number| queue.push(line(number)));
        assert!(queue.bytes <= bounds::LOG_QUEUE_BYTES);
        let (kept, dropped) = (queue.lines.len(), queue.dropped);
        assert_eq!(kept as u64 + dropped, all as u64);
        let batch = queue.next_batch();
        assert_eq!(batch[0], format!("{{\"event\":\"lost\",\"lines\":{dropped}}}"));
        assert!(batch.iter().map(String::len).sum::<usize>() <= bounds::LOG_BATCH_BYTES);
        // Sent lines are not dropped, so that the acknowledgement covers exactly the sent lines.
        (0..all).for_each(|number| queue.push(line(number)));
        assert_eq!(queue.lines.iter().take(batch.len()).cloned().collect::<Vec<_>>(), batch);
        queue.acknowledge();
        let mut rest = Vec::new();
        while queue.len() > 0 {
            rest.extend(queue.next_batch());
            queue.acknowledge();
        }
        assert_eq!((rest.last(), queue.bytes), (Some(&line(all - 1)), 0));
        queue.push("x".repeat(bounds::LOG_BATCH_BYTES + 1));
        assert_eq!(
            queue.next_batch(),
            ["{\"event\":\"lost\",\"lines\":1}"],
            "a line that no message can carry"
        );
    }

    #[test]
    fn sends_unacknowledged_lines_again() {
        let mut queue = Queue::default();
        queue.push("one".to_owned());
        assert_eq!(queue.next_batch(), ["one"]);
        queue.push("two".to_owned());
        queue.sent = 0;
        assert_eq!(queue.next_batch(), ["one", "two"]);
        queue.acknowledge();
        assert_eq!(queue.len(), 0);
    }
}
