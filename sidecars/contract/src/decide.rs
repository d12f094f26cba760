//! The decision: steps 1 to 6, one pure function.

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
    /// A push over HTTPS.
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
    /// A person said no.
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
    /// Upstream is down or too slow (502).
    UpstreamUnreachable,
    /// Upstream's certificate does not hold (502).
    UpstreamUntrusted,
}
