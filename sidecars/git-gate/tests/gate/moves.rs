//! Which refs move, and how many.

use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::scene::{PATIENCE, Scene, ZERO, head};

pub(crate) async fn refs() -> Result<()> {
    // ssh lets the newest protocol through, which tells of other names.
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
    // No client sends these.
    for (name, word) in [
        ("refs/heads/../x", "no ref that can be pushed"),
        ("refs/heads/x.lock", "no ref that can be pushed"),
        ("refs/heads/a\tb", "no ref that can be pushed"),
        ("../../x", "no ref that can be pushed"),
        ("HEAD", "changes what others see"),
        ("refs/heads/-x", "no ref that can be pushed"),
    ] {
        let body = [head(&[format!("{ZERO} {new} {name}")]), pack.clone()].concat();
        scene.refused_raw(&body, word)?;
    }
    for (push, word) in [
        ("HEAD:refs/replace/$(git rev-parse HEAD)", "changes what others see"),
        ("HEAD:refs/heads/alias", "another name of refs/heads/main"),
        ("HEAD:refs/heads/main", "default branch"),
        ("HEAD:refs/heads/topic", "by case alone"),
        ("HEAD:refs/heads/a HEAD:refs/heads/A", "by case alone"),
        ("HEAD:refs/pull/1/head", "no branch"),
        (":refs/heads/Topic", "refs.delete"),
    ] {
        scene.refused(
            &format!("cd clone; git push origin {push}"),
            &["the git gate refused the push", word],
        )?;
    }
    // One that is there may move on, whatever it is called; its twin may not come.
    scene.shell("cd clone; git push -q origin HEAD:refs/heads/Topic")?;
    Ok(())
}

/// An upstream whose ssh lets no newer protocol through, and says of no branch that it is another's name.
pub(crate) async fn disguised() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell(
        "git -C up.git symbolic-ref refs/heads/alias refs/heads/main; git -C up.git branch same main; \
         git -C up.git branch older main; cd seed; git commit -q --allow-empty -m more; git push -q ../up.git main; \
         git push -q ../up.git main:refs/heads/same",
    )?;
    scene.open(|repo| repo.refs.force = true).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    // Nobody can tell these two apart.
    for name in ["alias", "same"] {
        let words = [
            "the git gate refused the push",
            &format!("refs/heads/{name} may be only another name of refs/heads/main"),
            "push a branch of another name, or the user lets the newer one through (`AcceptEnv GIT_PROTOCOL`",
        ];
        scene.refused(&format!("cd clone; git push origin HEAD:refs/heads/{name}"), &words)?;
    }
    // What is elsewhere is a branch of its own, and so is what came through the gate.
    scene.shell(
        "cd clone; git push -q origin HEAD:older HEAD:new origin/main:refs/heads/made; \
         git commit -q --allow-empty -m y; git push -q origin HEAD:older HEAD:new HEAD:made",
    )?;
    let main = scene.shell("git -C seed rev-parse main; git -C up.git rev-parse main")?;
    ensure!(main.lines().collect::<std::collections::HashSet<_>>().len() == 1, "main has moved: {main}");
    // The newer protocol says which is which.
    let mut scene = Scene::with("AcceptEnv GIT_PROTOCOL\n")?;
    scene.shell("git -C up.git branch same main")?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:same",
    )?;
    Ok(())
}

/// A branch called `HEAD`, and an upstream whose own leads nowhere or to a commit.
pub(crate) async fn heads() -> Result<()> {
    for lines in ["", "AcceptEnv GIT_PROTOCOL\n"] {
        let mut scene = Scene::with(lines)?;
        scene.open(|_| ()).await?;
        scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
        for name in
            ["refs/heads/HEAD", "refs/heads/head", "refs/heads/FETCH_HEAD", "refs/heads/refs/heads/main"]
        {
            let words = ["the git gate refused the push", "takes such a name for something else"];
            scene.refused(&format!("cd clone; git push origin HEAD:{name}"), &words)?;
        }
        // One that upstream has stops nothing else, and the default branch stays what it is.
        scene.shell("git -C up.git update-ref refs/heads/HEAD refs/heads/main")?;
        scene.shell("cd clone; git fetch -q; git push -q origin HEAD:refs/heads/fine")?;
        scene.refused("cd clone; git push origin HEAD:refs/heads/main", &["default branch"])?;
        // A HEAD that names a branch which is not there: whoever makes that one makes the default branch.
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
        // A HEAD that is a commit names no branch either.
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

/// As no git sends them, which takes minutes to think of so many.
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
    // As many as may be, by git itself.
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
