//! The JSON output of the commands that serve other programs.

use serde::Serialize;

/// The output of `bottle dashboard --web --json`.
#[derive(Debug, Serialize)]
pub struct WebDashboard {
    /// The link to the dashboard. The link works only once.
    pub url: String,
}

/// The output of `bottle mcp --http --json`.
#[derive(Debug, Serialize)]
pub struct McpServer {
    /// The address of the server.
    pub url: String,
}

/// The output of `bottle mcp token --json`.
#[derive(Debug, Serialize)]
pub struct McpToken {
    /// The token. The program does not store the token.
    pub token: String,
    /// The entry for the token file, in YAML.
    pub entry: String,
}
