//! Git for `pull` and `diff`: the host's git and the git in the bottle.
//!
//! ```text
//!  host's git fetch ── GIT_SSH_COMMAND ──► bottle __git-pipe ── keeper ──► exec in the bottle: git upload-pack
//! ```
//! The program on the host chooses the command that runs in the bottle. The command's output is a pack, which
//! the host's git checks object by object, and text, which is shown escaped. The agent controls the git in
//! the bottle, so its output may be false. The output can affect which message is shown, but not which
//! changes the user sees.
//!
//! - `host`: the host's git, which uses only the repository's own configuration and one transport
//! - `identity`: the user's name and address for commits
//! - `bottle_git`: git commands in the bottle, whose output is limited
//! - `root`: the parts of a workspace that are compared by themselves
//! - `beside`: finds what is in none of these parts
//! - `pipe`: the transport between the host's git and the bottle
//! - `scratch`: a temporary repository in which a bottle's history and workspace are compared with the user's
//!   commit
//! - `workspace`: imports the files of a workspace into the temporary repository
//! - `work`: opens a bottle's work for a comparison
//! - `changes`: lists the files that differ, and packs their content in the base
//! - `merge`, `folder`: merge a bottle's work with the files of a folder
//! - `applied`: records which files `bottle apply` last applied
//! - `uncommitted`: commits the uncommitted work of a bottle
//! - `ignored`: decides which of these files a diff leaves out

mod applied;
mod beside;
mod bottle_git;
mod changes;
mod folder;
mod host;
mod identity;
mod ignored;
mod merge;
#[cfg(test)]
mod patch_tests;
mod pipe;
mod root;
mod scratch;
mod uncommitted;
mod work;
mod workspace;

pub(crate) use beside::Beside;
pub(crate) use bottle_git::{BottleGit, copy_out_hint, nothing_committed};
pub(crate) use changes::Change;
pub(crate) use folder::is_inside;
pub(crate) use host::{Fetched, Repository};
pub(crate) use identity::identity;
pub(crate) use merge::{Conflict, Merge};
pub(crate) use pipe::run as pipe;
pub(crate) use root::{Root, quoted};
pub(crate) use scratch::{Compared, Content, Form, Scratch, Text};
pub(crate) use uncommitted::{Author, Uncommitted};
pub(crate) use work::Work;
pub(crate) use workspace::LeftOut;

/// The id of a commit or tree, in SHA-1 or SHA-256. Ids are the only part of one git's output that is passed
/// to commands of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectId(String);

impl ObjectId {
    /// Parses an id. Whitespace around it is ignored.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The first characters, for messages.
    pub(crate) fn short(&self) -> &str {
        &self.0[..self.0.len().min(12)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_complete_object_ids() {
        let sha1 = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(ObjectId::parse(&format!("{sha1}\n")).as_ref().map(ObjectId::as_str), Some(sha1));
        for text in
            ["", "HEAD", "--upload-pack=x", &sha1[1..], &sha1.to_uppercase(), &format!("{sha1} {sha1}")]
        {
            assert_eq!(ObjectId::parse(text), None, "{text}");
        }
    }
}
