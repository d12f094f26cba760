//! Tests that the gate keeps working while another process replaces files of the host, as `useradd` replaces
//! `/etc/passwd`.

use std::fs;
use std::io::Write;

use anyhow::{Result, ensure};
use bottle_harden::identity::Identity;

use crate::scene::Scene;

/// A shell script that mounts a copy of `/etc` in the current mount namespace, and then runs the command in its
/// arguments. Changes to the copy are visible in the namespace and do not affect the host's `/etc`.
const WITH_A_COPY: &str = "mount --make-rprivate / && mount --bind \"$0\" /etc && exec \"$@\"";

/// A user without an entry in the host's `/etc/passwd`.
const STRANGER: Identity = Identity { uid: 64_321, gid: 64_321 };

pub(crate) async fn as_root() -> Result<()> {
    survives_replaced_files(Some(STRANGER)).await
}

pub(crate) async fn as_user() -> Result<()> {
    survives_replaced_files(None).await
}

async fn survives_replaced_files(identity: Option<Identity>) -> Result<()> {
    if !rustix::process::getuid().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can create a mount namespace");
        return Ok(());
    }
    let mut scene = Scene::new()?;
    let etc = scene.at("etc");
    scene.shell("cp -a /etc etc")?;
    let copy = etc.display().to_string();
    scene.wrapper = ["unshare", "-m", "sh", "-c", WITH_A_COPY, &copy].map(str::to_owned).into();
    scene.identity = identity;
    scene.open(|repo| repo.refs.allow = Some(vec!["refs/heads/**".into()])).await?;
    // Replaces each file by a new file with the same name.
    for name in ["passwd", "group", "nsswitch.conf", "hosts"] {
        let new = etc.join(format!("{name}+"));
        fs::copy(etc.join(name), &new)?;
        fs::rename(&new, etc.join(name))?;
    }
    scene.shell("git clone -q $GATE clone")?;
    scene.shell("cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:refs/heads/x")?;
    ensure!(scene.upstream()?.contains("refs/heads/x"));
    Ok(())
}
