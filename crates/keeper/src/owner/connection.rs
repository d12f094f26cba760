//! The tasks that use one connection to a bottle. These tasks write the bottle's reports to files and send notices to
//! the user.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::{Host, Settings};
use bottle_instance::Claim;
use bottle_instance::children;
use bottle_instance::usage::Labels;
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::{NEVER_LISTED, Slug};
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::service::{ServiceInfo, ServiceState};
use bottle_text::terminal::inert;
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument as _;

use crate::budget::{self, Budgets};
use crate::decisions::Decisions;
use crate::notify::Notifier;
use crate::process_logs::Recorder;
use crate::protocol::{Notice, ParentChange};
use crate::shared::{Fact, Shared};
use crate::{access_log, questions, usage};

/// If the container engine ends, the channels to the bundle and to the guest both close. After the bundle's channel has
/// closed, the keeper waits for this time whether the guest's channel closes too.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// The tasks that use one connection to the bundle and to pid 1.
pub(super) struct Tasks {
    /// Writes the usage records, the access log and the output of processes.
    records: JoinHandle<()>,
    /// All other tasks.
    others: JoinSet<()>,
}

impl Tasks {
    pub(super) fn start(
        host: &Host,
        claim: &Claim,
        bundle: &Channel,
        guest: &Channel,
        shared: &Arc<Shared>,
        recorder: Option<Recorder>,
    ) -> Self {
        let record = claim.record();
        let lock = LockOutWatch {
            slug: record.slug.clone(),
            reported: record.locked.is_some(),
            decisions: shared.decisions.clone(),
            notifier: Notifier::new(host),
        };
        // The task that waits for a lock-out ends only when the bundle ends, because a bottle can also be locked during
        // its teardown.
        tokio::spawn(lock.run(bundle.clone(), shared.clone()).in_current_span());
        let mut others = JoinSet::new();
        let events = forward_bundle_events(bundle.clone(), guest.clone(), shared.clone());
        others.spawn(events.in_current_span());
        // When this task is cancelled, pending questions stay in the supervise queue and are marked as stale.
        others.spawn(questions::serve(bundle.clone(), shared.clone()).in_current_span());
        let budgets = Budgets::of(host, &record);
        let budgets = budget::serve(bundle.clone(), guest.clone(), shared.clone(), budgets);
        others.spawn(budgets.in_current_span());
        others.spawn(warn_of_services(guest.clone(), shared.clone()).in_current_span());
        let may_start = children::read(claim.directory()).unwrap_or_else(|error| {
            tracing::warn!("cannot read which bottles this one may start: {error}");
            None
        });
        if may_start.is_some() {
            let calls = shared.tool_calls.clone().serve(bundle.clone());
            others.spawn(calls.in_current_span());
        }
        let labels = Labels::of(&record);
        let usage = usage::record(host.home.clone(), record.slug, labels, bundle.clone(), shared.clone());
        // If the settings cannot be read, no bottle can be started. This must not end a running bottle, so the default
        // settings are used.
        let log_keep = Settings::load(host).unwrap_or_default().log_keep;
        let log = access_log::record(claim.directory().to_owned(), log_keep, bundle.clone());
        let of_processes = guest.clone();
        let processes = async {
            if let Some(recorder) = recorder {
                recorder.record(of_processes).await;
            }
        };
        let records = async {
            tokio::join!(usage, log, processes);
        };
        Self { records: tokio::spawn(records.in_current_span()), others }
    }

    /// Ends all tasks except the task that writes records, and returns this task.
    pub(super) fn into_records(mut self) -> JoinHandle<()> {
        self.others.abort_all();
        self.records
    }

    /// Ends all tasks, after the connection to the bottle was closed.
    pub(super) fn end(self) {
        self.into_records().abort();
    }
}

/// A task that waits until the bundle reports that it has locked the bottle.
struct LockOutWatch {
    slug: Slug,
    /// Whether an earlier keeper already notified the user.
    reported: bool,
    decisions: Decisions,
    notifier: Notifier,
}

impl LockOutWatch {
    /// Waits until the bottle is locked, and then sends a notice to each client. Notifies the user, unless an earlier
    /// keeper did so.
    async fn run(self, bundle: Channel, shared: Arc<Shared>) {
        let Ok(mut stream) = bundle.open(&BundleRequest::LockOut).await else { return };
        let Ok(BundleEvent::LockedOut(why)) = stream.receive().await else { return };
        shared.notices.send(Notice::LockedOut(lock_out_message(&self.slug, &why)));
        let of_parent = LockOut { parent: Some(self.slug.clone()), ..why.clone() };
        let (children, notices) = (shared.children.clone(), Arc::clone(&shared.notices));
        tokio::spawn(async move {
            for failed in children.change(ParentChange::Locked(of_parent)).await {
                notices.send(Notice::Warning(failed));
            }
        });
        if self.reported {
            return;
        }
        self.decisions.locked_out(why.clone()).await;
        self.notifier.send_lock_out(&self.slug, &why);
        let _ = shared.record(Fact::LockedOut(why)).await;
    }
}

/// Returns the text of the notice that a bottle is locked, with the reason and the next steps.
fn lock_out_message(slug: &Slug, why: &LockOut) -> String {
    let LockOut { hits, places, parent, .. } = why;
    let whose = match parent {
        Some(parent) => format!("because {parent}, which started it, is locked"),
        None => format!(
            "its agent sent {hits} different parts of credentials that it does not have, on their way to {}",
            places.join(", ")
        ),
    };
    let joint = if parent.is_some() { "," } else { ":" };
    format!(
        "{slug} is locked{joint} {whose}. All its traffic is denied. End this run with `bottle stop {slug}`; \
         `bottle resume {slug}` or a new start is not locked"
    )
}

/// The keeper's reaction to an event of the bundle.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// The keeper sends this notice to the user.
    Notice(Notice),
    /// The keeper sends this notice to the user, and records that this sidecar ended.
    Down(String, Notice),
    /// The keeper removes the one-time grant of this proposal.
    Spent(Id),
    /// The keeper does nothing.
    Nothing,
}

fn effect_of(event: BundleEvent) -> Effect {
    match event {
        // The isolation probe sends a request to the host [`NEVER_LISTED`] to check that the proxy denies the request.
        BundleEvent::Refused(refused) if refused.host == NEVER_LISTED => Effect::Nothing,
        BundleEvent::Refused(refused) => Effect::Notice(Notice::Refused(refused)),
        BundleEvent::Spent { proposal } => Effect::Spent(proposal),
        BundleEvent::Down { daemon } => {
            let text = format!("the sidecar {daemon} ended; its traffic is blocked until the bottle ends");
            Effect::Down(daemon, Notice::ProxyDown(text))
        }
        BundleEvent::Lost { count } => Effect::Notice(Notice::Warning(format!(
            "{count} proxy events were lost while no client was connected"
        ))),
        _ => Effect::Nothing,
    }
}

/// Forwards the bundle's events to clients as notices, until the bundle ends.
async fn forward_bundle_events(bundle: Channel, guest: Channel, shared: Arc<Shared>) {
    if let Ok(mut events) = bundle.open(&BundleRequest::Events).await {
        while let Ok(event) = events.receive::<BundleEvent>().await {
            match effect_of(event) {
                Effect::Notice(notice) => shared.notices.send(notice),
                Effect::Down(daemon, notice) => {
                    shared.notices.send(notice);
                    let _ = shared.record(Fact::SidecarDown(Some(daemon))).await;
                }
                Effect::Spent(proposal) => shared.decisions.spent(proposal).await,
                Effect::Nothing => {}
            }
        }
    }
    // If the container engine ended, the guest's channel closes too, and the keeper may reconnect. No notice is sent in
    // this case.
    if tokio::time::timeout(CLOSES_WITHIN, guest.closed()).await.is_ok() {
        return;
    }
    let sentence = "the sidecars ended; all traffic out of the bottle is blocked".to_owned();
    shared.notices.send(Notice::ProxyDown(sentence));
    let _ = shared.record(Fact::SidecarDown(None)).await;
}

/// Sends a warning for each service of the bottle that ends.
async fn warn_of_services(guest: Channel, shared: Arc<Shared>) {
    let Ok(mut ends) = guest.open(&GuestRequest::WatchServices).await else { return };
    while let Ok(GuestEvent::Service(service)) = ends.receive().await {
        shared.notices.send(Notice::Warning(service_warning(service)));
    }
}

fn service_warning(service: ServiceInfo) -> String {
    let next = match service.state {
        ServiceState::Restarting => "it is started again",
        _ => "it is not started again",
    };
    format!("the service {}: {}; {next}", service.name, inert(&service.why.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_of_the_bundle_has_an_effect() {
        let refused = |host: &str| -> BundleEvent {
            serde_json::from_value(json!({
                "event": "refused", "id": "1", "time": "", "host": host, "port": 443, "method": "GET", "path": "/",
                "reason": "host-not-allowed", "sentence": "",
            }))
            .expect("an event")
        };
        let BundleEvent::Refused(denied) = refused("example.com") else { panic!("refused") };
        let id = Id::from_random([7; 16]);
        let text = "the sidecar egress ended; its traffic is blocked until the bottle ends";
        let down = Notice::ProxyDown(text.to_owned());
        let lost = "3 proxy events were lost while no client was connected".to_owned();
        for (event, wanted) in [
            (refused(NEVER_LISTED), Effect::Nothing),
            (refused("example.com"), Effect::Notice(Notice::Refused(denied))),
            (BundleEvent::Spent { proposal: id.clone() }, Effect::Spent(id)),
            (BundleEvent::Down { daemon: "egress".to_owned() }, Effect::Down("egress".to_owned(), down)),
            (BundleEvent::Lost { count: 3 }, Effect::Notice(Notice::Warning(lost))),
            (BundleEvent::Stopped, Effect::Nothing),
            (BundleEvent::Live { revision: 1 }, Effect::Nothing),
        ] {
            assert_eq!(effect_of(event), wanted);
        }
    }

    #[test]
    fn a_lock_names_its_cause() {
        let slug: Slug = "demo".parse().expect("a slug");
        let own = LockOut {
            daemon: "egress".to_owned(),
            hits: 5,
            places: vec!["a.example".to_owned(), "b.example".to_owned()],
            parent: None,
        };
        let of_parent = LockOut { parent: Some("top".parse().expect("a slug")), ..own.clone() };
        for (why, wanted) in [
            (
                own,
                "demo is locked: its agent sent 5 different parts of credentials that it does not have, on their way \
                 to a.example, b.example. ",
            ),
            (of_parent, "demo is locked, because top, which started it, is locked. "),
        ] {
            let message = lock_out_message(&slug, &why);
            assert!(message.starts_with(wanted), "{message}");
        }
    }
}
