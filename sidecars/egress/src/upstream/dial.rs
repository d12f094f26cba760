//! Opens upstream connections: address, TCP, TLS.
//!
//! The proxy connects to exactly the address that it checked. The proxy does not resolve the name a second time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bottle_policy::address::forbidden;
use bottle_policy::route::OWN_MACHINE;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use super::corporate_proxy::CorporateProxy;
use super::dns_lookup::{HostResolver, ResolveError};
use super::tls_stream::UpstreamTls;
use super::{Target, Unreachable, UpstreamError};
use crate::bounds;

/// An upstream connection, plain or TLS.
pub(crate) type UpstreamIo = Either<TcpStream, UpstreamTls>;

/// Opens connections to targets.
pub(crate) struct Dialer {
    /// The resolver for host names.
    pub(crate) resolver: HostResolver,
    /// All addresses of the host machine.
    pub(crate) host_addresses: Vec<IpAddr>,
    /// The address of the user's machine as this process sees it. `None` means loopback.
    pub(crate) machine: Option<IpAddr>,
    /// The corporate proxy of `egress.upstream_proxy`, if one is configured.
    pub(crate) proxy: Option<CorporateProxy>,
}

impl Dialer {
    /// Connects to `target`, with TLS if the target requires it.
    ///
    /// # Errors
    /// [`UpstreamError`] with the step that failed.
    pub(crate) async fn dial(
        &self,
        target: &Target,
        tls: &Arc<ClientConfig>,
    ) -> Result<UpstreamIo, UpstreamError> {
        let tcp = self.connect_tcp(target).await?;
        if !target.tls {
            return Ok(Either::Left(tcp));
        }
        let name = match literal(&target.host) {
            Some(address) => ServerName::from(address),
            None => {
                ServerName::try_from(target.host.clone()).map_err(|error| unreachable(error, &target.host))?
            }
        };
        let handshake = TlsConnector::from(Arc::clone(tls)).connect(name, tcp);
        match timeout(bounds::HANDSHAKE_WITHIN, handshake).await {
            Ok(Ok(stream)) => Ok(Either::Right(UpstreamTls::new(stream))),
            Ok(Err(error)) => Err(tls_error(&target.host, error)),
            Err(_) => Err(Unreachable::HandshakeTimeout.at(&target.host)),
        }
    }

    /// Connects to `target` without TLS, for plain HTTP and for TLS passthrough.
    ///
    /// # Errors
    /// [`UpstreamError`] with the step that failed.
    pub(crate) async fn connect_tcp(&self, target: &Target) -> Result<TcpStream, UpstreamError> {
        let host = &target.host;
        if let Some((connect_host, port)) = &target.connect_to {
            let addresses = self.resolve_explicit(connect_host).await;
            let addresses = addresses.map_err(|error| unreachable(error, host))?;
            return connect(host, &addresses, *port).await;
        }
        if let Some(proxy) = &self.proxy {
            return self.dial_through_proxy(proxy, target).await;
        }
        let addresses = match literal(host) {
            Some(address) => vec![address],
            None => self.resolver.look_up(host).await.map_err(|error| unreachable(error, host))?,
        };
        self.check_addresses(target, &addresses)?;
        connect(host, &addresses, target.port).await
    }

    async fn dial_through_proxy(
        &self,
        proxy: &CorporateProxy,
        target: &Target,
    ) -> Result<TcpStream, UpstreamError> {
        let host = &target.host;
        if let Some(address) = literal(host) {
            self.check_addresses(target, &[address])?;
        }
        let addresses = self.resolve_explicit(&proxy.host).await;
        let addresses = addresses.map_err(|error| unreachable(error, host))?;
        let mut tcp = connect(host, &addresses, proxy.port).await?;
        let connected = proxy.connect(&mut tcp, host, target.port).await;
        connected.map_err(|error| unreachable(error, host))?;
        Ok(tcp)
    }

    /// Resolves a host that the user configured as a destination. All addresses of such a host are permitted.
    async fn resolve_explicit(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if host == OWN_MACHINE {
            let here = || vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Ok(self.machine.map_or_else(here, |address| vec![address]));
        }
        match literal(host) {
            Some(address) => Ok(vec![address]),
            None => self.resolver.look_up(host).await,
        }
    }

    /// Denies the target if any of its addresses is forbidden, because a name with both public and private addresses is
    /// suspicious.
    fn check_addresses(&self, target: &Target, addresses: &[IpAddr]) -> Result<(), UpstreamError> {
        if target.private {
            return Ok(());
        }
        for address in addresses {
            if let Some(why) = forbidden(*address, &self.host_addresses) {
                let host = target.host.clone();
                let why = why.as_str();
                return Err(UpstreamError::Forbidden { host, address: *address, why });
            }
        }
        Ok(())
    }
}

/// Parses a canonical host as an address. IPv6 addresses are in brackets.
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

async fn connect(host: &str, addresses: &[IpAddr], port: u16) -> Result<TcpStream, UpstreamError> {
    let mut last = Unreachable::NoAddress;
    for address in addresses.iter().take(bounds::ADDRESSES) {
        let address = SocketAddr::new(*address, port);
        match timeout(bounds::CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => {
                // An error is ignored, because the connection is only slower without this option.
                let _ = tcp.set_nodelay(true);
                detect_silence(&tcp);
                return Ok(tcp);
            }
            Ok(Err(error)) => last = Unreachable::Connect(address, error),
            Err(_) => last = Unreachable::ConnectTimeout(address),
        }
    }
    Err(last.at(host))
}

/// Makes the kernel close the connection when the server's machine no longer answers. Otherwise the proxy would not
/// detect this on an idle WebSocket. Errors are ignored, because the proxy's own deadlines also apply.
fn detect_silence(tcp: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(tcp, true);
    let _ = sockopt::set_tcp_keepidle(tcp, bounds::KEEPALIVE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(tcp, bounds::KEEPALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(tcp, bounds::KEEPALIVE_PROBES);
    let silent = bounds::KEEPALIVE_AFTER + bounds::KEEPALIVE_EVERY * bounds::KEEPALIVE_PROBES;
    limit_unacknowledged(tcp, silent);
}

/// Limits how long sent data may stay unacknowledged.
#[cfg(target_os = "linux")]
fn limit_unacknowledged(tcp: &TcpStream, limit: Duration) {
    let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(tcp, limit);
}

/// Does nothing, because macOS has its own limit, which is longer.
#[cfg(target_os = "macos")]
fn limit_unacknowledged(_: &TcpStream, _: Duration) {}

fn unreachable(step: impl Into<Unreachable>, host: &str) -> UpstreamError {
    step.into().at(host)
}

fn tls_error(host: &str, error: std::io::Error) -> UpstreamError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            UpstreamError::Untrusted { host: host.to_owned(), why: why.clone() }
        }
        _ => Unreachable::Handshake(error).at(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer() -> Dialer {
        let own = "192.0.2.77".parse().expect("address");
        Dialer { resolver: HostResolver::from_host(), host_addresses: vec![own], machine: None, proxy: None }
    }

    fn target(private: bool) -> Target {
        Target { host: "name.example.com".into(), port: 443, tls: true, private, connect_to: None }
    }

    #[test]
    fn denies_a_name_with_one_forbidden_address() {
        let addresses: Vec<IpAddr> =
            ["9.9.9.9", "10.0.0.1"].map(|text| text.parse().expect("address")).to_vec();
        let error = dialer().check_addresses(&target(false), &addresses).expect_err("a private address");
        assert!(matches!(error, UpstreamError::Forbidden { address, .. } if address == addresses[1]));
        assert!(dialer().check_addresses(&target(false), &addresses[..1]).is_ok());
        assert!(dialer().check_addresses(&target(true), &addresses).is_ok());
    }

    #[tokio::test]
    async fn resolves_the_users_machine_as_seen_from_the_bundle() {
        let here = dialer().resolve_explicit(OWN_MACHINE).await.expect("addresses");
        assert!(here.iter().all(IpAddr::is_loopback), "{here:?}");
        let machine: IpAddr = "192.0.2.1".parse().expect("address");
        let contained = Dialer { machine: Some(machine), ..dialer() };
        assert_eq!(contained.resolve_explicit(OWN_MACHINE).await.expect("addresses"), [machine]);
    }

    #[test]
    fn parses_literal_addresses() {
        assert_eq!(literal("[2001:db8::1]"), "2001:db8::1".parse().ok());
        assert_eq!(literal("203.0.113.7"), "203.0.113.7".parse().ok());
        assert_eq!(literal("name.example.com"), None);
    }
}
