//! Receives the keeper's notices during a session, and the keeper's report of how the bottle ended.
//!
//! On pipes, each notice is printed when it arrives. On a terminal the agent uses the whole screen: notices
//! are collected, their number is shown in the window's title, and a summary is printed when the session
//! ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::Channel;
use bottle_keeper::protocol::{Ended, KeeperEvent, KeeperRequest, Notice};
use bottle_protocol::queue::{Id, Tool};
use bottle_protocol::session::bundle::Refused;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::console::output::{Output, counted};

/// How long the client waits for the keeper to tear down a bottle: the sum of the agent's grace period, the
/// time limits of guest and bundle, and the time for the backend's removal.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(45);

/// The maximum number of distinct denials that are collected, and also of warnings and of pending proposals. There is a
/// maximum because an agent can cause any number of them. Further denials are only counted. Further warnings and
/// proposals are dropped.
const MAX_DISTINCT: usize = 20;

/// Listens to the notices about one bottle.
pub(crate) struct Watch {
    task: JoinHandle<()>,
    title_notices: watch::Receiver<TitleNotices>,
    received: Received,
}

/// The notices in the window's title, shown while the agent uses the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TitleNotices {
    /// The text after the name in the window's title. The text may be empty.
    pub(crate) text: String,
    /// The number of proposals received so far.
    pub(crate) proposals: u64,
    /// The number of proposals that are still pending.
    pub(crate) pending: usize,
    /// Whether the bottle is locked out.
    pub(crate) locked: bool,
}

/// The notices received so far.
type Received = Arc<Mutex<End>>;

/// The notices received until the bottle ended.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// How the bottle ended, if the keeper reported it.
    pub(crate) ended: Option<Ended>,
    refused: BTreeMap<(String, &'static str), u64>,
    more: u64,
    /// The last denied request.
    last_refused: Option<Refused>,
    locked: Option<String>,
    text: Vec<String>,
    proposals: u64,
    pending: BTreeMap<Id, Tool>,
}

impl Watch {
    /// Starts listening. If `live` is set, each notice is printed when it arrives.
    pub(crate) fn start(channel: &Channel, live: bool, output: &Output) -> Self {
        let (channel, output) = (channel.clone(), output.clone());
        let (sender, title_notices) = watch::channel(TitleNotices::default());
        let received = Received::default();
        let end = received.clone();
        let listening = async move { listen(&channel, live.then_some(&output), &sender, &end).await };
        Self { task: tokio::spawn(listening), title_notices, received }
    }

    /// Returns a receiver for changes of the title's notices.
    pub(crate) fn title_notices(&self) -> watch::Receiver<TitleNotices> {
        self.title_notices.clone()
    }

    /// Returns the summary for a user who detaches while the bottle runs.
    pub(crate) fn summary_so_far(&self) -> Vec<String> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).summary()
    }

    /// Returns the host of the last denied request, if no proposal is pending.
    pub(crate) fn last_denied_host(&self) -> Option<String> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).last_denied_host()
    }

    /// Waits at most [`TEARDOWN_TIMEOUT`] until the bottle has ended. Returns all notices received so far.
    pub(crate) async fn wait_for_end(mut self) -> End {
        let _ = tokio::time::timeout(TEARDOWN_TIMEOUT, &mut self.task).await;
        std::mem::take(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl End {
    /// Returns the summary for a user on a terminal.
    pub(crate) fn summary(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.locked.iter().chain(&self.text).cloned().collect();
        lines.extend(match self.pending.len() {
            0 => None,
            1 => Some("a proposal waits for you: `bottle supervise`".to_owned()),
            more => Some(format!("{more} proposals wait for you: `bottle supervise`")),
        });
        lines.extend(self.refused.iter().map(|((request_line, reason), count)| {
            let times = if *count == 1 { String::new() } else { format!(" ({count} times)") };
            format!("the proxy denied {request_line}{times}: {reason}")
        }));
        if self.more > 0 {
            lines.push(format!("the proxy denied {} more requests", self.more));
        }
        lines
    }

    /// Summarizes the notices for the window's title.
    fn title_notices(&self) -> TitleNotices {
        let pending = (!self.pending.is_empty()).then(|| counted(self.pending.len(), "proposal"));
        let refused = self.refused.values().sum::<u64>() + self.more;
        let refusals = self.last_refused.as_ref().map(|last| {
            // The number comes first, because a terminal may cut off the end of the title.
            let count = if refused > 1 { format!("{refused} denied, last") } else { "denied".to_owned() };
            format!("{count} {}: {}", request_line(last), last.reason.as_str())
        });
        let text = (!self.text.is_empty()).then(|| "proxy warning".to_owned());
        let locked = self.locked.as_ref().map(|_| "locked".to_owned());
        let text =
            locked.into_iter().chain(text).chain(pending).chain(refusals).collect::<Vec<_>>().join(", ");
        TitleNotices {
            text,
            proposals: self.proposals,
            pending: self.pending.len(),
            locked: self.locked.is_some(),
        }
    }

    /// Returns the host of the last denied request, if no proposal is pending. Returns `None` if the host is not a
    /// plain name or address, because the host becomes a part of a command line.
    fn last_denied_host(&self) -> Option<String> {
        let host = &self.last_refused.as_ref().filter(|_| self.pending.is_empty())?.host;
        let begins = host.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[');
        let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
        (begins && plain).then(|| host.clone())
    }

    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Refused(refused) => {
                let key = (request_line(&refused), refused.reason.as_str());
                self.last_refused = Some(refused);
                if self.refused.len() < MAX_DISTINCT || self.refused.contains_key(&key) {
                    *self.refused.entry(key).or_default() += 1;
                } else {
                    self.more += 1;
                }
            }
            Notice::Asked { id, tool } => {
                self.proposals += 1;
                if self.pending.len() < MAX_DISTINCT {
                    self.pending.insert(id, tool);
                }
            }
            Notice::Settled { id } => drop(self.pending.remove(&id)),
            Notice::LockedOut(text) => self.locked = Some(text),
            Notice::ProxyDown(text) | Notice::Warning(text) if self.text.len() < MAX_DISTINCT => {
                self.text.push(text);
            }
            Notice::ProxyDown(_) | Notice::Warning(_) => {}
        }
    }
}

async fn listen(
    channel: &Channel,
    live: Option<&Output>,
    title_notices: &watch::Sender<TitleNotices>,
    received: &Received,
) {
    let Ok(mut stream) = channel.open(&KeeperRequest::Notices).await else { return };
    while let Ok(event) = stream.receive::<KeeperEvent>().await {
        let mut end = received.lock().unwrap_or_else(PoisonError::into_inner);
        match (event, live) {
            // The notice of a lock-out is printed even with `--quiet`.
            (KeeperEvent::Notice(Notice::LockedOut(text)), Some(output)) => output.warn(text),
            (KeeperEvent::Notice(notice), Some(output)) => {
                line(&notice).into_iter().for_each(|it| output.note(it))
            }
            (KeeperEvent::Notice(notice), None) => {
                end.note(notice);
                title_notices.send_replace(end.title_notices());
            }
            (KeeperEvent::Ended(ended), _) => {
                end.ended = Some(ended);
                return;
            }
            _ => {}
        }
    }
}

fn line(notice: &Notice) -> Option<String> {
    Some(match notice {
        // The description of the reason is written for the agent. For the user, `bottle policy check`
        // explains the decision.
        Notice::Refused(refused) => {
            format!("the proxy denied {}: {}", request_line(refused), refused.reason.as_str())
        }
        Notice::Asked { id, tool } => {
            format!(
                "the bottle {}: `bottle supervise show {}`, then approve or reject it",
                tool.predicate(),
                id.short()
            )
        }
        Notice::Settled { .. } => return None,
        Notice::LockedOut(text) | Notice::ProxyDown(text) | Notice::Warning(text) => text.clone(),
    })
}

/// Formats a request as `GET https://host/path`, or the part of it that the proxy has read.
fn request_line(refused: &Refused) -> String {
    let Refused { host, port, method, path, .. } = refused;
    let place = match port {
        443 => format!("https://{host}{path}"),
        80 => format!("http://{host}{path}"),
        _ => format!("{host}:{port}{path}"),
    };
    if method.is_empty() { place } else { format!("{method} {place}") }
}

#[cfg(test)]
mod tests {
    use bottle_policy::decide::Reason;

    use super::*;

    fn refused(host: &str) -> Notice {
        Notice::Refused(Refused {
            id: "r1".into(),
            time: "2026-01-01T00:00:00Z".into(),
            host: host.into(),
            port: 443,
            method: "GET".into(),
            path: "/".into(),
            reason: Reason::HostNotAllowed,
            sentence: "no route names it".into(),
        })
    }

    #[test]
    fn counts_equal_denials_up_to_a_bound() {
        let mut end = End::default();
        end.note(refused("a.example"));
        end.note(refused("a.example"));
        assert_eq!(end.summary(), ["the proxy denied GET https://a.example/ (2 times): host-not-allowed"]);
        for n in 0..100 {
            end.note(refused(&format!("h{n}.example")));
        }
        assert_eq!(end.summary().len(), MAX_DISTINCT + 1);
        assert_eq!(end.summary().last().map(String::as_str), Some("the proxy denied 81 more requests"));
    }

    #[test]
    fn a_lock_comes_first_in_the_summary() {
        let mut end = End::default();
        (0..100).for_each(|number| end.note(Notice::Warning(number.to_string())));
        end.note(refused("a.example"));
        end.note(Notice::LockedOut("demo is locked".to_owned()));
        assert_eq!(end.summary()[0], "demo is locked");
        let title_notices = end.title_notices();
        assert!(
            title_notices.locked
                && title_notices.text
                    == "locked, proxy warning, denied GET https://a.example/: host-not-allowed",
            "{title_notices:?}"
        );
    }

    #[test]
    fn the_title_shows_the_last_denial_and_counts_the_others() {
        let mut end = End::default();
        ["a.example", "b.example", "a.example"].map(refused).into_iter().for_each(|notice| end.note(notice));
        let text = "3 denied, last GET https://a.example/: host-not-allowed";
        assert_eq!(end.title_notices().text, text);
    }

    #[test]
    fn offers_only_a_plain_host() {
        for (host, offered) in [
            ("a.example", true),
            ("[2001:db8::1]", true),
            ("-x", false),
            ("a.example --method POST", false),
            ("", false),
        ] {
            let mut end = End::default();
            end.note(refused(host));
            assert_eq!(end.last_denied_host().as_deref(), Some(host).filter(|_| offered), "{host:?}");
        }
        let mut end = End::default();
        end.note(refused("a.example"));
        end.note(Notice::Asked { id: Id::from_random([1; 16]), tool: Tool::EgressBlock });
        assert_eq!(end.last_denied_host(), None);
    }

    #[test]
    fn counts_proposals_while_they_are_pending() {
        let mut end = End::default();
        let id = |number| Id::from_random([number; 16]);
        let proposals = |number| Notice::Asked { id: id(number), tool: Tool::GitleaksAllow };
        for (notice, text, summary) in [
            (proposals(1), "1 proposal", &["a proposal waits for you: `bottle supervise`"][..]),
            (proposals(2), "2 proposals", &["2 proposals wait for you: `bottle supervise`"]),
            (Notice::Settled { id: id(1) }, "1 proposal", &["a proposal waits for you: `bottle supervise`"]),
            (Notice::Settled { id: id(9) }, "1 proposal", &["a proposal waits for you: `bottle supervise`"]),
            (Notice::Settled { id: id(2) }, "", &[]),
        ] {
            end.note(notice);
            assert_eq!(end.title_notices().text, text);
            assert_eq!(end.summary(), summary);
        }
        assert_eq!(end.title_notices(), TitleNotices { proposals: 2, ..TitleNotices::default() });
        (0..100).for_each(|number| end.note(proposals(number)));
        assert_eq!(end.title_notices().text, format!("{MAX_DISTINCT} proposals"));
    }
}
