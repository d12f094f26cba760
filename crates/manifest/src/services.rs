//! The key `services` of one layer: programs that must be ready before the agent starts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bottle_protocol::session::guest::Process;
use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{HttpCheck, Readiness, Restart, SERVICES_MAX, Service};
use jiff::SignedDuration;
use serde::{Serialize, Serializer};
use url::{Host, Url};

use super::Spanned;
use super::error::Fault;
use super::one_or_many::Entries;
use super::schema::{ReadinessSchema, ServiceSchema};

/// The default time between two readiness checks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The default time limit for one readiness check.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The default time within which a service must become ready.
const START_PERIOD: Duration = Duration::from_secs(30);

/// The shortest and the longest duration that a manifest may set.
const TIMES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceLayer {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The check that decides when the service is ready.
    #[serde(skip_serializing_if = "ReadinessCheck::is_started")]
    pub readiness: ReadinessCheck,
    /// The time between two readiness checks.
    pub interval: Time,
    /// The time limit for one readiness check.
    pub timeout: Time,
    /// The time within which the service must become ready.
    pub start_period: Time,
    /// Whether the service restarts when it ends.
    pub restart: Restart,
    /// The services that must be ready before this service starts.
    pub after: Vec<ProcessName>,
}

impl ServiceLayer {
    /// Creates a service with the default times. The service does not restart when it ends.
    #[must_use]
    pub fn new(command: Vec<String>, readiness: ReadinessCheck) -> Self {
        Self {
            command,
            readiness,
            interval: Time(INTERVAL),
            timeout: Time(TIMEOUT),
            start_period: Time(START_PERIOD),
            restart: Restart::No,
            after: Vec::new(),
        }
    }

    /// Converts the service to the type that the guest receives.
    #[must_use]
    pub fn service(&self, name: ProcessName) -> Service {
        let millis = |time: Time| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
        Service {
            name,
            process: Process { argv: self.command.clone(), ..Process::default() },
            readiness: self.readiness.check.clone(),
            interval_ms: millis(self.interval),
            timeout_ms: millis(self.timeout),
            start_period_ms: millis(self.start_period),
            restart: self.restart,
        }
    }
}

/// A duration, which is formatted as in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = SignedDuration::try_from(self.0).unwrap_or(SignedDuration::MAX);
        serializer.collect_str(&format_args!("{time:#}"))
    }
}

/// A readiness check, with the text that declares it in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessCheck {
    /// The check.
    pub check: Readiness,
    /// The declaring text: a URL, an address, or a path.
    written: Option<String>,
}

impl ReadinessCheck {
    /// Creates the check of a service that is ready as soon as it runs.
    #[must_use]
    pub fn started() -> Self {
        Self { check: Readiness::Started, written: None }
    }

    fn is_started(&self) -> bool {
        self.check == Readiness::Started
    }

    /// Creates a check that sends a `GET` request to a URL of this bottle.
    ///
    /// # Errors
    /// Returns [`BadCheck`] if the text is not an `http` URL of this bottle.
    pub fn http(text: &str) -> Result<Self, BadCheck> {
        let url = Url::parse(text).map_err(|_| BadCheck::Url)?;
        if url.scheme() != "http" || !url.username().is_empty() || url.password().is_some() {
            return Err(BadCheck::Url);
        }
        let port = url.port_or_known_default().ok_or(BadCheck::Url)?;
        let addresses = match url.host().ok_or(BadCheck::Url)? {
            Host::Domain(name) => of_host(name)?,
            Host::Ipv4(address) => local(address.into())?,
            Host::Ipv6(address) => local(address.into())?,
        };
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        let host = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_owned(),
        };
        let path =
            url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        Ok(Self {
            check: Readiness::Http(HttpCheck { addresses, host, path }),
            written: Some(text.to_owned()),
        })
    }

    /// Creates a check that opens a TCP connection to `HOST:PORT` in this bottle.
    ///
    /// # Errors
    /// Returns [`BadCheck`] if the text is not an address of this bottle.
    pub fn tcp(text: &str) -> Result<Self, BadCheck> {
        let (host, port) = text.rsplit_once(':').ok_or(BadCheck::Address)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(BadCheck::Address)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let addresses = match bare.parse::<IpAddr>() {
            Ok(address) => local(address)?,
            Err(_) => of_host(host)?,
        };
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        Ok(Self { check: Readiness::Tcp(addresses), written: Some(text.to_owned()) })
    }

    /// Creates a check that a path exists in the bottle.
    ///
    /// # Errors
    /// Returns [`BadCheck`] if the path is empty or contains a zero byte.
    pub fn file(text: &str) -> Result<Self, BadCheck> {
        if text.is_empty() || text.contains('\0') {
            return Err(BadCheck::Path);
        }
        Ok(Self { check: Readiness::File(text.to_owned()), written: Some(text.to_owned()) })
    }

    /// Creates a check that runs a program. The check succeeds if the program exits with code 0.
    ///
    /// # Errors
    /// Returns [`BadCheck`] if `argv` has no program.
    pub fn command(argv: Vec<String>) -> Result<Self, BadCheck> {
        if argv.first().is_none_or(String::is_empty) {
            return Err(BadCheck::Command);
        }
        Ok(Self { check: Readiness::Command(argv), written: None })
    }
}

impl Serialize for ReadinessCheck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = match &self.check {
            Readiness::Started => return serializer.serialize_none(),
            Readiness::Command(argv) => return serializer.collect_map([("command", argv)]),
            Readiness::Http(_) => "http",
            Readiness::Tcp(_) => "tcp",
            Readiness::File(_) => "file",
        };
        serializer.collect_map([(kind, self.written.as_deref().unwrap_or_default())])
    }
}

/// Why a readiness check is refused, as a sentence fragment that follows the name of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCheck {
    /// The URL is not a plain `http` URL.
    #[error("is not an `http://` URL")]
    Url,
    /// The address is not a host and a port.
    #[error("is not `HOST:PORT`")]
    Address,
    /// The host is not `localhost` or a loopback address.
    #[error("must name this bottle: `localhost`, or a loopback address")]
    Elsewhere,
    /// The path is empty, or contains a zero byte.
    #[error("is not a path")]
    Path,
    /// The command is empty.
    #[error("needs a program")]
    Command,
}

fn of_host(name: &str) -> Result<Vec<IpAddr>, BadCheck> {
    if name.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    Err(if name.is_empty() { BadCheck::Address } else { BadCheck::Elsewhere })
}

fn local(address: IpAddr) -> Result<Vec<IpAddr>, BadCheck> {
    if address.is_loopback() { Ok(vec![address]) } else { Err(BadCheck::Elsewhere) }
}

/// Checks the services of one layer.
pub(super) fn from_schema(
    schema: Option<Entries<ServiceSchema>>,
) -> Result<BTreeMap<ProcessName, Spanned<ServiceLayer>>, Fault> {
    let mut services = BTreeMap::new();
    for (name, service) in schema.map(|entries| entries.0).unwrap_or_default() {
        let parsed = process_name(&name, "services")?;
        let checked = of_service(&name.value, service.value, name.at)?;
        services.insert(parsed, Spanned::new(checked, name.at));
        if services.len() > SERVICES_MAX {
            return Err(Fault::new(name.at, format!("`services` has more than {SERVICES_MAX} entries")));
        }
    }
    Ok(services)
}

fn process_name(text: &Spanned<String>, key: &str) -> Result<ProcessName, Fault> {
    let parsed: Result<ProcessName, _> = text.value.parse();
    let name = parsed.map_err(|error| Fault::new(text.at, format!("`{key}`: {:?}: {error}", text.value)))?;
    if name.is_handle() {
        let message =
            format!("`{key}`: {name} cannot be the name of a service, because handles look like this");
        return Err(Fault::new(text.at, message));
    }
    Ok(name)
}

fn of_service(name: &str, schema: ServiceSchema, at: super::Position) -> Result<ServiceLayer, Fault> {
    let ServiceSchema { command, readiness, interval, timeout, start_period, restart, after } = schema;
    let key = |part: &str| format!("services.{name}.{part}");
    let command = command.ok_or_else(|| {
        Fault::new(at, format!("`services.{name}` needs `command`"))
            .hint("for example `command: [npm, run, dev]`")
    })?;
    if command.value.first().is_none_or(String::is_empty) {
        return Err(Fault::new(command.at, format!("`{}` needs a program", key("command"))));
    }
    let after = after.unwrap_or_default();
    Ok(ServiceLayer {
        command: command.value,
        readiness: readiness
            .map_or_else(|| Ok(ReadinessCheck::started()), |readiness| check(name, readiness))?,
        interval: time(interval, &key("interval"), INTERVAL)?,
        timeout: time(timeout, &key("timeout"), TIMEOUT)?,
        start_period: time(start_period, &key("start_period"), START_PERIOD)?,
        restart: restart.unwrap_or_default(),
        after: after.iter().map(|name| process_name(name, &key("after"))).collect::<Result<_, _>>()?,
    })
}

fn check(name: &str, readiness: Spanned<ReadinessSchema>) -> Result<ReadinessCheck, Fault> {
    let at = readiness.at;
    let fault = |kind: &str, at, error: BadCheck| {
        Fault::new(at, format!("`services.{name}.readiness.{kind}` {error}"))
    };
    let ReadinessSchema { http, tcp, file, command } = readiness.value;
    match (http, tcp, file, command) {
        (Some(url), None, None, None) => {
            ReadinessCheck::http(&url.value).map_err(|error| fault("http", url.at, error))
        }
        (None, Some(address), None, None) => {
            ReadinessCheck::tcp(&address.value).map_err(|error| fault("tcp", address.at, error))
        }
        (None, None, Some(path), None) => {
            ReadinessCheck::file(&path.value).map_err(|error| fault("file", path.at, error))
        }
        (None, None, None, Some(argv)) => {
            ReadinessCheck::command(argv.value).map_err(|error| fault("command", argv.at, error))
        }
        _ => Err(Fault::new(
            at,
            format!("`services.{name}.readiness` needs one of `http`, `tcp`, `file` and `command`"),
        )),
    }
}

fn time(text: Option<Spanned<String>>, key: &str, default: Duration) -> Result<Time, Fault> {
    let Some(text) = text else { return Ok(Time(default)) };
    let time = text.value.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.filter(|time| (TIMES.0..=TIMES.1).contains(time)).map(Time).ok_or_else(|| {
        Fault::new(text.at, format!("`{key}` must be a time from 10ms to 1h"))
            .hint("for example `500ms` or `30s`")
    })
}

impl fmt::Display for ReadinessCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.check, &self.written) {
            (Readiness::Started, _) => f.write_str("started"),
            (Readiness::Command(argv), _) => f.write_str(&argv.join(" ")),
            (_, written) => f.write_str(written.as_deref().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_reach_only_this_bottle() {
        let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        for (text, addresses, host, path) in [
            ("http://localhost:3000/health?x=1", vec![v4(3000), v6(3000)], "localhost:3000", "/health?x=1"),
            ("http://127.0.0.1", vec![v4(80)], "127.0.0.1", "/"),
            ("http://[::1]:8080/", vec![v6(8080)], "[::1]:8080", "/"),
        ] {
            let expected = HttpCheck { addresses, host: host.to_owned(), path: path.to_owned() };
            assert_eq!(
                ReadinessCheck::http(text).map(|found| found.check),
                Ok(Readiness::Http(expected)),
                "{text}"
            );
        }
        for (text, why) in [
            ("https://localhost/", BadCheck::Url),
            ("http://a:b@localhost/", BadCheck::Url),
            ("localhost:80", BadCheck::Url),
            ("http://example.com/", BadCheck::Elsewhere),
            ("http://192.0.2.1/", BadCheck::Elsewhere),
            ("http://localhost.example/", BadCheck::Elsewhere),
        ] {
            assert_eq!(ReadinessCheck::http(text), Err(why), "{text}");
        }
        for (text, addresses) in [
            ("localhost:5432", vec![v4(5432), v6(5432)]),
            ("127.0.0.1:1", vec![v4(1)]),
            ("[::1]:6379", vec![v6(6379)]),
        ] {
            assert_eq!(
                ReadinessCheck::tcp(text).map(|found| found.check),
                Ok(Readiness::Tcp(addresses)),
                "{text}"
            );
        }
        for (text, why) in [
            ("5432", BadCheck::Address),
            (":5432", BadCheck::Address),
            ("localhost:0", BadCheck::Address),
            ("localhost:http", BadCheck::Address),
            ("localhost:99999", BadCheck::Address),
            ("db:5432", BadCheck::Elsewhere),
            ("192.0.2.1:80", BadCheck::Elsewhere),
        ] {
            assert_eq!(ReadinessCheck::tcp(text), Err(why), "{text}");
        }
        assert_eq!(ReadinessCheck::file(""), Err(BadCheck::Path));
        assert_eq!(ReadinessCheck::command(Vec::new()), Err(BadCheck::Command));
    }
}
