//! What an agent asks of a user: the MCP server at the bottle's proxy.
//!
//! ```text
//! agent ── MCP, http://supervise:9100/mcp ──► server ─► proposals ─► questions ─► bundle ─► keeper ─► user
//! command ── bottle-ask ──────────────────────┘             ◄── answer, when the routes are live ──┘
//! ```
//! It holds no secret and reaches nothing but its parent: routes come to it when they are live at the proxy, and a
//! proposal that could never be applied is refused here, with the parser's words.
//!
//! ```text
//! daemon     what it gives up, is provisioned with and asked
//! http       connections of the bottle, and their bounds
//! server     the protocol, by the official SDK
//! tools      what there is to call, described, and its arguments
//! proposals  what was asked, and what became of it
//! ask        the other end, for agents that have no MCP: `bottle-ask`
//! ```

pub mod ask;
mod daemon;
mod http;
mod proposals;
mod server;
mod tools;

pub use daemon::{NAME, SuperviseConfig, run};
