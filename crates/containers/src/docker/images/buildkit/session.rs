//! The session of a build: a gRPC server on a connection to the engine. BuildKit requests logins and secrets over this
//! connection. The values of logins and secrets are only in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bottle_protocol::session::guest::SecretText;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::messages::{
    CredentialsRequest, CredentialsResponse, GetSecretRequest, GetSecretResponse, HealthResponse,
};
use crate::docker::images::logins::{Login, host_of};

/// The methods of the session, which the engine may call.
const METHODS: [&str; 3] = [HEALTH, CREDENTIALS, SECRET];
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const CREDENTIALS: &str = "/moby.filesync.v1.Auth/Credentials";
const SECRET: &str = "/moby.buildkit.secrets.v1.Secrets/GetSecret";
/// The host name that BuildKit uses to request the login at Docker Hub.
const HUB_HOST: &str = "registry-1.docker.io";
/// The maximum size of a request in bytes.
const REQUEST_MAX: usize = 64 << 10;
/// The maximum number of calls that the engine may make at the same time.
const CALLS_MAX: u32 = 32;
/// The number of bytes before a gRPC message, which contain a flag and the length.
const PREFIX: usize = 5;

/// The status of a gRPC call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrpcError {
    InvalidArgument = 3,
    NotFound = 5,
    Unimplemented = 12,
}

/// The logins and secrets that BuildKit may request.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The secrets, by the ids that the Dockerfile uses.
    pub(super) secrets: BTreeMap<String, SecretText>,
    /// The user's logins, by registry.
    pub(super) logins: BTreeMap<String, Login>,
}

impl Session {
    /// Opens the session `id` on the engine behind `socket`. Answers the engine's calls in tasks that it spawns in
    /// `tasks`.
    ///
    /// # Errors
    /// When the engine refuses the session.
    pub(super) async fn open(self, socket: &Path, id: &str, tasks: &mut JoinSet<()>) -> io::Result<()> {
        let stream = TokioIo::new(UnixStream::connect(socket).await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
        tasks.spawn(async move {
            // The build fails if the connection fails.
            let _ = connection.with_upgrades().await;
        });
        let mut request = Request::post("/session")
            .header(HOST, "docker")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "h2c")
            .header("X-Docker-Expose-Session-Uuid", id)
            .header("X-Docker-Expose-Session-Name", "bottle")
            .header("X-Docker-Expose-Session-Sharedkey", "");
        for method in METHODS {
            request = request.header("X-Docker-Expose-Session-Grpc-Method", method);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(io::Error::other(format!("the engine answered {}", response.status())));
        }
        let session = Arc::new(self);
        tasks.spawn(async move {
            let Ok(upgraded) = hyper::upgrade::on(response).await else { return };
            let service = service_fn(move |request| {
                let session = session.clone();
                async move { Ok::<_, Infallible>(session.answer(request).await) }
            });
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(CALLS_MAX);
            let _ = server.serve_connection(upgraded, service).await;
        });
        Ok(())
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let path = request.uri().path().to_owned();
        let body = Limited::new(request.into_body(), REQUEST_MAX).collect().await;
        let answer = match body {
            Ok(body) => self.call(&path, &body.to_bytes()),
            Err(_) => Err(GrpcError::InvalidArgument),
        };
        respond(answer)
    }

    /// Answers a call with a gRPC message.
    fn call(&self, path: &str, body: &[u8]) -> Result<Bytes, GrpcError> {
        match path {
            HEALTH => Ok(framed(&HealthResponse { status: 1 })),
            CREDENTIALS => {
                let CredentialsRequest { host } = unframed(body)?;
                let asked = if host == HUB_HOST { "index.docker.io" } else { host.as_str() };
                let login = self.logins.iter().find(|(registry, _)| host_of(registry) == asked);
                Ok(framed(&credentials(login.map(|(_, login)| login))))
            }
            SECRET => {
                let GetSecretRequest { id } = unframed(body)?;
                let secret = self.secrets.get(&id).ok_or(GrpcError::NotFound)?;
                Ok(framed(&GetSecretResponse { data: secret.0.expose().as_bytes().to_vec() }))
            }
            _ => Err(GrpcError::Unimplemented),
        }
    }
}

fn credentials(login: Option<&Login>) -> CredentialsResponse {
    match login {
        Some(Login::Password { user, password }) => {
            CredentialsResponse { username: user.clone(), secret: password.expose().to_owned() }
        }
        Some(Login::IdentityToken(token)) => {
            CredentialsResponse { username: String::new(), secret: token.expose().to_owned() }
        }
        None => CredentialsResponse::default(),
    }
}

/// Encodes a message in the format of gRPC.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows, so encoding does not fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Decodes the single message of a call. The message must not be compressed.
fn unframed<M: Message + Default>(body: &[u8]) -> Result<M, GrpcError> {
    let (prefix, message) = body.split_at_checked(PREFIX).ok_or(GrpcError::InvalidArgument)?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 || usize::try_from(length) != Ok(message.len()) {
        return Err(GrpcError::InvalidArgument);
    }
    M::decode(message).map_err(|_| GrpcError::InvalidArgument)
}

fn respond(answer: Result<Bytes, GrpcError>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let status = match &answer {
        Ok(_) => HeaderValue::from_static("0"),
        Err(error) => HeaderValue::from(*error as u16),
    };
    let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), status)]);
    let body = Full::new(answer.unwrap_or_default()).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;

    use super::*;

    fn session() -> Session {
        let secret = |text: &str| Secret::new(text.to_owned());
        let login = Login::Password { user: "me".to_owned(), password: secret("pw") };
        Session {
            secrets: [("npm".to_owned(), SecretText(secret("value")))].into(),
            logins: [
                ("a.example:5000".to_owned(), login),
                ("https://index.docker.io/v1/".to_owned(), Login::IdentityToken(secret("token"))),
            ]
            .into(),
        }
    }

    #[test]
    fn answers_only_what_it_has() {
        let session = session();
        let login = |host: &str| -> CredentialsResponse {
            let asked = framed(&CredentialsRequest { host: host.to_owned() });
            unframed(&session.call(CREDENTIALS, &asked).expect("an answer")).expect("a message")
        };
        let pair = |answer: CredentialsResponse| (answer.username, answer.secret);
        assert_eq!(pair(login("a.example:5000")), ("me".to_owned(), "pw".to_owned()));
        assert_eq!(pair(login(HUB_HOST)), (String::new(), "token".to_owned()));
        assert_eq!(pair(login("a.example")), (String::new(), String::new()));
        let secret = |id: &str| session.call(SECRET, &framed(&GetSecretRequest { id: id.to_owned() }));
        let found: GetSecretResponse = unframed(&secret("npm").expect("an answer")).expect("a message");
        assert_eq!(found.data, b"value");
        assert_eq!(secret("other"), Err(GrpcError::NotFound));
        assert_eq!(session.call("/moby.filesync.v1.FileSync/DiffCopy", &[]), Err(GrpcError::Unimplemented));
        assert!(!format!("{session:?} {found:?}").contains("value"), "a secret is printed");
    }

    #[test]
    fn refuses_damaged_messages() {
        let session = session();
        for body in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x05ab", b"\x01\0\0\0\0", b"\0\0\0\0\x02\xff\xff"] {
            assert_eq!(session.call(SECRET, body), Err(GrpcError::InvalidArgument), "{body:?}");
        }
    }
}
