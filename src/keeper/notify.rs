//! A new question reaches the user where they are: a command of theirs (`supervise.notify`), and the desktop.
//!
//! Nothing waits for either. Whatever goes wrong with one is a line of the keeper's log.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::lock_out::LockOut;
use bottle_contract::names::Slug;
use bottle_contract::queue::Proposal;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::host::{Host, Settings};

/// How long one may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Commands that run at once. A bottle has no more questions than that under way.
const MOST: usize = bottle_contract::queue::MAX_PENDING;

/// Variables that they see: where things are, and nothing that may hold a secret.
const SEEN: [&str; 8] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "HOME",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "USER",
    "XDG_RUNTIME_DIR",
];

/// What shows a word on a desktop.
const DESKTOP: &str = "notify-send";

/// Tells the user of one bottle's questions.
#[derive(Debug)]
pub(super) struct Notifier {
    host: Arc<Host>,
    room: Arc<Semaphore>,
}

/// A command about to be run.
#[derive(Debug, PartialEq, Eq)]
struct NotifyCommand {
    argv: Vec<OsString>,
    stdin: Vec<u8>,
}

impl Notifier {
    pub(super) fn new(host: &Host) -> Self {
        Self { host: Arc::new(host.clone()), room: Arc::new(Semaphore::new(MOST)) }
    }

    /// Tells of a question, and waits for nothing.
    pub(super) fn tell(&self, proposal: &Proposal) {
        let words = format!("{} {}", proposal.bottle_slug, proposal.tool.predicate());
        self.notify_all(serde_json::to_vec(proposal), words, "`bottle supervise` answers it");
    }

    /// Tells that the bottle is locked, and waits for nothing.
    pub(super) fn send_lock_out(&self, slug: &Slug, why: &LockOut) {
        let event = json!({"event": "locked-out", "bottle_slug": slug, "lock_out": why});
        self.notify_all(
            serde_json::to_vec(&event),
            format!("{slug} is locked: it guessed at credentials"),
            "`bottle list` shows it",
        );
    }

    /// Hands `stdin` to the user's own command, and our own `words` and next `step` to the desktop.
    fn notify_all(&self, stdin: serde_json::Result<Vec<u8>>, words: String, step: &'static str) {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::warn!("nobody was told that {words}: too much is being told already");
            return;
        };
        let host = Arc::clone(&self.host);
        tokio::spawn(async move {
            let _place = place;
            // Read anew: they may have changed since the bottle was started.
            for telling in commands(&host, stdin.ok(), &words, step) {
                if let Err(why) = told(&host, telling).await {
                    tracing::warn!("{why}");
                }
            }
        });
    }
}

/// Everybody who is to be told.
fn commands(host: &Host, stdin: Option<Vec<u8>>, words: &str, step: &str) -> Vec<NotifyCommand> {
    let command = match Settings::load(host) {
        Ok(settings) => settings.notify,
        Err(error) => {
            tracing::warn!("`supervise.notify` is not run: {error}");
            None
        }
    };
    let own = command
        .zip(stdin)
        .map(|(words, stdin)| NotifyCommand { argv: words.into_iter().map(OsString::from).collect(), stdin });
    own.into_iter().chain(desktop(host, words, step)).collect()
}

/// A word on the desktop, where there is one: all of it is ours, and nothing an agent's.
fn desktop(host: &Host, words: &str, step: &str) -> Option<NotifyCommand> {
    let program = on_path(host, DESKTOP).filter(|_| has_session_bus(host))?;
    let argv = [program.as_os_str(), OsStr::new("--app-name=bottle"), OsStr::new("--")];
    let argv = argv.into_iter().chain([OsStr::new(words), OsStr::new(step)]).map(OsStr::to_owned).collect();
    Some(NotifyCommand { argv, stdin: Vec::new() })
}

fn on_path(host: &Host, program: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = host.env.get(OsStr::new("PATH"))?;
    std::env::split_paths(path).filter(|folder| folder.is_absolute()).map(|it| it.join(program)).find(runs)
}

fn has_session_bus(host: &Host) -> bool {
    let socket = |folder: &str| Path::new(folder).join("bus").metadata().map(|found| found.file_type());
    host.var("DBUS_SESSION_BUS_ADDRESS").is_some()
        || host
            .var("XDG_RUNTIME_DIR")
            .is_some_and(|folder| socket(folder).is_ok_and(|found| found.is_socket()))
}

/// Runs it to its end.
async fn told(host: &Host, telling: NotifyCommand) -> Result<(), String> {
    let NotifyCommand { argv, stdin } = telling;
    let [program, arguments @ ..] = &argv[..] else { return Ok(()) };
    let shown = program.to_string_lossy().into_owned();
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment(host))
        .current_dir(&host.user_home)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("`{shown}` cannot be started to notify you: {error}"))?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
    let mut input = child.stdin.take();
    let run = async {
        if let Some(mut input) = input.take() {
            // One that does not want to know it closes its end, or is killed with it.
            let _ = input.write_all(&stdin).await;
        }
        child.wait().await
    };
    match tokio::time::timeout(WITHIN, run).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("`{shown}`, which notifies you, ended with {status}")),
        Ok(Err(error)) => Err(format!("`{shown}`, which notifies you, was lost: {error}")),
        Err(_) => {
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let seconds = WITHIN.as_secs();
            Err(format!("`{shown}`, which notifies you, did not end within {seconds} s and was killed"))
        }
    }
}

fn environment(host: &Host) -> BTreeMap<OsString, OsString> {
    let seen = host.env.iter().filter(|(name, _)| SEEN.iter().any(|seen| name.as_os_str() == *seen));
    let mut seen: BTreeMap<OsString, OsString> =
        seen.map(|(name, value)| (name.clone(), value.clone())).collect();
    // So that it can answer, too.
    seen.insert("BOTTLE_HOME".into(), host.home.clone().into());
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "demo asks for hosts";
    const STEP: &str = "`bottle supervise` answers it";

    fn host(home: &Path, env: &[(&str, &str)]) -> Host {
        let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Host {
            env,
            cwd: home.to_owned(),
            home: home.join(".bottle"),
            user_home: home.to_owned(),
            runtime: home.join("runtime"),
            program: "/bottle".into(),
        }
    }

    #[test]
    fn a_desktop_is_told_in_our_words_where_there_is_one() {
        let home = tempfile::tempdir().expect("home");
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).expect("folder");
        let program = bin.join(DESKTOP);
        let (path, runtime) = (bin.to_str().expect("text"), home.path().to_str().expect("text"));
        let with_bus = host(home.path(), &[("PATH", path), ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x")]);
        assert_eq!(desktop(&with_bus, WORDS, STEP), None, "there is no such program");
        std::fs::write(&program, "").expect("written");
        assert_eq!(desktop(&with_bus, WORDS, STEP), None, "it is no program");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("mode");
        let telling = desktop(&with_bus, WORDS, STEP).expect("a word");
        let words = ["--app-name=bottle", "--", "demo asks for hosts", "`bottle supervise` answers it"];
        assert_eq!(telling.argv[0], program);
        assert_eq!(telling.argv[1..], words);
        assert!(telling.stdin.is_empty());
        let without = host(home.path(), &[("PATH", path), ("XDG_RUNTIME_DIR", runtime)]);
        assert_eq!(desktop(&without, WORDS, STEP), None, "there is no session");
        let _bus = std::os::unix::net::UnixListener::bind(home.path().join("bus")).expect("socket");
        assert!(desktop(&without, WORDS, STEP).is_some());
    }

    #[test]
    fn nothing_that_may_be_secret_is_seen() {
        let home = tempfile::tempdir().expect("home");
        let host = host(home.path(), &[("PATH", "/bin"), ("API_KEY", "x"), ("DOCKER_HOST", "tcp://u:p@h")]);
        let seen: Vec<OsString> = environment(&host).into_keys().collect();
        assert_eq!(seen, ["BOTTLE_HOME", "PATH"]);
    }
}
