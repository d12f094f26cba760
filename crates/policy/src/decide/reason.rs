//! Reason codes of denied requests and responses.

use serde::{Deserialize, Serialize};

/// Why a request is denied. The code appears in responses, log lines and `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// CONNECT target, SNI, `:authority` and `Host` do not agree on one host and port.
    AuthorityMismatch,
    /// Servers may interpret the path in different ways, and the route has `matches`.
    PathAmbiguous,
    /// No route matches the host.
    HostNotAllowed,
    /// The host's route does not allow the port.
    PortNotAllowed,
    /// A push over HTTPS, or another write to a repository on a gated forge.
    UseGitGate,
    /// A clone or fetch, and the route does not set `git.fetch`.
    GitNotAllowed,
    /// A method that is never allowed.
    MethodRefused,
    /// No entry of the route's `matches` allows the request.
    RequestNotAllowed,
    /// The route's credential is not loaded.
    CredentialMissing,
    /// The outbound scan found a secret.
    SecretFound,
    /// The request is malformed (for example a line break in a header), or its body cannot be scanned.
    StructureRefused,
    /// The user rejected the request.
    ApprovalRejected,
    /// The user did not decide in time.
    ApprovalTimeout,
    /// The request body is longer than `egress.body_limit`.
    BodyTooLarge,
    /// The host name resolves to a forbidden address.
    AddressForbidden,
    /// The response looks like a prompt injection.
    InjectionFound,
    /// A budget is spent, or its remaining tokens are too few for the request (status 400).
    BudgetSpent,
    /// The state of a budget is unknown, because the keeper process or the ledger does not answer (status 400).
    BudgetUnknown,
    /// The same request to a model was sent too often in a row (status 400).
    RequestRepeated,
    /// A budget limits the host, and the proxy cannot count the tokens of this request.
    NotMetered,
    /// The bottle is locked ([`crate::lock_out`]), and the proxy denies all requests.
    LockedOut,
    /// The upstream server cannot be reached or is too slow (status 502).
    UpstreamUnreachable,
    /// The certificate of the upstream server is not trusted (status 502).
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
            Self::BudgetUnknown => "budget-unknown",
            Self::RequestRepeated => "request-repeated",
            Self::NotMetered => "not-metered",
            Self::LockedOut => "locked-out",
            Self::UpstreamUnreachable => "upstream-unreachable",
            Self::UpstreamUntrusted => "upstream-untrusted",
        }
    }

    /// Returns the reason as a sentence fragment for the user. A description of a finding may follow the
    /// fragment.
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
            Self::BudgetUnknown => "the state of the budget is unknown",
            Self::RequestRepeated => "it was sent too often in a row",
            Self::NotMetered => "its tokens cannot be counted",
            Self::LockedOut => "the bottle is locked",
            Self::UpstreamUnreachable => "the host could not be reached",
            Self::UpstreamUntrusted => "the host's certificate is not trusted",
        }
    }

    /// Whether the cause of the denial is the content of a request or response, and not the destination.
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

    /// Returns the HTTP status of the response. The status is never 421, 429 or 503, because clients retry these. For a
    /// budget or a repeated request, the status is 400, which agents do not retry.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::UpstreamUnreachable | Self::UpstreamUntrusted => 502,
            Self::BudgetSpent | Self::BudgetUnknown | Self::RequestRepeated => 400,
            _ => 403,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
