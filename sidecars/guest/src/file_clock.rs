//! Takes timestamps that can be compared with the change times of files.
//!
//! The kernel takes change times from its coarse clock, which lags behind the precise clock by up to one tick (one to
//! ten milliseconds). If a file was read since its last change, its next change time comes from the precise clock
//! (Linux 6.13 and later). Successive writes may therefore have equal change times, so a timestamp is not always
//! distinct from the change times of the writes before and after it.
//!
//! On macOS, APFS takes change times from the precise clock in nanoseconds. This module therefore uses the precise
//! clock for both timestamps and change times on macOS.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The clock from which the kernel takes change times.
#[cfg(target_os = "linux")]
const CHANGES: ClockId = ClockId::RealtimeCoarse;
#[cfg(target_os = "macos")]
const CHANGES: ClockId = ClockId::Realtime;

/// The interval at which the coarse clock is read.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Takes a timestamp that is older than every later change of a file. Changes shortly before the call, in the current
/// tick, may also be newer than the timestamp.
#[must_use]
pub fn before_any_change() -> Timestamp {
    let tick = now(CHANGES);
    tick.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(tick)
}

/// Takes a timestamp that is newer than or equal to every earlier change of a file, and older than every change after
/// this function returns. The function waits for the next tick of the coarse clock.
pub async fn between() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    moment
}

/// Works like [`between`], but without an async runtime.
#[must_use]
pub fn between_blocking() -> Timestamp {
    let moment = now(ClockId::Realtime);
    while !is_past(moment) {
        std::thread::sleep(POLL_INTERVAL);
    }
    moment
}

/// Returns whether the coarse clock is later than `moment`. Also returns true if the clock was set back, so that
/// callers do not wait until the clock reaches `moment` again.
fn is_past(moment: Timestamp) -> bool {
    now(CHANGES) > moment || now(ClockId::Realtime) < moment
}

fn now(clock: ClockId) -> Timestamp {
    let now = clock_gettime(clock);
    // The conversion fails only if the clock's value is out of range.
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
        let here = tempfile::tempdir().expect("directory");
        let path = here.path().join("file");
        for round in 0..50 {
            std::fs::write(&path, "x").expect("written");
            // After a file is read, its next change time comes from the precise clock.
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
