//! The JSON output of the commands that serve other programs.

use serde::Serialize;

/// The output of `bottle dashboard --web --json`.
#[derive(Debug, Serialize)]
pub(crate) struct WebDashboard {
    /// The link that opens the dashboard once.
    pub(crate) url: String,
}

/// The output of `bottle mcp --http --json`.
#[derive(Debug, Serialize)]
pub(crate) struct McpServer {
    /// The address of the server.
    pub(crate) url: String,
}

/// The output of `bottle mcp token --json`.
#[derive(Debug, Serialize)]
pub(crate) struct McpToken {
    pub(crate) token: String,
    /// The entry for the token file, in YAML.
    pub(crate) entry: String,
}
