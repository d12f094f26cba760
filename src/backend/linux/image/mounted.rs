//! An image as the root of a bottle.
//!
//! ```text
//!   /                 the image's files under what the bottle changed, or a copy of its own; writable
//!   /dev /proc        minimal and masked, as on the host's system
//!   /tmp /run         tmpfs
//!   /etc              the image's, with a few files that belong to this launch
//!   /run/bottle       this program, the proxy
//!   /workspace        the bottle's own
//! ```
//! Nothing of the host's system is there. What the agent changed may be anything: each place is opened without
//! following a link, and one that is in the way ends the start.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use super::owners;
use crate::backend::linux::mounts::{Tree, folder};
use crate::backend::linux::sources::{READ_ONLY, Sources, WRITABLE};
use crate::backend::linux::spec::{ImageSpec, SandboxSpec};
use crate::backend::linux::sys::{Forbid, map_owners, restrict_mount};
use crate::backend::linux::{devices, etc, root};
use crate::backend::local::failure::Step;
use crate::backend::local::layers::{COPY, UPPER, WORK};
use crate::backend::local::spawn_ipc::SetupFailure;

/// The step that fails where image and changes cannot be laid over each other.
pub(crate) const LAY_OVER: &str = "lay the bottle's files over its image";

/// Of what [`etc::own`] writes for the host's system, what an image needs as well.
const OWN: [&str; 4] = ["hosts", "resolv.conf", "hostname", "machine-id"];

/// Room for mount points.
const STAGE_SIZE: &str = "64k";

/// The files of an image, opened.
pub(in crate::backend::linux) struct Files {
    /// Those that nobody writes to; absent when the bottle has a copy.
    lower: Option<Tree>,
    /// The bottle's layers.
    own: Tree,
}

impl Files {
    /// Opens them. `outside` is the user that a bottle of root's is.
    ///
    /// # Errors
    /// [`SetupFailure`] naming the path.
    pub(in crate::backend::linux) fn open(
        image: &ImageSpec,
        outside: Option<u32>,
    ) -> Result<Self, SetupFailure> {
        let lower = image.root.as_deref().map(|root| {
            let tree = Tree::of_host(root, READ_ONLY).step_at("open the image", root)?;
            if let Some(id) = outside {
                owners::root_as(id).and_then(|users| map_owners(tree.root(), users)).step(LAY_OVER)?;
            }
            Ok(tree)
        });
        let own = Tree::of_host(&image.layers, WRITABLE).step_at("open", &image.layers)?;
        Ok(Self { lower: lower.transpose()?, own })
    }
}

/// Builds the new root and makes it this process's only one. Returns what the bottle changes of its image, opened:
/// there is no path to it from then on. Nothing for a copy, which is all there to be looked at.
///
/// # Errors
/// [`SetupFailure`] naming the step.
pub(in crate::backend::linux) fn build(
    spec: &SandboxSpec,
    image: &Files,
    sources: &Sources,
) -> Result<Option<OwnedFd>, SetupFailure> {
    let options = [("mode", "0755"), ("size", STAGE_SIZE)];
    let stage =
        Tree::new("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NODEV).step("make a place for mounts")?;
    let host = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("open /")?;
    stage.attach(&host).step("mount a place for mounts")?;
    let tree = lay_over(image, &stage)?;
    let changed = image.lower.as_ref().map(|_| open_changed(image)).transpose()?;
    // Nothing but the new root may lie on the host's: what is let go of at the end is one mount with all in it.
    unmount(path(&stage), UnmountFlags::DETACH).step("let go of the place for mounts")?;
    tree.attach(&host).step("mount the root file system")?;
    let root = tree.root();
    write_etc(root, spec)?;
    make_devices(root, spec)?;
    cover_sys(root)?;
    root::in_memory(root, spec)?;
    root::own_folders(root, sources)?;
    root::enter(root)?;
    Ok(changed)
}

/// What is over the image, for looking into it.
fn open_changed(image: &Files) -> Result<OwnedFd, SetupFailure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(image.own.root(), UPPER, flags, Mode::empty()).step("open the bottle's changes")
}

/// The root: the image with the bottle's changes over it, or the bottle's copy.
fn lay_over(image: &Files, stage: &Tree) -> Result<Tree, SetupFailure> {
    let place = |name: &str| folder(stage.root(), Path::new(name)).step("make a place for mounts");
    image.own.attach(place("own")?).step("mount the bottle's files")?;
    let Some(lower) = &image.lower else {
        let copy = CString::new(COPY).map_err(io::Error::from).step("name the bottle's copy of its image")?;
        return Tree::of_folder(image.own.root(), &copy, WRITABLE)
            .step("mount the bottle's copy of its image");
    };
    lower.attach(place("image")?).step("mount the image")?;
    let (lower, own) = (path(lower), path(&image.own));
    let (upper, work) = (format!("{own}/{UPPER}"), format!("{own}/{WORK}"));
    Tree::overlay(&lower, &upper, &work, &[]).step(LAY_OVER)
}

/// The path of an open mount.
fn path(tree: &Tree) -> String {
    format!("/proc/self/fd/{}", tree.root().as_raw_fd())
}

/// What of `/etc` belongs to a launch. An agent may change it, as everything, and finds it new the next time.
fn write_etc(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let folder = folder(root, Path::new("/etc")).step("open /etc")?;
    for (name, content) in etc::own(spec) {
        if !OWN.contains(&name) {
            continue;
        }
        let written = match unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => etc::write(&folder, name, content.as_bytes()),
            Err(error) => Err(io::Error::from(error)),
        };
        written.step_at("write /etc", Path::new(name))?;
    }
    Ok(())
}

/// Empty and read-only, as where the system is the host's.
fn cover_sys(root: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    let sys = Tree::new("tmpfs", &[("mode", "0555"), ("size", "4k")], read_only).step("make /sys")?;
    sys.attach(folder(root, Path::new("/sys")).step("open /sys")?).step("mount /sys")
}

/// Over a `/dev` of its own: nothing of it is the image's or stays.
fn make_devices(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let options = [("mode", "0755"), ("size", STAGE_SIZE)];
    let dev = Tree::new("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOEXEC).step("make /dev")?;
    dev.attach(folder(root, Path::new("/dev")).step("open /dev")?).step("mount /dev")?;
    devices::build(root, spec)?;
    let forbid = Forbid { writes: true, devices: true, programs: true };
    restrict_mount(dev.root(), forbid, false).step("make /dev read-only")
}
