//! Queues the bundle's questions, returns the user's answers to the bundle, and notifies the user of questions.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bottle_channel::Channel;
use bottle_instance::retention;
use bottle_protocol::queue::{Id, Proposal, Response};
use bottle_queue::{Decide, Outcome};

use super::decisions::Decisions;
use super::mask::Mask;
use super::notices::Notices;
use super::notify::Notifier;
use super::protocol::Notice;
use super::shared::Shared;

/// Forwards questions and answers until the bundle ends. If this task is cancelled before, it withdraws the pending
/// questions, and their files on disk become stale.
pub(super) async fn serve(bundle: Channel, shared: Arc<Shared>) {
    bottle_queue::forward(&bundle, |question| {
        let asker = shared.asker.clone();
        async move { asker.ask(question).await }
    })
    .await;
}

/// Connects the supervise queue of one bottle to the bottle's decisions, notices and notifications.
pub(super) struct Answering {
    /// The directory `$BOTTLE_HOME`.
    pub(super) home: PathBuf,
    pub(super) decisions: Decisions,
    pub(super) notices: Arc<Notices>,
    pub(super) notifier: Notifier,
    pub(super) mask: Mask,
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("decisions", &self.decisions).finish_non_exhaustive()
    }
}

impl Decide for Answering {
    /// Masks secrets in a text of the supervise queue, because screens, logs and the user's commands show the queue.
    fn redacted(&self, text: String) -> String {
        self.mask.text(&text)
    }

    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        self.decisions.decided(proposal, response)
    }

    fn asked(&self, proposal: &Proposal, new: bool) {
        self.notices.send(Notice::Asked { id: proposal.id.clone(), tool: proposal.tool });
        // If the proposal is not new, an earlier keeper has already notified the user.
        if new {
            self.notifier.send_proposal(proposal);
            // The number of stored proposals is limited, because an agent can add proposals as long as its bottle runs.
            let (home, slug) = (self.home.clone(), proposal.bottle_slug.clone());
            tokio::task::spawn_blocking(move || retention::bound_proposals(&home, &slug));
        }
    }

    fn settled(&self, id: &Id) {
        self.notices.send(Notice::Settled { id: id.clone() });
    }
}
