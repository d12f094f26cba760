//! A connection to an upstream that one git after the other goes through.
//!
//! A push goes up twice, once to see what is there and once with what is new, and ssh takes longer to open the
//! way than both to use it. So the first opens it and it is kept for a while: ssh's own master, a process of the
//! gate's as any other, in a group of its own, which ends with the gate. It has no key and reaches the same agent
//! as every ssh here. Where it cannot be had, or ends, each git opens a way of its own.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Name;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::git::{Git, Passage, Running};

/// How long it is kept when nobody goes through it: who has fetched works, and pushes then. Upstream holds a quiet
/// connection meanwhile, as of a user who has a shell there.
const KEPT: Duration = Duration::from_secs(30 * 60);

/// Between two looks whether it is still wanted, and there.
const CHECKED: Duration = Duration::from_secs(60);

/// How much later than a git that went through it one that is lost ends.
const LOST_WITHIN: Duration = Duration::from_millis(200);

/// How long it may take to open, before whoever waits goes by himself, who then hears why it takes so long.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// Between two looks whether it is open.
const LOOK: Duration = Duration::from_millis(2);

/// See the module.
pub(crate) struct Line {
    /// The mirror, where every ssh of the repository runs.
    place: Git,
    /// Of ssh, for the master.
    arguments: Vec<String>,
    /// Where it listens, from there.
    socket: String,
    master: Mutex<Option<Master>>,
}

struct Master {
    running: Running,
    used: Instant,
    /// Whoever goes through it has another one.
    held: Arc<()>,
}

impl Line {
    /// One to the host of `url`, of which ssh is given `options` and nothing else. None: it is of no plain form.
    pub(crate) fn to(url: &str, place: Git, name: &Name, options: &[String]) -> Option<Arc<Self>> {
        let socket = format!("../{name}.line");
        let mut arguments = vec!["-F".to_owned(), "/dev/null".to_owned()];
        // What git's own ssh may send, the master sends for it.
        let own = ["ControlMaster=yes", "ControlPersist=no", "SendEnv=GIT_PROTOCOL"].map(str::to_owned);
        for option in options.iter().chain(&own).chain([&path(&socket)]) {
            arguments.extend(["-o".to_owned(), option.clone()]);
        }
        arguments.extend(["-N", "-T"].map(str::to_owned));
        arguments.extend(destination(url)?);
        Some(Arc::new(Self { place, arguments, socket, master: Mutex::default() }))
    }

    /// The option by which an ssh goes through it.
    pub(crate) fn option(&self) -> String {
        path(&self.socket)
    }

    /// Opens it unless it is open. It stays for as long as what comes back is held; none: it cannot be had.
    pub(crate) async fn hold(self: &Arc<Self>, passage: &Passage) -> Option<Arc<()>> {
        let mut master = self.master.lock().await;
        if let Some(there) = master.as_mut()
            && matches!(there.running.child.try_wait(), Ok(None))
        {
            there.used = Instant::now();
            return Some(Arc::clone(&there.held));
        }
        *master = None;
        let running = self.open(passage).await?;
        let held = Arc::new(());
        *master = Some(Master { running, used: Instant::now(), held: Arc::clone(&held) });
        tokio::spawn(Arc::clone(self).forget());
        Some(held)
    }

    async fn open(&self, passage: &Passage) -> Option<Running> {
        let socket = self.place.mirror.join(&self.socket);
        // Of one that was killed; if it cannot be removed, this one cannot listen.
        let _ = fs::remove_file(&socket);
        let child = passage.spawn(&[], |_| {
            let mut command = self.place.command("setpriv");
            command.args(["--pdeathsig", "KILL", "ssh"]).args(&self.arguments);
            command
        });
        let mut running = Running::new(child.ok()?);
        let until = Instant::now() + OPEN_WITHIN;
        while !socket.exists() {
            if Instant::now() > until || !matches!(running.child.try_wait(), Ok(None)) {
                return None;
            }
            sleep(LOOK).await;
        }
        Some(running)
    }

    /// Whether it has ended by itself: then whoever failed on it may go again, by another.
    pub(crate) async fn is_lost(&self) -> bool {
        match &mut *self.master.lock().await {
            Some(there) => timeout(LOST_WITHIN, there.running.child.wait()).await.is_ok(),
            None => false,
        }
    }

    /// Ends it when nobody has gone through it for a while.
    async fn forget(self: Arc<Self>) {
        loop {
            sleep(CHECKED).await;
            let mut master = self.master.lock().await;
            let wanted = master.as_mut().is_some_and(|there| {
                let used = Arc::strong_count(&there.held) > 1 || there.used.elapsed() < KEPT;
                used && matches!(there.running.child.try_wait(), Ok(None))
            });
            if !wanted {
                *master = None;
                return;
            }
        }
    }
}

fn path(socket: &str) -> String {
    format!("ControlPath={socket}")
}

/// Where an address leads, as ssh's arguments. Only what nobody can take for anything else.
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
            // Another scheme's address, or git's own for a helper.
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
    fn where_addresses_lead() {
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
