//! Counts findings of credentials that the agent does not hold. Each such finding is a hit. The proxy counts hits
//! before the verdict, and for every value of the route's `outbound_on_match`. After the configured number of distinct
//! pieces (`lock_after`), the bottle is locked.

use bottle_policy::decide::Refusal;
use bottle_scan::Finding;

use crate::egress::Egress;

impl Egress {
    /// Counts the pieces of credentials that were found anywhere in a request or message to `host`.
    pub(super) fn count_hits<'f>(&self, found: impl IntoIterator<Item = &'f Finding>, host: &str) {
        for finding in found.into_iter().filter(|finding| self.is_hit(finding)) {
            let place = self.reporter.redact(host);
            finding.pieces.counted().for_each(|piece| self.lockout.hit(piece, &place));
        }
    }

    /// Returns the denial that every request gets while the bottle is locked.
    pub(crate) fn locked_out(&self, host: &str) -> Option<Refusal> {
        self.lockout.is_locked().then(|| Refusal::locked_out(host))
    }

    /// Whether a finding is a credential that the agent does not hold.
    fn is_hit(&self, finding: &Finding) -> bool {
        finding.secret.is_some_and(|secret| self.secrets.lockout_secrets.get(secret) == Some(&true))
    }
}
