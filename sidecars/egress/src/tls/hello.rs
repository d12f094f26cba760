//! Detects a connection's protocol from its first bytes: TLS, HTTP, or neither.
//!
//! The parser of the TLS library reads the complete `ClientHello` before any decision, even if the `ClientHello` is
//! split over several records and packets. Proxies that decide after reading only a part of it can be bypassed. If a
//! `ClientHello` is too long or arrives too slowly, the proxy closes the connection and forwards nothing.

use std::io;

use bytes::Bytes;
use rustls::server::Acceptor;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::bounds;
use crate::listener::io::ClientIo;

/// The content type of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// The protocol of a connection.
pub(crate) enum Protocol {
    /// TLS, with a complete `ClientHello`.
    Tls(Box<Hello>),
    /// Probably HTTP/1. No byte has been consumed.
    Http(ClientIo),
}

/// A complete TLS `ClientHello`.
pub(crate) struct Hello {
    /// The server name as received (the outer name if the client encrypts its `ClientHello`).
    pub(crate) sni: Option<String>,
    start: StartHandshake<ClientIo>,
    bytes: Bytes,
}

/// Reads as many bytes as needed to detect the protocol.
///
/// # Errors
/// If the bytes are neither TLS nor HTTP, or arrive too slowly, or the `ClientHello` is too long or truncated. The
/// caller closes the connection.
pub(crate) async fn read(mut io: ClientIo) -> io::Result<Protocol> {
    let detected = async {
        match io.peek().await? {
            Some(TLS_HANDSHAKE) => Ok(Protocol::Tls(Box::new(Hello::read(io).await?))),
            // Every HTTP method begins with a capital letter.
            Some(first) if first.is_ascii_uppercase() => Ok(Protocol::Http(io)),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "neither TLS nor HTTP")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    };
    timeout(bounds::HELLO_WITHIN, detected).await?
}

impl Hello {
    async fn read(mut io: ClientIo) -> io::Result<Self> {
        io.record();
        let mut start = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        let bytes = start.io.recorded();
        let sni = start.client_hello().server_name().map(str::to_owned);
        Ok(Self { sni, start, bytes })
    }

    /// Terminates TLS: completes the handshake with `config`.
    ///
    /// # Errors
    /// Handshake errors, and a timeout after [`bounds::HANDSHAKE_WITHIN`].
    pub(crate) async fn terminate(
        self,
        config: std::sync::Arc<rustls::ServerConfig>,
    ) -> io::Result<tokio_rustls::server::TlsStream<ClientIo>> {
        timeout(bounds::HANDSHAKE_WITHIN, self.start.into_stream(config)).await?
    }

    /// Leaves TLS untouched: returns the connection with the `ClientHello` put back.
    pub(crate) fn into_passthrough(self) -> ClientIo {
        let mut io = self.start.io;
        io.put_back(self.bytes);
        io
    }
}
