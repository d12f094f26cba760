//! Turns a fresh process into pid 1 of a sandbox.
//!
//! ```text
//!  outer   own session ─ sources opened ─ namespaces unshared ─ ids mapped ─ fork ─ reports the child
//!                                                                        │     ─ makes the network ─ exit
//!  inner                                                                └─ becomes the agent's user
//!            host name ─ root built and entered ─ network joined ─ limits ─ privileges dropped ─ Landlock ─ filter
//!            ─ ready
//! ```
//! The process has only one thread, so that fork and unshare affect the complete process. After `ready` the guest runs
//! in the inner process, which cannot undo any of the restrictions.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bottle_backend::restrictions::seccomp;
use nix::sched::CloneFlags;
use nix::unistd::{Gid, Uid};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::image::{mounted, owned};
use super::sources::Sources;
use super::spec::SandboxSpec;
use super::sys::{Forked, fork};
use super::{identity, landlock, network, privileges, root};
use crate::local::cgroups;
use crate::local::failure::Step;
use crate::local::spawn_ipc::{ChildEnd, Report, SetupFailure, SetupPart};

/// The process in which [`enter`] returns.
pub(crate) enum Entered {
    /// The process that the backend started. This process has completed its part of the setup and must exit.
    Outer,
    /// Pid 1 of the sandbox, with an empty standard input. If an overlay combines the bottle's changes with an image,
    /// contains the open upper directory.
    Inner(Option<OwnedFd>),
}

/// Creates the sandbox and becomes its pid 1. Reports a failure to the backend before returning it.
///
/// # Errors
/// [`SetupFailure`]. The process must then exit.
pub(crate) fn enter(spec: &SandboxSpec, child_end: ChildEnd) -> Result<Entered, SetupFailure> {
    let made = make(spec, &child_end);
    if let Err(failure) = &made {
        // An error is ignored, because the backend that waits for the report may have exited.
        let _ = child_end.report(&Report::Failed(failure.clone()));
    }
    let Some(Confined { null, changed }) = made? else { return Ok(Entered::Outer) };
    child_end.ready(null).step("report that the sandbox is ready")?;
    Ok(Entered::Inner(changed))
}

/// File descriptors that pid 1 keeps open.
struct Confined {
    /// `/dev/null`, which becomes standard input.
    null: OwnedFd,
    /// The upper directory, which contains the bottle's changes to its image.
    changed: Option<OwnedFd>,
}

/// Creates the sandbox. Returns `None` in the outer process.
fn make(spec: &SandboxSpec, child_end: &ChildEnd) -> Result<Option<Confined>, SetupFailure> {
    // `setsid` fails only in a process that already leads a session, so its error is ignored.
    let _ = rustix::process::setsid();
    privileges::raise_oom_score();
    cgroups::join(&spec.groups)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let sources = if spec.outside_id.is_some() {
        // Only root in the initial user namespace can open paths that are private to root.
        let sources = Sources::open(spec)?;
        unshare()?;
        child_end.report(&Report::AwaitsIds).step("request its ids")?;
        child_end.wait().step("wait for its ids")?;
        sources
    } else {
        unshare()?;
        identity::map_self(uid, gid, spec.inside()).step_of(SetupPart::Namespaces, "map its ids")?;
        Sources::open(spec)?
    };
    let (outer, inner) = UnixStream::pair().step("make a socket pair")?;
    let proc = openat(CWD, "/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("open /proc")?;
    match fork().step("make its first process")? {
        Forked::Parent(pid) => {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            child_end.report(&Report::Started { pid }).step("report the sandbox's process id")?;
            network::make_for(&outer, &proc).step("make its network")?;
            Ok(None)
        }
        Forked::Child => {
            drop((outer, proc));
            let confined = confine(spec, &sources, &inner)?;
            // The read returns when the outer process exits. The outer process exits only after it has reported this
            // process to the backend. The sandbox therefore cannot become ready before the backend has recorded its pid
            // 1.
            rustix::io::read(&inner, &mut [0_u8; 1][..]).step("wait for the outer process")?;
            Ok(Some(confined))
        }
    }
}

/// Unshares the user, mount, pid, ipc, uts and cgroup namespaces. [`network::make_for`] creates the network namespace
/// later.
fn unshare() -> Result<(), SetupFailure> {
    let all = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    nix::sched::unshare(all).step_of(SetupPart::Namespaces, "make namespaces")
}

fn confine(spec: &SandboxSpec, sources: &Sources, outer: &UnixStream) -> Result<Confined, SetupFailure> {
    if spec.outside_id.is_some() {
        nix::unistd::setgroups(&[]).step("leave root's groups")?;
    }
    let inside = spec.inside();
    let (uid, gid) = (Uid::from_raw(inside.uid), Gid::from_raw(inside.gid));
    nix::unistd::setresgid(gid, gid, gid).step("take its group")?;
    nix::unistd::setresuid(uid, uid, uid).step("take its user")?;
    rustix::system::sethostname(spec.hostname.as_bytes()).step("set its host name")?;
    let changed = match &sources.image {
        None => {
            root::build(spec, sources)?;
            None
        }
        Some(image) => mounted::build(spec, image, sources)?,
    };
    network::join(outer).step("join its network")?;
    let null = OpenOptions::new().read(true).open("/dev/null").step("open /dev/null")?;
    privileges::limit(spec.processes).step("set its limits")?;
    privileges::drop_all().step("drop its privileges")?;
    landlock::restrict(spec.nested, spec.image.is_some(), changed.as_ref())
        .map_err(std::io::Error::other)
        .step("restrict its files")?;
    if spec.image.is_some() {
        owned::install().map_err(std::io::Error::other).step("leave its files with their owner")?;
    }
    seccomp::install(spec.nested).map_err(std::io::Error::other).step("install the system call filter")?;
    Ok(Confined { null: null.into(), changed })
}
