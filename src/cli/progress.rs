//! How far something is: a spinner on a terminal, lines in a pipe, nothing when silence was asked for.
//!
//! The spinner keeps to one line, however narrow, and leaves nothing behind. What is done before anybody could
//! wonder shows none at all.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::attach::catch;
use super::error::CliError;
use super::ink::knows_sequences;
use super::output::{Ink, Output};
use super::session::interrupted;
use crate::backend::Step;

/// Between two looks of the spinner.
const TICK: Duration = Duration::from_millis(80);
/// From then on it says for how long it has been at it.
const LONG: Duration = Duration::from_secs(3);
/// What is faster than this shows no spinner, unless it has several phases.
const SOON: Duration = Duration::from_millis(300);
/// Longer than anybody reads of a step; a build that fails shows all of it.
const STEP_MAX: usize = 120;

/// Shown until dropped.
pub(crate) enum Progress {
    Spinner(ProgressBar, Ink),
    Lines(Output),
    Nothing,
}

impl Progress {
    pub(crate) fn start(output: &Output) -> Self {
        let progress = Self::hidden(output);
        progress.appear();
        progress
    }

    /// On a terminal nothing is shown yet.
    fn hidden(output: &Output) -> Self {
        if output.quiet || output.json {
            Self::Nothing
        } else if io::stderr().is_terminal() && knows_sequences(|name| std::env::var(name).ok()) {
            let ink = output.err_ink();
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            bar.set_style(style(ink));
            Self::Spinner(bar, ink)
        } else {
            Self::Lines(output.clone())
        }
    }

    fn appear(&self) {
        if let Self::Spinner(bar, _) = self {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    }

    /// What is done now.
    pub(crate) fn phase(&self, words: &str) {
        match self {
            Self::Spinner(bar, _) => {
                bar.reset_elapsed();
                self.say(words);
            }
            Self::Lines(output) => output.note(words),
            Self::Nothing => {}
        }
    }

    /// How far the making of an image is.
    pub(crate) fn step(&self, step: &Step) {
        let words = format!("{}: {}", step.of, step.line.trim());
        let words = match words.char_indices().nth(STEP_MAX) {
            Some((end, _)) => format!("{}…", &words[..end]),
            None => words,
        };
        if step.begins { self.phase(&words) } else { self.say(&words) }
    }

    /// How far that is; said too often for lines in a pipe.
    pub(crate) fn say(&self, words: &str) {
        if let Self::Spinner(bar, ink) = self {
            bar.set_message(ink.letters(words).into_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Spinner(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}

/// Does something that may take its time, and shows `words` until it is done, or what it says of itself. In a pipe
/// nobody watches, and the end is said anyway. A signal ends it; `left` says what that leaves.
///
/// # Errors
/// Its own, or that it was interrupted.
pub(crate) async fn shown<T>(
    words: &str,
    left: &str,
    output: &Output,
    work: impl AsyncFnOnce(Arc<Progress>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mut signals = catch()?;
    let progress = Arc::new(Progress::hidden(output));
    progress.say(words);
    let appear = async {
        tokio::time::sleep(SOON).await;
        progress.appear();
        std::future::pending().await
    };
    let mut work = pin!(work(progress.clone()));
    tokio::select! {
        done = &mut work => done,
        number = signals.end() => Err(interrupted(number).hint(left)),
        never = appear => never,
    }
}

fn style(ink: Ink) -> ProgressStyle {
    let taken = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        if state.elapsed() >= LONG {
            let _ = write!(out, " {} s", state.elapsed().as_secs());
        }
    };
    let style = ProgressStyle::with_template("{spinner} {wide_msg}{taken}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("taken", taken);
    // The last one is what a spinner that has ended looks like, which nobody sees.
    if ink.knows_unicode() { style } else { style.tick_chars(r"-\|/ ") }
}
