//! One datagram, and whether this machine's own kernel found nobody to give it to.
//!
//! The kernel takes a datagram for any address that a route covers, and asks for the gateway's hardware
//! address after. What it finds out stands in the socket's error queue (ip(7)), with the address of whoever
//! found it: our own, or a router's, which then was reached.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// How often it is sent. Of such errors the kernel tells a few dozen a moment and no more, of all that is sent on
/// the machine together (`icmp_msgs_burst`, ip-sysctl): beside other probes one may go untold.
const TRIES: u32 = 6;

const PAYLOAD: &[u8] = b"bottle probe";

/// What became of a datagram that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel took it, and said nothing else.
    Taken,
    /// The kernel itself found that nobody is there to pass it on.
    NoNeighbour,
}

/// Sends one, and waits for the kernel's second thoughts; again, while it has none and `patience` lasts.
///
/// # Errors
/// What the kernel says when it does not take it.
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
            // What came meanwhile fails this one, and is read right after.
            let _ = socket.send(PAYLOAD).await;
        }
        let told = socket.async_io(Interest::ERROR, || second_thoughts(&socket, own));
        if let Ok(Ok(true)) = tokio::time::timeout(patience / TRIES, told).await {
            return Ok(Sent::NoNeighbour);
        }
    }
    Ok(Sent::Taken)
}

/// Whether the error that waits is the kernel's own "no route to host".
fn second_thoughts(socket: &UdpSocket, own: Ipv4Addr) -> io::Result<bool> {
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
    async fn a_datagram_for_somebody_is_taken_and_a_refusal_of_theirs_is_no_lack_of_neighbours() {
        let listener = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listener");
        let address = listener.local_addr().expect("address");
        let patience = Duration::from_millis(100);
        assert_eq!(send(address, patience).await.expect("sent"), Sent::Taken);
        drop(listener);
        assert_eq!(send(address, patience).await.expect("sent"), Sent::Taken);
    }
}
