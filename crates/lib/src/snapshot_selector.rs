//! Names a snapshot in arguments and messages: `SLUG` or `SLUG@NAME`.

use std::fmt;
use std::str::FromStr;

use bottle_backend::Snapshot;
use bottle_policy::names::{BadName, Name, Slug};

/// Selects a snapshot of a bottle by the snapshot's name. `SLUG` alone selects the snapshot that has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSelector {
    /// The slug of the bottle.
    pub slug: Slug,
    /// The name of the snapshot. `None` for the snapshot without a name.
    pub name: Option<Name>,
}

impl SnapshotSelector {
    /// Returns the selector of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self { slug: snapshot.slug.clone(), name: snapshot.name.clone() }
    }
}

impl FromStr for SnapshotSelector {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        match text.split_once('@') {
            Some((slug, name)) => Ok(Self { slug: slug.parse()?, name: Some(name.parse()?) }),
            None => Ok(Self { slug: text.parse()?, name: None }),
        }
    }
}

impl fmt::Display for SnapshotSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}@{name}", self.slug),
            None => self.slug.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_slug_with_and_without_a_name() {
        for text in ["one", "one@good", "a-1@b-2"] {
            let read: SnapshotSelector = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
        }
        for text in ["", "@good", "one@", "one@Good", "one@a@b", "one@../x"] {
            assert!(text.parse::<SnapshotSelector>().is_err(), "{text}");
        }
    }
}
