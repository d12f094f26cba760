//! Searches the lines of files.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use bottle_protocol::session::files::{
    ENTRIES_MAX, FileKind, FilePath, Grep, LINE_MAX, LineMatch, Matches, PATTERN_MAX,
};
use bottle_scan::OutputRedactor;
use regex::bytes::{Match, Regex, RegexBuilder};
use rustix::io::Errno;

use super::answer_size::AnswerSize;
use super::bounds::{Bounds, too_long};
use super::patterns::{self, Patterns, Scoped};
use super::walk::{Step, Visit, walk};
use super::workspace::{Workspace, cannot, open_regular};
use crate::failure::Outcome;

/// The maximum number of bytes that one search reads.
const BYTES_MAX: u64 = 2 << 30;

/// The maximum length of a line that is searched, in bytes. The rest of a longer line is not searched.
const SEARCHED_MAX: usize = 64 * 1024;

/// The length of a line in bytes above which the bounds of the request are checked after the line.
const LONG: usize = 4096;

/// The number of bytes at the beginning of a file that are searched for a NUL byte. A file with a NUL in these bytes is
/// treated as binary.
const SNIFFED: usize = 8 * 1024;

/// The size in bytes from which the bounds of the request are checked after a part of a line.
const PART: u64 = 16 * 1024;

/// The number of bytes before the match in the excerpt of a long line.
const BEFORE: usize = 100;

/// The maximum size of a compiled pattern in bytes.
const PATTERN_SIZE: usize = 2 << 20;

/// Searches the files in the scope of a request.
pub(super) fn grep(
    workspace: &Workspace,
    request: &Grep,
    bounds: &Bounds,
    redactor: Option<&OutputRedactor>,
) -> Outcome<Matches> {
    let scoped = Scoped::new(&request.scope)?;
    let include = Patterns::new(&request.include)?;
    let mut search = Search::new(request, bounds, redactor.filter(|_| request.redact))?;
    let directory = match workspace.directory(&scoped.place) {
        Ok(directory) => directory,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTDIR) => {
            let (file, _) = workspace.file(&scoped.place)?;
            search.file(file, &scoped.place.to_file_path());
            return Ok(search.found);
        }
        Err(error) => return Err(cannot("search", scoped.place.as_path(), &error)),
    };
    let mut visit = |visit: Visit<'_>| {
        let path = scoped.relative(visit.info.path.as_path());
        if scoped.excludes(path, visit.name) {
            return Ok(Step::Over);
        }
        let wanted = include.is_empty() || include.matches(path);
        if visit.info.kind == FileKind::File && wanted {
            match open_regular(visit.directory, visit.name) {
                Ok((file, _)) => search.file(file, &visit.info.path),
                Err(_) => search.found.skipped += 1,
            }
        }
        Ok(if search.found.stopped.is_some() { Step::Stop } else { Step::Into })
    };
    let walked = walk(&directory, scoped.place.as_path(), None, bounds, &mut visit)?;
    if walked.out_of_time {
        search.found.stopped = Some(too_long());
    }
    search.found.skipped += walked.unreadable;
    Ok(search.found)
}

/// Returns the reason of an error, without the lines that show the position.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// The state of a running search.
struct Search<'a> {
    pattern: Regex,
    limit: usize,
    bounds: &'a Bounds,
    /// Replaces secret values in the lines before the search, so that no pattern can match a part of a value.
    redactor: Option<&'a OutputRedactor>,
    size: AnswerSize,
    bytes: u64,
    found: Matches,
}

impl<'a> Search<'a> {
    fn new(request: &Grep, bounds: &'a Bounds, redactor: Option<&'a OutputRedactor>) -> Outcome<Self> {
        if request.pattern.len() > PATTERN_MAX {
            return Err(patterns::too_long());
        }
        let pattern = if request.literal { regex::escape(&request.pattern) } else { request.pattern.clone() };
        let pattern = RegexBuilder::new(&pattern)
            .case_insensitive(request.ignore_case)
            .size_limit(PATTERN_SIZE)
            .dfa_size_limit(PATTERN_SIZE)
            .build()
            .map_err(|error| patterns::bad(&request.pattern, reason(&error)))?;
        let limit = request.limit.clamp(1, ENTRIES_MAX) as usize;
        let (size, found) = (AnswerSize::default(), Matches::default());
        Ok(Self { pattern, limit, bounds, redactor, size, bytes: 0, found })
    }

    /// Searches a file if it is not binary.
    fn file(&mut self, file: File, path: &FilePath) {
        let mut reader = BufReader::with_capacity(SEARCHED_MAX, file);
        let binary = match reader.fill_buf() {
            Ok(begin) => memchr::memchr(0, begin.get(..SNIFFED).unwrap_or(begin)).is_some(),
            Err(_) => true,
        };
        if binary {
            self.found.skipped += 1;
            return;
        }
        self.found.files += 1;
        let mut line = Vec::new();
        let mut number = 0;
        while self.found.stopped.is_none() {
            // A single line may exceed the limit of the search, for example in a hole of a sparse file, so the limit is
            // checked for each part of a line.
            let counted = |read| {
                self.bytes += read;
                self.bytes <= BYTES_MAX && (read < PART || !self.bounds.passed())
            };
            if !next_line(&mut reader, &mut line, counted).unwrap_or(false) {
                return self.check_bounds();
            }
            number += 1;
            self.line(path, number, &line);
        }
    }

    fn check_bounds(&mut self) {
        if self.bytes > BYTES_MAX {
            self.found.stopped = Some(format!("it read {} GiB", BYTES_MAX >> 30));
        } else if self.bounds.passed() {
            self.found.stopped = Some(too_long());
        }
    }

    /// Searches a line, and checks the bounds.
    fn line(&mut self, path: &FilePath, number: u64, line: &[u8]) {
        let line = match self.redactor {
            Some(redactor) => redactor.redact_part(line, 0..line.len()),
            None => line.into(),
        };
        let line = &*line;
        if let Some(found) = self.pattern.find(line) {
            let (text, cut) = excerpt(line, found);
            let full = self.found.matches.len() >= self.limit;
            if full || !self.size.add(&[path.as_bytes(), text.as_bytes()]) {
                self.found.stopped = Some("it found more lines than its limit".to_owned());
                return;
            }
            self.found.matches.push(LineMatch { path: path.clone(), line: number, text, cut });
        }
        if number.is_multiple_of(64) || line.len() > LONG {
            self.check_bounds();
        }
    }
}

/// Reads the next line without its line break into `line`. A long line is truncated. `counted` receives the size of
/// each part that was read, in bytes, and returns whether to continue. Returns false if there is no further line, or if
/// `counted` returned false.
fn next_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    mut counted: impl FnMut(u64) -> bool,
) -> io::Result<bool> {
    line.clear();
    let mut read = false;
    loop {
        let part = reader.fill_buf()?;
        if part.is_empty() {
            return Ok(read);
        }
        let end = memchr::memchr(b'\n', part);
        let text = part.get(..end.unwrap_or(part.len())).unwrap_or_default();
        let kept = text.len().min(SEARCHED_MAX.saturating_sub(line.len()));
        line.extend_from_slice(text.get(..kept).unwrap_or_default());
        let used = text.len() + usize::from(end.is_some());
        reader.consume(used);
        read = true;
        if !counted(used as u64) {
            return Ok(false);
        }
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(true);
        }
    }
}

/// Returns the line, or the part of a long line around the match. The flag is true if only a part is returned.
fn excerpt(line: &[u8], found: Match<'_>) -> (String, bool) {
    if line.len() <= LINE_MAX {
        return (String::from_utf8_lossy(line).into_owned(), false);
    }
    let begin = found.start().saturating_sub(BEFORE).min(line.len() - LINE_MAX);
    let part = line.get(begin..begin + LINE_MAX).unwrap_or_default();
    (String::from_utf8_lossy(part).into_owned(), true)
}
