//! A provisioned proxy in a folder of its own, and clients that find their way to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use bottle_contract::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};
use bottle_contract::queue::Id;
use bottle_contract::session::bundle::{
    BundleEvent, Credential, LogLevel, OneTimeGrant, Provision, Refused, Routes,
};
use bottle_queue::Questions;
use bottle_test_support::upstream::{Site, Upstream};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixStream};

use crate::egress::Egress;
use crate::report::backlog::Backlog;
use crate::test_proxy::{self, Opened};

/// The host that tests ask for; nothing resolves it, every route to it says where to dial.
pub(super) const SITE: &str = "api.example.com";

/// The real value behind the slot `key`.
pub(super) const REAL: &str = "k7Qm2vXw9Tz4Lp8Rb3Ycd";

/// A running proxy and one fake site behind it.
pub(super) struct ProxyFixture {
    pub(super) egress: Arc<Egress>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) questions: Questions,
    pub(super) site: Upstream,
    pub(super) folder: TempDir,
    /// Loopback TCP in front of the proxy's sockets, for clients that speak no unix sockets.
    pub(super) proxy: SocketAddr,
    pub(super) plain: SocketAddr,
    pub(super) tls: SocketAddr,
}

/// What a test wants to be different.
pub(super) struct Wanted {
    pub(super) site: Site,
    /// More of the one route, as YAML keys; `{site}` is the fake site's port.
    pub(super) route: &'static str,
    pub(super) more_routes: &'static str,
    pub(super) log: LogLevel,
    pub(super) change: fn(&mut Provision),
    /// Hits that lock it; none: it is never locked.
    pub(super) lock_after: Option<usize>,
}

impl Default for Wanted {
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
    /// A proxy with one route to the fake site, with a credential.
    pub(super) async fn open() -> Self {
        Self::with(Wanted { route: AUTH, ..Wanted::default() }).await
    }

    /// A proxy as wanted.
    pub(super) async fn with(wanted: Wanted) -> Self {
        let site = Upstream::start_site(&wanted.site).expect("fake site");
        let port = site.address().port();
        let yaml = routes(port, wanted.route, wanted.more_routes);
        let mut provision = provision(yaml, site.ca_pem(), wanted.log);
        (wanted.change)(&mut provision);
        Self::around(Opened::locking(provision, wanted.lock_after).await, site).await
    }

    /// A proxy with these routes alone, to sites under these roots.
    pub(super) async fn of_routes(roots: &str, yaml: String, change: fn(&mut Provision)) -> Self {
        Self::of_routes_locking(roots, yaml, change, None).await
    }

    /// The same, and so many hits lock it.
    pub(super) async fn of_routes_locking(
        roots: &str,
        yaml: String,
        change: fn(&mut Provision),
        lock_after: Option<usize>,
    ) -> Self {
        let mut provision = provision(yaml, roots, LogLevel::Off);
        change(&mut provision);
        let site = Upstream::start(&[SITE]).expect("fake site");
        Self::around(Opened::locking(provision, lock_after).await, site).await
    }

    async fn over(self, provision: Provision) -> Self {
        Self::provisioned(provision, self.site).await
    }

    /// A proxy with these routes whose bundle asks this name server, and nobody else.
    pub(super) async fn resolving(yaml: String, server: SocketAddr, change: fn(&mut Provision)) -> Self {
        let site = Upstream::start(&[SITE]).expect("fake site");
        let mut provision = provision(yaml, site.ca_pem(), LogLevel::Off);
        change(&mut provision);
        Self::around(Opened::resolving(provision, server).await, site).await
    }

    async fn provisioned(provision: Provision, site: Upstream) -> Self {
        Self::around(Opened::with(provision).await, site).await
    }

    async fn around(opened: Opened, site: Upstream) -> Self {
        let Opened { egress, backlog, questions, folder } = opened;
        let [proxy, plain, tls] = [
            relay(folder.path().join(EGRESS_PORT.to_string())).await,
            relay(folder.path().join(HTTP_PORT.to_string())).await,
            relay(folder.path().join(HTTPS_PORT.to_string())).await,
        ];
        std::fs::write(folder.path().join("ca.pem"), egress.leaves.authority_certificate()).expect("ca");
        Self { egress, backlog, questions, site, folder, proxy, plain, tls }
    }

    /// The same proxy with other roots and a route to another local port.
    pub(super) async fn reopened(proxy: Self, roots: &str, port: u16) -> Self {
        proxy.over(provision(routes(port, "", ""), roots, LogLevel::Off)).await
    }

    /// The same with that route's other keys, and everything logged that is noticed.
    pub(super) async fn watched(proxy: Self, roots: &str, port: u16, route: &str) -> Self {
        proxy.over(provision(routes(port, route, ""), roots, LogLevel::Blocks)).await
    }

    /// The lines of the log, when there are so many.
    pub(super) async fn logged(&self, lines: usize) -> Vec<serde_json::Value> {
        let path = self.folder.path().join("egress.jsonl");
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

    /// The same proxy with a company's proxy, which alone knows the way to the site.
    pub(super) async fn behind(proxy: Self, corporate: &str) -> Self {
        let yaml = format!("routes:\n- host: {SITE}\n");
        let mut provision = provision(yaml, proxy.site.ca_pem(), LogLevel::Off);
        provision.upstream_proxy = Some(corporate.into());
        proxy.over(provision).await
    }

    /// The certificate file that clients trust.
    pub(super) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A connection to one of the proxy's ports.
    pub(super) async fn connect(&self, port: u16) -> UnixStream {
        UnixStream::connect(self.folder.path().join(port.to_string())).await.expect("connect")
    }

    /// Runs curl by the proxy.
    pub(super) async fn curl(&self, arguments: &[&str]) -> Curl {
        let proxy = format!("http://{}", self.proxy);
        self.run_curl(&["--proxy", &proxy], arguments).await
    }

    /// Runs curl without a proxy: the site's name leads to the proxy, as the bottle's resolver has it.
    pub(super) async fn curl_transparent(&self, arguments: &[&str]) -> Curl {
        let to_plain = format!("{SITE}:80:127.0.0.1:{}", self.plain.port());
        let to_tls = format!("{SITE}:443:127.0.0.1:{}", self.tls.port());
        self.run_curl(&["--connect-to", &to_plain, "--connect-to", &to_tls], arguments).await
    }

    /// Runs curl `way`.
    pub(super) async fn run_curl(&self, way: &[&str], arguments: &[&str]) -> Curl {
        let output = tokio::process::Command::new("curl")
            .env_clear()
            .args(["--silent", "--show-error", "--max-time", "20", "--dump-header", "-", "--cacert"])
            .arg(self.ca())
            .args(way)
            .args(arguments)
            .output()
            .await
            .expect("curl is installed");
        Curl(output)
    }

    /// The next refusal that the keeper would hear of.
    pub(super) async fn refusal(&self) -> Refused {
        match self.backlog.next().await {
            BundleEvent::Refused(refused) => refused,
            other => panic!("{other:?} is no refusal"),
        }
    }

    /// New routes under `revision`.
    pub(super) fn reload(&self, revision: u64, route: &str, more: &str) -> Result<BundleEvent, String> {
        self.replace(revision, routes(self.site.address().port(), route, more))
    }

    /// The same, with what may pass once: names of questions, and what their answers allowed.
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
        let yaml = routes(self.site.address().port(), route, "");
        self.egress.live.replace(&Routes { revision, yaml, once: once.collect() })
    }

    /// These routes under `revision`.
    pub(super) fn replace(&self, revision: u64, yaml: String) -> Result<BundleEvent, String> {
        self.egress.live.replace(&Routes { revision, ..Routes::first(yaml) })
    }
}

/// Keys of a route whose credential is `key`.
pub(super) const AUTH: &str = "auth: {scheme: Bearer, slot: key}";

fn routes(port: u16, route: &str, more: &str) -> String {
    format!(
        "routes:\n- host: {SITE}\n  connect_to: '127.0.0.1:{port}'\n  {route}\n{}",
        more.replace("{site}", &port.to_string())
    )
}

fn provision(yaml: String, roots: &str, log: LogLevel) -> Provision {
    use bottle_contract::credential::{Binding, Scheme};
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

/// Copies between a loopback port of its own and a unix socket.
async fn relay(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("relay");
    let address = listener.local_addr().expect("relay address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            client.set_nodelay(true).expect("nodelay");
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut proxy = UnixStream::connect(socket).await.expect("the proxy");
                // Either side's end is the test's business.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut proxy).await;
            });
        }
    });
    address
}

/// What curl said: the heads of all answers, then the body.
pub(super) struct Curl(Output);

impl Curl {
    /// Standard output as text.
    pub(super) fn text(&self) -> String {
        let errors = String::from_utf8_lossy(&self.0.stderr);
        assert!(errors.is_empty(), "curl: {errors}\n{}", String::from_utf8_lossy(&self.0.stdout));
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// The status of the last answer.
    pub(super) fn status(&self) -> u16 {
        let text = self.text();
        let line = text.lines().rfind(|line| line.starts_with("HTTP/")).expect("a status line");
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    /// The JSON body of the last answer.
    pub(super) fn json(&self) -> serde_json::Value {
        let text = self.text();
        let body = text.rsplit("\r\n\r\n").next().expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A header of the last answer.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let text = self.text();
        let prefix = format!("{name}: ");
        text.lines().rev().find_map(|line| {
            let (head, _) = line.split_at_checked(prefix.len())?;
            head.eq_ignore_ascii_case(&prefix).then(|| line[prefix.len()..].trim().to_owned())
        })
    }

    /// What curl complained of.
    pub(super) fn error(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// TLS towards the proxy, as a client that trusts the bottle's authority.
pub(super) fn trusting(egress: &Egress, alpn: &[&[u8]]) -> tokio_rustls::TlsConnector {
    let trust = crate::upstream::trust::Trust::in_roots(&egress.leaves.authority_certificate());
    let mut config = (*trust.expect("trust").http1).clone();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config).into()
}
