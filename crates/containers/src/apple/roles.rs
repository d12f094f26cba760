//! Runs the roles of the `bottle` program inside containers. In a container, `bottle` is always a Linux program.
//!
//! Each role starts as root with a few capabilities. Pid 1 prepares directories and sockets, and then permanently
//! becomes another user.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;

use bottle_backend::restrictions::clear_bounding_set;
use bottle_backend::restrictions::seccomp;
use bottle_backend::trees::layer_tar::{LayerTar, Ownership};
use bottle_bundle::{BundleConfig, Identity};
use bottle_guest::{ForwardConfig, GuestConfig, Limit, Limits, Programs, Transport};
use bottle_host::causes;
use bottle_policy::names::{
    ASK_COMMAND, COMMANDS_DIR, EGRESS_HOST, GIT_GATE_HOST, GUEST_PROGRAM, LISTENER_PORTS, PROXY_LOOPBACK,
    RUN_DIR, SUPERVISE_HOST,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, chown};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};
use serde::de::DeserializeOwned;

use super::inside::{
    ARCHIVE_FLAG, ARCHIVE_SOCKET, BUNDLE_FLAG, BUNDLE_SOCKET, GATE, GUEST_FLAG, GUEST_SOCKET, GuestSpec,
    LOGS, PROGRAM, PROXY, READY, STATE,
};
use super::layout::SKIPPED;
use super::stream::Sender;

/// The user id and group id of the sidecars, as in `Dockerfile.sidecars`.
const SIDECARS_ID: u32 = 64_242;

/// The maximum number of bytes that are read of the routing table.
const ROUTES_MAX: usize = 64 << 10;

/// The size in bytes of the blocks in which `container logs` reads a log.
const LOG_BLOCK: usize = 1024;

/// Runs the role of the command line `bottle FLAG SPEC`. Returns `None` if `flag` does not name a role in containers.
#[must_use]
pub fn run(flag: &str) -> Option<ExitCode> {
    let (role, ended) = match flag {
        GUEST_FLAG => ("guest", argument().and_then(|spec| guest(&spec))),
        BUNDLE_FLAG => ("bundle", argument().and_then(bundle)),
        ARCHIVE_FLAG => ("archive", archive()),
        _ => return None,
    };
    Some(ended.unwrap_or_else(|error| {
        let _ = say(&format!("{role}: {}", causes::one_line(&error)));
        ExitCode::FAILURE
    }))
}

fn argument<S: DeserializeOwned>() -> io::Result<S> {
    let argument = std::env::args().nth(2).ok_or_else(|| io::Error::other("missing argument"))?;
    serde_json::from_str(&argument).map_err(io::Error::other)
}

/// Prints the readiness line, for which the backend waits. The line contains the time, so that each start prints a
/// different line.
fn say_ready() -> io::Result<()> {
    say(&format!("{READY} {}", jiff::Timestamp::now().as_nanosecond()))
}

/// Prints a line to the log of the container, after empty lines that fill a block of the log. `container logs` reads the
/// log in blocks from its end, and shows nothing before the first block that is not UTF-8. With the empty lines, nothing
/// that another process or an earlier start wrote before the line can hide the line.
fn say(line: &str) -> io::Result<()> {
    let text = format!("{}{line}\n", "\n".repeat(LOG_BLOCK));
    io::stderr().write_all(text.as_bytes())
}

fn guest(spec: &GuestSpec) -> io::Result<ExitCode> {
    if spec.uid == 0 {
        return Err(io::Error::other("root cannot be the user of a bottle"));
    }
    forbid_core_files()?;
    let listener = listen(Path::new(GUEST_SOCKET))?;
    // The inner directory comes first, because root may not create a directory inside a directory that the agent
    // already owns.
    for (directory, mode) in [(RUN_DIR, 0o755), ("/run", 0o755), ("/tmp", 0o1777)] {
        make_directory(directory, mode, (directory != "/tmp").then_some((spec.uid, spec.gid)))?;
    }
    let hosts = [EGRESS_HOST, SUPERVISE_HOST, GIT_GATE_HOST].join(" ");
    overwrite("/etc/hosts", &format!("127.0.0.1 localhost\n::1 localhost\n{PROXY_LOOPBACK} {hosts}\n"))?;
    overwrite("/etc/resolv.conf", &format!("nameserver {PROXY_LOOPBACK}\n"))?;
    become_user(spec.uid, spec.gid)?;
    link_program(GUEST_PROGRAM.as_ref())?;
    fs::create_dir_all(COMMANDS_DIR)?;
    link_program(&Path::new(COMMANDS_DIR).join(ASK_COMMAND))?;
    // The agent has the same restrictions on every backend.
    seccomp::install(false).map_err(io::Error::other)?;
    say_ready()?;
    let proxy = spec.proxy.then(|| ForwardConfig {
        sockets: PROXY.into(),
        address: PROXY_LOOPBACK,
        ports: LISTENER_PORTS.to_vec(),
    });
    let memory = Limit { bytes: spec.memory, asked: spec.memory_asked };
    Ok(bottle_guest::run(GuestConfig {
        transport: Transport::Listener(listener),
        root: "/".into(),
        resolver: proxy.is_some(),
        proxy,
        programs: Programs::Any,
        limits: Limits { memory: Some(memory), ..Limits::default() },
        changed: None,
        confine: None,
    }))
}

/// Binds a socket in a directory that only root may enter. Replaces a socket that an earlier run left.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    make_directory(&directory.to_string_lossy(), 0o700, Some((0, 0)))?;
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Creates a directory if it is missing, and sets its mode and its owner.
fn make_directory(directory: &str, mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let make = || {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        if fs::symlink_metadata(directory)?.is_symlink() {
            return Err(io::Error::other("it is a link"));
        }
        // Only the owner may set the mode.
        fs::set_permissions(directory, Permissions::from_mode(mode))?;
        if let Some((uid, gid)) = owner {
            chown(directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(())
    };
    make().map_err(|error| io::Error::new(error.kind(), format!("{directory}: {error}")))
}

/// Overwrites a file that root owns, in place. The runtime may have mounted the file, and a mounted file cannot be
/// replaced.
fn overwrite(path: &str, text: &str) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        fs::remove_file(path)?;
    }
    fs::write(path, text).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

fn link_program(link: &Path) -> io::Result<()> {
    match symlink(PROGRAM, link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Becomes the agent's user. Keeps only the capability to bind the proxy's ports. No program of the bottle inherits
/// this capability.
fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    clear_bounding_set()?;
    set_keep_capabilities(true)?;
    nix::unistd::setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)?;
    let kept = CapabilitySet::NET_BIND_SERVICE;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    clear_ambient_capability_set()?;
    Ok(set_no_new_privs(true)?)
}

fn bundle(config: BundleConfig) -> io::Result<ExitCode> {
    forbid_core_files()?;
    let own = Some((SIDECARS_ID, SIDECARS_ID));
    let directories =
        [("/tmp", 0o1777, None), ("/run", 0o755, None), (RUN_DIR, 0o700, own), (STATE, 0o755, None)];
    for (directory, mode, owner) in directories.into_iter().chain([(LOGS, 0o700, own), (GATE, 0o700, own)]) {
        make_directory(directory, mode, owner)?;
    }
    let control = Path::new(BUNDLE_SOCKET).parent().unwrap_or(Path::new("/"));
    make_directory(&control.to_string_lossy(), 0o700, Some((0, 0)))?;
    make_directory(PROXY, 0o755, own)?;
    let config = BundleConfig {
        identity: Some(Identity { uid: SIDECARS_ID, gid: SIDECARS_ID }),
        machine: gateway().map(IpAddr::V4),
        ..config
    };
    Ok(bottle_bundle::run_and_notify(config, say_ready))
}

/// Returns the address of the default gateway, at which the container reaches the user's machine.
fn gateway() -> Option<Ipv4Addr> {
    let table = fs::read_to_string("/proc/net/route").ok()?;
    default_gateway(table.get(..ROUTES_MAX).unwrap_or(&table))
}

/// Returns the gateway of the default route. `table` is the text of `/proc/net/route`, which contains addresses as
/// numbers in the machine's byte order.
fn default_gateway(table: &str) -> Option<Ipv4Addr> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (destination, gateway) = (fields.next()?, fields.next()?);
        let gateway = u32::from_str_radix(gateway, 16).ok()?;
        (destination == "00000000" && gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()))
    })
}

/// Forbids core files. They could contain secrets, and fill the disk.
fn forbid_core_files() -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// Sends the files of the container to the host, as a layer of an image. During the call, all other processes of the
/// bottle except pid 1 are stopped, so that the files do not change.
fn archive() -> io::Result<ExitCode> {
    let mut out = Sender::new(UnixStream::connect(ARCHIVE_SOCKET)?);
    let paused = Paused::new()?;
    let root: OwnedFd = fs::File::open("/")?.into();
    let owners = |path: &Path| {
        let found = fs::symlink_metadata(Path::new("/").join(path));
        found.map_or(Ownership::ROOT, |found| Ownership {
            uid: found.uid(),
            gid: found.gid(),
            special: found.mode() & 0o7000,
        })
    };
    let mut layer = LayerTar::new(&mut out, &owners, &SKIPPED);
    layer.tree(&root, ".", Path::new(""), false)?;
    layer.finish()?;
    drop(paused);
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Stops the processes of the container until this value is dropped.
struct Paused;

impl Paused {
    fn new() -> io::Result<Self> {
        signal_all(Signal::SIGSTOP)?;
        Ok(Self)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = signal_all(Signal::SIGCONT);
    }
}

/// Sends a signal to all processes except pid 1 and this process. It is no error if no other process exists.
fn signal_all(signal: Signal) -> io::Result<()> {
    match kill(Pid::from_raw(-1), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_default_gateway() {
        let header = "Iface\tDestination\tGateway\tFlags\n";
        let other = "eth0\t0041A8C0\t00000000\t0001\n";
        let default = "eth0\t00000000\t0141A8C0\t0003\n";
        let expected = u32::from_ne_bytes([192, 168, 65, 1]);
        let default = default.replace("0141A8C0", &format!("{expected:08X}"));
        assert_eq!(
            default_gateway(&format!("{header}{other}{default}")),
            Some(Ipv4Addr::new(192, 168, 65, 1))
        );
        assert_eq!(default_gateway(&format!("{header}{other}")), None);
        assert_eq!(default_gateway("garbage\nx y"), None);
    }
}
