//! Writes questions to disk and waits for their answers, in the keeper.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bottle_contract::names::Slug;
use bottle_contract::queue::{Answer, Id, MAX_PENDING, MAX_TEXT, Proposal, Question, Response, Status};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::spawn_blocking;

use crate::cooldown::{self, Cooldowns};
use crate::file::Unreadable;
use crate::folder::{Asked, Folder, RespondError, SubmitError};

/// Interval between checks for an answer. Without one, a check is a failing `open`.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Consecutive failures after which the folder counts as unusable.
const FAILURES: u32 = 25;

/// The longest lifetime of a question.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// How long [`Asker::answer`] waits for the outcome of an answer.
const OUTCOME_WITHIN: Duration = Duration::from_secs(30);

/// Most questions of a bottle in memory before a question in cooldown is refused.
const MOST_WAITING: usize = 4 * MAX_PENDING;

/// Capacity of the channel of outcomes.
const OUTCOMES: usize = 64;

/// The result of an answer: sentences for the user, or why it does not count.
pub type Outcome = Result<Vec<String>, AnswerError>;

/// An answer does not count. The proposal stays pending unless it has another answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AnswerError {
    /// It arrives too late.
    #[error("this question is no longer pending")]
    NotPending,
    /// The process stops.
    #[error("the queue stopped")]
    Stopped,
    /// Applying it takes long.
    #[error("the outcome is not known yet; `bottle audit show` will report it")]
    Late,
    /// Applying it panicked.
    #[error("applying the answer failed")]
    Panicked,
    /// It was not written to the queue.
    #[error("{0}")]
    Respond(Arc<RespondError>),
    /// [`Decide::decided`] failed.
    #[error(transparent)]
    Decide(Arc<dyn Error + Send + Sync>),
}

impl AnswerError {
    /// The error of [`Decide::decided`].
    pub fn decide(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Decide(Arc::from(error.into()))
    }
}

/// A pending question cannot be followed to its answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("cannot use the queue: {0}")]
    Io(#[from] io::Error),
    #[error("the queue stopped")]
    Stopped,
}

impl From<tokio::task::JoinError> for AskError {
    fn from(_: tokio::task::JoinError) -> Self {
        Self::Stopped
    }
}

/// Applies answers in the keeper and observes questions.
pub trait Decide: fmt::Debug + Send + Sync {
    /// Applies an answer. On an error the answer is withdrawn and the proposal stays pending. The
    /// same answer may arrive twice, after a crash.
    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

    /// Removes secrets from a text of a question or an answer, before it is shown, stored or sent.
    fn redacted(&self, text: String) -> String {
        text
    }

    /// Called when a proposal is pending in the queue; `new` is false if it was in the queue before.
    fn asked(&self, _proposal: &Proposal, _new: bool) {}

    /// Called when a proposal is no longer pending, with any result.
    fn settled(&self, _id: &Id) {}
}

/// Asks the user questions of one bottle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    slug: Slug,
    /// Pending questions, each with the channel of its answer.
    waiting: Mutex<Vec<(Proposal, watch::Receiver<Option<Answer>>)>>,
    /// Cooldowns of rejected questions.
    cooldowns: Mutex<Cooldowns>,
    submitting: Mutex<()>,
    decide: Arc<dyn Decide>,
    /// Notified when this process writes an answer.
    answered: Notify,
    /// Outcomes of answers; `None` for a question that is no longer pending.
    outcomes: broadcast::Sender<(Id, Option<Outcome>)>,
}

impl Asker {
    /// Uses the queue of this `$BOTTLE_HOME`. Creates nothing before the first question. `decide`
    /// applies the answers.
    #[must_use]
    pub fn new(home: PathBuf, slug: Slug, decide: Arc<dyn Decide>) -> Self {
        let (waiting, cooldowns) = (Mutex::default(), Mutex::default());
        let (submitting, answered) = (Mutex::default(), Notify::new());
        let outcomes = broadcast::channel(OUTCOMES).0;
        Self(Arc::new(Inner { home, slug, waiting, cooldowns, submitting, decide, answered, outcomes }))
    }

    /// Answers a pending question and returns the outcome.
    ///
    /// # Errors
    /// The reason why the answer does not count. The proposal stays pending unless it has another answer.
    pub async fn answer(&self, response: Response) -> Outcome {
        let id = response.proposal_id.clone();
        // Subscribe first, to miss neither the outcome nor the end of the question.
        let mut outcomes = self.0.outcomes.subscribe();
        if !self.0.is_waiting(&id) {
            return Err(AnswerError::NotPending);
        }
        self.0.in_folder(move |folder| folder.respond(&response)).await?;
        self.0.answered.notify_waiters();
        let settled = async {
            loop {
                match outcomes.recv().await {
                    Ok((of, Some(outcome))) if of == id => return outcome,
                    Ok((of, None)) if of == id && !self.0.is_waiting(&id) => break,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Err(AnswerError::Stopped),
                }
            }
            // The asker disconnected at the same time; remove the answer.
            let id = id.clone();
            self.0.in_folder(move |folder| Ok(folder.withdraw_answer(&id)?)).await?;
            Err(AnswerError::NotPending)
        };
        tokio::time::timeout(OUTCOME_WITHIN, settled).await.unwrap_or(Err(AnswerError::Late))
    }

    /// Asks a question and waits for the answer. An equal question that is pending shares its answer.
    /// A question that was rejected before is shown only after a cooldown: 10 s, doubled with each
    /// further rejection, up to half an hour.
    ///
    /// Dropping the future abandons the question: the proposal stays in the queue and becomes stale.
    pub async fn ask(&self, mut question: Question) -> Answer {
        let now = Timestamp::now();
        let redacted = |text| self.0.decide.redacted(text);
        question.proposed_file = redacted(question.proposed_file);
        question.justification = redacted(question.justification);
        if question.proposed_file.len().max(question.justification.len()) > MAX_TEXT {
            return Answer::Refused("the question is too long for a user".to_owned());
        }
        question.expires_at = question.expires_at.min(now + LONGEST);
        let proposal = Proposal::new(self.0.slug.clone(), question, now);
        let mut answer = self.enqueue(proposal);
        match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or(Answer::Expired),
            Err(_) => Answer::Refused(AskError::Stopped.to_string()),
        }
    }

    /// Adds a question, or joins an equal one. Returns the channel of its answer.
    fn enqueue(&self, proposal: Proposal) -> watch::Receiver<Option<Answer>> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = cooldown::keys(&proposal);
        let (until, before) = self.0.cooldowns().record_question(&keys, Instant::now());
        let same = |other: &Proposal| other.id == proposal.id || other.asks_the_same(&proposal);
        if let Some((_, answer)) = waiting.iter().find(|(other, _)| same(other)) {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        if until.is_some() && waiting.len() >= MOST_WAITING {
            sender.send_replace(Some(Answer::Refused(
                "too many questions are pending that were rejected before".to_owned(),
            )));
            return answer;
        }
        let id = proposal.id.clone();
        let proposal = Proposal { asked_before: before, ..proposal };
        waiting.push((proposal.clone(), answer.clone()));
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            let listed = Listed { inner: Arc::clone(&inner), id };
            let answer = {
                let mut abandoned = pin!(abandoned(&sender, &listed));
                match wait_for_cooldown(until, proposal.expires_at, abandoned.as_mut()).await {
                    Ok(()) => inner
                        .ask_on_disk(proposal, abandoned)
                        .await
                        .unwrap_or_else(|error| Answer::Refused(error.to_string())),
                    Err(answer) => answer,
                }
            };
            // Remove it from the list first, so that a later equal question does not join it.
            drop(listed);
            sender.send_replace(Some(answer));
        });
        answer
    }
}

/// Waits until the cooldown of a rejected question ends.
///
/// # Errors
/// The question's answer, if it expires or is abandoned before.
async fn wait_for_cooldown(
    until: Option<Instant>,
    expires_at: Timestamp,
    abandoned: impl Future<Output = ()>,
) -> Result<(), Answer> {
    let Some(until) = until else { return Ok(()) };
    let left = Duration::try_from(expires_at.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::select! {
        () = tokio::time::sleep_until(until.into()) => Ok(()),
        () = tokio::time::sleep(left) => Err(Answer::Expired),
        () = abandoned => Err(Answer::Refused(AnswerError::NotPending.to_string())),
    }
}

/// Removes the question from the list once only the list waits for its answer, then returns.
async fn abandoned(sender: &watch::Sender<Option<Answer>>, listed: &Listed) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // Under the list's lock, so that no caller joins meanwhile.
        let mut waiting = listed.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.receiver_count() <= 1 {
            waiting.retain(|(other, _)| other.id != listed.id);
            return;
        }
    }
}

/// Removes a question from the list on drop, even after a panic.
struct Listed {
    inner: Arc<Inner>,
    id: Id,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(other, _)| other.id != self.id);
        drop(waiting);
        self.inner.decide.settled(&self.id);
        let _ = self.inner.outcomes.send((self.id.clone(), None));
    }
}

impl Inner {
    fn cooldowns(&self) -> MutexGuard<'_, Cooldowns> {
        self.cooldowns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the question is pending.
    fn is_waiting(&self, id: &Id) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().any(|(other, _)| other.id == *id)
    }

    /// Runs a blocking operation on the bottle's existing folder.
    async fn in_folder(
        self: &Arc<Self>,
        act: impl FnOnce(Folder) -> Result<(), RespondError> + Send + 'static,
    ) -> Result<(), AnswerError> {
        let inner = Arc::clone(self);
        let result = spawn_blocking(move || act(Folder::open(&inner.home, &inner.slug)?));
        let result = result.await.map_err(|_| AnswerError::Stopped)?;
        result.map_err(|error| AnswerError::Respond(Arc::new(error)))
    }

    /// Writes the proposal and waits for its answer, or until it is abandoned. Always completes an
    /// answer that is being applied.
    async fn ask_on_disk(
        self: &Arc<Self>,
        proposal: Proposal,
        abandoned: impl Future<Output = ()>,
    ) -> Result<Answer, AskError> {
        let inner = Arc::clone(self);
        let (folder, asked) = spawn_blocking(move || inner.submit(proposal)).await??;
        self.decide.asked(&asked.proposal, asked.new);
        let pending = Arc::new((folder, asked));
        let mut failures = 0;
        tokio::pin!(abandoned);
        loop {
            let current = Arc::clone(&pending);
            let step = match spawn_blocking(move || poll(&current.0, &current.1)).await? {
                Ok(Some(Progress::Done(answer))) => return Ok(answer),
                Ok(Some(Progress::Decided(response))) => self.apply(&pending, *response).await,
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match step {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => failures = 0,
                Err(error) if failures >= FAILURES => return Err(error.into()),
                Err(_) => failures += 1,
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.answered.notified() => {}
                () = &mut abandoned => return Ok(Answer::Refused(AnswerError::NotPending.to_string())),
            }
        }
    }

    /// Applies an answer. `None` on failure: then the answer is withdrawn and the proposal stays pending.
    async fn apply(
        self: &Arc<Self>,
        pending: &Arc<(Folder, Asked)>,
        response: Response,
    ) -> io::Result<Option<Answer>> {
        let id = response.proposal_id.clone();
        let notes = response.notes.map(|notes| self.decide.redacted(notes));
        let response = Response { notes, ..response };
        // In a separate task: the question stays pending if it panics.
        let applied = tokio::spawn(self.decide.decided(pending.1.proposal.clone(), response.clone())).await;
        let outcome = applied.unwrap_or_else(|_| Err(AnswerError::Panicked));
        let counts = outcome.is_ok();
        let keys = cooldown::keys(&pending.1.proposal);
        match response.status {
            Status::Rejected => self.cooldowns().reject(keys, Instant::now()),
            Status::Approved | Status::Modified if counts => self.cooldowns().approve(&keys),
            Status::Approved | Status::Modified => {}
        }
        let pending = Arc::clone(pending);
        let moved = spawn_blocking(move || {
            let (folder, id) = (&pending.0, &pending.1.proposal.id);
            if counts { folder.archive(id).map(drop) } else { folder.withdraw_answer(id) }
        });
        let moved = moved.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        // Report the outcome after the folder shows it.
        let _ = self.outcomes.send((id, Some(outcome)));
        moved?;
        Ok(counts.then(|| Answer::Decided(Box::new(response))))
    }

    fn submit(&self, proposal: Proposal) -> Result<(Folder, Asked), SubmitError> {
        // One at a time: each counts the pending proposals before it adds its own.
        let _turn = self.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::make(&self.home, &self.slug)?;
        let asked = folder.submit(proposal, Timestamp::now())?;
        Ok((folder, asked))
    }
}

/// A change in the state of a proposal.
enum Progress {
    /// A new answer, not yet applied.
    Decided(Box<Response>),
    /// The final answer.
    Done(Answer),
}

/// Checks a proposal once for an answer, expiry or removal.
fn poll(folder: &Folder, asked: &Asked) -> io::Result<Option<Progress>> {
    let proposal = &asked.proposal;
    let now = Timestamp::now();
    match folder.answer(proposal, now) {
        Ok(Some(response)) => return Ok(Some(Progress::Decided(Box::new(response)))),
        Ok(None) => {}
        Err(Unreadable::Io(error)) => return Err(error),
        Err(Unreadable::Damaged(why)) => {
            folder.archive(&proposal.id)?;
            let why = format!("cannot use the answer: {why}");
            return Ok(Some(Progress::Done(Answer::Refused(why))));
        }
    }
    if proposal.expires_at <= now {
        folder.close(&proposal.id)?;
        // An answer may have arrived at the last moment; from now on none can.
        return Ok(Some(match folder.answer(proposal, now) {
            // If the archive fails, its author has withdrawn it.
            Ok(Some(response)) if folder.archive_response(&proposal.id)? => {
                Progress::Decided(Box::new(response))
            }
            Err(Unreadable::Io(error)) => return Err(error),
            _ => Progress::Done(Answer::Expired),
        }));
    }
    if !folder.contains(&proposal.id) {
        let why = "the proposal was removed from the queue".to_owned();
        return Ok(Some(Progress::Done(Answer::Refused(why))));
    }
    Ok(None)
}
