//! Tests clients, gates and upstreams that stop halfway, and concurrent pushes.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_protocol::queue::Status;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_test_support::sshd::run;

use crate::approval::{decide_after, marked};
use crate::scene::{PATIENCE, RECEIVE, Scene, ZERO, head, hook, until};

/// Returns the number of git processes that this gate runs.
fn gits(scene: &Scene) -> Result<usize> {
    let group = scene.at("gate/tool.git").canonicalize()?;
    let processes = fs::read_dir("/proc")?.flatten();
    let own = processes.filter(|process| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"git"))
            && fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == group)
    });
    Ok(own.count())
}

/// Lists the temporary files and lock files in the mirror.
fn leftovers(scene: &Scene) -> Result<String> {
    scene.shell("find gate/tool.git -name 'tmp_*' -o -name '*.lock'")
}

/// Starts a push and sends only part of its body.
fn half_push(scene: &Scene) -> Result<TcpStream> {
    let mut socket = scene.begin(RECEIVE, "", 100_000)?;
    socket.write_all(&head(&[format!("{ZERO} {} refs/heads/y", "1".repeat(40))]))?;
    socket.write_all(b"PACK\0\0\0\x02\0\0\0\x09")?;
    Ok(socket)
}

pub(crate) async fn half() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    let begun = || half_push(&scene);
    // These connections stay open after half of a push. They must not block other clients.
    let stay: Vec<_> = (0..8).map(|_| begun()).collect::<Result<_>>()?;
    for socket in stay.iter().take(4) {
        socket.shutdown(Shutdown::Write)?;
    }
    scene.shell("cd clone; git push -q origin HEAD:x; git fetch -q")?;
    // The number of these pushes exceeds the limit on concurrent pushes. The clients disconnect, and no files of the
    // pushes must remain.
    drop((0..40).map(|_| begun()).collect::<Result<Vec<_>>>()?);
    drop(stay);
    scene.shell("cd clone; git push -q origin HEAD:z")?;
    until(|| gits(&scene).is_ok_and(|gits| gits == 0))?;
    until(|| leftovers(&scene).is_ok_and(|files| files.is_empty()))
}

/// Starts as many pushes as the gate receives concurrently, and leaves them incomplete. Another push must still
/// succeed.
pub(crate) async fn full() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    let mut stay: Vec<_> = (0..16).map(|_| half_push(&scene)).collect::<Result<_>>()?;
    // The gate begins the response to a push when it begins to receive the push.
    stay.iter_mut().try_for_each(|socket| socket.read_exact(&mut [0]))?;
    let began = Instant::now();
    scene.shell("cd clone; git push -q origin HEAD:x")?;
    ensure!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    drop(stay);
    Ok(())
}

pub(crate) async fn race() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    // The gate scans both pushes before it forwards either of them.
    hook(&scene, "pre-receive", "sleep 0.3")?;
    scene
        .shell("for c in a b; do git clone -q $GATE $c; (cd $c; git commit -q --allow-empty -m $c); done")?;
    let push = |clone: &str| scene.output(&format!("cd {clone}; git push origin HEAD:refs/heads/race"));
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(|| push("a"));
        let b = scope.spawn(|| push("b"));
        (a.join(), b.join())
    });
    let (Ok(a), Ok(b)) = (a, b) else { bail!("a thread panicked") };
    let (a, b) = (a?, b?);
    let (winner, loser) = if a.status.success() { ("a", &b) } else { ("b", &a) };
    ensure!(a.status.success() != b.status.success(), "{a:?} {b:?}");
    let upstream = scene.shell("git -C up.git rev-parse race")?;
    ensure!(upstream == scene.shell(&format!("git -C {winner} rev-parse HEAD"))?, "{upstream}");
    let message = String::from_utf8_lossy(&loser.stderr);
    ensure!(message.contains("fetch, merge or rebase, and push again"), "{message}");
    Ok(())
}

pub(crate) async fn client() -> Result<()> {
    let (scene, channel) = marked().await?;
    // The client is killed while the gate waits for the user's decision.
    let directory = scene.directory.path().to_owned();
    let address = format!("http://{}:9420/tool.git", scene.address);
    let mut push = Command::new("git")
        .args(["push", "-q", &address, "HEAD:x"])
        .current_dir(directory.join("clone"))
        .process_group(0)
        .stderr(Stdio::null())
        .spawn()?;
    let group = format!("-{}", push.id());
    let question = decide_after(channel, Status::Approved, || {
        run(Command::new("kill").args(["-9", "--", &group]))?;
        push.wait()?;
        // All git processes of this push exit.
        until(|| gits(&scene).is_ok_and(|gits| gits == 0))
    });
    // The gate withdraws the question when the client disconnects.
    ensure!(question.await.is_err(), "the question was not withdrawn");
    // A later push succeeds.
    scene.shell("cd clone; git checkout -q -b other origin/main; git commit -q --allow-empty -m o; git push -q origin other")?;
    ensure!(!scene.upstream()?.contains("refs/heads/x"), "the push reached the upstream");
    until(|| leftovers(&scene).is_ok_and(|files| files.is_empty()))?;
    Ok(())
}

pub(crate) async fn gate() -> Result<()> {
    let (mut scene, channel) = marked().await?;
    let before = scene.upstream()?;
    let pushing = std::thread::scope(|scope| -> Result<_> {
        let pushing = scope.spawn(|| scene.output("cd clone; git push origin HEAD:x"));
        let pid = scene.gate_pid()?.to_string();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let mut stream = channel.open(&BundleRequest::Question).await?;
                let BundleEvent::Asked(_) = stream.receive().await? else { bail!("not a question") };
                run(Command::new("kill").args(["-9", &pid]))
            })
        })?;
        pushing.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })?;
    let message = String::from_utf8_lossy(&pushing.stderr);
    ensure!(!pushing.status.success() && scene.upstream()? == before, "{message}");
    // Creates the kinds of files that a power failure leaves in the mirror.
    scene.shell(
        "cd gate/tool.git; mkdir -p objects/tmp_objdir-incoming-a/pack; \
         touch packed-refs.lock HEAD.lock shallow.lock refs/stray objects/pack/tmp_pack_a objects/tmp_objdir-incoming-a/pack/x",
    )?;
    scene.open(|_| ()).await?;
    scene.shell(
        "cd seed; git commit -q --allow-empty -m more; git push -q ../up.git main; \
         cd ../clone; git fetch -q; test $(git rev-parse origin/main) = $(git -C ../seed rev-parse main); \
         git checkout -q -b y origin/main; git commit -q --allow-empty -m y; git push -q origin y",
    )?;
    ensure!(leftovers(&scene)?.is_empty(), "{}", leftovers(&scene)?);
    // Creates the kinds of files that an interrupted refresh leaves in the mirror, while the gate keeps running.
    scene.shell(
        "git -C up.git branch gone main; cd clone; git fetch -q; git -C ../up.git branch -q -D gone; \
         touch ../gate/tool.git/packed-refs.lock ../gate/tool.git/HEAD.lock; \
         cd ../seed; git commit -q --allow-empty -m unlocked; git push -q ../up.git main; cd ../clone; \
         git fetch -q --prune; test $(git rev-parse origin/main) = $(git -C ../seed rev-parse main)",
    )?;
    // The gate replaces a damaged mirror.
    scene.shell(
        "cd gate/tool.git; for p in objects/pack/*.pack; do chmod u+w $p; : > $p; done; \
         cd ../../seed; git commit -q --allow-empty -m again; git push -q ../up.git main; cd ../clone; git fetch -q; \
         test $(git rev-parse origin/main) = $(git -C ../seed rev-parse main); git clone -q $GATE ../anew",
    )?;
    Ok(())
}

pub(crate) async fn upstream() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.forward = 2;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    let hang = scene.at("hang");
    fs::write(&hang, "")?;
    hook(&scene, "pre-receive", &format!("while [ -e {} ]; do sleep 0.1; done; exit 1", hang.display()))?;
    let began = Instant::now();
    let words = [
        "the upstream of tool did not confirm the push",
        "within 2 s",
        "check whether it has it, and push again",
    ];
    scene.refused("cd clone; git push origin HEAD:x", &words)?;
    ensure!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    fs::remove_file(hang)?;
    std::thread::sleep(Duration::from_millis(200));
    fs::remove_file(scene.at("up.git/hooks/pre-receive"))?;
    scene.shell("cd clone; git push -q origin HEAD:x")?;
    Ok(())
}

/// Tests the shared ssh connection. All git commands use the connection. The gate reopens a lost connection, and closes
/// the connection on exit.
pub(crate) async fn connection() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:x",
    )?;
    let first = scene.masters()?;
    ensure!(first.len() == 1, "{first:?}");
    scene.shell("cd clone; git fetch -q")?;
    ensure!(scene.masters()? == first, "{:?}, not {first:?}", scene.masters()?);
    run(Command::new("kill").args(["-9", &first[0]]))?;
    until(|| scene.masters().is_ok_and(|masters| masters.is_empty()))?;
    scene.shell("cd clone; git push -q origin HEAD:y")?;
    let second = scene.masters()?;
    ensure!(second.len() == 1 && second != first, "{second:?} after {first:?}");
    ensure!(!scene.shell("ls gate")?.contains("tool.line."), "ssh left a temporary socket behind");
    // The frozen server does not close the connection. The gate detects that the connection is dead, and opens a new
    // one.
    scene.sshd.as_ref().context("a server")?.freeze();
    scene.shell("cd clone; git push -q origin HEAD:z")?;
    let third = scene.masters()?;
    ensure!(third.len() == 1 && third != second, "{third:?} after {second:?}");
    drop(scene.gate.take());
    until(|| scene.masters().is_ok_and(|masters| masters.is_empty()))
}
