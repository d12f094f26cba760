//! A fake image registry: plain HTTP on loopback, with a login if a test asks for it. A Docker engine uses a registry
//! on 127.0.0.1 without TLS.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The token that the registry issues for a correct login.
const TOKEN: &str = "token-of-the-fake-registry";
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The maximum size of a request's body in bytes.
const BODY_MAX: usize = 64 << 10;

/// The clients that may pull images.
#[derive(Debug, Clone)]
pub enum Access {
    /// Every client.
    Everyone,
    /// A user with this name and password, sent with each request.
    Basic(String, String),
    /// A user who gets a token for this name and password, or for this identity token.
    Bearer {
        /// The name and the password.
        password: (String, String),
        /// The identity token.
        identity_token: String,
    },
}

/// A registry. It serves until the test program ends.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Manifests by `NAME:TAG` and `NAME@DIGEST`.
    manifests: BTreeMap<String, Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    requests: Vec<String>,
}

/// A request: the method, the target, the `Authorization` header, the body.
struct Request {
    method: String,
    target: String,
    authorization: String,
    body: String,
}

impl Registry {
    /// Starts a registry on a free port.
    pub fn start(access: Access) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, access) = (shared.clone(), access.clone());
                std::thread::spawn(move || {
                    // An engine that closes its connection early is not a failure of the test.
                    let _ = serve(&stream, address, &access, &state);
                });
            }
        });
        Ok(Self { address, state })
    }

    /// The host name and port, in the form that `docker login` accepts.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The reference of an image of this registry.
    #[must_use]
    pub fn reference(&self, name: &str, tag: &str) -> String {
        format!("{}/{name}:{tag}", self.address)
    }

    /// Publishes an image with one layer, a tar archive, under a name and a tag. Replaces an image of the same tag.
    pub fn publish(&self, name: &str, tag: &str, architecture: &str, layer: Vec<u8>) {
        let layer_digest = digest(&layer);
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": config.len(), "digest": digest(&config),
            },
            "layers": [{
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": layer.len(), "digest": layer_digest,
            }],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut state = locked(&self.state);
        state.blobs.insert(digest(&config), config);
        state.blobs.insert(layer_digest, layer);
        state.manifests.insert(format!("{name}@{}", digest(&manifest)), manifest.clone());
        state.manifests.insert(format!("{name}:{tag}"), manifest);
    }

    /// Returns and clears the requests so far, as `METHOD TARGET`.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.state).requests)
    }
}

fn serve(stream: &TcpStream, own: SocketAddr, access: &Access, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader)? {
        locked(state).requests.push(format!("{} {}", request.method, request.target));
        let (status, headers, body) = answer(&request, own, access, &locked(state));
        let mut response = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            response.push_str(&format!("{name}: {value}\r\n"));
        }
        response.push_str("Docker-Distribution-API-Version: registry/2.0\r\n\r\n");
        let mut out = stream;
        out.write_all(response.as_bytes())?;
        if request.method != "HEAD" {
            out.write_all(&body)?;
        }
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut authorization, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => value.trim().clone_into(&mut authorization),
            "content-length" => length = value.trim().parse().unwrap_or(0).min(BODY_MAX),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { method, target, authorization, body: String::from_utf8_lossy(&body).into_owned() }))
}

type Answer = (&'static str, Vec<(&'static str, String)>, Vec<u8>);

fn answer(request: &Request, own: SocketAddr, access: &Access, state: &State) -> Answer {
    let path = request.target.split('?').next().unwrap_or_default();
    let error = |status, code: &str| -> Answer {
        (status, Vec::new(), json!({"errors": [{"code": code, "message": code}]}).to_string().into_bytes())
    };
    let basic = |(user, password): (&str, &str)| {
        request.authorization == format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
    };
    let challenge = match access {
        Access::Everyone => None,
        Access::Basic(user, password) => {
            (!basic((user, password))).then(|| "Basic realm=\"test\"".to_owned())
        }
        Access::Bearer { password: (user, password), identity_token } => {
            if path == "/token" {
                let by_token = request.body.contains(&format!("refresh_token={identity_token}"));
                let body = json!({"token": TOKEN, "access_token": TOKEN}).to_string().into_bytes();
                return match by_token || basic((user, password)) {
                    true => ("200 OK", vec![("Content-Type", "application/json".to_owned())], body),
                    false => error("401 Unauthorized", "UNAUTHORIZED"),
                };
            }
            let known = request.authorization == format!("Bearer {TOKEN}");
            (!known).then(|| format!("Bearer realm=\"http://{own}/token\",service=\"test\""))
        }
    };
    if let Some(challenge) = challenge {
        let (status, mut headers, body) = error("401 Unauthorized", "UNAUTHORIZED");
        headers.push(("WWW-Authenticate", challenge));
        return (status, headers, body);
    }
    let found = |kind: &str, bytes: &[u8]| -> Answer {
        let headers = vec![("Content-Type", kind.to_owned()), ("Docker-Content-Digest", digest(bytes))];
        ("200 OK", headers, bytes.to_vec())
    };
    let rest = path.strip_prefix("/v2/").unwrap_or_default();
    if let Some((name, wanted)) = rest.split_once("/manifests/") {
        let separator = if wanted.starts_with("sha256:") { '@' } else { ':' };
        return match state.manifests.get(&format!("{name}{separator}{wanted}")) {
            Some(manifest) => found(MANIFEST, manifest),
            None => error("404 Not Found", "MANIFEST_UNKNOWN"),
        };
    }
    match rest.split_once("/blobs/").map(|(_, wanted)| state.blobs.get(wanted)) {
        Some(Some(blob)) => found("application/octet-stream", blob),
        Some(None) => error("404 Not Found", "BLOB_UNKNOWN"),
        None if path == "/v2/" => ("200 OK", Vec::new(), b"{}".to_vec()),
        None => error("404 Not Found", "NOT_FOUND"),
    }
}

fn digest(bytes: &[u8]) -> String {
    let hash: Vec<String> = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hash.concat())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
