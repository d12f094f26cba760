//! Formats one line of the proxy's access log for a user.
//!
//! [`format_line`] formats it as columns of text, and [`Shown`] as the parts that the dashboards show.

use std::borrow::Cow;

use bottle_contract::decide::Reason;
use bottle_contract::names::HTTPS_PORT;
use dialoguer::console::{Alignment, pad_str};
use indicatif::HumanBytes;
use jiff::Timestamp;
use serde::Deserialize;

use super::output::{Styles, one_line};

/// The widths of the longest verdict and of the longest common method, in columns.
const VERDICT: usize = 8;
const METHOD: usize = 7;
/// The width of host and path in columns. A longer value shifts the rest of the line to the right.
const PLACE: usize = 44;

/// The fields of a log line that are shown. Fields that another version omits or adds are ignored.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line {
    Request(Box<Request>),
    /// A gap: the proxy dropped lines because the disk was too slow.
    Lost {
        lines: u64,
    },
}

#[derive(Debug, Deserialize)]
struct Request {
    time: Timestamp,
    host: String,
    port: u16,
    #[serde(default)]
    method: String,
    #[serde(default)]
    path: String,
    verdict: String,
    reason: Option<Reason>,
    found: Option<String>,
    status: Option<u16>,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    milliseconds: u64,
}

/// Formats a log line in columns. A line that does not parse is shown unchanged except for escaping, so that
/// the output contains no escape sequences of the line.
pub(crate) fn format_line(line: &str, styles: Styles) -> String {
    match serde_json::from_str(line) {
        Ok(Line::Request(request)) => request.format(styles),
        Ok(Line::Lost { lines }) => {
            styles.yellow(&format!("{lines} lines were lost: the disk was slower than the proxy"))
        }
        Err(_) => one_line(line),
    }
}

/// What a decision means for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// The request passed.
    Good,
    /// The proxy changed the request, or noticed something in it.
    Notable,
    /// The request did not pass.
    Bad,
    /// Anything else.
    Plain,
}

/// The parts of a log line, each without control characters and line breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// When the request was decided; none for a gap in the log.
    pub(crate) time: Option<Timestamp>,
    /// `passed`, `denied` or another word.
    pub(crate) verdict: String,
    pub(crate) method: String,
    /// Host, port and path.
    pub(crate) place: String,
    /// The reason of the decision, otherwise the result of the request.
    pub(crate) explanation: String,
    pub(crate) tone: Tone,
}

impl Shown {
    /// Parses a line of the log. None if it cannot be parsed.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        Some(match serde_json::from_str(line).ok()? {
            Line::Request(request) => request.shown(),
            Line::Lost { lines } => Self {
                time: None,
                verdict: "lost".to_owned(),
                method: String::new(),
                place: String::new(),
                explanation: format!("{lines} lines: the disk was slower than the proxy"),
                tone: Tone::Notable,
            },
        })
    }
}

impl Request {
    fn format(&self, styles: Styles) -> String {
        let Shown { verdict, method, place, explanation: words, tone, .. } = self.shown();
        let time = styles.dim(&self.time.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
        let verdict = padded(&verdict, VERDICT);
        let verdict = match tone {
            Tone::Bad => styles.red(&verdict),
            Tone::Notable => styles.yellow(&verdict),
            Tone::Good => styles.green(&verdict),
            Tone::Plain => verdict.into_owned(),
        };
        let place = if words.is_empty() { place.into() } else { padded(&place, PLACE) };
        let method = padded(&method, METHOD);
        format!("{time}  {verdict}  {method}  {place}  {words}").trim_end().to_owned()
    }

    fn shown(&self) -> Shown {
        let word = match self.verdict.as_str() {
            "passed-unopened" => "tunneled",
            "noticed" => "flagged",
            other => other,
        };
        let tone = match word {
            "denied" | "refused" | "cut" => Tone::Bad,
            "redacted" | "flagged" => Tone::Notable,
            "passed" => Tone::Good,
            _ => Tone::Plain,
        };
        Shown {
            time: Some(self.time),
            verdict: one_line(word),
            method: one_line(&self.method),
            place: one_line(&self.place()),
            explanation: one_line(&self.explanation()),
            tone,
        }
    }

    fn place(&self) -> String {
        match self.port {
            0 | HTTPS_PORT => format!("{}{}", self.host, self.path),
            port => format!("{}:{port}{}", self.host, self.path),
        }
    }

    /// Returns the reason of the decision, otherwise the result of the request.
    fn explanation(&self) -> String {
        match (self.reason, &self.found, self.status) {
            // `found` is a sentence that already contains the reason.
            (_, Some(found), _) => found.strip_prefix("cut: ").unwrap_or(found).to_owned(),
            (Some(reason), None, _) => reason.description().to_owned(),
            (None, None, Some(status)) => {
                format!("{status}, {} in {} ms", HumanBytes(self.bytes), self.milliseconds)
            }
            (None, None, None) => String::new(),
        }
    }
}

fn padded(text: &str, columns: usize) -> Cow<'_, str> {
    pad_str(text, columns, Alignment::Left, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""event":"request","time":"2026-01-31T12:00:00.123Z","bottle":"b""#;

    fn line_of(rest: &str) -> String {
        format_line(&format!("{{{HEAD},{rest}}}"), Styles::PLAIN)
    }

    #[test]
    fn formats_every_verdict_in_columns() {
        let lines = [
            r#""id":"x","host":"blocked.example","port":443,"method":"GET","path":"/a","verdict":"denied","reason":"host-not-allowed","bytes":0,"milliseconds":0"#,
            r#""host":"api.example.com","port":443,"method":"POST","path":"/v1/messages","verdict":"denied","reason":"secret-found","found":"The request to `api.example.com` contains what looks like a secret: a GitHub token in the body.""#,
            r#""host":"api.example.com","port":80,"method":"POST","path":"/v1","verdict":"redacted","found":"a GitHub token in the header x-note""#,
            r#""host":"api.example.com","port":443,"method":"GET","path":"/a/path/that/is/longer/than/its/column/has/room/for","verdict":"passed","query":"q=1","status":200,"bytes":123456,"milliseconds":34"#,
            r#""host":"pinned.example","port":443,"method":"","path":"","verdict":"passed-unopened""#,
            r#""host":"page.example","port":443,"method":"GET","path":"/","verdict":"cut","found":"cut: a phrase in the answer","a-field-of-later":1"#,
        ];
        insta::assert_snapshot!(lines.map(line_of).join("\n"), @r"
        2026-01-31 12:00:00Z  denied    GET      blocked.example/a                             no route names the host
        2026-01-31 12:00:00Z  denied    POST     api.example.com/v1/messages                   The request to `api.example.com` contains what looks like a secret: a GitHub token in the body.
        2026-01-31 12:00:00Z  redacted  POST     api.example.com:80/v1                         a GitHub token in the header x-note
        2026-01-31 12:00:00Z  passed    GET      api.example.com/a/path/that/is/longer/than/its/column/has/room/for  200, 120.56 KiB in 34 ms
        2026-01-31 12:00:00Z  tunneled           pinned.example
        2026-01-31 12:00:00Z  cut       GET      page.example/                                 a phrase in the answer
        ");
        insta::assert_snapshot!(format_line(r#"{"event":"lost","lines":7}"#, Styles::PLAIN), @"7 lines were lost: the disk was slower than the proxy");
    }

    #[test]
    fn escapes_hostile_text_on_one_line() {
        let line = line_of(
            r#""host":"a\u001b[2Jb","port":443,"method":"G\nET","path":"/\u009b31m\r\nfake","verdict":"\u001b]0;x\u0007","found":"x\ny\tz""#,
        );
        assert!(line.starts_with("2026-01-31 12:00:00Z  "), "{line}");
        assert!(!line.contains(|character: char| character.is_control()), "{line:?}");
        for text in
            ["not json \u{1b}[2J\n", "{}", r#"{"event":"request"}"#, r#"{"event":"later","x":"\u{9b}"}"#]
        {
            let line = format_line(text, Styles::PLAIN);
            assert!(!line.contains(|character: char| character.is_control()), "{line:?}");
        }
    }
}
