//! Tests the ref rules, and the limit on the number of refs.

use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::scene::{PATIENCE, Scene, ZERO, head};

pub(crate) async fn refs() -> Result<()> {
    // This ssh server forwards the request for protocol version 2. With protocol version 2, the upstream reports
    // aliases.
    let mut scene = Scene::with("AcceptEnv GIT_PROTOCOL\n")?;
    scene.shell(
        "git -C up.git symbolic-ref refs/heads/alias refs/heads/main; git -C up.git branch Topic main",
    )?;
    scene.open(|repo| repo.refs.force = true).await?;
    let made = scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git rev-parse HEAD; \
         git rev-parse HEAD | git pack-objects -q --stdout > ../pack",
    )?;
    let (new, pack) = (made.trim(), fs::read(scene.at("pack"))?);
    // git clients never send these names.
    for (name, word) in [
        ("refs/heads/../x", "is not a valid ref name"),
        ("refs/heads/x.lock", "is not a valid ref name"),
        ("refs/heads/a\tb", "is not a valid ref name"),
        ("../../x", "is not a valid ref name"),
        ("HEAD", "changes what other clients see"),
        ("refs/heads/-x", "is not a valid ref name"),
    ] {
        let body = [head(&[format!("{ZERO} {new} {name}")]), pack.clone()].concat();
        scene.refused_raw(&body, word)?;
    }
    for (push, word) in [
        ("HEAD:refs/replace/$(git rev-parse HEAD)", "changes what other clients see"),
        ("HEAD:refs/heads/alias", "an alias of refs/heads/main"),
        ("HEAD:refs/heads/main", "default branch"),
        ("HEAD:refs/heads/topic", "only by case"),
        ("HEAD:refs/heads/a HEAD:refs/heads/A", "only by case"),
        ("HEAD:refs/pull/1/head", "not a branch"),
        (":refs/heads/Topic", "refs.delete"),
    ] {
        scene.refused(
            &format!("cd clone; git push origin {push}"),
            &["the git gate refused the push", word],
        )?;
    }
    // A push may update an existing ref even if another ref has a similar name.
    scene.shell("cd clone; git push -q origin HEAD:refs/heads/Topic")?;
    Ok(())
}

/// Tests an upstream that does not report aliases, because its ssh server does not forward the request for protocol
/// version 2.
pub(crate) async fn aliases() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell(
        "git -C up.git symbolic-ref refs/heads/alias refs/heads/main; git -C up.git branch same main; \
         git -C up.git branch older main; cd seed; git commit -q --allow-empty -m more; git push -q ../up.git main; \
         git push -q ../up.git main:refs/heads/same",
    )?;
    scene.open(|repo| repo.refs.force = true).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    // The gate cannot distinguish an alias from a branch at the same commit.
    for name in ["alias", "same"] {
        let words = [
            "the git gate refused the push",
            &format!("refs/heads/{name} may be an alias of refs/heads/main"),
            "push to a new branch, or the user enables the newer protocol (`AcceptEnv GIT_PROTOCOL`",
        ];
        scene.refused(&format!("cd clone; git push origin HEAD:refs/heads/{name}"), &words)?;
    }
    // A branch at another commit cannot be an alias, nor can a branch that the gate created.
    scene.shell(
        "cd clone; git push -q origin HEAD:older HEAD:new origin/main:refs/heads/made; \
         git commit -q --allow-empty -m y; git push -q origin HEAD:older HEAD:new HEAD:made",
    )?;
    let main = scene.shell("git -C seed rev-parse main; git -C up.git rev-parse main")?;
    ensure!(main.lines().collect::<std::collections::HashSet<_>>().len() == 1, "main has moved: {main}");
    // With protocol version 2, the upstream reports aliases, so a branch at the same commit can be pushed.
    let mut scene = Scene::with("AcceptEnv GIT_PROTOCOL\n")?;
    scene.shell("git -C up.git branch same main")?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:same",
    )?;
    Ok(())
}

/// Tests a branch named `HEAD`, and an upstream whose `HEAD` names a missing branch or a commit.
pub(crate) async fn heads() -> Result<()> {
    for lines in ["", "AcceptEnv GIT_PROTOCOL\n"] {
        let mut scene = Scene::with(lines)?;
        scene.open(|_| ()).await?;
        scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
        for name in
            ["refs/heads/HEAD", "refs/heads/head", "refs/heads/FETCH_HEAD", "refs/heads/refs/heads/main"]
        {
            let words = ["the git gate refused the push", "the name is ambiguous to git"];
            scene.refused(&format!("cd clone; git push origin HEAD:{name}"), &words)?;
        }
        // An existing branch named `HEAD` affects neither other branches nor the default branch.
        scene.shell("git -C up.git update-ref refs/heads/HEAD refs/heads/main")?;
        scene.shell("cd clone; git fetch -q; git push -q origin HEAD:refs/heads/fine")?;
        scene.refused("cd clone; git push origin HEAD:refs/heads/main", &["default branch"])?;
        // If `HEAD` names a missing branch, a push that creates this branch would create the default branch.
        scene.shell(
            "git -C up.git update-ref -d refs/heads/HEAD; git -C up.git symbolic-ref HEAD refs/heads/next",
        )?;
        for name in ["next", "other"] {
            scene.refused(
                &format!("cd clone; git push origin HEAD:refs/heads/{name}"),
                &["may become the upstream's default branch", "git-gate.repos.tool.refs.allow"],
            )?;
        }
        scene.shell("git clone -q $GATE unborn; cd clone; git commit -q --allow-empty -m y; git push -q origin HEAD:fine")?;
        // A detached `HEAD` names no branch.
        scene.shell("git -C up.git symbolic-ref HEAD refs/heads/main; git -C up.git update-ref --no-deref HEAD refs/heads/main")?;
        scene.refused(
            "cd clone; git push origin HEAD:refs/heads/main",
            &["may be the upstream's default branch"],
        )?;
        scene.shell("cd clone; git push -q origin HEAD:refs/heads/another")?;
        scene.open(|repo| repo.refs.allow = Some(vec!["refs/heads/main".into()])).await?;
        scene.shell(
            "git -C up.git symbolic-ref HEAD refs/heads/next; cd clone; git push -q origin HEAD:main",
        )?;
    }
    Ok(())
}

/// This test sends a raw request, because git takes minutes to prepare a push of many refs.
pub(crate) async fn many() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let made = scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git rev-parse HEAD; \
         git rev-parse HEAD | git pack-objects -q --stdout > ../pack",
    )?;
    let lines: Vec<String> =
        (0..100_000).map(|number| format!("{ZERO} {} refs/heads/n{number}", made.trim())).collect();
    let body = [head(&lines), fs::read(scene.at("pack"))?].concat();
    let began = Instant::now();
    scene.refused_raw(&body, "at most 256 refs in a push; push fewer at once")?;
    ensure!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    // git itself sends the maximum number of refs.
    scene.shell(
        "cd clone; for n in $(seq 256); do echo create refs/heads/n$n HEAD; done | git update-ref --stdin",
    )?;
    scene.shell("cd clone; git push -q origin 'refs/heads/n*:refs/heads/n*'")?;
    scene.shell(
        "cd clone; git update-ref refs/heads/n257 HEAD; for n in $(seq 257); do echo n$n:m$n; done > ../all",
    )?;
    scene.refused(
        "cd clone; git push origin $(cat ../all)",
        &["remote: the git gate refused the push", "at most 256 refs in a push; push fewer at once"],
    )?;
    Ok(())
}
