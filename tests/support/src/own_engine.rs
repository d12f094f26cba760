//! A private Docker engine for destructive tests, which stop it or fill its disk. It has only a loopback network, and
//! ends with the test in any case.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::engine::BASE_IMAGE;

/// How long it may take to answer after it was started.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Pid 1 of its namespaces: when its standard input ends, everything in them does. `$FOLDER` is the test's, `$SIZE`
/// what its disk holds.
const KEEPER: &str = r#"
mount -t tmpfs -o "size=$SIZE" none "$FOLDER/data" && mount -t tmpfs none /run && ip link set lo up || exit 1
start() {
  rm -f /run/engine.pid
  dockerd --data-root "$FOLDER/data" --exec-root /run/docker --pidfile /run/engine.pid -H "unix://$FOLDER/engine.sock" &
  engine=$!
}
start
while read -r word; do
  case $word in
    stop) kill -9 $engine; wait $engine; rm -f "$FOLDER/engine.sock"; echo stopped ;;
    start) start ;;
    fill) cat /dev/zero > "$FOLDER/data/ballast" 2>/dev/null; echo full ;;
    empty) rm "$FOLDER/data/ballast"; echo empty ;;
  esac > "$FOLDER/answer.new" && mv "$FOLDER/answer.new" "$FOLDER/answer"
done
"#;

/// See the module.
#[derive(Debug)]
pub struct OwnEngine {
    keeper: Child,
    orders: Option<ChildStdin>,
    folder: TempDir,
}

impl OwnEngine {
    /// Why there can be none here, for [`crate::skip::aloud`].
    #[must_use]
    pub fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root may start an engine".to_owned());
        }
        let programs = ["dockerd", "docker", "unshare", "ip"];
        let is_there = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
        };
        let missing = programs.into_iter().find(|name| !is_there(name))?;
        Some(format!("there is no {missing}"))
    }

    /// Starts one with nothing on it and a disk of this size (`600m`), in memory.
    ///
    /// # Errors
    /// When it does not answer; the error has its log.
    pub fn start(size: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("be-").tempdir().context("a folder")?;
        std::fs::create_dir(folder.path().join("data"))?;
        let log = File::create(folder.path().join("log"))?;
        let mut keeper = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", KEEPER])
            .env("FOLDER", folder.path())
            .env("SIZE", size)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("unshare")?;
        let orders = keeper.stdin.take();
        let engine = Self { keeper, orders, folder };
        engine.answers()?;
        Ok(engine)
    }

    /// Its `DOCKER_HOST`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix://{}", self.folder.path().join("engine.sock").display())
    }

    /// Its folder, which differs from run to run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output of `docker` with these arguments for it; none if it fails.
    #[must_use]
    pub fn docker(&self, arguments: &[&str]) -> Option<String> {
        let address = self.address();
        let output = Command::new("docker").args(["--host", &address]).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Gives it [`BASE_IMAGE`] of the engine that answers on this machine.
    ///
    /// # Errors
    /// When one of the two does not.
    pub fn take_base(&self) -> Result<()> {
        let script = format!("docker save {BASE_IMAGE} | docker --host {} load", self.address());
        let loaded = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status()?;
        if loaded.success() { Ok(()) } else { bail!("{BASE_IMAGE} could not be loaded") }
    }

    /// Kills it in the middle of whatever it does. Its containers go on until it is started again.
    ///
    /// # Errors
    /// When its control pipe is closed.
    pub fn stop(&mut self) -> Result<()> {
        self.order("stop", Some("stopped"))
    }

    /// Starts it again, with what was on it.
    ///
    /// # Errors
    /// As [`OwnEngine::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.order("start", None)?;
        self.answers()
    }

    /// Fills its disk to the last byte.
    ///
    /// # Errors
    /// When its control pipe is closed.
    pub fn fill(&mut self) -> Result<()> {
        self.order("fill", Some("full"))
    }

    /// Makes room again.
    ///
    /// # Errors
    /// When its control pipe is closed.
    pub fn empty(&mut self) -> Result<()> {
        self.order("empty", Some("empty"))
    }

    fn order(&mut self, word: &str, answer: Option<&str>) -> Result<()> {
        let path = self.folder.path().join("answer");
        let _ = std::fs::remove_file(&path);
        let orders = self.orders.as_mut().context("its keeper is gone")?;
        writeln!(orders, "{word}").context("its keeper is gone")?;
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
        self.folder.path().join("log")
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
        // Its namespaces end with their pid 1, and what is in them with these.
        self.orders = None;
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
