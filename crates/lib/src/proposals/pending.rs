//! Reads pending proposals and describes their state.

use std::path::Path;

use bottle_backend::SIDECAR_LOGS;
use bottle_host::Host;
use bottle_instance::Store;
use bottle_instance::proxy_log::{self, Warning};
use bottle_policy::names::Slug;
use bottle_queue::{Damaged, Listing, Pending, State};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::failure::Failure;
use crate::text::one_line;

/// The title above the scanner's warnings.
pub const WARNINGS_TITLE: &str = "Other requests of this bottle with warnings of the scanner";

/// Returns the number of this bottle's pending proposals.
pub fn count_pending(home: &Path, slug: &Slug) -> u32 {
    let listing =
        bottle_queue::Directory::open(home, slug).and_then(|directory| directory.pending(Timestamp::now()));
    let waits = |pending: &&Pending| pending.state == State::Waiting;
    listing
        .map_or(0, |listing| u32::try_from(listing.pending.iter().filter(waits).count()).unwrap_or(u32::MAX))
}

/// Returns all pending proposals, and a warning for each unreadable file in the queue.
pub fn all(host: &Host, now: Timestamp) -> Result<(Vec<Pending>, Vec<String>), Failure> {
    let Listing { mut pending, damaged } = bottle_queue::list(&host.home, now).map_err(queue_error)?;
    // An answered proposal is not listed, because it is about to be removed from the queue.
    pending.retain(|pending| pending.state != State::Answered);
    Ok((pending, damaged.iter().map(skipped_file).collect()))
}

/// Returns the scanner's last warnings in the proxy's log of a bottle, newest first. These warnings do not belong to a
/// proposal.
pub fn scanner_warnings(host: &Host, slug: &Slug) -> Vec<Warning> {
    proxy_log::warnings(&Store::of(host).directory(slug).join(SIDECAR_LOGS))
}

/// Formats a time in the time zone of this machine, with the name of the zone.
pub fn local_time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// Formats a warning of the scanner on one line, with the local time.
pub fn warning_line(warning: &Warning) -> String {
    let Warning { time, host, method, path, found } = warning;
    let time = local_time(*time);
    let request = format!("{method} {host}{path}");
    one_line(&format!("{time} {}: {found}", request.trim_start()))
}

/// Creates the warning about an unreadable file in the queue.
pub fn skipped_file(damaged: &Damaged) -> String {
    format!("{}: {}; it was skipped", damaged.path.display(), damaged.why)
}

/// Describes the state of a proposal.
pub fn state_text(pending: &Pending, now: Timestamp) -> String {
    match pending.state {
        State::Waiting => format!("{} left", span(pending.proposal.expires_at.duration_since(now))),
        State::Answered => "answered".to_owned(),
        State::Expired => "expired".to_owned(),
        State::Stale => "the client is gone".to_owned(),
    }
}

/// Formats a duration in its largest unit.
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Returns the first line of a text, without control characters.
pub fn first_line(text: &str) -> String {
    one_line(text.lines().next().unwrap_or_default())
}

/// The failure when the files of the queue cannot be used.
pub fn queue_error(error: std::io::Error) -> Failure {
    Failure::state(format!("cannot use the queue: {error}"))
        .hint("`queue` in $BOTTLE_HOME must be a directory that you own")
}
