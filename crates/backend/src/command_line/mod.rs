//! Runs the command-line programs of engines that have no API ([`runner`]).
//!
//! A backend that uses a command-line program consists of three parts: pure functions that build arguments, pure
//! parsers of the program's output, and this runner. Only the runner starts processes.

pub mod runner;
