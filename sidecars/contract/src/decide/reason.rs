//! Why a request was refused, in one word.

use serde::{Deserialize, Serialize};

/// Why a request was refused; the word stands in answers, log lines and `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// CONNECT target, SNI and Host do not name one host.
    AuthorityMismatch,
    /// The path has no single meaning.
    PathAmbiguous,
    /// No route names the host.
    HostNotAllowed,
    /// The host has a route, the port has not.
    PortNotAllowed,
    /// A push over HTTPS, or another way to write to a repository of the git gate.
    UseGitGate,
    /// A clone or fetch without `git.fetch`.
    GitNotAllowed,
    /// A method that never passes.
    MethodRefused,
    /// None of `matches` fits.
    RequestNotAllowed,
    /// The route's credential is not loaded.
    CredentialMissing,
    /// A secret was found on its way out.
    SecretFound,
    /// A structural finding (CRLF).
    StructureRefused,
    /// A user said no.
    ApprovalRejected,
    /// Nobody answered in time.
    ApprovalTimeout,
    /// The body is over its limit.
    BodyTooLarge,
    /// The name leads to a forbidden address.
    AddressForbidden,
    /// The response tries to take over the agent.
    InjectionFound,
    /// The budget is spent.
    BudgetSpent,
    /// The bottle is locked ([`crate::lock_out`]): nothing leaves it any more.
    LockedOut,
    /// Upstream is down or too slow (502).
    UpstreamUnreachable,
    /// Upstream's certificate does not hold (502).
    UpstreamUntrusted,
}

impl Reason {
    /// The word, as in `x-bottle-reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AuthorityMismatch => "authority-mismatch",
            Self::PathAmbiguous => "path-ambiguous",
            Self::HostNotAllowed => "host-not-allowed",
            Self::PortNotAllowed => "port-not-allowed",
            Self::UseGitGate => "use-git-gate",
            Self::GitNotAllowed => "git-not-allowed",
            Self::MethodRefused => "method-refused",
            Self::RequestNotAllowed => "request-not-allowed",
            Self::CredentialMissing => "credential-missing",
            Self::SecretFound => "secret-found",
            Self::StructureRefused => "structure-refused",
            Self::ApprovalRejected => "approval-rejected",
            Self::ApprovalTimeout => "approval-timeout",
            Self::BodyTooLarge => "body-too-large",
            Self::AddressForbidden => "address-forbidden",
            Self::InjectionFound => "injection-found",
            Self::BudgetSpent => "budget-spent",
            Self::LockedOut => "locked-out",
            Self::UpstreamUnreachable => "upstream-unreachable",
            Self::UpstreamUntrusted => "upstream-untrusted",
        }
    }

    /// The same for a user, as a fragment that a finding may follow.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::AuthorityMismatch => "its names for the server do not agree",
            Self::PathAmbiguous => "its path has no single meaning",
            Self::HostNotAllowed => "no route names the host",
            Self::PortNotAllowed => "the host's route has not this port",
            Self::UseGitGate => "pushes go through the git gate",
            Self::GitNotAllowed => "the host's route has no `git.fetch`",
            Self::MethodRefused => "this method never passes",
            Self::RequestNotAllowed => "the host's route does not match it",
            Self::CredentialMissing => "the route's credential is not loaded",
            Self::SecretFound => "a secret was found",
            Self::StructureRefused => "it is not built as one that may pass",
            Self::ApprovalRejected => "a user said no",
            Self::ApprovalTimeout => "nobody answered in time",
            Self::BodyTooLarge => "its body is too large",
            Self::AddressForbidden => "the host leads to a forbidden address",
            Self::InjectionFound => "the answer tries to take over its reader",
            Self::BudgetSpent => "the budget is spent",
            Self::LockedOut => "the bottle is locked",
            Self::UpstreamUnreachable => "the host could not be reached",
            Self::UpstreamUntrusted => "the host's certificate does not hold",
        }
    }

    /// Whether it comes of what a request or an answer holds, not of where it goes.
    #[must_use]
    pub fn is_about_content(self) -> bool {
        matches!(
            self,
            Self::SecretFound
                | Self::StructureRefused
                | Self::ApprovalRejected
                | Self::ApprovalTimeout
                | Self::BodyTooLarge
                | Self::InjectionFound
        )
    }

    /// The HTTP status of the answer. Never 421, 429 or 503, which clients retry; 400 for a spent
    /// budget, which their agents do not.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::UpstreamUnreachable | Self::UpstreamUntrusted => 502,
            Self::BudgetSpent => 400,
            _ => 403,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
