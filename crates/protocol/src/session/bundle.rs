//! Messages between the keeper process and the bundle.
//!
//! The keeper provisions a bundle once, sends new routes and new values of credentials, and subscribes to events. Only
//! these requests control a bundle. Signals, watched files and processes in the bottle have no control over the bundle.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::git_gate::GateProvision;
use super::guest::SecretText;
use super::tools::ToolRequest;
use crate::endpoints::UnmeteredEndpoint;
use crate::queue::{Id, Question};
use crate::usage::Usage;
use bottle_policy::credential::Binding;
use bottle_policy::decide::Reason;
use bottle_policy::lock_out::{LockOut, Piece};
use bottle_policy::names::Slug;
use bottle_policy::route::RouteTable;

/// The request that opens a stream to the bundle. The bundle responds with one [`BundleEvent`], except to
/// `Events`, `Question`, `Usage`, `Leases`, `Log` and `ToolCall`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BundleRequest {
    /// Sent once, before the proxy listens. Returns [`BundleEvent::Ready`] when every daemon listens and has
    /// its secrets, or else [`BundleEvent::Rejected`].
    Provision(Box<Provision>),
    /// Sent once if the bundle has a git gate, before the gate listens. Returns [`BundleEvent::GateOpen`] or
    /// [`BundleEvent::Rejected`].
    Gate(Box<GateProvision>),
    /// Sent once if a user can be asked, before the supervise (MCP) server listens. Returns
    /// [`BundleEvent::SuperviseOpen`] or [`BundleEvent::Rejected`].
    Supervise(SuperviseProvision),
    /// Sends new routes. Returns [`BundleEvent::Live`] or [`BundleEvent::Rejected`]. After a rejection, the previous
    /// routes still apply.
    Routes(Routes),
    /// Replaces the values of credentials. Returns [`BundleEvent::Replaced`] or [`BundleEvent::Rejected`]. The proxy
    /// uses the new values for the next request. The daemons search and redact the old values too, because they may
    /// still be valid. After a rejection, all old values still apply.
    Secrets {
        /// The new values by the name of their slot ([`Binding::slot`]).
        values: BTreeMap<String, SecretText>,
    },
    /// Subscribes to events: first the events that occurred since the last keeper disconnected, then new events.
    Events,
    /// Waits for the next question from a daemon ([`BundleEvent::Asked`]). The keeper replies with one
    /// [`crate::queue::Answer`] on the same stream. If the stream closes first, the question goes to the next
    /// stream with this request. If the daemon stops waiting for an answer, the bundle resets the stream.
    Question,
    /// Subscribes to token usage. The bundle repeatedly sends [`BundleEvent::Used`], and the keeper acknowledges each
    /// event with [`Written`] when the event's records are on disk. Records without acknowledgement are sent again to
    /// the next subscriber.
    Usage,
    /// Serves leases on budgets until the stream closes. The bundle sends [`super::lease::LeaseRequest`]s, and the
    /// keeper answers with [`super::lease::LeaseAnswer`]s, in any order and at any time. While no such stream is open,
    /// the proxy uses the leases that it already has.
    Leases,
    /// Subscribes to the lines of the access log, if the keeper cannot read the proxy's log directory. The bundle
    /// repeatedly sends [`BundleEvent::Logged`], and the keeper acknowledges each event with [`Written`] when the
    /// event's lines are written. Lines without acknowledgement are sent again to the next subscriber.
    Log,
    /// Waits for the next [`ToolRequest`] of the agent ([`BundleEvent::ToolCalled`]). The keeper replies with one
    /// [`super::tools::ToolAnswer`] on the same stream. If the agent stops waiting, the daemon resets the stream.
    ToolCall,
    /// Waits until the bottle is locked. Returns [`BundleEvent::LockedOut`], immediately if the bottle is
    /// already locked.
    LockOut,
    /// The bundle sends this request to a daemon in order to count the pieces of secrets that the bottle sends
    /// ([`bottle_policy::lock_out`]). The daemon sends each new piece ([`BundleEvent::Hit`]). The bundle acknowledges
    /// the piece with [`Written`] after it has counted the piece and, at the limit, after every daemon is locked.
    Hits,
    /// Locks the bottle. A keeper sends this request to the bundle when the bottle's parent is locked. The bundle sends
    /// the request to each of its daemons. Returns [`BundleEvent::Locked`].
    Lock(LockOut),
    /// Checks the health of every daemon. Returns [`BundleEvent::Health`].
    Health,
    /// Closes the listeners and stops every daemon. Returns [`BundleEvent::Stopped`] before the bundle exits.
    Stop,
}

/// The bundle's configuration ([`BundleRequest::Provision`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// The bottle's slug, for log lines and denials.
    pub slug: Slug,
    /// The routes of the first revision.
    pub routes: Routes,
    /// The credentials. Each credential is bound to one host and header until the bundle exits. Its value can change
    /// ([`BundleRequest::Secrets`]).
    pub credentials: Vec<Credential>,
    /// Known secrets that the agent holds in its environment. The redactor masks them in every log line. The
    /// route's `outbound_on_match` applies to a request that contains a known secret.
    pub known_secrets: Vec<SecretText>,
    /// Sensitive environment values that the agent does not hold. The sidecars treat these values like `known_secrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marked: Vec<SecretText>,
    /// The user's scan rules. The host validates them before launch. The daemons validate them again and
    /// reject invalid rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFile>,
    /// Values that the agent holds instead of credentials. Placeholders grant no access. A scan never reports them as
    /// findings, even if they match a token pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// A decoy secret that grants no access. If the agent sends it, the agent has searched for secrets. The
    /// user cannot approve such a request.
    #[serde(default)]
    pub canary: Option<SecretText>,
    /// The canaries of earlier launches that used the same files. The sidecars treat these canaries like
    /// [`Provision::canary`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_canaries: Vec<SecretText>,
    /// How long a request waits for an approval, in seconds; `None` if no user can be asked.
    #[serde(default)]
    pub ask_seconds: Option<u64>,
    /// Limits on buffered request bodies. A request whose body exceeds a limit is denied.
    #[serde(default)]
    pub limits: Limits,
    /// The rules for requests to models.
    #[serde(default)]
    pub models: ModelRules,
    /// The hosts that a budget names. The proxy denies requests to unknown endpoints of these hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgeted_hosts: Vec<String>,
    /// Root certificates for upstream connections, PEM: the host's root certificates and those of `egress.ca_bundle`.
    /// If empty, the compiled-in roots are used.
    pub upstream_roots: String,
    /// `egress.upstream_proxy`: the `http://` URL of a corporate proxy.
    #[serde(default)]
    pub upstream_proxy: Option<SecretText>,
    /// The addresses of the machine that runs `bottle`. Unless the route sets `private` or `connect_to`, the
    /// proxy does not connect to a name that resolves to one of these addresses.
    pub host_addresses: Vec<IpAddr>,
    /// `egress.log`: the level of the access log.
    pub log: LogLevel,
    /// `logs.keep`: the maximum size of the access log, over all its files, in bytes. When the log reaches this size,
    /// the oldest file is overwritten.
    pub log_keep: u64,
}

impl Provision {
    /// Creates a configuration with routes only: no credentials, secrets, approvals or log.
    #[must_use]
    pub fn of_routes(slug: Slug, table: RouteTable) -> Self {
        Self {
            slug,
            routes: Routes::first(table),
            credentials: Vec::new(),
            known_secrets: Vec::new(),
            marked: Vec::new(),
            rules: Vec::new(),
            placeholders: Vec::new(),
            canary: None,
            earlier_canaries: Vec::new(),
            ask_seconds: None,
            limits: Limits::default(),
            models: ModelRules::default(),
            budgeted_hosts: Vec::new(),
            upstream_roots: String::new(),
            upstream_proxy: None,
            host_addresses: Vec::new(),
            log: LogLevel::Off,
            log_keep: 0,
        }
    }
}

/// The configuration of the supervise (MCP) server ([`BundleRequest::Supervise`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuperviseProvision {
    /// The routes that the proxy was provisioned with.
    pub routes: Routes,
    /// How long a tool call waits for the user before it returns "not decided yet", in seconds.
    pub call_seconds: u64,
    /// Whether the agent gets the tools of the keeper ([`BundleRequest::ToolCall`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeper_tools: bool,
}

/// A rule file in the configuration format of gitleaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// The file name, for messages.
    pub name: String,
    /// The content of the rule file, at most 4 MiB.
    #[serde(with = "super::packed")]
    pub text: String,
}

/// `egress.body_limit` and `egress.spool_quota`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The maximum size of the body of one request.
    pub body: u64,
    /// The maximum total size of encrypted bodies on disk that wait for a decision.
    pub spool: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 256 << 20, spool: 1 << 30 }
    }
}

/// The `metering` settings: the rules for requests to models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRules {
    /// `metering.default_output`: the tokens that are reserved for the response to a request without an output limit.
    /// `None` means the maximum output of the model.
    pub default_output: Option<u64>,
    /// `metering.repeats`: how often the same request may be sent in a row. `None` if there is no limit.
    pub repeats: Option<u32>,
    /// `metering.exact`: whether the proxy asks the provider how many tokens a prompt has, instead of an estimate.
    pub exact: bool,
    /// `metering.unmetered`: endpoints that the proxy allows without counting tokens, even if a budget limits their
    /// host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmetered: Vec<UnmeteredEndpoint>,
}

/// The revision of the routes in a [`Provision`].
pub const FIRST_REVISION: u64 = 1;

/// Routes with their revision number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// The revision, which increases by one with each change.
    pub revision: u64,
    /// The routes. A message with an invalid route is rejected.
    pub table: RouteTable,
    /// One-time grants, in the order of their approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub once: Vec<OneTimeGrant>,
}

impl Routes {
    /// Creates the first revision, for a [`Provision`].
    #[must_use]
    pub fn first(table: RouteTable) -> Self {
        Self { revision: FIRST_REVISION, table, once: Vec::new() }
    }
}

/// Routes that apply until they have allowed one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneTimeGrant {
    /// The id of the approved proposal.
    pub proposal: Id,
    /// The routes, in the format of proposals ([`bottle_policy::proposal`]).
    pub routes: String,
}

/// A secret and its binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The slot, host, scheme and header of the secret.
    pub binding: Binding,
    /// The value. If absent, the slot is not loaded, and the route denies requests with `credential-missing`.
    pub value: Option<SecretText>,
}

/// `egress.log`: the level of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// No log. The keeper still receives denials as events.
    #[default]
    Off,
    /// The log contains denials and redactions.
    Blocks,
    /// The log contains every request.
    Full,
}

/// A message from the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BundleEvent {
    /// The bottle is locked. Answers [`BundleRequest::LockOut`].
    LockedOut(LockOut),
    /// The daemon is locked. Answers [`BundleRequest::Lock`].
    Locked,
    /// The bottle sent a piece of a secret that its agent does not hold ([`BundleRequest::Hits`]).
    Hit {
        /// The piece of the secret.
        piece: Piece,
        /// The host or repository to which the agent sent the piece. This text contains no secret.
        place: String,
    },
    /// Every daemon listens and has its secrets.
    Ready {
        /// The CA certificate that the bottle must trust, PEM. The CA's key is generated in the egress daemon
        /// and never leaves that process.
        ca_certificate: String,
    },
    /// The git gate listens and has the credentials for its upstream repositories.
    GateOpen,
    /// The MCP server listens.
    SuperviseOpen,
    /// The routes of a [`BundleRequest::Routes`] are active: the proxy uses them for the next request.
    Live {
        /// The revision of these routes.
        revision: u64,
    },
    /// The values of a [`BundleRequest::Secrets`] apply.
    Replaced,
    /// The request was rejected and changed nothing.
    Rejected {
        /// The cause of the rejection, as a lower-case fragment.
        message: String,
    },
    /// The daemons' health ([`BundleRequest::Health`]).
    Health {
        /// One entry for each daemon.
        daemons: Vec<Daemon>,
    },
    /// A request was denied.
    Refused(Refused),
    /// A one-time grant was used; see [`Routes::once`].
    Spent {
        /// The id of the approved proposal.
        proposal: Id,
    },
    /// A daemon's question ([`BundleRequest::Question`]).
    Asked(Box<Question>),
    /// The agent calls a tool of the keeper ([`BundleRequest::ToolCall`]).
    ToolCalled(ToolRequest),
    /// Token usage ([`BundleRequest::Usage`]).
    Used {
        /// The records in the order in which the responses ended; never empty.
        records: Vec<Usage>,
    },
    /// Lines of the access log ([`BundleRequest::Log`]).
    Logged {
        /// JSON lines without line breaks, in the order of the log; never empty.
        lines: Vec<String>,
    },
    /// A daemon exited; its listeners are closed.
    Down {
        /// The daemon's name.
        daemon: String,
    },
    /// Events were dropped because no keeper was connected and the buffer was full.
    Lost {
        /// How many events were dropped.
        count: u64,
    },
    /// The listeners are closed and every daemon has exited.
    Stopped,
}

/// Acknowledges the last event on its stream: all records of a [`BundleEvent::Used`] are on disk, all lines of
/// a [`BundleEvent::Logged`] are written, or the piece of a [`BundleEvent::Hit`] is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {}

/// One daemon's health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// The daemon's name: `egress`, `git-gate` or `supervise`.
    pub name: String,
    /// Whether the daemon responded before its deadline and all its listeners are open.
    pub up: bool,
    /// The revision of the daemon's routes (egress only).
    #[serde(default)]
    pub revision: Option<u64>,
    /// The daemon's resident memory, in bytes.
    #[serde(default)]
    pub resident: Option<u64>,
    /// The number of requests to models whose response has not ended (egress only).
    #[serde(default)]
    pub model_requests: Option<u64>,
    /// Protections that this kernel does not support, as sentence fragments for the user.
    #[serde(default)]
    pub weaker: Vec<String>,
}

/// A denied request, as it is reported to the user. The redactor has removed secrets from every field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The id of the denial, which the agent's response and the log line also contain.
    pub id: String,
    /// Time of the denial, RFC 3339, UTC.
    pub time: String,
    /// The requested host, in canonical form.
    pub host: String,
    /// The requested port.
    pub port: u16,
    /// The method; empty if no request was read.
    pub method: String,
    /// The path without the query; empty if no request was read.
    pub path: String,
    /// The reason for the denial.
    pub reason: Reason,
    /// The message that the agent received.
    pub sentence: String,
}
