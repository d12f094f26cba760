//! Tests of the fake servers with a real TLS client, because all other tests depend on these servers.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_test_support::authority::Alpn;
use bottle_test_support::fake_llm::{FakeLlm, Fault, FaultKind, Options, Script};
use bottle_test_support::upstream::{Leaf, Site, Upstream};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const HOST: &str = "openrouter.ai";

async fn connect(
    address: SocketAddr,
    ca: &str,
    host: &str,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from(host.to_owned()).unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

/// Sends a request on a new connection. Returns the status, the part of the body that was received, and
/// whether the body was complete.
async fn ask(address: SocketAddr, ca: &str, h2: bool, request: Request<Full<Bytes>>) -> (u16, String, bool) {
    let alpn: &[u8] = if h2 { b"h2" } else { b"http/1.1" };
    let io = TokioIo::new(connect(address, ca, HOST, alpn).await.unwrap());
    let response = if h2 {
        let (mut send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        send.send_request(request).await.unwrap()
    } else {
        let (mut send, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        send.send_request(request).await.unwrap()
    };
    let status = response.status().as_u16();
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
            Err(_) => return (status, String::from_utf8(text).unwrap(), false),
        }
    }
    (status, String::from_utf8(text).unwrap(), true)
}

fn post(path: &str, key: Option<(&str, &str)>, body: &Value) -> Request<Full<Bytes>> {
    let mut request = Request::post(format!("https://{HOST}{path}"));
    if let Some((name, value)) = key {
        request = request.header(name, value);
    }
    request.body(Full::from(body.to_string())).unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("https://{HOST}{path}")).body(Full::default()).unwrap()
}

/// The same conversation in each format: the path, the first request, and how a tool result is added.
fn conversations(streamed: bool) -> Vec<(&'static str, Value, Value)> {
    let schema =
        json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    vec![
        (
            "/v1/messages",
            json!({"model": "m", "stream": streamed, "messages": [{"role": "user", "content": "go"}],
                "tools": [{"name": "bash", "input_schema": schema}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "ok"}]}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": "m", "stream": streamed, "messages": [{"role": "user", "content": "go"}],
                "tools": [{"type": "function", "function": {"name": "bash", "parameters": schema}}]}),
            json!({"role": "tool", "tool_call_id": "x", "content": "ok"}),
        ),
        (
            "/v1/responses",
            json!({"model": "m", "stream": streamed, "input": [{"role": "user", "content": "go"}],
                "tools": [{"type": "function", "name": "bash", "parameters": schema}]}),
            json!({"type": "function_call_output", "call_id": "x", "output": "ok"}),
        ),
    ]
}

/// Returns the value of `field`: from a stream, all its parts joined; otherwise the single value.
fn gathered(text: &str, field: &str) -> String {
    fn walk(value: &Value, field: &str, out: &mut String) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| match value {
                Value::String(text) if key == field => out.push_str(text),
                value => walk(value, field, out),
            }),
            Value::Array(values) => values.iter().for_each(|value| walk(value, field, out)),
            _ => {}
        }
    }
    let mut out = String::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        walk(&serde_json::from_str(line).unwrap_or_default(), field, &mut out);
    }
    out
}

#[tokio::test]
async fn plays_the_script_in_every_format_on_both_protocols() {
    let script = Script::new(&["echo the one step"]);
    let llm = FakeLlm::start(Options { script, ..Options::default() }).unwrap();
    let key = format!("Bearer {}", llm.key());
    for (streamed, h2) in [(false, false), (false, true), (true, false), (true, true)] {
        for (path, mut body, result) in conversations(streamed) {
            let case = format!("{path} streamed {streamed} h2 {h2}");
            let key = Some(("authorization", key.as_str()));
            let (status, first, whole) = ask(llm.address(), llm.ca_pem(), h2, post(path, key, &body)).await;
            assert_eq!((status, whole), (200, true), "{case}");
            if !streamed {
                assert!(first.contains("echo the one step"), "{case}: {first}");
            }
            let field = if path == "/v1/responses" { "input" } else { "messages" };
            body[field].as_array_mut().unwrap().push(result);
            let (_, last, _) = ask(llm.address(), llm.ca_pem(), h2, post(path, key, &body)).await;
            assert!(!last.contains("echo the one step"), "{case}: {last}");
            if !streamed {
                assert!(last.contains("The scripted task is done."), "{case}: {last}");
                assert!(last.contains("usage"), "{case}: {last}");
            }
        }
    }
    assert_eq!(llm.steps_served(), [0, 1].repeat(12));
    assert!(llm.seen().iter().any(|seen| seen.protocol == "HTTP/2.0" && seen.host == HOST));
}

#[tokio::test]
async fn streams_the_call_in_pieces_with_usage() {
    let llm = FakeLlm::start(Options::default()).unwrap();
    let command = Script::default().commands[0].clone();
    let arguments = json!({ "command": command }).to_string();
    let cases = [("partial_json", "message_start"), ("arguments", ""), ("delta", "response.completed")];
    for ((path, mut body, _), (field, event)) in conversations(true).into_iter().zip(cases) {
        body["stream_options"] = json!({"include_usage": true});
        let request = post(path, Some(("x-api-key", llm.key())), &body);
        let (_, text, _) = ask(llm.address(), llm.ca_pem(), false, request).await;
        assert_eq!(gathered(&text, field), arguments, "{path}: {text}");
        assert!(event.is_empty() || text.contains(&format!("event: {event}\n")), "{path}: {text}");
        let usage = text.lines().filter(|line| line.contains("_tokens\":")).count();
        assert!(usage >= 1, "{path}: {text}");
        if path == "/v1/messages" {
            assert_eq!(usage, 2, "message_start and message_delta: {text}");
        }
    }
}

#[tokio::test]
async fn refuses_every_other_key() {
    let llm = FakeLlm::start(Options::default()).unwrap();
    let longer = format!("{}x", llm.key());
    let basic = format!("Basic {}", llm.key());
    for (path, body, _) in conversations(false) {
        for key in [
            None,
            Some(("x-api-key", "placeholder")),
            Some(("x-api-key", longer.as_str())),
            Some(("authorization", basic.as_str())),
            Some(("authorization", "Bearer")),
        ] {
            let (status, text, _) = ask(llm.address(), llm.ca_pem(), false, post(path, key, &body)).await;
            assert_eq!(status, 401, "{path} {key:?}");
            assert!(!text.contains(llm.key()), "{text}");
        }
    }
    assert_eq!(llm.steps_served(), [] as [usize; 0]);
    assert!(llm.seen().iter().all(|seen| !seen.key_accepted));
}

#[tokio::test]
async fn declines_a_web_socket_with_the_status_for_fallback() {
    let llm = FakeLlm::start(Options::default()).unwrap();
    let request = Request::get("/v1/responses")
        .header("host", HOST)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("x-api-key", llm.key());
    let request = request.body(Full::default()).unwrap();
    assert_eq!(ask(llm.address(), llm.ca_pem(), false, request).await.0, 426);
}

#[tokio::test]
async fn injects_faults_as_configured() {
    let fault = |kind| Fault { step: Some(0), times: 1, kind };
    let faults = vec![
        fault(FaultKind::Status(529)),
        fault(FaultKind::Cut { after: 2 }),
        fault(FaultKind::Delay(Duration::from_millis(20))),
    ];
    let llm = FakeLlm::start(Options { faults, ..Options::default() }).unwrap();
    let (path, body, _) = conversations(true).remove(0);
    let ask = || ask(llm.address(), llm.ca_pem(), false, post(path, Some(("x-api-key", llm.key())), &body));
    assert_eq!(ask().await.0, 529);
    let (status, text, whole) = ask().await;
    assert_eq!((status, whole, text.matches("event: ").count()), (200, false, 2), "{text}");
    let started = Instant::now();
    let (_, text, whole) = ask().await;
    assert!(whole && started.elapsed() >= Duration::from_millis(20) * 5, "{:?}: {text}", started.elapsed());
    assert!(ask().await.2, "and then all is well");
}

#[tokio::test]
async fn a_site_answers_by_path() {
    let site = Upstream::start(&[HOST]).unwrap();
    let ask = |h2, request| ask(site.address(), site.ca_pem(), h2, request);
    assert_eq!(ask(false, get("/status/418")).await.0, 418);
    assert_eq!(ask(true, get("/bytes/200000")).await.1.len(), 200_000);
    assert_eq!(ask(true, get("/sse/3/1")).await.1.matches("event: tick").count(), 3);
    let (_, text, whole) = ask(false, get("/cut/2")).await;
    assert_eq!((text.as_str(), whole), ("line 0\nline 1\n", false));
    let request = Request::put(format!("https://{HOST}/any?x=1")).header("x-test", "yes");
    let (_, text, _) = ask(true, request.body(Full::from("body")).unwrap()).await;
    let echo: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&echo["method"], &echo["path"], &echo["body"]),
        (&json!("PUT"), &json!("/any?x=1"), &json!("body"))
    );
    assert_eq!(site.visits().last().unwrap().header("X-Test"), Some("yes"));
}

#[tokio::test]
async fn echoes_web_socket_messages() {
    let site = Upstream::start(&[HOST]).unwrap();
    let stream = connect(site.address(), site.ca_pem(), HOST, b"http/1.1").await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(format!("wss://{HOST}/ws"), stream).await.unwrap();
    socket.send("hello".into()).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap().into_text().unwrap().as_str(), "hello");
}

#[tokio::test]
async fn certificates_have_only_the_configured_defect() {
    let site = Upstream::start(&[HOST]).unwrap();
    let other = Upstream::start(&[HOST]).unwrap();
    let expired = Site { leaf: Leaf::Expired, alpn: Alpn::Http1, ..Site::named(&[HOST]) };
    let expired = Upstream::start_site(&expired).unwrap();
    assert!(connect(site.address(), site.ca_pem(), HOST, b"http/1.1").await.is_ok());
    for (case, site, ca, host) in [
        ("name", &site, site.ca_pem(), "example.com"),
        ("authority", &site, other.ca_pem(), HOST),
        ("time", &expired, expired.ca_pem(), HOST),
    ] {
        assert!(connect(site.address(), ca, host, b"http/1.1").await.is_err(), "{case}");
    }
}
