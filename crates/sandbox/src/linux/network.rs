//! Creates the network namespace of a bottle. The namespace contains only the loopback interface.
//!
//! Creating a network namespace takes a tenth of a sandbox's start time, longer than for any other namespace. The outer
//! process therefore creates the network namespace while the inner process builds the root file system. The inner
//! process joins the namespace afterwards.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socket_with,
};

/// The netlink message type that changes an interface. [`NLM_F_REQUEST_ACK`] contains the message's flags, which
/// request an acknowledgement.
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;

/// The interface index of loopback, which is the first interface of every network namespace.
const LOOPBACK: i32 = 1;
const IFF_UP: u32 = 1;

/// Creates a network namespace, enters it, and sends its descriptor to the inner process at the other end of `other`.
///
/// `proc` is the host's `/proc`, which was opened before the inner process was forked. When the inner process calls
/// `pivot_root`, the root of this process changes too. An absolute path would then resolve to another file.
///
/// # Errors
/// The error of the failed system call.
pub(super) fn make_for(other: &UnixStream, proc: &OwnedFd) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    open_loopback(proc)?;
    let network = openat(proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let passed = [network.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&passed));
    sendmsg(other, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the network namespace from the outer process at the other end of `other`, and enters the namespace.
///
/// # Errors
/// When the outer process exited without sending a namespace, or when this process may not enter the namespace.
pub(super) fn join(other: &UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(other, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let networks = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => Some(passed),
        _ => None,
    });
    let network: OwnedFd = networks.flatten().next().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(setns(network, CloneFlags::CLONE_NEWNET)?)
}

/// Brings loopback up and allows unprivileged processes to listen on ports below 1024, because the proxy's ports
/// include 80, 443 and 53.
///
/// # Errors
/// The error of the failed system call.
fn open_loopback(proc: &OwnedFd) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &set_up(LOOPBACK), SendFlags::empty())?;
    let mut answer = [0_u8; 128];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // The answer consists of a header of 16 bytes, and then zero or the negated error number.
    let number = answer[..length].get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match number {
        Some(0) => {}
        Some(number) => return Err(io::Error::from_raw_os_error(-number)),
        None => return Err(io::ErrorKind::InvalidData.into()),
    }
    // The setting's file is opened after `unshare`, because the file is specific to the network namespace.
    let lowest = "sys/net/ipv4/ip_unprivileged_port_start";
    let lowest = openat(proc, lowest, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(lowest).write_all(b"0")
}

/// Builds the netlink message that sets an interface up. The message consists of the header, family, type, index,
/// flags, and the mask of the flags to change.
fn set_up(interface: i32) -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]); // sequence number, sender
    message.extend([0; 4]); // any family, any type
    message.extend(interface.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message
}
