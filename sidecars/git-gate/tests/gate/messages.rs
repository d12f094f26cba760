//! Tests the messages of errors, and that a failed push or fetch changes nothing.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use bottle_protocol::session::git_gate::GateKey;
use bottle_test_support::skip;

use crate::scene::{Scene, ZERO, head, hook};

pub(crate) async fn upstream() -> Result<()> {
    let mut scene = Scene::new()?;
    let other = fs::read_to_string(scene.at("other"))?;
    scene
        .open(|repo| {
            if let GateKey::Ssh { private, .. } = &mut repo.key {
                *private = other.as_str().into();
            }
        })
        .await?;
    scene.refused("git clone $GATE c1", &["does not accept the user's key", "notify the user"])?;
    let other = fs::read_to_string(scene.at("other.pub"))?;
    let line = format!("[127.0.0.1]:{} {other}", scene.port);
    scene
        .open(|repo| {
            if let GateKey::Ssh { known_hosts, .. } = &mut repo.key {
                *known_hosts = line;
            }
        })
        .await?;
    scene.refused("git clone $GATE c2", &["host key is not the trusted one"])?;
    scene.open(|repo| repo.url = repo.url.replace("up.git", "gone.git")).await?;
    scene.refused("git clone $GATE c3", &["cannot reach the upstream of tool"])?;
    // The gate serves a stale mirror only if the user allows it.
    scene.open(|repo| repo.stale_ok = true).await?;
    scene.shell(
        "git clone -q $GATE c4 && mv up.git away.git && git clone -q $GATE c5 && mv away.git up.git",
    )?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    let words = ["cannot reach the upstream of tool", "Connection refused", "try again, or notify the user"];
    drop(scene.sshd.take());
    scene.refused("git clone $GATE c6", &words)?;
    scene.refused("cd clone; git push origin HEAD:x", &words)?;
    Ok(())
}

pub(crate) async fn refused() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let hook = hook(&scene, "pre-receive", "echo 'the house rules say no' >&2; exit 1")?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    scene.refused("cd clone; git push origin HEAD:topic", &["the house rules say no", "hook declined"])?;
    let mirror = scene.shell("git -C gate/tool.git for-each-ref; git -C gate/tool.git cat-file -t $(git -C clone rev-parse HEAD) || true")?;
    ensure!(!mirror.contains("topic") && !mirror.contains("commit\n"), "{mirror}");
    fs::remove_file(hook)?;
    scene.shell("cd clone; git push -q origin HEAD:topic")?;
    Ok(())
}

/// The client's git shows the upstream's reason for each refused ref.
pub(crate) async fn reasons() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|repo| repo.refs.force = true).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:x",
    )?;
    let refs = || scene.shell("git -C up.git for-each-ref");
    let reason = |pushed: &str, expected: &str| {
        let before = refs()?;
        let output = scene.output(&format!("cd clone; git push --porcelain origin {pushed} 1>&2"))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains(expected), "{pushed}: no {expected:?} in {text}");
        ensure!(refs()? == before, "{pushed} changed a ref");
        Ok(text)
    };
    let rejected = |name: &str, why: &str| format!("!\tHEAD:refs/heads/{name}\t[remote rejected] ({why})\n");
    scene.shell("git -C up.git config receive.denyNonFastForwards true; cd clone; git commit -q --amend --allow-empty -m y")?;
    reason("+HEAD:x", &rejected("x", "non-fast-forward"))?;
    hook(&scene, "update", "test $1 != refs/heads/denied")?;
    reason("HEAD:denied", &rejected("denied", "hook declined"))?;
    let both = reason("HEAD:fine HEAD:denied", &rejected("denied", "hook declined"))?;
    ensure!(!both.contains("pre-receive hook declined"), "{both}");
    let declines = hook(&scene, "pre-receive", "exit 1")?;
    reason("HEAD:fine", &rejected("fine", "pre-receive hook declined"))?;
    fs::remove_file(declines)?;
    // The upstream chooses the text of its reasons. The reasons are shown without control characters and up to a
    // maximum length.
    scene.shell("git -C up.git config receive.procReceiveRefs refs/heads/odd")?;
    hook(&scene, "proc-receive", ODD)?;
    let odd = reason("HEAD:odd", "[remote rejected] (\\u{1b}[31mred nnn")?;
    ensure!(
        !odd.contains('\u{1b}') && !odd.contains(&"n".repeat(500)) && odd.contains(&"n".repeat(300)),
        "{odd}"
    );
    // A refused push changes nothing, so it can be repeated.
    fs::remove_file(scene.at("up.git/hooks/proc-receive"))?;
    scene.shell(
        "git -C up.git config --unset receive.procReceiveRefs; cd clone; git push -q origin HEAD:odd",
    )?;
    Ok(())
}

/// A proc-receive hook (githooks(5)) that refuses a ref with a long reason that contains a control character.
const ODD: &str = r#"
line="ng refs/heads/odd $(printf '\033')[31mred $(printf 'n%.0s' $(seq 2000))"
printf '000eversion=1\n0000%04x%s\n0000' $((${#line} + 5)) "$line"
cat > /dev/null"#;

pub(crate) async fn push() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let words = ["no such repository; this bottle has: tool", "declared by the user under `git-gate.repos`"];
    scene.refused("git clone ${GATE%tool.git}other.git c9", &words)?;
    scene.shell("git clone -q $GATE clone")?;
    scene.refused("cd clone; git push ${GATE%tool.git}other.git HEAD:x", &words)?;
    // A push without new commits changes nothing.
    let before = scene.upstream()?;
    let output = scene.shell("cd clone; git push origin HEAD:refs/heads/main")?;
    ensure!(output.contains("Everything up-to-date") && scene.upstream()? == before, "{output}");
    // A file name may be invalid UTF-8.
    let named = "cd clone; f=$(printf 'caf\\351'); echo $T > \"$f\"; git add .; git commit -qm x";
    let message = scene.refused(
        &format!("{named}; git push origin HEAD:x"),
        &["caf\u{fffd}, line 1 in commit", "git rebase -i"],
    )?;
    ensure!(!message.contains('\u{1b}'), "{message}");
    scene.shell("cd clone; echo fine > \"$(printf 'caf\\351')\"; git add .; git commit -q --amend -m x; git push -q origin HEAD:x")?;
    // The LFS client prints the gate's response.
    let response = scene.post("/tool.git/info/lfs/objects/batch", "", b"{}")?;
    ensure!(response.contains("the git gate does not support Git LFS; commit the file itself"), "{response}");
    // A client that did not list the refs may push a ref to a commit that does not exist.
    let none = "1".repeat(40);
    scene.refused_raw(&head(&[format!("{ZERO} {none} refs/heads/y")]), "unpack ")?;
    Ok(())
}

/// Tests a mirror on a disk of eight megabytes.
pub(crate) async fn full() -> Result<()> {
    let mut scene = Scene::new()?;
    let directory = scene.at("gate");
    fs::create_dir_all(&directory)?;
    let mount = "mount -t tmpfs -o size=8m none \"$0\" && exec \"$@\"";
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount];
    let directory = directory.display().to_string();
    let tried = Command::new("unshare").args(&wrapper[1..]).args([&directory, "true"]).output()?;
    if !tried.status.success() {
        skip::aloud("reports_a_full_disk", &String::from_utf8_lossy(&tried.stderr).trim());
        return Ok(());
    }
    scene.wrapper = wrapper.iter().map(|word| (*word).to_owned()).chain([directory]).collect();
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; head -c 12000000 /dev/urandom > f; git add .; git commit -qm x",
    )?;
    let words = ["No space left on device", "the disk of the git gate's mirror is full; push or fetch less"];
    scene.refused("cd clone; git push origin HEAD:x", &words)?;
    // A smaller push still succeeds.
    scene.shell(
        "cd clone; git reset -q --hard HEAD^; git commit -q --allow-empty -m y; git push -q origin HEAD:y",
    )?;
    // A fetch fails too if the upstream is larger than the disk.
    scene.shell(
        "cd seed; head -c 12000000 /dev/urandom > f; git add .; git commit -qm f; git push -q ../up.git main",
    )?;
    scene.refused("cd clone; git fetch", &["the disk of the git gate's mirror is full"])?;
    Ok(())
}
