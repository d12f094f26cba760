//! Tests `--cwd=live`: the agent changes the user's files, but not the user's repository. `live_docker` tests
//! `--cwd=live` on a container engine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::home::{run, snapshot};
use crate::pull::with_git;

pub(crate) const START: [&str; 8] = ["start", "work", "--cwd=live", "--detach", "--label", "one", "-y", "-q"];

pub(crate) const STOP: [&str; 5] = ["stop", "one", "--time", "0", "--json"];

/// Returns a home whose project is a repository with one commit. Otherwise like [`with_git`].
fn with_a_repository(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_git(test)? else { return Ok(None) };
    home.write("project/code", "one\n")?;
    home.write("project/src/main.c", "int main;\n")?;
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    Ok(Some(home))
}

/// Runs a shell script in the bottle.
fn inside(home: &TestHome, script: &str) -> Result<Outcome> {
    run(home, &["exec", "one", "--", "/bin/sh", "-c", script])
}

/// The content, mode, owner, inode and modification time of all files below a directory. The change time is not
/// compared, because the bottle shares git objects by hard links, and a new hard link updates the change time.
pub(crate) fn facts(directory: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let metadata = path.symlink_metadata()?;
        let content = if metadata.is_file() { fs::read(&path)? } else { Vec::new() };
        let described = format!(
            "{:o} {} {} {} {} {content:?}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.ino(),
            metadata.mtime_nsec()
        );
        found.insert(path.display().to_string(), described);
        if metadata.is_dir() {
            found.extend(facts(&path)?);
        }
    }
    Ok(found)
}

#[test]
fn the_agent_changes_the_users_files_and_its_commits_are_pulled() -> Result<()> {
    let test = "the_agent_changes_the_users_files_and_its_commits_are_pulled";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let project = home.project();
    let before = facts(&project.join(".git"))?;
    let _ = run(&home, &START)?.expect_code(0);
    let script = "set -e; git status --short; echo two >>code; echo new >src/new; rm src/main.c; \
        git -c user.name=A -c user.email=a@example.com commit -qam more; git log --format=%s";
    let done = inside(&home, script)?.expect_code(0);
    ensure!(done.stdout == "more\nbegin\n", "{done:?}");
    ensure!(fs::read_to_string(project.join("code"))? == "one\ntwo\n");
    ensure!(!project.join("src/main.c").exists());
    ensure!(facts(&project.join(".git"))? == before, "the user's repository stays");
    let listed = run(&home, &["list", "--json"])?.json()?;
    ensure!(listed[0]["live"] == true, "{listed}");
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["kept"] == "files", "commits are unsaved work: {stopped}");
    ensure!(stopped["live"]["files"].as_array().is_some_and(Vec::is_empty), "{stopped}");
    // The ended bottle sees the directory too.
    let diff = run(&home, &["diff", "one", "--name-only"])?.expect_code(0).stdout;
    ensure!(diff == "code\nsrc/main.c\nsrc/new\n", "{diff}");
    let pulled = run(&home, &["pull", "one", "--json"])?.expect_code(0).json()?;
    ensure!((&pulled["commits"], &pulled["uncommitted"]) == (&1.into(), &0.into()), "{pulled}");
    ensure!(home.git(&["show", "bottle/one:code"])? == "one\ntwo\n");
    // A resumed bottle sees the directory again, and continues in its own repository.
    fs::write(project.join("meanwhile"), "mine\n")?;
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    let done = inside(&home, "cat meanwhile; git log -1 --format=%s")?.expect_code(0);
    ensure!(done.stdout == "mine\nmore\n", "{done:?}");
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["kept"].is_null(), "all was pulled: {stopped}");
    // A bottle without commits has nothing that could be lost.
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "git status; echo three >>code")?.expect_code(0);
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["kept"].is_null(), "{stopped}");
    ensure!(fs::read_to_string(project.join("code"))? == "one\ntwo\nthree\n");
    Ok(())
}

#[test]
fn files_keep_the_users_ownership() -> Result<()> {
    let Some(home) = with_a_repository("files_keep_the_users_ownership")? else { return Ok(()) };
    let project = home.project();
    if rustix::process::geteuid().is_root() {
        // The project belongs to an ordinary user, and root starts the bottle.
        for path in ["", "code", "src", "src/main.c"] {
            chown(project.join(path), Some(1234), Some(1235))?;
        }
    }
    let owner = fs::metadata(&project)?;
    let _ = run(&home, &START)?.expect_code(0);
    let script = "set -e; echo two >>code; echo new >src/new; ln code linked; mkdir directory; chmod 700 src; \
        cp code replaced; mv replaced code; stat -c %U . code src/new; git status --short";
    let done = inside(&home, script)?.expect_code(0);
    let expected = "agent\nagent\nagent\n M code\n?? linked\n?? src/new\n";
    ensure!(done.stdout == expected, "{done:?}");
    for path in ["code", "src/new", "linked", "src", "directory"] {
        let found = fs::metadata(project.join(path))?;
        ensure!((found.uid(), found.gid()) == (owner.uid(), owner.gid()), "{path}: {found:?}");
    }
    let _ = run(&home, &STOP)?.expect_code(0);
    Ok(())
}

#[test]
fn no_attempt_reaches_the_users_repository() -> Result<()> {
    let Some(home) = with_a_repository("no_attempt_reaches_the_users_repository")? else { return Ok(()) };
    let git = home.project().join(".git");
    fs::write(git.join("secret"), "only the user's\n")?;
    let before = facts(&git)?;
    let _ = run(&home, &START)?.expect_code(0);
    // The bottle's copy of the repository also contains the file `secret`. The attack removes this copy first, so any
    // `secret` that it finds later is the user's.
    let attack = "git config core.hooksPath /workspace/hooks; git config core.fsmonitor /workspace/run; \
        rm -rf .git/* .git; mv .git elsewhere; rmdir .git; ln -s /etc .git; mkdir -p moved; mv .git moved/; \
        mv /workspace /moved; mv /workspace/.git /tmp/git; umount .git; umount -l /workspace/.git; \
        mount --bind / /mnt; unshare -Ur umount /workspace/.git; \
        for process in /proc/[0-9]*; do ls $process/root/workspace/.git/ $process/cwd/.git/ $process/fd/*; done; \
        cp -r .git/. /tmp/copy; ln .git/secret stolen; ls -A .git >/workspace/seen; touch .git/new; git init -q; \
        git -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m x; find / -name secret -xdev; true";
    let done = inside(&home, attack)?.expect_code(0);
    ensure!(!done.stdout.contains("secret"), "{done:?}");
    ensure!(fs::read_to_string(home.project().join("seen"))?.is_empty(), "it saw something");
    ensure!(facts(&git)? == before, "the user's repository changed");
    ensure!(!home.project().join("stolen").exists() && !home.project().join("elsewhere").exists());
    let _ = run(&home, &STOP)?.expect_code(0);
    ensure!(facts(&git)? == before, "the user's repository changed at the end");
    home.git(&["fsck", "--strict"])?;
    Ok(())
}

#[test]
fn namespaces_of_the_agent_do_not_uncover_the_repository() -> Result<()> {
    let test = "namespaces_of_the_agent_do_not_uncover_the_repository";
    let Some(mut home) = with_a_repository(test)? else { return Ok(()) };
    let command = "agent_provider: {template: command, command: [sleep, '600']}";
    home.bottle("work", &format!("---\nbackend: linux\n{command}\nresources: {{nested: true}}\n---\n"))?;
    let git = home.project().join(".git");
    fs::write(git.join("secret"), "only the user's\n")?;
    let before = facts(&git)?;
    let _ = run(&home, &START)?.expect_code(0);
    // As a control, the agent can mount a tmpfs.
    let attack = "rm -rf .git/*; cat >/tmp/attack <<'END'
mkdir -p /tmp/a /tmp/b /tmp/c/upper /tmp/c/work /tmp/d
mount -t tmpfs none /tmp/d && touch /tmp/d/mounted && ls /tmp/d
umount /workspace/.git; umount -l /workspace/.git
mount --bind /workspace /tmp/a; ls -A /tmp/a/.git
mount --rbind /workspace /tmp/a; umount /tmp/a/.git; ls -A /tmp/a/.git
mount -t overlay none -o lowerdir=/workspace,upperdir=/tmp/c/upper,workdir=/tmp/c/work /tmp/b; ls -A /tmp/b/.git
mount --move /workspace/.git /tmp/a; mv /workspace/.git /workspace/moved; ls -A /workspace/.git
END
unshare -Urm sh /tmp/attack 2>/dev/null; true";
    let done = inside(&home, attack)?.expect_code(0);
    ensure!(done.stdout.contains("mounted") && !done.stdout.contains("secret"), "{done:?}");
    ensure!(facts(&git)? == before, "the user's repository changed");
    let _ = run(&home, &STOP)?.expect_code(0);
    Ok(())
}

#[test]
fn no_program_gets_set_id_bits() -> Result<()> {
    let Some(home) = with_a_repository("no_program_gets_set_id_bits")? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    let attack = "cp /bin/true program; chmod 755 program && echo ordinary; \
        for mode in 4755 u+s 2755 g+s 6700; do chmod $mode program 2>/dev/null && echo worked; done; \
        install -m 4755 /bin/true other 2>/dev/null && echo worked; true";
    let done = inside(&home, attack)?.expect_code(0);
    ensure!(done.stdout == "ordinary\n", "{done:?}");
    ensure!(fs::metadata(home.project().join("program"))?.mode() & 0o7777 == 0o755);
    let _ = run(&home, &STOP)?.expect_code(0);
    Ok(())
}

#[test]
fn the_end_names_what_has_an_effect_on_the_host() -> Result<()> {
    let Some(home) = with_a_repository("the_end_names_what_has_an_effect_on_the_host")? else {
        return Ok(());
    };
    home.write("project/.vscode/old.json", "{}\n")?;
    // The agent moves the following files to other paths without changing them.
    home.write("project/template/run.xml", "<run/>\n")?;
    home.write("project/library/.vscode/tasks.json", "{}\n")?;
    let _ = run(&home, &START)?.expect_code(0);
    let script = "set -e; mkdir sub; git init -q sub/inner; echo x >sub/.envrc; mkdir .husky; echo x >.husky/pre-commit; \
        mv template .idea; mv library renamed; mkfifo pipe; \
        git init -q --bare bare.git; ln -s ../../etc/passwd src/link; echo x >plain; \
        name=$(printf 'odd\\033[31m\\nname'); mkdir \"$name\"; echo x >\"$name/.npmrc\"";
    let _ = inside(&home, script)?.expect_code(0);
    snapshot!(crate::home::transcript(&home, &["stop", "one", "--time", "0"])?);
    Ok(())
}

#[test]
fn the_end_says_that_the_users_repository_was_replaced() -> Result<()> {
    let test = "the_end_says_that_the_users_repository_was_replaced";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let git = home.project().join(".git");
    let _ = run(&home, &START)?.expect_code(0);
    fs::rename(&git, home.project().join(".git-old"))?;
    fs::create_dir(&git)?;
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["live"]["repository_moved"] == true, "{stopped}");
    Ok(())
}

#[test]
fn a_directory_that_is_more_than_files_is_refused() -> Result<()> {
    let Some(home) = with_a_repository("a_directory_that_is_more_than_files_is_refused")? else {
        return Ok(());
    };
    let project = home.project();
    let start = |directory: &str| -> Result<String> {
        let started = home.program(START)?.directory(project.join(directory)).run()?;
        Ok(home.scrub()?.apply(&started.expect_code(2).transcript()))
    };
    let mut shown = Vec::new();
    let mut refused = |directory: &str| -> Result<()> {
        shown.push(format!("{directory}:\n{}", start(directory)?));
        Ok(())
    };
    refused("../home")?;
    refused("..")?;
    refused("../home/.bottle/agents")?;
    for (directory, git) in [("nested", "nested/vendor/a/.git"), ("tree", "tree/.git")] {
        fs::create_dir_all(project.join(directory).join("vendor/a"))?;
        fs::write(project.join(git), "gitdir: ../elsewhere\n")?;
        refused(directory)?;
    }
    fs::create_dir_all(project.join("keys/deep/.ssh"))?;
    refused("keys")?;
    refused("keys/deep/.ssh")?;
    fs::create_dir_all(project.join("sockets"))?;
    drop(std::os::unix::net::UnixListener::bind(project.join("sockets/s"))?);
    refused("sockets")?;
    fs::create_dir_all(project.join("link"))?;
    symlink("../src", project.join("link/.git"))?;
    refused("link")?;
    refused("/usr/lib")?;
    snapshot!(shown.join("\n"));
    Ok(())
}

#[test]
fn commands_that_need_a_copy_are_refused() -> Result<()> {
    let Some(home) = with_a_repository("commands_that_need_a_copy_are_refused")? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "echo two >>code")?.expect_code(0);
    let mut shown = String::new();
    for arguments in [
        &["export", "one", "-o", "x.bottle"][..],
        &["apply", "one", "--yes"],
        &["fs", "reset", "one", "--yes"],
        &["commit", "one"],
    ] {
        shown += &crate::home::transcript(&home, arguments)?;
        shown.push('\n');
    }
    snapshot!(shown);
    ensure!(fs::read_to_string(home.project().join("code"))? == "one\ntwo\n");
    let commit = "git -c user.name=A -c user.email=a@example.com commit -qam more";
    let _ = inside(&home, commit)?.expect_code(0);
    let _ = run(&home, &STOP)?.expect_code(0);
    // The directory no longer has a repository, and the repository of the kept bottle can be copied out.
    fs::rename(home.project().join(".git"), home.project().join("kept"))?;
    let resumed = run(&home, &["resume", "one", "--detach", "-y"])?.expect_code(1);
    ensure!(
        resumed.stderr.contains("its .git is gone") && resumed.stderr.contains("`bottle cp one:.git "),
        "{resumed:?}"
    );
    let copied = run(&home, &["cp", "one:.git", "out"])?.expect_code(0);
    ensure!(
        home.project().join("out/HEAD").exists() || home.project().join("out/.git/HEAD").exists(),
        "{copied:?}"
    );
    Ok(())
}

#[test]
fn the_preflight_shows_it_as_a_weakness() -> Result<()> {
    let Some(home) = with_a_repository("the_preflight_shows_it_as_a_weakness")? else { return Ok(()) };
    home.write("project/.env", "TOKEN=x\n")?;
    let dry = run(&home, &["start", "work", "--cwd=live", "--label", "one", "--dry-run"])?.expect_code(0);
    snapshot!(home.scrub()?.apply(&dry.transcript()));
    let dry = run(&home, &["start", "work", "--cwd=live", "--label", "one", "--dry-run", "--json"])?;
    let dry = dry.expect_code(0).json()?;
    ensure!(dry["live"].as_str() == home.project().canonicalize()?.to_str(), "{dry}");
    let other = ["start", "hi", "--cwd=live", "--detach", "-y"];
    let refused = run(&home, &other)?.expect_code(4);
    ensure!(refused.stderr.contains("`--cwd=live` is not available on the fake backend"), "{refused:?}");
    Ok(())
}

#[test]
fn a_directory_without_a_repository_is_mounted_too() -> Result<()> {
    let Some(home) = with_git("a_directory_without_a_repository_is_mounted_too")? else { return Ok(()) };
    home.write("project/code", "one\n")?;
    let _ = run(&home, &START)?.expect_code(0);
    let _ = inside(&home, "echo two >>code; git init -q")?.expect_code(0);
    let stopped = run(&home, &STOP)?.expect_code(0).json()?;
    ensure!(stopped["live"]["files"][0]["path"] == ".git", "{stopped}");
    ensure!(stopped["kept"].is_null(), "the files are the user's: {stopped}");
    ensure!(fs::read_to_string(home.project().join("code"))? == "one\ntwo\n");
    Ok(())
}

#[test]
fn a_path_names_a_directory_called_live() -> Result<()> {
    let Some(home) = with_git("a_path_names_a_directory_called_live")? else { return Ok(()) };
    home.write("project/live/code", "one\n")?;
    let arguments = ["start", "work", "--cwd=./live", "--detach", "--label", "one", "-y", "-q"];
    let _ = run(&home, &arguments)?.expect_code(0);
    let done = inside(&home, "echo two >>code; ls")?.expect_code(0);
    ensure!(done.stdout == "code\n", "{done:?}");
    ensure!(fs::read_to_string(home.project().join("live/code"))? == "one\n", "it is a copy");
    let listed = run(&home, &["list", "--json"])?.json()?;
    ensure!(listed[0]["cwd"].as_str() == home.project().join("live").canonicalize()?.to_str(), "{listed}");
    let _ = run(&home, &STOP)?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &STOP)?.expect_code(0);
    for (value, why) in
        [("src", "a directory with a slash"), ("./missing", "No such file"), ("./live/code", "no directory")]
    {
        let started = home.program(["start", "work", &format!("--cwd={value}"), "-y"])?.run()?;
        ensure!(started.stderr.contains(why), "{value}: {started:?}");
    }
    Ok(())
}

#[test]
fn a_fork_has_a_copy_of_the_directory_and_of_the_repository() -> Result<()> {
    let test = "a_fork_has_a_copy_of_the_directory_and_of_the_repository";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let _ = run(&home, &START)?.expect_code(0);
    let commit =
        "echo two >>code; git -c user.name=A -c user.email=a@example.com commit -qam more; echo new >new";
    let _ = inside(&home, commit)?.expect_code(0);
    let forked = run(&home, &["fork", "one", "--label", "two", "-y"])?.expect_code(0);
    ensure!(forked.stderr.contains("is copied as it is now"), "{forked:?}");
    let script = "git log --format=%s; git status --short; echo three >>code; cat code";
    let done = run(&home, &["exec", "two", "--", "/bin/sh", "-c", script])?.expect_code(0);
    ensure!(done.stdout == "more\nbegin\n?? new\none\ntwo\nthree\n", "{done:?}");
    ensure!(fs::read_to_string(home.project().join("code"))? == "one\ntwo\n", "the fork has a copy");
    let _ = run(&home, &["pull", "two", "-q"])?.expect_code(0);
    ensure!(home.git(&["show", "bottle/two:code"])? == "one\ntwo\n");
    let _ = run(&home, &["stop", "one", "two", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}
