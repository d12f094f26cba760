//! All detectors over one text or stream.
//!
//! A text is judged in windows at fixed places of it, each with some context on both sides, and a finding
//! belongs to the window in which it begins. So what is found depends on the text alone: not on how it came in
//! pieces, and whole or streamed alike.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use crate::encoded::{self, Starts};
use crate::entropy::random_windows;
use crate::finding::{Detector, Finding, Range64, Severity, settle};
use crate::hidden;
use crate::known::KnownSecrets;
use crate::letters::{Letters, last, places};
use crate::private::PIECE;
use crate::rule_files::RuleFiles;
use crate::rules::row::Row;
use crate::rules::{self, REACH, RuleSet};
use crate::spelled;
use crate::view::View;

/// Bytes that a window owns.
const CORE: usize = 64 << 10;

/// Findings that are kept. A text with more is refused or unreadable anyway.
pub const MOST_FINDINGS: usize = 1000;

/// Bytes that one character of a secret takes in what a program prints of it, in lists and dumps.
const LONGEST_CHARACTER: usize = 12;

/// What to look for.
#[derive(Debug)]
pub struct Scanner {
    known: Arc<KnownSecrets>,
    tokens: bool,
    entropy: bool,
    injection: bool,
    own: Option<Arc<RuleFiles>>,
    harmless: Arc<[Box<[u8]>]>,
    reach: usize,
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In the order of their places.
    pub findings: Vec<Finding>,
    /// There were more than [`MOST_FINDINGS`], and the rest was not kept; known secrets come before all others.
    pub more: bool,
}

impl Report {
    /// The highest severity; none when nothing was found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

impl Scanner {
    /// For what leaves: shapes of tokens and known secrets.
    #[must_use]
    pub fn outbound(known: Arc<KnownSecrets>) -> Self {
        Self { tokens: true, ..Self::of(known) }
    }

    /// For what comes in: known secrets that an endpoint echoes, and phrases that take over an agent.
    #[must_use]
    pub fn inbound(known: Arc<KnownSecrets>) -> Self {
        Self { injection: true, ..Self::of(known) }
    }

    fn of(known: Arc<KnownSecrets>) -> Self {
        let reach = REACH.max(known.reach() * LONGEST_CHARACTER);
        Self {
            known,
            tokens: false,
            entropy: false,
            injection: false,
            own: None,
            harmless: Arc::default(),
            reach,
        }
    }

    /// With `token_patterns` on or off.
    #[must_use]
    pub fn with_tokens(self, tokens: bool) -> Self {
        Self { tokens, ..self }
    }

    /// With `entropy` on or off.
    #[must_use]
    pub fn with_entropy(self, entropy: bool) -> Self {
        Self { entropy, ..self }
    }

    /// With `naive_injection_detection` on or off.
    #[must_use]
    pub fn with_phrases(self, injection: bool) -> Self {
        Self { injection, ..self }
    }

    /// With a user's own rules.
    #[must_use]
    pub fn with_rules(self, rules: Arc<RuleFiles>) -> Self {
        Self { own: Some(rules), ..self }
    }

    /// With texts that are no finding by their shape: what stands in place of secrets. Known secrets are found all
    /// the same.
    #[must_use]
    pub fn with_harmless(self, texts: &[String]) -> Self {
        Self { harmless: texts.iter().map(|text| text.as_bytes().into()).collect(), ..self }
    }

    fn is_harmless(&self, found: &[u8]) -> bool {
        self.harmless.iter().any(|text| memchr::memmem::find(text, found).is_some())
    }

    /// Whether a finding is none in a file at `path`, as the user's own rules say: for readers that have files.
    #[must_use]
    pub fn allows(&self, finding: &Finding, path: &str) -> bool {
        self.own.as_ref().is_some_and(|own| own.allows(finding, path))
    }

    /// Judges a whole text.
    #[must_use]
    pub fn scan(&self, text: &[u8]) -> Report {
        let mut judge = Judge::new(self);
        let mut start = 0;
        loop {
            let end = text.len().min(start + CORE);
            let seen = start.saturating_sub(self.reach)..text.len().min(end + self.reach);
            judge.window(
                &text[seen.clone()],
                seen.start as u64,
                start - seen.start..end - seen.start,
                end == text.len(),
            );
            start = end;
            if end == text.len() {
                return judge.report();
            }
        }
    }

    /// Judges a text that comes in pieces.
    #[must_use]
    pub fn stream(&self) -> Stream<&Self> {
        Stream { judge: Judge::new(self), held: Vec::new(), base: 0, start: 0 }
    }

    /// The same for whoever cannot borrow.
    #[must_use]
    pub fn stream_owned(self: &Arc<Self>) -> Stream<Arc<Self>> {
        Stream { judge: Judge::new(Arc::clone(self)), held: Vec::new(), base: 0, start: 0 }
    }
}

/// A scan under way; holds a window and its context, however long the stream is.
#[derive(Debug)]
pub struct Stream<S> {
    judge: Judge<S>,
    held: Vec<u8>,
    /// Place of the first held byte.
    base: u64,
    /// Where among the held bytes the next window begins.
    start: usize,
}

impl<S: Borrow<Scanner> + Clone> Stream<S> {
    /// Takes the next piece of the text.
    pub fn feed(&mut self, mut piece: &[u8]) {
        let reach = self.judge.scanner.borrow().reach;
        while !piece.is_empty() {
            let wanted = (self.start + CORE + reach + 1).saturating_sub(self.held.len());
            let (now, later) = piece.split_at(piece.len().min(wanted));
            self.held.extend_from_slice(now);
            piece = later;
            // One byte more than the window and its context: it is surely not the last.
            if self.held.len() > self.start + CORE + reach {
                self.step(self.start + CORE, false);
            }
        }
    }

    fn step(&mut self, end: usize, last: bool) {
        let reach = self.judge.scanner.borrow().reach;
        let seen = self.held.len().min(end + reach);
        self.judge.window(&self.held[..seen], self.base, self.start..end, last);
        let keep = end.saturating_sub(reach);
        self.held.drain(..keep);
        self.base += keep as u64;
        self.start = end - keep;
    }

    /// Everything before this place is judged: its findings are in [`findings`](Self::findings).
    #[must_use]
    pub fn judged(&self) -> u64 {
        self.base + self.start as u64
    }

    /// What was found so far, settled only by [`finish`](Self::finish).
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.judge.findings
    }

    /// The text has ended: what was found in all of it, as [`Scanner::scan`] would say.
    #[must_use]
    pub fn finish(mut self) -> Report {
        loop {
            let end = self.held.len().min(self.start + CORE);
            let last = end == self.held.len();
            self.step(end, last);
            if last {
                return self.judge.report();
            }
        }
    }
}

/// The findings so far, and what of earlier windows later ones need.
#[derive(Debug)]
struct Judge<S> {
    scanner: S,
    findings: Vec<Finding>,
    more: bool,
    /// The last letters before the window as it is, and as it is without escapes, each with its place.
    carry: [Vec<(u8, u64)>; 2],
    /// How the base64 goes on in which the next window begins.
    base64: Option<Starts>,
    /// The private keys in which the next window begins: in the window as it is, without escapes, and in base64.
    keys: [Option<&'static Row>; 3],
}

/// A window, where it stands and what of it counts.
struct Frame<'w> {
    view: &'w View<'w>,
    base: u64,
    core: Range<usize>,
    last: bool,
}

impl Frame<'_> {
    /// Where in the stream a range of the view stands; none if another window owns it.
    fn owned(&self, range: &Range<usize>) -> Option<Range64> {
        let source = self.view.source_range(range);
        (self.core.contains(&source.start)).then(|| Range64::at(self.base, &source))
    }

    /// The part of it that is not another window's: each finds its part of what is longer than its context.
    fn shared(&self, range: &Range<usize>) -> Option<Range64> {
        let source = self.view.source_range(range);
        let start = source.start.max(self.core.start);
        (start < source.end && start < self.core.end).then(|| Range64::at(self.base, &(start..source.end)))
    }
}

impl<S: Borrow<Scanner> + Clone> Judge<S> {
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
        Report { findings: settle(self.findings), more: self.more }
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
        // Twice as many, so that what joins and what is dropped is looked for once in so many.
        if self.findings.len() >= 2 * MOST_FINDINGS {
            self.trim();
        }
    }

    /// Keeps [`MOST_FINDINGS`] at most. Whoever counts hits on secrets must miss none behind a heap of something else.
    fn trim(&mut self) {
        self.findings = settle(std::mem::take(&mut self.findings));
        if self.findings.len() > MOST_FINDINGS {
            self.more = true;
            self.findings.sort_by_key(|finding| finding.secret.is_none());
            self.findings.truncate(MOST_FINDINGS);
        }
    }

    fn window(&mut self, window: &[u8], base: u64, core: Range<usize>, last: bool) {
        let plain = View::plain(window);
        let unescaped = View::unescaped(window);
        let frame = Frame { view: &plain, base, core: core.clone(), last };
        self.look(0, &frame);
        if matches!(plain.bytes, std::borrow::Cow::Owned(_)) {
            // What was folded away may be a part of a secret.
            self.spellings(&Frame { view: &View::raw(window), base, core: core.clone(), last });
        }
        self.pieces(0, &frame);
        self.spelled(&frame);
        match unescaped {
            Some(view) => {
                let frame = Frame { view: &view, base, core: core.clone(), last };
                self.look(1, &frame);
                self.encoded(&frame);
                self.pieces(1, &frame);
            }
            None => {
                self.encoded(&Frame { view: &plain, base, core: core.clone(), last });
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

    /// Spellings and shapes in one view of the window.
    fn look(&mut self, lane: usize, frame: &Frame<'_>) {
        self.spellings(frame);
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if scanner.tokens {
            self.key_goes_on(lane, frame);
            self.rules(rules::tokens(), Detector::TokenPatterns, lane, frame);
        }
        if scanner.injection {
            self.rules(rules::phrases(), Detector::Injection, lane, frame);
        }
        if let Some(own) = &scanner.own {
            own.find(&frame.view.bytes, |id, range| {
                if let Some(span) = frame.owned(&range)
                    && !scanner.is_harmless(&frame.view.bytes[range])
                {
                    let words = format!("what your rule `{id}` looks for");
                    self.plain_finding(id, Detector::OwnRules, Severity::Block, &words, span);
                }
            });
        }
    }

    /// Shapes in what stands in base64 in one view of the window.
    fn encoded(&mut self, frame: &Frame<'_>) {
        let scanner = self.scanner.clone();
        let scanner: &Scanner = scanner.borrow();
        if !scanner.tokens && scanner.own.is_none() {
            return;
        }
        let text = &frame.view.bytes;
        // Where the next window begins.
        let next = frame.core.end.saturating_sub(scanner.reach);
        let next = made_from(frame.view, next);
        let carried = self.base64.take();
        // What stands in base64 with a key goes with it, up to the end of the run.
        let mut key = self.keys[2].take().filter(|_| carried.is_some());
        for run in encoded::runs(text, carried) {
            if let Some(row) = key.take() {
                let start = made_from(frame.view, frame.core.start);
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
                            && !scanner.is_harmless(&decoded.bytes[found.span.clone()])
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
                            && !scanner.is_harmless(&decoded.bytes[range])
                        {
                            let words = format!("what your rule `{id}` looks for, in base64");
                            self.plain_finding(id, Detector::OwnRules, Severity::Block, &words, span);
                        }
                    });
                }
            }
            self.base64 = self.base64.or(run.at(next));
        }
    }

    /// The rest of a private key that began in an earlier window.
    fn key_goes_on(&mut self, lane: usize, frame: &Frame<'_>) {
        let Some(row) = self.keys[lane].take() else { return };
        let Some(armour) = row.armour else { return };
        let start = made_from(frame.view, frame.core.start);
        let body = armour.body(&frame.view.bytes[start..]);
        if body.open {
            self.keys[lane] = Some(row);
        }
        self.rest_of_key(row, frame, start..start + body.end);
    }

    /// Joined with what was found of it before, which ends behind the start of this window.
    fn rest_of_key(&mut self, row: &Row, frame: &Frame<'_>, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let span = Range64::at(frame.base, &frame.view.source_range(&range));
        self.plain_finding(row.id, Detector::TokenPatterns, row.severity, row.words, span);
    }

    /// Private keys as bytes, where `owned` says that they stand in this window.
    fn binary_keys(&mut self, text: &[u8], how: &str, owned: impl Fn(Range<usize>) -> Option<Range64>) {
        let mut all = Vec::new();
        rules::binary::find(text, |rule, words, range| all.push((rule, words, range)));
        for (rule, words, range) in all {
            // One with a line that names it was found by that line.
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
                && !scanner.is_harmless(&frame.view.bytes[found.span.clone()])
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

    /// Secrets in what the window encodes.
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

    /// Letters and digits of what the window owns, after those of the windows before it.
    fn pieces(&mut self, lane: usize, frame: &Frame<'_>) {
        let text = &frame.view.bytes;
        let start = made_from(frame.view, frame.core.start);
        let end = if frame.last { text.len() } else { made_from(frame.view, frame.core.end) };
        let own = &text[start..end];
        let carried: Vec<u8> = self.carry[lane].iter().map(|(letter, _)| *letter).collect();
        let letters = Letters::of(&carried, own);
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
        let found = places(own, &numbers);
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
        if !frame.last {
            let mut carry = carried.clone();
            carry.extend(last(own, PIECE - 1).into_iter().map(|(letter, place)| (letter, source(place))));
            carry.drain(..carry.len().saturating_sub(PIECE - 1));
            self.carry[lane] = carry;
        }
        for (owner, span) in spans {
            self.known(owner, span);
        }
    }
}

/// The first place of a view that comes from `place` of its source or from behind it.
fn made_from(view: &View<'_>, place: usize) -> usize {
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
