//! `bottle mcp`: serves MCP, registers the server in clients, and makes tokens.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_lib::report::McpToken;
use clap::Subcommand;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::mcp::install::{Client, install};
use crate::mcp::scope::STARTED;
use crate::mcp::{serve_http, serve_stdio, tokens};

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
    /// Replace the value of this variable in all results, plain or encoded; repeat for several. The secrets in the
    /// variables of a bottle are always replaced
    #[arg(long, value_name = "VARIABLE")]
    redact: Vec<String>,
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
    /// Register `bottle mcp` in a client
    ///
    /// Claude Code, codex and VS Code are asked to do it with their own command; for Cursor, `~/.cursor/mcp.json` is
    /// changed.
    Install {
        /// The client
        #[arg(value_enum)]
        client: Client,
        /// The bottles that the client may use, as for `bottle mcp`
        #[arg(long, value_name = "SCOPE")]
        scope: Vec<String>,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a token for `bottle mcp --http`, and print it with its entry for the token file
    Token {
        /// The name of the token
        name: String,
    },
}

impl Mcp {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match (self.command, self.token_file) {
            (Some(McpCommand::Install { client, scope, dry_run }), _) => {
                install(host, output, client, &scope, dry_run)
            }
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
            (None, Some(file)) => serve_http(host, output, self.port, tokens::read(&file)?, &self.redact),
            (None, None) => serve_stdio(host, output, &self.scope, &self.redact),
        }
    }
}
