//! Creates a small root file system from the programs of this machine, for tests of images. It needs neither
//! a container engine nor root privileges.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;

/// The programs that the scripts of tests use.
const PROGRAMS: &[&str] = &[
    "awk",
    "basename",
    "bash",
    "cat",
    "chmod",
    "chown",
    "chroot",
    "cmp",
    "cp",
    "curl",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "du",
    "echo",
    "env",
    "false",
    "find",
    "getent",
    "git",
    "git-upload-pack",
    "grep",
    "gzip",
    "head",
    "hostname",
    "id",
    "ln",
    "ls",
    "make",
    "mkdir",
    "mkfifo",
    "mknod",
    "mount",
    "mv",
    "nice",
    "printf",
    "ps",
    "pwd",
    "python3",
    "readlink",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sleep",
    "sort",
    "ssh",
    "ssh-keygen",
    "stat",
    "su",
    "tail",
    "tar",
    "test",
    "timeout",
    "tmux",
    "touch",
    "tr",
    "true",
    "truncate",
    "umount",
    "uname",
    "uniq",
    "unshare",
    "wc",
    "xargs",
];

/// The directories that are searched for programs.
const PATH: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// The directories that contain the system's libraries.
const SYSTEM: [&str; 3] = ["/usr", "/lib", "/lib64"];

/// The links that distributions with a merged `/usr` have.
const LINKS: [(&str, &str); 4] =
    [("usr/bin", "bin"), ("usr/bin", "sbin"), ("usr/lib", "lib"), ("usr/lib64", "lib64")];

/// Locale files, without which terminal programs support only ASCII.
const CHARACTERS: &str = "/usr/lib/locale/C.utf8";

/// Parts of Python's library that only its tests and tools need.
const WITHOUT: [&str; 10] = [
    "test",
    "idlelib",
    "tkinter",
    "lib2to3",
    "distutils",
    "ensurepip",
    "pydoc_data",
    "dist-packages",
    "turtledemo",
    "__pycache__",
];

/// Creates the root file system in a new directory.
///
/// # Errors
/// Returns an error if a file of this machine cannot be copied.
pub fn make(root: &Path) -> io::Result<()> {
    for directory in [
        "etc/ssl/certs",
        "home",
        "usr/bin",
        "usr/lib",
        "usr/lib64",
        "usr/share/git-core/templates",
        "var/tmp",
        "opt",
    ] {
        fs::create_dir_all(root.join(directory))?;
    }
    for (target, link) in LINKS {
        symlink(target, root.join(link))?;
    }
    let (passwd, group) = ("root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n");
    for (name, text) in [("passwd", passwd), ("group", group), ("nsswitch.conf", "hosts: files dns\n")] {
        fs::write(root.join("etc").join(name), text)?;
    }
    for name in PROGRAMS {
        let Some(program) =
            PATH.iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists())
        else {
            continue;
        };
        program::copy(&program, &root.join("usr/bin").join(name))?;
        libraries_of([program], root)?;
    }
    let characters = Path::new(CHARACTERS);
    if characters.exists() {
        copy(characters, &place(root, characters))?;
    }
    python_library(root)
}

/// Adds Python packages of this machine at the path `inside` of the root, with the libraries of their compiled modules.
///
/// # Errors
/// Returns an error if a file cannot be copied.
pub fn add_python_packages(root: &Path, packages: &Path, inside: &Path) -> io::Result<()> {
    let inside = root.join(inside.strip_prefix("/").unwrap_or(inside));
    copy(packages, &inside)?;
    libraries_of(compiled_below(&inside)?, root)
}

fn compiled_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut compiled_below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "so") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the libraries that the dynamic loader finds for these programs.
pub(crate) fn libraries_of(programs: impl IntoIterator<Item = PathBuf>, root: &Path) -> io::Result<()> {
    let listed = Command::new("ldd").args(programs).output()?;
    for word in String::from_utf8_lossy(&listed.stdout).split_ascii_whitespace() {
        let path = Path::new(word);
        // A program with bundled libraries has them in its own directory.
        let system = SYSTEM.iter().any(|system| path.starts_with(system));
        if !system || !path.exists() {
            continue;
        }
        let place = place(root, path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        program::copy(path, &place)?;
    }
    Ok(())
}

/// Returns the path of a system file in the root, with [`LINKS`] resolved.
pub(crate) fn place(root: &Path, path: &Path) -> PathBuf {
    root.join("usr").join(path.strip_prefix("/usr").or_else(|_| path.strip_prefix("/")).unwrap_or(path))
}

fn python_library(root: &Path) -> io::Result<()> {
    let print = "import os; print(os.path.dirname(os.__file__))";
    let Ok(found) = Command::new("/usr/bin/python3").args(["-c", print]).output() else { return Ok(()) };
    let library = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    match library.strip_prefix("/usr") {
        Ok(inside) => copy(&library, &root.join("usr").join(inside))?,
        Err(_) => return Ok(()),
    }
    // Python's compiled modules need further libraries.
    let compiled = fs::read_dir(library.join("lib-dynload")).into_iter().flatten();
    libraries_of(compiled.filter_map(|entry| Some(entry.ok()?.path())), root)
}

pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let (path, kind) = (entry.path(), entry.file_type()?);
        if WITHOUT.iter().any(|without| name == *without) {
            continue;
        }
        if kind.is_dir() {
            copy(&path, &to.join(name))?;
        } else if path.is_file() {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
