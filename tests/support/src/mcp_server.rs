//! Starts `bottle mcp --http`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::home::TestHome;

/// A server of MCP on HTTP. Dropping the value ends the server.
#[derive(Debug)]
pub struct McpServer {
    process: Child,
    /// The address and port, as `127.0.0.1:4711`. The path is `/mcp`.
    pub address: String,
}

impl McpServer {
    /// Starts a server with the tokens of `tokens.yml` in the directory of the project.
    ///
    /// # Errors
    /// Fails if the server does not start.
    pub fn start(home: &TestHome) -> Result<Self> {
        let mut command = home.program(["mcp", "--http", "--token-file", "tokens.yml"])?.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let mut url = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut url)?;
        let address = url.trim().strip_prefix("http://").and_then(|url| url.strip_suffix("/mcp"));
        Ok(Self { process, address: address.with_context(|| url.clone())?.to_owned() })
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Creates a token. Returns the token, and its entry for the token file.
///
/// # Errors
/// Fails if the command fails.
pub fn token(home: &TestHome, name: &str) -> Result<(String, String)> {
    let made = home.program(["mcp", "token", name, "--json"])?.run()?.expect_code(0).json()?;
    let text = |key: &str| made[key].as_str().map(str::to_owned).context("a text");
    Ok((text("token")?, text("entry")?))
}
