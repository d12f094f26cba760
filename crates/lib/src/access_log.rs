//! Parses a line of the egress proxy's access log into the parts that a user reads.

use bottle_policy::decide::Reason;
use bottle_policy::names::HTTPS_PORT;
use indicatif::HumanBytes;
use jiff::Timestamp;
use serde::Deserialize;

use super::text::one_line;

/// The fields of a log line that are shown. Another version of `bottle` may have written the line, so unknown fields
/// are ignored, and some fields may be absent.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line {
    Request(Box<Request>),
    /// A gap in the log: the proxy dropped lines because the disk was too slow.
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

/// The meaning of a decision of the proxy for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// The request passed.
    Good,
    /// The proxy changed the request, or noticed something in it.
    Notable,
    /// The request did not pass.
    Bad,
    /// Any other decision.
    Plain,
}

/// The parts of a log line, each without control characters and line breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The time of the decision. `None` for a gap in the log.
    pub time: Option<Timestamp>,
    /// The decision in a word, such as `passed` or `denied`.
    pub verdict: String,
    /// The method of the request.
    pub method: String,
    /// Host, port and path.
    pub place: String,
    /// The reason for the decision. If no reason was logged, the result of the request.
    pub explanation: String,
    /// The meaning of the decision for the user.
    pub tone: Tone,
}

impl Shown {
    /// Parses a line of the access log. Returns `None` if the line cannot be parsed.
    pub fn parse(line: &str) -> Option<Self> {
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

    /// Returns the reason for the decision. If no reason was logged, returns the result of the request.
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
