//! How far a launch is: a spinner on a terminal, lines in a pipe, nothing when silence was asked for.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::launch::words;
use crate::cli::output::Output;
use crate::keeper::protocol::Phase;

/// A launch faster than this shows no spinner at all.
const TICK: Duration = Duration::from_millis(80);

/// Shown until dropped.
pub(super) enum Progress {
    Spinner(ProgressBar),
    Lines(Output),
    Nothing,
}

impl Progress {
    pub(super) fn start(output: &Output) -> Self {
        if output.quiet || output.json {
            Self::Nothing
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            Self::Spinner(bar)
        } else {
            Self::Lines(output.clone())
        }
    }

    pub(super) fn phase(&self, phase: Phase) {
        match self {
            Self::Spinner(bar) => bar.set_message(words(phase)),
            Self::Lines(output) => output.note(words(phase)),
            Self::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Spinner(bar) = self {
            bar.finish_and_clear();
        }
    }
}
