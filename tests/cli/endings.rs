//! Tests that every way in which a session ends restores the terminal: line mode, screen, cursor, mouse,
//! title.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use rustix::process::{Pid, Signal, kill_process};

use crate::home::{home, keeper, run};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// The escape sequences with which a full-screen agent switches on terminal modes. The test types them, and
/// the agent `copy` prints what it reads.
const EVERYTHING: &str =
    "\x1b[?1049h\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b[?1h\x1b=\x1b[?25l\x1b[1;31mdrawn\r";

/// The keys that detach a user from a session by default.
const DETACH: &str = "\x1dd";

fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            bail!("never: {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a session with the label `one`, in which the agent has switched on all terminal modes of [`EVERYTHING`].
fn full_screen(home: &TestHome) -> Result<Pty> {
    home.write("home/.bottle/settings.yml", "terminal: {tint: true}\n")?;
    let arguments = ["start", "copy", "--yes", "--label", "one", "--color-label", "green"];
    let mut pty = home.on_terminal(&arguments, 24, 80)?;
    take_over(&mut pty)?;
    Ok(pty)
}

fn take_over(pty: &mut Pty) -> Result<()> {
    until("raw", || Ok((!pty.is_cooked()?).then_some(())))?;
    pty.type_keys(EVERYTHING)?;
    until("everything is on", || Ok((pty.left_on().len() == 8).then_some(())))
}

fn process(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process")
}

#[track_caller]
fn assert_restored(pty: &Pty, how: &str) -> Result<()> {
    let screen = pty.last_screen()?;
    assert_eq!(pty.left_on(), [""; 0], "{how}:\n{screen}");
    assert!(pty.is_cooked()?, "{how}:\n{screen}");
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    for (on, off) in [
        ("\x1b[22;0t", "\x1b[23;0t"),
        ("\x1b]12;#5faf5f\x07", "\x1b]112\x07"),
        ("\x1b]11;#111f11\x07", "\x1b]111\x07"),
    ] {
        assert!(raw.find(on).is_some() && raw.rfind(on) < raw.rfind(off), "{how}: {off:?} in {raw:?}");
    }
    Ok(())
}

type End = fn(&TestHome, &mut Pty) -> Result<()>;

#[test]
fn every_end_of_a_session_restores_the_terminal() -> Result<()> {
    let ends: [(&str, i32, End); 8] = [
        ("the agent's own end", 0, |_, pty| pty.type_keys("\x04")),
        ("the detach keys", 0, |_, pty| pty.type_keys(DETACH)),
        ("SIGINT", 130, |_, pty| Ok(kill_process(process(pty.pid())?, Signal::INT)?)),
        ("SIGTERM", 143, |_, pty| Ok(kill_process(process(pty.pid())?, Signal::TERM)?)),
        ("SIGQUIT", 131, |_, pty| Ok(kill_process(process(pty.pid())?, Signal::QUIT)?)),
        ("SIGHUP", 129, |_, pty| Ok(kill_process(process(pty.pid())?, Signal::HUP)?)),
        ("a dead keeper", 125, |home, _| Ok(kill_process(keeper(home)?, Signal::KILL)?)),
        ("`bottle stop`", 143, |home, _| {
            let _ = run(home, &["stop", "one"])?.expect_code(0);
            Ok(())
        }),
    ];
    for (how, code, end) in ends {
        let home = home()?;
        let mut pty = full_screen(&home)?;
        end(&home, &mut pty)?;
        assert_eq!(pty.wait_exit()?, code, "{how}:\n{}", pty.screen());
        assert_restored(&pty, how)?;
    }
    Ok(())
}

/// Closing the terminal, or the loss of an ssh connection, detaches like the detach keys.
#[test]
fn a_hang_up_detaches_and_the_agent_goes_on() -> Result<()> {
    let home = home()?;
    let mut first = full_screen(&home)?;
    first.hang_up()?;
    assert_eq!(first.wait_exit()?, 129);
    let listed = run(&home, &["list"])?.expect_code(0).stdout;
    assert!(listed.contains("running (detached)"), "{listed}");
    let mut lost = home.on_terminal(&["attach", "one"], 24, 80)?;
    until("what the agent had drawn", || Ok((!lost.left_on().is_empty()).then_some(())))?;
    lost.hang_up()?;
    assert_eq!(lost.wait_exit()?, 129);
    let mut again = home.on_terminal(&["attach", "one"], 24, 80)?;
    until("what the agent had drawn", || Ok((!again.left_on().is_empty()).then_some(())))?;
    again.type_keys(DETACH)?;
    assert_eq!(again.wait_exit()?, 0);
    assert_restored(&again, "detached from again")
}

/// Runs a script in a shell on a terminal. In the script, `$0` is the path of `bottle`.
fn shell(home: &TestHome, script: &str) -> Result<Pty> {
    let program = home.program([""; 0])?;
    let inner = program.command();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).arg(program.path()).env_clear();
    for (name, value) in inner.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    shell.current_dir(home.project());
    Pty::spawn(shell, 24, 80)
}

/// Returns the process that has claimed the terminal with a mark file.
fn holder(home: &TestHome) -> Result<Option<Pid>> {
    let Ok(homes) = std::fs::read_dir(home.runtime().join("bottle")) else { return Ok(None) };
    for directory in homes {
        let Ok(marks) = std::fs::read_dir(directory?.path().join(".terminals")) else { continue };
        for mark in marks {
            let mark = std::fs::read_to_string(mark?.path())?;
            if let Some(Ok(pid)) = mark.split(':').next().map(str::parse) {
                return process(pid).map(Some);
            }
        }
    }
    Ok(None)
}

#[test]
fn the_next_command_restores_a_killed_clients_terminal() -> Result<()> {
    for next in ["list", "attach one --read-only", "start hi --yes"] {
        let home = home()?;
        let tinted = next == "list";
        home.write("home/.bottle/settings.yml", &format!("terminal: {{tint: {tinted}}}\n"))?;
        let script = format!(
            "\"$0\" start copy --yes --label one --color-label green; echo killed; read line; \"$0\" {next}; echo after; read line"
        );
        let mut pty = shell(&home, &script)?;
        take_over(&mut pty)?;
        let client = until("a mark", || holder(&home))?;
        kill_process(client, Signal::KILL)?;
        until("a shell", || Ok(String::from_utf8_lossy(&pty.raw()).contains("killed\n").then_some(())))?;
        ensure!(!pty.left_on().is_empty() && !pty.is_cooked()?, "the shell left nothing to be put right");
        pty.type_keys("\n")?;
        pty.wait_for("after")?;
        assert_eq!(pty.left_on(), [""; 0], "{next}:\n{}", pty.screen());
        assert!(pty.is_cooked()?, "{next}:\n{}", pty.screen());
        assert!(pty.screen().lines().any(|line| line == "after"), "{next}:\n{}", pty.screen());
        assert!(holder(&home)?.is_none(), "{next}");
        let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
        for tint in ["\x1b]11;#111f11\x07", "\x1b]111\x07"] {
            assert_eq!(raw.contains(tint), tinted, "{next}: {raw:?}");
        }
    }
    Ok(())
}

#[test]
fn a_command_on_another_terminal_does_not_touch_this_one() -> Result<()> {
    let home = home()?;
    let mut pty = full_screen(&home)?;
    let mut other = home.on_terminal(&["list"], 24, 80)?;
    assert_eq!(other.wait_exit()?, 0);
    let raw = String::from_utf8_lossy(&other.raw()).into_owned();
    assert!(!raw.contains("\x1b[?"), "{raw:?}");
    assert_eq!(pty.left_on().len(), 8);
    pty.type_keys(DETACH)?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty, "detached")
}

#[test]
fn a_read_only_client_sends_nothing_and_restores_its_terminal() -> Result<()> {
    let home = home()?;
    let mut pty = full_screen(&home)?;
    let mut watcher = home.on_terminal(&["attach", "one", "--read-only"], 10, 40)?;
    until("what the agent had drawn", || Ok((!watcher.left_on().is_empty()).then_some(())))?;
    watcher.type_keys("not heard\r")?;
    pty.type_keys("heard\r")?;
    until("what was heard", || Ok(watcher.screen().contains("heard").then_some(())))?;
    watcher.type_keys("\x03")?;
    assert_eq!(watcher.wait_exit()?, 0);
    assert_eq!(watcher.left_on(), [""; 0]);
    assert!(!String::from_utf8_lossy(&pty.raw()).contains("not heard"), "{}", pty.screen());
    pty.type_keys("\x04")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn lists_a_dead_egress_proxy_as_down() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one"])?.expect_code(0);
    let services = || Ok::<_, anyhow::Error>(run(&home, &["list", "--json"])?.json()?[0]["services"].clone());
    assert_eq!(
        services()?,
        serde_json::json!([{"name": "egress", "up": true}, {"name": "supervise", "up": true}])
    );
    assert!(run(&home, &["list"])?.stdout.ends_with("\tegress\n"));
    kill_process(egress_daemon_of(home.root())?, Signal::KILL)?;
    until("egress is down", || {
        Ok((services()?
            == serde_json::json!([{"name": "egress", "up": false}, {"name": "supervise", "up": true}]))
        .then_some(()))
    })?;
    assert!(run(&home, &["list"])?.stdout.ends_with("\tegress down\n"));
    Ok(())
}

/// Returns the egress daemon of the only bottle below the directory `root`.
fn egress_daemon_of(root: &Path) -> Result<Pid> {
    let root = root.to_str().context("a path")?;
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("__egress\0") && line.contains(root) {
            return process(entry.file_name().to_string_lossy().parse()?);
        }
    }
    bail!("no egress daemon below {root}")
}
