//! The budgets of one bottle, and its access to the ledger.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bottle_contract::names::Slug;
use bottle_contract::session::lease::{BudgetKey, LeaseRequest};
use jiff::Zoned;
use tokio::task::spawn_blocking;

use crate::host::budget::{Declared, Policy, governing};
use crate::host::{Host, Settings};
use crate::instance::Store;
use crate::instance::audit::{Entry, Trail};
use crate::instance::record::{Mode, Record};
use crate::instance::usage::Labels;
use crate::ledger::{LeaseGrant, Ledger, LedgerError, Lessee, Shortage};
use crate::manifest::provider::Template;

/// How long Claude Code and pi wait for a response, less a minute.
const TEN_MINUTES: Duration = Duration::from_secs(9 * 60);

/// How long codex waits for a response, less a minute.
const FIVE_MINUTES: Duration = Duration::from_secs(4 * 60);

/// The budgets of one bottle.
#[derive(Clone)]
pub(in crate::keeper) struct Budgets {
    host: Arc<Host>,
    pub(super) slug: Slug,
    labels: Labels,
    /// The budgets of the launch, the agent and the bottles.
    declared: Vec<Declared>,
    /// Whether an earlier keeper paused the bottle because of a budget.
    pub(super) was_held: bool,
    /// Whether a user can see a question, even if no notification is set up.
    attended: bool,
    shared: Arc<Mutex<Cached>>,
}

/// What stays open between two requests.
#[derive(Default)]
struct Cached {
    /// The last settings that could be read. Settings with an error must not end a bottle that runs.
    settings: Settings,
    ledger: Option<Ledger>,
}

/// What happens when a budget is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) policy: Policy,
    /// How long a request may wait for the user.
    pub(super) pause: Duration,
    pub(super) can_ask: bool,
}

/// The result of a request for a lease.
pub(super) enum LeaseOutcome {
    /// No budget limits the key.
    Unlimited,
    /// The tokens that were granted since the launch.
    Granted(u64),
    /// A limit has too little left.
    Short(Shortage),
}

impl Budgets {
    /// The budgets of the bottle's current launch.
    pub(in crate::keeper) fn of(host: &Host, record: &Record) -> Self {
        Self {
            host: Arc::new(host.clone()),
            slug: record.slug.clone(),
            labels: Labels::of(record),
            declared: record.budget.clone(),
            was_held: record.budget_hold.is_some(),
            attended: record.terminal || record.mode == Mode::Detached,
            shared: Arc::default(),
        }
    }

    /// What happens when a budget is spent, by the current settings.
    pub(super) fn rules(&self) -> Rules {
        let settings = self.settings();
        let most = match self.labels.template {
            Some(Template::Codex) => FIVE_MINUTES,
            Some(Template::Claude | Template::Pi) => TEN_MINUTES,
            Some(Template::Command) | None => Duration::MAX,
        };
        Rules {
            policy: settings.cutoff,
            pause: Duration::from_secs(settings.pause_seconds).min(most),
            can_ask: self.attended || settings.notify.is_some(),
        }
    }

    /// Requests tokens from the ledger, if a budget limits the key.
    pub(super) async fn lease(&self, request: &LeaseRequest) -> Result<LeaseOutcome, LedgerError> {
        let (this, request) = (self.clone(), request.clone());
        spawn_blocking(move || this.lease_now(&request))
            .await
            .unwrap_or_else(|panic| Err(LedgerError::failed(&self.path(), std::io::Error::other(panic))))
    }

    fn lease_now(&self, request: &LeaseRequest) -> Result<LeaseOutcome, LedgerError> {
        let key = self.key(&request.key);
        let declared: Vec<Declared> = self.declared.iter().cloned().chain(self.settings().budget).collect();
        let limits = governing(&declared, &key);
        if limits.is_empty() {
            return Ok(LeaseOutcome::Unlimited);
        }
        let lessee = Lessee { slug: &self.slug, labels: &self.labels, key: &key };
        self.with_ledger(|ledger| {
            ledger.ingest_bottle(&self.host.home, &self.slug)?;
            let mut grant = ledger.lease(lessee, &limits, request, &Zoned::now())?;
            if matches!(grant, LeaseGrant::Short(_)) {
                // Other bottles may have ended without giving their leases back.
                ledger.ingest(&self.host.home)?;
                ledger.end_other_leases(|| Store::of(&self.host).live_runs())?;
                grant = ledger.lease(lessee, &limits, request, &Zoned::now())?;
            }
            Ok(match grant {
                LeaseGrant::Granted(granted) => LeaseOutcome::Granted(granted),
                LeaseGrant::Short(shortage) => LeaseOutcome::Short(shortage),
            })
        })
    }

    /// Records that the proxy gave tokens back.
    pub(super) async fn take_back(&self, request: &LeaseRequest) -> Result<(), LedgerError> {
        let (this, request) = (self.clone(), request.clone());
        let taken = spawn_blocking(move || {
            let key = this.key(&request.key);
            let lessee = Lessee { slug: &this.slug, labels: &this.labels, key: &key };
            this.with_ledger(|ledger| ledger.lease(lessee, &[], &request, &Zoned::now()).map(drop))
        });
        taken.await.unwrap_or(Ok(()))
    }

    /// Raises a limit for the user `who`.
    pub(super) async fn top_up(
        &self,
        shortage: &Shortage,
        tokens: u64,
        who: String,
    ) -> Result<(), LedgerError> {
        let (this, declared) = (self.clone(), shortage.declared.clone());
        let raised = spawn_blocking(move || {
            let run = this.labels.run.clone();
            this.with_ledger(|ledger| ledger.top_up(&declared, run.as_deref(), tokens, &who))
        });
        raised.await.unwrap_or(Ok(()))
    }

    /// Records an enforcement in the ledger and in the audit log.
    pub(super) async fn record(
        &self,
        shortage: Option<&Shortage>,
        action: &'static str,
        result: &str,
    ) -> anyhow::Result<()> {
        let (this, result) = (self.clone(), result.to_owned());
        let declared = shortage.map(|shortage| shortage.declared.clone());
        spawn_blocking(move || {
            let budget = declared.as_ref().map(ToString::to_string);
            let entry = Entry::Enforced { budget, action: action.to_owned(), why: result.clone() };
            Trail::of(&this.host.home, &this.slug).append("keeper", &entry).context("the audit log")?;
            let key = declared.as_ref().map_or("", |declared| declared.limit.key.as_str());
            let lessee = Lessee { slug: &this.slug, labels: &this.labels, key };
            this.with_ledger(|ledger| ledger.record_enforcement(lessee, declared.as_ref(), action, &result))?;
            Ok(())
        })
        .await?
    }

    /// The key of budgets, as the ledger has it.
    fn key(&self, key: &BudgetKey) -> String {
        match key {
            BudgetKey::Host(host) => host.clone(),
            BudgetKey::Provider => {
                self.labels.template.map(|template| template.to_string()).unwrap_or_default()
            }
        }
    }

    fn settings(&self) -> Settings {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match Settings::load(&self.host) {
            Ok(settings) => shared.settings = settings,
            Err(error) => tracing::warn!("{error}"),
        }
        shared.settings.clone()
    }

    fn path(&self) -> PathBuf {
        self.host.home.join(Ledger::FILE)
    }

    /// Opens the ledger if it is not open. After an error, the next call opens it again.
    fn with_ledger<T>(
        &self,
        work: impl FnOnce(&mut Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = match shared.ledger.take() {
            Some(ledger) => ledger,
            None => Ledger::open(&self.host.home)?,
        };
        let done = work(&mut ledger)?;
        shared.ledger = Some(ledger);
        Ok(done)
    }
}

/// Ends the leases of a bottle that ended, after its usage records were written. Does nothing if the home has no ledger.
pub(in crate::keeper) fn end_leases(host: &Host, record: &Record) -> Result<(), LedgerError> {
    let Some(run) = &record.run else { return Ok(()) };
    if !host.home.join(Ledger::FILE).exists() {
        return Ok(());
    }
    let mut ledger = Ledger::open(&host.home)?;
    ledger.ingest_bottle(&host.home, &record.slug)?;
    ledger.end_leases(run)
}
