//! The JSON output of the commands that serve other programs.

use serde::Serialize;

/// The output of `bottle dashboard --web --json`.
#[derive(Debug, Serialize)]
pub struct WebDashboard {
    /// The link that opens the dashboard once.
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
    /// The token, which the program does not store.
    pub token: String,
    /// The entry for the token file, in YAML.
    pub entry: String,
}
