//! How far something is: a spinner on a terminal, lines in a pipe, nothing when silence was asked for.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output::Output;
use crate::backend::Step;

/// What is faster than this shows no spinner at all.
const TICK: Duration = Duration::from_millis(80);
/// Longer than anybody reads of a step; a build that fails shows all of it.
const STEP_MAX: usize = 120;

/// Shown until dropped.
pub(crate) enum Progress {
    Spinner(ProgressBar),
    Lines(Output),
    Nothing,
}

impl Progress {
    pub(crate) fn start(output: &Output) -> Self {
        if output.quiet || output.json {
            Self::Nothing
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            Self::Spinner(bar)
        } else {
            Self::Lines(output.clone())
        }
    }

    /// What is done now.
    pub(crate) fn phase(&self, words: &str) {
        match self {
            Self::Spinner(bar) => bar.set_message(words.to_owned()),
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
        if let Self::Spinner(bar) = self {
            bar.set_message(words.to_owned());
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
