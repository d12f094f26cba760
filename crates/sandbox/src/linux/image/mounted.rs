//! Builds the root file system of a sandbox from an image.
//!
//! ```text
//!   /                 the image's files under the bottle's changes, or the bottle's copy; writable
//!   /dev /proc        minimal and masked, as on the host's system
//!   /tmp /run         tmpfs
//!   /etc              the image's directory, with a few files of this launch
//!   /run/bottle       this program, the proxy's sockets
//!   /workspace        a directory of the bottle, or a directory of the user
//!   /git-objects      the objects that a copied repository shares with the host's, read-only
//! ```
//! No file of the host's system is visible. An agent that ran earlier may have replaced files by links, so each path is
//! opened without following links. If a path cannot be created because another kind of file exists at this path, the
//! start fails.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use super::files::{Files, OVERLAY};
use crate::linux::mounts::{READ_ONLY, Tree, WRITABLE, directory};
use crate::linux::sources::Sources;
use crate::linux::spec::SandboxSpec;
use crate::linux::sys::{Forbid, restrict_mount};
use crate::linux::{devices, etc, root};
use crate::local::failure::Step;
use crate::local::layers::{COPY, UPPER, WORK};
use crate::local::spawn_ipc::{SetupFailure, SetupPart};

/// The files of [`etc::own`] that a bottle on an image also needs.
const OWN: [&str; 4] = ["hosts", "resolv.conf", "hostname", "machine-id"];

/// The size limit of a tmpfs that contains only mount points: `/dev`, and a directory that exists only during the
/// setup.
const STAGE_SIZE: &str = "64k";

/// Builds the new root and enters it. Returns the open upper directory, which has no path in the bottle. Returns `None`
/// if the bottle has its own copy of the image, because all files of the copy have a path in the bottle.
///
/// # Errors
/// [`SetupFailure`] that names the step.
pub(in crate::linux) fn build(
    spec: &SandboxSpec,
    image: &Files,
    sources: &Sources,
) -> Result<Option<OwnedFd>, SetupFailure> {
    let options = [("mode", "0755"), ("size", STAGE_SIZE)];
    let stage =
        Tree::new("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NODEV).step("make a directory for mounts")?;
    let host = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("open /")?;
    stage.attach(&host).step("mount a directory for mounts")?;
    let tree = make_root(image, &stage)?;
    let changed = image.lower.as_ref().map(|_| open_changed(image)).transpose()?;
    // `root::enter` unmounts only one mount, so no mount except the new root may remain on the host's root.
    unmount(path(&stage), UnmountFlags::DETACH).step("unmount the directory for mounts")?;
    tree.attach(&host).step("mount the root file system")?;
    let root = tree.root();
    write_etc(root, spec)?;
    make_devices(root, spec)?;
    cover_sys(root)?;
    root::in_memory(root, spec)?;
    root::own_directories(root, sources)?;
    if spec.is_read_only() {
        restrict_mount(root, READ_ONLY, false).step("make the root read-only")?;
    }
    root::enter(root)?;
    Ok(changed)
}

/// Opens the upper directory for reading.
fn open_changed(image: &Files) -> Result<OwnedFd, SetupFailure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(image.own.root(), UPPER, flags, Mode::empty()).step("open the bottle's changes")
}

/// Creates the root mount: an overlay of the image and the bottle's changes, or the bottle's copy of the image.
fn make_root(image: &Files, stage: &Tree) -> Result<Tree, SetupFailure> {
    let mount_point =
        |name: &str| directory(stage.root(), Path::new(name)).step("make a directory for mounts");
    image.own.attach(mount_point("own")?).step("mount the bottle's files")?;
    let Some(lower) = &image.lower else {
        let copy = CString::new(COPY).map_err(io::Error::from).step("name the bottle's copy of its image")?;
        return Tree::clone_at(image.own.root(), &copy, WRITABLE)
            .step("mount the bottle's copy of its image");
    };
    lower.attach(mount_point("image")?).step("mount the image")?;
    let (lower, own) = (path(lower), path(&image.own));
    let (upper, work) = (format!("{own}/{UPPER}"), format!("{own}/{WORK}"));
    Tree::overlay(&lower, &upper, &work, &[]).step_of(SetupPart::Overlay, OVERLAY)
}

/// Returns a path to an open mount, through the mount's file descriptor.
fn path(tree: &Tree) -> String {
    format!("/proc/self/fd/{}", tree.root().as_raw_fd())
}

/// Writes the files of `/etc` that are generated for each launch. The agent may change these files. The next launch
/// replaces them.
fn write_etc(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let directory = directory(root, Path::new("/etc")).step("open /etc")?;
    for (name, content) in etc::own(spec) {
        if !OWN.contains(&name) {
            continue;
        }
        let written = match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => etc::write(&directory, name, content.as_bytes()),
            Err(error) => Err(io::Error::from(error)),
        };
        written.step_at("write /etc", Path::new(name))?;
    }
    Ok(())
}

/// Mounts an empty, read-only `/sys`, as in a bottle that uses the host's system directories.
fn cover_sys(root: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    let sys = Tree::new("tmpfs", &[("mode", "0555"), ("size", "4k")], read_only).step("make /sys")?;
    sys.attach(directory(root, Path::new("/sys")).step("open /sys")?).step("mount /sys")
}

/// Mounts a new `/dev`. The mount contains no files of the image, and its content is lost when the bottle ends.
fn make_devices(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let options = [("mode", "0755"), ("size", STAGE_SIZE)];
    let dev = Tree::new("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOEXEC).step("make /dev")?;
    dev.attach(directory(root, Path::new("/dev")).step("open /dev")?).step("mount /dev")?;
    devices::build(root, spec)?;
    let forbid = Forbid { writes: true, devices: true, programs: true };
    restrict_mount(dev.root(), forbid, false).step("make /dev read-only")
}
