//! Reason codes of denied requests and responses.

use serde::{Deserialize, Serialize};

/// Why a request is denied. The code appears in responses, log lines and `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// CONNECT target, SNI and Host do not name one host.
    AuthorityMismatch,
    /// Servers may read the path in different ways.
    PathAmbiguous,
    /// No route names the host.
    HostNotAllowed,
    /// The host's route does not allow the port.
    PortNotAllowed,
    /// A push over HTTPS, or another write to a repository of the git gate.
    UseGitGate,
    /// A clone or fetch without `git.fetch`.
    GitNotAllowed,
    /// A method that is never allowed.
    MethodRefused,
    /// No entry of `matches` fits.
    RequestNotAllowed,
    /// The route's credential is not loaded.
    CredentialMissing,
    /// The outbound scan found a secret.
    SecretFound,
    /// A structural finding (CRLF).
    StructureRefused,
    /// The user rejected the request.
    ApprovalRejected,
    /// The user did not decide in time.
    ApprovalTimeout,
    /// The body exceeds its limit.
    BodyTooLarge,
    /// The name resolves to a forbidden address.
    AddressForbidden,
    /// The response looks like a prompt injection.
    InjectionFound,
    /// The budget is spent.
    BudgetSpent,
    /// The bottle is locked ([`crate::lock_out`]); the proxy denies everything.
    LockedOut,
    /// The upstream is down or too slow (502).
    UpstreamUnreachable,
    /// The upstream's certificate is not trusted (502).
    UpstreamUntrusted,
}

impl Reason {
    /// The code, as in `x-bottle-reason`.
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

    /// The reason as text for the user: a fragment that a finding may follow.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::AuthorityMismatch => "its host names do not agree",
            Self::PathAmbiguous => "servers may read its path in different ways",
            Self::HostNotAllowed => "no route names the host",
            Self::PortNotAllowed => "the host's route does not allow this port",
            Self::UseGitGate => "pushes go through the git gate",
            Self::GitNotAllowed => "the host's route has no `git.fetch`",
            Self::MethodRefused => "this method is never allowed",
            Self::RequestNotAllowed => "the host's route does not match it",
            Self::CredentialMissing => "the route's credential is not loaded",
            Self::SecretFound => "a secret was found",
            Self::StructureRefused => "it is malformed or cannot be inspected",
            Self::ApprovalRejected => "the user rejected it",
            Self::ApprovalTimeout => "the user did not decide in time",
            Self::BodyTooLarge => "its body is over the limit",
            Self::AddressForbidden => "the host resolves to a forbidden address",
            Self::InjectionFound => "the response looks like a prompt injection",
            Self::BudgetSpent => "the budget is spent",
            Self::LockedOut => "the bottle is locked",
            Self::UpstreamUnreachable => "the host could not be reached",
            Self::UpstreamUntrusted => "the host's certificate is not trusted",
        }
    }

    /// Whether the content of a request or response is the cause, not its destination.
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

    /// The HTTP status of the response. Never 421, 429 or 503, which clients retry. A spent budget gets 400,
    /// which agents do not retry.
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
