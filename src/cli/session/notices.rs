//! Receives the keeper's notices during a session, and the report of how the bottle ended.
//!
//! On pipes each notice prints at once. On a terminal the agent owns the screen: notices are collected, counted in
//! the window's title, and summarized when the session leaves the screen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::queue::{Id, Tool};
use bottle_contract::session::bundle::Refused;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cli::output::Output;
use crate::keeper::protocol::{Ended, KeeperEvent, KeeperRequest, Notice};

/// How long the client waits for the keeper to tear a bottle down: the sum of the agent's grace, the deadlines of
/// guest and bundle, and a backend's removal.
const TORN_DOWN_WITHIN: Duration = Duration::from_secs(45);

/// The most distinct denials kept for the summary: an agent can provoke any number.
const REMEMBERED: usize = 20;

/// Listens to one bottle's notices.
pub(crate) struct Watch {
    task: JoinHandle<()>,
    aside: watch::Receiver<Aside>,
    heard: Heard,
}

/// What the window's title shows while the agent owns the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Aside {
    /// Text for the window's title; may be empty.
    pub(crate) words: String,
    /// All proposals seen so far.
    pub(crate) asked: u64,
    /// Proposals that are still pending.
    pub(crate) waiting: usize,
    /// Whether the bottle is locked.
    pub(crate) locked: bool,
}

/// The notices received so far.
type Heard = Arc<Mutex<End>>;

/// The notices received until the end.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// How the bottle ended, if the keeper reported it.
    pub(crate) ended: Option<Ended>,
    refused: BTreeMap<(String, &'static str), u64>,
    more: u64,
    locked: Option<String>,
    words: Vec<String>,
    asked: u64,
    waiting: BTreeMap<Id, Tool>,
}

impl Watch {
    /// Starts listening; `live` prints each notice at once.
    pub(crate) fn start(channel: &Channel, live: bool, output: &Output) -> Self {
        let (channel, output) = (channel.clone(), output.clone());
        let (said, aside) = watch::channel(Aside::default());
        let heard = Heard::default();
        let end = heard.clone();
        let listening = async move { listen(&channel, live.then_some(&output), &said, &end).await };
        Self { task: tokio::spawn(listening), aside, heard }
    }

    /// Returns a receiver for the title's text.
    pub(crate) fn aside(&self) -> watch::Receiver<Aside> {
        self.aside.clone()
    }

    /// Returns the summary for a user who detaches before the end.
    pub(crate) fn so_far(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).summary()
    }

    /// Waits until the bottle has ended, up to a time limit, and returns everything received.
    pub(crate) async fn until_the_end(mut self) -> End {
        let _ = tokio::time::timeout(TORN_DOWN_WITHIN, &mut self.task).await;
        std::mem::take(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
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
        let mut lines: Vec<String> = self.locked.iter().chain(&self.words).cloned().collect();
        lines.extend(match self.waiting.len() {
            0 => None,
            1 => Some("a proposal waits for you: `bottle supervise`".to_owned()),
            more => Some(format!("{more} proposals wait for you: `bottle supervise`")),
        });
        let times = |count: &u64| if *count == 1 { String::new() } else { format!(" ({count} times)") };
        lines.extend(
            self.refused
                .iter()
                .map(|((what, reason), count)| format!("the proxy denied {what}{}: {reason}", times(count))),
        );
        if self.more > 0 {
            lines.push(format!("the proxy denied {} more requests", self.more));
        }
        lines
    }

    /// Counts the notices for the window's title.
    fn aside(&self) -> Aside {
        let waiting = match self.waiting.len() {
            0 => None,
            1 => Some("1 proposal".to_owned()),
            more => Some(format!("{more} proposals")),
        };
        let refused = self.refused.values().sum::<u64>() + self.more;
        let refusals = (refused > 0).then(|| format!("{refused} denied"));
        let words = (!self.words.is_empty()).then(|| "proxy warning".to_owned());
        let locked = self.locked.as_ref().map(|_| "locked".to_owned());
        let words =
            locked.into_iter().chain(words).chain(waiting).chain(refusals).collect::<Vec<_>>().join(", ");
        Aside { words, asked: self.asked, waiting: self.waiting.len(), locked: self.locked.is_some() }
    }

    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Refused(refused) => {
                let key = (what(&refused), refused.reason.as_str());
                if self.refused.len() < REMEMBERED || self.refused.contains_key(&key) {
                    *self.refused.entry(key).or_default() += 1;
                } else {
                    self.more += 1;
                }
            }
            Notice::Asked { id, tool } => {
                self.asked += 1;
                if self.waiting.len() < REMEMBERED {
                    self.waiting.insert(id, tool);
                }
            }
            Notice::Settled { id } => drop(self.waiting.remove(&id)),
            Notice::LockedOut(words) => self.locked = Some(words),
            Notice::ProxyDown(words) | Notice::Warning(words) if self.words.len() < REMEMBERED => {
                self.words.push(words);
            }
            Notice::ProxyDown(_) | Notice::Warning(_) => {}
        }
    }
}

async fn listen(channel: &Channel, live: Option<&Output>, aside: &watch::Sender<Aside>, heard: &Heard) {
    let Ok(mut stream) = channel.open(&KeeperRequest::Notices).await else { return };
    while let Ok(event) = stream.receive::<KeeperEvent>().await {
        let mut end = heard.lock().unwrap_or_else(PoisonError::into_inner);
        match (event, live) {
            // Printed even with `--quiet`.
            (KeeperEvent::Notice(Notice::LockedOut(words)), Some(output)) => output.warn(words),
            (KeeperEvent::Notice(notice), Some(output)) => {
                line(&notice).into_iter().for_each(|it| output.note(it))
            }
            (KeeperEvent::Notice(notice), None) => {
                end.note(notice);
                aside.send_replace(end.aside());
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
        // The sentence is written for the agent; the user has `bottle policy check`.
        Notice::Refused(refused) => {
            format!("the proxy denied {}: {}", what(refused), refused.reason.as_str())
        }
        Notice::Asked { id, tool } => {
            format!(
                "the bottle {}: `bottle supervise show {}`, then approve or reject it",
                tool.deed(),
                id.short()
            )
        }
        Notice::Settled { .. } => return None,
        Notice::LockedOut(words) | Notice::ProxyDown(words) | Notice::Warning(words) => words.clone(),
    })
}

/// `GET https://host/path`, or the part of it that was read.
fn what(refused: &Refused) -> String {
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
    use bottle_contract::decide::Reason;

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
        assert_eq!(end.summary().len(), REMEMBERED + 1);
        assert_eq!(end.summary().last().map(String::as_str), Some("the proxy denied 81 more requests"));
    }

    #[test]
    fn a_lock_comes_first_in_the_summary() {
        let mut end = End::default();
        (0..100).for_each(|number| end.note(Notice::Warning(number.to_string())));
        end.note(refused("a.example"));
        end.note(Notice::LockedOut("demo is locked".to_owned()));
        assert_eq!(end.summary()[0], "demo is locked");
        let aside = end.aside();
        assert!(aside.locked && aside.words == "locked, proxy warning, 1 denied", "{aside:?}");
    }

    #[test]
    fn counts_proposals_while_they_are_pending() {
        let mut end = End::default();
        let id = |number| Id::of([number; 16]);
        let asked = |number| Notice::Asked { id: id(number), tool: Tool::GitleaksAllow };
        for (notice, words, summary) in [
            (asked(1), "1 proposal", &["a proposal waits for you: `bottle supervise`"][..]),
            (asked(2), "2 proposals", &["2 proposals wait for you: `bottle supervise`"]),
            (Notice::Settled { id: id(1) }, "1 proposal", &["a proposal waits for you: `bottle supervise`"]),
            (Notice::Settled { id: id(9) }, "1 proposal", &["a proposal waits for you: `bottle supervise`"]),
            (Notice::Settled { id: id(2) }, "", &[]),
        ] {
            end.note(notice);
            assert_eq!(end.aside().words, words);
            assert_eq!(end.summary(), summary);
        }
        assert_eq!(end.aside(), Aside { asked: 2, ..Aside::default() });
        (0..100).for_each(|number| end.note(asked(number)));
        assert_eq!(end.aside().words, format!("{REMEMBERED} proposals"));
    }
}
