//! What the bundle asks of a person goes into the queue, and the answer back.

use std::sync::Arc;

use bottle_channel::Channel;
use bottle_contract::queue::Question;

use super::clients::Shared;
use super::protocol::Notice;

/// Carries questions and answers for as long as the bundle lives. Ended before, what waits is taken back; on
/// disk it is stale then.
pub(super) async fn carry(bundle: Channel, shared: Arc<Shared>) {
    bottle_queue::carry(&bundle, |question| {
        shared.notices.tell(Notice::Warning(asked(&question)));
        let asker = shared.asker.clone();
        async move { asker.ask(question).await }
    })
    .await;
}

fn asked(question: &Question) -> String {
    format!("a question waits for a decision: {} ({})", question.tool.name(), question.id)
}
