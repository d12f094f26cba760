//! Reads pending proposals and describes their state.

use std::path::Path;

use bottle_contract::names::Slug;
use bottle_queue::{Damaged, Listing, Pending, State};
use jiff::{SignedDuration, Timestamp};

use crate::backend::SIDECAR_LOGS;
use crate::cli::error::CliError;
use crate::cli::output::{Output, one_line};
use crate::host::Host;
use crate::instance::Store;
use crate::instance::proxy_log::{self, Warning};

/// The minimum number of an id's first characters with which a proposal can be named.
const SHORTEST: usize = 4;

/// The title of the scanner's warnings.
pub(super) const WARNINGS_TITLE: &str = "Last warnings of the scanner for this bottle";

/// Returns the number of this bottle's pending proposals.
pub(crate) fn count_pending(home: &Path, slug: &Slug) -> u32 {
    let listing = bottle_queue::Folder::open(home, slug).and_then(|folder| folder.pending(Timestamp::now()));
    let waits = |pending: &&Pending| pending.state == State::Waiting;
    listing
        .map_or(0, |listing| u32::try_from(listing.pending.iter().filter(waits).count()).unwrap_or(u32::MAX))
}

/// Parses a proposal's id, or its first characters.
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    let good = text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let why = || {
        format!("a proposal's id is at least {SHORTEST} characters of those that `bottle supervise` shows")
    };
    good.then(|| text.to_ascii_lowercase()).ok_or_else(why)
}

/// Returns all pending proposals, and prints a warning for each unreadable one.
pub(super) fn all(host: &Host, output: &Output, now: Timestamp) -> Result<Vec<Pending>, CliError> {
    let Listing { pending, damaged } = bottle_queue::list(&host.home, now).map_err(queue_error)?;
    for damaged in &damaged {
        output.warn(skipped_file(damaged));
    }
    // An answered proposal is not listed, because it is about to be removed from the queue.
    Ok(pending.into_iter().filter(|pending| pending.state != State::Answered).collect())
}

/// Returns the only pending proposal whose id starts with `begins`.
pub(super) fn find(host: &Host, output: &Output, begins: &str, now: Timestamp) -> Result<Pending, CliError> {
    let mut found = all(host, output, now)?;
    found.retain(|pending| pending.proposal.id.as_str().starts_with(begins));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(CliError::usage(format!("no proposal's id starts with {begins}"))
            .about(begins)
            .hint("`bottle supervise` lists pending proposals")),
        more => Err(CliError::usage(format!("the ids of {more} proposals start with {begins}"))
            .about(begins)
            .hint("`bottle supervise list --json` shows full ids")),
    }
}

/// Returns the scanner's last warnings in the proxy's log of a bottle, newest first. A proposal does not show what the
/// scanner only warned about.
pub(super) fn scanner_warnings(host: &Host, slug: &Slug) -> Vec<Warning> {
    proxy_log::warnings(&Store::of(host).folder(slug).join(SIDECAR_LOGS))
}

/// Formats a warning of the scanner on one line.
pub(super) fn warning_line(warning: &Warning) -> String {
    let Warning { time, host, method, path, found } = warning;
    let time = time.strftime("%Y-%m-%d %H:%M:%SZ");
    let request = format!("{method} {host}{path}");
    one_line(&format!("{time} {}: {found}", request.trim_start()))
}

/// Creates the warning about an unreadable file in the queue.
pub(super) fn skipped_file(damaged: &Damaged) -> String {
    format!("{}: {}; it was skipped", damaged.path.display(), damaged.why)
}

/// Describes the state of a proposal.
pub(super) fn state_text(pending: &Pending, now: Timestamp) -> String {
    match pending.state {
        State::Waiting => format!("{} left", span(pending.proposal.expires_at.duration_since(now))),
        State::Answered => "answered".to_owned(),
        State::Expired => "expired".to_owned(),
        State::Stale => "the client is gone".to_owned(),
    }
}

/// Formats a duration in its largest unit.
pub(super) fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

pub(super) fn first_line(text: &str) -> String {
    one_line(text.lines().next().unwrap_or_default())
}

pub(super) fn queue_error(error: std::io::Error) -> CliError {
    CliError::state(format!("cannot use the queue: {error}"))
        .hint("`queue` in $BOTTLE_HOME must be a folder that you own")
}
