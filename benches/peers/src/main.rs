//! Other proxies written in Rust, for the benchmark of the egress proxy. These proxies terminate the TLS connections of
//! their clients, forward each request to one site over TLS, and scan nothing.
//!
//! `peers hudsucker|pingora HOST SITE ROOTS PORT DIRECTORY` serves HOST on PORT of the loopback interface. SITE is the
//! address of the site. ROOTS is the file with the certificate of the site's certificate authority. Before the proxy
//! serves HOST, it writes the certificate of its own certificate authority to `ca.pem` in DIRECTORY.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::hyper::Uri;
use hudsucker::hyper_util::rt::TokioIo;
use hudsucker::rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use hudsucker::rustls::pki_types::CertificateDer;
use hudsucker::rustls::pki_types::pem::PemObject;
use hudsucker::rustls::{ClientConfig, RootCertStore, crypto::ring};
use pingora::listeners::tls::TlsSettings;
use pingora::prelude::{HttpPeer, ProxyHttp, Server, Session, http_proxy_service};
use pingora::server::RunArgs;
use tokio::net::{TcpListener, TcpStream};

/// The number of threads that serve requests. The egress proxy uses the same number.
const THREADS: usize = 2;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [which, host, site, roots, port, directory] = &arguments[..] else {
        return Err("usage: peers hudsucker|pingora HOST SITE ROOTS PORT DIRECTORY".into());
    };
    let (site, address) = (site.parse()?, SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?)));
    let (issuer, directory) = (authority(Path::new(directory))?, Path::new(directory));
    match &which[..] {
        "hudsucker" => hudsucker(issuer, site, roots, address),
        "pingora" => pingora(&issuer, host, site, address, directory),
        other => Err(format!("there is no peer {other:?}").into()),
    }
}

/// Makes a certificate authority and writes its certificate to `ca.pem`.
fn authority(directory: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(directory.join("ca.pem"), parameters.self_signed(&key)?.pem())?;
    Ok(Issuer::new(parameters, key))
}

fn hudsucker(
    issuer: Issuer<'static, KeyPair>,
    site: SocketAddr,
    roots: &str,
    address: SocketAddr,
) -> Result<()> {
    let mut trusted = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots)? {
        trusted.add(certificate?)?;
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_all_versions()
        .wrap_connector(ToSite(site));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        let proxy = hudsucker::Proxy::builder()
            .with_listener(TcpListener::bind(address).await?)
            .with_ca(RcgenAuthority::new(issuer, 1000, ring::default_provider()))
            .with_http_connector(connector)
            .build()?;
        Ok(proxy.start().await?)
    })
}

/// A connector that always connects to the site and ignores the host of the request.
#[derive(Clone)]
struct ToSite(SocketAddr);

impl tower_service::Service<Uri> for ToSite {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let site = self.0;
        Box::pin(async move {
            let stream = TcpStream::connect(site).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Forwards every request to the site.
struct Forward {
    host: String,
    site: SocketAddr,
}

#[async_trait::async_trait]
impl ProxyHttp for Forward {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> pingora::Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.site, true, self.host.clone());
        // The certificate matters only in the TLS handshake with the site, and this benchmark does not measure that
        // handshake.
        peer.options.verify_cert = false;
        peer.options.set_http_version(2, 1);
        Ok(Box::new(peer))
    }
}

fn pingora(
    issuer: &Issuer<'static, KeyPair>,
    host: &str,
    site: SocketAddr,
    address: SocketAddr,
    directory: &Path,
) -> Result<()> {
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![host.to_owned()])?.signed_by(&key, issuer)?;
    let (certificate_file, key_file) = (directory.join("leaf.pem"), directory.join("leaf.key"));
    fs::write(&certificate_file, leaf.pem())?;
    fs::write(&key_file, key.serialize_pem())?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut tls = TlsSettings::intermediate(&path(&certificate_file), &path(&key_file))?;
    tls.enable_h2();
    let mut server = Server::new(None)?;
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Forward { host: host.to_owned(), site });
    service.threads = Some(THREADS);
    service.add_tls_with_settings(&address.to_string(), None, tls);
    server.add_service(service);
    server.run(RunArgs::default());
    Ok(())
}
