//! The messages about leases between the proxy and the keeper process.

use std::sync::Arc;
use std::time::Instant;

use bottle_channel::Stream;
use bottle_policy::decide::Reason;
use bottle_protocol::session::lease::{LeaseAnswer, LeaseRequest};
use tokio::time::sleep;

use super::{LeaseDenied, Leases};
use crate::bounds;

impl Leases {
    /// Asks the keeper for leases until the stream closes. Streams may overlap. Requests and answers contain totals
    /// since the launch, so a repeated request does not grant tokens twice.
    pub(crate) async fn serve(self: Arc<Self>, stream: Stream) {
        let _connected = self.keepers.connect();
        let (sender, mut receiver) = stream.split();
        // The previous keeper may have left lease requests unanswered, so they are sent again.
        self.accounts().values_mut().for_each(super::KeyLease::forget_request);
        let mut changed = self.changed.subscribe();
        let mut tick = tokio::time::interval(bounds::LEASE_IDLE / 2);
        loop {
            for request in self.requests() {
                if sender.message(&request).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = tick.tick() => self.give_back_unused(),
                () = sleep(bounds::LEASE_SHARED_AFTER), if self.has_too_little() => self.give_back_unused(),
                answer = receiver.message::<LeaseAnswer>() => match answer {
                    Ok(answer) => self.apply(answer),
                    Err(_) => return,
                },
            }
        }
    }

    fn requests(&self) -> Vec<LeaseRequest> {
        let now = Instant::now();
        self.accounts().iter_mut().filter_map(|(key, account)| account.request(key, now)).collect()
    }

    fn has_too_little(&self) -> bool {
        self.accounts().values().any(super::KeyLease::has_too_little)
    }

    fn give_back_unused(&self) {
        let now = Instant::now();
        self.accounts().values_mut().for_each(|account| account.give_back_unused(now));
    }

    fn apply(self: &Arc<Self>, answer: LeaseAnswer) {
        match answer {
            LeaseAnswer::Granted { key, granted } => {
                let served = self.accounts().get_mut(&key).map(|account| {
                    account.granted(granted);
                    account.serve()
                });
                self.deliver(&key, served.unwrap_or_default());
            }
            LeaseAnswer::Unlimited { key } => {
                let served = self.accounts().get_mut(&key).map(|account| {
                    account.unlimited(Instant::now());
                    account.serve()
                });
                self.deliver(&key, served.unwrap_or_default());
            }
            LeaseAnswer::Denied { key, reason, why } => {
                // A denial of a lease request may only have one of these two reasons.
                let reason = match reason {
                    Reason::BudgetSpent => Reason::BudgetSpent,
                    _ => Reason::BudgetUnknown,
                };
                let denied = self.accounts().get_mut(&key).map(super::KeyLease::denied);
                for answer in denied.unwrap_or_default() {
                    drop(answer.send(Err(LeaseDenied { reason, why: why.clone() })));
                }
            }
            LeaseAnswer::Revoked => self.accounts().values_mut().for_each(super::KeyLease::revoke),
        }
    }
}
