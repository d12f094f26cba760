//! Keeps the programs of a bottle from making set-id programs in a directory of the user (`--cwd=live`).
//!
//! Inside the bottle set-id bits have no effect. On the host, anybody who can reach a set-id program could run it with
//! the rights of the user, or of root if root owns the directory. The filter applies to the processes that the guest
//! starts. The filter does not apply to the guest itself, because the guest opens files with `openat2`. The mode of
//! `openat2` is in memory, which a filter cannot read. For the processes that the guest starts, `openat2` fails with
//! ENOSYS, as on an older kernel.

use std::io;
use std::sync::Arc;

use bottle_guest::Confine;
use bottle_harden::HardenError;
use bottle_harden::seccomp_filter::Filter;
use nix::libc;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompRule};

/// The bits that make a program run with the rights of its owner or group.
const BITS: [u64; 2] = [0o4000, 0o2000];

/// The system calls with a mode argument, each with the index of that argument.
const WITH_MODE: &[(libc::c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
];

/// The system calls with flags followed by a mode, each with the index of the flags. The mode has an effect only if the
/// flags create a file.
const WITH_FLAGS: &[(libc::c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
    (libc::SYS_openat, 2),
];

/// The flags with which a call creates a file. `O_TMPFILE` includes the bit of `O_DIRECTORY`, which alone creates no
/// file.
const CREATING: [i32; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Returns the restriction for each process that the guest starts.
///
/// # Errors
/// When the filter cannot be built on this processor architecture.
pub fn refused() -> Result<Confine, HardenError> {
    let program = filter()?.program()?;
    Ok(Confine(Arc::new(move || {
        // The closure runs between fork and exec, where an error must not allocate memory.
        seccompiler::apply_filter(&program).map_err(|_| io::Error::from_raw_os_error(libc::EPERM))
    })))
}

fn filter() -> Result<Filter, HardenError> {
    let mut filter = Filter::passing();
    filter.refuse(&[libc::SYS_openat2], libc::ENOSYS);
    for (call, mode) in WITH_MODE {
        let rules = BITS.map(|bit| rule([(*mode, bit)]));
        filter.refuse_when(*call, rules.into_iter().collect::<Result<_, _>>()?, libc::EPERM);
    }
    for (call, flags) in WITH_FLAGS {
        let creating = CREATING.iter().map(|flag| u64::from(flag.unsigned_abs()));
        let rules = creating.flat_map(|flag| BITS.map(|bit| rule([(*flags, flag), (flags + 1, bit)])));
        filter.refuse_when(*call, rules.collect::<Result<_, _>>()?, libc::EPERM);
    }
    Ok(filter)
}

/// Matches a call whose arguments contain these bits.
fn rule<const N: usize>(bits: [(u8, u64); N]) -> Result<SeccompRule, HardenError> {
    let conditions = bits.map(|(argument, bit)| Condition::new(argument, Len::Dword, Op::MaskedEq(bit), bit));
    Ok(SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_fits_the_kernels_size_limit() {
        let program = filter().and_then(|filter| filter.program()).expect("built");
        assert!((20..4096).contains(&program.len()), "{}", program.len());
    }
}
