//! What the dashboards show: plain data, and what can be computed from it. This module does no input or output.

use std::collections::BTreeMap;

use bottle_host::budget::{ALL, Declared, Scope, Window, governing};
use bottle_host::rates::{Cost, Rates};
use bottle_keeper::ledger::{GroupBy, Minute, ModelGroup, SourceUsage, Standing, Totals};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use crate::access_log::Shown;

/// The number of minutes whose tokens are shown one by one.
pub const RECENT_MINUTES: usize = 30;

/// The number of minutes over which the rate is the average.
pub const RATE_MINUTES: usize = 10;

/// The used share of a limit, in percent, from which the limit is shown as nearly spent.
const NEARLY_SPENT: u64 = 80;

/// All bottles at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The time at which the snapshot was gathered.
    pub at: Timestamp,
    /// The bottles, running ones first.
    pub bottles: Vec<Bottle>,
    /// The tokens of all bottles in the last minutes, oldest first.
    pub recent: Vec<u64>,
    /// The number of proposals for which a process waits for an answer.
    pub proposals: u32,
    /// The currency of amounts, if there are rates.
    pub currency: Option<String>,
    /// What could not be read, as sentence fragments.
    pub problems: Vec<String>,
}

/// One bottle.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottle {
    /// Its name.
    pub slug: Slug,
    /// Its label.
    pub label: Option<String>,
    /// The colour of its label.
    pub color: Option<String>,
    /// The agent manifest.
    pub agent: String,
    /// The bottle manifests that the user chose.
    pub bottles: Vec<String>,
    /// The backend that runs it.
    pub backend: String,
    /// What can be done with it.
    pub state: BottleState,
    /// The state in a word, as `bottle list` shows it.
    pub status: &'static str,
    /// Whether a terminal is attached.
    pub mode: Option<&'static str>,
    /// Why all traffic is denied, or why the record cannot be read.
    pub problem: Option<String>,
    /// The reason if a budget paused the bottle. `None` if it is not paused.
    pub paused: Option<String>,
    /// Whether the user ordered that its requests to models are denied.
    pub cut_off: bool,
    /// When its last launch began.
    pub started_at: Option<Timestamp>,
    /// The number of its proposals for which a process waits for an answer.
    pub proposals: u32,
    /// The tokens of all its launches.
    pub tokens: u64,
    /// Its tokens in the last minutes, oldest first.
    pub recent: Vec<u64>,
    /// The budgets that govern the bottle. The budget that runs out first is at the front.
    pub meters: Vec<Meter>,
}

/// What can be done with a bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BottleState {
    /// It runs, or can continue with a new keeper.
    Running,
    /// It is being launched or torn down.
    Changing,
    /// It ended, and its files are kept.
    Kept,
    /// It ended, and has a snapshot but no files.
    Snapshot,
    /// It ended, and only its conversation is kept.
    Conversation,
    /// It needs `bottle cleanup`, or its record cannot be read.
    Broken,
}

/// A budget that governs a bottle.
#[derive(Debug, Clone, PartialEq)]
pub struct Meter {
    /// The budget.
    pub declared: Declared,
    /// The launch, if the budget counts only one launch.
    pub run: Option<String>,
    /// How much of the budget was spent.
    pub standing: Standing,
    /// The tokens per minute of all launches that it counts.
    pub rate: u64,
}

/// How long a budget lasts at the current rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing is left.
    Spent,
    /// This many minutes.
    Minutes(u64),
    /// Nothing uses it at present.
    Idle,
}

/// How much of a budget is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Less than [`Level::High`].
    Low,
    /// Nearly all.
    High,
    /// All.
    Spent,
}

impl Bottle {
    /// The average tokens per minute of the last [`RATE_MINUTES`].
    pub fn rate(&self) -> u64 {
        rate(&self.recent)
    }

    /// Whether it can be stopped.
    pub fn can_stop(&self) -> bool {
        self.state == BottleState::Running
    }

    /// Whether its kept files can be discarded.
    pub fn can_discard(&self) -> bool {
        self.state == BottleState::Kept
    }
}

/// The average tokens per minute at the end of these minutes.
pub fn rate(recent: &[u64]) -> u64 {
    let last = &recent[recent.len().saturating_sub(RATE_MINUTES)..];
    last.iter().copied().fold(0, u64::saturating_add) / RATE_MINUTES as u64
}

impl Meter {
    /// The used share in percent, with reservations. At most 100, and 100 only if nothing is left.
    pub fn percent(&self) -> u64 {
        let Standing { spent, reserved, limit } = self.standing;
        share(spent.saturating_add(reserved), limit)
    }

    /// How much of it is used.
    pub fn level(&self) -> Level {
        match self.percent() {
            100 => Level::Spent,
            NEARLY_SPENT.. => Level::High,
            _ => Level::Low,
        }
    }

    /// How long it lasts at the current rate.
    pub fn outlook(&self) -> Outlook {
        match (self.standing.left(), self.rate) {
            (0, _) => Outlook::Spent,
            (_, 0) => Outlook::Idle,
            (left, rate) => Outlook::Minutes(left / rate),
        }
    }

    /// The cells of a bar of this width: spent, and reserved. The rest is free.
    pub fn cells(&self, width: usize) -> (usize, usize) {
        let Standing { spent, reserved, limit } = self.standing;
        let width_tokens = width as u64;
        let part = |tokens: u64| {
            let cells = u128::from(tokens.min(limit)) * u128::from(width_tokens) / u128::from(limit.max(1));
            usize::try_from(cells).unwrap_or(width).min(width)
        };
        // Any use is visible in the bar, and a full bar means that nothing is left.
        let used =
            part(spent.saturating_add(reserved)).max(usize::from(spent > 0 || reserved > 0)).min(width);
        let used = if self.standing.left() > 0 { used.min(width.saturating_sub(1)) } else { width };
        let spent_cells = part(spent).max(usize::from(spent > 0)).min(used);
        (spent_cells, used - spent_cells)
    }

    /// The sort key: spent budgets first, then those that run out soonest, then those with the largest used share.
    fn urgency(&self) -> (u64, u64) {
        let minutes = match self.outlook() {
            Outlook::Spent => 0,
            Outlook::Minutes(minutes) => minutes + 1,
            Outlook::Idle => u64::MAX,
        };
        (minutes, 100 - self.percent())
    }
}

/// A share in percent, rounded down: 100 only if the part reaches the whole.
pub fn share(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 100,
        _ => u64::try_from(u128::from(part.min(whole)) * 100 / u128::from(whole)).unwrap_or(100),
    }
}

/// Sorts the budget that runs out first to the front.
pub fn sort_meters(meters: &mut [Meter]) {
    meters.sort_by_key(Meter::urgency);
}

/// The budgets that govern a bottle, each once. `declared` begins with the nearest scope. `template` is the key of the
/// bottle's provider route, `used` are the keys whose tokens it used.
pub fn governing_budgets(
    declared: &[Declared],
    own: usize,
    template: Option<&str>,
    used: &[String],
) -> Vec<Declared> {
    let is_template = |key: &str| matches!(key, "claude" | "codex" | "pi");
    // A budget of the bottle itself counts for its host even if nothing was used yet.
    let named = declared[..own].iter().map(|one| one.limit.key.as_str()).filter(|key| *key != ALL);
    let mut keys: Vec<&str> =
        template.into_iter().chain(used.iter().map(String::as_str)).chain(named).collect();
    keys.retain(|key| !is_template(key) || Some(*key) == template);
    if keys.is_empty() {
        keys.push(ALL);
    }
    let mut found: Vec<Declared> = Vec::new();
    for one in keys.into_iter().flat_map(|key| governing(declared, key)) {
        if !found.contains(one) {
            found.push(one.clone());
        }
    }
    found
}

/// The tokens per minute of the launches that a budget counts. `run` is the launch, for a budget of one launch.
pub fn rate_of(declared: &Declared, run: Option<&str>, minutes: &[Minute], now: Timestamp) -> u64 {
    let counts = |minute: &&Minute| {
        (declared.limit.key == ALL || declared.limit.key == minute.key)
            && match (&declared.scope, declared.limit.window) {
                (_, Window::Run) => Some(minute.run.as_str()) == run,
                (Scope::Run(slug), _) => minute.slug == slug.as_str(),
                (Scope::Agent(agent), _) => minute.agent == agent.as_str(),
                (Scope::Bottle(bottle), _) => minute.lineage.iter().any(|name| name == bottle.as_str()),
                (Scope::Host | Scope::Ceiling, _) => true,
            }
    };
    rate(&by_minute(minutes.iter().filter(counts), now))
}

/// The tokens of the last [`RECENT_MINUTES`], oldest first.
pub fn by_minute<'m>(minutes: impl Iterator<Item = &'m Minute>, now: Timestamp) -> Vec<u64> {
    let mut recent = vec![0; RECENT_MINUTES];
    for minute in minutes {
        let age = usize::try_from(now.duration_since(minute.start).as_secs().max(0) / 60);
        if let Some(at) = age.ok().and_then(|age| (RECENT_MINUTES - 1).checked_sub(age)) {
            recent[at] = u64::saturating_add(recent[at], minute.tokens);
        }
    }
    recent
}

/// The period for which usage is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Period {
    /// Since midnight.
    Today,
    /// Today and the six days before.
    #[default]
    Week,
    /// Today and the 29 days before.
    Month,
    /// Everything in the ledger.
    All,
}

impl Period {
    /// All periods, the shortest first.
    pub const ALL: [Self; 4] = [Self::Today, Self::Week, Self::Month, Self::All];

    /// The words of a heading.
    pub fn words(self) -> &'static str {
        match self {
            Self::Today => "today",
            Self::Week => "last 7 days",
            Self::Month => "last 30 days",
            Self::All => "all time",
        }
    }

    /// The name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Today => "today",
            Self::Week => "week",
            Self::Month => "month",
            Self::All => "all",
        }
    }

    /// The next longer period. After the longest period, the shortest.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|period| *period == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The number of days before today that the period contains. `None` for [`Self::All`].
    pub fn days(self) -> Option<i64> {
        match self {
            Self::Today => Some(0),
            Self::Week => Some(6),
            Self::Month => Some(29),
            Self::All => None,
        }
    }
}

/// The groupings of usage that the dashboards show, with their names.
pub const GROUPINGS: [(GroupBy, &str); 5] = [
    (GroupBy::Day, "day"),
    (GroupBy::Provider, "provider"),
    (GroupBy::Agent, "agent"),
    (GroupBy::Bottle, "bottle"),
    (GroupBy::Model, "model"),
];

/// The name of a grouping.
pub fn grouping_name(by: GroupBy) -> &'static str {
    GROUPINGS.iter().find(|(known, _)| *known == by).map_or("host", |(_, name)| name)
}

/// Usage, summed up.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageTable {
    /// What a row stands for.
    pub by: GroupBy,
    /// The time of the usage.
    pub period: Period,
    /// The rows in the order in which they are shown.
    pub rows: Vec<UsageRow>,
    /// All rows together.
    pub sum: UsageRow,
}

/// A line of [`UsageTable`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageRow {
    /// The common value; empty if it is unknown.
    pub name: String,
    /// What it used.
    pub totals: Totals,
    /// The cost, if there are rates.
    pub cost: Option<Cost>,
}

impl UsageTable {
    /// Sums up the models of each group. Days are sorted newest first, other groups largest first.
    pub fn new(by: GroupBy, period: Period, groups: Vec<ModelGroup>, rates: Option<&Rates>) -> Self {
        let mut rows: BTreeMap<String, UsageRow> = BTreeMap::new();
        let mut sum = UsageRow::default();
        for ModelGroup { name, model, totals } in groups {
            let cost = rates.map(|rates| rates.cost(&model, &totals.kinds()));
            let row = rows.entry(name.clone()).or_insert_with(|| UsageRow { name, ..UsageRow::default() });
            for row in [row, &mut sum] {
                row.totals.add(&totals);
                if let Some(cost) = cost {
                    row.cost.get_or_insert_default().add(cost);
                }
            }
        }
        let mut rows: Vec<UsageRow> = rows.into_values().rev().collect();
        if by != GroupBy::Day {
            rows.sort_by_key(|row| std::cmp::Reverse(row.totals.total()));
        }
        Self { by, period, rows, sum }
    }
}

/// One bottle in full.
#[derive(Debug, Clone, PartialEq)]
pub struct Detail {
    /// The bottle.
    pub slug: Slug,
    /// What it used by model and source since [`Detail::since`].
    pub sources: Vec<SourceUsage>,
    /// The costs of `sources`, if there are rates.
    pub costs: Vec<Cost>,
    /// The start of the period that `sources` covers.
    pub since: Timestamp,
    /// The last decisions of the proxy, newest first.
    pub decisions: Vec<Shown>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::sample::{declared, minute, now};

    fn meter(spent: u64, reserved: u64, limit: u64, rate: u64) -> Meter {
        Meter {
            declared: declared("host", "claude", Window::Day, limit),
            run: None,
            standing: Standing { spent, reserved, limit },
            rate,
        }
    }

    #[test]
    fn a_bar_is_full_only_if_nothing_is_left() {
        for (spent, reserved, limit, cells, percent) in [
            (0, 0, 100, (0, 0), 0),
            (1, 0, 1_000_000, (1, 0), 0),
            (0, 1, 1_000_000, (0, 1), 0),
            (50, 25, 100, (5, 2), 75),
            (99, 0, 100, (9, 0), 99),
            (90, 9, 100, (9, 0), 99),
            (100, 0, 100, (10, 0), 100),
            (60, 40, 100, (6, 4), 100),
            (250, 0, 100, (10, 0), 100),
            (1 << 53, 1, 1 << 53, (10, 0), 100),
        ] {
            let meter = meter(spent, reserved, limit, 0);
            assert_eq!((meter.cells(10), meter.percent()), (cells, percent), "{spent} {reserved} {limit}");
            assert!(meter.cells(0) == (0, 0) && meter.cells(1).0 + meter.cells(1).1 <= 1);
        }
    }

    #[test]
    fn the_budget_that_ends_first_is_in_front() {
        let mut meters =
            vec![meter(10, 0, 100, 0), meter(90, 0, 100, 1), meter(95, 0, 100, 0), meter(5, 0, 100, 50)];
        meters.push(meter(100, 0, 100, 0));
        sort_meters(&mut meters);
        let order: Vec<_> = meters.iter().map(|meter| (meter.standing.spent, meter.outlook())).collect();
        assert_eq!(
            order,
            [
                (100, Outlook::Spent),
                (5, Outlook::Minutes(1)),
                (90, Outlook::Minutes(10)),
                (95, Outlook::Idle),
                (10, Outlook::Idle)
            ]
        );
    }

    #[test]
    fn a_rate_counts_what_the_budget_counts() {
        let minutes = [
            minute(0, "one", "run-1", "worker", &["base", "dev"], "claude", 1000),
            minute(3, "two", "run-2", "worker", &["base"], "claude", 500),
            minute(9, "two", "run-2", "worker", &["base"], "llm.example", 250),
            minute(11, "one", "run-1", "worker", &["base", "dev"], "claude", 70_000),
            minute(45, "one", "run-1", "worker", &["base", "dev"], "claude", 70_000),
        ];
        for (scope, key, window, run, rate) in [
            ("host", "claude", Window::Day, None, 150),
            ("ceiling", "llm.example", Window::Total, None, 25),
            ("agent:worker", ALL, Window::Day, None, 175),
            ("agent:other", ALL, Window::Day, None, 0),
            ("bottle:dev", "claude", Window::Month, None, 100),
            ("bottle:base", "claude", Window::Month, None, 150),
            ("run:two", ALL, Window::Run, Some("run-2"), 75),
            ("bottle:base", "claude", Window::Run, Some("run-2"), 50),
            ("bottle:base", "claude", Window::Run, None, 0),
        ] {
            let declared = declared(scope, key, window, 1);
            assert_eq!(rate_of(&declared, run, &minutes, now()), rate, "{scope} {key} {window}");
        }
        let recent = by_minute(minutes.iter(), now());
        assert_eq!(recent.len(), RECENT_MINUTES);
        assert_eq!((recent[29], recent[26], recent[20], recent[18]), (1000, 500, 250, 70_000));
    }

    #[test]
    fn only_budgets_of_what_the_bottle_uses_govern_it() {
        let all = [
            declared("bottle:dev", "llm.example", Window::Day, 1),
            declared("bottle:dev", "codex", Window::Day, 1),
            declared("host", "claude", Window::Day, 1),
            declared("host", "codex", Window::Day, 1),
            declared("host", "other.example", Window::Day, 1),
            declared("ceiling", "claude", Window::Total, 1),
        ];
        let names = |own, template, used: &[&str]| {
            let used: Vec<String> = used.iter().map(|&key| key.to_owned()).collect();
            let found = governing_budgets(&all, own, template, &used);
            found.iter().map(|one| format!("{} {}", one.scope, one.limit.key)).collect::<Vec<_>>()
        };
        assert_eq!(
            names(2, Some("claude"), &[]),
            ["host claude", "ceiling claude", "bottle:dev llm.example"]
        );
        assert_eq!(names(2, None, &["other.example"]), ["host other.example", "bottle:dev llm.example"]);
        assert_eq!(names(2, Some("codex"), &["claude"]), ["bottle:dev codex", "bottle:dev llm.example"]);
        assert_eq!(names(0, None, &[]), [""; 0]);
    }

    #[test]
    fn usage_is_summed_up_with_its_cost() {
        let group = |name: &str, model: &str, output| ModelGroup {
            name: name.to_owned(),
            model: model.to_owned(),
            totals: Totals { responses: 1, output, ..Totals::default() },
        };
        let groups = vec![group("a", "m", 10), group("b", "m", 20), group("b", "unknown", 5)];
        let table = UsageTable::new(GroupBy::Agent, Period::Week, groups.clone(), None);
        let names: Vec<_> = table.rows.iter().map(|row| (row.name.as_str(), row.totals.total())).collect();
        assert_eq!((names, table.sum.totals.total()), (vec![("b", 25), ("a", 10)], 35));
        assert_eq!(table.sum.cost, None);
        let days = UsageTable::new(GroupBy::Day, Period::Week, groups, None);
        assert_eq!(days.rows[0].name, "b", "the newest day is first");
    }

    #[test]
    fn periods_follow_each_other() {
        let mut period = Period::Today;
        for _ in Period::ALL {
            period = period.next();
        }
        assert_eq!(period, Period::Today);
    }
}
