//! What the bundle asks of a user goes into the queue, and the answer back; the user hears of it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bottle_channel::Channel;
use bottle_contract::queue::{Id, Proposal, Response};
use bottle_queue::{Decide, Outcome};
use bottle_scan::Redactor;

use super::clients::Shared;
use super::decisions::Decisions;
use super::notices::Notices;
use super::notify::Notifier;
use super::protocol::Notice;

/// Carries questions and answers for as long as the bundle lives. Ended before, what waits is taken back; on
/// disk it is stale then.
pub(super) async fn carry(bundle: Channel, shared: Arc<Shared>) {
    bottle_queue::forward(&bundle, |question| {
        let asker = shared.asker.clone();
        async move { asker.ask(question).await }
    })
    .await;
}

/// What stands for a text that cannot be redacted.
const UNREDACTED: &str = "[not shown: it cannot be redacted]";

/// What the queue of one bottle does beside keeping files.
pub(super) struct Answering {
    pub(super) decisions: Decisions,
    pub(super) notices: Arc<Notices>,
    pub(super) notifier: Notifier,
    /// Of the secrets that the keeper knows; none could be made of too many, and then nothing is shown.
    pub(super) redactor: Option<Redactor>,
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("decisions", &self.decisions).finish_non_exhaustive()
    }
}

impl Decide for Answering {
    /// Without the values of secrets: a queue is read by screens, logs, and the user's own commands.
    fn redacted(&self, text: String) -> String {
        match &self.redactor {
            Some(redactor) => redactor.redact(&text).into_owned(),
            None => UNREDACTED.to_owned(),
        }
    }

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
