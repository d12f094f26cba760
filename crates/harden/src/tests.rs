//! Tests each protection in a separate process. Each test runs this test program again with only the same test
//! selected. An environment variable marks the child process.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::{env, fs};

use crate::identity::Identity;
use crate::landlock::Files;
use crate::{daemon_syscalls, process};

/// Runs `hardened` in a child process that runs only the test named `test`. `hardened` panics on failure.
fn in_child_process(test: &str, hardened: fn()) {
    const SIDE: &str = "BOTTLE_HARDEN_TEST_SIDE";
    if env::var(SIDE).as_deref() == Ok(test) {
        return hardened();
    }
    let output = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "--test-threads=1", &format!("tests::{test}")])
        .env(SIDE, test)
        .output()
        .expect("start the child process");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {stderr}");
}

#[test]
fn denies_files_outside_the_rules() {
    in_child_process("denies_files_outside_the_rules", || {
        let directory = tempfile::tempdir().expect("directory");
        let [logs, proxy] = ["logs", "proxy"].map(|name| directory.path().join(name));
        fs::create_dir(&logs).expect("logs");
        fs::create_dir(&proxy).expect("proxy");
        let files = Files {
            read: vec!["/etc/hosts".into(), "/no/such/file".into()],
            write: vec![logs.clone()],
            sockets: vec![proxy.clone()],
            ..Files::default()
        };
        process::seal().expect("seal");
        if let Some(weaker) = files.restrict().expect("restrict") {
            eprintln!("skipped: {}", weaker.0);
            return;
        }
        fs::read("/etc/hosts").expect("a file to read");
        fs::File::open("/dev/urandom").expect("randomness");
        fs::write(logs.join("a"), "x").expect("a directory to write");
        fs::rename(logs.join("a"), logs.join("b")).expect("rename inside it");
        fs::remove_file(logs.join("b")).expect("remove inside it");
        UnixListener::bind(proxy.join("9099")).expect("a socket");
        fs::remove_file(proxy.join("9099")).expect("remove the socket");
        fs::read("/etc/passwd").expect_err("another file");
        fs::write(proxy.join("x"), "x").expect_err("a file beside the sockets");
        fs::write(directory.path().join("x"), "x").expect_err("a file elsewhere");
        TcpListener::bind("127.0.0.1:0").expect_err("a port");
    });
}

#[test]
fn reads_facts_about_the_machine_like_on_an_old_kernel() {
    in_child_process("reads_facts_about_the_machine_like_on_an_old_kernel", || {
        use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
        const PR_GET_AUXV: u64 = 0x4155_5856;
        if nix::unistd::getuid().is_root() {
            Identity { uid: 65_533, gid: 65_533 }.assume().expect("another user");
        }
        process::seal().expect("seal");
        fs::read("/proc/self/auxv").expect_err("the file belongs to root");
        // Kernels before 6.4 refuse `PR_GET_AUXV`, the second way to read the auxiliary vector (PR_GET_AUXV(2const)).
        let auxv = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, PR_GET_AUXV);
        let rule = SeccompRule::new(vec![auxv.expect("condition")]).expect("rule");
        let einval = SeccompAction::Errno(nix::libc::EINVAL.unsigned_abs());
        let filter = seccompiler::SeccompFilter::new(
            [(nix::libc::SYS_prctl, vec![rule])].into(),
            SeccompAction::Allow,
            einval,
            env::consts::ARCH.try_into().expect("this processor"),
        );
        let program: seccompiler::BpfProgram = filter.expect("filter").try_into().expect("program");
        seccompiler::apply_filter(&program).expect("applied");
        assert!(rustix::param::page_size() >= 4096);
        let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    });
}

#[test]
fn refuses_programs_processes_and_raw_sockets_but_not_threads() {
    let name = "refuses_programs_processes_and_raw_sockets_but_not_threads";
    in_child_process(name, || {
        process::seal().expect("seal");
        process::drop_capabilities().expect("capabilities");
        if let Some(weaker) = daemon_syscalls::restrict().expect("restrict") {
            eprintln!("skipped: {}", weaker.0);
            return;
        }
        Command::new("/bin/true").status().expect_err("a program");
        let sum = std::thread::spawn(|| 2 + 2).join().expect("a thread");
        assert_eq!(sum, 4);
        TcpListener::bind("127.0.0.1:0").expect("an ordinary socket");
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let packet = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None);
        assert_eq!(packet.err(), Some(nix::Error::EPERM));
        let status = fs::read_to_string("/proc/thread-self/status").expect("status");
        for line in ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}");
        }
    });
}

#[test]
fn limits_the_memory_of_the_process() {
    in_child_process("limits_the_memory_of_the_process", || {
        process::limit_memory(64 << 20).expect("limit");
        process::limit_memory(1 << 40).expect("a higher limit changes nothing");
        Vec::<u8>::new().try_reserve_exact(16 << 20).expect("memory within the limit");
        Vec::<u8>::new().try_reserve_exact(128 << 20).expect_err("memory beyond the limit");
    });
}
