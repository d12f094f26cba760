//! Implements the asker, which writes questions to disk and waits for the user's answers. The asker runs in the keeper
//! process.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bottle_policy::names::Slug;
use bottle_protocol::queue::{
    Answer, Id, MAX_PENDING, MAX_TEXT, Proposal, Question, Response, Status, bounded_excerpt,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::spawn_blocking;

use crate::cooldown::{self, Cooldowns};
use crate::queue_directory::{Asked, Directory, RespondError, SubmitError};
use crate::safe_file::Unreadable;

/// The interval at which the asker checks for an answer. If there is no answer, the check makes an `open` call, which
/// fails.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// The maximum number of consecutive failed checks for an answer. If one more check fails, the asker refuses the
/// question.
const FAILURES: u32 = 25;

/// The maximum time that a question may wait for an answer. If a question specifies a later expiry, it expires after
/// this time.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// The time limit for applying an answer. When the limit is reached, [`Asker::answer`] fails with
/// [`AnswerError::Late`].
const OUTCOME_WITHIN: Duration = Duration::from_secs(30);

/// The maximum number of questions of one bottle in memory. If the limit is reached, a further question that has a
/// cooldown is refused. Questions without a cooldown are limited by [`MAX_PENDING`].
const MOST_WAITING: usize = 4 * MAX_PENDING;

/// The number of outcomes that the broadcast channel buffers. A slow receiver misses the oldest outcomes.
const OUTCOMES: usize = 64;

/// The outcome of an answer. If the answer was applied, the outcome contains sentences for the user. Otherwise, the
/// outcome is an error.
pub type Outcome = Result<Vec<String>, AnswerError>;

/// The reason why an answer does not count. [`Self::Late`] instead means that the outcome of the answer is unknown. If
/// applying an answer fails, the proposal remains pending.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AnswerError {
    /// The answer arrived when the proposal was no longer pending.
    #[error("this question is no longer pending")]
    NotPending,
    /// The keeper process is stopping.
    #[error("the queue stopped")]
    Stopped,
    /// The answer is still being applied after 30 s. The answer counts if applying it succeeds later.
    #[error("the outcome is not known yet; `bottle audit show` will report it")]
    Late,
    /// Applying the answer panicked.
    #[error("applying the answer failed")]
    Panicked,
    /// The answer could not be written to the queue.
    #[error("{0}")]
    Respond(Arc<RespondError>),
    /// [`Decide::decided`] failed.
    #[error(transparent)]
    Decide(Arc<dyn Error + Send + Sync>),
}

impl AnswerError {
    /// Wraps an error of [`Decide::decided`].
    pub fn decide(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Decide(Arc::from(error.into()))
    }
}

/// The reason why the asker cannot wait for the answer to a question.
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

/// Applies answers, and receives notifications about questions. The keeper process implements this trait.
pub trait Decide: fmt::Debug + Send + Sync {
    /// Applies an answer to a proposal. If this method fails, the asker withdraws the answer, and the proposal remains
    /// pending. After a crash, this method may receive the same answer a second time.
    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

    /// Removes secrets from the text of a question or an answer before the text is shown, stored or sent.
    fn redacted(&self, text: String) -> String {
        text
    }

    /// Called when a proposal becomes pending in the queue. `new` is false if the proposal was already in the queue.
    fn asked(&self, _proposal: &Proposal, _new: bool) {}

    /// Called when a proposal is no longer pending, for any reason.
    fn settled(&self, _id: &Id) {}
}

/// The stages of a pending question. A question passes through the stages in this order. A question without a cooldown
/// skips the stage `Delayed`.
#[derive(Debug, Clone)]
enum Stage {
    Submitting,
    /// The question waits for its cooldown to end. The question is not in the queue yet.
    Delayed,
    /// The question is in the queue on disk.
    Queued,
    Answered(Answer),
}

/// The author of a question. A question of the user is not delayed by a cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Author {
    Agent,
    User,
}

/// Asks the user the questions of one bottle. All clones share the same pending questions.
#[derive(Debug, Clone)]
pub struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    slug: Slug,
    /// The pending questions. The channel of each question reports the question's stages.
    waiting: Mutex<Vec<(Proposal, watch::Receiver<Stage>)>>,
    /// The cooldowns of rejected subjects, and the times of abandoned questions.
    cooldowns: Mutex<Cooldowns>,
    submitting: Mutex<()>,
    decide: Arc<dyn Decide>,
    /// Notifies the waiting tasks when this process writes an answer to the queue.
    answered: Notify,
    /// Reports the outcomes of answers. `None` means that the question is no longer pending.
    outcomes: broadcast::Sender<(Id, Option<Outcome>)>,
}

impl Asker {
    /// Creates an asker that uses the queue in `home`, which is the directory `$BOTTLE_HOME`. The asker creates no file
    /// before the first question. `decide` applies the answers.
    #[must_use]
    pub fn new(home: PathBuf, slug: Slug, decide: Arc<dyn Decide>) -> Self {
        let (waiting, cooldowns) = (Mutex::default(), Mutex::default());
        let (submitting, answered) = (Mutex::default(), Notify::new());
        let outcomes = broadcast::channel(OUTCOMES).0;
        Self(Arc::new(Inner { home, slug, waiting, cooldowns, submitting, decide, answered, outcomes }))
    }

    /// Answers a pending question, and waits for the outcome.
    ///
    /// # Errors
    /// Fails if the answer does not count. Fails with [`AnswerError::Late`] if the outcome is still unknown after 30 s.
    pub async fn answer(&self, response: Response) -> Outcome {
        let id = response.proposal_id.clone();
        // The method subscribes before it writes the answer, so that it receives both the outcome and the end of the
        // question.
        let mut outcomes = self.0.outcomes.subscribe();
        if !self.0.is_waiting(&id) {
            return Err(AnswerError::NotPending);
        }
        self.0.in_directory(move |directory| directory.respond(&response)).await?;
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
            // The question was abandoned while the answer was written, so the answer is removed.
            let id = id.clone();
            self.0.in_directory(move |directory| Ok(directory.withdraw_answer(&id)?)).await?;
            Err(AnswerError::NotPending)
        };
        tokio::time::timeout(OUTCOME_WITHIN, settled).await.unwrap_or(Err(AnswerError::Late))
    }

    /// Asks the user a question and waits for the answer. If an equal question is pending, both questions get the same
    /// answer. If one of the question's hosts or findings was rejected before, the question is shown only after a
    /// cooldown. The cooldown is 10 s after the first rejection, doubles with each rejection, and is at most half an
    /// hour. If the agent has abandoned 16 questions within a minute, a further question is shown when this minute has
    /// ended.
    ///
    /// If the futures of all equal questions are dropped, the question is abandoned. The question's proposal remains in
    /// the queue and becomes stale.
    pub async fn ask(&self, question: Question) -> Answer {
        match self.begin(question, Author::Agent) {
            Ok(stages) => answer_of(stages).await,
            Err(why) => Answer::Refused(why),
        }
    }

    /// Asks a question on behalf of the user, without a cooldown. Returns after the proposal is in the queue. The
    /// returned future waits for the answer. If the future is dropped, the question is abandoned. If an equal question
    /// of the agent has a cooldown, this method returns immediately, and the proposal enters the queue after the
    /// cooldown.
    ///
    /// # Errors
    /// Fails with the reason why the proposal cannot be added to the queue.
    pub async fn propose(&self, question: Question) -> Result<impl Future<Output = Answer> + use<>, String> {
        let mut stages = self.begin(question, Author::User)?;
        let stage = stages.wait_for(|stage| !matches!(stage, Stage::Submitting)).await;
        match stage.as_deref() {
            Ok(Stage::Answered(Answer::Refused(why))) => return Err(why.clone()),
            Ok(_) => {}
            Err(_) => return Err(AskError::Stopped.to_string()),
        }
        drop(stage);
        Ok(answer_of(stages))
    }

    /// Redacts and limits a question, and adds it to the pending questions. Returns the channel that reports the
    /// question's stages.
    ///
    /// # Errors
    /// Fails with the reason if the question is refused immediately.
    fn begin(&self, mut question: Question, author: Author) -> Result<watch::Receiver<Stage>, String> {
        let now = Timestamp::now();
        let redacted = |text| self.0.decide.redacted(text);
        question.proposed_file = redacted(question.proposed_file);
        question.justification = redacted(question.justification);
        question.excerpt = bounded_excerpt(question.excerpt).into_iter().map(redacted).collect();
        if question.proposed_file.len().max(question.justification.len()) > MAX_TEXT {
            return Err("the question is too long for a user".to_owned());
        }
        question.expires_at = question.expires_at.min(now + LONGEST);
        self.enqueue(Proposal::new(self.0.slug.clone(), question, now), author)
    }

    /// Adds a question to the pending questions. If an equal question is already pending, adds nothing. Returns the
    /// channel that reports the stages of the pending question.
    ///
    /// # Errors
    /// Fails with the reason if the question is refused immediately.
    fn enqueue(&self, proposal: Proposal, author: Author) -> Result<watch::Receiver<Stage>, String> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = cooldown::keys(&proposal);
        let (until, before) = self.0.cooldowns().record_question(&keys, Instant::now());
        let until = until.filter(|_| author == Author::Agent);
        let same = |other: &Proposal| other.id == proposal.id || other.asks_the_same(&proposal);
        if let Some((_, stages)) = waiting.iter().find(|(other, _)| same(other)) {
            return Ok(stages.clone());
        }
        if until.is_some() && waiting.len() >= MOST_WAITING {
            return Err("too many questions wait that were rejected or given up before".to_owned());
        }
        let (sender, stages) = watch::channel(Stage::Submitting);
        let id = proposal.id.clone();
        let proposal = Proposal { asked_before: before, ..proposal };
        waiting.push((proposal.clone(), stages.clone()));
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            let listed = Listed { inner: Arc::clone(&inner), id };
            let answer = {
                let mut abandoned = pin!(abandoned(&sender, &listed));
                if until.is_some() {
                    sender.send_replace(Stage::Delayed);
                }
                match wait_for_cooldown(until, proposal.expires_at, abandoned.as_mut()).await {
                    Ok(()) => inner
                        .ask_on_disk(proposal, &sender, abandoned)
                        .await
                        .unwrap_or_else(|error| Answer::Refused(error.to_string())),
                    Err(answer) => answer,
                }
            };
            // The question is removed from `waiting` before the answer is reported, so that no later question joins it.
            drop(listed);
            sender.send_replace(Stage::Answered(answer));
        });
        Ok(stages)
    }
}

/// Waits for the answer to a question.
async fn answer_of(mut stages: watch::Receiver<Stage>) -> Answer {
    match stages.wait_for(|stage| matches!(stage, Stage::Answered(_))).await.as_deref() {
        Ok(Stage::Answered(answer)) => answer.clone(),
        _ => Answer::Refused(AskError::Stopped.to_string()),
    }
}

/// Waits until `until`, which is the end of the question's cooldown.
///
/// # Errors
/// Fails if the question expires or is abandoned during the cooldown. The error is the answer to the question.
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

/// Waits until all callers have stopped waiting for the question. Then removes the question from [`Inner::waiting`].
async fn abandoned(sender: &watch::Sender<Stage>, listed: &Listed) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // While `waiting` is locked, no other caller can join the question.
        let mut waiting = listed.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.receiver_count() <= 1 {
            waiting.retain(|(other, _)| other.id != listed.id);
            return;
        }
    }
}

/// Removes a question from [`Inner::waiting`] when this value is dropped, even after a panic.
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

    /// Returns whether the question with the id `id` is pending.
    fn is_waiting(&self, id: &Id) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().any(|(other, _)| other.id == *id)
    }

    /// Runs a blocking operation on the bottle's queue directory. The directory must exist.
    async fn in_directory(
        self: &Arc<Self>,
        act: impl FnOnce(Directory) -> Result<(), RespondError> + Send + 'static,
    ) -> Result<(), AnswerError> {
        let inner = Arc::clone(self);
        let result = spawn_blocking(move || act(Directory::open(&inner.home, &inner.slug)?));
        let result = result.await.map_err(|_| AnswerError::Stopped)?;
        result.map_err(|error| AnswerError::Respond(Arc::new(error)))
    }

    /// Writes the proposal to disk, and waits until the proposal has an answer or is abandoned. If an answer is already
    /// being applied, this method waits until the answer has been applied.
    async fn ask_on_disk(
        self: &Arc<Self>,
        proposal: Proposal,
        stages: &watch::Sender<Stage>,
        abandoned: impl Future<Output = ()>,
    ) -> Result<Answer, AskError> {
        let inner = Arc::clone(self);
        let (directory, asked) = spawn_blocking(move || inner.submit(proposal)).await??;
        self.decide.asked(&asked.proposal, asked.new);
        stages.send_replace(Stage::Queued);
        let pending = Arc::new((directory, asked));
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
                () = &mut abandoned => {
                    self.cooldowns().record_abandoned(Instant::now());
                    return Ok(Answer::Refused(AnswerError::NotPending.to_string()));
                }
            }
        }
    }

    /// Applies an answer and archives the proposal. If applying the answer fails, withdraws the answer and returns
    /// `None`, and the proposal remains pending.
    async fn apply(
        self: &Arc<Self>,
        pending: &Arc<(Directory, Asked)>,
        response: Response,
    ) -> io::Result<Option<Answer>> {
        let id = response.proposal_id.clone();
        let notes = response.notes.map(|notes| self.decide.redacted(notes));
        let response = Response { notes, ..response };
        // The answer is applied in a separate task, so that the question remains pending if applying the answer panics.
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
            let (directory, id) = (&pending.0, &pending.1.proposal.id);
            if counts { directory.archive(id).map(drop) } else { directory.withdraw_answer(id) }
        });
        let moved = moved.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        // The outcome is reported only after the files in the queue directory have been updated.
        let _ = self.outcomes.send((id, Some(outcome)));
        moved?;
        Ok(counts.then(|| Answer::Decided(Box::new(response))))
    }

    fn submit(&self, proposal: Proposal) -> Result<(Directory, Asked), SubmitError> {
        // Proposals are submitted one at a time, because each submission counts the pending proposals before it adds
        // its own proposal.
        let _turn = self.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = Directory::make(&self.home, &self.slug)?;
        let asked = directory.submit(proposal, Timestamp::now())?;
        Ok((directory, asked))
    }
}

/// A change in the state of a proposal.
enum Progress {
    /// The proposal has an answer, which has not been applied yet.
    Decided(Box<Response>),
    /// The question has a final answer, which need not be applied.
    Done(Answer),
}

/// Checks once whether a proposal has an answer, has expired or was removed.
fn poll(directory: &Directory, asked: &Asked) -> io::Result<Option<Progress>> {
    let proposal = &asked.proposal;
    let now = Timestamp::now();
    match directory.answer(proposal, now) {
        Ok(Some(response)) => return Ok(Some(Progress::Decided(Box::new(response)))),
        Ok(None) => {}
        Err(Unreadable::Io(error)) => return Err(error),
        Err(Unreadable::Damaged(why)) => {
            directory.archive(&proposal.id)?;
            let why = format!("cannot use the answer: {why}");
            return Ok(Some(Progress::Done(Answer::Refused(why))));
        }
    }
    if proposal.expires_at <= now {
        directory.close(&proposal.id)?;
        // An answer may have arrived before the proposal was closed. After the proposal is closed, no further answer
        // counts.
        return Ok(Some(match directory.answer(proposal, now) {
            // If there is no response to archive, the author of the answer has withdrawn it.
            Ok(Some(response)) if directory.archive_response(&proposal.id)? => {
                Progress::Decided(Box::new(response))
            }
            Err(Unreadable::Io(error)) => return Err(error),
            _ => Progress::Done(Answer::Expired),
        }));
    }
    if !directory.contains(&proposal.id) {
        let why = "the proposal was removed from the queue".to_owned();
        return Ok(Some(Progress::Done(Answer::Refused(why))));
    }
    Ok(None)
}
