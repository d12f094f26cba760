//! Lists the addresses of this machine, which bottles must not be able to reach.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Returns all current addresses of all interfaces, including loopback.
///
/// # Errors
/// Returns an error if the kernel cannot list the addresses. The caller must then stop, because it cannot block access
/// to unknown addresses.
pub fn of_this_host() -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = nix::ifaddrs::getifaddrs()?
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Returns the addresses through which another machine or a bottle could reach this machine: all except loopback
/// addresses. The port of each address is 0. Link-local addresses have their scope id and are at the end of the list.
/// Among the link-local addresses, those of the newest interface come first.
///
/// # Errors
/// Returns the same errors as [`of_this_host`].
pub fn reachable() -> io::Result<Vec<SocketAddr>> {
    let (mut wide, mut local) = (Vec::new(), Vec::new());
    for address in nix::ifaddrs::getifaddrs()?.filter_map(|interface| interface.address) {
        if let Some(v4) = address.as_sockaddr_in().filter(|v4| !v4.ip().is_loopback()) {
            wide.push(SocketAddr::from((v4.ip(), 0)));
        }
        if let Some(v6) = address.as_sockaddr_in6().filter(|v6| !v6.ip().is_loopback()) {
            let address = SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id());
            if v6.ip().is_unicast_link_local() { local.push(address) } else { wide.push(address.into()) }
        }
    }
    local.sort_by_key(|address| std::cmp::Reverse(address.scope_id()));
    Ok(wide.into_iter().chain(local.into_iter().map(SocketAddr::from)).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_loopback_addresses() {
        let addresses = super::of_this_host().expect("addresses");
        assert!(addresses.contains(&std::net::Ipv4Addr::LOCALHOST.into()), "{addresses:?}");
    }
}
