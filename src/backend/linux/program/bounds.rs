//! What no closure may show, whatever leads to it: the user's home as a whole, and what is secret in it.

use std::path::{Path, PathBuf};

use crate::host::Host;

/// Paths of a home that hold credentials, keys or other agents' memories.
const SECRET: [&str; 26] = [
    ".android",
    ".anthropic",
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude",
    ".codex",
    ".config",
    ".docker",
    ".git-credentials",
    ".gitconfig",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pi",
    ".pypirc",
    ".ssh",
    ".terraform.d",
    ".terraformrc",
    ".vault-token",
];

/// Where installers put programs among what is private.
const PROGRAMS: [&str; 2] = [".claude/local", ".codex/packages"];

/// What may not be shown.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    home: PathBuf,
    secret: Vec<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Bounds {
    /// Of this user.
    pub(super) fn of(host: &Host) -> Self {
        // Both spellings of a home that is reached through a link.
        let homes = [Some(host.user_home.clone()), host.user_home.canonicalize().ok()];
        let mut secret: Vec<PathBuf> = vec![host.home.clone()];
        let mut programs = Vec::new();
        for home in homes.iter().flatten() {
            secret.extend(SECRET.iter().map(|name| home.join(name)));
            programs.extend(PROGRAMS.iter().map(|name| home.join(name)));
        }
        let home = homes.into_iter().flatten().next_back().unwrap_or_else(|| host.user_home.clone());
        Self { home, secret, programs }
    }

    /// Whether a path may be shown; else what is wrong with it, as a fragment.
    pub(super) fn admits(&self, path: &Path) -> Result<(), String> {
        if self.home.starts_with(path) {
            return Err("that is the home directory, or holds it".to_owned());
        }
        if self.programs.iter().any(|programs| path.starts_with(programs)) {
            return Ok(());
        }
        match self.secret.iter().find(|secret| secret.starts_with(path) || path.starts_with(secret)) {
            Some(secret) => Err(format!("{} is private", secret.display())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_home_what_holds_it_and_what_is_secret_in_it_stay_closed() {
        let host = Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: "/people/ann/.bottle".into(),
            user_home: "/people/ann".into(),
            runtime: "/run".into(),
            program: "/bottle".into(),
        };
        let bounds = Bounds::of(&host);
        for closed in [
            "/",
            "/people",
            "/people/ann",
            "/people/ann/.ssh",
            "/people/ann/.ssh/id",
            "/people/ann/.local/share",
            "/people/ann/.cargo",
            "/people/ann/.bottle/state",
            "/people/ann/.config/gh",
            "/people/ann/.codex",
            "/people/ann/.codex/auth.json",
            "/people/ann/.codex/packages-of-mine",
            "/people/ann/.claude/local.json",
        ] {
            assert!(bounds.admits(Path::new(closed)).is_err(), "{closed}");
        }
        for open in [
            "/people/ann/.local/bin/x",
            "/people/ann/.nvm/versions/node/v22/bin/node",
            "/opt/tool",
            "/people/ann/.pyenv/versions/3.11.7",
            "/people/bob/venv",
            "/people/ann/.codex/packages/standalone/releases/1.0/bin/codex",
            "/people/ann/.claude/local/node_modules",
        ] {
            assert!(bounds.admits(Path::new(open)).is_ok(), "{open}");
        }
    }
}
