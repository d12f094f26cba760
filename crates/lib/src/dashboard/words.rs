//! Formats numbers and times as text, in the same way for both dashboards.

use bottle_host::budget::Declared;
use jiff::{SignedDuration, Timestamp};

use super::model::{Outlook, UsageRow};

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

/// Formats a budget: `bottle:dev claude day`.
pub fn budget(declared: &Declared) -> String {
    let Declared { scope, limit, .. } = declared;
    format!("{scope} {} {}", limit.key, limit.window)
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
