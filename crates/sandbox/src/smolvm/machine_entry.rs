//! Runs `bottle __machine`, the first process that smolvm starts in a machine.
//!
//! ```text
//!  machine    bind the guest's socket ─ connect to the host ─ fork ─ wait until the sandbox ends ─ power off
//!                                                               │
//!  sandbox                                                      └─ receive the specification ─ become an ordinary user
//!                                                                  ─ enter the sandbox ─ the guest, as its pid 1
//! ```
//! The machine runs the sandbox of the linux backend. An agent is therefore confined in the machine in the same way as
//! on the host. It has to break out of the sandbox before it can attack the virtual machine monitor.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

use bottle_guest::Transport;
use bottle_host::causes;
use nix::unistd::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, wait};
use serde::{Deserialize, Serialize};

use super::inside;
use crate::guest_entry;
use crate::linux::spec::SandboxSpec;
use crate::linux::sys::{Forked, fork};
use crate::local::spawn_ipc::ChildEnd;

/// The first argument of the process.
pub const FLAG: &str = "__machine";

/// The file with which root controls the kernel. Writing `o` powers the machine off. Writing `b` restarts the machine,
/// which also ends the virtual machine monitor.
const KERNEL: &str = "/proc/sysrq-trigger";

/// How long the kernel may take to power the machine off.
const POWER_OFF: Duration = Duration::from_secs(5);

/// The specification that the backend sends to the process. Contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MachineSpec {
    /// The user id of the user who started the machine. In the machine, the machine's files belong to this user too.
    pub(super) uid: u32,
    /// The group id of the user who started the machine.
    pub(super) gid: u32,
    /// The specification of the sandbox in the machine.
    pub(super) sandbox: SandboxSpec,
}

/// The entry point of `bottle __machine`.
#[must_use]
pub fn run() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            // smolvm writes the error to the machine's log. The backend reports the last line of this log.
            let _ = io::Write::write_fmt(
                &mut io::stderr(),
                format_args!("machine: {}\n", causes::one_line(&error)),
            );
            ExitCode::FAILURE
        }
    }
}

fn start() -> io::Result<ExitCode> {
    let listener = UnixListener::bind(inside::GUEST)?;
    let host = UnixStream::connect(inside::SETUP)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    match fork()? {
        Forked::Parent(_) => {
            drop((listener, host));
            wait_for_children()?;
            power_off()?;
            Ok(ExitCode::SUCCESS)
        }
        Forked::Child => {
            let (child_end, spec, _) = ChildEnd::receive_from::<MachineSpec>(host)?;
            become_user(spec.uid, spec.gid)?;
            guest_entry::run_sandbox(&spec.sandbox, child_end, || Ok(Transport::Listener(listener)))
        }
    }
}

/// Drops root's privileges and becomes the user to whom the machine's files belong. This user then creates the sandbox,
/// as on the host.
fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    if uid == 0 {
        return Err(io::Error::other("root cannot be the user of a bottle"));
    }
    nix::unistd::setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)?;
    // The change of the user made the process non-dumpable, and root therefore owns the id maps of the process in
    // `/proc`. The process must own its id maps to create the sandbox. The last step of the sandbox's setup makes the
    // process non-dumpable again.
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Waits until no process of the sandbox remains.
fn wait_for_children() -> io::Result<()> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Powers the machine off. The host then frees the machine's memory, and refuses connections to the guest.
fn power_off() -> io::Result<()> {
    rustix::fs::sync();
    for command in ["o", "b"] {
        fs::write(KERNEL, command)?;
        std::thread::sleep(POWER_OFF);
    }
    Err(io::Error::other("the machine does not power off"))
}
