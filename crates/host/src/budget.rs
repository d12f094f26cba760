//! Budgets: limits on the tokens that models may use, as manifests, `settings.yml` and the command line write them.
//!
//! ```text
//! budget:
//!   claude: 5000000                      all windows together
//!   codex: {day: 2000000, month: 20000000}
//!   llm.example.com: {run: 100000}       only in manifests
//!   ceiling: {claude: 50000000}          only in settings.yml
//! ```
//! This module parses budgets and decides which of them apply. The ledger counts the tokens that are spent.

use std::fmt;

use bottle_policy::names::{Name, Slug};
use bottle_policy::route::HostPattern;
use bottle_text::suggest::suggest;
use bottle_text::yaml::{Position, Spanned};
use jiff::{SignedDuration, Timestamp, Zoned};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest limit. A larger number is not exact in JSON.
const MAX_TOKENS: u64 = 1 << 53;

/// The key of a limit on the tokens of all providers together. This key cannot be used in files.
pub const ALL: &str = "all";

/// The providers that have a provider route.
const TEMPLATES: [&str; 3] = ["claude", "codex", "pi"];

/// The key in `settings.yml` whose limits apply in addition to the limits of all other scopes.
const CEILING: &str = "ceiling";

const MINUTE: SignedDuration = SignedDuration::from_secs(60);

/// The time window in which a limit counts tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// One launch of a bottle.
    Run,
    /// The last 60 seconds. A request that exceeds the limit waits until it fits into the limit again.
    Minute,
    /// The current day, from midnight in the user's time zone.
    Day,
    /// The current month, from midnight of its first day in the user's time zone.
    Month,
    /// All time.
    Total,
}

impl Window {
    const ALL: [Self; 5] = [Self::Run, Self::Minute, Self::Day, Self::Month, Self::Total];

    /// Parses the name of a window.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.name() == name)
    }

    /// Returns the name of the window, as files and commands write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Minute => "minute",
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }

    /// Returns the beginning of the window. A window without a beginning includes all of the past.
    #[must_use]
    pub fn start(self, now: &Zoned) -> Timestamp {
        let day = match self {
            Self::Run | Self::Total => return Timestamp::MIN,
            Self::Minute => return now.timestamp().saturating_sub(MINUTE).unwrap_or(Timestamp::MIN),
            Self::Day => now.start_of_day(),
            Self::Month => now.first_of_month().and_then(|first| first.start_of_day()),
        };
        // An error means that the day is outside the calendar's range. The window then has no beginning, so the limit
        // counts more tokens, never fewer.
        day.map_or(Timestamp::MIN, |day| day.timestamp())
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens when a budget is spent, or on `bottle budget stop`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnSpent {
    /// Pause the bottle and ask the user. If the user does not raise the budget in time, act as [`Self::Cutoff`].
    #[default]
    Pause,
    /// Deny requests to models. The bottle continues to run.
    Cutoff,
    /// Save a snapshot, and stop the bottle.
    Freeze,
    /// End the bottle without saving anything.
    Kill,
}

impl OnSpent {
    const ALL: [Self; 4] = [Self::Pause, Self::Cutoff, Self::Freeze, Self::Kill];

    /// Parses the name of a policy.
    ///
    /// # Errors
    /// Returns a sentence fragment that lists the valid names.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            format!("unknown policy `{}`; write pause, cutoff, freeze or kill", name.escape_debug())
        })
    }

    /// Returns the name of the policy, as files and commands write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Cutoff => "cutoff",
            Self::Freeze => "freeze",
            Self::Kill => "kill",
        }
    }
}

impl fmt::Display for OnSpent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit on the tokens of one provider in one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The provider: the name of a template (claude, codex or pi), the host of another route, or [`ALL`].
    pub key: String,
    /// The window.
    pub window: Window,
    /// The number of tokens, from 1 to 2^53.
    pub tokens: u64,
}

impl Limit {
    /// Parses the value of `--budget`: `N` for all providers together, or `KEY=N` for one.
    ///
    /// # Errors
    /// Returns a sentence fragment with the problem.
    pub fn parse_flag(text: &str) -> Result<Self, String> {
        let (key, number) = text.split_once('=').unwrap_or((ALL, text));
        let key = if key == ALL { key.to_owned() } else { provider(key)? };
        Ok(Self { key, window: Window::Run, tokens: parse_tokens(number)? })
    }
}

/// Parses a number of tokens that the user gives to a command.
///
/// # Errors
/// Returns a sentence fragment with the problem.
pub fn parse_tokens(text: &str) -> Result<u64, String> {
    match text.parse::<i128>() {
        Ok(number) => check_tokens(number),
        Err(_) => Err(NO_NUMBER.to_owned()),
    }
}

const NO_NUMBER: &str = "must be a whole number of tokens, as in `5000000`";

fn check_tokens(number: i128) -> Result<u64, String> {
    u64::try_from(number)
        .ok()
        .filter(|tokens| (1..=MAX_TOKENS).contains(tokens))
        .ok_or_else(|| format!("must be from 1 to {MAX_TOKENS} tokens"))
}

/// Checks the name of a provider: a template, or the canonical form of a host.
///
/// # Errors
/// Returns a sentence fragment with the problem.
pub fn provider(key: &str) -> Result<String, String> {
    if TEMPLATES.contains(&key) {
        return Ok(key.to_owned());
    }
    let known = "`claude`, `codex`, `pi`, or the host of a route";
    if key == "command" {
        return Err("`command` has no provider route; name the host of its route".to_owned());
    }
    if !key.contains('.') {
        let near = suggest(key, TEMPLATES);
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(format!("unknown provider `{}`{near} (a provider is {known})", key.escape_debug()));
    }
    match HostPattern::parse(key)? {
        HostPattern::Exact(host) => Ok(host),
        HostPattern::Wildcard(_) => Err("a budget needs one host, without `*`".to_owned()),
    }
}

/// The launches whose tokens a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One launch of this bottle.
    Run(Slug),
    /// All launches of this agent manifest.
    Agent(Name),
    /// All launches of bottles whose lineage contains this bottle manifest.
    Bottle(Name),
    /// All launches of this home.
    Host,
    /// All launches of this home, as for [`Scope::Host`]. A ceiling applies in addition to the limits of all other
    /// scopes.
    Ceiling,
}

impl Scope {
    /// Parses a scope as [`Scope`] is displayed.
    ///
    /// # Errors
    /// Returns a sentence fragment with the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = |name: &str| name.parse::<Name>().map_err(|bad| bad.to_string());
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            None if text == CEILING => Ok(Self::Ceiling),
            Some(("run", slug)) => slug.parse().map(Self::Run).map_err(|bad| format!("{bad}")),
            Some(("agent", agent)) => name(agent).map(Self::Agent),
            Some(("bottle", bottle)) => name(bottle).map(Self::Bottle),
            _ => Err("write `host`, `ceiling`, `agent:NAME`, `bottle:NAME` or `run:SLUG`".to_owned()),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(slug) => write!(f, "run:{slug}"),
            Self::Agent(name) => write!(f, "agent:{name}"),
            Self::Bottle(name) => write!(f, "bottle:{name}"),
            Self::Host => f.write_str("host"),
            Self::Ceiling => f.write_str(CEILING),
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A limit with its scope and origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// The launches whose tokens the limit counts.
    pub scope: Scope,
    /// The limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// The file and line, or the flag, that declares the limit.
    pub origin: String,
}

impl Declared {
    /// Returns the limit as it applies to the current launch of a bottle. A limit for one launch gets the scope of this
    /// launch instead of the scope of the file that declares the limit.
    #[must_use]
    pub fn in_launch_of(self, slug: &Slug) -> Self {
        match self.limit.window {
            Window::Run => Self { scope: Scope::Run(slug.clone()), ..self },
            Window::Minute | Window::Day | Window::Month | Window::Total => self,
        }
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { key, window, tokens } = &self.limit;
        write!(f, "{} {key} {window} {tokens}", self.scope)
    }
}

/// Returns the limits that apply to a provider: the limits of the nearest scope that limits the provider, and the
/// ceiling. The nearest scope of limits per minute is determined separately from the nearest scope of other limits: a
/// limit of one kind does not replace a limit of the other kind in a farther scope. `declared` begins with the nearest
/// scope.
#[must_use]
pub fn governing<'d>(declared: &'d [Declared], key: &str) -> Vec<&'d Declared> {
    let applies = |one: &&Declared| one.limit.key == key || one.limit.key == ALL;
    let is_rate = |one: &Declared| one.limit.window == Window::Minute;
    let nearest_scope = |rate: bool| {
        let nearest = |one: &&Declared| one.scope != Scope::Ceiling && is_rate(one) == rate;
        declared.iter().filter(applies).find(nearest).map(|nearest| &nearest.scope)
    };
    let (of_rate, of_others) = (nearest_scope(true), nearest_scope(false));
    let governs = |one: &&Declared| {
        one.scope == Scope::Ceiling || Some(&one.scope) == if is_rate(one) { of_rate } else { of_others }
    };
    declared.iter().filter(applies).filter(governs).collect()
}

/// A value below `budget`: a number, or a map. The positions refer to the file.
#[derive(Debug)]
pub enum Written {
    /// An integer of any size.
    Number(i128),
    /// The entries in the order of the file.
    Map(Vec<(Spanned<String>, Spanned<Written>)>),
    /// A value of another type.
    Other,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenVisitor;

        impl<'de> Visitor<'de> for WrittenVisitor {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of tokens or a map")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
                Ok(Written::Number(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
                Ok(Written::Number(number.into()))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Written, E> {
                Ok(Written::Other)
            }

            fn visit_str<E>(self, _: &str) -> Result<Written, E> {
                Ok(Written::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Written::Map(entries))
            }
        }

        deserializer.deserialize_any(WrittenVisitor)
    }
}

/// A problem with a budget, and its position.
#[derive(Debug, PartialEq, Eq)]
pub struct BadBudget {
    /// The position at which the value begins.
    pub at: Position,
    /// What is wrong with the value.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl BadBudget {
    fn new(at: Position, message: String) -> Self {
        Self { at, message, hint: None }
    }
}

/// Limits with their positions, in the order of the file.
pub type Limits = Vec<Spanned<Limit>>;

/// Returns the limits of `budget` in a manifest.
pub fn of_manifest(written: Spanned<Written>) -> Result<Limits, BadBudget> {
    let mut limits = Vec::new();
    for (key, value) in entries("budget", written)? {
        if key.value == CEILING {
            let message = format!("`budget.{CEILING}` belongs in settings.yml");
            return Err(BadBudget::new(key.at, message));
        }
        of_provider("budget", &key, value, &Window::ALL, &mut limits)?;
    }
    Ok(limits)
}

/// Returns the limits of `budget` in `settings.yml`. The second list contains the limits of the ceiling.
pub fn of_settings(written: Spanned<Written>) -> Result<(Limits, Limits), BadBudget> {
    let windows = [Window::Minute, Window::Day, Window::Month, Window::Total];
    let (mut limits, mut ceiling) = (Vec::new(), Vec::new());
    for (key, value) in entries("budget", written)? {
        if key.value != CEILING {
            of_provider("budget", &key, value, &windows, &mut limits)?;
            continue;
        }
        for (key, value) in entries("budget.ceiling", value)? {
            of_provider("budget.ceiling", &key, value, &windows, &mut ceiling)?;
        }
    }
    Ok((limits, ceiling))
}

type Entries = Vec<(Spanned<String>, Spanned<Written>)>;

fn entries(path: &str, written: Spanned<Written>) -> Result<Entries, BadBudget> {
    match written.value {
        Written::Map(entries) => Ok(entries),
        Written::Number(_) | Written::Other => Err(BadBudget {
            at: written.at,
            message: format!("`{path}` must be a map of providers to numbers of tokens"),
            hint: Some(format!("for example `{path}: {{claude: 5000000}}`")),
        }),
    }
}

fn of_provider(
    path: &str,
    key: &Spanned<String>,
    value: Spanned<Written>,
    windows: &[Window],
    limits: &mut Limits,
) -> Result<(), BadBudget> {
    let name = provider(&key.value).map_err(|why| BadBudget::new(key.at, format!("`{path}`: {why}")))?;
    let mut add = |window: Window, written: &Spanned<Written>| {
        let path = format!("{path}.{name}");
        let bad = |why: String| BadBudget::new(written.at, format!("`{path}` {why}"));
        let tokens = match written.value {
            Written::Number(number) => check_tokens(number).map_err(bad)?,
            Written::Map(_) | Written::Other => return Err(bad(NO_NUMBER.to_owned())),
        };
        if limits.iter().any(|one| one.value.key == name && one.value.window == window) {
            return Err(bad("appears twice".to_owned()));
        }
        limits.push(Spanned::new(Limit { key: name.clone(), window, tokens }, written.at));
        Ok(())
    };
    let Written::Map(each) = &value.value else { return add(Window::Total, &value) };
    if each.is_empty() {
        return Err(BadBudget::new(value.at, format!("`{path}.{name}` names no window")));
    }
    for (window, written) in each {
        let known = Window::parse(&window.value).filter(|known| windows.contains(known));
        let known = known.ok_or_else(|| {
            let names: Vec<String> = windows.iter().map(|window| format!("`{window}`")).collect();
            let message = format!("`{path}.{name}`: unknown window `{}`", window.value.escape_debug());
            BadBudget {
                at: window.at,
                message,
                hint: Some(format!("a window is one of {}", names.join(", "))),
            }
        })?;
        add(known, written)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bottle_text::yaml;

    use super::*;

    fn manifest(text: &str) -> Result<Vec<String>, String> {
        let written: Spanned<Written> = yaml::from_str(text).map_err(|error| error.to_string())?;
        let limits = of_manifest(written).map_err(|bad| format!("{}: {}", bad.at, bad.message))?;
        Ok(limits
            .iter()
            .map(|Spanned { value: Limit { key, window, tokens }, .. }| format!("{key} {window} {tokens}"))
            .collect())
    }

    #[test]
    fn parses_every_form() {
        assert_eq!(
            manifest(
                "claude: 5\ncodex: {day: 2, month: 20, run: 1, minute: 4}\nLLM.Example.com: {total: 9007199254740992}\n"
            ),
            Ok([
                "claude total 5",
                "codex day 2",
                "codex month 20",
                "codex run 1",
                "codex minute 4",
                "llm.example.com total 9007199254740992"
            ]
            .map(str::to_owned)
            .to_vec())
        );
        let written: Spanned<Written> =
            yaml::from_str("pi: {day: 3}\nceiling: {claude: 7}\n").expect("a budget");
        let (limits, ceiling) = of_settings(written).expect("a budget");
        assert_eq!((limits.len(), ceiling.len(), ceiling[0].value.tokens), (1, 1, 7));
    }

    #[test]
    fn refuses_bad_budgets_with_their_position() {
        for (text, problem) in [
            ("claude: 0\n", "1:9: `budget.claude` must be from 1 to 9007199254740992 tokens"),
            ("claude: -5\n", "1:9: `budget.claude` must be from 1 to 9007199254740992 tokens"),
            ("claude: 9007199254740993\n", "1:9: `budget.claude` must be from 1 to 9007199254740992 tokens"),
            ("claude: 5M\n", "1:9: `budget.claude` must be a whole number of tokens, as in `5000000`"),
            ("claude: 1.5\n", "1:9: `budget.claude` must be a whole number of tokens, as in `5000000`"),
            (
                "claude: {day: {day: 1}}\n",
                "1:15: `budget.claude` must be a whole number of tokens, as in `5000000`",
            ),
            ("claude: {}\n", "1:9: `budget.claude` names no window"),
            ("\ncodex: {week: 1}\n", "2:9: `budget.codex`: unknown window `week`"),
            (
                "cluade: 1\n",
                "1:1: `budget`: unknown provider `cluade`; did you mean `claude`? (a provider is `claude`, `codex`, `pi`, or the host of a route)",
            ),
            ("command: 1\n", "1:1: `budget`: `command` has no provider route; name the host of its route"),
            ("'*.example.com': 1\n", "1:1: `budget`: a budget needs one host, without `*`"),
            ("h.example: 1\nH.example: 2\n", "2:12: `budget.h.example` appears twice"),
            ("ceiling: {claude: 1}\n", "1:1: `budget.ceiling` belongs in settings.yml"),
        ] {
            assert_eq!(manifest(text), Err(problem.to_owned()), "{text}");
        }
        for text in [
            "claude: 99999999999999999999999\n",
            "claude: [1]\n",
            "claude: true\n",
            "claude:\n",
            "claude: 1\nclaude: 2\n",
        ] {
            assert!(manifest(text).is_err(), "{text}");
        }
        let run: Spanned<Written> = yaml::from_str("claude: {run: 1}\n").expect("a map");
        assert!(of_settings(run).is_err(), "a home has no launch");
    }

    #[test]
    fn parses_the_flag() {
        let limit = |key: &str, tokens| Ok(Limit { key: key.to_owned(), window: Window::Run, tokens });
        assert_eq!(Limit::parse_flag("5000"), limit("all", 5000));
        assert_eq!(Limit::parse_flag("claude=1"), limit("claude", 1));
        assert_eq!(Limit::parse_flag("llm.example=9007199254740992"), limit("llm.example", MAX_TOKENS));
        for bad in ["", "0", "-1", "9007199254740993", "5M", "claude=", "claude", "nobody=5", "=5", "1=1=1"] {
            assert!(Limit::parse_flag(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn scopes_are_read_as_they_are_written() {
        for text in ["host", "ceiling", "agent:claude", "bottle:dev", "run:demo-1"] {
            assert_eq!(Scope::parse(text).map(|scope| scope.to_string()), Ok(text.to_owned()));
        }
        for bad in ["", "agent", "agent:", "agent:../x", "home", "run:A B"] {
            assert!(Scope::parse(bad).is_err(), "{bad}");
        }
    }

    fn declared(scope: &str, key: &str, window: Window) -> Declared {
        let limit = Limit { key: key.to_owned(), window, tokens: 1 };
        Declared { scope: Scope::parse(scope).expect("scope"), limit, origin: String::new() }
    }

    #[test]
    fn the_nearest_scope_and_the_ceiling_govern() {
        let all = [
            declared("agent:a", "codex", Window::Day),
            declared("bottle:near", "claude", Window::Day),
            declared("bottle:near", "claude", Window::Month),
            declared("bottle:far", "claude", Window::Total),
            declared("host", "claude", Window::Total),
            declared("host", "pi", Window::Total),
            declared("ceiling", "claude", Window::Total),
        ];
        let names = |all: &[Declared], key| -> Vec<String> {
            governing(all, key).iter().map(|one| format!("{} {}", one.scope, one.limit.window)).collect()
        };
        assert_eq!(names(&all, "claude"), ["bottle:near day", "bottle:near month", "ceiling total"]);
        assert_eq!(names(&all, "codex"), ["agent:a day"]);
        assert_eq!(names(&all, "pi"), ["host total"]);
        assert_eq!(names(&all, "llm.example"), [] as [String; 0]);
        // A limit on all providers in a nearer scope has precedence over a limit on this provider.
        let run: Vec<Declared> = [declared("run:one", ALL, Window::Run)].into_iter().chain(all).collect();
        assert_eq!(names(&run, "claude"), ["run:one run", "ceiling total"]);
        assert_eq!(names(&run, "llm.example"), ["run:one run"]);
        let rates = [
            declared("bottle:near", "claude", Window::Minute),
            declared("bottle:far", "claude", Window::Day),
            declared("host", "claude", Window::Minute),
            declared("host", "claude", Window::Total),
            declared("ceiling", "claude", Window::Minute),
        ];
        assert_eq!(names(&rates, "claude"), ["bottle:near minute", "bottle:far day", "ceiling minute"]);
    }

    #[test]
    fn windows_begin_at_local_midnight() {
        let at = |text: &str| text.parse::<Zoned>().expect("time");
        let now = at("2026-03-29T12:00:00+02:00[Europe/Berlin]");
        assert_eq!(Window::Day.start(&now), at("2026-03-29T00:00:00+01:00[Europe/Berlin]").timestamp());
        assert_eq!(Window::Month.start(&now), at("2026-03-01T00:00:00+01:00[Europe/Berlin]").timestamp());
        assert_eq!(Window::Total.start(&now), Timestamp::MIN);
    }
}
