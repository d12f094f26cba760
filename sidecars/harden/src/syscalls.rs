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
use crate::{HardenError, Weaker};

/// Never needed, beside [`KERNEL`] and [`SANDBOXING`]: programs, other processes and their memory, and kernel
/// interfaces with a history of bugs.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
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
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Socket families that remain: the world, and the door.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Applies the filter to this thread and all it will start. From here on the process starts threads and
/// no processes.
///
/// # Errors
/// [`HardenError::Filter`] when the kernel has seccomp and refuses.
pub fn restrict() -> Result<Option<Weaker>, HardenError> {
    if TargetArch::try_from(std::env::consts::ARCH).is_err() {
        return Ok(Some(Weaker("no system-call filter for this processor".into())));
    }
    match filter()?.apply() {
        Err(HardenError::Filter(seccompiler::Error::Seccomp(error)))
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
        {
            Ok(Some(Weaker("this kernel has no seccomp filters".into())))
        }
        applied => applied.map(|()| None),
    }
}

fn filter() -> Result<Filter, HardenError> {
    let mut filter = Filter::passing();
    for calls in [REFUSED, KERNEL, SANDBOXING] {
        filter.refuse(calls, libc::EPERM);
    }
    filter.refuse(&[libc::SYS_clone3], libc::ENOSYS);
    // A thread is a clone that shares everything; whatever else clone makes is a process.
    let no_thread = condition(SeccompCmpOp::MaskedEq(flag(libc::CLONE_THREAD)), 0)?;
    filter.refuse_when(libc::SYS_clone, vec![SeccompRule::new(vec![no_thread])?], libc::EPERM);
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
