//! A fake model API: a server with the three wire formats that coding agents use. It makes the agent run the
//! commands of a script.
//!
//! The server keeps no state about conversations. The number of tool results in a request's history selects
//! the next step of the script, so that retries, restarts and concurrent agents get the right response. The
//! server accepts a single key, and responds with 401 to all others: an agent with a placeholder succeeds
//! only if a proxy inserts the real key.
//!
//! ```text
//! request ─► auth ─► conversation (one reader per format) ─► script ─► tool shape ─► answer ─► fault
//!            401      results so far, tools declared          turn      arguments     JSON/SSE   late, cut
//! ```

mod answer;
mod chat;
mod conversation;
mod fault;
mod messages;
mod reply;
mod responses;
mod script;
mod socket;
mod sse;
mod tool;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

pub use conversation::Api;
pub use fault::{Fault, FaultKind};
pub use script::Script;

use crate::authority::{Alpn, Authority, Leaf};
use crate::server::{Server, handler};

/// The hosts for which the server's certificate is valid, unless a test sets others.
pub const DEFAULT_HOSTS: [&str; 6] =
    ["openrouter.ai", "api.openai.com", "api.anthropic.com", "chatgpt.com", "localhost", "127.0.0.1"];

/// How the fake model behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The only key that the server accepts.
    pub key: String,
    /// The script that the agent is made to run.
    pub script: Script,
    /// The faults to inject.
    pub faults: Vec<Fault>,
    /// The names for which the certificate is valid.
    pub hosts: Vec<String>,
    /// Whether the server accepts WebSockets for OpenAI's Responses.
    pub websockets: bool,
    /// The protocols that the server offers.
    pub alpn: Alpn,
    /// The address on which the server listens.
    pub address: IpAddr,
    /// The port on which the server listens. For 0, the kernel chooses a free port.
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: format!("sk-real-{:032x}", rand::random::<u128>()),
            script: Script::default(),
            faults: Vec::new(),
            hosts: DEFAULT_HOSTS.map(str::to_owned).to_vec(),
            websockets: false,
            alpn: Alpn::default(),
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
        }
    }
}

/// A request as the server received it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method, in upper case.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The header `Host` or `:authority`.
    pub host: String,
    /// The protocol: `HTTP/1.1` or `HTTP/2.0`; `WebSocket` for a request in a message.
    pub protocol: String,
    /// All headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
    /// Whether the request contained the accepted key.
    pub key_accepted: bool,
    /// The wire format, if the path belongs to one.
    pub api: Option<Api>,
    /// Whether a stream was requested.
    pub streamed: bool,
    /// The step of the script that the request asked for, from 0; `None` for other requests.
    pub step: Option<usize>,
    /// The status of the response.
    pub status: u16,
    /// The usage that the response reports, if it is a response of the model.
    pub used: Option<Used>,
}

/// The token usage that a response reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The name of the model.
    pub model: String,
    /// The number of input tokens.
    pub input: u64,
    /// The number of output tokens.
    pub output: u64,
}

/// A running fake model.
pub struct FakeLlm {
    options: Arc<answer::State>,
    authority: Authority,
    server: Server,
}

impl FakeLlm {
    /// Starts the server with TLS. Its certificate is signed by a new authority.
    ///
    /// # Errors
    /// Returns an error if the address or port is in use, or a host name is invalid.
    pub fn start(options: Options) -> Result<Self> {
        let authority = Authority::new("fake llm")?;
        let hosts: Vec<&str> = options.hosts.iter().map(String::as_str).collect();
        let tls = authority.server_config(&hosts, Leaf::Valid, options.alpn)?;
        let address = SocketAddr::new(options.address, options.port);
        let state = Arc::new(answer::State { options, seen: Mutex::default(), fault_uses: Mutex::default() });
        let server = Server::start_on(address, Some(tls), handler(Arc::clone(&state), answer::answer))?;
        Ok(Self { options: state, authority, server })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the only key that the server accepts.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.options.options.key
    }

    /// Returns the certificate of the authority, which clients must trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Writes [`FakeLlm::ca_pem`] to `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_ca(&self, path: &Path) -> Result<()> {
        self.authority.write_pem(path)
    }

    /// Returns all requests so far, in the order of arrival.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.options.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the usage of every response of the model, in the order of the requests.
    #[must_use]
    pub fn usage(&self) -> Vec<Used> {
        self.seen().into_iter().filter_map(|seen| seen.used).collect()
    }

    /// Returns the steps of the script that were requested with the accepted key, in order.
    #[must_use]
    pub fn steps_served(&self) -> Vec<usize> {
        self.seen().iter().filter(|seen| seen.status == 200).filter_map(|seen| seen.step).collect()
    }
}
