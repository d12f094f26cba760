//! Tests behaviour that only container engines have: a bottle's visible configuration, networks, addresses and names,
//! and an absent engine. Tests each transport to the proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::Command;

use bottle_backend::{BackendErrorKind, ProgressSink, Resource, ResourceLog, SIDECAR_LOGS};
use bottle_host::Host;
use bottle_lib::registry;
use bottle_plan::{ImageSource, Resources};
use bottle_protocol::session::guest::{GuestEvent, GuestRequest, Probe, Provision, ProvisionedFile, Reach};
use bottle_protocol::usage::WAITING_FILE;
use bottle_test_support::{engine, skip};

use crate::fixture::{Bottle, Fixture, docker, run};

/// A secret that is sent only to pid 1, so it must not appear in a container's configuration.
const SECRET: &str = "s3cr3t-of-the-agent-7f1c";

fn said(arguments: &[&str]) -> String {
    engine::docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?} failed"))
}

/// The id of the bottle's resource of this kind.
fn id(bottle: &Bottle<'_>, kind: &str) -> String {
    let all = bottle.resources.all();
    all.iter().find(|resource| resource.kind == kind).unwrap_or_else(|| panic!("{kind}: {all:?}")).id.clone()
}

/// The addresses on which the bundle listens, except loopback, according to the kernel's tables (proc_pid_net(5)).
fn listened_on(bottle: &Bottle<'_>) -> BTreeSet<IpAddr> {
    const LISTENS: &str = "0A";
    let pid = said(&["inspect", "--format", "{{.State.Pid}}", &id(bottle, "bundle-process")]);
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).expect("a table");
    let rows = [table("tcp"), table("tcp6")].concat();
    let rows = rows.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let listening = rows.filter(|row| row.get(3) == Some(&LISTENS)).map(|row| {
        // The table shows an address as words of four bytes in native byte order, then the port.
        let hex = row[1].split(':').next().expect("an address").to_owned();
        let words =
            (0..hex.len()).step_by(8).map(|at| u32::from_str_radix(&hex[at..at + 8], 16).expect("hex"));
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        match <[u8; 4]>::try_from(&bytes[..]) {
            Ok(bytes) => IpAddr::from(bytes),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).expect("an IPv6 address")),
        }
    });
    listening.filter(|address| !address.is_loopback()).collect()
}

/// Whether the proxy of a bottle answers at this address.
fn is_a_proxy(target: SocketAddr) -> bool {
    use std::io::{Read, Write};
    let patience = std::time::Duration::from_millis(500);
    let Ok(mut stream) = std::net::TcpStream::connect_timeout(&target, patience) else { return false };
    stream.set_read_timeout(Some(patience)).expect("a deadline");
    let request = b"GET http://198.51.100.1/ HTTP/1.1\r\nHost: 198.51.100.1\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    let _ = stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).to_ascii_lowercase().contains("x-bottle-reason")
}

/// Requests a page from each address at the given port, and prints the answers.
const ASK: &str = "import sys, socket\n\
    for a in sys.argv[2:]:\n\
    \x20 s = socket.socket(); s.settimeout(2)\n\
    \x20 try:\n\
    \x20   s.connect((a, int(sys.argv[1])))\n\
    \x20   s.sendall(b'GET http://198.51.100.1/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n\
    \x20   print(s.recv(4096))\n\
    \x20 except OSError as e: print(e)\n";

/// Contacts each target (`kind/address/port`) and prints the targets that answer.
const GREET: &str = "import sys, socket\n\
    for t in sys.argv[1:]:\n\
    \x20 kind, a, p = t.split('/')\n\
    \x20 s = socket.socket(type=socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM); s.settimeout(0.5)\n\
    \x20 try:\n\
    \x20   s.connect((a, int(p))); s.send(b'hello')\n\
    \x20   if s.recv(9) == b'here': print(t, flush=True)\n\
    \x20 except OSError: pass\n";

/// Listens on the given addresses and port, over TCP and UDP. Prints a line when it is ready.
const ANSWER: &str = "import sys, socket, threading\n\
    p = int(sys.argv[1])\n\
    def tcp(s):\n\
    \x20 while True: c = s.accept()[0]; c.send(b'here'); c.close()\n\
    def udp(s):\n\
    \x20 while True: s.sendto(b'here', s.recvfrom(9)[1])\n\
    for a in sys.argv[2:]:\n\
    \x20 u = socket.socket(type=socket.SOCK_DGRAM); u.bind((a, p))\n\
    \x20 s = socket.socket(); s.bind((a, p)); s.listen()\n\
    \x20 for f, x in [(tcp, s), (udp, u)]: threading.Thread(target=f, args=(x,)).start()\n\
    print('up', flush=True)\n";

/// A process that answers contacts, in the network of another process or of this machine. Dropping it ends the process.
struct Answering(std::process::Child);

impl Answering {
    fn begin(pid: Option<&str>, addresses: &[String], port: u16) -> Self {
        let enter: Vec<&str> = pid.iter().flat_map(|pid| ["nsenter", "--net", "--target", pid]).collect();
        let port = port.to_string();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let words = [&enter[..], &["python3", "-c", ANSWER, &port], &addresses].concat();
        let mut command = Command::new(words[0]);
        let mut child =
            command.args(&words[1..]).stdout(std::process::Stdio::piped()).spawn().expect("python3");
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().expect("its output"), &mut up).expect("it answers");
        Self(child)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The id of a container's first process, whose network a test can enter, and the container's addresses.
fn network_of(container: &str) -> (String, Vec<String>) {
    let format = "{{.State.Pid}}{{range .NetworkSettings.Networks}} {{.IPAddress}}{{end}}";
    let text = said(&["inspect", "--format", format, container]);
    let mut words = text.split_whitespace().map(str::to_owned);
    (words.next().expect("a process"), words.collect())
}

/// The addresses that this machine has on a container's networks.
fn gateways_of(container: &str) -> Vec<IpAddr> {
    let text =
        said(&["inspect", "--format", "{{range .NetworkSettings.Networks}} {{.Gateway}}{{end}}", container]);
    text.split_whitespace().filter_map(|address| address.parse().ok()).collect()
}

fn greeted(enter: &[&str], targets: &[String]) -> Vec<String> {
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let words = [enter, &["python3", "-c", GREET], &targets].concat();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("python3");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The agent reaches no service of the host, of its resolvers, of the bundle's outer network or of another bottle. As a
/// control, each service answers over TCP and UDP, at the same port and at the same time, to a program that may reach
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn services_on_the_host_do_not_answer_the_agent() {
    const PORT: u16 = 41_953;
    if !rustix::process::getuid().is_root() {
        skip::aloud("what answers elsewhere", &"only root may enter a container's network");
        return;
    }
    for fixture in docker().await {
        let (bottle, other) = (fixture.bottle("asks").await, fixture.bottle("answers").await);
        bottle.start_bundle().await;
        other.start_bundle().await;
        let containers =
            [id(&bottle, "bundle-process"), id(&other, "bundle-process"), id(&other, "guest-process")];
        let own = bottle_host::addresses::of_this_host().expect("addresses");
        let of_host = own.iter().filter(|address| address.is_ipv4() && !address.is_loopback());
        // Addresses of other bottles' networks are excluded, because other tests create and remove those networks.
        let gateways: Vec<IpAddr> = containers.iter().flat_map(|container| gateways_of(container)).collect();
        let of_host: Vec<String> = of_host
            .filter(|address| TcpListener::bind((**address, 0)).is_ok())
            .filter(|address| !is_of_bottles(address) || gateways.contains(address))
            .map(ToString::to_string)
            .collect();
        let _of_this_machine = Answering::begin(None, &of_host, PORT);
        let host = targets(of_host.into_iter(), PORT);
        assert_eq!(greeted(&[], &host), host, "control");
        let (mut all, mut answering) = (host, Vec::new());
        for container in &containers {
            let (pid, addresses) = network_of(container);
            answering.push(Answering::begin(Some(&pid), &addresses, PORT));
            let there = targets(addresses.into_iter(), PORT);
            assert_eq!(greeted(&["nsenter", "--net", "--target", &pid], &there), there, "control");
            all.extend(there);
        }
        // As a control, this machine reaches the bundle's outer address, because the machine is on the same network.
        let (_, outer) = network_of(&containers[0]);
        assert!(!greeted(&[], &targets(outer.into_iter(), PORT)).is_empty(), "control");
        // Of all targets, the agent may reach only its own bundle, on the network that both share.
        let (_, own_bundle) = network_of(&containers[0]);
        let channel = bottle.provisioned().await;
        let words: Vec<&str> =
            ["python3", "-c", GREET].into_iter().chain(all.iter().map(String::as_str)).collect();
        let (output, _) = run(&channel, &words).await.expect("ran");
        let reached: Vec<&str> = output.lines().collect();
        let agents = network_of(&id(&bottle, "guest-process")).1;
        let neighbour = |target: &&str| {
            let address = target.split('/').nth(1).unwrap_or_default();
            let same_net = |one: &String| {
                one.rsplit_once('.').map(|(net, _)| net) == address.rsplit_once('.').map(|(net, _)| net)
            };
            agents.iter().any(same_net) && own_bundle.iter().any(|own| own == address)
        };
        let (neighbours, others): (Vec<&str>, Vec<&str>) = reached.into_iter().partition(neighbour);
        assert_eq!(others, [] as [&str; 0], "{}", fixture.name());
        // As a control of the probe, the agent reaches its own bundle if they share a network.
        assert_eq!(neighbours.is_empty(), !fixture.is_networked(), "{output}");
        drop(answering);
        bottle.remove().await;
        other.remove().await;
    }
}

/// Whether the address is in the range from which bottles get their networks. The networks of this test are in this
/// range too.
fn is_of_bottles(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(four) if four.octets()[..2] == [10, 213])
}

fn targets(addresses: impl Iterator<Item = String>, port: u16) -> Vec<String> {
    let each = addresses.filter(|address| !address.is_empty());
    each.flat_map(|address| ["tcp", "udp"].map(|kind| format!("{kind}/{address}/{port}"))).collect()
}

/// Runs a program of this machine in the network of the bottle's agent.
fn in_its_network(bottle: &Bottle<'_>, program: &[&str]) -> String {
    let pid = said(&["inspect", "--format", "{{.State.Pid}}", &id(bottle, "guest-process")]);
    let output = Command::new("nsenter").args(["--net", "--target", &pid]).args(program).output();
    let output = output.expect("nsenter");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_no_image_program_and_show_no_secrets() {
    for fixture in docker().await {
        let bottle = fixture.bottle("shown").await;
        bottle.start_bundle().await;
        let channel = bottle.connect().await;
        let file =
            ProvisionedFile { path: "/run/bottle/prompt.md".to_owned(), mode: 0o644, content: SECRET.into() };
        let provision = Provision {
            env: BTreeMap::from([("TOKEN".to_owned(), SECRET.into())]),
            secret: [].into(),
            files: vec![file],
            work: None,
            processes: None,
        };
        let mut stream = channel.open(&GuestRequest::Provision(provision)).await.expect("open");
        assert_eq!(stream.receive::<GuestEvent>().await.expect("answer"), GuestEvent::Done);
        let (inside, _) =
            run(&channel, &["/bin/sh", "-c", "echo $TOKEN; cat /run/bottle/prompt.md"]).await.expect("ran");
        assert_eq!(inside, format!("{SECRET}\n{SECRET}"), "{}", fixture.name());

        for kind in ["guest-process", "bundle-process"] {
            let id = id(&bottle, kind);
            let shown = said(&["inspect", &id]);
            assert!(!shown.contains(SECRET), "{kind}");
            let field = |path: &str| said(&["inspect", "--format", &format!("{{{{json .{path}}}}}"), &id]);
            for (path, value) in [
                ("HostConfig.CapDrop", "[\"ALL\"]"),
                ("HostConfig.CapAdd", "null"),
                ("HostConfig.SecurityOpt", "[\"no-new-privileges:true\"]"),
                ("HostConfig.Privileged", "false"),
                ("HostConfig.LogConfig.Type", "\"none\""),
                ("HostConfig.Init", "false"),
                ("HostConfig.Binds", "null"),
                ("HostConfig.PidMode", "\"\""),
                ("Config.Healthcheck.Test", "[\"NONE\"]"),
                ("Config.Tty", "false"),
            ] {
                assert_eq!(field(path), value, "{kind} {path}");
            }
            let user = field("Config.User");
            assert!(!user.starts_with("\"0") && user.contains(':'), "{kind}: {user}");
            assert_eq!(field("HostConfig.ReadonlyRootfs"), (kind == "bundle-process").to_string(), "{kind}");
            // The runtime and the engine store files for the container in the following directories.
            for directory in ["/run/docker", "/var/lib/docker/containers", "/run/containerd"] {
                let found = Command::new("grep").args(["-rlsF", SECRET, directory]).output().expect("grep");
                assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{kind} {directory}");
            }
        }
        let agent = said(&["inspect", "--format", "{{.Config.User}}", &id(&bottle, "guest-process")]);
        let bundle = said(&["inspect", "--format", "{{.Config.User}}", &id(&bottle, "bundle-process")]);
        assert_ne!(agent, bundle, "the guards are not the agent's user");
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecars_files_survive_a_stop_and_pending_usage_is_saved() {
    for fixture in docker().await {
        let bottle = fixture.bottle("counted").await;
        bottle.start_bundle().await;
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join(WAITING_FILE);
        std::fs::write(&file, "a record\n").expect("written");
        let target = format!("{}:/var/lib/bottle/logs/{WAITING_FILE}", id(&bottle, "bundle-process"));
        said(&["cp", file.to_str().expect("text"), &target]);
        bottle.stop().await;
        let saved = bottle.state.join(SIDECAR_LOGS).join(WAITING_FILE);
        assert_eq!(std::fs::read_to_string(saved).expect("saved"), "a record\n", "{}", fixture.name());
        let volume = format!("bottle-{}-state-counted", fixture.host.home_hash());
        let volumes = || said(&["volume", "ls", "--quiet", "--filter", &format!("name={volume}")]);
        assert_eq!(volumes(), volume, "the git gate needs its files after a resume");
        bottle.remove().await;
        assert_eq!(volumes(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_host_nor_its_other_networks_are_reached() {
    for fixture in docker().await {
        let (bottle, other) = (fixture.bottle("alone").await, fixture.bottle("other").await);
        bottle.start_bundle().await;
        let channel = bottle.provisioned().await;
        // As a control, each target of the agent's attempts answers outside the bottle at this moment.
        let own = bottle_host::addresses::of_this_host().expect("addresses");
        let listeners: Vec<TcpListener> = own
            .iter()
            .filter(|address| !address.is_loopback())
            .filter_map(|address| TcpListener::bind((*address, 0)).ok())
            .collect();
        let mut targets: Vec<SocketAddr> =
            listeners.iter().map(|listener| listener.local_addr().expect("address")).collect();
        assert!(!targets.is_empty(), "this machine has addresses");
        for target in &targets {
            let answered = std::net::TcpStream::connect_timeout(target, std::time::Duration::from_secs(2));
            assert!(answered.is_ok(), "control: {target} {answered:?}");
        }
        // Further targets are the other bottle, and the outer address of this bottle's bundle.
        for (container, network) in
            [(id(&other, "guest-process"), "inner"), (id(&bottle, "bundle-process"), "outer")]
        {
            let format = "{{range $k, $v := .NetworkSettings.Networks}}{{$k}} {{$v.IPAddress}}\n{{end}}";
            let networks = said(&["inspect", "--format", format, &container]);
            let address =
                networks.lines().find(|line| line.contains(network)).and_then(|line| line.split(' ').nth(1));
            targets
                .extend(address.map(|address| SocketAddr::new(address.parse().expect("an address"), 9099)));
        }
        let probe = Probe { host: targets.clone(), ..Probe::default() };
        let mut stream = channel.open(&GuestRequest::Probe(probe)).await.expect("open");
        let GuestEvent::Probed { attempts } = stream.receive().await.expect("answer") else { panic!() };
        let host: Vec<_> =
            attempts.iter().filter(|attempt| attempt.target == "this computer itself").collect();
        assert_eq!(host.len(), 2 * targets.len(), "over TCP and UDP");
        for attempt in host {
            assert_eq!(attempt.result, Reach::Blocked, "{attempt:?}");
        }
        bottle.remove().await;
        other.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_cannot_enable_ipv6() {
    for fixture in docker().await {
        let bottle = fixture.bottle("four").await;
        let output = bottle
            .shell(
                "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do \
                     cat $f; (echo 0 >$f) 2>/dev/null && echo switched $f; done | sort -u; \
                 cat /proc/net/if_inet6 2>/dev/null | grep -v ' lo$' | wc -l",
            )
            .await;
        assert_eq!(output, "1\n0\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

/// An engine before version 28 leaves the machine's interface on the bottle's network, without an IPv4 address. This
/// test checks that the agent cannot reach the interface's link-local IPv6 address, because IPv6 is disabled in the
/// bottle.
#[tokio::test(flavor = "multi_thread")]
async fn without_ipv6_inside_no_link_local_address_of_the_host_is_reached() {
    for fixture in docker().await {
        if !fixture.is_networked() || !rustix::process::getuid().is_root() {
            skip::aloud("link-local addresses", &"there is no network to look at, or only root may");
            continue;
        }
        let bottle = fixture.bottle("link").await;
        let network = bottle.resources.all().into_iter().find(|resource| {
            resource.kind == "network"
                && said(&["network", "inspect", "--format", "{{.Internal}}", &resource.id]) == "true"
        });
        let bridge = format!("br-{}", &network.expect("the inner network").id[..12]);
        let address = link_local(&bridge);
        let inside = "import socket, sys\n\
            s = socket.socket(socket.AF_INET6)\n\
            s.settimeout(3)\n\
            print(s.connect_ex((sys.argv[1], int(sys.argv[2]), 0, socket.if_nametoindex('eth0'))))\n";
        if let Some(address) = address {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("listener");
            let port = listener.local_addr().expect("address").port().to_string();
            let refused = bottle.shell(&format!("python3 -c \"{inside}\" {address} {port}")).await;
            assert_ne!(refused.trim(), "0", "{}: reached {address}", fixture.name());
            // As a control, the same attempt succeeds after IPv6 is enabled from outside. The setting, which the agent
            // cannot change, is therefore what blocks the attempt.
            let pid = said(&["inspect", "--format", "{{.State.Pid}}", &id(&bottle, "guest-process")]);
            if enable_ipv6(&pid) {
                let arguments = ["python3", "-c", inside, &address.to_string(), &port];
                let reached = (0..40).any(|_| {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    in_its_network(&bottle, &arguments).trim() == "0"
                });
                assert!(reached, "control: {address} is not reached with IPv6 either");
            } else {
                skip::aloud("link-local addresses: the control", &"IPv6 cannot be switched on in a network");
            }
            assert!(listener.as_raw_fd() >= 0);
        }
        // The interface has no IPv4 address either.
        let addresses =
            Command::new("ip").args(["-4", "-o", "addr", "show", "dev", &bridge]).output().expect("ip");
        assert_eq!(String::from_utf8_lossy(&addresses.stdout), "", "{bridge}");
        bottle.remove().await;
    }
}

/// Enables IPv6 in a container's network from outside; returns whether the container's interface got an address.
fn enable_ipv6(pid: &str) -> bool {
    let script = "for f in all default eth0; do echo 0 >/proc/sys/net/ipv6/conf/$f/disable_ipv6; done; \
        ip link set eth0 down && ip link set eth0 up; sleep 0.2; ip -6 addr show dev eth0 | grep -q fe80";
    let mount = "mount -t proc proc /proc 2>/dev/null; ";
    let enter = ["--net", "--target", pid, "unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c"];
    let entered = Command::new("nsenter").args(enter).arg(format!("{mount}{script}")).status();
    entered.is_ok_and(|status| status.success())
}

fn link_local(interface: &str) -> Option<IpAddr> {
    let output = Command::new("ip").args(["-6", "-o", "addr", "show", "dev", interface]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .find_map(|word| word.split('/').next()?.parse().ok().filter(|_| word.starts_with("fe80")))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_name_resolves_to_the_bundle() {
    for fixture in docker().await {
        let bottle = fixture.bottle("names").await;
        bottle.start_bundle().await;
        let bundle = crate::listeners::bundle(&bottle).await;
        crate::listeners::provision(&bottle, &bundle).await;
        let output = bottle
            .shell("getent hosts egress | cut -d' ' -f1; for n in some.example single; do getent hosts $n | cut -d' ' -f1 | sort -u; done")
            .await;
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 3, "{output}");
        assert!(lines.iter().all(|line| *line == lines[0]), "{}: {output}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_listens_only_on_the_bottles_network() {
    for fixture in docker().await {
        if !fixture.is_networked() {
            continue;
        }
        let bottle = fixture.bottle("ports").await;
        bottle.start_bundle().await;
        let bundle = crate::listeners::bundle(&bottle).await;
        crate::listeners::provision(&bottle, &bundle).await;
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}\n{{end}}";
        let addresses = said(&["inspect", "--format", format, &id(&bottle, "bundle-process")]);
        assert_eq!(addresses.lines().count(), 2, "{addresses}");
        // The proxy listens on one of the two networks. The next checks test that the proxy answers no peer other than
        // the bottle.
        let listened_on: Vec<String> = listened_on(&bottle).iter().map(ToString::to_string).collect();
        assert_eq!(listened_on.len(), 1, "listens on {listened_on:?}");
        assert!(addresses.lines().any(|address| address == listened_on[0]), "listens on {listened_on:?}");
        // A user of the host gets no answer from the bundle, on either of its networks. The machine's network may
        // answer for addresses that do not exist, so the test checks that no answer is the proxy's.
        for address in addresses.lines() {
            for port in [53, 80, 443, 9099, 9100, 9420] {
                let target = SocketAddr::new(address.parse().expect("an address"), port);
                assert!(!is_a_proxy(target), "{target}");
            }
        }
        let ask_as = |program: &[&str], port: &str| {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).args(["/usr/bin/python3", "-c", ASK, port]).args(addresses.lines());
            String::from_utf8_lossy(&command.output().expect("asked").stdout).into_owned()
        };
        if rustix::process::getuid().is_root() {
            let plain = ["setpriv", "--reuid", "64242", "--regid", "64242", "--clear-groups"];
            for port in ["9099", "9100", "9420", "80"] {
                let said = ask_as(&plain, port);
                assert!(!said.to_ascii_lowercase().contains("x-bottle-reason"), "{port}: {said}");
            }
            // As a control, the user who runs the test gets an answer from inside the bottle's network.
            let pid = said(&["inspect", "--format", "{{.State.Pid}}", &id(&bottle, "guest-process")]);
            let control = ["nsenter", "--net", "--target", &pid];
            let as_user = [&control[..], &plain].concat();
            let answer = ask_as(&as_user, "9099").to_ascii_lowercase();
            assert!(answer.contains("x-bottle-reason"), "control: {answer}");
        }
        // As a control, the bundle answers in the bottle's network.
        let ask = "import sys, socket\n\
            for a in sys.argv[1:]:\n\
            \x20 s = socket.socket(); s.settimeout(2)\n\
            \x20 try: s.connect((a, 9099)); s.sendall(b'GET http://198.51.100.1/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(12))\n\
            \x20 except OSError: pass\n";
        let arguments: Vec<&str> = ["python3", "-c", ask].into_iter().chain(addresses.lines()).collect();
        assert_eq!(in_its_network(&bottle, &arguments).lines().count(), 1);
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_enforces_limits() {
    for fixture in docker().await {
        let resources = Resources { memory: Some(96 << 20), cpus: Some(500), ..Resources::default() };
        let bottle = fixture.bottle_with("limited", Default::default(), resources).await;
        let host = said(&[
            "inspect",
            "--format",
            "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.NanoCpus}}",
            &id(&bottle, "guest-process"),
        ]);
        assert_eq!(host, format!("{0} {0} 500000000", 96 << 20), "{}", fixture.name());
        let channel = bottle.provisioned().await;
        let greedy = "x = bytearray(200 << 20); print('had it')";
        let (output, exit) = run(&channel, &["python3", "-c", greedy]).await.expect("ran");
        assert!(!output.contains("had it"), "{}: {exit:?}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_subnet_range_is_reported_and_leaves_nothing() {
    for fixture in docker().await {
        if !fixture.is_networked() {
            continue;
        }
        fixture.set("docker: {transport: network, subnets: 10.214.99.0/27}\n");
        // The range has room for two networks: one between agent and bundle, and one that connects the bundle to the
        // internet.
        let first = fixture.bottle("first").await;
        first.start_bundle().await;
        let second = fixture.planned("second");
        let error = fixture.backend.make_network(&second.launch()).await.expect_err("no room");
        assert!(error.one_line().contains("10.214.99.0/27"), "{error}");
        assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("docker.subnets")), "{error:?}");
        second.remove().await;
        assert_eq!(second.found().await, [], "{}", fixture.name());
        first.remove().await;
        let again = fixture.bottle("second").await;
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_launches_get_different_addresses() {
    for fixture in docker().await {
        // The range is small, so that the launches choose the same subnets.
        fixture.set(&format!(
            "docker: {{subnets: 10.214.{}.0/24, transport: {}}}\n",
            100 + u8::from(fixture.is_networked()),
            if fixture.is_networked() { "network" } else { "socket" }
        ));
        let bottles: Vec<Bottle<'_>> =
            (0..6).map(|number| fixture.planned(&format!("racer-{number}"))).collect();
        let made =
            bottles.iter().map(|bottle| async { fixture.backend.make_network(&bottle.launch()).await });
        for result in futures_util::future::join_all(made).await {
            result.expect("network");
        }
        let mut subnets: Vec<String> = Vec::new();
        for bottle in &bottles {
            for network in bottle.resources.all().iter().filter(|resource| resource.kind == "network") {
                let format = "{{range .IPAM.Config}}{{.Subnet}}{{end}}";
                subnets.push(said(&["network", "inspect", "--format", format, &network.id]));
            }
        }
        let count = subnets.len();
        subnets.sort();
        subnets.dedup();
        assert_eq!(subnets.len(), count, "{subnets:?}");
        for bottle in &bottles {
            bottle.remove().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_container_name_is_reported_and_its_container_stays() {
    for fixture in docker().await {
        let bottle = fixture.planned("taken");
        fixture.backend.make_network(&bottle.launch()).await.expect("network");
        let name = format!("bottle-{}-agent-taken", fixture.host.home_hash());
        let foreign = said(&["create", "--name", &name, "--entrypoint", "/bin/true", engine::BASE_IMAGE]);
        let error = fixture.backend.start_guest(&bottle.launch(), &bottle.prepared).await.expect_err("taken");
        assert!(error.one_line().contains("already in use") && error.hint.is_some(), "{error:?}");
        // The volume has a bottle's name but not its labels. The volume is neither listed nor removed, even if a
        // resource log names it.
        assert!(bottle.found().await.iter().all(|resource| resource.id != foreign));
        let claimed =
            Resource { slug: bottle.slug().clone(), kind: "layers".to_owned(), id: foreign.clone() };
        let error = fixture.backend.remove(&[claimed]).await.expect_err("refused");
        assert!(error.one_line().contains("not this bottle's"), "{error}");
        assert_eq!(said(&["inspect", "--format", "{{.Id}}", &foreign]), foreign);
        said(&["rm", &foreign]);
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_engine_is_reported_as_one_cause() {
    let fixture = Fixture::new("docker", &[]);
    let directory = tempfile::tempdir().expect("directory");
    let socket = format!("unix://{}/docker.sock", directory.path().display());
    for (address, words) in
        [(socket.as_str(), "no container engine answers"), ("tcp://192.0.2.1:2375", "DOCKER_HOST")]
    {
        let env = BTreeMap::from([("DOCKER_HOST".into(), address.into())]);
        let host = Host { env, ..fixture.host.clone() };
        let backend = registry::by_name(&host, "docker").expect("docker");
        let check = backend.check().await;
        assert!(!check.usable && check.findings[0].what.contains(words), "{check:?}");
        let bottle = fixture.planned("nowhere");
        let error = backend.make_network(&bottle.launch()).await.expect_err("no engine");
        assert_eq!(error.kind, BackendErrorKind::Unavailable, "{error}");
        assert!(error.one_line().contains(words) && error.hint.is_some(), "{error:?}");
        assert!(bottle.resources.all().is_empty());
    }
    let env = BTreeMap::from([("DOCKER_HOST".into(), socket.as_str().into())]);
    let absent = registry::by_name(&Host { env, ..fixture.host.clone() }, "docker").expect("docker");
    assert_eq!(absent.enumerate().await.expect("nothing is there"), []);
    assert_eq!(absent.snapshots().await.expect("nothing is there"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_resources_that_were_not_recorded() {
    struct Full;
    impl ResourceLog for Full {
        fn record_all(&self, resources: &[Resource]) -> Result<(), bottle_backend::BackendError> {
            if resources.iter().any(|resource| resource.kind == "network") {
                return Err(bottle_backend::BackendError::failed("the disk is full"));
            }
            Ok(())
        }
    }
    for fixture in docker().await {
        let bottle = fixture.planned("unwritten");
        let launch = bottle_backend::Launch { resources: &Full, ..bottle.launch() };
        let prepared = fixture.prepared().await.expect("prepared");
        let launched = async {
            fixture.backend.make_network(&launch).await?;
            fixture.backend.start_bundle(&launch, &prepared).await
        };
        launched.await.expect_err("not written");
        let found = bottle.found().await;
        assert!(found.iter().any(|resource| resource.kind == "network"), "{}: {found:?}", fixture.name());
        fixture.backend.remove(&found).await.expect("removed");
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_host_route_reaches_the_users_machine() {
    const FETCH: &str = "import sys, urllib.request, urllib.error\n\
        try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read())\n\
        except urllib.error.HTTPError as e: print(e.code)";
    for fixture in docker().await {
        let mut bottle = fixture.planned("machine");
        bottle.prepared = fixture.prepared().await.expect("prepared");
        let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = listener.local_addr().expect("address").port();
        drop(listener);
        bottle.plan.egress.routes =
            format!("routes: [{{host: own.example, ports: [80], connect_to: 'host:{port}'}}]\n")
                .parse()
                .expect("routes");
        bottle.begin().await;
        bottle.start_bundle().await;
        let format = "{{range .IPAM.Config}}{{.Gateway}}{{end}}";
        let mut machines = Vec::new();
        for network in bottle.resources.all().iter().filter(|resource| resource.kind == "network") {
            machines.push(said(&["network", "inspect", "--format", format, &network.id]));
        }
        // The machine has no address on the inner network.
        let machine = machines.iter().find_map(|text| text.parse::<IpAddr>().ok()).expect("a gateway");
        let listener = TcpListener::bind((machine, port)).expect("the machine's end of the way out");
        std::thread::spawn(move || serve_one(&listener));
        let channel = super::listeners::bundle(&bottle).await;
        super::listeners::provision(&bottle, &channel).await;
        let guest = bottle.provisioned().await;
        let proxied = |url: &str| {
            vec![
                "/usr/bin/env".to_owned(),
                "http_proxy=http://egress:9099".to_owned(),
                "/usr/bin/python3".to_owned(),
                "-c".to_owned(),
                FETCH.to_owned(),
                url.to_owned(),
            ]
        };
        for (url, answer) in [
            ("http://own.example/".to_owned(), "b'own'"),
            (format!("http://{machine}:{port}/"), "403"),
            (format!("http://host:{port}/"), "403"),
        ] {
            let command = proxied(&url);
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let (output, _) = run(&guest, &command).await.expect("ran");
            assert_eq!(output.trim(), answer, "{} {url}", fixture.name());
        }
        bottle.remove().await;
    }
}

/// Answers one request.
fn serve_one(listener: &TcpListener) {
    use std::io::{Read, Write};
    let Ok((mut stream, _)) = listener.accept() else { return };
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_a_snapshot_is_not_a_bottle() {
    for fixture in docker().await {
        let bottle = fixture.bottle("frozen").await;
        let snapshot = bottle.make_snapshot(None).await;
        bottle.remove().await;
        let labels = said(&["image", "inspect", "--format", "{{json .Config.Labels}}", &snapshot.reference]);
        for label in ["bottle.home", "bottle.slug", "bottle.role"] {
            assert!(labels.contains(&format!("\"{label}\":\"\"")), "{label}: {labels}");
        }
        let container = said(&["run", "--detach", "--network", "none", &snapshot.reference, "sleep", "60"]);
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
        said(&["rm", "--force", &container]);
        fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_works_in_root_owned_volumes_of_its_image() {
    let Some(fixture) = crate::fixture::docker().await.pop() else { return };
    let hash = fixture.host.home_hash();
    // The directories exist with root as owner before they become volumes, and `/tmp` has the wrong mode.
    let text = format!(
        "FROM debian:bookworm-slim\nRUN mkdir -p /workspace /home/agent /data && chmod 755 /tmp\n\
         VOLUME /workspace /home/agent /data\nLABEL test={hash}\n"
    );
    let image = ImageSource::Dockerfile {
        path: "Dockerfile".into(),
        text,
        args: BTreeMap::new(),
        secrets: BTreeMap::new(),
    };
    let mut bottle = fixture.planned("volumes");
    bottle.plan.image = image;
    let (none, progress) = (BTreeMap::new(), ProgressSink::discard());
    let prepared = fixture.backend.prepare(&bottle.plan, &none, &progress).await;
    bottle.prepared = prepared.expect("an image");
    let id = bottle.prepared.inside.as_ref().expect("an image").image.clone();
    bottle.begin().await;
    let channel = bottle.provisioned().await;
    let script = "touch /workspace/x /home/agent/x /tmp/x /usr/local/bin/x /opt/x && \
                  stat -c %U /workspace /home/agent /data && \
                  stat -c %a /tmp && touch /data/x 2>/dev/null || echo refused";
    let (said, _) = run(&channel, &["sh", "-c", script]).await.expect("ran");
    assert_eq!(said, "agent\nagent\nroot\n1777\nrefused\n");
    bottle.remove().await;
    let _ = engine::docker(&["rmi", "--force", &id]);
}
