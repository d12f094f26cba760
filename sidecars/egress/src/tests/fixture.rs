//! A provisioned proxy in a temporary directory, and clients that connect to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use bottle_policy::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};
use bottle_policy::route::RouteTable;
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::{
    BundleEvent, Credential, LogLevel, ModelRules, OneTimeGrant, Provision, Refused, Routes,
};
use bottle_queue::Questions;
use bottle_test_support::upstream::{Site, Upstream};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixStream};

use crate::egress::Egress;
use crate::report::backlog::Backlog;
use crate::test_proxy::{self, TestProxy};

/// The host of most tests. No name server resolves this host, so every route to it sets `connect_to`.
pub(super) const SITE: &str = "api.example.com";

/// The credential in the slot `key`.
pub(super) const REAL: &str = "k7Qm2vXw9Tz4Lp8Rb3Ycd";

/// A running proxy with one fake site upstream.
pub(super) struct ProxyFixture {
    pub(super) egress: Arc<Egress>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) questions: Questions,
    pub(super) site: Upstream,
    pub(super) directory: TempDir,
    /// The task of the test's keeper. It answers each lease request with `LeaseAnswer::Unlimited`.
    pub(super) keeper: tokio::task::JoinHandle<()>,
    /// A loopback TCP port in front of the proxy's sockets, for clients that do not support Unix sockets.
    pub(super) proxy: SocketAddr,
    pub(super) plain: SocketAddr,
    pub(super) tls: SocketAddr,
}

/// Options of a fixture.
pub(super) struct FixtureOptions {
    pub(super) site: Site,
    /// Additional keys of the first route, as YAML.
    pub(super) route: &'static str,
    pub(super) more_routes: &'static str,
    pub(super) log: LogLevel,
    pub(super) change: fn(&mut Provision),
    /// The number of hits that locks the bottle. With `None`, the bottle is never locked.
    pub(super) lock_after: Option<usize>,
}

impl Default for FixtureOptions {
    fn default() -> Self {
        Self {
            site: Site::named(&[SITE]),
            route: "",
            more_routes: "",
            log: LogLevel::Off,
            change: |_| {},
            lock_after: None,
        }
    }
}

impl ProxyFixture {
    /// Opens a proxy with one route to the fake site. The route injects a credential.
    pub(super) async fn open() -> Self {
        Self::with(FixtureOptions { route: AUTH, ..FixtureOptions::default() }).await
    }

    /// Opens a proxy with `options`.
    pub(super) async fn with(options: FixtureOptions) -> Self {
        let site = Upstream::start_site(&options.site).expect("fake site");
        let port = site.address().port();
        let yaml = routes(port, options.route, options.more_routes);
        let mut provision = provision(yaml, site.ca_pem(), options.log);
        (options.change)(&mut provision);
        Self::from_test_proxy(TestProxy::with_lockout(provision, options.lock_after).await, site).await
    }

    /// Opens a proxy with only the routes in `yaml`. The proxy verifies the certificates of the sites with `roots`.
    pub(super) async fn with_routes(roots: &str, yaml: String, change: fn(&mut Provision)) -> Self {
        Self::with_routes_locking(roots, yaml, change, None).await
    }

    /// Like [`Self::with_routes`], but the proxy locks the bottle after `lock_after` hits.
    pub(super) async fn with_routes_locking(
        roots: &str,
        yaml: String,
        change: fn(&mut Provision),
        lock_after: Option<usize>,
    ) -> Self {
        let mut provision = provision(yaml, roots, LogLevel::Off);
        change(&mut provision);
        let site = Upstream::start(&[SITE]).expect("fake site");
        Self::from_test_proxy(TestProxy::with_lockout(provision, lock_after).await, site).await
    }

    async fn reprovision(self, provision: Provision) -> Self {
        Self::reprovision_with(provision, self.site).await
    }

    /// Opens a proxy with the routes in `yaml`. The proxy resolves names only with `server`.
    pub(super) async fn with_name_server(
        yaml: String,
        server: SocketAddr,
        change: fn(&mut Provision),
    ) -> Self {
        let site = Upstream::start(&[SITE]).expect("fake site");
        let mut provision = provision(yaml, site.ca_pem(), LogLevel::Off);
        change(&mut provision);
        Self::from_test_proxy(TestProxy::with_name_server(provision, server).await, site).await
    }

    async fn reprovision_with(provision: Provision, site: Upstream) -> Self {
        Self::from_test_proxy(TestProxy::with(provision).await, site).await
    }

    async fn from_test_proxy(test_proxy: TestProxy, site: Upstream) -> Self {
        let TestProxy { egress, backlog, questions, directory, keeper } = test_proxy;
        let [proxy, plain, tls] = [
            relay(directory.path().join(EGRESS_PORT.to_string())).await,
            relay(directory.path().join(HTTP_PORT.to_string())).await,
            relay(directory.path().join(HTTPS_PORT.to_string())).await,
        ];
        std::fs::write(directory.path().join("ca.pem"), egress.leaves.authority_certificate()).expect("ca");
        Self { egress, backlog, questions, site, directory, keeper, proxy, plain, tls }
    }

    /// Opens the same proxy with other roots and a route to another local port.
    pub(super) async fn reopened(proxy: Self, roots: &str, port: u16) -> Self {
        proxy.reprovision(provision(routes(port, "", ""), roots, LogLevel::Off)).await
    }

    /// Like [`Self::reopened`], but with additional keys of the route and with a log.
    pub(super) async fn reopened_with_log(proxy: Self, roots: &str, port: u16, route: &str) -> Self {
        proxy.reprovision(provision(routes(port, route, ""), roots, LogLevel::Blocks)).await
    }

    /// Opens the same proxy with the rules `models` for requests to models.
    pub(super) async fn reopened_with_rules(proxy: Self, roots: &str, port: u16, models: ModelRules) -> Self {
        let provision = provision(routes(port, AUTH, ""), roots, LogLevel::Blocks);
        proxy.reprovision(Provision { models, ..provision }).await
    }

    /// Waits until the log has at least `lines` lines, and returns all its lines.
    pub(super) async fn logged(&self, lines: usize) -> Vec<serde_json::Value> {
        let path = self.directory.path().join("egress.jsonl");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let text = std::fs::read_to_string(&path).expect("log");
            if text.lines().count() >= lines {
                return text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            }
            assert!(std::time::Instant::now() < until, "{lines} lines were never written: {text}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Opens the same proxy behind a corporate proxy, which is the only path to the site.
    pub(super) async fn behind_corporate_proxy(proxy: Self, corporate: &str) -> Self {
        let yaml = format!("routes:\n- host: {SITE}\n");
        let mut provision = provision(yaml, proxy.site.ca_pem(), LogLevel::Off);
        provision.upstream_proxy = Some(corporate.into());
        proxy.reprovision(provision).await
    }

    /// Returns the path of the CA certificate that clients trust.
    pub(super) fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Connects to one of the proxy's ports.
    pub(super) async fn connect(&self, port: u16) -> UnixStream {
        UnixStream::connect(self.directory.path().join(port.to_string())).await.expect("connect")
    }

    /// Runs curl through the explicit proxy.
    pub(super) async fn curl(&self, arguments: &[&str]) -> Curl {
        let proxy = format!("http://{}", self.proxy);
        self.run_curl(&["--proxy", &proxy], arguments).await
    }

    /// Runs curl without `--proxy`. The site's name resolves to the proxy, as with the bottle's DNS resolver.
    pub(super) async fn curl_transparent(&self, arguments: &[&str]) -> Curl {
        let to_plain = format!("{SITE}:80:127.0.0.1:{}", self.plain.port());
        let to_tls = format!("{SITE}:443:127.0.0.1:{}", self.tls.port());
        self.run_curl(&["--connect-to", &to_plain, "--connect-to", &to_tls], arguments).await
    }

    /// Runs curl with the options in `connection` for its connection.
    pub(super) async fn run_curl(&self, connection: &[&str], arguments: &[&str]) -> Curl {
        let output = tokio::process::Command::new("curl")
            .env_clear()
            .args(["--silent", "--show-error", "--max-time", "20", "--dump-header", "-", "--cacert"])
            .arg(self.ca())
            .args(connection)
            .args(arguments)
            .output()
            .await
            .expect("curl is installed");
        Curl(output)
    }

    /// Returns the next denial that the keeper would receive.
    pub(super) async fn denial(&self) -> Refused {
        match self.backlog.next().await {
            BundleEvent::Refused(refused) => refused,
            other => panic!("{other:?} is no refusal"),
        }
    }

    /// Replaces all routes by the revision `revision`. `route` contains the keys of the first route, and `more`
    /// contains the other routes.
    pub(super) fn reload(&self, revision: u64, route: &str, more: &str) -> Result<BundleEvent, String> {
        self.replace(revision, routes(self.site.address().port(), route, more))
    }

    /// Like [`Self::reload`], but with one-time grants. Each grant consists of the number of a proposal and the routes
    /// that the grant allows.
    pub(super) fn allow_once(
        &self,
        revision: u64,
        route: &str,
        once: &[(u8, &str)],
    ) -> Result<BundleEvent, String> {
        let once = once.iter().map(|(question, routes)| OneTimeGrant {
            proposal: Id::from_random([*question; 16]),
            routes: (*routes).to_owned(),
        });
        let table = parsed(&routes(self.site.address().port(), route, ""))?;
        self.egress
            .live
            .replace(&Routes { revision, table, once: once.collect() })
            .map_err(|error| error.to_string())
    }

    /// Replaces all routes by the revision `revision`.
    pub(super) fn replace(&self, revision: u64, yaml: String) -> Result<BundleEvent, String> {
        self.egress
            .live
            .replace(&Routes { revision, ..Routes::first(parsed(&yaml)?) })
            .map_err(|error| error.to_string())
    }
}

fn parsed(yaml: &str) -> Result<RouteTable, String> {
    yaml.parse::<RouteTable>().map_err(|error| error.to_string())
}

/// The keys of a route that injects the credential in the slot `key`.
pub(super) const AUTH: &str = "auth: {scheme: Bearer, slot: key}";

fn routes(port: u16, route: &str, more: &str) -> String {
    format!(
        "routes:\n- host: {SITE}\n  connect_to: '127.0.0.1:{port}'\n  {route}\n{}",
        more.replace("{site}", &port.to_string())
    )
}

fn provision(yaml: String, roots: &str, log: LogLevel) -> Provision {
    use bottle_policy::credential::{Binding, Scheme};
    let binding = Binding {
        slot: "key".into(),
        host: SITE.into(),
        scheme: Scheme::Bearer,
        header: "authorization".into(),
    };
    Provision {
        credentials: vec![Credential { binding, value: Some(REAL.into()) }],
        upstream_roots: roots.to_owned(),
        host_addresses: vec!["192.0.2.77".parse().expect("address")],
        log,
        log_keep: 1 << 20,
        ..test_proxy::provision(&yaml)
    }
}

/// Relays a loopback TCP port to a Unix socket.
async fn relay(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("relay");
    let address = listener.local_addr().expect("relay address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            client.set_nodelay(true).expect("nodelay");
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut proxy = UnixStream::connect(socket).await.expect("the proxy");
                // An error is ignored, because the tests check how each side ends.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut proxy).await;
            });
        }
    });
    address
}

/// The output of curl: the heads of all responses, and then the body.
pub(super) struct Curl(Output);

impl Curl {
    /// Returns standard output as text.
    pub(super) fn text(&self) -> String {
        let errors = String::from_utf8_lossy(&self.0.stderr);
        assert!(errors.is_empty(), "curl: {errors}\n{}", String::from_utf8_lossy(&self.0.stdout));
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// Returns the status of the last response.
    pub(super) fn status(&self) -> u16 {
        let text = self.text();
        let line = text.lines().rfind(|line| line.starts_with("HTTP/")).expect("a status line");
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    /// Returns the JSON body of the last response.
    pub(super) fn json(&self) -> serde_json::Value {
        let text = self.text();
        let body = text.rsplit("\r\n\r\n").next().expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns a header of the last response.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let text = self.text();
        let prefix = format!("{name}: ");
        text.lines().rev().find_map(|line| {
            let (head, _) = line.split_at_checked(prefix.len())?;
            head.eq_ignore_ascii_case(&prefix).then(|| line[prefix.len()..].trim().to_owned())
        })
    }

    /// Returns standard output as text, even if curl failed.
    pub(super) fn partial(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// Returns curl's error output.
    pub(super) fn error(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// Creates a TLS client that trusts the bottle's authority.
pub(super) fn trusting(egress: &Egress, alpn: &[&[u8]]) -> tokio_rustls::TlsConnector {
    let trust = crate::upstream::trust::Trust::from_roots(&egress.leaves.authority_certificate());
    let mut config = (*trust.expect("trust").http1).clone();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config).into()
}
