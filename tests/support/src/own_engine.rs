//! A private container engine: for destructive tests, which stop the engine or fill its disk, and for tests of the
//! engines that users have. Its only network is loopback. The engine ends with the test, even if the test is killed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::engine::BASE_IMAGE;

/// The time limit for an engine to respond after it was started.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The script that is pid 1 of the engine's namespaces. The namespaces end when the script's standard input
/// is closed. `$DIRECTORY` is the directory of the test, `$SIZE` is the size of the engine's disk, and `$KIND` is the
/// kind of engine.
///
/// The user of a remapped or rootless engine needs subordinate ids, which only processes in the namespaces see. gVisor
/// gets no network of its own, because the packaged version mistakes the network namespace of a recent kernel for the
/// machine's network namespace.
const KEEPER: &str = r#"
mount -t tmpfs -o "size=$SIZE" none "$DIRECTORY/data" && mount -t tmpfs none /run && ip link set lo up || exit 1
printf 'nobody:200000:65536\nnogroup:200000:65536\n' > /run/ids
case $KIND in
  remapped | rootless) mount --bind /run/ids /etc/subuid && mount --bind /run/ids /etc/subgid || exit 1 ;;
esac
case $KIND in
  rootless)
    mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun || exit 1
    mkdir -m 700 /run/user && mkdir /run/home && chmod 711 "$DIRECTORY" || exit 1
    chown nobody:nogroup /run/user /run/home "$DIRECTORY/data" "$DIRECTORY/socket" || exit 1 ;;
  gvisor)
    echo '{"runtimes": {"runsc": {"path": "/usr/bin/runsc",
      "runtimeArgs": ["--network=none", "--fsgofer-host-uds"]}}}' > /run/daemon.json ;;
  podman) printf '[network]\nnetwork_backend = "netavark"\n' > /run/containers.conf ;;
esac
start() {
  rm -f /run/engine.pid
  set -- --data-root "$DIRECTORY/data" --pidfile /run/engine.pid -H "unix://$SOCKET" $FLAGS
  case $KIND in
    docker) dockerd --exec-root /run/docker "$@" & ;;
    remapped) dockerd --userns-remap nobody:nogroup --exec-root /run/docker "$@" & ;;
    gvisor) dockerd --config-file /run/daemon.json --exec-root /run/docker "$@" & ;;
    rootless)
      HOME=/run/home XDG_RUNTIME_DIR=/run/user USER=nobody PATH="$PATH:/usr/sbin:/sbin" \
        DOCKERD_ROOTLESS_ROOTLESSKIT_PORT_DRIVER=none \
        setpriv --reuid=65534 --regid=65534 --clear-groups sh /usr/share/docker.io/contrib/dockerd-rootless.sh \
        --data-root "$DIRECTORY/data" --exec-root /run/user/docker --pidfile /run/user/engine.pid -H "unix://$SOCKET" & ;;
    podman)
      CONTAINERS_CONF=/run/containers.conf podman --root "$DIRECTORY/data/root" --runroot /run/podman-root \
        --storage-driver overlay --cgroup-manager cgroupfs --events-backend file --tmpdir /run/podman-tmp \
        system service --time=0 "unix://$SOCKET" & ;;
  esac
  engine=$!
}
start
while read -r word; do
  case $word in
    stop) kill -9 $engine; wait $engine; rm -f "$SOCKET"; echo stopped ;;
    quit) kill $engine; wait $engine; echo quit ;;
    start*) FLAGS=${word#start}; start ;;
    fill) cat /dev/zero > "$DIRECTORY/data/ballast" 2>/dev/null; echo full ;;
    empty) rm "$DIRECTORY/data/ballast"; echo empty ;;
  esac > "$DIRECTORY/answer.new" && mv "$DIRECTORY/answer.new" "$DIRECTORY/answer"
done
"#;

/// The engine's socket in the directory of the test.
const SOCKET: &str = "socket/engine.sock";

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Docker, as root.
    Docker,
    /// Docker, as root. Its containers have other user ids on the machine (`userns-remap`).
    Remapped,
    /// Docker, as an ordinary user.
    Rootless,
    /// Docker, as root, with gVisor as the runtime `runsc`.
    Gvisor,
    /// Podman, as root.
    Podman,
}

impl Kind {
    /// All kinds except [`Kind::Docker`].
    pub const OTHERS: [Self; 4] = [Self::Remapped, Self::Rootless, Self::Gvisor, Self::Podman];

    fn word(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Remapped => "remapped",
            Self::Rootless => "rootless",
            Self::Gvisor => "gvisor",
            Self::Podman => "podman",
        }
    }

    /// The programs that an engine of this kind needs, in addition to those that every private engine needs.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Docker | Self::Remapped => &["dockerd"],
            Self::Rootless => &["dockerd", "rootlesskit", "slirp4netns", "newuidmap", "setpriv"],
            Self::Gvisor => &["dockerd", "runsc"],
            Self::Podman => &["podman"],
        }
    }
}

/// A private container engine.
#[derive(Debug)]
pub struct OwnEngine {
    keeper: Child,
    orders: Option<ChildStdin>,
    directory: TempDir,
}

impl OwnEngine {
    /// Returns why this machine cannot run a private engine, for [`crate::skip::aloud`]; `None` if it can.
    #[must_use]
    pub fn missing() -> Option<String> {
        Self::missing_kind(Kind::Docker)
    }

    /// Like [`OwnEngine::missing`], for an engine of this kind.
    #[must_use]
    pub fn missing_kind(kind: Kind) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root may start an engine".to_owned());
        }
        let is_there = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
        };
        let programs = ["docker", "unshare", "ip"].iter().chain(kind.programs());
        let missing = programs.copied().find(|name| !is_there(name))?;
        Some(format!("there is no {missing}"))
    }

    /// Starts an empty engine. Its disk has this size (for example `600m`) and is in memory.
    ///
    /// # Errors
    /// Returns an error if the engine does not respond. The error contains the engine's log.
    pub fn start(size: &str) -> Result<Self> {
        Self::start_kind(Kind::Docker, size)
    }

    /// Like [`OwnEngine::start`], for an engine of this kind.
    ///
    /// # Errors
    /// Returns the same errors as [`OwnEngine::start`].
    pub fn start_kind(kind: Kind, size: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("be-").tempdir().context("a directory")?;
        for name in ["data", "socket"] {
            std::fs::create_dir(directory.path().join(name))?;
        }
        let log = File::create(directory.path().join("log"))?;
        let mut keeper = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", KEEPER])
            .env("DIRECTORY", directory.path())
            .env("SOCKET", directory.path().join(SOCKET))
            .env("SIZE", size)
            .env("KIND", kind.word())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("unshare")?;
        let orders = keeper.stdin.take();
        let engine = Self { keeper, orders, directory };
        engine.answers()?;
        Ok(engine)
    }

    /// Returns the engine's address for `DOCKER_HOST`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix://{}", self.directory.path().join(SOCKET).display())
    }

    /// Returns the engine's directory, whose path differs between runs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs `docker` with these arguments on this engine, and returns its output; `None` if it fails.
    #[must_use]
    pub fn docker(&self, arguments: &[&str]) -> Option<String> {
        let address = self.address();
        let output = Command::new("docker").args(["--host", &address]).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Copies [`BASE_IMAGE`] from this machine's engine.
    ///
    /// # Errors
    /// Returns an error if one of the engines fails.
    pub fn take_base(&self) -> Result<()> {
        let script = format!("docker save {BASE_IMAGE} | docker --host {} load", self.address());
        let loaded = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status()?;
        if loaded.success() { Ok(()) } else { bail!("{BASE_IMAGE} could not be loaded") }
    }

    /// Kills the engine. Its containers continue to run.
    ///
    /// # Errors
    /// Returns an error if the control pipe is closed.
    pub fn stop(&mut self) -> Result<()> {
        self.order("stop", Some("stopped"))
    }

    /// Ends the engine as a service manager does. The engine ends its containers first, unless it was started with
    /// `--live-restore`.
    ///
    /// # Errors
    /// Returns an error if the control pipe is closed.
    pub fn quit(&mut self) -> Result<()> {
        self.order("quit", Some("quit"))
    }

    /// Starts the engine again, with its images and containers.
    ///
    /// # Errors
    /// Returns the same errors as [`OwnEngine::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.start_with("")
    }

    /// Starts the engine again with a further option.
    ///
    /// # Errors
    /// Returns the same errors as [`OwnEngine::start`].
    pub fn start_with(&mut self, option: &str) -> Result<()> {
        self.order(&format!("start {option}"), None)?;
        self.answers()
    }

    /// Whether the engine answers now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.docker(&["version", "--format", "{{.Server.Version}}"]).is_some()
    }

    /// Fills the engine's disk completely.
    ///
    /// # Errors
    /// Returns an error if the control pipe is closed.
    pub fn fill(&mut self) -> Result<()> {
        self.order("fill", Some("full"))
    }

    /// Frees the space that [`OwnEngine::fill`] used.
    ///
    /// # Errors
    /// Returns an error if the control pipe is closed.
    pub fn empty(&mut self) -> Result<()> {
        self.order("empty", Some("empty"))
    }

    fn order(&mut self, word: &str, answer: Option<&str>) -> Result<()> {
        let path = self.directory.path().join("answer");
        let _ = std::fs::remove_file(&path);
        let orders = self.orders.as_mut().context("its pid 1 has ended")?;
        writeln!(orders, "{word}").context("its pid 1 has ended")?;
        let Some(answer) = answer else { return Ok(()) };
        wait_for(&format!("{word}: no answer"), || {
            std::fs::read_to_string(&path).is_ok_and(|said| said.trim() == answer)
        })
    }

    fn answers(&self) -> Result<()> {
        let answers = || self.docker(&["version", "--format", "{{.Server.Version}}"]).is_some();
        wait_for("the engine does not answer", answers).with_context(|| self.log())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

fn wait_for(what: &str, condition: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + STARTS_WITHIN;
    while !condition() {
        if Instant::now() > end {
            bail!("{what}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        // When pid 1 of the namespaces ends, all their processes end.
        self.orders = None;
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
