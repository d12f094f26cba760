//! Tests commands that read or change the files of a bottle that ended and was kept.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript, transcripts};

/// A bottle whose agent commits, leaves an uncommitted file, and exits.
const WORKS: &str = "---
backend: linux
agent_provider:
  template: command
  command: [sh, -ec, 'echo two >>code; git -c user.name=A -c user.email=a@example.com commit -qam more; echo new >file; echo done']
---
";

/// Returns a home with a repository and an ended bottle `one`, whose agent has changed a copy of the repository. The
/// manifests of the home are removed, so that a command that reads one of them fails.
fn ended(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    home.bottle("work", WORKS)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git(test, "linux")? {
        return Ok(None);
    }
    home.write("project/code", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let worked =
        run(&home, &["start", "work", "-p", "go", "--cwd", "--yes", "--label", "one"])?.expect_code(0);
    assert!(worked.stdout.contains("done"), "{}", worked.transcript());
    fs::remove_file(home.bottle_home().join("bottles/work.md"))?;
    fs::remove_file(home.bottle_home().join("agents/work.md"))?;
    Ok(Some(home))
}

/// The number of processes of this home's bottle that have this role.
fn processes(home: &TestHome, role: &str) -> Result<usize> {
    let home = home.bottle_home();
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let directory = entry?.path();
        let Ok(line) = fs::read(directory.join("cmdline")) else { continue };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let log = fs::read_link(directory.join("fd/2")).unwrap_or_default();
        let environ = fs::read(directory.join("environ")).unwrap_or_default();
        let ours = log.starts_with(&home)
            || String::from_utf8_lossy(&environ).contains(&format!("BOTTLE_HOME={}", home.display()));
        count += usize::from(ours && words.get(1) == Some(&role.as_bytes()));
    }
    Ok(count)
}

/// Waits until the bottle has neither a guest nor a keeper.
fn wait_until_closed(home: &TestHome) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while processes(home, "__guest")? + processes(home, "__keeper")? > 0 {
        anyhow::ensure!(Instant::now() < end, "a guest or a keeper still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn every_file_command_works_after_the_end() -> Result<()> {
    let Some(home) = ended("every_file_command_works_after_the_end")? else { return Ok(()) };
    let mut text = transcripts(&home, &[&["diff", "one"], &["pull", "one"], &["logs", "one"]])?;
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\n");
    text += &transcripts(&home, &[&["cp", "one:file", "file"]])?;
    assert_eq!(fs::read_to_string(home.project().join("file"))?, "new\n");
    home.write("project/more", "from outside\n")?;
    text += &transcripts(
        &home,
        &[
            &["cp", "more", "one:more"],
            &["exec", "one", "--", "sh", "-c", "cat more; echo later >>file; exit 3"],
            &["exec", "one", "--", "cat", "file"],
            &["exec", "one", "--", "no-such-program"],
            &["diff", "one"],
        ],
    )?;
    wait_until_closed(&home)?;
    text += &transcripts(&home, &[&["discard", "one", "--yes"], &["diff", "one"]])?;
    snapshot!(text);
    Ok(())
}

/// The guest of an ended bottle has the restrictions of a running bottle, and has neither network nor proxy.
#[test]
fn the_guest_of_an_ended_bottle_is_confined_and_offline() -> Result<()> {
    let Some(home) = ended("the_guest_of_an_ended_bottle_is_confined_and_offline")? else { return Ok(()) };
    let script = "grep -c : /proc/net/dev; ls /run/bottle/proxy 2>/dev/null; env | grep -i proxy; \
                  grep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status; echo $HOME; id -un; pwd";
    let shown = run(&home, &["exec", "one", "--", "sh", "-c", script])?.expect_code(0).stdout;
    assert_eq!(
        shown,
        "1\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n/home/agent\nagent\n/workspace\n"
    );
    Ok(())
}

/// Git runs inside the bottle, and the agent can configure programs that git runs. These programs do not change the
/// files of the ended bottle.
#[test]
fn diff_and_pull_change_nothing_in_the_files() -> Result<()> {
    let Some(home) = ended("diff_and_pull_change_nothing_in_the_files")? else { return Ok(()) };
    let hook = "printf '#!/bin/sh\\ntouch /workspace/touched ~/touched\\nexec \"$@\"\\n' >~/hook; chmod +x ~/hook; \
                git config --global uploadpack.packObjectsHook ~/hook";
    let _ = run(&home, &["exec", "one", "--", "sh", "-ec", hook])?.expect_code(0);
    // Without this wait, a reading command would share the guest of the writing command.
    wait_until_closed(&home)?;
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    let _ = run(&home, &["diff", "one"])?.expect_code(0);
    let _ = run(&home, &["cp", "one:file", "file"])?.expect_code(0);
    let found = ["exec", "one", "--", "sh", "-c", "ls /workspace/touched ~/touched"];
    let missing = run(&home, &found)?;
    assert_eq!((missing.code, missing.stdout.as_str()), (2, ""), "{}", missing.transcript());
    // As a control, the hook writes its files in a command that may write.
    let clone = ["exec", "one", "--", "git", "clone", "-q", "file:///workspace", "/tmp/clone"];
    let _ = run(&home, &clone)?.expect_code(0);
    let _ = run(&home, &found)?.expect_code(0);
    Ok(())
}

#[test]
fn the_guest_ends_with_its_client() -> Result<()> {
    let Some(home) = ended("the_guest_ends_with_its_client")? else { return Ok(()) };
    let mut command = home.program(["exec", "one", "--", "sh", "-c", "echo here; exec sleep 600"])?.command();
    let mut client = command.stdout(std::process::Stdio::piped()).spawn()?;
    let mut line = [0; 5];
    std::io::Read::read_exact(client.stdout.as_mut().context("output")?, &mut line)?;
    assert_eq!((&line, processes(&home, "__guest")?), (b"here\n", 1));
    client.kill()?;
    client.wait()?;
    wait_until_closed(&home)?;
    // When a keeper is killed, its guest keeps running. The next command replaces that guest.
    let mut client = command.spawn()?;
    std::io::Read::read_exact(client.stdout.as_mut().context("output")?, &mut line)?;
    kill_keeper(&home)?;
    client.wait()?;
    let read = run(&home, &["exec", "one", "--", "cat", "file"])?.expect_code(0);
    assert_eq!(read.stdout, "new\n");
    wait_until_closed(&home)
}

fn kill_keeper(home: &TestHome) -> Result<()> {
    for entry in fs::read_dir("/proc")? {
        let directory = entry?.path();
        let environ = fs::read(directory.join("environ")).unwrap_or_default();
        let line = fs::read(directory.join("cmdline")).unwrap_or_default();
        let ours = format!("BOTTLE_HOME={}\0", home.bottle_home().display());
        if line.split(|byte| *byte == 0).nth(1) == Some(b"__keeper")
            && String::from_utf8_lossy(&environ).contains(&ours)
        {
            let pid: i32 = directory.file_name().and_then(|name| name.to_str()).context("a pid")?.parse()?;
            let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        }
    }
    Ok(())
}

/// Concurrent commands share a guest, or wait for each other. A resume also waits for them.
#[test]
fn commands_on_the_same_files_wait_for_each_other() -> Result<()> {
    let Some(home) = ended("commands_on_the_same_files_wait_for_each_other")? else { return Ok(()) };
    let spawn = |arguments: &[&str]| -> Result<_> {
        let mut command = home.program(arguments.iter().copied())?.command();
        Ok(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()?)
    };
    let all: [&[&str]; 5] = [
        &["diff", "one"],
        &["exec", "one", "--", "sh", "-c", "sleep 1; cat file"],
        &["pull", "one"],
        &["cp", "one:file", "copied"],
        &["diff", "one", "--json"],
    ];
    let running: Result<Vec<_>> = all.iter().map(|arguments| spawn(arguments)).collect();
    for (child, arguments) in running?.into_iter().zip(all) {
        let done = child.wait_with_output()?;
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    // The agent's manifests were removed, so the resume fails because of them, and not because of the lock.
    let resumed = run(&home, &["resume", "one", "--yes"])?;
    assert!(!resumed.stderr.contains("taken"), "{}", resumed.transcript());
    let text = transcripts(&home, &[&["list"], &["attach", "one"], &["stop", "one"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_bottle_without_files_says_what_to_do() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["commit", "one"])?.expect_code(0);
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    let mut text = String::new();
    for name in ["one", "onee"] {
        for command in [&["diff", name][..], &["pull", name], &["exec", name, "--", "cat", "x"]] {
            text += &transcript(&home, command)?;
        }
        text += &transcript(&home, &["cp", &format!("{name}:x"), "x"])?;
    }
    snapshot!(text);
    Ok(())
}
