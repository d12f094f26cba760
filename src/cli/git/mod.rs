//! The two gits of `pull` and `diff`: the host's, and the one in the bottle.
//!
//! ```text
//!  host's git fetch ── GIT_SSH_COMMAND ──► bottle __git-pipe ── keeper ──► exec in the bottle: git upload-pack
//! ```
//! What runs inside is chosen here and never by what is inside; what comes out is a pack that the host's git
//! checks object by object, and text that is shown inert. The git inside is the agent's and may say anything: what it
//! says decides a message, and never what the user is shown of a change.
//!
//! - `host`: the host's git, with no configuration but the repository's own and no transport but ours
//! - `inside`: a command in the bottle, its output bounded
//! - `pipe`: the transport
//! - `scratch`: a repository of our own, in which a bottle's history and workspace are compared with the user's
//! - `workspace`: the files of a workspace, on their way into it
//! - `ignored`: which of them a diff leaves out

mod host;
mod ignored;
mod inside;
mod pipe;
mod scratch;
mod workspace;

pub(crate) use host::{Fetched, Repository};
pub(crate) use inside::{Inside, as_it_is};
pub(crate) use pipe::run as pipe;
pub(crate) use scratch::{Compared, Scratch};
pub(crate) use workspace::LeftOut;

/// A commit's or a tree's name, in SHA-1 or SHA-256. Nothing else is passed from one git to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectId(String);

impl ObjectId {
    /// The name that this text is, spaces around it aside.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_name_is_one() {
        let sha1 = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(ObjectId::parse(&format!("{sha1}\n")).as_ref().map(ObjectId::as_str), Some(sha1));
        for text in
            ["", "HEAD", "--upload-pack=x", &sha1[1..], &sha1.to_uppercase(), &format!("{sha1} {sha1}")]
        {
            assert_eq!(ObjectId::parse(text), None, "{text}");
        }
    }
}
