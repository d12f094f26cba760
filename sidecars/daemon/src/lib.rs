//! Common runtime of the bundle's daemons. Each is a separate process that the bundle starts and controls and
//! that serves some of the bottle's listener ports.
//!
//! ```text
//! started ─► hardened ─► hello ─► provisioned ─► listening ─► (Stop | parent exits) ─► exit
//! ```
//! A daemon's channel is the socket that it inherits as standard input; the bundle forwards the keeper's
//! requests on it unchanged. When the channel closes, the daemon exits, and the kernel kills it if it hangs.

mod listener;
mod lockout;
mod memory;
mod parent;
mod role;

pub use listener::{BindError, Listener, ListenerConfig, Socket, remove_if_present};
pub use lockout::Lockout;
pub use parent::{Serve, serve};
pub use role::{Confined, Confinement, run};
