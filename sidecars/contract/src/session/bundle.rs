//! What the keeper asks of a bundle, and what the bundle tells it.
//!
//! Provisioned once, then routes as often as they change. Nothing else controls a bundle: no signal, no
//! file watched, and nothing from inside the bottle.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::gate::GateProvision;
use super::guest::SecretText;
use crate::credential::Binding;
use crate::decide::Reason;
use crate::lock_out::LockOut;
use crate::names::Slug;
use crate::queue::{Id, Question};
use crate::usage::Usage;

/// The first frame of a stream towards the bundle. Each answers with one [`BundleEvent`], except
/// `Events`, which goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BundleRequest {
    /// Once, before the proxy opens. Answers [`BundleEvent::Ready`] when every daemon listens and holds
    /// its secrets, or [`BundleEvent::Rejected`].
    Provision(Box<Provision>),
    /// Once, where the bundle has a git gate, before the proxy's part of it opens. Answers
    /// [`BundleEvent::GateOpen`] or `Rejected`.
    Gate(Box<GateProvision>),
    /// Once, where a user can be asked, before the proxy's part of the MCP server opens. Answers
    /// [`BundleEvent::SuperviseOpen`] or `Rejected`.
    Supervise(SuperviseProvision),
    /// New routes. Answers [`BundleEvent::Live`], or `Rejected` and the last good ones stay.
    Routes(Routes),
    /// Everything that happened since the last keeper listened, then what happens.
    Events,
    /// Waits for the next thing that a daemon asks of a user: [`BundleEvent::Asked`], which one
    /// [`crate::queue::Answer`] on the same stream answers. A stream that breaks before that leaves the
    /// question to the next one that waits. The stream is reset when nobody asks any more.
    Question,
    /// What answers of models cost: [`BundleEvent::Used`] again and again, each answered by one [`Written`]
    /// when it is on disk. What was not comes again, to whoever asks next.
    Usage,
    /// Waits until the bottle is locked: [`BundleEvent::LockedOut`], at once where it is locked already.
    LockOut,
    /// From the bundle to its daemons alone: another daemon locked the bottle. Answers [`BundleEvent::Locked`].
    Lock(LockOut),
    /// Asks every daemon. Answers [`BundleEvent::Health`].
    Health,
    /// Closes the proxy and ends every daemon. Answers [`BundleEvent::Stopped`] first.
    Stop,
}

/// See [`BundleRequest::Provision`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// The bottle's slug, for log lines and refusals.
    pub slug: Slug,
    /// The first routes.
    pub routes: Routes,
    /// Credentials, each bound to its place for the life of the bundle.
    pub credentials: Vec<Credential>,
    /// Values that are known secrets and that the agent holds (environment); the redactor masks them in
    /// every log line, and none leaves unless a user says so.
    pub known_secrets: Vec<SecretText>,
    /// The same for values that the user marked as secret and that nothing gave to the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marked: Vec<SecretText>,
    /// The user's own rules for what may not leave. They were read before anything started; a daemon reads them
    /// again, and takes none that it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFile>,
    /// What the agent holds in place of credentials: it opens nothing and is never a finding by its shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// A secret that opens nothing: who sends it away was told to look for secrets. Nobody can approve it.
    #[serde(default)]
    pub canary: Option<SecretText>,
    /// How long a user is waited for when a request holds what they have to allow; none: nobody is asked.
    #[serde(default)]
    pub ask_seconds: Option<u64>,
    /// How much of requests is kept while they are read.
    #[serde(default)]
    pub limits: Limits,
    /// Roots trusted upstream, PEM: the host's own and those of `egress.ca_bundle`. Empty means the
    /// roots compiled in.
    pub upstream_roots: String,
    /// `egress.upstream_proxy`, an `http://` URL.
    #[serde(default)]
    pub upstream_proxy: Option<SecretText>,
    /// Every address the host owns: forbidden, whatever name led there.
    pub host_addresses: Vec<IpAddr>,
    /// `egress.log`.
    pub log: LogLevel,
    /// `logs.keep`: bytes of log kept in the ring of files.
    pub log_keep: u64,
}

impl Provision {
    /// These routes and nothing else: no credential, no secret, nobody to ask, no log.
    #[must_use]
    pub fn of_routes(slug: Slug, yaml: String) -> Self {
        Self {
            slug,
            routes: Routes::first(yaml),
            credentials: Vec::new(),
            known_secrets: Vec::new(),
            marked: Vec::new(),
            rules: Vec::new(),
            placeholders: Vec::new(),
            canary: None,
            ask_seconds: None,
            limits: Limits::default(),
            upstream_roots: String::new(),
            upstream_proxy: None,
            host_addresses: Vec::new(),
            log: LogLevel::Off,
            log_keep: 0,
        }
    }
}

/// See [`BundleRequest::Supervise`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuperviseProvision {
    /// Those that the proxy was provisioned with.
    pub routes: Routes,
    /// How long a call waits for a user before it says that nobody has decided yet.
    pub call_seconds: u64,
}

/// A file of rules in gitleaks' configuration format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Its name, for messages.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// `egress.body_limit` and `egress.spool_quota`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The longest body that is let through.
    pub body: u64,
    /// All bodies together that wait on disk, encrypted, for their verdict.
    pub spool: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 256 << 20, spool: 1 << 30 }
    }
}

/// The number of the routes that a bundle is provisioned with.
pub const FIRST_REVISION: u64 = 1;

/// Routes with the number that names this state of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// Counts up by one with each change.
    pub revision: u64,
    /// `routes.yaml`, the rendered runtime form ([`crate::route`]).
    pub yaml: String,
    /// What a user allowed for one request each, in the order of their saying so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub once: Vec<OneTimeGrant>,
}

impl Routes {
    /// What a bundle is provisioned with.
    #[must_use]
    pub fn first(yaml: String) -> Self {
        Self { revision: FIRST_REVISION, yaml, once: Vec::new() }
    }
}

/// Routes for one request, laid over the others until one passed by them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneTimeGrant {
    /// The question whose answer allowed them.
    pub proposal: Id,
    /// In the words of proposals ([`crate::proposal`]).
    pub routes: String,
}

/// A secret with the one place it may go to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Slot, host, scheme and header.
    pub binding: Binding,
    /// The value. Absent: the slot is known and not loaded, so its route answers `credential-missing`.
    pub value: Option<SecretText>,
}

/// `egress.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Nothing on disk; refusals reach the keeper as events.
    #[default]
    Off,
    /// Refusals and redactions.
    Blocks,
    /// Every request.
    Full,
}

/// A message from the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BundleEvent {
    /// See [`BundleRequest::LockOut`].
    LockedOut(LockOut),
    /// See [`BundleRequest::Lock`].
    Locked,
    /// Every daemon listens and holds its secrets.
    Ready {
        /// The CA certificate the bottle has to trust, PEM. Its key was made in the egress daemon and
        /// stays there.
        ca_certificate: String,
    },
    /// The git gate listens and holds its keys.
    GateOpen,
    /// The MCP server listens.
    SuperviseOpen,
    /// These routes are live: the next request is decided by them.
    Live {
        /// Their number.
        revision: u64,
    },
    /// The request changed nothing.
    Rejected {
        /// A lower-case fragment saying why.
        message: String,
    },
    /// See [`BundleRequest::Health`].
    Health {
        /// One entry for each daemon.
        daemons: Vec<Daemon>,
    },
    /// A request was refused.
    Refused(Refused),
    /// A request passed by what was allowed for one; see [`Routes::once`].
    Spent {
        /// The question whose answer allowed it.
        proposal: Id,
    },
    /// See [`BundleRequest::Question`].
    Asked(Box<Question>),
    /// See [`BundleRequest::Usage`].
    Used {
        /// In the order in which the answers were over; never none.
        records: Vec<Usage>,
    },
    /// A daemon ended; its part of the proxy is closed.
    Down {
        /// Its name.
        daemon: String,
    },
    /// Events were dropped because no keeper listened and the buffer was full.
    Lost {
        /// How many.
        count: u64,
    },
    /// The proxy is closed and every daemon has ended.
    Stopped,
}

/// All records of the last [`BundleEvent::Used`] are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {}

/// One daemon's health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// Its name: `egress`, `git-gate`, `supervise`.
    pub name: String,
    /// Whether it answered within its deadline and all of its proxy is open.
    pub up: bool,
    /// Routes it decides by, for egress.
    #[serde(default)]
    pub revision: Option<u64>,
    /// Resident memory in bytes.
    #[serde(default)]
    pub resident: Option<u64>,
    /// Protections that this kernel does not give it, as fragments for a user.
    #[serde(default)]
    pub weaker: Vec<String>,
}

/// A refusal, as the user is told of it. Nothing in it was written before passing the redactor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The id that the agent's answer and the log line carry too.
    pub id: String,
    /// RFC 3339, UTC.
    pub time: String,
    /// Host as asked, canonical.
    pub host: String,
    /// Port as asked.
    pub port: u16,
    /// Method, empty when none was read.
    pub method: String,
    /// Path without its query, empty when none was read.
    pub path: String,
    /// Why.
    pub reason: Reason,
    /// The sentence the agent got.
    pub sentence: String,
}
