//! Asking over the channel: in a daemon, and in the bundle between it and the keeper.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_contract::queue::{Answer, Id, MAX_TEXT, Question, Tool};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, oneshot};

/// Questions that are kept at once. More than may wait on disk, so that the sentence about that is the keeper's.
const MOST: usize = 32;

/// The keeper lets a question expire by its own clock; an answer of the last moment takes a little.
const LAST_MOMENT: Duration = Duration::from_secs(3);

/// A peer that does not let questions be waited for is asked again after this.
const REST: Duration = Duration::from_secs(1);

/// A question to a user, with a name of its own.
#[must_use]
pub fn question(tool: Tool, proposed_file: String, justification: String, wait: Duration) -> Question {
    let wait = jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX);
    let expires_at = Timestamp::now().saturating_add(wait).unwrap_or(Timestamp::MAX);
    let id = Id::from_random(rand::random());
    Question { id, tool, proposed_file, justification, revision: None, expires_at }
}

/// Questions that wait for somebody who carries them on, and those that are being carried. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Questions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    waiting: Mutex<VecDeque<Entry>>,
    more: Notify,
    room: Semaphore,
}

impl Default for Inner {
    fn default() -> Self {
        Self { waiting: Mutex::default(), more: Notify::new(), room: Semaphore::new(MOST) }
    }
}

#[derive(Debug)]
struct Entry {
    question: Question,
    answer: oneshot::Sender<Answer>,
}

impl Questions {
    /// Asks, and waits for the answer for as long as the question says. Holds nothing else up; dropped, the
    /// question is taken back.
    pub async fn ask(&self, question: Question) -> Answer {
        if question.proposed_file.len().max(question.justification.len()) > MAX_TEXT {
            return Answer::Refused("the question is too long for a user".to_owned());
        }
        let Ok(_room) = self.0.room.try_acquire() else {
            return Answer::Refused("too many questions wait for a user already".to_owned());
        };
        let left = question.expires_at.duration_since(Timestamp::now());
        let left = Duration::try_from(left).unwrap_or_default();
        let (answer, answered) = oneshot::channel();
        self.put(Entry { question, answer }, false);
        match tokio::time::timeout(left + LAST_MOMENT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Answer::Expired,
        }
    }

    /// Serves one [`BundleRequest::Question`]: hands the next question over and takes its answer.
    pub async fn serve(&self, mut stream: Stream) {
        let mut entry = tokio::select! {
            entry = self.next() => entry,
            _ = stream.next() => return,
        };
        if stream.message(&BundleEvent::Asked(Box::new(entry.question.clone()))).await.is_err() {
            self.put(entry, true);
            return;
        }
        tokio::select! {
            answer = stream.receive::<Answer>() => match answer {
                // Whoever asked may have stopped waiting this moment.
                Ok(answer) => drop(entry.answer.send(answer)),
                // Whoever carried it is gone; the next one gets it.
                Err(_) => self.put(entry, true),
            },
            () = entry.answer.closed() => stream.reset("nobody asks this any more").await,
        }
    }

    fn put(&self, entry: Entry, first: bool) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if first {
            waiting.push_front(entry);
        } else {
            waiting.push_back(entry);
        }
        drop(waiting);
        self.0.more.notify_one();
    }

    async fn next(&self) -> Entry {
        loop {
            let (next, more) = self.take();
            if more {
                self.0.more.notify_one();
            }
            match next {
                Some(entry) => return entry,
                None => self.0.more.notified().await,
            }
        }
    }

    /// The first that somebody still asks, and whether others wait behind it.
    fn take(&self) -> (Option<Entry>, bool) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|entry| !entry.answer.is_closed());
        (waiting.pop_front(), !waiting.is_empty())
    }
}

/// Takes the questions of a peer for as long as it lives and has each answered by `ask`. One that the peer
/// takes back is dropped.
pub async fn carry<A, F>(peer: &Channel, ask: A)
where
    A: Fn(Question) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok(mut stream) = peer.open(&BundleRequest::Question).await else { return };
        let Ok(BundleEvent::Asked(question)) = stream.receive().await else {
            tokio::select! {
                _ = peer.closed() => return,
                () = tokio::time::sleep(REST) => continue,
            }
        };
        let answer = ask(*question);
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                answer = answer => {
                    // A peer that is gone asks again when it is back.
                    if stream.message(&answer).await.is_ok() {
                        let _ = stream.end().await;
                    }
                }
                _ = stream.next() => {}
            }
        });
    }
}
