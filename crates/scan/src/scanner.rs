//! Runs all detectors on one text or stream.
//!
//! The text is scanned in windows at fixed offsets. Each window is scanned with the text before and after it as
//! context. A finding belongs to the window in which it begins. The result therefore depends only on the text: it is
//! the same for a complete text and for a stream, however the stream is divided into pieces.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use crate::alphanumerics::{Letters, last_letters, positions};
use crate::base64_runs::{self, Starts};
use crate::encoded_secrets;
use crate::entropy::random_windows;
use crate::finding::{Detector, Finding, Pieces, Range64, Severity, merge_findings};
use crate::hidden;
use crate::known_secrets::{KnownSecrets, Match};
use crate::matchable_parts::PIECE;
use crate::rule_files::RuleFiles;
use crate::rules::row::Row;
use crate::rules::{self, REACH, RuleSet};
use crate::view::View;

/// The size of a window without its context, in bytes.
const WINDOW: usize = 64 << 10;

/// The maximum number of findings in a report. A text with more findings is blocked anyway, or is unreadable
/// after redaction.
pub const MOST_FINDINGS: usize = 1000;

/// The maximum number of bytes that a program is expected to print for one character of a secret, for example in a list
/// of numbers or a hex dump.
const MAX_PRINTED_CHARACTER: usize = 12;

/// Scans texts with a chosen set of detectors.
#[derive(Debug)]
pub struct Scanner {
    known: Arc<KnownSecrets>,
    tokens: bool,
    entropy: bool,
    injection: bool,
    verbatim: bool,
    own: Option<Arc<RuleFiles>>,
    placeholders: Arc<[Box<[u8]>]>,
    reach: usize,
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The findings, ordered by position.
    pub findings: Vec<Finding>,
    /// Whether findings were dropped because there were more than [`MOST_FINDINGS`]. Findings of known
    /// secrets are dropped last.
    pub more: bool,
}

impl Report {
    /// Returns the highest severity of all findings. Returns `None` if there are no findings.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

impl Scanner {
    /// Builds a scanner for outbound text that detects token patterns and known secrets.
    #[must_use]
    pub fn outbound(known: Arc<KnownSecrets>) -> Self {
        Self { tokens: true, ..Self::with_known(known) }
    }

    /// Builds a scanner for inbound text that detects prompt injection phrases and known secrets, which a
    /// server may echo.
    #[must_use]
    pub fn inbound(known: Arc<KnownSecrets>) -> Self {
        Self { injection: true, ..Self::with_known(known) }
    }

    fn with_known(known: Arc<KnownSecrets>) -> Self {
        let reach = REACH.max(known.reach() * MAX_PRINTED_CHARACTER);
        Self {
            known,
            tokens: false,
            entropy: false,
            injection: false,
            verbatim: false,
            own: None,
            placeholders: Arc::default(),
            reach,
        }
    }

    /// Enables or disables the detector `token_patterns`.
    #[must_use]
    pub fn with_tokens(self, tokens: bool) -> Self {
        Self { tokens, ..self }
    }

    /// Enables or disables the detector `entropy`.
    #[must_use]
    pub fn with_entropy(self, entropy: bool) -> Self {
        Self { entropy, ..self }
    }

    /// Enables or disables the detector `naive_injection_detection`.
    #[must_use]
    pub fn with_phrases(self, injection: bool) -> Self {
        Self { injection, ..self }
    }

    /// Restricts the search to secrets in the form in which programs write them to files: not encoded, not split into
    /// pieces, and without look-alike characters. Escapes are decoded in text, but not in binary data. A verbatim scan
    /// is several times faster than a complete scan.
    #[must_use]
    pub fn verbatim(self) -> Self {
        Self { verbatim: true, ..self }
    }

    /// Adds the user's rules. The user's rules apply even if the detector `token_patterns` is disabled.
    #[must_use]
    pub fn with_rules(self, rules: Arc<RuleFiles>) -> Self {
        Self { own: Some(rules), ..self }
    }

    /// Adds placeholders of secrets. A placeholder is not a finding even if it matches a pattern. A known secret within
    /// a placeholder is still a finding.
    #[must_use]
    pub fn with_placeholders(self, texts: &[String]) -> Self {
        Self { placeholders: texts.iter().map(|text| text.as_bytes().into()).collect(), ..self }
    }

    fn is_placeholder(&self, found: &[u8]) -> bool {
        self.placeholders.iter().any(|text| memchr::memmem::find(text, found).is_some())
    }

    /// Returns the ids and descriptions of the user's rules that check only file names and match `path`.
    pub fn of_name<'s>(&'s self, path: &'s str) -> impl Iterator<Item = (&'s str, &'s str)> {
        self.own.iter().flat_map(move |own| own.of_name(path))
    }

    /// Scans a complete text.
    #[must_use]
    pub fn scan(&self, text: &[u8]) -> Report {
        let mut state = ScanState::new(self);
        let mut start = 0;
        loop {
            let end = text.len().min(start + WINDOW);
            let seen = start.saturating_sub(self.reach)..text.len().min(end + self.reach);
            state.window(
                &text[seen.clone()],
                seen.start as u64,
                start - seen.start..end - seen.start,
                end == text.len(),
            );
            start = end;
            if end == text.len() {
                return state.report();
            }
        }
    }

    /// Starts the scan of a text that arrives in pieces.
    #[must_use]
    pub fn stream(&self) -> Stream<&Self> {
        self.stream_of(None)
    }

    /// Works like [`stream`](Self::stream), but for the content of the file at `path`. Some of the user's rules and
    /// allowlists apply only to files.
    #[must_use]
    pub fn stream_of(&self, path: Option<&str>) -> Stream<&Self> {
        let state = ScanState { path: path.map(Into::into), ..ScanState::new(self) };
        Stream { state, buffer: Vec::new(), base: 0, start: 0 }
    }

    /// Works like [`stream`](Self::stream), but the stream shares ownership of the scanner instead of borrowing it.
    #[must_use]
    pub fn stream_owned(self: &Arc<Self>) -> Stream<Arc<Self>> {
        Stream { state: ScanState::new(Arc::clone(self)), buffer: Vec::new(), base: 0, start: 0 }
    }
}

/// A streaming scan. The scan buffers only one window and the context of this window, so the stream may have any
/// length.
#[derive(Debug)]
pub struct Stream<S> {
    state: ScanState<S>,
    buffer: Vec<u8>,
    /// The offset in the stream of the first buffered byte.
    base: u64,
    /// The offset in the buffer at which the next window begins.
    start: usize,
}

impl<S: Borrow<Scanner> + Clone> Stream<S> {
    /// Scans the next piece of the text.
    pub fn feed(&mut self, mut piece: &[u8]) {
        let reach = self.state.scanner.borrow().reach;
        while !piece.is_empty() {
            let wanted = (self.start + WINDOW + reach + 1).saturating_sub(self.buffer.len());
            let (now, later) = piece.split_at(piece.len().min(wanted));
            self.buffer.extend_from_slice(now);
            piece = later;
            // The buffer extends beyond the window and its context, so the window is not the last one.
            if self.buffer.len() > self.start + WINDOW + reach {
                self.step(self.start + WINDOW, false);
            }
        }
    }

    fn step(&mut self, end: usize, is_last: bool) {
        let reach = self.state.scanner.borrow().reach;
        let seen = self.buffer.len().min(end + reach);
        self.state.window(&self.buffer[..seen], self.base, self.start..end, is_last);
        let keep = end.saturating_sub(reach);
        self.buffer.drain(..keep);
        self.base += keep as u64;
        self.start = end - keep;
    }

    /// Returns the offset up to which the stream has been scanned. [`findings`](Self::findings) contains all findings
    /// that begin before this offset.
    #[must_use]
    pub fn scanned_to(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Returns the findings so far, neither sorted nor merged. [`finish`](Self::finish) sorts and merges them.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.state.findings
    }

    /// Scans the rest of the text and returns the report. The report is the same as the report of [`Scanner::scan`] for
    /// the complete text.
    #[must_use]
    pub fn finish(mut self) -> Report {
        loop {
            let end = self.buffer.len().min(self.start + WINDOW);
            let is_last = end == self.buffer.len();
            self.step(end, is_last);
            if is_last {
                return self.state.report();
            }
        }
    }
}

/// The state of a scan between two windows: the findings so far, and the data that the next windows need.
#[derive(Debug)]
struct ScanState<S> {
    scanner: S,
    /// The path of the file that contains the text. `None` if the text is not from a file.
    path: Option<Arc<str>>,
    findings: Vec<Finding>,
    more: bool,
    /// The last letters and digits before the window with their positions, first in the plain view and then in the
    /// unescaped view.
    carry: [Vec<(u8, u64)>; 2],
    /// The alignments of a base64 run that continues in the next window.
    base64: Option<Starts>,
    /// The rules of private keys that continue in the next window, for the plain view, the unescaped view and base64,
    /// in this order.
    keys: [Option<&'static Row>; 3],
}

/// One view of a window with its context. `base` is the offset of the context in the stream. `core` is the range of the
/// window itself: the window reports only findings that begin in this range.
struct Frame<'w> {
    view: &'w View<'w>,
    base: u64,
    core: Range<usize>,
    is_last: bool,
}

impl Frame<'_> {
    /// Converts a range of the view to a range of the stream. Returns `None` if another window reports findings in this
    /// range.
    fn owned(&self, range: &Range<usize>) -> Option<Range64> {
        let source = self.view.source_range(range);
        (self.core.contains(&source.start)).then(|| Range64::at(self.base, &source))
    }

    /// Returns whether a match at this range of the view may continue outside of the view.
    fn cuts(&self, range: &Range<usize>) -> bool {
        range.start == 0 && self.base > 0 || range.end == self.view.bytes.len() && !self.is_last
    }

    /// Converts the part of a range of the view for which this window reports findings to a range of the stream. If a
    /// match is longer than the context, each window reports its part of the match.
    fn shared(&self, range: &Range<usize>) -> Option<Range64> {
        let source = self.view.source_range(range);
        let start = source.start.max(self.core.start);
        (start < source.end && start < self.core.end).then(|| Range64::at(self.base, &(start..source.end)))
    }
}

impl<S: Borrow<Scanner> + Clone> ScanState<S> {
    fn new(scanner: S) -> Self {
        Self {
            scanner,
            path: None,
            findings: Vec::new(),
            more: false,
            carry: [Vec::new(), Vec::new()],
            base64: None,
            keys: [None; 3],
        }
    }

    fn report(mut self) -> Report {
        self.trim();
        Report { findings: merge_findings(self.findings), more: self.more }
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
        // Trims the findings only at twice the limit, because trimming sorts and merges all of them.
        if self.findings.len() >= 2 * MOST_FINDINGS {
            self.trim();
        }
    }

    /// Reduces the findings to at most [`MOST_FINDINGS`]. Findings of known secrets are kept in preference to other
    /// findings, so that a counter of leaked secrets misses none.
    fn trim(&mut self) {
        self.findings = merge_findings(std::mem::take(&mut self.findings));
        if self.findings.len() > MOST_FINDINGS {
            self.more = true;
            self.findings.sort_by_key(|finding| finding.secret.is_none());
            self.findings.truncate(MOST_FINDINGS);
        }
    }

    fn window(&mut self, window: &[u8], base: u64, core: Range<usize>, is_last: bool) {
        let scanner: &Scanner = self.scanner.borrow();
        let (plain, unescaped) = match scanner.verbatim {
            true => (View::raw(window), View::unescaped_verbatim(window)),
            false if scanner.known.is_empty() => (View::plain(window), View::unescaped_tokens(window)),
            false => (View::plain(window), View::unescaped(window)),
        };
        let frame = Frame { view: &plain, base, core: core.clone(), is_last };
        self.scan_view(0, &frame);
        if matches!(plain.bytes, std::borrow::Cow::Owned(_)) {
            // A secret may contain characters that the plain view replaces, so the unchanged text is searched too.
            self.spellings(&Frame { view: &View::raw(window), base, core: core.clone(), is_last });
        }
        self.pieces(0, &frame);
        self.spelled(&frame);
        match unescaped {
            Some(view) => {
                let frame = Frame { view: &view, base, core: core.clone(), is_last };
                self.scan_view(1, &frame);
                self.encoded(&frame);
                self.pieces(1, &frame);
            }
            None => {
                self.encoded(&Frame { view: &plain, base, core: core.clone(), is_last });
                let [first, second] = &mut self.carry;
                second.clone_from(first);
                self.keys[1] = self.keys[0];
            }
        }
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.tokens {
            self.binary_keys(window, "", |range| {
                core.contains(&range.start).then(|| Range64::at(base, &range))
            });
        }
        if scanner.entropy {
            for range in random_windows(window, base).filter(|range| core.contains(&range.start)) {
                self.plain_finding(
                    "entropy",
                    Detector::Entropy,
                    Severity::Warn,
                    "as random as a key",
                    Range64::at(base, &range),
                );
            }
        }
        if scanner.injection {
            for (range, rule, severity, words) in hidden::find(window) {
                if core.contains(&range.start) {
                    self.plain_finding(rule, Detector::Injection, severity, words, Range64::at(base, &range));
                }
            }
        }
    }

    /// Searches one view of the window for known secrets and patterns.
    fn scan_view(&mut self, lane: usize, frame: &Frame<'_>) {
        self.spellings(frame);
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.tokens {
            self.continued_key(lane, frame);
            self.rules(rules::tokens(), Detector::TokenPatterns, lane, frame);
        }
        if scanner.injection {
            self.rules(rules::phrases(), Detector::Injection, lane, frame);
        }
        if let Some(own) = &scanner.own {
            let path = self.path.clone();
            own.find(&frame.view.bytes, path.as_deref(), |id, range| {
                if let Some(span) = frame.owned(&range)
                    && !scanner.is_placeholder(&frame.view.bytes[range])
                {
                    let words = format!("a match of your rule `{id}`");
                    self.plain_finding(id, Detector::ScannerRules, Severity::Block, &words, span);
                }
            });
        }
    }

    /// Searches the base64 in one view of the window for patterns.
    fn encoded(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if !scanner.tokens && scanner.own.is_none() {
            return;
        }
        let text = &frame.view.bytes;
        // The position at which the next window with its context begins.
        let next = frame.core.end.saturating_sub(scanner.reach);
        let next = frame.view.offset(next);
        let carried = self.base64.take();
        // A private key in base64 is redacted up to the end of the base64 run.
        let mut key = self.keys[2].take().filter(|_| carried.is_some());
        for run in base64_runs::runs(text, carried) {
            if let Some(row) = key.take() {
                let start = frame.view.offset(frame.core.start);
                self.rest_of_key(row, frame, start..run.end().max(start));
                self.keys[2] = run.at(next).map(|_| row);
            }
            for decoded in run.decoded() {
                if scanner.tokens {
                    let length = decoded.bytes.len();
                    self.binary_keys(&decoded.bytes, " in base64", |range| {
                        frame.owned(&decoded.source(&(range.start..range.end.min(length))))
                    });
                    rules::tokens().find(&decoded.bytes, |found| {
                        if let Some(span) = frame.owned(&decoded.source(&found.span))
                            && !scanner.is_placeholder(&decoded.bytes[found.span.clone()])
                        {
                            let words = format!("{} in base64", found.words);
                            self.keys[2] = found.open.filter(|_| run.at(next).is_some()).or(self.keys[2]);
                            self.plain_finding(
                                &found.id,
                                Detector::TokenPatterns,
                                found.severity,
                                &words,
                                span,
                            );
                        }
                    });
                }
                if let Some(own) = &scanner.own {
                    let path = self.path.clone();
                    own.find(&decoded.bytes, path.as_deref(), |id, range| {
                        if let Some(span) = frame.owned(&decoded.source(&range))
                            && !scanner.is_placeholder(&decoded.bytes[range])
                        {
                            let words = format!("a match of your rule `{id}`, in base64");
                            self.plain_finding(id, Detector::ScannerRules, Severity::Block, &words, span);
                        }
                    });
                }
            }
            self.base64 = self.base64.or(run.at(next));
        }
    }

    /// Reports the rest of a private key that began in an earlier window.
    fn continued_key(&mut self, lane: usize, frame: &Frame<'_>) {
        let Some(row) = self.keys[lane].take() else { return };
        let Some(armour) = row.armour else { return };
        let start = frame.view.offset(frame.core.start);
        let body = armour.body(&frame.view.bytes[start..]);
        if body.open {
            self.keys[lane] = Some(row);
        }
        self.rest_of_key(row, frame, start..start + body.end);
    }

    /// Adds a finding for the rest of a private key. The finding overlaps the finding for the first part of the key, so
    /// both are merged later.
    fn rest_of_key(&mut self, row: &Row, frame: &Frame<'_>, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let span = Range64::at(frame.base, &frame.view.source_range(&range));
        self.plain_finding(row.id, Detector::TokenPatterns, row.severity, row.words, span);
    }

    /// Reports the binary private keys in `text`. `how` is appended to the description. `owned` converts the range of a
    /// key to a range of the stream, or returns `None` if another window reports the key.
    fn binary_keys(&mut self, text: &[u8], how: &str, owned: impl Fn(Range<usize>) -> Option<Range64>) {
        let mut all = Vec::new();
        rules::binary_keys::find(text, |rule, words, range| all.push((rule, words, range)));
        for (rule, words, range) in all {
            // Skips a key if another finding covers its range, for example a finding of a PEM key.
            let covers = |span: Range64| {
                self.findings.iter().any(|other| other.span.start <= span.start && span.end <= other.span.end)
            };
            if let Some(span) = owned(range).filter(|span| !covers(*span)) {
                let words = format!("{words}{how}");
                self.plain_finding(rule, Detector::TokenPatterns, Severity::Block, &words, span);
            }
        }
    }

    fn rules(&mut self, set: &RuleSet, detector: Detector, lane: usize, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        set.find(&frame.view.bytes, |found| {
            if let Some(span) = frame.owned(&found.span)
                && !scanner.is_placeholder(&frame.view.bytes[found.span.clone()])
            {
                let (rule, preview) = (found.id, found.words.into_owned());
                self.keys[lane] = found.open.or(self.keys[lane]);
                let (severity, secret, pieces) = (found.severity, None, Pieces::default());
                self.add(Finding { span, rule, detector, severity, secret, pieces, preview });
            }
        });
    }

    fn plain_finding(
        &mut self,
        rule: &str,
        detector: Detector,
        severity: Severity,
        words: &str,
        span: Range64,
    ) {
        let (rule, preview, pieces) = (rule.into(), words.to_owned(), Pieces::default());
        self.add(Finding { span, rule, detector, severity, secret: None, pieces, preview });
    }

    /// Adds a finding of a known secret. `is_cut` is true if the match may continue beyond the searched text.
    fn known(&mut self, matched: Match, is_cut: bool, span: Range64) {
        let preview = "a secret of this bottle".to_owned();
        let detector = Detector::KnownSecrets;
        let (rule, severity) = ("known-secret".into(), Severity::Block);
        let (secret, pieces) = (Some(matched.secret), Pieces::one(matched.piece, is_cut));
        self.add(Finding { span, rule, detector, severity, secret, pieces, preview });
    }

    fn spellings(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        scanner.known.find(&frame.view.bytes, |matched, range| {
            if let Some(span) = frame.shared(&range) {
                self.known(matched, frame.cuts(&range), span);
            }
        });
    }

    /// Searches the encoded text of the window for known secrets.
    fn spelled(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.known.is_empty() || scanner.verbatim {
            return;
        }
        encoded_secrets::find(&scanner.known, &frame.view.bytes, &mut |matched, range| {
            if let Some(span) = frame.shared(&range) {
                self.known(matched, false, span);
            }
        });
    }

    /// Searches the letters and digits of this window for known secrets. The last letters and digits of earlier windows
    /// are searched together with them.
    fn pieces(&mut self, lane: usize, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.known.is_empty() || scanner.verbatim {
            return;
        }
        let text = &frame.view.bytes;
        let start = frame.view.offset(frame.core.start);
        let end = if frame.is_last { text.len() } else { frame.view.offset(frame.core.end) };
        let own = &text[start..end];
        let carried: Vec<u8> = self.carry[lane].iter().map(|(letter, _)| *letter).collect();
        let letters = Letters::new(&carried, own);
        let mut hits: Vec<(Match, Range<usize>)> = Vec::new();
        scanner.known.find_letters(&letters.bytes, |matched, range| {
            if hits.last() != Some(&(matched, range.clone())) && hits.len() < MOST_FINDINGS {
                hits.push((matched, range));
            }
        });
        let carried = &self.carry[lane];
        let mut numbers: Vec<usize> = hits
            .iter()
            .flat_map(|(_, range)| [range.start, range.end - 1])
            .filter_map(|number| number.checked_sub(carried.len()))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let found = positions(own, &numbers);
        let source = |place: usize| frame.base + frame.view.source(start + place) as u64;
        let place = |number: usize| match number.checked_sub(carried.len()) {
            None => carried[number].1,
            Some(number) => numbers.binary_search(&number).map_or(frame.base, |index| source(found[index])),
        };
        let is_cut = |range: &Range<usize>| {
            range.start == 0 && !carried.is_empty() || range.end == letters.bytes.len() && !frame.is_last
        };
        let spans: Vec<_> = hits
            .into_iter()
            .map(|(matched, range)| {
                let span = Range64 { start: place(range.start), end: place(range.end - 1) + 1 };
                (matched, is_cut(&range), span)
            })
            .collect();
        if !frame.is_last {
            let mut carry = carried.clone();
            carry.extend(
                last_letters(own, PIECE - 1).into_iter().map(|(letter, place)| (letter, source(place))),
            );
            carry.drain(..carry.len().saturating_sub(PIECE - 1));
            self.carry[lane] = carry;
        }
        for (matched, is_cut, span) in spans {
            self.known(matched, is_cut, span);
        }
    }
}
