//! Step 3: smart-HTTP git, told apart by the canonical path and query.

use std::borrow::Cow;

use crate::canonical::{Target, decoded_pairs};
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

/// What `target` is to git, if anything. A path with several readings counts as git when any of them
/// is, so that a push cannot hide behind an encoded slash.
pub(super) fn kind(method: &str, target: &Target<'_>) -> Option<Git> {
    let path = match target.path.ambiguous {
        None => Cow::Borrowed(target.path.text.as_ref()),
        Some(_) => Cow::Owned(loosest(&target.path.text)),
    };
    let (rest, last) = path.rsplit_once('/')?;
    let is = |name: &str| last.eq_ignore_ascii_case(name);
    if is("git-receive-pack") {
        Some(Git::Push)
    } else if is("git-upload-pack") || is("git-upload-archive") {
        Some(Git::Fetch)
    } else if is("refs") && ends_with(rest, "/info") {
        Some(advertisement(method, target.query.as_deref()))
    } else if contains(&path, "/info/lfs/") {
        Some(Git::Lfs)
    } else {
        None
    }
}

/// `/info/refs`: which service it announces. Writing to it is the old push over WebDAV.
fn advertisement(method: &str, query: Option<&str>) -> Git {
    let reads = matches!(method, "GET" | "HEAD" | "POST");
    let pushes = decoded_pairs(query.unwrap_or_default())
        .any(|(key, value)| key.trim() == "service" && value.to_ascii_lowercase().contains("receive-pack"));
    if pushes || !reads { Git::Push } else { Git::Fetch }
}

/// The reading of a path by the most lenient server there is: decoded until nothing changes, split at
/// backslashes too, each segment cut at `;` or NUL and rid of dots and spaces at its end.
pub(super) fn loosest(path: &str) -> String {
    let mut text = path.to_owned();
    // Three times over is twice more than any server does.
    for _ in 0..3 {
        text = percent_encoding::percent_decode_str(&text).decode_utf8_lossy().into_owned();
    }
    let text = text.replace('\\', "/");
    let segments = text.split('/').map(|segment| {
        let cut = segment.split([';', '\0']).next().unwrap_or_default();
        cut.trim_end_matches(['.', ' '])
    });
    let kept: Vec<&str> = segments.filter(|segment| !segment.is_empty()).collect();
    format!("/{}", kept.join("/"))
}

fn ends_with(text: &str, end: &str) -> bool {
    let from = text.len().checked_sub(end.len());
    from.and_then(|from| text.get(from..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

fn contains(text: &str, part: &str) -> bool {
    text.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}
