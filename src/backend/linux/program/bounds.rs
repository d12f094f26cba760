//! The host paths that no bottle may see: the user's home as a whole and the folders that contain it, `$BOTTLE_HOME`,
//! and paths in the home that contain secrets.

use std::path::{Path, PathBuf};

use crate::host::Host;

/// Paths in a home that contain credentials, keys or the conversations of other agents.
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

/// Allowed folders inside secret paths. Installers put programs there.
const PROGRAMS: [&str; 2] = [".claude/local", ".codex/packages"];

/// The host paths that no bottle of this user may see.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    home: PathBuf,
    secret: Vec<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Bounds {
    /// The forbidden paths of this user.
    pub(super) fn new(host: &Host) -> Self {
        // If the home is a link, both its path and the link's target are forbidden.
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

    /// Checks that a bottle may see this path. The error is a sentence fragment.
    pub(super) fn check(&self, path: &Path) -> Result<(), String> {
        if self.home.starts_with(path) {
            return Err("it is the home directory or contains it".to_owned());
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
    fn refuses_the_home_its_parents_and_secret_paths() {
        let host = Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: "/people/ann/.bottle".into(),
            user_home: "/people/ann".into(),
            runtime: "/run".into(),
            program: "/bottle".into(),
        };
        let bounds = Bounds::new(&host);
        for refused in [
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
            assert!(bounds.check(Path::new(refused)).is_err(), "{refused}");
        }
        for accepted in [
            "/people/ann/.local/bin/x",
            "/people/ann/.nvm/versions/node/v22/bin/node",
            "/opt/tool",
            "/people/ann/.pyenv/versions/3.11.7",
            "/people/bob/venv",
            "/people/ann/.codex/packages/standalone/releases/1.0/bin/codex",
            "/people/ann/.claude/local/node_modules",
        ] {
            assert!(bounds.check(Path::new(accepted)).is_ok(), "{accepted}");
        }
    }
}
