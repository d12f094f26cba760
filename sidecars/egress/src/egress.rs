//! Builds the proxy from the configuration that the keeper process sends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bottle_daemon::Lockout;
use bottle_policy::credential::BadCredential;
use bottle_policy::secret::Secret;
use bottle_protocol::session::bundle::{ModelRules, Provision};
use bottle_queue::Questions;
use bottle_scan::{BadRuleFile, KnownSecret, RuleFiles, TooLarge};
use tokio::sync::Semaphore;

use crate::bounds;
use crate::config::{EgressConfig, NAME};
use crate::credential_store::CredentialStore;
use crate::inspect::Inspector;
use crate::inspect::decoded_memory::DecodedMemory;
use crate::inspect::spool::Spools;
use crate::lease::{Leases, Repeats};
use crate::live::{Live, RoutesRejected};
use crate::report::backlog::Backlog;
use crate::report::relay::LogRelay;
use crate::report::{LogConfig, LogSink, ReportError, Reporter};
use crate::request::approval::Approvals;
use crate::request::issued_links::IssuedLinks;
use crate::request::request_slots::RequestSlots;
use crate::tls::leaf::{LeafError, Leaves};
use crate::upstream::corporate_proxy::{BadProxyUrl, CorporateProxy};
use crate::upstream::dial::Dialer;
use crate::upstream::dns_lookup::HostResolver;
use crate::upstream::pool::Upstream;
use crate::upstream::trust::{Trust, TrustError};
use crate::usage::Outbox;

/// The provisioned proxy: the state that all requests share.
pub(crate) struct Egress {
    pub(crate) live: Live,
    pub(crate) credential_store: CredentialStore,
    pub(crate) leaves: Leaves,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) inspector: Inspector,
    pub(crate) spools: Spools,
    pub(crate) approvals: Arc<Approvals>,
    pub(crate) issued_links: IssuedLinks,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) model_rules: ModelRules,
    pub(crate) repeats: Repeats,
    /// The hosts that a budget names.
    pub(crate) budgeted_hosts: Vec<String>,
    /// Limits how many requests to models are parsed concurrently. Parsing a request holds one permit.
    pub(crate) readings: Semaphore,
    /// Limits how many prompts the provider counts concurrently. Each count holds one permit.
    pub(crate) counts: Semaphore,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) lockout: Arc<Lockout>,
    /// Whether a known secret is a credential that the agent does not hold. The index is the number of the secret.
    pub(crate) lockout_secrets: Vec<bool>,
    pub(crate) request_slots: RequestSlots,
    pub(crate) decoded_memory: DecodedMemory,
}

/// The state that the daemon creates before it provisions the proxy, and then shares with the proxy.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) questions: Questions,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lockout: Arc<Lockout>,
    /// Sends the log to the keeper. `None` if the proxy writes the log to files.
    pub(crate) log_relay: Option<Arc<LogRelay>>,
}

impl Shared {
    /// Creates the state. The file of uncollected usage records is in `directory`. The bottle is locked after
    /// `lock_after` hits, or never with `None`.
    pub(crate) fn new(directory: &Path, lock_after: Option<usize>) -> Self {
        let backlog = Arc::new(Backlog::new(bounds::EVENTS));
        let outbox = Arc::new(Outbox::new(directory, Arc::clone(&backlog)));
        let lockout = Arc::new(Lockout::new(NAME, lock_after));
        let (questions, leases) = (Questions::default(), Arc::default());
        Self { backlog, questions, outbox, leases, lockout, log_relay: None }
    }
}

/// Why the provisioned configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProvisionError {
    #[error("routes")]
    Routes(#[from] RoutesRejected),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Proxy(#[from] BadProxyUrl),
    #[error(transparent)]
    Leaves(#[from] LeafError),
    #[error(transparent)]
    Credential(#[from] BadCredential),
    #[error(transparent)]
    Secrets(#[from] TooLarge),
    #[error("rules")]
    Rules(#[from] BadRuleFile),
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl Egress {
    /// Builds the proxy from `provision`, without opening its listeners.
    ///
    /// # Errors
    /// [`ProvisionError`] with the part of the configuration that cannot be used.
    pub(crate) fn provision(
        provision: Provision,
        config: &EgressConfig,
        shared: Shared,
    ) -> Result<Arc<Self>, ProvisionError> {
        let Shared { backlog, questions, outbox, leases, lockout, log_relay } = shared;
        let slug = provision.slug.as_str().to_owned();
        let proxy = provision.upstream_proxy.as_ref().map(|url| &url.0);
        let dialer = Dialer {
            resolver: HostResolver::from_host(),
            host_addresses: provision.host_addresses,
            machine: config.machine,
            proxy: proxy.map(CorporateProxy::parse).transpose()?,
        };
        let credential_store = CredentialStore::new(provision.credentials)?;
        let live = Live::new(&provision.routes, credential_store.bindings())?;
        let upstream = Upstream::new(dialer, Trust::from_roots(&provision.upstream_roots)?);
        let passwords = credential_store.passwords();
        let canaries: Vec<&Secret> =
            provision.canary.iter().chain(&provision.earlier_canaries).map(|canary| &canary.0).collect();
        let credentials: Vec<&Secret> = credential_store.values().chain(proxy).collect();
        let agent_secrets: Vec<&Secret> = provision.known_secrets.iter().map(|known| &known.0).collect();
        let sensitive = || provision.marked.iter().map(|value| &value.0);
        let lockout_secrets = credentials.iter().map(|secret| !agent_secrets.contains(secret)).collect();
        let in_store = credential_store.known().map(|(_, known)| known);
        let unapprovable: Vec<KnownSecret<'_>> =
            in_store.chain(proxy.into_iter().chain(canaries.iter().copied()).map(KnownSecret::new)).collect();
        let known: Vec<KnownSecret<'_>> =
            agent_secrets.iter().copied().chain(sensitive()).map(KnownSecret::new).collect();
        let others = passwords.iter().chain(canaries).chain(agent_secrets).chain(sensitive());
        let secrets: Vec<&Secret> = credentials.into_iter().chain(others).collect();
        let rules = provision.rules.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let inspector =
            Inspector::new(&unapprovable, &known, RuleFiles::parse(rules)?, &provision.placeholders)?
                .with_credentials(credential_store.known())?;
        let approvals = Approvals::new(questions, provision.ask_seconds.map(Duration::from_secs));
        let spools = Spools::new(&config.logs, provision.limits);
        let sink = match log_relay {
            Some(relay) => LogSink::Relay(relay),
            None => LogSink::Files { directory: &config.logs, keep: provision.log_keep },
        };
        let log = LogConfig { level: provision.log, sink };
        let reporter = Arc::new(Reporter::new(slug.clone(), log, backlog, &secrets)?);
        let leaves = Leaves::make(&slug)?;
        Ok(Arc::new(Self {
            live,
            credential_store,
            leaves,
            upstream,
            inspector,
            spools,
            approvals: Arc::new(approvals),
            issued_links: IssuedLinks::default(),
            outbox,
            leases,
            repeats: Repeats::new(provision.models.repeats),
            model_rules: provision.models,
            budgeted_hosts: provision.budgeted_hosts,
            readings: Semaphore::new(bounds::READINGS),
            counts: Semaphore::new(bounds::COUNTS),
            reporter,
            lockout,
            lockout_secrets,
            request_slots: RequestSlots::default(),
            decoded_memory: DecodedMemory::default(),
        }))
    }
}
