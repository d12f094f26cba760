//! Tests that the isolation probe runs at every start, and that it detects missing isolation.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use bottle_host::addresses;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{engine, skip};

use crate::home::run;

/// The sockets of container engines. An agent that reaches one of them can become root on the machine.
const ENGINES: [&str; 2] = ["/run/docker.sock", "/run/podman/podman.sock"];

/// A socket of a container engine. If there is none, a file is created in its place, and removed on drop.
struct EngineSocket {
    path: PathBuf,
    made: bool,
}

impl EngineSocket {
    fn find() -> Option<Self> {
        let found = ENGINES.iter().map(Path::new).find(|path| path.exists());
        if let Some(path) = found {
            return Some(Self { path: path.to_owned(), made: false });
        }
        let path = PathBuf::from(ENGINES[1]);
        fs::create_dir_all(path.parent()?).ok()?;
        fs::write(&path, "").ok()?;
        Some(Self { path, made: true })
    }
}

impl Drop for EngineSocket {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(&self.path);
            // Removing the directory fails if it has other entries, which belong to another process.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

fn sleeper(backend: &str) -> Result<TestHome> {
    let mut home = TestHome::new()?;
    let provider = "{template: command, command: [sleep, '600']}";
    home.bottle("nap", &format!("---\nbackend: {backend}\nagent_provider: {provider}\n---\n"))?;
    home.agent("nap", "---\nbottle: nap\n---\n")?;
    Ok(home)
}

#[test]
fn a_failed_isolation_probe_stops_the_launch_and_is_named() -> Result<()> {
    let test = "a hole in a bottle";
    let home = sleeper("linux")?;
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let Some(socket) = EngineSocket::find() else {
        skip::aloud(test, &"there is no engine's socket, and only root may make one");
        return Ok(());
    };
    let path = socket.path.display();
    home.write("home/.bottle/settings.yml", &format!("home_allow: [{path}]\nhome_allow_sockets: true\n"))?;
    let outcome = run(&home, &["start", "nap", "--yes", "--detach", "--label", "one"])?.expect_code(5);
    let wanted = "isolation could not be proven: a container engine was reached by ";
    assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("nothing was started"), "{}", outcome.stderr);
    assert_eq!(run(&home, &["list", "--json"])?.json()?.as_array().map(Vec::len), Some(0), "it is undone");
    fs::remove_file(home.bottle_home().join("settings.yml"))?;
    let _ = run(&home, &["start", "nap", "--yes", "--detach", "--label", "one"])?.expect_code(0);
    Ok(())
}

#[test]
fn a_socket_in_an_allowed_path_is_refused_unless_sockets_are_allowed() -> Result<()> {
    let home = sleeper("linux")?;
    if !home.runs("sockets in home_allow", "linux")? {
        return Ok(());
    }
    let tools = home.outside("tools");
    fs::create_dir_all(tools.join("run"))?;
    let _listener = std::os::unix::net::UnixListener::bind(tools.join("run/daemon.sock"))?;
    let start = |settings: &str| -> Result<Outcome> {
        home.write("home/.bottle/settings.yml", &format!("home_allow: [{tools:?}]\n{settings}"))?;
        run(&home, &["start", "nap", "--yes", "--detach", "--label", "one"])
    };
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let refused = start("")?;
    let said = words(&refused.stderr);
    assert!(refused.code != 0 && said.contains("run/daemon.sock"), "{}", refused.transcript());
    assert!(said.contains("home_allow_sockets: true"), "{said}");
    assert_eq!(run(&home, &["list", "--json"])?.json()?.as_array().map(Vec::len), Some(0));
    let said = words(&start("home_allow_sockets: true\n")?.expect_code(0).stderr);
    assert!(said.contains("weaker than usual: the agent sees") && said.contains("daemon.sock"), "{said}");
    Ok(())
}

/// Returns the address that an attempt of the probe tried to reach.
fn addresses_tried(attempt: &serde_json::Value) -> Result<IpAddr> {
    let (_, address) = attempt["via"].as_str().and_then(|via| via.split_once(' ')).context("a way")?;
    Ok(address.parse::<SocketAddr>()?.ip())
}

fn own_addresses() -> Result<BTreeSet<IpAddr>> {
    Ok(addresses::reachable()?.into_iter().map(|address| address.ip()).collect())
}

#[test]
fn every_host_address_answers_outside_and_not_inside() -> Result<()> {
    for backend in ["linux", "docker"] {
        let home = sleeper(backend)?;
        if !home.runs("this machine's addresses", backend)? {
            continue;
        }
        let _ = run(&home, &["start", "nap", "--yes", "--detach", "--label", "one", "-q"])?.expect_code(0);
        let before = own_addresses()?;
        let probed = run(&home, &["probe", "one", "--json"])?.expect_code(0).json()?;
        // Addresses that other containers added or removed during the probe are ignored.
        let stayed: Vec<_> = own_addresses()?.intersection(&before).copied().collect();
        let attempts = probed.as_array().context("a list")?;
        assert!(attempts.iter().all(|attempt| attempt["result"] == "blocked"), "{probed}");
        let of = |target: &str| attempts.iter().filter(|attempt| attempt["target"] == target).count();
        assert!(of("an address outside") == 6 && of("a site that is not listed") == 3, "{probed}");
        let mut answered = 0;
        for attempt in attempts.iter().filter(|attempt| attempt["target"] == "this computer itself") {
            if stayed.contains(&addresses_tried(attempt)?) {
                assert_eq!(attempt["control"], "answered", "{attempt}");
                answered += 1;
            }
        }
        assert!(answered >= 2, "over TCP and UDP: {probed}");
        let shown = run(&home, &["probe", "one"])?.expect_code(0).stdout;
        assert!(shown.contains("attempts were blocked"), "{shown}");
        let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    }
    Ok(())
}

#[test]
fn the_probe_finds_an_added_container_network() -> Result<()> {
    let test = "a second network";
    if let Err(missing) = engine::here() {
        skip::aloud(test, &missing);
        return Ok(());
    }
    let home = sleeper("docker")?;
    if !home.runs(test, "docker")? {
        return Ok(());
    }
    let _ = run(&home, &["start", "nap", "--yes", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let container = format!("bottle-{}-agent-one", bottle_host::home_hash(&home.bottle_home()));
    let connected = Command::new("docker").args(["network", "connect", "bridge", &container]).output()?;
    if !connected.status.success() {
        // The bottle cannot join another network, for example if it reaches the proxy over a socket.
        skip::aloud(test, &String::from_utf8_lossy(&connected.stderr));
        return Ok(());
    }
    let probed = run(&home, &["probe", "one", "--json"])?.expect_code(5).json()?;
    let open = probed.as_array().into_iter().flatten().filter(|attempt| attempt["result"] == "reached");
    let targets: Vec<_> = open.map(|attempt| attempt["target"].as_str().unwrap_or_default()).collect();
    assert!(targets.contains(&"this computer itself"), "{probed}");
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    Ok(())
}
