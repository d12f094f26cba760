//! Stores the proposals of a bottle, and the answers to the proposals.
//!
//! A proposal remains stored after the end of the tool call that created the proposal. The agent's client may end the
//! call early, and check the proposal by its id later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bottle_daemon::Lockout;
use bottle_policy::proposal::{self, Proposal, ProposalError};
use bottle_policy::route::RouteTable;
use bottle_protocol::queue::{Answer, Id, MAX_TEXT, Tool};
use bottle_protocol::session::bundle::Routes;
use bottle_queue::{Questions, question};
use tokio::sync::watch;

/// The time limit for the user's decision. When the limit is reached, the proposal expires. The agent can do other work
/// while the proposal is pending.
const DECIDED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// The maximum number of stored proposals, including proposals that have an answer. When the limit is reached, a new
/// proposal replaces the oldest proposal that has an answer. If all stored proposals are pending, the new proposal is
/// rejected.
const STORED: usize = 256;

/// The routes that are active in the egress proxy.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) revision: u64,
    pub(crate) table: RouteTable,
}

/// Stores the proposals of one bottle.
pub(crate) struct Proposals {
    questions: Questions,
    lockout: Arc<Lockout>,
    live: RwLock<Arc<Current>>,
    stored: Mutex<VecDeque<Stored>>,
}

/// A stored proposal. The channel `answer` contains `None` until the proposal has an answer.
#[derive(Debug, Clone)]
struct Stored {
    id: Id,
    /// The proposed routes in canonical form. If a pending proposal has the same routes as a new proposal, the pending
    /// proposal is reused.
    file: String,
    answer: watch::Receiver<Option<Answer>>,
}

/// The result of proposing routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proposed {
    /// All proposed routes are already allowed.
    AlreadyAllowed,
    /// The proposal is pending. This variant contains the id of the proposal.
    Pending(Id),
}

/// The reason why a proposal is rejected without asking the user. The agent receives the error message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProposeError {
    /// The proposal can never be applied.
    #[error(transparent)]
    Proposal(#[from] ProposalError),
    /// The rendered proposal is longer than [`MAX_TEXT`] bytes. A user would not read a proposal of this length.
    #[error("the proposal is too long for a user; propose less at once")]
    TooLong,
    /// The proposal names a revision of the routes that does not exist yet.
    #[error("`revision` is {asked}, but {live} is live; omit it, or use the one of list-egress-routes")]
    Revision {
        /// The revision that the proposal names.
        asked: u64,
        /// The revision of the active routes.
        live: u64,
    },
    /// [`STORED`] proposals are pending, so no further proposal can be stored.
    #[error("{STORED} proposals are pending already; try again when some of them are decided")]
    Full,
}

impl Proposals {
    /// Creates the store of a bottle's proposals. `routes` are the active routes of the bottle.
    pub(crate) fn new(questions: Questions, lockout: Arc<Lockout>, routes: Routes) -> Self {
        let live = RwLock::new(Arc::new(routes.into()));
        Self { questions, lockout, live, stored: Mutex::default() }
    }

    /// Returns whether the bottle is locked. If the bottle is locked, the daemon executes no tool calls, and the proxy
    /// denies all requests.
    pub(crate) fn is_locked(&self) -> bool {
        self.lockout.is_locked()
    }

    /// Replaces the active routes.
    pub(crate) fn replace(&self, routes: Routes) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes.into());
    }

    /// Returns the routes that are active in the egress proxy.
    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Proposes routes to the user. If a proposal of the same routes is already pending, returns the id of the pending
    /// proposal.
    ///
    /// # Errors
    /// Fails with [`ProposeError`] if the proposal is rejected without asking the user.
    pub(crate) fn propose(
        &self,
        tool: Tool,
        proposal: &Proposal,
        why: String,
        revision: Option<u64>,
    ) -> Result<Proposed, ProposeError> {
        let current = self.current();
        if let Some(asked) = revision.filter(|asked| *asked > current.revision) {
            return Err(ProposeError::Revision { asked, live: current.revision });
        }
        if proposal::merge(&current.table, proposal)? == current.table {
            return Ok(Proposed::AlreadyAllowed);
        }
        let file = proposal.render();
        if file.len() > MAX_TEXT {
            return Err(ProposeError::TooLong);
        }
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let is_pending = |other: &&Stored| other.answer.borrow().is_none();
        if let Some(same) = stored.iter().filter(is_pending).find(|other| other.file == file) {
            return Ok(Proposed::Pending(same.id.clone()));
        }
        if stored.len() >= STORED {
            let oldest = stored.iter().position(|other| other.answer.borrow().is_some());
            stored.remove(oldest.ok_or(ProposeError::Full)?);
        }
        let mut question = question(tool, file.clone(), why, DECIDED_WITHIN);
        question.revision = Some(revision.unwrap_or(current.revision));
        let (sender, answer) = watch::channel(None);
        let id = question.id.clone();
        stored.push_back(Stored { id: id.clone(), file, answer });
        drop(stored);
        let questions = self.questions.clone();
        tokio::spawn(async move { sender.send_replace(Some(questions.ask(question).await)) });
        Ok(Proposed::Pending(id))
    }

    /// Returns the channel that receives the answer to a proposal. Returns `None` if the id is unknown, or if the
    /// proposal is no longer stored.
    pub(crate) fn answer(&self, id: &Id) -> Option<watch::Receiver<Option<Answer>>> {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.iter().find(|other| other.id == *id).map(|other| other.answer.clone())
    }
}

impl From<Routes> for Current {
    fn from(routes: Routes) -> Self {
        Self { revision: routes.revision, table: routes.table }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposals() -> Proposals {
        let yaml = "routes:\n- host: open.example\n- host: key.example\n  matches: [{methods: [GET]}]\n  \
                    auth: {scheme: Bearer, slot: s}\n";
        let routes = Routes { revision: 2, ..Routes::first(yaml.parse().expect("routes")) };
        let lockout = Arc::new(Lockout::new("supervise", None));
        Proposals::new(Questions::default(), lockout, routes)
    }

    fn propose(proposals: &Proposals, text: &str, revision: Option<u64>) -> Result<Proposed, ProposeError> {
        let proposal = proposal::parse(text).expect(text);
        proposals.propose(Tool::EgressAllow, &proposal, "why".to_owned(), revision)
    }

    #[tokio::test]
    async fn refuses_inapplicable_proposals_and_joins_equal_ones() {
        let proposals = proposals();
        assert_eq!(
            propose(&proposals, "[{host: open.example}]", None).expect("asked"),
            Proposed::AlreadyAllowed
        );
        for (text, revision, words) in [
            ("[{host: key.example}]", None, "carries a credential"),
            ("[{host: new.example}]", Some(3), "2 is live"),
        ] {
            let error = propose(&proposals, text, revision).expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
        let first = propose(&proposals, "[{host: new.example}]", Some(1)).expect("asked");
        // This proposal has the same routes in a different notation.
        let again = propose(&proposals, "{\"routes\": [{\"host\": \"NEW.example\"}]}", None).expect("asked");
        assert_eq!(first, again);
        let other = propose(&proposals, "[{host: other.example}]", None).expect("asked");
        assert_ne!(first, other);
        let Proposed::Pending(id) = first else { panic!("not pending") };
        assert!(proposals.answer(&id).is_some());
        assert!(proposals.answer(&Id::from_random([0; 16])).is_none());
    }

    #[tokio::test]
    async fn does_not_ask_for_routes_that_are_live() {
        let proposals = proposals();
        let table = "routes: [{host: new.example}]\n".parse().expect("routes");
        proposals.replace(Routes { revision: 3, ..Routes::first(table) });
        assert_eq!(
            propose(&proposals, "[{host: new.example}]", None).expect("asked"),
            Proposed::AlreadyAllowed
        );
        assert_eq!(proposals.current().revision, 3);
    }
}
