//! Starts, uses and removes a bottle on the kinds of engines that users have besides Docker as root.

use std::os::unix::fs::chown;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::own_engine::{Kind, OwnEngine};
use bottle_test_support::program::Outcome;
use bottle_test_support::skip;

/// A home whose bottle runs on a private engine.
struct Life {
    home: TestHome,
    engine: OwnEngine,
}

impl Life {
    /// Starts the engine. If the engine is not available, reports what is missing.
    fn new(test: &str, kind: Kind) -> Result<Option<Self>> {
        if let Some(why) = OwnEngine::missing_kind(kind) {
            skip::aloud(test, &why);
            return Ok(None);
        }
        let engine = OwnEngine::start_kind(kind, "1500m")?;
        if engine.take_base().is_err() {
            skip::aloud(test, &"no engine here has the base image: run scripts/base-image");
            return Ok(None);
        }
        let mut home = TestHome::new()?;
        home.write("home/.bottle/work.Dockerfile", "FROM debian:bookworm-slim\n")?;
        let bottle = "backend: docker\negress: {log: 1}\n\
            agent_provider: {template: command, command: [sleep, infinity], dockerfile: work.Dockerfile}\n";
        home.bottle("work", &format!("---\n{bottle}---\n"))?;
        home.bottle("small", &format!("---\n{bottle}resources: {{memory: 512MiB}}\n---\n"))?;
        home.agent("work", "---\nbottle: work\n---\n")?;
        home.agent("small", "---\nbottle: small\n---\n")?;
        home.env("DOCKER_HOST", engine.address()).without_cleanup();
        Ok(Some(Self { home, engine }))
    }

    fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        self.home.program(arguments.iter().copied())?.deadline(Duration::from_secs(240)).run()
    }

    fn done(&self, arguments: &[&str]) -> Result<Outcome> {
        Ok(self.run(arguments)?.expect_code(0))
    }

    fn start(&self, agent: &str) -> Result<Outcome> {
        self.run(&["start", agent, "--label", agent, "--detach", "--yes"])
    }

    /// Returns the number of lines of the access log about this host. Waits for the lines, because the keeper may not
    /// have written them yet.
    fn denials(&self, host: &str) -> Result<usize> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let count = self.done(&["logs", "work", "--egress"])?.stdout.matches(host).count();
            if count > 0 || std::time::Instant::now() > end {
                return Ok(count);
            }
        }
    }

    /// Waits until the engine has measured the files of the bottle.
    fn is_measured(&self) -> Result<()> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let listed = self.done(&["list", "--json"])?.json()?;
            if listed[0]["disk_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
                return Ok(());
            }
            ensure!(std::time::Instant::now() < end, "the engine does not measure: {listed}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn left(&self) -> Vec<String> {
        let asked: [&[&str]; 3] = [
            &["ps", "--all", "--format", "{{.Names}}"],
            &["network", "ls", "--filter", "name=bottle-", "--format", "{{.Name}}"],
            &["volume", "ls", "--filter", "label=bottle.home", "--format", "{{.Name}}"],
        ];
        let answers =
            asked.iter().map(|asked| self.engine.docker(asked).unwrap_or_else(|| "no answer".into()));
        answers.flat_map(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// Starts the bottle `work`. Returns `None` if there is no program for containers.
    fn start_work(&self) -> Result<Option<Outcome>> {
        let started = self.start("work")?;
        if started.stderr.contains("cargo xtask dist") {
            skip::aloud("engine_kinds", &"there is no dist/bottle");
            return Ok(None);
        }
        Ok(Some(started))
    }

    /// Starts a bottle, which runs the isolation probe, and uses the bottle as users do. Returns false if there is no
    /// program for containers.
    fn lives(&self) -> Result<bool> {
        let Some(started) = self.start_work()? else { return Ok(false) };
        let _ = started.expect_code(0);
        let probed = self.done(&["probe", "work"])?;
        ensure!(probed.stdout.contains("attempts were blocked"), "{}", probed.transcript());
        let work = "git init -q -b main && git config user.email a@example.com && git config user.name a \
            && echo one > one && git add one && git commit -qm one && curl -s -m 10 http://denied.example/x";
        self.done(&["exec", "work", "--", "sh", "-c", work])?;
        self.is_measured()?;
        ensure!(self.denials("denied.example")? == 1, "one denial is logged");
        let project = self.home.project();
        let git = |arguments: &[&str]| {
            let status = std::process::Command::new("git").arg("-C").arg(&project).args(arguments).status();
            status.context("git").and_then(|status| {
                ensure!(status.success(), "git {arguments:?}");
                Ok(())
            })
        };
        git(&["init", "-q", "-b", "main"])?;
        let target = project.to_str().context("UTF-8")?;
        self.done(&["pull", "work", "--repository", target])?;
        git(&["show", "bottle/work:one"])?;
        self.done(&["commit", "work"])?;
        self.done(&["exec", "work", "--", "sh", "-c", "echo two > two"])?;
        self.done(&["stop", "work"])?;
        let again = ["resume", "work", "--detach", "--yes"];
        self.done(&again)?;
        ensure!(self.done(&["exec", "work", "--", "cat", "one", "two"])?.stdout == "one\ntwo\n");
        ensure!(self.denials("denied.example")? == 1, "the log is kept");
        self.done(&["cleanup", "--all", "--yes"])?;
        self.done(&["discard", "work", "--yes"])?;
        ensure!(self.left() == [""; 0], "{:?}", self.left());
        self.done(&[&again[..], &["--snapshot"]].concat())?;
        ensure!(self.done(&["exec", "work", "--", "ls"])?.stdout == "one\n", "the snapshot has one file");
        self.done(&["stop", "work", "--time", "0"])?;
        self.run(&["discard", "work", "--yes"])?;
        self.done(&["snapshots", "rm", "work"])?;
        ensure!(self.left() == [""; 0], "{:?}", self.left());
        Ok(true)
    }

    /// Checks that a bottle gets a complete copy of a repository, and that no directory is mounted. `why` is the reason
    /// that the error message of a start with `--cwd=live` contains.
    fn sees_no_directories(&self, why: &str) -> Result<()> {
        self.home.write("project/code", "one\n")?;
        self.home.git(&["add", "-A"])?;
        self.home.git(&["commit", "-qm", "begin"])?;
        self.done(&["start", "work", "--cwd", "--label", "copied", "--detach", "--yes"])?;
        let check = "test ! -e .git/objects/info/alternates && git fsck && cat code";
        let shown = self.done(&["exec", "copied", "--", "sh", "-ec", check])?;
        ensure!(shown.stdout == "one\n", "{}", shown.transcript());
        self.done(&["stop", "copied", "--time", "0"])?;
        self.run(&["discard", "copied", "--yes"])?;
        if rustix::process::geteuid().is_root() {
            // A directory of root is refused for another reason.
            chown(self.home.project(), Some(1000), Some(1000))?;
            let live = ["start", "work", "--cwd=live", "--label", "live", "--detach", "--yes"];
            let refused = self.run(&live)?.expect_code(4);
            ensure!(refused.stderr.contains(why), "{}", refused.transcript());
        }
        ensure!(self.left() == [""; 0], "{:?}", self.left());
        Ok(())
    }
}

#[test]
#[ignore = "starts an engine of its own and takes a minute: `.ci/run engines`"]
fn a_bottle_lives_on_an_engine_with_remapped_user_ids() -> Result<()> {
    let test = "a_bottle_lives_on_an_engine_with_remapped_user_ids";
    let Some(life) = Life::new(test, Kind::Remapped)? else { return Ok(()) };
    if life.lives()? {
        life.sees_no_directories("the container engine maps user ids")?;
    }
    Ok(())
}

#[test]
#[ignore = "starts an engine of its own and takes a minute: `.ci/run engines`"]
fn a_bottle_lives_on_a_rootless_engine_which_refuses_limits_that_it_ignores() -> Result<()> {
    let test = "a_bottle_lives_on_a_rootless_engine_which_refuses_limits_that_it_ignores";
    let Some(life) = Life::new(test, Kind::Rootless)? else { return Ok(()) };
    if !life.lives()? {
        return Ok(());
    }
    life.sees_no_directories("the container engine does not run as root")?;
    let info = life.engine.docker(&["info", "--format", "{{.MemoryLimit}}"]).context("info")?;
    let small = life.start("small")?;
    if info == "true" {
        let _ = small.expect_code(0);
    } else {
        ensure!(small.code == 4 && small.stderr.contains("`resources.memory`"), "{}", small.transcript());
    }
    Ok(())
}

/// The packaged gVisor of 2022 reports another error than Linux for an address without a route, so its isolation cannot
/// be proven. It also loses the end of some connections. A newer gVisor may pass.
#[test]
#[ignore = "starts an engine of its own and takes a minute: `.ci/run engines`"]
fn gvisor_is_used_only_if_its_isolation_can_be_proven() -> Result<()> {
    let test = "gvisor_is_used_only_if_its_isolation_can_be_proven";
    let Some(mut life) = Life::new(test, Kind::Gvisor)? else { return Ok(()) };
    let Some(started) = life.start_work()? else { return Ok(()) };
    let _ = life.done(&["probe", "work"])?;
    let agents = ["ps", "--filter", "label=bottle.role=agent", "--format", "{{.ID}}"];
    let container = life.engine.docker(&agents).context("the agent's container")?;
    let runtime = life.engine.docker(&["inspect", "--format", "{{.HostConfig.Runtime}}", &container]);
    let refused = "the engine's runtime runsc is not used, because it fails: ";
    match started.stderr.contains(refused) {
        true => ensure!(runtime.as_deref() == Some("runc"), "{runtime:?}"),
        false => ensure!(runtime.as_deref() == Some("runsc"), "{runtime:?}: {}", started.transcript()),
    }
    life.done(&["stop", "work", "--time", "0"])?;
    // If the user names a runtime, this runtime is used, or the start fails.
    life.home.env("BOTTLE_RUNTIME", "runsc");
    let named = life.start("work")?;
    ensure!(named.code == 0 || named.code == 5, "{}", named.transcript());
    let error = named.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    ensure!(error.matches("; ").count() <= 3, "the error is one bounded sentence: {}", named.transcript());
    life.done(&["cleanup", "--all", "--yes"])?;
    ensure!(life.left() == [""; 0], "{:?}", life.left());
    Ok(())
}

#[test]
#[ignore = "starts an engine of its own and takes a minute: `.ci/run engines`"]
fn a_bottle_lives_on_podman() -> Result<()> {
    let Some(life) = Life::new("a_bottle_lives_on_podman", Kind::Podman)? else { return Ok(()) };
    let doctor = life.run(&["doctor"])?;
    ensure!(doctor.stdout.contains("uses Podman 4."), "{}", doctor.transcript());
    if life.lives()? {
        life.sees_no_directories("the container engine is Podman")?;
    }
    Ok(())
}
