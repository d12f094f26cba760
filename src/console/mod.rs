//! Code that the user interfaces share: the terminal, output in lines, errors with exit codes, signals.
//!
//! ```text
//! error, exit  errors, hints and exit codes      terminal     the user's terminal
//! output       standard output and error         layout       tables and wrapped lines
//! style        colours, Unicode and width        text_layout  text in the cells of a full screen
//! global       the flags of every command        progress     spinner and progress lines
//! runtime      the runtime of asynchronous work  signals      the signals that end a command
//! editor       the user's editor                 loopback     HTTP on the loopback interface
//! decision     a line of the proxy's access log
//! agent_log    an agent's output as lines     plain        a program's output as lines
//! ```

pub(crate) mod agent_log;
pub(crate) mod decision;
pub(crate) mod editor;
pub(crate) mod error;
pub(crate) mod exit;
pub(crate) mod global;
pub(crate) mod layout;
pub(crate) mod loopback;
pub(crate) mod output;
pub(crate) mod plain;
pub(crate) mod progress;
pub(crate) mod runtime;
pub(crate) mod signals;
pub(crate) mod style;
pub(crate) mod terminal;
pub(crate) mod text_layout;
