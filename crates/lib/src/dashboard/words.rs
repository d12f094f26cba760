//! Formats numbers and times as text, in the same way for both dashboards.

use bottle_host::budget::{ALL, Declared, Scope, Window};
use jiff::{SignedDuration, Timestamp};

use super::model::{Bottle, Outlook, UsageRow};

/// Formats a number of tokens in at most six characters: `950`, `9,999`, `12.3k`, `1.24M`.
pub fn tokens(count: u64) -> String {
    match count {
        0..10_000 => grouped(count),
        10_000..1_000_000 => scaled(count, 1_000, "k"),
        1_000_000..1_000_000_000 => scaled(count, 1_000_000, "M"),
        1_000_000_000..1_000_000_000_000 => scaled(count, 1_000_000_000, "G"),
        _ => scaled(count, 1_000_000_000_000, "T"),
    }
}

/// Formats the first three digits of a number, rounded down, and appends the suffix of the unit.
fn scaled(count: u64, unit: u64, suffix: &str) -> String {
    let whole = count / unit;
    let rest = count % unit;
    match whole {
        0..10 => format!("{whole}.{:02}{suffix}", rest * 100 / unit),
        10..100 => format!("{whole}.{}{suffix}", rest * 10 / unit),
        _ => format!("{whole}{suffix}"),
    }
}

/// Formats a number with its digits in groups of three.
pub fn grouped(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}

/// Formats a number of minutes: `< 1 min`, `59 min`, `3 h 20 min`, `5 d 2 h`.
pub fn minutes(count: u64) -> String {
    let (hours, days) = (count / 60, count / (24 * 60));
    match count {
        0 => "< 1 min".to_owned(),
        1..60 => format!("{count} min"),
        60..1440 if count.is_multiple_of(60) => format!("{hours} h"),
        60..1440 => format!("{hours} h {} min", count % 60),
        1440..144_000 if hours.is_multiple_of(24) => format!("{days} d"),
        1440..144_000 => format!("{days} d {} h", hours % 24),
        _ => "> 99 d".to_owned(),
    }
}

/// Formats how long a budget lasts.
pub fn outlook(outlook: Outlook) -> String {
    match outlook {
        Outlook::Spent => "spent".to_owned(),
        Outlook::Idle => "idle".to_owned(),
        Outlook::Minutes(count) => minutes(count),
    }
}

/// Formats the time since `since`, in the largest units.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let duration = now.duration_since(since).max(SignedDuration::ZERO);
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => minutes(seconds.unsigned_abs() / 60),
    }
}

/// Formats the time since a bottle was last launched, in its largest unit and in at most six characters. Returns `-` if
/// this time is unknown.
pub fn bottle_age(bottle: &Bottle, now: Timestamp) -> String {
    let Some(at) = bottle.started_at else { return "-".to_owned() };
    match now.duration_since(at).as_mins() {
        ..1 => "<1 min".to_owned(),
        minutes @ 1..60 => format!("{minutes} min"),
        minutes @ 60..1440 => format!("{} h", minutes / 60),
        minutes => format!("{} d", (minutes / 1440).min(9999)),
    }
}

/// Names a budget: `claude per day, manifest dev`.
pub fn budget(declared: &Declared) -> String {
    let Declared { scope, limit, .. } = declared;
    let models = if limit.key == ALL { "all models" } else { &limit.key };
    let window = match limit.window {
        Window::Run => "per launch",
        Window::Minute => "per minute",
        Window::Day => "per day",
        Window::Month => "per month",
        Window::Total => "in total",
    };
    let scope = match scope {
        Scope::Run(slug) => format!("bottle {slug}"),
        Scope::Agent(name) => format!("agent {name}"),
        Scope::Bottle(name) => format!("manifest {name}"),
        Scope::Host => "this machine".to_owned(),
        Scope::Ceiling => "ceiling".to_owned(),
    };
    format!("{models} {window}, {scope}")
}

/// The name of a usage row, or `unknown`.
pub fn row_name(row: &UsageRow) -> &str {
    if row.name.is_empty() { "unknown" } else { &row.name }
}

/// Formats a count with its noun: `1 proposal`, `3 proposals`.
pub use crate::text::counted;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::model::BottleState;
    use crate::dashboard::sample::{bottle, declared};

    #[test]
    fn numbers_are_short() {
        for (count, text) in [
            (0, "0"),
            (9_999, "9,999"),
            (10_000, "10.0k"),
            (12_399, "12.3k"),
            (999_999, "999k"),
            (1_249_999, "1.24M"),
            (20_000_000, "20.0M"),
            (1 << 53, "9007T"),
            (u64::MAX, "18446744T"),
        ] {
            assert_eq!(tokens(count), text);
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        let mut one = bottle("one", BottleState::Running, "running");
        for (seconds, text) in [
            (-5, "<1 min"),
            (59, "<1 min"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h"),
            (86_399, "23 h"),
            (86_400, "1 d"),
            (86_400 * 50_000, "9999 d"),
        ] {
            let now = Timestamp::UNIX_EPOCH;
            one.started_at = now.checked_sub(SignedDuration::from_secs(seconds)).ok();
            let shown = bottle_age(&one, now);
            assert!(shown.len() <= 6 && shown == text, "{seconds}: {shown}");
        }
        assert_eq!(bottle_age(&Bottle { started_at: None, ..one }, Timestamp::UNIX_EPOCH), "-");
    }

    #[test]
    fn budgets_are_named_in_words() {
        for (scope, key, window, text) in [
            ("run:ex1", ALL, Window::Run, "all models per launch, bottle ex1"),
            ("agent:worker", "claude", Window::Minute, "claude per minute, agent worker"),
            ("bottle:dev", "claude", Window::Day, "claude per day, manifest dev"),
            ("host", "llm.example", Window::Month, "llm.example per month, this machine"),
            ("ceiling", "codex", Window::Total, "codex in total, ceiling"),
        ] {
            assert_eq!(budget(&declared(scope, key, window, 1)), text);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (count, text) in [
            (0, "< 1 min"),
            (59, "59 min"),
            (60, "1 h"),
            (200, "3 h 20 min"),
            (1440, "1 d"),
            (1500, "1 d 1 h"),
            (u64::MAX, "> 99 d"),
        ] {
            assert_eq!(minutes(count), text);
        }
        let at = |second| Timestamp::from_second(second).expect("a time");
        assert_eq!(
            (age(at(0), at(59)), age(at(0), at(7260)), age(at(9), at(0))),
            ("59 s".to_owned(), "2 h 1 min".to_owned(), "0 s".to_owned())
        );
    }
}
