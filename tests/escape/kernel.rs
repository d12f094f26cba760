//! Tests that a bottle cannot use system calls that only an attack on the kernel needs.

use bottle_test_support::skip;
use nix::libc;

use crate::attempts;
use crate::fixture::every_isolating_backend;

/// A system call: its name, its number, its arguments, and the error that it returns in a bottle. Outside a bottle, the
/// call with these arguments has no lasting effect.
type Refused = (&'static str, libc::c_long, &'static str, &'static str);

const REFUSED: &[Refused] = &[
    ("add_key", libc::SYS_add_key, "b'user', b'bottle-test', b'x', 1, -2", "EPERM"),
    ("keyctl", libc::SYS_keyctl, "0, -3, 1", "EPERM"),
    ("request_key", libc::SYS_request_key, "b'user', b'bottle-test', 0, -2", "EPERM"),
    ("bpf", libc::SYS_bpf, "0, 0, 0", "EPERM"),
    ("perf_event_open", libc::SYS_perf_event_open, "0, 0, -1, -1, 0", "EPERM"),
    ("userfaultfd", libc::SYS_userfaultfd, "1", "EPERM"),
    ("io_uring_setup", libc::SYS_io_uring_setup, "1, bytes(120)", "ENOSYS"),
    ("io_uring_enter", libc::SYS_io_uring_enter, "-1, 0, 0, 0, 0, 0", "ENOSYS"),
    ("clone3", libc::SYS_clone3, "0, 0", "ENOSYS"),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, "-1, 0, 0", "ENOSYS"),
    ("kexec_load", libc::SYS_kexec_load, "0, 0, 0, 0xffff", "EPERM"),
    ("init_module", libc::SYS_init_module, "0, 0, b''", "EPERM"),
    ("finit_module", libc::SYS_finit_module, "-1, b'', 0", "EPERM"),
    ("delete_module", libc::SYS_delete_module, "b'bottle-test', 0x800", "EPERM"),
    ("reboot", libc::SYS_reboot, "0, 0, 0, 0", "EPERM"),
    ("swapon", libc::SYS_swapon, "b'/bottle-test', 0", "EPERM"),
    ("syslog", libc::SYS_syslog, "10, 0, 0", "EPERM"),
    ("settimeofday", libc::SYS_settimeofday, "0, 0", "EPERM"),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, "-1, 0, 0", "EPERM"),
    ("fanotify_init", libc::SYS_fanotify_init, "0xffffffff, 0", "EPERM"),
    ("mount", libc::SYS_mount, "0, 0, 0, 0, 0", "EPERM"),
    ("umount2", libc::SYS_umount2, "b'/bottle-test', 0", "EPERM"),
    ("pivot_root", libc::SYS_pivot_root, "0, 0", "EPERM"),
    ("chroot", libc::SYS_chroot, "b'/bottle-test'", "EPERM"),
    ("open_tree", libc::SYS_open_tree, "-1, 0, 1", "EPERM"),
    ("move_mount", libc::SYS_move_mount, "-1, 0, -1, 0, 0", "EPERM"),
    ("mount_setattr", libc::SYS_mount_setattr, "-1, 0, 0, 0, 0", "EPERM"),
    ("fsopen", libc::SYS_fsopen, "0, 0", "EPERM"),
    ("fspick", libc::SYS_fspick, "-1, 0, 0", "EPERM"),
    ("unshare", libc::SYS_unshare, "0", "EPERM"),
    ("setns", libc::SYS_setns, "-1, 0", "EPERM"),
    ("sethostname", libc::SYS_sethostname, "0, 0xffffffff", "EPERM"),
];

#[tokio::test(flavor = "multi_thread")]
async fn kernel_interface_calls_are_refused() {
    if !attempts::possible("calls into the kernel") {
        return;
    }
    let mut script = attempts::CALLS.to_owned();
    for (name, number, arguments, _) in REFUSED {
        script.push_str(&format!("call('{name}', {number}, {arguments})\n"));
    }
    // A call is skipped if the kernel of this machine lacks it.
    let outside = attempts::outside(&script);
    let has = |name: &str| !outside.contains(&format!("{name} ENOSYS\n"));
    let all = REFUSED.iter().filter(|refused| has(refused.0));
    let known: Vec<&Refused> = all.collect();
    assert_eq!(outside.lines().count(), REFUSED.len(), "{outside}");
    assert!(known.len() > 20, "the control: {outside}");
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("caller").await;
        let inside = attempts::inside(&bottle, &script).await;
        for (name, _, _, answer) in &known {
            assert!(inside.contains(&format!("{name} {answer}\n")), "{}: {name}: {inside}", fixture.name());
        }
        bottle.remove().await;
    }
}

/// `clone` with each flag that creates a namespace. If the call creates a child process, this process exits
/// immediately.
const NAMESPACES: [(&str, i32); 7] = [
    ("user", libc::CLONE_NEWUSER),
    ("mount", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
];

#[tokio::test(flavor = "multi_thread")]
async fn clone_creates_no_namespace() {
    if !attempts::possible("namespaces of new processes") {
        return;
    }
    let mut script = attempts::CALLS.to_owned();
    for (name, flag) in [("none", 0)].into_iter().chain(NAMESPACES) {
        script.push_str(&format!(
            "if call('{name}', {}, {}, 0, 0, 0, 0) == 0: os._exit(0)\n",
            libc::SYS_clone,
            flag | libc::SIGCHLD
        ));
    }
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("splitter").await;
        let inside = attempts::inside(&bottle, &script).await;
        // After a plain `clone`, both parent and child print a line.
        let refused: Vec<String> = NAMESPACES.iter().map(|(name, _)| format!("{name} EPERM")).collect();
        let mut lines: Vec<&str> = inside.lines().collect();
        lines.retain(|line| *line != "none done");
        assert_eq!(lines, refused, "{}", fixture.name());
        assert!(inside.contains("none done"), "{}: {inside}", fixture.name());
        bottle.remove().await;
    }
}

/// Machine code that calls `getpid` with the system call instruction of 32-bit programs.
#[cfg(target_arch = "x86_64")]
const OLD_NUMBERING: &str = "import ctypes, mmap, os\n\
    room = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
    room.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n\
    ask = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))\n\
    print('asked', ask() == os.getpid(), flush=True)\n";

#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn other_system_call_numberings_are_refused() {
    if !attempts::possible("another numbering") {
        return;
    }
    let old_is_here = attempts::outside(OLD_NUMBERING) == "asked True\n";
    if !old_is_here {
        skip::aloud("32-bit calls", &"this kernel takes none");
    }
    // Bit 30 selects the x32 system call numbers. The rest of the number is that of `getpid`.
    let second = format!("{}call('x32', {})\n", attempts::CALLS, 0x4000_0000 + libc::SYS_getpid);
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("numbers").await;
        assert_eq!(attempts::inside(&bottle, &second).await, "x32 ENOSYS\n", "{}", fixture.name());
        if old_is_here {
            let channel = bottle.connect().await;
            let argv = ["/usr/bin/python3", "-c", OLD_NUMBERING];
            let (said, exit) = crate::fixture::run(&channel, &argv).await.expect("ran");
            let ended = bottle_protocol::session::guest::Exit::Signal(31);
            assert_eq!((said.as_str(), exit), ("", ended), "{}", fixture.name());
        }
        bottle.remove().await;
    }
}
