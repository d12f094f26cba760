//! Slugs, manifest names, and the host names, ports and paths inside a bottle.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The longest slug, in characters. Slugs become part of host names, labels and socket paths, so a longer slug is
/// rejected, and a longer label is truncated.
pub const SLUG_MAX: usize = 40;

/// The egress proxy's host name inside every bottle, on every backend.
pub const EGRESS_HOST: &str = "egress";
/// The supervise server's host name inside every bottle.
pub const SUPERVISE_HOST: &str = "supervise";
/// The git gate's host name inside every bottle.
pub const GIT_GATE_HOST: &str = "git-gate";
/// The host name at which the proxy answers status requests about itself.
pub const INTROSPECTION_HOST: &str = "_egress.local";

/// The hosts to which programs in a bottle connect without a proxy: `NO_PROXY`.
pub const NO_PROXY: [&str; 6] = ["localhost", "127.0.0.1", "::1", EGRESS_HOST, SUPERVISE_HOST, GIT_GATE_HOST];

/// A host name that no manifest has a reason to list, because `.invalid` is reserved (RFC 2606). The
/// isolation probe sends a request to this host to check that the proxy denies a host without a route.
pub const NEVER_LISTED: &str = "not-on-the-list.invalid";

/// The egress proxy's port for explicit proxy requests.
pub const EGRESS_PORT: u16 = 9099;
/// The port of the supervise server, which speaks MCP.
pub const SUPERVISE_PORT: u16 = 9100;
/// The git gate's port.
pub const GIT_GATE_PORT: u16 = 9420;
/// The transparent proxy's port for plain HTTP.
pub const HTTP_PORT: u16 = 80;
/// The transparent proxy's port for TLS.
pub const HTTPS_PORT: u16 = 443;
/// The port of the bottle's DNS resolver, UDP and TCP.
pub const DNS_PORT: u16 = 53;

/// The listener ports of the egress daemon. With the socket transport, each port is a unix socket in [`LISTENER_DIR`]
/// that is named after the port. A forwarded connection therefore needs no preamble that names its port.
pub const EGRESS_PORTS: [u16; 3] = [EGRESS_PORT, HTTP_PORT, HTTPS_PORT];

/// The ports of the git gate.
pub const GATE_PORTS: [u16; 1] = [GIT_GATE_PORT];

/// The ports of the supervise (MCP) server.
pub const SUPERVISE_PORTS: [u16; 1] = [SUPERVISE_PORT];

/// Every listener port inside a bottle, for the socket transport.
pub const LISTENER_PORTS: [u16; 5] = [EGRESS_PORT, HTTP_PORT, HTTPS_PORT, SUPERVISE_PORT, GIT_GATE_PORT];

/// The loopback address on which the socket transport listens. The address differs from 127.0.0.1, so that these
/// listeners do not collide with servers that the agent starts on 127.0.0.1.
pub const PROXY_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

/// The directory inside a bottle for the files of one launch. The directory is a tmpfs and never part of a
/// snapshot.
pub const RUN_DIR: &str = "/run/bottle";

/// The directory of the bottle's secrets as files.
pub const SECRETS_DIR: &str = "/run/bottle/secrets";
/// The directory of the listener sockets inside a bottle. Each socket is named after its port.
pub const LISTENER_DIR: &str = "/run/bottle/proxy";
/// The path of the `bottle` program inside a bottle. The program runs there in the guest role.
pub const GUEST_PROGRAM: &str = "/run/bottle/bottle";
/// The directory of commands for the agent inside a bottle. Each command is a link to [`GUEST_PROGRAM`].
pub const COMMANDS_DIR: &str = "/run/bottle/commands";
/// The command in [`COMMANDS_DIR`] that asks the user to allow hosts.
pub const ASK_COMMAND: &str = "bottle-ask";
/// The git configuration of a bottle, which has a lower precedence than that of its user and its repositories.
pub const GIT_CONFIG_FILE: &str = "/run/bottle/gitconfig";
/// The bundle's CA certificate inside a bottle, PEM.
pub const CA_FILE: &str = "/run/bottle/ca.pem";
/// The system's root certificates and the bundle's CA certificate in one PEM file inside a bottle.
pub const CA_BUNDLE_FILE: &str = "/run/bottle/ca-bundle.pem";
/// The same certificates as in [`CA_BUNDLE_FILE`], as a truststore for Java.
pub const TRUSTSTORE_FILE: &str = "/run/bottle/truststore.jks";
/// The bottle's machine id (machine-id(5)). In an image, `/etc/machine-id` is a link to this file.
pub const MACHINE_ID_FILE: &str = "/run/bottle/machine-id";
/// The file inside a bottle with the agent's prompt, which is the body of the agent manifest.
pub const PROMPT_FILE: &str = "/run/bottle/prompt.md";
/// The file inside a bottle with the task that the user passed with `-p`.
pub const TASK_FILE: &str = "/run/bottle/task.md";
/// The agent's working directory.
pub const WORKSPACE: &str = "/workspace";
/// The git repository of the workspace.
pub const REPOSITORY: &str = "/workspace/.git";
/// The directory inside a bottle with the git objects that the copied repository shares with the host's repository. The
/// directory is read-only, and the copied repository names it as an alternate. If there are several repositories, each
/// repository has its own directory below this directory ([`GIT_OBJECTS_OF_SEVERAL`]).
pub const GIT_OBJECTS_DIR: &str = "/git-objects";
/// The directory in [`GIT_OBJECTS_DIR`] with the objects of several repositories, each in a directory with the name
/// that the repository has in the workspace.
pub const GIT_OBJECTS_OF_SEVERAL: &str = "repositories";
/// The agent's user name if the image sets no user.
pub const AGENT_USER: &str = "agent";
/// The user id of [`AGENT_USER`] inside a bottle.
pub const AGENT_UID: u32 = 1000;

/// A bottle's identity in names and labels: `[a-z0-9]` and single dashes between them, at most [`SLUG_MAX`]
/// characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slug(String);

impl Slug {
    /// The slug as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Converts a label to a slug. ASCII letters and digits become lower case. Every other run of characters
    /// becomes one dash. The result is cut to [`SLUG_MAX`] characters. The same label always gives the same
    /// slug.
    ///
    /// # Errors
    /// [`BadName`] if the label contains no ASCII letter or digit.
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
    /// The name as text.
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

/// An invalid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not allowed here: {rule}")]
pub struct BadName {
    /// The rejected name.
    pub name: String,
    /// The violated rule, as a sentence fragment.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn converts_labels_to_slugs() {
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
        fn slugs_from_labels_are_valid_and_stable(label in ".{0,80}") {
            if let Ok(slug) = Slug::from_label(&label) {
                prop_assert_eq!(Slug::from_label(slug.as_str()), Ok(slug.clone()));
                prop_assert!(Slug::try_from(slug.as_str().to_owned()).is_ok());
            }
        }
    }
}
