//! The supervise daemon: an MCP server through which an agent proposes routes to the user.
//!
//! ```text
//! agent ── MCP, http://supervise:9100/mcp ──► server ─► proposals ─► questions ─► bundle ─► keeper ─► user
//! command ── bottle-ask ──────────────────────┘             ◄── answer, when the routes are live ──┘
//! ```
//! The daemon has no secrets and connects only to its parent, which sends it routes once they are live at
//! the proxy. It refuses a proposal that could never be applied, with the parser's error.
//!
//! ```text
//! daemon     the process: confinement, provisioning, requests of its parent
//! http       connections of the bottle, and their limits
//! server     the MCP server, on the official SDK
//! tools      the tools: descriptions, schemas, arguments
//! proposals  the bottle's proposals and their answers
//! ask        the command `bottle-ask`, for agents without MCP
//! ```

pub mod ask;
mod daemon;
mod http;
mod proposals;
mod server;
mod tools;

pub use daemon::{NAME, SuperviseConfig, run};
