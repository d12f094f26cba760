//! Reads the networks to which this machine has routes, so that no bottle's network hides such a network.
//!
//! Only an engine on this machine can hide a network of this machine. If the engine is on another machine, bottles
//! avoid the addresses unnecessarily.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// The maximum number of bytes that are read from the routing table. Thousands of routes fit in this size. Further
/// routes are ignored.
const TABLE_MAX: u64 = 1 << 20;

/// Returns the networks in this machine's routing table, except the default route. Empty if the table cannot be read.
pub(super) fn from_host() -> Vec<Ipv4Net> {
    let mut table = String::new();
    match File::open("/proc/net/route").and_then(|file| file.take(TABLE_MAX).read_to_string(&mut table)) {
        Ok(_) => parse(&table),
        Err(_) => Vec::new(),
    }
}

/// Parses the table. The second column is the destination, and the eighth column is the mask. Both are in native byte
/// order.
fn parse(table: &str) -> Vec<Ipv4Net> {
    let networks = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let address = |column: usize| Some(Ipv4Addr::from(number(columns.get(column)?)?.to_ne_bytes()));
        let prefix = u32::from(address(7)?).leading_ones();
        Ipv4Net::new(address(1)?, u8::try_from(prefix).ok()?).ok()
    });
    networks.filter(|network| network.prefix_len() > 0).collect()
}

fn number(hex: &str) -> Option<u32> {
    u32::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn parses_networks_without_the_default_route() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
            short\tline\n";
        let networks: Vec<String> = parse(table).iter().map(ToString::to_string).collect();
        assert_eq!(networks, ["192.0.2.0/24", "172.17.0.0/16"]);
    }

    #[test]
    fn reads_this_machines_table() {
        if std::path::Path::new("/proc/net/route").exists() {
            assert!(from_host().iter().all(|network| network.prefix_len() > 0));
        }
    }
}
