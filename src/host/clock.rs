//! Detects whether this machine's clock was set back.
//!
//! File time stamps use the realtime clock, which users can set. After it was set back, a later change can have an
//! older time stamp.

use jiff::SignedDuration;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Smallest difference that counts as a step: less is the delay between two clock reads.
const MIN_STEP: SignedDuration = SignedDuration::from_millis(50);

/// Most time for three consecutive clock reads, unless the process was interrupted.
const UNINTERRUPTED: SignedDuration = SignedDuration::from_millis(1);

/// Most attempts at an uninterrupted read.
const TRIES: usize = 20;

/// The offset of the realtime clock to the time since boot. It changes only when the clock is set: both are adjusted
/// alike, and both advance during suspend.
#[must_use]
pub fn boot_offset() -> SignedDuration {
    let mut best: Option<(SignedDuration, SignedDuration)> = None;
    for _ in 0..TRIES {
        let before = now(ClockId::Boottime);
        let clock = now(ClockId::Realtime);
        let took = now(ClockId::Boottime).saturating_sub(before);
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, clock.saturating_sub(before)));
        }
        if took < UNINTERRUPTED {
            break;
        }
    }
    best.map_or(SignedDuration::ZERO, |(_, offset)| offset)
}

/// How far the clock was set back between the offsets `then` and `now`. After a reboot the offset is larger.
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
