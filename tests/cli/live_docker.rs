//! Tests `--cwd=live` on a container engine, whose containers run as the owner of the directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use bottle_repository::Stop;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{engine, skip};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::home::{home, kill_keeper, snapshot};
use crate::live::{START, STOP, facts};

/// The user of the images, and a group of the user's machine that the images do not have.
const OWNER: (u32, u32) = (1000, 1234);

/// The time limit for a command on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const COMMIT: &str = "git -c user.name=A -c user.email=a@example.com commit -q";

/// Returns a home whose project is a repository with one commit, and belongs to the user of the images. If no such
/// directory can be made, or no engine mounts it, reports that the test is skipped and returns `None`.
fn with_a_repository(test: &str) -> Result<Option<TestHome>> {
    if !rustix::process::geteuid().is_root() {
        skip::aloud(test, &"only root can give a directory to the user of the images");
        return Ok(None);
    }
    if let Err(missing) = engine::on_this_kernel() {
        skip::aloud(test, &missing);
        return Ok(None);
    }
    let mut home = home()?;
    let provider = "{template: command, command: [sleep, '600']}";
    home.bottle("work", &format!("---\nbackend: docker\nagent_provider: {provider}\n---\n"))?;
    home.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git(test, "docker")? {
        return Ok(None);
    }
    home.write("project/code", "one\n")?;
    home.write("project/src/main.c", "int main;\n")?;
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    give(&home.project(), OWNER)?;
    Ok(Some(home))
}

/// Gives a directory and everything in it to a user.
fn give(path: &Path, owner: (u32, u32)) -> Result<()> {
    lchown(path, Some(owner.0), Some(owner.1))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

fn run(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.deadline(PATIENCE).run()
}

fn inside(home: &TestHome, slug: &str, script: &str) -> Result<String> {
    Ok(run(home, &["exec", slug, "--", "/bin/sh", "-c", script])?.expect_code(0).stdout)
}

#[test]
fn the_agent_changes_the_users_files_and_commits_to_its_own_repository() -> Result<()> {
    let test = "the_agent_changes_the_users_files_and_commits_to_its_own_repository";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let project = home.project();
    let before = facts(&project.join(".git"))?;
    let _ = run(&home, &START)?.expect_code(0);
    let script = "set -e; git status --short; echo two >>code; echo new >src/new; rm src/main.c; mkdir directory; \
        cp code replaced; mv replaced code; stat -c %u:%g . code src/new; ";
    let done = inside(&home, "one", &format!("{script}{COMMIT} -am more; git log --format=%s"))?;
    ensure!(done == "1000:1234\n1000:1234\n1000:1234\nmore\nbegin\n", "{done}");
    ensure!(fs::read_to_string(project.join("code"))? == "one\ntwo\n");
    ensure!(facts(&project.join(".git"))? == before, "the user's repository stays");
    for path in ["", "code", "src", "src/new", "directory"] {
        let found = fs::metadata(project.join(path))?;
        ensure!((found.uid(), found.gid()) == OWNER, "{path}: {found:?}");
    }
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["kept"] == "files", "commits are unsaved work: {stopped}");
    ensure!(stopped["live"]["files"].as_array().is_some_and(Vec::is_empty), "{stopped}");
    // The ended bottle sees the directory and its own repository too. The comparison is with the user's last commit.
    let changed = run(&home, &["diff", "one", "--name-only"])?.expect_code(0).stdout;
    ensure!(changed == "code\nsrc/main.c\nsrc/new\n", "{changed}");
    fs::write(project.join("meanwhile"), "mine\n")?;
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    let done = inside(&home, "one", "cat meanwhile; git log -1 --format=%s")?;
    ensure!(done == "mine\nmore\n", "{done}");
    let _ = run(&home, &STOP)?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    // A bottle without commits has nothing that could be lost.
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "one", "git status; echo three >>code")?;
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["kept"].is_null(), "{stopped}");
    ensure!(fs::read_to_string(project.join("code"))? == "one\ntwo\nthree\n");
    Ok(())
}

/// The keeper is killed while it pauses the container for a snapshot. The next keeper continues the container.
#[test]
fn a_keeper_killed_during_a_snapshot_leaves_no_paused_bottle() -> Result<()> {
    let test = "a_keeper_killed_during_a_snapshot_leaves_no_paused_bottle";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    // The file is large enough that the snapshot takes some time.
    let _ = inside(&home, "one", "dd if=/dev/zero of=/home/agent/large bs=1M count=150 status=none")?;
    let label = format!("label=bottle.home={}", bottle_host::home_hash(&home.bottle_home()));
    let paused = || engine::docker(&["ps", "-q", "--filter", "status=paused", "--filter", &label]);
    let pauses = pauses(&label)?;
    let mut commit = home.program(["commit", "one", "-q"])?.command();
    let mut commit = commit.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if pauses.recv_timeout(PATIENCE).is_err() {
        let _ = commit.kill();
        bail!("no pause was seen: {:?}", commit.wait_with_output()?);
    }
    kill_keeper(&home, "one")?;
    let commit = commit.wait_with_output()?;
    ensure!(!commit.status.success(), "the snapshot is incomplete: {commit:?}");
    ensure!(inside(&home, "one", "echo on")? == "on\n");
    ensure!(paused().is_some_and(|ids| ids.is_empty()));
    ensure!(!home.bottle_home().join("state/one/paused-by-keeper").exists());
    // Cleanup finds the images of the interrupted snapshot.
    let _ = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &STOP)?.expect_code(0);
    let _ = run(&home, &["cleanup", "--all", "--yes"])?.expect_code(0);
    Ok(())
}

/// Returns a channel that receives each pause of a container with this label from now on. The engine reports a pause
/// immediately, even if the pause is short.
fn pauses(label: &str) -> Result<mpsc::Receiver<String>> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs().to_string();
    let mut events = Command::new("docker")
        .args(["events", "--since", &since, "--filter", "event=pause", "--filter", label])
        .args(["--format", "{{.ID}}"])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = events.stdout.take().context("the output of docker events")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let _ = lines.take(1).try_for_each(|line| sender.send(line));
        let _ = events.kill();
        events.wait()
    });
    Ok(receiver)
}

#[test]
fn snapshots_and_forks_have_the_repository() -> Result<()> {
    let Some(home) = with_a_repository("snapshots_and_forks_have_the_repository")? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "one", &format!("set -e; echo two >>code; {COMMIT} -am more; echo new >new"))?;
    let forked = run(&home, &["fork", "one", "--label", "two", "-y"])?.expect_code(0);
    ensure!(forked.stderr.contains("is copied as it is now"), "{forked:?}");
    let script = "git log --format=%s; git status --short; echo three >>code; cat code";
    let done = inside(&home, "two", script)?;
    ensure!(done == "more\nbegin\n?? new\none\ntwo\nthree\n", "{done}");
    ensure!(fs::read_to_string(home.project().join("code"))? == "one\ntwo\n", "the fork has a copy");
    let committed = run(&home, &["commit", "one"])?.expect_code(0);
    ensure!(committed.stderr.contains("not in the snapshot: the files in"), "{committed:?}");
    let _ = inside(&home, "one", &format!("{COMMIT} --allow-empty -m later"))?;
    let _ = run(&home, &STOP)?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--snapshot", "--detach", "-y", "-q"])?.expect_code(0);
    let done = inside(&home, "one", "git log --format=%s; git fsck; cat code; stat -c %u .git")?;
    ensure!(done.ends_with("begin\none\ntwo\n1000\n"), "{done}");
    Ok(())
}

#[test]
fn copies_of_a_directory_that_changes_contain_nothing_from_outside() -> Result<()> {
    let test = "copies_of_a_directory_that_changes_contain_nothing_from_outside";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    for at in 0..200 {
        home.write(&format!("private/{at}/file"), "CANARY\n")?;
        home.write(&format!("project/work/{at}/file"), "ours\n")?;
    }
    let (work, link) = (home.project().join("work"), home.project().join("link"));
    std::os::unix::fs::symlink("../private", &link)?;
    give(&home.project(), OWNER)?;
    let _ = run(&home, &START)?.expect_code(0);
    let stop = Stop::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.is_set() {
                renameat_with(CWD, &work, CWD, &link, RenameFlags::EXCHANGE).expect("exchanged");
            }
        });
        let _stopped = stop.on_drop();
        for slug in ["two", "three", "four"] {
            let _ = run(&home, &["fork", "one", "--label", slug, "-y"])?.expect_code(0);
        }
        for slug in ["five", "six"] {
            let start = ["start", "work", "--cwd=all", "--detach", "--label", slug, "-y"];
            let _ = run(&home, &start)?.expect_code(0);
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let script = "grep -rl CANARY /workspace | head -3; find /workspace -name file | wc -l";
    for slug in ["two", "three", "four", "five", "six"] {
        let done = inside(&home, slug, script)?;
        let files: u32 = done.trim().parse().with_context(|| format!("{slug}: {done}"))?;
        ensure!(files <= 400, "{slug}: {done}");
    }
    Ok(())
}

#[test]
fn no_attempt_reaches_the_users_repository() -> Result<()> {
    let Some(home) = with_a_repository("no_attempt_reaches_the_users_repository")? else { return Ok(()) };
    let git = home.project().join(".git");
    fs::write(git.join("secret"), "only the user's\n")?;
    give(&git, OWNER)?;
    let before = facts(&git)?;
    let _ = run(&home, &START)?.expect_code(0);
    let attack = "git config core.hooksPath /workspace/hooks; git config core.fsmonitor /workspace/run; \
        rm -rf .git/* .git; mv .git elsewhere; rmdir .git; ln -s /etc .git; mkdir -p moved; mv .git moved/; \
        mv /workspace /moved; mv /workspace/.git /tmp/git; umount .git; umount -l /workspace/.git; \
        mount --bind / /mnt; unshare -Ur umount /workspace/.git; \
        for process in /proc/[0-9]*; do ls $process/root/workspace/.git/ $process/cwd/.git/ $process/fd/*; done; \
        cp -r .git/. /tmp/copy; ln .git/secret stolen; ls -A .git >/workspace/seen; touch .git/new; git init -q; \
        git -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m x; find / -name secret -xdev; true";
    let done = inside(&home, "one", attack)?;
    ensure!(!done.contains("secret"), "{done}");
    ensure!(fs::read_to_string(home.project().join("seen"))?.is_empty(), "it saw something");
    ensure!(facts(&git)? == before, "the user's repository changed");
    ensure!(!home.project().join("stolen").exists() && !home.project().join("elsewhere").exists());
    // Programs of the bottle cannot make set-id programs, which would run with the user's rights on the host.
    let set_id = "cp /bin/true program; chmod 755 program && echo ordinary; \
        for mode in 4755 u+s 2755 g+s 6700; do chmod $mode program 2>/dev/null && echo worked; done; \
        install -m 4755 /bin/true other 2>/dev/null && echo worked; \
        mknod device c 1 3 2>/dev/null && echo worked; true";
    let done = inside(&home, "one", set_id)?;
    ensure!(done == "ordinary\n", "{done}");
    let _ = run(&home, &STOP)?.expect_code(0);
    ensure!(facts(&git)? == before, "the user's repository changed at the end");
    Ok(())
}

#[test]
fn another_directory_at_the_path_is_not_mounted() -> Result<()> {
    let test = "another_directory_at_the_path_is_not_mounted";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "one", &format!("{COMMIT} --allow-empty -m more"))?;
    let _ = run(&home, &STOP)?.expect_code(0);
    // An engine resolves the path again when it starts the container. Only pid 1 can detect that the path leads to
    // another directory.
    let project = home.project();
    let other = project.with_file_name("other");
    fs::rename(&project, &other)?;
    fs::create_dir_all(project.join(".git"))?;
    let hash = bottle_host::home_hash(&home.bottle_home());
    let container = format!("bottle-{hash}-agent-one");
    let _ = engine::docker(&["start", &container]);
    ensure!(engine::docker(&["wait", &container]).as_deref() == Some("1"), "the container runs");
    // The directory no longer has a repository, and the repository of the kept bottle can be copied out.
    fs::remove_dir(project.join(".git"))?;
    give(&project, OWNER)?;
    let committed = run(&home, &["commit", "one"])?.expect_code(1);
    ensure!(committed.stderr.contains("/.git is gone"), "{committed:?}");
    ensure!(!project.join(".git").exists(), "no engine made a directory there");
    let resumed = run(&home, &["resume", "one", "--detach", "-y"])?.expect_code(1);
    ensure!(resumed.stderr.contains("its .git is gone"), "{resumed:?}");
    fs::write(project.join("private"), "new\n")?;
    let copied = run(&home, &["cp", "one:.git", "out"])?.expect_code(0);
    ensure!(project.join("out/HEAD").exists() || project.join("out/.git/HEAD").exists(), "{copied:?}");
    let listed = run(&home, &["fs", "ls", "one"])?.stdout;
    ensure!(!listed.contains("private"), "the new directory is not mounted: {listed}");
    Ok(())
}

#[test]
fn the_users_files_are_no_work_of_a_bottle_that_was_killed() -> Result<()> {
    let test = "the_users_files_are_no_work_of_a_bottle_that_was_killed";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let hash = bottle_host::home_hash(&home.bottle_home());
    for (script, is_kept) in
        [("echo two >>code".to_owned(), false), (format!("{COMMIT} --allow-empty -m more"), true)]
    {
        let _ = run(&home, &START)?.expect_code(0);
        let _ = inside(&home, "one", &format!("git status; {script}"))?;
        let _ = engine::docker(&["kill", &format!("bottle-{hash}-agent-one")]);
        // Only pid 1 of the container can detect changes, so the container is started again.
        ensure!(is_kept_at_the_end(&home)? == is_kept, "{script}");
        let _ = run(&home, &["cleanup", "--all", "--yes"])?.expect_code(0);
    }
    Ok(())
}

/// Waits until the bottle ended, and returns whether it is kept.
fn is_kept_at_the_end(home: &TestHome) -> Result<bool> {
    let record = home.bottle_home().join("state/one/metadata.json");
    let hash = bottle_host::home_hash(&home.bottle_home());
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let record = fs::read_to_string(&record).unwrap_or_default();
        if serde_json::from_str::<serde_json::Value>(&record).is_ok_and(|record| record["kept"] == true) {
            return Ok(true);
        }
        if !engine::left_of(&hash).iter().any(|left| left.ends_with("-agent-one")) {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("the bottle does not end")
}

#[test]
fn a_directory_of_another_user_is_refused() -> Result<()> {
    let Some(home) = with_a_repository("a_directory_of_another_user_is_refused")? else { return Ok(()) };
    let mut shown = String::new();
    for owner in [(0, 0), (1000, 0), (1234, 1234)] {
        give(&home.project(), owner)?;
        let started = run(&home, &START)?.expect_code(4);
        shown += &format!("{owner:?}\n{}\n", home.scrub()?.apply(&started.transcript()));
    }
    snapshot!(shown);
    ensure!(run(&home, &["list", "--json"])?.json()?.as_array().is_some_and(Vec::is_empty));
    Ok(())
}
