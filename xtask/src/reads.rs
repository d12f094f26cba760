//! `cargo xtask reads`: refuses calls that read a file by its path, or start a program, in places that are not known.
//!
//! What an agent or a project can write is read through `bottle_repository` (descriptors, bounds, no links), and no
//! program runs because such a file names it. The calls in [`CALLS`] do neither. Each file that has them is listed in
//! [`ALLOWED`] with the reason. Test code may use all of them.
//!
//! This is a check of the sources and not a list of disallowed methods for clippy, because clippy cannot tell tests from
//! the program, and the tests would need hundreds of attributes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::broken::root;

/// The directories whose code runs outside of bottles with the rights of the user.
const CODE: [&str; 2] = ["src", "crates"];

/// The calls that are refused.
const CALLS: [&str; 7] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::copy(",
    "File::open(",
    "Command::new(",
    "WalkBuilder::new(",
    "tempdir(",
];

/// The files that have such calls, by the reason.
const ALLOWED: [(&str, &[&str]); 8] = [
    (
        "the files are of bottle's own home or runtime directory, in which only the user can write",
        &[
            "src/backend/apple/images.rs",
            "src/backend/docker/runtime_trial.rs",
            "src/backend/docker/shared_objects/linux.rs",
            "src/backend/fake/mod.rs",
            "src/backend/fake/programs.rs",
            "src/backend/image/build_lock.rs",
            "src/backend/linux/image/store.rs",
            "src/backend/local/layers.rs",
            "src/backend/local/roles.rs",
            "src/cli/git/applied.rs",
            "src/cli/logs/mod.rs",
            "src/cli/mcp/tokens.rs",
            "src/cli/terminal/after_kill.rs",
            "src/host/temporary.rs",
            "src/instance/audit.rs",
            "src/instance/canaries.rs",
            "src/instance/children.rs",
            "src/instance/committed.rs",
            "src/instance/environments.rs",
            "src/instance/process_logs.rs",
            "src/instance/routes.rs",
            "src/instance/store.rs",
            "src/instance/usage.rs",
            "src/ledger/ingest.rs",
            "src/secrets/saved_references.rs",
        ],
    ),
    (
        "the files are the system's: /proc, /sys, /etc, /dev",
        &[
            "src/backend/apple/roles.rs",
            "src/backend/docker/container_live.rs",
            "src/backend/docker/routes.rs",
            "src/backend/fake/guest.rs",
            "src/backend/linux/check.rs",
            "src/backend/linux/check_cache.rs",
            "src/backend/linux/identity.rs",
            "src/backend/linux/owners.rs",
            "src/backend/local/bundle.rs",
            "src/backend/local/cgroups.rs",
            "src/backend/local/copy/stamps.rs",
            "src/backend/local/labels.rs",
            "src/backend/smolvm/check.rs",
            "src/cli/start/live.rs",
            "src/host/private_home.rs",
            "src/host/process/linux.rs",
            "src/host/system/linux.rs",
        ],
    ),
    (
        "the user names the file, on the command line, in the settings or in a manifest",
        &[
            "src/backend/apple/layout.rs",
            "src/backend/docker/endpoint.rs",
            "src/backend/docker/images/load.rs",
            "src/backend/image/local.rs",
            "src/backend/image/saved/container.rs",
            "src/backend/static_program.rs",
            "src/cli/import.rs",
            "src/cli/policy/replay.rs",
            "src/cli/supervise/plain.rs",
            "src/cli/supervise/scope.rs",
            "src/host/known_hosts.rs",
            "src/host/roots.rs",
            "src/host/settings.rs",
        ],
    ),
    (
        "the program is bottle itself",
        &["src/cli/environment/launch.rs", "src/cli/mcp/program.rs", "src/keeper/client.rs"],
    ),
    (
        "the user names the program, in the settings, a manifest or the environment, or it is the engine's",
        &[
            "src/backend/command_line/runner.rs",
            "src/backend/docker/images/logins.rs",
            "src/cli/editor.rs",
            "src/cli/mcp/install.rs",
            "src/keeper/notify.rs",
            "src/secrets/mod.rs",
        ],
    ),
    (
        "the user's own ignore file, which git reads too, with a bound",
        &["crates/repository/src/ignore_rules.rs"],
    ),
    (
        "git in a directory of ours, and files there",
        &["crates/repository/src/git.rs", "crates/repository/src/store.rs", "src/cli/git/scratch.rs"],
    ),
    ("only tests use it", &["src/backend/apple/test_program.rs", "src/portable/mutations.rs"]),
];

/// Prints the number of files with each reason.
///
/// # Errors
/// Returns an error if a file has such a call and is not listed, or is listed and has none.
pub(crate) fn run() -> Result<()> {
    let found = found(root()?)?;
    let wrong = differences(&found);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (why, files) in ALLOWED {
        println!("{:>3}  {why}", files.len());
    }
    Ok(())
}

/// What is wrong with the list.
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

/// The files with such calls, and which.
fn found(root: &Path) -> Result<BTreeMap<String, Vec<&'static str>>> {
    let mut found = BTreeMap::new();
    let mut directories: Vec<_> = CODE.iter().map(|code| root.join(code)).collect();
    while let Some(directory) = directories.pop() {
        let listed = fs::read_dir(&directory);
        for entry in listed.with_context(|| format!("cannot list {}", directory.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                // The tests and benchmarks of a crate.
                if !["tests", "benches"].iter().any(|name| path.ends_with(name)) {
                    directories.push(path);
                }
                continue;
            }
            let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
            if !file.ends_with(".rs") || file.ends_with("tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
            let calls = calls(&text);
            if !calls.is_empty() {
                found.insert(file, calls);
            }
        }
    }
    Ok(found)
}

/// The calls in the code before the test module.
fn calls(text: &str) -> Vec<&'static str> {
    let ends = ["mod tests", "pub(crate) mod tests", "pub(in crate::plan) mod tests", "pub(super) mod tests"];
    let end = ends.iter().filter_map(|end| text.find(&format!("\n#[cfg(test)]\n{end}"))).min();
    let code = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    // `append_file::open(` is another function.
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
    fn finds_calls_outside_of_tests_and_comments() {
        for (text, expected) in [
            ("let x = std::fs::read(path)?;", &["fs::read("][..]),
            ("tokio::process::Command::new(x)", &["Command::new("]),
            ("// fs::read(x)\nMyFile::open(x); fs::read_dir(x)", &[]),
            ("fn a() {}\n#[cfg(test)]\nmod tests { fs::copy(a, b) }", &[]),
            ("tempfile::tempdir()", &["tempdir("]),
        ] {
            assert_eq!(calls(text), expected, "{text}");
        }
    }
}
