//! `/etc` inside: an allowlist of what programs read there, never the host's folder.
//!
//! Users, names and certificates are the bottle's own. The system's certificate store *is* the bundle that
//! the guest provisions, so programs that know no variable trust the door as well.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use bottle_contract::names::{AGENT_UID, AGENT_USER, CA_BUNDLE_FILE, DOOR_LOOPBACK};
use bottle_contract::names::{EGRESS_HOST, GIT_GATE_HOST, SUPERVISE_HOST};
use rustix::fs::{Mode, OFlags, openat, symlinkat};

use super::failure::Step;
use super::mounts::{folder, split};
use super::root::place;
use super::sources::{READ_ONLY, Source};
use super::spec::SandboxSpec;
use crate::backend::local::handoff::SetupFailure;

/// Files and links of the host that say nothing about it, copied when they are there.
const COPIED: [&str; 14] = [
    "/etc/debian_version",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/mailcap",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/redhat-release",
    "/etc/services",
    "/etc/timezone",
];

/// Folders of the host that say nothing about it.
const SHARED: [&str; 4] = ["/etc/alternatives", "/etc/crypto-policies", "/etc/fonts", "/etc/terminfo"];

/// Where distributions keep the one file with all roots.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// Where OpenSSL looks for its settings.
const OPENSSL: &str = "/etc/ssl/openssl.cnf";

/// The most that is copied of one file; the loader's cache of a full desktop is a tenth of it.
const COPY_MAX: u64 = 4 << 20;

/// Fills `/etc` under the new root; the host's is still at its place.
pub(super) fn build(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    for (path, content) in own(spec) {
        write(root, Path::new(path), content.as_bytes()).step_at("write", Path::new(path))?;
    }
    for path in COPIED.iter().chain([&OPENSSL]).map(Path::new) {
        copy(root, path).step_at("copy", path)?;
    }
    for path in SHARED.map(Path::new) {
        if let Some(source) = Source::at(path, READ_ONLY).step_at("open", path)? {
            place(root, path, &source)?;
        }
    }
    for path in ROOTS.map(Path::new) {
        link(root, Path::new(CA_BUNDLE_FILE), path).step_at("link", path)?;
    }
    link(root, Path::new("/proc/self/mounts"), Path::new("/etc/mtab")).step("link /etc/mtab")
}

fn own(spec: &SandboxSpec) -> [(&'static str, String); 8] {
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let nobody = 65_534;
    [
        (
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 {AGENT_USER}:x:{AGENT_UID}:{AGENT_UID}:{AGENT_USER}:/home/{AGENT_USER}:{shell}\n\
                 nobody:x:{nobody}:{nobody}:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("/etc/group", format!("root:x:0:\n{AGENT_USER}:x:{AGENT_UID}:\nnogroup:x:{nobody}:\n")),
        (
            "/etc/hosts",
            format!(
                "127.0.0.1 localhost {}\n::1 localhost\n\
                 {DOOR_LOOPBACK} {EGRESS_HOST} {SUPERVISE_HOST} {GIT_GATE_HOST}\n",
                spec.hostname
            ),
        ),
        ("/etc/resolv.conf", format!("nameserver {DOOR_LOOPBACK}\n")),
        ("/etc/hostname", format!("{}\n", spec.hostname)),
        ("/etc/machine-id", format!("{}\n", spec.machine_id)),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n".to_owned()),
        ("/etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
    ]
}

fn copy(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    if let Ok(target) = std::fs::read_link(path) {
        return link(root, &target, path);
    }
    let file = match File::open(path) {
        // One that only root may read is not for an agent either.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(());
        }
        file => file?,
    };
    let mut content = Vec::new();
    file.take(COPY_MAX).read_to_end(&mut content)?;
    write(root, path, &content)
}

fn write(root: BorrowedFd<'_>, path: &Path, content: &[u8]) -> io::Result<()> {
    let (parent, name) = split(path)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(folder(root, parent)?, name, flags, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(content)
}

fn link(root: BorrowedFd<'_>, target: &Path, path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    Ok(symlinkat(target, folder(root, parent)?, name)?)
}
