//! Copies build tools of this machine into a root file system that [`small_root`](crate::small_root) created.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;
use crate::small_root::{copy, libraries_of, place};

/// The paths of pip as distributions install it. Pip downloads the build dependencies of packages.
const PIP: [&str; 2] = ["/usr/lib/python3/dist-packages/pip", "/usr/lib/python3/site-packages/pip"];

/// Files that the compiler needs for linking. The compiler prints their paths.
const LINKED_BY: [&str; 3] = ["collect2", "ld", "lto-wrapper"];
const LINKED_WITH: [&str; 18] = [
    "crt1.o",
    "Scrt1.o",
    "crti.o",
    "crtn.o",
    "crtbeginS.o",
    "crtendS.o",
    "libgcc.a",
    "libgcc_s.so",
    "libgcc_s.so.1",
    "libc.so",
    "libc_nonshared.a",
    "libm.so",
    "libmvec.so.1",
    "libpthread.a",
    "libdl.a",
    "librt.a",
    "libutil.a",
    "liblto_plugin.so",
];

/// The path of the toolchain in the root file system.
pub const TOOLCHAIN: &str = "/opt/rust";

/// Adds pip, npm with Node, and a Rust toolchain with a linker.
///
/// # Errors
/// Returns an error if a tool is missing or cannot be copied.
pub fn add(root: &Path, toolchain: &Path) -> io::Result<()> {
    for pip in PIP.map(Path::new).into_iter().filter(|pip| pip.exists()) {
        copy(pip, &place(root, pip))?;
    }
    node(root)?;
    linker(root)?;
    rust(root, toolchain)
}

fn node(root: &Path) -> io::Result<()> {
    program(root, Path::new("/usr/bin/node"))?;
    let npm = fs::canonicalize("/usr/bin/npm")?;
    let package = npm.ancestors().nth(2).ok_or_else(|| missing("npm's package"))?;
    copy(package, &place(root, package))?;
    std::os::unix::fs::symlink(&npm, root.join("usr/bin/npm"))
}

fn linker(root: &Path) -> io::Result<()> {
    for name in ["gcc", "ld"] {
        program(root, &Path::new("/usr/bin").join(name))?;
    }
    std::os::unix::fs::symlink("gcc", root.join("usr/bin/cc"))?;
    let query = LINKED_BY.map(|name| format!("-print-prog-name={name}"));
    let files = LINKED_WITH.map(|name| format!("-print-file-name={name}"));
    for query in query.iter().chain(&files) {
        let output = Command::new("/usr/bin/gcc").arg(query).output()?.stdout;
        let path = PathBuf::from(String::from_utf8_lossy(&output).trim());
        // gcc prints a name without a path for a missing program, or for a program on the search path.
        let (Some(parent), Some(name)) = (path.parent().filter(|_| path.is_absolute()), path.file_name())
        else {
            continue;
        };
        program(root, &fs::canonicalize(parent)?.join(name))?;
    }
    Ok(())
}

fn rust(root: &Path, toolchain: &Path) -> io::Result<()> {
    let inside = root.join(TOOLCHAIN.trim_start_matches('/'));
    for directory in ["bin", "lib"] {
        copy(&toolchain.join(directory), &inside.join(directory))?;
    }
    libraries_of(["rustc", "cargo"].map(|name| toolchain.join("bin").join(name)), root)
}

/// Copies a file to the same path in the root. If it is a program, copies its libraries too.
fn program(root: &Path, path: &Path) -> io::Result<()> {
    let to = place(root, path);
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    program::copy(path, &to).map_err(|_| missing(&path.display().to_string()))?;
    libraries_of([path.to_owned()], root)
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {what} here"))
}
