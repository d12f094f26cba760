//! Tests commands on a bottle in containers, where one stream carries the messages of both the keeper and the
//! guest: while a user is attached, when the agent exits, and after a resume.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use bottle_host::home_hash;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use bottle_test_support::{engine, skip};

/// The agent's script: answers every line until `leave`, then becomes a shell.
const LISTEN: &str = "while read -r line && [ \"$line\" != leave ]; do echo \"heard $line.\"; done; exec sh";

const GIT: &str = "git -c user.name=Agent -c user.email=agent@example.com";

/// The time limit for a step of the engine on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a home with the agents `listen` and `nap`, and a project that is a git repository. If no engine is
/// available, reports that the test is skipped and returns `None`.
fn docker_home(test: &str) -> Result<Option<TestHome>> {
    if let Err(missing) = engine::here() {
        skip::aloud(test, &missing);
        return Ok(None);
    }
    let mut home = TestHome::new()?;
    if !home.runs(test, "docker")? {
        return Ok(None);
    }
    let listen = serde_json::to_string(&["sh", "-c", LISTEN])?;
    for (agent, command) in [("listen", listen.as_str()), ("nap", "[sleep, '600']")] {
        let provider = format!("{{template: command, command: {command}}}");
        home.bottle(agent, &format!("---\nbackend: docker\nagent_provider: {provider}\n---\n"))?;
        home.agent(agent, &format!("---\nbottle: {agent}\n---\n"))?;
    }
    home.write("project/code", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    Ok(Some(home))
}

fn succeeds(home: &TestHome, arguments: &[&str]) -> Result<String> {
    let mut program = home.program(arguments.iter().copied())?;
    Ok(program.deadline(PATIENCE).run()?.expect_code(0).stdout)
}

fn inside(home: &TestHome, script: &str) -> Result<String> {
    succeeds(home, &["exec", "one", "--", "sh", "-ec", script])
}

fn on_terminal(home: &TestHome, arguments: &[&str]) -> Result<Pty> {
    let mut pty = home.on_terminal(arguments, 24, 100)?;
    pty.patience(PATIENCE);
    Ok(pty)
}

fn left_on_the_engine(home: &TestHome) -> Vec<String> {
    engine::left_of(&home_hash(&home.bottle_home()))
}

/// Lists the resources of a kept bottle on the engine, except the empty volume that belongs to its container.
fn kept_on_the_engine(home: &TestHome) -> Vec<String> {
    let mut left = left_on_the_engine(home);
    left.retain(|one| !one.starts_with("volume ") || !one.ends_with("-proxy-one"));
    left
}

/// The resources of a kept bottle: the container with its files, and the volume with the state of its sidecars.
fn is_kept(home: &TestHome) -> Vec<String> {
    let hash = home_hash(&home.bottle_home());
    vec![format!("container bottle-{hash}-agent-one"), format!("volume bottle-{hash}-state-one")]
}

#[test]
fn other_commands_do_not_disturb_an_attached_session() -> Result<()> {
    let Some(home) = docker_home("a user on docker")? else { return Ok(()) };
    let mut pty = on_terminal(&home, &["start", "listen", "--cwd", "--yes", "--label", "one"])?;
    let mut said = 0;
    let mut is_heard = |pty: &mut Pty, after: &str| -> Result<()> {
        said += 1;
        pty.type_keys(&format!("word-{said}\r"))?;
        pty.wait_for(&format!("heard word-{said}.")).with_context(|| format!("after {after}"))?;
        Ok(())
    };
    is_heard(&mut pty, "the start")?;
    inside(&home, &format!("echo two >>code; {GIT} commit -qam more"))?;
    home.write("project/note", "beside\n")?;
    for beside in [
        &["list", "active"][..],
        &["diff", "one"],
        &["pull", "one"],
        &["cp", "note", "one:note"],
        &["logs", "one"],
        &["commit", "one", "-q"],
        &["snapshots"],
        &["cleanup", "--yes"],
        &["exec", "one", "--", "cat", "note"],
    ] {
        succeeds(&home, beside)?;
        is_heard(&mut pty, &beside.join(" "))?;
    }
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\n");

    // Runs all these commands concurrently.
    std::thread::scope(|scope| -> Result<()> {
        let beside: [&[&str]; 6] = [
            &["diff", "one"],
            &["pull", "one"],
            &["commit", "one", "-q"],
            &["list"],
            &["exec", "one", "--", "seq", "20000"],
            &["exec", "one", "--", "cat", "note"],
        ];
        let hands: Vec<_> = beside.map(|beside| scope.spawn(|| succeeds(&home, beside))).into();
        for _ in 0..5 {
            is_heard(&mut pty, "the beginning of all at once")?;
        }
        for hand in hands {
            hand.join().map_err(|_| anyhow::anyhow!("a hand panicked"))??;
        }
        is_heard(&mut pty, "all at once")
    })?;

    // Another command stops the bottle. The attached user is notified and gets the terminal back. The bottle
    // is kept, because no snapshot contains its latest files.
    inside(&home, "echo three >>code")?;
    succeeds(&home, &["stop", "one", "--time", "0"])?;
    pty.wait_for("`bottle resume one` starts it again")?;
    pty.wait_exit()?;
    assert!(pty.is_cooked()?);
    assert_eq!(kept_on_the_engine(&home), is_kept(&home));
    Ok(())
}

#[test]
fn pulls_unsaved_work_at_the_end_and_leaves_nothing() -> Result<()> {
    let Some(home) = docker_home("the end on docker")? else { return Ok(()) };
    let mut pty = on_terminal(&home, &["start", "listen", "--cwd", "--yes", "--label", "one"])?;
    pty.type_keys("there\r")?;
    pty.wait_for("heard there.")?;
    pty.type_keys("leave\r")?;
    pty.type_keys(&format!("echo two >>code; {GIT} commit -qam more; echo three >>code; exit\r"))?;
    pty.wait_for("[keep/pull/discard]")?;
    pty.type_keys("pull\r")?;
    // This pull includes the uncommitted files.
    assert_eq!(pty.wait_exit()?, 0);
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\nthree\n");
    assert_eq!(left_on_the_engine(&home), [] as [String; 0], "{}", pty.screen());
    assert_eq!(succeeds(&home, &["list"])?, "");
    Ok(())
}

#[test]
fn resumes_from_kept_files_and_from_a_snapshot() -> Result<()> {
    let Some(home) = docker_home("resume on docker")? else { return Ok(()) };
    succeeds(&home, &["start", "nap", "--cwd", "--yes", "--detach", "--label", "one", "-q"])?;
    inside(&home, "echo committed >note; echo also >~/of-the-home")?;
    succeeds(&home, &["commit", "one", "-q"])?;
    inside(&home, "echo kept >note")?;
    succeeds(&home, &["stop", "one", "--time", "0"])?;
    assert_eq!(kept_on_the_engine(&home), is_kept(&home));

    succeeds(&home, &["resume", "one", "--yes", "--detach", "-q"])?;
    assert_eq!(
        inside(&home, "cat note ~/of-the-home code; pwd; id -u")?,
        "kept\nalso\none\n/workspace\n1000\n"
    );
    inside(&home, "echo later >note")?;
    succeeds(&home, &["stop", "one", "--time", "0"])?;
    assert_eq!(kept_on_the_engine(&home), is_kept(&home));

    succeeds(&home, &["resume", "one", "--snapshot", "--yes", "--detach", "-q"])?;
    assert_eq!(inside(&home, "cat note ~/of-the-home code")?, "committed\nalso\none\n");
    succeeds(&home, &["stop", "one", "--time", "0"])?;
    succeeds(&home, &["snapshots", "rm", "one"])?;
    let label = format!("label=bottle.snapshot={}", home_hash(&home.bottle_home()));
    assert_eq!(engine::docker(&["images", "--quiet", "--filter", &label]).as_deref(), Some(""));
    Ok(())
}

#[test]
fn forks_share_files_and_leave_the_first_bottle_running() -> Result<()> {
    let Some(home) = docker_home("forks on docker")? else { return Ok(()) };
    succeeds(&home, &["start", "nap", "--cwd", "--yes", "--detach", "--label", "one", "-q"])?;
    inside(&home, "echo shared >note; echo also >~/of-the-home")?;
    let forks = succeeds(&home, &["fork", "one", "--count", "2", "--label", "fork", "--yes", "-q"])?;
    assert_eq!(forks, "fork-1\nfork-2\n");
    let mut machines = BTreeSet::new();
    for slug in ["one", "fork-1", "fork-2"] {
        let script = "cat note ~/of-the-home code; hostname; cat /etc/machine-id; echo own >note";
        let found = succeeds(&home, &["exec", slug, "--", "sh", "-c", script])?;
        let (shared, machine) = found.trim_end().rsplit_once('\n').context("a machine id")?;
        assert_eq!(shared, format!("shared\nalso\none\n{slug}"));
        assert_eq!(machine.len(), 32, "{machine}");
        machines.insert(machine.to_owned());
    }
    assert_eq!(machines.len(), 3, "{machines:?}");
    // The temporary snapshot no longer exists, and the bottles that were made from it can be stopped and resumed.
    assert_eq!(succeeds(&home, &["snapshots"])?, "");
    succeeds(&home, &["stop", "fork-1", "--time", "0"])?;
    succeeds(&home, &["resume", "fork-1", "--yes", "--detach", "-q"])?;
    assert_eq!(succeeds(&home, &["exec", "fork-1", "--", "cat", "note", "code"])?, "own\none\n");
    for slug in ["one", "fork-1", "fork-2"] {
        succeeds(&home, &["stop", slug, "--time", "0"])?;
    }
    Ok(())
}

#[test]
fn an_ended_bottle_shows_and_takes_files() -> Result<()> {
    let Some(mut home) = docker_home("the files of an ended bottle on docker")? else { return Ok(()) };
    let script = serde_json::to_string(&[
        "sh",
        "-ec",
        &format!("echo two >>code; {GIT} commit -qam more; echo new >file"),
    ])?;
    let provider = format!("{{template: command, command: {script}}}");
    home.bottle("work", &format!("---\nbackend: docker\nagent_provider: {provider}\n---\n"))?;
    home.agent("work", "---\nbottle: work\n---\n")?;
    succeeds(&home, &["start", "work", "-p", "go", "--cwd", "--yes", "--label", "one", "-q"])?;
    let is_closed = || kept_on_the_engine(&home) == is_kept(&home);
    assert!(is_closed());

    assert!(succeeds(&home, &["diff", "one"])?.contains("+two"));
    succeeds(&home, &["pull", "one"])?;
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\n");
    succeeds(&home, &["cp", "one:file", "file"])?;
    home.write("project/note", "beside\n")?;
    succeeds(&home, &["cp", "note", "one:note"])?;
    assert_eq!(
        inside(&home, "cat note file; echo later >>file; grep -c : /proc/net/dev")?,
        "beside\nnew\n1\n"
    );
    assert_eq!(inside(&home, "cat file")?, "new\nlater\n");
    assert!(succeeds(&home, &["diff", "one"])?.contains("+later"));
    wait_until("every command has closed the files", is_closed)?;

    // The guest ends when its client ends.
    let label = format!("label=bottle.home={}", home_hash(&home.bottle_home()));
    let runs = || engine::docker(&["ps", "--quiet", "--filter", &label]).is_some_and(|ids| !ids.is_empty());
    for arguments in [&["exec", "one", "--", "sleep", "600"][..], &["pull", "one"]] {
        let mut client = home.program(arguments.iter().copied())?.command().spawn()?;
        let started =
            wait_until("the guest runs", || runs() || client.try_wait().is_ok_and(|end| end.is_some()));
        client.kill()?;
        client.wait()?;
        started?;
        wait_until("the guest ended with its client", || !runs() && is_closed())?;
    }

    succeeds(&home, &["cleanup", "--yes"])?;
    // The keeper of a killed client may still be opening the files. Cleanup leaves the files to that keeper, and the
    // keeper closes them.
    wait_until("nothing but the kept files is left", is_closed)?;
    succeeds(&home, &["resume", "one", "--yes", "-q"])?;
    assert_eq!(inside(&home, "cat file")?, "new\n", "the agent worked again");
    succeeds(&home, &["discard", "one", "--yes"])?;
    assert_eq!(left_on_the_engine(&home), [] as [String; 0]);
    Ok(())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        anyhow::ensure!(std::time::Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
