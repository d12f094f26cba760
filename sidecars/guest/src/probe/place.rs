//! Finds the addresses of the bottle's proxy and resolver in `/etc/hosts` and `/etc/resolv.conf`, as every program in
//! the bottle does.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};

use bottle_policy::names::{EGRESS_HOST, PROXY_LOOPBACK};

/// The maximum number of bytes that are read from a configuration file. The rest of the file is ignored.
const MAX: u64 = 64 * 1024;

/// The addresses of the proxy and of the resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses {
    /// The proxy's address.
    pub(super) proxy: Ipv4Addr,
    /// The address of the resolver that programs use. This address may be the resolver of the container engine.
    pub(super) resolver: IpAddr,
}

impl Addresses {
    pub(super) fn find() -> Self {
        Self::parse(&read("/etc/hosts"), &read("/etc/resolv.conf"))
    }

    /// Parses the contents of hosts(5) and resolv.conf(5). If the hosts file does not name the proxy, the
    /// resolver in resolv.conf is ignored, and both addresses are the proxy's loopback address.
    fn parse(hosts: &str, configuration: &str) -> Self {
        let Some(proxy) = host_address(hosts, EGRESS_HOST) else {
            return Self { proxy: PROXY_LOOPBACK, resolver: PROXY_LOOPBACK.into() };
        };
        Self { proxy, resolver: nameserver(configuration).unwrap_or(proxy.into()) }
    }
}

/// Finds the address of a name in hosts(5). Each line has an address, followed by its names.
fn host_address(hosts: &str, name: &str) -> Option<Ipv4Addr> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == name).then_some(address)
    })
}

/// Finds the first `nameserver` in resolv.conf(5).
fn nameserver(configuration: &str) -> Option<IpAddr> {
    configuration.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    })
}

fn read(path: &str) -> String {
    let mut text = String::new();
    // A file that does not exist or is not UTF-8 is treated as empty.
    if let Ok(file) = File::open(path)
        && file.take(MAX).read_to_string(&mut text).is_err()
    {
        text.clear();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_proxy_by_its_exact_name() {
        let hosts = "127.0.0.1 localhost\n::1 egress\n# 1.2.3.4 egress\n10.213.0.9 egress.example\n\
                     junk egress\n10.213.0.2\tsupervise egress # the proxy\n10.0.0.1 egress\n";
        assert_eq!(host_address(hosts, "egress"), Some(Ipv4Addr::new(10, 213, 0, 2)));
        assert_eq!(host_address(hosts, "git-gate"), None);
        assert_eq!(host_address("", "egress"), None);
    }

    #[test]
    fn uses_the_first_nameserver() {
        let configuration = "# made by an engine\noptions ndots:0\nnameserver\nnameserver 127.0.0.11\n\
                             nameserver 192.0.2.1\n";
        let proxy = Ipv4Addr::new(10, 213, 0, 2);
        let with = |resolver| Addresses { proxy, resolver };
        assert_eq!(Addresses::parse("10.213.0.2 egress", configuration), with([127, 0, 0, 11].into()));
        assert_eq!(Addresses::parse("10.213.0.2 egress", "search example.com\n"), with(proxy.into()));
        let without = Addresses { proxy: PROXY_LOOPBACK, resolver: PROXY_LOOPBACK.into() };
        assert_eq!(Addresses::parse("127.0.0.1 localhost", configuration), without);
    }
}
