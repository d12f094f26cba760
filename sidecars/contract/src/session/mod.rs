//! What travels between the keeper and the two ends it owns, the guest and the bundle.
//!
//! One byte stream, whatever the backend made it of, carries [`frame`]s: a hello from both sides, then
//! any number of independent streams. A stream is opened with one request ([`guest::GuestRequest`] or
//! [`bundle::BundleRequest`]), carries messages and data both ways under credit, and ends on each side
//! by itself. The clients of the keeper's own socket speak the same frames, so the keeper passes their
//! streams through without knowing what is in them.
//!
//! Everything a guest says is hostile: lengths are bounded here, types are closed enums, unknown fields
//! and kinds are errors.

pub mod bundle;
pub mod frame;
pub mod gate;
pub mod guest;

use serde::{Deserialize, Serialize};

/// The protocol's version. Both sides state theirs in the hello; they must be equal, because guest,
/// bundle and host are one program (an adopted bottle's may be older: then the keeper says so).
pub const PROTOCOL: u32 = 1;

/// First message of each side, in a [`frame::Kind::Hello`] frame on stream 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`] of the speaker.
    pub protocol: u32,
    /// Who speaks.
    pub role: Role,
    /// The program's version, for messages only.
    pub program: String,
}

impl Hello {
    /// This program's hello in `role`.
    #[must_use]
    pub fn of(role: Role) -> Self {
        Self { protocol: PROTOCOL, role, program: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// Which end of a channel speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The process that owns a bottle.
    Keeper,
    /// A command that talks to the keeper.
    Client,
    /// Pid 1 of the bottle.
    Guest,
    /// The parent of the sidecars.
    Bundle,
    /// The egress daemon, a child of the bundle.
    Egress,
    /// The git gate, another one.
    Gate,
    /// The MCP server, a third one.
    Supervise,
}
