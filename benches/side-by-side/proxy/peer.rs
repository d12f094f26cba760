//! The target of the load: its address and its certificate authority.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::HOST;
use crate::site::Site;

/// The address to which clients connect.
pub(crate) enum Address {
    /// The unix socket of the egress proxy. In a bottle, the guest connects to this socket.
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// The target of the load, which is a proxy or the site itself.
pub(crate) struct Peer {
    address: Address,
    proxy: bool,
    trust: RootCertStore,
}

type Io = Either<UnixStream, TcpStream>;

impl Peer {
    /// Returns a proxy whose certificates are signed by `ca`.
    pub(crate) fn proxy(address: Address, ca: &str) -> Result<Self> {
        Ok(Self { address, proxy: true, trust: roots(ca)? })
    }

    /// Returns the site itself, to which clients connect without a proxy.
    pub(crate) fn direct(site: &Site) -> Result<Self> {
        Self::server(site.server.address(), site.authority.pem())
    }

    /// Returns a server whose certificate is signed by `ca`.
    pub(crate) fn server(address: SocketAddr, ca: &str) -> Result<Self> {
        Ok(Self { address: Address::Tcp(address), proxy: false, trust: roots(ca)? })
    }

    /// Opens a TLS connection to [`HOST`]. If the target is a proxy, the connection goes through the proxy.
    pub(crate) async fn connect(&self, tls: &TlsConnector) -> Result<TlsStream<Io>> {
        self.connect_to(HOST, tls).await
    }

    /// Opens a TLS connection to the given host. If the target is a proxy, the connection goes through the proxy.
    pub(crate) async fn connect_to(&self, host: &str, tls: &TlsConnector) -> Result<TlsStream<Io>> {
        let mut io = match &self.address {
            Address::Unix(path) => Either::Left(UnixStream::connect(path).await?),
            Address::Tcp(address) => {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                Either::Right(tcp)
            }
        };
        if self.proxy {
            let request = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
            io.write_all(request.as_bytes()).await?;
            let mut answer = [0; 1024];
            let mut read = 0;
            while !answer[..read].ends_with(b"\r\n\r\n") {
                let more = io.read(&mut answer[read..]).await?;
                ensure!(more > 0, "no answer to CONNECT");
                read += more;
            }
            ensure!(answer.starts_with(b"HTTP/1.1 200"), "CONNECT was denied");
        }
        let name = ServerName::try_from(host.to_owned()).context("name")?;
        Ok(tls.connect(name, io).await?)
    }

    /// Returns a TLS client with one ALPN protocol. The client never resumes a session, so every connection makes a
    /// full handshake.
    pub(crate) fn tls(&self, alpn: &[u8]) -> Result<TlsConnector> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.trust.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config).into())
    }
}

fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(roots)
}
