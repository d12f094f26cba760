//! Compares this crate with git, which must support `--ref-format=reftable` (git 2.45).

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::reflog::LogEntry;
use crate::refs::{Head, Refs, Storage};

struct Scene {
    top: tempfile::TempDir,
}

impl Scene {
    /// Creates a repository with one commit. `None` if the installed git does not support this format.
    fn new(format: &str) -> Option<Self> {
        let scene = Self { top: tempfile::tempdir().expect("a directory") };
        let object_format = format!("--object-format={format}");
        let made = scene.run(&["init", "-q", "-b", "main", "--ref-format=reftable", &object_format, "main"]);
        if made.is_none() {
            let _ = writeln!(std::io::stderr(), "skipped: this git has no reftables");
            return None;
        }
        scene.git(&["commit", "-q", "--allow-empty", "-m", "one"]);
        Some(scene)
    }

    fn path(&self) -> PathBuf {
        self.top.path().join("main")
    }

    fn run(&self, arguments: &[&str]) -> Option<String> {
        let place = if self.path().exists() { self.path() } else { self.top.path().to_owned() };
        let mut git = Command::new("git");
        git.current_dir(place).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        let output = git.output().expect("git");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        output.status.success().then(|| text.trim().to_owned())
    }

    fn git(&self, arguments: &[&str]) -> String {
        self.run(arguments).unwrap_or_else(|| panic!("{arguments:?}"))
    }

    fn common(&self) -> Directory {
        Directory::open(&self.path().join(".git")).expect("opened")
    }

    fn write(&self, name: &str, before: Option<&ObjectId>, after: &ObjectId) -> Result<(), RefError> {
        let common = self.common();
        let log = LogEntry { name: "bottle", email: "a@example.com", seconds: 7, message: "pull" };
        of(&common).write(name, before, after, log, true)
    }
}

fn of(common: &Directory) -> Refs<'_> {
    Refs { git: common, common, storage: Storage::Reftable }
}

/// Asserts that this crate reads the same references as git.
fn assert_as_git(scene: &Scene) {
    let common = scene.common();
    let refs = of(&common);
    let listed = scene.git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
    let mut ids = std::collections::HashSet::new();
    // Each lookup reads all tables. If there are many references, the test therefore looks up only some of them.
    let step = listed.lines().count() / 20 + 1;
    for (number, line) in listed.lines().enumerate() {
        let (name, id) = line.split_once(' ').expect("two words");
        if number.is_multiple_of(step) {
            assert_eq!(refs.find(name).expect("read").as_ref().map(ObjectId::as_str), Some(id), "{name}");
        }
        ids.insert(ObjectId::parse(id).expect("an id"));
    }
    ids.insert(ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id"));
    assert_eq!(refs.all().expect("read"), ids);
    let names: Vec<_> = Stack::read(&common).expect("read").references.into_keys().collect();
    assert_eq!(names.len(), listed.lines().count() + 1, "the references and HEAD");
}

#[test]
fn reads_what_git_writes() {
    for format in ["sha1", "sha256"] {
        let Some(scene) = Scene::new(format) else { return };
        assert_as_git(&scene);
        scene.git(&["tag", "-a", "-m", "x", "v1"]);
        scene.git(&["branch", "deep/er"]);
        scene.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        scene.git(&["branch", "gone"]);
        scene.git(&["commit", "-q", "--allow-empty", "-m", "two"]);
        scene.git(&["branch", "-D", "gone"]);
        assert_as_git(&scene);
        // The repository gets several blocks with names that share prefixes, first in one table and then in several
        // tables.
        let all = |numbers: std::ops::Range<usize>| -> String {
            numbers.map(|number| format!("create refs/heads/many/branch-{number} HEAD\n")).collect()
        };
        for numbers in [0..800, 800..820] {
            let input = scene.top.path().join("input");
            fs::write(&input, all(numbers)).expect("written");
            let mut git = Command::new("git");
            git.current_dir(scene.path()).args(["update-ref", "--stdin"]);
            assert!(git.stdin(fs::File::open(input).expect("opened")).status().expect("git").success());
            assert_as_git(&scene);
        }
        scene.git(&["pack-refs", "--all"]);
        assert_as_git(&scene);
        scene.git(&["checkout", "-q", "--detach"]);
        let common = scene.common();
        assert!(matches!(of(&common).head(), Ok(Head::Detached(_))));
        assert_eq!(of(&common).find("refs/heads/gone").expect("read"), None);
        assert_eq!(of(&common).find("refs/heads/many").expect("read"), None);
    }
}

#[test]
fn reads_each_worktrees_head() {
    let Some(scene) = Scene::new("sha1") else { return };
    scene.git(&["worktree", "add", "-q", "-b", "tree", "../tree"]);
    let common = scene.common();
    let tree = common.directory(Path::new("worktrees/tree")).expect("opened").expect("there");
    let refs = Refs { git: &tree, common: &common, storage: Storage::Reftable };
    assert_eq!(refs.head().expect("read"), Head::Reference("refs/heads/tree".to_owned()));
    assert!(refs.find("HEAD").expect("read").is_some());
    assert_eq!(of(&common).head().expect("read"), Head::Reference("refs/heads/main".to_owned()));
    for (name, is_checked_out) in [("tree", true), ("main", true), ("other", false)] {
        let found = refs.checked_out(&format!("refs/heads/{name}")).expect("read");
        assert_eq!(found.is_some(), is_checked_out, "{name}");
    }
}

#[test]
fn writes_a_branch_that_git_reads() {
    for format in ["sha1", "sha256"] {
        let Some(scene) = Scene::new(format) else { return };
        let id = || ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        let one = id();
        scene.git(&["commit", "-q", "--allow-empty", "-m", "two"]);
        let two = id();
        scene.write("refs/heads/bottle/one", None, &one).expect("written");
        assert_eq!(scene.git(&["rev-parse", "bottle/one"]), one.as_str());
        scene.git(&["pack-refs", "--all"]);
        scene.write("refs/heads/bottle/one", Some(&one), &two).expect("written");
        assert_eq!(scene.git(&["rev-parse", "bottle/one", "bottle/one@{1}"]), format!("{two}\n{one}"));
        assert_eq!(
            scene.git(&["reflog", "-1", "--format=%gn|%ge|%gs", "bottle/one"]),
            "bottle|a@example.com|pull"
        );
        // Git can use the repository after this change.
        scene.git(&["branch", "after"]);
        scene.git(&["branch", "-f", "bottle/one", one.as_str()]);
        scene.git(&["pack-refs", "--all"]);
        scene.git(&["fsck", "--strict"]);
        let left = scene.git(&["for-each-ref", "--format=%(refname:short)"]);
        assert_eq!(left, "after\nbottle/one\nmain");
        assert_as_git(&scene);
        for (name, before, wanted) in [
            ("main", Some(&two), "checked out"),
            ("bottle", None, "there is a reference refs/heads/bottle/one"),
            ("bottle/one/x", None, "there is a reference refs/heads/bottle/one"),
            ("bottle/one", None, "another process changed it"),
            ("bottle/one", Some(&two), "another process changed it"),
        ] {
            let refused = scene.write(&format!("refs/heads/{name}"), before, &two);
            let refused = refused.expect_err(name).to_string();
            assert!(refused.contains(wanted), "{name}: {refused}");
        }
        let lock = scene.path().join(".git/reftable/tables.list.lock");
        assert!(!lock.exists(), "a refused change leaves no lock");
        fs::write(&lock, "").expect("written");
        assert!(matches!(scene.write("refs/heads/x", None, &two), Err(RefError::Locked(_))));
        assert!(lock.exists(), "the lock of the other git stays");
    }
}

#[test]
fn follows_no_link_and_no_name_out_of_the_directory() {
    let Some(scene) = Scene::new("sha1") else { return };
    let tables = scene.path().join(".git/reftable");
    let list = tables.join("tables.list");
    let whole = fs::read_to_string(&list).expect("read");
    for name in ["../HEAD", "/etc/passwd", "a/b", "..", "."] {
        fs::write(&list, format!("{name}\n")).expect("written");
        assert!(matches!(Stack::read(&scene.common()), Err(RefError::Malformed(_))), "{name}");
    }
    fs::write(&list, "none\n").expect("written");
    assert!(matches!(Stack::read(&scene.common()), Err(RefError::Malformed(_))), "a table that is missing");
    let table = tables.join(whole.lines().next().expect("a table"));
    fs::rename(&table, tables.join("real")).expect("moved");
    symlink("real", &table).expect("link");
    fs::write(&list, whole).expect("written");
    assert!(matches!(Stack::read(&scene.common()), Err(RefError::Read(_))));
    fs::remove_file(&list).expect("removed");
    symlink("/dev/zero", &list).expect("link");
    assert!(matches!(Stack::read(&scene.common()), Err(RefError::Read(_))));
}
