//! Finds or starts a Docker engine for tests.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The base image of the project's Dockerfiles.
pub const BASE_IMAGE: &str = "debian:bookworm-slim";
/// The time limit for an engine to respond after it was started.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The path of the static program, which is needed in containers.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/bottle");
/// The log file of an engine that the tests started.
const LOG: &str = "/var/log/bottle-test-dockerd.log";

/// Why there is no engine that tests can use. A test passes this value to [`crate::skip::aloud`].
#[derive(Debug, Clone)]
pub struct NoEngine(String);

impl fmt::Display for NoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that an engine is available, that it has [`BASE_IMAGE`], and that the program for containers was
/// built. If an installed engine is not running and this process is root, starts the engine. The engine is
/// not stopped afterwards, because other test programs use it too.
///
/// # Errors
/// Returns [`NoEngine`], which says how to fix the problem. The check runs once per process.
pub fn here() -> Result<(), NoEngine> {
    static ANSWER: OnceLock<Result<(), NoEngine>> = OnceLock::new();
    ANSWER.get_or_init(look).clone()
}

/// Like [`here`], for an engine that mounts the directories of this machine without changes: Docker, as root, on the
/// kernel of this machine, without mapped users and without labels of files.
///
/// # Errors
/// Returns the same errors as [`here`].
pub fn on_this_kernel() -> Result<(), NoEngine> {
    here()?;
    let info = docker(&["info", "--format", "{{.KernelVersion}} {{.SecurityOptions}}"]).unwrap_or_default();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let other =
        ["rootless", "userns", "selinux"].iter().any(|option| info.contains(&format!("name={option}")));
    if info.split(' ').next() != Some(&kernel) || other {
        return no(
            "the containers of the engine do not see the directories of this machine as they are".to_owned()
        );
    }
    Ok(())
}

/// Waits until no other test program makes the image with the agents' tools, and returns the lock. All homes share this
/// image, and the build of the image takes a minute.
#[must_use]
pub fn lock_tools() -> File {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools-image.lock");
    let lock = OpenOptions::new().create(true).append(true).open(path);
    let lock = lock.unwrap_or_else(|error| panic!("{path}: {error}"));
    lock.lock().unwrap_or_else(|error| panic!("{path}: {error}"));
    lock
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
        // Another test program may have started an engine at the same time. Then this engine exits, and the other
        // engine responds.
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

/// Returns this machine's address on the engine's default network. Every container with network access can
/// reach this address.
#[must_use]
pub fn machine() -> Option<IpAddr> {
    let format = "{{range .IPAM.Config}}{{.Gateway}} {{.Subnet}}{{end}}";
    let output = docker(&["network", "inspect", "--format", format, "bridge"])?;
    match output.split_once(' ') {
        Some((gateway, _)) => gateway.parse().ok(),
        // An engine that created its bridge itself, for example at its first start, prints only the address
        // range (seen with 20.10.24). The engine then uses the first address of this range.
        None => first_of(&output).map(IpAddr::V4),
    }
}

fn first_of(subnet: &str) -> Option<Ipv4Addr> {
    let network: Ipv4Addr = subnet.split_once('/')?.0.parse().ok()?;
    Some(Ipv4Addr::from_bits(network.to_bits() + 1))
}

/// Lists all resources of the engine that are labelled with this home's hash: `container x`, `network y`,
/// `volume z`.
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

/// Returns the output of `docker` with these arguments; `None` if it fails.
#[must_use]
pub fn docker(arguments: &[&str]) -> Option<String> {
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
