//! seccomp: the system calls that no daemon needs once it runs.
//!
//! A list of what is refused, not of what is allowed: it must hold over libc and runtime updates, and
//! the file rules, the lost capabilities and the empty process tree carry most of the weight. Refused
//! calls fail with EPERM; `clone3` fails with ENOSYS, upon which libc uses `clone`, whose flags a filter
//! can read.

use nix::libc;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, TargetArch};

use crate::calls::{KERNEL, SANDBOXING};
use crate::filter::Filter;
use crate::{HardenError, MissingProtection};

/// Programs and processes: for a daemon that starts none.
const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Never needed, beside [`KERNEL`] and [`SANDBOXING`]: other processes' memory, and kernel interfaces with a
/// history of bugs.
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

/// Namespaces that a new process could be given, one of which makes it mighty in itself.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Socket families that remain: the world, and the proxy.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Applies the filter to this thread and all it will start. From here on the process starts threads and
/// no processes.
///
/// # Errors
/// [`HardenError::Filter`] when the kernel has seccomp and refuses.
pub fn restrict() -> Result<Option<MissingProtection>, HardenError> {
    apply(false)
}

/// The same for a daemon whose work other programs do: it may start them, and they are under the same filter.
///
/// # Errors
/// As [`restrict`].
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
            let asked = condition(SeccompCmpOp::MaskedEq(flag(namespace)), flag(namespace))?;
            refused.push(SeccompRule::new(vec![asked])?);
        }
    } else {
        filter.refuse(PROGRAMS, libc::EPERM);
        // A thread is a clone that shares everything; whatever else clone makes is a process.
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

/// Compares the first argument.
fn condition(op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, HardenError> {
    Ok(SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, value)?)
}

fn flag(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}
