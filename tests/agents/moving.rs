//! Moves a bottle of a real agent in an archive, from containers to the Linux backend and back. Tests that the bottle's
//! files and conversation arrive.

use anyhow::{Result, ensure};
use bottle_test_support::agents;
use bottle_test_support::engine::docker;

use super::scene::{Place, Scene, agent, engine};
use super::{claude, mini};

/// Creates files with names, links, modes and times that an archive could lose.
const ODD_FILES: &str = "mkdir -p /workspace/odd && cd /workspace/odd && echo a > 'a name
of two lines' && ln 'a name
of two lines' linked && ln -s ../proof.txt relative && ln -s /nowhere dangling && echo b > set && chmod 6751 set && \
    truncate -s 5M sparse && mkdir -m 1777 sticky && touch -d '1999-12-31 23:59:58 UTC' old sticky";

/// Lists each file of the bottle: type, mode, owner, time, links, target and content.
///
/// The listing leaves out files that each start writes, directories that a conversation changes, and files that the
/// agent cannot read in a container.
const LISTING: &str = r"find /workspace /home /etc /usr /opt /var -xdev \
    ! -path '/etc/hosts' ! -path '/etc/hostname' ! -path '/etc/resolv.conf' ! -path '/etc/machine-id' \
    ! -path '/etc/mtab' ! -path '/etc/dpkg/dpkg.cfg.d*' ! -path '/etc/localtime' ! -path '/etc/ssl/certs*' ! -path '/etc/passwd*' \
    ! -path '/etc/group*' ! -path '/home/*/.*' ! -path '/home' ! -path '/workspace' ! -path '/etc' ! -path '/home/agent' \
    \( ! -type f -o -perm -o=r \) ! -path '/workspace/proof.txt' \
    -printf '%y %m %U:%G %Ts %p %l ' \( -type f -printf '%n ' -exec sha256sum -z {} \; -o -printf '\0' \) | \
    tr '\n\0' '?\n' | sort";

fn listing(scene: &Scene) -> Result<Vec<String>> {
    let listed = scene.bottle(&["exec", "task", "--", "sh", "-c", LISTING])?.stdout;
    let mut lines: Vec<String> = listed.lines().map(ToOwned::to_owned).collect();
    lines.sort();
    ensure!(lines.len() > 1000, "only {} files: {listed}", lines.len());
    ensure!(lines.iter().any(|line| line.contains("/workspace/odd/sparse")), "the odd files are missing");
    Ok(lines)
}

/// Exports the bottle `task`, removes it, and imports it on another backend. Returns the listing of the bottle's files
/// on this backend.
fn move_to(scene: &Scene, backend: &str) -> Result<Vec<String>> {
    send_to(scene, backend)?;
    scene.bottle(&["resume", "task", "--detach", "--yes"])?;
    // Without a task, the headless agent ends immediately. The bottle is kept, so its files can be listed.
    scene.wait("the kept bottle", || Ok(scene.bottle(&["list"])?.stdout.contains("kept")))?;
    listing(scene)
}

/// Exports the bottle `task`, removes it, and imports it on another backend.
fn send_to(scene: &Scene, backend: &str) -> Result<()> {
    let archive = scene.home.outside(&format!("to-{backend}.tar"));
    let archive = archive.display().to_string();
    scene.bottle(&["export", "task", "-o", &archive])?;
    if scene.bottle(&["snapshots"])?.stdout.contains("task") {
        scene.bottle(&["snapshots", "rm", "task", "--all"])?;
    }
    // If the bottle changed no file of its workspace since the snapshot, nothing except the snapshot remains, and
    // `list` does not show the bottle.
    if scene.bottle(&["list"])?.stdout.contains("task") {
        scene.bottle(&["discard", "task", "--yes"])?;
    }
    scene.bottle(&["import", &archive, "--backend", backend, "--label", "task", "--yes"])?;
    Ok(())
}

#[test]
#[ignore = "takes two minutes: `.ci/run apple`"]
fn claude_moves_from_docker_to_linux_and_back() -> Result<()> {
    let test = "claude moves between backends";
    let Some(place) = engine(test)? else { return Ok(()) };
    let scene = Scene::of_template(&place, &claude::API_KEY)?;
    if !scene.home.runs(test, "linux")? {
        return Ok(());
    }
    let begun = scene.start_headless(claude::API_KEY.name)?;
    assert!(begun.stdout.contains("The scripted task is done."), "{}", begun.stdout);
    scene.bottle(&["exec", "task", "--", "sh", "-c", ODD_FILES])?;
    let at_first = listing(&scene)?;

    // A process on the Linux backend sees itself as the owner of every file, and no set-user-ID bits.
    assert_same(&without_modes_and_owners(&at_first), &without_modes_and_owners(&move_to(&scene, "linux")?));
    assert_eq!(scene.on_the_engine(), [] as [String; 0]);
    let second = scene.go_on("Now the second task.")?;
    assert!(second.stdout.contains("The scripted task is done."), "{}", second.stdout);

    assert_same(&at_first, &move_to(&scene, "docker")?);
    let third = scene.go_on("And the third.")?;
    assert!(third.stdout.contains("The scripted task is done."), "{}", third.stdout);
    scene.assert_key_not_on_disk();
    Ok(())
}

/// Tests that mini-swe-agent stops in the middle of its task, moves to another backend, and does the rest of the task
/// there.
#[test]
#[ignore = "takes a minute: `.ci/run apple`"]
fn mini_moves_from_docker_to_linux_and_back() -> Result<()> {
    let test = "mini moves between backends";
    let Some(Place::Docker(machine)) = engine(test)? else { return Ok(()) };
    let Some(installed) = agent(test, agents::mini())? else { return Ok(()) };
    let room = tempfile::tempdir()?;
    let image = format!("bottle-test-mini:{}", std::process::id());
    mini::build_image(&installed, &image, room.path())?;
    let moved = mini::with_setting_in(&image, |setting| {
        let scene = Scene::of_setting(machine, "docker", "mini", setting)?;
        moves_in_the_middle(&scene)
    });
    let removed = docker(&["rmi", "--force", &image]);
    moved?;
    ensure!(removed.is_some(), "the engine does not remove {image}");
    Ok(())
}

fn moves_in_the_middle(scene: &Scene) -> Result<()> {
    scene.home.write("project/hold", "")?;
    let start = [
        "start",
        "mini",
        "--backend",
        "docker",
        "--yes",
        "--detach",
        "--label",
        "task",
        "--cwd",
        "-p",
        "Do it.",
    ];
    scene.bottle(&start)?;
    // The command of the second step is running, and waits for the file `hold` to be removed.
    scene.wait_for_calls(2)?;
    scene.bottle(&["exec", "task", "--", "sh", "-c", ODD_FILES])?;
    let at_first = listing(scene)?;
    for (moves, backend) in [(1, "linux"), (2, "docker")] {
        scene.bottle(&["stop", "task"])?;
        send_to(scene, backend)?;
        scene.bottle(&["resume", "task", "--detach", "--yes", "-p", "Go on."])?;
        scene.wait_for_calls(2 + 2 * moves)?;
        let there = listing(scene)?;
        match backend {
            "docker" => assert_same(&at_first, &there),
            _ => assert_same(&without_modes_and_owners(&at_first), &without_modes_and_owners(&there)),
        }
    }
    scene.bottle(&["exec", "task", "--", "rm", "hold"])?;
    scene.wait_for_end()?;
    assert_eq!(scene.llm.steps_served(), [0, 1, 0, 1, 0, 1, 2, 3]);
    scene.assert_key_not_on_disk();
    scene.bottle(&["discard", "task", "--yes"])?;
    assert_eq!(scene.on_the_engine(), [] as [String; 0]);
    Ok(())
}

/// Leaves out the modes and owners, which the Linux backend keeps in a list beside the files.
fn without_modes_and_owners(listing: &[String]) -> Vec<String> {
    let without = |line: &String| {
        let fields: Vec<&str> = line.splitn(4, ' ').collect();
        [fields[0], fields[3]].join(" ")
    };
    let mut lines: Vec<String> = listing.iter().map(without).collect();
    lines.sort();
    lines
}

/// Checks that two listings are equal, and shows only the lines that differ.
#[track_caller]
fn assert_same(before: &[String], after: &[String]) {
    let differing = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| those.binary_search(line).is_err()).cloned().collect()
    };
    let (gone, new) = (differing(before, after), differing(after, before));
    assert!(gone.is_empty() && new.is_empty(), "before: {gone:#?}\nafter: {new:#?}");
}
