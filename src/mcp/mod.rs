//! `bottle mcp`: an MCP server on the host. With this server, another agent can use bottles.
//!
//! ```text
//! client ─► server ─► scope ─► arguments ─► call ─► command policy ─► requests ─► the library
//! ```
//! Each tool behaves as the documentation of the corresponding command says.
//!
//! - `tools`: the tools and their calls · `arguments`: the schemas and checks of arguments · `call`: what a call
//!   requests · `requests`: calls the library · `result`: what a call returns · `tool_names`: tools instead of commands
//!   in errors · `resources`: logs and files
//! - `scope`: which bottles and tools a client may use · `server`: the server of one client
//! - `relay`: the calls of agents in bottles, in the processes of their keepers
//! - `http`, `tokens`: servers for clients with a token · `install`: registers the server in a client

mod arguments;
mod call;
mod http;
pub(crate) mod install;
pub(crate) mod relay;
mod requests;
mod resources;
mod result;
pub(crate) mod scope;
mod server;
pub(crate) mod tokens;
mod tool_names;
mod tools;

use std::io::IsTerminal;
use std::sync::Arc;

use bottle_host::Host;
use bottle_lib::redaction::Redaction;
use bottle_lib::report::McpServer;
use bottle_policy::secret::Secret;
use rmcp::ServiceExt as _;

use self::http::Servers;
use self::scope::{Bottles, Scope};
use self::server::Server;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::loopback;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};

/// SIGINT, with which the user ends the server.
const INTERRUPT: u8 = 2;

/// Serves one client on standard input and output until the client disconnects or a signal arrives. The values of the
/// variables `redacted` are replaced in every result.
///
/// # Errors
/// Returns an error if a scope is not valid, or if the connection fails.
pub(crate) fn serve_stdio(
    host: &Host,
    output: &Output,
    scope: &[String],
    redacted: &[String],
) -> Result<u8, CliError> {
    let redaction = redaction(host, redacted)?;
    if std::io::stdin().is_terminal() {
        output.note("an MCP client starts this command and talks to it; Ctrl-C ends it");
    }
    let bottles = Bottles::parse(scope.iter().map(String::as_str)).map_err(|why| {
        CliError::usage(why).about("--scope").hint("write `started`, `all` or a pattern such as `ci-*`")
    })?;
    // The name contains the working directory. A client that is started again in the same directory therefore finds the
    // bottles that it started.
    let name = format!("stdio:{}", host.cwd.display());
    let server = Server::new(host.clone(), Scope { name, bottles, tools: None, mode: None }, redaction);
    block_on(async {
        let mut signals = Signals::catch()?;
        let served = async {
            let running = server
                .serve((tokio::io::stdin(), tokio::io::stdout()))
                .await
                .map_err(|error| CliError::cannot("begin the MCP session", error))?;
            running.waiting().await.map_err(|error| CliError::cannot("serve the MCP client", error))
        };
        tokio::select! {
            served = served => served.map(|_| exit::DONE),
            number = signals.end() => ended(number),
        }
    })
}

/// Serves clients with a token on the loopback interface until a signal arrives. Redacts as [`serve_stdio`] does. Port
/// 0 selects any free port.
///
/// # Errors
/// Returns an error if the port cannot be used.
pub(crate) fn serve_http(
    host: &Host,
    output: &Output,
    port: u16,
    granted: Vec<tokens::Granted>,
    redacted: &[String],
) -> Result<u8, CliError> {
    let redaction = redaction(host, redacted)?;
    block_on(async {
        let mut signals = Signals::catch()?;
        let listener = loopback::listen(port).await?;
        let authority = loopback::authority(&listener)?;
        let url = format!("http://{authority}{}", http::PATH);
        output.json_or(&McpServer { url: url.clone() }, || output.print(&url))?;
        output.note("clients send `Authorization: Bearer TOKEN`; Ctrl-C ends the server");
        let servers = Arc::new(Servers::new(host, granted, &redaction, &authority));
        tokio::select! {
            never = loopback::accept(listener, servers) => match never {},
            number = signals.end() => ended(number),
        }
    })
}

/// Prepares the redaction of the values of these variables of the host.
fn redaction(host: &Host, names: &[String]) -> Result<Arc<Redaction>, CliError> {
    let value = |name: &String| {
        let value = host.var(name).filter(|value| !value.is_empty());
        value.map(|value| Secret::new(value.to_owned())).ok_or_else(|| {
            CliError::usage(format!("the variable {name:?} is not set"))
                .about("--redact")
                .hint("write the name of a variable, whose value is replaced in all results")
        })
    };
    let values = names.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Redaction::new(&values).map_err(|failure| failure.about("--redact"))?))
}

fn ended(signal: u8) -> Result<u8, CliError> {
    match signal {
        INTERRUPT => Ok(exit::DONE),
        other => Err(interrupted(other)),
    }
}
