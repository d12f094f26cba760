//! Parses the values of `--since`.

use jiff::civil::Date;
use jiff::{Span, Timestamp, Zoned};

/// Parses a time, the start of a day in the user's time zone, or a time span before the current time.
pub(crate) fn since(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let now = Zoned::now();
    if let Ok(day) = text.parse::<Date>() {
        let start = day.to_zoned(now.time_zone().clone());
        return start.map(|start| start.timestamp()).map_err(|error| error.to_string());
    }
    let span: Span = text.parse().map_err(|_| {
        "write a time (2026-01-31T12:00:00Z), a day (2026-01-31) or how long ago (10m, 2h, 7d)".to_owned()
    })?;
    now.checked_sub(span.abs()).map(|then| then.timestamp()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_time_a_day_or_a_span() {
        assert_eq!(since("2026-01-31T12:00:00Z"), Ok("2026-01-31T12:00:00Z".parse().expect("time")));
        let ago = |text: &str| Timestamp::now().duration_since(since(text).expect("a span")).as_secs();
        assert!((599..=610).contains(&ago("10m")), "{}", ago("10m"));
        // A day on which the clock is changed has 23 or 25 hours.
        assert!((6 * 86400..=8 * 86400).contains(&ago("7d")), "{}", ago("7d"));
        let day = since("2026-01-31").expect("a day").to_zoned(Zoned::now().time_zone().clone());
        assert_eq!(day.datetime(), "2026-01-31T00:00:00".parse().expect("midnight"));
        assert!(since("yesterday").is_err());
    }
}
