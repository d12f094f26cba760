//! Tests that snapshots on file systems with and without shared blocks contain the same files.

use anyhow::{Context, Result, ensure};
use bottle_test_support::skip;

use crate::home::{bottle, home};
use crate::image_files::{may_mount, script};

/// The size of the file in the snapshot, in MiB.
const SIZE: u64 = 64;

/// A kind of file system, the command that creates it, and whether it shares blocks.
const KINDS: [(&str, &str, bool); 3] = [
    ("btrfs", "mkfs.btrfs -q", true),
    ("xfs", "mkfs.xfs -q -m reflink=1", true),
    ("ext4", "mkfs.ext4 -q", false),
];

/// A script that takes a snapshot of a large file, changes the file, and resumes the bottle. It prints the
/// disk usage before and after the snapshot, and before and after the resume.
const LIFE: &str = r#"
used() { sync; df --output=used -B1048576 "$DISK" | tail -n 1; }
truncate -s 1g "$DISK.img" && MAKE "$DISK.img" >&2 && mount -o loop "$DISK.img" "$DISK" || { echo cannot; exit; }
export BOTTLE_HOME="$DISK/home"; mkdir "$BOTTLE_HOME" && cp -r "$MANIFESTS/." "$BOTTLE_HOME" || exit 99
"$BOTTLE" start sleeper --label one --detach --yes -q >&2
"$BOTTLE" exec one -- /bin/sh -c 'head -c 67108864 /dev/urandom >/home/agent/large; cksum /home/agent/large'
used; "$BOTTLE" commit one -q >&2; used
"$BOTTLE" exec one -- /bin/sh -c 'head -c 1048576 /dev/zero | dd of=/home/agent/large conv=notrunc 2>/dev/null'
"$BOTTLE" exec one -- /bin/sh -c 'rm /home/agent/large'; "$BOTTLE" stop one --time 0 -q >&2; used
"$BOTTLE" resume one --detach --yes -q >&2
"$BOTTLE" exec one -- cksum /home/agent/large
used; "$BOTTLE" stop one --time 0 -q >&2; "$BOTTLE" snapshots rm one -q >&2
"#;

#[test]
fn a_snapshot_shares_blocks_where_the_file_system_can() -> Result<()> {
    let test = "a_snapshot_shares_blocks_where_the_disk_can";
    for (kind, make, shares) in KINDS {
        let mut home = home()?;
        let sleeper = bottle("[sleep, \"600\"]").replace("backend: fake", "backend: linux");
        home.bottle("sleeper", &sleeper)?.agent("sleeper", "---\nbottle: sleeper\n---\n")?.without_cleanup();
        if !may_mount(&home, test)? {
            return Ok(());
        }
        let said = script(&home, &LIFE.replace("MAKE", make))?;
        if said.contains("cannot\n") {
            skip::aloud(&format!("{test} on {kind}"), &said.replace('\n', " "));
            continue;
        }
        let sums: Vec<&str> = said.lines().filter(|line| line.ends_with("/large")).collect();
        ensure!(sums.len() == 2 && sums[0] == sums[1], "{kind}: {said}");
        let used: Vec<u64> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let [before, after, without, resumed] = used[..] else { anyhow::bail!("{kind}: {said}") };
        let stored = after.checked_sub(before).context("it takes something")?;
        let back = resumed.saturating_sub(without);
        // The file system's own metadata adds to the usage.
        let taken = if shares { 0..SIZE / 4 } else { SIZE..SIZE * 5 / 4 };
        ensure!(taken.contains(&stored) && taken.contains(&back), "{kind}: {stored}, {back}: {said}");
    }
    Ok(())
}
