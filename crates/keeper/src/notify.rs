//! Notifies the user of new proposals and lock-outs, with the user's own command (`supervise.notify`) and with a
//! desktop notification.
//!
//! The keeper does not wait for a notification. A failure is written to the keeper's log.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bottle_host::causes;
use bottle_host::{Host, Settings};
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::Slug;
use bottle_protocol::queue::Proposal;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// How long one notification command may run. After this time, the command is killed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of notifications that run their commands at the same time. A further notification is only logged.
/// The maximum equals the maximum number of pending proposals.
const MAX_RUNNING: usize = bottle_protocol::queue::MAX_PENDING;

/// Environment variables that the notification commands inherit. These variables contain paths and socket addresses,
/// but no secrets.
const INHERITED: [&str; 8] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "HOME",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "USER",
    "XDG_RUNTIME_DIR",
];

/// The program that shows a desktop notification.
const DESKTOP: &str = "notify-send";

/// Sends notifications for one bottle.
#[derive(Debug)]
pub(super) struct Notifier {
    host: Arc<Host>,
    slots: Arc<Semaphore>,
}

/// A notification command and its input.
#[derive(Debug, PartialEq, Eq)]
struct NotifyCommand {
    argv: Vec<OsString>,
    stdin: Vec<u8>,
}

impl Notifier {
    pub(super) fn new(host: &Host) -> Self {
        Self { host: Arc::new(host.clone()), slots: Arc::new(Semaphore::new(MAX_RUNNING)) }
    }

    /// Notifies the user of a new proposal. Does not wait for the notification commands.
    pub(super) fn send_proposal(&self, proposal: &Proposal) {
        let message = format!("{} {}", proposal.bottle_slug, proposal.tool.predicate());
        self.notify_all(serde_json::to_vec(proposal), message, "answer it with `bottle supervise`");
    }

    /// Notifies the user that the bottle is locked. Does not wait for the notification commands.
    pub(super) fn send_lock_out(&self, slug: &Slug, why: &LockOut) {
        let event = json!({"event": "locked-out", "bottle_slug": slug, "lock_out": why});
        self.notify_all(
            serde_json::to_vec(&event),
            format!("{slug} is locked: it guessed at credentials"),
            "see `bottle list`",
        );
    }

    /// Sends `stdin` to the user's command. Shows `message` and the next `step` on the desktop.
    fn notify_all(&self, stdin: serde_json::Result<Vec<u8>>, message: String, step: &'static str) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            tracing::warn!("cannot notify the user that {message}: too many notifications are running");
            return;
        };
        let host = Arc::clone(&self.host);
        tokio::spawn(async move {
            let _slot = slot;
            // The settings are read each time, because they may have changed since the bottle started.
            for command in commands(&host, stdin.ok(), &message, step) {
                if let Err(why) = run(&host, command).await {
                    tracing::warn!("{why:#}");
                }
            }
        });
    }
}

/// Returns the notification commands to run: the user's command and the desktop notification.
fn commands(host: &Host, stdin: Option<Vec<u8>>, message: &str, step: &str) -> Vec<NotifyCommand> {
    let argv = match Settings::load(host) {
        Ok(settings) => settings.notify,
        Err(error) => {
            tracing::warn!("cannot run `supervise.notify`: {}", causes::one_line(&error));
            None
        }
    };
    let own = argv
        .zip(stdin)
        .map(|(argv, stdin)| NotifyCommand { argv: argv.into_iter().map(OsString::from).collect(), stdin });
    own.into_iter().chain(desktop(host, message, step)).collect()
}

/// Returns the command for a desktop notification, if there is a desktop session. The notification never contains text
/// from the agent.
fn desktop(host: &Host, message: &str, step: &str) -> Option<NotifyCommand> {
    let program = on_path(host, DESKTOP).filter(|_| has_session_bus(host))?;
    let argv = [program.as_os_str(), OsStr::new("--app-name=bottle"), OsStr::new("--")];
    let argv = argv.into_iter().chain([OsStr::new(message), OsStr::new(step)]).map(OsStr::to_owned).collect();
    Some(NotifyCommand { argv, stdin: Vec::new() })
}

fn on_path(host: &Host, program: &str) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = host.env.get(OsStr::new("PATH"))?;
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|it| it.join(program))
        .find(is_executable)
}

fn has_session_bus(host: &Host) -> bool {
    let socket = |directory: &str| Path::new(directory).join("bus").metadata().map(|found| found.file_type());
    host.var("DBUS_SESSION_BUS_ADDRESS").is_some()
        || host
            .var("XDG_RUNTIME_DIR")
            .is_some_and(|directory| socket(directory).is_ok_and(|found| found.is_socket()))
}

/// Runs a notification command until it exits or [`TIMEOUT`] passes.
async fn run(host: &Host, command: NotifyCommand) -> anyhow::Result<()> {
    let NotifyCommand { argv, stdin } = command;
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
        .with_context(|| format!("cannot start the notification command `{shown}`"))?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
    let mut input = child.stdin.take();
    let wait = async {
        if let Some(mut input) = input.take() {
            // An error is ignored: the command may close its standard input without reading it, or may be killed at the
            // timeout.
            let _ = input.write_all(&stdin).await;
        }
        child.wait().await
    };
    match tokio::time::timeout(TIMEOUT, wait).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => bail!("the notification command `{shown}` failed: {status}"),
        Ok(waited) => {
            waited.map(drop).with_context(|| format!("cannot wait for the notification command `{shown}`"))
        }
        Err(_) => {
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let seconds = TIMEOUT.as_secs();
            bail!("the notification command `{shown}` did not exit within {seconds} s and was killed")
        }
    }
}

fn environment(host: &Host) -> BTreeMap<OsString, OsString> {
    let inherited =
        host.env.iter().filter(|(name, _)| INHERITED.iter().any(|listed| name.as_os_str() == *listed));
    let mut env: BTreeMap<OsString, OsString> =
        inherited.map(|(name, value)| (name.clone(), value.clone())).collect();
    // The command needs `BOTTLE_HOME` to answer with `bottle supervise`.
    env.insert("BOTTLE_HOME".into(), host.home.clone().into());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "demo asks for hosts";
    const STEP: &str = "answer it with `bottle supervise`";

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
    fn notifies_the_desktop_only_where_a_session_and_the_program_exist() {
        let home = tempfile::tempdir().expect("home");
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).expect("directory");
        let program = bin.join(DESKTOP);
        let (path, runtime) = (bin.to_str().expect("text"), home.path().to_str().expect("text"));
        let with_bus = host(home.path(), &[("PATH", path), ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x")]);
        assert_eq!(desktop(&with_bus, MESSAGE, STEP), None, "there is no such program");
        std::fs::write(&program, "").expect("written");
        assert_eq!(desktop(&with_bus, MESSAGE, STEP), None, "it is no program");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("mode");
        let command = desktop(&with_bus, MESSAGE, STEP).expect("a command");
        let arguments = ["--app-name=bottle", "--", MESSAGE, STEP];
        assert_eq!(command.argv[0], program);
        assert_eq!(command.argv[1..], arguments);
        assert!(command.stdin.is_empty());
        let without = host(home.path(), &[("PATH", path), ("XDG_RUNTIME_DIR", runtime)]);
        assert_eq!(desktop(&without, MESSAGE, STEP), None, "there is no session");
        let _bus = std::os::unix::net::UnixListener::bind(home.path().join("bus")).expect("socket");
        assert!(desktop(&without, MESSAGE, STEP).is_some());
    }

    #[test]
    fn passes_no_variable_that_may_contain_a_secret() {
        let home = tempfile::tempdir().expect("home");
        let host = host(home.path(), &[("PATH", "/bin"), ("API_KEY", "x"), ("DOCKER_HOST", "tcp://u:p@h")]);
        let names: Vec<OsString> = environment(&host).into_keys().collect();
        assert_eq!(names, ["BOTTLE_HOME", "PATH"]);
    }
}
