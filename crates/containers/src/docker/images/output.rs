//! The output of a builder. Each line is reported, and the end is kept for the error of a failed build.

use bottle_backend::{BackendError, Step};
use bottle_text::terminal::inert;

use super::build_request::BuildRequest;
use super::dockerfile::Labelled;
use crate::docker::engine::{EngineError, FREE_SPACE_HINT};

/// The maximum number of bytes of a failed build's output in an error. The error contains the end of the output,
/// because the cause is at the end.
const MAX_OUTPUT: usize = 32 << 10;

/// The output of a builder. Each line is reported, and the end of the output is kept for the error of a failed build.
#[derive(Debug, Default)]
pub(super) struct Output {
    kept: String,
    cut: bool,
    line: String,
}

impl Output {
    /// Adds a part of the output. The part may end in the middle of a line.
    pub(super) fn take(&mut self, text: &str, report: &dyn Fn(Step)) {
        for piece in text.split_inclusive(['\n', '\r']) {
            self.line.push_str(piece);
            if piece.ends_with(['\n', '\r']) || self.line.len() > MAX_OUTPUT {
                self.end_line(report);
            }
        }
    }

    /// Adds the name of a stage as a separate line.
    pub(super) fn take_stage(&mut self, name: &str, report: &dyn Fn(Step)) {
        self.end_line(report);
        let cut = name.floor_char_boundary(MAX_OUTPUT);
        self.line.push_str(&name[..cut]);
        self.finish_line(true, report);
    }

    fn end_line(&mut self, report: &dyn Fn(Step)) {
        let starts_stage = self.line.starts_with("Step ");
        self.finish_line(starts_stage, report);
    }

    fn finish_line(&mut self, starts_stage: bool, report: &dyn Fn(Step)) {
        let line = inert(&plain(self.line.trim_end()));
        self.line.clear();
        let line = line.trim_end();
        if line.trim().is_empty() {
            return;
        }
        // The `LABEL` instructions that `bottle` adds are not reported.
        if !(starts_stage && line.contains(" : LABEL bottle.")) {
            report(Step { subject: String::new(), line: line.to_owned(), starts_stage });
        }
        self.kept.push_str(line);
        self.kept.push('\n');
        if self.kept.len() > 2 * MAX_OUTPUT {
            self.shorten();
        }
    }

    /// Shortens the kept output to its last complete lines.
    fn shorten(&mut self) {
        let from = self.kept.ceil_char_boundary(self.kept.len().saturating_sub(MAX_OUTPUT));
        let line_end = self.kept[from..].trim_end().find('\n').filter(|_| from > 0);
        let from = line_end.map_or(from, |at| from + at + 1);
        self.cut |= from > 0;
        self.kept.drain(..from);
    }

    /// Creates the error of a failed build, with the end of the output. For an error in the Dockerfile, the message
    /// names the user's file and line.
    pub(super) fn failure(
        &mut self,
        what: &BuildRequest<'_>,
        labelled: &Labelled,
        cause: &EngineError,
    ) -> BackendError {
        self.end_line(&|_| ());
        self.shorten();
        let cut = if self.cut { "(the beginning is omitted)\n" } else { "" };
        let output = format!("{cut}{}", self.kept);
        let why = inert(&cause.to_string());
        let path = what.path.map(|path| path.display().to_string());
        let why = path.and_then(|path| labelled.parse_error(&why, &path)).unwrap_or(why);
        let message = match output.trim_end() {
            "" => format!("cannot build {}: {why}", what.name),
            output => format!("cannot build {}: {why}\n{output}", what.name),
        };
        // A build step that finds the disk full prints its own message.
        let full = self.kept.to_ascii_lowercase().contains("no space left on device");
        let hint = cause.hint().or(full.then_some(FREE_SPACE_HINT)).unwrap_or(what.hint);
        BackendError::failed(message).with_hint(hint)
    }
}

/// Removes color codes from a line. The builder colors the standard error of a step.
fn plain(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('m') {
            Some((codes, rest)) if codes.bytes().all(|b| b.is_ascii_digit() || b == b';') => {
                plain.push_str(rest)
            }
            _ => {
                plain.push_str("\u{1b}[");
                plain.push_str(piece);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn reports_output_line_by_line_and_escapes_control_characters() {
        let shown = Mutex::new(Vec::new());
        let report = |Step { line, starts_stage, .. }: Step| {
            shown.lock().expect("lock").push(if starts_stage { format!("> {line}") } else { line });
        };
        let mut output = Output::default();
        for text in [
            "Step 1/2 : FR",
            "OM base\n",
            "\n ---> 12\n",
            "10 %\r20 %\r",
            "\u{1b}[2Jdone\n",
            "\u{1b}[91mred\n",
            "\u{1b}[0mcut",
        ] {
            output.take(text, &report);
        }
        let request = BuildRequest::new("the image", "look", String::new());
        let labelled = Labelled::unchanged("");
        let refused = |message: &str| EngineError::Refused { status: 500, message: message.to_owned() };
        let error = output.failure(&request, &labelled, &refused("it said 1"));
        let lines = ["> Step 1/2 : FROM base", " ---> 12", "10 %", "20 %", "\\u{1b}[2Jdone", "red"];
        assert_eq!(*shown.lock().expect("lock"), lines);
        assert!(error.message.starts_with("cannot build the image: it said 1\nStep 1/2"), "{error}");
        assert!(error.message.ends_with("done\nred\ncut"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("look"));
        // A failure of the engine has another hint.
        let gone = output.failure(&request, &labelled, &EngineError::Disconnected("end of file".to_owned()));
        assert!(gone.hint.is_some_and(|hint| hint.contains("journalctl")));
        output.take("cc: write: No space left on device\n", &report);
        let full = output.failure(&request, &labelled, &refused("returned a non-zero code: 1"));
        assert_eq!(full.hint.as_deref(), Some(FREE_SPACE_HINT));
    }

    #[test]
    fn keeps_the_end_of_a_long_output() {
        let mut output = Output::default();
        for number in 0..100_000 {
            output.take(&format!("line {number}\n"), &|_| ());
        }
        output.take(&"x".repeat(10 * MAX_OUTPUT), &|_| ());
        let request = BuildRequest::new("it", "", String::new());
        let message = output.failure(&request, &Labelled::unchanged(""), &EngineError::TimedOut).message;
        assert!(
            message.len() < 3 * MAX_OUTPUT && message.contains("the beginning is omitted"),
            "{}",
            message.len()
        );
    }
}
