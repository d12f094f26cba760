//! The clock that stamps files, and moments on it that a change can be compared with.
//!
//! Files are stamped by the coarse clock, which lags behind the precise one by up to a tick of one to ten
//! milliseconds; one that was looked at since its last change is stamped by the precise one (Linux 6.13 and later).
//! So two files that are written one after the other may carry the same time, and which moment may stand between
//! them has to be chosen with care.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// Between two looks at the coarse clock.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A moment that whatever is changed from here on is newer than. A change within the tick before may be newer too.
#[must_use]
pub fn before_any_change() -> Timestamp {
    let tick = now(ClockId::RealtimeCoarse);
    tick.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(tick)
}

/// A moment such that everything written so far is stamped with it or before, and everything written after this
/// returns later. Waits out the tick.
pub async fn between() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    moment
}

/// As [`between`], where there is no runtime to wait in.
#[must_use]
pub fn between_blocking() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        std::thread::sleep(LOOK_AGAIN);
    }
    moment
}

/// Also when somebody set the clock back, so that nobody waits until it is there again.
fn is_past(moment: Timestamp) -> bool {
    now(ClockId::RealtimeCoarse) > moment || now(ClockId::Realtime) < moment
}

fn now(clock: ClockId) -> Timestamp {
    let now = clock_gettime(clock);
    // Only a clock far from our times would not fit.
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
    fn a_moment_stands_between_what_was_written_and_what_will_be() {
        let here = tempfile::tempdir().expect("folder");
        let path = here.path().join("file");
        for round in 0..50 {
            std::fs::write(&path, "x").expect("written");
            // Looked at and changed again, it is stamped by the precise clock.
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
