//! Shares one ssh connection to an upstream (`ControlMaster`) between successive git commands.
//!
//! A push runs git twice: to list the refs, and to send the objects. Connecting takes longer than both commands
//! together. The gate therefore starts ssh's control master for the first git command, and stops it after it has been
//! unused for [`IDLE_TIMEOUT`]. The control master is a subprocess of the gate, and exits with the gate. The control
//! master has no key, and uses the same ssh-agent as every ssh command of the repository. Without a control master,
//! each git command opens its own connection.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bottle_policy::names::Name;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::git::{Git, ReservedFds, Running};

/// The time for which an unused connection is kept open. The connection is kept because an agent that fetches usually
/// pushes later. To the upstream, an unused connection looks like the connection of a user with an open shell.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The interval at which the gate checks whether the connection is in use and alive.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum time that the gate waits for the control master to exit after a git command has failed. The control
/// master exits shortly after the git command if the connection is lost.
const LOST_WITHIN: Duration = Duration::from_millis(200);

/// The time limit for connecting. When the limit is reached, git opens its own connection and reports why connecting
/// fails.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The interval at which the gate checks whether the control socket exists.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The shared ssh connection of one repository.
pub(crate) struct ControlMaster {
    /// The git configuration that runs ssh in the mirror's directory, like every ssh command of the repository.
    git: Git,
    /// The arguments of ssh that start the control master.
    arguments: Vec<String>,
    /// The path of the control socket, relative to the mirror.
    socket: String,
    master: Mutex<Option<Master>>,
}

struct Master {
    running: Running,
    used: Instant,
    /// Each git command that uses the connection holds a clone of this reference.
    lease: Arc<()>,
}

impl ControlMaster {
    /// Prepares a shared connection to the host of `url`, and does not connect yet. ssh uses `options` and no
    /// configuration file. Returns `None` if ssh's destination cannot be derived from the URL.
    pub(crate) fn for_url(url: &str, git: Git, name: &Name, options: &[String]) -> Option<Arc<Self>> {
        let socket = format!("../{name}.line");
        let mut arguments = vec!["-F".to_owned(), "/dev/null".to_owned()];
        // The control master must send the environment variable `GIT_PROTOCOL`, because git's own ssh command would
        // send it.
        let own = ["ControlMaster=yes", "ControlPersist=no", "SendEnv=GIT_PROTOCOL"].map(str::to_owned);
        for option in options.iter().chain(&own).chain([&control_path(&socket)]) {
            arguments.extend(["-o".to_owned(), option.clone()]);
        }
        arguments.extend(["-N", "-T"].map(str::to_owned));
        arguments.extend(destination(url)?);
        Some(Arc::new(Self { git, arguments, socket, master: Mutex::default() }))
    }

    /// Returns the ssh option that makes a command use this connection.
    pub(crate) fn option(&self) -> String {
        control_path(&self.socket)
    }

    /// Connects if necessary, and returns a lease that keeps the connection open. Returns `None` if the connection
    /// cannot be opened.
    pub(crate) async fn acquire(self: &Arc<Self>, fds: &ReservedFds) -> Option<Arc<()>> {
        let mut master = self.master.lock().await;
        if let Some(current) = master.as_mut()
            && matches!(current.running.child.try_wait(), Ok(None))
        {
            current.used = Instant::now();
            return Some(Arc::clone(&current.lease));
        }
        *master = None;
        let running = self.connect(fds).await?;
        let lease = Arc::new(());
        *master = Some(Master { running, used: Instant::now(), lease: Arc::clone(&lease) });
        tokio::spawn(Arc::clone(self).close_when_idle());
        Some(lease)
    }

    async fn connect(&self, fds: &ReservedFds) -> Option<Running> {
        let socket = self.git.mirror.join(&self.socket);
        // Removes the socket of a killed control master. An error is ignored: the new control master cannot listen in
        // this case, and connecting fails.
        let _ = fs::remove_file(&socket);
        let child = fds.spawn(&[], |_| {
            let mut command = self.git.command("setpriv");
            command.args(["--pdeathsig", "KILL", "ssh"]).args(&self.arguments);
            command
        });
        let mut running = Running::new(child.ok()?);
        let until = Instant::now() + CONNECT_WITHIN;
        while !socket.exists() {
            if Instant::now() > until || !matches!(running.child.try_wait(), Ok(None)) {
                return None;
            }
            sleep(POLL_INTERVAL).await;
        }
        Some(running)
    }

    /// Returns whether the control master has exited by itself. If it has, a git command that failed may retry with a
    /// new connection.
    pub(crate) async fn is_lost(&self) -> bool {
        match &mut *self.master.lock().await {
            Some(current) => timeout(LOST_WITHIN, current.running.child.wait()).await.is_ok(),
            None => false,
        }
    }

    /// Closes the connection after it has been unused for [`IDLE_TIMEOUT`].
    async fn close_when_idle(self: Arc<Self>) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let mut master = self.master.lock().await;
            let in_use = master.as_mut().is_some_and(|current| {
                let used = Arc::strong_count(&current.lease) > 1 || current.used.elapsed() < IDLE_TIMEOUT;
                used && matches!(current.running.child.try_wait(), Ok(None))
            });
            if !in_use {
                *master = None;
                return;
            }
        }
    }
}

fn control_path(socket: &str) -> String {
    format!("ControlPath={socket}")
}

/// Returns the ssh arguments for the destination in an upstream's URL. Returns `None` if the URL is ambiguous.
fn destination(url: &str) -> Option<Vec<String>> {
    let (to, port) = match url.strip_prefix("ssh://") {
        Some(rest) => {
            let (to, _) = rest.split_once('/')?;
            match to.rsplit_once(':') {
                Some((to, port)) if !port.contains(']') => (to, Some(port)),
                _ => (to, None),
            }
        }
        None => {
            let (to, path) = url.split_once(':')?;
            // Rejects a URL of another scheme, and the address of a remote helper (`helper::address`).
            (Some(to).filter(|_| !path.starts_with("//") && !path.starts_with(':'))?, None)
        }
    };
    let (user, host) = to.split_once('@').map_or((None, to), |(user, host)| (Some(user), host));
    let plain = |text: &str, more: &str| {
        !text.is_empty()
            && !text.starts_with('-')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => Some(host).filter(|host| plain(host, ":.")),
        None => Some(host).filter(|host| plain(host, "-._")),
    }?;
    let is_port = |port: &str| plain(port, "") && port.parse::<u16>().is_ok();
    if !user.is_none_or(|user| plain(user, "-._")) || !port.is_none_or(is_port) {
        return None;
    }
    let port = port.into_iter().flat_map(|port| ["-p".to_owned(), port.to_owned()]);
    let to = user.map_or(host.to_owned(), |user| format!("{user}@{host}"));
    Some(port.chain([to]).collect())
}

#[cfg(test)]
mod tests {
    use super::destination;

    #[test]
    fn parses_ssh_destinations() {
        for (url, wanted) in [
            ("ssh://git@forge.example.com/team/tool.git", Some("git@forge.example.com")),
            ("ssh://forge.example.com:2222/x", Some("-p 2222 forge.example.com")),
            ("ssh://git@[2001:db8::1]:22/x", Some("-p 22 git@2001:db8::1")),
            ("ssh://git@[2001:db8::1]/x", Some("git@2001:db8::1")),
            ("git@forge.example.com:team/tool.git", Some("git@forge.example.com")),
            ("forge:x", Some("forge")),
            ("https://forge.example.com/x", None),
            ("ssh://-oProxyCommand=x/y", None),
            ("ssh://git@-oProxyCommand=x/y", None),
            ("-oProxyCommand=x:y", None),
            ("ssh://-l@forge/x", None),
            ("ssh://a@b@c/x", None),
            ("ssh://git@forge:+22/x", None),
            ("ssh://git@forge:-1/x", None),
            ("ssh://git@/x", None),
            ("ext::sh -c x", None),
            ("file:///x", None),
            ("/x", None),
            ("", None),
        ] {
            assert_eq!(destination(url).map(|all| all.join(" ")).as_deref(), wanted, "{url}");
        }
    }
}
