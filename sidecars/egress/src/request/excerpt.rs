//! Builds the excerpt of a question about a finding: the request line and the text around the findings.
//!
//! The user bases the decision on the excerpt, so the excerpt shows where the value is. The excerpt never contains the
//! value itself.

use std::ops::Range;

use bottle_protocol::queue::bounded_excerpt;
use bottle_scan::{Finding, MASK, Scanner, Severity, excerpt};

/// The number of bytes shown before and after a finding. With this number, a line is short enough for
/// [`bounded_excerpt`].
const AROUND: usize = 80;

/// The most findings that an excerpt shows. The report counts all findings.
const MAX_SHOWN: usize = 3;

/// A finding with its surrounding text and the location of that text.
pub(super) struct Place<'t> {
    /// Where the text is, for example `the body`.
    pub(super) location: String,
    pub(super) text: &'t [u8],
    /// All findings in the text.
    pub(super) found: &'t [Finding],
    /// The finding to show.
    pub(super) finding: &'t Finding,
    /// The number of lines shown before and after the finding.
    pub(super) lines: usize,
}

/// Returns the lines of an excerpt: the request line, then each place with the text around its finding.
pub(super) fn lines<'t>(
    request_line: String,
    places: impl Iterator<Item = Place<'t>>,
    scanner: Option<&Scanner>,
    redact: &dyn Fn(&str) -> String,
) -> Vec<String> {
    let mut lines = vec![redact(&request_line)];
    let mut shown: Vec<(*const u8, Range<usize>)> = Vec::new();
    for place in places {
        let span = place.finding.span.within(place.text.len());
        // Skips a finding that is already shown by a mask or by the text around another finding.
        let near = |(text, range): &(*const u8, Range<usize>)| {
            *text == place.text.as_ptr() && range.contains(&span.start)
        };
        if span.is_empty() || shown.iter().any(near) {
            continue;
        }
        if shown.len() == MAX_SHOWN {
            break;
        }
        shown.push((place.text.as_ptr(), span.start.saturating_sub(AROUND)..span.end + AROUND));
        let found = place.found.iter().map(|finding| finding.span.within(place.text.len()));
        let around = excerpt(place.text, span, found.filter(|other| !other.is_empty()), AROUND);
        let text = redact(&rescanned(around.text, scanner));
        lines.push(format!("{}:", place.location));
        lines.extend(near_mask(&text, place.lines).map(|line| format!("  {line}")));
    }
    bounded_excerpt(lines)
}

/// Scans an excerpt again. If the scanner still finds a blocking finding, returns only the mask.
fn rescanned(text: String, scanner: Option<&Scanner>) -> String {
    let Some(scanner) = scanner else { return text };
    let blocks = |text: &str| {
        let found = scanner.scan(text.as_bytes()).findings.into_iter();
        found.filter(|finding| finding.severity == Severity::Block).collect::<Vec<_>>()
    };
    if blocks(&text).is_empty() { text } else { MASK.to_owned() }
}

/// Returns the line with the first mask and `more` lines before and after it, without control characters.
fn near_mask(text: &str, more: usize) -> impl Iterator<Item = String> {
    let all: Vec<&str> = text.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).collect();
    let at = all.iter().position(|line| line.contains(MASK)).unwrap_or(0);
    let plain =
        |line: &str| line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let shown: Vec<String> =
        all.into_iter().skip(at.saturating_sub(more)).take(at.min(more) + 1 + more).map(plain).collect();
    shown.into_iter()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bottle_policy::secret::Secret;
    use bottle_protocol::queue::{MAX_EXCERPT_LINE, MAX_EXCERPT_LINES};
    use bottle_scan::KnownSecrets;
    use proptest::prelude::*;

    use super::*;

    /// A secret without a public prefix, so that every twelve characters of it are a finding.
    const SECRET: &str = "Zq7xKd93vXwpT2mB8ySe4Lh5Rf0Nc";

    fn scanner() -> Scanner {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        Scanner::outbound(Arc::new(known))
    }

    fn shown(text: &str, lines: usize) -> Vec<String> {
        let scanner = scanner();
        let found = scanner.scan(text.as_bytes()).findings;
        let places = found.iter().map(|finding| Place {
            location: "the body".to_owned(),
            text: text.as_bytes(),
            found: &found,
            finding,
            lines,
        });
        super::lines("POST /x".to_owned(), places, Some(&scanner), &|text| text.to_owned())
    }

    #[test]
    fn shows_the_text_around_a_finding_without_the_value() {
        let long = "word ".repeat(100);
        for (text, expected) in [
            (format!("{{\"a\": \"{SECRET}\"}}"), &["  {\"a\": \"[redacted]\"}"][..]),
            (format!("a=1&b={SECRET}&c=2"), &["  a=1&b=[redacted]&c=2"]),
            // The mask covers the whole word that contains the secret.
            (format!("key prefix-{SECRET}-suffix== end"), &["  key [redacted] end"]),
            (
                format!("one\ntwo {SECRET}\r\n\n\u{1b}[31mthree\nfour"),
                &["  one", "  two [redacted]", "   [31mthree"],
            ),
            // The excerpt omits words that may be truncated.
            (
                format!("{long}{SECRET} {long}"),
                &[&format!("   {}[redacted]{}", "word ".repeat(15), " word".repeat(15))],
            ),
        ] {
            let shown = shown(&text, 1);
            let trimmed = |line: &String| line.trim_end().to_owned();
            let expected: Vec<String> = expected.iter().map(|line| line.trim_end().to_owned()).collect();
            assert_eq!(shown[..2], ["POST /x", "the body:"], "{text}");
            assert_eq!(shown[2..].iter().map(trimmed).collect::<Vec<_>>(), expected, "{text}");
        }
        let twice = format!("{SECRET} {}{SECRET}", "x ".repeat(200));
        assert_eq!(shown(&twice, 0).iter().filter(|line| *line == "the body:").count(), 2);
    }

    proptest! {
        /// For any text around a secret, the excerpt shows no twelve consecutive characters of the secret, and stays
        /// within its size limit.
        #[test]
        fn never_shows_a_part_of_the_value(
            before in ".{0,200}",
            after in ".{0,200}",
            cut in 12..SECRET.len(),
            encoded in any::<bool>(),
        ) {
            use std::fmt::Write as _;
            let mut value = String::new();
            for byte in SECRET[..cut].bytes() {
                if encoded { write!(value, "%{byte:02x}").expect("written") } else { value.push(char::from(byte)) }
            }
            prop_assert!(!scanner().scan(value.as_bytes()).findings.is_empty());
            let shown = shown(&format!("{before}{value}{after}{value}"), 1);
            prop_assert!(shown.len() <= MAX_EXCERPT_LINES);
            for line in &shown {
                prop_assert!(line.chars().count() <= MAX_EXCERPT_LINE);
                for part in value.as_bytes().windows(12) {
                    prop_assert!(!line.contains(std::str::from_utf8(part).expect("ascii")), "{shown:?}");
                }
            }
        }
    }
}
