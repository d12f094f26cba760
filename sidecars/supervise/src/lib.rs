//! Implements the supervise daemon, an MCP server through which an agent proposes routes to the user.
//!
//! ```text
//! agent ── MCP, http://supervise:9100/mcp ──► mcp_server ─► proposals ─► bundle ─► keeper ─► user
//! command ── bottle-ask ──────────────────────┘                 ◄── answer, when the routes are active ┘
//! ```
//! The daemon has no secrets, and connects only to its parent process, the bundle. The bundle sends new routes to the
//! daemon after the egress proxy has activated the routes. If a proposal can never be applied, the daemon rejects the
//! proposal with an error message.
//!
//! ```text
//! daemon       the process: confinement, and requests of the parent process
//! http         connections of the bottle, and their limits
//! mcp_server   the MCP server, which uses the official SDK
//! tools        descriptions, schemas and arguments of the tools
//! keeper_tools calls of tools that the keeper carries out, if the bottle may start others
//! proposals    the bottle's proposals and their answers
//! ask_command  the command `bottle-ask`, for agents without MCP
//! ```

pub mod ask_command;
mod daemon;
mod http;
mod keeper_tools;
mod mcp_server;
mod proposals;
mod tools;

pub use daemon::{NAME, SuperviseConfig, run};
