//! Detects a connection's protocol from its first bytes: TLS, HTTP, or neither.
//!
//! The TLS library's parser reads the whole `ClientHello`, however it is split over records and packets, before any
//! decision: proxies that decide from a part of it can be bypassed. A `ClientHello` that exceeds its bounds closes the
//! connection and is never forwarded.

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
    /// TLS, with its `ClientHello`.
    Tls(Box<Hello>),
    /// Probably HTTP/1; no byte is consumed.
    Http(ClientIo),
}

/// A complete TLS `ClientHello`.
pub(crate) struct Hello {
    /// The (outer) server name, as received.
    pub(crate) sni: Option<String>,
    start: StartHandshake<ClientIo>,
    bytes: Bytes,
}

/// Reads as many bytes as the detection needs.
///
/// # Errors
/// The bytes are neither TLS nor HTTP, too slow, too long or truncated. The caller closes the connection.
pub(crate) async fn read(mut io: ClientIo) -> io::Result<Protocol> {
    let detected = async {
        match io.peek().await? {
            Some(TLS_HANDSHAKE) => Ok(Protocol::Tls(Box::new(Hello::read(io).await?))),
            // Every method is a word of capital letters.
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

    /// Terminates the TLS: completes the handshake with `config`.
    ///
    /// # Errors
    /// Handshake errors, and [`bounds::HANDSHAKE_WITHIN`].
    pub(crate) async fn terminate(
        self,
        config: std::sync::Arc<rustls::ServerConfig>,
    ) -> io::Result<tokio_rustls::server::TlsStream<ClientIo>> {
        timeout(bounds::HANDSHAKE_WITHIN, self.start.into_stream(config)).await?
    }

    /// Does not terminate the TLS: returns the connection with the `ClientHello` unread.
    pub(crate) fn into_passthrough(self) -> ClientIo {
        let mut io = self.start.io;
        io.put_back(self.bytes);
        io
    }
}
