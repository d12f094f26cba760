//! Step 6: what the outbound scan found, weighed by the route.

use super::{Allowed, Reason, Refusal, Verdict};
use crate::route::OnMatch;

/// What a scan of host, path, query, headers and body found. Values are never in here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    found: Vec<Finding>,
    after_redaction: bool,
    detail: String,
}

/// One thing that should not leave, after remembered approvals have been taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// A credential's shape, or a known value that a user may approve for this host.
    Secret,
    /// An injected credential or the canary; nobody can approve these.
    Unapprovable,
    /// A line break in the request line or a header.
    Structure,
}

impl Findings {
    /// Nothing was found, or nothing was scanned.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A first scan found these.
    #[must_use]
    pub fn new(found: Vec<Finding>) -> Self {
        Self { found, ..Self::default() }
    }

    /// A scan after [`Verdict::Redact`] still found these; what is left now is refused.
    #[must_use]
    pub fn after_redaction(found: Vec<Finding>) -> Self {
        Self { found, after_redaction: true, ..Self::default() }
    }

    /// The same with words for whoever reads the refusal: what was found and where, never its value.
    #[must_use]
    pub fn described(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// What the route says about them.
    pub(super) fn weigh<'t, 'f>(&self, allowed: Allowed<'t, 'f>) -> Verdict<'t, 'f> {
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
