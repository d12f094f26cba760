//! `cargo xtask broken`: mutation testing of the defences. The command removes one defence at a time from a copy of the
//! sources, and checks that the defence's test then fails.
//!
//! `tests/escape/broken.yaml` lists the defences and their tests. The copy and its build are in
//! `target/broken`. Only tests run the programs of this build.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The path of the table of defences, relative to the workspace's root.
const TABLE: &str = "tests/escape/broken.yaml";
/// The path of the directory for the copy of the sources, relative to the workspace's root.
const ROOM: &str = "target/broken";

/// The flag that removes several defences in one build. This is much faster, but a test may then fail because another
/// defence is missing. The flag is sufficient for a check that the table is valid.
const TOGETHER: &str = "--together";

/// A defence, and how to remove it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Broken {
    name: String,
    /// The path of the source file.
    file: String,
    /// The original text, which must occur exactly once in the file.
    from: String,
    /// The text that replaces the original text.
    to: String,
    /// The test that must fail without the defence.
    noticed: Noticed,
    /// Whether the test needs a container engine.
    #[serde(default)]
    engine: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Noticed {
    /// The test suite, in the host package, that contains the test.
    by: String,
    /// The full name of the test.
    test: String,
    /// A text that the test's output must contain.
    says: String,
}

/// Runs the tests for all defences, or for the defences that `arguments` names.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let root = root()?;
    let mut table = table(root)?;
    let together = arguments.contains(&TOGETHER);
    let names: Vec<&str> = arguments.iter().copied().filter(|argument| *argument != TOGETHER).collect();
    if let Some(unknown) = names.iter().find(|name| !table.iter().any(|broken| broken.name == **name)) {
        bail!("{TABLE} has nothing called {unknown:?}");
    }
    table.retain(|broken| names.is_empty() || names.contains(&&*broken.name));
    let engine = Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]).output();
    if !engine.is_ok_and(|output| output.status.success()) {
        for broken in table.extract_if(.., |broken| broken.engine) {
            println!("skipped: {}: no container engine answers", broken.name);
        }
    }
    let room = Room::prepare(root)?;
    let builds = builds(&table, together);
    let mut unnoticed = Vec::new();
    for build in builds {
        for broken in &build {
            room.take_out(broken)?;
        }
        room.build(&build)?;
        for broken in &build {
            let noticed = room.notices(broken)?;
            println!("{}: {}", broken.name, if noticed { "noticed" } else { "NOT noticed" });
            unnoticed.extend((!noticed).then_some(broken.name.as_str()));
        }
        room.fill()?;
    }
    ensure!(unnoticed.is_empty(), "nobody noticed that these were missing: {}", unnoticed.join(", "));
    Ok(())
}

impl Broken {
    /// Whether the defence is only in the code for container engines.
    fn of_engine(&self) -> bool {
        self.file.starts_with("crates/containers/src/docker/")
    }
}

/// Groups the defences into builds. A test reports only one failure, so a build must not contain two defences
/// with the same test. A test that runs on every backend stops at its first failure, so defences of container
/// engines get separate builds.
fn builds(table: &[Broken], together: bool) -> Vec<Vec<&Broken>> {
    let mut builds: Vec<Vec<&Broken>> = Vec::new();
    for broken in table {
        let apart = |build: &&mut Vec<&Broken>| {
            build.iter().all(|other| {
                other.noticed.test != broken.noticed.test
                    && other.file != broken.file
                    && other.of_engine() == broken.of_engine()
            })
        };
        match builds.iter_mut().filter(|_| together).find(apart) {
            Some(build) => build.push(broken),
            None => builds.push(vec![broken]),
        }
    }
    builds
}

pub(crate) fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")
}

fn table(root: &Path) -> Result<Vec<Broken>> {
    let table = fs::read_to_string(root.join(TABLE)).with_context(|| format!("read {TABLE}"))?;
    serde_yaml::from_str(&table).with_context(|| format!("parse {TABLE}"))
}

impl Broken {
    /// Returns the text of the file without this defence.
    fn taken_out(&self, text: &str) -> Result<String> {
        let times = text.matches(&self.from).count();
        ensure!(
            times == 1,
            "{}: what is to be taken out stands in {} {times} times: bring {TABLE} up to date",
            self.name,
            self.file
        );
        Ok(text.replace(&self.from, &self.to))
    }
}

/// The copy of the sources and its build directory.
struct Room<'a> {
    root: &'a Path,
    tree: PathBuf,
    built: PathBuf,
}

impl<'a> Room<'a> {
    fn prepare(root: &'a Path) -> Result<Self> {
        let room = root.join(ROOM);
        let tree = room.join("tree");
        let new = Self { root, built: tree.join("target"), tree };
        new.fill()?;
        new.share_dependencies()?;
        // Tests search for the program that goes into containers in `dist/` of the sources from which they
        // were built.
        let (dist, link) = (root.join("dist"), new.tree.join("dist"));
        if dist.is_dir() && !link.exists() {
            std::os::unix::fs::symlink(dist, link)?;
        }
        Ok(new)
    }

    /// Copies the sources. Unchanged files are not copied again, so that cargo does not rebuild them.
    fn fill(&self) -> Result<()> {
        let listed = output(Command::new("git").current_dir(self.root).args(["ls-files", "-z"]))?;
        let listed = String::from_utf8(listed.stdout)?;
        // Git still lists files that were removed but whose removal is not staged.
        let files: BTreeSet<&str> =
            listed.split_terminator('\0').filter(|file| self.root.join(file).is_file()).collect();
        self.remove_stale(&files, Path::new(""))?;
        for file in files {
            let (from, to) = (self.root.join(file), self.tree.join(file));
            let wanted = fs::read(&from).with_context(|| format!("read {file}"))?;
            if fs::read(&to).ok().as_ref() != Some(&wanted) {
                fs::create_dir_all(to.parent().context("a directory")?)?;
                fs::copy(&from, &to).with_context(|| format!("copy {file}"))?;
            }
        }
        Ok(())
    }

    /// Removes files of an earlier copy that the sources no longer contain, recursively.
    fn remove_stale(&self, files: &BTreeSet<&str>, directory: &Path) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.tree.join(directory)) else { return Ok(()) };
        for entry in entries {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let own = ["target", "dist"].iter().any(|own| path == Path::new(own));
            if entry.file_type()?.is_dir() && !own {
                self.remove_stale(files, &path)?;
            } else if !own && !path.to_str().is_some_and(|path| files.contains(path)) {
                fs::remove_file(entry.path()).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Copies third-party crates that were built in the checkout, so that they are not built again.
    fn share_dependencies(&self) -> Result<()> {
        let (from, to) = (self.root.join("target/debug"), self.built.join("debug"));
        if to.exists() || !from.exists() {
            return Ok(());
        }
        let mut libraries = Vec::new();
        for entry in fs::read_dir(from.join("deps"))? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let (stem, kind) = name.rsplit_once('.').unwrap_or((&name, ""));
            // The crates of bottle are rebuilt, so their large build results are not copied.
            if ["rlib", "rmeta", "so", "d"].contains(&kind)
                && !stem.trim_start_matches("lib").starts_with("bottle")
            {
                libraries.push(from.join("deps").join(name));
            }
        }
        fs::create_dir_all(to.join("deps"))?;
        // The files keep their time stamps, because cargo compares them. They are not hard links, because cargo writes
        // to these files in place.
        for some in libraries.chunks(500) {
            copy(some, &to.join("deps"))?;
        }
        copy(&["build", ".fingerprint"].map(|part| from.join(part)), &to)
    }

    fn take_out(&self, broken: &Broken) -> Result<()> {
        let path = self.tree.join(&broken.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", broken.file))?;
        Ok(fs::write(&path, broken.taken_out(&text)?)?)
    }

    fn build(&self, broken: &[&Broken]) -> Result<()> {
        let mut suites: Vec<&str> = broken.iter().map(|broken| &*broken.noticed.by).collect();
        suites.sort_unstable();
        suites.dedup();
        let mut command = self.cargo();
        command.args(["--no-run", "--quiet"]);
        for suite in suites {
            command.args(["--test", suite]);
        }
        let built = output(&mut command)?;
        ensure!(built.status.success(), "it cannot be built:\n{}", String::from_utf8_lossy(&built.stderr));
        Ok(())
    }

    /// Whether the test fails with the expected output.
    fn notices(&self, broken: &Broken) -> Result<bool> {
        let Noticed { by, test, says } = &broken.noticed;
        let mut command = self.cargo();
        command.args(["--quiet", "--test", by, "--", "--exact", test]);
        let ran = output(&mut command)?;
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let noticed = !ran.status.success() && said.contains(says);
        if !noticed {
            println!("{said}");
        }
        Ok(noticed)
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.built);
        command.args(["test", "--package", "bottle"]);
        command
    }
}

fn copy(files: &[PathBuf], to: &Path) -> Result<()> {
    let copied = output(Command::new("cp").arg("-a").args(files).arg(to))?;
    ensure!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
    Ok(())
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("start {}", command.get_program().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defences_in_one_build_have_different_tests() {
        let table = table(root().expect("root")).expect("table");
        assert_eq!(builds(&table, false).len(), table.len());
        let together = builds(&table, true);
        assert!(together.len() < table.len() / 2, "{}", together.len());
        assert_eq!(together.iter().map(Vec::len).sum::<usize>(), table.len());
    }

    #[test]
    fn every_defence_is_in_its_file() {
        let root = root().expect("root");
        let table = table(root).expect("table");
        assert!(table.len() > 15, "{}", table.len());
        for broken in table {
            let text = fs::read_to_string(root.join(&broken.file)).expect("a source file");
            assert_ne!(broken.taken_out(&text).expect("there"), text);
        }
    }
}
