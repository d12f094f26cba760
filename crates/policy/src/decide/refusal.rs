//! Denials: the reason, and a message that tells the agent and the user what they can do.

use serde::{Deserialize, Serialize};

use super::Reason;
use super::git::Denied;
use crate::canonical::Ambiguous;
use crate::known_hosts;
use crate::lock_out;
use crate::names::{HTTP_PORT, HTTPS_PORT};
use crate::route::Route;

/// The supervise tool with which an agent can propose routes after a denial.
const ASK_TOOL: &str = "egress-block";

/// The end of a message if the agent may propose a route. The text is also correct in bottles without the tool
/// `egress-block`.
const ASK: &str = "Ask the user to allow it; where this bottle has the tool `egress-block` or the command `bottle-ask`, that asks for you.";
/// The end of a message if only the user can change the policy.
const USER_ONLY: &str = "Only the user can change that, in the bottle's manifest.";

/// The status that makes WebSocket clients fall back to plain HTTP.
const UPGRADE_REQUIRED: u16 = 426;

/// A denial, from which the proxy builds its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason for the denial.
    pub reason: Reason,
    /// The requested host, in canonical form if it could be parsed.
    pub host: String,
    /// The message for the agent and the user.
    pub sentence: String,
    /// The HTTP status of the response.
    pub status: u16,
    /// The supervise tool with which the agent may ask the user to allow the request. `None` if the agent may not ask.
    pub tool: Option<&'static str>,
}

/// The JSON body of a denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalBody {
    /// The id of the denial, which the log line contains too.
    pub id: String,
    /// The reason; see [`field@Refusal::reason`].
    pub reason: Reason,
    /// The requested host; see [`field@Refusal::host`].
    pub host: String,
    /// The message; see [`field@Refusal::sentence`].
    pub sentence: String,
    /// The supervise tool; see [`field@Refusal::tool`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

impl Refusal {
    fn new(reason: Reason, host: &str, sentence: String) -> Self {
        Self { reason, host: host.to_owned(), sentence, status: reason.status(), tool: None }
    }

    /// Appends the next step: either the agent may ask, or only the user can allow the request.
    fn with_next_step(mut self, may_ask: bool) -> Self {
        self.sentence.push(' ');
        self.sentence.push_str(if may_ask { ASK } else { USER_ONLY });
        self.tool = may_ask.then_some(ASK_TOOL);
        self
    }

    /// Returns the JSON body of the response. `id` is the id of the denial.
    #[must_use]
    pub fn body(&self, id: &str) -> RefusalBody {
        RefusalBody {
            id: id.to_owned(),
            reason: self.reason,
            host: self.host.clone(),
            sentence: self.sentence.clone(),
            tool: self.tool.map(str::to_owned),
        }
    }

    /// Creates a denial in step 6 or later. `detail` is a fragment that describes the finding, and may be
    /// empty. The fragment must be a fixed text, or text that the caller has checked.
    #[must_use]
    pub fn later(reason: Reason, host: &str, detail: &str) -> Self {
        let colon = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let sentence = match reason {
            Reason::SecretFound => format!(
                "The request to `{host}` contains what looks like a secret{colon}. Remove it and try again."
            ),
            Reason::StructureRefused => {
                format!("The request to `{host}` is malformed or cannot be inspected{colon}.")
            }
            Reason::ApprovalRejected => format!("The user rejected this request to `{host}`{colon}."),
            Reason::ApprovalTimeout => {
                format!("The user did not decide in time on this request to `{host}`{colon}.")
            }
            Reason::BodyTooLarge => {
                format!("The body exceeds the size limit for `{host}`{colon}.")
            }
            Reason::AddressForbidden => format!(
                "`{host}` resolves to an address that no bottle may reach{colon}. If that is intended, the user can set \
                 `private: true` in its route."
            ),
            Reason::InjectionFound => {
                format!("The response of `{host}` looks like a prompt injection{colon}.")
            }
            Reason::BudgetSpent => {
                format!("The budget for `{host}` is spent, so requests to its models are denied{colon}.")
            }
            Reason::BudgetUnknown => format!(
                "How much of the budget for `{host}` is spent is unknown, so requests to its models are denied{colon}."
            ),
            Reason::RequestRepeated => {
                format!("The same request to the model at `{host}` was sent too often in a row{colon}.")
            }
            Reason::UpstreamUnreachable => format!("`{host}` is allowed, but could not be reached{colon}."),
            Reason::UpstreamUntrusted => {
                format!("`{host}` is allowed, but its certificate could not be verified{colon}.")
            }
            other => format!("The request to `{host}` was denied ({other}){colon}."),
        };
        Self::new(reason, host, sentence)
    }

    /// Denies a request that needs an approval, in a bottle where no user can be asked. For `detail`, see
    /// [`later`](Self::later).
    #[must_use]
    pub fn unasked(host: &str, detail: &str) -> Self {
        let mut refusal = Self::later(Reason::SecretFound, host, detail);
        refusal.sentence.push_str(
            " This bottle cannot ask for an approval; the user can choose what happens with \
             `dlp.outbound_on_match` in the route.",
        );
        refusal
    }

    /// Denies a request whose tokens the proxy cannot count, because a budget limits the host. `what` names the kind
    /// of the request. An upgrade gets the status that makes WebSocket clients fall back to plain HTTP.
    #[must_use]
    pub fn not_metered(host: &str, what: &str, upgrade: bool) -> Self {
        let sentence = format!(
            "A budget limits the tokens of `{host}`, and the proxy cannot count the tokens of {what}, so it is denied. \
             Use a plain HTTP request for one response."
        );
        let refusal = Self::new(Reason::NotMetered, host, sentence);
        Self { status: if upgrade { UPGRADE_REQUIRED } else { refusal.status }, ..refusal }
    }

    /// Denies a request to an endpoint that is not known to be metered or free, because a budget limits the host. The
    /// statuses are the same as for [`not_metered`](Self::not_metered).
    #[must_use]
    pub fn unknown_endpoint(host: &str, method: &str, path: &str, upgrade: bool) -> Self {
        let refusal = Self::not_metered(host, &format!("`{method} {path}`"), upgrade);
        let sentence = format!(
            "{} To let it pass uncounted, the user can add `{host}{path}` to `metering.unmetered` in settings.yml.",
            refusal.sentence
        );
        Self { sentence, ..refusal }
    }

    /// Denies a request of a locked bottle. The message is the same for every request.
    #[must_use]
    pub fn locked_out(host: &str) -> Self {
        Self::new(Reason::LockedOut, host, lock_out::SENTENCE.to_owned())
    }

    /// Denies a response that the proxy cannot read.
    #[must_use]
    pub fn unreadable_answer(host: &str, detail: &str) -> Self {
        let sentence =
            format!("The response of `{host}` is blocked, because the proxy cannot read it: {detail}.");
        Self::new(Reason::StructureRefused, host, sentence)
    }

    /// Denies a response that contains a secret of this bottle, if the proxy cannot redact the secret.
    #[must_use]
    pub fn secret_in_answer(host: &str, detail: &str) -> Self {
        let sentence = format!("The response of `{host}` contains a secret of this bottle: {detail}.");
        Self::new(Reason::SecretFound, host, sentence)
    }

    pub(super) fn authority(host: &str, why: &str) -> Self {
        let host: String = host.chars().take(253).filter(char::is_ascii_graphic).collect();
        let sentence = format!("The host names in this request do not agree: {why}.");
        Self::new(Reason::AuthorityMismatch, &host, sentence)
    }

    pub(super) fn path_ambiguous(host: &str, why: Ambiguous) -> Self {
        let what = why.as_str();
        let sentence = format!(
            "The path {what}, which servers read in different ways, and `{host}` is allowed for certain requests \
             only. Write the path plainly."
        );
        Self::new(Reason::PathAmbiguous, host, sentence)
    }

    pub(super) fn host(host: &str, port: u16) -> Self {
        let sentence = match port {
            HTTPS_PORT => format!("No route of this bottle allows `{host}`."),
            HTTP_PORT => format!(
                "No route of this bottle allows `{host}`, and plain HTTP needs one with port 80; try `https://`."
            ),
            other => format!("No route of this bottle allows `{host}` on port {other}."),
        };
        let mut refusal = Self::new(Reason::HostNotAllowed, host, sentence);
        if let Some(manifest) = known_hosts::opened_by(host).filter(|_| port == HTTPS_PORT) {
            let recipe =
                format!(" The shipped bottle manifest `{manifest}` opens it (`--bottle {manifest}`).");
            refusal.sentence.push_str(&recipe);
        }
        refusal.with_next_step(port == HTTPS_PORT || port == HTTP_PORT)
    }

    pub(super) fn port(host: &str, port: u16, route: &Route) -> Self {
        let ports: Vec<String> = route.ports.iter().map(ToString::to_string).collect();
        let sentence = format!("`{host}` is allowed on port {} only, not on {port}.", ports.join(", "));
        Self::new(Reason::PortNotAllowed, host, sentence).with_next_step(false)
    }

    pub(super) fn scheme(host: &str, port: u16) -> Self {
        let sentence = if port == HTTP_PORT {
            format!("Port 80 of `{host}` is plain HTTP; use `http://` there.")
        } else {
            format!("Plain HTTP is allowed on port 80 only; use `https://` for port {port} of `{host}`.")
        };
        Self::new(Reason::PortNotAllowed, host, sentence)
    }

    pub(super) fn method(host: &str, method: &str) -> Self {
        let word: String = method.chars().take(32).filter(|c| c.is_ascii_graphic()).collect();
        Self::new(
            Reason::MethodRefused,
            host,
            format!("The method `{word}` is never allowed, to `{host}` or any other host."),
        )
    }

    pub(super) fn git(host: &str, route: &Route, why: Denied) -> Self {
        match why {
            Denied::Push => Self::new(
                Reason::UseGitGate,
                host,
                format!(
                    "Pushes to `{host}` are denied here; push through the git gate, if this bottle has one."
                ),
            ),
            Denied::Fetch => {
                let sentence =
                    format!("The route of `{host}` does not allow git clone or fetch (`git.fetch: true`).");
                Self::new(Reason::GitNotAllowed, host, sentence).with_next_step(agent_may_widen(route))
            }
            Denied::LfsWithCredential => Self::new(
                Reason::GitNotAllowed,
                host,
                format!("Git LFS could upload with the credential of `{host}`, so this route denies it."),
            ),
        }
    }

    pub(super) fn forge_write(host: &str, method: &str, path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        let sentence = format!(
            "`{method} {path}` could write to a repository on `{host}` and bypass the git gate, which scans pushes. \
             Push instead. Only the user can allow this request: an entry of the route's `matches` must name its \
             method and path."
        );
        Self::new(Reason::UseGitGate, host, sentence)
    }

    /// Denies text that makes a forge change a repository ([`super::quick_action()`]).
    #[must_use]
    pub fn quick_action(host: &str, word: &str) -> Self {
        let sentence = format!(
            "A line of the text begins with `/{word}`, with which `{host}` changes a repository and bypasses the git gate, or the text is too long to check. \
             Write the word inside a sentence, or leave this to the user."
        );
        Self::new(Reason::UseGitGate, host, sentence)
    }

    pub(super) fn request(host: &str, route: &Route, method: &str, path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        let sentence =
            format!("`{host}` is allowed for certain requests only, and `{method} {path}` is none of them.");
        Self::new(Reason::RequestNotAllowed, host, sentence).with_next_step(agent_may_widen(route))
    }

    /// Whether the denial only makes the client fall back to plain HTTP, as the route intends. Such a denial
    /// is not reported to the user.
    #[must_use]
    pub fn asks_to_fall_back(&self) -> bool {
        self.status == UPGRADE_REQUIRED
    }

    pub(super) fn websocket(host: &str) -> Self {
        let sentence = format!("WebSockets to `{host}` are denied; use HTTP without an upgrade.");
        Self { status: UPGRADE_REQUIRED, ..Self::new(Reason::RequestNotAllowed, host, sentence) }
    }

    /// Denies a request to a host whose credential is not loaded. The message does not contain the slot's name, because
    /// agents must not learn slot names.
    pub(super) fn credential(host: &str) -> Self {
        let sentence = format!(
            "The credential for `{host}` is not loaded, so requests to it are denied. The user can provide it by starting \
             the bottle again."
        );
        Self::new(Reason::CredentialMissing, host, sentence)
    }
}

/// Whether the agent may propose to widen the route. The agent may not propose this if the route has a
/// credential or belongs to a provider.
fn agent_may_widen(route: &Route) -> bool {
    route.auth.is_none() && !route.provider
}
