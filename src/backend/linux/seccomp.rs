//! System calls that nothing in a bottle makes: the ways to new privileges, to the kernel's rarely used
//! corners, and to namespaces of one's own.
//!
//! A list of what is refused, on top of no capabilities and no new privileges. EPERM for what exists and is
//! not allowed; ENOSYS for what programs try and do without, and for every number past the last call this
//! list was made for, which covers calls of a newer kernel and the second numbering of x86-64 (x32). A call
//! of another architecture kills the process.
//!
//! Pid 1 is the same user as the agent, so that the kernel lets the agent limit or slow it like any process
//! of its own. Calls that do so are refused by their arguments.

use bottle_harden::HardenError;
use bottle_harden::filter::Filter;
use nix::libc;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompRule};

/// First number that is answered with ENOSYS whatever it may be: one past `removexattrat`.
const UNKNOWN: u32 = 467;

/// Refused with EPERM, whatever the arguments.
const FORBIDDEN: &[libc::c_long] = &[
    // The tree of mounts, and other roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_fanotify_init,
    // Namespaces.
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // The kernel itself: its code, its keys, its clocks, its log.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
];

/// Answered with ENOSYS: programs try these and go on with what they used before. `clone3` hides its flags
/// behind a pointer, where no filter can read them.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_memfd_secret,
];

/// `clone` with any of these makes a namespace.
const NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
    0x80, // CLONE_NEWTIME, which `clone` itself ignores
];

/// `personality` may be asked for, and set to what everyone has.
const PERSONALITIES: [u64; 2] = [0, 0xffff_ffff];

/// The guest, as a process is numbered inside.
const PID_1: u64 = 1;

/// `setpriority` and `ioprio_set` for every process of a user.
const PRIO_USER: u64 = 2;
const IOPRIO_WHO_USER: u64 = 3;

/// Installs the filter on this thread, the only one.
///
/// # Errors
/// When it cannot be built here, or the kernel refuses it.
pub(in crate::backend) fn install() -> Result<(), HardenError> {
    filter()?.apply()
}

fn filter() -> Result<Filter, HardenError> {
    let mut filter = Filter::default();
    filter.refuse(FORBIDDEN, libc::EPERM);
    filter.refuse(ABSENT, libc::ENOSYS);
    filter.refuse_from(UNKNOWN, libc::ENOSYS);
    for (call, rules) in by_arguments()? {
        filter.refuse_when(call, rules, libc::EPERM);
    }
    Ok(filter)
}

/// A call and the arguments with which it is refused.
type Refused = (libc::c_long, Vec<SeccompRule>);

fn by_arguments() -> Result<Vec<Refused>, HardenError> {
    let namespaces: Result<_, _> = NAMESPACES
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            all([(0, Len::Qword, Op::MaskedEq(flag), flag)])
        })
        .collect();
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| all([(1, Len::Dword, Op::Eq, request)]));
    let mut refused = vec![
        (libc::SYS_clone, namespaces?),
        (libc::SYS_socket, sockets()?),
        (libc::SYS_ioctl, terminal.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_personality, vec![all(PERSONALITIES.map(|known| (0, Len::Dword, Op::Ne, known)))?]),
    ];
    refused.extend(on_pid_1()?);
    Ok(refused)
}

/// Sockets but those that reach loopback, a neighbour in the bottle, or the list of interfaces.
fn sockets() -> Result<Vec<SeccompRule>, HardenError> {
    let domain = |op, family: i32| (0, Len::Dword, op, u64::from(family.unsigned_abs()));
    let raw = (1, Len::Dword, Op::MaskedEq(0xf), u64::from(libc::SOCK_RAW.unsigned_abs()));
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let route = (2, Len::Dword, Op::Ne, u64::from(libc::NETLINK_ROUTE.unsigned_abs()));
    Ok(vec![
        all(families.map(|family| domain(Op::Ne, family)))?,
        all([domain(Op::Eq, libc::AF_INET), raw.clone()])?,
        all([domain(Op::Eq, libc::AF_INET6), raw])?,
        all([domain(Op::Eq, libc::AF_NETLINK), route])?,
    ])
}

/// Calls on pid 1 that would need no privilege.
fn on_pid_1() -> Result<Vec<Refused>, HardenError> {
    let mut refused = Vec::new();
    for call in [
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
    ] {
        refused.push((call, vec![all([(0, Len::Dword, Op::Eq, PID_1)])?]));
    }
    // Of all processes of the user, pid 1 is one.
    for (call, user) in [(libc::SYS_setpriority, PRIO_USER), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)] {
        let itself = all([(1, Len::Dword, Op::Eq, PID_1)])?;
        refused.push((call, vec![itself, all([(0, Len::Dword, Op::Eq, user)])?]));
    }
    // Limits are a whole process's and may be set by the number of any of its threads, of which pid 1 has
    // some from time to time. So they are set for oneself only, as `setrlimit` does; all may be read.
    let another = (0, Len::Dword, Op::Ne, 0);
    refused.push((libc::SYS_prlimit64, vec![all([another, (2, Len::Qword, Op::Ne, 0)])?]));
    Ok(refused)
}

fn all<const N: usize>(conditions: [(u8, Len, Op, u64); N]) -> Result<SeccompRule, HardenError> {
    let conditions: Result<Vec<_>, _> = conditions
        .into_iter()
        .map(|(argument, length, op, value)| Condition::new(argument, length, op, value))
        .collect();
    Ok(SeccompRule::new(conditions?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_built_and_fits_the_kernels_bound() {
        let program = filter().and_then(|filter| filter.program()).expect("built");
        assert!(program.len() > FORBIDDEN.len() && program.len() < 4096, "{}", program.len());
    }

    #[test]
    fn no_refused_call_is_past_the_bound() {
        for number in FORBIDDEN.iter().chain(ABSENT) {
            assert!(*number < libc::c_long::from(UNKNOWN), "{number}");
        }
    }
}
