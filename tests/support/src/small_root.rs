//! A small file system of this machine's own programs, for what runs in images: no engine is needed, and an
//! ordinary user can make it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What scripts in tests need.
const PROGRAMS: &[&str] = &[
    "awk", "basename", "bash", "cat", "chmod", "chown", "chroot", "cmp", "cp", "cut", "date", "dd", "df",
    "dirname", "du", "echo", "env", "false", "find", "getent", "git", "grep", "head", "hostname", "id", "ln",
    "ls", "mkdir", "mkfifo", "mknod", "mount", "mv", "printf", "ps", "pwd", "python3", "readlink", "rm",
    "rmdir", "sed", "seq", "sh", "sleep", "sort", "stat", "su", "tail", "tar", "test", "touch", "tr", "true",
    "truncate", "umount", "uname", "uniq", "unshare", "wc", "xargs",
];

/// Where programs are found.
const PATH: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// Links that every distribution has by now.
const LINKS: [(&str, &str); 4] =
    [("usr/bin", "bin"), ("usr/bin", "sbin"), ("usr/lib", "lib"), ("usr/lib64", "lib64")];

/// Parts of Python's library that only its own tests and tools need.
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

/// Makes it in this folder, which is made.
///
/// # Errors
/// When something of this machine cannot be copied.
pub fn make(root: &Path) -> io::Result<()> {
    for folder in ["etc/ssl/certs", "home", "usr/bin", "usr/lib", "usr/lib64", "var/tmp", "opt"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for (target, link) in LINKS {
        symlink(target, root.join(link))?;
    }
    let (passwd, group) = ("root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n");
    for (name, text) in [("passwd", passwd), ("group", group), ("nsswitch.conf", "hosts: files dns\n")] {
        fs::write(root.join("etc").join(name), text)?;
    }
    for name in PROGRAMS {
        let Some(program) = PATH.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
        else {
            continue;
        };
        fs::copy(&program, root.join("usr/bin").join(name))?;
        libraries_of(&program, root)?;
    }
    python_library(root)
}

/// The libraries that the loader finds for a program.
fn libraries_of(program: &Path, root: &Path) -> io::Result<()> {
    let listed = Command::new("ldd").arg(program).output()?;
    for word in String::from_utf8_lossy(&listed.stdout).split_ascii_whitespace() {
        let path = Path::new(word);
        if !path.is_absolute() || !path.exists() {
            continue;
        }
        // Where the links above lead.
        let inside = path.strip_prefix("/usr").or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        let place = root.join("usr").join(inside);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(path, place)?;
    }
    Ok(())
}

fn python_library(root: &Path) -> io::Result<()> {
    let print = "import os; print(os.path.dirname(os.__file__))";
    let Ok(found) = Command::new("/usr/bin/python3").args(["-c", print]).output() else { return Ok(()) };
    let library = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    match library.strip_prefix("/usr") {
        Ok(inside) => copy(&library, &root.join("usr").join(inside)),
        Err(_) => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
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
