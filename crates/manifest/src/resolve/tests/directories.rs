//! Writes manifests from text to temporary directories, and resolves them.

use tempfile::TempDir;

use crate::resolve::{ResolveError, Resolved, Selection, explain, resolve};
use crate::{Homes, Manifests};

/// A bottle manifest without settings.
pub(super) const EMPTY: &str = "---\n---\n";

/// Temporary directories of a user: `home` is `$BOTTLE_HOME`, `user` is the home directory, and `work` is the
/// working directory.
pub(in crate::resolve) struct Directories {
    root: TempDir,
}

impl Directories {
    /// Creates the directories with these files. The paths of the files are relative to the common root.
    pub(in crate::resolve) fn with(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            std::fs::write(path, text).expect("written");
        }
        Self { root }
    }

    pub(in crate::resolve) fn manifests(&self) -> Manifests {
        let at = |name: &str| self.root.path().join(name);
        Manifests::new(Homes { bottle_home: at("home"), user_home: at("user"), cwd: at("work") })
    }

    /// Resolves the selection `AGENT BOTTLE...`.
    pub(in crate::resolve) fn resolve(&self, picks: &str) -> Result<Resolved, ResolveError> {
        let mut names = picks.split_whitespace().map(|name| name.parse().expect("name"));
        let agent = names.next().expect("an agent");
        resolve(&Selection { agent, bottles: names.collect() }, &self.manifests())
    }

    /// Makes the paths in a text relative to the common root.
    pub(in crate::resolve) fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.root.path().display()), "")
    }

    /// Resolves the selection `AGENT BOTTLE...`, and renders the result.
    pub(in crate::resolve) fn explain(&self, picks: &str) -> String {
        self.relative(&explain(&self.resolve(picks).expect("resolved").manifest))
    }
}
