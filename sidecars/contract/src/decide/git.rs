//! Step 3: git over HTTP, told apart on the loosest reading that any server could make.
//!
//! Forges differ in what they forgive: a slash at the end, a letter's case, an encoding inside an encoding. A rule
//! that follows one of them is passed on another. So a request is a push when any reading makes it one; and also when
//! its headers say so, whatever its path is.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::matching::Methods;
use crate::canonical::{Path, Target};
use crate::route::Route;

/// What a request is to git.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Git {
    /// Clone or fetch.
    Fetch,
    /// Push.
    Push,
    /// LFS, whose direction only the body tells.
    Lfs,
}

/// Why git is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// Pushes go through the gate.
    Push,
    /// The route does not allow fetching.
    Fetch,
    /// The route carries a credential that LFS could upload with.
    LfsWithCredential,
}

impl Git {
    /// Whether `route` lets it pass.
    pub(super) fn permitted(self, route: &Route) -> Result<(), Denied> {
        match self {
            Self::Push => Err(Denied::Push),
            Self::Fetch | Self::Lfs if !route.git_fetch => Err(Denied::Fetch),
            Self::Lfs if route.auth.is_some() || route.pass_credentials => Err(Denied::LfsWithCredential),
            Self::Fetch | Self::Lfs => Ok(()),
        }
    }
}

/// The services by the letters of their names, which every spelling keeps.
const PUSH: &str = "gitreceivepack";
const FETCHES: [&str; 2] = ["gituploadpack", "gituploadarchive"];

/// Methods that write to no repository over WebDAV (RFC 4918), as `git http-push` does.
const NOT_DAV: [&str; 7] = ["GET", "HEAD", "OPTIONS", "POST", "PROPFIND", "REPORT", "SEARCH"];

/// What a request is to git, if anything. `target` is in canonical form.
pub(super) fn kind(methods: &Methods<'_>, target: &Target<'_>, headers: &HeaderMap) -> Option<Git> {
    let said = by_media_type(headers);
    if said == Some(Git::Push) {
        return said;
    }
    let by_target = if may_be(target) { by_target(methods, target) } else { None };
    by_target.or(said).or_else(|| {
        // git's clients ask for a protocol only where they speak it; a write at no address known is taken for a push.
        let asks = headers.contains_key("git-protocol");
        asks.then(|| if methods.only_read() { Git::Fetch } else { Git::Push })
    })
}

/// What git's own media types say, wherever they are sent.
fn by_media_type(headers: &HeaderMap) -> Option<Git> {
    let says = |word: &str| {
        let values = [CONTENT_TYPE, ACCEPT].into_iter().flat_map(|name| headers.get_all(name));
        values.into_iter().any(|value| contains(value.as_bytes(), word.as_bytes()))
    };
    if says("git-receive-pack") { Some(Git::Push) } else { says("git-upload-").then_some(Git::Fetch) }
}

/// Whether the target could be of git at all, judged without allocating: nearly none is.
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
    let readings = Readings::of(&target.path);
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

/// Whether any key that a server may take for `service` asks for a push.
fn pushes_by_service(query: &str) -> bool {
    let whole = decoded(query);
    [query, &whole].iter().flat_map(|text| text.split(['&', ';', '?'])).any(|pair| {
        pair.split_once('=').is_some_and(|(key, value)| {
            letters(&decoded(key)).contains("service") && letters(&decoded(value)).contains("receivepack")
        })
    })
}

/// A path as servers that are more lenient than each other may read it.
pub(super) struct Readings {
    /// Lower case, decoded until nothing changes.
    whole: String,
    /// Its segments without empty ones, parameters and dots: once with `..` left out, once with it resolved.
    pub(super) segments: [Vec<String>; 2],
}

impl Readings {
    pub(super) fn of(path: &Path<'_>) -> Self {
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

    /// Whether two neighbours are so in any reading.
    fn has(&self, are: impl Fn([&str; 2]) -> bool) -> bool {
        let pairs = self.segments.iter().flat_map(|segments| segments.windows(2));
        pairs.filter_map(|pair| Some([pair.first()?, pair.get(1)?])).any(|[one, other]| are([one, other]))
    }

    /// Whether a service, given by its letters, is asked for: at the end of the path; of a request that may write,
    /// anywhere in it.
    fn names(&self, methods: &Methods<'_>, service: &str) -> bool {
        let last = |segments: &Vec<String>| segments.last().is_some_and(|last| letters(last) == service);
        self.segments.iter().any(last) || (!methods.only_read() && letters(&self.whole).contains(service))
    }

    /// Whether it lies in the files of a repository, which a server with WebDAV hands out.
    fn is_in_repository(&self) -> bool {
        let hex = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_file = |segments: &Vec<String>| {
            segments.iter().enumerate().any(|(at, word)| {
                // Below `git` they are an API's (`/repos/o/r/git/refs/heads/x`), which other rules know.
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

/// Whether `segment` is `word`, or begins with it and goes on with what some servers cut off (`refs.json`).
fn is_word(segment: &str, word: &str) -> bool {
    let rest = segment.strip_prefix(word);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Percent-decoded until nothing changes, IIS's `%uXXXX` included.
pub(super) fn decoded(text: &str) -> String {
    let mut text = text.to_owned();
    if !text.contains('%') {
        return text;
    }
    // Each round takes two characters away at least, and nobody decodes more often than this.
    for _ in 0..6 {
        let wide = wide(&text);
        let next = percent_encoding::percent_decode_str(&wide).decode_utf8_lossy().into_owned();
        if next == text {
            break;
        }
        text = next;
    }
    text
}

/// `%u002d` as `-`; what stands for no character stays.
fn wide(text: &str) -> String {
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

/// The letters and digits of a text, lower case: a service's name whatever stands between its words.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}
