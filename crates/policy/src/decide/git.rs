//! Step 3 of [`decide`](super::decide()): detects git over HTTP, in the most lenient interpretation of any
//! server.
//!
//! Forges tolerate different spellings: a trailing slash, another case, nested encodings. A rule that is written for
//! one forge could be bypassed on another. A request is therefore treated as a push if any interpretation of its path
//! is the path of a push, or if its headers indicate a push.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::matching::Methods;
use crate::canonical::{Path, Target};
use crate::route::Route;

/// A git operation over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Git {
    /// A clone or fetch.
    Fetch,
    /// A push.
    Push,
    /// Git LFS. Only the body shows whether the request uploads or downloads.
    Lfs,
}

/// Why a git operation is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// Pushes must go through the git gate.
    Push,
    /// The route does not allow fetching.
    Fetch,
    /// The route has a credential that LFS could use to upload files.
    LfsWithCredential,
}

impl Git {
    /// Whether `route` allows the operation.
    pub(super) fn permitted(self, route: &Route) -> Result<(), Denied> {
        match self {
            Self::Push => Err(Denied::Push),
            Self::Fetch | Self::Lfs if !route.git_fetch => Err(Denied::Fetch),
            Self::Lfs if route.auth.is_some() || route.pass_credentials => Err(Denied::LfsWithCredential),
            Self::Fetch | Self::Lfs => Ok(()),
        }
    }
}

/// The name of git's service for pushes, reduced to its letters. Every spelling has the same letters.
const PUSH: &str = "gitreceivepack";
const FETCHES: [&str; 2] = ["gituploadpack", "gituploadarchive"];

/// Methods that do not write to a repository over WebDAV (RFC 4918). `git http-push` uses other methods.
const NOT_DAV: [&str; 7] = ["GET", "HEAD", "OPTIONS", "POST", "PROPFIND", "REPORT", "SEARCH"];

/// Returns the git operation of a request, or `None` if it is not a git request. `target` is in canonical
/// form.
pub(super) fn operation(methods: &Methods<'_>, target: &Target<'_>, headers: &HeaderMap) -> Option<Git> {
    let by_headers = by_media_type(headers);
    if by_headers == Some(Git::Push) {
        return by_headers;
    }
    let by_target = if may_be(target) { by_target(methods, target) } else { None };
    by_target.or(by_headers).or_else(|| {
        // Git clients send this header only in git requests. A write to an unknown path is therefore treated as a push.
        let has_protocol = headers.contains_key("git-protocol");
        has_protocol.then(|| if methods.only_read() { Git::Fetch } else { Git::Push })
    })
}

/// Detects the operation from git's media types in `Content-Type` and `Accept`.
fn by_media_type(headers: &HeaderMap) -> Option<Git> {
    let mentions = |word: &str| {
        let values = [CONTENT_TYPE, ACCEPT].into_iter().flat_map(|name| headers.get_all(name));
        values.into_iter().any(|value| contains(value.as_bytes(), word.as_bytes()))
    };
    if mentions("git-receive-pack") { Some(Git::Push) } else { mentions("git-upload-").then_some(Git::Fetch) }
}

/// Whether the target may belong to a git request. The check does not allocate, and rejects nearly every target that is
/// not a git request.
fn may_be(target: &Target<'_>) -> bool {
    let path = target.path.text.as_bytes();
    let query = target.query.as_deref().unwrap_or_default().as_bytes();
    target.path.ambiguous.is_some()
        || contains(path, b"git")
        || contains(path, b"info/")
        || contains(path, b"objects/")
        || contains(path, b"refs/")
        || contains(query, b"service")
        || query.contains(&b'%')
}

fn by_target(methods: &Methods<'_>, target: &Target<'_>) -> Option<Git> {
    let readings = Readings::new(&target.path);
    let query = target.query.as_deref().unwrap_or_default();
    let announces = readings.has(|[info, refs]| info == "info" && is_word(refs, "refs"));
    let names_push = |text: &str| letters(text).contains("receivepack");
    if readings.names(methods, PUSH)
        || pushes_by_service(query)
        || (announces && (names_push(&decoded(query)) || names_push(&readings.whole)))
        || (!methods.all_of(&NOT_DAV) && readings.is_in_repository())
    {
        Some(Git::Push)
    } else if readings.has(|[info, lfs]| info == "info" && lfs == "lfs") {
        Some(Git::Lfs)
    } else if announces || FETCHES.iter().any(|service| readings.names(methods, service)) {
        Some(Git::Fetch)
    } else {
        None
    }
}

/// Whether any key that a server may interpret as `service` has the value for a push.
fn pushes_by_service(query: &str) -> bool {
    let whole = decoded(query);
    [query, &whole].iter().flat_map(|text| text.split(['&', ';', '?'])).any(|pair| {
        pair.split_once('=').is_some_and(|(key, value)| {
            letters(&decoded(key)).contains("service") && letters(&decoded(value)).contains("receivepack")
        })
    })
}

/// A path in several lenient interpretations.
pub(super) struct Readings {
    /// The path in lower case, percent-decoded until it no longer changes.
    whole: String,
    /// The segments without empty segments, parameters and trailing dots. In the first list, `..` is dropped. In the
    /// second list, `..` is resolved.
    pub(super) segments: [Vec<String>; 2],
}

impl Readings {
    pub(super) fn new(path: &Path<'_>) -> Self {
        let whole = decoded(&path.text).to_ascii_lowercase().replace('\\', "/");
        let (mut dropped, mut resolved) = (Vec::new(), Vec::new());
        for segment in whole.split('/') {
            let cut = segment.split([';', '\0', '?', '#']).next().unwrap_or_default();
            if cut.trim() == ".." {
                resolved.pop();
                continue;
            }
            let cut = cut.trim_matches(|c: char| c.is_whitespace() || c.is_control());
            let cut = cut.trim_end_matches(['.', ' ']);
            if !cut.is_empty() {
                dropped.push(cut.to_owned());
                resolved.push(cut.to_owned());
            }
        }
        Self { whole, segments: [dropped, resolved] }
    }

    /// Whether `are` accepts two adjacent segments in any interpretation.
    fn has(&self, are: impl Fn([&str; 2]) -> bool) -> bool {
        let pairs = self.segments.iter().flat_map(|segments| segments.windows(2));
        pairs.filter_map(|pair| Some([pair.first()?, pair.get(1)?])).any(|[one, other]| are([one, other]))
    }

    /// Whether the path contains the name of a service. `service` contains only the letters of the name. If the request
    /// may write, the name may be anywhere in the path. Otherwise, the name must be at the end of the path.
    fn names(&self, methods: &Methods<'_>, service: &str) -> bool {
        let last = |segments: &Vec<String>| segments.last().is_some_and(|last| letters(last) == service);
        self.segments.iter().any(last) || (!methods.only_read() && letters(&self.whole).contains(service))
    }

    /// Whether the path is a file inside a repository, as WebDAV servers expose it.
    fn is_in_repository(&self) -> bool {
        let hex = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_file = |segments: &Vec<String>| {
            segments.iter().enumerate().any(|(at, word)| {
                // After a segment `git`, the word is part of an API path (`/repos/o/r/git/refs/heads/x`), to
                // which other rules apply.
                let before = at.checked_sub(1).and_then(|at| segments.get(at));
                let next = segments.get(at + 1).map(String::as_str).unwrap_or_default();
                let inside = match word.as_str() {
                    "info" => is_word(next, "refs") || next == "lfs",
                    "refs" => matches!(next, "heads" | "tags"),
                    "objects" => hex(next) || matches!(next, "pack" | "info"),
                    _ => false,
                };
                word.ends_with(".git") || (inside && before.is_none_or(|before| before != "git"))
            })
        };
        self.segments.iter().any(is_file)
    }
}

/// Whether `segment` is `word`, or `word` with a suffix that some servers ignore (`refs.json`).
fn is_word(segment: &str, word: &str) -> bool {
    let rest = segment.strip_prefix(word);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Percent-decodes until the text no longer changes. Also decodes `%u` and four digits, which IIS supports.
pub(super) fn decoded(text: &str) -> String {
    let mut text = text.to_owned();
    if !text.contains('%') {
        return text;
    }
    // Each round removes at least two characters, and no server decodes more often than this.
    for _ in 0..6 {
        let unescaped = decode_iis_escapes(&text);
        let next = percent_encoding::percent_decode_str(&unescaped).decode_utf8_lossy().into_owned();
        if next == text {
            break;
        }
        text = next;
    }
    text
}

/// Decodes sequences such as `%u002d` (`-`) and leaves all other text unchanged.
fn decode_iis_escapes(text: &str) -> String {
    let mut parts = text.split("%u");
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match digits.and_then(char::from_u32) {
            Some(c) => {
                made.push(c);
                made.push_str(part.get(4..).unwrap_or_default());
            }
            None => {
                made.push_str("%u");
                made.push_str(part);
            }
        }
    }
    made
}

/// Returns the letters and digits of a text in lower case, so that a service name matches regardless of its
/// separators.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}
