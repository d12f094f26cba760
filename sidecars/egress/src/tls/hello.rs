//! The first bytes of a connection: TLS, HTTP, or neither.
//!
//! A hello is read whole before anything is decided, however it is split over records and packets, by
//! the TLS library's own parser: a decision from a part of it is how such proxies are walked around.
//! What cannot be read within its bounds is closed, never passed on.

use std::io;

use bytes::Bytes;
use rustls::server::Acceptor;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::bounds;
use crate::listener::io::ClientIo;

/// The content type of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// What a connection turned out to speak.
pub(crate) enum Opening {
    /// TLS, and its hello.
    Tls(Box<Hello>),
    /// Something that starts like an HTTP/1 request; every byte is still to be read.
    Http(ClientIo),
}

/// A TLS hello, read whole.
pub(crate) struct Hello {
    /// The (outer) server name it asks for, as received.
    pub(crate) sni: Option<String>,
    start: StartHandshake<ClientIo>,
    bytes: Bytes,
}

/// Reads as much as it takes to know what `io` speaks.
///
/// # Errors
/// Whatever is neither TLS nor HTTP, too slow, too long or cut short: the caller closes it.
pub(crate) async fn read(mut io: ClientIo) -> io::Result<Opening> {
    let opening = async {
        match io.peek().await? {
            Some(TLS_HANDSHAKE) => Ok(Opening::Tls(Box::new(Hello::read(io).await?))),
            // Every method is a word of capital letters.
            Some(first) if first.is_ascii_uppercase() => Ok(Opening::Http(io)),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "neither TLS nor HTTP")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    };
    timeout(bounds::HELLO_WITHIN, opening).await?
}

impl Hello {
    async fn read(mut io: ClientIo) -> io::Result<Self> {
        io.record();
        let mut start = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        let bytes = start.io.recorded();
        let sni = start.client_hello().server_name().map(str::to_owned);
        Ok(Self { sni, start, bytes })
    }

    /// Opens the TLS: finishes the handshake, presenting `config`.
    ///
    /// # Errors
    /// The handshake's own, and a deadline.
    pub(crate) async fn open(
        self,
        config: std::sync::Arc<rustls::ServerConfig>,
    ) -> io::Result<tokio_rustls::server::TlsStream<ClientIo>> {
        timeout(bounds::HANDSHAKE_WITHIN, self.start.into_stream(config)).await?
    }

    /// Leaves the TLS closed: the connection with the hello's bytes still to be read.
    pub(crate) fn unopened(self) -> ClientIo {
        let mut io = self.start.io;
        io.put_back(self.bytes);
        io
    }
}
