//! Implements the action `supervise`: asks the user about findings and caches approvals.
//!
//! An approval covers one value for one host until this process ends. Only a hash of the value is stored. The hash is
//! stored even if the client has disconnected in the meantime, so that the client's next attempt succeeds.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_policy::decide::{Reason, Refusal};
use bottle_protocol::queue::{Answer, Question, Status, Tool};
use bottle_queue::{Questions, question};
use bottle_scan::Finding;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::report::record::RequestInfo;

/// The most findings that one approval covers. A user would not read more.
const MOST_FINDINGS: usize = 100;

/// The most characters of a user's notes that a denial contains. Further characters are cut off.
const MAX_NOTES: usize = 200;

/// The connection to the supervise queue, how long to wait for the user, and the approvals so far.
pub(crate) struct Approvals {
    questions: Questions,
    /// How long to wait for the user. `None` if no user can be asked.
    wait: Option<Duration>,
    approved: Mutex<HashSet<ApprovalKey>>,
}

/// The hash of a value and a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ApprovalKey([u8; 32]);

impl ApprovalKey {
    /// Hashes the matched text and the host. A known secret has the same key in every encoding.
    pub(crate) fn new(finding: &Finding, value: &[u8], host: &str) -> Self {
        let value = match finding.secret {
            Some(secret) => Sha256::new().chain_update(b"known").chain_update(secret.to_le_bytes()),
            None => Sha256::new().chain_update(b"value").chain_update(value),
        };
        Self(value.chain_update([0]).chain_update(host).finalize().into())
    }
}

impl Approvals {
    pub(crate) fn new(questions: Questions, wait: Option<Duration>) -> Self {
        Self { questions, wait, approved: Mutex::default() }
    }

    /// Whether the user has approved this value for this host.
    pub(crate) fn approves(&self, key: &ApprovalKey) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Whether the user has approved all of these values for their hosts.
    pub(super) fn approve_all(&self, keys: &[ApprovalKey]) -> bool {
        keys.iter().all(|key| self.approves(key))
    }

    fn approve(&self, keys: &[ApprovalKey]) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
    }
}

/// The question to the user about the findings of a request.
pub(super) struct Asked<'w> {
    /// The keys of the values that an approval covers.
    pub(super) keys: Vec<ApprovalKey>,
    /// A summary of the findings.
    pub(super) words: &'w str,
    /// Each finding with its location.
    pub(super) findings: Vec<String>,
    /// The text around the findings.
    pub(super) excerpt: Vec<String>,
}

/// Asks the user to approve all findings in a request.
///
/// # Errors
/// The denial, if the user does not approve all findings. A request with more than [`MOST_FINDINGS`] findings is denied
/// without a question.
pub(super) async fn ask(
    approvals: &Arc<Approvals>,
    info: &RequestInfo,
    asked: Asked<'_>,
) -> Result<(), Refusal> {
    let Asked { keys, words, findings, excerpt } = asked;
    let Some(wait) = approvals.wait else { return Err(Refusal::unasked(&info.host, words)) };
    if findings.len() > MOST_FINDINGS {
        let words = format!("{words}; an approval covers at most {MOST_FINDINGS}");
        return Err(Refusal::unasked(&info.host, &words));
    }
    let mut report = json!({
        "host": info.host, "port": info.port, "method": info.method, "path": info.path, "found": words,
    });
    if findings.len() > 1 {
        report["findings"] = findings.into();
    }
    let why = format!("a request to {} holds {words}", info.host);
    let question = question(Tool::EgressTokenAllow, format!("{report:#}"), why, wait);
    let question = Question { excerpt, ..question };
    let (approvals, host, words) = (Arc::clone(approvals), info.host.clone(), words.to_owned());
    // A separate task waits for the answer, so that the question stays open when the client disconnects.
    let decided = tokio::spawn(async move {
        let answer = approvals.questions.ask(question).await;
        outcome(&answer, &host, &words).inspect(|()| approvals.approve(&keys))
    });
    decided.await.unwrap_or_else(|_| Err(Refusal::later(Reason::ApprovalTimeout, &info.host, "")))
}

fn outcome(answer: &Answer, host: &str, words: &str) -> Result<(), Refusal> {
    match answer {
        Answer::Decided(response) if response.status == Status::Approved => Ok(()),
        Answer::Decided(response) => {
            let notes = response.notes.as_deref().unwrap_or_default();
            let notes: String =
                notes.chars().filter(|character| !character.is_control()).take(MAX_NOTES).collect();
            Err(Refusal::later(Reason::ApprovalRejected, host, &notes))
        }
        Answer::Expired => Err(Refusal::later(Reason::ApprovalTimeout, host, words)),
        Answer::Refused(why) => Err(Refusal::unasked(host, &format!("{words} ({why})"))),
    }
}
