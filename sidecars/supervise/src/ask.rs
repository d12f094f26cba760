//! `bottle-ask`: the same calls from a shell, for agents that have no MCP.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bottle_contract::names::{ASK_COMMAND as COMMAND, SUPERVISE_HOST, SUPERVISE_PORT};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Longer than the server lets a call wait.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

/// The longest answer, and the longest proposal.
const MOST: usize = 4 << 20;

/// The revision of the protocol that the calls are written in.
const PROTOCOL: &str = "2025-06-18";

const HELP: &str = "\
Ask the user in charge to let this sandbox reach a host. What is approved works at once.

  bottle-ask routes                          what is let through now
  bottle-ask allow --why TEXT ROUTES         ask for more, and wait for the decision
  bottle-ask check ID                        wait for a decision that was pending

  --why TEXT      what it is needed for; a user reads it
  --refusal ID    the `id` of the 403 that a request was answered with
  --wait          do not return before it is decided

ROUTES is a host (`api.example.com`), or YAML or JSON, `-` for standard input:

  - host: api.example.com
    matches:
    - methods: [GET]
      paths: [{type: prefix, value: /v1}]

Exit codes: 0 allowed, 1 not allowed, 2 asked wrongly, 3 not decided yet.";

const ALLOWED: u8 = 0;
const NOT_ALLOWED: u8 = 1;
const ASKED_WRONGLY: u8 = 2;
const PENDING: u8 = 3;

/// The command's whole life.
#[must_use]
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Option<Vec<String>> = arguments.map(|argument| argument.into_string().ok()).collect();
    let outcome = match arguments.as_deref().map(Typed::read) {
        Some(Ok(Typed::Help)) => say(io::stdout(), HELP).map(|()| ALLOWED),
        Some(Ok(typed)) => carry_out(typed),
        Some(Err(why)) => say(io::stderr(), &format!("{COMMAND}: {why}; `{COMMAND} --help` shows how"))
            .map(|()| ASKED_WRONGLY),
        None => say(io::stderr(), &format!("{COMMAND}: an argument is no text")).map(|()| ASKED_WRONGLY),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = say(io::stderr(), &format!("{COMMAND}: {error:#}"));
            ExitCode::from(NOT_ALLOWED)
        }
    }
}

fn say(mut to: impl Write, text: &str) -> anyhow::Result<()> {
    writeln!(to, "{text}").context("nobody reads what is said")
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Help,
    Routes,
    Allow { routes: String, why: String, refusal: Option<String>, wait: bool },
    Check { id: String, wait: bool },
}

impl Typed {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let mut words = Vec::new();
        let (mut why, mut refusal, mut wait) = (None, None, false);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().cloned().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "-h" | "--help" => return Ok(Self::Help),
                "--why" => why = Some(value()?),
                "--refusal" => refusal = Some(value()?),
                "--wait" => wait = true,
                flag if flag.starts_with("--") => return Err(format!("there is no {flag}")),
                word => words.push(word.to_owned()),
            }
        }
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(Self::Help),
            ["routes"] => Ok(Self::Routes),
            ["allow", routes] => {
                let why = why.ok_or("a user has to be told what it is for: `--why TEXT`")?;
                Ok(Self::Allow { routes: (*routes).to_owned(), why, refusal, wait })
            }
            ["allow", ..] => Err("`allow` takes one ROUTES".to_owned()),
            ["check", id] => Ok(Self::Check { id: (*id).to_owned(), wait }),
            [other, ..] => Err(format!("there is no `{other}`, or it takes other arguments")),
        }
    }
}

/// What was typed for ROUTES as an argument of the tool.
fn routes_of(typed: &str, input: impl Read) -> anyhow::Result<Value> {
    if typed == "-" {
        let mut text = String::new();
        input.take(MOST as u64).read_to_string(&mut text).context("standard input")?;
        return Ok(text.into());
    }
    let host = typed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte));
    Ok(if host { json!([{"host": typed}]) } else { typed.into() })
}

fn carry_out(typed: Typed) -> anyhow::Result<u8> {
    let (mut call, wait) = match typed {
        Typed::Help => return Ok(ALLOWED),
        Typed::Routes => (("list-egress-routes", json!({})), false),
        Typed::Check { id, wait } => (("check-proposal", json!({"id": id})), wait),
        Typed::Allow { routes, why, refusal, wait } => {
            let mut arguments = json!({"routes": routes_of(&routes, io::stdin())?, "justification": why});
            let tool = match refusal {
                Some(id) => {
                    arguments["refusal_id"] = id.into();
                    "egress-block"
                }
                None => "egress-allow",
            };
            ((tool, arguments), wait)
        }
    };
    let hosts = std::fs::read_to_string("/etc/hosts").context("/etc/hosts")?;
    let proxy = proxy_of(&hosts).with_context(|| {
        format!("there is no `{SUPERVISE_HOST}` here: nobody can be asked, or this is no bottle")
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    loop {
        let said = match runtime.block_on(ask(proxy, call.0, &call.1))? {
            Ok(said) => said,
            Err(message) => {
                say(io::stderr(), &format!("{COMMAND}: {message}"))?;
                return Ok(ASKED_WRONGLY);
            }
        };
        let code = code_of(&said);
        if code == PENDING && wait {
            call = ("check-proposal", json!({"id": said["id"]}));
            continue;
        }
        say(io::stdout(), &format!("{said:#}"))?;
        return Ok(code);
    }
}

/// An answer without a status is the list that was asked for.
fn code_of(said: &Value) -> u8 {
    match said["status"].as_str() {
        None | Some("approved" | "modified") => ALLOWED,
        Some("pending") => PENDING,
        Some(_) => NOT_ALLOWED,
    }
}

/// Where the server is: hosts(5).
fn proxy_of(hosts: &str) -> Option<SocketAddr> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address: Ipv4Addr = words.next()?.parse().ok()?;
        words.any(|word| word == SUPERVISE_HOST).then(|| (address, SUPERVISE_PORT).into())
    })
}

/// One call. Within, what the server says is wrong with it.
async fn ask(proxy: SocketAddr, tool: &str, arguments: &Value) -> anyhow::Result<Result<Value, String>> {
    let request = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    });
    let answer = tokio::time::timeout(ANSWERS_WITHIN, exchange(proxy, request.to_string()));
    let answer = answer.await.context("nobody answered in time")??;
    let answer: Value = serde_json::from_slice(&answer).with_context(|| {
        format!("the answer is no JSON: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)]))
    })?;
    if let Some(message) = answer["error"]["message"].as_str() {
        return Ok(Err(message.to_owned()));
    }
    match &answer["result"]["structuredContent"] {
        Value::Null => bail!("the answer says nothing: {answer}"),
        said => Ok(Ok(said.clone())),
    }
}

async fn exchange(proxy: SocketAddr, body: String) -> anyhow::Result<Bytes> {
    let unreached = || format!("{SUPERVISE_HOST}:{SUPERVISE_PORT} does not answer: nobody can be asked here");
    let socket = TcpStream::connect(proxy).await.with_context(unreached)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri("/mcp")
        .header(HOST, format!("{SUPERVISE_HOST}:{SUPERVISE_PORT}"))
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, text/event-stream")
        .header("mcp-protocol-version", PROTOCOL)
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await.with_context(unreached)?;
    let body = Limited::new(answer.into_body(), MOST).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(|error| anyhow::anyhow!(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str]) -> Result<Typed, String> {
        Typed::read(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_typed_is_read() {
        let allow = |refusal: Option<&str>, wait| Typed::Allow {
            routes: "a.example".to_owned(),
            why: "tests".to_owned(),
            refusal: refusal.map(str::to_owned),
            wait,
        };
        for (words, meant) in [
            (&[][..], Typed::Help),
            (&["allow", "--help"], Typed::Help),
            (&["routes"], Typed::Routes),
            (&["allow", "--why", "tests", "a.example"], allow(None, false)),
            (
                &["allow", "a.example", "--wait", "--refusal", "r-1", "--why", "tests"],
                allow(Some("r-1"), true),
            ),
            (&["check", "1f"], Typed::Check { id: "1f".to_owned(), wait: false }),
        ] {
            assert_eq!(typed(words), Ok(meant), "{words:?}");
        }
        for words in
            [&["allow", "a.example"][..], &["allow", "--why"], &["allow", "--why", "x"], &["open"], &["--x"]]
        {
            assert!(typed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_host_alone_is_a_route_and_everything_else_is_yaml() {
        let of = |typed| routes_of(typed, &b"- host: in.example"[..]).expect("routes");
        assert_eq!(of("*.a.example"), json!([{"host": "*.a.example"}]));
        assert_eq!(of("-"), json!("- host: in.example"));
        assert_eq!(of("[{host: a.example}]"), json!("[{host: a.example}]"));
    }

    #[test]
    fn codes_say_what_became_of_it() {
        for (status, code) in [
            ("approved", 0),
            ("modified", 0),
            ("rejected", 1),
            ("refused", 1),
            ("expired", 1),
            ("pending", 3),
        ] {
            assert_eq!(code_of(&json!({"status": status})), code, "{status}");
        }
        assert_eq!(code_of(&json!({"routes": []})), 0);
    }

    #[test]
    fn the_server_is_found_by_its_name() {
        let hosts = "127.0.0.1 localhost\n10.213.0.2 egress supervise git-gate # the proxy\n";
        assert_eq!(proxy_of(hosts), Some(([10, 213, 0, 2], 9100).into()));
        assert_eq!(proxy_of("127.0.0.1 localhost supervised"), None);
    }
}
