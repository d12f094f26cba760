//! Asking on disk, and waiting for the answer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_contract::names::Slug;
use bottle_contract::queue::{Answer, Id, MAX_TEXT, Proposal, Question, Response};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::folder::{Asked, Folder};

/// How often an answer is looked for. A look is one failing `open` where there is none.
const LOOKED_FOR: Duration = Duration::from_millis(40);

/// A folder that cannot be read this often in a row cannot be used.
const FAILURES: u32 = 25;

/// The longest that a question may wait, whatever it says.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// Asks for one bottle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    slug: Slug,
    /// What waits now; each with the place where its answer will be.
    waiting: Mutex<Vec<(Proposal, watch::Receiver<Option<Answer>>)>>,
    turn: Mutex<()>,
}

impl Asker {
    /// Asks in the queue of this `$BOTTLE_HOME`. Nothing is made before the first question.
    #[must_use]
    pub fn new(home: PathBuf, slug: Slug) -> Self {
        Self(Arc::new(Inner { home, slug, waiting: Mutex::default(), turn: Mutex::default() }))
    }

    /// Asks, and waits for the answer. A question that asks for the same as one that waits already waits for
    /// that one's answer.
    ///
    /// Dropped, nobody waits any more: the proposal stays and is stale.
    pub async fn ask(&self, mut question: Question) -> Answer {
        let now = Timestamp::now();
        if question.proposed_file.len().max(question.justification.len()) > MAX_TEXT {
            return Answer::Refused("the question is too long for a person".to_owned());
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
        let same = |there: &Proposal| there.id == proposal.id || there.asks_the_same(&proposal);
        if let Some((_, answer)) = waiting.iter().find(|(there, _)| same(there)) {
            return answer.clone();
        }
        let (said, answer) = watch::channel(None);
        let id = proposal.id.clone();
        waiting.push((proposal.clone(), answer.clone()));
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            let listed = Listed { inner: Arc::clone(&inner), id };
            let answer = tokio::select! {
                answer = inner.carry(proposal) => answer,
                () = abandoned(&said, &listed) => return,
            };
            // Off the list first: whoever asks from now on asks anew.
            drop(listed);
            said.send_replace(Some(answer));
        });
        answer
    }
}

/// Resolves when nobody but the list waits for the answer.
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
    }
}

impl Inner {
    /// Writes the proposal and waits for its answer.
    async fn carry(self: &Arc<Self>, proposal: Proposal) -> Answer {
        let inner = Arc::clone(self);
        let asked = spawn_blocking(move || inner.submit(proposal)).await;
        let (folder, asked) = match asked {
            Ok(Ok(asked)) => asked,
            Ok(Err(why)) => return Answer::Refused(why),
            Err(_) => return Answer::Refused("the queue stopped".to_owned()),
        };
        let held = Arc::new((folder, asked));
        let mut failures = 0;
        loop {
            let look = Arc::clone(&held);
            match spawn_blocking(move || look_for(&look.0, &look.1)).await {
                Ok(Ok(Some(answer))) => return answer,
                Ok(Ok(None)) => failures = 0,
                Ok(Err(why)) if failures >= FAILURES => return Answer::Refused(why),
                Ok(Err(_)) => failures += 1,
                Err(_) => return Answer::Refused("the queue stopped".to_owned()),
            }
            tokio::time::sleep(LOOKED_FOR).await;
        }
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

/// One look: the answer, or that the time is up. What is decided is archived before it is told.
fn look_for(folder: &Folder, asked: &Asked) -> Result<Option<Answer>, String> {
    let failed = |error: std::io::Error| format!("the queue cannot be used: {error}");
    let proposal = &asked.proposal;
    let now = Timestamp::now();
    if let Some(answer) = folder.answer(proposal, now).map_err(failed)? {
        folder.archive(&proposal.id).map_err(failed)?;
        return Ok(Some(told(answer)));
    }
    if proposal.expires_at <= now {
        folder.close(&proposal.id).map_err(failed)?;
        // One may have come at the last moment; from now on none does.
        let answer = folder.answer(proposal, now).map_err(failed)?;
        return Ok(Some(match answer {
            Some(answer) if folder.archive_response(&proposal.id).map_err(failed)? => told(answer),
            _ => Answer::Expired,
        }));
    }
    if !folder.stands(&proposal.id) {
        return Ok(Some(Answer::Refused("the proposal was taken away from the queue".to_owned())));
    }
    Ok(None)
}

fn told(answer: Result<Response, String>) -> Answer {
    match answer {
        Ok(response) => Answer::Decided(Box::new(response)),
        Err(why) => Answer::Refused(format!("the answer cannot be used: {why}")),
    }
}
