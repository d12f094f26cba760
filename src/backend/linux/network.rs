//! The bottle's own empty network: loopback, and nothing beside it.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Kernel's message type for changing an interface, and the two flags: a request, to be acknowledged.
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;

/// Loopback is the first interface of every namespace.
const LOOPBACK: i32 = 1;
const IFF_UP: u32 = 1;

/// Switches loopback on and lets everyone inside listen on the ports below 1024: the door's are 80, 443, 53.
///
/// # Errors
/// As the system says.
pub(super) fn open_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &set_up(LOOPBACK), SendFlags::empty())?;
    let mut answer = [0_u8; 128];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // A header of 16 bytes, then the error number, negative, or zero.
    let number = answer[..length].get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match number {
        Some(0) => {}
        Some(number) => return Err(io::Error::from_raw_os_error(-number)),
        None => return Err(io::ErrorKind::InvalidData.into()),
    }
    std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
}

/// The message: its header, then family, kind, index, flags and which of them to change.
fn set_up(interface: i32) -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]); // sequence, sender
    message.extend([0; 4]); // any family, any kind
    message.extend(interface.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message
}
