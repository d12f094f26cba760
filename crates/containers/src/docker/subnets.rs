//! Chooses the addresses of a bottle's networks as /28 subnets of one range. The engine's own address pools are
//! exhausted after about thirty networks. The module has no side effects.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// The prefix length of a subnet. The subnet has addresses for the engine's gateway, the bundle and the agent.
pub(super) const PREFIX: u8 = 28;

/// Returns the first free subnet of `range`. The search begins at the subnet number `start` and wraps around, so that
/// concurrent launches begin at different subnets.
pub(super) fn pick(range: Ipv4Net, taken: &[Ipv4Net], start: u32) -> Option<Ipv4Net> {
    let count = 1_u32 << u32::from(PREFIX.checked_sub(range.prefix_len())?);
    let all = (0..count).map(|step| nth(range, (start % count + step) % count));
    all.flatten().find(|subnet| !taken.iter().any(|other| overlap(subnet, other)))
}

/// Returns the machine's address in an outer network. This is the address of the engine's gateway.
pub(super) fn machine(subnet: Ipv4Net) -> Ipv4Addr {
    host(subnet, 1)
}

/// Returns the bundle's address in a subnet.
pub(super) fn bundle(subnet: Ipv4Net) -> Ipv4Addr {
    host(subnet, 2)
}

/// Returns the agent's address in a subnet.
pub(super) fn agent(subnet: Ipv4Net) -> Ipv4Addr {
    host(subnet, 3)
}

fn host(subnet: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()) + number)
}

fn nth(range: Ipv4Net, number: u32) -> Option<Ipv4Net> {
    let network = u32::from(range.network()) + (number << (32 - PREFIX));
    Ipv4Net::new(network.into(), PREFIX).ok()
}

fn overlap(one: &Ipv4Net, other: &Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);

    fn net(text: &str) -> Ipv4Net {
        text.parse().expect("a network")
    }

    #[test]
    fn picks_the_next_free_subnet_with_wraparound() {
        let range = net("10.0.0.0/26");
        for (taken, start, picked) in [
            (vec![], 0, Some("10.0.0.0/28")),
            (vec![], 3, Some("10.0.0.48/28")),
            (vec![], 4, Some("10.0.0.0/28")),
            (vec!["10.0.0.48/28"], 3, Some("10.0.0.0/28")),
            (vec!["10.0.0.50/32", "10.0.0.0/27"], 2, Some("10.0.0.32/28")),
            (vec!["10.0.0.50/32", "10.0.0.0/27"], 3, Some("10.0.0.32/28")),
            (vec!["10.0.0.0/8"], 1, None),
            (vec!["0.0.0.0/0"], 1, None),
        ] {
            let taken: Vec<Ipv4Net> = taken.into_iter().map(net).collect();
            assert_eq!(pick(range, &taken, start), picked.map(net), "{taken:?} from {start}");
        }
        assert_eq!(pick(net("10.0.0.0/29"), &[], 0), None, "too small for one");
    }

    #[test]
    fn bundle_and_agent_have_fixed_addresses() {
        let subnet = net("10.213.7.240/28");
        assert_eq!(bundle(subnet), Ipv4Addr::new(10, 213, 7, 242));
        assert_eq!(agent(subnet), Ipv4Addr::new(10, 213, 7, 243));
    }

    proptest! {
        #[test]
        fn a_picked_subnet_is_in_the_range_and_free(
            taken in prop::collection::vec((any::<u32>(), 16u8..=32), 0..20),
            start: u32,
        ) {
            let taken: Vec<Ipv4Net> = taken
                .into_iter()
                .map(|(bits, prefix)| {
                    let inside = u32::from(RANGE.network()) | (bits & 0xffff);
                    Ipv4Net::new(inside.into(), prefix).expect("a prefix").trunc()
                })
                .collect();
            if let Some(picked) = pick(RANGE, &taken, start) {
                prop_assert!(RANGE.contains(&picked));
                prop_assert!(taken.iter().all(|other| !overlap(&picked, other)));
            } else {
                let free = (0..4096).filter_map(|number| nth(RANGE, number));
                prop_assert!(free.into_iter().all(|one| taken.iter().any(|other| overlap(&one, other))));
            }
        }
    }
}
