//! Finds routes that would allow the denied requests of a bottle.
//!
//! The routes can become a proposal in the bottle's supervise queue, as if the bottle's agent had made the proposal.

use std::time::Duration;

use bottle_host::Host;
use bottle_instance::learn::{self, Learned};
use bottle_instance::{State, Store};
use bottle_keeper::decisions;
use bottle_keeper::protocol::KeeperRequest;
use bottle_policy::names::Slug;
use bottle_policy::proposal;
use bottle_protocol::queue::{Question, Tool};
use bottle_protocol::session::bundle::Routes;
use bottle_queue::question;

use crate::connect::{carry_out, connect, no_such_bottle};
use crate::failure::Failure;
use crate::report::{LearnReport, LearntHost, LeftOut};

/// How long the proposal waits for an answer before it expires.
const PROPOSAL_TTL: Duration = Duration::from_secs(24 * 3600);

/// The routes that can be learned from a bottle's denied requests.
#[derive(Debug)]
pub struct Learnt {
    slug: Slug,
    /// The denied requests, and the routes that would allow them.
    pub learned: Learned,
    /// Descriptions of the requests that the learned routes would newly allow.
    pub opens: Vec<String>,
    /// The bottle's own routes, without the learned routes.
    now: Routes,
    is_alive: bool,
}

impl Learnt {
    /// Reads the denied requests from the log of the bottle's proxy.
    ///
    /// # Errors
    /// When no bottle has this slug, or when the bottle's log or routes cannot be read.
    pub fn of(host: &Host, slug: &Slug) -> Result<Self, Failure> {
        let store = Store::of(host);
        let state = store.state(slug).ok_or_else(|| no_such_bottle(&store, slug))?;
        let bad = |message: String| Failure::state(message).about(slug);
        let (learned, now) = learn::of_bottle(&store.directory(slug))
            .map_err(|error| bad(format!("cannot read the denied requests of {slug}: {error}")))?
            .ok_or_else(|| bad("the routes of this bottle are unknown".to_owned()))?;
        let opens = match &learned.routes {
            Some(routes) => {
                let merged = proposal::merge(&now.table, routes)
                    .map_err(|error| bad(format!("cannot add the learned routes: {error}")))?;
                decisions::gains(&now.table, &merged)
            }
            None => Vec::new(),
        };
        let is_alive = matches!(state, State::Alive(_));
        Ok(Self { slug: slug.clone(), learned, opens, now, is_alive })
    }

    /// Asks the user whether to add the routes. Returns false if there are no routes, or if the bottle does not run.
    ///
    /// # Errors
    /// When the keeper cannot be reached, or the question cannot be put in the queue.
    pub async fn propose(&self, host: &Host) -> Result<bool, Failure> {
        let slug = &self.slug;
        let Some(routes) = self.learned.routes.as_ref().filter(|_| self.is_alive) else { return Ok(false) };
        let request = KeeperRequest::Ask(Box::new(self.question(routes)));
        let asked = async { carry_out(&connect(host, slug).await?, &request).await }.await;
        asked.map_err(|failure| {
            let failure = failure.about(slug);
            if failure.hint.is_some() {
                return failure;
            }
            let queue = host.home.join("queue").join(slug.as_str());
            failure.hint(format!(
                "the queue is in {}; `bottle learn {slug} --save BOTTLE` saves the routes instead",
                queue.display()
            ))
        })?;
        Ok(true)
    }

    /// Returns the question whether to add the routes, with a justification for the user.
    fn question(&self, routes: &proposal::Proposal) -> Question {
        let times: usize = self.learned.hosts.iter().map(|(_, times)| times).sum();
        let mut why = format!("learned from {times} denied requests");
        why.extend(self.learned.rules.iter().map(|rule| format!("\n- {rule}")));
        let why = why.chars().take(4_000).collect();
        Question {
            revision: Some(self.now.revision),
            ..question(Tool::EgressAllow, routes.render(), why, PROPOSAL_TTL)
        }
    }

    /// Returns the output document. `asked` says whether the routes were proposed to the user.
    pub fn document(&self, asked: bool) -> LearnReport {
        let learned = &self.learned;
        let host = |(host, times): &(String, usize)| LearntHost { host: host.clone(), times: *times };
        let left = |(host, times, why): &(String, usize, String)| LeftOut {
            host: host.clone(),
            times: *times,
            why: why.clone(),
        };
        LearnReport {
            slug: self.slug.to_string(),
            routes: learned.routes.as_ref().map(proposal::Proposal::render),
            opens: self.opens.clone(),
            hosts: learned.hosts.iter().map(host).collect(),
            rules: learned.rules.clone(),
            left_out: learned.left_out.iter().map(left).collect(),
            asked,
        }
    }
}
