//! Builds the root file system of a sandbox that uses the host's system directories.
//!
//! ```text
//!   /                 tmpfs, read-only once it is built
//!   /usr /bin /lib …  the host's directories, read-only
//!   /etc              a few files of the host, the rest generated ([`super::etc`])
//!   /dev /proc        minimal and masked ([`super::devices`])
//!   /tmp /run         tmpfs
//!   /run/bottle       this program, the proxy's sockets
//!   /home/agent       a directory of the bottle
//!   /workspace        a directory of the bottle, or a directory of the user ([`super::live`])
//!   /git-objects      the objects that a copied repository shares with the host's, read-only
//!   /usr/local /opt   directories of the bottle; /usr/local is over the host's ([`super::prefix`])
//!   exposed paths     at the same path as on the host, read-only
//! ```
//! No other path of the host exists in the sandbox: there is no host home, /var, /root or /mnt, and /sys is empty.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use bottle_policy::names;
use rustix::fs::{CWD, Mode, OFlags, symlinkat};
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use super::mounts::{READ_ONLY, Tree, directory, file};
use super::sources::{Source, Sources};
use super::spec::SandboxSpec;
use super::sys::{Forbid, restrict_mount};
use super::{devices, etc, live, prefix};
use crate::local::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// The host's directories of programs and libraries. `/opt` is not in this list, because an agent's programs in `/opt`
/// are exposed one by one.
pub(crate) const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// The size limit of the root tmpfs. The root tmpfs contains generated files in `/etc` and mount points, and is
/// read-only after the setup.
const ROOT_SIZE: &str = "16m";

/// The size limit in bytes of the tmpfs `/run`, which contains certificates, the prompt, the task and runtime files of
/// programs.
const RUN_SIZE: u64 = 64 << 20;

/// Builds the new root and enters it.
///
/// # Errors
/// [`SetupFailure`] that names the step.
pub(super) fn build(spec: &SandboxSpec, sources: &Sources) -> Result<(), SetupFailure> {
    let tree = Tree::new("tmpfs", &[("mode", "0755"), ("size", ROOT_SIZE)], MountAttrFlags::MOUNT_ATTR_NODEV)
        .step("make a root file system")?;
    let host = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("open /")?;
    tree.attach(&host).step("mount the root file system")?;
    let root = tree.root();
    for path in SYSTEM.map(Path::new) {
        if let Some(source) = Source::at(path, READ_ONLY).step_at("open", path)? {
            source.mount_at(root, path)?;
        }
    }
    etc::build(root, spec)?;
    devices::build(root, spec)?;
    scratch(root, spec)?;
    own_directories(root, sources)?;
    if let Some(home) = sources.own.as_ref().and_then(|own| own.home.as_ref()) {
        prefix::build(root, home.root(), spec.is_read_only())?;
        if spec.is_read_only() {
            // The home stays writable up to this point, because the setup creates the directories of the prefixes in
            // the home.
            restrict_mount(home.root(), READ_ONLY, false).step("make the home read-only")?;
        }
    }
    for (path, source) in &sources.exposed {
        if !is_system(path) {
            source.mount_at(root, path)?;
        }
    }
    let forbid = Forbid { writes: true, devices: true, programs: true };
    restrict_mount(root, forbid, false).step("make the root read-only")?;
    enter(root)
}

/// Whether this path is in a directory of [`SYSTEM`]. Every bottle that uses the host's system files sees the
/// directories of [`SYSTEM`].
pub(crate) fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|system| path.starts_with(system))
}

fn scratch(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    in_memory(root, spec)?;
    directory(root, Path::new("/var")).step("make /var")?;
    for (target, link) in [("/tmp", "var/tmp"), ("/run", "var/run")] {
        symlinkat(target, root, link).step_at("link", Path::new(link))?;
    }
    // `/sys` is empty and read-only, so programs that enumerate devices find none.
    directory(root, Path::new("/sys")).step("make /sys")?;
    Ok(())
}

/// Mounts the tmpfs directories `/tmp` and `/run`, which contain only data of this launch.
pub(super) fn in_memory(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let plain = MountAttrFlags::MOUNT_ATTR_NODEV;
    for (path, mode, size) in [("/tmp", "1777", spec.scratch), ("/run", "0755", RUN_SIZE)] {
        let path = Path::new(path);
        let tree = Tree::in_memory(mode, size, plain).step_at("make", path)?;
        tree.attach(directory(root, path).step_at("make", path)?).step_at("mount", path)?;
    }
    Ok(())
}

pub(super) fn own_directories(root: BorrowedFd<'_>, sources: &Sources) -> Result<(), SetupFailure> {
    let program = Path::new(names::GUEST_PROGRAM);
    let over = file(root, program).step_at("make", program)?;
    sources.program.attach(over).step_at("mount", program)?;
    let ask = Path::new(names::COMMANDS_DIR).join(names::ASK_COMMAND);
    Source::Link(program.into()).mount_at(root, &ask)?;
    let home = format!("/home/{}", names::AGENT_USER);
    let Some(own) = &sources.own else { return Ok(()) };
    let home = own.home.iter().map(|tree| (home.as_str(), tree));
    let proxy = own.proxy.iter().map(|tree| (names::LISTENER_DIR, tree));
    let objects = own.objects.iter().map(|tree| (names::GIT_OBJECTS_DIR, tree));
    for (path, tree) in home.chain([(names::WORKSPACE, &own.workspace)]).chain(objects).chain(proxy) {
        let path = Path::new(path);
        tree.attach(directory(root, path).step_at("make", path)?).step_at("mount", path)?;
    }
    match &own.repository {
        Some((directory, repository)) => live::cover(directory, &own.workspace, repository),
        None => Ok(()),
    }
}

/// Makes `root` the root directory of this process and unmounts the host's file systems.
pub(super) fn enter(root: impl AsFd) -> Result<(), SetupFailure> {
    rustix::process::fchdir(root).step("enter the new root")?;
    // `pivot_root` mounts the old root over the new root at the same path `.`, so that the old root can be unmounted by
    // the path `.`.
    rustix::process::pivot_root(".", ".").step("change the root")?;
    unmount(".", UnmountFlags::DETACH).step("unmount the host's files")?;
    rustix::process::chdir("/").step("enter the new root")
}
