//! Rejects addresses that the proxy must not connect to unless the user permits it.
//!
//! The owner of an allowed host name can point the name at any address. The proxy therefore checks the address after
//! name resolution and connects to exactly that address. The user permits a forbidden address with `private: true` or
//! `connect_to` on a route. For such a route, callers skip this check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forbidden {
    /// 127/8, `::1`.
    Loopback,
    /// 0/8 and `::`. Many systems treat these as "this host".
    Unspecified,
    /// 10/8, 172.16/12, 192.168/16; fc00::/7 and the deprecated fec0::/10.
    Private,
    /// 100.64/10, carrier-grade NAT.
    Shared,
    /// 169.254/16, fe80::/10.
    LinkLocal,
    /// The address of a cloud's metadata service.
    Metadata,
    /// 224/4, ff00::/8.
    Multicast,
    /// 240/4, which includes the broadcast address; IPv6 addresses outside 2000::/3.
    Reserved,
    /// 192.0.0/24, 192.31.196/24, 192.52.193/24, 192.88.99/24, 192.175.48/24 and 198.18/15; 2001::/23 except
    /// Teredo, 100::/32, 2620:4f:8000::/48 and 5f00::/16. IANA assigns these to a protocol, a test or a local
    /// network and never to a public server (special-purpose registries, RFC 6890 and its successors).
    SpecialPurpose,
    /// 192.0.2/24, 198.51.100/24, 203.0.113/24; 2001:db8::/32 and 3fff::/20 (RFC 5737, 3849, 9637). The internet does
    /// not route these addresses, so a server at such an address is in a private network.
    Documentation,
    /// 64:ff9b:1::/48: local NAT64. The local network may translate such an address to any IPv4 address.
    LocalTranslation,
    /// An address of the machine that runs `bottle`.
    Own,
}

impl Forbidden {
    /// Returns a noun phrase that describes the address.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "a loopback address",
            Self::Unspecified => "an unspecified address",
            Self::Private => "a private address",
            Self::Shared => "a shared address (100.64.0.0/10)",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud metadata address",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
            Self::SpecialPurpose => "a special-purpose address",
            Self::Documentation => "an address for documentation",
            Self::LocalTranslation => "an address translated by the local network",
            Self::Own => "an address of the host itself",
        }
    }
}

/// Metadata services. The addresses of cloud metadata services. Most of them have no forbidden range of their own:
/// Azure's and Oracle's addresses are public, and Amazon's IPv6 address is unique-local. 169.254.169.254 is listed so
/// that it is reported as a metadata address and not as a link-local address.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Returns why the proxy must not connect to `address`, or `None` if the proxy may connect to it. `own` lists the
/// host's addresses.
///
/// If an IPv6 address embeds an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo), the embedded address
/// is checked too.
#[must_use]
pub fn forbidden(address: IpAddr, own: &[IpAddr]) -> Option<Forbidden> {
    if own.contains(&address) {
        return Some(Forbidden::Own);
    }
    if METADATA.contains(&address) {
        return Some(Forbidden::Metadata);
    }
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => {
            let embedded_v4 = embedded_v4(address).into_iter().flatten();
            v6(address).or_else(|| embedded_v4.filter_map(|inner| forbidden(IpAddr::V4(inner), own)).next())
        }
    }
}

fn v4(address: Ipv4Addr) -> Option<Forbidden> {
    match address.octets() {
        [0, ..] => Some(Forbidden::Unspecified),
        [127, ..] => Some(Forbidden::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(Forbidden::Private),
        [100, 64..=127, ..] => Some(Forbidden::Shared),
        [169, 254, ..] => Some(Forbidden::LinkLocal),
        [192, 0, 0, _] | [192, 88, 99, _] | [198, 18 | 19, ..] => Some(Forbidden::SpecialPurpose),
        // AS112 (two ranges) and AMT relays.
        [192, 31, 196, _] | [192, 175, 48, _] | [192, 52, 193, _] => Some(Forbidden::SpecialPurpose),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Some(Forbidden::Documentation),
        [224..=239, ..] => Some(Forbidden::Multicast),
        [240..=255, ..] => Some(Forbidden::Reserved),
        _ => None,
    }
}

fn v6(address: Ipv6Addr) -> Option<Forbidden> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Forbidden::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Forbidden::Loopback),
        [0x64, 0xff9b, 1, ..] => Some(Forbidden::LocalTranslation),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Forbidden::Private),
        [0xfe80..=0xfebf, ..] => Some(Forbidden::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Forbidden::Multicast),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Forbidden::Documentation),
        // Discard-only and dummy (100::/64, 100:0:0:1::/64), segment routing SIDs, AS112.
        [0x100, 0, ..] | [0x5f00, ..] | [0x2620, 0x4f, 0x8000, ..] => Some(Forbidden::SpecialPurpose),
        // Protocol assignments except Teredo. For Teredo, the embedded addresses decide.
        [0x2001, 1..=0x1ff, ..] => Some(Forbidden::SpecialPurpose),
        // The embedded IPv4 addresses decide.
        _ if embedded_v4(address).iter().any(Option::is_some) => None,
        // Only 2000::/3 is allocated (RFC 4291).
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Forbidden::Reserved),
    }
}

/// Returns the IPv4 addresses embedded in an IPv6 address: the translated target, the 6to4 router, or the
/// Teredo server and client.
fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // Mapped (::ffff:0:0/96), translated (::ffff:0:0:0/96), the deprecated compatible form (::/96),
        // NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [Some(join(high, low)), None],
        // 6to4: the relay router.
        [0x2002, high, low, ..] => [Some(join(high, low)), None],
        // Teredo: the server's address, and the client's address with inverted bits.
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            [Some(join(high, low)), Some(join(!client_high, !client_low))]
        }
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(address: &str) -> Option<Forbidden> {
        let own = ["192.0.2.10".parse().expect("v4"), "2001:db8::10".parse().expect("v6")];
        forbidden(address.parse().expect("address"), &own)
    }

    #[test]
    fn range_boundaries_are_exact() {
        use Forbidden as F;
        for (address, why) in [
            ("0.0.0.0", Some(F::Unspecified)),
            ("0.255.255.255", Some(F::Unspecified)),
            ("1.0.0.0", None),
            ("9.255.255.255", None),
            ("10.0.0.0", Some(F::Private)),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some(F::Shared)),
            ("100.127.255.255", Some(F::Shared)),
            ("100.128.0.0", None),
            ("100.100.100.200", Some(F::Metadata)),
            ("126.255.255.255", None),
            ("127.0.0.1", Some(F::Loopback)),
            ("127.255.255.255", Some(F::Loopback)),
            ("128.0.0.0", None),
            ("168.63.129.16", Some(F::Metadata)),
            ("169.253.255.255", None),
            ("169.254.0.1", Some(F::LinkLocal)),
            ("169.254.169.254", Some(F::Metadata)),
            ("169.255.0.0", None),
            ("172.15.255.255", None),
            ("172.16.0.0", Some(F::Private)),
            ("172.31.255.255", Some(F::Private)),
            ("172.32.0.0", None),
            ("192.0.0.192", Some(F::Metadata)),
            ("192.0.2.10", Some(F::Own)),
            ("192.0.2.11", Some(F::Documentation)),
            ("191.255.255.255", None),
            ("192.0.0.0", Some(F::SpecialPurpose)),
            ("192.0.0.9", Some(F::SpecialPurpose)),
            ("192.0.0.170", Some(F::SpecialPurpose)),
            ("192.0.1.0", None),
            ("192.0.1.255", None),
            ("192.0.3.0", None),
            ("192.31.196.1", Some(F::SpecialPurpose)),
            ("192.52.193.1", Some(F::SpecialPurpose)),
            ("192.175.48.1", Some(F::SpecialPurpose)),
            ("192.88.98.255", None),
            ("192.88.99.1", Some(F::SpecialPurpose)),
            ("192.88.100.0", None),
            ("198.17.255.255", None),
            ("198.18.0.0", Some(F::SpecialPurpose)),
            ("198.19.255.255", Some(F::SpecialPurpose)),
            ("198.20.0.0", None),
            ("198.51.99.255", None),
            ("198.51.100.0", Some(F::Documentation)),
            ("198.51.101.0", None),
            ("203.0.112.255", None),
            ("203.0.113.255", Some(F::Documentation)),
            ("203.0.114.0", None),
            ("192.167.255.255", None),
            ("192.168.0.0", Some(F::Private)),
            ("192.169.0.0", None),
            ("223.255.255.255", None),
            ("224.0.0.0", Some(F::Multicast)),
            ("239.255.255.255", Some(F::Multicast)),
            ("240.0.0.0", Some(F::Reserved)),
            ("255.255.255.255", Some(F::Reserved)),
            ("::", Some(F::Unspecified)),
            ("::1", Some(F::Loopback)),
            ("2001:db8::10", Some(F::Own)),
            ("2001:db8::11", Some(F::Documentation)),
            ("2001:db7:ffff::1", None),
            ("2001:db9::1", None),
            ("2606:4700::1111", None),
            ("2001:1::1", Some(F::SpecialPurpose)),
            ("2001:2::1", Some(F::SpecialPurpose)),
            ("2001:20::1", Some(F::SpecialPurpose)),
            ("2001:1ff:ffff::1", Some(F::SpecialPurpose)),
            ("2001:200::1", None),
            ("2001:4860:4860::8888", None),
            ("2620:4f:8000::1", Some(F::SpecialPurpose)),
            ("2620:4f:8001::1", None),
            ("100::1", Some(F::SpecialPurpose)),
            ("100:0:0:1::1", Some(F::SpecialPurpose)),
            ("3ffe::1", None),
            ("3fff::1", Some(F::Documentation)),
            ("3fff:fff:ffff::1", Some(F::Documentation)),
            ("3fff:1000::1", None),
            ("4000::1", Some(F::Reserved)),
            ("5f00::1", Some(F::SpecialPurpose)),
            ("1fff::1", Some(F::Reserved)),
            ("fbff::1", Some(F::Reserved)),
            ("fc00::1", Some(F::Private)),
            ("fd00:ec2::254", Some(F::Metadata)),
            ("fdff::1", Some(F::Private)),
            ("fe00::1", Some(F::Reserved)),
            ("fe80::1", Some(F::LinkLocal)),
            ("febf::1", Some(F::LinkLocal)),
            ("fec0::1", Some(F::Private)),
            ("ff02::1", Some(F::Multicast)),
            ("64:ff9b:1::1", Some(F::LocalTranslation)),
            ("64:ff9b:1:ffff::8.8.8.8", Some(F::LocalTranslation)),
            ("64:ff9b:2::1", Some(F::Reserved)),
        ] {
            assert_eq!(check(address), why, "{address}");
        }
    }

    #[test]
    fn checks_embedded_ipv4_addresses() {
        use Forbidden as F;
        for (address, why) in [
            ("::ffff:127.0.0.1", Some(F::Loopback)),
            ("::ffff:169.254.169.254", Some(F::Metadata)),
            ("::ffff:192.0.2.10", Some(F::Own)),
            ("::ffff:8.8.8.8", None),
            ("::ffff:0:10.0.0.1", Some(F::Private)),
            ("::10.0.0.1", Some(F::Private)),
            ("64:ff9b::10.0.0.1", Some(F::Private)),
            ("64:ff9b::8.8.8.8", None),
            ("2002:7f00:1::", Some(F::Loopback)),
            ("2002:a9fe:a9fe::1", Some(F::Metadata)),
            ("2002:808:808::1", None),
            ("::ffff:198.18.0.1", Some(F::SpecialPurpose)),
            ("::198.19.0.1", Some(F::SpecialPurpose)),
            ("64:ff9b::192.0.0.8", Some(F::SpecialPurpose)),
            ("2002:c612:1::1", Some(F::SpecialPurpose)),
            ("2002:cb00:7107::1", Some(F::Documentation)),
            ("2001:0:c000:1::", Some(F::SpecialPurpose)),
            ("2001:0:808:808:0:0:39ed:fffe", Some(F::SpecialPurpose)),
            // Teredo with server 10.0.0.1; then with client 192.168.0.1, inverted.
            ("2001:0:a00:1::", Some(F::Private)),
            ("2001:0:808:808:0:0:3f57:fffe", Some(F::Private)),
            ("2001:0:808:808:0:0:f7f7:f7f7", None),
        ] {
            assert_eq!(check(address), why, "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_forbidden_address_is_forbidden_in_every_ipv6_form(bits: u32, own: u32) {
            let address = Ipv4Addr::from(bits);
            let own = [IpAddr::V4(Ipv4Addr::from(own))];
            let Some(_) = forbidden(IpAddr::V4(address), &own) else { return Ok(()) };
            let [high, low] = [(bits >> 16) as u16, (bits & 0xffff) as u16];
            for form in [
                Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 1, 2, 3, 4, 5),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, 0, 0),
                Ipv6Addr::new(0x2001, 0, 0x808, 0x808, 0, 0, !high, !low),
            ] {
                prop_assert!(forbidden(IpAddr::V6(form), &own).is_some(), "{form}");
            }
        }

        /// Wherever the standard library classifies an address, this module returns the same class.
        #[test]
        fn agrees_with_the_standard_library(bits: u32, wide: u128) {
            let address = Ipv4Addr::from(bits);
            if address.is_private() || address.is_loopback() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_unspecified() || address.is_documentation()
            {
                prop_assert!(forbidden(IpAddr::V4(address), &[]).is_some());
            }
            let address = Ipv6Addr::from(wide);
            if address.is_loopback() || address.is_multicast() || address.is_unicast_link_local()
                || address.is_unique_local() || address.is_unspecified()
            {
                prop_assert!(forbidden(IpAddr::V6(address), &[]).is_some());
            }
        }
    }
}
