//! What guest, bundle and daemons say about themselves: a few lines in the bottle's own log.
//!
//! `tracing` events of this project's crates, from `info` on, go to standard error, which a backend makes a
//! file under the bottle's state. Most are provoked by what a hostile bottle or a server sends, so that
//! every line loses its secrets and its control characters, and a process may write only so much.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Bytes that one process writes in its life: a thousand lines, which nobody would read to their end.
const MOST: usize = 128 << 10;

/// How every crate of this project begins; others tell of what they carry.
const OURS: &str = "bottle";

/// Takes the secrets out of a line.
type Redact = Box<dyn Fn(&str) -> String + Send + Sync>;

static REDACT: OnceLock<Redact> = OnceLock::new();
static ROOM: AtomicUsize = AtomicUsize::new(MOST);

/// From here on this process's events are written. Called again it changes nothing.
pub fn start() {
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Lines);
    let ours = Targets::new().with_target(OURS, LevelFilter::INFO);
    // Fails only where it was done before.
    let _ = tracing_subscriber::registry().with(lines.with_filter(ours)).try_init();
}

/// From here on every line goes through `redact` first. Only the first call counts.
pub fn redact_with(redact: impl Fn(&str) -> String + Send + Sync + 'static) {
    let _ = REDACT.set(Box::new(redact));
}

/// Standard error, one event a call.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = shown(&String::from_utf8_lossy(line), REDACT.get());
        if let Some(text) = within(&ROOM, text) {
            io::stderr().write_all(text.as_bytes())?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line whatever is in it, without secrets.
fn shown(line: &str, redact: Option<&Redact>) -> String {
    let line = redact.map_or(Cow::Borrowed(line), |redact| Cow::Owned(redact(line)));
    let mut text: String =
        line.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    text.push('\n');
    text
}

/// The line when there is room for it, a last word when that was the last, then nothing.
fn within(room: &AtomicUsize, text: String) -> Option<String> {
    let take = |room: usize| (room > 0).then(|| room.saturating_sub(text.len()));
    let before = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let last = || format!("and more: this process has written its {MOST} bytes\n");
    Some(if before > text.len() { text } else { last() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_loses_its_secrets() {
        let redact: Redact = Box::new(|text| text.replace("key-1", "***"));
        assert_eq!(
            shown("refused key-1: \x1b[2Jgone\nWARN forged\n", Some(&redact)),
            "refused ***: \u{fffd}[2Jgone\u{fffd}WARN forged\n"
        );
        assert_eq!(shown("plain\n", None), "plain\n");
    }

    #[test]
    fn a_process_writes_so_much_and_says_so_once() {
        let room = AtomicUsize::new(100);
        let said: Vec<_> = (0..20).filter_map(|_| within(&room, "x".repeat(40))).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[2].starts_with("and more"), "{said:?}");
    }
}
