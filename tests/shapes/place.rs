//! Makes a shape twice: once for the user, and once as the twin, in which plain git makes the same changes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shapes::Shape;

/// The date of each commit, so that both sides have the same commits.
const DATE: &str = "2024-05-06T07:08:09Z";

/// The functions of the scripts. `begin` makes a repository with the files that each agent edits. `files` makes only
/// the files.
const BEGIN: &str = r#"
files() {
    mkdir -p sub/deep
    seq 20 >code; echo tool >tool; echo gone >gone; echo old >old; echo deep >sub/deep/file; echo stays >sub/stays
    printf 'target/\n*.o\n' >.gitignore
}
begin() {
    name=$1; shift
    git init -q "$@" "$name"; cd "$name"; files; git add -A; git commit -qm begin; cd - >/dev/null
}
"#;

/// The configuration of the user.
const CONFIGURATION: &str = "[user]\n\tname = Ann\n\temail = ann@example.com\n[init]\n\tdefaultBranch = main\n\
     [protocol \"file\"]\n\tallow = always\n[advice]\n\tdetachedHead = false\n\
     [filter \"lfs\"]\n\tclean = $HOME/bin/lfs-clean\n\tsmudge = $HOME/bin/lfs-smudge\n\trequired = true\n\
     [filter \"crypt\"]\n\tclean = tr a-z n-za-m\n\tsmudge = tr a-z n-za-m\n\trequired = true\n";

/// A script that does what Git LFS does when it adds a file: it writes the content to its own store, and a pointer into
/// the commit.
const LFS_CLEAN: &str = r#"#!/bin/sh
content=$(mktemp) && cat >"$content" || exit 1
object=$(sha256sum <"$content" | cut -c1-64); size=$(($(wc -c <"$content")))
store=$(git rev-parse --git-common-dir)/lfs/objects
mkdir -p "$store" && mv "$content" "$store/$object"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' "$object" "$size"
"#;

/// A script that does what Git LFS does when it checks out a file.
const LFS_SMUDGE: &str = r#"#!/bin/sh
cat "$(git rev-parse --git-common-dir)/lfs/objects/$(sed -n 's/^oid sha256://p')"
"#;

/// One of the two copies of a shape.
///
/// ```text
/// ROOT/home/   the user's home, with a configuration of git
/// ROOT/...     what the shape's script makes
/// ```
pub(crate) struct Side {
    pub(crate) root: PathBuf,
    /// The directory in which the bottle is started.
    pub(crate) directory: PathBuf,
    /// The directory from which the bottle gets its files.
    copied: PathBuf,
    /// The top of the working tree.
    top: PathBuf,
    /// The git directory that compares the files of a directory without a repository.
    scratch: Option<PathBuf>,
}

impl Side {
    /// Makes the shape in an empty directory.
    pub(crate) fn make(root: PathBuf, shape: &Shape) -> Result<Self> {
        fs::create_dir_all(root.join("home/bin"))?;
        fs::write(root.join("home/.gitconfig"), CONFIGURATION)?;
        for (name, text) in [("lfs-clean", LFS_CLEAN), ("lfs-smudge", LFS_SMUDGE)] {
            let path = root.join("home/bin").join(name);
            fs::write(&path, text)?;
            make_executable(&path)?;
        }
        let (directory, top) = (root.join(shape.directory), root.join(shape.top));
        let copied = root.join(shape.copied());
        let side = Self { root, directory, copied, top, scratch: None };
        let _ = side.shell(&side.root, &format!("{BEGIN}\n{}", shape.make))?;
        if let Some(finish) = shape.finish {
            finish(&side.directory)?;
        }
        Ok(side)
    }

    /// Lets git compare a directory that has no repository.
    pub(crate) fn with_scratch(mut self) -> Result<Self> {
        self.scratch = Some(self.root.join("scratch"));
        let _ = self.in_top("git init -q; git add -A; git commit -qm start")?;
        Ok(self)
    }

    /// Runs a script in the top of the working tree. Returns its output.
    pub(crate) fn in_top(&self, script: &str) -> Result<String> {
        self.shell(&self.top, script)
    }

    /// Runs a script in the working directory. Returns its output.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        self.shell(&self.directory, script)
    }

    fn shell(&self, directory: &Path, script: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(directory, script)?).into_owned())
    }

    fn bytes(&self, directory: &Path, script: &str) -> Result<Vec<u8>> {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", script]).current_dir(directory).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("LANG", "C.UTF-8");
        command.env("HOME", self.root.join("home")).env("GIT_CONFIG_NOSYSTEM", "1");
        // Without optional locks, a command that only reads the repository does not write its index.
        command.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_EDITOR", "true");
        command.env("GIT_AUTHOR_DATE", DATE).env("GIT_COMMITTER_DATE", DATE);
        if let Some(scratch) = &self.scratch {
            command.env("GIT_DIR", scratch).env("GIT_WORK_TREE", &self.directory);
        }
        let output = command.output().context("sh")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script}: {error}{}", String::from_utf8_lossy(&output.stdout));
        Ok(output.stdout)
    }

    /// The files that belong to the project for git: tracked files, and new files that no rule ignores. Each directory
    /// that git does not look into, such as a nested repository, has one entry.
    pub(crate) fn project_files(&self) -> Result<Vec<PathBuf>> {
        let list = "git ls-files -z --cached --others --exclude-standard --deduplicate";
        let listed = self.bytes(&self.copied, list)?;
        let path = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path));
        Ok(listed.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(path).collect())
    }
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
