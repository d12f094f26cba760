//! Implements logging for the guest, the bundle and the daemons.
//!
//! The `tracing` events of this project's crates are written to standard error, which the backend redirects to a file
//! in the bottle's state directory. The environment variable `RUST_LOG` sets the filter. Without `RUST_LOG`, the level
//! is `info`. Hostile bottles and servers can cause most events. Therefore secrets and control characters are removed
//! from every line, and the amount of output of a process is limited.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The maximum number of bytes that one process logs, which is about a thousand lines. When the limit is reached, the
/// process logs one notice, and drops all further lines.
const MOST: usize = 128 << 10;

/// The prefix of the names of this project's crates. Events of other crates are not logged, because these events could
/// contain data that a sidecar forwards.
const OURS: &str = "bottle";

/// A function that removes secrets from a line.
type Redact = Box<dyn Fn(&str) -> String + Send + Sync>;

static REDACT: OnceLock<Redact> = OnceLock::new();
static ROOM: AtomicUsize = AtomicUsize::new(MOST);

/// Starts logging in this process. Only the first call has an effect.
pub fn start() {
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Lines);
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    // The call fails only if logging has already started.
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets(&directives))).try_init();
}

/// Returns the levels that `directives` set for this project's crates.
fn targets(directives: &str) -> Targets {
    let asked: Targets = directives.parse().unwrap_or_default();
    let level = asked.default_level().filter(|_| !directives.is_empty()).unwrap_or(LevelFilter::INFO);
    let ours = asked.into_iter().filter(|(target, _)| target.starts_with(OURS));
    Targets::new().with_target(OURS, level).with_targets(ours)
}

/// Sets `redact` as the function that removes secrets from every further line. Only the first call has an effect.
pub fn redact_with(redact: impl Fn(&str) -> String + Send + Sync + 'static) {
    let _ = REDACT.set(Box::new(redact));
}

/// Writes events to standard error. Each call of `write` receives one event.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = sanitized(&String::from_utf8_lossy(line), REDACT.get());
        if let Some(text) = within(&ROOM, text) {
            io::stderr().write_all(text.as_bytes())?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes secrets from a line, and replaces the line's control characters, so that the event remains a single line.
fn sanitized(line: &str, redact: Option<&Redact>) -> String {
    let line = redact.map_or(Cow::Borrowed(line), |redact| Cow::Owned(redact(line)));
    let mut text: String =
        line.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    text.push('\n');
    text
}

/// Returns the line as long as the log limit is not reached. The call that reaches the limit returns a notice. Later
/// calls return `None`.
fn within(room: &AtomicUsize, text: String) -> Option<String> {
    let take = |room: usize| (room > 0).then(|| room.saturating_sub(text.len()));
    let before = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let last = || format!("and more: this process has reached its log limit of {MOST} bytes\n");
    Some(if before > text.len() { text } else { last() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_a_line_and_keeps_it_one_line() {
        let redact: Redact = Box::new(|text| text.replace("key-1", "***"));
        assert_eq!(
            sanitized("refused key-1: \x1b[2Jgone\nWARN forged\n", Some(&redact)),
            "refused ***: \u{fffd}[2Jgone\u{fffd}WARN forged\n"
        );
        assert_eq!(sanitized("plain\n", None), "plain\n");
    }

    #[test]
    fn shows_other_levels_of_this_projects_crates_only() {
        use tracing::Level;
        for (directives, level) in [
            ("", Level::INFO),
            ("nonsense=", Level::INFO),
            ("h2=trace", Level::INFO),
            ("debug", Level::DEBUG),
            ("bottle=debug,h2=trace", Level::DEBUG),
            ("bottle_egress=trace", Level::TRACE),
        ] {
            let targets = targets(directives);
            let shown = [Level::TRACE, Level::DEBUG, Level::INFO]
                .map(|shown| targets.would_enable("bottle_egress", &shown));
            assert_eq!(
                shown,
                [Level::TRACE, Level::DEBUG, Level::INFO].map(|shown| shown <= level),
                "{directives}"
            );
            assert!(!targets.would_enable("h2", &Level::ERROR), "{directives}");
        }
    }

    #[test]
    fn stops_at_the_limit_with_one_notice() {
        let room = AtomicUsize::new(100);
        let lines: Vec<_> = (0..20).filter_map(|_| within(&room, "x".repeat(40))).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].starts_with("and more"), "{lines:?}");
    }
}
