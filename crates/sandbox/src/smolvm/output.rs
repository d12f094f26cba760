//! Parses the output of `smolvm`. Every function is pure and accepts arbitrary bytes.

use std::collections::BTreeMap;

use bottle_policy::names::Slug;
use serde::Deserialize;

use super::args::{HOME_LABEL, SLUG_LABEL};

/// The error code for a machine that does not exist.
pub(super) const NOT_FOUND: &str = "NOT_FOUND";

/// A version of smolvm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A machine, as `machine ls --json` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    /// The machine's name.
    pub(super) name: String,
    /// The bottle that the machine's labels name. `None` if the machine has no labels of a bottle, or labels of another
    /// home.
    pub(super) slug: Option<Slug>,
    /// Whether the machine runs.
    pub(super) running: bool,
}

/// An error as `--error-format json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct SmolvmError {
    /// The kind of the error, such as [`NOT_FOUND`].
    pub(super) code: String,
    /// The error message.
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct ErrorLine {
    error: SmolvmError,
}

/// Parses the output of `smolvm --version`, such as `smolvm 1.32.2`. Returns `None` for any other text.
pub(super) fn version(output: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(output).ok()?;
    let number = text.lines().next()?.strip_prefix("smolvm ")?.split(['-', '+', ' ']).next()?;
    let mut parts = number.split('.').map(|part| part.parse().ok());
    let version = Version(parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

/// Parses the output of `smolvm machine ls --json`.
///
/// # Errors
/// When the output is not a list of machines.
pub(super) fn machines(output: &[u8], home: &str) -> serde_json::Result<Vec<Machine>> {
    let listed: Vec<Listed> = serde_json::from_slice(output)?;
    Ok(listed.into_iter().map(|machine| from_listed(machine, home)).collect())
}

fn from_listed(listed: Listed, home: &str) -> Machine {
    let labels = listed.labels.unwrap_or_default();
    let own = labels.get(HOME_LABEL).is_some_and(|label| label == home);
    let slug = own.then(|| labels.get(SLUG_LABEL)?.parse().ok()).flatten();
    Machine { name: listed.name, slug, running: listed.state == "running" }
}

/// Finds the JSON error in the output on standard error, which also contains progress. Returns `None` for usage errors,
/// which smolvm prints as plain text.
pub(super) fn error(stderr: &[u8]) -> Option<SmolvmError> {
    let text = String::from_utf8_lossy(stderr);
    let line = text.split(['\n', '\r']).rev().map(str::trim).find(|line| line.starts_with("{\"error\""))?;
    Some(serde_json::from_str::<ErrorLine>(line).ok()?.error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_versions() {
        for (text, expected) in [
            ("smolvm 1.32.2\n", Some(Version(1, 32, 2))),
            ("smolvm 1.32.2-rc.1\nmore", Some(Version(1, 32, 2))),
            ("smolvm 2.0.0+git.abc", Some(Version(2, 0, 0))),
            ("smolvm 1.32", None),
            ("smolvm 1.32.2.1", None),
            ("smolvm 1.32.99999999999", None),
            ("podman 1.32.2", None),
            ("", None),
        ] {
            assert_eq!(version(text.as_bytes()), expected, "{text:?}");
        }
        assert!(Version(1, 31, 9) < Version(1, 32, 0) && Version(2, 0, 0) > Version(1, 99, 99));
    }

    #[test]
    fn lists_machines_and_trusts_only_labels_of_this_home() {
        let listed = r#"[
          {"name": "bottle-a-1", "state": "running", "pid": 143, "labels": {"bottle.home": "0123abcd",
           "bottle.slug": "a-1"}, "memory_mib": 512, "state_reason": null},
          {"name": "other", "state": "stopped", "labels": {"bottle.home": "ffffffff", "bottle.slug": "a-2"}},
          {"name": "odd", "state": "unreachable", "labels": {"bottle.home": "0123abcd", "bottle.slug": "../a"}},
          {"name": "plain", "labels": null}
        ]"#;
        let machine = |name: &str, slug: Option<&str>, running| Machine {
            name: name.to_owned(),
            slug: slug.map(|slug| slug.parse().expect("slug")),
            running,
        };
        assert_eq!(
            machines(listed.as_bytes(), "0123abcd").expect("parsed"),
            [
                machine("bottle-a-1", Some("a-1"), true),
                machine("other", None, false),
                machine("odd", None, false),
                machine("plain", None, false),
            ]
        );
        assert_eq!(machines(b"[]", "0123abcd").expect("empty"), []);
        for damaged in ["", "{}", "[{}]", "[{\"name\": 1}]", "warning\n[]", "[", "null"] {
            assert!(machines(damaged.as_bytes(), "0123abcd").is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn finds_the_error_among_progress() {
        let text = "Starting…\r  unpacking 3s\r{\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"vm not found: b\"}}\n";
        let expected = SmolvmError { code: NOT_FOUND.to_owned(), message: "vm not found: b".to_owned() };
        assert_eq!(error(text.as_bytes()), Some(expected));
        for text in ["", "error: unexpected argument", "{\"error\"", "{\"error\": {}}", "\u{1b}[0m"] {
            assert_eq!(error(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_output_causes_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), text in "\\PC{0,80}") {
            for output in [bytes.as_slice(), text.as_bytes(), format!("[{{\"name\":{text}}}]").as_bytes(),
                           format!("smolvm {text}").as_bytes(), format!("{{\"error\"{text}").as_bytes()] {
                let _ = (version(output), error(output), machines(output, "0123abcd").is_ok());
            }
        }
    }
}
