//! Finds or starts a Docker engine for tests.

use std::fmt;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The base image of the project's Dockerfiles.
pub const BASE_IMAGE: &str = "debian:bookworm-slim";
/// Time limit for a started engine to answer.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The static program, which containers need.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/bottle");
/// The log of a started engine.
const LOG: &str = "/var/log/bottle-test-dockerd.log";

/// Why no engine is available, for [`crate::skip::aloud`].
#[derive(Debug, Clone)]
pub struct NoEngine(String);

impl fmt::Display for NoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks for an engine with [`BASE_IMAGE`], and for the program for containers. Starts an installed engine that is not
/// running, where that is allowed, and leaves it running, because other test programs use it too.
///
/// # Errors
/// [`NoEngine`], with the fix. Checked once per process.
pub fn here() -> Result<(), NoEngine> {
    static ANSWER: OnceLock<Result<(), NoEngine>> = OnceLock::new();
    ANSWER.get_or_init(look).clone()
}

fn look() -> Result<(), NoEngine> {
    if !answers() {
        start()?;
    }
    if docker(&["image", "inspect", "--format", "{{.Id}}", BASE_IMAGE]).is_none() {
        return no(format!("the engine has no {BASE_IMAGE}: run scripts/base-image"));
    }
    if !std::path::Path::new(PROGRAM).exists() {
        return no("there is no dist/bottle to put into containers: run cargo xtask dist");
    }
    Ok(())
}

fn start() -> Result<(), NoEngine> {
    if !rustix::process::geteuid().is_root() {
        return no("no engine answers this user, and only root may start one");
    }
    let failed = |error: std::io::Error| NoEngine(format!("dockerd cannot be started: {error}"));
    let log = OpenOptions::new().create(true).append(true).open(LOG).map_err(failed)?;
    let mut command = Command::new("dockerd");
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log).process_group(0);
    let mut engine = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return no("there is no dockerd: apt-get install docker.io");
        }
        other => other.map_err(failed)?,
    };
    let end = Instant::now() + STARTS_WITHIN;
    while Instant::now() < end {
        if answers() {
            return Ok(());
        }
        // Another test program may have started an engine meanwhile; then this one exits and that one answers.
        let _ = engine.try_wait();
        std::thread::sleep(Duration::from_millis(200));
    }
    no(format!("dockerd was started and does not answer; see {LOG}"))
}

fn no<T>(why: impl Into<String>) -> Result<T, NoEngine> {
    Err(NoEngine(why.into()))
}

fn answers() -> bool {
    docker(&["version", "--format", "{{.Server.Version}}"]).is_some()
}

/// This machine's address on the engine's default network, which every container with network access reaches.
#[must_use]
pub fn machine() -> Option<IpAddr> {
    let format = "{{range .IPAM.Config}}{{.Gateway}} {{.Subnet}}{{end}}";
    let output = docker(&["network", "inspect", "--format", format, "bridge"])?;
    match output.split_once(' ') {
        Some((gateway, _)) => gateway.parse().ok(),
        // An engine that made its bridge itself, as at its very first start, names the range alone (seen with
        // 20.10.24), and has taken the first address of it.
        None => first_of(&output).map(IpAddr::V4),
    }
}

fn first_of(subnet: &str) -> Option<Ipv4Addr> {
    let network: Ipv4Addr = subnet.split_once('/')?.0.parse().ok()?;
    Some(Ipv4Addr::from_bits(network.to_bits() + 1))
}

/// Everything on the engine with the label of this home (its hash): `container x`, `network y`, `volume z`.
#[must_use]
pub fn left_of(home: &str) -> Vec<String> {
    let label = format!("label=bottle.home={home}");
    let listed = |what: &str, format: &str, arguments: &[&str]| -> Vec<String> {
        let arguments = [arguments, &["--filter", &label, "--format", format]].concat();
        let names = docker(&arguments).unwrap_or_else(|| "that cannot be listed".to_owned());
        names.lines().map(|name| format!("{what} {name}")).collect()
    };
    let mut left = listed("container", "{{.Names}}", &["container", "ls", "--all"]);
    left.extend(listed("network", "{{.Name}}", &["network", "ls"]));
    left.extend(listed("volume", "{{.Name}}", &["volume", "ls"]));
    left
}

/// The output of `docker` with these arguments; none if it fails.
#[must_use]
pub fn docker(arguments: &[&str]) -> Option<String> {
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
