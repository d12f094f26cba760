//! The directory in which a case is made, with its traps.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A text in each file of the user that must not get into a bottle or an output.
pub(crate) const CANARY: &str = "canary-3f1c9a6e-outside";

/// Programs that git, or a program that git starts, searches for in `PATH`.
const DECOYS: [&str; 22] = [
    "cat-file-viewer",
    "curl",
    "cvs",
    "editor",
    "emacs",
    "git-credential-evil",
    "git-crypt",
    "git-lfs",
    "git-remote-evil",
    "gpg",
    "gpgsm",
    "less",
    "man",
    "more",
    "nano",
    "scp",
    "ssh",
    "ssh-add",
    "ssh-keygen",
    "vi",
    "vim",
    "w3m",
];

/// A directory for one case.
///
/// ```text
/// project/   the repository, which also becomes the content of a live directory
/// home/      files of the user, with the canary
/// victim/    a repository of the user, whose git directory has the canary
/// tools/     programs that leave a mark
/// ran/       their marks
/// ```
pub(crate) struct Place {
    root: PathBuf,
}

impl Place {
    /// Makes the traps in an empty directory.
    pub(crate) fn new(root: PathBuf) -> Result<Self> {
        let place = Self { root };
        for directory in ["project", "tools", "decoys", "ran"] {
            fs::create_dir_all(place.path(directory))?;
        }
        for file in [
            "home/.ssh/id_ed25519",
            "home/HEAD",
            "victim/.git/description",
            "victim/.git/info/exclude",
            "victim/.git/hooks/pre-push",
            "victim/.git/logs/HEAD",
            "victim/.git/objects/ca/0000000000000000000000000000000000000a",
        ] {
            place.write(file, CANARY)?;
        }
        place.write("victim/.git/HEAD", "ref: refs/heads/main\n")?;
        fs::create_dir_all(place.path("victim/.git/refs/heads"))?;
        for name in DECOYS {
            place.program_at(&format!("decoys/{name}"), &format!("path-{name}"))?;
        }
        Ok(place)
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A path as text.
    pub(crate) fn text(&self, path: &str) -> String {
        self.path(path).display().to_string()
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.path(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Removes the entry at a path, and creates the parent directory.
    pub(crate) fn clear(&self, path: &str) -> Result<PathBuf> {
        let path = self.path(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(&path)?;
        } else if path.symlink_metadata().is_ok() {
            fs::remove_file(&path)?;
        }
        Ok(path)
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: &str) -> Result<()> {
        Ok(symlink(target, self.clear(path)?)?)
    }

    /// Creates a program that leaves a mark and then fails. Returns the path of the program.
    pub(crate) fn program(&self, mark: &str) -> Result<String> {
        self.program_at(&format!("tools/{mark}"), mark)
    }

    fn program_at(&self, path: &str, mark: &str) -> Result<String> {
        let ran = self.path("ran").join(mark);
        self.write(path, format!("#!/bin/sh\n: >'{}'\nexit 1\n", ran.display()))?;
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755))?;
        Ok(self.text(path))
    }

    /// Returns the names of the programs that ran.
    pub(crate) fn ran(&self) -> Result<Vec<String>> {
        let name =
            |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        fs::read_dir(self.path("ran"))?.map(name).collect()
    }

    /// Runs git in a directory, without this machine's configuration.
    pub(crate) fn git<S: AsRef<OsStr>>(&self, directory: &str, arguments: &[S]) -> Result<()> {
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for setting in ["user.name=Ann", "user.email=ann@example.com", "init.defaultBranch=main"] {
            command.args(["-c", setting]);
        }
        command.args(["-c", "protocol.file.allow=always", "-C"]).arg(self.path(directory)).args(arguments);
        let output = command.output().context("git")?;
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_owned()).collect();
        ensure!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Makes a repository with two directories and attributes for the drivers `evil`.
    pub(crate) fn repository(&self, directory: &str) -> Result<()> {
        for (file, text) in [
            ("code", "one\n"),
            ("sub/code", "one\n"),
            (".gitignore", "*.o\n"),
            (".gitattributes", "*.t filter=evil diff=evil merge=evil\n"),
            ("x.t", "t\n"),
        ] {
            self.write(&format!("{directory}/{file}"), text)?;
        }
        self.git(directory, &["init", "-q"])?;
        self.git(directory, &["add", "-A"])?;
        self.git(directory, &["commit", "-qm", "begin"])
    }

    /// Adds an entry to the configuration of the repository in `project`. The entry is written as text, because `git
    /// config` would refuse some entries.
    pub(crate) fn configure(&self, key: &str, value: &str) -> Result<()> {
        let path = self.path("project/.git/config");
        let text = format!("{}{}", fs::read_to_string(&path)?, entry(key, value)?);
        Ok(fs::write(path, text)?)
    }
}

/// The text of a configuration file with one entry.
pub(crate) fn entry(key: &str, value: &str) -> Result<String> {
    let (section, rest) = key.split_once('.').context("a key")?;
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(match rest.rsplit_once('.') {
        Some((subsection, name)) => format!("[{section} \"{subsection}\"]\n\t{name} = \"{value}\"\n"),
        None => format!("[{section}]\n\t{rest} = \"{value}\"\n"),
    })
}
