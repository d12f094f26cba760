//! `cargo xtask reads`: refuses calls that read a file by its path, or start a program, in files that [`ALLOWED`] does
//! not list.
//!
//! Files that an agent or a project can write must be read through `bottle_repository`, which uses descriptors and
//! bounds and follows no links. No program may be started because such a file names it. The calls in [`CALLS`] do not
//! enforce these rules. Each file that contains one of these calls is listed in [`ALLOWED`] with the reason. Test code
//! may contain all of these calls.
//!
//! This command checks the sources. A list of disallowed methods for clippy would not work, because clippy cannot
//! distinguish tests from the program, and the tests would need hundreds of attributes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::broken::root;
use crate::sources;

/// The directories whose code runs outside of bottles with the rights of the user.
const CODE: [&str; 2] = ["src", "crates"];

/// The calls that are refused in files that [`ALLOWED`] does not list.
const CALLS: [&str; 7] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::copy(",
    "File::open(",
    "Command::new(",
    "WalkBuilder::new(",
    "tempdir(",
];

/// The files that may contain the calls in [`CALLS`], grouped by the reason.
const ALLOWED: [(&str, &[&str]); 7] = [
    (
        "the files are of bottle's own home or runtime directory, in which only the user can write",
        &[
            "crates/containers/src/apple/images.rs",
            "crates/containers/src/docker/runtime_trial.rs",
            "crates/containers/src/docker/shared_objects/linux.rs",
            "crates/sandbox/src/fake/mod.rs",
            "crates/sandbox/src/fake/programs.rs",
            "crates/backend/src/image/build_lock.rs",
            "crates/sandbox/src/linux/image/store.rs",
            "crates/sandbox/src/local/layers.rs",
            "crates/sandbox/src/local/roles.rs",
            "crates/host/src/temporary.rs",
            "crates/instance/src/audit.rs",
            "crates/instance/src/canaries.rs",
            "crates/instance/src/children.rs",
            "crates/instance/src/committed.rs",
            "crates/instance/src/credentials.rs",
            "crates/instance/src/environments.rs",
            "crates/instance/src/process_logs.rs",
            "crates/instance/src/routes.rs",
            "crates/instance/src/store.rs",
            "crates/instance/src/stream_marks.rs",
            "crates/instance/src/usage.rs",
            "crates/keeper/src/ledger/ingest.rs",
            "crates/lib/src/logs/mod.rs",
            "crates/lib/src/work/applied.rs",
            "crates/plan/src/secrets/saved_references.rs",
            "crates/repository/src/given/contents.rs",
            "crates/repository/src/given/mod.rs",
            "crates/repository/src/given/rules.rs",
            "src/mcp/tokens.rs",
            "src/console/terminal/after_kill.rs",
        ],
    ),
    (
        "the files are the system's: /proc, /sys, /etc, /dev",
        &[
            "crates/containers/src/apple/roles.rs",
            "crates/containers/src/docker/container_live.rs",
            "crates/containers/src/docker/routes.rs",
            "crates/sandbox/src/fake/guest.rs",
            "crates/sandbox/src/linux/check.rs",
            "crates/sandbox/src/linux/check_cache.rs",
            "crates/sandbox/src/linux/identity.rs",
            "crates/sandbox/src/linux/owners.rs",
            "crates/sandbox/src/local/bundle.rs",
            "crates/sandbox/src/local/cgroups.rs",
            "crates/backend/src/trees/copy/stamps.rs",
            "crates/sandbox/src/local/labels.rs",
            "crates/sandbox/src/smolvm/check.rs",
            "crates/host/src/private_home.rs",
            "crates/host/src/process/linux.rs",
            "crates/host/src/system/linux.rs",
            "crates/lib/src/launch/live_directory.rs",
        ],
    ),
    (
        "the user names the file, on the command line, in the settings or in a manifest",
        &[
            "crates/containers/src/apple/layout.rs",
            "crates/containers/src/docker/endpoint.rs",
            "crates/containers/src/docker/images/load.rs",
            "crates/backend/src/image/local.rs",
            "crates/backend/src/image/saved/container.rs",
            "crates/backend/src/static_program.rs",
            "crates/host/src/known_hosts.rs",
            "crates/host/src/roots.rs",
            "crates/host/src/settings.rs",
            "crates/lib/src/proposals/scope.rs",
            "src/cli/import.rs",
            "src/cli/policy/replay.rs",
            "src/cli/supervise/plain.rs",
        ],
    ),
    ("the program is bottle itself", &["crates/keeper/src/client.rs"]),
    (
        "the user names the program, in the settings, a manifest or the environment, or it is the engine's",
        &[
            "crates/backend/src/command_line/runner.rs",
            "crates/containers/src/docker/images/logins.rs",
            "crates/keeper/src/notify.rs",
            "crates/plan/src/secrets/mod.rs",
            "src/console/editor.rs",
            "src/mcp/install.rs",
        ],
    ),
    (
        "the user's own ignore file, which git reads too, with a bound",
        &["crates/repository/src/ignore_rules.rs"],
    ),
    (
        "git in a directory of ours, and files there",
        &["crates/repository/src/git.rs", "crates/repository/src/store.rs", "crates/lib/src/work/scratch.rs"],
    ),
];

/// Prints the number of files for each reason.
///
/// # Errors
/// Returns an error if a file contains such a call and is not listed, or is listed and contains no such call.
pub(crate) fn run() -> Result<()> {
    let found = found(root()?)?;
    let wrong = differences(&found);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (why, files) in ALLOWED {
        println!("{:>3}  {why}", files.len());
    }
    Ok(())
}

/// Returns the differences between the list and the sources, as messages.
fn differences(found: &BTreeMap<String, Vec<&str>>) -> Vec<String> {
    let listed: Vec<&str> = ALLOWED.iter().flat_map(|(_, files)| *files).copied().collect();
    let missing = found.iter().filter(|(file, _)| !listed.contains(&file.as_str())).map(|(file, calls)| {
        let calls = calls.join(", ");
        format!(
            "{file} has {calls}: read what others write with `bottle_repository`, or list it in xtask/src/reads.rs"
        )
    });
    let stale = listed.iter().filter(|file| !found.contains_key(**file));
    missing
        .chain(stale.map(|file| format!("{file} has none of these calls: remove it from xtask/src/reads.rs")))
        .collect()
}

/// Returns the files that contain calls of [`CALLS`], and these calls.
fn found(root: &Path) -> Result<BTreeMap<String, Vec<&'static str>>> {
    let mut program = sources::program(root)?;
    program.retain(|file, _| CODE.iter().any(|directory| file.starts_with(directory)));
    let calls = program.iter().map(|(file, code)| (file.to_string_lossy().into_owned(), calls(code)));
    Ok(calls.filter(|(_, calls)| !calls.is_empty()).collect())
}

/// Returns the calls of [`CALLS`] that this code contains.
fn calls(code: &str) -> Vec<&'static str> {
    // A call must not be the end of a longer name: `append_file::open(` is another function.
    let is_call = |call: &str| {
        code.match_indices(call)
            .any(|(at, _)| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
    };
    CALLS.into_iter().filter(|call| is_call(call)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_with_such_a_call_is_listed() {
        let found = found(root().expect("root")).expect("read");
        assert!(found.len() > 50, "{}", found.len());
        assert_eq!(differences(&found), [""; 0]);
    }

    #[test]
    fn finds_calls_and_not_other_functions() {
        for (text, expected) in [
            ("let x = std::fs::read(path)?;", &["fs::read("][..]),
            ("tokio::process::Command::new(x)", &["Command::new("]),
            ("MyFile::open(x); fs::read_dir(x)", &[]),
            ("tempfile::tempdir()", &["tempdir("]),
        ] {
            assert_eq!(calls(text), expected, "{text}");
        }
    }
}
