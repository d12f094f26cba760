//! Uses seccomp to deny the system calls that no running daemon needs.
//!
//! The filter is a list of denied calls, so it remains correct if libc or the async runtime starts to use
//! other calls. Most of the protection comes from the Landlock rules, the dropped capabilities, and the ban
//! on starting programs. Denied calls fail with EPERM. Only `clone3` fails with ENOSYS, so that libc falls
//! back to `clone`, whose flags a filter can check.

use nix::libc;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, TargetArch};

use crate::seccomp_filter::Filter;
use crate::unneeded_syscalls::{KERNEL, SANDBOXING};
use crate::{HardenError, MissingProtection};

/// System calls that start programs and processes. Only [`restrict`] denies them.
const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// System calls that no daemon needs, in addition to those in [`KERNEL`] and [`SANDBOXING`]. These calls access other
/// processes, or are kernel interfaces with a history of bugs.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_name_to_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_personality,
];

/// The flags of `clone` that create a namespace for the new process. A user namespace would give the process
/// capabilities inside it.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The socket families that are allowed: IPv4, IPv6, and the unix sockets on which a daemon may listen.
/// Creating a socket of another family fails.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Applies the seccomp filter to the calling thread and to the threads that it later starts. The process can then start
/// threads, but neither processes nor programs.
///
/// # Errors
/// Fails with [`HardenError::Filter`] if the kernel supports seccomp but refuses the filter.
pub fn restrict() -> Result<Option<MissingProtection>, HardenError> {
    apply(false)
}

/// Like [`restrict`], but the process may start programs, which inherit the filter.
///
/// # Errors
/// Fails in the same cases as [`restrict`].
pub fn restrict_but_programs() -> Result<Option<MissingProtection>, HardenError> {
    apply(true)
}

fn apply(programs: bool) -> Result<Option<MissingProtection>, HardenError> {
    if TargetArch::try_from(std::env::consts::ARCH).is_err() {
        return Ok(Some(MissingProtection("no system-call filter for this processor".into())));
    }
    match filter(programs)?.apply() {
        Err(HardenError::Filter(seccompiler::Error::Seccomp(error)))
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
        {
            Ok(Some(MissingProtection("this kernel has no seccomp filters".into())))
        }
        applied => applied.map(|()| None),
    }
}

fn filter(programs: bool) -> Result<Filter, HardenError> {
    let mut filter = Filter::passing();
    for calls in [REFUSED, KERNEL, SANDBOXING] {
        filter.refuse(calls, libc::EPERM);
    }
    filter.refuse(&[libc::SYS_clone3], libc::ENOSYS);
    let mut refused = Vec::new();
    if programs {
        for namespace in (0..32).map(|bit| 1 << bit).filter(|bit| NAMESPACES & bit != 0) {
            let requested = condition(SeccompCmpOp::MaskedEq(flag(namespace)), flag(namespace))?;
            refused.push(SeccompRule::new(vec![requested])?);
        }
    } else {
        filter.refuse(PROGRAMS, libc::EPERM);
        // `clone` starts a thread if CLONE_THREAD is set, and a process otherwise.
        let no_thread = condition(SeccompCmpOp::MaskedEq(flag(libc::CLONE_THREAD)), 0)?;
        refused.push(SeccompRule::new(vec![no_thread])?);
    }
    filter.refuse_when(libc::SYS_clone, refused, libc::EPERM);
    let others = FAMILIES
        .iter()
        .map(|family| condition(SeccompCmpOp::Ne, flag(*family)))
        .collect::<Result<Vec<_>, _>>()?;
    filter.refuse_when(libc::SYS_socket, vec![SeccompRule::new(others)?], libc::EPERM);
    Ok(filter)
}

/// A condition on the first argument of a system call.
fn condition(op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, HardenError> {
    Ok(SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, value)?)
}

fn flag(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}
