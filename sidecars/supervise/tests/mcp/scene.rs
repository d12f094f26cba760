//! Provides the test fixture. The fixture consists of a daemon, the daemon's parent process, and a raw HTTP client.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bottle_channel::{Channel, Side};
use bottle_daemon::ListenerConfig;
use bottle_protocol::queue::{Answer, Question, Response, Scope, Status};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Routes, SuperviseProvision};
use bottle_protocol::session::{Hello, Role};
use bottle_supervise::SuperviseConfig;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;

/// The time limit for one step of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The routes that are active when the daemon starts.
const ROUTES: &str = "routes:\n- host: open.example\n  connect_to: 203.0.113.9:1\n- host: key.example\n  \
                      matches: [{methods: [GET]}]\n  auth: {scheme: Bearer, slot: user}\n";

/// A running daemon, and the test's side of the daemon's parent process. Dropping this value kills the daemon.
pub(crate) struct Scene {
    directory: TempDir,
    process: Child,
    channel: Channel,
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An HTTP response.
pub(crate) struct Reply {
    pub(crate) head: String,
    body: String,
}

impl Reply {
    pub(crate) fn status(&self) -> Result<u16> {
        let status = self.head.split(' ').nth(1).with_context(|| format!("no status: {:?}", self.head))?;
        Ok(status.parse()?)
    }

    /// Returns all JSON-RPC messages of the response. The response is a JSON body or an event stream.
    pub(crate) fn messages(&self) -> Result<Vec<Value>> {
        if !self.head.contains("text/event-stream") {
            return Ok(vec![serde_json::from_str(&self.body).with_context(|| self.body.clone())?]);
        }
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        data.filter(|data| !data.is_empty())
            .map(|data| serde_json::from_str(data).with_context(|| data.to_owned()))
            .collect()
    }

    /// Returns the last JSON-RPC message of the response.
    pub(crate) fn json(&self) -> Result<Value> {
        self.messages()?.pop().with_context(|| format!("no message: {} {}", self.head, self.body))
    }

    /// Returns the result of the call. Fails if the response is an error.
    pub(crate) fn result(&self) -> Result<Value> {
        let answer = self.json()?;
        ensure!(answer["error"].is_null() && answer["id"] == 7, "{answer}");
        Ok(answer["result"].clone())
    }
}

impl Scene {
    /// Starts a daemon. The function `user` answers the daemon's questions without a delay.
    pub(crate) async fn start(user: fn(&Question) -> Answer) -> Result<Self> {
        Self::start_with_patience(45, Duration::ZERO, user).await
    }

    /// Starts a daemon. The function `user` answers the daemon's questions after the delay `after`. A tool call waits
    /// for an answer for at most `call_seconds` seconds.
    pub(crate) async fn start_with_patience(
        call_seconds: u64,
        after: Duration,
        user: fn(&Question) -> Answer,
    ) -> Result<Self> {
        Self::provisioned(call_seconds, false, after, user).await
    }

    /// Starts a daemon with the tools of the keeper. The test acts as the keeper over [`Scene::channel`].
    pub(crate) async fn start_with_keeper_tools() -> Result<Self> {
        Self::provisioned(45, true, Duration::ZERO, |_| Answer::Expired).await
    }

    async fn provisioned(
        call_seconds: u64,
        keeper_tools: bool,
        after: Duration,
        user: fn(&Question) -> Answer,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = SuperviseConfig {
            proxy: ListenerConfig::Socket { directory: directory.path().to_owned() },
            identity: None,
        };
        let (ours, theirs) = StdUnixStream::pair()?;
        let process = Command::new(std::env::current_exe()?)
            .arg0("bottle")
            .args(["__supervise", "0123abcd", "tested"])
            .arg(serde_json::to_string(&config)?)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        ours.set_nonblocking(true)?;
        let io = UnixStream::from_std(ours)?;
        let (channel, _, hello) = Channel::establish(io, Side::Dialed, Hello::of(Role::Bundle)).await?;
        ensure!(hello.role == Role::Supervise);
        let asked = Arc::default();
        let scene = Self { directory, process, channel, asked };
        let first = Routes::first(ROUTES.parse()?);
        let provision = SuperviseProvision { routes: first, call_seconds, keeper_tools };
        let open = scene.ask(&BundleRequest::Supervise(provision)).await?;
        ensure!(open == BundleEvent::SuperviseOpen, "{open:?}");
        let (channel, asked) = (scene.channel.clone(), Arc::clone(&scene.asked));
        tokio::spawn(async move {
            bottle_queue::forward(&channel, |question| {
                asked.lock().unwrap_or_else(PoisonError::into_inner).push(question.clone());
                async move {
                    tokio::time::sleep(after).await;
                    user(&question)
                }
            })
            .await;
        });
        Ok(scene)
    }

    /// Creates an answer to a question.
    pub(crate) fn decided(
        question: &Question,
        status: Status,
        notes: Option<&str>,
        file: Option<String>,
    ) -> Answer {
        Answer::Decided(Box::new(Response {
            proposal_id: question.id.clone(),
            status,
            notes: notes.map(str::to_owned),
            final_file: file,
            decided_at: question.expires_at,
            scope: Scope::Run,
            decided_by: "someone".to_owned(),
        }))
    }

    /// Returns the path of the daemon's listener socket.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("9100")
    }

    /// Returns the test's end of the channel to the daemon. The test sends a keeper's requests over this channel.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the questions that the daemon has asked so far.
    pub(crate) fn asked(&self) -> Vec<Question> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// Replaces the active routes of the daemon.
    pub(crate) async fn routes(&self, revision: u64, yaml: &str) -> Result<()> {
        let routes = BundleRequest::Routes(Routes { revision, ..Routes::first(yaml.parse()?) });
        let live = self.ask(&routes).await?;
        ensure!(live == BundleEvent::Live { revision }, "{live:?}");
        Ok(())
    }

    async fn ask(&self, request: &BundleRequest) -> Result<BundleEvent> {
        let mut stream = self.channel.open(request).await?;
        Ok(tokio::time::timeout(PATIENCE, stream.receive()).await??)
    }

    /// Calls a tool with the protocol revision 2025-11-25.
    pub(crate) fn tool(&self, name: &str, arguments: Value) -> Result<Reply> {
        self.call("2025-11-25", "tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// Calls an MCP method with the given protocol revision.
    pub(crate) fn call(&self, revision: &str, method: &str, parameters: Value) -> Result<Reply> {
        let name =
            parameters["name"].as_str().map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": parameters});
        let extra = format!("MCP-Protocol-Version: {revision}\r\nMcp-Method: {method}\r\n{name}");
        let reply = self.post("/mcp", "supervise:9100", &extra, &body.to_string())?;
        if !(200..500).contains(&reply.status()?) {
            bail!("{} {}", reply.head, reply.body);
        }
        Ok(reply)
    }

    /// Sends one HTTP request on a new connection, and returns the response.
    pub(crate) fn post(&self, path: &str, host: &str, extra: &str, body: &str) -> Result<Reply> {
        let mut socket = StdUnixStream::connect(self.socket())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\n{extra}\
             Content-Length: {}\r\n\r\n",
            body.len()
        )?;
        // An error is ignored. If the request body is too long, the server responds before it has read the whole body.
        let _ = socket.write_all(body.as_bytes());
        let mut answer = Vec::new();
        if let Err(error) = socket.read_to_end(&mut answer)
            && answer.is_empty()
        {
            return Err(error.into());
        }
        let answer = String::from_utf8(answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no head: {answer:?}"))?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body)? } else { body.to_owned() };
        Ok(Reply { head: head.to_owned(), body })
    }
}

fn unchunked(mut text: &str) -> Result<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n").context("a chunk's size")?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default(), 16)?;
        if size == 0 {
            return Ok(whole);
        }
        whole.push_str(rest.get(..size).context("a whole chunk")?);
        text = rest.get(size..).and_then(|rest| rest.strip_prefix("\r\n")).context("a chunk's end")?;
    }
}
