//! Resolves names to addresses with the host's configuration.
//!
//! The resolver looks in `/etc/hosts` first and then queries the name servers in `/etc/resolv.conf`. Both files are
//! read again when they change, for example when a laptop switches to another network. A name with a dot is resolved as
//! fully qualified, so that a search domain cannot change the name after the policy has decided on the request.

use std::fs;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use tokio::time::timeout;

use crate::bounds;

/// How often the resolver checks the modification times of both files.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The maximum number of cached answers from name servers.
const CACHED: u64 = 512;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// Why a name has no usable address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("the host has no name server configured")]
    NoServer,
    #[error("{0} did not resolve in time")]
    Timeout(String),
    #[error("{name} does not resolve")]
    Failed { name: String, source: Box<NetError> },
}

/// A resolver with the host's configuration.
pub(crate) struct HostResolver {
    system: Mutex<System>,
}

struct System {
    resolver: Option<Arc<TokioResolver>>,
    hosts: Option<Arc<StaticHosts>>,
    stamp: Stamp,
    checked: Instant,
}

/// The modification times of both files when they were read.
type Stamp = [Option<SystemTime>; 2];

impl HostResolver {
    /// Reads the host's configuration. Without a name server, only names in `/etc/hosts` resolve.
    pub(crate) fn from_host() -> Self {
        Self { system: Mutex::new(System::load(stamp())) }
    }

    /// Creates a resolver that queries only `server` and reads no file.
    #[cfg(test)]
    pub(crate) fn with_server(server: std::net::SocketAddr) -> Self {
        use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
        let mut connection = ConnectionConfig::udp();
        connection.port = server.port();
        let server = NameServerConfig::new(server.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, vec![], vec![server]);
        let runtime = hickory_resolver::net::runtime::TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(config, runtime);
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4Only;
        builder.options_mut().cache_size = 0;
        let resolver = builder.build().expect("a resolver").into();
        let checked = Instant::now() + Duration::from_secs(3600);
        let system = System { resolver: Some(resolver), hosts: None, stamp: stamp(), checked };
        Self { system: Mutex::new(system) }
    }

    /// Returns the addresses of `name`, in the order in which to try them.
    ///
    /// # Errors
    /// [`ResolveError`] if the name has no usable address.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let (resolver, hosts) = {
            let mut system = self.system.lock().unwrap_or_else(PoisonError::into_inner);
            system.refresh();
            (system.resolver.clone(), system.hosts.clone())
        };
        if let Some(addresses) = hosts.and_then(|hosts| hosts.get(name)) {
            return Ok(addresses);
        }
        let resolver = resolver.ok_or(ResolveError::NoServer)?;
        let question = if name.contains('.') { format!("{name}.") } else { name.to_owned() };
        let answer = timeout(bounds::RESOLVE_WITHIN, resolver.lookup_ip(question))
            .await
            .map_err(|_| ResolveError::Timeout(name.to_owned()))?
            .map_err(|source| ResolveError::Failed { name: name.to_owned(), source: source.into() })?;
        Ok(answer.iter().collect())
    }
}

impl System {
    fn load(stamp: Stamp) -> Self {
        let resolver = match resolver() {
            Ok(resolver) => Some(Arc::new(resolver)),
            Err(error) => {
                tracing::warn!(%error, "{RESOLV_CONF} names no name server");
                None
            }
        };
        let hosts = fs::read_to_string(HOSTS).ok().map(|text| Arc::new(StaticHosts::parse(&text)));
        Self { resolver, hosts, stamp, checked: Instant::now() }
    }

    /// Reads changed files again. If a file can no longer be read, the resolver uses its previous content.
    fn refresh(&mut self) {
        if self.checked.elapsed() < CHECK_EVERY {
            return;
        }
        self.checked = Instant::now();
        let stamp = stamp();
        if stamp != self.stamp {
            let reloaded = Self::load(stamp);
            self.stamp = stamp;
            self.hosts = reloaded.hosts.or(self.hosts.take());
            self.resolver = reloaded.resolver.or(self.resolver.take());
        }
    }
}

fn stamp() -> Stamp {
    [RESOLV_CONF, HOSTS].map(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok())
}

fn resolver() -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio()?;
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    options.cache_size = CACHED;
    builder.build()
}

/// The parsed content of `/etc/hosts`.
struct StaticHosts(Vec<(IpAddr, Vec<String>)>);

impl StaticHosts {
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            Some((address, words.map(str::to_ascii_lowercase).collect()))
        });
        Self(lines.collect())
    }

    /// Returns the addresses of `name`, IPv4 first, or `None` if the file does not contain the name.
    fn get(&self, name: &str) -> Option<Vec<IpAddr>> {
        let mut addresses: Vec<IpAddr> = self
            .0
            .iter()
            .filter(|(_, names)| names.iter().any(|listed| listed == name))
            .map(|(address, _)| *address)
            .collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        (!addresses.is_empty()).then_some(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_hosts_with_comments_case_and_aliases() {
        let hosts = StaticHosts::parse(
            "# a comment\n::1 localhost\n127.0.0.1\tLocalHost loop # not this\nnonsense x\n\n",
        );
        let loopback: [IpAddr; 2] = ["127.0.0.1".parse().expect("v4"), "::1".parse().expect("v6")];
        assert_eq!(hosts.get("localhost"), Some(loopback.to_vec()));
        assert_eq!(hosts.get("loop"), Some(loopback[..1].to_vec()));
        for unknown in ["x", "not", "this", ""] {
            assert_eq!(hosts.get(unknown), None, "{unknown}");
        }
    }
}
