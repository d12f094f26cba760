//! Refusals: the reason, and a sentence that helps an agent and a user to the next step.

use serde::{Deserialize, Serialize};

use super::Reason;
use super::git::Denied;
use crate::canonical::Ambiguous;
use crate::lock_out;
use crate::names::{HTTP_PORT, HTTPS_PORT};
use crate::route::Route;

/// The supervise tool by which an agent asks for more after a refusal.
const ASK_TOOL: &str = "egress-block";

/// What a sentence ends with when the agent may ask by itself. True also where nobody answers the tool.
const ASK: &str = "Ask the user to allow it; where this bottle has the tool `egress-block` or the command `bottle-ask`, that asks for you.";
/// What a sentence ends with when only the user can change it.
const PERSON: &str = "Only the user can change that, in the bottle's manifest.";

/// The status on which clients of WebSockets ask again without.
const UPGRADE_REQUIRED: u16 = 426;

/// A request that is answered by the proxy itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The host it was about, canonical where it had one.
    pub host: String,
    /// For the agent and the user.
    pub sentence: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// The supervise tool that asks for what was refused, when an agent may ask.
    pub tool: Option<&'static str>,
}

/// The JSON body of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalBody {
    /// Stands in the log line too.
    pub id: String,
    /// See [`field@Refusal::reason`].
    pub reason: Reason,
    /// See [`field@Refusal::host`].
    pub host: String,
    /// See [`field@Refusal::sentence`].
    pub sentence: String,
    /// See [`field@Refusal::tool`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

impl Refusal {
    fn new(reason: Reason, host: &str, sentence: String) -> Self {
        Self { reason, host: host.to_owned(), sentence, status: reason.status(), tool: None }
    }

    /// Adds that the agent may ask for it, unless only the user can.
    fn proposable(mut self, may_ask: bool) -> Self {
        self.sentence.push(' ');
        self.sentence.push_str(if may_ask { ASK } else { PERSON });
        self.tool = may_ask.then_some(ASK_TOOL);
        self
    }

    /// The body of the answer.
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

    /// A refusal for what shows only after the decision (or in its last step). `detail` is a fragment
    /// that says what was met, from a closed set of words or checked by the caller; it may be empty.
    #[must_use]
    pub fn later(reason: Reason, host: &str, detail: &str) -> Self {
        let colon = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let sentence = match reason {
            Reason::SecretFound => format!(
                "The request to `{host}` holds something that looks like a secret{colon}. Take it out and try again."
            ),
            Reason::StructureRefused => {
                format!("The request to `{host}` is not built as one that may pass{colon}.")
            }
            Reason::ApprovalRejected => format!("The user refused this request to `{host}`{colon}."),
            Reason::ApprovalTimeout => {
                format!("Nobody answered in time whether this may go to `{host}`{colon}.")
            }
            Reason::BodyTooLarge => {
                format!("The body is larger than what is let through to `{host}`{colon}.")
            }
            Reason::AddressForbidden => format!(
                "`{host}` leads to an address that no bottle may reach{colon}. If it is meant, the user can say \
                 `private: true` in its route."
            ),
            Reason::InjectionFound => format!("The answer of `{host}` tries to take over its reader{colon}."),
            Reason::BudgetSpent => {
                format!("This bottle's budget is spent, so `{host}` is not asked any more{colon}.")
            }
            Reason::UpstreamUnreachable => format!("`{host}` is allowed, but could not be reached{colon}."),
            Reason::UpstreamUntrusted => {
                format!("`{host}` is allowed, but its certificate could not be verified{colon}.")
            }
            other => format!("The request to `{host}` was refused ({other}){colon}."),
        };
        Self::new(reason, host, sentence)
    }

    /// A request that only a user could let pass, and no user can be asked. `detail` as in
    /// [`later`](Self::later).
    #[must_use]
    pub fn unasked(host: &str, detail: &str) -> Self {
        let mut refusal = Self::later(Reason::SecretFound, host, detail);
        refusal.sentence.push_str(
            " This bottle has nobody to ask about it; the user can choose what happens with \
             `dlp.outbound_on_match` in the route.",
        );
        refusal
    }

    /// A request of a bottle that is locked. The same for every request, whatever is in it.
    #[must_use]
    pub fn locked_out(host: &str) -> Self {
        Self::new(Reason::LockedOut, host, lock_out::SENTENCE.to_owned())
    }

    /// An answer that cannot be handed to the bottle, because the proxy cannot read it.
    #[must_use]
    pub fn unreadable_answer(host: &str, detail: &str) -> Self {
        let sentence =
            format!("The answer of `{host}` is held back, because the proxy cannot read it: {detail}.");
        Self::new(Reason::StructureRefused, host, sentence)
    }

    /// An answer that holds a secret of this bottle and cannot be given without it.
    #[must_use]
    pub fn secret_in_answer(host: &str, detail: &str) -> Self {
        let sentence = format!("The answer of `{host}` holds a secret of this bottle: {detail}.");
        Self::new(Reason::SecretFound, host, sentence)
    }

    pub(super) fn authority(host: &str, why: &str) -> Self {
        let host: String = host.chars().take(253).filter(char::is_ascii_graphic).collect();
        let sentence = format!("The names this request gives for its server do not agree: {why}.");
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
        Self::new(Reason::HostNotAllowed, host, sentence).proposable(port == HTTPS_PORT || port == HTTP_PORT)
    }

    pub(super) fn port(host: &str, port: u16, route: &Route) -> Self {
        let ports: Vec<String> = route.ports.iter().map(ToString::to_string).collect();
        let sentence = format!("`{host}` is allowed on port {} only, not on {port}.", ports.join(", "));
        Self::new(Reason::PortNotAllowed, host, sentence).proposable(false)
    }

    pub(super) fn scheme(host: &str, port: u16) -> Self {
        let sentence = if port == HTTP_PORT {
            format!("Port 80 of `{host}` is plain HTTP; use `http://` there.")
        } else {
            format!("Plain HTTP leaves on port 80 only; use `https://` for port {port} of `{host}`.")
        };
        Self::new(Reason::PortNotAllowed, host, sentence)
    }

    pub(super) fn method(host: &str, method: &str) -> Self {
        let word: String = method.chars().take(32).filter(|c| c.is_ascii_graphic()).collect();
        Self::new(
            Reason::MethodRefused,
            host,
            format!("The method `{word}` never passes, to `{host}` or anywhere."),
        )
    }

    pub(super) fn git(host: &str, route: &Route, why: Denied) -> Self {
        match why {
            Denied::Push => Self::new(
                Reason::UseGitGate,
                host,
                format!(
                    "Pushes to `{host}` do not pass here; they go through the git gate, where this bottle has one."
                ),
            ),
            Denied::Fetch => {
                let sentence =
                    format!("The route of `{host}` does not allow git clone or fetch (`git.fetch: true`).");
                Self::new(Reason::GitNotAllowed, host, sentence).proposable(agent_may_widen(route))
            }
            Denied::LfsWithCredential => Self::new(
                Reason::GitNotAllowed,
                host,
                format!(
                    "Git LFS could upload with the credential of `{host}`, so it does not pass on this route."
                ),
            ),
        }
    }

    pub(super) fn forge_write(host: &str, method: &str, path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        let sentence = format!(
            "`{method} {path}` could write to a repository on `{host}` beside the git gate, which reads what is pushed. \
             Push instead. Only the user can let this pass, by a method and a path that name it in the route's \
             `matches`."
        );
        Self::new(Reason::UseGitGate, host, sentence)
    }

    /// The refusal of a text that has a forge change a repository ([`super::quick_action`]).
    #[must_use]
    pub fn quick_action(host: &str, word: &str) -> Self {
        let sentence = format!(
            "A line of what is written begins with `/{word}`, or it is too long to be read for that, by which `{host}` changes a repository beside the git gate. \
             Write it within a sentence, or leave it to the user."
        );
        Self::new(Reason::UseGitGate, host, sentence)
    }

    pub(super) fn request(host: &str, route: &Route, method: &str, path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        let sentence =
            format!("`{host}` is allowed for certain requests only, and `{method} {path}` is none of them.");
        Self::new(Reason::RequestNotAllowed, host, sentence).proposable(agent_may_widen(route))
    }

    /// Whether it only says to ask another way, as the route means it to: nothing a user has to hear of.
    #[must_use]
    pub fn asks_to_fall_back(&self) -> bool {
        self.status == UPGRADE_REQUIRED
    }

    pub(super) fn websocket(host: &str) -> Self {
        let sentence = format!("WebSockets to `{host}` do not pass; ask again over plain HTTP.");
        Self { status: UPGRADE_REQUIRED, ..Self::new(Reason::RequestNotAllowed, host, sentence) }
    }

    /// Does not name the slot: what a bottle's slots are called is no business of the agent.
    pub(super) fn credential(host: &str) -> Self {
        let sentence = format!(
            "The credential for `{host}` is not loaded, so nothing is sent there. The user can give it by starting \
             the bottle again."
        );
        Self::new(Reason::CredentialMissing, host, sentence)
    }
}

/// A route that carries a credential or belongs to a provider is never loosened for an agent.
fn agent_may_widen(route: &Route) -> bool {
    route.auth.is_none() && !route.provider
}
