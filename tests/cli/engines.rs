//! Tests container engines that are missing, belong to another user, are too old, stop during a launch, or
//! have a full disk.

use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::own_engine::OwnEngine;
use bottle_test_support::program::{Outcome, Program};
use bottle_test_support::skip;

use crate::home::{run, snapshot, transcript, transcripts};

/// Returns a home with an agent that needs a container engine.
fn home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    agent(&mut home, "work", "FROM debian:bookworm-slim\n")?;
    Ok(home)
}

/// Adds an agent that runs in an image built from this Dockerfile.
fn agent(home: &mut TestHome, name: &str, dockerfile: &str) -> Result<()> {
    home.write(&format!("home/.bottle/{name}.Dockerfile"), dockerfile)?;
    let provider = format!("{{template: command, command: [echo, works], dockerfile: {name}.Dockerfile}}");
    home.bottle(name, &format!("---\nbackend: docker\nagent_provider: {provider}\n---\n"))?;
    home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
    Ok(())
}

const START: &[&str] = &["start", "work", "--label", "work"];

#[test]
fn refuses_a_remote_or_missing_engine_by_name() -> Result<()> {
    let mut text = String::new();
    for address in [
        "tcp://192.0.2.1:2375",
        "ssh://somebody@192.0.2.1",
        "unix:///nonexistent/docker.sock",
        "unix://nowhere",
    ] {
        let mut home = home()?;
        home.env("DOCKER_HOST", address);
        text += &format!("DOCKER_HOST={address}\n{}\n", transcripts(&home, &[START, &["cleanup"]])?);
    }
    snapshot!(text);
    Ok(())
}

/// Starts a server that sends the same response on each connection.
fn answering(socket: &Path, answer: &'static str) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    // The thread ends with the test program.
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer.as_bytes());
        }
    });
    Ok(())
}

#[test]
fn reports_an_old_or_absent_engine() -> Result<()> {
    let mut text = String::new();
    for answer in [
        "HTTP/1.0 200 OK\r\nApi-Version: 1.40\r\nOstype: linux\r\nServer: Docker/19.03.15 (linux)\r\n\r\nOK",
        "HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\nOstype: windows\r\nServer: Docker/20.10.24 (windows)\r\n\r\nOK",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ] {
        let mut home = home()?;
        let socket = home.outside("engine.sock");
        answering(&socket, answer)?;
        home.env("DOCKER_HOST", format!("unix://{}", socket.display()));
        text += &transcript(&home, START)?;
    }
    snapshot!(text);
    Ok(())
}

#[test]
fn reports_an_engine_socket_without_permission_and_how_to_get_it() -> Result<()> {
    let test = "reports_an_engine_socket_without_permission_and_how_to_get_it";
    if !rustix::process::getuid().is_root() {
        skip::aloud(test, &"only root can become another user");
        return Ok(());
    }
    let home = home()?;
    let socket = home.outside("engine.sock");
    answering(&socket, "")?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    let nobody = 65534;
    for path in [home.outside(""), home.home(), home.bottle_home(), home.runtime(), home.project()] {
        chown(&path, Some(nobody), Some(nobody))?;
    }
    let mut program = Program::at("/usr/bin/setpriv".as_ref());
    program.arguments(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    program
        .arguments([Program::bottle()?.path().to_owned().into_os_string()])
        .arguments(START.iter().copied());
    program
        .env("HOME", home.home())
        .env("BOTTLE_HOME", home.bottle_home())
        .env("XDG_RUNTIME_DIR", home.runtime())
        .env("DOCKER_HOST", format!("unix://{}", socket.display()))
        .directory(home.project());
    let outcome = program.run()?;
    if outcome.code == 126 || outcome.stderr.contains("setpriv") {
        skip::aloud(test, &"the program lies where another user may not go");
        return Ok(());
    }
    snapshot!(home.scrub()?.apply(&outcome.transcript()));
    Ok(())
}

/// Runs a command with the time limit for commands that build images.
fn run_with_long_timeout(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.deadline(Duration::from_secs(180)).run()
}

fn own_engine(test: &str, size: &str) -> Result<Option<OwnEngine>> {
    match OwnEngine::missing() {
        Some(why) => {
            skip::aloud(test, &why);
            Ok(None)
        }
        None => OwnEngine::start(size).map(Some),
    }
}

#[test]
fn explains_how_to_get_a_base_image_without_a_registry() -> Result<()> {
    let Some(engine) = own_engine("explains_how_to_get_a_base_image_without_a_registry", "64m")? else {
        return Ok(());
    };
    let mut home = home()?;
    home.env("DOCKER_HOST", engine.address());
    home.bottle("own", "---\nbackend: docker\nagent_provider: {template: command, command: [sh]}\n---\n")?;
    home.agent("own", "---\nbottle: own\n---\n")?;
    let dry = run(&home, &["start", "own", "--dry-run", "--json"])?;
    if dry.stderr.contains("cargo xtask dist") {
        skip::aloud("explains_how_to_get_a_base_image_without_a_registry", &"there is no dist/bottle");
        return Ok(());
    }
    let mut text = format!("{:#}\n", dry.json()?["makes"]);
    text += &transcript(&home, &["start", "own", "--label", "own"])?;
    let mut scrub = home.scrub()?;
    scrub.add(r"(cannot be pulled from [^:]+: ).*", "$1[CAUSE]")?;
    snapshot!(scrub.apply(&text));
    assert_eq!(engine.docker(&["ps", "--all", "--quiet"]).as_deref(), Some(""));
    Ok(())
}

/// Lists the resources that bottles have left on an engine.
fn left_on_the_engine(engine: &OwnEngine) -> Vec<String> {
    let asked: [&[&str]; 4] = [
        &["ps", "--all", "--format", "{{.Names}}"],
        &["network", "ls", "--filter", "name=bottle-", "--format", "{{.Name}}"],
        &["volume", "ls", "--filter", "label=bottle.home", "--format", "{{.Name}}"],
        &["images", "--filter", "dangling=true", "--format", "{{.ID}}"],
    ];
    let lines =
        asked.iter().map(|arguments| engine.docker(arguments).unwrap_or_else(|| "no answer".to_owned()));
    lines.flat_map(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
#[ignore = "builds images on an engine of its own and takes a minute: `.ci/run engines`"]
fn an_engine_that_stops_or_fills_up_gives_one_cause_and_leaves_nothing() -> Result<()> {
    let test = "an_engine_that_stops_or_fills_up_gives_one_cause_and_leaves_nothing";
    let Some(mut engine) = own_engine(test, "1600m")? else { return Ok(()) };
    if engine.take_base().is_err() {
        skip::aloud(test, &"no engine here has the base image: run scripts/base-image");
        return Ok(());
    }
    let mut home = home()?;
    home.env("DOCKER_HOST", engine.address()).without_cleanup();
    let first = run_with_long_timeout(&home, START)?;
    if first.stderr.contains("cargo xtask dist") {
        skip::aloud(test, &"there is no dist/bottle");
        return Ok(());
    }
    let _ = first.expect_code(0);
    assert_eq!(left_on_the_engine(&engine), [""; 0]);

    // This build needs more space than the disk has.
    agent(&mut home, "big", "FROM debian:bookworm-slim\nRUN head -c 2000000000 /dev/zero > /big\n")?;
    let mut scrub = home.scrub()?;
    scrub.path(engine.directory(), "[ENGINE]")?.add(r"\b[0-9a-f]{12}\b", "[ID]")?;
    scrub.add("built-by=[0-9a-f]{8}", "built-by=[HOME-HASH]")?;
    let said = run_with_long_timeout(&home, &["start", "big", "--label", "big"])?.transcript();
    let mut text = scrub.apply(&format!("an image that does not fit\n{said}\n"));

    // The disk is full when the bottle's containers are created.
    engine.fill()?;
    let full = run_with_long_timeout(&home, START)?;
    assert_eq!(full.code, 1, "{}", full.transcript());
    let said = full.stderr.to_lowercase();
    assert!(said.contains("no space left on device") && said.contains("hint: free space where"), "{said}");
    engine.empty()?;
    let _ = run_with_long_timeout(&home, START)?.expect_code(0);

    // The engine stops during a build and during a launch.
    agent(&mut home, "slow", "FROM debian:bookworm-slim\nRUN sleep 300\n")?;
    for (agent, asked) in [
        ("slow", ["ps", "--quiet", "--filter", "label=bottle.image=stage"]),
        ("work", ["network", "ls", "--quiet", "--filter=name=bottle-"]),
        ("work", ["ps", "--all", "--quiet", "--filter=name=bottle-"]),
    ] {
        let running = home.program(["start", agent, "--label", agent])?;
        let mut start = running.command().stderr(std::process::Stdio::piped()).spawn()?;
        let end = Instant::now() + Duration::from_secs(60);
        while engine.docker(&asked).is_none_or(|ids| ids.is_empty()) {
            anyhow::ensure!(Instant::now() < end && start.try_wait()?.is_none(), "never there: {asked:?}");
        }
        engine.stop()?;
        let output = start.wait_with_output().context("it ended")?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("the container engine closed the connection"), "{said}");
        assert!(said.contains("hint: see the engine's own log"), "{said}");
        if agent == "slow" {
            text += &scrub
                .apply(&format!("without the engine\n{}", run_with_long_timeout(&home, START)?.transcript()));
        }
        engine.start_again()?;
        let cleaned = run_with_long_timeout(&home, &["cleanup", "--yes"])?.expect_code(0);
        assert_eq!(left_on_the_engine(&engine), [""; 0], "{}", cleaned.transcript());
    }
    let _ = run_with_long_timeout(&home, START)?.expect_code(0);
    snapshot!(text);
    Ok(())
}
