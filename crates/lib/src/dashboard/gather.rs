//! Gathers the data that the dashboards show: from the bottles' records, the ledger, the supervise queue and the
//! proxy's logs. Changes nothing, except that usage files are ingested into the ledger.
//!
//! If a source cannot be read, the dashboards show this as a problem, and still show the data of the other sources.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::proposals::pending::count_pending;
use crate::report::ActiveBottle;
use bottle_backend::SIDECAR_LOGS;
use bottle_host::budget::{Declared, Window};
use bottle_host::rates::Rates;
use bottle_host::{Host, Settings};
use bottle_instance::record::Record;
use bottle_instance::{Listed, State, Store, proxy_log};
use bottle_keeper::ledger::{GroupBy, Ledger, Minute, Standing};
use bottle_manifest::agent_provider::Template;
use bottle_policy::names::Slug;
use jiff::{SignedDuration, Timestamp, Zoned};

use super::model::{
    Bottle, BottleState, Detail, Meter, Period, RECENT_MINUTES, Snapshot, UsageTable, by_minute,
    governing_budgets, rate_of, sort_bottles, sort_meters,
};
use crate::access_log::Shown;
use crate::failure::Failure;

/// How often a dashboard is updated.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The minimum ratio of idle time to gathering time. After each gathering, the thread sleeps at least this many times
/// as long as the gathering took.
const REST: u32 = 4;

/// The number of [`Wanted`] messages that are buffered while the thread gathers.
const BUFFERED: usize = 64;

/// The maximum number of decisions of the proxy that are shown.
const DECISIONS: usize = 100;

/// The longest period for which a bottle's usage by source is shown. The ledger reads every response of this period.
const SOURCES_WITHIN: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The data to gather in addition to the list of bottles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The bottle whose details are shown.
    pub detail: Option<Slug>,
    /// The grouping and the period of the usage table that is shown.
    pub usage: Option<(GroupBy, Period)>,
}

/// The gathered data.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// All bottles.
    pub snapshot: Snapshot,
    /// The bottle whose details are shown.
    pub detail: Option<Detail>,
    /// The usage table.
    pub usage: Option<UsageTable>,
}

/// Gathers the data of one `$BOTTLE_HOME`.
pub struct Gatherer {
    host: Host,
    ledger: Option<Ledger>,
}

impl Gatherer {
    /// Creates the gatherer. The ledger is opened when it is first used.
    pub fn new(host: Host) -> Self {
        Self { host, ledger: None }
    }

    /// Ingests the bottles' usage since the last ingestion.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be used.
    pub fn ingest(&mut self) -> Result<(), Failure> {
        let home = self.host.home.clone();
        self.ledger()?.ingest(&home)?;
        Ok(())
    }

    fn ledger(&mut self) -> Result<&mut Ledger, Failure> {
        if self.ledger.is_none() {
            self.ledger = Some(Ledger::open(&self.host.home)?);
        }
        self.ledger.as_mut().ok_or_else(|| Failure::failed("the ledger is not open"))
    }

    /// Gathers all data for one update of a dashboard.
    pub fn gather(&mut self, wanted: &Wanted) -> Gathered {
        let now = Zoned::now();
        let mut problems = Vec::new();
        let settings = Settings::load(&self.host)
            .map_err(|error| problems.push(error.to_string()))
            .map(|settings| settings.budget)
            .unwrap_or_default();
        let rates = Rates::load(&self.host).map_err(|error| problems.push(error.to_string())).ok().flatten();
        let listed = Store::of(&self.host)
            .list()
            .map_err(|error| problems.push(format!("cannot list the bottles: {error}")))
            .unwrap_or_default();
        if let Err(error) = self.ledger() {
            problems.push(error.message);
        }
        let used = self.read(&mut problems, |ledger| Used::read(ledger, now.timestamp())).unwrap_or_default();
        let bottles = self.bottles(listed, &settings, &used, &now, &mut problems);
        let detail = wanted.detail.as_ref().and_then(|slug| {
            let bottle = bottles.iter().find(|bottle| bottle.slug == *slug)?;
            Some(self.detail(bottle, rates.as_ref(), now.timestamp(), &mut problems))
        });
        let usage =
            wanted.usage.and_then(|(by, period)| self.usage(by, period, rates.as_ref(), &now, &mut problems));
        problems.dedup();
        let proposals = bottles.iter().map(|bottle| bottle.proposals).sum();
        let recent = by_minute(used.minutes.iter(), now.timestamp());
        let currency = rates.map(|rates| rates.currency);
        let snapshot = Snapshot { at: now.timestamp(), bottles, recent, proposals, currency, problems };
        Gathered { snapshot, detail, usage }
    }

    /// Reads from the ledger. Returns `None` if reading fails, or if the ledger is not open.
    fn read<T>(
        &self,
        problems: &mut Vec<String>,
        read: impl FnOnce(&Ledger) -> Result<T, bottle_keeper::ledger::LedgerError>,
    ) -> Option<T> {
        let ledger = self.ledger.as_ref()?;
        read(ledger).map_err(|error| problems.push(Failure::from(error).message)).ok()
    }

    fn bottles(
        &self,
        listed: Vec<Listed>,
        settings: &[Declared],
        used: &Used,
        now: &Zoned,
        problems: &mut Vec<String>,
    ) -> Vec<Bottle> {
        let mut standings = Standings::default();
        let mut bottles: Vec<Bottle> = listed
            .into_iter()
            .map(|listed| {
                let mut bottle = of_listed(&listed, used, now.timestamp());
                bottle.proposals = count_pending(&self.host.home, &bottle.slug);
                if let State::Alive(record) | State::Dead(record) | State::Kept(record) = &listed.state {
                    bottle.meters = self.meters(record, settings, used, now, &mut standings, problems);
                }
                bottle
            })
            .collect();
        sort_bottles(&mut bottles);
        bottles
    }

    fn meters(
        &self,
        record: &Record,
        settings: &[Declared],
        used: &Used,
        now: &Zoned,
        standings: &mut Standings,
        problems: &mut Vec<String>,
    ) -> Vec<Meter> {
        let declared: Vec<Declared> = record.budget.iter().chain(settings).cloned().collect();
        let template = record.template.filter(|template| *template != Template::Command);
        let template = template.map(|template| template.to_string());
        let none = Vec::new();
        let keys = used.keys.get(record.slug.as_str()).unwrap_or(&none);
        let governing = governing_budgets(&declared, record.budget.len(), template.as_deref(), keys);
        let mut meters = Vec::new();
        for declared in governing {
            let declared = declared.in_launch_of(&record.slug);
            let run = (declared.limit.window == Window::Run).then(|| record.run.clone()).flatten();
            let key = (declared.to_string(), run.clone());
            let standing = match standings.0.get(&key) {
                Some(standing) => *standing,
                None => {
                    let read = self.read(problems, |ledger| ledger.standing(&declared, run.as_deref(), now));
                    let Some(standing) = read else { continue };
                    standings.0.insert(key, standing);
                    standing
                }
            };
            let rate = rate_of(&declared, run.as_deref(), &used.minutes, now.timestamp());
            meters.push(Meter { declared, run, standing, rate });
        }
        sort_meters(&mut meters);
        meters
    }

    fn detail(
        &self,
        bottle: &Bottle,
        rates: Option<&Rates>,
        now: Timestamp,
        problems: &mut Vec<String>,
    ) -> Detail {
        let slug = bottle.slug.clone();
        let since = now.checked_sub(SOURCES_WITHIN).unwrap_or(Timestamp::MIN);
        let sources = self.read(problems, |ledger| ledger.sources(&slug, since)).unwrap_or_default();
        let cost = |rates: &Rates| {
            sources.iter().map(|source| rates.cost(&source.model, &source.totals.kinds())).collect()
        };
        let costs = rates.map(cost).unwrap_or_default();
        let directory = Store::of(&self.host).directory(&slug).join(SIDECAR_LOGS);
        let lines = proxy_log::last_lines(&directory, DECISIONS);
        let decisions = lines.iter().filter_map(|line| Shown::parse(line)).collect();
        Detail { slug, sources, costs, since, decisions }
    }

    fn usage(
        &self,
        by: GroupBy,
        period: Period,
        rates: Option<&Rates>,
        now: &Zoned,
        problems: &mut Vec<String>,
    ) -> Option<UsageTable> {
        let since = start(period, now);
        let groups = self.read(problems, |ledger| ledger.model_groups(by, since, now.time_zone()))?;
        Some(UsageTable::new(by, period, groups, rates))
    }
}

/// Returns the midnight at which a period begins.
fn start(period: Period, now: &Zoned) -> Timestamp {
    let Some(days) = period.days() else { return Timestamp::MIN };
    let first = now.date().saturating_sub(jiff::Span::new().days(days));
    first.to_zoned(now.time_zone().clone()).map_or(Timestamp::MIN, |start| start.timestamp())
}

/// A cache of the standings, which say how much of each budget is spent. The keys are the budget and the launch. Each
/// standing is read from the ledger only once.
#[derive(Default)]
struct Standings(HashMap<(String, Option<String>), Standing>);

/// The token usage of all bottles.
#[derive(Default)]
struct Used {
    minutes: Vec<Minute>,
    tokens: BTreeMap<String, u64>,
    keys: BTreeMap<String, Vec<String>>,
}

impl Used {
    fn read(ledger: &Ledger, now: Timestamp) -> Result<Self, bottle_keeper::ledger::LedgerError> {
        let minutes = i64::try_from(RECENT_MINUTES).unwrap_or(i64::MAX);
        let since = now.checked_sub(SignedDuration::from_mins(minutes)).unwrap_or(Timestamp::MIN);
        Ok(Self {
            minutes: ledger.minutes(since)?,
            tokens: ledger.tokens_by_bottle()?,
            keys: ledger.keys_by_bottle()?,
        })
    }
}

fn of_listed(listed: &Listed, used: &Used, now: Timestamp) -> Bottle {
    let slug = listed.slug.clone();
    let kept = matches!(&listed.state, State::Kept(record) if record.kept);
    let active = ActiveBottle::from(listed.clone());
    let state = match active.status {
        "running" | "unkept" => BottleState::Running,
        "starting" | "ending" => BottleState::Changing,
        "kept" if kept => BottleState::Kept,
        "kept" if active.kept_for == Some("conversation") => BottleState::Conversation,
        "kept" => BottleState::Snapshot,
        "ended" => BottleState::Ended,
        _ => BottleState::Broken,
    };
    let locked = active.locked.map(|_| "locked: all its traffic is denied".to_owned());
    Bottle {
        tokens: used.tokens.get(slug.as_str()).copied().unwrap_or(0),
        recent: by_minute(used.minutes.iter().filter(|minute| minute.slug == slug.as_str()), now),
        slug,
        label: active.label,
        color: active.color,
        agent: active.agent.unwrap_or_default(),
        bottles: active.bottles,
        backend: active.backend.unwrap_or_default(),
        state,
        status: active.status,
        mode: active.mode,
        problem: active.problem.or(locked),
        paused: active.paused,
        cut_off: active.cut_off,
        started_at: active.started_at,
        proposals: 0,
        meters: Vec::new(),
    }
}

/// Starts a thread that gathers until the returned sender or receiver is dropped. The thread gathers immediately when
/// it receives a [`Wanted`], and otherwise after [`INTERVAL`], or later if gathering takes long.
pub fn start_thread(mut gatherer: Gatherer) -> (SyncSender<Wanted>, Receiver<Gathered>) {
    let (ask, asked) = sync_channel(BUFFERED);
    let (send, gathered) = sync_channel(1);
    std::thread::spawn(move || {
        let mut wanted = Wanted::default();
        loop {
            let start = Instant::now();
            let failed = gatherer.ingest().err();
            let mut found = gatherer.gather(&wanted);
            let seen = |error: &Failure| found.snapshot.problems.contains(&error.message);
            if let Some(error) = failed.filter(|error| !seen(error)) {
                found.snapshot.problems.push(error.message);
            }
            if send.send(found).is_err() {
                return;
            }
            let rest = INTERVAL.max(start.elapsed() * REST);
            match asked.recv_timeout(rest) {
                Ok(next) => wanted = asked.try_iter().last().unwrap_or(next),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    (ask, gathered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_begin_at_midnight() {
        let at = |text: &str| text.parse::<Zoned>().expect("time");
        let now = at("2026-03-30T12:00:00+02:00[Europe/Berlin]");
        for (period, first) in [
            (Period::Today, "2026-03-30T00:00:00+02:00[Europe/Berlin]"),
            (Period::Week, "2026-03-24T00:00:00+01:00[Europe/Berlin]"),
            (Period::Month, "2026-03-01T00:00:00+01:00[Europe/Berlin]"),
        ] {
            assert_eq!(start(period, &now), at(first).timestamp());
        }
        assert_eq!(start(Period::All, &now), Timestamp::MIN);
    }
}
