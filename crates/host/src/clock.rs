//! Detects whether the clock of this machine was set back.
//!
//! Time stamps of files come from the realtime clock, which users can set. If a user sets the clock back, a later
//! change of a file can have an earlier time stamp.

use jiff::SignedDuration;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The clock that counts the time since boot and continues while the machine is suspended. On Linux, the clock
/// `Monotonic` stops during suspension; on macOS it continues (clock_gettime(3)).
#[cfg(target_os = "linux")]
const SINCE_BOOT: ClockId = ClockId::Boottime;
#[cfg(target_os = "macos")]
const SINCE_BOOT: ClockId = ClockId::Monotonic;

/// The smallest decrease of [`boot_offset`] that counts as the clock being set back. A smaller decrease can be the time
/// between two reads of a clock.
const MIN_STEP: SignedDuration = SignedDuration::from_millis(50);

/// The maximum time that three consecutive reads of clocks take if the process is not interrupted. Slower reads are
/// repeated.
const UNINTERRUPTED: SignedDuration = SignedDuration::from_millis(1);

/// The maximum number of attempts to read the clocks without interruption. If all attempts are interrupted, the result
/// of the fastest attempt is used.
const TRIES: usize = 20;

/// Returns the difference between the realtime clock and the time since boot. The difference changes only when the
/// realtime clock is set: gradual adjustments affect both clocks equally, and both clocks advance while the machine is
/// suspended.
#[must_use]
pub fn boot_offset() -> SignedDuration {
    let mut best: Option<(SignedDuration, SignedDuration)> = None;
    for _ in 0..TRIES {
        let before = now(SINCE_BOOT);
        let clock = now(ClockId::Realtime);
        let took = now(SINCE_BOOT).saturating_sub(before);
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, clock.saturating_sub(before)));
        }
        if took < UNINTERRUPTED {
            break;
        }
    }
    best.map_or(SignedDuration::ZERO, |(_, offset)| offset)
}

/// Returns how far the realtime clock was set back between two calls of [`boot_offset`]. The first call returned
/// `then`, and the second call returned `now`. Returns `None` if the clock was not set back. A reboot makes the offset
/// larger, so a reboot is not mistaken for a clock that was set back.
#[must_use]
pub fn set_back(then: SignedDuration, now: SignedDuration) -> Option<SignedDuration> {
    Some(then.saturating_sub(now)).filter(|back| *back > MIN_STEP)
}

fn now(clock: ClockId) -> SignedDuration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    SignedDuration::new(tv_sec, i32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_an_unchanged_clock_is_stable() {
        let then = boot_offset();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(set_back(then, boot_offset()), None);
        assert!(then > SignedDuration::from_hours(24 * 365), "it is not the year 1970: {then}");
    }

    #[test]
    fn detects_a_step_back_but_not_forward_or_a_reboot() {
        let then = SignedDuration::from_hours(1000);
        let hour = SignedDuration::from_hours(1);
        assert_eq!(set_back(then, then - hour), Some(hour));
        assert_eq!(set_back(then, then + hour), None);
        assert_eq!(set_back(then, then - SignedDuration::from_millis(10)), None);
    }
}
