//! Sends a datagram, and detects whether the local kernel finds no neighbour that accepts the datagram.
//!
//! The kernel accepts a datagram for any address that has a route, and resolves the gateway's hardware address later.
//! If the resolution fails, the kernel reports the error in the socket's error queue (ip(7)), together with the address
//! of the host that reports the error. This host is the bottle itself, or a router that the datagram has reached.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The maximum number of attempts. The kernel limits the ICMP errors of the complete host (`icmp_msgs_burst`,
/// ip-sysctl), so it may drop an error while other probes run.
const TRIES: u32 = 6;

const PAYLOAD: &[u8] = b"bottle probe";

/// The result of sending a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel accepted the datagram and reported no error.
    Taken,
    /// The local kernel reported that no neighbour can forward the datagram.
    NoNeighbour,
}

/// Sends a datagram and waits for the kernel's delayed error. Repeats both steps until there is an error or `patience`
/// has passed. For IPv6, this function does not wait, and returns [`Sent::Taken`].
///
/// # Errors
/// Fails with the kernel's error if the kernel does not accept the datagram.
pub(super) async fn send(address: SocketAddr, patience: Duration) -> io::Result<Sent> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    if address.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    }
    socket.connect(address).await?;
    socket.send(PAYLOAD).await?;
    let IpAddr::V4(own) = socket.local_addr()?.ip() else { return Ok(Sent::Taken) };
    for again in 0..TRIES {
        if again > 0 {
            // If there is an error for an earlier datagram, sending fails. The next step reads this error.
            let _ = socket.send(PAYLOAD).await;
        }
        let error = socket.async_io(Interest::ERROR, || no_neighbour(&socket, own));
        if let Ok(Ok(true)) = tokio::time::timeout(patience / TRIES, error).await {
            return Ok(Sent::NoNeighbour);
        }
    }
    Ok(Sent::Taken)
}

/// Returns whether the next entry of the socket's error queue is `EHOSTUNREACH` from the local kernel. This error means
/// that no neighbour answered.
fn no_neighbour(socket: &UdpSocket, own: Ipv4Addr) -> io::Result<bool> {
    let mut payload = [0; 64];
    let mut pieces = [IoSliceMut::new(&mut payload)];
    let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags)?;
    Ok(message.cmsgs()?.any(|message| match message {
        ControlMessageOwned::Ipv4RecvErr(error, found_by) => {
            let unreachable = error.ee_errno == libc::EHOSTUNREACH.unsigned_abs();
            let ours = found_by.is_some_and(|by| Ipv4Addr::from(u32::from_be(by.sin_addr.s_addr)) == own);
            unreachable && (error.ee_origin == libc::SO_EE_ORIGIN_LOCAL || ours)
        }
        _ => false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reachable_or_refusing_host_does_not_count_as_no_neighbour() {
        let listener = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listener");
        let address = listener.local_addr().expect("address");
        let patience = Duration::from_millis(100);
        assert_eq!(send(address, patience).await.expect("sent"), Sent::Taken);
        drop(listener);
        assert_eq!(send(address, patience).await.expect("sent"), Sent::Taken);
    }
}
