//! Grants leases on budgets. A lease is granted only if the spent and reserved tokens, including the new lease, do not
//! exceed a limit.
//!
//! Each grant is one transaction, and only one process writes at a time, so concurrent requests of bottles cannot
//! exceed a limit. The proxy sends the sum of the tokens that it received since the launch. If an answer was lost, this
//! sum is smaller than the sum in the ledger: the tokens are already reserved, and the ledger gives the same answer
//! again.

use std::collections::HashSet;

use bottle_host::budget::{Declared, Window};
use bottle_instance::usage::Labels;
use bottle_policy::names::Slug;
use bottle_protocol::session::lease::LeaseRequest;
use jiff::{Timestamp, Zoned};

use super::error::LedgerError;
use super::repository::{Ledger, Reader, StoredLease};
use super::standing::Standing;

/// In addition to the tokens that a bottle needs, it gets up to one eighth of the remaining tokens, so that it sends
/// fewer requests. Other bottles cannot use these tokens before the bottle returns them.
const SPARE_PART: u64 = 8;

/// The launch that needs a lease.
#[derive(Debug, Clone, Copy)]
pub struct Lessee<'l> {
    /// The slug of the bottle.
    pub slug: &'l Slug,
    /// The labels of the launch, such as its agent and its bottle manifests.
    pub labels: &'l Labels,
    /// The budget key: a template or a host.
    pub key: &'l str,
}

/// The result of a request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseGrant {
    /// The tokens were granted. Contains the sum of all tokens that were granted since the launch.
    Granted(u64),
    /// A limit has too few tokens left.
    Short(Shortage),
}

/// A limit that has too few tokens left for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The limit.
    pub declared: Declared,
    /// The spent and reserved tokens of the limit.
    pub standing: Standing,
    /// The number of tokens that the request needs, plus the tokens of the bottle's lease that no request in progress
    /// uses.
    pub needed: u64,
    /// Whether a later attempt can succeed without a raised limit. For a per-minute limit, the tokens of the next
    /// minutes can be sufficient. For other limits, the tokens can be sufficient if requests in progress use less than
    /// they have reserved and other bottles return their leases.
    pub may_pass: bool,
}

impl Ledger {
    /// Grants a launch the tokens that its proxy needs, if each of the `governing` limits has enough tokens left.
    /// Records the tokens that the proxy returned.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written. In this case, no tokens are granted.
    pub fn lease(
        &mut self,
        lessee: Lessee<'_>,
        governing: &[&Declared],
        request: &LeaseRequest,
        now: &Zoned,
    ) -> Result<LeaseGrant, LedgerError> {
        let Lessee { slug, labels, key } = lessee;
        let mut batch = self.begin()?;
        let (launch, mut lease) = batch.lease(slug.as_str(), labels, key)?;
        let before = lease;
        take_back(&mut lease, request.returned);
        let lost = lease.granted.saturating_sub(request.granted);
        let missing = request.needed.unwrap_or(0).saturating_sub(lost);
        if missing > 0 {
            match most(&batch.reader(), governing, lessee, &lease, request, missing, now)? {
                Ok(tokens) => {
                    lease.reserved = lease.reserved.saturating_add(tokens);
                    lease.granted = lease.granted.saturating_add(tokens);
                }
                Err(shortage) => {
                    // The lease is written only if it changed, because the keeper repeats a waiting request every
                    // second.
                    if lease != before {
                        batch.set_lease(launch, key, &lease)?;
                        batch.commit()?;
                    }
                    return Ok(LeaseGrant::Short(shortage));
                }
            }
        }
        batch.set_lease(launch, key, &lease)?;
        batch.commit()?;
        Ok(LeaseGrant::Granted(lease.granted))
    }

    /// Ends the leases of a launch that has ended. The usage of the launch must be ingested before this call.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written.
    pub fn end_leases(&mut self, run: &str) -> Result<(), LedgerError> {
        let batch = self.begin()?;
        batch.remove_leases(run)?;
        batch.commit()
    }

    /// Ends the leases of all launches except the `live` launches. A launch that is not live still has leases if its
    /// keeper was killed before it could end them. Ends no leases if `live` returns `None`, which means that the live
    /// launches are not known.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written.
    pub fn end_other_leases(
        &mut self,
        live: impl FnOnce() -> Option<HashSet<String>>,
    ) -> Result<(), LedgerError> {
        let batch = self.begin()?;
        let leased = batch.leased_runs()?;
        if leased.is_empty() {
            return Ok(());
        }
        // `live` is called after the leases were read. A launch is live before it gets a lease, so the set contains
        // every live launch among `leased`.
        let Some(live) = live() else { return Ok(()) };
        for run in leased.iter().filter(|run| !live.contains(*run)) {
            batch.remove_leases(run)?;
        }
        batch.commit()
    }

    /// Records that a limit was enforced, and the result.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written.
    pub fn record_enforcement(
        &mut self,
        lessee: Lessee<'_>,
        declared: &Declared,
        policy: &str,
        result: &str,
    ) -> Result<(), LedgerError> {
        let (scope, window) = (declared.scope.to_string(), declared.limit.window.name());
        let mut batch = self.begin()?;
        let columns = [scope.as_str(), lessee.key, window, policy, result];
        batch.add_enforcement(lessee.slug.as_str(), lessee.labels, Timestamp::now(), columns)?;
        batch.commit()
    }
}

fn take_back(lease: &mut StoredLease, returned: u64) {
    let more = returned.saturating_sub(lease.returned);
    lease.returned += more;
    lease.reserved = lease.reserved.saturating_sub(more);
}

/// Returns the number of tokens to grant: the `missing` tokens, and a part of the remaining tokens. The inner error is
/// the first limit that has too few tokens left.
fn most(
    reader: &Reader<'_>,
    governing: &[&Declared],
    Lessee { slug, labels, .. }: Lessee<'_>,
    lease: &StoredLease,
    request: &LeaseRequest,
    missing: u64,
    now: &Zoned,
) -> Result<Result<u64, Shortage>, LedgerError> {
    let mut spare = missing;
    for declared in governing {
        let standing = reader.standing(declared, labels.run.as_deref(), now)?;
        let Some(rest) = standing.left().checked_sub(missing) else {
            let unused = lease.reserved.saturating_sub(request.in_progress);
            let needed = unused.saturating_add(missing);
            let waits_for_others = standing.reserved > unused;
            let may_pass = match declared.limit.window {
                // After at most a minute, the spent tokens no longer count against a per-minute limit.
                Window::Minute => needed <= standing.limit,
                _ => waits_for_others && standing.spent.saturating_add(needed) <= standing.limit,
            };
            let declared = (*declared).clone().in_launch_of(slug);
            return Ok(Err(Shortage { declared, standing, needed, may_pass }));
        };
        spare = spare.min(rest / SPARE_PART);
    }
    Ok(Ok(missing.saturating_add(spare)))
}
