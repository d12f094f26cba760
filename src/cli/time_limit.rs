//! Parses the values of `--timeout` and `--wait`.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a time limit: seconds, or a number with a unit.
pub(crate) fn time_limit(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().map(|seconds| Duration::from_secs(seconds.into())).ok();
    let limit = seconds.or_else(|| text.parse::<SignedDuration>().ok()?.try_into().ok());
    limit
        .filter(|limit| !limit.is_zero())
        .ok_or_else(|| "write seconds (90) or a time with a unit (5m)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_seconds_and_units() {
        for (text, millis) in [("90", 90_000), ("5m", 300_000), ("500ms", 500), ("1h 30m", 5_400_000)] {
            assert_eq!(time_limit(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "0", "0s", "-1", "-5m", "soon", "1.5", "4294967296"] {
            assert!(time_limit(text).is_err(), "{text}");
        }
    }
}
