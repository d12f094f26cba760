//! Reserves the tokens of a request to a model before the request is sent, if a budget limits these tokens.
//!
//! ```text
//!              ┌─ enough in the lease ─► reservation ─► upstream ─► usage record ─► settled
//! request ─► cost                                                                      │
//!              └─ wait ─► lease request ─► bundle ─► keeper ─► ledger                  │
//!                           ▲                  granted, unlimited or denied            │
//!                           └──────────────────── unused tokens ◄──────────────────────┘
//! ```
//! The ledger has reserved all tokens of a lease. For a request, the proxy reserves the estimated tokens of the prompt
//! and the output limit from the lease. After the response, the tokens that the response provably did not use return to
//! the lease. If a response uses more tokens than its reservation, the proxy subtracts the additional tokens from the
//! lease. If the lease has too few tokens and no keeper answers, the proxy denies requests, because the state of the
//! budget is unknown.
//!
//! - `key_lease`: the lease of one budget key, and the requests that wait for its tokens · `connection`: the messages
//!   to the keeper
//! - `cost`: the tokens that a request can use · `calibration`: raises the estimate for models that use more tokens
//! - `repeats`: equal requests in a row

mod calibration;
mod connection;
mod cost;
mod key_lease;
mod repeats;

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bottle_meter::{Limits, MeteredRequest, NotARequest};
use bottle_policy::decide::{Reason, Refusal};
use bottle_protocol::endpoints;
use bottle_protocol::session::lease::BudgetKey;
use bottle_protocol::usage::{Api, Usage};
use tokio::sync::{oneshot, watch};

use crate::bounds;
use crate::connected_keepers::ConnectedKeepers;
use calibration::Calibration;
pub(crate) use cost::Cost;
use key_lease::{Grant, KeyLease, Ready};
pub(crate) use repeats::Repeats;

/// The leases of this bottle.
#[derive(Default)]
pub(crate) struct Leases {
    accounts: Mutex<HashMap<BudgetKey, KeyLease>>,
    calibration: Calibration,
    /// The random keys of the hashes of requests, so that the agent cannot predict a hash.
    random: RandomState,
    /// A counter that changes whenever a [`KeyLease`] has a message for the keeper.
    changed: watch::Sender<u64>,
    keepers: ConnectedKeepers,
}

/// Why no tokens were reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseDenied {
    reason: Reason,
    why: String,
}

impl LeaseDenied {
    fn unknown(why: &str) -> Self {
        Self { reason: Reason::BudgetUnknown, why: why.to_owned() }
    }

    /// Returns the denial of a request to `host`.
    pub(crate) fn refusal(&self, host: &str) -> Refusal {
        Refusal::later(self.reason, host, &self.why)
    }
}

/// The tokens that a request can use, and the tokens reserved for it.
#[derive(Default)]
pub(crate) struct Charge {
    /// `None` if the proxy does not count the response's tokens.
    pub(crate) cost: Option<Cost>,
    /// `None` if no budget limits the key.
    pub(crate) reservation: Option<Reservation>,
}

/// Tokens that are reserved for one request. Dropping the reservation returns all tokens to the lease.
pub(crate) struct Reservation {
    leases: Arc<Leases>,
    key: BudgetKey,
    tokens: u64,
}

impl Reservation {
    /// Returns the tokens that the response did not use.
    fn settle(mut self, used: u64) {
        let reserved = std::mem::take(&mut self.tokens);
        self.leases.settle(&self.key, reserved, used);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.tokens > 0 {
            self.leases.settle(&self.key, self.tokens, 0);
        }
    }
}

impl Leases {
    /// Reserves `tokens`, and waits until the lease has enough tokens. Returns `None` if no budget limits the key. With
    /// 0 tokens, the call only determines whether a budget limits the key.
    ///
    /// # Errors
    /// [`LeaseDenied`] if the budget is spent, or no keeper answers.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        key: BudgetKey,
        tokens: u64,
    ) -> Result<Option<Reservation>, LeaseDenied> {
        let waiting = {
            let mut accounts = self.accounts();
            if accounts.len() >= bounds::LEASE_KEYS && !accounts.contains_key(&key) {
                accounts.retain(|_, account| !account.is_unlimited());
            }
            if accounts.len() >= bounds::LEASE_KEYS && !accounts.contains_key(&key) {
                return Err(LeaseDenied::unknown("the bottle uses too many hosts with models"));
            }
            let account = accounts.entry(key.clone()).or_insert_with(|| KeyLease::new(Instant::now()));
            match account.reserve(tokens, Instant::now()) {
                Ready::Reserved => return Ok(Some(self.reservation(&key, tokens))),
                Ready::Unlimited { refresh } => {
                    if refresh {
                        self.changed.send_modify(|change| *change += 1);
                    }
                    return Ok(None);
                }
                Ready::Full => return Err(LeaseDenied::unknown("too many requests wait for the budget")),
                Ready::Waits(answer) => answer,
            }
        };
        self.changed.send_modify(|change| *change += 1);
        tokio::select! {
            biased;
            answer = waiting => answer.unwrap_or_else(|_| Err(LeaseDenied::unknown("the proxy is closing"))),
            () = self.keepers.none_for(bounds::LEASE_WITHOUT_KEEPER) => {
                Err(LeaseDenied::unknown("the bottle's keeper process does not answer"))
            }
        }
    }

    /// Parses the decoded body of a request. `compares` states whether the request will be compared with earlier
    /// requests.
    ///
    /// # Errors
    /// [`NotARequest`] if the body is not a request of this API.
    pub(crate) fn read(&self, api: Api, body: &[u8], compares: bool) -> Result<MeteredRequest, NotARequest> {
        MeteredRequest::read(api, body, &self.random, compares)
    }

    /// The number of tokens that a request to `host` can use. `default_output` replaces the model's limit for a request
    /// without an output limit.
    pub(crate) fn cost(&self, host: &str, request: &MeteredRequest, default_output: Option<u64>) -> Cost {
        // A server that is not a known provider may use another model than the request names.
        let model = request.model.as_deref().filter(|_| endpoints::serves_models(host));
        Cost::of(request, Limits::of(model), default_output, |model, text| {
            self.calibration.raise(model, text)
        })
    }

    /// Whether a budget is known to limit the key.
    #[cfg(test)]
    pub(crate) fn is_limited(&self, key: &BudgetKey) -> bool {
        self.accounts().get(key).is_some_and(KeyLease::is_limited)
    }

    /// Settles a response: returns the reserved tokens that the response did not use.
    pub(crate) fn record(self: &Arc<Self>, Charge { cost, reservation }: Charge, usage: &Usage) {
        let counts = usage.tokens.counts(usage.api);
        let is_exact = !usage.estimated && !usage.interrupted && !counts.doubtful;
        if let Some((model, text, tokens)) =
            cost.as_ref().filter(|_| is_exact).and_then(|cost| cost.lesson(&counts))
        {
            self.calibration.learn(model, text, tokens);
        }
        match reservation {
            Some(reservation) => reservation.settle(counts.total()),
            // If a budget limits the key, the ledger subtracts the tokens of every response from the lease, even
            // without a reservation.
            None => self.settle(&key(usage.provider_route, &usage.host), 0, counts.total()),
        }
    }

    fn reservation(self: &Arc<Self>, key: &BudgetKey, tokens: u64) -> Reservation {
        Reservation { leases: Arc::clone(self), key: key.clone(), tokens }
    }

    fn settle(self: &Arc<Self>, key: &BudgetKey, reserved: u64, used: u64) {
        let served = {
            let mut accounts = self.accounts();
            let Some(account) = accounts.get_mut(key) else { return };
            account.settle(reserved, used, Instant::now());
            account.serve()
        };
        self.deliver(key, served);
        self.changed.send_modify(|change| *change += 1);
    }

    /// Sends reservations to the requests that waited. If the client of a request has disconnected, the dropped
    /// reservation returns its tokens to the lease.
    fn deliver(self: &Arc<Self>, key: &BudgetKey, served: Vec<Grant>) {
        for Grant { tokens, answer } in served {
            let reservation = tokens.map(|tokens| self.reservation(key, tokens));
            drop(answer.send(Ok(reservation)));
        }
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<BudgetKey, KeyLease>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the budget key of a request to `host`.
pub(crate) fn key(provider_route: bool, host: &str) -> BudgetKey {
    if provider_route { BudgetKey::Provider } else { BudgetKey::Host(host.to_owned()) }
}

/// Sends the result to a request that waits for a reservation.
type AnswerSender = oneshot::Sender<Result<Option<Reservation>, LeaseDenied>>;
/// Receives the result for a request that waits for a reservation.
type Answer = oneshot::Receiver<Result<Option<Reservation>, LeaseDenied>>;
