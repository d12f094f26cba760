//! The manifests that are built into the program, so that the program works without configuration.

use super::source::Kind;

/// Each table has one row for each file of a directory. A test in this file checks that the rows are complete.
macro_rules! table {
    ($directory:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../manifests/", $directory, "/", $name, ".md")))),+]
    };
}

/// The names and texts of manifests, sorted by name.
type Table = &'static [(&'static str, &'static str)];

const AGENTS: Table = table!("agents": "claude", "codex", "idle", "mini", "pi", "probe", "shell");
const BOTTLES: Table = table!("bottles":
    "claude", "codex", "dev", "github-read", "idle", "mini", "offline", "pi", "probe", "shell");

/// Returns every shipped manifest of a kind, sorted by name.
pub(super) fn all(kind: Kind) -> Table {
    match kind {
        Kind::Agent => AGENTS,
        Kind::Bottle => BOTTLES,
    }
}

/// Returns the text of a shipped manifest.
pub(super) fn text(kind: Kind, name: &str) -> Option<&'static str> {
    all(kind).iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_every_file_of_the_manifests_directory() {
        for kind in [Kind::Agent, Kind::Bottle] {
            let directory = format!("{}/../../manifests/{}", env!("CARGO_MANIFEST_DIR"), kind.directory());
            let mut files: Vec<String> = std::fs::read_dir(&directory)
                .expect("directory")
                .map(|entry| entry.expect("entry").file_name().into_string().expect("name"))
                .collect();
            files.sort();
            let table: Vec<String> = all(kind).iter().map(|(name, _)| format!("{name}.md")).collect();
            assert_eq!(table, files, "{directory}");
        }
    }
}
