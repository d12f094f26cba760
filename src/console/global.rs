//! The flags of every command.

use clap::{ArgAction, ColorChoice};

/// The global flags.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Global {
    /// Print data, warnings and errors as JSON
    #[arg(long, global = true, display_order = 100)]
    pub(crate) json: bool,
    /// Print only data, warnings and errors
    #[arg(short, long, global = true, display_order = 101)]
    pub(crate) quiet: bool,
    /// Print log messages and each cause of an error; repeat for debug messages
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 102)]
    pub(crate) verbose: u8,
    /// Use colours: auto (on a terminal), always, or never
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", display_order = 103)]
    pub(crate) color: ColorChoice,
}
