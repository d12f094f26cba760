//! Tests that other users of the machine can neither read nor write what the program creates, whatever the umask is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::{Outcome, Program};

use crate::home::{bottle, home};

/// Umasks that are too loose, usual with groups of one user, usual, and strict.
const UMASKS: [&str; 4] = ["000", "002", "022", "077"];

/// Parts of the paths of files that the program did not create: the manifests that a test writes, and the bottle's
/// files, which have modes that its agent or its image chose.
const OF_OTHERS: [&str; 7] = [
    "/.bottle/agents/",
    "/.bottle/bottles/",
    "/agent/",
    "/agent.fake/",
    "/proxy/",
    "/snapshots/one/",
    "/snapshots.fake/one/",
];

/// Runs a command as a shell with this umask would.
fn run_with(home: &TestHome, umask: &str, arguments: &[&str]) -> Result<Outcome> {
    let command = format!("umask {umask}; exec \"$0\" \"$@\"");
    let program = home.program(arguments.iter().copied())?;
    let mut shell = Program::at(Path::new("/bin/sh"));
    shell.arguments(["-c".into(), command, program.path().display().to_string()]);
    shell.arguments(arguments.iter().copied()).directory(home.project());
    for (name, value) in program.command().get_envs() {
        shell.env(name, value.context("a set variable")?);
    }
    shell.run()
}

/// The entries below a directory that a group or other users could access.
fn open_to_others(directory: &Path) -> Result<Vec<String>> {
    let mut open = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // A file may be removed meanwhile.
        let Ok(found) = path.symlink_metadata() else { continue };
        let shown = path.display().to_string();
        if OF_OTHERS.iter().any(|part| format!("{shown}/").contains(part)) {
            continue;
        }
        if !found.is_symlink() && found.mode() & 0o077 != 0 {
            open.push(format!("{shown} {:o}", found.mode()));
        }
        if found.is_dir() {
            open.extend(open_to_others(&path)?);
        }
    }
    Ok(open)
}

fn require_private(home: &TestHome, when: &str) -> Result<()> {
    for top in [home.bottle_home(), home.runtime()] {
        ensure!(top.metadata()?.mode() & 0o777 == 0o700, "{when}: {}", top.display());
        let open = open_to_others(&top)?;
        ensure!(open.is_empty(), "{when}:\n{}", open.join("\n"));
    }
    Ok(())
}

/// Starts, uses and stops a bottle, with files that `cp` copies, a commit and kept files.
fn life(home: &TestHome, umask: &str) -> Result<()> {
    for arguments in [
        &["start", "nap", "--detach", "--label", "one", "-q", "-y"][..],
        &["cp", "note", "one:note"],
        &["cp", "one:note", "back"],
        &["exec", "one", "--", "echo", "hi"],
        &["list"],
        &["commit", "one", "-q"],
        &["snapshots"],
        &["export", "one", "--output", "one.bottle"],
        &["stop", "one", "--time", "0"],
        &["resume", "one", "--detach", "-q", "-y"],
        &["stop", "one", "--time", "0"],
        &["usage"],
        &["cleanup", "-y"],
    ] {
        let _ = run_with(home, umask, arguments)?.expect_code(0);
        require_private(home, &format!("umask {umask}, after {arguments:?}"))?;
    }
    let exported = home.project().join("one.bottle").metadata()?.mode() & 0o777;
    ensure!(exported == 0o600, "{exported:o}");
    Ok(())
}

#[test]
fn no_file_of_the_fake_backend_is_open_to_others() -> Result<()> {
    for umask in UMASKS {
        let home = home()?;
        home.write("project/note", "x\n")?;
        life(&home, umask)?;
    }
    Ok(())
}

#[test]
fn no_file_of_the_linux_backend_is_open_to_others() -> Result<()> {
    for umask in UMASKS {
        let mut home = TestHome::new()?;
        home.bottle("nap", &bottle("[sleep, '600']").replace("fake", "linux"))?;
        home.agent("nap", "---\nbottle: nap\n---\n")?;
        if !home.runs("no_file_of_the_linux_backend_is_open_to_others", "linux")? {
            return Ok(());
        }
        home.write("project/note", "x\n")?;
        life(&home, umask)?;
    }
    Ok(())
}

#[test]
fn a_home_that_others_could_access_is_repaired_once() -> Result<()> {
    let home = home()?;
    let path = home.bottle_home();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o775))?;
    let said = run_with(&home, "002", &["list"])?.expect_code(0).stderr;
    ensure!(said.contains("its mode is 0700 now"), "{said}");
    ensure!(path.metadata()?.mode() & 0o777 == 0o700);
    let again = run_with(&home, "002", &["list"])?.expect_code(0).stderr;
    ensure!(!again.contains("0700"), "{again}");
    Ok(())
}

#[test]
fn a_home_that_others_could_replace_is_refused() -> Result<()> {
    let home = home()?;
    fs::set_permissions(home.home(), fs::Permissions::from_mode(0o777))?;
    let refused = run_with(&home, "022", &["list"])?;
    ensure!(refused.code != 0, "{}", refused.transcript());
    let said = refused.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(said.contains("is writable for every user"), "{said}");
    Ok(())
}
