//! Tests images that are files of the user, on disks that are full or do not support overlayfs, and starts
//! that are killed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Program;
use bottle_test_support::{skip, small_root};

use crate::home::{bottle, home, run};

/// Returns a home with an agent that sleeps in a small image.
fn in_image() -> Result<TestHome> {
    let mut home = home()?;
    let sleeper = bottle("[sleep, \"600\"], image: ./small").replace("backend: fake", "backend: linux");
    home.bottle("inside", &sleeper)?.agent("inside", "---\nbottle: inside\n---\n")?.without_cleanup();
    small_root::make(&home.bottle_home().join("small"))?;
    Ok(home)
}

/// Runs a script as root, with the right to mount file systems. `$DISK` is the path of an empty directory.
pub(crate) fn script(home: &TestHome, script: &str) -> Result<String> {
    let disk = home.outside("disk");
    std::fs::create_dir(&disk)?;
    let mut program = Program::at("/usr/bin/unshare".as_ref());
    program.arguments(["--mount", "--propagation", "private", "/bin/sh", "-uc", script]);
    program
        .env("DISK", &disk)
        .env("MANIFESTS", home.bottle_home())
        .env("BOTTLE", Program::bottle()?.path())
        .env("XDG_RUNTIME_DIR", home.runtime())
        .env("HOME", home.home());
    let outcome = program.run()?;
    Ok(format!("{}{}", outcome.stdout, outcome.stderr))
}

pub(crate) fn may_mount(home: &TestHome, test: &str) -> Result<bool> {
    if !home.runs(test, "linux")? {
        return Ok(false);
    }
    let root = rustix::process::getuid().is_root();
    if !root {
        skip::aloud(test, &"only root mounts a disk of its own");
    }
    Ok(root)
}

/// A script that starts a bottle with `$BOTTLE_HOME` on an overlay file system, on which another overlay
/// cannot have its upper layer.
const NO_LAYERS: &str = r#"
mount -t tmpfs -o mode=755 none "$DISK" && mkdir "$DISK/lower" "$DISK/upper" "$DISK/work" "$DISK/merged" || exit 99
mount -t overlay none -o "lowerdir=$DISK/lower,upperdir=$DISK/upper,workdir=$DISK/work" "$DISK/merged" || exit 99
export BOTTLE_HOME="$DISK/merged/home"; mkdir "$BOTTLE_HOME" && cp -r "$MANIFESTS/." "$BOTTLE_HOME" || exit 99
"$BOTTLE" start inside --label one --detach --yes -q
"$BOTTLE" exec one -- /bin/sh -c 'echo mine >/usr/bin/new; rm /usr/bin/seq; id -un; ls -ld / | cut -d" " -f3'
"$BOTTLE" commit one -q >/dev/null && "$BOTTLE" stop one --time 0 -q
"$BOTTLE" resume one --detach --yes -q
"$BOTTLE" exec one -- /bin/sh -c 'cat /usr/bin/new; ls /usr/bin/seq 2>&1 | grep -c "No such"'
"$BOTTLE" stop one --time 0 -q
"$BOTTLE" snapshots rm one -q; ls "$BOTTLE_HOME/state" | wc -l
"#;

#[test]
fn copies_an_image_where_overlayfs_is_unavailable() -> Result<()> {
    let home = in_image()?;
    if !may_mount(&home, "copies_an_image_where_overlayfs_is_unavailable")? {
        return Ok(());
    }
    let said = script(&home, NO_LAYERS)?;
    let expected = "one\nagent\nagent\none\nmine\n1\n0\n";
    ensure!(said == expected, "{said}");
    Ok(())
}

/// A script that checks the disk limit when the image is copied: the image's own files are not counted, and files that
/// the bottle writes are counted.
const COPY_LIMITED: &str = r#"
"$BOTTLE" start limited --label one --detach --yes -q; sleep 3
"$BOTTLE" exec one -- /bin/sh -c 'head -c 4194304 /dev/zero >/opt/little; sleep 3; echo goes on'
"$BOTTLE" exec one -- /bin/sh -c 'head -c 33554432 /dev/zero >/opt/much; sleep 60; echo survives'
"$BOTTLE" stop one --time 0 -q 2>/dev/null
"#;

#[test]
fn counts_only_written_files_of_a_copied_image() -> Result<()> {
    let mut home = in_image()?;
    let limited = bottle("[sleep, \"600\"], image: ./small")
        .replace("backend: fake", "backend: linux\nresources: {disk: 16MiB}");
    home.bottle("limited", &limited)?.agent("limited", "---\nbottle: limited\n---\n")?;
    if !may_mount(&home, "counts_only_written_files_of_a_copied_image")? {
        return Ok(());
    }
    let begin = NO_LAYERS.split("\"$BOTTLE\"").next().unwrap_or_default();
    let said = script(&home, &format!("{begin}{COPY_LIMITED}"))?;
    ensure!(said.contains("goes on\n") && !said.contains("survives"), "{said}");
    Ok(())
}

const SMALL_DISK: &str = r#"
mount -t tmpfs -o size=16m,mode=755 none "$DISK" && export BOTTLE_HOME="$DISK/home" && mkdir "$BOTTLE_HOME" || exit 99
cp -r "$MANIFESTS/agents" "$MANIFESTS/bottles" "$BOTTLE_HOME" && mkdir "$BOTTLE_HOME/small" || exit 99
mount --bind "$MANIFESTS/small" "$BOTTLE_HOME/small" || exit 99
"$BOTTLE" start inside --label one --detach --yes -q; echo "exit $?"
ls -A "$BOTTLE_HOME/images"; "$BOTTLE" cleanup
"#;

#[test]
fn a_full_disk_leaves_no_partial_image() -> Result<()> {
    let home = in_image()?;
    if !may_mount(&home, "a_full_disk_leaves_no_partial_image")? {
        return Ok(());
    }
    let said = script(&home, SMALL_DISK)?;
    ensure!(said.starts_with("exit 1\n"), "{said}");
    ensure!(said.contains("cannot unpack the image ./small: the disk is full"), "{said}");
    ensure!(said.contains("nothing to clean up"), "{said}");
    Ok(())
}

/// Lists the image directory of this home.
fn images(home: &TestHome) -> Vec<String> {
    let entries = std::fs::read_dir(home.bottle_home().join("images")).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Starts a bottle and kills `bottle` while it unpacks the image. Returns false if unpacking ended before `bottle` was
/// killed.
fn killed_start(home: &TestHome) -> Result<bool> {
    let _ = std::fs::remove_dir_all(home.bottle_home().join("images"));
    let mut start =
        home.program(["start", "inside", "--detach", "--yes", "-q", "--label", "killed"])?.command();
    let mut child = start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let end = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        let found = images(home);
        if !found.is_empty() || Instant::now() > end {
            break found;
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    child.kill()?;
    child.wait()?;
    Ok(seen.iter().all(|name| name.starts_with(".new-")) && images(home) == seen)
}

#[test]
fn removes_and_rebuilds_an_image_that_a_killed_start_left() -> Result<()> {
    let home = in_image()?;
    if !home.runs("what_a_killed_start_unpacked_is_found", "linux")? {
        return Ok(());
    }
    let mut tries = 0;
    while !killed_start(&home)? {
        let _ = run(&home, &["cleanup", "--all", "--yes"])?;
        tries += 1;
        ensure!(tries < 20, "it unpacks faster than it can be killed");
    }
    let said = run(&home, &["cleanup", "--dry-run"])?;
    ensure!(said.stdout.contains("was being unpacked by a start that was killed"), "{said:?}");
    let _ = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    ensure!(images(&home).is_empty(), "{:?}", images(&home));
    // Without a cleanup, the next start removes the unpacked files itself.
    while !killed_start(&home)? {}
    let _ = run(&home, &["start", "inside", "--detach", "--yes", "-q", "--label", "whole"])?.expect_code(0);
    let found = images(&home);
    ensure!(found.len() == 1 && !found[0].starts_with(".new-"), "{found:?}");
    let _ = run(&home, &["stop", "whole", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}
