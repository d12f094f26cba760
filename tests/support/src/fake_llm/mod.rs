//! A fake model API: a server with the three wire formats of coding agents that plays one script.
//!
//! It is stateless. The number of tool results in a request's history selects the next step of the script, so
//! retries, restarts and concurrent agents get the right response. It refuses every key but one with 401: an agent
//! with a placeholder succeeds only if a proxy inserts the real key.
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
mod responses;
mod script;
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

/// The hosts whose certificate the fake model carries unless a test names others.
pub const DEFAULT_HOSTS: [&str; 6] =
    ["openrouter.ai", "api.openai.com", "api.anthropic.com", "chatgpt.com", "localhost", "127.0.0.1"];

/// How the fake model behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The one key it takes.
    pub key: String,
    /// What it makes the agent do.
    pub script: Script,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// Names in its certificate.
    pub hosts: Vec<String>,
    /// The protocols it offers.
    pub alpn: Alpn,
    /// The address it listens on.
    pub address: IpAddr,
    /// Its port there; 0 takes any free one.
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: format!("sk-real-{:032x}", rand::random::<u128>()),
            script: Script::default(),
            faults: Vec::new(),
            hosts: DEFAULT_HOSTS.map(str::to_owned).to_vec(),
            alpn: Alpn::default(),
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
        }
    }
}

/// One request as the model saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Upper case.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// `Host` or `:authority`.
    pub host: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// Every header, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Text of the body.
    pub body: String,
    /// Whether it carried the one key.
    pub key_accepted: bool,
    /// The wire format, when the path is one of them.
    pub api: Option<Api>,
    /// Whether a stream was requested.
    pub streamed: bool,
    /// Which call of the script it was (0 first), when it was one.
    pub step: Option<usize>,
    /// The status it got.
    pub status: u16,
    /// The usage in its response, if it was a model response.
    pub used: Option<Used>,
}

/// The usage in a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The model.
    pub model: String,
    /// Tokens read.
    pub input: u64,
    /// Tokens written.
    pub output: u64,
}

/// A running fake model.
pub struct FakeLlm {
    options: Arc<answer::State>,
    authority: Authority,
    server: Server,
}

impl FakeLlm {
    /// Starts it over TLS under an authority of its own.
    ///
    /// # Errors
    /// When the address or the port is taken or a host name is none.
    pub fn start(options: Options) -> Result<Self> {
        let authority = Authority::new("fake llm")?;
        let hosts: Vec<&str> = options.hosts.iter().map(String::as_str).collect();
        let tls = authority.server_config(&hosts, Leaf::Valid, options.alpn)?;
        let address = SocketAddr::new(options.address, options.port);
        let state = Arc::new(answer::State { options, seen: Mutex::default(), fault_uses: Mutex::default() });
        let server = Server::start_on(address, Some(tls), handler(Arc::clone(&state), answer::answer))?;
        Ok(Self { options: state, authority, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The one key it takes.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.options.options.key
    }

    /// The certificate authority that clients must trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Writes [`FakeLlm::ca_pem`] to `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_ca(&self, path: &Path) -> Result<()> {
        self.authority.write_pem(path)
    }

    /// Every request so far, in order of arrival.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.options.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The usage of every model response, in the order of the requests.
    #[must_use]
    pub fn usage(&self) -> Vec<Used> {
        self.seen().into_iter().filter_map(|seen| seen.used).collect()
    }

    /// The steps of the script that were requested with the valid key, in order.
    #[must_use]
    pub fn steps_served(&self) -> Vec<usize> {
        self.seen().iter().filter(|seen| seen.status == 200).filter_map(|seen| seen.step).collect()
    }
}
