//! Timestamps that are comparable with the change times of files.
//!
//! The kernel stamps files with its coarse clock, which lags behind the precise one by up to a tick of
//! one to ten milliseconds. A file that was read since its last change gets the precise time (Linux 6.13
//! and later). So consecutive writes can have the same time, and a timestamp between them needs care.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// Interval between reads of the coarse clock.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A timestamp older than every later change. A change within the previous tick may be newer than it, too.
#[must_use]
pub fn before_any_change() -> Timestamp {
    let tick = now(ClockId::RealtimeCoarse);
    tick.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(tick)
}

/// A timestamp that is not older than any earlier change, and older than every change after this returns.
/// Waits for the next tick.
pub async fn between() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    moment
}

/// As [`between`], without an async runtime.
#[must_use]
pub fn between_blocking() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        std::thread::sleep(POLL_INTERVAL);
    }
    moment
}

/// Whether the coarse clock has passed a timestamp. Also true if the clock was set back, so that no
/// caller waits for it to catch up.
fn is_past(moment: Timestamp) -> bool {
    now(ClockId::RealtimeCoarse) > moment || now(ClockId::Realtime) < moment
}

fn now(clock: ClockId) -> Timestamp {
    let now = clock_gettime(clock);
    // Fails only for an absurd clock.
    Timestamp::new(now.tv_sec, i32::try_from(now.tv_nsec).unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;

    fn changed(path: &Path) -> Timestamp {
        let looked = std::fs::symlink_metadata(path).expect("there");
        Timestamp::new(looked.ctime(), looked.ctime_nsec().try_into().expect("a fraction")).expect("a time")
    }

    #[test]
    fn a_timestamp_separates_earlier_and_later_writes() {
        let here = tempfile::tempdir().expect("folder");
        let path = here.path().join("file");
        for round in 0..50 {
            std::fs::write(&path, "x").expect("written");
            // After a read, the next change gets the precise time.
            let first = changed(&path);
            let before = before_any_change();
            std::fs::write(&path, "y").expect("written");
            let written = changed(&path);
            let between = between_blocking();
            assert!(written > before, "round {round}: {written} {before}");
            assert!(first <= written && written <= between, "round {round}: {written} {between}");
            std::fs::write(&path, "z").expect("written");
            assert!(changed(&path) > between, "round {round}: {between}");
        }
    }
}
