//! A shared ssh connection (`ControlMaster`) to an upstream, for consecutive runs of git.
//!
//! A push connects twice, to list the refs and to send the objects, and ssh takes longer to connect than
//! both take to run. So the first run starts ssh's control master and the gate keeps it for
//! [`IDLE_TIMEOUT`]. The master is a subprocess of the gate and ends with it. It has no key and uses the
//! same agent as every ssh here. Without a master, each git opens its own connection.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Name;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::git::{Git, ReservedFds, Running};

/// How long an unused connection stays open: an agent that fetches usually pushes later. For the upstream
/// it is a quiet connection, as of a user with an open shell.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Interval between checks whether the connection is in use and alive.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Most time between the exit of a git that lost the connection and the exit of the master.
const LOST_WITHIN: Duration = Duration::from_millis(200);

/// Time limit to connect. After it git connects by itself and reports why that takes long.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Interval between checks for the control socket.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The shared connection of one repository.
pub(crate) struct ControlMaster {
    /// Runs ssh in the mirror, as every ssh of the repository.
    git: Git,
    /// Arguments of ssh for the master.
    arguments: Vec<String>,
    /// The control socket, relative to the mirror.
    socket: String,
    master: Mutex<Option<Master>>,
}

struct Master {
    running: Running,
    used: Instant,
    /// Every user of the connection has a clone.
    lease: Arc<()>,
}

impl ControlMaster {
    /// A connection to the host of `url`, with only these `options` of ssh. `None` if the URL has no
    /// plain ssh form.
    pub(crate) fn for_url(url: &str, git: Git, name: &Name, options: &[String]) -> Option<Arc<Self>> {
        let socket = format!("../{name}.line");
        let mut arguments = vec!["-F".to_owned(), "/dev/null".to_owned()];
        // The master forwards the variable that git's own ssh would send.
        let own = ["ControlMaster=yes", "ControlPersist=no", "SendEnv=GIT_PROTOCOL"].map(str::to_owned);
        for option in options.iter().chain(&own).chain([&control_path(&socket)]) {
            arguments.extend(["-o".to_owned(), option.clone()]);
        }
        arguments.extend(["-N", "-T"].map(str::to_owned));
        arguments.extend(destination(url)?);
        Some(Arc::new(Self { git, arguments, socket, master: Mutex::default() }))
    }

    /// The ssh option that uses this connection.
    pub(crate) fn option(&self) -> String {
        control_path(&self.socket)
    }

    /// Connects unless connected, and returns a lease that keeps the connection open. `None` if it
    /// cannot connect.
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
        // A leftover of a killed master; if it cannot be removed, the new master cannot listen.
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

    /// Whether the master has exited by itself: then a git that failed may retry on a new connection.
    pub(crate) async fn is_lost(&self) -> bool {
        match &mut *self.master.lock().await {
            Some(current) => timeout(LOST_WITHIN, current.running.child.wait()).await.is_ok(),
            None => false,
        }
    }

    /// Closes the connection after [`IDLE_TIMEOUT`] without use.
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

/// The destination of an upstream URL as arguments of ssh. `None` unless the URL is unambiguous.
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
            // A URL of another scheme, or a remote helper's address (`helper::address`).
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
