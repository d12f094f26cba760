//! What things are called: slugs and manifest names, ports, and the paths inside every bottle.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The longest slug, in characters; it ends up in host names, labels and socket paths.
pub const SLUG_MAX: usize = 40;

/// The proxy's names inside every bottle, on every backend.
pub const EGRESS_HOST: &str = "egress";
/// The supervise server's name inside every bottle.
pub const SUPERVISE_HOST: &str = "supervise";
/// The git gate's name inside every bottle.
pub const GIT_GATE_HOST: &str = "git-gate";
/// The name under which the proxy answers questions about itself.
pub const INTROSPECTION_HOST: &str = "_egress.local";

/// A host that no manifest can list, since `.invalid` is nobody's (RFC 2606): what is asked for to see the proxy
/// refuse.
pub const NEVER_LISTED: &str = "not-on-the-list.invalid";

/// Proxy port of the egress proxy.
pub const EGRESS_PORT: u16 = 9099;
/// The MCP server's port.
pub const SUPERVISE_PORT: u16 = 9100;
/// The git gate's port.
pub const GIT_GATE_PORT: u16 = 9420;
/// The transparent way in, plain.
pub const HTTP_PORT: u16 = 80;
/// The transparent way in, TLS.
pub const HTTPS_PORT: u16 = 443;
/// The bottle's resolver, UDP and TCP.
pub const DNS_PORT: u16 = 53;

/// The ports that lead to the egress daemon. With the socket transport each one is a unix socket of
/// that name in the proxy's folder, so a forwarded connection needs no preamble to say what it is.
pub const EGRESS_PORTS: [u16; 3] = [EGRESS_PORT, HTTP_PORT, HTTPS_PORT];

/// The part of the proxy that leads to the git gate.
pub const GATE_PORTS: [u16; 1] = [GIT_GATE_PORT];

/// The part of the proxy that leads to the MCP server.
pub const SUPERVISE_PORTS: [u16; 1] = [SUPERVISE_PORT];

/// Every port of the proxy: what is listened on inside a bottle whose proxy comes by socket.
pub const LISTENER_PORTS: [u16; 5] = [EGRESS_PORT, HTTP_PORT, HTTPS_PORT, SUPERVISE_PORT, GIT_GATE_PORT];

/// Where the proxy is seen when it comes by socket: a loopback address of its own, so that the agent's
/// own servers on 127.0.0.1 and the proxy never meet.
pub const PROXY_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

/// Folder inside a bottle that belongs to one launch only: tmpfs, never part of a snapshot.
pub const RUN_DIR: &str = "/run/bottle";
/// The proxy's sockets inside a bottle, each named by its port.
pub const LISTENER_DIR: &str = "/run/bottle/proxy";
/// The program inside a bottle (guest role).
pub const GUEST_PROGRAM: &str = "/run/bottle/bottle";
/// Commands of ours for whoever works inside a bottle, each a link to [`GUEST_PROGRAM`].
pub const COMMANDS_DIR: &str = "/run/bottle/commands";
/// The command by which a user is asked, in [`COMMANDS_DIR`].
pub const ASK_COMMAND: &str = "bottle-ask";
/// The bundle's CA certificate, PEM, inside a bottle.
pub const CA_FILE: &str = "/run/bottle/ca.pem";
/// The system's roots and the bundle's CA together, PEM, inside a bottle.
pub const CA_BUNDLE_FILE: &str = "/run/bottle/ca-bundle.pem";
/// The agent's prompt (the manifest's body) inside a bottle.
pub const PROMPT_FILE: &str = "/run/bottle/prompt.md";
/// The task (`-p`) inside a bottle.
pub const TASK_FILE: &str = "/run/bottle/task.md";
/// The agent's working directory.
pub const WORKSPACE: &str = "/workspace";
/// The user the agent runs as where an image names none.
pub const AGENT_USER: &str = "agent";
/// That user's id, inside.
pub const AGENT_UID: u32 = 1000;

/// The bottle's identity in every name and label: `[a-z0-9]` and inner single dashes, at most
/// [`SLUG_MAX`] characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slug(String);

impl Slug {
    /// The slug itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Slugifies a label: letters and digits are kept in lower case, everything else becomes one dash,
    /// the result is cut to [`SLUG_MAX`]. The same label always gives the same slug.
    ///
    /// # Errors
    /// [`BadName`] when nothing is left (a label of punctuation or of another script only).
    pub fn from_label(label: &str) -> Result<Self, BadName> {
        let mut slug = String::new();
        for c in label.chars() {
            if c.is_ascii_alphanumeric() {
                slug.push(c.to_ascii_lowercase());
            } else if !slug.is_empty() && !slug.ends_with('-') {
                slug.push('-');
            }
            if slug.len() == SLUG_MAX {
                break;
            }
        }
        Self::try_from(slug.trim_end_matches('-').to_owned()).map_err(|_| BadName {
            name: label.to_owned(),
            rule: "a label needs at least one ASCII letter or digit",
        })
    }
}

impl TryFrom<String> for Slug {
    type Error = BadName;

    fn try_from(slug: String) -> Result<Self, BadName> {
        let good = !slug.is_empty()
            && slug.len() <= SLUG_MAX
            && slug.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !slug.starts_with('-')
            && !slug.ends_with('-')
            && !slug.contains("--");
        if good {
            Ok(Self(slug))
        } else {
            Err(BadName {
                name: slug,
                rule: "a slug is lower-case letters, digits and single dashes, 40 at most",
            })
        }
    }
}

impl From<Slug> for String {
    fn from(slug: Slug) -> Self {
        slug.0
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a manifest, a skill or a repository: `[a-z][a-z0-9-]*`, at most 64 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        let mut bytes = name.bytes();
        let good = bytes.next().is_some_and(|b| b.is_ascii_lowercase())
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && name.len() <= 64;
        if good {
            Ok(Self(name))
        } else {
            let rule = "a name is lower-case letters, digits and dashes, begins with a letter, and has 64 characters at most";
            Err(BadName { name, rule })
        }
    }
}

impl std::str::FromStr for Name {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        Self::try_from(name.to_owned())
    }
}

impl std::str::FromStr for Slug {
    type Err = BadName;

    fn from_str(slug: &str) -> Result<Self, BadName> {
        Self::try_from(slug.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that breaks its rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not allowed here: {rule}")]
pub struct BadName {
    /// What was given.
    pub name: String,
    /// The rule it breaks, as a sentence fragment.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_become_slugs() {
        for (label, slug) in [
            ("Fix the parser!", "fix-the-parser"),
            ("  a  b ", "a-b"),
            ("UPPER_case.9", "upper-case-9"),
            ("é1", "1"),
        ] {
            assert_eq!(Slug::from_label(label).expect("slug").as_str(), slug, "{label}");
        }
        for label in ["", "---", "日本語", "!!!"] {
            assert!(Slug::from_label(label).is_err(), "{label}");
        }
    }

    #[test]
    fn names_follow_their_pattern() {
        for good in ["a", "claude", "a-1", "a--b"] {
            assert!(Name::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "1a", "-a", "A", "a_b", "a/b", "../a", "a.md"] {
            assert!(Name::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_slugified_label_is_a_slug_and_stays_itself(label in ".{0,80}") {
            if let Ok(slug) = Slug::from_label(&label) {
                prop_assert_eq!(Slug::from_label(slug.as_str()), Ok(slug.clone()));
                prop_assert!(Slug::try_from(slug.as_str().to_owned()).is_ok());
            }
        }
    }
}
