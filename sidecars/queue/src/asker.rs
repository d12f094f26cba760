//! Asking on disk, and waiting for the answer.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bottle_contract::names::Slug;
use bottle_contract::queue::{Answer, Id, MAX_PENDING, MAX_TEXT, Proposal, Question, Response, Status};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::spawn_blocking;

use crate::cooling::{self, Cooling};
use crate::folder::{Asked, Folder};

/// How often an answer is looked for. A look is one failing `open` where there is none.
const LOOKED_FOR: Duration = Duration::from_millis(40);

/// A folder that cannot be read this often in a row cannot be used.
const FAILURES: u32 = 25;

/// The longest that a question may wait, whatever it says.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// How long who answers is kept waiting for what the answer brings.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// Why an answer does not count that came too late.
const NOBODY_WAITS: &str = "nobody waits for this answer any more";

/// Questions of a bottle that wait in memory before another is put off.
const COOLING: usize = 4 * MAX_PENDING;

/// Outcomes that may wait for whoever is told.
const OUTCOMES: usize = 64;

/// What an answer brought, in sentences for who answered; or why it does not count, a lower-case fragment.
pub type Outcome = Result<Vec<String>, String>;

/// What has to be done before an answer counts.
pub trait Decide: fmt::Debug + Send + Sync {
    /// Does what the answer says. Where that fails the answer is taken back, and the proposal waits on. An answer
    /// may come twice: after a crash it is taken again.
    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

    /// A text of a question or an answer as it may be shown, kept and passed on.
    fn redacted(&self, text: String) -> String {
        text
    }

    /// A proposal stands in the queue and waits; `new` where it did not stand there before.
    fn asked(&self, _proposal: &Proposal, _new: bool) {}

    /// Nobody waits for the answer to it any more, whatever came of it.
    fn settled(&self, _id: &Id) {}
}

/// Asks for one bottle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    slug: Slug,
    /// What waits now; each with the place where its answer will be.
    waiting: Mutex<Vec<(Proposal, watch::Receiver<Option<Answer>>)>>,
    /// What was rejected, and asked for again waits.
    cooling: Mutex<Cooling>,
    turn: Mutex<()>,
    decide: Arc<dyn Decide>,
    /// An answer was put there by this process.
    answered: Notify,
    /// What answers brought; none of a question that nobody waits for any more.
    outcomes: broadcast::Sender<(Id, Option<Outcome>)>,
}

impl Asker {
    /// Asks in the queue of this `$BOTTLE_HOME`. Nothing is made before the first question. Before an answer
    /// counts, `decide` does what it says.
    #[must_use]
    pub fn new(home: PathBuf, slug: Slug, decide: Arc<dyn Decide>) -> Self {
        let (waiting, cooling) = (Mutex::default(), Mutex::default());
        let (turn, answered) = (Mutex::default(), Notify::new());
        let outcomes = broadcast::channel(OUTCOMES).0;
        Self(Arc::new(Inner { home, slug, waiting, cooling, turn, decide, answered, outcomes }))
    }

    /// Answers a question that waits here, and says what came of it.
    ///
    /// # Errors
    /// Why the answer does not count; the proposal waits on, unless somebody else has answered it.
    pub async fn answer(&self, response: Response) -> Outcome {
        let id = response.proposal_id.clone();
        // Before anything else: neither its outcome nor that nobody waits any more can be missed.
        let mut outcomes = self.0.outcomes.subscribe();
        if !self.0.is_waiting(&id) {
            return Err(NOBODY_WAITS.to_owned());
        }
        self.0.in_folder(move |folder| folder.respond(&response).map_err(|error| error.to_string())).await?;
        self.0.answered.notify_waiters();
        let settled = async {
            loop {
                match outcomes.recv().await {
                    Ok((of, Some(outcome))) if of == id => return outcome,
                    Ok((of, None)) if of == id && !self.0.is_waiting(&id) => break,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Err("the queue stopped".to_owned()),
                }
            }
            // Who asked went away in the moment of the answer, which is not left for anybody.
            let id = id.clone();
            self.0.in_folder(move |folder| folder.take_back(&id).map_err(|error| error.to_string())).await?;
            Err(NOBODY_WAITS.to_owned())
        };
        let late =
            || Err("what the answer brings is not known yet; `bottle audit show` will say it".to_owned());
        tokio::time::timeout(TAKEN_WITHIN, settled).await.unwrap_or_else(|_| late())
    }

    /// Asks, and waits for the answer. A question that asks for the same as one that waits already waits for
    /// that one's answer. One that asks for what was rejected is not shown at once, but after 10 s, and twice as long
    /// after each further rejection, up to half an hour.
    ///
    /// Dropped, nobody waits any more: the proposal stays and is stale.
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
        let mut answer = self.joined(proposal);
        match answer.wait_for(Option::is_some).await {
            Ok(answered) => answered.clone().unwrap_or(Answer::Expired),
            Err(_) => Answer::Refused("the queue stopped".to_owned()),
        }
    }

    /// Where the answer to this will be.
    fn joined(&self, proposal: Proposal) -> watch::Receiver<Option<Answer>> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = cooling::keys(&proposal);
        let (until, before) = self.0.cooling().asked(&keys, Instant::now());
        let same = |there: &Proposal| there.id == proposal.id || there.asks_the_same(&proposal);
        if let Some((_, answer)) = waiting.iter().find(|(there, _)| same(there)) {
            return answer.clone();
        }
        let (said, answer) = watch::channel(None);
        if until.is_some() && waiting.len() >= COOLING {
            said.send_replace(Some(Answer::Refused(
                "too much waits already that was rejected before".to_owned(),
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
                let mut abandoned = pin!(abandoned(&said, &listed));
                match cooled(until, proposal.expires_at, abandoned.as_mut()).await {
                    Ok(()) => inner.carry(proposal, abandoned).await,
                    Err(answer) => answer,
                }
            };
            // Off the list first: whoever asks from now on asks anew.
            drop(listed);
            said.send_replace(Some(answer));
        });
        answer
    }
}

/// Waits until a question may be shown that was rejected before.
///
/// # Errors
/// Its answer, where nobody waits so long.
async fn cooled(
    until: Option<Instant>,
    expires_at: Timestamp,
    abandoned: impl Future<Output = ()>,
) -> Result<(), Answer> {
    let Some(until) = until else { return Ok(()) };
    let left = Duration::try_from(expires_at.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::select! {
        () = tokio::time::sleep_until(until.into()) => Ok(()),
        () = tokio::time::sleep(left) => Err(Answer::Expired),
        () = abandoned => Err(Answer::Refused(NOBODY_WAITS.to_owned())),
    }
}

/// Resolves when nobody but the list waits for the answer, and it is off the list.
async fn abandoned(said: &watch::Sender<Option<Answer>>, listed: &Listed) {
    loop {
        tokio::time::sleep(LOOKED_FOR).await;
        // Under the list's lock, so that nobody joins meanwhile.
        let mut waiting = listed.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if said.receiver_count() <= 1 {
            waiting.retain(|(there, _)| there.id != listed.id);
            return;
        }
    }
}

/// Takes a question off the list when its task ends, however it ends.
struct Listed {
    inner: Arc<Inner>,
    id: Id,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(there, _)| there.id != self.id);
        drop(waiting);
        self.inner.decide.settled(&self.id);
        let _ = self.inner.outcomes.send((self.id.clone(), None));
    }
}

impl Inner {
    fn cooling(&self) -> MutexGuard<'_, Cooling> {
        self.cooling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits for the answer to this.
    fn is_waiting(&self, id: &Id) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().any(|(there, _)| there.id == *id)
    }

    /// Does something in the folder of the bottle, which is there.
    async fn in_folder(
        self: &Arc<Self>,
        act: impl FnOnce(Folder) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let inner = Arc::clone(self);
        let acted = spawn_blocking(move || {
            act(Folder::open(&inner.home, &inner.slug).map_err(|error| error.to_string())?)
        });
        acted.await.unwrap_or_else(|_| Err("the queue stopped".to_owned()))
    }

    /// Writes the proposal and waits for its answer, until it is abandoned. An answer that is being carried out is
    /// carried to its end.
    async fn carry(self: &Arc<Self>, proposal: Proposal, abandoned: impl Future<Output = ()>) -> Answer {
        let inner = Arc::clone(self);
        let asked = spawn_blocking(move || inner.submit(proposal)).await;
        let (folder, asked) = match asked {
            Ok(Ok(asked)) => asked,
            Ok(Err(why)) => return Answer::Refused(why),
            Err(_) => return Answer::Refused("the queue stopped".to_owned()),
        };
        self.decide.asked(&asked.proposal, asked.new);
        let held = Arc::new((folder, asked));
        let mut failures = 0;
        tokio::pin!(abandoned);
        loop {
            let look = Arc::clone(&held);
            match spawn_blocking(move || look_for(&look.0, &look.1)).await {
                Ok(Ok(Some(Found::Over(answer)))) => return answer,
                Ok(Ok(Some(Found::Decision(response)))) => match self.take(&held, *response).await {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => failures = 0,
                    Err(why) if failures >= FAILURES => return Answer::Refused(why),
                    Err(_) => failures += 1,
                },
                Ok(Ok(None)) => failures = 0,
                Ok(Err(why)) if failures >= FAILURES => return Answer::Refused(why),
                Ok(Err(_)) => failures += 1,
                Err(_) => return Answer::Refused("the queue stopped".to_owned()),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOKED_FOR) => {}
                () = self.answered.notified() => {}
                () = &mut abandoned => return Answer::Refused(NOBODY_WAITS.to_owned()),
            }
        }
    }

    /// Does what an answer says. Nothing when that failed: then the answer is gone, and the proposal waits on.
    async fn take(
        self: &Arc<Self>,
        held: &Arc<(Folder, Asked)>,
        response: Response,
    ) -> Result<Option<Answer>, String> {
        let id = response.proposal_id.clone();
        let notes = response.notes.map(|notes| self.decide.redacted(notes));
        let response = Response { notes, ..response };
        // A task of its own: where it panics the question waits on.
        let decided = tokio::spawn(self.decide.decided(held.1.proposal.clone(), response.clone())).await;
        let outcome = decided.unwrap_or_else(|_| Err("carrying it out failed".to_owned()));
        let counts = outcome.is_ok();
        let keys = cooling::keys(&held.1.proposal);
        match response.status {
            Status::Rejected => self.cooling().rejected(keys, Instant::now()),
            Status::Approved | Status::Modified if counts => self.cooling().approved(&keys),
            Status::Approved | Status::Modified => {}
        }
        let held = Arc::clone(held);
        let moved = spawn_blocking(move || {
            let (folder, id) = (&held.0, &held.1.proposal.id);
            if counts { folder.archive(id).map(drop) } else { folder.take_back(id) }
        });
        let moved = moved.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        // Told when the folder says the same.
        let _ = self.outcomes.send((id, Some(outcome)));
        moved.map_err(|error| format!("the queue cannot be used: {error}"))?;
        Ok(counts.then(|| Answer::Decided(Box::new(response))))
    }

    fn submit(&self, proposal: Proposal) -> Result<(Folder, Asked), String> {
        // One after the other: each counts what waits before it adds to it.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::make(&self.home, &self.slug)
            .map_err(|error| format!("the queue cannot be used: {error}"))?;
        let asked = folder.submit(proposal, Timestamp::now()).map_err(|error| error.to_string())?;
        Ok((folder, asked))
    }
}

/// What a look at a proposal found.
enum Found {
    /// An answer that is not carried out yet.
    Decision(Box<Response>),
    /// Nobody needs to wait any more.
    Over(Answer),
}

/// One look: an answer, or that the time is up.
fn look_for(folder: &Folder, asked: &Asked) -> Result<Option<Found>, String> {
    let failed = |error: std::io::Error| format!("the queue cannot be used: {error}");
    let proposal = &asked.proposal;
    let now = Timestamp::now();
    match folder.answer(proposal, now).map_err(failed)? {
        Some(Ok(response)) => return Ok(Some(Found::Decision(Box::new(response)))),
        Some(Err(why)) => {
            folder.archive(&proposal.id).map_err(failed)?;
            let why = format!("the answer cannot be used: {why}");
            return Ok(Some(Found::Over(Answer::Refused(why))));
        }
        None => {}
    }
    if proposal.expires_at <= now {
        folder.close(&proposal.id).map_err(failed)?;
        // One may have come at the last moment; from now on none does.
        return Ok(Some(match folder.answer(proposal, now).map_err(failed)? {
            // Whoever gave it takes it back when it is still there.
            Some(Ok(response)) if folder.archive_response(&proposal.id).map_err(failed)? => {
                Found::Decision(Box::new(response))
            }
            _ => Found::Over(Answer::Expired),
        }));
    }
    if !folder.stands(&proposal.id) {
        let why = "the proposal was taken away from the queue".to_owned();
        return Ok(Some(Found::Over(Answer::Refused(why))));
    }
    Ok(None)
}
