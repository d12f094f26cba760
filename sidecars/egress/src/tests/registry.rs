//! Copies an image to a container registry and back with skopeo. The registry redirects to its blobs, as public
//! registries do.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};

use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, whole};
use bottle_test_support::server::{Server, handler};
use bottle_test_support::skip;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::fixture::ProxyFixture;

const REGISTRY: &str = "registry.example.com";
const BLOBS: &str = "blobs.example.com";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const SIGNED: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAQ7ZXW3RTYPLMNB5C%2F20261124%2Fus-east-1%2Fs3\
    %2Faws4_request&X-Amz-Date=20261124T010000Z&X-Amz-Expires=300&X-Amz-SignedHeaders=host\
    &X-Amz-Signature=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// The content of the registry: blobs and manifests by their digest or tag, and the upload in progress.
#[derive(Default)]
struct Content {
    stored: HashMap<String, Bytes>,
    uploads: HashMap<String, Vec<u8>>,
}

type Registry = Arc<Mutex<Content>>;

/// Answers a request like a registry. Implements the part of the distribution API that a copy of one image uses.
async fn answer(registry: Arc<Registry>, request: Request<Incoming>) -> Option<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let mut content = registry.lock().unwrap_or_else(PoisonError::into_inner);
    let path = parts.uri.path();
    let (kind, name) = match path.rsplit('/').collect::<Vec<_>>()[..] {
        [name, "uploads", ..] => ("uploads", name),
        [name, kind, ..] => (kind, name),
        _ => return None,
    };
    let status = |status: StatusCode| Response::builder().status(status);
    let response = match (&parts.method, kind) {
        (_, "v2") | (&Method::GET, "") => status(StatusCode::OK).body(whole("")),
        (&Method::POST, "uploads") => {
            let id = content.uploads.len().to_string();
            let location = format!("/v2/team/app/blobs/uploads/{id}");
            content.uploads.insert(id, Vec::new());
            status(StatusCode::ACCEPTED).header(header::LOCATION, location).body(whole(""))
        }
        (&Method::PATCH, "uploads") => {
            let upload = content.uploads.get_mut(name)?;
            upload.extend_from_slice(&body);
            let range = format!("0-{}", upload.len().saturating_sub(1));
            status(StatusCode::ACCEPTED).header(header::LOCATION, path).header("range", range).body(whole(""))
        }
        (&Method::PUT, "uploads") => {
            let blob = [content.uploads.remove(name)?, body.to_vec()].concat();
            let expected = parts.uri.query()?.strip_prefix("digest=")?.replace("%3A", ":");
            if digest(&blob) != expected {
                return status(StatusCode::BAD_REQUEST).body(whole("another digest")).ok();
            }
            content.stored.insert(expected, blob.into());
            status(StatusCode::CREATED).body(whole(""))
        }
        (&Method::PUT, "manifests") => {
            content.stored.insert(digest(&body), body.clone());
            content.stored.insert(name.to_owned(), body);
            status(StatusCode::CREATED).body(whole(""))
        }
        (&Method::GET | &Method::HEAD, _) => match content.stored.get(name) {
            None => status(StatusCode::NOT_FOUND).body(whole("")),
            Some(_) if parts.method == Method::GET && kind == "blobs" => {
                status(StatusCode::TEMPORARY_REDIRECT)
                    .header(header::LOCATION, format!("https://{BLOBS}/store/{name}?{SIGNED}"))
                    .body(whole(""))
            }
            Some(stored) => {
                let response = status(StatusCode::OK).header("docker-content-digest", digest(stored));
                let response = match kind {
                    "manifests" => response.header(header::CONTENT_TYPE, MANIFEST),
                    _ => response.header(header::CONTENT_TYPE, "application/octet-stream"),
                };
                let length = HeaderValue::from(stored.len());
                let is_head = parts.method == Method::HEAD;
                let body = if is_head { Bytes::new() } else { stored.clone() };
                response.header(header::CONTENT_LENGTH, length).body(whole(body))
            }
        },
        _ => status(StatusCode::METHOD_NOT_ALLOWED).body(whole("")),
    };
    response.ok()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}

/// Stores a blob in an OCI layout and returns its descriptor.
fn store(layout: &Path, kind: &str, bytes: &[u8]) -> serde_json::Value {
    let digest = digest(bytes);
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
    std::fs::write(path, bytes).expect("blob");
    json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
}

/// Creates an image with two layers. One layer is too long for the proxy to keep it in memory. Returns the layers'
/// digests.
fn image(layout: &Path) -> Vec<String> {
    let layers: Vec<_> = [2 << 10, 3 << 20]
        .map(|size| {
            let random: Vec<u8> = std::iter::repeat_with(rand::random).take(size).collect();
            let mut layer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            layer.write_all(&random).expect("compress");
            let layer = layer.finish().expect("compress");
            (digest(&random), store(layout, "application/vnd.oci.image.layer.v1.tar+gzip", &layer))
        })
        .into();
    let (diffs, layers): (Vec<String>, Vec<_>) = layers.into_iter().unzip();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": diffs}});
    let config = store(layout, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    let manifest = store(layout, MANIFEST, manifest.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    std::fs::write(layout.join("index.json"), index.to_string()).expect("index");
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("layout");
    layers.iter().map(|layer| layer["digest"].as_str().expect("digest").replace(':', "/")).collect()
}

async fn copy(proxy: &ProxyFixture, from: &str, to: &str) -> Output {
    tokio::process::Command::new("skopeo")
        .env_clear()
        .env("HOME", proxy.directory.path())
        .env("XDG_RUNTIME_DIR", proxy.directory.path())
        .env("HTTPS_PROXY", format!("http://{}", proxy.proxy))
        .env("SSL_CERT_FILE", proxy.ca())
        .args(["--insecure-policy", "copy", "--src-no-creds", "--dest-no-creds", from, to])
        .kill_on_drop(true)
        .output()
        .await
        .expect("skopeo")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skopeo_copies_an_image_to_a_registry_and_back() {
    if tokio::process::Command::new("skopeo").arg("--version").output().await.is_err() {
        return skip::aloud("skopeo_copies_an_image_to_a_registry_and_back", &"there is no skopeo here");
    }
    let authority = Authority::new("registry").expect("authority");
    let tls = authority.server_config(&[REGISTRY, BLOBS], Leaf::Valid, Alpn::Both).expect("config");
    let registry = Registry::default();
    let site = Server::start(0, Some(tls), handler(Arc::new(Arc::clone(&registry)), answer)).expect("server");
    let to = format!("connect_to: '127.0.0.1:{}'", site.address().port());
    let block = "dlp: {outbound_on_match: block}";
    let yaml =
        format!("routes:\n- host: {REGISTRY}\n  {to}\n  {block}\n- host: {BLOBS}\n  {to}\n  {block}\n");
    let proxy = ProxyFixture::with_routes(authority.pem(), yaml, |_| {}).await;
    let [here, there] = ["here", "there"].map(|name| proxy.directory.path().join(name));
    let layers = image(&here);
    let remote = format!("docker://{REGISTRY}/team/app:1");
    for (from, to) in
        [(format!("oci:{}", here.display()), remote.clone()), (remote, format!("oci:{}:1", there.display()))]
    {
        let copied = copy(&proxy, &from, &to).await;
        assert!(copied.status.success(), "{from}: {}", String::from_utf8_lossy(&copied.stderr));
    }
    for layer in layers {
        let [sent, received] =
            [&here, &there].map(|layout| std::fs::read(layout.join("blobs").join(&layer)).expect("a layer"));
        assert!(sent == received, "{layer}");
    }
}
