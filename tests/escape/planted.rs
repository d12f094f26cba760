//! Tests hostile files that an agent creates and the host reads later, in copies, transcripts, repositories and
//! snapshots.

use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{skip, small_root};

/// A secret that only the user may read.
const SECRET: &str = "a secret of the user's";

/// Creates hostile files in the directory `$1`. `$2` is a directory of the user that contains the secret. A file that
/// cannot be created is skipped.
const PLANT: &str = "mkdir -p $1 && cd $1 || exit 1; echo plain >plain; ln -s $2/secret file; ln -s $2 directory; \
    ln -s / root; ln -s ../../../../../../../../../..$2/secret up; ln -s directory/secret through; mkfifo pipe; \
    cp /bin/cat setid; chmod 6755 setid; mkdir -p sub; ln -s ../directory sub/over; printf '#!/bin/sh\\n' >sub/run; \
    chmod 755 sub/run; ln /etc/passwd hard 2>/dev/null; mknod null c 1 3 2>/dev/null; mknod gone c 0 0 2>/dev/null; \
    ln -s /proc/self/fd/0 fd; ln -s /dev/zero zero; truncate -s 1T sparse 2>/dev/null && rm -f sparse; true";

/// A user with a secret, and two agents: one in bottles on the host's system, one in bottles on an image.
struct Scene {
    home: TestHome,
    secret: PathBuf,
}

impl Scene {
    fn new(test: &str) -> Result<Option<Self>> {
        let mut home = TestHome::new()?;
        if !home.runs(test, "linux")? {
            return Ok(None);
        }
        let secret = home.write("home/private/secret", SECRET)?;
        small_root::make(&home.bottle_home().join("small"))?;
        for (name, image) in [("host", ""), ("imaged", ", image: ./small")] {
            home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
            home.bottle(
                name,
                &format!(
                    "---\nbackend: linux\n\
                     agent_provider: {{template: command, command: [sleep, '600']{image}}}\n---\n"
                ),
            )?;
        }
        Ok(Some(Self { home, secret }))
    }

    fn private(&self) -> &Path {
        self.secret.parent().unwrap_or(&self.secret)
    }

    fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        self.home.program(arguments.iter().copied())?.run()
    }

    fn done(&self, arguments: &[&str]) -> Result<Outcome> {
        let outcome = self.run(arguments)?;
        ensure!(outcome.code == 0, "{arguments:?}: {}", outcome.transcript());
        Ok(outcome)
    }

    /// Starts a bottle of this agent.
    fn start(&self, agent: &str, slug: &str) -> Result<()> {
        self.done(&["start", agent, "--label", slug, "--detach", "--yes", "-q"]).map(drop)
    }

    /// Runs a script in the bottle. The script's arguments begin at `$1`.
    fn shell(&self, slug: &str, script: &str, arguments: &[&str]) -> Result<Outcome> {
        let command = ["exec", slug, "--", "/bin/sh", "-c", script, "sh"];
        self.done(&[&command[..], arguments].concat())
    }

    fn plant(&self, slug: &str, directory: &str) -> Result<()> {
        self.shell(slug, PLANT, &[directory, &self.private().display().to_string()]).map(drop)
    }

    fn end(&self, slug: &str) -> Result<()> {
        self.done(&["stop", slug, "--time", "0", "-q"]).map(drop)
    }

    /// Asserts that the user's secret is unchanged and that no file was added beside it.
    fn assert_untouched(&self) -> Result<()> {
        ensure!(fs::read_to_string(&self.secret)? == SECRET);
        ensure!(fs::metadata(&self.secret)?.permissions().mode() & 0o777 == 0o644, "its mode changed");
        let beside = fs::read_dir(self.private())?.count();
        ensure!(beside == 1, "{beside} entries");
        Ok(())
    }
}

/// Lists every path below the directory and asserts that no file has a harmful type or mode.
fn harmless(directory: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let name = path.strip_prefix(directory)?.display().to_string();
            let metadata = path.symlink_metadata()?;
            let kind = metadata.file_type();
            if kind.is_symlink() {
                let target = fs::canonicalize(path.parent().context("a parent")?.join(fs::read_link(&path)?));
                ensure!(
                    target.is_err() || target.is_ok_and(|target| target.starts_with(directory)),
                    "{name} leads out"
                );
            } else if kind.is_dir() {
                waiting.push(path);
            } else {
                ensure!(kind.is_file(), "{name} is no file: {kind:?}, a pipe: {}", kind.is_fifo());
                ensure!(metadata.permissions().mode() & 0o7000 == 0, "{name} is set-id");
                ensure!(!fs::read_to_string(&path).unwrap_or_default().contains(SECRET), "{name} tells");
            }
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

#[test]
fn a_copy_contains_only_files_and_inner_links() -> Result<()> {
    let Some(scene) = Scene::new("planted in a copy")? else { return Ok(()) };
    for agent in ["host", "imaged"] {
        scene.start(agent, agent)?;
        scene.plant(agent, "/workspace/out")?;
        let got = scene.home.outside(&format!("got-{agent}"));
        // The destination of the copy contains a link that the user created.
        fs::create_dir(&got)?;
        symlink(scene.private(), got.join("directory"))?;
        let copied = scene.run(&["cp", &format!("{agent}:/workspace/out"), &got.display().to_string()])?;
        ensure!(copied.code == 0, "{}", copied.transcript());
        fs::remove_file(got.join("directory"))?;
        let found = harmless(&fs::canonicalize(&got)?)?;
        for wanted in ["out/plain", "out/sub/run", "out/setid"] {
            ensure!(found.iter().any(|name| name == wanted), "{found:?}");
        }
        ensure!(!found.iter().any(|name| name.ends_with("pipe") || name.ends_with("null")), "{found:?}");
        // If the requested path is a link, it is resolved in the bottle, where the user's files do not exist.
        for planted in ["file", "up", "directory/secret", "through", "pipe", "zero", "fd"] {
            let to = scene.home.outside("one");
            let _ = fs::remove_file(&to);
            let from = format!("{agent}:/workspace/out/{planted}");
            scene.run(&["cp", &from, &to.display().to_string()])?;
            let there = to.symlink_metadata();
            ensure!(
                there.is_err() || !fs::read_to_string(&to).unwrap_or_default().contains(SECRET),
                "{planted}: {there:?}"
            );
        }
        scene.assert_untouched()?;
        scene.end(agent)?;
    }
    Ok(())
}

/// The length of a file, and the disk space that it uses in bytes.
fn lengths(path: &Path) -> Result<(u64, u64)> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok((metadata.len(), metadata.blocks() * 512))
}

#[test]
fn sparse_files_stay_sparse_on_both_sides() -> Result<()> {
    let Some(scene) = Scene::new("a sparse file")? else { return Ok(()) };
    for agent in ["host", "imaged"] {
        scene.start(agent, agent)?;
        let made = "cd /workspace; truncate -s 1T big || truncate -s 1G big; \
                    printf end | dd of=big bs=1 seek=1000000 conv=notrunc 2>/dev/null; stat -c %s big";
        let length: u64 = scene.shell(agent, made, &[])?.stdout.trim().parse()?;
        let out = scene.home.outside(&format!("big-{agent}"));
        scene.done(&["cp", &format!("{agent}:big"), &out.display().to_string()])?;
        let (long, taken) = lengths(&out)?;
        ensure!(long == length && taken < 1 << 20, "{agent}: {long} long, {taken} on disk");
        let mut end = [0; 3];
        fs::File::open(&out)?.read_exact_at(&mut end, 1_000_000)?;
        ensure!(&end == b"end");
        scene.done(&["cp", &out.display().to_string(), &format!("{agent}:back")])?;
        let back =
            scene.shell(agent, "cd /workspace; stat -c '%s %b' back; cmp -n 2000000 big back", &[])?.stdout;
        let (long, blocks) = back.trim().split_once(' ').context("two numbers")?;
        ensure!(long.parse::<u64>()? == length && blocks.parse::<u64>()? < 2048, "{agent}: {back}");
        scene.end(agent)?;
    }
    Ok(())
}

#[test]
fn a_copy_larger_than_the_disk_fails_and_leaves_nothing() -> Result<()> {
    let test = "a copy without room";
    let Some(scene) = Scene::new(test)? else { return Ok(()) };
    scene.start("host", "host")?;
    scene.shell("host", "cd /workspace; mkdir many; head -c 30000000 /dev/urandom >many/big", &[])?;
    scene.shell("host", "cd /workspace; mkdir few; for n in $(seq 6000); do : >few/$n; done", &[])?;
    let disk = scene.home.outside("disk");
    fs::create_dir(&disk)?;
    for directory in ["many", "few"] {
        let script = "mount -t tmpfs -o size=20m,nr_inodes=20000 disk \"$0\" || exit 77; \
                      \"$@\"; code=$?; ls -A \"$0\"; exit $code";
        let own =
            scene.home.program(["cp", &format!("host:{directory}"), &disk.display().to_string()])?.command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&disk).arg(own.get_program()).args(own.get_args());
        command.env_clear();
        for (name, value) in own.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let outcome = command.output()?;
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        if outcome.status.code() == Some(77) || said.contains("unshare") {
            skip::aloud(test, &"no small disk can be made here");
            break;
        }
        let words = "it takes more than is free there: 20.00 MiB, of which 1.00 MiB stay free";
        ensure!(outcome.status.code() == Some(1) && said.contains(words), "{directory}: {said}");
        ensure!(outcome.stdout.is_empty(), "{directory}: something was left: {outcome:?}");
    }
    scene.end("host")
}

#[test]
fn refuses_a_repository_that_redirects_elsewhere() -> Result<()> {
    let Some(scene) = Scene::new("a planted repository")? else { return Ok(()) };
    fs::write(scene.home.project().join("theirs"), SECRET)?;
    for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", SECRET]] {
        scene.home.git(arguments)?;
    }
    let project = scene.home.project().display().to_string();
    let before = scene.home.git(&["for-each-ref"])?;
    let ways = [
        "rm -rf .git; ln -s $1/.git .git",
        "rm -rf .git; echo \"gitdir: $1/.git\" >.git",
        "rm -rf .git; mkfifo .git",
        "rm -rf .git; ln -s /proc/self/root$1/.git .git",
        "rm -rf .git; git init -q . && echo $1/.git/objects >.git/objects/info/alternates && \
             mkdir -p .git/refs/heads && echo $2 >.git/refs/heads/main; true",
    ];
    let head = scene.home.git(&["rev-parse", "HEAD"])?;
    for agent in ["host", "imaged"] {
        scene.start(agent, agent)?;
        for way in ways {
            scene.shell(agent, &format!("cd /workspace; {way}"), &[&project, head.trim()])?;
            for command in [&["diff", agent][..], &["pull", agent]] {
                let outcome = scene.run(command)?;
                let said = outcome.transcript();
                // `diff` may succeed with an empty result. `pull` must fail.
                let refused = command[0] == "diff" || outcome.code != 0;
                ensure!(refused && !said.contains(SECRET), "{way}: {command:?}: {said}");
            }
        }
        ensure!(scene.home.git(&["for-each-ref"])? == before, "no reference is made or moved");
        scene.assert_untouched()?;
        scene.end(agent)?;
    }
    Ok(())
}

/// The agent is a fake Claude Code whose transcript contains every kind of hostile file.
#[test]
fn copies_a_transcript_without_planted_files() -> Result<()> {
    let Some(scene) = Scene::new("a planted conversation")? else { return Ok(()) };
    let bin = scene.home.outside("bin");
    fs::create_dir(&bin)?;
    let program = bin.join("claude");
    let plant = PLANT.replace("$1", "~/.claude/projects/-workspace").replace("$2", "$(cat /workspace/where)");
    fs::write(&program, format!("#!/bin/sh\n{plant}\nexit 3\n"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::write(scene.home.project().join("where"), scene.private().display().to_string())?;
    let mut home = scene.home;
    home.agent("claude", "---\nbottle: claude\n---\n")?;
    home.bottle(
        "claude",
        "---\nbackend: linux\nagent_provider: {template: claude, auth_token: LLM_KEY}\n---\n",
    )?;
    home.env("LLM_KEY", "sk-ant-api03-planted");
    home.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()));
    let scene = Scene { home, ..scene };
    let outcome =
        scene.run(&["start", "claude", "--label", "demo", "--cwd", "--yes", "-q", "-p", "plant it"])?;
    ensure!(outcome.code == 3, "{}", outcome.transcript());
    let kept = scene.home.bottle_home().join("transcripts/demo");
    let found = harmless(&fs::canonicalize(&kept).with_context(|| outcome.transcript())?)?;
    ensure!(found.iter().any(|name| name.ends_with("-workspace/plain")), "{found:?}");
    ensure!(!found.iter().any(|name| name.ends_with("pipe")), "{found:?}");
    scene.assert_untouched()
}

/// A snapshot entry that no commit creates: its description, and a function that creates it. The function's arguments
/// are the snapshot's directory and the user's directory.
type Crafted = (&'static str, fn(&Path, &Path) -> Result<()>);

/// The entries that a resume refuses.
const REFUSED: [Crafted; 3] = [
    ("a tree that is a link", |snapshot, private| {
        fs::rename(snapshot.join("workspace"), snapshot.join("aside"))?;
        Ok(symlink(private, snapshot.join("workspace"))?)
    }),
    ("a tree that is a file", |snapshot, _| {
        fs::rename(snapshot.join("workspace"), snapshot.join("aside"))?;
        Ok(fs::write(snapshot.join("workspace"), "")?)
    }),
    ("a tree that is a pipe", |snapshot, _| {
        fs::rename(snapshot.join("workspace"), snapshot.join("aside"))?;
        mkfifo(&snapshot.join("workspace"))
    }),
];

fn mkfifo(path: &Path) -> Result<()> {
    ensure!(Command::new("mkfifo").arg(path).status()?.success());
    Ok(())
}

/// The entries below a directory, each with its type and content.
fn all_below(directory: &Path) -> Result<Vec<String>> {
    let listed = Command::new("find").arg(directory).args(["-printf", "%P %y %m %s %l\n"]).output()?;
    let mut lines: Vec<String> = String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn refuses_a_foreign_snapshot_and_changes_nothing() -> Result<()> {
    let Some(scene) = Scene::new("a crafted snapshot")? else { return Ok(()) };
    for agent in ["host", "imaged"] {
        scene.start(agent, agent)?;
        scene.shell(agent, "echo mine >/workspace/mine", &[])?;
        scene.done(&["commit", agent, "-q"])?;
        scene.end(agent)?;
        let own = scene.home.bottle_home().join("snapshots").join(agent);
        let snapshot = fs::read_dir(&own)?.next().context("a snapshot")??.path();
        let state = scene.home.bottle_home().join("state").join(agent);
        for (what, craft) in REFUSED {
            craft(&snapshot, scene.private())?;
            let before = all_below(&own)?;
            let outcome = scene.run(&["resume", agent, "--detach", "--yes", "-q"])?;
            ensure!(outcome.code == 1, "{agent}: {what}: {}", outcome.transcript());
            ensure!(outcome.stderr.contains("workspace"), "{agent}: {what}: {}", outcome.transcript());
            ensure!(all_below(&own)? == before, "{agent}: {what}");
            let rest = all_below(&state)?;
            ensure!(!rest.iter().any(|line| line.starts_with(".thaw")), "{agent}: {what}: {rest:?}");
            scene.assert_untouched()?;
            fs::remove_file(snapshot.join("workspace"))?;
            fs::rename(snapshot.join("aside"), snapshot.join("workspace"))?;
        }
        // If the metadata file is not a regular file, it is ignored and opening it does not block.
        let facts = snapshot.join("snapshot.json");
        let said = fs::read(&facts)?;
        fs::remove_file(&facts)?;
        mkfifo(&facts)?;
        scene.done(&["snapshots"])?;
        fs::remove_file(&facts)?;
        symlink("/dev/zero", &facts)?;
        scene.done(&["snapshots"])?;
        fs::remove_file(&facts)?;
        fs::write(&facts, said)?;
        // The original snapshot is accepted.
        scene.done(&["resume", agent, "--detach", "--yes", "-q"])?;
        ensure!(scene.shell(agent, "cat /workspace/mine", &[])?.stdout == "mine\n");
        scene.end(agent)?;
    }
    Ok(())
}

#[test]
fn files_planted_in_a_snapshot_are_restored_harmlessly() -> Result<()> {
    let Some(scene) = Scene::new("planted in a snapshot")? else { return Ok(()) };
    let root = rustix::process::getuid().is_root();
    if !root {
        skip::aloud("devices in a snapshot", &"only root makes one");
    }
    for agent in ["host", "imaged"] {
        scene.start(agent, agent)?;
        scene.plant(agent, "/workspace/out")?;
        scene.done(&["commit", agent, "-q"])?;
        scene.end(agent)?;
        let own = scene.home.bottle_home().join("snapshots").join(agent);
        let snapshot = fs::read_dir(&own)?.next().context("a snapshot")??.path();
        // An agent cannot create the following entries in its workspace.
        let out = snapshot.join("workspace/out");
        fs::set_permissions(out.join("setid"), fs::Permissions::from_mode(0o6755))?;
        symlink(&scene.secret, out.join("absolute"))?;
        let _socket = std::os::unix::net::UnixListener::bind(out.join("s"))?;
        if root {
            for (name, major, minor) in [("zero-device", "1", "5"), ("overlay-mark", "0", "0")] {
                let made = Command::new("mknod").arg(out.join(name)).args(["c", major, minor]).status()?;
                ensure!(made.success());
            }
        }
        scene.done(&["resume", agent, "--detach", "--yes", "-q"])?;
        let said = scene.shell(
            agent,
            "cd /workspace/out; stat -c '%n %F %a' setid pipe sub/run; ls -d s zero-device overlay-mark 2>/dev/null; \
             cat absolute file up 2>/dev/null; ls -d directory/ root$1 2>/dev/null; true",
            &[&scene.private().display().to_string()],
        )?;
        ensure!(
            said.stdout == "setid regular file 755\npipe fifo 644\nsub/run regular file 755\n",
            "{agent}: {}",
            said.transcript()
        );
        // A second snapshot does not follow the links either.
        scene.done(&["commit", agent, "-q"])?;
        let again = fs::read_dir(&own)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        for snapshot in again {
            let link = snapshot.join("workspace/out/absolute");
            ensure!(fs::read_link(&link)? == scene.secret, "{}", link.display());
        }
        scene.assert_untouched()?;
        scene.end(agent)?;
    }
    Ok(())
}
