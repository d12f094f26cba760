//! Builds `/etc` of a sandbox from an allowlist of host files. The host's `/etc` itself is never mounted.
//!
//! User names, host names and certificates are generated for the bottle. The paths of the system's certificate store
//! are links to the certificate bundle that the guest writes. Programs without a configurable certificate path
//! therefore trust the proxy too.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bottle_backend::{JAVA_ROOT_FILES, ROOT_FILES};
use bottle_policy::names::{AGENT_UID, AGENT_USER, CA_BUNDLE_FILE, PROXY_LOOPBACK, TRUSTSTORE_FILE};
use bottle_policy::names::{EGRESS_HOST, GIT_GATE_HOST, SUPERVISE_HOST};
use rustix::fs::{CWD, Mode, OFlags, openat, symlinkat};
use rustix::io::Errno;

use super::mounts::{READ_ONLY, directory, split};
use super::sources::Source;
use super::spec::SandboxSpec;
use crate::local::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// Files and links in the host's `/etc` that do not identify the host. The setup copies those of them that exist.
const COPIED: [&str; 12] = [
    "debian_version",
    "inputrc",
    "ld.so.conf",
    "localtime",
    "lsb-release",
    "magic",
    "mailcap",
    "os-release",
    "protocols",
    "redhat-release",
    "services",
    "timezone",
];

/// Host directories and large files that do not identify the host. The setup mounts these paths instead of copying
/// them.
const SHARED: [&str; 9] = [
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/ld.so.cache",
    // Maven does not start without `logging` and `m2.conf`. Maven's settings files are not shared, because they may
    // contain credentials.
    "/etc/maven/logging",
    "/etc/maven/m2.conf",
    "/etc/mime.types",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
];

/// The maximum number of bytes copied from one file. The largest file of [`COPIED`] has a tenth of this size. The rest
/// of a longer file is omitted.
const COPY_MAX: u64 = 128 << 10;

/// Builds `/etc` under the new root while the host's root is still mounted at `/`.
pub(super) fn build(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let etc = directory(root, Path::new("/etc")).step("make /etc")?;
    for (name, content) in own(spec) {
        write(&etc, name, content.as_bytes()).step_at("write /etc", Path::new(name))?;
    }
    for name in COPIED {
        copy(&etc, name).step_at("copy /etc", Path::new(name))?;
    }
    let java = java_settings().step("list /etc")?;
    for path in SHARED.map(Path::new).into_iter().chain(java.iter().map(PathBuf::as_path)) {
        if let Some(source) = Source::at(path, READ_ONLY).step_at("open", path)? {
            source.mount_at(root, path)?;
        }
    }
    let roots = ROOT_FILES.map(|file| (Path::new(file), CA_BUNDLE_FILE));
    let java_roots = JAVA_ROOT_FILES.map(|file| (Path::new(file), TRUSTSTORE_FILE));
    for (path, provisioned) in roots.into_iter().chain(java_roots) {
        let (parent, name) = split(path).step_at("link", path)?;
        let parent = directory(root, parent).step_at("make the directory of", path)?;
        symlinkat(provisioned, parent, name).step_at("link", path)?;
    }
    symlinkat("/proc/self/mounts", &etc, "mtab").step("link /etc/mtab")
}

/// The directories in which distributions keep the settings of their Java packages (`/etc/java-17-openjdk`,
/// `/etc/java`). Java does not start without these directories.
fn java_settings() -> io::Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    for entry in std::fs::read_dir("/etc")? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == "java" || name.starts_with("java") && name.ends_with("-openjdk") {
            directories.push(Path::new("/etc").join(&*name));
        }
    }
    Ok(directories)
}

/// The files of `/etc` that are generated for the bottle.
pub(super) fn own(spec: &SandboxSpec) -> [(&'static str, String); 8] {
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let nobody = 65_534;
    [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 {AGENT_USER}:x:{AGENT_UID}:{AGENT_UID}:{AGENT_USER}:/home/{AGENT_USER}:{shell}\n\
                 nobody:x:{nobody}:{nobody}:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("group", format!("root:x:0:\n{AGENT_USER}:x:{AGENT_UID}:\nnogroup:x:{nobody}:\n")),
        (
            "hosts",
            format!(
                "127.0.0.1 localhost {}\n::1 localhost\n\
                 {PROXY_LOOPBACK} {EGRESS_HOST} {SUPERVISE_HOST} {GIT_GATE_HOST}\n",
                spec.hostname
            ),
        ),
        ("resolv.conf", format!("nameserver {PROXY_LOOPBACK}\n")),
        ("hostname", format!("{}\n", spec.hostname)),
        ("machine-id", format!("{}\n", spec.machine_id)),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n".to_owned()),
        ("shells", "/bin/sh\n/bin/bash\n".to_owned()),
    ]
}

fn copy(etc: &OwnedFd, name: &str) -> io::Result<()> {
    let path = Path::new("/etc").join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(CWD, &path, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Ok(symlinkat(std::fs::read_link(path)?, etc, name)?),
        // The agent does not need a file that only root may read.
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(()),
        file => File::from(file?),
    };
    let length = file.metadata()?.len().min(COPY_MAX);
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(length).read_to_end(&mut content)?;
    write(etc, name, &content)
}

/// Writes a new file.
///
/// # Errors
/// The error of the failed system call.
pub(super) fn write(etc: &OwnedFd, name: &str, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(etc, name, flags, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(content)
}
