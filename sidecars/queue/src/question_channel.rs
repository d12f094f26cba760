//! Sends questions over a channel. A daemon sends its questions to its bundle, and the bundle forwards the questions to
//! the keeper process.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_protocol::queue::{Answer, Id, MAX_TEXT, Question, Tool};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, oneshot};

/// The maximum number of pending questions in one process. Further questions are refused. The keeper's limit
/// (`MAX_PENDING`) is lower than this limit, so that the keeper reports a full queue first.
const MOST: usize = 32;

/// The time after the expiry of a question during which an answer is still accepted. The keeper's clock may differ from
/// this process's clock, and an answer takes time to arrive.
const GRACE: Duration = Duration::from_secs(3);

/// The pause before the next request to a peer that refuses to serve questions.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Creates a question with a random id. The question expires after the time `wait`.
#[must_use]
pub fn question(tool: Tool, proposed_file: String, justification: String, wait: Duration) -> Question {
    let wait = jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX);
    let expires_at = Timestamp::now().saturating_add(wait).unwrap_or(Timestamp::MAX);
    let id = Id::from_random(rand::random());
    Question { id, tool, proposed_file, justification, excerpt: Vec::new(), revision: None, expires_at }
}

/// The pending questions of one process. A question waits until a peer connects and sends an answer. All clones share
/// the same questions.
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
    /// Asks a question, and waits until the question has an answer or expires. If the future is dropped, the question
    /// is withdrawn.
    pub async fn ask(&self, question: Question) -> Answer {
        if question.proposed_file.len().max(question.justification.len()) > MAX_TEXT {
            return Answer::Refused("the question is too long for a user".to_owned());
        }
        let Ok(_room) = self.0.room.try_acquire() else {
            return Answer::Refused("too many questions are pending already".to_owned());
        };
        let left = question.expires_at.duration_since(Timestamp::now());
        let left = Duration::try_from(left).unwrap_or_default();
        let (answer, answered) = oneshot::channel();
        self.put(Entry { question, answer }, false);
        match tokio::time::timeout(left + GRACE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Answer::Expired,
        }
    }

    /// Serves one [`BundleRequest::Question`] of a peer. Sends the next question to the peer and receives the answer.
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
                // Sending fails if the asker has just stopped waiting.
                Ok(answer) => drop(entry.answer.send(answer)),
                // The peer has disconnected. The question is sent to the next peer that connects.
                Err(_) => self.put(entry, true),
            },
            () = entry.answer.closed() => stream.reset("the question was withdrawn").await,
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

    /// Removes and returns the first question that has not been withdrawn. Also returns whether more questions are
    /// pending.
    fn take(&self) -> (Option<Entry>, bool) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|entry| !entry.answer.is_closed());
        (waiting.pop_front(), !waiting.is_empty())
    }
}

/// Receives the questions of a peer until the peer disconnects. Calls `ask` for each question, and sends the answer to
/// the peer. If the peer withdraws a question, the future that `ask` returned for the question is dropped.
pub async fn forward<A, F>(peer: &Channel, ask: A)
where
    A: Fn(Question) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok(mut stream) = peer.open(&BundleRequest::Question).await else { return };
        let Ok(BundleEvent::Asked(question)) = stream.receive().await else {
            tokio::select! {
                _ = peer.closed() => return,
                () = tokio::time::sleep(RETRY_PAUSE) => continue,
            }
        };
        let answer = ask(*question);
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                answer = answer => {
                    // An error is ignored, because a peer that has disconnected asks the question again when it
                    // reconnects.
                    if stream.message(&answer).await.is_ok() {
                        let _ = stream.end().await;
                    }
                }
                _ = stream.next() => {}
            }
        });
    }
}
