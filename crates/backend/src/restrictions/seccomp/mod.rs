//! Builds the seccomp filter for an agent's programs.
//!
//! The filter is an allowlist ([`allowed`]). Capabilities and `no_new_privs` also restrict the programs. Calls that the
//! filter refuses on purpose ([`bottle_harden::unneeded_syscalls`]) fail with EPERM, so that programs report the error
//! that an ordinary user gets. All other calls fail with ENOSYS, as on an older kernel: `clone3`, whose flags are in
//! memory that a filter cannot read; `io_uring`; calls of newer kernels; and calls with the x32 numbers of x86-64. A
//! call of another architecture kills the process.
//!
//! Pid 1 runs as the same user as the agent, so the kernel would let the agent set limits on pid 1 or slow it down. The
//! filter refuses these calls by their arguments.
//!
//! With `resources.nested` the filter allows the calls that nested sandboxes need: creating namespaces, mounting, and
//! changing the root.
//!
//! We considered libcontainer (youki) as a replacement for this module and its neighbours. libcontainer creates a
//! container from an OCI bundle, which needs a directory, a configuration file and a state directory for each
//! container. We would still define the system calls, files, ids and socket of the first process, only in a
//! configuration file instead of in code. Most code of these modules is this definition. The rest is a few system calls
//! in each module.

mod allowed;

use bottle_harden::HardenError;
use bottle_harden::seccomp_filter::Filter;
use bottle_harden::unneeded_syscalls::{KERNEL, SANDBOXING};
use nix::libc;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompRule};

/// The flags of `clone` that create a namespace.
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

/// The allowed arguments of `personality`: the default personality, and the query of the current one.
const PERSONALITIES: [u64; 2] = [0, 0xffff_ffff];

/// The guest's process id in the bottle.
const PID_1: u64 = 1;

/// The argument of `setpriority` and `ioprio_set` that selects all processes of a user.
const PRIO_USER: u64 = 2;
const IOPRIO_WHO_USER: u64 = 3;

/// Installs the filter on this thread, which must be the only thread of the process.
///
/// # Errors
/// When the filter cannot be built on this architecture, or the kernel refuses it.
pub fn install(nested: bool) -> Result<(), HardenError> {
    filter(nested)?.apply()
}

fn filter(nested: bool) -> Result<Filter, HardenError> {
    let mut filter = Filter::failing(libc::ENOSYS);
    for calls in [allowed::EVERYWHERE, allowed::HERE, allowed::LATER] {
        filter.allow(calls);
    }
    filter.refuse(KERNEL, libc::EPERM);
    if nested {
        filter.allow(SANDBOXING);
        filter.allow(&[libc::SYS_clone]);
    } else {
        filter.refuse(SANDBOXING, libc::EPERM);
        filter.refuse_when(libc::SYS_clone, namespaces()?, libc::EPERM);
    }
    for (call, rules) in by_arguments()? {
        filter.refuse_when(call, rules, libc::EPERM);
    }
    // A kernel without the requested protocol also returns `EPROTONOSUPPORT`. Programs then use the default protocol.
    filter.refuse_when(libc::SYS_socket, odd_protocols()?, libc::EPROTONOSUPPORT);
    Ok(filter)
}

fn namespaces() -> Result<Vec<SeccompRule>, HardenError> {
    let flags = NAMESPACES.iter().map(|flag| u64::from(flag.unsigned_abs()));
    flags.map(|flag| all([(0, Len::Qword, Op::MaskedEq(flag), flag)])).collect()
}

/// The requests that put text into a terminal.
#[allow(clippy::unnecessary_cast, reason = "musl gives these constants another type")]
const TERMINAL: [u64; 2] = [libc::TIOCSTI as u64, libc::TIOCLINUX as u64];

/// A system call, and the arguments with which the filter refuses it.
type Refused = (libc::c_long, Vec<SeccompRule>);

fn by_arguments() -> Result<Vec<Refused>, HardenError> {
    let terminal = TERMINAL.map(|request| all([(1, Len::Dword, Op::Eq, request)]));
    let mut refused = vec![
        (libc::SYS_socket, sockets()?),
        (libc::SYS_socketpair, vec![all([domain(Op::Ne, libc::AF_UNIX)])?]),
        (libc::SYS_ioctl, terminal.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_personality, vec![all(PERSONALITIES.map(|known| (0, Len::Dword, Op::Ne, known)))?]),
    ];
    refused.extend(on_pid_1()?);
    Ok(refused)
}

/// A condition on an argument: its index, its width, the comparison, and the value.
type Compared = (u8, Len, Op, u64);

fn domain(op: Op, family: i32) -> Compared {
    (0, Len::Dword, op, number(family))
}

fn number(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

/// Returns the rules that refuse all sockets except loopback sockets, sockets between processes in the bottle, and the
/// netlink socket that lists the interfaces.
fn sockets() -> Result<Vec<SeccompRule>, HardenError> {
    let raw = (1, Len::Dword, Op::MaskedEq(0xf), number(libc::SOCK_RAW));
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    Ok(vec![
        all(families.map(|family| domain(Op::Ne, family)))?,
        all([domain(Op::Eq, libc::AF_INET), raw.clone()])?,
        all([domain(Op::Eq, libc::AF_INET6), raw])?,
    ])
}

/// Returns the rules that refuse rare internet protocols, for which the kernel would load modules. The rules also
/// refuse all netlink protocols except the protocol that lists the interfaces. `useradd` tries to open the machine's
/// audit log through netlink, and works without it.
fn odd_protocols() -> Result<Vec<SeccompRule>, HardenError> {
    let usual = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
    let odd = |family| {
        let others = usual.map(|protocol| (2, Len::Dword, Op::Ne, number(protocol)));
        let conditions = [domain(Op::Eq, family)].into_iter().chain(others);
        rule(conditions)
    };
    let route = (2, Len::Dword, Op::Ne, number(libc::NETLINK_ROUTE));
    Ok(vec![odd(libc::AF_INET)?, odd(libc::AF_INET6)?, all([domain(Op::Eq, libc::AF_NETLINK), route])?])
}

/// Returns the refused calls on pid 1 that need no privilege.
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
    // Calls on all processes of a user would also affect pid 1.
    for (call, user) in [(libc::SYS_setpriority, PRIO_USER), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)] {
        let itself = all([(1, Len::Dword, Op::Eq, PID_1)])?;
        refused.push((call, vec![itself, all([(0, Len::Dword, Op::Eq, user)])?]));
    }
    // The limits of a process can be set through the id of any of its threads, and pid 1 sometimes has several threads.
    // A process may therefore set only its own limits, as `setrlimit` does. A process may read the limits of other
    // processes.
    let another = (0, Len::Dword, Op::Ne, 0);
    refused.push((libc::SYS_prlimit64, vec![all([another, (2, Len::Qword, Op::Ne, 0)])?]));
    Ok(refused)
}

fn all<const N: usize>(conditions: [Compared; N]) -> Result<SeccompRule, HardenError> {
    rule(conditions)
}

fn rule(conditions: impl IntoIterator<Item = Compared>) -> Result<SeccompRule, HardenError> {
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
    fn the_filter_fits_the_kernels_size_limit() {
        for nested in [false, true] {
            let program = filter(nested).and_then(|filter| filter.program()).expect("built");
            assert!((200..4096).contains(&program.len()), "{}", program.len());
        }
    }

    #[test]
    fn each_call_is_listed_once_and_never_both_allowed_and_refused() {
        let by_arguments = by_arguments().expect("built");
        let mut all = [allowed::EVERYWHERE, allowed::HERE, allowed::LATER, KERNEL, SANDBOXING].concat();
        all.extend(by_arguments.iter().map(|(call, _)| *call));
        all.extend([libc::SYS_clone, libc::SYS_clone3, libc::SYS_memfd_secret, libc::SYS_io_uring_setup]);
        all.sort_unstable();
        let twice: Vec<_> = all.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert_eq!(twice, [] as [&[libc::c_long]; 0]);
    }
}
