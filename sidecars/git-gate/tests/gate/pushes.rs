//! Tests pushes and fetches through the gate.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::scene::{Scene, hook, until};

pub(crate) async fn round_trip() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    for version in [0, 1, 2] {
        scene.shell(&format!(
            "git -c protocol.version={version} clone -q $GATE v{version} && cd v{version} && git log -1 --format=%s \
             && git checkout -qb topic-{version} && echo {version} > two && git add . && git commit -qm two \
             && git -c protocol.version={version} push -q origin HEAD \
             && test $(git -C ../up.git rev-parse topic-{version}) = $(git rev-parse HEAD)"
        ))?;
    }
    // The next fetch includes pushes of other clients. Shallow and partial clones work too.
    scene.shell(
        "cd seed && echo more > more && git add . && git commit -qm more && git push -q ../up.git main && cd .. \
         && git -C v2 pull -q --rebase origin main && test -e v2/more \
         && git clone -q --depth 1 $GATE shallow && git clone -q --filter=blob:none $GATE partial && test -e partial/more \
         && git -C up.git branch -q -D topic-0 && git -C v0 fetch -q --prune && ! git -C v0 rev-parse -q --verify origin/topic-0",
    )?;
    // A shallow clone can also push.
    scene.shell(
        "cd shallow && git checkout -qb shallow && git commit -q --allow-empty -m s && git push -q origin HEAD \
         && test $(git -C ../up.git rev-parse shallow) = $(git rev-parse HEAD)",
    )?;
    // The gate streams a large push and decodes gzip bodies.
    scene.write_noise("v1/big", 5_000_000)?;
    scene.shell(
        "cd v1 && git add . && git commit -qm big && git push -q origin HEAD \
         && for n in $(seq 300); do git update-ref refs/heads/n$n HEAD; done && git fetch -q origin",
    )?;
    Ok(())
}

/// Tests SHA-256 upstreams with and without commits.
pub(crate) async fn sha256() -> Result<()> {
    let mut scene = Scene::new()?;
    for (made, branch) in [("", "first"), ("git -C seed2 push -q ../up.git main", "second")] {
        scene.shell(&format!(
            "rm -rf up.git seed2; git init -q --bare -b main --object-format=sha256 up.git; \
             git init -q -b main --object-format=sha256 seed2; git -C seed2 commit -q --allow-empty -m seed; {made}"
        ))?;
        scene.open(|_| ()).await?;
        scene.shell(&format!(
            "git clone -q $GATE {branch}; cd {branch}; test $(git rev-parse --show-object-format) = sha256; \
             echo {branch} > f; git add .; git commit -qm x; git push -q origin HEAD:{branch}; \
             test $(git -C ../up.git rev-parse {branch}) = $(git rev-parse HEAD); git fetch -q"
        ))?;
        let secret = format!("cd {branch}; echo $T > f; git commit -qam y; git push origin HEAD:{branch}");
        scene.refused(&secret, &["f, line 1 in commit"])?;
    }
    // The upstream is replaced by another repository with SHA-1.
    scene.shell(
        "rm -rf up.git; git clone -q --bare seed up.git; git clone -q $GATE third; cd third; \
         test $(git rev-parse --show-object-format) = sha1; git commit -q --allow-empty -m x; git push -q origin HEAD:x",
    )?;
    Ok(())
}

pub(crate) async fn atomic() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    scene.refused("cd clone; git push origin HEAD:good HEAD:refs/tags/bad", &["refs.tags"])?;
    hook(&scene, "update", "test $1 != refs/heads/second")?;
    // The upstream's hook runs after the upstream has received the objects, and refuses one ref. No ref changes.
    let before = scene.shell("git -C up.git for-each-ref")?;
    let output = scene.output("cd clone; git push origin HEAD:first HEAD:second")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && stderr.contains("refused the push"), "{stderr}");
    ensure!(scene.shell("git -C up.git for-each-ref")? == before);
    Ok(())
}

pub(crate) async fn key_is_hidden() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone")?;
    let key = fs::read_to_string(scene.at("client"))?;
    let piece = key.lines().nth(2).context("a line of the key")?.to_owned();
    let found = scene.output(&format!("grep -rF -- '{piece}' gate"))?;
    ensure!(found.stdout.is_empty(), "the key is on disk");
    for entry in fs::read_dir("/proc")?.flatten() {
        for file in ["cmdline", "environ"] {
            let text = fs::read(entry.path().join(file)).unwrap_or_default();
            let has = text.windows(piece.len()).any(|window| window == piece.as_bytes());
            // The preceding `grep` has already exited, so its argument is in no process.
            ensure!(!has, "{}/{file}", entry.path().display());
        }
    }
    // If the gate is killed, the ssh-agent that holds the key exits too.
    let directory = scene.at("gate").canonicalize()?;
    let agents = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = processes.filter(|process| {
            fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"ssh-agent"))
                && fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == directory)
        });
        lines.count()
    };
    ensure!(agents() == 1, "{} agents", agents());
    drop(scene.gate.take());
    until(|| agents() == 0)
}
