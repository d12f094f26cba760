//! `bottle process wait`: waits for the end of a process, or for a line of its output.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::process::{ProcessState, ReadFrom};
use bottle_host::Host;
use bottle_lib::processes::ask;
use bottle_lib::report::{MatchedLine, ProcessEnd};
use regex::bytes::{Regex, RegexBuilder};

use crate::cli::connect::{connect, unexpected_answer};
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::{Output, one_line};
use crate::cli::process_output::{FOLLOW, PART, Target, part};
use crate::cli::runtime::block_on;
use crate::cli::session::Signals;
use crate::cli::time_limit::time_limit;

/// The maximum size of a compiled pattern, in bytes.
const PATTERN_SIZE: usize = 2 << 20;

/// The maximum length of a line that is searched, in bytes. The rest of a longer line is searched as another line.
const LINE_MAX: usize = 64 << 10;

/// Wait until a process ends, and exit with its exit code
///
/// With `--until`, wait until its output has a line that matches, and print that line. Output that it wrote before counts
/// too.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    target: Target,
    /// Exit with 124 if it takes longer than so long: seconds, or with a unit (5m). The process goes on
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timeout: Option<Duration>,
    /// Wait for a line that matches this regular expression. Exit with 1 if the process ends without one
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    until: Option<Regex>,
    /// With `--until`: begin at this position of the output, counted in bytes
    #[arg(long, value_name = "POSITION", default_value_t = 0, requires = "until")]
    from: u64,
}

fn pattern(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(PATTERN_SIZE).dfa_size_limit(PATTERN_SIZE).build();
    built.map_err(|error| error.to_string())
}

impl Wait {
    /// Whether it waits for a line, and passes on no exit code.
    pub(super) fn is_for_a_line(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(async {
            let channel = connect(host, &self.target.slug).await?;
            let mut signals = Signals::catch()?;
            let limit = async {
                match self.timeout {
                    Some(limit) => tokio::time::sleep(limit).await,
                    None => std::future::pending().await,
                }
            };
            let reached = async {
                match &self.until {
                    Some(pattern) => self.line(&channel, pattern, output).await,
                    None => self.end(&channel, output).await,
                }
            };
            tokio::select! {
                code = reached => code,
                () = limit => {
                    output.json_or(&ProcessEnd::from(ProcessState::Running), || Ok(()))?;
                    Ok(exit::TIMED_OUT)
                }
                number = signals.end() => Ok(128u8.saturating_add(number)),
            }
        })
    }

    /// Waits for the end. Returns the exit code of the process.
    async fn end(&self, channel: &Channel, output: &Output) -> Result<u8, CliError> {
        let request = GuestRequest::WaitForProcess { process: self.target.process.clone() };
        let event = ask(channel, request, &self.target.slug).await?;
        let GuestEvent::Exited(exit) = event else { return Err(unexpected_answer()) };
        output.json_or(&ProcessEnd::from(ProcessState::Exited(exit)), || Ok(()))?;
        Ok(exit.shell_code())
    }

    /// Waits for a line that matches.
    async fn line(&self, channel: &Channel, pattern: &Regex, output: &Output) -> Result<u8, CliError> {
        let mut lines = Lines { next: self.from, rest: Vec::new() };
        loop {
            let position = ReadFrom::Position(lines.next);
            let (bytes, read) = part(channel, &self.target, position, PART, FOLLOW).await?;
            let ended = read.state != ProcessState::Running && read.next >= read.end;
            if let Some((line, next)) = lines.find(&bytes, read.next, ended, pattern) {
                let text = String::from_utf8_lossy(&line).into_owned();
                let shown = one_line(&text);
                output.json_or(&MatchedLine { line: text, next }, || output.print(&shown))?;
                return Ok(exit::DONE);
            }
            if ended {
                let process = &self.target.process;
                let error = CliError::failed(format!("{process} ended, and no line of its output matches"));
                let hint = format!("`bottle process log {} {process}` shows its output", self.target.slug);
                return Err(error.about(&self.target.slug).hint(hint).exit(exit::FAILED));
            }
        }
    }
}

/// The lines of an output that is read in parts.
struct Lines {
    /// The position of the next part.
    next: u64,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
}

impl Lines {
    /// Adds a part, which ends at `end`. Returns the first line that matches, and the position behind it.
    fn find(&mut self, part: &[u8], end: u64, is_last: bool, pattern: &Regex) -> Option<(Vec<u8>, u64)> {
        self.next = end;
        self.rest.extend_from_slice(part);
        let mut used = 0;
        let mut found = None;
        while found.is_none() {
            let text = &self.rest[used..];
            let line_break = text.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
            let (length, skipped) = match line_break {
                Some(length) => (length, 1),
                None if text.len() >= LINE_MAX => (LINE_MAX, 0),
                None if is_last && !text.is_empty() => (text.len(), 0),
                None => break,
            };
            let line = text[..length].strip_suffix(b"\r").unwrap_or(&text[..length]);
            used += length + skipped;
            if pattern.is_match(line) {
                found = Some((line.to_vec(), end - (self.rest.len() - used) as u64));
            }
        }
        self.rest.drain(..used);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the parts. Returns the line that was found, and the position behind it.
    fn find(parts: &[&[u8]], pattern_text: &str) -> Option<(Vec<u8>, u64)> {
        let mut lines = Lines { next: 0, rest: Vec::new() };
        let pattern = pattern(pattern_text).expect("a pattern");
        let mut end = 0;
        parts.iter().enumerate().find_map(|(number, part)| {
            end += part.len() as u64;
            lines.find(part, end, number + 1 == parts.len(), &pattern)
        })
    }

    #[test]
    fn finds_a_line_in_parts() {
        for (parts, expected) in [
            (&[&b"one\nlistening on 80\nthree\n"[..]][..], Some(("listening on 80", 20))),
            (&[b"one\nlist", b"ening on 80\r\nth", b"ree"], Some(("listening on 80", 21))),
            (&[b"listening on 80"], Some(("listening on 80", 15))),
            (&[b"listening\non 80\n"], None),
            (&[b""], None),
        ] {
            let expected = expected.map(|(line, next)| (line.as_bytes().to_vec(), next));
            assert_eq!(find(parts, "^listening on \\d+$"), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_long_line_is_searched_in_pieces() {
        let mut long = vec![b'x'; LINE_MAX];
        long.extend_from_slice(b"ready\n");
        assert_eq!(find(&[&long], "^ready$"), Some((b"ready".to_vec(), LINE_MAX as u64 + 6)));
        assert!(pattern("(").is_err());
    }
}
