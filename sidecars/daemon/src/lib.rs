//! Implements the common runtime of the bundle's daemons. Each daemon is a separate process, which the bundle starts
//! and controls. A daemon serves some of the bottle's listener ports.
//!
//! ```text
//! started ─► hardened ─► hello ─► provisioned ─► listening ─► (Stop | parent exits) ─► exit
//! ```
//! A daemon inherits a socket as its standard input, and uses the socket as its channel to the bundle. Over this
//! channel, the bundle forwards the keeper's requests unchanged. The daemon exits when the channel closes. The kernel
//! kills the daemon when the bundle exits, even if the daemon hangs.

mod listener;
mod lockout;
mod memory;
mod parent;
mod role;

pub use listener::{BindError, Listener, ListenerConfig, Socket, remove_if_present};
pub use lockout::Lockout;
pub use parent::{Serve, serve};
pub use role::{Confined, Confinement, run};
