//! Tests the isolation of a bottle on backends that isolate.

use std::collections::BTreeMap;

use bottle_test_support::skip;

use crate::fixture::every_isolating_backend;

/// Parses `/proc/self/status`.
fn status(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(":\t")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_has_a_capability_or_can_gain_one() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("bare").await;
        for process in ["self", "1"] {
            let bottle = fixture.bottle(&format!("bare-{process}")).await;
            let text = bottle.shell(&format!("cat /proc/{process}/status")).await;
            let status = status(&text);
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                // Pid 1 of the apple backend keeps the capability to bind the proxy's ports. No program inherits this
                // capability.
                let keeps =
                    fixture.name() == "apple" && process == "1" && ["CapPrm", "CapEff"].contains(&set);
                let expected = if keeps { "0000000000000400" } else { "0000000000000000" };
                assert_eq!(status[set], expected, "{} {process} {set}", fixture.name());
            }
            assert_eq!(status["NoNewPrivs"], "1", "{} {process}", fixture.name());
            assert_eq!(status["Seccomp"], "2", "{} {process}", fixture.name());
            assert_eq!(status["Uid"], "1000\t1000\t1000\t1000", "{} {process}", fixture.name());
            bottle.remove().await;
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_is_unprivileged_outside() {
    for fixture in every_isolating_backend().await {
        if fixture.is_machine() {
            skip::aloud(fixture.name(), &"the processes of a virtual machine are not visible on the host");
            continue;
        }
        let bottle = fixture.bottle("outside").await;
        let channel = bottle.provisioned().await;
        let sleeper = tokio::spawn(async move {
            crate::fixture::run(&channel, &["sleep", "63.25"]).await.expect("ran");
        });
        let uid = loop {
            if let Some(uid) = outside_uid_of("63.25") {
                break uid;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        let own = rustix::process::getuid().as_raw();
        if fixture.is_contained() {
            // The engine maps the user ids. The mapping may be the identity.
            assert_ne!(uid, 0, "{}", fixture.name());
        } else if own == 0 {
            assert!((0x7000_0000..0x7100_0000).contains(&uid), "{}: {uid}", fixture.name());
        } else {
            assert_eq!(uid, own, "{}", fixture.name());
        }
        bottle.remove().await;
        sleeper.abort();
    }
}

fn outside_uid_of(argument: &str) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
    processes.map(|entry| entry.path()).find_map(|path| {
        let line = std::fs::read(path.join("cmdline")).ok()?;
        if line != format!("sleep\0{argument}\0").as_bytes() {
            return None;
        }
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        status.lines().find_map(|l| l.strip_prefix("Uid:\t")?.split('\t').next()?.parse().ok())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_protocol_reaches_the_outside() {
    let script = "import socket, errno\n\
        for family, kind, address in [\n\
          (socket.AF_INET, socket.SOCK_STREAM, ('198.51.100.1', 443)),\n\
          (socket.AF_INET, socket.SOCK_DGRAM, ('203.0.113.1', 53)),\n\
          (socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80)),\n\
          (socket.AF_INET6, socket.SOCK_STREAM, ('2001:db8::1', 443))]:\n\
        \x20 s = socket.socket(family, kind); s.settimeout(3)\n\
        \x20 try:\n\
        \x20   if kind == socket.SOCK_DGRAM: s.setsockopt(socket.SOL_IP, 11, 1)\n\
        \x20   s.connect(address)\n\
        \x20   if kind == socket.SOCK_DGRAM: s.send(b'x'); s.recv(1)\n\
        \x20   print('open', address)\n\
        \x20 except OSError as e: print(errno.errorcode[e.errno])\n\
        for family in [socket.AF_PACKET, 40, 38]:\n\
        \x20 try: socket.socket(family, socket.SOCK_RAW); print('made', family)\n\
        \x20 except OSError as e: print(errno.errorcode[e.errno])\n\
        try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('made raw')\n\
        except OSError as e: print(errno.errorcode[e.errno])\n\
        print(sorted(name for _, name in socket.if_nameindex()))\n";
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skip::aloud("every way out", &"there is no /usr/bin/python3 to try it with");
        return;
    }
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("island").await;
        let output = bottle.shell(&format!("/usr/bin/python3 -c \"{script}\"")).await;
        let lines: Vec<&str> = output.lines().collect();
        // A bottle's network may have a route to a gateway that does not exist.
        let networked = lines.last() == Some(&"['eth0', 'lo']");
        assert_eq!(networked, fixture.is_networked(), "{}: {output}", fixture.name());
        let mut expected = match networked {
            true => vec!["EHOSTUNREACH"; 3],
            false => vec!["ENETUNREACH"; 3],
        };
        if networked && lines[0] == "ENETUNREACH" {
            expected = vec!["ENETUNREACH"; 3];
        }
        // If IPv6 is disabled, the connection fails because there is no source address.
        expected.push(if fixture.is_contained() { "EADDRNOTAVAIL" } else { "ENETUNREACH" });
        expected.extend(["EPERM"; 4]);
        expected.push(if networked { "['eth0', 'lo']" } else { "['lo']" });
        assert_eq!(lines, expected, "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_files_and_processes_are_invisible() {
    for fixture in every_isolating_backend().await {
        let secret = fixture.host.home.join("secret");
        let bottle = fixture.bottle("blind").await;
        std::fs::write(&secret, "a secret").expect("written");
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
        let system = "/root /etc/shadow /etc/gshadow /etc/ssh /etc/sudoers /var/lib /var/log /mnt /boot";
        // A bottle on an image sees the image's system files, not the host's.
        let shown = if fixture.shows_the_host() { format!("{home} {system}") } else { String::new() };
        let output = bottle
            .shell(&format!(
                "for f in {} {shown} /run/user /run/docker.sock /var/run/docker.sock \
                     /sys/class /dev/kvm /dev/mem /dev/sda /dev/vda; do \
                     [ -d $f ] && [ -z \"$(ls -A $f)\" ] && continue; [ -e $f ] && echo there $f; done; \
                 ls -d /proc/[0-9]* | wc -l; cat /proc/keys /proc/cmdline /proc/kallsyms 2>/dev/null | wc -c; \
                 ls /run/bottle; cat /etc/hostname; ls -A /home",
                secret.display()
            ))
            .await;
        let lines: Vec<&str> = output.lines().map(str::trim).collect();
        if fixture.name() == "apple" {
            // The kernel is that of the virtual machine. With the test double of `container`, it is the kernel of the
            // Docker engine instead.
            assert!(
                lines.iter().all(|line| !line.starts_with("there") || *line == "there /sys/class"),
                "{output}"
            );
            bottle.remove().await;
            continue;
        }
        let processes: usize = lines[0].parse().unwrap_or_else(|_| panic!("{output}"));
        assert!(processes <= 5, "{}: {processes} processes", fixture.name());
        let program = (fixture.name() == "docker").then_some("bin");
        let proxy = (!fixture.is_networked()).then_some("proxy");
        let expected: Vec<&str> = ["0"]
            .into_iter()
            .chain(program)
            .chain(["bottle", "commands"])
            .chain(proxy)
            .chain(["blind", "agent"])
            .collect();
        assert_eq!(lines[1..], expected, "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_cannot_read_pid_1() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("closed").await;
        let output = bottle
            .shell(
                "for f in environ mem maps fd/0 exe cwd root/etc; do \
                     if cat /proc/1/$f >/dev/null 2>&1 || readlink /proc/1/$f >/dev/null 2>&1; then \
                     echo open $f; fi; done; ls /proc/1/fd 2>/dev/null; \
                 tr '\\0' ' ' </proc/1/cmdline; echo; kill -9 1; kill -STOP 1; sleep 0.1; echo alive; \
                 tr '\\0' '\\n' </proc/self/environ",
            )
            .await;
        let mut lines = output.lines();
        let label = lines.next().expect("a command line");
        if fixture.name() == "apple" {
            assert!(label.starts_with("/.bottle/bin/bottle __apple-guest {\"uid\""), "{label}");
        } else if fixture.name() == "docker" {
            assert!(label.starts_with("/run/bottle/bin/bottle __contained-guest {\"by-socket\""), "{label}");
        } else if fixture.is_machine() {
            assert_eq!(label.trim_end(), "/bottle __machine");
        } else {
            assert!(label.starts_with("bottle __guest ") && label.trim_end().ends_with(" closed"), "{label}");
        }
        assert_eq!(lines.next(), Some("alive"), "{}: {output}", fixture.name());
        let names: Vec<&str> = lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        assert!(names.iter().all(|name| ["PATH", "PWD"].contains(name)), "{}: {names:?}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_cannot_limit_or_slow_pid_1() {
    let script = "import errno, os, resource as r\n\
        def tried(what, call):\n\
        \x20 try: call(); print(what, 'done')\n\
        \x20 except OSError as e: print(what, errno.errorcode[e.errno])\n\
        core = (0, 0)\n\
        for who in [1, 0, os.getpid()]:\n\
        \x20 tried('limit', lambda: r.prlimit(who, r.RLIMIT_CORE, core))\n\
        \x20 tried('affinity', lambda: os.sched_setaffinity(who, os.sched_getaffinity(0)))\n\
        \x20 tried('policy', lambda: os.sched_setscheduler(who, os.SCHED_BATCH, os.sched_param(0)))\n\
        \x20 tried('priority', lambda: os.setpriority(os.PRIO_PROCESS, who, 5))\n\
        tried('all', lambda: os.setpriority(os.PRIO_USER, 0, 6))\n\
        tried('read', lambda: r.prlimit(1, r.RLIMIT_NOFILE))\n";
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skip::aloud("limits of pid 1", &"there is no /usr/bin/python3 to try it with");
        return;
    }
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("limits").await;
        let output = bottle.shell(&format!("/usr/bin/python3 -c \"{script}\"")).await;
        let lines: Vec<&str> = output.lines().collect();
        let expected = [
            ["limit EPERM", "affinity EPERM", "policy EPERM", "priority EPERM"],
            ["limit done", "affinity done", "policy done", "priority done"],
            // A process can set its own limits only without a process id, as `setrlimit` does.
            ["limit EPERM", "affinity done", "policy done", "priority done"],
        ];
        assert_eq!(lines[..12], expected.concat(), "{}", fixture.name());
        assert_eq!(lines[12..], ["all EPERM", "read done"], "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proc_hides_the_machines_disks_and_devices() {
    for fixture in every_isolating_backend().await {
        if fixture.name() == "apple" {
            skip::aloud(fixture.name(), &"the test double of `container` shows the kernel of its engine");
            continue;
        }
        let bottle = fixture.bottle("blank").await;
        // On any kernel, entries that programs do not need are empty and cannot be written.
        let output = bottle
            .shell(
                "for f in /proc/* /proc/.[!.]*; do case ${f#/proc/} in \
                     [0-9]*|self|thread-self|mounts|net|sys|.*|\
                     cgroups|cpuinfo|filesystems|loadavg|meminfo|stat|sysvipc|uptime|version|vmstat) ;; \
                     *) [ -d $f ] && [ -n \"$(ls -A $f)\" ] && echo directory $f; \
                        [ -f $f ] && [ -s $f ] && echo file $f; \
                        [ -d $f ] || [ $(cat $f | wc -c) = 0 ] || echo read $f; \
                        [ -d $f ] && touch $f/x && echo wrote $f; true;; \
                 esac; done 2>/dev/null; \
                 for f in diskstats partitions locks swaps config.gz interrupts; do \
                     [ -e /proc/$f ] && cat /proc/$f; done; \
                 grep -c MemTotal /proc/meminfo; grep -c '^cpu ' /proc/stat; ls /proc/sys/kernel/hostname; \
                 (echo x >/proc/sys/kernel/hostname) 2>/dev/null && echo wrote; true",
            )
            .await;
        assert_eq!(output, "1\n1\n/proc/sys/kernel/hostname\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_mounts_and_set_id_programs_grant_nothing() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("stuck").await;
        let output = bottle
            .shell(
                "for w in -U -m -n -p -i -u -C; do unshare $w true 2>/dev/null && echo unshared $w; done; \
                 mount -t tmpfs none /tmp 2>/dev/null && echo mounted; \
                 umount /proc/keys 2>/dev/null && echo uncovered; \
                 umount -l /etc 2>/dev/null && echo uncovered; \
                 chroot / true 2>/dev/null && echo chrooted; \
                 mknod /tmp/d c 1 1 2>/dev/null && echo made; \
                 su -c id root </dev/null 2>/dev/null && echo became root; \
                 hostname other 2>/dev/null && echo renamed; \
                 (echo 1 >/proc/sys/kernel/core_pattern) 2>/dev/null && echo set; \
                 cp /bin/sh /tmp/s && chmod 4755 /tmp/s && /tmp/s -p -c 'id -u'",
            )
            .await;
        assert_eq!(output, "1000\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bottles_are_isolated_from_each_other() {
    for fixture in every_isolating_backend().await {
        let (one, other) = (fixture.bottle("one").await, fixture.bottle("other").await);
        let channel = one.provisioned().await;
        let script = "echo mine >/tmp/f; echo mine >/home/agent/f; \
                      /usr/bin/python3 -c \"import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 7000)); \
                      s.listen(); print('up', flush=True); time.sleep(60)\"";
        let server =
            tokio::spawn(
                async move { crate::fixture::run(&channel, &["/bin/sh", "-c", script]).await.map(drop) },
            );
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let output = other
            .shell(
                "ls /tmp /home/agent /workspace | grep -c f$; \
                 /usr/bin/python3 -c \"import socket; s = socket.socket(); print(s.connect_ex(('127.0.0.1', 7000)))\"",
            )
            .await;
        // Error 111 is "connection refused": the other bottle's loopback interface has no listener.
        assert_eq!(output, "0\n111\n", "{}", fixture.name());
        one.remove().await;
        other.remove().await;
        server.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_programs_work() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("usual").await;
        let output = bottle
            .shell(
                "id -un; hostname; getent hosts egress | tr -s ' '; head -c4 /dev/urandom | wc -c; \
                 echo x >/dev/null && echo null; ls /dev/fd/1 /dev/pts >/dev/null && echo fds; \
                 ps -e | grep -c bottle; cat /etc/resolv.conf; readlink /etc/ssl/certs/ca-certificates.crt; \
                 git --version >/dev/null && echo git; readlink /etc/machine-id || wc -c </etc/machine-id",
            )
            .await;
        let (hosts, resolver) = match (fixture.name(), fixture.is_networked()) {
            ("docker", true) => {
                let proxy =
                    output.lines().nth(2).and_then(|line| line.split(' ').next()).expect("an address");
                (format!("{proxy} egress"), "nameserver 127.0.0.11\noptions ndots:0")
            }
            ("docker", false) => ("127.9.9.9 egress".to_owned(), "nameserver 127.9.9.9"),
            _ => ("127.9.9.9 egress supervise git-gate".to_owned(), "nameserver 127.9.9.9"),
        };
        // In an image, `/etc/machine-id` is a link to a file that the launch provides.
        let machine = if fixture.is_contained() { "/run/bottle/machine-id" } else { "33" };
        // With `container`, the host name is the name of the container.
        let host = match fixture.name() {
            "apple" => format!("bottle-{}-agent-usual", fixture.host.home_hash()),
            _ => "usual".to_owned(),
        };
        let expected = format!(
            "agent\n{host}\n{hosts}\n4\nnull\nfds\n1\n{resolver}\n/run/bottle/ca-bundle.pem\ngit\n{machine}\n"
        );
        assert_eq!(output, expected, "{}", fixture.name());
        bottle.remove().await;
    }
}
