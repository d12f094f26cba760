//! The addresses this machine owns: nothing a bottle asks for may lead to them.

use std::io;
use std::net::IpAddr;

/// Every address of every interface, loopback included, as it is at this moment.
///
/// # Errors
/// When the kernel does not list them; the caller must not go on without.
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

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_is_always_among_them() {
        let addresses = super::of_this_host().expect("addresses");
        assert!(addresses.contains(&std::net::Ipv4Addr::LOCALHOST.into()), "{addresses:?}");
    }
}
