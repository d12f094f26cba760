//! Builds the proxy from the configuration that the keeper process sends.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bottle_daemon::Lockout;
use bottle_policy::credential::BadCredential;
use bottle_protocol::session::bundle::{ModelRules, Provision};
use bottle_protocol::session::guest::SecretText;
use bottle_queue::Questions;
use bottle_scan::{BadRuleFile, TooLarge};
use tokio::sync::Semaphore;

use crate::bounds;
use crate::config::{EgressConfig, NAME};
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
use crate::secrets::{NotApplied, Secrets};
use crate::tls::leaf::{LeafError, Leaves};
use crate::upstream::corporate_proxy::{BadProxyUrl, CorporateProxy};
use crate::upstream::dial::Dialer;
use crate::upstream::dns_lookup::HostResolver;
use crate::upstream::pool::Upstream;
use crate::upstream::trust::{Trust, TrustError};
use crate::usage::Outbox;

/// The provisioned proxy as one request uses it: the state that all requests share, and the secrets that applied when
/// the request began.
#[derive(Clone)]
pub(crate) struct Egress {
    pub(crate) live: Arc<Live>,
    /// The secrets of this request. Its scans and its decision use the same secrets.
    pub(crate) secrets: Arc<Secrets>,
    /// The secrets of the next request.
    newest: Arc<RwLock<Arc<Secrets>>>,
    pub(crate) leaves: Arc<Leaves>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) spools: Arc<Spools>,
    pub(crate) approvals: Arc<Approvals>,
    pub(crate) issued_links: Arc<IssuedLinks>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) model_rules: Arc<ModelRules>,
    pub(crate) repeats: Arc<Repeats>,
    /// The hosts that a budget names.
    pub(crate) budgeted_hosts: Arc<[String]>,
    /// Limits how many requests to models are parsed concurrently. Parsing a request holds one permit.
    pub(crate) readings: Arc<Semaphore>,
    /// Limits how many prompts the provider counts concurrently. Each count holds one permit.
    pub(crate) counts: Arc<Semaphore>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) lockout: Arc<Lockout>,
    pub(crate) request_slots: Arc<RequestSlots>,
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
            host_addresses: provision.host_addresses.clone(),
            machine: config.machine,
            proxy: proxy.map(CorporateProxy::parse).transpose()?,
        };
        let upstream = Upstream::new(dialer, Trust::from_roots(&provision.upstream_roots)?);
        let (secrets, redaction) = Secrets::of(&provision)?;
        let live = Live::new(&provision.routes, secrets.credential_store.bindings())?;
        let approvals = Approvals::new(questions, provision.ask_seconds.map(Duration::from_secs));
        let spools = Spools::new(&config.logs, provision.limits);
        let sink = match log_relay {
            Some(relay) => LogSink::Relay(relay),
            None => LogSink::Files { directory: &config.logs, keep: provision.log_keep },
        };
        let log = LogConfig { level: provision.log, sink };
        let reporter = Arc::new(Reporter::new(slug.clone(), log, backlog, redaction)?);
        let leaves = Leaves::make(&slug)?;
        let secrets = Arc::new(secrets);
        Ok(Arc::new(Self {
            live: Arc::new(live),
            newest: Arc::new(RwLock::new(Arc::clone(&secrets))),
            secrets,
            leaves: Arc::new(leaves),
            upstream,
            spools: Arc::new(spools),
            approvals: Arc::new(approvals),
            issued_links: Arc::default(),
            outbox,
            leases,
            repeats: Arc::new(Repeats::new(provision.models.repeats)),
            model_rules: Arc::new(provision.models),
            budgeted_hosts: provision.budgeted_hosts.into(),
            readings: Arc::new(Semaphore::new(bounds::READINGS)),
            counts: Arc::new(Semaphore::new(bounds::COUNTS)),
            reporter,
            lockout,
            request_slots: Arc::default(),
            decoded_memory: DecodedMemory::default(),
        }))
    }

    /// Returns the proxy with the secrets that apply now. A connection calls this function for each of its requests.
    pub(crate) fn with_newest_secrets(self: &Arc<Self>) -> Arc<Self> {
        let newest = Arc::clone(&self.newest.read().unwrap_or_else(PoisonError::into_inner));
        if Arc::ptr_eq(&newest, &self.secrets) {
            return Arc::clone(self);
        }
        Arc::new(Self { secrets: newest, ..(**self).clone() })
    }

    /// Replaces the values of credentials for all further requests. Requests in flight and open WebSockets keep the
    /// earlier values.
    ///
    /// # Errors
    /// [`NotApplied`] if one of the values cannot be used. All earlier values then still apply.
    pub(crate) fn replace_credentials(
        &self,
        values: &BTreeMap<String, SecretText>,
    ) -> Result<(), NotApplied> {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        let (secrets, redaction) = newest.with_credentials(values)?;
        // The reports mask a new value before the first request uses it.
        self.reporter.set_redaction(redaction);
        *newest = Arc::new(secrets);
        Ok(())
    }
}
