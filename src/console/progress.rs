//! Shows progress: a spinner on a terminal, lines in a pipe, nothing with `--quiet`.
//!
//! The spinner takes one line, fits any width, and is erased at the end. Short operations show no spinner.

use std::fmt;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_backend::Step;
use dialoguer::console::{Term, measure_text_width, truncate_str};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use super::error::CliError;
use super::output::{Output, Styles};
use super::style::supports_escapes;
use super::terminal::size_of;
use crate::console::signals::{Signals, interrupted};

/// The time between two frames of the spinner.
const TICK: Duration = Duration::from_millis(80);
/// After this time the spinner also shows how long the operation has taken.
const SHOW_ELAPSED_AFTER: Duration = Duration::from_secs(3);
/// Operations shorter than this show no spinner, unless they have several phases.
const APPEAR_DELAY: Duration = Duration::from_millis(300);
/// The maximum number of redraws per second.
const DRAWN_A_SECOND: u8 = 20;
/// The number of columns that are reserved for the spinner, and for the `^C` that the terminal prints after the text.
const RESERVED: usize = 5;
/// The maximum length of a build step's text, in characters. When the build fails, the error shows the full
/// text.
const MAX_STEP: usize = 120;

/// The minimum and maximum width of a bar, in columns.
const BAR: std::ops::RangeInclusive<usize> = 6..=30;

/// The spinner's current text.
type Words = Arc<Mutex<Shown>>;

/// A text and, if the total is known, the completed part of the work.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    words: String,
    part: Option<Part>,
}

/// The completed part of a total.
#[derive(Debug, Clone, Copy)]
struct Part {
    done: u64,
    total: u64,
}

/// A progress display, shown until dropped.
pub(crate) enum Progress {
    Spinner(ProgressBar, Words),
    Lines(Output),
    Nothing,
}

impl Progress {
    pub(crate) fn start(output: &Output) -> Self {
        let progress = Self::hidden(output);
        progress.appear();
        progress
    }

    /// Creates the display. On a terminal nothing is visible yet.
    fn hidden(output: &Output) -> Self {
        if output.quiet || output.json {
            Self::Nothing
        } else if io::stderr().is_terminal() && supports_escapes(|name| std::env::var(name).ok()) {
            let words = Words::default();
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            bar.set_style(style(output.err_styles(), words.clone()));
            Self::Spinner(bar, words)
        } else {
            Self::Lines(output.clone())
        }
    }

    fn appear(&self) {
        if let Self::Spinner(bar, _) = self {
            let line = Box::new(Line(Term::buffered_stderr()));
            bar.set_draw_target(ProgressDrawTarget::term_like_with_hz(line, DRAWN_A_SECOND));
            bar.enable_steady_tick(TICK);
        }
    }

    /// Starts a new phase, which `words` describes.
    pub(crate) fn phase(&self, words: &str) {
        match self {
            Self::Spinner(bar, _) => {
                bar.reset_elapsed();
                self.set_text(words);
            }
            Self::Lines(output) => output.note(words),
            Self::Nothing => {}
        }
    }

    /// Shows a step of an image build.
    pub(crate) fn step(&self, step: &Step) {
        let words = format!("{}: {}", step.subject, step.line.trim());
        let words = match words.char_indices().nth(MAX_STEP) {
            Some((end, _)) => format!("{}…", &words[..end]),
            None => words,
        };
        if step.starts_stage { self.phase(&words) } else { self.set_text(&words) }
    }

    /// Updates the spinner's text. A pipe gets no line, because updates are too frequent.
    pub(crate) fn set_text(&self, words: &str) {
        self.show(Shown { words: words.to_owned(), part: None });
    }

    /// Shows the number of bytes, and a bar if the total is known and the terminal is wide enough.
    pub(crate) fn bytes(&self, words: &str, done: u64, total: Option<u64>) {
        let words = format!("{words}: {}", HumanBytes(done));
        self.show(Shown { words, part: total.filter(|total| *total > 0).map(|total| Part { done, total }) });
    }

    /// Erases the spinner. Nothing is shown afterwards.
    fn end(&self) {
        if let Self::Spinner(bar, _) = self {
            bar.finish_and_clear();
        }
    }

    fn show(&self, now: Shown) {
        if let Self::Spinner(bar, shown) = self {
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = now;
            bar.tick();
        }
    }
}

impl Shown {
    /// Renders the text for this width. A narrow line omits first the bar, then the total, then the end of
    /// the text.
    fn line(&self, styles: Styles, columns: usize) -> String {
        let words = styles.displayable(&self.words);
        let short = truncate_str(&words, columns, styles.ellipsis()).into_owned();
        let Some(part) = self.part else { return short };
        for text in [format!("{words} of {}", HumanBytes(part.total)), words.into_owned()] {
            // Reserves columns for a space and the bar's two brackets.
            let room = columns.saturating_sub(measure_text_width(&text) + 3);
            if room >= *BAR.start() {
                return format!("{text} {}", part.bar(room.min(*BAR.end()), styles));
            }
        }
        short
    }
}

impl Part {
    fn bar(self, columns: usize, styles: Styles) -> String {
        let whole = columns as u128;
        let full = usize::try_from(whole * u128::from(self.done) / u128::from(self.total)).unwrap_or(columns);
        let full = full.min(columns);
        let (done, open) = if styles.unicode { ("━", "─") } else { ("#", "-") };
        format!("[{}{}]", done.repeat(full), open.repeat(columns - full))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs `work`, and shows `words` or the progress that `work` reports. A pipe gets no updates. A signal cancels `work`.
/// The error of cancelled work has the hint `left`, which describes the state that remains.
///
/// # Errors
/// Returns the error of `work`, or an error if a signal interrupted `work`.
pub(crate) async fn with_progress<T>(
    words: &str,
    left: &str,
    output: &Output,
    work: impl AsyncFnOnce(Arc<Progress>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mut signals = Signals::catch()?;
    let progress = Arc::new(Progress::hidden(output));
    progress.set_text(words);
    let appear = async {
        tokio::time::sleep(APPEAR_DELAY).await;
        progress.appear();
        std::future::pending().await
    };
    let mut work = pin!(work(progress.clone()));
    let done = tokio::select! {
        done = &mut work => done,
        number = signals.end() => Err(interrupted(number).hint(left)),
        never = appear => never,
    };
    // A thread of `work` may still hold a reference to the display.
    progress.end();
    done
}

/// A terminal on standard error that leaves the cursor directly after the text. The crate `indicatif` pads its line to
/// the full width. The `^C` that the terminal prints would then wrap to the next line, and the spinner's line would not
/// be erased.
#[derive(Debug)]
struct Line(Term);

impl TermLike for Line {
    fn width(&self) -> u16 {
        size_of(&io::stderr()).columns
    }

    fn move_cursor_up(&self, count: usize) -> io::Result<()> {
        self.0.move_cursor_up(count)
    }

    fn move_cursor_down(&self, count: usize) -> io::Result<()> {
        self.0.move_cursor_down(count)
    }

    fn move_cursor_right(&self, count: usize) -> io::Result<()> {
        self.0.move_cursor_right(count)
    }

    fn move_cursor_left(&self, count: usize) -> io::Result<()> {
        self.0.move_cursor_left(count)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        // Omits the padding of the line, which consists of spaces.
        if text.trim_matches(' ').is_empty() { Ok(()) } else { self.0.write_str(text) }
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

fn style(styles: Styles, words: Words) -> ProgressStyle {
    let line = move |state: &ProgressState, out: &mut dyn fmt::Write| {
        let taken = state.elapsed().as_secs();
        let taken = if state.elapsed() >= SHOW_ELAPSED_AFTER { format!(" {taken} s") } else { String::new() };
        let columns = usize::from(size_of(&io::stderr()).columns).saturating_sub(RESERVED + taken.len());
        let shown = words.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = write!(out, "{}{taken}", shown.line(styles, columns));
    };
    let style = ProgressStyle::with_template("{spinner} {line}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("line", line);
    // The last character belongs to a finished spinner, which is never shown.
    if styles.unicode { style } else { style.tick_chars(r"-\|/ ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_a_bar_only_where_it_fits() {
        let words = "copying in: 12.00 MiB".to_owned();
        let shown = Shown { words, part: Some(Part { done: 12 << 20, total: 48 << 20 }) };
        let plain = Styles::PLAIN;
        for (columns, line) in [
            (75, "copying in: 12.00 MiB of 48.00 MiB [━━━━━━━───────────────────────]"),
            (47, "copying in: 12.00 MiB of 48.00 MiB [━━────────]"),
            (42, "copying in: 12.00 MiB [━━━━──────────────]"),
            (30, "copying in: 12.00 MiB [━─────]"),
            (29, "copying in: 12.00 MiB"),
            (10, "copying i…"),
        ] {
            assert_eq!(shown.line(plain, columns), line);
        }
        for columns in 0..100 {
            assert!(measure_text_width(&shown.line(plain, columns)) <= columns.max(1), "{columns}");
        }
        // A file may grow while it is copied, so more bytes than the total may be done.
        assert_eq!(Part { done: 3, total: 2 }.bar(6, plain), "[━━━━━━]");
    }
}
