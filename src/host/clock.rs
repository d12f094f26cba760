//! Whether this machine's clock was set back since something was noted.
//!
//! Files are stamped by the clock that people set. What compares such times has to know when that clock went
//! back: a file may then be changed later and look older.

use jiff::SignedDuration;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Less than this is no step of the clock, but a pause between looking at one clock and the other.
const NOTICEABLE: SignedDuration = SignedDuration::from_millis(50);

/// Two looks at one clock with a look at the other between them take no longer, unless something came between.
const UNDISTURBED: SignedDuration = SignedDuration::from_millis(1);

/// How often it is tried to look undisturbed.
const TRIES: usize = 20;

/// How far the clock is ahead of the time since boot. It changes when somebody sets the clock, and at no other
/// time: both are slowed and sped up alike, and both go on in a machine that sleeps.
#[must_use]
pub fn lead() -> SignedDuration {
    let mut best: Option<(SignedDuration, SignedDuration)> = None;
    for _ in 0..TRIES {
        let before = now(ClockId::Boottime);
        let clock = now(ClockId::Realtime);
        let took = now(ClockId::Boottime).saturating_sub(before);
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, clock.saturating_sub(before)));
        }
        if took < UNDISTURBED {
            break;
        }
    }
    best.map_or(SignedDuration::ZERO, |(_, lead)| lead)
}

/// By how much the clock was set back since its lead was `then`, when it is `now`. A machine that was started
/// anew since leads by more.
#[must_use]
pub fn set_back(then: SignedDuration, now: SignedDuration) -> Option<SignedDuration> {
    Some(then.saturating_sub(now)).filter(|back| *back > NOTICEABLE)
}

fn now(clock: ClockId) -> SignedDuration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    SignedDuration::new(tv_sec, i32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_nobody_sets_keeps_its_lead() {
        let then = lead();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(set_back(then, lead()), None);
        assert!(then > SignedDuration::from_hours(24 * 365), "it is not the year 1970: {then}");
    }

    #[test]
    fn a_step_back_is_seen_and_one_forward_or_a_new_boot_is_none() {
        let then = SignedDuration::from_hours(1000);
        let hour = SignedDuration::from_hours(1);
        assert_eq!(set_back(then, then - hour), Some(hour));
        assert_eq!(set_back(then, then + hour), None);
        assert_eq!(set_back(then, then - SignedDuration::from_millis(10)), None);
    }
}
