//! Logging of the guest, the bundle and the daemons.
//!
//! `tracing` events of this project's crates, level `info` and above, go to standard error, which the
//! backend redirects to a file in the bottle's state. Hostile bottles and servers can provoke most
//! events. So every line is redacted and stripped of control characters, and a process has a byte limit.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Most bytes that one process logs: about a thousand lines.
const MOST: usize = 128 << 10;

/// Prefix of this project's crates; events of other crates could contain forwarded data.
const OURS: &str = "bottle";

/// Removes secrets from a line.
type Redact = Box<dyn Fn(&str) -> String + Send + Sync>;

static REDACT: OnceLock<Redact> = OnceLock::new();
static ROOM: AtomicUsize = AtomicUsize::new(MOST);

/// Starts logging in this process. Further calls have no effect.
pub fn start() {
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Lines);
    let ours = Targets::new().with_target(OURS, LevelFilter::INFO);
    // Fails only if logging has started.
    let _ = tracing_subscriber::registry().with(lines.with_filter(ours)).try_init();
}

/// Passes every further line through `redact`. Only the first call has an effect.
pub fn redact_with(redact: impl Fn(&str) -> String + Send + Sync + 'static) {
    let _ = REDACT.set(Box::new(redact));
}

/// Writes to standard error, one event a call.
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

/// Redacts a line and replaces control characters, so that it stays one line.
fn sanitized(line: &str, redact: Option<&Redact>) -> String {
    let line = redact.map_or(Cow::Borrowed(line), |redact| Cow::Owned(redact(line)));
    let mut text: String =
        line.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    text.push('\n');
    text
}

/// Returns the line while the limit allows it, then one notice, then nothing.
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
    fn stops_at_the_limit_with_one_notice() {
        let room = AtomicUsize::new(100);
        let lines: Vec<_> = (0..20).filter_map(|_| within(&room, "x".repeat(40))).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].starts_with("and more"), "{lines:?}");
    }
}
