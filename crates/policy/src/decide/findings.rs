//! Step 6 of [`decide`](super::decide()): applies the route's action to the findings of the outbound scan.

use super::{Allowed, Reason, Refusal, Verdict};
use crate::route::OnMatch;

/// The findings of a scan of host, path, query, headers and body. The findings never contain the matched
/// values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    found: Vec<Finding>,
    after_redaction: bool,
    detail: String,
}

/// One finding that the user has not approved before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// Text that matches the pattern of a credential, or a known value. The user may approve it for this
    /// host.
    Secret,
    /// An injected credential or the canary. The user cannot approve such a finding.
    Unapprovable,
    /// A line break in the request line or a header.
    Structure,
}

impl Findings {
    /// No findings, or no scan took place.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The findings of a first scan.
    #[must_use]
    pub fn new(found: Vec<Finding>) -> Self {
        Self { found, ..Self::default() }
    }

    /// The findings of a scan after [`Verdict::Redact`]. Such findings cause a denial or a question, never another
    /// redaction.
    #[must_use]
    pub fn after_redaction(found: Vec<Finding>) -> Self {
        Self { found, after_redaction: true, ..Self::default() }
    }

    /// Adds a description of the findings and their locations for the denial message. The description must
    /// not contain the values that were found.
    #[must_use]
    pub fn described(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// Returns the verdict on an `allowed` request with these findings.
    pub(super) fn verdict<'t, 'f>(&self, allowed: Allowed<'t, 'f>) -> Verdict<'t, 'f> {
        if self.found.is_empty() {
            return Verdict::Allow(allowed);
        }
        let structure = self.found.contains(&Finding::Structure);
        let unapprovable = self.found.contains(&Finding::Unapprovable);
        let on_match = allowed.route.on_match();
        let redacts = match on_match {
            OnMatch::Redact => true,
            OnMatch::Supervise | OnMatch::Block => allowed.route.provider && unapprovable && !structure,
        };
        if redacts && !self.after_redaction {
            Verdict::Redact(allowed)
        } else if structure {
            Verdict::Deny(Refusal::later(Reason::StructureRefused, &allowed.host, &self.detail))
        } else if on_match == OnMatch::Supervise && !unapprovable {
            Verdict::Ask(allowed)
        } else {
            Verdict::Deny(Refusal::later(Reason::SecretFound, &allowed.host, &self.detail))
        }
    }
}
