//! Parses an argument of `cp`: `SLUG:PATH` is a path in a bottle, anything else is a local path.

use std::path::PathBuf;

use bottle_policy::names::Slug;

/// A path, on this machine or in a bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A path on this machine.
    Local(PathBuf),
    /// A path in a bottle.
    InBottle(Slug, String),
}

impl Endpoint {
    /// Parses an argument. If the text before the first colon is a valid slug, this text is the name of a bottle.
    /// `./a:b` names a local file whose name contains a colon.
    pub(super) fn parse(argument: &str) -> Self {
        match argument.split_once(':').map(|(name, path)| (name.parse(), path)) {
            Some((Ok(slug), path)) => {
                Self::InBottle(slug, if path.is_empty() { ".".to_owned() } else { path.to_owned() })
            }
            _ => Self::Local(PathBuf::from(argument)),
        }
    }
}

/// Returns the directory in the bottle to copy into, and the name of the copy in this directory.
pub(super) fn destination(path: &str, own_name: &str) -> (String, String) {
    let into_directory =
        path.ends_with('/') || matches!(path, "." | "..") || path.ends_with("/.") || path.ends_with("/..");
    if into_directory {
        return (path.to_owned(), own_name.to_owned());
    }
    match path.rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), name.to_owned()),
        Some((directory, name)) => (directory.to_owned(), name.to_owned()),
        None => (".".to_owned(), path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_before_a_colon_names_a_bottle() {
        let inside =
            |slug: &str, path: &str| Endpoint::InBottle(slug.parse().expect("slug"), path.to_owned());
        for (argument, place) in [
            ("fix-it:src/a", inside("fix-it", "src/a")),
            ("fix-it:", inside("fix-it", ".")),
            ("fix-it:/tmp/a:b", inside("fix-it", "/tmp/a:b")),
            ("./fix-it:a", Endpoint::Local("./fix-it:a".into())),
            ("/a/b", Endpoint::Local("/a/b".into())),
            ("a", Endpoint::Local("a".into())),
            ("A:b", Endpoint::Local("A:b".into())),
        ] {
            assert_eq!(Endpoint::parse(argument), place, "{argument}");
        }
    }

    #[test]
    fn splits_a_destination_into_directory_and_name() {
        for (path, directory, name) in [
            (".", ".", "own"),
            ("dir/", "dir/", "own"),
            ("dir/new", "dir", "new"),
            ("new", ".", "new"),
            ("/new", "/", "new"),
            ("/tmp/..", "/tmp/..", "own"),
        ] {
            assert_eq!(destination(path, "own"), (directory.to_owned(), name.to_owned()), "{path}");
        }
    }
}
