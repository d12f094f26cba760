//! Runs all detectors over one text or stream.
//!
//! A text is scanned in windows at fixed offsets, each with context on both sides. A finding belongs to the
//! window in which it begins. The result therefore depends only on the text: it is the same for any split
//! into pieces, and for whole and streamed texts.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use crate::encoded::{self, Starts};
use crate::entropy::random_windows;
use crate::finding::{Detector, Finding, Range64, Severity, merge_findings};
use crate::hidden;
use crate::known::KnownSecrets;
use crate::letters::{Letters, last_letters, positions};
use crate::private::PIECE;
use crate::rule_files::RuleFiles;
use crate::rules::row::Row;
use crate::rules::{self, REACH, RuleSet};
use crate::spelled;
use crate::view::View;

/// Size of a window without its context, in bytes.
const WINDOW: usize = 64 << 10;

/// The most findings in a report. A text with more is blocked or unreadable anyway.
pub const MOST_FINDINGS: usize = 1000;

/// The most bytes that programs print for one character of a secret, in lists and dumps.
const MAX_PRINTED_CHARACTER: usize = 12;

/// A scanner: the detectors and their data.
#[derive(Debug)]
pub struct Scanner {
    known: Arc<KnownSecrets>,
    tokens: bool,
    entropy: bool,
    injection: bool,
    own: Option<Arc<RuleFiles>>,
    placeholders: Arc<[Box<[u8]>]>,
    reach: usize,
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The findings in the order of their positions.
    pub findings: Vec<Finding>,
    /// Whether there were more than [`MOST_FINDINGS`] and some were dropped. Known secrets are kept before
    /// others.
    pub more: bool,
}

impl Report {
    /// The highest severity; `None` without findings.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

impl Scanner {
    /// A scanner for outbound text: token patterns and known secrets.
    #[must_use]
    pub fn outbound(known: Arc<KnownSecrets>) -> Self {
        Self { tokens: true, ..Self::with_known(known) }
    }

    /// A scanner for inbound text: echoed known secrets and prompt injection phrases.
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
            own: None,
            placeholders: Arc::default(),
            reach,
        }
    }

    /// Sets `token_patterns`.
    #[must_use]
    pub fn with_tokens(self, tokens: bool) -> Self {
        Self { tokens, ..self }
    }

    /// Sets `entropy`.
    #[must_use]
    pub fn with_entropy(self, entropy: bool) -> Self {
        Self { entropy, ..self }
    }

    /// Sets `naive_injection_detection`.
    #[must_use]
    pub fn with_phrases(self, injection: bool) -> Self {
        Self { injection, ..self }
    }

    /// Adds the user's own rules.
    #[must_use]
    pub fn with_rules(self, rules: Arc<RuleFiles>) -> Self {
        Self { own: Some(rules), ..self }
    }

    /// Adds texts that are no finding by pattern: placeholders of secrets. Known secrets in them are still
    /// found.
    #[must_use]
    pub fn with_placeholders(self, texts: &[String]) -> Self {
        Self { placeholders: texts.iter().map(|text| text.as_bytes().into()).collect(), ..self }
    }

    fn is_placeholder(&self, found: &[u8]) -> bool {
        self.placeholders.iter().any(|text| memchr::memmem::find(text, found).is_some())
    }

    /// Whether the user's own rules allow a finding in a file at `path`; for callers that scan files.
    #[must_use]
    pub fn allows(&self, finding: &Finding, path: &str) -> bool {
        self.own.as_ref().is_some_and(|own| own.allows(finding, path))
    }

    /// Scans a whole text.
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

    /// Scans a text that arrives in pieces.
    #[must_use]
    pub fn stream(&self) -> Stream<&Self> {
        Stream { state: ScanState::new(self), buffer: Vec::new(), base: 0, start: 0 }
    }

    /// Like [`stream`](Self::stream), without a borrow.
    #[must_use]
    pub fn stream_owned(self: &Arc<Self>) -> Stream<Arc<Self>> {
        Stream { state: ScanState::new(Arc::clone(self)), buffer: Vec::new(), base: 0, start: 0 }
    }
}

/// A streaming scan. It buffers one window and its context, for streams of any length.
#[derive(Debug)]
pub struct Stream<S> {
    state: ScanState<S>,
    buffer: Vec<u8>,
    /// Offset of the first buffered byte.
    base: u64,
    /// Offset of the next window within the buffer.
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
            // One byte beyond the window and its context: this is not the last window.
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

    /// The offset up to which scanning is complete: [`findings`](Self::findings) has all findings before it.
    #[must_use]
    pub fn scanned_to(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The findings so far; [`finish`](Self::finish) merges them.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.state.findings
    }

    /// Ends the text and returns the result, the same as [`Scanner::scan`] for the whole text.
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

/// The findings so far, and the state that later windows need.
#[derive(Debug)]
struct ScanState<S> {
    scanner: S,
    findings: Vec<Finding>,
    more: bool,
    /// The last letters before the window, each with its position: of the plain and of the unescaped view.
    carry: [Vec<(u8, u64)>; 2],
    /// The alignment of a base64 run that continues in the next window.
    base64: Option<Starts>,
    /// Private keys that continue in the next window: in the plain view, the unescaped view and in base64.
    keys: [Option<&'static Row>; 3],
}

/// A view of a window, its offset, and the range that the window owns.
struct Frame<'w> {
    view: &'w View<'w>,
    base: u64,
    core: Range<usize>,
    is_last: bool,
}

impl Frame<'_> {
    /// The position of a view's range in the stream; `None` if another window owns it.
    fn owned(&self, range: &Range<usize>) -> Option<Range64> {
        let source = self.view.source_range(range);
        (self.core.contains(&source.start)).then(|| Range64::at(self.base, &source))
    }

    /// The part of a range that this window owns. Each window reports its part of a match that is longer than
    /// the context.
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
        // Trims at twice the limit, so that sorting and merging run once per many findings.
        if self.findings.len() >= 2 * MOST_FINDINGS {
            self.trim();
        }
    }

    /// Keeps at most [`MOST_FINDINGS`]. Known secrets are kept first: a counter of hits on secrets must not
    /// miss one behind many other findings.
    fn trim(&mut self) {
        self.findings = merge_findings(std::mem::take(&mut self.findings));
        if self.findings.len() > MOST_FINDINGS {
            self.more = true;
            self.findings.sort_by_key(|finding| finding.secret.is_none());
            self.findings.truncate(MOST_FINDINGS);
        }
    }

    fn window(&mut self, window: &[u8], base: u64, core: Range<usize>, is_last: bool) {
        let plain = View::plain(window);
        let unescaped = View::unescaped(window);
        let frame = Frame { view: &plain, base, core: core.clone(), is_last };
        self.scan_view(0, &frame);
        if matches!(plain.bytes, std::borrow::Cow::Owned(_)) {
            // Folded characters may be part of a secret.
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

    /// Known secrets and patterns in one view of the window.
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
            own.find(&frame.view.bytes, |id, range| {
                if let Some(span) = frame.owned(&range)
                    && !scanner.is_placeholder(&frame.view.bytes[range])
                {
                    let words = format!("a match of your rule `{id}`");
                    self.plain_finding(id, Detector::OwnRules, Severity::Block, &words, span);
                }
            });
        }
    }

    /// Patterns in the base64 of one view of the window.
    fn encoded(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if !scanner.tokens && scanner.own.is_none() {
            return;
        }
        let text = &frame.view.bytes;
        // Where the next window begins.
        let next = frame.core.end.saturating_sub(scanner.reach);
        let next = view_offset(frame.view, next);
        let carried = self.base64.take();
        // A key in base64 extends to the end of the base64 run.
        let mut key = self.keys[2].take().filter(|_| carried.is_some());
        for run in encoded::runs(text, carried) {
            if let Some(row) = key.take() {
                let start = view_offset(frame.view, frame.core.start);
                self.rest_of_key(row, frame, start..run.end().max(start));
                self.keys[2] = run.at(next).map(|_| row);
            }
            for decoded in run.decoded(text) {
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
                    own.find(&decoded.bytes, |id, range| {
                        if let Some(span) = frame.owned(&decoded.source(&range))
                            && !scanner.is_placeholder(&decoded.bytes[range])
                        {
                            let words = format!("a match of your rule `{id}`, in base64");
                            self.plain_finding(id, Detector::OwnRules, Severity::Block, &words, span);
                        }
                    });
                }
            }
            self.base64 = self.base64.or(run.at(next));
        }
    }

    /// The rest of a private key that began in an earlier window.
    fn continued_key(&mut self, lane: usize, frame: &Frame<'_>) {
        let Some(row) = self.keys[lane].take() else { return };
        let Some(armour) = row.armour else { return };
        let start = view_offset(frame.view, frame.core.start);
        let body = armour.body(&frame.view.bytes[start..]);
        if body.open {
            self.keys[lane] = Some(row);
        }
        self.rest_of_key(row, frame, start..start + body.end);
    }

    /// Merged with the earlier part of the key, which ends after the start of this window.
    fn rest_of_key(&mut self, row: &Row, frame: &Frame<'_>, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let span = Range64::at(frame.base, &frame.view.source_range(&range));
        self.plain_finding(row.id, Detector::TokenPatterns, row.severity, row.words, span);
    }

    /// Binary private keys that this window owns, by `owned`.
    fn binary_keys(&mut self, text: &[u8], how: &str, owned: impl Fn(Range<usize>) -> Option<Range64>) {
        let mut all = Vec::new();
        rules::binary::find(text, |rule, words, range| all.push((rule, words, range)));
        for (rule, words, range) in all {
            // A key with a header line is found by that line.
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
                let preview = format!("{}, {} bytes", found.words, found.span.len());
                let rule = found.id;
                self.keys[lane] = found.open.or(self.keys[lane]);
                self.add(Finding { span, rule, detector, severity: found.severity, secret: None, preview });
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
        let preview = format!("{words}, {} bytes", span.end - span.start);
        self.add(Finding { span, rule: rule.into(), detector, severity, secret: None, preview });
    }

    fn known(&mut self, owner: usize, span: Range64) {
        let preview = "a secret of this bottle".to_owned();
        let detector = Detector::KnownSecrets;
        let (rule, severity) = ("known-secret".into(), Severity::Block);
        self.add(Finding { span, rule, detector, severity, secret: Some(owner), preview });
    }

    fn spellings(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        scanner.known.find(&frame.view.bytes, |owner, range| {
            if let Some(span) = frame.shared(&range) {
                self.known(owner, span);
            }
        });
    }

    /// Known secrets in the encoded text of the window.
    fn spelled(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.known.is_empty() {
            return;
        }
        spelled::find(&scanner.known, &frame.view.bytes, &mut |owner, range| {
            if let Some(span) = frame.shared(&range) {
                self.known(owner, span);
            }
        });
    }

    /// Known secrets in the letters and digits of the owned range, preceded by those of earlier windows.
    fn pieces(&mut self, lane: usize, frame: &Frame<'_>) {
        let text = &frame.view.bytes;
        let start = view_offset(frame.view, frame.core.start);
        let end = if frame.is_last { text.len() } else { view_offset(frame.view, frame.core.end) };
        let own = &text[start..end];
        let carried: Vec<u8> = self.carry[lane].iter().map(|(letter, _)| *letter).collect();
        let letters = Letters::new(&carried, own);
        let mut hits: Vec<(usize, Range<usize>)> = Vec::new();
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        scanner.known.find_letters(&letters.bytes, |owner, range| {
            if hits.last() != Some(&(owner, range.clone())) && hits.len() < MOST_FINDINGS {
                hits.push((owner, range));
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
        let spans: Vec<_> = hits
            .into_iter()
            .map(|(owner, range)| {
                (owner, Range64 { start: place(range.start), end: place(range.end - 1) + 1 })
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
        for (owner, span) in spans {
            self.known(owner, span);
        }
    }
}

/// The first position of a view whose source is at or after `place`.
fn view_offset(view: &View<'_>, place: usize) -> usize {
    let (mut low, mut high) = (0, view.bytes.len());
    while low < high {
        let middle = low.midpoint(high);
        if view.source(middle) < place {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
