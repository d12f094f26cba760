//! What each kind of agent needs from the machine it runs on.
//!
//! ```text
//!   command    any program: found on the host, with what it needs beside it
//!   closure    the least that has to be seen for a program to run ([`bounds`] say what never is)
//!   python, node, shebang   what the closure knows of installations
//!   search     PATH as the person has it, version managers' shims looked through
//! ```
//! Nothing here runs a program of the host: what is needed is read off files, or it is not known.

mod bounds;
mod closure;
pub mod command;
mod node;
mod python;
mod search;
mod shebang;
