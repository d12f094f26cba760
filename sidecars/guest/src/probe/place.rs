//! Where the bottle's proxy and its resolver are, as every program in the bottle finds them.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};

use bottle_contract::names::{EGRESS_HOST, PROXY_LOOPBACK};

/// More than any such file of a bottle.
const MAX: u64 = 64 * 1024;

/// What leads out of the bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The proxy's address.
    pub(super) proxy: Ipv4Addr,
    /// The resolver that programs ask; a container's engine may have put one of its own in between.
    pub(super) resolver: IpAddr,
}

impl Place {
    pub(super) fn find() -> Self {
        Self::of(&read("/etc/hosts"), &read("/etc/resolv.conf"))
    }

    /// Where no proxy is named there is none, and nobody else's resolver is asked in its stead.
    fn of(hosts: &str, configuration: &str) -> Self {
        let Some(proxy) = of_name(hosts, EGRESS_HOST) else {
            return Self { proxy: PROXY_LOOPBACK, resolver: PROXY_LOOPBACK.into() };
        };
        Self { proxy, resolver: nameserver(configuration).unwrap_or(proxy.into()) }
    }
}

/// hosts(5): an address, then its names.
fn of_name(hosts: &str, name: &str) -> Option<Ipv4Addr> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == name).then_some(address)
    })
}

/// resolv.conf(5): the first `nameserver`.
fn nameserver(configuration: &str) -> Option<IpAddr> {
    configuration.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    })
}

fn read(path: &str) -> String {
    let mut text = String::new();
    // One that is missing or no text says nothing.
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
    fn the_proxy_is_found_by_its_name_only() {
        let hosts = "127.0.0.1 localhost\n::1 egress\n# 1.2.3.4 egress\n10.213.0.9 egress.example\n\
                     junk egress\n10.213.0.2\tsupervise egress # the proxy\n10.0.0.1 egress\n";
        assert_eq!(of_name(hosts, "egress"), Some(Ipv4Addr::new(10, 213, 0, 2)));
        assert_eq!(of_name(hosts, "git-gate"), None);
        assert_eq!(of_name("", "egress"), None);
    }

    #[test]
    fn the_first_resolver_is_the_one_that_is_asked() {
        let configuration = "# made by an engine\noptions ndots:0\nnameserver\nnameserver 127.0.0.11\n\
                             nameserver 192.0.2.1\n";
        let proxy = Ipv4Addr::new(10, 213, 0, 2);
        let place = |resolver| Place { proxy, resolver };
        assert_eq!(Place::of("10.213.0.2 egress", configuration), place([127, 0, 0, 11].into()));
        assert_eq!(Place::of("10.213.0.2 egress", "search example.com\n"), place(proxy.into()));
        let without = Place { proxy: PROXY_LOOPBACK, resolver: PROXY_LOOPBACK.into() };
        assert_eq!(Place::of("127.0.0.1 localhost", configuration), without);
    }
}
