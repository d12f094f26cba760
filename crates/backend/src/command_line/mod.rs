//! Runs the command-line programs of engines that have no API ([`runner`]).
//!
//! A backend that is driven by such a program consists of a pure builder of arguments, pure parsers of the output, and
//! this runner, the only part that starts processes.

pub mod runner;
