//! The system calls that an agent's programs may make.
//!
//! A list of what is allowed ([`allowed`]), on top of no capabilities and no new privileges. What exists and is
//! refused on purpose ([`bottle_harden::calls`]) fails with EPERM, so that a program says what it says to any ordinary user; everything
//! else with ENOSYS, as if the kernel were older: `clone3`, which hides its flags behind a pointer where no
//! filter can read them, `io_uring`, whatever a newer kernel adds, and the second numbering of x86-64 (x32). A
//! call of another architecture kills the process.
//!
//! Pid 1 is the same user as the agent, so that the kernel lets the agent limit or slow it like any process
//! of its own. Calls that do so are refused by their arguments.
//!
//! `resources.nested` opens what a program needs that makes a sandbox of its own: namespaces, mounts, roots.
//!
//! libcontainer (youki) was weighed for this and for what is around it. It makes a container of an OCI bundle:
//! a folder, a configuration file and a state folder of its own for each. Which calls, which files, whose ids
//! and how the first process gets its socket would still be said by us, in its configuration instead of in
//! calls, and that is most of what these modules are; the rest is a few system calls each.

mod allowed;

use bottle_harden::HardenError;
use bottle_harden::calls::{KERNEL, SANDBOXING};
use bottle_harden::filter::Filter;
use nix::libc;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompRule};

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
pub(in crate::backend) fn install(nested: bool) -> Result<(), HardenError> {
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
    // As a kernel without that protocol says it, upon which programs take the plain one.
    filter.refuse_when(libc::SYS_socket, odd_protocols()?, libc::EPROTONOSUPPORT);
    Ok(filter)
}

fn namespaces() -> Result<Vec<SeccompRule>, HardenError> {
    let flags = NAMESPACES.iter().map(|flag| u64::from(flag.unsigned_abs()));
    flags.map(|flag| all([(0, Len::Qword, Op::MaskedEq(flag), flag)])).collect()
}

/// A call and the arguments with which it is refused.
type Refused = (libc::c_long, Vec<SeccompRule>);

fn by_arguments() -> Result<Vec<Refused>, HardenError> {
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| all([(1, Len::Dword, Op::Eq, request)]));
    let mut refused = vec![
        (libc::SYS_socket, sockets()?),
        (libc::SYS_socketpair, vec![all([domain(Op::Ne, libc::AF_UNIX)])?]),
        (libc::SYS_ioctl, terminal.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_personality, vec![all(PERSONALITIES.map(|known| (0, Len::Dword, Op::Ne, known)))?]),
    ];
    refused.extend(on_pid_1()?);
    Ok(refused)
}

/// A condition: which argument, how wide, how compared, with what.
type Compared = (u8, Len, Op, u64);

fn domain(op: Op, family: i32) -> Compared {
    (0, Len::Dword, op, number(family))
}

fn number(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

/// Sockets but those that reach loopback, a neighbour in the bottle, or the list of interfaces.
fn sockets() -> Result<Vec<SeccompRule>, HardenError> {
    let raw = (1, Len::Dword, Op::MaskedEq(0xf), number(libc::SOCK_RAW));
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    Ok(vec![
        all(families.map(|family| domain(Op::Ne, family)))?,
        all([domain(Op::Eq, libc::AF_INET), raw.clone()])?,
        all([domain(Op::Eq, libc::AF_INET6), raw])?,
    ])
}

/// Protocols of the internet families that nobody's tools need and that the kernel would load code for, and all
/// that the kernel itself is spoken to by but the list of interfaces: `useradd` asks for the machine's audit log,
/// and does without where there is none.
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
    fn the_filter_is_built_and_fits_the_kernels_bound() {
        for nested in [false, true] {
            let program = filter(nested).and_then(|filter| filter.program()).expect("built");
            assert!((200..4096).contains(&program.len()), "{}", program.len());
        }
    }

    #[test]
    fn no_call_is_both_allowed_and_refused_or_named_twice() {
        let by_arguments = by_arguments().expect("built");
        let mut all = [allowed::EVERYWHERE, allowed::HERE, allowed::LATER, KERNEL, SANDBOXING].concat();
        all.extend(by_arguments.iter().map(|(call, _)| *call));
        all.extend([libc::SYS_clone, libc::SYS_clone3, libc::SYS_memfd_secret, libc::SYS_io_uring_setup]);
        all.sort_unstable();
        let twice: Vec<_> = all.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert_eq!(twice, [] as [&[libc::c_long]; 0]);
    }
}
