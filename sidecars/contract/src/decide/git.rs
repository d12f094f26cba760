//! Step 3: detects git over HTTP, under the most lenient reading of any server.
//!
//! Forges tolerate different spellings: a trailing slash, another case, nested encodings. A rule for one of
//! them is bypassed on another. A request is therefore a push if any reading makes it one, or if its headers
//! say so, whatever its path is.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::matching::Methods;
use crate::canonical::{Path, Target};
use crate::route::Route;

/// The git operation of a request, if it is one. `target` is in canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Git {
    /// Clone or fetch.
    Fetch,
    /// Push.
    Push,
    /// LFS; only its body shows the direction.
    Lfs,
}

/// Why a git operation is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// Pushes go through the git gate.
    Push,
    /// The route does not allow fetching.
    Fetch,
    /// The route carries a credential that LFS could upload with.
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

/// The service names by their letters alone, which every spelling keeps.
const PUSH: &str = "gitreceivepack";
const FETCHES: [&str; 2] = ["gituploadpack", "gituploadarchive"];

/// Methods that do not write to a repository over WebDAV (RFC 4918); `git http-push` uses the others.
const NOT_DAV: [&str; 7] = ["GET", "HEAD", "OPTIONS", "POST", "PROPFIND", "REPORT", "SEARCH"];

/// The git operation of a request, if it is one. `target` is in canonical form.
pub(super) fn operation(methods: &Methods<'_>, target: &Target<'_>, headers: &HeaderMap) -> Option<Git> {
    let by_headers = by_media_type(headers);
    if by_headers == Some(Git::Push) {
        return by_headers;
    }
    let by_target = if may_be(target) { by_target(methods, target) } else { None };
    by_target.or(by_headers).or_else(|| {
        // Git clients send this header only in git requests; a write to an unknown path counts as a push.
        let has_protocol = headers.contains_key("git-protocol");
        has_protocol.then(|| if methods.only_read() { Git::Fetch } else { Git::Push })
    })
}

/// The operation by git's media types, in any header that carries one.
fn by_media_type(headers: &HeaderMap) -> Option<Git> {
    let mentions = |word: &str| {
        let values = [CONTENT_TYPE, ACCEPT].into_iter().flat_map(|name| headers.get_all(name));
        values.into_iter().any(|value| contains(value.as_bytes(), word.as_bytes()))
    };
    if mentions("git-receive-pack") { Some(Git::Push) } else { mentions("git-upload-").then_some(Git::Fetch) }
}

/// Whether the target may be a git request. Does not allocate; rejects nearly every target.
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

/// Whether any key that a server may read as `service` has_protocol for a push.
fn pushes_by_service(query: &str) -> bool {
    let whole = decoded(query);
    [query, &whole].iter().flat_map(|text| text.split(['&', ';', '?'])).any(|pair| {
        pair.split_once('=').is_some_and(|(key, value)| {
            letters(&decoded(key)).contains("service") && letters(&decoded(value)).contains("receivepack")
        })
    })
}

/// A path under several lenient readings.
pub(super) struct Readings {
    /// The path in lower case, decoded until stable.
    whole: String,
    /// The segments without empty ones, parameters and trailing dots: once with `..` dropped, once with `..`
    /// resolved.
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

    /// Whether two adjacent segments satisfy `are` in any reading.
    fn has(&self, are: impl Fn([&str; 2]) -> bool) -> bool {
        let pairs = self.segments.iter().flat_map(|segments| segments.windows(2));
        pairs.filter_map(|pair| Some([pair.first()?, pair.get(1)?])).any(|[one, other]| are([one, other]))
    }

    /// Whether the path names a service, given by its letters: at the end, or anywhere if the request may
    /// write.
    fn names(&self, methods: &Methods<'_>, service: &str) -> bool {
        let last = |segments: &Vec<String>| segments.last().is_some_and(|last| letters(last) == service);
        self.segments.iter().any(last) || (!methods.only_read() && letters(&self.whole).contains(service))
    }

    /// Whether the path is a file of a repository, as WebDAV servers expose.
    fn is_in_repository(&self) -> bool {
        let hex = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_file = |segments: &Vec<String>| {
            segments.iter().enumerate().any(|(at, word)| {
                // Below `git` it is an API path (`/repos/o/r/git/refs/heads/x`), which other rules cover.
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

/// Whether `segment` is `word`, or `word` with a suffix that some servers cut (`refs.json`).
fn is_word(segment: &str, word: &str) -> bool {
    let rest = segment.strip_prefix(word);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Percent-decodes until stable, IIS's `%uXXXX` included.
pub(super) fn decoded(text: &str) -> String {
    let mut text = text.to_owned();
    if !text.contains('%') {
        return text;
    }
    // Each round removes at least two characters; no server decodes more often than this.
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

/// Decodes `%u002d` to `-`; leaves other sequences unchanged.
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

/// The letters and digits of a text in lower case: a service name regardless of separators.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}
