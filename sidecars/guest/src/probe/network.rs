//! Probes addresses that no bottle may reach, over TCP and UDP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bottle_policy::names::DNS_PORT;
use bottle_protocol::session::guest::{Attempt, Probe, Reach};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use nix::net::if_::if_nameindex;
use tokio::net::TcpStream;

use super::attempt;
use super::datagram::{self, Sent};

/// The time limit for a response. When the limit is reached, the result of a TCP attempt is *unknown*. Without a
/// network, the kernel reports an error immediately. An attempt takes longer only if an address is reachable or a
/// packet is lost.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The number of connection attempts to one address. The attempts start at intervals and overlap. Several attempts are
/// needed because the kernel limits "unreachable" errors for the complete host (see [`AT_ONCE`]). The kernel may drop
/// an error while other probes run, and TCP itself retries only after a second.
const TRIES: u32 = 6;

/// The number of attempts that start without delay. Later attempts start at intervals of [`APART`].
///
/// If a route has no neighbour, the kernel reports an error. The kernel limits these errors to a burst of 50 and to
/// 1,000 per second (`icmp_msgs_burst` and `icmp_msgs_per_sec`, ip-sysctl). A host with many networks has more
/// addresses than the burst allows. If there is no route, the kernel reports a different error without a limit, so no
/// delay is needed.
const AT_ONCE: u32 = 32;
/// The interval between attempts after the first [`AT_ONCE`].
const APART: Duration = Duration::from_micros(1500);

/// The index of the loopback interface, which is the same in every network namespace.
const LOOPBACK: u32 = 1;

/// External addresses that are reserved for documentation (RFC 5737, RFC 3849). No host has these addresses, so an
/// attempt shows only whether a route exists.
const OUTSIDE: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The addresses of the metadata services of large clouds, including AWS's IPv6 address.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

pub(super) async fn attempts(probe: &Probe) -> Vec<Attempt> {
    let outside = OUTSIDE.map(|address| ("an address outside", SocketAddr::new(address, 443)));
    let metadata = METADATA.map(|address| ("the cloud's metadata service", SocketAddr::new(address, 80)));
    let links = links();
    let here: Vec<_> = probe.host.iter().flat_map(|&address| by_every_link(address, &links)).collect();
    let host = || here.iter().map(|&address| ("this computer itself", address));
    let others = probe.others.iter().map(|&address| ("another bottle", address));
    let tcp = outside.into_iter().chain(metadata).chain(host()).chain(others);
    let turns = &Turns::default();
    let tcp = tcp.map(|(target, address)| async move {
        turns.wait(address).await;
        connect(target, address).await
    });
    let outside = OUTSIDE.map(|address| ("an address outside", SocketAddr::new(address, 443)));
    let resolver = ("a name server outside", SocketAddr::new(OUTSIDE[0], DNS_PORT));
    let udp = outside.into_iter().chain([resolver]).chain(host());
    let udp = udp.map(|(target, address)| async move {
        turns.wait(address).await;
        send(target, address).await
    });
    let (mut attempts, udp) = tokio::join!(join_all(tcp), join_all(udp));
    attempts.extend(udp);
    attempts
}

/// Schedules attempts to addresses that have a route.
#[derive(Default)]
struct Turns(AtomicU32);

impl Turns {
    /// Waits until an attempt to `address` may start.
    async fn wait(&self, address: SocketAddr) {
        if has_route(address) {
            tokio::time::sleep(turn(self.0.fetch_add(1, Ordering::Relaxed))).await;
        }
    }
}

/// Returns the delay of the attempt with the number `number`. The first [`AT_ONCE`] attempts have no delay.
fn turn(number: u32) -> Duration {
    APART * number.saturating_sub(AT_ONCE)
}

/// Returns whether the kernel has a route to an address. The check sends no packet.
fn has_route(address: SocketAddr) -> bool {
    let any =
        if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address)).is_ok()
}

/// Expands a link-local address to one address for each of these network interfaces. Any other address is returned
/// unchanged.
fn by_every_link(address: SocketAddr, links: &[u32]) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            let on = |&link| SocketAddrV6::new(*v6.ip(), v6.port(), 0, link).into();
            links.iter().map(on).collect()
        }
        _ => vec![address],
    }
}

/// Returns the indexes of the bottle's network interfaces except the loopback interface, over which a link-local address
/// is the bottle itself. If the interfaces cannot be listed, the result is the loopback interface, so that an attempt is
/// made.
fn links() -> Vec<u32> {
    let Ok(all) = if_nameindex() else { return vec![LOOPBACK] };
    all.iter().map(|link| link.index()).filter(|&link| link != LOOPBACK).collect()
}

async fn connect(target: &str, address: SocketAddr) -> Attempt {
    let via = format!("tcp {address}");
    let attempt = match tokio::time::timeout(PATIENCE, first_answer(address)).await {
        Ok(Ok(_)) => attempt(target, via, Reach::Reached, "it answered"),
        Ok(Err(error)) => {
            let (reach, seen) = judge(address, &error).await;
            attempt(target, via, reach, seen)
        }
        Err(_) => attempt(target, via, Reach::Unknown, "no answer in time"),
    };
    Attempt { to: Some(address), ..attempt }
}

/// Starts several connection attempts at intervals, and returns the first result.
async fn first_answer(address: SocketAddr) -> io::Result<TcpStream> {
    let mut tries: FuturesUnordered<_> = (0..TRIES)
        .map(|number| async move {
            tokio::time::sleep(PATIENCE / TRIES * number).await;
            TcpStream::connect(address).await
        })
        .collect();
    tries.next().await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends a datagram to an address. If the kernel accepts the datagram, the address counts as reached. The exception is
/// that the local kernel reports within [`PATIENCE`] that no neighbour can forward the datagram.
async fn send(target: &str, address: SocketAddr) -> Attempt {
    let via = format!("udp {address}");
    let attempt = match datagram::send(address, PATIENCE).await {
        Ok(Sent::Taken) => attempt(target, via, Reach::Reached, "the packet was taken"),
        Ok(Sent::NoNeighbour) => attempt(target, via, Reach::Blocked, NO_NEIGHBOUR),
        Err(error) => {
            let (reach, seen) = meaning(&error);
            attempt(target, via, reach, seen)
        }
    };
    Attempt { to: Some(address), ..attempt }
}

/// The text of a result if the route has a gateway that does not exist.
const NO_NEIGHBOUR: &str = "no gateway answers";

/// Works like [`meaning`], but distinguishes which host reported the error "no route to host". If a router reported the
/// error, the router was reached. If the bottle's own kernel reported it, no neighbour answered, and the result is
/// *blocked*.
async fn judge(address: SocketAddr, error: &io::Error) -> (Reach, String) {
    let unreachable = error.raw_os_error() == Some(rustix::io::Errno::HOSTUNREACH.raw_os_error());
    if unreachable && matches!(datagram::send(address, PATIENCE).await, Ok(Sent::NoNeighbour)) {
        return (Reach::Blocked, NO_NEIGHBOUR.to_owned());
    }
    meaning(error)
}

/// Converts an error to a result. A missing route or address family counts as *blocked*. A refused connection counts as
/// *reached*, because a host refused it. The result of any other error is *unknown*.
fn meaning(error: &io::Error) -> (Reach, String) {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NETUNREACH) => (Reach::Blocked, "no network leads there".to_owned()),
        // The bottle's kernel has no address of this family.
        Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL) => {
            (Reach::Blocked, "this bottle has no such network".to_owned())
        }
        Some(rustix::io::Errno::CONNREFUSED) => (Reach::Reached, "it was reached and refused".to_owned()),
        _ => (Reach::Unknown, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_accepted_and_a_refused_connection_count_as_reached() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listener");
        let address = listener.local_addr().expect("address");
        assert_eq!(connect("a listener", address).await.result, Reach::Reached);
        drop(listener);
        assert_eq!(connect("nobody", address).await.result, Reach::Reached);
    }

    #[tokio::test(start_paused = true)]
    async fn only_attempts_with_a_route_are_delayed() {
        let turns = Turns::default();
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
        assert!(!has_route(nowhere), "a broadcast needs permission");
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        for (address, waits) in [(nowhere, Duration::ZERO), (here, APART * 8)] {
            let begun = tokio::time::Instant::now();
            join_all((0..=AT_ONCE + 8).map(|_| turns.wait(address))).await;
            assert_eq!(begun.elapsed().as_millis(), waits.as_millis(), "{address}");
        }
    }

    #[test]
    fn only_a_missing_route_counts_as_blocked() {
        for (errno, reach) in [
            (rustix::io::Errno::NETUNREACH, Reach::Blocked),
            (rustix::io::Errno::CONNREFUSED, Reach::Reached),
            (rustix::io::Errno::TIMEDOUT, Reach::Unknown),
            (rustix::io::Errno::HOSTUNREACH, Reach::Unknown),
            (rustix::io::Errno::ACCESS, Reach::Unknown),
        ] {
            assert_eq!(meaning(&errno.into()).0, reach, "{errno:?}");
        }
    }
}
