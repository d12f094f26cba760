//! Scans a request's head, or its trailers, as one text. The scan therefore also finds a secret that is split over two
//! headers.

use std::ops::Range;
use std::sync::Arc;

use bottle_policy::credential::exempt::{self, Exempt};
use bottle_scan::{Finding, HeadPart, Range64, Scanner, Severity, Shape, head_injection, rewrite};
use http::header::{DATE, EXPIRES, IF_MODIFIED_SINCE, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::rewritten::relative_to;

/// The most line breaks that the proxy removes from one part. The proxy denies a request with more line breaks.
const MAX_LINE_BREAKS: usize = 64;

/// A request head, joined into one text for scanning.
pub(crate) struct Head {
    text: Vec<u8>,
    parts: Vec<Part>,
    structure: Vec<Finding>,
}

struct Part {
    range: Range<usize>,
    location: Location,
}

/// A part of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Method,
    Host,
    Path,
    Query,
    /// The name of the header with this index.
    Name(usize),
    /// The value of the header with this index.
    Value(usize),
}

/// The head as the proxy sends it. Headers that the proxy strips are not scanned.
pub(crate) struct OutgoingHead<'h> {
    /// The host; empty for trailers.
    pub(crate) host: &'h str,
    pub(crate) path: &'h str,
    pub(crate) query: Option<&'h str>,
    pub(crate) headers: &'h HeaderMap,
    /// Returns whether the proxy sends the header with this name.
    pub(crate) is_sent: &'h dyn Fn(&HeaderName) -> bool,
}

/// A head with the findings redacted.
pub(crate) struct RedactedHead {
    /// The redacted method, for reports only. The proxy never sends a redacted method.
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
}

impl Head {
    /// Joins the parts of the head for scanning.
    pub(crate) fn new(outgoing: &OutgoingHead<'_>) -> Self {
        Self::with_method("", outgoing)
    }

    /// Like [`Self::new`], but includes the method of a request.
    pub(crate) fn with_method(method: &str, outgoing: &OutgoingHead<'_>) -> Self {
        let mut head = Self { text: Vec::with_capacity(1024), parts: Vec::new(), structure: Vec::new() };
        head.add(Location::Method, method.as_bytes());
        head.add(Location::Host, outgoing.host.as_bytes());
        head.add(Location::Path, outgoing.path.as_bytes());
        if let Some(query) = outgoing.query {
            head.add(Location::Query, query.as_bytes());
        }
        for (number, (name, value)) in outgoing.headers.iter().enumerate() {
            if (outgoing.is_sent)(name) {
                head.add(Location::Name(number), name.as_str().as_bytes());
                // The digits of a date resemble many encodings, so scanning a date would take longer than scanning all
                // other headers of a short response.
                let value = if is_date(name, value.as_bytes()) { b"" } else { value.as_bytes() };
                head.add(Location::Value(number), value);
            }
        }
        head
    }

    fn add(&mut self, location: Location, text: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        if let Some(mut found) = head_injection(location.kind(), text) {
            let at = start as u64;
            found.span = Range64 { start: at + found.span.start, end: at + found.span.end };
            self.structure.push(found);
        }
        self.parts.push(Part { range: start..self.text.len(), location });
        self.text.push(if matches!(location, Location::Name(_)) { b':' } else { b'\n' });
    }

    /// Returns the findings in the head. Findings of line breaks are returned even without a scanner.
    pub(crate) fn scan(&self, scanner: Option<&Arc<Scanner>>) -> Vec<Finding> {
        let mut found = scanner.map(|scanner| scanner.scan(&self.text).findings).unwrap_or_default();
        found.extend(self.structure.iter().cloned());
        found
    }

    /// Returns the joined text, to which the positions of findings refer.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether the finding begins in a header. Otherwise it begins in the request line.
    pub(crate) fn is_in_header(&self, finding: &Finding) -> bool {
        let at = finding.span.within(self.text.len()).start;
        let part = self.parts.iter().find(|part| at < part.range.end);
        part.is_some_and(|part| matches!(part.location, Location::Name(_) | Location::Value(_)))
    }

    /// Returns which findings are exempt in the part of the head that contains `finding`. Returns `None` if the finding
    /// covers more than one part. `link` states whether an allowed host sent the path and query to the bottle as a
    /// link.
    pub(crate) fn exemption(
        &self,
        finding: &Finding,
        headers: &HeaderMap,
        passes_credentials: bool,
        link: bool,
    ) -> Option<Exempt> {
        let span = finding.span.within(self.text.len());
        let part = self.parts.iter().find(|part| span.start < part.range.end)?;
        if span.start < part.range.start || span.end > part.range.end {
            return None;
        }
        match part.location {
            Location::Path | Location::Query if link => Some(Exempt::IssuedLink),
            Location::Query => {
                let query = std::str::from_utf8(&self.text[part.range.clone()]).ok()?;
                let at = span.start - part.range.start..span.end - part.range.start;
                exempt::in_query(query, &at, passes_credentials)
            }
            Location::Value(number) => {
                let (name, _) = headers.iter().nth(number)?;
                exempt::in_header(name.as_str(), passes_credentials)
            }
            Location::Method | Location::Host | Location::Path | Location::Name(_) => None,
        }
    }

    /// Returns the text that a finding matched.
    pub(crate) fn matched_text(&self, finding: &Finding) -> &[u8] {
        &self.text[finding.span.within(self.text.len())]
    }

    /// Describes the part of the head in which a finding begins.
    pub(crate) fn location(&self, finding: &Finding, headers: &HeaderMap) -> String {
        let at = finding.span.within(self.text.len()).start;
        let location = self.parts.iter().find(|part| at < part.range.end).map(|part| part.location);
        let header = |number: usize| {
            headers.iter().nth(number).map_or_else(String::new, |(name, _)| {
                let name: String = name.as_str().chars().take(40).collect();
                format!("the header `{name}`")
            })
        };
        match location {
            Some(Location::Method) => "the method".to_owned(),
            Some(Location::Host) => "the host".to_owned(),
            Some(Location::Path) => "the path".to_owned(),
            Some(Location::Query) => "the query".to_owned(),
            Some(Location::Value(number)) => header(number),
            // The header's name may itself be the secret.
            Some(Location::Name(_)) | None => "a header".to_owned(),
        }
    }

    /// Returns the head with the blocking findings redacted. The host is not redacted, and the redacted method is for
    /// reports only. Changing the host or the method would change the meaning of the request.
    pub(crate) fn redact(&self, found: &[Finding], outgoing: &OutgoingHead<'_>) -> RedactedHead {
        let mut redacted = RedactedHead {
            method: String::new(),
            path: outgoing.path.to_owned(),
            query: outgoing.query.map(str::to_owned),
            headers: outgoing.headers.clone(),
        };
        let mut values: Vec<(usize, Option<HeaderValue>)> = Vec::new();
        for part in &self.parts {
            let overlapping = self.overlapping(found, &part.range);
            let text = &self.text[part.range.clone()];
            if part.location == Location::Method && overlapping.is_empty() {
                redacted.method = String::from_utf8_lossy(text).into_owned();
            }
            if overlapping.is_empty() {
                continue;
            }
            let written = part.location.rewritten(text, &overlapping);
            match part.location {
                Location::Host => {}
                Location::Method => redacted.method = String::from_utf8_lossy(&written).into_owned(),
                Location::Path => {
                    let path = String::from_utf8_lossy(&written).into_owned();
                    redacted.path = if path.starts_with('/') { path } else { format!("/{path}") };
                }
                Location::Query => redacted.query = Some(String::from_utf8_lossy(&written).into_owned()),
                Location::Name(number) => values.push((number, None)),
                Location::Value(number) => values.push((number, HeaderValue::from_bytes(&written).ok())),
            }
        }
        if !values.is_empty() {
            redacted.headers = replaced(outgoing.headers, &values);
        }
        redacted
    }

    /// Returns the blocking findings that overlap this part, with spans relative to the start of the part.
    fn overlapping(&self, found: &[Finding], part: &Range<usize>) -> Vec<Finding> {
        let blocks = found.iter().filter(|finding| finding.severity == Severity::Block);
        blocks.filter_map(|finding| relative_to(finding, part.clone())).collect()
    }
}

/// Whether a header has a date in the format of RFC 9110, 5.6.7 (`Sun, 06 Nov 1994 08:49:37 GMT`). Such a header
/// contains no secret.
fn is_date(name: &HeaderName, value: &[u8]) -> bool {
    const FORM: &[u8; 29] = b"day, 00 mon 0000 00:00:00 GMT";
    const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let is_form = |(byte, form): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        form => form.is_ascii_lowercase() || byte == form,
    };
    [DATE, EXPIRES, LAST_MODIFIED, IF_MODIFIED_SINCE].contains(name)
        && value.len() == FORM.len()
        && value.iter().zip(FORM).all(is_form)
        && DAYS.contains(&&value[..3])
        && MONTHS.contains(&&value[8..11])
}

impl Location {
    fn kind(self) -> HeadPart {
        match self {
            Self::Method | Self::Host | Self::Path => HeadPart::Line,
            Self::Query => HeadPart::Query,
            Self::Name(_) | Self::Value(_) => HeadPart::Header,
        }
    }

    /// Returns the `text` of this location without the findings and without line breaks.
    fn rewritten(self, text: &[u8], found: &[Finding]) -> Vec<u8> {
        let shape = if matches!(self, Self::Value(_)) { Shape::Text } else { Shape::Url };
        let mut text = rewrite(text, found, shape);
        for _ in 0..MAX_LINE_BREAKS {
            match head_injection(self.kind(), &text).filter(|found| found.severity == Severity::Block) {
                Some(found) => text = rewrite(&text, &[found], shape),
                None => break,
            }
        }
        text
    }
}

/// Returns `headers` with the values at the given indexes replaced. `None` removes the header.
fn replaced(headers: &HeaderMap, values: &[(usize, Option<HeaderValue>)]) -> HeaderMap {
    let mut redacted = HeaderMap::with_capacity(headers.len());
    for (number, (name, value)) in headers.iter().enumerate() {
        let mut new = values.iter().filter(|(at, _)| *at == number).map(|(_, value)| value);
        if new.clone().any(Option::is_none) {
            continue;
        }
        let value = new.next().and_then(Option::as_ref).unwrap_or(value);
        redacted.append(name.clone(), value.clone());
    }
    redacted
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    #[test]
    fn only_dates_are_not_scanned() {
        for (name, value, expected) in [
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("last-modified", "Wed, 31 Dec 2025 23:59:60 GMT", true),
            ("x-date", "Sun, 06 Nov 1994 08:49:37 GMT", false),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMt", false),
            ("date", "Abc, 06 Nov 1994 08:49:37 GMT", false),
            ("date", "Sun, 06 Abc 1994 08:49:37 GMT", false),
            ("date", "Sun, 06 Nov 1994 08:49:3x GMT", false),
            ("date", "Sunday, 06-Nov-94 08:49:37 GMT", false),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT ", false),
            ("date", "", false),
        ] {
            assert_eq!(
                is_date(&HeaderName::from_static(name), value.as_bytes()),
                expected,
                "{name}: {value}"
            );
        }
        // The scan skips dates, so the texts before and after a date are joined.
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Arc::new(Scanner::outbound(Arc::new(known)));
        let headers = [("x-note", SECRET), ("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("expires", SECRET)];
        let headers: HeaderMap = headers
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .into_iter()
            .collect();
        let all = |_: &HeaderName| true;
        let outgoing = OutgoingHead { host: "", path: "/", query: None, headers: &headers, is_sent: &all };
        let head = Head::new(&outgoing);
        let found = head.scan(Some(&scanner));
        let places: Vec<_> = found.iter().map(|found| head.location(found, &headers)).collect();
        assert_eq!(places, ["the header `x-note`", "the header `expires`"]);
        let redacted = head.redact(&found, &outgoing).headers;
        assert_eq!(redacted["date"], headers["date"]);
        assert!([&redacted["x-note"], &redacted["expires"]].iter().all(|value| *value != SECRET));
    }

    #[test]
    fn finds_and_redacts_a_secret_anywhere_in_the_head() {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Arc::new(Scanner::outbound(Arc::new(known)));
        // The first half contains the prefix of the secret and twelve more characters.
        let halves = SECRET.split_at(16);
        let header = |name: &'static str, value: &str| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("value"))
        };
        let plain = [header("accept", "*/*"), header("x-note", "hello")];
        let path = format!("/v1/{SECRET}/x");
        let query = format!("a=1&b={SECRET}");
        let lower = SECRET.to_lowercase();
        let name = HeaderName::from_bytes(format!("x-{lower}").as_bytes()).expect("name");
        let cases: [(&str, Option<&str>, HeaderMap, &str); 6] = [
            (&path, None, plain.clone().into_iter().collect(), "the path"),
            ("/", Some(&query), plain.clone().into_iter().collect(), "the query"),
            ("/", None, [header("x-note", SECRET)].into_iter().collect(), "the header `x-note`"),
            (
                "/",
                None,
                [header("x-a", halves.0), header("x-b", halves.1)].into_iter().collect(),
                "the header `x-a`",
            ),
            ("/", None, [(name, HeaderValue::from_static("1"))].into_iter().collect(), "a header"),
            ("/a%0d%0aX-Evil:%201", None, plain.into_iter().collect(), "the path"),
        ];
        for (path, query, headers, location) in cases {
            let all = |_: &HeaderName| true;
            let outgoing = OutgoingHead { host: "a.example", path, query, headers: &headers, is_sent: &all };
            let head = Head::new(&outgoing);
            let found = head.scan(Some(&scanner));
            let first = found.first().unwrap_or_else(|| panic!("{location}: nothing in {path} {query:?}"));
            assert_eq!(head.location(first, &headers), location);
            let redacted = head.redact(&found, &outgoing);
            let all = |_: &HeaderName| true;
            let outgoing = OutgoingHead {
                host: "a.example",
                path: &redacted.path,
                query: redacted.query.as_deref(),
                headers: &redacted.headers,
                is_sent: &all,
            };
            assert!(
                Head::new(&outgoing).scan(Some(&scanner)).is_empty(),
                "{location}: {:?}",
                redacted.headers
            );
        }
    }
}
