//! Counts findings of credentials that the agent does not hold. Hits count before the verdict and whatever the route's
//! `outbound_on_match` is. After the configured number of distinct hits (`lock_after`), the bottle is locked.

use bottle_contract::decide::Refusal;
use bottle_scan::Finding;
use sha2::{Digest, Sha256};

use super::buffered_body::BufferedBody;
use crate::egress::Egress;
use crate::inspect::BodyFindings;
use crate::inspect::head::Head;

impl Egress {
    /// Counts `finding`, which matched `text` in a request to `host`, if the finding is a hit.
    pub(crate) fn count(&self, finding: &Finding, text: &[u8], host: &str) {
        if let Some(secret) = self.lockout_secret(finding) {
            self.lockout.hit(secret, text, &self.reporter.redact(host));
        }
    }

    /// Counts the hits in a request's head.
    pub(super) fn count_in_head(&self, head: &Head, found: &[Finding], host: &str) {
        found.iter().for_each(|finding| self.count(finding, head.matched_text(finding), host));
    }

    /// Counts the hits in a body. A finding in a packed file has no position in the text, so it counts once for each
    /// body. The same applies to a finding in a body that is too long to be read again.
    pub(super) async fn count_in_body(&self, body: &BufferedBody, found: &BodyFindings, host: &str) {
        if !found.all().any(|finding| self.lockout_secret(finding).is_some()) {
            return;
        }
        let text = body.text().await;
        let whole = text.as_ref().map_or_else(rand::random::<[u8; 32]>, |text| Sha256::digest(text).into());
        for finding in &found.plain {
            let matched_text =
                text.as_ref().map_or(&whole[..], |text| &text[finding.span.within(text.len())]);
            self.count(finding, matched_text, host);
        }
        found.packed.iter().for_each(|finding| self.count(finding, &whole, host));
    }

    /// Returns the denial that every request gets while the bottle is locked.
    pub(crate) fn locked_out(&self, host: &str) -> Option<Refusal> {
        self.lockout.is_locked().then(|| Refusal::locked_out(host))
    }

    /// Returns the number of the matched credential if the agent does not hold it.
    fn lockout_secret(&self, finding: &Finding) -> Option<usize> {
        finding.secret.filter(|secret| self.lockout_secrets.get(*secret) == Some(&true))
    }
}
