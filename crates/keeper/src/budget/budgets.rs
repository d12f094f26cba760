//! The budgets of one bottle, and its access to the ledger.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bottle_host::budget::{Declared, OnSpent, governing};
use bottle_host::{Host, Settings};
use bottle_instance::Store;
use bottle_instance::audit::{Entry, Trail};
use bottle_instance::record::{Mode, Record};
use bottle_instance::usage::{self, Labels};
use bottle_manifest::agent_provider::Template;
use bottle_policy::names::Slug;
use bottle_protocol::session::lease::{BudgetKey, LeaseRequest};
use jiff::Zoned;
use tokio::task::spawn_blocking;

use crate::ledger::{LeaseGrant, Ledger, LedgerError, Lessee, Shortage};

/// The maximum pause of a request by Claude Code or pi: one minute less than the time that these agents wait for a
/// response.
const TEN_MINUTES: Duration = Duration::from_secs(9 * 60);

/// The maximum pause of a request by codex: one minute less than the time that codex waits for a response.
const FIVE_MINUTES: Duration = Duration::from_secs(4 * 60);

/// The budgets of one bottle.
#[derive(Clone)]
pub(crate) struct Budgets {
    host: Arc<Host>,
    pub(super) slug: Slug,
    labels: Labels,
    /// The budgets that the launch command, the agent manifest and the bottle manifests declare.
    declared: Vec<Declared>,
    /// The policy for a spent budget. `None` if `settings.yml` determines the policy.
    cutoff: Option<OnSpent>,
    /// The reason for which an earlier keeper paused the bottle, if it paused the bottle because of a budget.
    pub(super) hold: Option<String>,
    /// Whether a user can see a question even if no notifications are configured.
    attended: bool,
    shared: Arc<Mutex<Cached>>,
}

/// The state that [`Budgets`] keeps between two requests.
#[derive(Default)]
struct Cached {
    /// The last settings that could be read. They stay in force while `settings.yml` has an error, so that the error
    /// does not end a running bottle.
    settings: Settings,
    ledger: Option<Ledger>,
}

/// The rules that apply when a budget is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OnShortage {
    pub(super) policy: OnSpent,
    /// How long a request may wait for the user's answer.
    pub(super) pause: Duration,
    pub(super) can_ask: bool,
}

/// The result of a request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseOutcome {
    /// No budget limits the key.
    Unlimited,
    /// The ledger granted the tokens. Contains the sum of all tokens that it granted since the launch.
    Granted(u64),
    /// A limit has too few tokens left. Contains the limit and the rules that apply in this case.
    Short(Shortage, OnShortage),
}

impl Budgets {
    /// Creates the budgets for the current launch of the bottle.
    pub(crate) fn of(host: &Host, record: &Record) -> Self {
        Self {
            host: Arc::new(host.clone()),
            slug: record.slug.clone(),
            labels: Labels::of(record),
            declared: record.budget.clone(),
            cutoff: record.cutoff,
            hold: record.budget_hold.clone(),
            attended: record.terminal || record.mode == Mode::Detached,
            shared: Arc::default(),
        }
    }

    fn rules(&self, settings: &Settings) -> OnShortage {
        let most = match self.labels.template {
            Some(Template::Codex) => FIVE_MINUTES,
            Some(Template::Claude | Template::Pi) => TEN_MINUTES,
            Some(Template::Command) | None => Duration::MAX,
        };
        OnShortage {
            policy: self.cutoff.unwrap_or(settings.cutoff),
            pause: Duration::from_secs(settings.pause_seconds).min(most),
            can_ask: self.attended || settings.notify.is_some(),
        }
    }

    /// Requests tokens from the ledger, if a budget limits the key.
    pub(super) async fn lease(&self, request: &LeaseRequest) -> Result<LeaseOutcome, LedgerError> {
        let request = request.clone();
        self.blocking(move |this| this.lease_now(&request)).await
    }

    fn lease_now(&self, request: &LeaseRequest) -> Result<LeaseOutcome, LedgerError> {
        let key = self.key(&request.key);
        let settings = self.settings();
        let declared: Vec<Declared> = self.declared.iter().chain(&settings.budget).cloned().collect();
        let limits = governing(&declared, &key);
        if limits.is_empty() {
            return Ok(LeaseOutcome::Unlimited);
        }
        let lessee = Lessee { slug: &self.slug, labels: &self.labels, key: &key };
        self.with_ledger(|ledger| {
            ledger.ingest_bottle(&self.host.home, &self.slug)?;
            let mut grant = ledger.lease(lessee, &limits, request, &Zoned::now())?;
            if matches!(grant, LeaseGrant::Short(_)) {
                // Other bottles may have ended without returning their leases, so this call ends such leases and tries
                // again.
                ledger.ingest(&self.host.home)?;
                ledger.end_other_leases(|| Store::of(&self.host).live_runs())?;
                grant = ledger.lease(lessee, &limits, request, &Zoned::now())?;
            }
            Ok(match grant {
                LeaseGrant::Granted(granted) => LeaseOutcome::Granted(granted),
                LeaseGrant::Short(shortage) => LeaseOutcome::Short(shortage, self.rules(&settings)),
            })
        })
    }

    /// Records in the ledger that the proxy returned tokens.
    pub(super) async fn take_back(&self, request: &LeaseRequest) -> Result<(), LedgerError> {
        let request = request.clone();
        self.blocking(move |this| {
            let key = this.key(&request.key);
            let lessee = Lessee { slug: &this.slug, labels: &this.labels, key: &key };
            this.with_ledger(|ledger| ledger.lease(lessee, &[], &request, &Zoned::now()).map(drop))
        })
        .await
    }

    /// Raises a limit by `tokens`. `who` is the user who raises the limit.
    pub(super) async fn top_up(
        &self,
        shortage: &Shortage,
        tokens: u64,
        who: String,
    ) -> Result<(), LedgerError> {
        let declared = shortage.declared.clone();
        self.blocking(move |this| {
            let run = this.labels.run.as_deref();
            this.with_ledger(|ledger| ledger.top_up(&declared, run, tokens, &who))
        })
        .await
    }

    /// Runs `work`, which waits for the disk, on another thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let this = self.clone();
        let done = spawn_blocking(move || work(&this)).await;
        done.unwrap_or_else(|panic| {
            let path = self.host.home.join(Ledger::FILE);
            Err(LedgerError::failed(&path, std::io::Error::other(panic)))
        })
    }

    /// Records in the ledger and in the audit log that a budget was enforced.
    pub(super) async fn record(
        &self,
        shortage: &Shortage,
        action: &'static str,
        result: &str,
    ) -> anyhow::Result<()> {
        let (this, declared, result) = (self.clone(), shortage.declared.clone(), result.to_owned());
        spawn_blocking(move || {
            let budget = Some(declared.to_string());
            let entry = Entry::Enforced { budget, action: action.to_owned(), why: result.clone() };
            Trail::of(&this.host.home, &this.slug).append("keeper", &entry).context("the audit log")?;
            let lessee = Lessee { slug: &this.slug, labels: &this.labels, key: &declared.limit.key };
            this.with_ledger(|ledger| ledger.record_enforcement(lessee, &declared, action, &result))?;
            Ok(())
        })
        .await?
    }

    /// Converts a budget key of the protocol to the key that the ledger uses.
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

/// Ends the leases of a bottle after its proxy has exited. Before that, records the usage that the proxy could not
/// deliver as spent, so that no other bottle gets tokens that unfinished requests used. `directory` is the bottle's
/// directory. Does nothing if the home has no ledger.
pub(crate) fn end_leases(host: &Host, directory: &Path, record: &Record) -> Result<(), LedgerError> {
    let Some(run) = &record.run else { return Ok(()) };
    if !host.home.join(Ledger::FILE).exists() {
        return Ok(());
    }
    usage::collect(&host.home, directory, &record.slug, Labels::of(record))
        .map_err(|error| LedgerError::failed(&usage::path(&host.home, &record.slug), error))?;
    let mut ledger = Ledger::open(&host.home)?;
    ledger.ingest_bottle(&host.home, &record.slug)?;
    ledger.end_leases(run)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bottle_backend::SIDECAR_LOGS;
    use bottle_host::budget::{Limit, Scope, Window};
    use bottle_protocol::usage::{WAITING_FILE, WaitingLine};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_killed_proxy_has_spent_what_it_had_reserved() {
        let home = tempfile::tempdir().expect("home");
        let host = Host::of_home(home.path());
        let record: Record = serde_json::from_value(json!({
            "schema": 1, "slug": "one", "label": null, "color": null, "agent": "probe", "bottles": [], "run": "0a",
            "cwd": "/", "copied_cwd": false, "backend": "fake", "mode": "attached", "status": "ending",
            "started_at": "2026-01-01T00:00:00Z", "keeper": null, "resources": [], "agent_exit": null,
            "manifest_hash": "",
        }))
        .expect("a record");
        let limit = Limit { key: "llm.example.com".to_owned(), window: Window::Total, tokens: 1000 };
        let limit = Declared { scope: Scope::Host, limit, origin: "settings.yml:1".to_owned() };
        let standing = |ledger: &Ledger| ledger.standing(&limit, None, &Zoned::now()).expect("standing");
        let mut ledger = Ledger::open(&host.home).expect("ledger");
        let labels = Labels::of(&record);
        let lessee = Lessee { slug: &record.slug, labels: &labels, key: &limit.limit.key };
        let key = BudgetKey::Host(limit.limit.key.clone());
        let request = LeaseRequest { key, granted: 0, returned: 0, in_progress: 0, needed: Some(600) };
        ledger.lease(lessee, &[&limit], &request, &Zoned::now()).expect("lease");
        assert!(standing(&ledger).reserved >= 600);
        // The proxy was killed during a request. The proxy had reserved 500 of the leased tokens for this request.
        let logs = home.path().join(SIDECAR_LOGS);
        fs::create_dir_all(&logs).expect("directory");
        let line: WaitingLine = serde_json::from_value(json!({
            "id": "a", "time": "2026-01-01T00:00:01Z", "provider": "x", "host": "llm.example.com", "api": "responses",
            "input": 100, "output": 400, "interrupted": true,
        }))
        .expect("a line");
        fs::write(logs.join(WAITING_FILE), serde_json::to_string(&line).expect("text") + "\n")
            .expect("written");
        end_leases(&host, home.path(), &record).expect("ended");
        let after = standing(&ledger);
        assert_eq!((after.spent, after.reserved), (500, 0));
    }
}
