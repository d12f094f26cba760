//! What was asked, and what became of it.
//!
//! A question outlives the call that asked it: an agent's client cuts calls short, and asks again by the id.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bottle_contract::proposal::{self, Proposal, ProposalError};
use bottle_contract::queue::{Answer, Id, MAX_TEXT, Tool};
use bottle_contract::route::{Form, RouteTable, parse_routes};
use bottle_contract::session::bundle::Routes;
use bottle_daemon::Lockout;
use bottle_queue::{Questions, question};
use tokio::sync::watch;

/// How long a user has. An agent goes on with something else meanwhile.
const ANSWERED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Proposals that are remembered, the answered ones among them.
const REMEMBERED: usize = 256;

/// Routes that are live at the proxy.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) revision: u64,
    pub(crate) table: RouteTable,
}

/// Everything that was asked by one bottle.
pub(crate) struct Proposals {
    questions: Questions,
    lockout: Arc<Lockout>,
    live: RwLock<Arc<Current>>,
    asked: Mutex<VecDeque<Asked>>,
}

/// One that was asked.
#[derive(Debug, Clone)]
struct Asked {
    id: Id,
    /// In canonical words: equal ones are one.
    file: String,
    answer: watch::Receiver<Option<Answer>>,
}

/// What became of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proposed {
    /// All of it is allowed already.
    Nothing,
    /// It waits for a user under this name.
    Waits(Id),
}

/// Why nothing was asked. The words are for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unasked {
    /// It could never be applied.
    #[error(transparent)]
    Proposal(#[from] ProposalError),
    /// Nobody would read it.
    #[error("the proposal is longer than a user reads; ask for less at once")]
    TooLong,
    /// There are no such routes yet.
    #[error("`revision` is {asked}, and {live} is live; leave it out, or take the one of list-egress-routes")]
    Revision {
        /// As given.
        asked: u64,
        /// What is live.
        live: u64,
    },
    /// Too many wait.
    #[error("{REMEMBERED} proposals wait for a user already; ask again when some of them are decided")]
    Full,
}

impl Proposals {
    /// For a bottle with these routes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn new(questions: Questions, lockout: Arc<Lockout>, routes: &Routes) -> Result<Self, String> {
        let live = RwLock::new(Arc::new(read(routes)?));
        Ok(Self { questions, lockout, live, asked: Mutex::default() })
    }

    /// Whether the bottle is locked: then nothing that is allowed leaves it either.
    pub(crate) fn is_locked(&self) -> bool {
        self.lockout.is_locked()
    }

    /// These routes are live now.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn replace(&self, routes: &Routes) -> Result<(), String> {
        let new = Arc::new(read(routes)?);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// What is live.
    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks a user for routes. Whether one waits for them already makes no difference to who asks.
    ///
    /// # Errors
    /// [`Unasked`].
    pub(crate) fn propose(
        &self,
        tool: Tool,
        proposal: &Proposal,
        why: String,
        revision: Option<u64>,
    ) -> Result<Proposed, Unasked> {
        let current = self.current();
        if let Some(asked) = revision.filter(|asked| *asked > current.revision) {
            return Err(Unasked::Revision { asked, live: current.revision });
        }
        if proposal::merge(&current.table, proposal)? == current.table {
            return Ok(Proposed::Nothing);
        }
        let file = proposal.render();
        if file.len() > MAX_TEXT {
            return Err(Unasked::TooLong);
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |there: &&Asked| there.answer.borrow().is_none();
        if let Some(same) = asked.iter().filter(waits).find(|there| there.file == file) {
            return Ok(Proposed::Waits(same.id.clone()));
        }
        if asked.len() >= REMEMBERED {
            let oldest = asked.iter().position(|there| there.answer.borrow().is_some());
            asked.remove(oldest.ok_or(Unasked::Full)?);
        }
        let mut question = question(tool, file.clone(), why, ANSWERED_WITHIN);
        question.revision = Some(revision.unwrap_or(current.revision));
        let (said, answer) = watch::channel(None);
        let id = question.id.clone();
        asked.push_back(Asked { id: id.clone(), file, answer });
        drop(asked);
        let questions = self.questions.clone();
        tokio::spawn(async move { said.send_replace(Some(questions.ask(question).await)) });
        Ok(Proposed::Waits(id))
    }

    /// The place of an answer; none when nothing was asked under this name, or it is forgotten.
    pub(crate) fn answer(&self, id: &Id) -> Option<watch::Receiver<Option<Answer>>> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().find(|there| there.id == *id).map(|there| there.answer.clone())
    }
}

fn read(routes: &Routes) -> Result<Current, String> {
    let table = parse_routes(&routes.yaml, Form::Runtime).map_err(|error| error.to_string())?;
    Ok(Current { revision: routes.revision, table })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposals() -> Proposals {
        let yaml = "routes:\n- host: open.example\n- host: key.example\n  matches: [{methods: [GET]}]\n  \
                    auth: {scheme: Bearer, slot: s}\n";
        let routes = Routes { revision: 2, ..Routes::first(yaml.to_owned()) };
        let lockout = Arc::new(Lockout::new("supervise", None));
        Proposals::new(Questions::default(), lockout, &routes).expect("routes")
    }

    fn propose(proposals: &Proposals, text: &str, revision: Option<u64>) -> Result<Proposed, Unasked> {
        let proposal = proposal::parse(text).expect(text);
        proposals.propose(Tool::EgressAllow, &proposal, "why".to_owned(), revision)
    }

    #[tokio::test]
    async fn what_could_never_be_applied_is_not_asked_and_the_same_is_asked_once() {
        let proposals = proposals();
        assert_eq!(propose(&proposals, "[{host: open.example}]", None).expect("asked"), Proposed::Nothing);
        for (text, revision, words) in [
            ("[{host: key.example}]", None, "carries a credential"),
            ("[{host: new.example}]", Some(3), "2 is live"),
        ] {
            let error = propose(&proposals, text, revision).expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
        let first = propose(&proposals, "[{host: new.example}]", Some(1)).expect("asked");
        // Written otherwise.
        let again = propose(&proposals, "{\"routes\": [{\"host\": \"NEW.example\"}]}", None).expect("asked");
        assert_eq!(first, again);
        let other = propose(&proposals, "[{host: other.example}]", None).expect("asked");
        assert_ne!(first, other);
        let Proposed::Waits(id) = first else { panic!("it waits") };
        assert!(proposals.answer(&id).is_some());
        assert!(proposals.answer(&Id::from_random([0; 16])).is_none());
    }

    #[tokio::test]
    async fn what_became_live_meanwhile_is_not_asked_for() {
        let proposals = proposals();
        let yaml = "routes: [{host: new.example}]\n".to_owned();
        proposals.replace(&Routes { revision: 3, ..Routes::first(yaml) }).expect("replaced");
        assert_eq!(propose(&proposals, "[{host: new.example}]", None).expect("asked"), Proposed::Nothing);
        assert_eq!(proposals.current().revision, 3);
        assert!(proposals.replace(&Routes { revision: 4, ..Routes::first("routes: {".to_owned()) }).is_err());
        assert_eq!(proposals.current().revision, 3);
    }
}
