//! A gate whose machine's files are replaced while it runs, as `useradd` replaces `/etc/passwd`.

use std::fs;
use std::io::Write;

use anyhow::{Result, ensure};
use bottle_harden::identity::Identity;

use crate::scene::Scene;

/// Runs what follows with a copy of `/etc` in its place, in a view of the files of its own: the machine's own stays
/// as it is. What is done to the copy outside is seen inside.
const WITH_A_COPY: &str = "mount --make-rprivate / && mount --bind \"$0\" /etc && exec \"$@\"";

/// Nobody of the machine's.
const STRANGER: Identity = Identity { uid: 64_321, gid: 64_321 };

pub(crate) async fn replaced() -> Result<()> {
    outlives(Some(STRANGER)).await
}

pub(crate) async fn replaced_for_a_user() -> Result<()> {
    outlives(None).await
}

async fn outlives(identity: Option<Identity>) -> Result<()> {
    if !rustix::process::getuid().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root has a view of the files of its own");
        return Ok(());
    }
    let mut scene = Scene::new()?;
    let etc = scene.at("etc");
    scene.shell("cp -a /etc etc")?;
    let copy = etc.display().to_string();
    scene.within = ["unshare", "-m", "sh", "-c", WITH_A_COPY, &copy].map(str::to_owned).into();
    scene.identity = identity;
    scene.open(|repo| repo.refs.allow = Some(vec!["refs/heads/**".into()])).await?;
    // Whole, and by another file of the same name.
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
