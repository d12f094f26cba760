//! `bottle mcp`: an MCP server on the host, with which another agent drives bottles.
//!
//! ```text
//! client ─► server ─► scope ─► arguments ─► call ─► command policy ─┬► requests: the library
//!                                                                   └► program: `bottle … --json`
//! ```
//! Each tool does what the documents of the command say.
//!
//! - `tools`: the tools and their calls · `arguments`: their schemas and checks · `call`: what carries out a call ·
//!   `requests`: sends requests to a bottle · `program`: runs a command · `result`: what a call returns ·
//!   `resources`: logs and files
//! - `scope`: which bottles and tools a client may use · `server`: the server of one client
//! - `relay`: the calls of agents in bottles
//! - `http`, `tokens`: servers for clients with a token · `install`: registers the server in a client

mod arguments;
mod call;
mod http;
mod install;
mod program;
mod relay;
mod requests;
mod resources;
mod result;
mod scope;
mod server;
mod tokens;
mod tools;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_lib::report::{McpServer, McpToken};
use clap::Subcommand;
use rmcp::ServiceExt as _;

use self::http::Servers;
use self::scope::{Bottles, STARTED, Scope};
use self::server::Server;
use super::error::CliError;
use super::exit;
use super::loopback;
use super::output::Output;
use super::runtime::block_on;
use super::session::{Signals, interrupted};

/// SIGINT, with which the user ends the server.
const INTERRUPT: u8 = 2;

/// Serve MCP, so that another agent can start and drive bottles
///
/// Serves one client on standard input and output, as clients start it: `bottle mcp install CLIENT` registers it. With
/// `--http`, serves clients with a token on the loopback interface. A client may use the bottles that it started, and
/// those of its scope.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    command: Option<McpCommand>,
    /// The bottles that the client may use: `started` by it from this directory, `all`, or a pattern such as `ci-*`;
    /// repeat for several
    #[arg(long, value_name = "SCOPE", default_values_t = [STARTED.to_owned()])]
    scope: Vec<String>,
    /// Serve HTTP on the loopback interface
    #[arg(long, requires = "token_file", conflicts_with = "scope")]
    http: bool,
    /// With `--http`: use this port, and not any free one
    #[arg(long, requires = "http", default_value_t = 0)]
    port: u16,
    /// With `--http`: the file that says which token may use which bottles and tools
    #[arg(long, requires = "http", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    Install(install::Install),
    /// Make a token for `bottle mcp --http`, and print it with its entry for the token file
    Token {
        /// The name of the token
        name: String,
    },
    /// Carry out one call of the agent in a bottle, for the keeper of the bottle
    #[command(hide = true)]
    Relay {
        /// The bottle
        bottle: Slug,
    },
}

impl Mcp {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match (self.command, self.token_file) {
            (Some(McpCommand::Install(install)), _) => install.run(host, output),
            (Some(McpCommand::Token { name }), _) => {
                tokens::check_name(&name).map_err(|why| {
                    CliError::usage(format!("{name:?} is no name: {why}"))
                        .about(&name)
                        .hint("for example `bottle mcp token ci`")
                })?;
                let (token, entry) = tokens::make(&name);
                let text = format!("token: {token}\n\nEntry for the token file:\n{entry}");
                output.json_or(&McpToken { token, entry }, || output.print(&text))?;
                output.note(
                    "bottle does not store the token; `bottle mcp --http --token-file FILE` accepts it",
                );
                Ok(exit::DONE)
            }
            (Some(McpCommand::Relay { bottle }), _) => relay::run(host, output, &bottle),
            (None, Some(file)) => serve_http(host, output, self.port, tokens::read(&file)?),
            (None, None) => serve_stdio(host, output, &self.scope),
        }
    }
}

fn serve_stdio(host: &Host, output: &Output, scope: &[String]) -> Result<u8, CliError> {
    if std::io::stdin().is_terminal() {
        output.note("an MCP client starts this command and talks to it; Ctrl-C ends it");
    }
    let bottles = Bottles::parse(scope.iter().map(String::as_str)).map_err(|why| {
        CliError::usage(why).about("--scope").hint("write `started`, `all` or a pattern such as `ci-*`")
    })?;
    // The same client, started again in the same directory, finds the bottles that it started.
    let name = format!("stdio:{}", host.cwd.display());
    let server = Server::new(host.clone(), Scope { name, bottles, tools: None, mode: None });
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

fn serve_http(
    host: &Host,
    output: &Output,
    port: u16,
    granted: Vec<tokens::Granted>,
) -> Result<u8, CliError> {
    block_on(async {
        let mut signals = Signals::catch()?;
        let listener = loopback::listen(port).await?;
        let authority = loopback::authority(&listener)?;
        let url = format!("http://{authority}{}", http::PATH);
        output.json_or(&McpServer { url: url.clone() }, || output.print(&url))?;
        output.note("clients send `Authorization: Bearer TOKEN`; Ctrl-C ends the server");
        let servers = Arc::new(Servers::new(host, granted, &authority));
        tokio::select! {
            never = loopback::accept(listener, servers) => match never {},
            number = signals.end() => ended(number),
        }
    })
}

fn ended(signal: u8) -> Result<u8, CliError> {
    match signal {
        INTERRUPT => Ok(exit::DONE),
        other => Err(interrupted(other)),
    }
}
