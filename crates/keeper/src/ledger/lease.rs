//! Grants leases on budgets: spent, reserved and granted tokens together never exceed a limit.
//!
//! Each grant is one transaction, and only one process writes at a time, so no interleaving of bottles can exceed a
//! limit. The proxy counts what it received since the launch. If an answer was lost, the tokens are already reserved, and
//! the same answer is given again.

use std::collections::HashSet;

use bottle_host::budget::{Declared, Window};
use bottle_instance::usage::Labels;
use bottle_policy::names::Slug;
use bottle_protocol::session::lease::LeaseRequest;
use jiff::{Timestamp, Zoned};

use super::error::LedgerError;
use super::repository::{Ledger, Reader, StoredLease};
use super::standing::Standing;

/// The part of the remaining tokens that a bottle gets in addition to what it needs, so that it asks less often. Other
/// bottles cannot use these tokens before it gives them back.
const SPARE_PART: u64 = 8;

/// The launch that needs a lease.
#[derive(Debug, Clone, Copy)]
pub struct Lessee<'l> {
    /// The name of the bottle.
    pub slug: &'l Slug,
    /// The facts about the launch.
    pub labels: &'l Labels,
    /// The budget key: a template or a host.
    pub key: &'l str,
}

/// The result of a request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseGrant {
    /// The tokens that were granted since the launch.
    Granted(u64),
    /// A limit has too little left.
    Short(Shortage),
}

/// A limit that has too little left for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The limit.
    pub declared: Declared,
    /// What is spent of it.
    pub standing: Standing,
    /// The tokens that the request needs, with those of the bottle's lease that no request uses.
    pub needed: u64,
    /// Whether the tokens suffice if the requests in progress use few of their reservations, and other bottles give
    /// their leases back; for a limit for each minute, whether they suffice after a while.
    pub may_pass: bool,
}

impl Ledger {
    /// Grants a launch the tokens that its proxy needs, if each of the `governing` limits has that many left. Records
    /// what the proxy gave back.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written. Nothing is granted then.
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
                    // A request that waits asks every second, and must not write each time.
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

    /// Ends the leases of a launch that ended. Its usage must be ingested before.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written.
    pub fn end_leases(&mut self, run: &str) -> Result<(), LedgerError> {
        let batch = self.begin()?;
        batch.remove_leases(run)?;
        batch.commit()
    }

    /// Ends the leases of all launches except the `live` ones. The keeper of a launch that is not live was killed before
    /// it could end them. Ends none if `live` returns `None`, because it is unknown which launches are live.
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
        // A launch is live before it gets a lease, so this set contains all that have one.
        let Some(live) = live() else { return Ok(()) };
        for run in leased.iter().filter(|run| !live.contains(*run)) {
            batch.remove_leases(run)?;
        }
        batch.commit()
    }

    /// Records that a limit was enforced, and with which result.
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

/// The number of tokens to grant: those that are missing, and a part of the rest. The error is the first limit that has
/// too little left.
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
                // The tokens of the last minute soon belong to an earlier minute.
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
