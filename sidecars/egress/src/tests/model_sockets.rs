//! The WebSocket mode of OpenAI's Responses API: every response is counted, and a budget applies to every request.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::Written;
use bottle_protocol::session::lease::LeaseAnswer;
use bottle_protocol::usage::{Api, Usage};
use bottle_test_support::authority::Alpn;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fixture::{AUTH, ProxyFixture};
use super::leases::{answer, asked, key, prompt_of};
use super::scripted_sites::{SiteStream, proxy_to, read_request, write};
use super::usage::{keeper_of, next_records};
use super::websockets::{ACCEPT, Client, WITHIN, close, frame, frames, masked, upgrade_at};
use crate::test_proxy::connect_to_leases;

/// A proxy, a model behind it, and a keeper whose answers come from the test.
struct Setup {
    proxy: ProxyFixture,
    /// The messages that reached the model.
    served: mpsc::Receiver<String>,
    keeper: Stream,
    _channel: Channel,
}

/// Returns a message of the model as a frame.
fn event(event: &Value) -> Vec<u8> {
    let text = event.to_string();
    [&[0x81, 126][..], &u16::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat()
}

/// Returns the event that begins a response.
fn created(id: &str) -> Value {
    json!({"type": "response.created", "response": {"id": id, "model": "m-1"}})
}

/// Returns the event that ends a response of `input` + 20 tokens.
fn completed(id: &str, input: u64) -> Value {
    let usage = json!({"input_tokens": input, "output_tokens": 20});
    json!({"type": "response.completed", "response": {"id": id, "model": "m-1", "usage": usage}})
}

/// Returns an error event, which does not state the message to which it refers.
fn error() -> Value {
    json!({"type": "error", "status": 400, "error": {"code": "bad", "message": "bad"}})
}

/// Returns the events for a message: for `fail` an error, for `hang` only the beginning of a response, and for other
/// requests a response of 100 + 20 tokens.
fn respond(text: &str) -> Vec<Value> {
    if !text.contains("response.create") {
        return Vec::new();
    }
    if text.contains("fail") {
        return vec![error()];
    }
    let delta = json!({"type": "response.output_text.delta", "delta": "twelve bytes"});
    let mut events = vec![created("r"), delta];
    if !text.contains("hang") {
        events.push(completed("r", 100));
    }
    events
}

async fn setup(route: &str) -> Setup {
    setup_with(route, respond).await
}

/// Starts a model that answers each message with the events from `respond`.
async fn setup_with(route: &str, respond: fn(&str) -> Vec<Value>) -> Setup {
    let (sender, served) = mpsc::channel(16);
    let sender = Arc::new(sender);
    let (proxy, _) = proxy_to(Alpn::Http1, route, move |mut stream: SiteStream, _| {
        let sender = Arc::clone(&sender);
        async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            write(&mut stream, format!("{ACCEPT}\r\n").as_bytes()).await;
            while let Some((0x81, text)) = frame(&mut stream).await {
                let text = String::from_utf8(text).expect("text");
                let events: Vec<u8> = respond(&text).iter().flat_map(event).collect();
                sender.send(text).await.expect("the test runs");
                write(&mut stream, &events).await;
            }
        }
    })
    .await;
    proxy.keeper.abort();
    let (channel, keeper) = connect_to_leases(Arc::clone(&proxy.egress.leases)).await;
    Setup { proxy, served, keeper, _channel: channel }
}

async fn open(proxy: &ProxyFixture) -> Client {
    let (client, head) = upgrade_at(proxy, "/v1/responses", "").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    client
}

async fn send(client: &mut Client, text: &str) {
    client.write_all(&masked(0x81, text.as_bytes())).await.expect("write");
}

/// Reads messages until one ends a response, and returns this message.
async fn response(client: &mut Client) -> Value {
    loop {
        let (_, text) = timeout(WITHIN, frame(client)).await.expect("in time").expect("a frame");
        let event: Value = serde_json::from_slice(&text).expect("JSON");
        if matches!(event["type"].as_str(), Some("response.completed" | "error")) {
            return event;
        }
    }
}

/// Receives `count` usage records.
async fn records(keeper: &mut Stream, count: usize) -> Vec<Usage> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(next_records(keeper).await);
        keeper.message(&Written {}).await.expect("acknowledged");
    }
    all
}

const FIRST: &str = r#"{"type":"response.create","model":"gpt-4o","max_output_tokens":100,"input":"1"}"#;
const NEXT: &str =
    r#"{"type":"response.create","model":"gpt-4o","max_output_tokens":100,"previous_response_id":"r"}"#;
const HANG: &str = r#"{"type":"response.create","model":"gpt-4o","max_output_tokens":70,"input":"hang"}"#;

/// The tokens that are reserved for [`FIRST`].
fn cost_of_first() -> u64 {
    prompt_of(Api::Responses, FIRST) + 100
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_waits_for_its_tokens_and_each_response_is_counted() {
    for route in [AUTH, "dlp: {outbound_detectors: false, inbound_detectors: false}"] {
        let Setup { proxy, mut served, mut keeper, _channel } = setup(route).await;
        let mut usage = keeper_of(&proxy).await;
        let mut client = open(&proxy).await;
        send(&mut client, FIRST).await;
        let request = asked(&mut keeper).await;
        assert_eq!((request.key, request.needed), (key(), Some(cost_of_first())), "{route}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(served.try_recv().is_err(), "the request reached the model");
        let granted = cost_of_first();
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted }).await;
        assert_eq!(served.recv().await.as_deref(), Some(FIRST));
        assert_eq!(response(&mut client).await["type"], "response.completed");
        // The request refers to an earlier response, so its prompt may fill the context window. The size of this window
        // is unknown for this host. The first response has used 120 tokens of the lease.
        send(&mut client, NEXT).await;
        let request = asked(&mut keeper).await;
        assert_eq!(request.needed, Some(2_000_000 - (granted - 120)), "{route}");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 3_000_000 }).await;
        assert_eq!(response(&mut client).await["type"], "response.completed");
        // A request that ends with an error uses no tokens. The message after this request is not a request.
        send(&mut client, r#"{"type":"response.create","input":"fail"}"#).await;
        assert_eq!(response(&mut client).await["type"], "error");
        send(&mut client, r#"{"type":"response.processed","response_id":"r"}"#).await;
        // For an interrupted response, all reserved tokens count as used.
        send(&mut client, HANG).await;
        let event = timeout(WITHIN, frame(&mut client)).await.expect("in time").expect("a frame");
        assert!(String::from_utf8_lossy(&event.1).contains("response.created"));
        timeout(WITHIN, frame(&mut client)).await.expect("in time").expect("a delta");
        drop(client);
        let records = records(&mut usage, 3).await;
        for whole in &records[..2] {
            assert_eq!(
                (whole.api, whole.tokens.input, whole.tokens.output),
                (Api::Responses, Some(100), Some(20))
            );
            assert!(!whole.estimated && !whole.interrupted, "{whole:?}");
            assert_eq!(whole.model.as_deref(), Some("m-1"));
        }
        let prompt = prompt_of(Api::Responses, HANG);
        assert_eq!((records[2].tokens.input, records[2].tokens.output), (Some(prompt), Some(70)), "{route}");
        assert!(records[2].estimated && records[2].interrupted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_messages_that_it_cannot_count_where_a_budget_holds() {
    for text in [
        r#"{"type":"session.update","session":{}}"#,
        r#"{"type":"response.create ","input":"x"}"#,
        r#"{"type":"response.cancel","x":1}"#,
        r#"{"type":"response.cancel","Type":"response.create"}"#,
        r#"{"type":"response.processed","response":{"input":"x"}}"#,
        r#"{"type":"response.cancel","response_id":{"input":"x"}}"#,
        r#"{"type":"response.create","input":"x","background":true}"#,
        r#"{"type":"response.create","input":"x","Max_Output_Tokens":5}"#,
    ] {
        let Setup { proxy, mut served, mut keeper, _channel } = setup(AUTH).await;
        let mut client = open(&proxy).await;
        send(&mut client, text).await;
        assert_eq!(asked(&mut keeper).await.needed, Some(0), "{text}");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 0 }).await;
        assert_eq!(response(&mut client).await["error"]["code"], "not-metered", "{text}");
        assert!(served.try_recv().is_err(), "{text} reached the model");
    }
}

const BAD_CANCEL: &str = r#"{"type":"response.cancel","response_id":"none"}"#;
const LARGE: &str = r#"{"type":"response.create","model":"gpt-4o","max_output_tokens":500,"input":"large"}"#;
const FAIL: &str = r#"{"type":"response.create","model":"gpt-4o","max_output_tokens":60,"input":"fail"}"#;

/// Returns the events for a message. For `hang`, returns only the beginning of a response. For `large`, returns an
/// error about an earlier message, then the end of the response to `hang`, and then the response to `large`.
fn respond_late(text: &str) -> Vec<Value> {
    if text.contains("large") {
        return vec![error(), completed("small", 10), created("large"), completed("large", 300)];
    }
    match text.contains("hang") {
        true => vec![created("small")],
        false => Vec::new(),
    }
}

/// Returns the input tokens of each record, and whether the record is estimated.
fn inputs(records: &[Usage]) -> Vec<(u64, bool)> {
    records.iter().map(|one| (one.tokens.input.unwrap_or_default(), one.estimated)).collect()
}

/// Each error may refer to the `response.cancel` message or to another request. So the error ends no request and
/// returns no tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_about_another_message_ends_no_request() {
    for (messages, expected) in [
        (&[BAD_CANCEL, LARGE][..], &[(300, false)][..]),
        (&[HANG, BAD_CANCEL, LARGE], &[(10, false), (300, false)]),
        // The error may refer to either request.
        (&[HANG, LARGE], &[(10, false), (300, false)]),
    ] {
        let Setup { proxy, mut served, mut keeper, _channel } = setup_with(AUTH, respond_late).await;
        let mut usage = keeper_of(&proxy).await;
        let mut client = open(&proxy).await;
        let grant = async {
            asked(&mut keeper).await;
            answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 1_000_000 }).await;
        };
        let send_all = async {
            for message in messages {
                send(&mut client, message).await;
                assert_eq!(served.recv().await.as_deref(), Some(*message));
            }
        };
        tokio::join!(grant, send_all);
        assert_eq!(inputs(&records(&mut usage, expected.len()).await), expected, "{messages:?}");
        answer(&keeper, LeaseAnswer::Revoked).await;
        let used: u64 = expected.iter().map(|(input, _)| input + 20).sum();
        assert_eq!(asked(&mut keeper).await.returned, 1_000_000 - used, "{messages:?}");
    }
}

/// If an error may refer to a request or to another message, all tokens reserved for the request count as used. After
/// the model has begun a later response, an error can only refer to a request again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_may_be_about_a_request_keeps_its_reservation() {
    let Setup { proxy, mut keeper, _channel, served: _served } = setup(AUTH).await;
    let mut usage = keeper_of(&proxy).await;
    for (messages, expected) in [
        (&[BAD_CANCEL, FAIL][..], &[(prompt_of(Api::Responses, FAIL), true)][..]),
        (&[BAD_CANCEL, FIRST, FAIL], &[(100, false)]),
    ] {
        let mut client = open(&proxy).await;
        for message in messages {
            send(&mut client, message).await;
            if *message == BAD_CANCEL {
                continue;
            }
            if !proxy.egress.leases.is_limited(&key()) {
                asked(&mut keeper).await;
                answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 1_000_000 }).await;
            }
            response(&mut client).await;
        }
        drop(client);
        assert_eq!(inputs(&records(&mut usage, expected.len()).await), expected, "{messages:?}");
        let more = timeout(Duration::from_millis(300), next_records(&mut usage)).await;
        assert!(more.is_err(), "{messages:?}: {more:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_request_ends_the_conversation_with_the_reason() {
    let Setup { proxy, mut served, mut keeper, _channel } = setup(AUTH).await;
    let mut client = open(&proxy).await;
    send(&mut client, FIRST).await;
    asked(&mut keeper).await;
    let why = "the budget of host for claude has 5 of 10 tokens left".to_owned();
    answer(&keeper, LeaseAnswer::Denied { key: key(), reason: Reason::BudgetSpent, why }).await;
    let error = response(&mut client).await;
    assert_eq!((&error["status"], &error["error"]["code"]), (&json!(400), &json!("budget-spent")));
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("has 5 of 10 tokens left")));
    client.write_all(&masked(0x88, &close(1008, ""))).await.expect("close");
    assert_eq!(frames(&mut client).await, [(0x88, close(1008, "budget-spent"))]);
    assert!(served.try_recv().is_err(), "the request reached the model");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_could_be_a_request_is_denied() {
    for text in [
        "no JSON",
        "[]",
        r#"{"input":"no type"}"#,
        r#"{"type":"response.cancel","type":"response.create"}"#,
        r#"{"type":"response.cancel","type":"response.cancel"}"#,
        r#"{"type":"response.cancel"} {"type":"response.create"}"#,
    ] {
        let Setup { proxy, mut served, keeper: _keeper, _channel } = setup(AUTH).await;
        let mut client = open(&proxy).await;
        send(&mut client, text).await;
        assert_eq!(response(&mut client).await["error"]["code"], "structure-refused", "{text}");
        assert!(served.try_recv().is_err(), "{text} reached the model");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_while_it_waits_costs_nothing() {
    let Setup { proxy, mut served, mut keeper, _channel } = setup(AUTH).await;
    let mut client = open(&proxy).await;
    send(&mut client, FIRST).await;
    asked(&mut keeper).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(300)).await;
    answer(&keeper, LeaseAnswer::Granted { key: key(), granted: cost_of_first() }).await;
    answer(&keeper, LeaseAnswer::Revoked).await;
    let returned = asked(&mut keeper).await;
    assert_eq!((returned.returned, returned.needed), (cost_of_first(), None));
    assert!(served.try_recv().is_err(), "the request reached the model");
}
