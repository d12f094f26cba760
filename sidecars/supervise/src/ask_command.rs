//! Implements the command `bottle-ask`, which calls the supervise tools from a shell. Agents without MCP use this
//! command.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bottle_policy::names::{ASK_COMMAND as COMMAND, SUPERVISE_HOST, SUPERVISE_PORT};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// The time limit for one request to the server. The server responds earlier, because `supervise.call_wait` is at most
/// 55 s.
const RESPONSE_WITHIN: Duration = Duration::from_secs(90);

/// The maximum size in bytes of a response, and of input from standard input. A larger response is an error. A larger
/// proposal is truncated, and the server rejects the truncated proposal, because the server's limit is lower.
const MOST: usize = 4 << 20;

/// The MCP protocol revision that `bottle-ask` sends.
const PROTOCOL: &str = "2025-06-18";

const HELP: &str = "\
Ask the user to let this sandbox reach a host. Approved routes work at once.

  bottle-ask routes                          show the allowed routes
  bottle-ask allow --why TEXT ROUTES         propose routes and wait for the decision
  bottle-ask check ID                        wait for the decision on a pending proposal
  bottle-ask tools                           list all tools, also those that start other sandboxes
  bottle-ask call TOOL [JSON]                call a tool with these arguments, `-` for standard input

  --why TEXT      the reason, for the user
  --refusal ID    the `id` in the 403 response to a denied request
  --wait          wait until the user has decided

ROUTES is a host (`api.example.com`), or YAML or JSON, `-` for standard input:

  - host: api.example.com
    matches:
    - methods: [GET]
      paths: [{type: prefix, value: /v1}]

Exit codes: 0 allowed, 1 not allowed, 2 usage error, 3 pending.";

const ALLOWED: u8 = 0;
const NOT_ALLOWED: u8 = 1;
const USAGE: u8 = 2;
const PENDING: u8 = 3;

/// Runs `bottle-ask` with these arguments and returns its exit code.
#[must_use]
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Option<Vec<String>> = arguments.map(|argument| argument.into_string().ok()).collect();
    let outcome = match arguments.ok_or(UsageError::Encoding).and_then(|words| Command::parse(&words)) {
        Ok(Command::Help) => print(io::stdout(), HELP).map(|()| ALLOWED),
        Ok(command) => execute(command),
        Err(why) => {
            print(io::stderr(), &format!("{COMMAND}: {why}; `{COMMAND} --help` shows how")).map(|()| USAGE)
        }
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = print(io::stderr(), &format!("{COMMAND}: {error:#}"));
            ExitCode::from(NOT_ALLOWED)
        }
    }
}

fn print(mut to: impl Write, text: &str) -> anyhow::Result<()> {
    writeln!(to, "{text}").context("cannot write output")
}

/// The reason why a command line is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UsageError {
    #[error("an argument is not UTF-8")]
    Encoding,
    #[error("{0} needs a value")]
    Value(String),
    #[error("unknown option {0}")]
    Option(String),
    #[error("unknown command `{0}`, or wrong arguments for it")]
    Command(String),
    #[error("a reason for the user is missing: `--why TEXT`")]
    Reason,
    #[error("`allow` takes one ROUTES")]
    Routes,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    Routes,
    Allow { routes: String, why: String, refusal: Option<String>, wait: bool },
    Check { id: String, wait: bool },
    Tools,
    Call { tool: String, arguments: String },
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut words = Vec::new();
        let (mut why, mut refusal, mut wait) = (None, None, false);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().cloned().ok_or_else(|| UsageError::Value(argument.clone()));
            match argument.as_str() {
                "-h" | "--help" => return Ok(Self::Help),
                "--why" => why = Some(value()?),
                "--refusal" => refusal = Some(value()?),
                "--wait" => wait = true,
                flag if flag.starts_with("--") => return Err(UsageError::Option(flag.to_owned())),
                word => words.push(word.to_owned()),
            }
        }
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(Self::Help),
            ["routes"] => Ok(Self::Routes),
            ["allow", routes] => {
                let why = why.ok_or(UsageError::Reason)?;
                Ok(Self::Allow { routes: (*routes).to_owned(), why, refusal, wait })
            }
            ["allow", ..] => Err(UsageError::Routes),
            ["check", id] => Ok(Self::Check { id: (*id).to_owned(), wait }),
            ["tools"] => Ok(Self::Tools),
            ["call", tool] => Ok(Self::Call { tool: (*tool).to_owned(), arguments: "{}".to_owned() }),
            ["call", tool, arguments] => {
                Ok(Self::Call { tool: (*tool).to_owned(), arguments: (*arguments).to_owned() })
            }
            [other, ..] => Err(UsageError::Command((*other).to_owned())),
        }
    }
}

/// Converts ROUTES on the command line to the tool's argument `routes`. ROUTES is a host, YAML or JSON. If ROUTES is
/// `-`, the function reads the routes from standard input.
fn routes_argument(text: &str, input: impl Read) -> anyhow::Result<Value> {
    if text == "-" {
        let mut text = String::new();
        input.take(MOST as u64).read_to_string(&mut text).context("standard input")?;
        return Ok(text.into());
    }
    let is_host = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte));
    Ok(if is_host { json!([{"host": text}]) } else { text.into() })
}

/// Parses the JSON arguments of the subcommand `call`. If `text` is `-`, the function reads the arguments from standard
/// input.
fn json_arguments(text: &str, input: impl Read) -> anyhow::Result<Value> {
    let mut read = String::new();
    let text = if text == "-" {
        input.take(MOST as u64).read_to_string(&mut read).context("standard input")?;
        &read
    } else {
        text
    };
    serde_json::from_str(text).context("the arguments are not JSON")
}

fn execute(command: Command) -> anyhow::Result<u8> {
    let (mut call, wait) = match command {
        Command::Help => return Ok(ALLOWED),
        Command::Tools => return once("tools/list", &json!({})),
        Command::Call { tool, arguments } => {
            let arguments = json_arguments(&arguments, io::stdin())?;
            return once("tools/call", &json!({"name": tool, "arguments": arguments}));
        }
        Command::Routes => (("list-egress-routes", json!({})), false),
        Command::Check { id, wait } => (("check-proposal", json!({"id": id})), wait),
        Command::Allow { routes, why, refusal, wait } => {
            let mut arguments =
                json!({"routes": routes_argument(&routes, io::stdin())?, "justification": why});
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
    loop {
        let parameters = json!({"name": call.0, "arguments": call.1});
        let Some(result) = request("tools/call", &parameters)? else { return Ok(USAGE) };
        let code = exit_code(&result);
        if code == PENDING && wait {
            call = ("check-proposal", json!({"id": result["id"]}));
            continue;
        }
        print(io::stdout(), &format!("{result:#}"))?;
        return Ok(code);
    }
}

/// Sends one request and prints its result.
fn once(method: &str, parameters: &Value) -> anyhow::Result<u8> {
    let Some(result) = request(method, parameters)? else { return Ok(USAGE) };
    match result.as_str() {
        Some(text) => print(io::stdout(), text.trim_end_matches('\n'))?,
        None => print(io::stdout(), &format!("{result:#}"))?,
    }
    Ok(ALLOWED)
}

/// Sends a request to the server and returns the result. If the request is invalid, prints the server's error message
/// and returns `None`.
fn request(method: &str, parameters: &Value) -> anyhow::Result<Option<Value>> {
    let hosts = std::fs::read_to_string("/etc/hosts").context("/etc/hosts")?;
    let server = server_address(&hosts).with_context(|| {
        format!("`/etc/hosts` has no `{SUPERVISE_HOST}`: supervision is off, or this is not a bottle")
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(reply(server, method, parameters))? {
        Reply::Result(result) => Ok(Some(result)),
        Reply::Invalid(message) => {
            print(io::stderr(), &format!("{COMMAND}: {message}"))?;
            Ok(None)
        }
    }
}

/// Returns the exit code for the result of a tool. A result without a status is the list of routes.
fn exit_code(result: &Value) -> u8 {
    match result["status"].as_str() {
        None | Some("approved" | "modified") => ALLOWED,
        Some("pending") => PENDING,
        Some(_) => NOT_ALLOWED,
    }
}

/// Finds the address of the supervise server in the content of `/etc/hosts` (hosts(5)).
fn server_address(hosts: &str) -> Option<SocketAddr> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address: Ipv4Addr = words.next()?.parse().ok()?;
        words.any(|word| word == SUPERVISE_HOST).then(|| (address, SUPERVISE_PORT).into())
    })
}

/// The server's reply to a call.
enum Reply {
    Result(Value),
    /// The call is invalid. This variant contains the server's error message.
    Invalid(String),
}

async fn reply(server: SocketAddr, method: &str, parameters: &Value) -> anyhow::Result<Reply> {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters});
    let answer = tokio::time::timeout(RESPONSE_WITHIN, exchange(server, request.to_string()));
    let answer = answer.await.context("the server did not respond in time")??;
    let answer: Value = serde_json::from_slice(&answer).with_context(|| {
        format!("the response is not JSON: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)]))
    })?;
    if let Some(message) = answer["error"]["message"].as_str() {
        return Ok(Reply::Invalid(message.to_owned()));
    }
    let result = &answer["result"];
    if result["isError"] == true {
        let sentence = result["content"][0]["text"].as_str().unwrap_or("the call is invalid");
        return Ok(Reply::Invalid(sentence.to_owned()));
    }
    // The content of a result is a list of tools, the JSON document of a call, or the text of a call.
    let contents = [&result["tools"], &result["structuredContent"], &result["content"][0]["text"]];
    match contents.into_iter().find(|content| !content.is_null()) {
        None => bail!("the response has no content: {answer}"),
        Some(content) => Ok(Reply::Result(content.clone())),
    }
}

async fn exchange(server: SocketAddr, body: String) -> anyhow::Result<Bytes> {
    let unreachable = || format!("cannot reach {SUPERVISE_HOST}:{SUPERVISE_PORT}");
    let socket = TcpStream::connect(server).await.with_context(unreachable)?;
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
    let answer = sender.send_request(request).await.with_context(unreachable)?;
    let body = Limited::new(answer.into_body(), MOST).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(|error| anyhow::anyhow!(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Command, UsageError> {
        Command::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn parses_the_command_line() {
        let allow = |refusal: Option<&str>, wait| Command::Allow {
            routes: "a.example".to_owned(),
            why: "tests".to_owned(),
            refusal: refusal.map(str::to_owned),
            wait,
        };
        for (words, expected) in [
            (&[][..], Command::Help),
            (&["allow", "--help"], Command::Help),
            (&["routes"], Command::Routes),
            (&["allow", "--why", "tests", "a.example"], allow(None, false)),
            (
                &["allow", "a.example", "--wait", "--refusal", "r-1", "--why", "tests"],
                allow(Some("r-1"), true),
            ),
            (&["check", "1f"], Command::Check { id: "1f".to_owned(), wait: false }),
            (&["tools"], Command::Tools),
            (&["call", "x"], Command::Call { tool: "x".to_owned(), arguments: "{}".to_owned() }),
            (&["call", "x", "-"], Command::Call { tool: "x".to_owned(), arguments: "-".to_owned() }),
        ] {
            assert_eq!(parse(words), Ok(expected), "{words:?}");
        }
        for words in
            [&["allow", "a.example"][..], &["allow", "--why"], &["allow", "--why", "x"], &["open"], &["--x"]]
        {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn accepts_a_host_or_yaml_as_routes() {
        let routes = |text| routes_argument(text, &b"- host: in.example"[..]).expect("routes");
        assert_eq!(routes("*.a.example"), json!([{"host": "*.a.example"}]));
        assert_eq!(routes("-"), json!("- host: in.example"));
        assert_eq!(routes("[{host: a.example}]"), json!("[{host: a.example}]"));
    }

    #[test]
    fn accepts_json_as_arguments() {
        let input = &b"{\"a\": 1}"[..];
        assert_eq!(json_arguments("-", input).expect("arguments"), json!({"a": 1}));
        assert_eq!(json_arguments("{}", input).expect("arguments"), json!({}));
        assert!(json_arguments("{", input).is_err());
    }

    #[test]
    fn maps_a_status_to_an_exit_code() {
        for (status, code) in [
            ("approved", 0),
            ("modified", 0),
            ("rejected", 1),
            ("refused", 1),
            ("expired", 1),
            ("pending", 3),
        ] {
            assert_eq!(exit_code(&json!({"status": status})), code, "{status}");
        }
        assert_eq!(exit_code(&json!({"routes": []})), 0);
    }

    #[test]
    fn finds_the_server_in_the_hosts_file() {
        let hosts = "127.0.0.1 localhost\n10.213.0.2 egress supervise git-gate # the proxy\n";
        assert_eq!(server_address(hosts), Some(([10, 213, 0, 2], 9100).into()));
        assert_eq!(server_address("127.0.0.1 localhost supervised"), None);
    }
}
