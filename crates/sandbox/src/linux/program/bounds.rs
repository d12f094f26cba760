//! The host paths that no bottle may see: the user's home as a whole and the directories that contain it,
//! `$BOTTLE_HOME`, runtime directories, root's home, and paths in the home that contain secrets.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_host::account::Account;

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

/// Allowed directories inside secret paths. Installers put programs into these directories.
const PROGRAMS: [&str; 2] = [".claude/local", ".codex/packages"];

/// The parent directory of the users' runtime directories, which contain the sockets of user sessions.
const RUNTIME: &str = "/run/user";

/// The home of root. Each file in it may contain a secret of the machine.
const ROOT: &str = "/root";

/// Returns `$XDG_RUNTIME_DIR` if the runtime directories of bottles are inside it and `$BOTTLE_HOME` is not. The
/// returned directory also contains the sockets of bottles, so a bottle may not see it.
fn private_runtime(host: &Host) -> Option<PathBuf> {
    let runtime = PathBuf::from(host.var("XDG_RUNTIME_DIR")?);
    let is_private = runtime != host.runtime && host.runtime.starts_with(&runtime);
    (is_private && !host.home.starts_with(&runtime)).then_some(runtime)
}

/// The host paths that no bottle of this user may see.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    homes: Vec<PathBuf>,
    secret: Vec<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Bounds {
    /// Determines the forbidden paths of the current user.
    pub(super) fn new(host: &Host) -> Self {
        Self::of(host, Account::of(rustix::process::geteuid().as_raw()).map(|account| account.home))
    }

    /// Determines the forbidden paths. `account` is the current user's home according to the user database, which may
    /// differ from `$HOME`.
    fn of(host: &Host, account: Option<PathBuf>) -> Self {
        let root = Path::new("/");
        // If the home is a link, both its path and the link's target are forbidden.
        let homes = [Some(host.user_home.clone()), host.user_home.canonicalize().ok(), account];
        let homes: Vec<PathBuf> = homes.into_iter().flatten().filter(|home| home != root).collect();
        let mut secret: Vec<PathBuf> = vec![host.home.clone(), host.runtime.clone(), RUNTIME.into()];
        secret.extend(private_runtime(host));
        if !homes.iter().any(|home| home == ROOT) {
            secret.push(ROOT.into());
        }
        let mut programs = Vec::new();
        for home in &homes {
            secret.extend(SECRET.iter().map(|name| home.join(name)));
            programs.extend(PROGRAMS.iter().map(|name| home.join(name)));
        }
        Self { homes, secret, programs }
    }

    /// Checks that a bottle may see this path. The error is a clause for an error message.
    pub(super) fn check(&self, path: &Path) -> Result<(), String> {
        if path == "/" || self.homes.iter().any(|home| home.starts_with(path)) {
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
            env: BTreeMap::from([("XDG_RUNTIME_DIR".into(), "/people/ann/run".into())]),
            cwd: "/".into(),
            home: "/people/ann/.bottle".into(),
            user_home: "/people/ann".into(),
            runtime: "/people/ann/run/bottle/0a0a0a0a".into(),
            program: "/bottle".into(),
        };
        let bounds = Bounds::of(&host, Some("/accounts/ann".into()));
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
            "/people/ann/run",
            "/people/ann/run/gnupg/S.gpg-agent",
            "/run",
            "/run/user/1000/bus",
            "/root",
            "/root/tools",
            "/accounts",
            "/accounts/ann/.ssh",
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
            "/people/ann/runtime",
            "/run/tool",
            "/accounts/ann/tools",
        ] {
            assert!(bounds.check(Path::new(accepted)).is_ok(), "{accepted}");
        }
        let of_root = Bounds::of(&host, Some("/root".into()));
        assert!(of_root.check(Path::new("/root/tools")).is_ok());
        for refused in ["/root", "/root/.ssh", "/root/.bash_history"] {
            assert!(of_root.check(Path::new(refused)).is_err(), "{refused}");
        }
    }
}
