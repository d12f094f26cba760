//! Scans a blob in several views, and determines the line numbers of findings.

use bottle_scan::{Finding, Report, Scanner, Stream};
use sha2::{Digest, Sha256};

use crate::archives::{ArchiveReport, Archives};
use crate::excerpt::{LONGEST_LINE, excerpt};

/// The number of bytes at the start of a line that are searched for `gitleaks:allow`. A `gitleaks:allow` comment after
/// these bytes has no effect.
const LINE: usize = LONGEST_LINE;

/// The comment with which an author marks a line as free of secrets.
const MARK: &[u8] = b"gitleaks:allow";

/// The views of a blob that are scanned: the unchanged bytes, the bytes without zeros (for UTF-16 and
/// UTF-32), and the unpacked contents of archives.
pub(crate) struct Views<'s> {
    scanner: &'s Scanner,
    path: Option<&'s str>,
    plain: Stream<&'s Scanner>,
    wide: Option<Stream<&'s Scanner>>,
    archives: Archives<'s>,
    narrow: Vec<u8>,
}

/// The scan results of all views.
pub(crate) struct BlobReport {
    pub(crate) plain: Report,
    pub(crate) wide: Report,
    pub(crate) unpacked: ArchiveReport,
}

impl BlobReport {
    /// Drops all findings that `keep` does not accept.
    pub(crate) fn keep_only(&mut self, keep: impl Fn(&Finding) -> bool) {
        for report in [&mut self.plain, &mut self.wide] {
            report.findings.retain(&keep);
        }
        self.unpacked.findings.retain(|packed| keep(&packed.finding));
    }
}

impl<'s> Views<'s> {
    /// Prepares the scan of a blob. `path` determines which of the user's rules and allowlists apply, and is `None` if
    /// it is unknown.
    pub(crate) fn new(scanner: &'s Scanner, path: Option<&'s str>) -> Self {
        Self {
            scanner,
            path,
            plain: scanner.stream_of(path),
            wide: None,
            archives: Archives::new(scanner, path),
            narrow: Vec::new(),
        }
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) {
        self.plain.feed(piece);
        self.archives.feed(piece);
        if self.wide.is_none() && piece.contains(&0) {
            self.wide = Some(self.scanner.stream_of(self.path));
        }
        if let Some(wide) = &mut self.wide {
            self.narrow.clear();
            self.narrow.extend(piece.iter().filter(|byte| **byte != 0));
            wide.feed(&self.narrow);
        }
    }

    pub(crate) fn finish(self) -> BlobReport {
        BlobReport {
            plain: self.plain.finish(),
            wide: self.wide.map_or(Report { findings: Vec::new(), more: false }, Stream::finish),
            unpacked: self.archives.finish(),
        }
    }
}

/// Determines the line numbers of findings in a second pass over the blob.
pub(crate) struct Lines<'s> {
    scanner: &'s Scanner,
    findings: Vec<LineFinding>,
    at: u64,
    line: u64,
    begin: u64,
    text: Vec<u8>,
}

/// A finding with the line in which it begins.
pub(crate) struct LineFinding {
    start: u64,
    end: u64,
    hash: Sha256,
    /// The line of the first byte of the finding, counted from 1.
    pub(crate) line: Option<u64>,
    /// Whether any line of the finding contains `gitleaks:allow`.
    pub(crate) marked: bool,
    /// The line in which the finding begins, without secrets.
    pub(crate) excerpt: Option<String>,
}

impl LineFinding {
    /// Returns the hash of the matched value, which is used for deduplication.
    pub(crate) fn value(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }
}

impl<'s> Lines<'s> {
    pub(crate) fn new<'f>(findings: impl IntoIterator<Item = &'f Finding>, scanner: &'s Scanner) -> Self {
        let pending = |finding: &Finding| {
            let (start, end) = (finding.span.start, finding.span.end);
            LineFinding { start, end, hash: Sha256::new(), line: None, marked: false, excerpt: None }
        };
        let findings = findings.into_iter().map(pending).collect();
        Self { scanner, findings, at: 0, line: 1, begin: 0, text: Vec::new() }
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            let covers = |finding: &&mut LineFinding| finding.start <= self.at && self.at < finding.end;
            for finding in self.findings.iter_mut().filter(covers) {
                finding.line.get_or_insert(self.line);
                finding.hash.update([byte]);
            }
            self.at += 1;
            if byte == b'\n' {
                self.end_line();
                (self.line, self.begin) = (self.line + 1, self.at);
                self.text.clear();
            } else if self.text.len() < LINE {
                self.text.push(byte);
            }
        }
    }

    /// Returns the findings in the order in which they were passed.
    pub(crate) fn finish(mut self) -> Vec<LineFinding> {
        self.end_line();
        self.findings
    }

    /// Builds the excerpts of the findings that begin in the line that ends. If the line contains `gitleaks:allow`,
    /// marks all findings in the line.
    fn end_line(&mut self) {
        self.excerpt_line();
        if self.text.windows(MARK.len()).any(|window| window.eq_ignore_ascii_case(MARK)) {
            let in_line = |finding: &&mut LineFinding| finding.start < self.at && self.begin < finding.end;
            self.findings.iter_mut().filter(in_line).for_each(|finding| finding.marked = true);
        }
    }

    fn excerpt_line(&mut self) {
        let (begin, end) = (self.begin, self.at);
        let begins = |finding: &LineFinding| (begin..end).contains(&finding.start);
        // A longer line gets no excerpt, because `text` contains only the beginning of the line.
        if self.text.len() >= LINE || !self.findings.iter().any(begins) {
            return;
        }
        let place = |at: u64| usize::try_from(at.saturating_sub(begin)).unwrap_or(usize::MAX);
        let range = |finding: &LineFinding| place(finding.start)..place(finding.end);
        let overlapping = self.findings.iter().filter(|finding| finding.start < end && begin < finding.end);
        let all: Vec<_> = overlapping.map(range).collect();
        for finding in self.findings.iter_mut().filter(|finding| begins(finding)) {
            finding.excerpt = excerpt(&self.text, range(finding), all.iter().cloned(), self.scanner);
        }
    }
}
