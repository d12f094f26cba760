//! The data that the dashboards show, as plain values, and functions that compute values from the data. This module
//! does no I/O.

use std::collections::BTreeMap;

use bottle_host::budget::{ALL, Declared, Scope, Window, governing};
use bottle_host::rates::{Cost, Rates};
use bottle_keeper::ledger::{GroupBy, Minute, ModelGroup, SourceUsage, Standing, Totals};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use crate::access_log::Shown;

/// The number of minutes for which the tokens of each minute are shown.
pub const RECENT_MINUTES: usize = 30;

/// The number of minutes over which the token rate is averaged.
pub const RATE_MINUTES: usize = 10;

/// The used share of a limit, in percent, from which the limit is shown as nearly spent.
const NEARLY_SPENT: u64 = 80;

/// The state of all bottles at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The time at which the snapshot was gathered.
    pub at: Timestamp,
    /// The bottles, in the order of [`sort_bottles`].
    pub bottles: Vec<Bottle>,
    /// The tokens that all bottles used in each of the last [`RECENT_MINUTES`] minutes, the oldest minute first.
    pub recent: Vec<u64>,
    /// The number of pending proposals. A process waits for the answer to each of them.
    pub proposals: u32,
    /// The currency of the costs, if the user has configured rates.
    pub currency: Option<String>,
    /// Descriptions of the data that could not be read, as sentence fragments.
    pub problems: Vec<String>,
}

/// One bottle.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottle {
    /// The slug of the bottle.
    pub slug: Slug,
    /// The label of the bottle.
    pub label: Option<String>,
    /// The colour of the label.
    pub color: Option<String>,
    /// The name of the agent manifest.
    pub agent: String,
    /// The names of the bottle manifests that the user chose.
    pub bottles: Vec<String>,
    /// The backend that runs the bottle.
    pub backend: String,
    /// What the user can do with the bottle.
    pub state: BottleState,
    /// The state of the bottle in a word, as `bottle list` shows it.
    pub status: &'static str,
    /// `attached` or `detached`. `None` if the bottle's record cannot be read.
    pub mode: Option<&'static str>,
    /// Why all traffic of the bottle is denied, or why the bottle's record cannot be read.
    pub problem: Option<String>,
    /// Why a budget paused the bottle. `None` if the bottle is not paused.
    pub paused: Option<String>,
    /// Whether the user cut off the bottle, so that its requests to models are denied.
    pub cut_off: bool,
    /// The time at which the last launch of the bottle began.
    pub started_at: Option<Timestamp>,
    /// The number of pending proposals of the bottle. A process waits for the answer to each of them.
    pub proposals: u32,
    /// The tokens that all launches of the bottle used.
    pub tokens: u64,
    /// The tokens that the bottle used in each of the last [`RECENT_MINUTES`] minutes, the oldest minute first.
    pub recent: Vec<u64>,
    /// The budgets that govern the bottle. The budget that runs out first is at the front.
    pub meters: Vec<Meter>,
}

/// The state of a bottle, which decides what the user can do with the bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BottleState {
    /// The bottle runs, or can continue with a new keeper.
    Running,
    /// The bottle is being launched or torn down.
    Changing,
    /// The bottle ended, and its files are kept.
    Kept,
    /// The bottle ended, and has a snapshot but no kept files.
    Snapshot,
    /// The bottle ended, and only its conversation is kept.
    Conversation,
    /// The bottle ended, and nothing of it is kept.
    Ended,
    /// The bottle needs `bottle cleanup`, or its record cannot be read.
    Broken,
}

/// The groups into which the dashboards divide the bottles, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The bottle needs the user: it has a question, is paused or locked, or its record cannot be used.
    Waiting,
    /// The bottle runs, or is being launched or torn down.
    Running,
    /// The bottle ended, and can be resumed.
    Kept,
    /// The bottle ended, and nothing of it is kept.
    Ended,
}

impl Group {
    /// All groups, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Running, Self::Kept, Self::Ended];

    /// The name of the group in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Kept => "kept",
            Self::Ended => "ended",
        }
    }

    /// The group as a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting for you",
            Self::Running => "Running",
            Self::Kept => "Kept",
            Self::Ended => "Ended",
        }
    }
}

/// How a bottle's state is highlighted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateTone {
    /// The bottle runs.
    Good,
    /// The bottle waits for the user, or is changing.
    Notice,
    /// The bottle is locked, or its record cannot be used.
    Bad,
    /// The bottle ended, and can be resumed.
    Kept,
    /// The bottle ended, and nothing of it is kept.
    Quiet,
}

/// The maximum length of the text of a [`Filter`], in characters.
const MAX_FILTER: usize = 100;

/// Which bottles of a list are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The words that the name, label, manifests, backend or state of a bottle must contain.
    text: String,
    /// The only group that is shown.
    pub group: Option<Group>,
}

impl Filter {
    /// Creates a filter. Shortens the text to 100 characters.
    pub fn new(text: &str, group: Option<Group>) -> Self {
        Self { text: text.chars().take(MAX_FILTER).collect(), group }
    }

    /// The text of the filter, as the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the filter shows all bottles.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.group.is_none()
    }

    /// Whether the filter shows this bottle: the bottle is in the group, and each word of the text is a part of its
    /// name, label, manifests, backend or state. Upper and lower case are equal.
    pub fn shows(&self, bottle: &Bottle) -> bool {
        if self.group.is_some_and(|group| group != bottle.group()) {
            return false;
        }
        let fields = [bottle.slug.as_str(), &bottle.agent, &bottle.backend, bottle.word()];
        let label = bottle.label.iter().map(String::as_str);
        let all = fields.into_iter().chain(label).chain(bottle.bottles.iter().map(String::as_str));
        let all: Vec<String> = all.map(str::to_lowercase).collect();
        let text = self.text.to_lowercase();
        text.split_whitespace().all(|word| all.iter().any(|field| field.contains(word)))
    }
}

/// A budget that governs a bottle.
#[derive(Debug, Clone, PartialEq)]
pub struct Meter {
    /// The budget.
    pub declared: Declared,
    /// The launch, if the budget counts only one launch.
    pub run: Option<String>,
    /// The tokens of the budget that are spent and reserved, and the budget's limit.
    pub standing: Standing,
    /// The tokens per minute of all launches that the budget counts.
    pub rate: u64,
}

/// How long a budget lasts at the current rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// The budget is spent.
    Spent,
    /// The budget lasts this many minutes.
    Minutes(u64),
    /// No bottle uses the budget at present.
    Idle,
}

/// How much of a budget is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The used share is smaller than for [`Level::High`].
    Low,
    /// The budget is nearly spent.
    High,
    /// No tokens of the budget are left.
    Spent,
}

impl Bottle {
    /// The bottle's average number of tokens per minute over the last [`RATE_MINUTES`] minutes.
    pub fn rate(&self) -> u64 {
        rate(&self.recent)
    }

    /// The group in which the dashboards show the bottle.
    pub fn group(&self) -> Group {
        match self.state {
            BottleState::Broken => Group::Waiting,
            _ if self.proposals > 0 || self.paused.is_some() || self.is_locked() => Group::Waiting,
            BottleState::Running | BottleState::Changing => Group::Running,
            BottleState::Kept | BottleState::Snapshot | BottleState::Conversation => Group::Kept,
            BottleState::Ended => Group::Ended,
        }
    }

    /// Whether the bottle runs, and all its traffic is denied.
    fn is_locked(&self) -> bool {
        self.state == BottleState::Running && self.problem.is_some()
    }

    /// The state of the bottle in a word or two.
    pub fn word(&self) -> &'static str {
        match self.state {
            _ if self.is_locked() => "locked",
            _ if self.paused.is_some() => "paused",
            _ if self.cut_off => "cut off",
            BottleState::Kept => "kept",
            BottleState::Snapshot => "snapshot",
            BottleState::Conversation => "conversation",
            BottleState::Ended => "ended",
            BottleState::Running | BottleState::Changing | BottleState::Broken => self.status,
        }
    }

    /// How the state of the bottle is highlighted. The questions of the bottle are not a part of this state.
    pub fn tone(&self) -> StateTone {
        match self.state {
            BottleState::Broken => StateTone::Bad,
            _ if self.is_locked() => StateTone::Bad,
            _ if self.paused.is_some() || self.cut_off => StateTone::Notice,
            BottleState::Running => StateTone::Good,
            BottleState::Changing => StateTone::Notice,
            BottleState::Kept | BottleState::Snapshot | BottleState::Conversation => StateTone::Kept,
            BottleState::Ended => StateTone::Quiet,
        }
    }

    /// Whether the user can stop the bottle.
    pub fn can_stop(&self) -> bool {
        self.state == BottleState::Running
    }

    /// Whether the user can discard the bottle's kept files.
    pub fn can_discard(&self) -> bool {
        self.state == BottleState::Kept
    }
}

/// Sorts bottles: the bottles that wait for the user first, then the running bottles, the kept bottles and the ended
/// bottles. Within a group, the bottles are sorted by state and name.
pub fn sort_bottles(bottles: &mut [Bottle]) {
    bottles.sort_by(|a, b| (a.group(), a.state, &a.slug).cmp(&(b.group(), b.state, &b.slug)));
}

/// The average number of tokens per minute over the last [`RATE_MINUTES`] of these minutes.
pub fn rate(recent: &[u64]) -> u64 {
    let last = &recent[recent.len().saturating_sub(RATE_MINUTES)..];
    last.iter().copied().fold(0, u64::saturating_add) / RATE_MINUTES as u64
}

impl Meter {
    /// The used share of the budget in percent, including reserved tokens. The result is at most 100, and is 100 only
    /// if no tokens are left.
    pub fn percent(&self) -> u64 {
        let Standing { spent, reserved, limit } = self.standing;
        share(spent.saturating_add(reserved), limit)
    }

    /// How much of the budget is used.
    pub fn level(&self) -> Level {
        match self.percent() {
            100 => Level::Spent,
            NEARLY_SPENT.. => Level::High,
            _ => Level::Low,
        }
    }

    /// How long the budget lasts at the current rate.
    pub fn outlook(&self) -> Outlook {
        match (self.standing.left(), self.rate) {
            (0, _) => Outlook::Spent,
            (_, 0) => Outlook::Idle,
            (left, rate) => Outlook::Minutes(left / rate),
        }
    }

    /// Returns the number of cells for spent tokens and the number of cells for reserved tokens, in a bar of this
    /// width. The remaining cells are free.
    pub fn cells(&self, width: usize) -> (usize, usize) {
        let Standing { spent, reserved, limit } = self.standing;
        let width_tokens = width as u64;
        let part = |tokens: u64| {
            let cells = u128::from(tokens.min(limit)) * u128::from(width_tokens) / u128::from(limit.max(1));
            usize::try_from(cells).unwrap_or(width).min(width)
        };
        // Even the smallest use fills a cell, and the bar is full only if no tokens are left.
        let used =
            part(spent.saturating_add(reserved)).max(usize::from(spent > 0 || reserved > 0)).min(width);
        let used = if self.standing.left() > 0 { used.min(width.saturating_sub(1)) } else { width };
        let spent_cells = part(spent).max(usize::from(spent > 0)).min(used);
        (spent_cells, used - spent_cells)
    }

    /// The sort key of a budget. Spent budgets come first, then the budgets that run out soonest. Of budgets that last
    /// equally long, the budget with the largest used share comes first.
    fn urgency(&self) -> (u64, u64) {
        let minutes = match self.outlook() {
            Outlook::Spent => 0,
            Outlook::Minutes(minutes) => minutes + 1,
            Outlook::Idle => u64::MAX,
        };
        (minutes, 100 - self.percent())
    }
}

/// Returns `part` as a percentage of `whole`, rounded down. The result is 100 only if `part` reaches `whole`.
pub fn share(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 100,
        _ => u64::try_from(u128::from(part.min(whole)) * 100 / u128::from(whole)).unwrap_or(100),
    }
}

/// Sorts the budgets so that the budget that runs out first is at the front.
pub fn sort_meters(meters: &mut [Meter]) {
    meters.sort_by_key(Meter::urgency);
}

/// Returns the budgets that govern a bottle, without duplicates. `declared` begins with the nearest scope, and its
/// first `own` budgets are the bottle's own. `template` is the budget key of the bottle's provider route. `used`
/// contains the budget keys for which the bottle used tokens.
pub fn governing_budgets(
    declared: &[Declared],
    own: usize,
    template: Option<&str>,
    used: &[String],
) -> Vec<Declared> {
    let is_template = |key: &str| matches!(key, "claude" | "codex" | "pi");
    // A budget of the bottle itself is included even if the bottle has not used tokens for its key yet.
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

/// Returns the tokens per minute of the launches that a budget counts. If the budget counts only one launch, `run` is
/// this launch.
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

/// Returns the tokens of each of the last [`RECENT_MINUTES`] minutes, the oldest minute first.
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

    /// The period in the words of a heading.
    pub fn words(self) -> &'static str {
        match self {
            Self::Today => "today",
            Self::Week => "last 7 days",
            Self::Month => "last 30 days",
            Self::All => "all time",
        }
    }

    /// The name of the period in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Today => "today",
            Self::Week => "week",
            Self::Month => "month",
            Self::All => "all",
        }
    }

    /// Returns the next longer period. After the longest period, returns the shortest.
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

/// A table of usage. Each row is the sum of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageTable {
    /// The property by which the usage is grouped into rows.
    pub by: GroupBy,
    /// The period of the usage.
    pub period: Period,
    /// The rows, in display order.
    pub rows: Vec<UsageRow>,
    /// The sum of all rows.
    pub sum: UsageRow,
}

/// A row of [`UsageTable`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageRow {
    /// The value of the property that the row's usage has in common. Empty if the value is unknown.
    pub name: String,
    /// The usage of the row.
    pub totals: Totals,
    /// The cost, if the user has configured rates.
    pub cost: Option<Cost>,
}

impl UsageTable {
    /// Sums the usage of all models in each group. Days are sorted with the newest first, other groups with the largest
    /// usage first.
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

/// The details of one bottle.
#[derive(Debug, Clone, PartialEq)]
pub struct Detail {
    /// The slug of the bottle.
    pub slug: Slug,
    /// The bottle's usage since [`Detail::since`], by model and source.
    pub sources: Vec<SourceUsage>,
    /// The costs of `sources`, if the user has configured rates.
    pub costs: Vec<Cost>,
    /// The start of the period that `sources` covers.
    pub since: Timestamp,
    /// The last decisions of the proxy, newest first.
    pub decisions: Vec<Shown>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::sample::{bottle, declared, minute, now, snapshot};

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
    fn bottles_that_wait_are_first_and_ended_ones_last() {
        let mut bottles = snapshot().bottles;
        sort_bottles(&mut bottles);
        let seen: Vec<_> = bottles
            .iter()
            .map(|bottle| (bottle.slug.as_str(), bottle.group().name(), bottle.word(), bottle.tone()))
            .collect();
        assert_eq!(
            seen,
            [
                ("docs-7", "waiting", "running", StateTone::Good),
                ("refactor-parser", "waiting", "paused", StateTone::Notice),
                ("scraper", "waiting", "locked", StateTone::Bad),
                ("torn", "waiting", "damaged", StateTone::Bad),
                ("api-fix", "running", "running", StateTone::Good),
                ("fresh", "running", "starting", StateTone::Notice),
                ("last-week", "kept", "kept", StateTone::Kept),
                ("done", "ended", "ended", StateTone::Quiet),
            ]
        );
    }

    #[test]
    fn a_filter_shows_what_has_all_its_words() {
        let mut one = bottle("api-fix", BottleState::Running, "running");
        one.label = Some("Größe".to_owned());
        for (text, group, shown) in [
            ("", None, true),
            ("  ", Some(Group::Running), true),
            ("", Some(Group::Ended), false),
            ("API", None, true),
            ("GRÖSSE", None, false),
            ("grÖße linux", None, true),
            ("dev claude run", None, true),
            ("api kept", None, false),
            ("api", Some(Group::Waiting), false),
        ] {
            assert_eq!(Filter::new(text, group).shows(&one), shown, "{text} {group:?}");
        }
        let long = Filter::new(&"ß".repeat(1000), None);
        assert_eq!((long.text().chars().count(), long.is_empty()), (MAX_FILTER, false));
        assert!(Filter::new(" ", None).is_empty() && !Filter::new("", Some(Group::Kept)).is_empty());
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
