//! What the bundle asks of a person goes into the queue, and the answer back; the person hears of it.

use std::pin::Pin;
use std::sync::Arc;

use bottle_channel::Channel;
use bottle_contract::queue::{Id, Proposal, Response};
use bottle_queue::{Decide, Outcome};

use super::clients::Shared;
use super::decisions::Decisions;
use super::notices::Notices;
use super::notify::Notifier;
use super::protocol::Notice;

/// Carries questions and answers for as long as the bundle lives. Ended before, what waits is taken back; on
/// disk it is stale then.
pub(super) async fn carry(bundle: Channel, shared: Arc<Shared>) {
    bottle_queue::carry(&bundle, |question| {
        let asker = shared.asker.clone();
        async move { asker.ask(question).await }
    })
    .await;
}

/// What the queue of one bottle does beside keeping files.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) decisions: Decisions,
    pub(super) notices: Arc<Notices>,
    pub(super) notifier: Notifier,
}

impl Decide for Answering {
    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        self.decisions.decided(proposal, response)
    }

    fn asked(&self, proposal: &Proposal, new: bool) {
        self.notices.tell(Notice::Asked { id: proposal.id.clone(), tool: proposal.tool });
        // Who was told by a keeper that is gone is not told again.
        if new {
            self.notifier.tell(proposal);
        }
    }

    fn settled(&self, id: &Id) {
        self.notices.tell(Notice::Settled { id: id.clone() });
    }
}
